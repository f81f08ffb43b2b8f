"""Faster training steps: compiled layers, and CUDA graphs, which give the same numbers without launching hundreds of small
kernels one by one.

Small nets keep a GPU waiting for the host. A graph records the kernels of one step and replays them with a single launch;
what changes from step to step (the keys of the noise, the learning rate) lives in tensors that are overwritten in between;
the generator of dropout is seeded before each replay, as before each step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from neuralsde.models.sequence import SequenceModel
from neuralsde.solvers.noise import Noise
from neuralsde.solvers.replay import Recorded, aside
from neuralsde.training.config import RunOptions

WARM_UP = 3  # steps before the recording, in which libraries and the optimiser set up their memory
PAYS = 2e16  # operations of a training, on an H200 some three minutes, from which on it is shorter with compiled layers


def can_capture(model: SequenceModel, options: RunOptions, device: torch.device, num_processes: int) -> bool:
    """Whether a step is the same kernels every time: one GPU, no nets we do not know."""
    plain = options.graph and not model.own_nets and model.same_kernels
    return device.type == "cuda" and num_processes == 1 and plain


def repeated_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of which nets have many alike."""
    return [module for module in model.modules() if getattr(module, "repeated", False)]


def operations(call: Callable[[], object]) -> int:
    """Of the products in a call."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


@contextmanager
def compiled_layers(model: SequenceModel, rehearse: Callable[[], object] | None) -> Iterator[None]:
    """The layers of which nets have many, compiled for a while; weights and their names stay as they are.

    `rehearse` calls them, so that a compiler that does not work here is noticed before the training; None compiles nothing.
    """
    layers = repeated_layers(model) if rehearse is not None else []
    try:
        for layer in layers:
            layer.compile()
        if layers and rehearse is not None:
            try:
                rehearse()
            except Exception as error:  # of many kinds
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                warnings.warn(f"Layers cannot be compiled here ({reason}): training goes on without.", stacklevel=6)
                _as_they_were(layers)
        yield
    finally:
        _as_they_were(layers)


def _as_they_were(layers: list[torch.nn.Module]) -> None:
    for layer in layers:
        layer._compiled_call_impl = None


def set_rate(group: dict[str, Any], rate: float) -> None:
    """The learning rate of a parameter group, in place where a graph reads it."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


class CapturedStep:
    """Runs `step(noise)` eagerly a few times, records it once, and replays the record from then on."""

    def __init__(self, step: Callable[[Noise], Tensor]) -> None:
        self.step, self.seen, self.said = step, 0, False
        self.recorded = Recorded(lambda keys: step(Noise(keys)))

    def __call__(self, noise: Noise) -> Tensor:
        self.seen += 1
        if self.seen <= WARM_UP:
            return aside(lambda: self.step(noise))
        values = self.recorded(noise.keys).clone()
        if self.recorded.reason and not self.said:
            self.said = True
            warnings.warn(
                f"The step cannot be recorded as a CUDA graph ({self.recorded.reason}): training goes on without.",
                stacklevel=2,
            )
        return values
