"""A perceptron in two parts: what does not change along a path is encoded once, a smaller part moves the state.

A policy draws many steps for one observation. The encoder of the context is the large part; it is evaluated anew only when
the context changes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.core.memo import Memo
from neuralsde.nets.backbone import Condition, Form
from neuralsde.nets.config import EncodedConfig
from neuralsde.nets.mlp import MLP, Block


def perceptron(config: EncodedConfig, size: int) -> nn.Sequential:
    """The encoder of `size` numbers."""
    return nn.Sequential(
        nn.Linear(size, config.width),
        *(Block(config.width, config.dropout) for _ in range(config.depth)),
        nn.LayerNorm(config.width),
        nn.Linear(config.width, config.memory),
    )


class EncodedMLP(MLP):
    """State, time and the encoded context in, fields out (0 at the start of training)."""

    def __init__(self, config: EncodedConfig, form: Form) -> None:
        size = form.condition_size - form.late
        if size <= 0:
            raise ValueError("An EncodedConfig encodes the context of paths: the data must have one. Use an MLPConfig.")
        super().__init__(config.step, replace(form, condition_size=config.memory + form.late))
        self.encoder = self.make_encoder(config, size)
        self._weights = list(self.encoder.parameters())
        self._known: Memo[list[tuple[Tensor, Tensor]]] = Memo()

    @staticmethod
    def make_encoder(config: EncodedConfig, size: int) -> nn.Module:
        """The net from a context of `size` to its memory."""
        return perceptron(config, size)

    def encode(self, context: Float[Tensor, "B C"]) -> Float[Tensor, "B M"]:
        """The memory of a context; on a CPU that of the last one is kept, until the weights change."""
        if self.training or torch.is_grad_enabled() or context.device.type != "cpu" or torch.compiler.is_exporting():
            return self.encoder(context)
        kept = self._known.get(self._weights, list)
        for known, memory in kept[-1:]:  # a pair of its own for each thread that looks
            if torch.equal(known, context):
                return memory
        memory = self.encoder(context)
        kept[:] = [(context, memory)]
        return memory

    def forward(self, state: Float[Tensor, "B H *S"], condition: Condition = None) -> Float[Tensor, "B *F"]:
        assert condition is not None
        split = condition.shape[1] - self.form.late
        memory = self.encode(condition[:, :split])
        return self.read(torch.cat([state.flatten(1), memory, condition[:, split:]], dim=1))
