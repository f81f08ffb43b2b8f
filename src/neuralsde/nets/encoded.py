"""A perceptron in two parts: what does not change along a path is encoded once, a smaller part moves the state.

A policy draws many steps for one observation. The encoder of the context is the large part; it is evaluated anew only when
the context changes.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.nets.config import EncodedConfig
from neuralsde.nets.memo import Memo
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

    def __init__(
        self,
        config: EncodedConfig,
        shape: tuple[int, ...],
        *,
        history: int = 1,
        condition_size: int = 0,
        num_fields: int = 1,
        reader: int | None = None,
        late: int = 0,
    ) -> None:
        """The last `late` entries of the condition change along a path."""
        if condition_size <= late:
            raise ValueError(
                "An EncodedConfig encodes the context of a path: the data must have one. Use an MLPConfig."
            )
        more = {"history": history, "num_fields": num_fields, "reader": reader}
        super().__init__(config.step, shape, condition_size=config.memory + late, **more)  # type: ignore[arg-type]
        self.late = late
        self.encoder = self.make_encoder(config, condition_size - late)
        self._weights = list(self.encoder.parameters())
        self._known: Memo[list[tuple[Tensor, Tensor]]] = Memo()

    @staticmethod
    def make_encoder(config: EncodedConfig, size: int) -> nn.Module:
        """The net from a context of `size` to its memory."""
        return perceptron(config, size)

    def encode(self, context: Float[Tensor, "B C"]) -> Float[Tensor, "B M"]:
        """The memory of a context; on a CPU that of the last one is kept, until the weights change."""
        if self.training or torch.is_grad_enabled() or context.device.type != "cpu":
            return self.encoder(context)
        kept = self._known.get(self._weights, list)
        for known, memory in kept[-1:]:  # a pair of its own for each thread that looks
            if torch.equal(known, context):
                return memory
        memory = self.encoder(context)
        kept[:] = [(context, memory)]
        return memory

    def forward(
        self, state: Float[Tensor, "B H *S"], condition: Float[Tensor, "B K"] | None = None
    ) -> Float[Tensor, "B *F"]:
        assert condition is not None
        split = condition.shape[1] - self.late
        memory = self.encode(condition[:, :split])
        return self.read(torch.cat([state.flatten(1), memory, condition[:, split:]], dim=1))
