"""SDEs whose truth is known: is the learned one it, and are its forecasts calibrated?

Errors of the fields are weighted by the data: the root mean square of the error over held-out states, over that of the
truth, each dimension in units of its standard deviation. `parametric` fits the coefficients of the true family to the
same data by maximum likelihood: no estimator without that knowledge can be expected to do better.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from neuralsde.data.trajectories import Trajectories
from neuralsde.data.transition import Transition
from neuralsde.experiments.config import KnownSDEConfig
from neuralsde.experiments.task import Scores, Task
from neuralsde.experiments.tasks.systems import SYSTEMS, System
from neuralsde.metrics.forecast import energy_distance, interval_coverage, mean_ci, wasserstein_1d
from neuralsde.models.sequence import SequenceModel
from neuralsde.sde.laws.moments import propagate
from neuralsde.solvers.gaussian import log_density

HELD_OUT = 1_000_000  # offset of the seeds of held-out paths
NUM_STATES, NUM_PAIRS, NUM_LAW = 20_000, 4_000, 4_000
LEADS = (1, 10, 100)  # steps after which laws are compared
NUM_FORECASTS = 5_000  # held-out paths that are forecast for the coverage of the bands
COVERAGE_LEADS = (1, 5, 20)  # steps after which forecasts are checked
NUM_SAMPLES = 39  # paths per forecast: both bands then end exactly on samples
STATIONARY_TIME = 10.0
CHUNK = 50_000  # transitions at once in the fit of the true family


def system(config: KnownSDEConfig) -> System:
    """The SDE of the task."""
    return SYSTEMS[config.system]()


def _stamps(num_paths: int, num_steps: int, config: KnownSDEConfig, rng: np.random.Generator) -> Float[Tensor, "P T"]:
    mean = config.dt or system(config).dt
    gaps = np.full((num_paths, num_steps), mean)
    if config.gap_ratio > 1:
        share = math.log(config.gap_ratio)
        gaps = np.exp(share * rng.random((num_paths, num_steps))) * mean * share / (config.gap_ratio - 1)
    times = np.concatenate([np.zeros((num_paths, 1)), gaps.cumsum(1)], axis=1)
    return torch.from_numpy(times)


def _held_out(
    config: KnownSDEConfig, num: int, seed: int, *, ahead: int = 1
) -> tuple[System, Float[Tensor, "N d"], np.random.Generator]:
    """States that paths visit, spread over their length, with `ahead` steps left to the end of the training paths."""
    truth, rng = system(config), np.random.default_rng(HELD_OUT + seed)
    x = truth.first_states(num, rng)
    if not truth.stationary:
        latest = max(1, truth.path_steps - ahead + 1)
        ages = torch.from_numpy(rng.integers(0, latest, num)) * (config.dt or truth.dt)
        x = truth.simulate(x, torch.stack([torch.zeros_like(ages), ages + 1e-9], dim=1), rng)[:, 1]
    return truth, x, rng


def field_errors(model: Any, config: KnownSDEConfig, seed: int = 0) -> dict[str, float]:
    """Relative errors of drift and diffusion."""
    truth, x, _ = _held_out(config, NUM_STATES, seed)
    f, g = (v.double().cpu() for v in model.fields(x.float()))
    return _errors(truth, x, f, g)


def _errors(truth: System, x: Tensor, f: Tensor, g: Tensor) -> dict[str, float]:
    unit = x.std(0)
    return {
        "drift_error": _relative(f, truth.drift(x), unit),
        "diffusion_error": _relative(g, truth.diffusion(x), unit),
    }


def _relative(got: Tensor, true: Tensor, unit: Tensor) -> float:
    return float(((got - true) / unit).square().mean().sqrt() / (true / unit).square().mean().sqrt())


def excess_nll(model: SequenceModel, config: KnownSDEConfig, seed: int = 0) -> dict[str, Any]:
    """Negative log-likelihood over that of the truth, in nats per dimension and transition, with the stamps of the task."""
    truth, x, rng = _held_out(config, NUM_PAIRS, seed)
    times = _stamps(len(x), 1, config, rng)
    y, dt = truth.simulate(x, times, rng)[:, 1], times[:, 1]
    pairs = Transition(x.float()[:, None], y.float(), dt.float(), torch.zeros(len(x)))
    device = model.scale.mean.device
    ours = model.log_prob(pairs.to(device)).double().cpu()
    excess = mean_ci((truth.log_prob(x, y, dt, seed=seed) - ours) / truth.dim)
    return {"excess_nll": excess["mean"], "excess_nll_half_width": excess["ci95"]}


def laws(model: SequenceModel, config: KnownSDEConfig, sampler: Any, seed: int = 0) -> dict[str, Any]:
    """Distances of the laws some steps after held-out states: energy distance, and Wasserstein per dimension, in stds.

    The `floor` is the same distance between two sets of true paths.
    """
    steps = [k for k in LEADS if k <= system(config).path_steps]
    truth, x, rng = _held_out(config, NUM_LAW, seed, ahead=max(steps))
    leads = [k * (config.dt or truth.dt) for k in steps]
    leads += [STATIONARY_TIME * truth.time_scale] if truth.stationary else []
    times = torch.tensor([0.0, *sorted(leads)], dtype=torch.float64)
    paths = model.sample(x.float(), times, sampler=sampler, rng=seed)[:, 0].double().cpu()
    true, other = (truth.simulate(x, times[None].expand(len(x), -1), rng) for _ in range(2))
    unit, out = x.std(0), {}
    for name, lead in zip([*(f"{k}_steps" for k in steps), "stationary"], leads):
        k = int((times - lead).abs().argmin())
        for key, law in (("", paths), ("_floor", other)):
            a, b = law[:, k] / unit, true[:, k] / unit
            out[f"energy_{name}{key}"] = float(energy_distance(a, b))
            out[f"wasserstein_{name}{key}"] = float(np.mean([float(wasserstein_1d(*ab)) for ab in zip(a.T, b.T)]))
    return out


def coverage(model: SequenceModel, config: KnownSDEConfig, sampler: Any, seed: int = 0) -> dict[str, Any]:
    """Share of held-out paths within the central 80 % and 95 % bands, over lead times and dimensions."""
    truth, x, rng = _held_out(config, NUM_FORECASTS, seed + 1, ahead=max(COVERAGE_LEADS))
    times = torch.tensor([0.0, *(k * (config.dt or truth.dt) for k in COVERAGE_LEADS)], dtype=torch.float64)
    true = truth.simulate(x, times[None].expand(len(x), -1), rng)[:, 1:]
    rng_ = torch.Generator().manual_seed(seed)
    paths = model.sample(x.float(), times, num_paths=NUM_SAMPLES, sampler=sampler, rng=rng_)[:, :, 1:].cpu()
    out: dict[str, Any] = {"num_forecasts": len(x)}
    for level in (0.8, 0.95):
        inside = interval_coverage(paths.movedim(1, 0), true.float(), level).double()
        value = mean_ci(inside.flatten(1).mean(1))
        out[f"coverage_{100 * level:.0f}"] = value["mean"]
        out[f"coverage_{100 * level:.0f}_half_width"] = value["ci95"]
        out[f"coverage_{100 * level:.0f}_by_lead"] = inside.mean((0, 2)).tolist()
    return out


def parametric(paths: Trajectories, config: KnownSDEConfig, *, seed: int = 0) -> dict[str, float]:
    """Errors of the true family, fitted to the same paths: the coefficients of its drift, and one factor on g per dimension.

    From three dimensions on a quarter of the transitions must do: the fit is slow, and its error below a third of a percent.
    """
    truth = system(config)
    pairs = paths.transitions().spread(config.num_transitions if truth.dim < 3 else config.num_transitions // 4)
    x, y, dt = pairs.history[:, -1].double(), pairs.next.double(), pairs.dt.double()[:, None]
    theta = torch.zeros(len(truth.coefficients), dtype=torch.float64, requires_grad=True)
    log_g = torch.zeros(truth.dim, dtype=torch.float64, requires_grad=True)

    def fields(u: Tensor) -> tuple[Tensor, Tensor]:
        return truth.basis(u) @ (whiten @ theta), truth.diffusion(u) * log_g.exp()

    def noisy(u: Tensor, share: float, rows: Any) -> tuple[Tensor, Tensor]:
        f, g = fields(u)
        return f, g.square()

    # Least squares gives a start, and coordinates in which the likelihood is round
    parts = list(zip(x.split(CHUNK), y.split(CHUNK), dt.split(CHUNK)))
    gram: Any = 0
    moment: Any = 0
    for u, v, h in parts:
        weight = 1 / (truth.diffusion(u) * h.sqrt())
        flat = (truth.basis(u) * (h * weight)[..., None]).flatten(0, 1)
        gram, moment = gram + flat.T @ flat, moment + flat.T @ ((v - u) * weight).flatten()
    root = torch.linalg.cholesky(gram / len(x))
    whiten = torch.linalg.inv(root.T)
    theta.data.copy_(root.T @ torch.linalg.solve(gram, moment))
    optimiser = torch.optim.LBFGS([theta, log_g], max_iter=8, line_search_fn="strong_wolfe", tolerance_change=1e-12)
    num_steps = math.ceil(float(dt.max()) / (0.2 * truth.time_scale))

    def closure() -> Tensor:
        optimiser.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for u, v, h in parts:
            mean, cov = propagate(noisy, u, h, num_steps)
            loss = -log_density(v - mean, cov).sum() / len(x)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    optimiser.step(closure)
    _, states, _ = _held_out(config, NUM_STATES, seed)
    with torch.no_grad():
        f, g = fields(states)
    return {f"parametric_{name}": error for name, error in _errors(truth, states, f, g).items()}


class KnownSDETask(Task[KnownSDEConfig]):
    """Simulated paths, and the scores of a model: fields, likelihood, laws, coverage."""

    def data(self, seed: int = 0) -> Trajectories:
        config, truth, rng = self.config, system(self.config), np.random.default_rng(seed)
        num_paths = max(1, round(config.num_transitions / truth.path_steps))
        times = _stamps(num_paths, math.ceil(config.num_transitions / num_paths), config, rng)
        states = truth.simulate(truth.first_states(num_paths, rng), times, rng)
        if config.measurement > 0:
            size = config.measurement * truth.diffusion(states.flatten(0, 1)).mean(0) * math.sqrt(config.dt or truth.dt)
            states = states + size * torch.from_numpy(rng.standard_normal(tuple(states.shape)))
        if config.missing > 0:
            states = states.where(torch.from_numpy(rng.random(tuple(states.shape)) >= config.missing), math.nan)
        return Trajectories.from_arrays(list(states.numpy()), list(times.numpy()), missing=config.missing > 0)

    def score(self, model: SequenceModel, seed: int = 0) -> Scores:
        config = self.config
        scores = {
            **field_errors(model, config, seed),
            **({} if config.measurement else excess_nll(model, config, seed)),  # of true pairs, which are then not seen
            **laws(model, config, model.sampler, seed),
            **coverage(model, config, model.sampler, seed),
        }
        if config.reference:
            scores |= parametric(self.data(seed), config, seed=seed)
        return Scores(scores)
