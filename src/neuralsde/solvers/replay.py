"""Calls that come again, without the Python in them: as a CUDA graph on a GPU, as a trace on a CPU.

Small nets take less time than it takes to launch them. Of a CUDA graph, what changes from call to call lives in tensors that are
overwritten in between. A trace takes it as arguments.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from neuralsde.core.memo import holding

KEPT = 8  # recordings of one model
_MAKING = (
    threading.Lock()
)  # one at a time: graphs are recorded, and what is to be warned of is settled, for the whole process


@lru_cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """That on which graphs of a device are recorded."""
    return torch.cuda.Stream(device)


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


@contextmanager
def _own_casts() -> Iterator[None]:
    """Autocast keeps weights in lower precision: a graph makes its own, and nothing else may use those of a graph."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


class Recorded:
    """On a GPU: `call(*given)`, recorded when it is first called; its result is overwritten by the next call.

    Tensors may be given where they are, and are copied to the device of the call (None: theirs). What libraries set up when
    they are first used cannot be recorded: something like `call` has to run before. A call that cannot be recorded says why in
    `reason`, and runs as it is. What `call` adds to `passes` is added by every replay.
    """

    name: ClassVar[str] = "CUDA graph"
    after: ClassVar[int] = 1  # calls alike
    shared: ClassVar[bool] = False

    def __init__(
        self, call: Callable[..., Tensor], passes: Counter[str] | None = None, device: torch.device | None = None
    ) -> None:
        self.device = device
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
            return self.call(*(value.to(self.device) for value in given))
        assert self.graph is not None and self.result is not None
        for place, value in zip(self.places, given):
            place.copy_(value, non_blocking=True)  # what is not pinned is staged before this returns
        self.graph.replay()
        self.passes.update(self.each)
        return self.result

    def _record(self, call: Callable[..., Tensor], given: tuple[Tensor, ...]) -> None:
        self.places, before = tuple(value.to(self.device, copy=True) for value in given), Counter(self.passes)
        device = self.places[0].device
        with _MAKING, torch.cuda.device(device), _own_casts():
            graph = torch.cuda.CUDAGraph()
            recorder = torch.cuda.graph(graph, stream=_stream(device), capture_error_mode="thread_local")
            try:
                with holding() as self.held, _no_collection(), recorder:
                    self.result = call(*self.places)
            except (RuntimeError, ValueError) as error:
                self.reason = str(error).splitlines()[0]
                torch.cuda.synchronize()
            else:
                self.graph, self.call = graph, None
            finally:
                self.each = self.passes - before
                self.passes.subtract(self.each)


class _Unseen(TorchFunctionMode):
    """Python may not look at numbers made of those that are given: what it then does would be fixed in a trace."""

    looks: ClassVar[set[Any]] = {torch.equal, torch.allclose, torch.is_nonzero} | {
        getattr(Tensor, name)
        for name in (
            "__bool__",
            "__float__",
            "__index__",
            "__int__",
            "allclose",
            "equal",
            "is_nonzero",
            "item",
            "numpy",
            "tolist",
        )
    }

    def __init__(self, given: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.made = {id(x): x for x in given}  # held, so that no other tensor takes its place

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(id(x) in self.made for x in tree_leaves((args, kwargs))):
            if func in self.looks:
                raise RuntimeError(f"it depends on the numbers, by {func.__name__}")
            written = args[:1] if func is Tensor.__setitem__ else ()
            self.made |= {id(x): x for x in tree_leaves((result, written)) if isinstance(x, Tensor)}
        return result


class Traced:
    """On a CPU: `call(*given)`, traced when it is first called: the same operations one after the other.

    What is not an operation on tensors is not in a trace: it would be as it was. A call in which Python looks at numbers is not
    traced, and the second call makes both: the trace is used from then on if it gives the same bits. If not, `reason` says so,
    and the call runs as it is.
    """

    name: ClassVar[str] = "trace"
    after: ClassVar[int] = 16  # a trace takes as long as some fifty calls

    def __init__(self, call: Callable[..., Tensor], passes: Counter[str], device: torch.device) -> None:
        self.call: Callable[..., Tensor] | None = call
        self.passes, self.each = passes, Counter[str]()
        self.reason = ""
        self.trace: Any = None
        self.held: list[Any] = []

    @property
    def shared(self) -> bool:
        """Whether several threads may call it at the same time."""
        return self.call is None

    def __call__(self, *given: Tensor) -> Tensor:
        if self.call is None:
            return self._traced(given)
        self.passes.clear()
        result = self.call(*given)
        self.each = Counter(self.passes)
        if self.trace is None:
            self._trace(self.call, given)
        elif torch.equal(result, self._traced(given)):
            self.call = None
        else:
            self.reason = "a trace gives other numbers"
        return result

    def _trace(self, call: Callable[..., Tensor], given: tuple[Tensor, ...]) -> None:
        try:
            with _MAKING, holding() as self.held, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with _Unseen(given):
                    call(*given)
                # A function of `torch.jit.trace` would never be freed
                graph = torch.jit._get_trace_graph(lambda *own: call(*own), given, _force_outplace=False)[0]
                self.trace = torch._C._create_function_from_graph("call", _simplified(graph))
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            self.reason = str(error).splitlines()[0]

    def _traced(self, given: tuple[Tensor, ...]) -> Tensor:
        with torch.jit.optimized_execution(False):
            return self.trace(*given)


def _simplified(graph: Any) -> Any:
    """The graph without what is known or worked out twice: sizes, casts that change nothing."""
    for _ in range(2):
        torch._C._jit_pass_constant_propagation(graph)
        torch._C._jit_pass_cse(graph)
        torch._C._jit_pass_peephole(graph, False)
    torch._C._jit_pass_dce(graph)
    return graph


READY = Traced.after + 3
"""Calls alike after which nothing more is prepared."""


@dataclass(frozen=True)
class Replayed:
    """What a recording gave, and the network passes in it."""

    result: Tensor
    passes: Counter[str]


class Recordings:
    """Recordings of calls that come again, by what their kernels depend on; the last few are kept.

    On a GPU a call is recorded when it comes for the second time, on a CPU when it has come sixteen times. Copies and pickles
    of their owner begin with none.
    """

    def __init__(self) -> None:
        self.parts: Any = None
        """What the owner was last made of, for those who look whether it has changed."""
        self._lock = threading.Lock()  # the tensors of a CUDA graph are one call's at a time
        self._kept: OrderedDict[Hashable, Recorded | Traced | int] = OrderedDict()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return (Recordings, ())

    def replay(
        self,
        key: Hashable,
        make: Callable[[Counter[str]], Callable[..., Tensor]],
        given: tuple[Tensor, ...],
        device: torch.device,
    ) -> Replayed | None:
        """What `make(passes)(*given)` gives on the device; None where it is to be called as it is."""
        kind = Recorded if device.type == "cuda" else Traced
        with self._lock:
            recorded = self._kept.pop(key, 0)
            if isinstance(recorded, int):
                passes = Counter[str]()
                recorded = recorded + 1 if recorded < kind.after else kind(make(passes), passes, device)
            self._kept[key] = recorded
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            if isinstance(recorded, int) or recorded.reason:
                return None
            if not recorded.shared:
                result = recorded(*given).clone()
                if recorded.reason:
                    what = f"no {kind.name} can be made of it ({recorded.reason})"
                    warnings.warn(f"A roll-out is drawn step by step, which is slower: {what}.", stacklevel=5)
                    return None if kind is Recorded else Replayed(result, recorded.each)
                return Replayed(result, recorded.each)
        return Replayed(recorded(*given), recorded.each)
