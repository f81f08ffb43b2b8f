"""A memory of the past: history slots, encoded by a GRU or a transformer, that steer a perceptron of the newest slot.

A perceptron of all slots learns weights for each slot anew; an encoder shares them between the slots. Each slot but the
newest becomes a token: the step to the slot after it, the difference to the newest slot, and the newest slot itself.
Steps are small where observations are dense, so steps and differences are in units of their own, measured on the data
before training and saved with the weights.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from neuralsde.nets.backbone import Condition, Form
from neuralsde.nets.config import HISTORY_HEADS, HistoryConfig
from neuralsde.nets.mlp import MLP


class Recurrent(nn.Module):
    """A GRU from the oldest token to the newest; its last state is the memory."""

    def __init__(self, config: HistoryConfig, token_size: int) -> None:
        super().__init__()
        self.gru = nn.GRU(token_size, config.memory, batch_first=True)

    def forward(self, tokens: Float[Tensor, "B T C"]) -> Float[Tensor, "B M"]:
        # cuDNN's GRU has no gradient in evaluation mode, which g dg needs, and none of second order
        with torch.backends.cudnn.flags(enabled=False):
            return self.gru(tokens)[0][:, -1]


class Attention(nn.Module):
    """A pre-norm transformer with learned positions; what it makes of the newest token is the memory."""

    def __init__(self, config: HistoryConfig, token_size: int, num_tokens: int) -> None:
        super().__init__()
        self.inward = nn.Linear(token_size, config.memory)
        self.positions = nn.Parameter(nn.init.normal_(torch.empty(num_tokens, config.memory), std=0.5))
        sizes, silu = (config.memory, HISTORY_HEADS, 2 * config.memory), nn.functional.silu
        layer = nn.TransformerEncoderLayer(*sizes, config.dropout, silu, batch_first=True, norm_first=True)
        norm = nn.LayerNorm(config.memory)
        self.layers = nn.TransformerEncoder(layer, 1, norm=norm, enable_nested_tensor=False)

    def forward(self, tokens: Float[Tensor, "B T C"]) -> Float[Tensor, "B M"]:
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no gradient of second order
            return self.layers(self.inward(tokens) + self.positions)[:, -1]


class HistoryMLP(MLP):
    """A residual perceptron of the newest slot and a memory of all slots (0 at the start of training)."""

    step_unit: Tensor
    age_unit: Tensor

    def __init__(self, config: HistoryConfig, form: Form) -> None:
        num, size = form.history - 1, 3 * math.prod(form.shape)
        if num < 1:
            raise ValueError(
                f"`history` must be at least 2 for a HistoryConfig: one slot holds no past. Got history={form.history}. Try 16."
            )
        super().__init__(config, replace(form, history=1, condition_size=config.memory + form.condition_size))
        self.register_buffer("step_unit", torch.ones(form.shape))
        self.register_buffer("age_unit", torch.ones(num, *form.shape))
        self.encoder = Recurrent(config, size) if config.encoder == "gru" else Attention(config, size, num)

    @torch.no_grad()
    def measure(self, slots: Float[Tensor, "B H *S"], noise: Float[Tensor, "..."]) -> None:
        """Measure the steps and the differences to the newest slot that training will show; `noise` is its own."""
        for unit, past in ((self.step_unit, slots.diff(dim=1)), (self.age_unit, slots[:, :-1] - slots[:, -1:])):
            over = tuple(range(past.ndim - unit.ndim))
            unit.copy_((past.square().mean(over) + 2 * noise**2).sqrt().clamp(min=1e-3))  # the floor: constant features

    def tokens(self, state: Float[Tensor, "B H *S"]) -> Float[Tensor, "B T C"]:
        """What the encoder sees, oldest first."""
        older, newest = state[:, :-1], state[:, -1:]
        parts = (state.diff(dim=1) / self.step_unit, (older - newest) / self.age_unit, newest.expand_as(older))
        return torch.cat([part.flatten(2) for part in parts], dim=2)

    def forward(self, state: Float[Tensor, "B H *S"], condition: Condition = None) -> Float[Tensor, "B *F"]:
        memory = self.encoder(self.tokens(state))
        return super().forward(state[:, -1:], memory if condition is None else torch.cat([memory, condition], dim=1))
