"""Paths of ten times the training length, by the models that `nsde.fit` made of the zoo: 10,000 of each set.

    python benchmarks/zoo/run.py --methods nsde.fit --models runs/zoo --output results/zoo.json
    python benchmarks/zoo/long_paths.py --models runs/zoo --output results/zoo_long.json

Paths start where training paths do. `spread` is the standard deviation over paths at the end, after ten lengths, in that of all
training states; `true_spread` is that of the true process, by as many paths as the set has: both fall where paths settle, and grow
where they go apart. Sets that are not simulated have none. `beyond` is how far the 99th of 100 paths leaves the range of the
training states, in widths of that range. Features that never move are left out. With `--only` the other rows of the output stay.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import sets
import torch
from run import make, model_folder, paths
from sets import SETS

from neuralsde.core.records import RunError
from neuralsde.models.build import load
from neuralsde.training.run_folder import provenance, write_results

NUM, TIMES = 10_000, 10


def true_ends(name: str, seed: int) -> np.ndarray | None:
    """States (P, d) of the true process after ten lengths; None where a set is not simulated."""
    simulate, lengths = sets.simulate, []

    def longer(rng: Any, start: Any, num: int, *how: Any, **more: Any) -> np.ndarray:
        lengths.append(num)
        return simulate(rng, start, TIMES * (num - 1) + 1, *how, **more)

    sets.simulate = longer
    try:
        own = make(name, seed)
    finally:
        sets.simulate = simulate
    return np.stack([path[-1] for path in (*own.train, *own.test)]) if lengths else None


def ten_times(model: Any, name: str, num: int, seed: int) -> dict[str, Any]:
    """What becomes of long paths of a set."""
    made = make(name, seed)
    data = paths(made, test=False)
    duration = float(data.durations.median())
    first = (data.lengths.cumsum(0) - data.lengths)[torch.arange(num) % len(data)]
    slots = data.slots(first, history=model.config.history, spacing=model.lag)
    row = {"set": name, "seed": seed, "num_paths": num, "stationary": made.stationary}
    try:
        drawn = model.sample(data.states[slots], duration * np.linspace(0, TIMES, TIMES + 1), rng=0)[:, 0].cpu()
    except (ValueError, RunError) as error:
        return {**row, "finite": False, "error": str(error)}
    known = data.states if data.observed is None else data.states.where(data.observed, torch.nan)
    low, high = (torch.from_numpy(f(known.numpy(), axis=0)) for f in (np.nanmin, np.nanmax))
    moves = high > low
    beyond = (torch.maximum(low - drawn, drawn - high) / (high - low))[..., moves].amax((1, 2)).clamp(min=0)
    own = moves.numpy()
    usual, ends = np.nanstd(known.numpy(), axis=0)[own], true_ends(name, seed)
    spread = drawn[:, -1].std(0).numpy()[own] / usual
    return {
        **row,
        "finite": bool(drawn.isfinite().all()),
        "spread": float(np.median(spread)),
        "true_spread": None if ends is None else float(np.median(np.nanstd(ends, axis=0)[own] / usual)),
        "beyond": float(beyond.quantile(0.99)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of the models, one per set")
    parser.add_argument("--only", nargs="*", default=list(SETS))
    parser.add_argument("--num-paths", type=int, default=NUM)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    command = f"python benchmarks/zoo/long_paths.py --models runs/zoo --output results/{args.output.name}"
    here, before = provenance(), json.loads(args.output.read_text()) if args.output.exists() else {"rows": []}
    rows = [row for row in before["rows"] if row["set"] not in args.only]
    for name in args.only:
        began = time.perf_counter()
        model = load(model_folder(args.models, name))
        model = model.cuda() if torch.cuda.is_available() else model
        row = ten_times(model, name, args.num_paths, args.seed)
        row |= {"commit": here["commit"], "gpu": here["hardware"]["gpu"]}
        rows = sorted([*rows, row], key=lambda row: list(SETS).index(row["set"]))
        write_results(args.output, {"command": command, "rows": rows, **here})
        print({**row, "seconds": round(time.perf_counter() - began, 1)}, flush=True)


if __name__ == "__main__":
    main()
