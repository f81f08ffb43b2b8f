"""What nets of chunks share. A chunk, a state (horizon, features), is a short sequence; the newest slot is mapped."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.nets.backbone import Backbone
from neuralsde.nets.fields import read_fields, zero_linear


class ChunkNet(Backbone):
    """Base: how slots become one sequence, and features of that sequence fields."""

    takes_target: ClassVar[bool] = True
    """A model that generates a state gives it half-made as one more slot, the newest, and not in the condition."""

    outward: nn.Linear

    def __init__(self, shape: tuple[int, ...], *, num_fields: int, reader: int | None) -> None:
        super().__init__()
        if len(shape) != 2:
            raise ValueError(
                f"A {type(self).__name__} takes states of shape (horizon, features). Got {tuple(shape)}. "
                "Learn chunks of actions, or use an MLPConfig."
            )
        self.horizon, self.num_features = shape
        self.num_fields, self.reader = num_fields, reader

    def sequence(self, state: Float[Tensor, "B H L A"]) -> Float[Tensor, "B L C"]:
        """The newest slot, which alone is looked at."""
        return state[:, -1]

    def given(self, state: Tensor, condition: Tensor | None) -> Float[Tensor, "B K"]:
        """The condition, or a 0 in its place."""
        return state.new_zeros(len(state), 1) if condition is None else condition

    def end_at_zero(self, width: int) -> None:
        """The last layer: fields are 0 at the start of training."""
        self.outward = zero_linear(width, self.num_fields * self.num_features)

    def read_out(self, features: Float[Tensor, "B L W"]) -> Float[Tensor, "B *F"]:
        """The fields; the `reader` does not train the features it reads."""
        return read_fields(self, features, self._fields, self.reader)

    def _fields(self, y: Tensor) -> Tensor:
        return y if self.num_fields == 1 else y.unflatten(2, (self.num_fields, -1)).transpose(1, 2)
