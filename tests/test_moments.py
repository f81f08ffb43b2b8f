"""The law of a long step, against closed forms, simulation and finite differences."""

import math

import numpy as np
import pytest
import torch
from scipy import linalg, stats

import neuralsde as nsde
from neuralsde.experiments.tasks.systems import SYSTEMS
from neuralsde.sde.config import Euler, Moments
from neuralsde.sde.laws.moments import MomentsStep
from neuralsde.sde.pairs import Gap, slots_after
from neuralsde.sde.propagation import propagate
from neuralsde.solvers.gaussian import log_density
from neuralsde.solvers.schemes import Coefficients


def log_prob_of(fields, state, step, dt, num_steps):
    """Log density of steps by their moments."""
    law = MomentsStep(Moments(steps=num_steps), tuple(state.shape[2:]), start=True)
    sde = lambda x, condition, rows: Coefficients(*fields(x, condition, rows))  # noqa: E731
    return law.log_prob(Gap(state, step, dt, lambda share: None, None), sde)


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def fields_of(system):
    return lambda x, share, rows: (system.drift(x), system.diffusion(x).square())


@pytest.mark.parametrize(("rate", "limit"), [(0.05, 1e-5), (0.5, 6e-3)])
def test_ornstein_uhlenbeck_in_one_step(rate, limit):
    mean, cov = propagate(fields_of(SYSTEMS["ou"]()), f64([1.3]), f64([rate]), 1)
    assert float(mean) == pytest.approx(1.3 * math.exp(-rate), rel=limit)
    assert float(cov) == pytest.approx(1 - math.exp(-2 * rate), rel=limit)


def test_coupled_linear_system_has_the_covariance_of_lyapunov(np_rng):
    a, g, dt = np_rng.normal(size=(4, 4)), np.array([0.3, 1.0, 0.5, 2.0]), 0.2
    mean, cov = propagate(
        lambda x, share, rows: (x @ torch.from_numpy(a).T, torch.from_numpy(g**2).expand_as(x)),
        f64([1.0, -1.0, 0.5, 2.0]),
        f64([dt]),
        4,
    )
    decay = linalg.expm(a * dt)
    exact = linalg.solve_continuous_lyapunov(a, decay @ np.diag(g**2) @ decay.T - np.diag(g**2))
    np.testing.assert_allclose(mean[0], decay @ [1.0, -1.0, 0.5, 2.0], rtol=2e-4)
    np.testing.assert_allclose(cov[0], exact, rtol=5e-3, atol=1e-4)


def test_the_error_falls_with_the_third_power_of_the_step():
    """Double well with its curvature: halving the gap divides the error of one step by about eight."""
    fields, x = fields_of(SYSTEMS["double_well"]()), f64([0.6])

    def error(dt):
        (mean, cov), (fine_mean, fine_cov) = (propagate(fields, x, f64([dt]), n) for n in (1, 64))
        return abs(float(mean - fine_mean)), abs(float(cov - fine_cov))

    for wide, narrow in zip(error(0.1), error(0.05)):
        assert wide / narrow > 5.5


@pytest.mark.parametrize("name", ["double_well", "van_der_pol", "lorenz", "cir"])
def test_moments_are_those_of_simulated_paths(name, np_rng):
    system = SYSTEMS[name]()
    x, gap, num = system.first_states(3, np_rng), 3 * system.dt, 40_000
    many = x.repeat_interleave(num, 0)
    end = system.simulate(many, torch.tensor([[0.0, gap]]).expand(len(many), 2), np_rng)[:, 1].reshape(3, num, -1)
    mean, cov = propagate(fields_of(system), x, torch.full((3, 1), gap, dtype=torch.float64), 4)
    for k in range(3):
        std = end[k].std(0)
        assert float(((end[k].mean(0) - mean[k]) / std).abs().max()) < 0.025
        assert float(((torch.cov(end[k].T).reshape(cov[k].shape) - cov[k]) / (std[:, None] * std)).abs().max()) < 0.035


def test_density_of_what_was_seen(np_rng):
    root = np_rng.normal(size=(3, 3))
    cov, error = root @ root.T + np.eye(3), np_rng.normal(size=3)
    seen = torch.tensor([[True, False, True]])
    some = np.ix_([0, 2], [0, 2])
    args = torch.from_numpy(error)[None], torch.from_numpy(cov)[None]
    assert float(log_density(*args)) == pytest.approx(stats.multivariate_normal(np.zeros(3), cov).logpdf(error))
    expected = stats.multivariate_normal(np.zeros(2), cov[some]).logpdf(error[[0, 2]])
    assert float(log_density(*args, seen)) == pytest.approx(expected)
    variances = torch.from_numpy(np.diag(cov).copy())[None]
    expected = stats.norm(0, np.sqrt(np.diag(cov))).logpdf(error)
    assert float(log_density(args[0], variances, seen)) == pytest.approx(expected[[0, 2]].sum())
    assert float(log_density(args[0], torch.diag_embed(variances))) == pytest.approx(expected.sum())


def test_gradients_reach_both_fields():
    a, s = f64(0.7).requires_grad_(), f64(0.4).requires_grad_()

    def value(a, s):
        fields = lambda x, condition, rows: (-a * x[:, -1] ** 3, s * (1 + x[:, -1] ** 2))  # noqa: E731
        state, step = f64([[0.5, -0.2]], [[1.0, 0.3]]), f64([0.1, 0.2], [-0.3, 0.1])
        return log_prob_of(fields, state, step, f64(0.3, 0.1), 2)

    assert torch.autograd.gradcheck(value, (a, s))


def train(dt, *, law, problem="ou"):
    """A model of paths with long gaps, and their system."""
    system = SYSTEMS[problem]()
    rng = np.random.default_rng(0)
    x, times = system.first_states(1000, rng), dt * torch.arange(41.0)[None].expand(1000, -1)
    data = nsde.Trajectories.from_arrays(system.simulate(x, times, rng).numpy(), times[0].numpy())
    net = nsde.MLPConfig(width=48, depth=2)
    model = nsde.NeuralSDE.for_data(data, noise=0.0, denoiser=None, net=net, law=law)
    nsde.fit(model, data, steps=500, lr=3e-3, batch_size=512, progress=False)
    return model, system, data


@pytest.mark.slow
def test_long_gaps_no_longer_bias_what_is_learned():
    """OU with rate times gap 0.5: the Euler density reads 0.79 of the rate, the moments read it right."""
    x = torch.linspace(-1.5, 1.5, 31)[:, None]
    slopes, noises = {}, {}
    for transition, law in (("euler", Euler()), ("moments", Moments(steps=2))):
        model = train(0.5, law=law)[0]
        f, g = model.fields(x)
        slopes[transition] = -float((f * x).sum() / (x * x).sum())
        noises[transition] = float(g.mean()) / math.sqrt(2)
    assert slopes["euler"] == pytest.approx((1 - math.exp(-0.5)) / 0.5, abs=0.05)
    assert slopes["moments"] == pytest.approx(1.0, abs=0.06)
    assert noises["euler"] == pytest.approx(math.sqrt((1 - math.exp(-1.0)) / 1.0), abs=0.04)
    assert noises["moments"] == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("past", [0.0, 0.3, 1.0, 1.7, 3.5])
def test_older_slots_follow_the_path_for_as_long_as_has_passed(past):
    """Not for the same share of a slot: a gap need not be as long as the slots are apart."""
    state, newest = torch.randn(4, 3, 2), torch.randn(4, 2)
    slots = slots_after(state, newest, torch.full((4,), past))
    knots = np.array([0.0, 1.0, 2.0, 2.0 + past])
    for row in range(4):
        for k in range(2):
            path = np.append(state[row, :, k].numpy(), newest[row, k])
            wanted = np.interp([past, 1 + past, 2 + past], knots, path)
            wanted[-1] = newest[row, k]
            np.testing.assert_allclose(slots[row, :, k], wanted, atol=1e-5)
    assert torch.equal(slots_after(state[:, -1:], newest, torch.full((4,), past)), newest[:, None])


def test_the_likelihood_of_gaps_shorter_than_the_slots_are_apart():
    """Steady motion by v = newest - older slot: it stays v all along, whatever the gap."""
    state, dt = torch.tensor([[[0.0], [1.0]]]), torch.tensor([[0.25]])

    def fields(slots, condition, rows):
        return slots[:, -1] - slots[:, -2], torch.full_like(slots[:, -1], 0.1)

    found = log_prob_of(fields, state, 1.0 * dt, dt, 4)
    expected = log_density(torch.zeros(1, 1), torch.full((1, 1), 0.01) * dt)
    np.testing.assert_allclose(found, expected, atol=0.3)  # the covariance grows by the newest slot's own share
    late = log_prob_of(fields, state, 1.4 * dt, dt, 4)
    assert float(late) < float(found) - 1


def test_a_gap_takes_at_most_the_steps_that_it_may():
    """A double well asks for many in a long gap."""
    rng = np.random.default_rng(0)
    state = torch.from_numpy(rng.standard_normal((64, 1, 1))).float()

    def well(slots, given, rows):
        x = slots[:, -1]
        return Coefficients(4 * (x - x**3), torch.ones_like(x))

    gap = Gap(state, torch.zeros(64, 1), torch.ones(64, 1), lambda share: None, None)
    taken = {}
    for most in (1, 4, 32):
        law = MomentsStep(Moments(most=most), (1,), start=True)
        law.settle(gap, well)
        taken[most] = int(law.num_steps(torch.ones(1)))
    assert taken[1] == 1
    assert taken[4] == 4
    assert 4 < taken[32] <= 32
    with pytest.raises(ValueError, match=r"`most` is at least `steps`. Got steps=4, most=2"):
        nsde.NeuralSDEConfig(law=Moments(steps=4, most=2))
