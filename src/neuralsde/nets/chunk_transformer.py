"""A transformer over the steps of a chunk that attends to the condition, as in Diffusion Policy (Chi et al., RSS 2023)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.nets.attention import Layer, positions
from neuralsde.nets.backbone import Condition, Form
from neuralsde.nets.chunk import ChunkNet
from neuralsde.nets.config import ChunkTransformerConfig

TOKENS = 4  # tokens that the condition becomes


class ChunkTransformer(ChunkNet):
    """One token per step of the horizon; the condition is a memory of a few tokens, each made from all of it."""

    def __init__(self, config: ChunkTransformerConfig, form: Form) -> None:
        super().__init__(config, form)
        width = config.width
        self.inward = nn.Linear(self.num_features, width)
        self.positions = positions(self.horizon, width)
        self.remember = nn.Sequential(
            nn.Linear(max(1, form.condition_size), 4 * width),
            nn.Mish(),
            nn.Linear(4 * width, TOKENS * width),
            nn.Unflatten(1, (TOKENS, width)),
            nn.LayerNorm(width),
        )
        self.layers = nn.ModuleList(
            Layer(width, config.heads, config.dropout, causal=True, memory=True) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.end_at_zero(width)

    def forward(self, state: Float[Tensor, "B H L A"], condition: Condition = None) -> Float[Tensor, "B *F"]:
        memory = self.remember(self.join_condition(state, condition))
        x = self.inward(self.sequence(state)) + self.positions
        for layer in self.layers:
            x = layer(x, memory)
        return self.read_out(self.norm(x), self.fields)
