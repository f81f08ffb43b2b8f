"""A residual perceptron for vector states."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from neuralsde.config import MLPConfig
from neuralsde.nets.fields import read_fields, zero_linear


class Block(nn.Module):
    """x + W2 silu(W1 norm(x)): pre-norm, so that depth costs no conditioning."""

    repeated: ClassVar[bool] = True
    """Many alike in a net: compiled once for all."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, width)
        self.back = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        # As functions: to call a module takes as long as a small layer
        norm, wide, back = self.norm, self.wide, self.back
        inner = functional.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        inner = functional.silu(functional.linear(inner, wide.weight, wide.bias))
        return x + functional.linear(self.dropout(inner) if self.training else inner, back.weight, back.bias)


class MLP(nn.Module):
    """State and condition in, one field of the state's shape out, or several (0 at the start of training)."""

    def __init__(
        self,
        config: MLPConfig,
        shape: tuple[int, ...],
        *,
        history: int = 1,
        condition_size: int = 0,
        num_fields: int = 1,
        reader: int | None = None,
    ) -> None:
        """`reader` is the field, of several, that reads the features without training them."""
        super().__init__()
        self.config = config
        self.reader = reader
        self.shape = tuple(shape)
        size = math.prod(self.shape)
        self.fields = self.shape if num_fields == 1 else (num_fields, *self.shape)
        self.inward = nn.Linear(size * history + condition_size, config.width)
        self.blocks = nn.Sequential(*(Block(config.width, config.dropout) for _ in range(config.depth)))
        self.norm = nn.LayerNorm(config.width)
        self.outward = zero_linear(config.width, math.prod(self.fields))

    def forward(
        self, state: Float[Tensor, "B H *S"], condition: Float[Tensor, "B K"] | None = None
    ) -> Float[Tensor, "B *F"]:
        x = state.flatten(1)
        if condition is not None:
            x = torch.cat([x, condition], dim=1)
        features = self.norm(self.blocks(self.inward(x)))
        return read_fields(self, features, lambda y: y.reshape(len(state), *self.fields), self.reader)
