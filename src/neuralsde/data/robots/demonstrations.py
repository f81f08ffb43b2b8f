"""Recorded episodes of observations and actions, and the paths that a policy learns from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuralsde.core.doors import Positive, door
from neuralsde.data.arrays import as_array


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """Episodes, end to end: row k of every array is one instant. Build it with `from_arrays`, which checks."""

    observations: dict[str, np.ndarray]
    """By name, (L, *shape) each: numbers as float32, images as uint8."""
    actions: np.ndarray
    """(L, A) float32: what was done at that instant."""
    times: np.ndarray
    """(L,) seconds since the start of the episode, float64."""
    lengths: np.ndarray
    """(E,) rows of each episode."""

    @classmethod
    @door
    def from_arrays(
        cls, observations: Any, actions: Any, lengths: Any, *, times: Any = None, dt: Positive | None = None
    ) -> Demonstrations:
        """Check and convert; without `times` instants are `dt` apart (default 1)."""
        if not isinstance(observations, Mapping):
            raise ValueError(f"`observations` must be arrays by name: {{'state': …}}. Got {type(observations)}.")
        done = _numbers("actions", actions)
        if done.ndim != 2 or not len(done):
            raise ValueError(f"`actions` must have shape (L, A) with L >= 1. Got {done.shape}.")
        ends = as_array(lengths, "lengths")
        if ends.ndim != 1 or ends.dtype.kind not in "iu" or not len(ends):
            raise ValueError(f"`lengths` must be a row of whole numbers. Got {ends.dtype} of shape {ends.shape}.")
        if ends.min() < 1 or ends.max() > len(done) or ends.sum() != len(done):
            raise ValueError(
                f"`lengths` must be positive and make {len(done)} rows. Got {len(ends)}, in all {ends.sum()}."
            )
        ends = ends.astype(np.int64)
        if not observations:
            raise ValueError("`observations` must hold at least one array. Got none.")
        seen = {name: _numbers(name, value) for name, value in observations.items()}
        for name, value in seen.items():
            if not value.ndim or len(value) != len(done):
                raise ValueError(
                    f"The observation {name!r} needs one row per action, {len(done)}. Got shape {value.shape}."
                )
        if times is None:
            stamps = np.concatenate([np.arange(n) for n in ends]) * (1.0 if dt is None else dt)
        else:
            stamps = as_array(times, "times").astype(np.float64)
            if stamps.shape != (len(done),):
                raise ValueError(f"`times` must have shape {(len(done),)}. Got {stamps.shape}.")
        first = ends.cumsum() - ends
        stamps = stamps - np.repeat(stamps[first], ends)
        inside = np.ones(len(stamps) - 1, bool)
        inside[first[1:] - 1] = False
        bad = inside & ~(np.diff(stamps) > 0)
        if bad.any():
            row = int(bad.argmax()) + 1
            raise ValueError(
                f"`times` must increase within an episode. Got {stamps[row]:g} after {stamps[row - 1]:g} in row {row}."
            )
        return cls(seen, done, stamps.astype(np.float64), ends)

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.lengths)

    @property
    def starts(self) -> np.ndarray:
        """First row of each episode."""
        return self.lengths.cumsum() - self.lengths

    @property
    def step(self) -> float:
        """Typical time between instants."""
        gaps = np.diff(self.times)
        return float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1.0

    @door
    def take(self, episodes: Sequence[int]) -> Demonstrations:
        """Only these episodes, in this order."""
        if not len(episodes) or not all(0 <= e < len(self) for e in episodes):
            raise ValueError(f"`episodes` must name some of the {len(self)} episodes. Got {list(episodes)[:8]}.")
        rows = np.concatenate([np.arange(self.starts[e], self.starts[e] + self.lengths[e]) for e in episodes])
        seen = {name: value[rows] for name, value in self.observations.items()}
        return Demonstrations(seen, self.actions[rows], self.times[rows], self.lengths[np.asarray(episodes)])

    def with_more(self, others: Demonstrations) -> Demonstrations:
        """These episodes and then the others, of the same observations and actions."""
        if sorted(self.observations) != sorted(others.observations):
            raise ValueError(f"Observations differ: {sorted(self.observations)} and {sorted(others.observations)}.")
        seen = {name: np.concatenate([value, others.observations[name]]) for name, value in self.observations.items()}
        parts = ((getattr(self, name), getattr(others, name)) for name in ("actions", "times", "lengths"))
        return Demonstrations(seen, *(np.concatenate(pair) for pair in parts))

    def rows_around(self, before: int, after: int) -> np.ndarray:
        """(L, before + after): the rows before each instant, its own and later ones, held within the episode."""
        first = np.repeat(self.starts, self.lengths)[:, None]
        last = first + np.repeat(self.lengths, self.lengths)[:, None] - 1
        offsets = np.arange(-before, after)[None]
        return np.clip(np.arange(len(self.actions))[:, None] + offsets, first, last)


def _numbers(name: str, value: Any) -> np.ndarray:
    array = as_array(value, name)
    if array.dtype == np.uint8:
        return array
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused
        array = array.astype(np.float32)
    bad = ~np.isfinite(array)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"`{name}` must be finite. Got {name}{list(place)}={array[place]}. Drop or mend that episode.")
    return array
