"""A law for any step: `Transport` by its number of passes, beside the mixture and Flow Matching from white noise.

    python benchmarks/laws_transport.py --output results/transport.json

Systems are those of `laws_mixture`: x' = keep x + e. All methods get the same net, data, steps and learning rate, three
training seeds. The score is the Wasserstein distance of one step from 0 to the truth, in standard deviations of the step,
and the probability of the event. The floor is the distance between two sets of true steps.
"""

from __future__ import annotations

import argparse
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from laws_mixture import NUM_DRAWS, NUM_PATHS, SYSTEMS, train

import neuralsde as nsde
from neuralsde.baselines.config import Generation, RectifiedFlowConfig
from neuralsde.metrics.forecast import wasserstein_1d
from neuralsde.models.build import build
from neuralsde.training.run_folder import provenance, write_results

PASSES = (0, 1, 2, 4, 8, 16, 32)
NAMES = ("coin", "event", "skewed", "jumps")
STEPS = 1_500
LAWS = {"Transport": nsde.Transport(), "Mixture": nsde.Mixture()}


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Wasserstein-1."""
    return float(wasserstein_1d(torch.from_numpy(one), torch.from_numpy(other)))


def run(job: tuple[str, str, int]) -> list[dict[str, Any]]:
    """One training, and its scores at every number of passes."""
    method, name, seed = job
    warnings.simplefilter("ignore")
    system = SYSTEMS[name]
    if method in LAWS:
        model: Any = train(name, LAWS[method], seed=seed, steps=STEPS)
    else:
        data = system.paths(np.random.default_rng(seed), NUM_PATHS)
        net = nsde.MLPConfig(width=32, depth=2)
        model = build(RectifiedFlowConfig(net=net, target="increment", noise=0.0), data.transitions(), seed=seed)
        nsde.fit(model, data, steps=STEPS, batch_size=512, lr=3e-3, seed=seed, progress=False, cpu=True)
    truth, again = (system.draw(np.random.default_rng([seed, k]), (NUM_DRAWS,)) for k in (1, 2))
    rows = []
    for passes in PASSES if method != "Mixture" else (0,):
        if method == "Flow Matching" and passes == 0:
            continue
        sampler = nsde.Sampler(passes=passes) if method in LAWS else Generation(num_steps=passes)
        drawn = model.sample([[0.0]], [0.0, 1.0], num_paths=NUM_DRAWS, rng=seed, sampler=sampler)[0, :, 1, 0].numpy()
        rows.append(
            {
                "method": method,
                "system": name,
                "seed": seed,
                "passes": passes,
                "distance": distance(drawn, truth) / float(truth.std()),
                "floor": distance(again, truth) / float(truth.std()),
                "mean": float((drawn.mean() - truth.mean()) / truth.std()),
                "variance": float(drawn.var() / truth.var()),
                "probability": None if system.event is None else float(system.event(drawn).mean()),
                "truth": system.probability or None,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    methods = (*LAWS, "Flow Matching")
    jobs = [(method, name, seed) for seed in range(args.seeds) for name in NAMES for method in methods]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        for done in pool.map(run, jobs):
            rows += done
            last = done[-1]
            print(last["method"], last["system"], last["seed"], f"{last['distance']:.4f}", flush=True)
    record = {"command": f"python benchmarks/laws_transport.py --output results/{args.output.name}", "rows": rows}
    write_results(args.output, {**record, "steps": STEPS, "draws": NUM_DRAWS, **provenance()})


if __name__ == "__main__":
    main()
