"""Faster on a GPU: kernels are recorded once as a CUDA graph and replayed, the same kernels without launching each.

Small nets keep a GPU waiting for the host. What changes from call to call lives in tensors that are overwritten in between.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neuralsde.core.memo import holding

KEPT = 8  # recordings of one model


def aside(call: Callable[[], Tensor]) -> Tensor:
    """On a stream of its own, as a recording will be."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        values = call()
    torch.cuda.current_stream().wait_stream(stream)
    return values


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage is collected meanwhile: a graph that goes away would disturb the one that is being recorded."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Recorded:
    """`call(*given)`, recorded when it is first called; its result is overwritten by the next call.

    What libraries set up when they are first used cannot be recorded: something like `call` has to run before. A call that
    cannot be recorded says why in `reason`, and runs as it is. What `call` adds to `passes` is added by every replay.
    """

    def __init__(self, call: Callable[..., Tensor], passes: Counter[str] | None = None) -> None:
        self.call: Callable[..., Tensor] | None = call  # not needed once it is recorded, and it may hold a whole model
        self.reason = ""
        self.passes, self.each = Counter[str]() if passes is None else passes, Counter[str]()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.places: tuple[Tensor, ...] = ()
        self.held: list[Any] = []
        self.result: Tensor | None = None

    def __call__(self, *given: Tensor) -> Tensor:
        if self.call is not None and not self.reason:
            self._record(self.call, given)
        if self.call is not None:
            return self.call(*given)
        assert self.graph is not None and self.result is not None
        for place, value in zip(self.places, given):
            place.copy_(value)
        self.graph.replay()
        self.passes.update(self.each)
        return self.result

    def _record(self, call: Callable[..., Tensor], given: tuple[Tensor, ...]) -> None:
        self.places, before = tuple(value.clone() for value in given), Counter(self.passes)
        graph = torch.cuda.CUDAGraph()
        try:
            with holding() as self.held, _no_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.result = call(*self.places)
        except RuntimeError as error:
            self.reason = str(error).splitlines()[0]
            torch.cuda.synchronize()
        else:
            self.graph, self.call = graph, None
        finally:
            self.each = self.passes - before
            self.passes.subtract(self.each)


@dataclass(frozen=True)
class Replayed:
    """What a recording gave, and the network passes in it."""

    result: Tensor
    passes: Counter[str]


class Recordings:
    """Recordings of calls that come again, by what their kernels depend on; the last few are kept.

    A call is recorded when it comes for the second time. Copies and pickles of its owner begin with none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the tensors of a recording are one call's at a time
        self._kept: OrderedDict[Hashable, Recorded | None] = OrderedDict()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return (Recordings, ())

    def replay(self, key: Hashable, call: Callable[..., Tensor], given: tuple[Tensor, ...]) -> Replayed | None:
        """What `call(passes, *given)` gives; None where it is to be called as it is."""
        with self._lock:
            known = key in self._kept
            recorded = self._kept.pop(key, None)
            if known and recorded is None:
                passes = Counter[str]()
                recorded = Recorded(partial(call, passes), passes)
            self._kept[key] = recorded
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            if recorded is None or recorded.reason:
                return None
            result = recorded(*given).clone()
            if recorded.reason:
                warnings.warn(
                    f"Paths are drawn step by step: no CUDA graph can be recorded ({recorded.reason}).", stacklevel=5
                )
            return Replayed(result, recorded.each)
