"""The models of `same.py` compute what was recorded: first losses and samples closely, the last loss nearly."""

import json

import numpy as np
import pytest
import torch

import same

ELSEWHERE = {"frames-uniform", "DDIM", "DDIM-unet", "Autoencoder", "policies"}
"""Convolutions, and long chains that make rounding large: CPUs without bf16, unlike those of the record, round otherwise.
`make same` compares them bitwise on one machine."""
RECORDED = json.loads((same.HERE / "same" / "recorded.json").read_text(encoding="utf-8"))


def skip_elsewhere(name):
    if name in ELSEWHERE and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("recorded on a CPU of another kind")


def check(found, recorded):
    assert found.keys() == recorded.keys()
    for key, values in recorded.items():
        if key == "losses":
            np.testing.assert_allclose(found[key][0], values[0], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(found[key][-1], values[-1], rtol=1e-3, atol=1e-4)
        else:
            size = np.abs(values).max()
            np.testing.assert_allclose(found[key], values, rtol=1e-5, atol=1e-5 * size, err_msg=key)


def test_every_model_is_recorded():
    assert RECORDED.keys() == same.models().keys() | {"policies", "video"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", same.models())
def test_a_model_computes_what_it_did(name):
    skip_elsewhere(name)
    check(same.numbers_of(same.models()[name]), RECORDED[name])


def test_policies_act_as_they_did():
    skip_elsewhere("policies")
    check(same.numbers_of_policies(), RECORDED["policies"])


def test_the_shipped_video_model_draws_what_it_did():
    found, recorded = same.numbers_of_video(), RECORDED["video"]
    for key, values in recorded.items():
        assert np.abs(np.subtract(found[key], values)).max() <= 1  # bytes: rounding may go either way
