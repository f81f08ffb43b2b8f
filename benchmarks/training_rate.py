"""Training steps per second of perceptrons on a GPU: three nets and one that is shared, recorded as a CUDA graph or launched.

python benchmarks/training_rate.py --output results/training_rate.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import neuralsde as nsde
from neuralsde.training.run_folder import provenance, write_results

BATCH, STEPS, REPEATS = 512, 2_000, 5
WAYS = {
    "three nets": {"shared": False},
    "one shared net": {"shared": True},
}


def rate(data: nsde.Trajectories, steps: int, *, shared: bool, graph: bool) -> float:
    """Steps per second of one training, from a model to a model."""
    model = nsde.NeuralSDE.for_data(data, shared=shared).cuda()
    torch.cuda.synchronize()
    began = time.perf_counter()
    nsde.fit(model, data, steps=steps, batch_size=BATCH, graph=graph, progress=False)
    torch.cuda.synchronize()
    return steps / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    walks = np.random.default_rng(0).standard_normal((64, 200, 2)).cumsum(1) * 0.05
    data = nsde.Trajectories.from_arrays(list(walks))
    found: dict[tuple[str, bool], list[float]] = {(name, graph): [] for name in WAYS for graph in (True, False)}
    for turn in range(REPEATS + 1):  # the first is a rehearsal
        for (name, graph), rates in found.items():
            measured = rate(data, STEPS if graph and turn else STEPS // 10, graph=graph, **WAYS[name])
            rates += [measured] if turn else []
    rows: list[dict[str, Any]] = []
    for (name, graph), rates in found.items():
        median, first = statistics.median(rates), statistics.median(found["one shared net", graph])
        row = {"nets": name, "graph": graph, "steps_per_s": median, "slowest": min(rates), "fastest": max(rates)}
        rows.append({**row, "of_shared": median / first})
        print(rows[-1], flush=True)
    record = {"command": f"python benchmarks/training_rate.py --output results/{args.output.name}", "batch_size": BATCH}
    write_results(args.output, {**record, "n": REPEATS, "seed": 0, "rows": rows, **provenance()})


if __name__ == "__main__":
    main()
