"""Two processes beside one: the same training with the same batch, one thread each, in turn.

python benchmarks/processes.py --output results/processes.json

Steps are timed without the start of the processes, by the clock and by the CPU time of all processes together. Where two cores
are free, the clock gives the ratio. Where others use them, it gives less, and CPU time says what free cores would give: twice
the CPU time of one process, divided by that of both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import neuralsde as nsde
from neuralsde.training.run_folder import provenance, write_results

WIDTH, DEPTH, BATCH, STEPS, WARM_UP = 256, 4, 2_048, 9, 2
CLOCKS = "NEURALSDE_CLOCKS"  # folder in which each process notes the times of its steps


def note(*_: Any) -> None:
    """As a hook: the time at which a step begins, and the CPU time so far."""
    with (Path(os.environ[CLOCKS]) / f"{os.getpid()}").open("a") as file:
        file.write(f"{time.perf_counter()} {time.process_time()}\n")


def train(num: int) -> None:
    rng = torch.Generator().manual_seed(0)
    states = torch.randn(200, 501, 8, generator=rng).cumsum(1)
    data = nsde.Trajectories.from_arrays(states, dt=0.1)
    model = nsde.NeuralSDE.for_data(data, net=nsde.MLPConfig(width=WIDTH, depth=DEPTH))
    model.register_forward_pre_hook(note)
    nsde.fit(model, data, steps=STEPS, batch_size=BATCH, progress=False, cpu=True, processes=num)


def measured(num: int) -> dict[str, Any]:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, __file__, "--child", str(num)]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1", CLOCKS: place})
        clocks = [[list(map(float, line.split())) for line in file.open()] for file in Path(place).iterdir()]
    assert len(clocks) == num and all(len(clock) == STEPS for clock in clocks)
    spans = [[last - first for first, last in zip(clock[WARM_UP], clock[-1])] for clock in clocks]
    steps = STEPS - 1 - WARM_UP
    cpu = sum(span[1] for span in spans) / steps
    return {
        "steps_per_second": steps / max(span[0] for span in spans),
        "cpu_seconds_per_step": cpu,
        "load_before": load,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("results/processes.json"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", type=int)
    args = parser.parse_args()
    if args.child:
        train(args.child)
        return
    rows: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    for _ in range(args.rounds):
        for num, found in rows.items():
            found.append(measured(num))
            print(num, found[-1], flush=True)
        write_results(args.output, {**provenance(), **summary(rows)})  # what a killed benchmark has measured is kept


def summary(rows: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    pairs = list(zip(rows[1], rows[2]))
    clock = [two["steps_per_second"] / one["steps_per_second"] for one, two in pairs]
    free = [2 * one["cpu_seconds_per_step"] / two["cpu_seconds_per_step"] for one, two in pairs]
    return {
        "command": "python benchmarks/processes.py",
        "seed": 0,
        "n": len(pairs),
        "config": {"width": WIDTH, "depth": DEPTH, "batch_size": BATCH, "steps": STEPS, "threads_per_process": 1},
        "one": rows[1],
        "two": rows[2],
        "ratio": {"median": statistics.median(clock), "range": [min(clock), max(clock)]},
        "ratio_by_cpu_time": {"median": statistics.median(free), "range": [min(free), max(free)]},
    }


if __name__ == "__main__":
    main()
