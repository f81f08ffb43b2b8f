"""Walking: 50 joint angles of one person (CMU motion capture, subject 35), forecast by `nsde.fit` without settings.

    python benchmarks/walking.py --data mocap35.mat --budget "10 min" --output results/walking.json

The file holds Xtr (16, 300, 50), Xval (3, 300, 50) and Xtest (4, 300, 50), as published with ODE2VAE. The model is chosen and
trained on the 19 training and validation walks. First set-up: given frames 1 to 3, forecast the 297 that follow. Second: given
frames 1 to 100, forecast 200. The score is the mean squared error of the mean of 100 samples, in raw units, over frames, angles
and the four test walks; its interval is over training seeds. Test walks are scored once.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import neuralsde as nsde
from neuralsde.core.processes import worker_pool
from neuralsde.experiments.compare import interval
from neuralsde.training.run_folder import provenance, write_results

KNOWN = {"first": 3, "second": 100}  # frames
SAMPLES = 100
PUBLISHED = {  # reruns in Neural Stochastic Flows (2025)
    "SDE Matching": (5.20, 4.26),
    "NCDSSM": (5.69, 4.74),
    "ARCTA": (7.62, 9.92),
    "Latent NSF": (8.62, 3.41),
    "Latent SDE": (12.91, 9.52),
}


def read(file: str) -> dict[str, np.ndarray]:
    """The three arrays, from the published file or from a copy as .npz."""
    if file.endswith(".npz"):
        return dict(np.load(file))
    from scipy.io import loadmat

    return loadmat(file)


def error(model: Any, walks: np.ndarray, known: int) -> float:
    """Mean squared error of the mean of samples, given the first frames."""
    data = nsde.Trajectories.from_arrays(list(walks))
    length = walks.shape[1]
    rows = np.arange(len(walks)) * length + known - 1
    slots = data.slots(rows, history=model.config.history, spacing=model.lag)
    times = np.arange(known - 1, length, dtype=float)
    drawn = model.sample(data.states[slots], times, num_paths=SAMPLES, rng=0)
    return float(np.square(drawn[:, :, 1:].mean(1).numpy() - walks[:, known:]).mean())


def one(job: tuple[str, str, int]) -> dict[str, Any]:
    """A seed."""
    file, budget, seed = job
    walks = read(file)
    train = [*walks["Xtr"], *walks["Xval"]]
    began = time.perf_counter()
    model = nsde.fit(train, budget=budget, seed=seed, progress=False, cpu=True)
    row = {"seed": seed, "seconds": time.perf_counter() - began}
    row |= {f"mse_{name}": error(model, walks["Xtest"].astype(float), known) for name, known in KNOWN.items()}
    assert model.report is not None
    row |= {name: model.report[name] for name in ("choice", "sampler", "unit", "steps", "reason")}
    row["finals"] = [t for t in model.report["tried"] if t["round"] == "final"]
    print({k: v for k, v in row.items() if k != "finals"}, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="mocap35.mat, or its arrays as .npz")
    parser.add_argument("--budget", default="10 min")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    said = " ".join("mocap35.mat" if a == args.data else f'"{a}"' if " " in a else a for a in sys.argv[1:])
    with worker_pool(args.num_workers) as pool:
        rows = []
        for row in pool.map(one, [(args.data, args.budget, seed) for seed in range(args.seeds)]):
            rows.append(row)
            write(args, said, rows)


def write(args: argparse.Namespace, said: str, rows: list[dict[str, Any]]) -> None:
    """What is known so far."""
    each = {name: interval([row[f"mse_{name}"] for row in rows]) for name in KNOWN}
    found = {name: {"mean": e["mean"], "interval": e["ci95"], "n": e["n"]} for name, e in each.items()}
    published = {name: dict(zip(KNOWN, values)) for name, values in PUBLISHED.items()}
    record = {
        "command": f"python benchmarks/walking.py {said}",
        "budget": args.budget,
        "mse": found,
        "published": published,
    }
    write_results(args.output, {**record, "rows": rows, **provenance()})
    print(found)


if __name__ == "__main__":
    main()
