"""A perceptron in two parts: what does not change along a path is encoded once, a smaller part moves the state.

A policy draws many steps for one observation. The encoder of the context is the large part; it is evaluated once for a whole
roll-out.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.nets.backbone import Condition, Form, is_plain
from neuralsde.nets.config import EncodedConfig
from neuralsde.nets.fused import through
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
        self.context_size = size
        self.encoder = self.make_encoder(config, size)

    @staticmethod
    def make_encoder(config: EncodedConfig, size: int) -> nn.Module:
        """The net from a context of `size` to its memory."""
        return perceptron(config, size)

    def inputs(self, state: Float[Tensor, "B H *S"], condition: Condition) -> Float[Tensor, "B I"]:
        assert condition is not None
        size = self.context_size
        return self.end_to_end(state, self.encoder(condition[:, :size]), condition)

    def end_to_end(
        self, state: Float[Tensor, "B H *S"], memory: Float[Tensor, "B M"], condition: Float[Tensor, "B C"]
    ) -> Float[Tensor, "B I"]:
        """State, encoded context, and what comes after the context in the condition."""
        return torch.cat([state.flatten(1), memory, condition[:, self.context_size :]], dim=1)

    def prepared(self, context: Float[Tensor, "B C"]) -> nn.Module:
        kind = type(self)
        as_written = (kind.forward, kind.read, kind.inputs) == (MLP.forward, MLP.read, EncodedMLP.inputs)
        own = as_written and is_plain(self) and self._compiled_call_impl is None
        return Prepared(self, context) if own and context.shape[1] == self.context_size else self


class Prepared(nn.Module):
    """The net along paths whose contexts hold: these are encoded beforehand."""

    def __init__(self, net: EncodedMLP, context: Float[Tensor, "B C"]) -> None:
        super().__init__()
        self.net, self.memory = net, through(net.encoder, context)

    @property
    def reader(self) -> EncodedMLP:
        """What makes fields of `inputs`."""
        return self.net

    def forward(self, state: Float[Tensor, "B H *S"], condition: Condition = None) -> Float[Tensor, "B *F"]:
        return self.net.read(self.inputs(state, condition))

    def inputs(self, state: Float[Tensor, "B H *S"], condition: Condition) -> Float[Tensor, "B I"]:
        """What the smaller part sees."""
        if condition is None or len(condition) != len(self.memory):  # more states than one of each path
            return self.net.inputs(state, condition)
        return self.net.end_to_end(state, self.memory, condition)
