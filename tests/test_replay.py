"""Roll-outs that replay a recorded step: which may, and that they are the same."""

import numpy as np
import pytest
import torch

import neuralsde as nsde
from neuralsde.models import sequence


def small(**settings):
    x = np.random.default_rng(0).standard_normal((6, 30, 2)).cumsum(1)
    data = nsde.Trajectories.from_arrays(list(x))
    return nsde.NeuralSDE.for_data(data, net=nsde.MLPConfig(width=8, depth=1), **settings)


@pytest.mark.parametrize(
    ("settings", "sampler", "alike"),
    [
        ({}, {}, True),
        ({"history": 3}, {"pull": 0.5}, True),
        ({"shared": True}, {}, True),
        ({"covariance": nsde.Full()}, {}, True),
        ({"covariance": nsde.LowRank(rank=1)}, {}, False),  # it draws noise by the number of the step
        ({"law": nsde.Mixture()}, {}, False),
        ({"law": nsde.Moments()}, {}, False),
        ({"tau": "uniform"}, {}, False),  # the balance takes derivatives
        ({"tau": "uniform"}, {"balance": 0.0}, True),
        ({}, {"solver": "heun"}, False),
    ],
)
def test_steps_are_repeated_where_they_are_alike(settings, sampler, alike):
    model = small(**settings)
    assert model.repeats(nsde.Sampler(**sampler), None) is alike
    assert not model.repeats(nsde.Sampler(**sampler), torch.zeros(1, 5, 2))  # a context that changes along the path


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
@pytest.mark.parametrize("history", [1, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_replayed_paths_are_bitwise_those_of_single_steps(history, shared, monkeypatch):
    model = small(history=history, shared=shared).cuda()
    start, times = np.zeros((2, history, 2)), np.arange(101.0)
    one = model.draw(start, times, num_paths=5, rng=0)
    monkeypatch.setattr(sequence, "ENOUGH", 10**9)
    other = model.draw(start, times, num_paths=5, rng=0)
    assert torch.equal(one.paths, other.paths) and one.nfe == other.nfe
