"""Two processes beside one: the same training with the same batch, one thread each, in turn.

python benchmarks/processes.py --output results/processes.json

The rate is that of the steps, without the start of the processes. The net is large enough that a step computes for a second and
shares gradients for a hundredth. On a machine with other work the ratio says less: the load is recorded before each run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import neuralsde as nsde
from neuralsde.training.run_folder import provenance, write_results

WIDTH, DEPTH, BATCH, STEPS, EVERY = 256, 4, 8_192, 12, 3


def train(run_dir: str, num: int) -> None:
    rng = torch.Generator().manual_seed(0)
    states = torch.randn(200, 501, 8, generator=rng).cumsum(1)
    data = nsde.Trajectories.from_arrays(states, dt=0.1)
    model = nsde.NeuralSDE.for_data(data, net=nsde.MLPConfig(width=WIDTH, depth=DEPTH))
    options = {"progress": False, "cpu": True, "log_every": EVERY, "processes": num}
    nsde.fit(model, data, run_dir=run_dir, steps=STEPS, batch_size=BATCH, **options)


def measured(num: int) -> dict[str, Any]:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        run_dir = Path(place) / "run"
        command = [sys.executable, __file__, "--child", str(run_dir), str(num)]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rates = [line["steps_per_second"] for line in lines[1:]]  # the first has the warm-up
    return {"steps_per_second": statistics.median(rates), "load_before": load, "last_flow_loss": lines[-1]["flow"]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("results/processes.json"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2)
    args = parser.parse_args()
    if args.child:
        train(args.child[0], int(args.child[1]))
        return
    rows: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    for _ in range(args.rounds):
        for num, found in rows.items():
            found.append(measured(num))
            print(num, found[-1], flush=True)
    ratios = [two["steps_per_second"] / one["steps_per_second"] for one, two in zip(rows[1], rows[2])]
    values = {
        "command": "python benchmarks/processes.py",
        "seed": 0,
        "n": args.rounds,
        "config": {"width": WIDTH, "depth": DEPTH, "batch_size": BATCH, "steps": STEPS, "threads_per_process": 1},
        "one": rows[1],
        "two": rows[2],
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }
    print(json.dumps(values, indent=1))
    write_results(args.output, {**provenance(), **values})


if __name__ == "__main__":
    main()
