"""Tails and modes in one step: the law `Mixture`, and Euler's beside it, where the law of a step is known.

Each system is x' = keep x + e with independent e: Student-t3, Gaussian with 2 % jumps, a coin, and an event of probability
.02 that a counter adds up. Scores are the likelihood lost against the truth on fresh paths, in nats per step, and what is
drawn.

python benchmarks/laws_mixture.py --output results/laws.json

Rows of the file that have other labels or seeds stay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from scipy import stats

import neuralsde as nsde
from neuralsde.training.run_folder import provenance, write_results

NUM_PATHS, NUM_FRESH, LENGTH = 600, 300, 100
NUM_DRAWS = 40_000
LAWS = {"Euler": nsde.Euler(), "Mixture": nsde.Mixture()}


@dataclass(frozen=True)
class System:
    """x' = keep x + e."""

    keep: float
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
    log_prob: Callable[[np.ndarray], np.ndarray]
    event: Callable[[np.ndarray], np.ndarray] | None = None
    probability: float = 0.0

    def paths(self, rng: np.random.Generator, num: int) -> nsde.Trajectories:
        """Paths from 0."""
        steps = self.draw(rng, (num, LENGTH))
        x = np.zeros((num, LENGTH + 1, 1))
        for k in range(LENGTH):
            x[:, k + 1, 0] = self.keep * x[:, k, 0] + steps[:, k]
        return nsde.Trajectories.from_arrays(x, dt=1.0)


def _modes(weights: list[float], places: list[float], width: float) -> dict[str, Any]:
    """Draw and density of a few Gaussians of one width."""

    def log_prob(e: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce([np.log(w) + stats.norm.logpdf(e, p, width) for w, p in zip(weights, places)])

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.choice(places, shape, p=weights) + width * rng.standard_normal(shape)

    return {"draw": draw, "log_prob": log_prob}


SYSTEMS = {
    "t3": System(0.9, lambda r, s: 0.3 * r.standard_t(3, s), lambda e: stats.t.logpdf(e, 3, scale=0.3)),
    "jumps": System(
        0.9, **_modes([0.98, 0.01, 0.01], [0.0, 1.0, -1.0], 0.1), event=lambda e: abs(e) > 0.5, probability=0.02
    ),
    "coin": System(0.9, **_modes([0.5, 0.5], [-1.0, 1.0], 0.05), event=lambda e: e > 0, probability=0.5),
    "event": System(1.0, **_modes([0.98, 0.02], [0.0, 1.0], 0.02), event=lambda e: e > 0.5, probability=0.02),
}


def train(name: str, law: Any, *, seed: int = 0, steps: int = 900) -> nsde.NeuralSDE:
    """A model of a system."""
    data = SYSTEMS[name].paths(np.random.default_rng(seed), NUM_PATHS)
    net = nsde.MLPConfig(width=32, depth=2)
    model = nsde.NeuralSDE.for_data(data, law=law, net=net, noise=0.0, denoiser=None, seed=seed)
    nsde.fit(model, data, steps=steps, batch_size=512, lr=3e-3, seed=seed, progress=False, cpu=True)
    return model.eval()


def score(name: str, model: nsde.NeuralSDE, *, seed: int = 0) -> dict[str, Any]:
    """Likelihood lost on fresh paths, the event's probability, and the counter 50 steps ahead."""
    system = SYSTEMS[name]
    batch = system.paths(np.random.default_rng(seed + 1000), NUM_FRESH).transitions().spread(10**6)
    error = (batch.next - system.keep * batch.history[:, -1])[:, 0].double().numpy()
    lost = system.log_prob(error) - model.log_prob(batch).double().numpy()
    scores = {"n": len(lost), "nats_lost": float(lost.mean()), "nats_lost_se": float(lost.std() / len(lost) ** 0.5)}
    if system.event is not None:
        drawn = model.sample([[0.0]], [0.0, 1.0], num_paths=NUM_DRAWS, rng=seed)[0, :, 1, 0].numpy()
        scores |= {"draws": NUM_DRAWS, "probability": float(system.event(drawn).mean()), "truth": system.probability}
    if name == "event":
        ends = model.sample([[0.0]], [0.0, 50.0], num_paths=NUM_DRAWS, rng=seed + 1)[0, :, 1, 0].numpy()
        scores |= {"mean_after_50": float(ends.mean()), "variance_after_50": float(ends.var())}
    return scores


def rows(seed: int = 0, steps: int = 900) -> Iterator[dict[str, Any]]:
    """One row for each system and law."""
    torch.set_num_threads(1)
    for name, (label, law) in itertools.product(SYSTEMS, LAWS.items()):
        scores = score(name, train(name, law, seed=seed, steps=steps), seed=seed)
        yield {"label": f"{name}, {label}", "seed": seed, "steps": steps, **provenance(), "scores": scores}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path("results/laws.json"))
    parser.add_argument("--num-seeds", type=int, default=3)
    args = parser.parse_args()
    values = json.loads(args.output.read_text(encoding="utf-8")) if args.output.exists() else {}
    runs = values.get("runs", [])
    for row in itertools.chain.from_iterable(map(rows, range(args.num_seeds))):
        runs = [r for r in runs if (r["label"], r["seed"]) != (row["label"], row["seed"])] + [row]
        write_results(args.output, values | {"runs": runs})
        print(row["label"], row["seed"], row["scores"], flush=True)


if __name__ == "__main__":
    main()
