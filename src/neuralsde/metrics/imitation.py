"""Scores of imitated episodes, with the intervals that their number allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from neuralsde.metrics.forecast import Z_95, mean_ci

SUCCESS = 0.95  # coverage that an episode must exceed


@runtime_checkable
class Scored(Protocol):
    """An episode of which the greatest and the last coverage are known."""

    @property
    def seed(self) -> int: ...

    @property
    def best(self) -> float: ...

    @property
    def final(self) -> float: ...


def reward(coverage: float) -> float:
    """Coverage as a share of what success needs, at most 1: Push-T's own reward."""
    return min(max(coverage / SUCCESS, 0.0), 1.0)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, JASA 1927): never empty, never outside [0, 1]."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"`successes` must be between 0 and n >= 1. Got {successes} of {n}.")
    z2 = Z_95**2
    centre = (successes + z2 / 2) / (n + z2)
    half = Z_95 / (n + z2) * math.sqrt(successes * (n - successes) / n + z2 / 4)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def summary(episodes: Sequence[Scored]) -> dict[str, Any]:
    """Means over episodes with their 95 % intervals [low, high], `n` and the seeds.

    `score`: the greatest reward of an episode (Student's t). `success`: whether the coverage exceeded 0.95 (Wilson).
    `final_coverage`: the coverage at its end (Student's t).
    """
    if not episodes:
        raise ValueError("`episodes` must hold at least one. Got none. See the failures of the rollout.")
    n = len(episodes)
    num_solved = sum(episode.best > SUCCESS for episode in episodes)
    low, high = wilson(num_solved, n)
    return {
        "score": _mean([reward(episode.best) for episode in episodes]),
        "success": {"mean": num_solved / n, "low": low, "high": high, "n": n},
        "final_coverage": _mean([episode.final for episode in episodes]),
        "seeds": ranges([episode.seed for episode in episodes]),
    }


def _mean(values: list[float]) -> dict[str, Any]:
    out = mean_ci(torch.tensor(values, dtype=torch.float64))
    mean, half = out["mean"], out["ci95"]
    ends = {"low": None, "high": None} if half is None else {"low": mean - half, "high": mean + half}
    return {"mean": mean, "ci95": half, **ends, "n": out["n"]}


def ranges(seeds: Sequence[int]) -> str:
    """Seeds in words: "0-4, 7"."""
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][1] + 1:
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs)
