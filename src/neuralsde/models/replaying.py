"""Calls of a module that may have come before: what their operations depend on, and its weights as they are by then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from neuralsde.core.memo import hold
from neuralsde.models.evaluation import with_weights
from neuralsde.nets.backbone import is_plain
from neuralsde.solvers.replay import Recordings, Replayed

M = TypeVar("M", bound=nn.Module)


class Parts:
    """The modules in a module, and the weights and buffers of all of them; the module itself is not held."""

    def __init__(self, owner: nn.Module) -> None:
        self.modules: list[nn.Module] = []
        self.weights: list[Tensor] = []
        self.buffers: list[Tensor] = []
        self._places: list[dict[str, Any]] = []
        self._find(owner)
        for module in self.modules:  # it grows meanwhile
            self._find(module)
        self._found = self._held()

    def _find(self, module: nn.Module) -> None:
        every: Any = (
            (module._modules, self.modules),
            (module._parameters, self.weights),
            (module._buffers, self.buffers),
        )
        for place, found in every:
            found += [each for each in place.values() if each is not None]
            self._places.append(place)

    def _held(self) -> list[int]:
        return [*map(id, chain.from_iterable(map(dict.values, self._places)))]

    def are_those_of(self, owner: nn.Module) -> bool:
        """Whether it still has them all: to look takes a tenth of the time in which they are found."""
        return self._places[0] is owner._modules and self._held() == self._found


def replayer(
    owner: M,
    recordings: Recordings,
    what: Hashable,
    make: Callable[[M, Counter[str]], Callable[..., Tensor]],
    device: torch.device,
) -> Callable[..., Replayed | None]:
    """`make(owner, passes)`, a call on tensors, by a recording; it gives None where the call is to be made as it is.

    `what` names all that the call depends on, but for the numbers in its tensors and for the owner, which may change.
    """
    parts = recordings.parts
    if parts is None or not parts.are_those_of(owner):
        parts = recordings.parts = Parts(owner)
    modules, weights, buffers = parts.modules, parts.weights, parts.buffers
    if not (is_plain(owner) and all(map(is_plain, modules))):
        return lambda *given: None
    lower = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
    modes = (torch.is_inference_mode_enabled(), torch.get_float32_matmul_precision(), lower)
    made_of = tuple((buffer.data_ptr(), buffer._version) for buffer in buffers)
    if device.type == "cuda":  # a graph knows where weights are, a trace is given them
        stream = torch.cuda.current_stream(device).cuda_stream
        key: Hashable = (what, modes, stream, made_of, tuple(weight.data_ptr() for weight in weights))
        return lambda *given: recordings.replay(key, partial(make, owner), given, device)

    def traced(passes: Counter[str]) -> Callable[..., Tensor]:
        def call(*own: Tensor) -> Tensor:
            num = len(own) - len(weights)
            hold((modules, weights, buffers))  # their places are parts of the key: they must not become another's
            return make(with_weights(owner, {id(old): new for old, new in zip(weights, own[num:])}), passes)(*own[:num])

        return call

    key = (what, modes, made_of, tuple(map(id, modules)), tuple(map(id, weights)))
    return lambda *given: recordings.replay(key, traced, (*given, *weights), device)
