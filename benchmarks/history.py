"""Does a long memory pay? Noisy positions of an oscillator whose velocity and frequency are hidden.

Each path has a frequency of its own, so that the past tells more the longer it is. All is linear and Gaussian given the
frequency: the best possible likelihood of an observation given any number of slots is known, and nets are scored by how
far they stay below it, on held-out paths, in nats per observation.

python benchmarks/history.py --output results/history.json

Runs that the file already holds are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
import warnings
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

import neuralsde as nsde
from neuralsde.core.processes import worker_pool
from neuralsde.core.records import to_dict
from neuralsde.experiments.compare import summarise
from neuralsde.nets.config import HistoryConfig, MLPConfig, NetConfig
from neuralsde.training.run_folder import provenance, write_results

DAMPING, MEASUREMENT, DT, LENGTH = 0.1, 0.1, 0.2, 100
LOWEST, HIGHEST = 1.0, 3.0
"""Frequencies are uniform between them; positions have unit variance."""
SLOTS, NUM_HELD_OUT = 16, 300
CASES = ((50, 500), (50, 2_000), (500, 2_000))
"""Paths to learn from, and training steps: little data can be trained on for too long."""
NETS: dict[str, tuple[int, NetConfig]] = {
    "1 slot, perceptron": (1, MLPConfig()),
    "2 slots, perceptron": (2, MLPConfig()),
    "16 slots, perceptron": (SLOTS, MLPConfig()),
    "16 slots, small perceptron": (SLOTS, MLPConfig(width=64, depth=2)),
    "16 slots, GRU": (SLOTS, HistoryConfig(encoder="gru")),
    "16 slots, transformer": (SLOTS, HistoryConfig(encoder="transformer")),
}


def covariance(frequency: np.ndarray, num: int) -> np.ndarray:
    """Of `num` consecutive observations, for each frequency."""
    lag = DT * np.abs(np.subtract.outer(np.arange(num), np.arange(num)))
    w = np.sqrt(frequency**2 - DAMPING**2 / 4)[:, None, None]
    positions = np.exp(-DAMPING * lag / 2) * (np.cos(w * lag) + DAMPING / (2 * w) * np.sin(w * lag))
    return positions + MEASUREMENT**2 * np.eye(num)


def simulate(rng: np.random.Generator, num_paths: int) -> nsde.Trajectories:
    """Draw paths from their exact law."""
    root = np.linalg.cholesky(covariance(rng.uniform(LOWEST, HIGHEST, num_paths), LENGTH))
    return nsde.Trajectories.from_arrays(root @ rng.standard_normal((num_paths, LENGTH, 1)), dt=DT)


def optimum(windows: np.ndarray, num_frequencies: int = 200) -> np.ndarray:
    """log p(last | the others) of windows (N, T), with the frequency integrated out."""
    grid = LOWEST + (np.arange(num_frequencies) + 0.5) * (HIGHEST - LOWEST) / num_frequencies
    before = now = np.full(len(windows), -np.inf)
    for root in np.linalg.cholesky(covariance(grid, windows.shape[1])):
        z = np.linalg.solve(root, windows.T)
        terms = -0.5 * z**2 - np.log(np.diag(root))[:, None] - 0.5 * np.log(2 * np.pi)
        before, now = np.logaddexp(before, terms[:-1].sum(0)), np.logaddexp(now, terms.sum(0))
    return now - before


def row_name(label: str, num_paths: int, steps: int) -> str:
    return f"{label}; {num_paths} paths, {steps} steps"


def work(label: str, num_paths: int, steps: int, seed: int) -> dict[str, Any]:
    """Train one net and score it on paths it has not seen."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    history, net = NETS[label]
    rng = np.random.default_rng(seed)
    held_out, train = simulate(rng, NUM_HELD_OUT), simulate(rng, num_paths)
    batch = held_out.transitions(history=SLOTS).spread(10**6)
    model = nsde.NeuralSDE.for_data(train, history=history, net=net, noise=0.0, denoiser=None, seed=seed)
    began = time.perf_counter()
    nsde.fit(model, train, steps=steps, batch_size=256, seed=seed, progress=False, cpu=True)
    seconds = time.perf_counter() - began
    log_prob = model.log_prob(replace(batch, history=batch.history[:, -history:])).double().numpy()
    windows = torch.cat([batch.history[..., 0], batch.next], dim=1).double().numpy()
    scores = {
        "num_paths": NUM_HELD_OUT,
        "log_prob": float(log_prob.mean()),
        "below_optimum": float((optimum(windows) - log_prob).mean()),
        "below_optimum_of_its_slots": float((optimum(windows[:, -history - 1 :]) - log_prob).mean()),
        "seconds": round(seconds, 1),
        "parameters": sum(p.numel() for p in model.nets["flow"].parameters()),
    }
    name = row_name(label, num_paths, steps)
    return {"label": name, "seed": seed, "net": to_dict(net), **provenance(), "scores": scores}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("results/history.json"))
    parser.add_argument("--num-seeds", type=int, default=3)
    parser.add_argument("--num-workers", type=int, default=2)
    args = parser.parse_args()
    runs = json.loads(args.output.read_text(encoding="utf-8"))["runs"] if args.output.exists() else []
    kept = {(r["label"], r["seed"]) for r in runs}
    jobs = [
        (label, *case, seed)
        for case, label, seed in itertools.product(CASES, reversed(NETS), range(args.num_seeds))
        if (row_name(label, *case), seed) not in kept
    ]
    with worker_pool(args.num_workers) as pool:
        for k, future in enumerate(as_completed([pool.submit(work, *job) for job in jobs]), 1):
            run = future.result()
            runs.append(run)
            print(f"[{k}/{len(jobs)}] {run['label']}, seed {run['seed']}: {run['scores']}", flush=True)
    names = [row_name(label, *case) for case in CASES for label in NETS]
    runs.sort(key=lambda r: (names.index(r["label"]), r["seed"]))
    values = {
        "unit": "nats per observation, held out; below the best possible likelihood given 16 slots",
        "observations_per_path": LENGTH,
        "summary": {name: summarise([r for r in runs if r["label"] == name]) for name in names},
        "runs": runs,
    }
    write_results(args.output, values)
    for name, row in values["summary"].items():
        below = row["below_optimum"]
        print(f"{name:55} {below['mean']:.3f} ± {below['ci95'] or 0:.3f} below the optimum")


if __name__ == "__main__":
    main()
