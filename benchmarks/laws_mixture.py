"""Tails and modes in one step: the law `Mixture`, and Euler's beside it, where the law of a step is known.

Each system is x' = keep x + e with independent e: Student-t3, Gaussian with 2 % jumps, a coin, and an event of probability
.02 that a counter adds up. Scores are the likelihood lost against the truth on fresh paths, in nats per step, and what is
drawn.

`benchmarks/laws.py` runs them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import neuralsde as nsde

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


def normal(e: np.ndarray, mean: float, std: float) -> np.ndarray:
    """Log density."""
    return -0.5 * ((e - mean) / std) ** 2 - math.log(std * math.sqrt(2 * math.pi))


def student_t(e: np.ndarray, dof: float, scale: float) -> np.ndarray:
    """Log density."""
    constant = math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2) - 0.5 * math.log(dof * math.pi) - math.log(scale)
    return constant - (dof + 1) / 2 * np.log1p((e / scale) ** 2 / dof)


def _exponential(e: np.ndarray) -> np.ndarray:
    """Log density."""
    return np.where(e >= 0, -e, -np.inf)


def _modes(weights: list[float], places: list[float], width: float) -> dict[str, Any]:
    """Draw and density of a few Gaussians of one width."""

    def log_prob(e: np.ndarray) -> np.ndarray:
        return np.logaddexp.reduce([np.log(w) + normal(e, p, width) for w, p in zip(weights, places)])

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.choice(places, shape, p=weights) + width * rng.standard_normal(shape)

    return {"draw": draw, "log_prob": log_prob}


SYSTEMS = {
    "t3": System(0.9, lambda r, s: 0.3 * r.standard_t(3, s), lambda e: student_t(e, 3, 0.3)),
    "jumps": System(
        0.9, **_modes([0.98, 0.01, 0.01], [0.0, 1.0, -1.0], 0.1), event=lambda e: abs(e) > 0.5, probability=0.02
    ),
    "skewed": System(
        0.9, lambda r, s: 0.3 * (r.exponential(1.0, s) - 1), lambda e: _exponential(e / 0.3 + 1) - math.log(0.3)
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
