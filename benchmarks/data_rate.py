"""Is the loader in the way? Ten million transitions of dimension 8: time to draw a batch against the training step.

python benchmarks/data_rate.py --output results/data_rate.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

import neuralsde as nsde
from neuralsde.solvers.noise import Noise
from neuralsde.training.run_folder import provenance, write_results


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("results/data_rate.json"))
    parser.add_argument("--transitions", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    length, dim, batch = 10_001, 8, 512
    rng = torch.Generator().manual_seed(0)
    num_paths = args.transitions // (length - 1)
    states = torch.empty(num_paths * length, dim).normal_(generator=rng)
    times = torch.arange(length, dtype=torch.float64).repeat(num_paths)
    data = nsde.Trajectories(states, times, torch.full((num_paths,), length))

    began = time.perf_counter()
    pairs = data.transitions()
    prepare = time.perf_counter() - began
    rows = torch.arange(batch)
    draw, whole = [], []
    model = nsde.NeuralSDE.for_data(data)
    for step in range(args.steps):
        began = time.perf_counter()
        pairs.batch(Noise.for_step(0, step, rows))
        draw.append(time.perf_counter() - began)
    for _ in range(3):
        began = time.perf_counter()
        nsde.fit(model, pairs, steps=args.steps, batch_size=batch, progress=False)
        whole.append((time.perf_counter() - began) / args.steps)
    share = statistics.median(draw) / statistics.median(whole)
    print(
        f"{len(pairs):,} transitions: index made in {prepare:.1f} s; drawing a batch is {100 * share:.1f} % of a training step"
    )
    values = {
        "transitions": len(pairs),
        "dimension": dim,
        "batch_size": batch,
        "share_of_step": share,
        "n": args.steps,
        "seed": 0,
    }
    write_results(args.output, {**provenance(), **values})


if __name__ == "__main__":
    main()
