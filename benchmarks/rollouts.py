"""Roll-outs on a GPU: steps replayed as a CUDA graph, beside the same steps launched one by one.

    python benchmarks/rollouts.py --output results/rollouts.json

Both draw with the same keys; the largest difference of their states is given beside the median time of interleaved repeats.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import neuralsde as nsde
from neuralsde.models import sequence
from neuralsde.training.run_folder import provenance, write_results

REPEATS = 7


def model_of(history: int, shared: bool, rng: np.random.Generator) -> Any:
    """A trained perceptron of two dimensions."""
    x = rng.standard_normal((64, 200, 2)).cumsum(1) * 0.05
    data = nsde.Trajectories.from_arrays(list(x))
    model = nsde.NeuralSDE.for_data(data, history=history, shared=shared)
    config = nsde.TrainConfig(steps=200)
    return nsde.fit(model, data, config=config, options=nsde.RunOptions(progress=False)).cuda()


def timed(model: Any, start: np.ndarray, steps: int, num: int, replay: bool) -> tuple[float, torch.Tensor]:
    """Seconds, and the paths; `replay` as usual, or never."""
    enough, sequence.ENOUGH = sequence.ENOUGH, sequence.ENOUGH if replay else 10**9
    try:
        torch.cuda.synchronize()
        began = time.perf_counter()
        sampler = nsde.Sampler(box=None)
        paths = model.sample(start, np.arange(steps + 1.0), num_paths=num, rng=0, sampler=sampler)
        torch.cuda.synchronize()
        return time.perf_counter() - began, paths
    finally:
        sequence.ENOUGH = enough


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    rows, rng = [], np.random.default_rng(0)
    for history, shared in ((1, False), (1, True), (4, False)):
        model = model_of(history, shared, rng)
        start = np.zeros((1, history, 2))
        for num, steps in ((4_096, 1_000), (64, 1_000), (1, 1_000), (1, 100)):
            took: dict[bool, list[float]] = {True: [], False: []}
            paths = {}
            for replay in (True, False):
                timed(model, start, steps, num, replay)
            for _ in range(REPEATS):
                for replay in (True, False):
                    seconds, paths[replay] = timed(model, start, steps, num, replay)
                    took[replay].append(seconds)
            apart = float((paths[True] - paths[False]).abs().max())
            row = {
                "history": history,
                "shared": shared,
                "num_paths": num,
                "steps": steps,
                "replayed_ms": 1e3 * float(np.median(took[True])),
                "launched_ms": 1e3 * float(np.median(took[False])),
                "ratio": float(np.median(took[False]) / np.median(took[True])),
                "largest_difference": apart,
            }
            print(row, flush=True)
            rows.append(row)
    record = {"command": f"python benchmarks/rollouts.py --output {args.output.name}", "rows": rows}
    write_results(args.output, {**record, **provenance()})


if __name__ == "__main__":
    main()
