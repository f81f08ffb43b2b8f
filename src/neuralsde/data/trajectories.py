"""Observed paths.

Paths may differ in length and in time stamps. They are kept end to end in one tensor, so that a batch of transitions
is a few gathers on the device where the data lives, with no Python per item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from neuralsde.data.arrays import as_context, as_list, as_states, as_times
from neuralsde.data.columns import as_columns, as_stamps, in_paths
from neuralsde.data.missing import Paths, fill
from neuralsde.data.transitions import Lag, Transitions, pair_up

__all__ = ["Lag", "Trajectories", "Transitions"]


class Trajectories:
    """Paths x(t): ragged, irregular, with optional context."""

    def __init__(
        self,
        states: Float[Tensor, "L *S"],
        times: Float[Tensor, " L"],
        lengths: Int[Tensor, " P"],
        context: Shaped[Tensor, "M C"] | None = None,
        observed: Bool[Tensor, "L *S"] | None = None,
        names: tuple[str, ...] | None = None,
        context_rows: Int[Tensor, "L K"] | None = None,
        begin: Float[Tensor, " P"] | None = None,
    ) -> None:
        """Use `from_arrays`; this takes what was checked there.

        `context` holds one row per observation; with `context_rows` it holds rows that observations share, and each
        observation has the K rows that are named there, end to end.
        """
        self.states = states
        self.times = times
        self.lengths = lengths
        self.context = context
        self.observed = observed
        """False where an entry was missing and `states` holds what it was filled with; None: nothing was missing."""
        self.context_rows = context_rows
        self.names = names
        """Of the features, where they have any."""
        self.begin = times[lengths.cumsum(0) - lengths] if begin is None else begin
        """When each path began: before its first observation, where this is the later part of a path."""

    @classmethod
    def from_arrays(
        cls,
        states: Any,
        times: Any = None,
        *,
        dt: float | None = None,
        context: Any = None,
        missing: bool = False,
    ) -> Trajectories:
        """Read paths.

        Args:
            states: a list of arrays (T_i, *S), or one array (P, T, *S); lists of numbers and integers are converted.
            times: a list of arrays (T_i,), or one array (T,) shared by all paths; absent, stamps are `dt` apart.
            dt: time between observations where there are no stamps (default 1).
            context: one row (C,) per path, or one array (T_i, C) per path.
            missing: take NaN in `states` as entries that were not observed; without it a NaN is refused.
        """
        paths = [as_states(p, i, missing=missing) for i, p in enumerate(as_list(states, "states"))]
        if not paths:
            raise ValueError("`states` must hold at least one path. Got an empty list.")
        shape = paths[0].shape[1:]
        for i, p in enumerate(paths):
            if p.shape[1:] != shape:
                raise ValueError(
                    f"All paths must have states of one shape. Got {p.shape[1:]} in states[{i}] but {shape} in states[0]."
                )
        lengths = [len(p) for p in paths]
        stamps = as_times(times, dt, lengths)
        rows = None if context is None else as_context(context, lengths)
        read = fill(Paths(np.concatenate(paths), np.concatenate(stamps), np.array(lengths), rows))
        return cls(
            torch.from_numpy(read.states),
            torch.from_numpy(read.times),
            torch.from_numpy(read.lengths),
            None if read.context is None else torch.from_numpy(read.context),
            None if read.observed is None else torch.from_numpy(read.observed),
        )

    @classmethod
    def from_dataframe(
        cls,
        frame: Any,
        *,
        columns: Sequence[str],
        id: str | None = None,
        time: str | None = None,
        context: Sequence[str] = (),
        missing: bool = False,
    ) -> Trajectories:
        """Read a pandas DataFrame in long form: one row per observation, `id` names the path, `time` its stamp.

        Stamps are numbers, dates (those with a zone become UTC), durations or ISO text; dates and durations count in
        seconds. `missing` takes NaN in `columns` as entries that were not observed.
        """
        if isinstance(columns, str) or isinstance(context, str):
            raise ValueError(
                f"`columns` and `context` are lists of names. Got {columns=}, {context=}. Write ['{columns}']."
            )
        for name in [*columns, *context, *(n for n in (id, time) if n)]:
            if name not in frame.columns:
                raise ValueError(f"The table has no column {name!r}. It has {', '.join(map(str, frame.columns))}.")
        if id and frame[id].isna().any():
            raise ValueError(
                f"The column {id!r} must name the path of every row. Got missing values. Fill or drop them."
            )
        if not len(frame):
            raise ValueError("The table must hold at least one path. Got no rows.")
        states, rows = as_columns(frame, columns), as_columns(frame, context) if context else None
        stamps = None if time is None else as_stamps(frame[time])
        order, lengths = in_paths(frame[id].factorize()[0] if id else np.zeros(len(frame), int), stamps)
        places = np.split(order, lengths.cumsum()[:-1])
        data = cls.from_arrays(
            [states[k] for k in places],
            None if stamps is None else [stamps[k] for k in places],
            context=None if rows is None else [rows[k] for k in places],
            missing=missing,
        )
        data.names = tuple(map(str, columns))
        return data

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return tuple(self.states.shape[1:])

    @property
    def context_size(self) -> int:
        """Length of the context vector, 0 where there is none."""
        if self.context is None:
            return 0
        return self.context.shape[1] * (1 if self.context_rows is None else self.context_rows.shape[1])

    def context_at(self, rows: Int[Tensor, "..."]) -> Float[Tensor, "... C"] | None:
        """The context of these observations, as numbers."""
        if self.context is None:
            return None
        if self.context_rows is None:
            return self.context[rows].float()
        return self.context[self.context_rows[rows]].flatten(-2).float()

    @property
    def ends(self) -> Float[Tensor, " P"]:
        """Time of the last observation of each path."""
        return self.times[self.lengths.cumsum(0) - 1]

    @property
    def durations(self) -> Float[Tensor, " P"]:
        """Time from the first to the last observation of each path."""
        return self.ends - self.times[self.lengths.cumsum(0) - self.lengths]

    def __len__(self) -> int:
        """Number of paths."""
        return len(self.lengths)

    def __getitem__(self, path: int) -> tuple[Tensor, Tensor]:
        """States (T, *S) and times (T,) of one path."""
        rows = self._rows(path)
        return self.states[rows], self.times[rows]

    def __repr__(self) -> str:
        missing = "" if self.observed is None else f", {100 * float((~self.observed).float().mean()):.3g} % missing"
        size = f"{len(self)} paths, {len(self.states)} observations of shape {self.shape}"
        return f"Trajectories({size}{missing}, on {self.states.device})"

    def _rows(self, path: int) -> slice:
        first = int(self.lengths[:path].sum())
        return slice(first, first + int(self.lengths[path]))

    def to(self, device: torch.device | str) -> Trajectories:
        """The same paths on another device."""
        parts = (self.states, self.times, self.lengths, self.context, self.observed, self.context_rows, self.begin)
        *moved, rows, begin = (None if part is None else part.to(device) for part in parts)
        return Trajectories(*moved, names=self.names, context_rows=rows, begin=begin)  # type: ignore[arg-type]

    def select(self, paths: Sequence[int]) -> Trajectories:
        """The given paths."""
        chosen = torch.as_tensor(paths, device=self.lengths.device)
        first = (self.lengths.cumsum(0) - self.lengths)[chosen]
        return self._cut(first, self.lengths[chosen], self.begin[chosen])

    def _cut(self, first: Tensor, lengths: Tensor, begin: Tensor) -> Trajectories:
        """Paths of these lengths from these rows on."""
        shift = first - (lengths.cumsum(0) - lengths)
        rows = torch.arange(int(lengths.sum()), device=lengths.device) + torch.repeat_interleave(shift, lengths)
        observed = None if self.observed is None else self.observed[rows]
        shared = None if self.context_rows is None else self.context_rows[rows]
        context = self.context if self.context is None or shared is not None else self.context[rows]
        return Trajectories(self.states[rows], self.times[rows], lengths, context, observed, self.names, shared, begin)

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Trajectories, Trajectories]:
        """Split by path: the rest, and `fraction` of the paths (at least one), chosen by `seed`."""
        rest, chosen = self.draw_paths(fraction, seed=seed)
        return self.select(rest), self.select(chosen)

    def draw_paths(self, fraction: float, *, seed: int = 0) -> tuple[list[int], list[int]]:
        """The numbers of the rest, and of `fraction` of the paths (at least one), chosen by `seed`."""
        num = max(1, round(fraction * len(self)))
        if not 0 < fraction < 1 or num >= len(self):
            raise ValueError(f"`fraction` must leave paths on both sides. Got {fraction=} of {len(self)} path(s).")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).tolist()
        return sorted(order[num:]), sorted(order[:num])

    def split_in_time(self, fraction: float) -> tuple[Trajectories, Trajectories]:
        """Split every path: its earlier observations, and the last `fraction` of them (at least two on both sides)."""
        late = (fraction * self.lengths).round().long().clamp(min=2)
        if not 0 < fraction < 1 or bool((self.lengths - late < 2).any()):
            raise ValueError(
                f"`fraction` must leave two observations of every path on both sides. Got {fraction=} of "
                f"{int(self.lengths.min())} observations. Use longer paths, or split by path."
            )
        first = self.lengths.cumsum(0) - self.lengths
        early = self.lengths - late
        return self._cut(first, early, self.begin), self._cut(first + early, late, self.begin)

    def transitions(self, *, lag: Lag = None, history: int = 1, spacing: Lag = None) -> Transitions:
        """All pairs of states to learn from.

        Args:
            lag: physical time between the two states (nearest observation), or several such times; None pairs
                consecutive observations.
            history: slots of the state.
            spacing: physical time between the slots, if not that of the pairs; of several times the shortest.
        """
        return pair_up(self, lag, history, spacing)
