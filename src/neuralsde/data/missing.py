"""Entries that were not observed: marked, so that losses and scores leave them out, and filled, so that nets can read them.

A filled entry is an input, never a target. It is the last value that its feature showed in the path, and the feature's
mean where there is none: values of later instants would tell what is to be predicted.
"""

from __future__ import annotations

import warnings

import numpy as np


def fill(
    states: np.ndarray, times: np.ndarray, lengths: np.ndarray, context: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Paths, end to end, with NaN filled, and what was observed, None for all.

    Observations without any entry, and paths without two of them, are dropped.
    """
    observed = ~np.isnan(states)
    if observed.all():
        return states, times, lengths, context, None
    path = np.repeat(np.arange(len(lengths)), lengths)
    kept = observed.reshape(len(observed), -1).any(1)
    lengths = np.bincount(path[kept], minlength=len(lengths))
    short = lengths < 2
    if short.all():
        raise ValueError("No path has two observations with a value in them. Got missing values almost everywhere.")
    if short.any():
        warnings.warn(
            f"{short.sum()} of {len(short)} paths have fewer than two observations with a value in them and are dropped.",
            stacklevel=3,
        )
    kept &= ~short[path]
    states, observed, path = states[kept], observed[kept], path[kept]
    never = ~observed.any(0)
    if never.any():
        where = [int(k[0]) if len(k) == 1 else tuple(map(int, k)) for k in np.argwhere(never)]
        raise ValueError(f"Every feature must be observed somewhere. Got nothing in feature {where[0]}. Drop it.")
    for k in np.argwhere(~observed.all(0)):
        feature = (slice(None), *k)
        states[feature] = _carried(states[feature], path)
    context = None if context is None else context[kept]
    return states, times[kept], lengths[~short], context, None if observed.all() else observed


def _carried(values: np.ndarray, path: np.ndarray) -> np.ndarray:
    """One feature (L,) of all paths without NaN."""
    known = ~np.isnan(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), 0))
    met = known[last] & (path[last] == path)
    return np.where(met, values[last], values[known].mean(dtype=np.float64))
