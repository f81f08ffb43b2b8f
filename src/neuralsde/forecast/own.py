"""How a series goes on in its own way: by its own pace, its own momentum, or back to its own slow level.

    Δ_t = Σ_m a_m z_m + a_0 + e_t,    a = usual + own,    own ~ N(0, spread · var e)

z_m are averages of the steps before, over memories m: a positive a_m is momentum, a negative one noise that does not last.
`usual` is shared by all series. The own part of each is its posterior mean given the steps of the series: near 0 for short
ones, free for long ones. How far series differ varies too: the spread has a distribution over a few values, found by maximum
likelihood from all of them. One autoregression for all would average over a random walk and noise around a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from neuralsde.forecast.past import bridged

MEMORIES = (1.0, 2.0, 5.0, 20.0)  # steps
SPREADS = (0.0, 0.001, 0.01, 0.1, 1.0)  # of the averages, and of the constant
FEWEST_STEPS = 4  # of a series that tells of others: fewer do not know their own scale
TELLING = 1_000  # columns that tell it
SURE = 4.0  # steps that the noise of the others counts for
ROUNDS, LEAST_SHARE = 50, 1e-3
FASTEST = 0.98  # how much of a step may be left in the next ones, at most: beyond, paths run away
BLOCK = 64  # steps that are averaged at once


@dataclass(frozen=True, kw_only=True)
class Own:
    """What series have in common and how far they differ; in units of their mean step."""

    usual: tuple[float, ...]
    """Coefficients of the averages, then the constant."""
    spreads: tuple[tuple[float, float], ...]
    """Variances of the own part, of the averages and of the constant, in those of the noise."""
    shares: tuple[float, ...]
    """Of the series that each of them suits."""
    noise: float
    """Mean variance of e."""

    @classmethod
    def of(cls, rests: Sequence[np.ndarray]) -> Own:
        """Found in walks (n, d) of unit steps."""
        columns = [c for rest in rests for c in rest.T]
        long = [c for c in columns if np.isfinite(c).sum() > FEWEST_STEPS] or columns
        every = Moments.of([long[k] for k in np.unique(np.linspace(0, len(long) - 1, TELLING).astype(int))])
        usual = np.linalg.solve(every.xx.sum(0) + np.eye(len(MEMORIES) + 1), every.xy.sum(0))
        left = every.without(usual)
        noise = max(float(left.yy.sum() / max(left.num.sum(), 1)), 1e-12)
        spreads = tuple((a, b) for a in SPREADS for b in SPREADS)
        likely = np.stack([left.posterior(s, noise).evidence for s in spreads], axis=1)[left.num >= FEWEST_STEPS]
        shares = np.full(len(spreads), 1 / len(spreads))
        for _ in range(ROUNDS if len(likely) else 0):
            shares = np.maximum(_weights(likely, shares).mean(0), LEAST_SHARE)
            shares /= shares.sum()
        return cls(usual=tuple(usual.tolist()), spreads=spreads, shares=tuple(shares.tolist()), noise=noise)

    def ways(self, rests: Sequence[np.ndarray]) -> list[Way]:
        """Those of some series (n, d)."""
        left = Moments.of([c for rest in rests for c in rest.T]).without(np.array(self.usual))
        found = [left.posterior(s, self.noise) for s in self.spreads]
        weights = _weights(np.stack([p.evidence for p in found], axis=1), np.array(self.shares))  # (B, K)
        own = np.einsum("bk,kbp->bp", weights, np.stack([p.mean for p in found]))
        coefficients = _settled(np.array(self.usual) + own)
        sizes = np.sqrt((weights * np.stack([p.noise for p in found], axis=1)).sum(1))
        every, done = [], 0
        for rest in rests:
            known, place = bridged(rest), slice(done, done + rest.shape[1])
            every.append(Way(coefficients[place].T, sizes[place], averages(np.diff(known, axis=0))[-1], known[-1]))
            done = place.stop
        return every


@dataclass(frozen=True)
class Way:
    """That of one series: coefficients (P, d) and the size of e (d,); averages (P - 1, d) and state (d,) at its end."""

    coefficients: np.ndarray
    size: np.ndarray
    averages: np.ndarray
    last: np.ndarray

    def surprises(self, rest: np.ndarray) -> np.ndarray:
        """The walk of e (n, d), in units of their size, from 0 back to 0: the constant has said how they drift.

        Less than two steps say nothing of the size: NaN.
        """
        seen, steps = np.isfinite(rest), np.diff(bridged(rest), axis=0)
        e = (steps - (averages(steps)[:-1] * self.coefficients[:-1]).sum(1)) / self.size
        inside = np.maximum.accumulate(seen)[:-1] & np.maximum.accumulate(seen[::-1])[::-1][1:]
        num = inside.sum(0)
        mean = np.where(inside, e, 0.0).sum(0) / np.maximum(num, 1)
        lost = np.sqrt(num / np.maximum(num - 1, 1))  # the mean takes a step
        walk = np.concatenate([np.zeros((1, rest.shape[1])), np.where(inside, lost * (e - mean), 0.0).cumsum(0)])
        return np.where(seen & (num > 1), walk, np.nan)

    def whole(self, walk: np.ndarray) -> np.ndarray:
        """States (..., n, d) after the last, of a walk of e (..., n + 1, d) from there."""
        e = np.diff(walk, axis=-2) * self.size
        steps, z = np.empty_like(e), np.broadcast_to(self.averages, (*e.shape[:-2], *self.averages.shape))
        kept, gain = recursion()
        for k in range(e.shape[-2]):
            steps[..., k, :] = (z * self.coefficients[:-1]).sum(-2) + self.coefficients[-1] + e[..., k, :]
            z = kept[:, None] * z + gain[:, None] * steps[..., k : k + 1, :]
        return self.last + steps.cumsum(-2)


def averages(steps: np.ndarray) -> np.ndarray:
    """Of steps (n, d) over each memory, before each and after the last (n + 1, M, d); of unit size for independent steps."""
    fading, gathered = _block()
    out = np.zeros((len(steps) + 1, len(MEMORIES), steps.shape[1]))
    for begin in range(0, len(steps), BLOCK):
        own = steps[begin : begin + BLOCK]
        num = len(own)
        out[begin + 1 : begin + 1 + num] = fading[:num] * out[begin] + gathered[:num, :, :num] @ own
    return out


@cache
def _block() -> tuple[np.ndarray, np.ndarray]:
    """What is left of an average (BLOCK, M, 1) after so many steps, and the weights of these (BLOCK, M, BLOCK)."""
    kept, gain = recursion()
    ages = np.arange(BLOCK)[:, None, None] - np.arange(BLOCK)
    weights = np.where(ages >= 0, gain[:, None] * kept[:, None] ** np.maximum(ages, 0), 0.0)
    return kept[:, None] ** np.arange(1, BLOCK + 1)[:, None, None], weights


def recursion() -> tuple[np.ndarray, np.ndarray]:
    """What is kept of each average, and what of a step is added to it."""
    kept = 1 - 1 / np.array(MEMORIES)
    return kept, np.sqrt(1 - kept**2)


@dataclass(frozen=True)
class Posterior:
    """Of the own part of each column, for one spread."""

    mean: np.ndarray  # (B, P)
    evidence: np.ndarray  # (B,)
    noise: np.ndarray  # (B,)


@dataclass(frozen=True)
class Moments:
    """Sums of products of steps with the averages before them and 1, for each column."""

    xx: np.ndarray  # (B, P, P)
    xy: np.ndarray  # (B, P)
    yy: np.ndarray  # (B,)
    num: np.ndarray  # (B,)

    @classmethod
    def of(cls, columns: Sequence[np.ndarray]) -> Moments:
        parts = []
        for column in columns:
            seen = np.isfinite(column)
            steps = np.diff(bridged(column[:, None]), axis=0)
            x = np.concatenate([averages(steps)[:-1, :, 0], np.ones((len(steps), 1))], axis=1)
            both = seen[1:] & seen[:-1]
            x, y = x[both], steps[both, 0]
            parts.append((x.T @ x, x.T @ y, y @ y, len(y)))
        return cls(*(np.array(part, dtype=float) for part in zip(*parts)))

    def without(self, coefficients: np.ndarray) -> Moments:
        """The same of what these leave."""
        told = self.xx @ coefficients
        yy = self.yy - 2 * self.xy @ coefficients + told @ coefficients
        return Moments(self.xx, self.xy - told, np.maximum(yy, 0.0), self.num)

    def posterior(self, spread: tuple[float, float], noise: float) -> Posterior:
        """Each column has a noise of its own, which is near that of all as long as its steps are few."""
        root = np.sqrt(np.append(np.full(self.xx.shape[1] - 1, spread[0]), spread[1]))
        inner = np.eye(len(root)) + root[:, None] * self.xx * root
        mean = root * np.linalg.solve(inner, (root * self.xy)[..., None])[..., 0]
        left = np.maximum(self.yy - (mean * self.xy).sum(1), 0.0)
        own = np.maximum(left + SURE * noise, 1e-30) / (self.num + SURE)
        evidence = -0.5 * np.linalg.slogdet(inner)[1] - 0.5 * (self.num + SURE) * np.log(own)
        return Posterior(mean, evidence, own)


def _weights(evidence: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Of the spreads for each column (B, K)."""
    logs = evidence + np.log(shares)
    weights = np.exp(logs - logs.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def _settled(coefficients: np.ndarray) -> np.ndarray:
    """Steps die away: momentum (B, P) with which paths would run away is made less."""
    kept, gain = recursion()
    left = coefficients.copy()
    for share in np.linspace(1, 0, 21):
        moves = np.diag(kept) + gain[:, None] * left[:, None, :-1]
        fast = np.abs(np.linalg.eigvals(moves)).max(1) > FASTEST
        if not fast.any():
            break
        left[fast, :-1] = share * coefficients[fast, :-1]
    return left
