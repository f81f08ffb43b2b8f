"""The example of demonstrations without actions: its simulator, its inverse model, and that it runs as it stands."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(ROOT / "examples" / "inverse_dynamics.py"))


def test_demonstrations_take_both_sides_to_the_goal(example, np_rng):
    states, actions = example["demonstrate"](np_rng, 300)
    assert states.shape == (300, 81, 4) and actions.shape == (300, 80, 2)
    assert example["touches"](states, 0).any(1).mean() < 0.02
    assert (np.linalg.norm(states[:, -10:, :2] - example["GOAL"], axis=2).min(1) < example["TOLERANCE"]).mean() > 0.98
    assert 0.4 < example["above"](states[..., :2]).mean() < 0.6


def test_a_wall_blocks_one_side(example):
    x = np.array([[0.0, 0.5, 0, 0], [0.0, -0.5, 0, 0], [0.5, 0.5, 0, 0], [0.1, 0.1, 0, 0]])
    for blocked, expected in ((0, [0, 0, 0, 1]), (1, [1, 0, 0, 1]), (-1, [0, 1, 0, 1])):
        assert example["touches"](x, blocked).tolist() == [bool(e) for e in expected]


def test_the_inverse_model_finds_the_actions(example, np_rng):
    """The exact inverse is wrong by the noise of the simulator, 0.01 / (DT GAIN); the learned one hardly more."""
    train, held_out = example["play"](np_rng, 200), example["play"](np_rng, 50)
    torch.manual_seed(0)
    model = example["InverseModel"](*train, steps=1_000, rng=torch.Generator().manual_seed(0))
    x, action, after = held_out
    exact, learned = (
        np.sqrt(np.mean((inverse.act(x, after) - action) ** 2)) for inverse in (example["ExactInverse"], model)
    )
    assert exact == pytest.approx(0.01 / (example["DT"] * example["GAIN"]), rel=0.05)
    assert learned < 1.25 * exact


@pytest.mark.parametrize(("successes", "num"), [(0, 10), (7, 10), (199, 200), (200, 200)])
def test_the_interval_is_that_of_scipy(example, successes, num):
    expected = stats.binomtest(successes, num).proportion_ci(method="wilson")
    np.testing.assert_allclose(example["wilson"](successes, num), [expected.low, expected.high], atol=1e-4)


def test_it_runs_and_writes_what_it_shows(example, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(example["main"].__globals__, "NUM_STEPS", 20)  # of an episode
    example["main"](steps=10, num_episodes=4, output=tmp_path / "r.json", figure=tmp_path / "f.png")
    assert "Neural SDE + inverse model" in capsys.readouterr().out
    values = json.loads((tmp_path / "r.json").read_text())
    assert values["commit"] and [row["success"]["n"] for row in values["rows"].values()] == [4] * 5
    assert (tmp_path / "f.png").stat().st_size > 10_000
