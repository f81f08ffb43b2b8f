"""Faster roll-outs on a GPU: a step is recorded once as a CUDA graph and replayed, the same kernels without launching each.

Small nets keep a GPU waiting for the host. What changes from step to step (states, times, noise) lives in tensors that are
overwritten in between. A step that cannot be recorded is taken as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from neuralsde.solvers.integrate import Step

WARM_UP = 2  # steps before the recording, in which libraries set up their memory
ENOUGH = 32  # steps of a roll-out from which on a recording pays


def aside(call: Callable[[], Tensor]) -> Tensor:
    """On a stream of its own, as a recording will be."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        values = call()
    torch.cuda.current_stream().wait_stream(stream)
    return values


class Replay:
    """`advance`, recorded after a few steps; `passes` go on counting."""

    def __init__(self, advance: Callable[[Step], Tensor], passes: Counter[str]) -> None:
        self.advance, self.passes = advance, passes
        self.seen, self.gave_up = 0, False
        self.graph: torch.cuda.CUDAGraph | None = None
        self.held: Step | None = None
        self.moved: Tensor | None = None
        self.each: Counter[str] = Counter()

    def __call__(self, step: Step) -> Tensor:
        self.seen += 1
        if self.gave_up:
            return self.advance(step)
        if self.seen <= WARM_UP:
            return aside(lambda: self.advance(step))
        if self.graph is None and not self._record(step):
            return self.advance(step)
        assert self.held is not None and self.graph is not None and self.moved is not None
        for name in ("x", "time", "dt", "z", "dw"):
            getattr(self.held, name).copy_(getattr(step, name))
        self.graph.replay()
        self.passes.update(self.each)
        return self.moved

    def _record(self, step: Step) -> bool:
        held = {name: getattr(step, name).clone() for name in ("x", "time", "dt", "z", "dw")}
        self.held, graph, before = replace(step, **held), torch.cuda.CUDAGraph(), Counter(self.passes)
        try:
            with torch.cuda.graph(graph):
                self.moved = self.advance(self.held)
        except RuntimeError:
            self.gave_up = True
            torch.cuda.synchronize()
            return False
        finally:
            self.each = self.passes - before
            self.passes.subtract(self.each)
        self.graph = graph
        return True
