"""Series as level, seasons and a rest: what is learned is the rest, and what is drawn of it becomes the series again.

    φ(y) = level + season(t) + scale · x

φ is the logarithm, or nothing, or makes the values of the series Gaussian by their ranks. The season is a sum of sines and
cosines of each period, fitted together with a smooth trend by weighted least squares, recent steps first, after Cochrane and
Orcutt: what is left goes together from step to step, as in a walk, and is made independent before the fit. It is shrunk by what
chance alone would explain. All of it is found anew from the past of the series that is forecast: series of other sizes, and new
ones, go through the same model, and nothing of the future is in it. The trend stays in x, whose drift learns it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from neuralsde.core.records import check
from neuralsde.forecast.own import Own, Pick, Way

MOST_WAVES = 10  # sines and cosines of a season
SMOOTHER = 1.5  # trends are slower than this many of the longest season
MOST_BENDS = 12  # of the trend
HALF_LIFE, LEAST_LIFE = 4.0, 100.0  # after how many of the longest season, and at least steps, a step counts half
REMEMBERED = 6  # half lives after which it counts nothing
MOST_KEPT = 0.98  # of what is left, from step to step
OFTEN = 2.0  # how often a season must have been seen
STRONG = 0.05  # share of the variance around the trend from which on a season is tried
FEW = 4  # steps that tell the scale of a series
QUANTILES = 500  # of its values, which stand for them where these are taken by their ranks
GOLDEN = 0.6180339887498949  # multiples of it fill the unit interval evenly


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """What is taken off a series before it is learned."""

    curve: Literal["none", "log", "ranks"] = "none"
    """φ. With the logarithm levels and seasons multiply; by ranks, forecasts take values that the series has had."""
    seasons: tuple[float, ...] = ()
    """Periods in steps."""
    taken: bool = True
    """Seasons are taken off. Series that are too short to show theirs keep them."""
    phases: bool = False
    """The model sees the phase of each season, as context."""
    level: bool = False
    """Series find back to their mean, from which states are counted; without, they are walks, in units of their steps."""
    own: Own | None = None
    """How series go on in their own ways: x is then the walk of what that leaves."""

    @property
    def num_contexts(self) -> int:
        """Phases in the context of a step."""
        return 2 * len(self.seasons) if self.phases else 0

    def contexts(self, steps: np.ndarray) -> np.ndarray | None:
        """The phases of the seasons at some steps (..., C)."""
        if not self.num_contexts:
            return None
        turns = [2 * np.pi * np.asarray(steps, dtype=float)[..., None] / period for period in self.seasons]
        return np.concatenate([wave(turn) for turn in turns for wave in (np.sin, np.cos)], axis=-1)

    def parts(self, steps: np.ndarray, values: np.ndarray, usual: np.ndarray | None = None) -> Parts:
        """Level, season and scale of a series (n, d) observed at some steps; NaN is missing. `usual`: the scale of others."""
        keep = slice(max(0, len(steps) - self._memory), None)
        least = np.where(np.where(np.isfinite(values), values, 0.0).min(0) < 0, -np.inf, 0.0)
        table = _quantiles(values[keep]) if self.curve == "ranks" else None
        y = self.to(values, table)
        steps, y = steps[keep], y[keep]
        weights = 0.5 ** ((steps[-1] - steps) / self._half_life)
        waves = Waves.of(self.seasons if self.taken else (), len(steps))
        found = [waves.fit(steps, y[:, k], weights) for k in range(y.shape[1])]
        lost = np.sqrt(len(steps) / max(len(steps) - waves.num, 0.5 * len(steps)))  # a fit makes the rest look small
        rest = y - waves.at(steps) @ np.stack(found, axis=1) if waves.num else y
        level = np.array([np.nanmean(c) if np.isfinite(c).any() else 0.0 for c in rest.T])
        scale = lost * np.array([self._scale(steps, c) for c in rest.T])
        fallback = np.ones_like(scale) if usual is None else usual
        scale = np.where(np.isfinite(scale) & (scale > 1e-9 * np.maximum(np.abs(level), 1e-30)), scale, fallback)
        return Parts(self, waves, np.stack(found, axis=1), level, scale, table=table, least=least)

    def _scale(self, steps: np.ndarray, rest: np.ndarray) -> float:
        seen = np.isfinite(rest)
        rest, steps = rest[seen], steps[seen]
        if len(rest) <= FEW:
            return np.nan
        if self.level:
            return float(np.std(rest))
        gap = np.diff(steps)
        near = gap == 1 if (gap == 1).sum() >= FEW else gap > 0  # a trend makes long gaps look like large steps
        return float(np.sqrt(np.mean(np.diff(rest)[near] ** 2 / gap[near])))

    def to(self, values: np.ndarray, table: np.ndarray | None = None) -> np.ndarray:
        """φ(y); by ranks in a table of quantiles (Q, d)."""
        if self.curve == "none":
            return values
        if table is not None:
            return np.stack([_score(own, column) for own, column in zip(table.T, values.T)], axis=1)
        low = np.nanmin(values, initial=np.inf)
        check(
            low > 0,
            f"The model takes the logarithm of series. Got {low:g}. Leave such series out, or fit again with them.",
        )
        return np.log(values)

    def back(self, y: np.ndarray, table: np.ndarray | None = None) -> np.ndarray:
        """The inverse of φ."""
        if table is not None:
            place = (torch.special.ndtr(torch.from_numpy(np.nan_to_num(y))).numpy() * QUANTILES).astype(int)
            return np.take_along_axis(table, np.minimum(place, QUANTILES - 1).reshape(-1, y.shape[-1]), 0).reshape(
                y.shape
            )
        return np.exp(np.minimum(y, 700.0)) if self.curve == "log" else y

    @property
    def _half_life(self) -> float:
        return max(HALF_LIFE * max(self.seasons, default=0.0), LEAST_LIFE)

    @property
    def _memory(self) -> int:
        return int(REMEMBERED * self._half_life)


def _quantiles(values: np.ndarray) -> np.ndarray:
    """Of series (n, d): a table (Q, d); 0 where nothing was seen."""
    place, out = (np.arange(QUANTILES) + 0.5) / QUANTILES, np.zeros((QUANTILES, values.shape[1]))
    for k, column in enumerate(values.T):
        seen = np.sort(column[np.isfinite(column)])
        if len(seen):
            out[:, k] = seen[(place * len(seen)).astype(int)]
    return out


def _score(table: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Gaussian scores (n,) of values by their places in a table (Q,); those of equal ones fill their part of it evenly."""
    low, high = np.searchsorted(table, values, "left"), np.searchsorted(table, values, "right")
    place = (low + (high - low) * (GOLDEN * np.arange(len(values)) % 1)) / len(table)
    made = torch.special.ndtri(torch.from_numpy(place.clip(0.5 / len(table), 1 - 0.5 / len(table)))).numpy()
    return np.where(np.isfinite(values), made, np.nan)


Limits = tuple[np.ndarray, np.ndarray]
"""The least and the largest state of each column (d,)."""


@dataclass(frozen=True)
class Parts:
    """Those of one series."""

    kind: Decomposition
    waves: Waves
    season: np.ndarray  # coefficients (P, d)
    level: np.ndarray  # (d,)
    scale: np.ndarray  # (d,)
    way: Way | None = None
    """How it goes on in its own way, which is taken off too."""
    table: np.ndarray | None = None
    """Quantiles of its values, where they are taken by ranks."""
    least: np.ndarray | float = -np.inf
    """Where no value (d,) is below 0, none will be."""

    def offset(self, steps: np.ndarray) -> np.ndarray:
        """Level and season (n, d)."""
        return self.level + self.waves.at(steps) @ self.season

    def states(self, steps: np.ndarray, values: np.ndarray) -> np.ndarray:
        """What is left of a series (n, d) without level and season, in units of its scale."""
        return (self.kind.to(values, self.table) - self.offset(steps)) / self.scale

    def rest(self, steps: np.ndarray, values: np.ndarray) -> np.ndarray:
        """x (n, d) of a series."""
        return self.states(steps, values) if self.way is None else self.way.walk

    def whole(
        self,
        steps: np.ndarray,
        rest: np.ndarray,
        limits: Limits | None = None,
        jump: np.ndarray | float = 0.0,
        pick: Pick | None = None,
    ) -> np.ndarray:
        """The series (..., n, d) after the past, of x (..., n + 1, d) from the last step on: the inverse.

        States stay within `limits`; `jump` is added to φ(y); `pick` says which of its own ways each path goes.
        """
        rest = rest[..., 1:, :] if pick is None else pick.whole(rest)
        rest = rest if limits is None else np.clip(rest, *limits)
        least = np.where(np.asarray(jump) == 0, self.least, -np.inf)  # odd values may be of any size
        return np.maximum(self.kind.back(rest * self.scale + self.offset(steps) + jump, self.table), least)


@dataclass(frozen=True)
class Waves:
    """Sines and cosines of the seasons: each frequency once."""

    turns: tuple[float, ...]  # per step

    @classmethod
    def of(cls, seasons: tuple[float, ...], num: int) -> Waves:
        """Of seasons that `num` steps have shown often enough."""
        turns: list[float] = []
        for period in sorted(seasons):
            if num < OFTEN * period:
                continue
            for k in range(1, MOST_WAVES + 1):
                turn = k / period
                if turn <= 0.5 + 1e-9 and all(abs(turn - other) > 0.25 / num for other in turns):
                    turns.append(turn)
        return cls(tuple(turns))

    @property
    def num(self) -> int:
        return len(self.at(np.zeros(1))[0])

    def at(self, steps: np.ndarray) -> np.ndarray:
        """(n, P)"""
        turns = np.array(self.turns)
        angle = 2 * np.pi * np.asarray(steps, dtype=float)[:, None] * turns
        half = np.abs(turns - 0.5) < 1e-9  # its sine is 0 at whole steps
        return np.concatenate([np.cos(angle), np.sin(angle)[:, ~half]], axis=1)

    def fit(self, steps: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Coefficients (P,) for one column, beside a smooth trend; shrunk as James and Stein do."""
        seen = np.isfinite(y)
        num = self.num
        if not num or seen.sum() < 2 * num + 4:
            return np.zeros(num)
        steps, y, root = steps[seen], y[seen], np.sqrt(weights[seen])
        trend = self._trend(steps)
        both = np.concatenate([trend, self.at(steps)], axis=1)
        found = _solved(both, y, root)
        left = y - both @ found
        kept = float((left[1:] * left[:-1]).sum() / max((left[:-1] ** 2).sum(), 1e-300))
        kept = min(max(kept + (1 + 3 * kept) / len(y), 0.0), MOST_KEPT)  # fits make it look smaller than it is
        share = (kept ** np.diff(steps))[:, None]
        both, y, root = both[1:] - share * both[:-1], y[1:] - share[:, 0] * y[:-1], root[1:]
        found = _solved(both, y, root)
        alone = both[:, : trend.shape[1]]
        left = float((root**2 * (y - both @ found) ** 2).sum())
        gained = float((root**2 * (y - alone @ _solved(alone, y, root)) ** 2).sum()) - left
        free = max(len(y) - both.shape[1], 1)
        by_chance = num * left / free
        return found[trend.shape[1] :] * max(0.0, 1.0 - by_chance / max(gained, 1e-300))

    def _trend(self, steps: np.ndarray) -> np.ndarray:
        """Slow waves of the length of the series: it need not come back to where it began."""
        length = float(steps[-1] - steps[0] + 1)
        place = (steps - steps[0] + 0.5) / length
        bends = int(min(MOST_BENDS, 2 * length * min(self.turns) / SMOOTHER))
        slow = [np.cos(np.pi * k * place) for k in range(1, bends + 1)]
        return np.stack([np.ones_like(place), place - 0.5, *slow], axis=1)


def _solved(x: np.ndarray, y: np.ndarray, root: np.ndarray) -> np.ndarray:
    """Least squares with the squares of `root` as weights."""
    return np.linalg.lstsq(x * root[:, None], y * root, rcond=1e-8)[0]


def strength(period: float, others: tuple[float, ...], steps: np.ndarray, y: np.ndarray) -> float:
    """The share of the variance around trend and other seasons that a season explains, beyond chance."""
    seen = np.isfinite(y)
    if seen.sum() < OFTEN * period + 2 or np.ptp(y[seen]) == 0:
        return 0.0
    weights = np.ones(len(steps))
    rest = y
    if others:
        more = Waves.of(others, len(steps))
        rest = y - more.at(steps) @ more.fit(steps, y, weights)
    waves = Waves.of((period,), len(steps))
    if not waves.num:
        return 0.0
    season = waves.at(steps) @ waves.fit(steps, rest, weights)
    trend = waves._trend(steps[seen])
    around = (rest - season)[seen]
    around = around - trend @ np.linalg.lstsq(trend, around, rcond=1e-8)[0]
    return float(np.var(season[seen]) / max(np.var(season[seen]) + np.var(around), 1e-300))
