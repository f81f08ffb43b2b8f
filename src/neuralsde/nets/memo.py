"""Values made from tensors, and kept until one of those changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import is_
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Memo(Generic[T]):
    """Keeps one value; a tensor counts as changed when it is written to, or when another takes its place."""

    def __init__(self) -> None:
        self._kept: tuple[list[Tensor], Hashable, T] | None = None

    def get(self, tensors: Sequence[Tensor], make: Callable[[], T], *settings: Hashable) -> T:
        """`make()` of these tensors and settings, or what it gave last time.

        What was made in inference mode cannot be trained through, and so serves only there.
        """
        state = (settings, torch.is_inference_mode_enabled(), *[t._version for t in tensors])
        kept = self._kept
        if kept is None or kept[1] != state or not all(map(is_, kept[0], tensors)):
            kept = self._kept = (list(tensors), state, make())
        return kept[2]
