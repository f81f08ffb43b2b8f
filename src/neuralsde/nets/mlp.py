"""A residual perceptron for vector states."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from neuralsde.nets.backbone import Backbone, Condition, Form, linear, zero_linear
from neuralsde.nets.config import MLPConfig


def layer_norm(layer: nn.LayerNorm, x: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
    """`layer(x)`, without the call of a module."""
    weight, bias = layer._parameters.values()
    return torch.layer_norm(x, layer.normalized_shape, weight, bias, layer.eps)


class Block(nn.Module):
    """x + W2 silu(W1 norm(x)): pre-norm, so that depth costs no conditioning."""

    repeated: ClassVar[bool] = True  # many alike in a net: compiled once for all

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, width)
        self.back = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        inner = functional.silu(linear(self.wide, layer_norm(self.norm, x)))
        return x + linear(self.back, self.dropout(inner) if self.training else inner)


class MLP(Backbone):
    """State and condition in, one field of the state's shape out, or several (0 at the start of training)."""

    def __init__(self, config: MLPConfig, form: Form) -> None:
        super().__init__(config, form)
        self.fields = form.shape if form.num_fields == 1 else (form.num_fields, *form.shape)
        self.inward = nn.Linear(math.prod(form.shape) * form.history + form.condition_size, config.width)
        self.blocks = nn.Sequential(*(Block(config.width, config.dropout) for _ in range(config.depth)))
        self.norm = nn.LayerNorm(config.width)
        self.outward = zero_linear(config.width, math.prod(self.fields))

    def forward(self, state: Float[Tensor, "B H *S"], condition: Condition = None) -> Float[Tensor, "B *F"]:
        return self.read(self.inputs(state, condition))

    @property
    def reader(self) -> MLP:
        """What makes fields of `inputs`."""
        return self

    def inputs(self, state: Float[Tensor, "B H *S"], condition: Condition) -> Float[Tensor, "B I"]:
        """What the first layer sees, end to end."""
        x = state.flatten(1)
        return x if condition is None else torch.cat([x, condition], dim=1)

    def read(self, x: Float[Tensor, "B I"]) -> Float[Tensor, "B *F"]:
        """The fields for all inputs end to end."""
        features = layer_norm(self.norm, self.blocks(linear(self.inward, x)))
        return self.read_out(features, lambda y: y.reshape(x.shape[0], *self.fields))
