"""The door of the data: whatever users have in memory becomes checked arrays, or one clear error with place and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from neuralsde.core.doors import show

LARGEST = 1e15  # largest magnitude of a state: its square still fits into float32 with room for sums
CLOSEST = 1e-6  # share of the usual gap between stamps below which two of them mean the same instant
DUST = 1e-9  # of the widest feature: one that changes by less is constant but for rounding
FAR = 1e3  # how many times the values of a feature are exceeded by one that is no offset, but an outlier
TORCH_KINDS = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?")  # dtypes of numpy that torch takes as they are


def as_device(name: str, value: Any) -> torch.device:
    """A device that is there."""
    try:
        return torch.empty(0, device=value).device
    except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError):
        raise ValueError(f"`{name}` must be a device of this machine, 'cpu' say. Got {show(value)}.") from None


Device = Annotated[torch.device | str, as_device]


def as_list(values: Any, name: str) -> list[Any]:
    """The paths, one entry each."""
    if isinstance(values, (np.ndarray, Tensor)):
        if values.ndim < 3 and values.dtype != object:
            raise ValueError(
                f"`{name}` as one array must have shape (paths, time, features). Got {tuple(values.shape)}. "
                f"For a single path (time, features) pass [{name}]; for scalar series add a last axis."
            )
        values = values if values.dtype == object else as_array(values, name, missing=True)
    elif hasattr(values, "columns"):
        raise ValueError(f"`{name}` got a DataFrame. Use Trajectories.from_dataframe(frame, columns=…), or a list.")
    return entries(values, name)


def entries(values: Any, name: str) -> list[Any]:
    """One entry per path, of a list or of an array."""
    listed = isinstance(values, Sequence) and not isinstance(values, (str, bytes, memoryview))
    rows = isinstance(values, (np.ndarray, Tensor)) or hasattr(values, "iloc")  # pandas has no other sign
    if not listed and not (rows and values.ndim):
        raise ValueError(f"`{name}` must be an array, or a list with one entry per path. Got {show(values)}.")
    return list(values)


def as_array(values: Any, name: str, *, missing: bool = False, dates: bool = False) -> np.ndarray:
    """Numbers as an array, whatever holds them. With `missing`, masked entries become NaN; else they are refused."""
    if isinstance(values, Tensor):
        tensor = _dense(values, name).cpu()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    try:
        array = np.ma.array(values) if _masked(values) else np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        ragged = isinstance(values, (list, tuple)) and isinstance(error, ValueError)
        found = "lists of several. Fill the gaps first." if ragged else f"{show(values)}."
        raise ValueError(f"`{name}` must have rows of one length, of numbers. Got {found}") from None
    if array.dtype.kind not in ("fiubMm" if dates else "fiub"):
        found = f"dtype {array.dtype}" if array.ndim else show(values)
        if dates:
            remedy = "For stamps with a time zone: frame[column].dt.tz_convert(None)."
            raise ValueError(f"`{name}` must be numbers, datetime64 or timedelta64. Got {found}. {remedy}")
        raise ValueError(
            f"`{name}` must be numbers. Got {found}. Drop text, dates and mixed columns, or encode them first."
        )
    if isinstance(array, np.ma.MaskedArray):
        masked = np.argwhere(np.ma.getmaskarray(array))
        if len(masked) and not missing:
            place = "".join(f"[{k}]" for k in masked[0])
            raise ValueError(f"`{name}` must be whole. Got {name}{place} masked. Fill or drop missing values first.")
        wide = np.promote_types(array.dtype, np.float16)
        array = np.ma.filled(array.astype(wide), np.nan) if len(masked) else array.data
    return array


def as_tensor(values: Any, name: str, dtype: torch.dtype, device: torch.device | str | None = None) -> Tensor:
    """Numbers as a tensor on the device (None: where they are), without the gradient they may have."""
    if isinstance(values, Tensor):
        return _dense(values, name).to(device=device, dtype=dtype)
    array = as_array(values, name)
    if array.dtype not in TORCH_KINDS or not array.flags.writeable or min(array.strides, default=0) < 0:
        array = np.array(array, np.float64)
    return torch.from_numpy(array).to(device=device, dtype=dtype)


def _dense(values: Tensor, name: str) -> Tensor:
    if values.layout != torch.strided or values.is_quantized or values.is_complex() or values.is_meta:
        found = f"a tensor of {values.layout}, {values.dtype}, on {values.device}"
        raise ValueError(f"`{name}` must be a dense tensor of real numbers. Got {found}. Convert it first.")
    return values.detach()


def _masked(values: Any) -> bool:
    """Whether this is a masked array, or holds one in lists: numpy passes over the mask of those."""
    if isinstance(values, (list, tuple)):
        return any(_masked(v) for v in values if not isinstance(v, (int, float)))
    return isinstance(values, np.ma.MaskedArray)


def as_states(path: Any, i: int, *, missing: bool = False) -> np.ndarray:
    """States (T, *S) of path i in float32; with `missing`, NaN may stay in them."""
    array = as_array(path, f"states[{i}]", missing=True)
    if array.ndim < 2:
        raise ValueError(f"A path is (time, features). Got {array.shape} in states[{i}]. For a scalar: x[:, None].")
    if len(array) < 2:
        remedy = "Drop it, or join it with its neighbours."
        raise ValueError(f"Each path needs at least two observations. Got {len(array)} in states[{i}]. {remedy}")
    if array[0].size == 0:
        raise ValueError(f"Each observation needs at least one feature. Got states[{i}] of shape {array.shape}.")
    wide = array.astype(np.float64)
    if array.dtype.kind in "iu" and (np.abs(wide) > 2**24).any() and not _exact(array, wide):
        raise ValueError(
            f"states[{i}] holds integers that float32 cannot hold exactly, up to {np.abs(wide).max():.0f}. Subtract an offset "
            "or rescale, then pass floats. Drop the column if it is an id."
        )
    unusable = np.isinf(wide) if missing else ~np.isfinite(wide)
    for bad, what in ((unusable, "finite"), (np.abs(wide) > LARGEST, f"at most {LARGEST:g} in magnitude")):
        if bad.any():
            where = tuple(int(k) for k in np.argwhere(bad)[0])
            place = "".join(f"[{k}]" for k in where)
            remedy = "Drop the observation or fill the gap" if what == "finite" else "Rescale the column"
            remedy += ", or pass missing=True" if np.isnan(wide[where]) else ""
            raise ValueError(f"`states` must be {what}. Got states[{i}]{place}={wide[where]}. {remedy}.")
    if array.dtype.kind == "f" and array.dtype.itemsize > 4:
        _check_resolution(wide.reshape(len(wide), -1), i)
    return wide.astype(np.float32)


def _exact(array: np.ndarray, wide: np.ndarray) -> bool:
    """Whether integers are what they were after float32; those at the end of int64 would overflow on their way back."""
    return bool((np.abs(wide) < 2**62).all()) and np.array_equal(wide.astype(np.float32).astype(array.dtype), array)


def _check_resolution(wide: np.ndarray, i: int) -> None:
    """Refuse features (T, K) that float32 cannot hold: say whether it is an offset, or a single entry far off."""
    values, steps = np.abs(np.nan_to_num(wide)), np.abs(np.nan_to_num(np.diff(wide, axis=0)))
    widths = np.ptp(np.nan_to_num(wide), axis=0)
    for k in np.flatnonzero(steps.any(0) & (widths > DUST * widths.max())):
        row, usual = int(values[:, k].argmax()), float(np.median(steps[:, k][steps[:, k] > 0]))
        largest, typical = values[row, k], float(np.median(values[:, k]))
        if np.spacing(np.float32(largest)) <= 0.05 * usual:
            continue
        what = f"states[{i}] changes by less than float32 can hold beside values of {largest:g} (feature {k})."
        if largest > FAR * typical and np.spacing(np.float32(typical)) <= 0.05 * usual:
            found = (
                f"An outlier: states[{i}][{row}] is {wide[row, k]:g}, and half of the values are below {typical:.3g}."
            )
            raise ValueError(f"{what} {found} Correct or drop it, or pass NaN for it with missing=True.")
        raise ValueError(f"{what} Subtract an offset from that feature.")


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
    given = [] if shared else entries(times, "times")
    shared = shared or (len(given) > 0 and np.ndim(given[0]) == 0)
    rows = [as_array(times, "times", dates=True)] * len(lengths) if shared else given
    if len(rows) != len(lengths):
        raise ValueError(f"`times` must hold one array per path. Got {len(rows)} for {len(lengths)} paths.")
    out = []
    for i, (own, n) in enumerate(zip(rows, lengths)):
        row = as_array(own, f"times[{i}]", dates=True)
        if row.shape != (n,):
            raise ValueError(f"`times` needs one stamp per observation. Got times[{i}] of shape {row.shape} for {n}.")
        if row.dtype.kind == "M":
            row = row - row[0]
        if row.dtype.kind == "m":
            row = row / np.timedelta64(1, "s")
        if row.dtype.kind == "b":
            raise ValueError(f"`times` must be numbers, datetime64 or timedelta64. Got times[{i}] of dtype bool.")
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
    _check_gaps(out)
    return out


def _check_gaps(times: list[np.ndarray]) -> None:
    """Refuse stamps that nearly repeat: their gap would be taken for the time step of the data."""
    usual = float(np.quantile(np.concatenate([np.diff(row) for row in times]), 0.75))
    for i, row in enumerate(times):
        k = int(np.diff(row).argmin())
        if row[k + 1] - row[k] < CLOSEST * usual:
            raise ValueError(
                f"`times` must not nearly repeat. Got times[{i}][{k + 1}]={float(row[k + 1])!r} after {float(row[k])!r}, where "
                f"gaps of {usual:.4g} are usual. Merge the two observations, or round the times and drop duplicates."
            )


def as_context(context: Any, lengths: list[int]) -> np.ndarray:
    """Context rows of all paths, end to end."""
    given = entries(context, "context")
    if len(given) != len(lengths):
        raise ValueError(f"`context` must hold one entry per path. Got {len(given)} for {len(lengths)} paths.")
    rows: list[np.ndarray] = []
    for i, (entry, n) in enumerate(zip(given, lengths)):
        array = as_array(entry, f"context[{i}]")
        array = np.broadcast_to(array, (n, len(array))) if array.ndim == 1 else array
        if array.ndim != 2 or len(array) != n or array.shape[1] != (rows[0].shape[1] if rows else array.shape[1]):
            raise ValueError(f"`context` must be (C,) or ({n}, C) here. Got shape {np.shape(entry)} in context[{i}].")
        if not np.isfinite(array).all():
            raise ValueError(f"`context` must be finite. Got a missing value in context[{i}]. Fill it first.")
        if (np.abs(array) > LARGEST).any():
            raise ValueError(f"`context` must be at most {LARGEST:g} in size. Got more in context[{i}]. Rescale it.")
        rows.append(array.astype(np.float32))
    return np.concatenate(rows)
