"""What nets of chunks share. A chunk, a state (horizon, features), is a short sequence; the newest slot is mapped."""

from __future__ import annotations

from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from neuralsde.nets.backbone import Backbone, Form, zero_linear


class ChunkNet(Backbone):
    """Base: how slots become one sequence, and features of that sequence fields."""

    takes_target: ClassVar[bool] = True

    def __init__(self, config: Any, form: Form) -> None:
        super().__init__(config, form)
        if len(form.shape) != 2:
            raise ValueError(
                f"A {type(self).__name__} takes states of shape (horizon, features). Got {form.shape}. "
                "Learn chunks of actions, or use an MLPConfig."
            )
        self.horizon, self.num_features = form.shape

    def sequence(self, state: Float[Tensor, "B H L A"]) -> Float[Tensor, "B L C"]:
        """The newest slot, which alone is looked at."""
        return state[:, -1]

    def join_condition(self, state: Tensor, condition: Tensor | None) -> Float[Tensor, "B K"]:
        """The condition, or a 0 in its place."""
        return state.new_zeros(state.shape[0], 1) if condition is None else condition

    def end_at_zero(self, width: int) -> None:
        """The last layer: fields are 0 at the start of training."""
        self.outward = zero_linear(width, self.form.num_fields * self.num_features)

    def fields(self, y: Float[Tensor, "B L A"]) -> Float[Tensor, "B *F"]:
        """The last layer's numbers, field by field."""
        num = self.form.num_fields
        return y if num == 1 else y.unflatten(2, (num, -1)).transpose(1, 2)
