"""Recorded episodes on disk, opened but not yet read: what all their readers share."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, eq=False)
class Recording:
    """What a data set holds, and how to get it."""

    where: Path  # the file or folder
    lengths: np.ndarray  # (E,) rows of each episode
    names: tuple[str, ...]  # all arrays that can be read
    default: tuple[str, ...]  # of these the ones to learn from: numbers, neither counters nor stamps
    closed: dict[str, str]  # what is there and cannot be read, and why
    stamps: str | None  # the array with the time of each row in seconds, where there is one
    read: Callable[[Sequence[str], Sequence[int]], dict[str, np.ndarray]]
    """The rows of these arrays in these episodes, in this order."""

    def check(self, name: str, argument: str) -> None:
        """Refuse a name that is not there or cannot be read."""
        if name in self.closed:
            raise ValueError(f"{self.where}: {name!r} is {self.closed[name]} It has {', '.join(self.names)}.")
        if name not in self.names:
            near = difflib.get_close_matches(name, self.names, 1, 0.5)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            has = ", ".join(self.names) or "nothing that can be read"
            raise ValueError(f"{self.where} has no {name!r}. {hint}It has {has}; name one by `{argument}`.")


def lengths_from_ends(ends: np.ndarray, where: Path) -> np.ndarray:
    """Rows of each episode, from the row after the last of each."""
    if ends.ndim != 1 or ends.dtype.kind not in "iu":
        raise ValueError(
            f"{where}: `episode_ends` must be a list of whole numbers, the row after the last of each episode. "
            f"Got {ends.dtype} of shape {ends.shape}."
        )
    if not len(ends):
        raise ValueError(f"{where} holds no episodes. Record some, or look for another file.")
    lengths = np.diff(ends.astype(np.int64), prepend=0)
    if lengths.min() < 1:
        k = int(np.argmax(lengths < 1))
        raise ValueError(
            f"{where}: `episode_ends` must increase, from 1 on. Got {ends[k]} for episode {k}"
            f"{f' after {ends[k - 1]}' if k else ''}."
        )
    return lengths
