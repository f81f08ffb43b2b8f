"""Exponential smoothing, to measure a model against: level, damped trend and additive season in innovations form.

    y_t = l + φ b + s + e,    l ← l + φ b + α e,    b ← φ b + β e,    s ← s + γ e

The four models with and without trend and season are fitted by maximum likelihood, many series at once; each series takes the
one of least AICc. Where statsforecast is installed its AutoETS is used in place of it (see `seasonal`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LONGEST, PERIODS = 300, 4  # values that are looked at: so many, or of so many seasons
FEWEST_PERIODS = 2.5  # of a season that is modelled
CANDIDATES, ROUNDS, FIRST_WIDTH = (
    24,
    5,
    1.0,
)  # parameters that are tried at once, rounds, and how far they lie in the second
AT_ONCE = 64  # series
LEAST_DAMPED, MOST_DAMPED = 0.8, 0.98  # φ


@dataclass(frozen=True)
class Smoother:
    """One of the models."""

    trend: bool
    period: int
    """Of the season; 0: none."""

    @property
    def size(self) -> int:
        """Parameters and first states, and the variance."""
        return 3 + 3 * self.trend + (self.period + 1) * (self.period > 0)

    def values(self, free: np.ndarray) -> np.ndarray:
        """α, β, φ and γ (..., 4) of unbounded numbers."""
        share = 1 / (1 + np.exp(-free))
        alpha = share[..., 0]
        damped = LEAST_DAMPED + (MOST_DAMPED - LEAST_DAMPED) * share[..., 2]
        beta, phi = (alpha * share[..., 1], damped) if self.trend else (np.zeros_like(alpha), np.zeros_like(alpha))
        gamma = (1 - alpha) * share[..., 3] if self.period else np.zeros_like(alpha)
        return np.stack([alpha, beta, phi, gamma], axis=-1)

    def begin(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Level (B,), slope (B,) and season (B, m) before the first value of each row of y (B, n), NaN before that."""
        level, slope = np.zeros(len(y)), np.zeros(len(y))
        season = np.zeros((len(y), max(self.period, 1)))
        for k, row in enumerate(y):
            there = np.flatnonzero(np.isfinite(row))
            few = there[: max(10, 2 * self.period)]
            centre, own = few - few[0], row[few]
            if self.period:  # means of whole seasons, without the season itself
                whole = len(few) // self.period * self.period
                own = own[:whole].reshape(-1, self.period)
                slope[k] = (own[-1].mean() - own[0].mean()) / max(whole - self.period, 1)
                level[k] = own[0].mean() - slope[k] * (self.period + 1) / 2
                left = own - (level[k] + slope[k] * (centre[:whole].reshape(-1, self.period) + 1))
                season[k, few[: self.period] % self.period] = left.mean(0) - left.mean()
            elif self.trend:
                slope[k], first = np.polyfit(centre, own, 1)
                level[k] = first - slope[k]
            else:
                level[k] = own[:5].mean()
        return level, slope * self.trend, season

    def run(self, y: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Squared errors (B, K) of y (B, n) under parameters (B, K, 4), and the states at the end."""
        alpha, beta, phi, gamma = np.moveaxis(values, -1, 0)
        level, slope, season = self.begin(y)
        shape = alpha.shape
        level, slope = (np.broadcast_to(x[:, None], shape) for x in (level, slope))
        season = np.broadcast_to(season[:, None], (*shape, season.shape[1])).copy()
        total = np.zeros(shape)
        for t in range(y.shape[1]):
            there, place = np.isfinite(y[:, t, None]), t % season.shape[2]
            ahead = level + phi * slope
            e = np.where(there, y[:, t, None] - ahead - season[..., place], 0.0)
            level = np.where(there, ahead + alpha * e, level)
            slope = np.where(there, phi * slope + beta * e, slope)
            season[..., place] += gamma * e
            total += e * e
        return total, (level, slope, season)

    def fit(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parameters (B, 4) of the greatest likelihood of rows (B, n), and their squared errors (B,)."""
        rng = np.random.default_rng(0)
        best, least = np.zeros((len(y), 4)), np.full(len(y), np.inf)
        for k in range(ROUNDS):
            spread = 2.0 if not k else FIRST_WIDTH / 2 ** (k - 1)
            free = np.concatenate([best[:, None], best[:, None] + spread * rng.standard_normal((1, CANDIDATES, 4))], 1)
            found = self.run(y, self.values(free))[0]
            place = found.argmin(1)
            best, least = free[np.arange(len(y)), place], np.minimum(least, found.min(1))
        return self.values(best), least

    def draw(
        self, y: np.ndarray, values: np.ndarray, size: np.ndarray, horizon: int, num: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Futures (B, num, horizon) with errors of some size (B,)."""
        states = self.run(y, values[:, None])[1]
        alpha, beta, phi, gamma = (values[:, k, None] for k in range(4))
        level, slope, season = (np.repeat(x, num, axis=1) for x in states)
        out = np.empty((len(y), num, horizon))
        for k in range(horizon):
            place = (y.shape[1] + k) % season.shape[2]
            e = size[:, None] * rng.standard_normal(level.shape)
            ahead = level + phi * slope
            out[..., k] = ahead + season[..., place] + e
            level, slope = ahead + alpha * e, phi * slope + beta * e
            season[..., place] += gamma * e
        return out


def smoothers(num: int, period: int) -> list[Smoother]:
    """The models for series of this length."""
    seasons = [0, period] if period > 1 and num >= FEWEST_PERIODS * period else [0]
    return [Smoother(trend, season) for season in seasons for trend in (False, True)]


def smoothing(
    pasts: Sequence[np.ndarray], horizon: int, num_paths: int, period: int, rng: np.random.Generator
) -> np.ndarray:
    """Futures (B, num_paths, horizon, d) of series (n, d) by the model that suits each best."""
    longest = max(LONGEST, PERIODS * period)
    rows = [column[-longest:] for past in pasts for column in past.T]
    length = max(map(len, rows))
    y = np.stack([np.concatenate([np.full(length - len(row), np.nan), row]) for row in rows])
    parts = [_draw(y[k : k + AT_ONCE], horizon, num_paths, period, rng) for k in range(0, len(y), AT_ONCE)]
    drawn = np.concatenate(parts)
    return np.moveaxis(drawn.reshape(len(pasts), -1, num_paths, horizon), 1, 3)


def _draw(y: np.ndarray, horizon: int, num: int, period: int, rng: np.random.Generator) -> np.ndarray:
    seen = np.isfinite(y).sum(1)
    out, least = np.empty((len(y), num, horizon)), np.full(len(y), np.inf)
    for model in smoothers(int(seen.max()), period):
        able = (seen > model.size + 1) & (seen >= FEWEST_PERIODS * model.period)
        if not model.period and not model.trend:
            able = seen > 0
        here = np.flatnonzero(able)
        if not len(here):
            continue
        values, total = model.fit(y[here])
        n, k = seen[here], model.size
        aicc = n * np.log(np.maximum(total, 1e-300) / n) + 2 * k + 2 * k * (k + 1) / np.maximum(n - k - 1, 1e-9)
        better = aicc < least[here]
        size = np.sqrt(total / np.maximum(n - k + 1, 1))
        chosen = here[better]
        out[chosen] = model.draw(y[chosen], values[better], size[better], horizon, num, rng)
        least[chosen] = aicc[better]
    return out
