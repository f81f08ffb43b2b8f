"""The moving average of the weights, which is kept as the result of a training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """Exponential moving average of the parameters, with a warm-up so that short runs forget their start."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.names, parameters = zip(*model.named_parameters())
        self.parameters: list[Tensor] = list(parameters)
        self.values = [p.detach().clone() for p in parameters]
        self.decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.values, self.parameters, 1 - decay)

    @torch.no_grad()
    def apply(self) -> None:
        """Put the average into the model."""
        torch._foreach_copy_(self.parameters, self.values)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with the average in it, for a while."""
        with torch.no_grad():
            last = [p.clone() for p in self.parameters]
            self.apply()
            try:
                yield
            finally:
                torch._foreach_copy_(self.parameters, last)
