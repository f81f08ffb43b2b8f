"""The filter and its smoother against exact ones, particles, and the model's own likelihood and draws."""

import numpy as np
import pytest
import torch
from kalman import exact_filter, linear_gap, particle_filter, true_model

import neuralsde as nsde

A = np.array([[-1.0, 0.4], [-0.3, -0.7]])
NOISE = np.array([[1.2, 0.5], [0.5, 0.8]])


def irregular_paths(rng, num=3, length=30, *, missing=0.3, noise=0.3, widest=0.6, diagonal=False):
    """Noisy, partly observed paths of dx = A x dt + dW at irregular times, as lists; NaN is missing."""
    states, stamps, cov = [], [], np.diag(np.diag(NOISE)) if diagonal else NOISE
    for k in range(num):
        times = np.concatenate([[0.0], rng.uniform(0.05, widest, length + k - 1)]).cumsum()
        x = [rng.normal(size=2)]
        for gap in np.diff(times):
            decay, grown = linear_gap(A, cov, gap)
            x.append(decay @ x[-1] + np.linalg.cholesky(grown) @ rng.normal(size=2))
        y = np.array(x) + noise * rng.normal(size=(len(x), 2))
        y[rng.uniform(size=y.shape) < missing] = np.nan
        kept = ~np.isnan(y).all(1)
        states.append(y[kept].astype(np.float32).astype(np.float64))
        stamps.append(times[kept])
    return states, stamps


def linear(state):
    return state[:, -1] @ torch.from_numpy(A).T


@pytest.mark.parametrize("missing", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("diagonal", [True, False], ids=["diagonal", "full"])
def test_linear_fields_give_the_exact_kalman_filter_and_smoother(missing, diagonal, np_rng):
    cov = np.diag(np.diag(NOISE)) if diagonal else NOISE
    states, times = irregular_paths(np_rng, missing=missing, diagonal=diagonal)
    data = nsde.Trajectories.from_arrays(states, times, missing=True)
    settings = {} if diagonal else {"correlation": cov, "covariance": nsde.Full()}
    model = true_model(data, linear, np.sqrt(np.diag(cov)), law=nsde.Moments(steps=4), **settings)
    found, back = (run(data, measurement_std=[0.3, 0.2]) for run in (model.filter, model.smooth))
    for k, (y, t) in enumerate(zip(states, times)):
        after, smooth, density = exact_filter(
            y, np.diff(t), np.zeros(2), np.eye(2), [0.09, 0.04], lambda dt: linear_gap(A, cov, dt)
        )
        entries = (~np.isnan(y[1:])).sum()
        assert abs(float(found.log_likelihood[k]) - density[1:].sum()) < 1e-6 * entries
        for posterior, exact in ((found, after), (back, smooth)):
            means, stds = posterior[k]
            np.testing.assert_allclose(means, [m for m, _ in exact], atol=2e-6)
            np.testing.assert_allclose(stds, [np.sqrt(np.diag(c)) for _, c in exact], atol=2e-6)


def walks(rng, num=3, length=12, features=2):
    return rng.normal(size=(num, length, features)).cumsum(1) + 30.0


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"law": nsde.Moments()},
        {"law": nsde.Moments(), "covariance": nsde.LowRank(rank=1)},
        {"covariance": nsde.Full(), "history": 2},
        {"law": nsde.Moments(steps=2), "history": 2, "time_input": True},
        {"law": nsde.Moments(), "transform": "log", "normalise": "isotropic"},
        {"normalise": "whiten", "history": 3, "pad_history": False},
        {"tau": "uniform", "noise": 0.1},
    ],
    ids=lambda s: "-".join(s) or "euler",
)
def test_without_noise_and_gaps_the_likelihood_is_that_of_the_steps(settings, np_rng):
    context = np_rng.normal(size=(3, 12, 1))
    data = nsde.Trajectories.from_arrays(walks(np_rng), dt=0.1, context=context)
    model = nsde.NeuralSDE.for_data(data, net=nsde.MLPConfig(width=8, depth=1), **settings)
    for p in model.nets.parameters():
        torch.nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(p.numel()))
    found = model.filter(data)
    torch.testing.assert_close(found.log_likelihood.float(), model.log_prob(data), rtol=2e-4, atol=2e-3)
    torch.testing.assert_close(found.means, data.states, rtol=1e-5, atol=1e-4)
    assert float(found.stds.max()) < 1e-3


def test_history_gives_the_exact_filter_of_the_augmented_system(np_rng):
    """A particle on a spring, observed in position only: x'' = -x - x'/2 + noise, its velocity by two slots."""
    h, g, length = 0.2, 0.3, 40
    to = np.array([[0.0, 1.0], [-(1 - 0.5 * h), 2 - 0.5 * h - h * h]])  # slots (older, newest) after a step
    noise = np.diag([0.0, g * g])
    z, rows = np.zeros(2), []
    for _ in range(length):
        z = to @ z + [0.0, g * np_rng.normal()]
        rows.append(z[1])
    y = np.array(rows)[:, None] + 0.4 * np_rng.normal(size=(length, 1))
    times, kept = h * np.arange(length), np_rng.uniform(size=length) > 0.3
    y, times = y[kept].astype(np.float32).astype(np.float64), times[kept]
    data = nsde.Trajectories.from_arrays([y], [times])
    drift = lambda s: (1 - 0.5 * h) * (s[:, 1] - s[:, 0]) - h * h * s[:, 1]  # noqa: E731
    whole = nsde.Trajectories.from_arrays([np.array(rows)[:, None]], dt=h)
    model = true_model(whole, drift, [g], step=h, history=2)

    def decay_of(gap):
        decay, grown = np.eye(2), np.zeros((2, 2))
        for _ in range(round(gap / h)):
            decay, grown = to @ decay, to @ grown @ to.T + noise
        return decay, grown

    start = np.array([[1 + g * g, 1.0], [1.0, 1.0]])  # the older slot is behind by a step of the data's size
    reads = np.array([[0.0, 1.0]])
    after, smooth, density = exact_filter(y, np.diff(times), np.zeros(2), start, [0.16], decay_of, reads)
    found, back = (run(data, measurement_std=0.4) for run in (model.filter, model.smooth))
    assert float(found.log_likelihood) == pytest.approx(density[2:].sum(), abs=1e-6 * length)
    for posterior, exact in ((found, after), (back, smooth)):
        means, stds = posterior[0]
        np.testing.assert_allclose(means[:, 0], [m[1] for m, _ in exact], atol=2e-6)
        np.testing.assert_allclose(stds[:, 0], [np.sqrt(c[1, 1]) for _, c in exact], atol=2e-6)


@pytest.mark.parametrize("law", [nsde.Euler(), nsde.Moments(steps=2)], ids=["euler", "moments"])
def test_what_is_not_observed_is_known_as_draws_are_spread(law, np_rng):
    """History 2, three steps without an observation: mean and spread are those of the model's own paths."""
    paths = 0.1 * walks(np_rng, num=8, length=30)
    paths[:, :, 1] += np.sin(0.5 * np.arange(30))
    data = nsde.Trajectories.from_arrays(list(paths), dt=0.5)
    model = nsde.NeuralSDE.for_data(data, net=nsde.MLPConfig(width=16, depth=1), law=law, history=2, noise=0.0, denoiser=None)
    nsde.fit(model, data, steps=60, lr=1e-2, progress=False)
    short = paths[:1, :3].copy()
    short[0, 2] += [np.nan, 0.0]  # at time 2: the second feature alone
    states, times = np.concatenate([short[0, :2], short[0, 2:]]), np.array([0.0, 0.5, 2.0])
    one = nsde.Trajectories.from_arrays([states], [times], missing=True)
    after = model.filter(one, measurement_std=1e3)  # the observation says nothing, so this is the prediction
    exact = nsde.Trajectories.from_arrays([states[:2]], dt=0.5)
    assert float(after.stds[2].max()) < 10
    drawn = model.sample(exact.states[None], [0.5, 1.0, 1.5, 2.0], num_paths=20_000, rng=1)[0, :, -1]
    start = model.filter(exact)
    assert float(start.stds[-1].max()) < 1e-4
    known = nsde.Trajectories.from_arrays([states], [times], missing=True)
    own, data_ = model._filter(known, None)
    before = own.run(data_).before
    mean = model.scale.raw(before.mean[2, -2:])
    cov = model.scale.raw_covariance(mean[None], before.cov[2:, -2:, -2:])[0]
    std = drawn.std(0).double()
    assert float(((drawn.mean(0) - mean) / std).abs().max()) < 0.05
    assert float(((torch.cov(drawn.T) - cov) / (std[:, None] * std)).abs().max()) < 0.06
