"""Calls of a module that may have come before: what their operations depend on, and its weights as they are by then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from neuralsde.core.memo import hold
from neuralsde.models.evaluation import with_weights
from neuralsde.nets.backbone import is_plain
from neuralsde.solvers.replay import Recordings, Replayed

M = TypeVar("M", bound=nn.Module)


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
    modules: list[nn.Module] = [owner]
    weights: list[Tensor] = []
    buffers: list[Tensor] = []
    for module in modules:  # it grows meanwhile; `modules()` and its like take longer than a short roll-out
        if not is_plain(module):
            return lambda *given: None
        modules += [child for child in module._modules.values() if child is not None]
        weights += [weight for weight in module._parameters.values() if weight is not None]
        buffers += [buffer for buffer in module._buffers.values() if buffer is not None]
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
            hold((modules[1:], weights, buffers))  # their places are parts of the key: they must not become another's
            return make(with_weights(owner, {id(old): new for old, new in zip(weights, own[num:])}), passes)(*own[:num])

        return call

    key = (what, modes, made_of, tuple(map(id, modules)), tuple(map(id, weights)))
    return lambda *given: recordings.replay(key, traced, (*given, *weights), device)
