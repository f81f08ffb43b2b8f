"""The stochastic Lorenz attractor of Neural Stochastic Flows (Kiyohara et al., 2025): KL divergence of the state's law at t = 1.

    python benchmarks/peers/lorenz.py --output results/peers_lorenz.json --workers 3

The data are those of the latent SDE that they follow (Li et al., 2020): sigma 10, rho 28, beta 8/3, noise 0.15 in every
coordinate, starts from N(0, 1), 1,024 paths observed every 0.025 up to t = 1 with noise of 0.01. Trained models draw from
new starts of the same law. KL(truth ‖ model) is estimated from nearest neighbours among 10,000 draws of each; `truth` is the
same estimate between two sets of true draws, 0 up to chance. The estimator behind the published numbers was not at hand, so
that they stand beside ours and are not the same measure.
"""

from __future__ import annotations

import argparse
import math
import os
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor

import neuralsde as nsde
from neuralsde.core.processes import worker_pool
from neuralsde.solvers.integrate import Diverged
from neuralsde.training.run_folder import provenance, write_results

PUBLISHED = {
    "Neural Stochastic Flows": {0.25: (0.8, 0.7), 0.5: (1.3, 0.1), 0.75: (0.6, 0.3), 1.0: (0.2, 0.6)},
    "latent SDE": {0.25: (2.1, 0.9), 0.5: (1.8, 0.1), 0.75: (0.9, 0.3), 1.0: (1.5, 0.5)},
    "SDE Matching": {0.25: (4.3, 0.7), 0.5: (5.3, 1.0), 0.75: (3.4, 0.8), 1.0: (3.8, 1.0)},
}
"""KL and its spread, from the table on the project page of Neural Stochastic Flows; the best setting of each method at t = 1."""
TIMES = (0.25, 0.5, 0.75, 1.0)
PATHS, GAP, NOISE, SIGMA = 1_024, 0.025, 0.01, 0.15
FINE = 25  # simulation steps of a gap
DRAWS, NEIGHBOURS = 10_000, 5
SETTINGS = {"steps": 2_000, "batch_size": 512, "lr": 4e-3}
NET = nsde.MLPConfig(width=64, depth=2)
METHOD = "ours"


def drift(x: Tensor) -> Tensor:
    """Of the Lorenz system."""
    a, b, c = x.unbind(-1)
    return torch.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c], -1)


def simulate(num: int, rng: torch.Generator) -> Tensor:
    """True paths (num, T, 3) at multiples of the gap up to t = 1, by stochastic Heun in fine steps."""
    h = GAP / FINE
    x = torch.randn(num, 3, generator=rng, dtype=torch.float64)
    paths = [x]
    for _ in range(round(1 / GAP)):
        for _ in range(FINE):
            step = SIGMA * math.sqrt(h) * torch.randn(num, 3, generator=rng, dtype=torch.float64)
            f = drift(x)
            x = x + 0.5 * h * (f + drift(x + h * f + step)) + step
        paths.append(x)
    return torch.stack(paths, 1)


def kl_divergence(p: Tensor, q: Tensor) -> float:
    """KL(P ‖ Q) of two samples (N, d), from distances to the k-th neighbour (Wang, Kulkarni and Verdú, 2009)."""
    k = NEIGHBOURS
    inside = torch.cat(
        [torch.cdist(part, p).kthvalue(k + 1, 1).values for part in p.split(1_000)]
    )  # itself is the first
    across = torch.cat([torch.cdist(part, q).kthvalue(k, 1).values for part in p.split(1_000)])
    return float(p.shape[1] * (across / inside).log().mean() + math.log(len(q) / (len(p) - 1)))


def learn(seed: int, steps: int, cpu: bool) -> nsde.NeuralSDE:
    """Our model; the noise of the observations, half that of a step, is not told apart from it."""
    rng = torch.Generator().manual_seed(seed)
    seen = simulate(PATHS, rng)
    seen = seen + NOISE * torch.randn(seen.shape, generator=rng, dtype=torch.float64)
    data = nsde.Trajectories.from_arrays(seen, GAP * np.arange(seen.shape[1]))
    law = nsde.Moments(steps=2)
    model = nsde.NeuralSDE.for_data(data, tau="start", noise=0.0, denoiser=None, law=law, net=NET, seed=seed)
    nsde.fit(model, data.transitions(), **SETTINGS | {"steps": steps}, seed=seed, progress=False, cpu=cpu)
    return model


def run(seed: int, steps: int, draws: int, cpu: bool) -> list[dict[str, Any]]:
    """A row per time."""
    torch.set_num_threads(1)
    model = learn(seed, steps, cpu)
    rng = torch.Generator().manual_seed(1_000_000 + seed)
    true, other = simulate(draws, rng), simulate(draws, rng)
    start = torch.randn(draws, 3, generator=rng, dtype=torch.float64)
    device = "cuda" if torch.cuda.is_available() and not cpu else "cpu"
    rows = []
    try:
        sampler = nsde.Sampler(substeps=4)
        paths = model.sample(start.float(), [0.0, *TIMES], rng=seed, sampler=sampler)[:, 0].double().to(device)
    except Diverged as error:
        return [{"method": METHOD, "seed": seed, "time": t, "error": str(error)} for t in TIMES]
    for k, t in enumerate(TIMES, 1):
        p, again = (law[:, round(t / GAP)].to(device) for law in (true, other))
        unit = p.std(0)
        row = {"method": METHOD, "seed": seed, "time": t, "kl": kl_divergence(p / unit, paths[:, k] / unit)}
        rows.append(row | {"truth": kl_divergence(p / unit, again / unit)})
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=SETTINGS["steps"], help="training steps")
    parser.add_argument("--draws", type=int, default=DRAWS, help="draws of each law")
    parser.add_argument("--cpu", action="store_true", help="stay on the CPU though there is a GPU")
    args = parser.parse_args(argv)
    jobs = [(seed, args.steps, args.draws, args.cpu) for seed in range(args.seeds)]
    head = {"command": f"python benchmarks/peers/lorenz.py --output results/{args.output.name}", **provenance()}
    head["settings"] = SETTINGS | {"steps": args.steps, "draws": args.draws, "width": NET.width, "depth": NET.depth}
    published = [
        {"method": method, "time": t, "kl": value, "spread": spread}
        for method, times in PUBLISHED.items()
        for t, (value, spread) in times.items()
    ]
    rows: list[dict[str, Any]] = []
    with worker_pool(args.workers) as pool:
        for future in as_completed([pool.submit(run, *job) for job in jobs]):
            rows += future.result()
            rows.sort(key=lambda r: (r["method"], r["time"], r["seed"]))
            write_results(args.output, {**head, "published": published, "rows": rows})
            print(future.result()[-1], flush=True)


if __name__ == "__main__":
    main()
