"""Values made from tensors, and kept until one of those changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_HERE = threading.local()


@contextmanager
def holding() -> Iterator[list[Any]]:
    """What `hold` is given meanwhile: a CUDA graph knows addresses alone, and needs what lies there for as long as it lives."""
    held = _HERE.held = []
    try:
        yield held
    finally:
        del _HERE.held


def recording() -> bool:
    """Whether a call is being recorded: the operations on its tensors alone will come again."""
    return getattr(_HERE, "held", None) is not None


def hold(value: T) -> T:
    """The value, which lives on with the graph that is being recorded, if one is."""
    held = getattr(_HERE, "held", None)
    if held is not None:
        held.append(value)
    return value


class Memo(Generic[T]):
    """Keeps one value; a tensor counts as changed when it is written to, or when another takes its place."""

    def __init__(self) -> None:
        self._kept: tuple[list[Tensor], tuple[Any, ...], T] | None = None

    def get(self, tensors: Sequence[Tensor], make: Callable[[], T], *settings: Hashable) -> T:
        """`make()` of these tensors and settings, or what it gave last time.

        What was made in inference mode cannot be trained through, and so serves only there. While a graph is exported,
        tensors are stand-ins without numbers: what was made before counts.
        """
        if torch.compiler.is_exporting() and self._kept is not None and self._kept[1][0] == settings:
            return self._kept[2]
        state = (settings, torch.is_inference_mode_enabled(), *[t._version for t in tensors])
        kept = self._kept
        if kept is None or kept[1] != state or not all(map(is_, kept[0], tensors)):
            kept = self._kept = (list(tensors), state, make())
        return hold(kept[2])
