"""Seconds to train one Neural SDE (f, g, d) of the branching task at density 1, by number of threads.

python benchmarks/training_time.py --output results/training_time.json
"""

from __future__ import annotations

import argparse
import os
import statistics
from dataclasses import replace
from pathlib import Path

import torch

from neuralsde.experiments.recipes import branching
from neuralsde.experiments.run import run
from neuralsde.training.config import RunOptions
from neuralsde.training.run_folder import provenance, write_results


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("results/training_time.json"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    recipe = branching.neural_sde()
    options = RunOptions(progress=False, cpu=True)
    load = os.getloadavg()[0]
    seconds = [
        run(replace(recipe, train=replace(recipe.train, seed=s)), options=options).results["train_seconds"]
        for s in range(args.repeats)
    ]
    print(
        f"{statistics.median(seconds):.1f} s (from {min(seconds):.1f} to {max(seconds):.1f}) on {args.threads} threads"
    )
    values = {
        "seconds": seconds,
        "median": statistics.median(seconds),
        "n": len(seconds),
        "seeds": list(range(args.repeats)),
    }
    write_results(args.output, {**provenance(), "load_before": load, **values})


if __name__ == "__main__":
    main()
