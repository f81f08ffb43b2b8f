"""The past of a series as it is learned and forecast from: without gross errors, and bridged where it was not seen.

A step is odd if it stands apart: many times as large as the largest of the others but for a few. Where the series soon comes
back, what lies between is left out. Where it does not, the level has changed, and what came before is moved to the new one. Odd
values at the very end may be either: a share of the forecasts goes on from them, by Laplace's rule of succession, and the rest
as if they had not been.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FEWEST = 16  # values that tell what is odd
FAR, APART = 8.0, 2.0  # times the largest step of the others but for a few, and of all others
FEW, RARE = 8, 0.01  # steps that may be odd: so many, but of short series a quarter, or this share
SOON = 3  # values within which a series comes back
STILL = 5  # equal values from which on a series does not change


@dataclass(frozen=True)
class End:
    """Odd values at the end of a series."""

    num: int = 0
    jump: float = 0.0
    """From the last value before to theirs."""


def settled(y: np.ndarray) -> tuple[np.ndarray, int, End]:
    """A series (n,) without odd values, NaN for what is left out; how many values and levels were odd; those at its end."""
    seen = np.flatnonzero(np.isfinite(y))
    if len(seen) < FEWEST:
        return y, 0, End()
    v, end = y[seen], End()
    steps = np.abs(np.diff(v) / np.diff(seen))
    some = max(min(FEW, len(steps) // 4), int(RARE * len(steps)))
    largest = np.sort(steps)[::-1][: some + 1]
    apart = (largest[:-1] > FAR * largest[-1]) & (largest[:-1] > APART * largest[1:])
    if not apart.any() or largest[-1] == 0:
        return y, 0, end
    odd = np.flatnonzero(steps >= largest[np.flatnonzero(apart)[-1]]).tolist()
    v, out, num, k = v.copy(), np.zeros(len(v), bool), 0, 0
    while k < len(odd):
        before, jump = odd[k], v[odd[k] + 1] - v[odd[k]]
        home = [j for j in odd[k + 1 :] if j - before <= SOON and abs(v[j + 1] - v[before]) < 0.5 * abs(jump)]
        left = len(v) - 1 - before
        if home:
            out[before + 1 : home[0] + 1] = True
            num, k = num + home[0] - before, odd.index(home[0])
        elif left <= SOON:
            out[before + 1 :] = True
            num, end = num + left, End(left, float(np.median(v[before + 1 :]) - v[before]))
            break
        else:
            v[: before + 1] += jump
            num += 1
        k += 1
    clean = np.full_like(y, np.nan)
    clean[seen[~out]] = v[~out]
    return clean, num, end


def still(y: np.ndarray) -> float:
    """The value of a series that does not change; NaN if it does, or was not seen often enough."""
    seen = y[np.isfinite(y)]
    return float(seen[0]) if len(seen) >= STILL and (seen == seen[0]).all() else np.nan


def changes(values: np.ndarray) -> bool:
    """Whether anything in series (n, d) does."""
    seen = np.isfinite(values)
    return bool((np.where(seen, values, -np.inf).max(0) > np.where(seen, values, np.inf).min(0)).any())


def filled(values: np.ndarray) -> np.ndarray:
    """What is missing in series (n, d) as before, or as first seen; NaN where nothing was."""
    seen = np.isfinite(values)
    place = np.where(seen, np.arange(len(values))[:, None], seen.argmax(0))
    return np.take_along_axis(values, np.maximum.accumulate(place, axis=0), axis=0)


def bridged(values: np.ndarray) -> np.ndarray:
    """What is missing inside series (n, d) on straight lines, and at their ends as first and last seen; 0 where nothing was."""
    out, rows = np.zeros(values.shape), np.arange(len(values))
    for k, column in enumerate(values.T):
        seen = np.isfinite(column)
        if seen.all():
            out[:, k] = column
        elif seen.any():
            out[:, k] = np.interp(rows, rows[seen], column[seen])
    return out


def limits(states: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """How far paths of so many steps may get from states (n, d) in units of a step.

    Twice as far beyond all of the past as the series ever got in as many steps. Sound forecasts never come there.
    """
    known = bridged(states)
    most = min(horizon, len(known) - 1)
    lags = sorted({most, *(2**k for k in range(20) if 2**k < most)}) if most else []
    far = [np.abs(known[lag:] - known[:-lag]).max(0) for lag in lags]
    reach = np.max([np.full(known.shape[1], 4 * np.sqrt(horizon)), *(f * horizon / most for f in far)], axis=0)
    return known.min(0) - 2 * reach, known.max(0) + 2 * reach


def spread(num: int, most: int) -> list[int]:
    """At most so many places of `num`, evenly spread."""
    return np.unique(np.linspace(0, num - 1, min(num, most)).astype(int)).tolist() if num else []
