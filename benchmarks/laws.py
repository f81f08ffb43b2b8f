"""Whether the law of a step is right off the beaten path: wide, uneven and state-dependent gaps, correlated noise, tails and
modes, bounds, small spreads, long seasons.

    python benchmarks/laws.py --output results/laws.json              every case, seeds 0 to 2
    python benchmarks/laws.py --only correlated --output results/laws.json    some of them; the file keeps the others
    python benchmarks/laws.py --only correlated --seeds 0             printed

Each case simulates an SDE exactly or in fine steps, trains a small net with settings that are written here, and compares
the learned fields and draws with the truth. Errors of fields are RMS over states of the data, relative to the RMS of the
truth. Settings are not tuned per case. Nets learn by moments slower than by one step's regression: these cases have twice the
steps of half the batch and a larger rate, chosen on seeds 10 to 12 of "moments, gap 1". Gaps that depend on the state have more
paths, steps and noise and four times the batch, chosen on the same seeds: short gaps say little of the drift.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from concurrent.futures import as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import laws_mixture
import numpy as np
import torch

import neuralsde as nsde
from neuralsde.core.processes import worker_pool
from neuralsde.experiments.recipes.known_sdes import irregular, start
from neuralsde.experiments.task import task_for
from neuralsde.experiments.tasks.known_sdes import field_errors, parametric
from neuralsde.models.build import build
from neuralsde.training.run_folder import provenance, write_results

NET = nsde.MLPConfig(width=32, depth=2)
FEW_TERMS = nsde.PolynomialConfig(width=32, depth=2)
LIKELIHOOD = {"noise": 0.0, "denoiser": None}
BALANCED = {"tau": "uniform", "noise": 0.05, "denoiser": nsde.Denoiser(antithetic=True)}
AVERAGE, BATCH = 0.998, 2_048
USUAL = nsde.TrainConfig(steps=2_000, batch_size=BATCH, lr=3e-3, ema=AVERAGE)
BY_MOMENTS = nsde.TrainConfig(steps=4_000, batch_size=1_024, lr=1e-2, ema=AVERAGE)
UNEVEN = replace(USUAL, steps=4_000, batch_size=8_192)
NUM_DRAWS = 20_000

Paths = tuple[np.ndarray, np.ndarray]
"""States (N, T, d) and times (N, T)."""


def trained(
    paths: Paths, seed: int, *, net: nsde.MLPConfig = NET, train: nsde.TrainConfig | None = None, **settings: Any
) -> nsde.NeuralSDE:
    """A model of the paths."""
    data = nsde.Trajectories.from_arrays(list(paths[0]), list(paths[1]))
    model = nsde.NeuralSDE.for_data(data, net=net, seed=seed, **settings)
    config = replace(train or (BY_MOMENTS if isinstance(model.config.law, nsde.Moments) else USUAL), seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nsde.fit(model, data, config=config, options=nsde.RunOptions(progress=False))
    return model


def states_of(paths: Paths, num: int = 4_000) -> torch.Tensor:
    """States of the data, evenly spread."""
    flat = paths[0].reshape(-1, paths[0].shape[-1])
    return torch.from_numpy(flat[:: max(1, len(flat) // num)]).float()


def relative(error: torch.Tensor, truth: torch.Tensor) -> float:
    """RMS of an error over that of the truth."""
    return float(error.square().mean().sqrt() / truth.square().mean().sqrt())


def inside(draws: torch.Tensor, truth: torch.Tensor) -> float:
    """Share of true values (B,) within the 80 % band of the draws (B, N)."""
    low, high = draws.quantile(0.1, dim=1), draws.quantile(0.9, dim=1)
    return float(((truth > low) & (truth < high)).float().mean())


# Data


def ornstein_uhlenbeck(gaps: np.ndarray, rng: np.random.Generator, root: np.ndarray | None = None) -> Paths:
    """Rate 1 and stationary covariance root root' (one dimension of variance 1), exactly, over gaps (N, T)."""
    root = np.eye(1) if root is None else root
    num, d = len(gaps), len(root)
    x = np.zeros((num, gaps.shape[1] + 1, d))
    x[:, 0] = rng.normal(size=(num, d)) @ root.T
    for k in range(gaps.shape[1]):
        decay = np.exp(-gaps[:, k : k + 1])
        x[:, k + 1] = decay * x[:, k] + np.sqrt(1 - decay**2) * (rng.normal(size=(num, d)) @ root.T)
    return x, np.concatenate([np.zeros((num, 1)), gaps.cumsum(1)], axis=1)


def simulated(drift: Callable[..., Any], g: float, x: np.ndarray, gaps: np.ndarray, rng: np.random.Generator) -> Paths:
    """By Euler's steps of at most 0.01, over gaps (N, T)."""
    out = [x]
    for k in range(gaps.shape[1]):
        num = max(1, math.ceil(gaps[:, k].max() / 0.01))
        h = gaps[:, k : k + 1] / num
        for _ in range(num):
            x = x + drift(x) * h + g * np.sqrt(h) * rng.normal(size=x.shape)
        out.append(x)
    return np.stack(out, axis=1), np.concatenate([np.zeros((len(x), 1)), gaps.cumsum(1)], axis=1)


def wide(shape: tuple[int, int], rng: np.random.Generator, low: float, ratio: float) -> np.ndarray:
    """Gaps spread evenly in their logarithm over this ratio."""
    return low * ratio ** rng.random(shape)


# Cases: each returns what it measured


def moments_of_a_gap(seed: int, gap: float, net: nsde.MLPConfig = NET) -> dict[str, float]:
    """Moments over even gaps: fields, one draw over a gap, and the 80 % band of new steps."""
    rng = np.random.default_rng(seed)
    paths = ornstein_uhlenbeck(np.full((1_600, 200), gap), rng)
    model = trained(paths, seed, net=net, law=nsde.Moments(), **LIKELIHOOD)
    x = states_of(paths)
    f, g = model.fields(x)
    draws = model.sample(torch.ones(NUM_DRAWS, 1), [0.0, gap], rng=seed)[:, 0, 1, 0]
    fresh = ornstein_uhlenbeck(np.full((2_000, 1), gap), rng)[0]
    futures = model.sample(torch.from_numpy(fresh[:, 0]).float(), [0.0, gap], num_paths=500, rng=seed + 1)[:, :, 1, 0]
    return {
        "drift_error": relative(f + x, x),
        "diffusion_error": relative(g - math.sqrt(2), torch.full_like(g, math.sqrt(2))),
        "mean_after_gap": float(draws.mean()),
        "true_mean": math.exp(-gap),
        "std_after_gap": float(draws.std()),
        "true_std": math.sqrt(1 - math.exp(-2 * gap)),
        "inside_80": inside(futures, torch.from_numpy(fresh[:, 1, 0]).float()),
    }


def some_wide_gaps(seed: int) -> dict[str, float]:
    """One gap in ten is 2 to 6 relaxation times long."""
    rng = np.random.default_rng(seed)
    shape = (400, 200)
    paths = ornstein_uhlenbeck(np.where(rng.random(shape) < 0.9, 0.3, rng.uniform(2, 6, shape)), rng)
    model = trained(paths, seed, law=nsde.Moments(), **LIKELIHOOD)
    x = states_of(paths)
    f, g = model.fields(x)
    return {"drift_error": relative(f + x, x), "diffusion_error": relative(g - math.sqrt(2), g * 0 + math.sqrt(2))}


def gaps_over_a_factor_100(seed: int) -> dict[str, float]:
    """Ornstein-Uhlenbeck, gaps from 0.05 to 5."""
    rng = np.random.default_rng(seed)
    paths = ornstein_uhlenbeck(wide((400, 200), rng, 0.05, 100), rng)
    model = trained(paths, seed, law=nsde.Moments(), **LIKELIHOOD)
    x = states_of(paths)
    f, g = model.fields(x)
    return {"drift_error": relative(f + x, x), "diffusion_error": relative(g - math.sqrt(2), g * 0 + math.sqrt(2))}


def gaps_that_depend_on_the_state(seed: int) -> dict[str, float]:
    """Gaps of 0.02 where |x| < 0.7, else 0.1; interpolated states. Errors further from the jump than a step is long (0.45)."""
    rng = np.random.default_rng(seed)
    x, t = [rng.normal(size=1_600)], [np.zeros(1_600)]
    for _ in range(500):
        gap = np.where(np.abs(x[-1]) < 0.7, 0.02, 0.1)
        decay = np.exp(-gap)
        x.append(decay * x[-1] + np.sqrt(1 - decay**2) * rng.normal(size=1_600))
        t.append(t[-1] + gap)
    paths = np.stack(x, 1)[..., None], np.stack(t, 1)
    model = trained(paths, seed, train=UNEVEN, **BALANCED | {"noise": 0.2})
    grid = states_of(paths)
    grid = grid[(grid[:, 0].abs() - 0.7).abs() > 0.45]
    f, _ = model.fields(grid)
    slope = float((f * grid).sum() / grid.square().sum())
    return {"drift_error": relative(f + grid, grid), "slope": slope}


CORRELATED: dict[str, dict[str, Any]] = {
    "start": {"covariance": nsde.Full()},
    "start, low rank": {"covariance": nsde.LowRank(rank=1)},
    "start, diagonal": {},
    "moments": {"law": nsde.Moments(), "covariance": nsde.Full(), **LIKELIHOOD},
    "uniform": {"covariance": nsde.Full(), **BALANCED},
    "uniform, diagonal": BALANCED,
}


def correlated_noise(seed: int, kind: str) -> dict[str, float]:
    """Two dimensions, drift -x, noise correlated 0.9: fields, and bands of sums and differences after one time unit."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(np.array([[1.0, 0.9], [0.9, 1.0]]))
    paths = ornstein_uhlenbeck(np.full((1_600, 200), 0.05), rng, root)
    model = trained(paths, seed, **CORRELATED[kind])
    x = states_of(paths)
    f, _ = model.fields(x)
    sigma = model.noise_covariance(x).mean(0)
    fresh = ornstein_uhlenbeck(np.full((2_000, 20), 0.05), rng, root)[0]
    times = 0.05 * np.arange(21)
    ends = model.sample(torch.from_numpy(fresh[:, 0]).float(), times, num_paths=100, rng=seed)[:, :, -1]
    truth = torch.from_numpy(fresh[:, -1]).float()
    return {
        "drift_error": relative(f + x, x),
        "noise_correlation": float(sigma[0, 1] / (sigma[0, 0] * sigma[1, 1]).sqrt()),
        "inside_80_sum": inside(ends.sum(-1), truth.sum(-1)),
        "inside_80_difference": inside(ends[..., 0] - ends[..., 1], truth[:, 0] - truth[:, 1]),
    }


def ten_dimensions(seed: int) -> dict[str, float]:
    """A random covariance in ten dimensions: Frobenius error of Σ."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(10, 20))
    cov = mixing @ mixing.T / 20
    paths = ornstein_uhlenbeck(np.full((400, 200), 0.05), rng, np.linalg.cholesky(cov))
    model = trained(paths, seed, covariance=nsde.Full())
    sigma = model.noise_covariance(states_of(paths, 500)).mean(0)
    truth = torch.from_numpy(cov).float() * (1 - math.exp(-0.1)) / 0.05  # of Euler's step, which it learns
    return {"frobenius_error": float((sigma - truth).norm() / truth.norm())}


def known_system(seed: int, system: str, net: nsde.MLPConfig = NET) -> dict[str, float]:
    """A system of `nsde compare known-sdes`, gaps over a factor 100, beside its true family fitted alike."""
    row = irregular(start(system))
    task = replace(row.task, gap_ratio=100.0)
    data = task_for(task).data(seed)
    model = build(replace(row.model, net=net), data.transitions(), seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nsde.fit(model, data, config=replace(row.train, seed=seed, batch_size=BATCH), progress=False)
    found = field_errors(model, task, seed) | parametric(data, task, seed=seed)
    return found | {"ratio": found["drift_error"] / found["parametric_drift_error"]}


def tails_and_modes(seed: int, system: str, law: str) -> dict[str, float]:
    """One step with tails or modes: nats lost, and what is drawn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return laws_mixture.score(system, laws_mixture.train(system, laws_mixture.LAWS[law], seed=seed), seed=seed)


def near_zero(seed: int, **how: Any) -> dict[str, float]:
    """dx = (1 - x) dt + √x dw: share of paths below 0 within 10 time units, and the distance of the law there."""

    def paths(num: int, length: int, seed: int) -> np.ndarray:
        rng, c = np.random.default_rng(seed), (1 - np.exp(-0.1)) / 4
        x = [rng.gamma(2, 0.5, num)]
        while len(x) < length:
            x.append(c * rng.noncentral_chisquare(4, x[-1] * np.exp(-0.1) / c))
        return np.stack(x, 1)[..., None]

    states = paths(400, 250, seed)
    times = np.broadcast_to(0.1 * np.arange(250), states.shape[:2])
    model = trained((states, times), seed, **how, **LIKELIHOOD)
    drawn = model.sample(paths(20_000, 1, seed + 1)[:, 0], 0.1 * np.arange(101), rng=seed)[:, 0, :, 0].numpy()
    one, two = (np.sort(paths(20_000, 1, seed + k)[:, 0, 0]) for k in (2, 3))
    given = np.quantile(states, (np.arange(20_000) + 0.5) / 20_000)
    return {
        "below_0": float((drawn < 0).any(1).mean()),
        "wasserstein": float(np.abs(np.sort(drawn[:, -1]) - one).mean()),
        "floor": float(np.abs(two - one).mean()),
        "of_data": float(np.abs(given - one).mean()),
    }


def small_spread(seed: int, normalise: str) -> dict[str, float]:
    """Two walks with a common factor, whose difference reverts at rate 1."""
    rng, decay = np.random.default_rng(seed), np.exp(-0.05)
    common = 20 * rng.standard_normal((200, 1)) + np.sqrt(0.05) * rng.standard_normal((200, 500)).cumsum(1)
    apart = [rng.standard_normal(200)]
    while len(apart) < 500:
        apart.append(decay * apart[-1] + np.sqrt(1 - decay**2) * rng.standard_normal(200))
    half = np.stack(apart, 1) / 2
    states = np.stack([common + half, common - half], -1)
    model = trained((states, np.broadcast_to(0.05 * np.arange(500), (200, 500))), seed, normalise=normalise)
    x = states[:, ::25].reshape(-1, 2)
    drift = model.fields(x)[0].numpy()
    return {"slope": float(np.polyfit(x[:, 0] - x[:, 1], drift[:, 0] - drift[:, 1], 1)[0])}


def long_season(seed: int, time_input: bool | float) -> dict[str, float]:
    """dx = cos(2πt / 100) dt + 0.2 dw, one season of 2,000 steps."""
    rng, times = np.random.default_rng(seed), 0.05 * np.arange(2_001)
    mean = 100 / (2 * np.pi) * np.sin(2 * np.pi * times / 100)
    noise = 0.2 * np.sqrt(0.05) * rng.standard_normal((60, 2_000)).cumsum(1)
    states = (10 * rng.standard_normal((60, 1)) + mean + np.concatenate([np.zeros((60, 1)), noise], 1))[..., None]
    model = trained((states, np.broadcast_to(times, (60, 2_001))), seed, time_input=time_input, **LIKELIHOOD)
    truth = np.cos(2 * np.pi * times[::40] / 100)
    found = [model.fields(states[:, k], time=float(times[k]))[0].numpy()[:, 0] for k in range(0, len(times), 40)]
    return {"drift_error": float(np.sqrt(np.mean((np.stack(found) - truth[:, None]) ** 2) / np.mean(truth**2)))}


CASES: dict[str, Callable[[int], dict[str, float]]] = {
    "moments, gap 0.5": partial(moments_of_a_gap, gap=0.5),
    "moments, gap 1": partial(moments_of_a_gap, gap=1.0),
    "moments, gap 1, few terms": partial(moments_of_a_gap, gap=1.0, net=FEW_TERMS),
    "some wide gaps": some_wide_gaps,
    "gaps over a factor 100": gaps_over_a_factor_100,
    "double well, gaps over a factor 100": partial(known_system, system="double_well"),
    "van der Pol, gaps over a factor 100": partial(known_system, system="van_der_pol"),
    "double well, gaps over a factor 100, few terms": partial(known_system, system="double_well", net=FEW_TERMS),
    "van der Pol, gaps over a factor 100, few terms": partial(known_system, system="van_der_pol", net=FEW_TERMS),
    "gaps that depend on the state": gaps_that_depend_on_the_state,
    **{f"correlated noise, {kind}": partial(correlated_noise, kind=kind) for kind in CORRELATED},
    "correlated noise, 10 dimensions": ten_dimensions,
    **{
        f"{system}, {law}": partial(tails_and_modes, system=system, law=law)
        for system in laws_mixture.SYSTEMS
        for law in laws_mixture.LAWS
    },
    "near zero, log": partial(near_zero, transform="log"),
    "near zero, log, Mixture": partial(near_zero, transform="log", law=nsde.Mixture()),
    "near zero, none": partial(near_zero, transform="none"),
    "small spread, whiten": partial(small_spread, normalise="whiten"),
    "small spread, mean_std": partial(small_spread, normalise="mean_std"),
    "long season, elapsed time": partial(long_season, time_input=True),
    "long season, period": partial(long_season, time_input=100.0),
}


def run(name: str, seed: int) -> tuple[str, int, dict[str, float]]:
    """One case with one seed."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    found = CASES[name](seed)
    return name, seed, found | {"seconds": round(time.perf_counter() - began, 1)}


def summary(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    """Mean and standard error over training seeds."""
    out = {}
    for key in rows[0]:
        values = np.array([row[key] for row in rows])
        error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        out[key] = [round(float(values.mean()), 5), round(float(error), 5)]
    return out


def kept(file: Path) -> dict[str, Any]:
    """The cases that an earlier run left; each says where it was made."""
    if not file.exists():
        return {}
    before = json.loads(file.read_text(encoding="utf-8"))
    where = {key: before[key] for key in provenance()}
    return {name: {**where, **case} for name, case in before["cases"].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="file of the results")
    parser.add_argument("--only", nargs="+", default=[""], help="only cases whose name begins with one of these")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    jobs = [(name, seed) for name in CASES if name.startswith(tuple(args.only)) for seed in args.seeds]
    here = provenance()
    found: dict[str, dict[int, dict[str, float]]] = {name: {} for name, _ in jobs}
    with worker_pool(args.processes) as pool:
        for job in as_completed([pool.submit(run, *job) for job in jobs]):
            name, seed, values = job.result()
            found[name][seed] = values
            print(json.dumps({"case": name, "seed": seed, **values}), flush=True)
    if args.output:
        trainings = {"usual": USUAL, "by_moments": BY_MOMENTS, "uneven": UNEVEN}
        shown = {k: [v.steps, v.batch_size, v.lr, v.ema] for k, v in trainings.items()}
        config = {"net": [NET.width, NET.depth], "steps, batch, rate, average": shown}
        made = {
            name: {"seeds": rows, "mean_and_error": summary([rows[s] for s in sorted(rows)]), **here}
            for name, rows in found.items()
        }
        every = kept(args.output) | made
        cases = {name: every[name] for name in CASES if name in every}
        command = "python benchmarks/laws.py --output results/laws.json"
        write_results(args.output, {"command": command, "config": config, **here, "cases": cases})


if __name__ == "__main__":
    main()
