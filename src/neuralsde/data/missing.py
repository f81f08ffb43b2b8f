"""Entries that were not observed: marked, so that losses and scores leave them out, and filled, so that nets can read them.

A filled entry is an input, never a target. It lies on the straight line in time between the observed neighbours of its
feature within the path, before the first and after the last it is carried, and in a path that never shows the feature
it is the feature's mean.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Paths:
    """Observations of all paths, end to end."""

    states: np.ndarray
    """(L, *S)"""
    times: np.ndarray
    lengths: np.ndarray
    context: np.ndarray | None
    observed: np.ndarray | None = None
    """(L, *S), or None where all was observed."""


def fill(paths: Paths) -> Paths:
    """The paths with NaN filled and marked; observations without any entry, and paths without two of them, are dropped."""
    observed = ~np.isnan(paths.states)
    if observed.all():
        return paths
    path = np.repeat(np.arange(len(paths.lengths)), paths.lengths)
    kept = observed.reshape(len(observed), -1).any(1)
    lengths = np.bincount(path[kept], minlength=len(paths.lengths))
    short = lengths < 2
    if short.all():
        raise ValueError("No path has two observations with a value in them. Got missing values almost everywhere.")
    if short.any():
        warnings.warn(
            f"{short.sum()} of {len(short)} paths have fewer than two observations with a value in them and are dropped.",
            stacklevel=3,
        )
    kept &= ~short[path]
    states, observed, path = paths.states[kept], observed[kept], path[kept]
    never = ~observed.any(0)
    if never.any():
        where = [int(k[0]) if len(k) == 1 else tuple(map(int, k)) for k in np.argwhere(never)]
        raise ValueError(
            f"Every feature must be observed somewhere. Got nothing in feature {where[0]}. Drop the column."
        )
    times, lengths = paths.times[kept], lengths[~short]
    for k in np.argwhere(~observed.all(0)):
        feature = (slice(None), *k)
        states[feature] = _fill_feature(states[feature], times, path)
    context = None if paths.context is None else paths.context[kept]
    return Paths(states, times, lengths, context, None if observed.all() else observed)


def _fill_feature(values: np.ndarray, times: np.ndarray, path: np.ndarray) -> np.ndarray:
    """One feature (L,) of all paths without NaN."""
    known = ~np.isnan(values)
    index, end = np.arange(len(values)), len(values) - 1
    before = np.maximum.accumulate(np.where(known, index, 0))
    after = np.minimum.accumulate(np.where(known, index, end)[::-1])[::-1]
    has_before, has_after = (known[k] & (path[k] == path) for k in (before, after))
    left = np.where(has_before, values[before], values[after]).astype(np.float64)
    right = np.where(has_after, values[after], values[before]).astype(np.float64)
    gap = np.where(has_before & has_after, times[after] - times[before], 0.0)
    share = (times - times[before]) / np.where(gap > 0, gap, np.inf)
    filled = left + share * (right - left)
    return np.where(known, values, np.where(has_before | has_after, filled, values[known].mean(dtype=np.float64)))
