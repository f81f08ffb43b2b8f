"""Time grids. Output times may be anything that increases: between two of them are as many equal steps as the step limit
asks for, path by path, so that a path does not depend on its neighbours in the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Concatenate, ParamSpec, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

Settings = ParamSpec("Settings")
Made = TypeVar("Made")

MAX_STEPS = 1_000_000  # of one path in one call
MAX_GRID = 2**26  # of the time grids of all paths: bounds their memory (512 MiB)
MAX_KNOWN = 256  # output times up to which they and their grid are kept


@dataclass(frozen=True)
class Times:
    """Output times on the host, in reference steps: one row for all paths, or one row for each."""

    start: Float[Tensor, "P 1"]
    since: Float[Tensor, "Q T"]  # after the start; one row if they are all the same
    gaps: Float[Tensor, "P T-1"]

    @classmethod
    def checked(cls, times: Float[Tensor, "P T"], unit: float) -> Times:
        """Raw times, which must increase."""
        gaps = times.diff(dim=1)
        good = (gaps > 0) & torch.isfinite(gaps)
        if not bool(good.all()):
            row, k = (int(i) for i in (~good).nonzero()[0])
            before, after = float(times[row, k]), float(times[row, k + 1])
            found = f"Got times[{row}][{k + 1}]={after} after {before}"
            raise ValueError(f"`times` must increase and be finite. {found}. Sort them, and drop duplicates.")
        since = (times - times[:, :1]) / unit
        since = since[:1] if bool((since == since[:1]).all()) else since
        return cls(start=times[:, :1] / unit, since=since, gaps=gaps / unit)


def _keeping(make: Callable[Concatenate[Tensor, Settings], Made]) -> Callable[Concatenate[Tensor, Settings], Made]:
    """`make` for times (P, T) on the host; what a controller needs, which asks for the same few again and again, is kept."""

    @lru_cache(maxsize=64)
    def remember(times: tuple[float, ...], inference: bool, *args: Settings.args, **settings: Settings.kwargs) -> Made:
        return make(torch.tensor([times], dtype=torch.float64), *args, **settings)

    def recall(times: Tensor, /, *args: Settings.args, **settings: Settings.kwargs) -> Made:
        if len(times) == 1 and times.shape[1] <= MAX_KNOWN:
            return remember(tuple(times[0].tolist()), torch.is_inference_mode_enabled(), *args, **settings)  # type: ignore[arg-type]
        return make(times, *args, **settings)

    return recall


output_times = _keeping(Times.checked)


def steps_in(gaps: Tensor, max_step: float) -> Tensor:
    """How many equal steps of at most `max_step` each gap takes."""
    return torch.ceil(gaps / max_step * (1 - 1e-6)).clamp(min=1)  # whole steps, whatever the rounding


@dataclass(frozen=True)
class Grid:
    """Solver steps between output times, for each path; shorter paths end in steps of length 0."""

    time: Float[Tensor, "P K"]  # K = M + 1 times for M steps
    interval: Int[Tensor, "P M"]  # the output interval each step lies in
    output: Int[Tensor, "P T"]  # where the output times are on the grid

    @classmethod
    def between(cls, times: Float[Tensor, "P T"], max_step: float) -> Grid:
        """Equal steps of at most `max_step` in each interval of `times`."""
        gaps = times.diff(dim=1)
        steps = steps_in(gaps, max_step)
        longest = float(steps.sum(1).max())
        if longest > MAX_STEPS or longest * len(times) > MAX_GRID:
            raise ValueError(
                f"`times` must take at most {MAX_STEPS:,} steps of a path, and {MAX_GRID:,} of all. Got {longest:.4g} for "
                f"{len(times)} row(s) of times. Use fewer `substeps`, or sample in parts, each from the end of the one before."
            )
        steps = steps.long()
        ends = steps.cumsum(1)
        output = torch.cat([torch.zeros_like(ends[:, :1]), ends], dim=1)
        m = torch.arange(int(ends[:, -1].max()) + 1, device=times.device).repeat(len(times), 1)
        interval = torch.searchsorted(ends, m, right=True).clamp(max=gaps.shape[1] - 1)
        share = (m - output.gather(1, interval)).to(times.dtype) / steps.gather(1, interval)
        time = times.gather(1, interval) + share * gaps.gather(1, interval)
        time = torch.where(m < ends[:, -1:], time, times[:, -1:])  # shorter rows wait, exactly, at their last time
        return cls(time=time, interval=interval[:, :-1], output=output)

    @cached_property
    def lengths(self) -> Float[Tensor, "P M"]:
        """Of the steps."""
        return self.time.diff(dim=1)

    @cached_property
    def _extremes(self) -> tuple[float, float]:
        """The shortest and the longest step."""
        return float(self.lengths.min()), float(self.lengths.max())

    def steps_are(self, length: float) -> bool:
        """Whether all steps have this length, whatever the rounding."""
        return all(abs(step - length) <= 1e-6 * length for step in self._extremes)

    @cached_property
    def waits(self) -> list[bool]:
        """Whether a path, in each step, only waits for longer ones."""
        return (self.lengths == 0).any(0).tolist()


@_keeping
def grid_between(times: Float[Tensor, "P T"], max_step: float, device: torch.device) -> Grid:
    """`Grid.between` on a device, for times on the host."""
    return Grid.between(times.to(device), max_step)
