"""U-ViT (Bao et al., CVPR 2023): a transformer over the places of an image, with long skips from its first half to its second.

Every place of the state (a latent pixel, or a patch of them) is a token: its channels over all slots, side by side. What the
state does not hold (the generation time of a baseline, a context) is one more token.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.nets.attention import Layer, positions
from neuralsde.nets.backbone import Backbone, Condition, Form, zero_linear
from neuralsde.nets.config import UViTConfig


class UViT(Backbone):
    """Images or latents (C, h, w) in, fields of that shape out (0 at the start of training)."""

    takes_target: ClassVar[bool] = True
    takes_lower: ClassVar[bool] = True

    def __init__(self, config: UViTConfig, form: Form) -> None:
        super().__init__(config, form)
        shape, self.patch = form.shape, config.patch
        if len(shape) != 3:
            raise ValueError(f"A UViT takes states of shape (channels, height, width). Got {shape}. Use an MLPConfig.")
        if shape[1] % self.patch or shape[2] % self.patch:
            raise ValueError(f"`patch` must divide height and width. Got {self.patch} for states of shape {shape}.")
        self.grid = (shape[1] // self.patch, shape[2] // self.patch)
        width, size, half = config.width, shape[0] * self.patch**2, config.layers // 2
        self.inward = nn.Linear(form.history * size, width)
        self.rows, self.columns = positions(self.grid[0], width), positions(self.grid[1], width)
        self.remember = nn.Linear(form.condition_size, width) if form.condition_size else None

        def layers(num: int) -> nn.ModuleList:
            return nn.ModuleList(Layer(width, config.heads, 0.0, causal=False) for _ in range(num))

        self.down, self.middle, self.up = layers(half), layers(config.layers - 2 * half), layers(half)
        self.joins = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(half))
        self.norm = nn.LayerNorm(width)
        self.outward = zero_linear(width, form.num_fields * size)

    def tokens(self, state: Float[Tensor, "B H C h w"]) -> Float[Tensor, "B T K"]:
        """One token per patch, row by row: its channels over all slots."""
        (rows, columns), p = self.grid, self.patch
        cut = state.unflatten(4, (columns, p)).unflatten(3, (rows, p))  # B H C rows p columns p
        return cut.permute(0, 3, 5, 1, 2, 4, 6).flatten(3).flatten(1, 2)

    def image(self, y: Float[Tensor, "B T K"]) -> Float[Tensor, "B *F"]:
        """The fields of tokens: the inverse of `tokens`, field by field."""
        (rows, columns), p = self.grid, self.patch
        cut = y.unflatten(1, (rows, columns)).unflatten(3, (self.form.num_fields, self.form.shape[0], p, p))
        fields = cut.permute(0, 3, 4, 1, 5, 2, 6).flatten(5, 6).flatten(3, 4)
        return fields[:, 0] if self.form.num_fields == 1 else fields

    def forward(self, state: Float[Tensor, "B H C h w"], condition: Condition = None) -> Float[Tensor, "B *F"]:
        own = self.inward.weight.dtype
        x = self.inward(self.tokens(state.to(own))) + (self.rows[:, None] + self.columns[None]).flatten(0, 1)
        if self.remember is not None and condition is not None:
            x = torch.cat([self.remember(condition.to(own))[:, None], x], dim=1)
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
        for layer in self.middle:
            x = layer(x)
        for join, layer in zip(self.joins, self.up):
            x = layer(join(torch.cat([x, kept.pop()], dim=2)))
        features = self.norm(x[:, -self.grid[0] * self.grid[1] :])
        return self.read_out(features, self.image)
