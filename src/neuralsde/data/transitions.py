"""Pairs of states to learn from.

A transition goes from an observation to the next one, or, with a *lag*, to the observation nearest to that much
physical time later, with its true dt. Several lags give the union of their transitions, each pair of observations
once. Lagged transitions overlap: train on them, but never add up their likelihoods.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from jaxtyping import Int
from torch import Tensor

from neuralsde.data.transition import Transition
from neuralsde.solvers.noise import Noise

Lag = float | Sequence[float | None] | None
"""Physical time between the states of a transition, or several such times; None: consecutive observations."""

MAX_CONTEXT_ELEMENTS = 2**26
"""Numbers in the contexts of transitions for statistics: bounds their memory (256 MiB in float32)."""
ENOUGH_WHOLE = 0.2
"""Share of transitions from states without a gap from which on the others are not learned from."""


class Paths(Protocol):
    """What is asked of observed paths; `Trajectories` are such."""

    states: Tensor
    times: Tensor
    lengths: Tensor
    begin: Tensor
    observed: Tensor | None

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def context_size(self) -> int: ...
    @property
    def durations(self) -> Tensor: ...
    def __len__(self) -> int: ...
    def context_at(self, rows: Tensor) -> Tensor | None: ...
    def to(self, device: torch.device | str) -> Paths: ...


class Transitions:
    """An indexed set of transitions on the device of its paths."""

    def __init__(
        self,
        data: Paths,
        start: Tensor,
        stacked: Tensor | None,
        path: Tensor,
        origin: Tensor,
        lag: Lag = None,
        step: float | None = None,
    ) -> None:
        self.data = data
        self.lag = lag
        self.start = start
        self.stacked = stacked
        """Rows of the history slots, oldest first, and of the next state; None for consecutive pairs without history."""
        self.path = path
        self.origin = origin
        self.step = step
        """With several lags, the typical dt of the shortest: slots are that far apart and samplers step by it."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def history(self) -> int:
        """Slots of the state."""
        return 1 if self.stacked is None else self.stacked.shape[1] - 1

    def to(self, device: torch.device | str) -> Transitions:
        """The same transitions on another device."""
        stacked = None if self.stacked is None else self.stacked.to(device)
        start, path, origin = (t.to(device) for t in (self.start, self.path, self.origin))
        return Transitions(self.data.to(device), start, stacked, path, origin, self.lag, self.step)

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

    def at_most(self, num: int) -> Transitions:
        """`num` of them, evenly spread, or all."""
        return self._chosen(self._spread_rows(min(num, len(self))))

    def to_learn_from(self) -> Transitions:
        """Those from states of which every entry was observed, if they are enough, else all.

        A net that reads filled entries learns a blurred drift, and their errors as noise.
        """
        if self.data.observed is None:
            return self
        slots = self.start[:, None] if self.stacked is None else self.stacked[:, :-1]
        whole = self.data.observed[slots].flatten(1).all(1)
        return self._chosen(whole.nonzero()[:, 0]) if float(whole.float().mean()) >= ENOUGH_WHOLE else self

    def _chosen(self, rows: Int[Tensor, " N"]) -> Transitions:
        stacked = None if self.stacked is None else self.stacked[rows]
        start, path, origin = (t[rows] for t in (self.start, self.path, self.origin))
        return Transitions(self.data, start, stacked, path, origin, self.lag, self.step)

    def spread(self, num: int, *, context: bool = True) -> Transition:
        """At most `num` transitions, evenly spread over the set: for statistics of the data.

        Contexts as wide as images are there for fewer of them, or with `context=False` for none.
        """
        num = min(num, len(self))
        if context and self.data.context_size:
            num = min(num, max(1, MAX_CONTEXT_ELEMENTS // self.data.context_size))
        return self._at(self._spread_rows(num), context=context)

    def _spread_rows(self, num: int) -> Int[Tensor, " num"]:
        return torch.arange(num, device=self.start.device) * len(self) // num


def as_lags(lag: Lag) -> tuple[float | None, ...]:
    """The lags one by one, each once, the shortest first."""
    lags = {None if each is None else float(each) for each in (lag if isinstance(lag, Iterable) else (lag,))}
    if not lags or not all(each is None or 0 < each < math.inf for each in lags):
        raise ValueError(f"`lag` must be positive and finite. Got {lag=}. None pairs consecutive observations.")
    return tuple(sorted(lags, key=lambda each: each or 0.0))


def pair_up(data: Paths, lag: Lag, history: int, spacing: Lag) -> Transitions:
    """The transitions of all paths; `spacing` is that of the history slots, if not the shortest lag."""
    lags = as_lags(lag)
    if history < 1:
        raise ValueError(f"`history` must be at least 1. Got {history=}.")
    lengths, device = data.lengths, data.states.device
    path = torch.repeat_interleave(torch.arange(len(data), device=device), lengths)
    first = (lengths.cumsum(0) - lengths)[path]
    last = first + lengths[path] - 1
    index = torch.arange(len(data.states), device=device)

    # Slots of the state, newest first
    apart = lags[0] if spacing is None else as_lags(spacing)[0]
    slots = [index] + [
        index - k if apart is None else _snap(data.times, path, first, apart, -k) for k in range(1, history)
    ]
    complete = torch.ones_like(index, dtype=torch.bool)
    for newer, older in itertools.pairwise(slots):
        complete &= (older >= first) & (older < newer)

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
    if not len(start):
        raise ValueError(_why_none(data, lag, history))
    idle = [str(each) for each, (valid, _) in zip(lags, found) if not bool(valid.any())]
    if idle:
        warnings.warn(
            f"`lag`={', '.join(idle)} adds no transition to the other lags: too long or too short for these paths, or twice "
            "the same. Leave it out.",
            stacklevel=3,
        )
    unused = len(data) - len(torch.unique(path[start]))
    if unused:
        warnings.warn(
            f"{unused} of {len(data)} paths are too short for {lag=} and {history=} and are not used.", stacklevel=3
        )
    dense = lags == (None,) and history == 1
    stacked = None if dense else torch.stack([s[start] for s in reversed(slots)] + [after], dim=1)
    several = isinstance(lag, Iterable)
    step = float((data.times[after] - data.times[start])[: _first_count(found)].median()) if several else None
    return Transitions(data, start, stacked, path[start], data.begin[path[start]], lags if several else lag, step)


def _first_count(found: list[tuple[Tensor, Tensor]]) -> int:
    """Transitions of the shortest lag that has any: they come first."""
    return next(count for count in (int(valid.sum()) for valid, _ in found) if count)


def _why_none(data: Paths, lag: Lag, history: int) -> str:
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


def _snap(times: Tensor, path: Tensor, first: Tensor, lag: float, shift: int) -> Tensor:
    """The observation of the same path nearest to `shift` lags later, -1 where none is near.

    Near is half a lag for the next state, whose true dt is known, and a quarter for older slots, whose place is not.
    """
    since = times - times[first]
    span = float(since.max()) + 2 * abs(shift) * lag + 1.0
    line = since + span * path  # one increasing line for all paths
    want = line + shift * lag
    right = torch.searchsorted(line, want).clamp(max=len(line) - 1)
    left = (right - 1).clamp(min=0)
    near = torch.where((want - line[left]).abs() <= (line[right] - want).abs(), left, right)
    miss = (path[near] != path) | ((line[near] - want).abs() > (0.5 if shift > 0 else 0.25) * lag)
    return torch.where(miss, torch.full_like(near, -1), near)
