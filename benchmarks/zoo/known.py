"""SDEs whose truth is known, learned by `nsde.fit(data)` without a setting, beside their recipes.

    python benchmarks/zoo/known.py --budget "10 min" --output results/zoo_known.json

The paths are those of `nsde compare known-sdes` with even stamps, and so are the scores. Rows of the same commit and budget that
the output holds already are kept: a run may be stopped. A model with a history has no scores: they ask for fields of a state.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
import warnings
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import neuralsde as nsde
from neuralsde.core.processes import worker_pool
from neuralsde.experiments.config import KnownSDEConfig
from neuralsde.experiments.task import task_for
from neuralsde.training.run_folder import provenance, rows_before, write_results

SYSTEMS = ("ou", "double_well", "cir", "van_der_pol", "gbm", "noise_branching", "lorenz", "ou10")
METHOD = "nsde.fit"


def one(job: tuple[str, int, str]) -> dict[str, Any]:
    """A system."""
    torch.set_num_threads(1)
    system, seed, budget = job
    task = task_for(KnownSDEConfig(system=system))  # type: ignore[arg-type]
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nsde.fit(task.data(seed), budget=budget, seed=seed, progress=False, cpu=True)
        seconds = time.perf_counter() - began
        scores = task.score(model, seed).values if model.config.history == 1 else None  # no fields of a state alone
    assert model.report is not None
    chosen = {name: model.report[name] for name in ("choice", "sampler", "steps")}
    row = {"set": system, "method": METHOD, "seed": seed, "seconds": seconds, **chosen, "scores": scores}
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="10 min")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    command, here = f"python benchmarks/zoo/known.py {shlex.join(sys.argv[1:])}", provenance()
    rows = rows_before(args.output, args.budget, here["commit"], [(name, METHOD) for name in args.only])
    known = {(row["set"], row["seed"]) for row in rows}
    jobs = [(name, args.seed, args.budget) for name in args.only if (name, args.seed) not in known]
    with worker_pool(args.num_workers) as pool:
        for done in as_completed([pool.submit(one, job) for job in jobs]):
            rows.append({**done.result(), "commit": here["commit"]})
            rows.sort(key=lambda row: (row["seed"], SYSTEMS.index(row["set"])))
            write_results(args.output, {"command": command, "budget": args.budget, "rows": rows, **here})


if __name__ == "__main__":
    main()
