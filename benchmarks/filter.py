"""The filter beside exact ones: nats per observed entry that it loses, with true fields and with learned ones.

    python benchmarks/filter.py --output results/filter.json --seeds 3

Ornstein-Uhlenbeck in two features with correlated noise, at irregular times, entries missing and measured with noise: the exact
Kalman filter and smoother are the reference. Double well, measured with noise at irregular times: 10,000 particles are, where
the posterior has one mode (gaps of 0.05 to 0.3, noise 0.3; well to well takes about 60). Learned models get noisy, partial
data alone, and learn the measurement noise too. Ornstein-Uhlenbeck also without noise: models then learn from missing entries
alone, by pairs that end with windows and by pairs only. Excess is that of the log density per observed entry.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from filter_references import (
    NOISE,
    WELL,
    A,
    exact_filter,
    linear_gap,
    linear_paths,
    particle_filter,
    true_model,
    well_drift,
    well_paths,
)
from scipy import linalg

import neuralsde as nsde
from neuralsde.training.run_folder import provenance, write_results

STD = 0.3  # of the measurement noise
GAPS = (0.05, 0.3)  # of the double well
MISSING = (0.3, 0.6)
NOISES = (STD, 0.0)  # of Ornstein-Uhlenbeck
LENGTH, NUM_TRAIN, NUM_TEST = 100, 200, 10
TRAINING = {"steps": 400, "batch_size": 128, "lr": 5e-3}
TEST = 3_000  # of test paths that were drawn after all settings were fixed


def linear_drift(state: Any) -> Any:
    return state[:, -1] @ state.new_tensor(A).mT


def compare(
    model: Any, states: list, times: list, noise: float, std: float | None, cov: np.ndarray
) -> dict[str, float]:
    """Excess over the exact filter, and the largest errors of the smoother's means and variances."""
    data = nsde.Trajectories.from_arrays(states, times, missing=True)
    found, back = model.filter(data, measurement_std=std), model.smooth(data, measurement_std=std)
    excess, entries, means, variances = 0.0, 0, 0.0, 0.0
    for k, (y, t) in enumerate(zip(states, times)):
        _, smooth, density = exact_filter(
            y, np.diff(t), np.zeros(2), cov, [noise**2] * 2, lambda dt: linear_gap(A, NOISE, dt)
        )
        excess += density[1:].sum() - float(found.log_likelihood[k])
        entries += int((~np.isnan(y[1:])).sum())
        mean, spread = back[k]
        means = max(means, float(np.abs(mean.numpy() - [m for m, _ in smooth]).max()))
        exact = np.array([np.diag(c) for _, c in smooth])
        variances = max(variances, float(np.abs(spread.numpy() ** 2 - exact).max()))
    return {"excess": float(excess / entries), "entries": entries, "smooth_mean": means, "smooth_variance": variances}


def learn(
    data: Any, seed: int, *, pairs_only: bool = False, measurement: bool = True, **settings: Any
) -> tuple[Any, float]:
    """A model that saw noisy, partial data alone, and the seconds that it took."""
    net, law = nsde.MLPConfig(width=32, depth=1), nsde.Moments(measurement=measurement)
    model = nsde.NeuralSDE.for_data(data, law=law, net=net, noise=0.0, denoiser=None, seed=seed, **settings)
    if pairs_only:
        model.window_for = lambda data: 0  # type: ignore[method-assign]
    began = time.perf_counter()
    nsde.fit(model, data, seed=seed, progress=False, cpu=True, **TRAINING)
    return model, time.perf_counter() - began


def ornstein_uhlenbeck(missing: float, noise: float, seed: int | None, pairs_only: bool = False) -> dict[str, Any]:
    """With true fields, or with learned ones by a seed."""
    states, times = linear_paths(np.random.default_rng(TEST), NUM_TEST, LENGTH, missing=missing, noise=noise)
    row = {"system": "Ornstein-Uhlenbeck", "missing": missing, "noise": noise}
    if seed is None:
        data = nsde.Trajectories.from_arrays(states, times, missing=True)
        settings: dict[str, Any] = {"correlation": NOISE, "covariance": nsde.Full(), "law": nsde.Moments(steps=4)}
        model = true_model(data, linear_drift, np.sqrt(np.diag(NOISE)), **settings)
        return {**row, "fields": "true", **compare(model, states, times, noise, noise or None, np.eye(2))}
    train = nsde.Trajectories.from_arrays(
        *linear_paths(np.random.default_rng(seed), NUM_TRAIN, LENGTH, missing=missing, noise=noise), missing=True
    )
    model, seconds = learn(train, seed, covariance=nsde.Full(), measurement=noise > 0, pairs_only=pairs_only)
    found = compare(model, states, times, noise, None, linalg.solve_continuous_lyapunov(A, -NOISE))
    learned = {"measurement_std": model.measurement_std.tolist() if noise else [0.0, 0.0], "train_seconds": seconds}
    return {**row, "fields": "learned by pairs" if pairs_only else "learned", "seed": seed, **found, **learned}


def tested_well() -> tuple[np.ndarray, np.ndarray]:
    return well_paths(np.random.default_rng(TEST), NUM_TEST, LENGTH, noise=STD, gaps=GAPS)


def particles_in_well() -> np.ndarray:
    """Log density of each path given its first observation, by particles."""
    (y, times), rng = tested_well(), np.random.default_rng(2_000)
    return np.array([particle_filter(path[:, 0], np.diff(times), STD**2, rng)[1:].sum() for path in y])


def double_well(seed: int | None, particles: np.ndarray) -> dict[str, Any]:
    """With true fields, or with learned ones by a seed."""
    y, times = tested_well()
    data = nsde.Trajectories.from_arrays(list(y), [times] * len(y))
    row: dict[str, Any] = {"system": "double well", "missing": 0.0, "noise": STD}
    if seed is None:
        model = true_model(data, lambda s: well_drift(s[:, -1]), [WELL], law=nsde.Moments())
        found, row = model.filter(data, measurement_std=STD), {**row, "fields": "true"}
    else:
        states, stamps = well_paths(np.random.default_rng(seed), NUM_TRAIN, LENGTH, noise=STD, gaps=GAPS)
        train = nsde.Trajectories.from_arrays(list(states), [stamps] * len(states))
        model, seconds = learn(train, seed)
        learned = {"measurement_std": model.measurement_std.tolist(), "train_seconds": seconds}
        found, row = model.filter(data), {**row, "fields": "learned", "seed": seed, **learned}
    entries = y[:, 1:].size
    excess = (particles - found.log_likelihood.numpy()) / (y.shape[1] - 1)
    error = float(excess.std(ddof=1) / np.sqrt(len(excess)))
    return {**row, "excess": float(excess.mean()), "excess_error": error, "entries": entries}


def run(particles: np.ndarray, seed: int | None) -> list[dict[str, Any]]:
    """All rows of a seed, or those with true fields."""
    warnings.simplefilter("ignore")
    rows = [ornstein_uhlenbeck(missing, noise, seed) for noise in NOISES for missing in MISSING]
    if seed is not None:
        rows += [ornstein_uhlenbeck(missing, 0.0, seed, pairs_only=True) for missing in MISSING]
    rows.append(double_well(seed, particles))
    for row in rows:
        print(row["system"], row["missing"], row["noise"], row["fields"], seed, f"{row['excess']:.2e}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    origin, seeds = provenance(), [None, *range(args.seeds)]
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        rows = [row for found in pool.map(partial(run, particles_in_well()), seeds) for row in found]
    settings = {"training": TRAINING, "train_paths": NUM_TRAIN, "test_paths": NUM_TEST, "length": LENGTH, "gaps": GAPS}
    command = f"python benchmarks/filter.py --output results/{args.output.name} --seeds {args.seeds}"
    write_results(args.output, {"command": command, "rows": rows, "settings": settings, "particles": 10_000, **origin})


if __name__ == "__main__":
    main()
