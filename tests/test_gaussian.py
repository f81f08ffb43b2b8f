"""The Gaussian autoregressive perceptron: its density, its law, and the steps it knows."""

import math

import numpy as np
import pytest
import torch

import neuralsde as nsde
from neuralsde.baselines.config import GaussianConfig
from neuralsde.data.trajectories import Trajectories
from neuralsde.models.build import build
from neuralsde.nets.config import MLPConfig
from neuralsde.solvers.noise import Noise

NET = MLPConfig(width=32, depth=1)
DECAY = math.exp(-0.5)


def ornstein_uhlenbeck(num_paths=50, num_steps=200, *, times=None):
    """Unit rate and unit variance, at steps of 0.5 or at the given times (P, T)."""
    rng = np.random.default_rng(0)
    times = np.tile(0.5 * np.arange(num_steps + 1), (num_paths, 1)) if times is None else times
    x = [rng.standard_normal((num_paths, 1))]
    for gap in np.diff(times, axis=1).T[..., None]:
        x.append(np.exp(-gap) * x[-1] + np.sqrt(1 - np.exp(-2 * gap)) * rng.standard_normal((num_paths, 1)))
    return Trajectories.from_arrays(list(np.stack(x, axis=1)), list(times))


def test_log_prob_is_the_density_of_what_is_sampled():
    pairs = ornstein_uhlenbeck(5, 20).transitions()
    model = build(GaussianConfig(net=NET), pairs)
    torch.nn.init.normal_(model.nets["net"].outward.weight, generator=torch.Generator().manual_seed(0))
    batch = pairs[torch.arange(1)]
    paths = model.sample(batch.history, [0.0, 0.5], num_paths=40_000, rng=torch.Generator().manual_seed(0))[0, :, 1, 0]
    law = torch.distributions.Normal(paths.mean(), paths.std())
    batch.next = (paths.mean() + 0.3 * paths.std()).reshape(1, 1)
    assert float(model.log_prob(batch)) == pytest.approx(float(law.log_prob(batch.next)), abs=0.02)


def test_loss_is_the_negative_log_density_up_to_units():
    pairs = ornstein_uhlenbeck(5, 20).transitions()
    model = build(GaussianConfig(net=NET), pairs)
    batch = pairs[torch.arange(50)]
    loss = float(model.loss(batch, Noise.for_step(0, 0, torch.arange(50)))["likelihood"].detach())
    units = 0.5 * math.log(2 * math.pi) + math.log(float(model.scale.std))
    assert -float(model.log_prob(batch).mean()) == pytest.approx(loss + units, rel=1e-5)


def test_it_learns_the_exact_transition():
    data = ornstein_uhlenbeck()
    model = build(GaussianConfig(net=NET), data.transitions())
    nsde.fit(model, data, steps=400, batch_size=256, lr=3e-3, progress=False)
    x = torch.linspace(-1.5, 1.5, 7)[:, None]
    u, one = model.scale.states(x)[:, None], torch.ones(7, 1)
    with torch.no_grad():
        mean, log_std = model.law(u, one, None)
    torch.testing.assert_close(x + mean * model.scale.std, DECAY * x, atol=0.06, rtol=0)
    std = math.sqrt(1 - DECAY**2)
    torch.testing.assert_close(torch.exp(log_std) * model.scale.std, torch.full((7, 1), std), atol=0.05, rtol=0)


def test_steps_it_was_not_trained_with_are_refused():
    pairs = ornstein_uhlenbeck(5, 20).transitions()
    model = build(GaussianConfig(net=NET), pairs)
    batch = pairs[torch.arange(2)]
    assert model.sample(batch.history, [0.0, 0.5, 2.0]).shape == (2, 1, 3, 1)
    with pytest.raises(ValueError, match=r"only knows steps of 0.5 to 0.5"):
        model.sample(batch.history, [0.0, 0.75])
    batch.dt = 2 * batch.dt
    with pytest.raises(ValueError, match=r"only knows steps of 0.5 to 0.5, as in its training. Got one of 1"):
        model.log_prob(batch)
    with pytest.raises(ValueError, match=r"`nets` must hold \['net'\]"):
        build(GaussianConfig(net=NET), pairs, nets={"flow": torch.nn.Identity()})


def test_long_paths_take_as_many_steps_as_the_data_despite_rounding():
    data = Trajectories.from_arrays(np.zeros((1, 30, 1)) + np.arange(30.0)[:, None], dt=0.01)
    model = build(GaussianConfig(net=NET), data.transitions())
    done = model.draw(torch.zeros(1, 1), torch.tensor([0.0, 0.01, 0.1, 1.0, 20.0], dtype=torch.float64))
    assert done.nfe == {"net": 2_000}


def test_irregular_steps_are_an_input():
    rng = np.random.default_rng(1)
    times = rng.uniform(0.2, 1.0, (400, 101)).cumsum(1)
    data = ornstein_uhlenbeck(400, times=times)
    model = build(GaussianConfig(net=NET), data.transitions())
    nsde.fit(model, data, steps=400, batch_size=256, lr=3e-3, progress=False)
    for gap in (0.3, 0.9):
        x = torch.ones(4_000, 1)
        paths = model.sample(x, [0.0, gap], rng=torch.Generator().manual_seed(0))[:, 0, 1]
        assert float(paths.mean()) == pytest.approx(math.exp(-gap), abs=0.08)
        assert float(paths.std()) == pytest.approx(math.sqrt(1 - math.exp(-2 * gap)), abs=0.06)
