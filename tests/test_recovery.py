"""Known SDEs are learned from data, from start states and from interpolated ones alike."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from problems import CoxIngersollRoss, DoubleWell, GeometricBrownianMotion, OrnsteinUhlenbeck
from scipy import stats

import neuralsde as nsde
from neuralsde.nets.config import MLPConfig

FINE = nsde.Sampler(substeps=3)


def train(problem, tau, num_paths, num_times):
    paths = problem.paths(np.random.default_rng(1), num_paths, num_times)
    data = nsde.Trajectories.from_arrays(paths, dt=problem.dt)
    linear = isinstance(problem, OrnsteinUhlenbeck | GeometricBrownianMotion)  # which a small net learns as well
    net = MLPConfig(width=32, depth=1) if linear else MLPConfig(width=48, depth=2)
    model = nsde.NeuralSDE.for_data(data, tau=tau, noise=0.05, net=net)
    # The score is a small signal under unit noise: what needs it trains a little longer.
    steps = 500 if tau == "start" else 900
    if isinstance(problem, OrnsteinUhlenbeck):  # a linear drift and a constant diffusion need fewer
        steps = 300 if tau == "start" else 600
    if isinstance(problem, DoubleWell):  # how often paths cross the hill is learned last
        steps = 1_000
    nsde.fit(model, data, steps=steps, lr=3e-3, batch_size=512, progress=False)
    return SimpleNamespace(problem=problem, tau=tau, model=model, paths=paths)


def sampled(run, start, times, sampler=FINE):
    """Values (P, T) of one path from each start."""
    x = torch.as_tensor(start, dtype=torch.float32)
    return run.model.sample(x, times, sampler=sampler, rng=torch.Generator().manual_seed(0))[:, 0, :, 0].numpy()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (p, tau),
            id=f"{p.__name__}-{tau}",
            marks=[pytest.mark.slow] * (p is not OrnsteinUhlenbeck),
        )
        for p in (OrnsteinUhlenbeck, DoubleWell, CoxIngersollRoss)
        for tau in ("start", "uniform")
    ],
)
def run(request):
    problem, tau = request.param
    return train(problem(), tau, 500, 301)


@pytest.fixture(scope="module", params=["start", pytest.param("uniform", marks=pytest.mark.slow)])
def gbm(request):
    return train(GeometricBrownianMotion(), request.param, 3000, 41)


def field_errors(run, share=1.0):
    """Errors of drift (relative to its size) and of diffusion (point by point), over the inner `share` of the data."""
    x = run.paths[:, ::20].ravel()
    low, high = np.quantile(x, [0.5 - share / 2, 0.5 + share / 2])
    x = x[(x >= low) & (x <= high), None]
    f, g = (v.double().numpy() for v in run.model.fields(torch.as_tensor(x, dtype=torch.float32)))
    drift, diffusion = run.problem.drift(x), run.problem.diffusion(x)
    return np.sqrt(((f - drift) ** 2).mean() / (drift**2).mean()), np.sqrt(((g / diffusion - 1) ** 2).mean())


def distance(end, run):
    """Wasserstein-1 to the stationary law, in its standard deviations."""
    return stats.wasserstein_distance(end, run.paths.ravel()[::7]) / run.paths.std()


def test_fields_are_near_the_truth(run):
    drift, diffusion = field_errors(run)
    # A step of 0.1 alone is worth 5 to 8 % of drift and diffusion; the double well's drift is small where its data is.
    limit = {"OrnsteinUhlenbeck": 0.15, "DoubleWell": 0.3, "CoxIngersollRoss": 0.3}[type(run.problem).__name__]
    assert drift < limit
    assert diffusion < 0.12


def test_stationary_law_is_recovered(run):
    """And only with the right balance: on interpolated states the flow alone is not the drift (the point of it all)."""
    start = run.paths.reshape(-1, 1)[::75]
    assert distance(sampled(run, start, [0.0, 10.0])[:, -1], run) < (0.06 if run.tau == "start" else 0.12)
    if run.tau == "uniform":
        unbalanced = replace(FINE, balance=0.0, box=None)
        assert distance(sampled(run, start, [0.0, 10.0], unbalanced)[:, -1], run) > 0.5


def test_likelihood_is_that_of_the_true_transition(run):
    paths = run.problem.paths(np.random.default_rng(7), 300, 41)
    ours = float(run.model.log_prob(nsde.Trajectories.from_arrays(paths, dt=run.problem.dt)).double().mean()) / 40
    truth = run.problem.log_prob(paths[:, :-1, 0].ravel(), paths[:, 1:, 0].ravel()).mean()
    assert abs(ours - truth) < 0.01


def test_geometric_brownian_motion_has_the_right_law_at_fixed_times(gbm):
    drift, diffusion = field_errors(gbm, share=0.9)
    assert drift < 0.3
    assert diffusion < 0.1
    rng, times = np.random.default_rng(3), [0.0, 0.5, 1.0, 2.0]
    x = gbm.paths[:, 0]

    def distances(sampler):
        paths = sampled(gbm, x, times, sampler)
        truth = [
            gbm.problem.exact(np.tile(x[:, 0], 20), t, np.sqrt(t) * rng.standard_normal(20 * len(x))) for t in times
        ]
        return [stats.wasserstein_distance(p, q) / q.std() for p, q in zip(paths.T[1:], truth[1:])]

    for sampler in (nsde.Sampler(), nsde.Sampler(solver="heun"), nsde.Sampler(solver="milstein")):
        assert max(distances(sampler)) < 0.12
    if gbm.tau == "uniform":
        assert max(distances(nsde.Sampler(balance=0.0))) > 0.2
        assert max(distances(nsde.Sampler(correction="off"))) > 0.2  # g dg is decisive where g depends on the state
