"""Observed paths, and the pairs of states that are learned from.

Paths may differ in length and in time stamps. They are kept end to end in one tensor, so that a batch of transitions
is a few gathers on the device where the data lives, with no Python per item.

A transition goes from an observation to the next one, or, with a *lag*, to the observation nearest to that much
physical time later, with its true dt. Several lags give the union of their transitions, each pair of observations
once. Lagged transitions overlap: train on them, but never add up their likelihoods.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from neuralsde.core.doors import Count, Positive, Seed, door, show
from neuralsde.data.arrays import Device, as_context, as_list, as_states, as_times
from neuralsde.data.columns import as_columns, as_stamps, in_paths, number_ids
from neuralsde.data.missing import fill
from neuralsde.data.transition import Transition
from neuralsde.solvers.noise import Noise

Lag = Positive | Sequence[Positive | None] | None
"""Physical time between the states of a transition, or several such times; None: consecutive observations."""

Names = Annotated[Sequence[str | int], "Write ['name']."]
"""Of columns."""

SOME_NUMBERS = 2**15  # entries of the states of `some` transitions
MAX_CONTEXT_ELEMENTS = 2**26
"""Numbers in the contexts of transitions for statistics: bounds their memory (256 MiB in float32)."""
ENOUGH_WHOLE = 0.2  # share of transitions from states without a gap from which on the others are not learned from


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
    @door
    def from_arrays(
        cls, states: Any, times: Any = None, *, dt: Positive | None = None, context: Any = None, missing: bool = False
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
                raise ValueError(f"Paths must have one shape. Got {p.shape[1:]} in states[{i}], {shape} in states[0].")
        lengths = [len(p) for p in paths]
        stamps = as_times(times, dt, lengths)
        rows = None if context is None else as_context(context, lengths)
        read = fill(np.concatenate(paths), np.concatenate(stamps), np.array(lengths), rows)
        return cls(*(None if part is None else torch.from_numpy(part) for part in read))  # type: ignore[arg-type]

    @classmethod
    @door
    def from_dataframe(
        cls,
        frame: Any,
        *,
        columns: Names,
        id: str | None = None,
        time: str | None = None,
        context: Names = (),
        missing: bool = False,
    ) -> Trajectories:
        """Read a pandas DataFrame in long form: one row per observation, `id` names the path, `time` its stamp.

        Stamps are numbers, dates (those with a zone become UTC), durations or ISO text; dates and durations count in
        seconds. `missing` takes NaN in `columns` as entries that were not observed.
        """
        if not hasattr(frame, "columns") or not hasattr(frame, "iloc"):
            raise ValueError(f"`frame` must be a pandas DataFrame. Got {show(frame)}. Arrays go into from_arrays.")
        if not columns:
            raise ValueError("`columns` must name at least one column. Got none.")
        for name in [*columns, *context, *(n for n in (id, time) if n is not None)]:
            if name not in frame.columns:
                raise ValueError(f"The table has no column {name!r}. It has {', '.join(map(str, frame.columns))}.")
        if not len(frame):
            raise ValueError("The table must hold at least one path. Got no rows.")
        states, rows = as_columns(frame, columns), as_columns(frame, context) if context else None
        stamps = None if time is None else as_stamps(frame[time])
        order, lengths = in_paths(number_ids(frame[id]) if id is not None else np.zeros(len(frame), int), stamps)
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

    @property
    def longest_gap(self) -> float:
        """The longest time between two observations of a path that follow one another."""
        apart = self.times.diff()
        apart[self.lengths.cumsum(0)[:-1] - 1] = 0.0  # from path to path
        return float(apart.max()) if len(apart) else 0.0

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

    @door
    def to(self, device: Device) -> Trajectories:
        """The same paths on another device."""
        parts = (self.states, self.times, self.lengths, self.context, self.observed, self.context_rows, self.begin)
        *moved, rows, begin = (None if part is None else part.to(device) for part in parts)
        return Trajectories(*moved, names=self.names, context_rows=rows, begin=begin)  # type: ignore[arg-type]

    @door
    def select(self, paths: Sequence[int]) -> Trajectories:
        """The given paths."""
        if not len(paths) or not -len(self) <= min(paths) <= max(paths) < len(self):
            raise ValueError(f"`paths` must name some of the {len(self)} paths, from 0 on. Got {show(list(paths))}.")
        chosen = torch.as_tensor(paths, device=self.lengths.device)
        first = (self.lengths.cumsum(0) - self.lengths)[chosen]
        return self.cut(first, self.lengths[chosen], self.begin[chosen])

    def cut(self, first: Tensor, lengths: Tensor, begin: Tensor) -> Trajectories:
        """Paths of these lengths from these rows on."""
        shift = first - (lengths.cumsum(0) - lengths)
        rows = torch.arange(int(lengths.sum()), device=lengths.device) + torch.repeat_interleave(shift, lengths)
        return self._take(rows, lengths, begin)

    def _take(self, rows: Tensor, lengths: Tensor, begin: Tensor) -> Trajectories:
        """Paths of these observations, end to end."""
        observed = None if self.observed is None else self.observed[rows]
        shared = None if self.context_rows is None else self.context_rows[rows]
        context = self.context if self.context is None or shared is not None else self.context[rows]
        return Trajectories(self.states[rows], self.times[rows], lengths, context, observed, self.names, shared, begin)

    @door
    def split(self, fraction: float, *, seed: Seed = 0) -> tuple[Trajectories, Trajectories]:
        """Split by path: the rest, and `fraction` of the paths (at least one), chosen by `seed`."""
        rest, chosen = self.draw_paths(fraction, seed=seed)
        return self.select(rest), self.select(chosen)

    @door
    def draw_paths(self, fraction: float, *, seed: Seed = 0) -> tuple[list[int], list[int]]:
        """The numbers of the rest, and of `fraction` of the paths (at least one), chosen by `seed`."""
        num = max(1, round(fraction * len(self))) if 0 < fraction < 1 else len(self)
        if num >= len(self):
            raise ValueError(f"`fraction` must leave paths on both sides. Got {fraction=} of {len(self)} path(s).")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).tolist()
        return sorted(order[num:]), sorted(order[:num])

    @door
    def split_in_time(self, fraction: float) -> tuple[Trajectories, Trajectories]:
        """Split every path: its earlier observations, and the last `fraction` of them (at least two on both sides)."""
        late = (min(max(fraction, 0.0), 1.0) * self.lengths).round().long().clamp(min=2)
        if not 0 < fraction < 1 or bool((self.lengths - late < 2).any()):
            raise ValueError(
                f"`fraction` must leave two observations of every path on both sides. Got {fraction=} of "
                f"{int(self.lengths.min())} observations. Use longer paths, or split by path."
            )
        first = self.lengths.cumsum(0) - self.lengths
        early = self.lengths - late
        return self.cut(first, early, self.begin), self.cut(first + early, late, self.begin)

    @door
    def transitions(
        self, *, lag: Lag = None, history: Count = 1, spacing: Lag = None, pad: bool = False
    ) -> Transitions:
        """All pairs of states to learn from.

        Args:
            lag: physical time between the two states (nearest observation), or several such times; None pairs
                consecutive observations.
            history: slots of the state.
            spacing: physical time between the slots, if not that of the pairs; of several times the shortest.
            pad: where a path begins, slots before it hold its first observation.
        """
        return pair_up(self, lag, history, spacing, pad=pad)

    def windows(self, first: Int[Tensor, " B"], num: int, *, lag: Lag = None) -> Trajectories:
        """Paths of up to `num` observations from these rows on, each about a lag after the one before, or the next there is.

        Of several lags that is the shortest.
        """
        path, start, last = _ends(self)
        index, apart = torch.arange(len(path), device=path.device), as_lags(lag)[0]
        after = index + 1
        if apart is not None:
            after = torch.maximum(after, _snap(self.times, path, start, apart, 1))
        after = torch.where(after <= last, after, -1)
        rows = [first]
        for _ in range(num - 1):
            rows.append(torch.where(rows[-1] < 0, -1, after[rows[-1]]))
        found = torch.stack(rows, dim=1)
        there = found >= 0
        return self._take(found[there], there.sum(1), self.begin[path[first]])

    def slots(self, rows: Int[Tensor, " B"], *, history: int, spacing: Lag = None) -> Int[Tensor, "B H"]:
        """Rows of the history slots of these observations, oldest first; before the first observation of a path that one."""
        path, first, _ = _ends(self)
        slots = _slots(self, path, first, history, as_lags(spacing)[0], near=False)
        return torch.stack([torch.maximum(slot, first)[rows] for slot in reversed(slots)], dim=1)


Paths = Annotated[Trajectories, "Use Trajectories.from_arrays(states, times)."]


@dataclass(eq=False)
class Transitions:
    """An indexed set of transitions on the device of its paths."""

    data: Trajectories
    start: Tensor
    stacked: Tensor | None
    """Rows of the history slots, oldest first, and of the next state; None for consecutive pairs without history."""
    path: Tensor
    origin: Tensor
    lag: Lag = None
    step: float | None = None
    """With several lags, the typical dt of the shortest: slots are that far apart and samplers step by it."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def history(self) -> int:
        """Slots of the state."""
        return 1 if self.stacked is None else self.stacked.shape[1] - 1

    @property
    def in_memory(self) -> Transitions:
        """What statistics are taken of: all of them."""
        return self

    def record(self) -> dict[str, Any]:
        """What the order of a training on them depends on, besides the seed: nothing."""
        return {}

    def to(self, device: torch.device | str) -> Transitions:
        """The same transitions on another device."""
        return self._each(lambda t: t.to(device), self.data.to(device))

    def _each(self, change: Callable[[Tensor], Tensor], data: Trajectories) -> Transitions:
        start, path, origin = (change(t) for t in (self.start, self.path, self.origin))
        stacked = None if self.stacked is None else change(self.stacked)
        return replace(self, data=data, start=start, stacked=stacked, path=path, origin=origin)

    def __getitem__(self, rows: Int[Tensor, " B"]) -> Transition:
        """The batch of these rows."""
        return self._at(rows, context=True)

    def _at(self, rows: Int[Tensor, " B"], *, context: bool) -> Transition:
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
            context=data.context_at(start) if context else None,
            mask=None if data.observed is None else data.observed[start] & data.observed[after],
        )

    def batch(self, noise: Noise) -> Transition:
        """One transition per key, drawn uniformly with replacement."""
        return self[noise.integers(len(self))]

    def windows(self, noise: Noise, num: int) -> Trajectories:
        """One path of up to `num` observations per key, from a transition drawn uniformly."""
        return self.data.windows(self.start[noise.integers(len(self))], num, lag=self.lag)

    def at_most(self, num: int) -> Transitions:
        """`num` of them, evenly spread, or all."""
        return self.select(self._spread_rows(min(num, len(self))))

    def to_learn_from(self) -> Transitions:
        """Those from states of which every entry was observed, if they are enough, else all.

        A net that reads filled entries learns a blurred drift, and their errors as noise.
        """
        if self.data.observed is None:
            return self
        whole = self.whole()
        return self.select(whole) if float(whole.float().mean()) >= ENOUGH_WHOLE else self

    def whole(self) -> Bool[Tensor, " N"]:
        """Which are from states of which every entry was observed."""
        if self.data.observed is None:
            return torch.ones_like(self.start, dtype=torch.bool)
        slots = self.start[:, None] if self.stacked is None else self.stacked[:, :-1]
        return self.data.observed[slots].flatten(1).all(1)

    def select(self, rows: Shaped[Tensor, " M"]) -> Transitions:
        """Some of them, by number or by mark."""
        return self._each(lambda t: t[rows], self.data)

    def spread(self, num: int, *, context: bool = True) -> Transition:
        """At most `num` transitions, evenly spread over the set: for statistics of the data.

        Contexts as wide as images are there for fewer of them, or with `context=False` for none.
        """
        num = min(num, len(self))
        if context and self.data.context_size:
            num = min(num, max(1, MAX_CONTEXT_ELEMENTS // self.data.context_size))
        return self._at(self._spread_rows(num), context=context)

    def some(self) -> Transition:
        """For what needs no more, fewer where states are large."""
        return self.spread(max(256, SOME_NUMBERS // math.prod(self.data.shape)))

    def _spread_rows(self, num: int) -> Int[Tensor, " num"]:
        return torch.arange(num, device=self.start.device) * len(self) // num


def as_lags(lag: Lag) -> tuple[float | None, ...]:
    """The lags one by one, each once, the shortest first."""
    lags = {None if each is None else float(each) for each in (lag if isinstance(lag, Iterable) else (lag,))}
    if not lags or not all(each is None or 0 < each < math.inf for each in lags):
        raise ValueError(f"`lag` must be positive and finite. Got {lag=}. None pairs consecutive observations.")
    return tuple(sorted(lags, key=lambda each: each or 0.0))


def _ends(data: Trajectories) -> tuple[Tensor, Tensor, Tensor]:
    """Of each observation: its path, and the first and the last row of that."""
    path = torch.repeat_interleave(torch.arange(len(data), device=data.lengths.device), data.lengths)
    first = (data.lengths.cumsum(0) - data.lengths)[path]
    return path, first, first + data.lengths[path] - 1


def _slots(
    data: Trajectories, path: Tensor, first: Tensor, history: int, apart: float | None, *, near: bool = True
) -> list[Tensor]:
    """Rows of the slots of each observation, newest first; -1, or a row before the path, where there is none `near`."""
    index = torch.arange(len(data.states), device=data.states.device)
    older = range(-1, -history, -1)
    return [index] + [
        index + k if apart is None else _snap(data.times, path, first, apart, k, near=near) for k in older
    ]


def _before_the_start(data: Trajectories, path: Tensor, first: Tensor, apart: float | None, k: int) -> Tensor:
    """Where slot k back lies before a path that begins with its first observation."""
    index = torch.arange(len(data.states), device=data.states.device)
    begins = (data.times[data.lengths.cumsum(0) - data.lengths] <= data.begin)[path]
    early = index - k < first if apart is None else data.times - k * apart < data.times[first]
    return begins & early


def pair_up(
    data: Trajectories, lag: Lag, history: int, spacing: Lag, *, pad: bool = False, quiet: bool = False
) -> Transitions:
    """The transitions of all paths; `spacing` is that of the history slots, if not the shortest lag.

    With `quiet`, none are no error, and paths too short for any are not mentioned: these are a part of the data.
    """
    lags = as_lags(lag)
    if history > int(data.lengths.max()) and not pad and not quiet:
        raise ValueError(_why_none(data, lag, history))
    path, first, last = _ends(data)
    index = torch.arange(len(data.states), device=data.states.device)
    apart = lags[0] if spacing is None else as_lags(spacing)[0]
    slots, complete = _slots(data, path, first, history, apart), torch.ones_like(index, dtype=torch.bool)
    for k in range(1, history):
        there = (slots[k] >= first) & (slots[k] < slots[k - 1])
        if pad:
            early = _before_the_start(data, path, first, apart, k) & ~there
            slots[k], there = torch.where(early, first, slots[k]), there | early
        complete &= there

    # The next state, for each lag; what a shorter lag paired already is left out
    found: list[tuple[Tensor, Tensor]] = []
    for each in lags:
        after = index + 1 if each is None else _snap(data.times, path, first, each, 1)
        valid = complete & (after <= last) & (after > index)
        if data.observed is not None:  # a pair without any feature observed at both ends teaches nothing
            ends = data.observed & data.observed[after.clamp(0, len(index) - 1)]
            valid &= ends.flatten(1).any(1)
        for taken, others in found:
            valid &= ~(taken & (others == after))
        found.append((valid, after))
    start = torch.cat([index[valid] for valid, _ in found])
    after = torch.cat([after[valid] for valid, after in found])
    if not len(start) and not quiet:
        raise ValueError(_why_none(data, lag, history))
    if not quiet:
        _warn_of_the_unused(data, path[start], lag, history, lags, found)
    dense = lags == (None,) and history == 1
    stacked = None if dense else torch.stack([s[start] for s in reversed(slots)] + [after], dim=1)
    several = isinstance(lag, Iterable)
    step = (
        float((data.times[after] - data.times[start])[: _first_count(found)].median())
        if several and len(start)
        else None
    )
    return Transitions(data, start, stacked, path[start], data.begin[path[start]], lags if several else lag, step)


def _warn_of_the_unused(
    data: Trajectories,
    paths: Tensor,
    lag: Lag,
    history: int,
    lags: tuple[float | None, ...],
    found: list[tuple[Tensor, Tensor]],
) -> None:
    """Of lags without a transition of their own, and of paths without any."""
    idle = [str(each) for each, (valid, _) in zip(lags, found) if not bool(valid.any())]
    if idle:
        warnings.warn(
            f"`lag`={', '.join(idle)} adds no transition to the other lags: too long or too short for these paths, or twice "
            "the same. Leave it out.",
            stacklevel=4,
        )
    unused = len(data) - len(torch.unique(paths))
    if unused:
        text = f"{unused} of {len(data)} paths are too short for {lag=} and {history=} and are not used."
        warnings.warn(text, stacklevel=4)


def _first_count(found: list[tuple[Tensor, Tensor]]) -> int:
    """Transitions of the shortest lag that has any: they come first."""
    return next((count for count in (int(valid.sum()) for valid, _ in found) if count), 0)


def _why_none(data: Trajectories, lag: Lag, history: int) -> str:
    """What to say where no transition is possible."""
    longest = float(data.durations.max())
    gaps = data.times.diff()
    within = torch.ones_like(gaps, dtype=torch.bool)
    within[data.lengths.cumsum(0)[:-1] - 1] = False
    gap = float(gaps[within].min())
    if all(each is not None and each < 0.7 * gap for each in as_lags(lag)):
        return f"`lag` is shorter than the time between observations. Got {lag=}, gaps from {gap:g}. Use None."
    rare = "" if data.observed is None else ", or observed at both ends of it,"
    return (
        f"No path is long enough{rare} for a transition with {lag=} and {history=}. The longest path lasts {longest:g} "
        f"with {int(data.lengths.max())} observations. Use a shorter lag or history."
    )


def _snap(times: Tensor, path: Tensor, first: Tensor, lag: float, shift: int, *, near: bool = True) -> Tensor:
    """The observation of the same path nearest to `shift` lags later, -1 where none is `near` or the path has ended.

    Near is half a lag for the next state, whose true dt is known, and a quarter for older slots, whose place is not.
    """
    since = times - times[first]
    span = float(since.max()) + 2 * abs(shift) * lag + 1.0
    line = since + span * path  # one increasing line for all paths
    want = line + shift * lag
    right = torch.searchsorted(line, want).clamp(max=len(line) - 1)
    left = (right - 1).clamp(min=0)
    found = torch.where((want - line[left]).abs() <= (line[right] - want).abs(), left, right)
    miss = path[found] != path
    if near:
        miss |= (line[found] - want).abs() > (0.5 if shift > 0 else 0.25) * lag
    return torch.where(miss, torch.full_like(found, -1), found)
