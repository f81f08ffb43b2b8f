"""Observed paths, and the transitions that models learn from.

Paths may differ in length and in time stamps. They are kept end to end in one tensor, so that a batch of transitions
is a few gathers on the device where the data lives, with no Python per item.

A transition goes from an observation to the next one, or, with a *lag*, to the observation nearest to that much
physical time later, with its true dt. Lagged transitions overlap: train on them, but never add up their likelihoods.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralsde.arrays import as_context, as_list, as_states, as_times
from neuralsde.noise import Noise
from neuralsde.sequence import Transition

Lag = float | Sequence[float | None] | None
"""Physical time between the states of a transition, or several such times; None: consecutive observations."""


class Trajectories:
    """Paths x(t): ragged, irregular, with optional context."""

    def __init__(
        self,
        states: Float[Tensor, "L *S"],
        times: Float[Tensor, " L"],
        lengths: Int[Tensor, " P"],
        context: Float[Tensor, "L C"] | None = None,
    ) -> None:
        """Use `from_arrays`; this takes what was checked there. `context` holds one row per observation."""
        self.states = states
        self.times = times
        self.lengths = lengths
        self.context = context

    @classmethod
    def from_arrays(
        cls,
        states: Any,
        times: Any = None,
        *,
        dt: float | None = None,
        context: Any = None,
    ) -> Trajectories:
        """Read paths.

        Args:
            states: a list of arrays (T_i, *S), or one array (P, T, *S); lists of numbers and integers are converted.
            times: a list of arrays (T_i,), or one array (T,) shared by all paths; absent, stamps are `dt` apart.
            dt: time between observations where there are no stamps (default 1).
            context: one row (C,) per path, or one array (T_i, C) per path.
        """
        paths = [as_states(p, i) for i, p in enumerate(as_list(states, "states"))]
        if not paths:
            raise ValueError("`states` must hold at least one path. Got an empty list.")
        shape = paths[0].shape[1:]
        for i, p in enumerate(paths):
            if p.shape[1:] != shape:
                raise ValueError(
                    f"All paths must have states of one shape. Got {p.shape[1:]} in states[{i}] but {shape} in states[0]."
                )
        stamps = as_times(times, dt, [len(p) for p in paths])
        lengths = torch.tensor([len(p) for p in paths])
        rows = None if context is None else as_context(context, [len(p) for p in paths])
        return cls(
            torch.from_numpy(np.concatenate(paths)),
            torch.from_numpy(np.concatenate(stamps)),
            lengths,
            None if rows is None else torch.from_numpy(rows),
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
    ) -> Trajectories:
        """Read a pandas DataFrame in long form: one row per observation, `id` names the path, `time` its stamp."""
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
        groups = [g for _, g in frame.groupby(id, sort=False)] if id else [frame]
        if time:
            groups = [g.sort_values(time, kind="stable") for g in groups]
        return cls.from_arrays(
            [g[list(columns)].to_numpy() for g in groups],
            [g[time].to_numpy() for g in groups] if time else None,
            context=[g[list(context)].to_numpy() for g in groups] if context else None,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return tuple(self.states.shape[1:])

    @property
    def context_size(self) -> int:
        """Length of the context vector, 0 where there is none."""
        return 0 if self.context is None else self.context.shape[1]

    def __len__(self) -> int:
        """Number of paths."""
        return len(self.lengths)

    def __getitem__(self, path: int) -> tuple[Tensor, Tensor]:
        """States (T, *S) and times (T,) of one path."""
        rows = self._rows(path)
        return self.states[rows], self.times[rows]

    def __repr__(self) -> str:
        return f"Trajectories({len(self)} paths, {len(self.states)} observations of shape {self.shape}, on {self.states.device})"

    def _rows(self, path: int) -> slice:
        first = int(self.lengths[:path].sum())
        return slice(first, first + int(self.lengths[path]))

    def to(self, device: torch.device | str) -> Trajectories:
        """The same paths on another device."""
        context = None if self.context is None else self.context.to(device)
        return Trajectories(self.states.to(device), self.times.to(device), self.lengths.to(device), context)

    def select(self, paths: Sequence[int]) -> Trajectories:
        """The given paths."""
        chosen = torch.as_tensor(paths, device=self.lengths.device)
        lengths = self.lengths[chosen]
        shift = (self.lengths.cumsum(0) - self.lengths)[chosen] - (lengths.cumsum(0) - lengths)
        rows = torch.arange(int(lengths.sum()), device=lengths.device) + torch.repeat_interleave(shift, lengths)
        context = None if self.context is None else self.context[rows]
        return Trajectories(self.states[rows], self.times[rows], lengths, context)

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Trajectories, Trajectories]:
        """Split by path: the rest, and `fraction` of the paths (at least one), chosen by `seed`."""
        num = max(1, round(fraction * len(self)))
        if not 0 < fraction < 1 or num >= len(self):
            raise ValueError(f"`fraction` must leave paths on both sides. Got {fraction=} of {len(self)} path(s).")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).tolist()
        return self.select(sorted(order[num:])), self.select(sorted(order[:num]))

    def transitions(self, *, lag: float | None = None, history: int = 1, spacing: float | None = None) -> Transitions:
        """All pairs of states to learn from.

        Args:
            lag: physical time between the two states (nearest observation); None pairs consecutive observations.
            history: slots of the state.
            spacing: physical time between the slots, if not that of the pairs.
        """
        if lag is not None and not 0 < lag < math.inf:
            raise ValueError(f"`lag` must be positive and finite. Got {lag=}. None pairs consecutive observations.")
        if history < 1:
            raise ValueError(f"`history` must be at least 1. Got {history=}.")
        device = self.states.device
        lengths = self.lengths
        path = torch.repeat_interleave(torch.arange(len(self), device=device), lengths)
        first = (lengths.cumsum(0) - lengths)[path]
        index = torch.arange(len(self.states), device=device)
        apart = lag if spacing is None else spacing
        slots = [index] + [
            index - k if apart is None else self._snap(path, first, apart, -k) for k in range(1, history)
        ]
        after = index + 1 if lag is None else self._snap(path, first, lag, 1)
        last = first + lengths[path] - 1
        valid = (after <= last) & (after > index)
        for newer, older in itertools.pairwise(slots):
            valid &= (older >= first) & (older < newer)
        if not bool(valid.any()):
            longest = float((self.times[last] - self.times[first]).max())
            gap = float((self.times[1:] - self.times[:-1])[path[1:] == path[:-1]].min())
            if lag is not None and lag < 0.7 * gap:
                raise ValueError(
                    f"`lag` is shorter than the time between observations. Got {lag=}, gaps from {gap:g}. Use None."
                )
            raise ValueError(
                f"No path is long enough for a transition with {lag=} and {history=}. The longest path lasts {longest:g} "
                f"with {int(lengths.max())} observations. Use a shorter lag or history."
            )
        start = index[valid]
        unused = len(self) - len(torch.unique(path[start]))
        if unused:
            warnings.warn(
                f"{unused} of {len(self)} paths are too short for {lag=} and {history=} and are not used.", stacklevel=2
            )
        dense = lag is None and history == 1
        stacked = None if dense else torch.stack([s[valid] for s in reversed(slots)] + [after[valid]], dim=1)
        return Transitions(self, start, stacked, path[start], self.times[first[start]], lag)

    def _snap(self, path: Tensor, first: Tensor, lag: float, shift: int) -> Tensor:
        """The observation of the same path nearest to `shift` lags later, -1 where none is near.

        Near is half a lag for the next state, whose true dt is known, and a quarter for older slots, whose place is not.
        """
        since = self.times - self.times[first]
        span = float(since.max()) + 2 * abs(shift) * lag + 1.0
        line = since + span * path  # one increasing line for all paths
        want = line + shift * lag
        right = torch.searchsorted(line, want).clamp(max=len(line) - 1)
        left = (right - 1).clamp(min=0)
        near = torch.where((want - line[left]).abs() <= (line[right] - want).abs(), left, right)
        miss = (path[near] != path) | ((line[near] - want).abs() > (0.5 if shift > 0 else 0.25) * lag)
        return torch.where(miss, torch.full_like(near, -1), near)


class Transitions:
    """An indexed set of transitions on the device of its paths."""

    def __init__(
        self,
        data: Trajectories,
        start: Tensor,
        stacked: Tensor | None,
        path: Tensor,
        origin: Tensor,
        lag: float | None = None,
    ) -> None:
        self.data = data
        self.lag = lag
        self.start = start
        self.stacked = stacked
        """Rows of the history slots, oldest first, and of the next state; None for consecutive pairs without history."""
        self.path = path
        self.origin = origin

    def __len__(self) -> int:
        return len(self.start)

    @property
    def history(self) -> int:
        """Slots of the state."""
        return 1 if self.stacked is None else self.stacked.shape[1] - 1

    def to(self, device: torch.device | str) -> Transitions:
        """The same transitions on another device."""
        stacked = None if self.stacked is None else self.stacked.to(device)
        moved = (t.to(device) for t in (self.start, self.path, self.origin))
        start, path, origin = moved
        return Transitions(self.data.to(device), start, stacked, path, origin, self.lag)

    def __getitem__(self, rows: Int[Tensor, " B"]) -> Transition:
        """The batch of these rows."""
        data, start = self.data, self.start[rows]
        if self.stacked is None:
            slots, after = start[:, None], start + 1
        else:
            slots, after = self.stacked[rows, :-1], self.stacked[rows, -1]
        now = data.times[start]
        return Transition(
            history=data.states[slots],
            next=data.states[after],
            dt=(data.times[after] - now).float(),
            time=(now - self.origin[rows]).float(),
            context=None if data.context is None else data.context[start],
        )

    def batch(self, noise: Noise) -> Transition:
        """One transition per key, drawn uniformly with replacement."""
        return self[noise.integers(len(self))]

    def spread(self, num: int) -> Transition:
        """At most `num` transitions, evenly spread over the set: for statistics of the data."""
        num = min(num, len(self))
        return self[torch.arange(num, device=self.start.device) * len(self) // num]
