"""Learning rates on the forking paths: ours and the rivals at four, by a seed that is not reported, at density 1.

    python benchmarks/branching_rates.py --output results/branching_rates.json

The reported rows of all take 2e-3. All else is as in their recipes.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from neuralsde.experiments.recipes.branching import comparison
from neuralsde.experiments.run import run
from neuralsde.training.config import RunOptions
from neuralsde.training.run_folder import provenance, write_results

RATES = (5e-4, 1e-3, 2e-3, 4e-3)
METHODS = ("NSDE", "DDIM (increment, predicts the sample)", "DDIM (increment)", "Rectified Flow (increment)")
SEED = 10
SCORES = ("branch_fraction", "neither", "distance", "fork_offset", "end_error", "train_seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    origin, rows = provenance(), list[dict[str, Any]]()
    for method in METHODS:
        for rate in RATES:
            recipe = comparison()[f"{method}, density 1"]
            experiment = replace(recipe, train=replace(recipe.train, lr=rate, seed=SEED))
            scores = run(experiment, options=RunOptions(progress=False, cpu=True)).results
            rows.append({"method": method, "lr": rate, "seed": SEED, **{name: scores[name] for name in SCORES}})
            print(method, rate, f"{scores['distance']:.4f}", f"{scores['end_error']:.4f}", flush=True)
    command = f"python benchmarks/branching_rates.py --output results/{args.output.name}"
    write_results(args.output, {"command": command, "rows": rows, **origin})


if __name__ == "__main__":
    main()
