"""The filter and its smoother against exact ones, particles, and the model's own likelihood and draws."""

import numpy as np
import pytest
import torch
from kalman import exact_filter, linear_gap, particle_filter, true_model

import neuralsde as nsde

A = np.array([[-1.0, 0.4], [-0.3, -0.7]])
NOISE = np.array([[1.2, 0.5], [0.5, 0.8]])


def irregular_paths(rng, num=6, length=40, *, missing=0.3, noise=0.3, widest=0.6, diagonal=False):
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
        kept[0] &= True
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
