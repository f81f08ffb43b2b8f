"""The door of the data: whatever users have in memory becomes checked arrays, or one clear error with place and remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

LARGEST = 1e15  # largest magnitude of a state: its square still fits into float32 with room for sums


def as_list(values: Any, name: str) -> list[Any]:
    """The paths, one entry each."""
    if isinstance(values, (np.ndarray, Tensor)):
        if values.ndim < 3 and values.dtype != object:
            raise ValueError(
                f"`{name}` as one array must have shape (paths, time, features). Got {tuple(values.shape)}. "
                f"For a single path (time, features) pass [{name}]; for scalar series add a last axis."
            )
        return list(values)
    if hasattr(values, "columns"):
        raise ValueError(f"`{name}` got a DataFrame. Use Trajectories.from_dataframe(frame, columns=…), or a list.")
    return list(values)


def as_array(values: Any, name: str) -> np.ndarray:
    """One entry as an array, whatever holds it."""
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"`{name}` must have rows of one length. Got lists of several. Fill the gaps first.") from None


def as_states(path: Any, i: int, *, missing: bool = False) -> np.ndarray:
    """States (T, *S) of path i in float32; with `missing`, NaN may stay in them."""
    if isinstance(path, Tensor):
        path = path.detach().cpu().numpy()
    array = as_array(path, f"states[{i}]")
    if array.dtype == object or array.dtype.kind not in "fiub":
        raise ValueError(f"`states` must be numbers. Got states[{i}] of dtype {array.dtype}. Drop text and dates.")
    if array.ndim < 2:
        raise ValueError(f"A path is (time, features). Got {array.shape} in states[{i}]. For a scalar: x[:, None].")
    if len(array) < 2:
        raise ValueError(f"Each path needs at least two observations. Got {len(array)} in states[{i}]. Drop it.")
    if array[0].size == 0:
        raise ValueError(f"Each observation needs at least one feature. Got states[{i}] of shape {array.shape}.")
    wide = array.astype(np.float64)
    if array.dtype.kind in "iu" and not np.array_equal(wide.astype(np.float32).astype(array.dtype), array):
        raise ValueError(f"states[{i}] holds integers beyond float32. Subtract an offset or rescale, then pass floats.")
    unusable = np.isinf(wide) if missing else ~np.isfinite(wide)
    for bad, what in ((unusable, "finite"), (np.abs(wide) > LARGEST, f"at most {LARGEST:g} in magnitude")):
        if bad.any():
            where = tuple(int(k) for k in np.argwhere(bad)[0])
            place = "".join(f"[{k}]" for k in where)
            remedy = "Drop the observation or fill the gap" if what == "finite" else "Rescale the column"
            remedy += ", or pass missing=True" if np.isnan(wide[where]) else ""
            raise ValueError(f"`states` must be {what}. Got states[{i}]{place}={wide[where]}. {remedy}.")
    steps = np.abs(np.nan_to_num(np.diff(wide, axis=0))).reshape(len(wide) - 1, -1)
    largest = np.abs(np.nan_to_num(wide)).reshape(len(wide), -1).max(0)
    for k in np.flatnonzero(array.dtype.kind == "f" and array.dtype.itemsize > 4 and steps.any(0)):
        if np.spacing(np.float32(largest[k])) > 0.05 * np.median(steps[:, k][steps[:, k] > 0]):
            raise ValueError(
                f"states[{i}] changes by less than float32 can hold beside values of {largest[k]:g} (feature {k}). "
                "Subtract an offset from that feature."
            )
    return wide.astype(np.float32)


def as_times(times: Any, dt: float | None, lengths: list[int]) -> list[np.ndarray]:
    """Stamps of every path in float64, in seconds where they were dates."""
    if times is None:
        step = 1.0 if dt is None else float(dt)
        if not (np.isfinite(step) and step > 0):
            raise ValueError(f"`dt` must be positive. Got {dt=}. Leave it out for a step of 1.")
        return [step * np.arange(n, dtype=np.float64) for n in lengths]
    if dt is not None:
        raise ValueError(f"`times` and `dt` were both given. Got {dt=}. Pass one of them.")
    shared = isinstance(times, (np.ndarray, Tensor)) and times.ndim == 1 and times.dtype != object
    if not shared and len(times) and np.ndim(next(iter(times))) == 0:  # times[0] of a pandas Series is a label
        shared = True
    rows = [np.asarray(times)] * len(lengths) if shared else [np.asarray(t) for t in times]
    if len(rows) != len(lengths):
        raise ValueError(f"`times` must hold one array per path. Got {len(rows)} for {len(lengths)} paths.")
    out = []
    for i, (row, n) in enumerate(zip(rows, lengths)):
        if row.shape != (n,):
            raise ValueError(f"`times` needs one stamp per observation. Got times[{i}] of shape {row.shape} for {n}.")
        if row.dtype.kind == "M":
            row = row - row[0]
        if row.dtype.kind == "m":
            row = row / np.timedelta64(1, "s")
        if row.dtype == object or row.dtype.kind not in "fiu":
            raise ValueError(
                f"`times` must be numbers, datetime64 or timedelta64. Got times[{i}] of dtype {row.dtype}. For stamps with a "
                "time zone: frame[column].dt.tz_convert(None)."
            )
        row = row.astype(np.float64)
        bad = ~np.isfinite(row)
        if bad.any():
            k = int(np.argmax(bad))
            raise ValueError(f"`times` must be finite. Got times[{i}][{k}]={row[k]}. Drop the observation.")
        wrong = np.diff(row) <= 0
        if wrong.any():
            k = int(np.argmax(wrong)) + 1
            raise ValueError(
                f"`times` must increase. Got times[{i}][{k}]={row[k]} after {row[k - 1]}. Drop duplicates or pass dt=…"
            )
        out.append(row)
    return out


def as_context(context: Any, lengths: list[int]) -> np.ndarray:
    """Context rows of all paths, end to end."""
    if len(context) != len(lengths):
        raise ValueError(f"`context` must hold one entry per path. Got {len(context)} for {len(lengths)} paths.")
    rows: list[np.ndarray] = []
    for i, (entry, n) in enumerate(zip(context, lengths)):
        array = as_array(entry, f"context[{i}]")
        if array.dtype == object or array.dtype.kind not in "fiub":
            raise ValueError(f"`context` must be numbers. Got context[{i}] of dtype {array.dtype}. Encode it first.")
        array = np.broadcast_to(array, (n, len(array))) if array.ndim == 1 else array
        if array.ndim != 2 or len(array) != n or array.shape[1] != (rows[0].shape[1] if rows else array.shape[1]):
            raise ValueError(f"`context` must be (C,) or ({n}, C) here. Got shape {np.shape(entry)} in context[{i}].")
        if not np.isfinite(array).all():
            raise ValueError(f"`context` must be finite. Got a missing value in context[{i}]. Fill it first.")
        if (np.abs(array) > LARGEST).any():
            raise ValueError(f"`context` must be at most {LARGEST:g} in size. Got more in context[{i}]. Rescale it.")
        rows.append(array.astype(np.float32))
    return np.concatenate(rows)
