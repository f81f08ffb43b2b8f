"""How a series goes on in its own way: by exponential smoothing, as far as its past and those of the others say.

    x_t = l + φ b + κ u + e_t,    l ← l + φ b + α e_t,    b ← φ b + β e_t,    u ← κ u + θ e_t

A level, a trend, and a deviation that fades. A *way* is one (φ, α, β, κ, θ) of a fixed list: levels that stay or move, trends
that stay, move or fade, deviations that last. The share of series that each way suits is found by maximum likelihood from all of
them. The weights of the ways for one series are then its posterior, by what each left of its past: short series follow the
others, long ones themselves. Level and trend at the beginning are integrated out. Each path of a forecast goes one way, and
these go by their weights: that the way is not known makes bands wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from neuralsde.forecast.past import bridged, spread
from neuralsde.forecast.recursion import Recursion

FEWEST_STEPS = 4  # of a series that tells of others: fewer do not know their own scale
TELLING = 1_000  # columns that tell it
SURE = 4.0  # steps that the noise of the others counts for
ROUNDS, FLAT = 50, 20.0
"""Of the search for the shares, and as how many series count that all ways are alike."""
LONGEST = 10_000  # last rows that tell the weights
LIKELY = 16  # ways of one series
AT_ONCE = 500  # columns
SIDE_BY_SIDE = 0.1  # share of the values seen that are seen one row after another from which on others say nothing of e
GAINS = (0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 1.0, 1.2)  # α
TURNS, FADING = (0.02, 0.05, 0.15, 0.4), (0.8, 0.9, 0.97, 1.0)  # β and φ of trends that move
LASTING, SHARP = (0.3, 0.6, 0.8, 0.9, 0.95), (0.5, 1.0, 1.3)  # κ of deviations, and θ
SLOW = (0.0, 0.02, 0.1)  # α beside them
STEADY, MOVING, AWAY = (0.05, 0.3), 0.3, 20.0
"""Standard deviations before anything is seen, in steps: of steady and of moving trends, and of levels beside deviations."""


@cache
def ways() -> np.ndarray:
    """All of them (K, 7): φ, α, β, κ, θ, and the standard deviations of level and trend before anything is seen."""
    made = [(0.0, a, 0.0, 0.0, 0.0, 1.0, 0.0) for a in GAINS]
    made += [(1.0, a, 0.0, 0.0, 0.0, 1.0, s) for a in GAINS for s in STEADY]
    made += [(p, a, b, 0.0, 0.0, 1.0, MOVING) for a in GAINS for b in TURNS if b <= a for p in FADING]
    made += [(1.0, a, 0.0, k, s, AWAY, t) for k in LASTING for s in SHARP for a in SLOW for t in (0.0, STEADY[0])]
    return np.array(made)


@cache
def recursion() -> Recursion:
    """That of all of them."""
    return Recursion(ways()[:, :5])


@dataclass(frozen=True, kw_only=True)
class Own:
    """What series have in common, in units of their mean step."""

    shares: tuple[float, ...]
    """Of the series that each way suits."""
    noise: float
    """Mean variance of e."""

    @classmethod
    def of(cls, rests: Sequence[np.ndarray]) -> Own:
        """Found in series (n, d) of unit steps."""
        columns = [c for rest in rests for c in rest.T]
        long = [c for c in columns if np.isfinite(c).sum() > FEWEST_STEPS] or columns
        left = [Left.of(part) for part in _parts([long[k] for k in spread(len(long), TELLING)])]
        noise = max(float(np.median(np.concatenate([each.noise for each in left]))), 1e-12)
        likely = np.concatenate([each.evidence(noise) for each in left])
        shares = np.full(len(ways()), 1 / len(ways()))
        for _ in range(ROUNDS):
            counts = _weights(likely, shares).sum(0) + FLAT / len(ways())
            shares = counts / counts.sum()
        return cls(shares=tuple(shares.tolist()), noise=noise)

    def ways(self, rests: Sequence[np.ndarray]) -> list[Way]:
        """Those of some series (n, d)."""
        every = [way for part in _parts([c for rest in rests for c in rest.T]) for way in self._ways(part)]
        out, done = [], 0
        for rest in rests:
            own = every[done : done + rest.shape[1]]
            out.append(Way(*(np.stack(each, axis=-1) for each in zip(*own))))
            done += rest.shape[1]
        return out

    def _ways(self, columns: list[np.ndarray]) -> list[tuple[np.ndarray, ...]]:
        """The fields of `Way` for each of some columns."""
        left = Left.of(columns)
        weights = _weights(left.evidence(self.noise), np.array(self.shares))
        best = np.argsort(-weights, axis=1, kind="stable")[:, :LIKELY]
        likely = np.zeros_like(weights)
        np.put_along_axis(likely, best, np.take_along_axis(weights, best, 1), 1)
        likely /= likely.sum(1, keepdims=True)
        sizes = left.sizes(self.noise)
        size = np.sqrt((likely * sizes**2).sum(1))
        num, lost = left.num[:, 0], (likely * left.known).sum(1)
        wider = np.sqrt(num / np.maximum(num - lost, 0.5 * np.maximum(num, 1)))
        told, state = ways()[best][..., :5], np.take_along_axis(left.ends(), best[..., None], 1)
        fields = [np.take_along_axis(likely, best, 1), np.take_along_axis(sizes, best, 1), state]
        walks = [
            np.where(np.isfinite(column) & (n > 1), scale * walk, np.nan)
            for column, walk, scale, n in zip(columns, left.walks(likely), wider / size, num)
        ]
        return [(told[k], *(each[k] for each in fields), walk) for k, walk in enumerate(walks)]


@dataclass(frozen=True)
class Way:
    """Those of one series: coefficients (M, 5, d), weights and sizes of e (M, d), states at its end (M, 3, d), and its e.

    `walk` (n, d) is the running sum of e in units of their size; NaN where nothing was seen, or less than two steps.
    """

    coefficients: np.ndarray
    weights: np.ndarray
    sizes: np.ndarray
    state: np.ndarray
    walk: np.ndarray

    def pick(self, num: int, rng: np.random.Generator) -> Pick:
        """The way of each of some paths."""
        size = self.weights.shape[1]
        places = np.stack([(rng.permutation(num) + 0.5) / num for _ in range(size)], axis=1)  # (N, d)
        chosen = (places[:, None] > self.weights.cumsum(0)).sum(1).clip(max=len(self.weights) - 1)
        column = np.arange(size)
        told, state = (each[chosen, :, column].swapaxes(1, 2) for each in (self.coefficients, self.state))
        return Pick(told, state, self.sizes[chosen, column])


@dataclass(frozen=True)
class Pick:
    """One way for each path: coefficients (N, 5, d), state (N, 3, d) and size of e (N, d)."""

    coefficients: np.ndarray
    state: np.ndarray
    size: np.ndarray

    def whole(self, walk: np.ndarray) -> np.ndarray:
        """States (N, n, d) after the last."""
        e, out = np.diff(walk, axis=1) * self.size[:, None], []
        phi, alpha, beta, kappa, theta = self.coefficients.swapaxes(0, 1)
        level, trend, away = self.state.swapaxes(0, 1)
        for now in e.swapaxes(0, 1):
            level, trend, away = level + phi * trend, phi * trend, kappa * away
            out.append(level + away + now)
            level, trend, away = level + alpha * now, trend + beta * now, away + theta * now
        return np.stack(out, axis=1)


@dataclass(frozen=True)
class Rows:
    """Columns side by side, each from its first value on to its last (n, B); straight lines bridge what was not seen between."""

    x: np.ndarray
    told: np.ndarray
    """Which rows (n, B) say how large e is: those seen after another that was seen, where these are not too few."""
    first: np.ndarray
    num: np.ndarray
    """Rows of each."""
    later: np.ndarray
    """Rows after the last value, in which nothing was seen."""

    @classmethod
    def of(cls, columns: list[np.ndarray], most: int) -> Rows:
        """The last rows of columns (n,)."""
        seen = [np.flatnonzero(np.isfinite(column)) for column in columns]
        last = np.array([s[-1] if len(s) else 0 for s in seen])
        first = np.array([max(s[0], end + 1 - most) if len(s) else 0 for s, end in zip(seen, last)])
        num = last + 1 - first
        x, told = np.zeros((num.max(), len(columns))), np.zeros((num.max(), len(columns)), bool)
        for k, column in enumerate(columns):
            own = column[first[k] : last[k] + 1]
            there = np.isfinite(own)
            x[: num[k], k] = bridged(own[:, None])[:, 0]
            after = np.append(False, there[1:] & there[:-1])
            told[: num[k], k] = after if after.sum() >= SIDE_BY_SIDE * there.sum() else there
        told[0] = False
        return cls(x, told, first, num, np.array([len(c) for c in columns]) - 1 - last)

    @property
    def begin(self) -> np.ndarray:
        """The state (K, 3, B) after the first row, which is taken for the level."""
        state = np.zeros((len(ways()), 3, len(self.num)))
        state[:, 0] = self.x[0]
        return state


@cache
def unknown() -> np.ndarray:
    """What moves with level and trend at the beginning (K, 3, 2): beside a deviation, the first value stays their sum."""
    out = np.zeros((len(ways()), 3, 2))
    out[:, 0, 0], out[:, 1, 1], out[:, 2, 0] = 1.0, 1.0, np.where(ways()[:, 3] > 0, -1.0, 0.0)
    return out


@dataclass(frozen=True)
class Left:
    """What each way leaves of each column (B, K), its level and trend at the beginning found by regression."""

    columns: list[np.ndarray]
    rows: Rows
    squares: np.ndarray
    """Sum of squares of e, and of how far level and trend are from what they were taken for."""
    told: np.ndarray
    """Log of the determinant of what the past tells of both, over that before."""
    known: np.ndarray
    """How many of the two the past tells."""
    moved: np.ndarray
    """How far level and trend (2, B, K) are from `rows.begin`."""
    num: np.ndarray
    """Steps (B, 1) that say how large e is."""

    @classmethod
    def of(cls, columns: list[np.ndarray]) -> Left:
        """Those of columns (n,)."""
        rows = Rows.of(columns, LONGEST)
        shape = (len(ways()), len(columns))
        squares, crossed, units = np.zeros(shape), np.zeros((2, *shape)), np.zeros((3, *shape))
        for block in recursion().blocks(rows.x[1:], rows.begin, unknown()):
            told = rows.told[1:][block.rows]
            e, u = block.e * told, block.unit
            squares += (e**2).sum(1)
            crossed += np.einsum("kri,krb->ikb", u, e, optimize=True)
            units += np.stack([(u[..., i] * u[..., j]) @ told for i, j in ((0, 0), (0, 1), (1, 1))])
        before = 1 / np.maximum(ways()[:, 5:].T[..., None], 1e-6) ** 2
        a, b, c = units[0] + before[0], units[1], units[2] + before[1]
        det = a * c - b**2
        level = (b * crossed[1] - c * crossed[0]) / det
        trend = (b * crossed[0] - a * crossed[1]) / det
        return cls(
            columns,
            rows,
            np.maximum(squares + level * crossed[0] + trend * crossed[1], 0.0).T,
            np.log(np.maximum(det / (before[0] * before[1]), 1e-300)).T,
            ((c * units[0] - 2 * b**2 + a * units[2]) / det).T,
            np.stack([level.T, trend.T]),
            rows.told.sum(0)[:, None].astype(float),
        )

    def evidence(self, noise: float) -> np.ndarray:
        """Each column has a noise of its own, which is near that of all as long as its steps are few."""
        return -0.5 * (self.num + SURE) * np.log(self.sizes(noise) ** 2) - 0.5 * self.told

    def sizes(self, noise: float) -> np.ndarray:
        """Of e."""
        return np.sqrt(np.maximum(self.squares + SURE * noise, 1e-30) / (self.num + SURE))

    @property
    def noise(self) -> np.ndarray:
        """Variances of what the best way leaves (B,)."""
        return self.squares.min(1) / np.maximum(self.num[:, 0] - 2, 1)

    def ends(self) -> np.ndarray:
        """States (B, K, 3) at the end of each column."""
        rows = self.rows
        state, unit = recursion().ends(rows.x[1:], rows.begin, unknown(), rows.num - 1)
        state = recursion().unseen(state + np.einsum("kijb,jbk->kib", unit, self.moved), rows.later)
        return state.transpose(2, 0, 1)

    def walks(self, weights: np.ndarray) -> list[np.ndarray]:
        """The running sum (n,) of e, each way by its weight (B, K); 0 before the first value."""
        longest = max(len(column) for column in self.columns)
        whole = longest > LONGEST
        rows = Rows.of(self.columns, longest) if whole else self.rows
        e = np.zeros_like(rows.x)
        moved = np.zeros_like(self.moved) if whole else self.moved  # they are those of a later row
        for block in recursion().blocks(rows.x[1:], rows.begin, unknown()):
            left = np.einsum("bk,krb->rb", weights, block.e, optimize=True)
            e[1:][block.rows] = left + np.einsum("bk,kri,ibk->rb", weights, block.unit, moved, optimize=True)
        out = []
        for k, column in enumerate(self.columns):
            walk = np.zeros(len(column))
            begin, num = rows.first[k], rows.num[k]
            walk[begin : begin + num] = e[:num, k].cumsum()
            out.append(walk)
        return out


def _parts(columns: list[np.ndarray]) -> list[list[np.ndarray]]:
    """So many of them at once."""
    return [columns[k : k + AT_ONCE] for k in range(0, len(columns), AT_ONCE)]


def _weights(evidence: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Of the ways for each column (B, K)."""
    logs = evidence + np.log(shares)
    weights = np.exp(logs - logs.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)
