"""Rivals and we on SDEs whose truth is known: quality after 30, 120 and 600 seconds of training, and memory.

python benchmarks/known_sdes.py --output results/known_sdes_peers.json --sde-matching PATH --workers 15

Every method sees the same paths, has the same number of parameters (± 2 %, inference nets included), one thread, and the
same learning rate on every system (`--tune` tries three). A time is that of training alone: data, building, a few steps that
warm up, and scoring are not counted; nothing is compiled. Each time is a training of its own, whose schedule ends there.
Torchsde's latent SDE sees windows of 20 gaps, SDE Matching of 40 (as its notebook), both drawn anew from the paths for
each step; ours and the Gaussian perceptron see transitions. The prior of both latent SDEs lives in data space, so that
drift, diffusion, density and paths from given states are read from it as from ours; their observation noise is learned.

Rows are merged into the output as they come in; those it holds already, at the same learning rate, are not run again.
`--memory` and `--tune` are calls of their own, into the same file.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import memory
from peers.contenders import LEARNING_RATES, METHODS, Shape, matched
from peers.report import table as table  # for the documentation
from torch import Tensor

from neuralsde.core.processes import worker_pool
from neuralsde.experiments.config import KnownSDEConfig
from neuralsde.experiments.tasks import known_sdes
from neuralsde.metrics.forecast import energy_distance
from neuralsde.models.sequence import SequenceModel
from neuralsde.solvers.integrate import Diverged
from neuralsde.training.run_folder import provenance, write_results

TASKS: dict[str, KnownSDEConfig] = {
    "ou": KnownSDEConfig(system="ou"),
    "double_well": KnownSDEConfig(system="double_well"),
    "lorenz": KnownSDEConfig(system="lorenz"),
    "ou_noisy": KnownSDEConfig(system="ou", measurement=1.0),
}
COMPARED = ("neuralsde", "gaussian_mlp", "sde_matching", "torchsde_bptt", "torchsde_adjoint")
"""The methods of a full run."""
WITH_NOISE = ("neuralsde", "neuralsde_measured", "sde_matching", "torchsde_bptt", "torchsde_adjoint")
"""Those where the observations are noisy."""
OWN_MARKS = (1, 2, 4, 8, 15, 30, 60, 120)
"""Seconds at which ours are read besides: they are done early."""
SHORT = 60
"""Marks up to this many seconds share a worker."""
LEADS = (1, 10, 100)
NUM_STARTS = 4_000
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Job:
    """A method on a task, with one seed, at some marks."""

    task: str
    method: str
    seed: int
    marks: tuple[float, ...]
    transitions: int
    clock: str = "wall"
    lr: float | None = None
    checkout: Path | None = None


def run(job: Job) -> list[dict[str, Any]]:
    """Train and score: one row per mark."""
    torch.set_num_threads(1)
    config = replace(TASKS[job.task], num_transitions=job.transitions)
    data = known_sdes.KnownSDETask(config).data(job.seed)
    method, clock = METHODS[job.method], CLOCKS[job.clock]
    shape = matched(job.method, data, Shape(0, 0, seed=job.seed, checkout=job.checkout))
    rows = []
    for mark in job.marks:
        row: dict[str, Any] = {"task": job.task, "method": job.method, "seed": job.seed, "mark": mark}
        contender = method.build(data, shape)
        row |= {"lr": job.lr or method.lr, "parameters": contender.num_parameters, "load": os.getloadavg()[0]}
        try:
            row |= contender.train(mark, row["lr"], clock)
            row |= score(contender.model, config)
        except Exception as error:  # one failure must not cost the other rows
            row["error"] = f"{type(error).__name__}: {error}"
        rows.append(row)
    return rows


def score(model: SequenceModel, config: KnownSDEConfig) -> dict[str, Any]:
    """The same held-out states and transitions, without noise, for every method and seed."""
    out: dict[str, Any] = {}
    if config.measurement == 0:  # else a density would be that of noisy transitions for some, and not for others
        out |= known_sdes.excess_nll(model, config)
    if hasattr(model, "fields"):
        out |= known_sdes.field_errors(model, config)
    try:
        return out | energies(model, config)
    except Diverged as error:
        return out | {"diverged": str(error)}


def energies(model: SequenceModel, config: KnownSDEConfig) -> dict[str, float]:
    """Energy distances between learned and true joint laws of a state and the displacement some steps later.

    Both are in units of their standard deviation. Of the later state alone the law would be the stationary one, whatever
    was learned. The `floor` is the same between two sets of true paths; without bias, it is 0 up to chance.
    """
    times, true, other = true_paths(config, NUM_STARTS)
    x = true[:, 0]
    paths = model.sample(x.float(), times, rng=torch.Generator().manual_seed(0))[:, 0].double()
    out = {}
    for k, lead in enumerate(LEADS, start=1):
        unit = (true[:, k] - x).std(0)
        a, b, c = (torch.cat([x / x.std(0), (law[:, k] - x) / unit], dim=1) for law in (paths, true, other))
        out[f"energy_{lead}"] = energy_distance(a, b, unbiased=True)
        out[f"energy_{lead}_floor"] = energy_distance(c, b, unbiased=True)
    return out


@cache
def true_paths(config: KnownSDEConfig, num: int) -> tuple[Tensor, Tensor, Tensor]:
    """Times, and two sets of paths from the same held-out states."""
    truth, rng = known_sdes.system(config), np.random.default_rng(known_sdes.HELD_OUT)
    x = truth.first_states(num, rng)
    times = truth.dt * torch.tensor([0.0, *LEADS], dtype=torch.float64)
    return times, *(truth.simulate(x, times.expand(num, -1), rng) for _ in range(2))


def jobs(args: argparse.Namespace, done: set[tuple[Any, ...]]) -> Iterator[Job]:
    """All that was asked for and is not done, the longest first."""
    found = []
    for task in args.systems:
        methods = args.only or (WITH_NOISE if TASKS[task].measurement else COMPARED)
        for method in methods:
            if method.startswith("sde_matching") and args.sde_matching is None:
                print(f"{task}, {method}: not measured, since there is no --sde-matching PATH")
                continue
            marks = {float(m) for m in args.marks if not METHODS[method].own or m <= max(args.own_marks)}
            marks |= {float(m) for m in args.own_marks if METHODS[method].own}
            for seed in args.seeds:
                left = sorted(m for m in marks if m <= args.budget and (task, method, seed, m) not in done)
                for group in (tuple(m for m in left if m <= SHORT), *((m,) for m in left if m > SHORT)):
                    if group:
                        settings = (args.transitions, args.clock, None, args.sde_matching)
                        found.append(Job(task, method, seed, group, *settings))
    yield from sorted(found, key=lambda job: -sum(job.marks))


def tuning_jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Three learning rates, once each, for the shortest of `marks`."""
    for task in args.systems:
        for method in args.only or COMPARED:
            if not method.startswith("sde_matching") or args.sde_matching is not None:
                for lr in LEARNING_RATES:
                    yield Job(task, method, 0, (min(args.marks),), args.transitions, args.clock, lr, args.sde_matching)


def memory_jobs(args: argparse.Namespace) -> Iterator[tuple[str, int, Path | None]]:
    """Each method at each length."""
    for length in args.memory or memory.LENGTHS:
        for method in args.only or COMPARED:
            if not method.startswith("sde_matching") or args.sde_matching is not None:
                yield method, length, args.sde_matching


def record(args: argparse.Namespace) -> dict[str, Any]:
    """Where the rows of this call come from."""
    source = provenance()
    versions = source["versions"]
    try:
        versions["torchsde"] = version("torchsde")
    except PackageNotFoundError:
        print("torchsde is not installed: its rows will hold an error")
    if args.sde_matching is not None:
        from peers.sde_matching import fingerprint

        versions["sde_matching_notebook_sha256"] = fingerprint(args.sde_matching)
    settings = {k: v for k, v in vars(args).items() if not isinstance(v, Path)}
    return {**source, "load": os.getloadavg(), "threads_per_job": 1, "settings": settings}


def merge(rows: list[dict[str, Any]], new: list[dict[str, Any]], same: tuple[str, ...]) -> list[dict[str, Any]]:
    """`new` in place of the rows that are the same in these fields, all in order."""

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in same)

    replaced = {place(row) for row in new}
    return sorted([row for row in rows if place(row) not in replaced] + new, key=place)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/known_sdes_peers.json"))
    parser.add_argument("--budget", type=float, default=600, help="longest training, in seconds")
    parser.add_argument("--marks", type=float, nargs="+", default=[30, 120, 600], help="seconds of training")
    parser.add_argument("--own-marks", type=float, nargs="+", default=list(OWN_MARKS), help="more of them, for ours")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--systems", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--only", nargs="+", choices=METHODS, help="these methods alone")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--sde-matching", type=Path, help="a checkout of the SDE Matching repository")
    parser.add_argument("--transitions", type=int, default=400_000)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="what a second of training is")
    parser.add_argument("--tune", action="store_true", help="try the learning rates instead, for the shortest mark")
    parser.add_argument(
        "--memory", type=int, nargs="*", metavar="LENGTH", help="measure memory instead, at these lengths"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Run what is asked for and not there yet."""
    args = arguments(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    values = {"runs": [], "rows": [], "tuning": [], "memory": []}
    if args.output.exists():
        values |= json.loads(args.output.read_text(encoding="utf-8"))
    values["runs"].append(record(args))
    with worker_pool(args.workers) as pool:
        if args.memory is not None:
            section, same = "memory", ("method", "length", "batch")
            waiting = [pool.submit(memory.measure, *job) for job in memory_jobs(args)]
        elif args.tune:
            section, same = "tuning", ("method", "task", "mark", "lr")
            waiting = [pool.submit(run, job) for job in tuning_jobs(args)]
        else:
            section, same = "rows", ("task", "method", "seed", "mark")
            valid = [r for r in values["rows"] if "error" not in r and r["lr"] == METHODS[r["method"]].lr]
            done = {tuple(row[k] for k in same) for row in valid}
            waiting = [pool.submit(run, job) for job in jobs(args, done)]
        for future in as_completed(waiting):
            new = [row | {"run": len(values["runs"]) - 1} for row in future.result()]
            values[section] = merge(values[section], new, same)
            write_results(args.output, values)
            for row in new:
                print(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}), flush=True)


if __name__ == "__main__":
    main()
