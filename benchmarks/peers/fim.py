"""The benchmark of FIM-SDE (Seifner et al., 2025): eight systems, one path of 5,000 observations, MMD of drawn paths.

    python benchmarks/peers/fim.py --output results/peers_fim.json --workers 12

As their public scripts define it: paths by Euler-Maruyama with dt = 0.002 from a fixed start; every k-th state is observed,
5,000 in all; noise is a share of half the range. A second path of 50,000 steps is cut into 100 pieces of 500 states. The
model draws 100 paths from the first states of these pieces; their distance to the pieces is the unbiased MMD² of the
signature kernel of five levels, over a Gaussian kernel of bandwidth 1, each level of unit norm. The paths of theirs are not
public, so these are other draws of the same systems. `truth` is the same distance of paths drawn from the true SDE.

Our model has one plain setting for all systems: Moments from start states, two nets, the same steps. With noise it learns it
from several lags. One realisation is one training; the number of steps was chosen on realisation 100 of two systems.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from concurrent.futures import as_completed
from dataclasses import dataclass
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

DT, OBSERVATIONS, PIECES, LENGTH = 0.002, 5_000, 100, 500
LEVELS = 5
SETTINGS = {"steps": 300, "batch_size": 512, "lr": 3e-3}
NET = nsde.MLPConfig(width=32, depth=2)
LAGS = (1, 2, 4, 8)
WIDEST = 0.05  # time that one step of the moments covers
CASES = ((1, 0.0), (5, 0.0), (10, 0.0), (100, 0.0), (10, 0.1))
"""Strides and noises: their densities without noise, and their largest noise at one density."""

Field = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True)
class System:
    """dx = drift dt + diffusion dw, for floats and tensors alike."""

    drift: Field
    diffusion: Field
    start: tuple[float, ...]


def _positive(value: Any) -> Any:
    return (value + abs(value)) / 2


def _circle(x: Any, y: Any) -> tuple[Any, Any]:
    return x * (1 - x**2 - y**2) - y, y * (1 - x**2 - y**2) + x


def _ones(*x: Any) -> tuple[Any, ...]:
    return tuple(0 * v + 1 for v in x)


SYSTEMS = {
    "damped linear": System(lambda x, y: (-0.1 * x + 2 * y, -2 * x - 0.1 * y), _ones, (2.5, -5.0)),
    "damped cubic": System(lambda x, y: (-0.1 * x**3 + 2 * y**3, -2 * x**3 - 0.1 * y**3), _ones, (0.0, -1.0)),
    "Duffing": System(lambda x, y: (y, x - x**3 - 0.35 * y), _ones, (3.0, 2.0)),
    "glycolysis": System(lambda x, y: (-x + 0.08 * y + x**2 * y, 0.6 - 0.08 * y - x**2 * y), _ones, (0.7, 1.25)),
    "Hopf": System(lambda x, y: (0.5 * x + y - x * (x**2 + y**2), -x + 0.5 * y - y * (x**2 + y**2)), _ones, (2.0, 2.0)),
    "double well": System(lambda x: (4 * (x - x**3),), lambda x: (_positive(4 - 1.25 * x**2) ** 0.5,), (0.0,)),
    "Wang": System(_circle, lambda x, y: ((1 + y**2) ** 0.5, (1 + x**2) ** 0.5), (1.5, 1.5)),
    "synthetic 2-D": System(_circle, _ones, (1.5, 1.5)),
}


def simulate(system: System, steps: int, rng: np.random.Generator) -> np.ndarray:
    """One path (steps, d) from the system's start."""
    state, root = system.start, math.sqrt(DT)
    path = [state]
    for z in rng.standard_normal((steps - 1, len(state))).tolist():
        drift, noise = system.drift(*state), system.diffusion(*state)
        state = tuple(x + f * DT + g * root * e for x, f, g, e in zip(state, drift, noise, z))
        path.append(state)
    return np.array(path)


def true_paths(system: System, start: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Paths (N, LENGTH, d) of the true SDE from these states."""
    x, paths = torch.from_numpy(start), [torch.from_numpy(start)]
    for _ in range(LENGTH - 1):
        f, g = (torch.stack(field(*x.T), 1) for field in (system.drift, system.diffusion))
        x = x + f * DT + g * math.sqrt(DT) * torch.from_numpy(rng.standard_normal(x.shape))
        paths.append(x)
    return torch.stack(paths, 1).numpy()


def signature_levels(x: Tensor, y: Tensor) -> Tensor:
    """Kernels (LEVELS + 1, N) of the truncated signatures of pairs of paths (N, T, d), level by level.

    Level m sums, over all i_1 < … < i_m and j_1 < … < j_m, the product of the second differences of the Gaussian kernel at (i, j).
    """
    gram = torch.exp(-0.5 * torch.cdist(x, y).square())
    cells = gram.diff(dim=-1).diff(dim=-2)
    levels, inner = [torch.ones(len(x), dtype=x.dtype, device=x.device)], cells
    for level in range(LEVELS):
        if level:
            before = torch.nn.functional.pad(inner.cumsum(-1).cumsum(-2), (1, 0, 1, 0))[:, :-1, :-1]
            inner = cells * before
        levels.append(inner.sum((-2, -1)))
    return torch.stack(levels)


def gram(x: Tensor, y: Tensor) -> Tensor:
    """(LEVELS + 1, N, M) of two sets of paths."""
    rows = [signature_levels(path.expand(len(y), -1, -1).contiguous(), y) for path in x]
    return torch.stack(rows, 1)


def own_gram(x: Tensor) -> Tensor:
    """That of a set with itself: half of it, mirrored."""
    found = x.new_zeros(LEVELS + 1, len(x), len(x))
    for i, path in enumerate(x):
        found[:, i, i:] = signature_levels(path.expand(len(x) - i, -1, -1).contiguous(), x[i:])
    return found + found.triu(1).transpose(1, 2)


def mmd(x: Tensor, y: Tensor, yy: Tensor | None = None) -> float:
    """Unbiased MMD² between two sets of N paths (N, T, d); `yy` is the second's own gram, where it is known."""
    xx, yy, xy = own_gram(x), own_gram(y) if yy is None else yy, gram(x, y)
    a, b = (k.diagonal(dim1=1, dim2=2).clamp(min=1e-12).sqrt() for k in (xx, yy))
    kernels = [k / (p[:, :, None] * q[:, None]) for k, p, q in ((xx, a, a), (yy, b, b), (xy, a, b))]
    one, two, cross = (k.mean(0) for k in kernels)
    n = len(x)
    apart = [(k.sum() - k.diagonal().sum()) / (n * (n - 1)) for k in (one, two)]
    return float(apart[0] + apart[1] - 2 * cross.mean())


def observations(name: str, stride: int, noise: float, realisation: int) -> np.ndarray:
    """What is learned from."""
    rng = np.random.default_rng([list(SYSTEMS).index(name), realisation, 0])
    path = simulate(SYSTEMS[name], OBSERVATIONS * stride, rng)[::stride]
    spread = 0.5 * (path.max(0) - path.min(0))
    return path + noise * spread * rng.standard_normal(path.shape)


def learn(seen: np.ndarray, stride: int, *, noisy: bool, seed: int, steps: int, cpu: bool) -> nsde.NeuralSDE:
    """Our model of one path."""
    times = DT * stride * np.arange(len(seen))
    data = nsde.Trajectories.from_arrays(seen[None], times)
    lag = tuple(k * DT * stride for k in LAGS) if noisy else None
    law = nsde.Moments(steps=max(1, round(stride * DT / WIDEST)), measurement=noisy)
    model = nsde.NeuralSDE.for_data(data, lag=lag, tau="start", noise=0.0, denoiser=None, law=law, net=NET, seed=seed)
    nsde.fit(model, data.transitions(lag=lag), **SETTINGS | {"steps": steps}, seed=seed, progress=False, cpu=cpu)
    return model


def run(name: str, realisation: int, steps: int, cpu: bool) -> list[dict[str, Any]]:
    """A row per density and noise."""
    torch.set_num_threads(1)
    system, index = SYSTEMS[name], list(SYSTEMS).index(name)
    rng = np.random.default_rng([index, realisation, 1])
    pieces = simulate(system, PIECES * LENGTH, rng).reshape(PIECES, LENGTH, -1)
    device = "cuda" if torch.cuda.is_available() and not cpu else "cpu"
    reference = torch.from_numpy(pieces).to(device)
    own = own_gram(reference)
    truth = mmd(torch.from_numpy(true_paths(system, pieces[:, 0], rng)).to(device), reference, own)
    states = torch.from_numpy(pieces.reshape(-1, pieces.shape[-1])[::10])
    rows = []
    for stride, noise in CASES:
        seen = observations(name, stride, noise, realisation)
        model = learn(seen, stride, noisy=noise > 0, seed=realisation, steps=steps, cpu=cpu)
        row: dict[str, Any] = {"system": name, "dt": DT * stride, "noise": noise, "realisation": realisation}
        learned = [v.double().cpu() for v in model.fields(states.float())]
        for key, got, field in zip(("drift_error", "diffusion_error"), learned, (system.drift, system.diffusion)):
            true = torch.stack(field(*states.T), 1)
            row[key] = float((got - true).square().mean().sqrt() / true.square().mean().sqrt())
        try:
            times = DT * np.arange(LENGTH)
            paths = model.sample(torch.from_numpy(pieces[:, 0]).float(), times, rng=realisation)[:, 0]
            row |= {"mmd": mmd(paths.double().to(device), reference, own), "truth": truth}
        except Diverged as error:
            row |= {"error": str(error), "truth": truth}
        rows.append(row)
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--realisations", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--steps", type=int, default=SETTINGS["steps"], help="training steps")
    parser.add_argument("--cpu", action="store_true", help="stay on the CPU though there is a GPU")
    args = parser.parse_args(argv)
    jobs = [(system, r, args.steps, args.cpu) for r in args.realisations for system in args.systems]
    head = {"command": f"python benchmarks/peers/fim.py --output results/{args.output.name}", **provenance()}
    head["settings"] = SETTINGS | {"steps": args.steps, "width": NET.width, "depth": NET.depth, "lags": LAGS}
    rows: list[dict[str, Any]] = []
    with worker_pool(args.workers) as pool:
        for future in as_completed([pool.submit(run, *job) for job in jobs]):
            rows += future.result()
            rows.sort(key=lambda r: (list(SYSTEMS).index(r["system"]), r["noise"], r["dt"], r["realisation"]))
            write_results(args.output, {**head, "rows": rows})
            for row in future.result():
                print(*(f"{k}={v:.4g}" if isinstance(v, float) else v for k, v in row.items()), flush=True)


if __name__ == "__main__":
    main()
