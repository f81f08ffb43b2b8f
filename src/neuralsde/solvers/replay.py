"""Faster on a GPU: kernels are recorded once as a CUDA graph and replayed, the same kernels without launching each.

Small nets keep a GPU waiting for the host. What changes from call to call lives in tensors that are overwritten in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor


def aside(call: Callable[[], Tensor]) -> Tensor:
    """On a stream of its own, as a recording will be."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        values = call()
    torch.cuda.current_stream().wait_stream(stream)
    return values


class Recorded:
    """`call(*given)`, recorded when it is first called; its result is overwritten by the next call.

    What libraries set up when they are first used cannot be recorded: something like `call` has to run before. A call that
    cannot be recorded says why in `reason`, and runs as it is. What `call` adds to `passes` is added by every replay.
    """

    def __init__(self, call: Callable[..., Tensor], passes: Counter[str] | None = None) -> None:
        self.call, self.reason = call, ""
        self.passes, self.each = Counter[str]() if passes is None else passes, Counter[str]()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.held: tuple[Tensor, ...] = ()
        self.result: Tensor | None = None

    def __call__(self, *given: Tensor) -> Tensor:
        if self.graph is None and not self.reason:
            self._record(given)
        if self.graph is None or self.result is None:
            return self.call(*given)
        for place, value in zip(self.held, given):
            place.copy_(value)
        self.graph.replay()
        self.passes.update(self.each)
        return self.result

    def _record(self, given: tuple[Tensor, ...]) -> None:
        self.held, graph, before = tuple(value.clone() for value in given), torch.cuda.CUDAGraph(), Counter(self.passes)
        try:
            with torch.cuda.graph(graph):
                self.result = self.call(*self.held)
        except RuntimeError as error:
            self.reason = str(error).splitlines()[0]
            torch.cuda.synchronize()
        else:
            self.graph = graph
        finally:
            self.each = self.passes - before
            self.passes.subtract(self.each)
