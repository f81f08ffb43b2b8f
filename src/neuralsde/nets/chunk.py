"""What nets of chunks share. A chunk, a state (horizon, features), is a short sequence; the newest slot is mapped."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn


class ChunkNet(nn.Module):
    """Base: how slots become one sequence, and features of that sequence fields."""

    takes_target: ClassVar[bool] = True
    """A model that generates a state gives it half-made as one more slot, the newest, and not in the condition."""

    outward: nn.Linear

    def __init__(
        self, shape: tuple[int, ...], *, history: int, use_history: bool, num_fields: int, reader: int | None
    ) -> None:
        super().__init__()
        if len(shape) != 2:
            raise ValueError(
                f"A {type(self).__name__} takes states of shape (horizon, features). Got {tuple(shape)}. "
                "Learn chunks of actions, or use an MLPConfig."
            )
        self.horizon, self.num_features = shape
        self.num_slots = history if use_history else 1
        self.num_fields, self.reader = num_fields, reader

    def sequence(self, state: Float[Tensor, "B H L A"]) -> Float[Tensor, "B L C"]:
        """The slots that are looked at, their features side by side."""
        return state[:, -self.num_slots :].transpose(1, 2).flatten(2)

    def given(self, state: Tensor, condition: Tensor | None) -> Float[Tensor, "B K"]:
        """The condition, or a 0 in its place."""
        return state.new_zeros(len(state), 1) if condition is None else condition

    def end_at_zero(self, width: int) -> None:
        """The last layer: fields are 0 at the start of training."""
        self.outward = nn.Linear(width, self.num_fields * self.num_features)
        nn.init.zeros_(self.outward.weight)
        nn.init.zeros_(self.outward.bias)

    def read_out(self, features: Float[Tensor, "B L W"]) -> Float[Tensor, "B *F"]:
        """The fields; the `reader` does not train the features it reads."""
        y = self._fields(self.outward(features))
        if self.reader is not None and torch.is_grad_enabled() and features.requires_grad and self.training:
            apart = self._fields(self.outward(features.detach()))
            y = torch.stack([(apart if k == self.reader else y)[:, k] for k in range(y.shape[1])], dim=1)
        return y

    def _fields(self, y: Tensor) -> Tensor:
        return y if self.num_fields == 1 else y.unflatten(2, (self.num_fields, -1)).transpose(1, 2)
