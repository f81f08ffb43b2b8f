"""Training on a hundred million transitions from disk: memory, time spent waiting for data, and what a kill changes.

python benchmarks/streaming.py --output results/streaming.json

Ornstein-Uhlenbeck paths in two dimensions are written as shards and then read in processes of their own: once through all of
them without training, then in trainings of which one is killed with SIGKILL and resumed. Memory is the peak of the resident
set of such a process (VmHWM), everything included.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import neuralsde as nsde
from neuralsde.training.run_folder import provenance, write_results

LENGTH, PATHS, DIM, DT = 1_001, 1_000, 2, 0.1  # observations of a path, paths written at once
TRAININGS = {  # name: batch size, net, steps
    "default net": (512, {}, 1_000),
    "small net": (512, {"width": 64, "depth": 2}, 4_000),
}
KILLED = "small net"


def paths(num: int) -> Iterator[nsde.Trajectories]:
    """Ornstein-Uhlenbeck paths, exactly, some at a time."""
    keep, rng = math.exp(-DT), torch.Generator().manual_seed(0)
    times = (torch.arange(LENGTH, dtype=torch.float64) * DT).repeat(PATHS)
    for _ in range(num // PATHS):
        states = torch.empty(PATHS, LENGTH, DIM).normal_(generator=rng)
        for k in range(1, LENGTH):
            states[:, k].mul_(math.sqrt(1 - keep**2)).add_(states[:, k - 1], alpha=keep)
        yield nsde.Trajectories(states.reshape(-1, DIM), times, torch.full((PATHS,), LENGTH))


def peak() -> float:
    """MiB, the most that were resident so far."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def read(folder: str) -> dict[str, Any]:
    """As many transitions as an epoch has, and nothing else."""
    began = time.perf_counter()
    pairs = nsde.Stream.open(folder).transitions()
    opened = time.perf_counter() - began
    size = 8_192
    batches, began = pairs.batches(0, 0, size), time.perf_counter()
    for _ in range(len(pairs) // size):
        next(batches)
    seconds = time.perf_counter() - began
    batches.close()
    rate = len(pairs) // size * size / seconds
    return {"open_seconds": opened, "per_second": rate, "peak_mib": peak(), "n": len(pairs)}


def train(folder: str, run_dir: str, name: str, share: float) -> dict[str, Any]:
    """Train; resumed if it was begun."""
    batch_size, net, steps = TRAININGS[name]
    stream = nsde.Stream.open(folder)
    model = nsde.NeuralSDE.for_data(stream, net=nsde.MLPConfig(**net))
    options = {"progress": False, "cpu": True, "log_every": 100, "checkpoint_every": 250}
    settings = {"steps": max(500, round(steps * share)), "batch_size": batch_size}
    model = nsde.fit(model, stream, run_dir=run_dir, resume=True, **settings, **options)
    weights = b"".join(v.contiguous().numpy().tobytes() for v in model.state_dict().values())
    return {"peak_mib": peak(), "weights": hashlib.sha256(weights).hexdigest()[:16]}


def measured(run_dir: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    seconds = [100 / line["steps_per_second"] for line in lines]
    waited = sum(s * line["waiting"] for s, line in zip(seconds, lines))
    losses = [{k: v for k, v in line.items() if k not in ("steps_per_second", "waiting")} for line in lines]
    worst = max(line["waiting"] for line in lines)
    return {
        "busy": 1 - waited / sum(seconds),
        "busy_in_the_worst_100_steps": 1 - worst,
        "steps": lines[-1]["step"],
        "steps_per_second": lines[-1]["step"] / sum(seconds),
        "losses": hashlib.sha256(json.dumps(losses).encode()).hexdigest()[:16],
    }


def child(*words: str) -> list[str]:
    return [sys.executable, __file__, "--child", *words]


def result(*words: str) -> dict[str, Any]:
    done = subprocess.run(child(*words), check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def killed_run(folder: Path, run_dir: Path, share: float, num: int) -> tuple[dict[str, Any], list[int]]:
    """The same training, killed `num` times somewhere between two checkpoints; its last line, and the steps at the kills."""
    kills = []
    for k in range(num):
        words = child("train", str(folder), str(run_dir), KILLED, str(share))
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        goal, metrics = 400 * (k + 1), run_dir / "metrics.jsonl"
        while process.poll() is None and steps_in(metrics) < goal:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills.append(steps_in(metrics))
    return result("train", str(folder), str(run_dir), KILLED, str(share)), kills


def steps_in(metrics: Path) -> int:
    return 100 * metrics.read_text().count("\n") if metrics.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("results/streaming.json"))
    parser.add_argument("--transitions", type=int, default=100_000_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the steps of each training")
    parser.add_argument("--child", nargs="+")
    args = parser.parse_args()
    if args.child:
        print(
            json.dumps(
                read(args.child[1]) if args.child[0] == "read" else train(*args.child[1:4], float(args.child[4]))
            )
        )
        return
    with tempfile.TemporaryDirectory() as place:
        folder, began = Path(place) / "stream", time.perf_counter()
        nsde.Stream.write(paths(args.transitions // (LENGTH - 1)), folder)
        writing = time.perf_counter() - began
        size = sum(file.stat().st_size for file in folder.iterdir())
        epoch = result("read", str(folder))
        rows = {}
        for name in TRAININGS:
            run_dir = Path(place) / "run"
            done = result("train", str(folder), str(run_dir), name, str(args.share))
            rows[name] = {**measured(run_dir), **done, "batch_size": TRAININGS[name][0]}
            print(name, rows[name])
            shutil.rmtree(run_dir)
        again, kills = killed_run(folder, Path(place) / "killed", args.share, args.kills)
        again |= measured(Path(place) / "killed")
    same = {key: again[key] == rows[KILLED][key] for key in ("weights", "losses")}
    values = {
        "command": "python benchmarks/streaming.py",
        "seed": 0,
        "transitions": args.transitions,
        "bytes_on_disk": size,
        "write_seconds": writing,
        "epoch": epoch,
        "trainings": rows,
        "killed": {
            "training": KILLED,
            "after_steps": kills,
            "same_weights": same["weights"],
            "same_losses": same["losses"],
        },
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(values, indent=1))
    write_results(args.output, {**provenance(), **values})


if __name__ == "__main__":
    main()
