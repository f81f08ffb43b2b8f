"""Pre-norm transformer layers on the fused attention of torch: same kernels in training and evaluation, no host syncs."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention of x to itself (causal if asked), or to a memory."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.back = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "B T W"], memory: Float[Tensor, "B M W"]) -> Float[Tensor, "B T W"]:
        q = self.query(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k, v = self.key_value(memory).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout.p if self.training else 0.0
        y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        return self.dropout(self.back(y.transpose(1, 2).flatten(2)))


class Layer(nn.Module):
    """Attention to itself, to a memory where there is one, and a perceptron: x + part(norm(x)) each."""

    repeated: ClassVar[bool] = True  # many alike in a net: compiled once for all

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool, memory: bool = False) -> None:
        super().__init__()
        self.norm_self, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, causal=causal)
        wide = 4 * width
        self.mlp = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width), nn.Dropout(dropout))
        self.norm_memory = nn.LayerNorm(width) if memory else None
        self.recall = Attention(width, heads, dropout) if memory else None

    def forward(
        self, x: Float[Tensor, "B T W"], memory: Float[Tensor, "B M W"] | None = None
    ) -> Float[Tensor, "B T W"]:
        own = self.norm_self(x)
        x = x + self.attention(own, own)
        if self.recall is not None and self.norm_memory is not None and memory is not None:
            x = x + self.recall(self.norm_memory(x), memory)
        return x + self.mlp(self.norm_mlp(x))


def positions(length: int, width: int) -> nn.Parameter:
    """Learned positions, small at the start."""
    return nn.Parameter(nn.init.normal_(torch.empty(length, width), std=0.02))
