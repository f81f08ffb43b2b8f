"""Implicit behaviour cloning (Florence et al., CoRL 2021): an energy of observations and action, minimised to act.

Trained to tell the demonstrated action from others of the box of actions (InfoNCE). To act, samples of the box are drawn
again and again in proportion to exp(-energy) and scattered, less each time.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.baselines.config import IBCConfig, ImitationConfig
from neuralsde.baselines.imitation import ImitationModel, draw_index
from neuralsde.data.trajectories import Transitions
from neuralsde.data.transition import Transition
from neuralsde.models.scale import Scale
from neuralsde.nets.mlp import Block
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import CHOICE, FRESH, Noise

NUM_NEGATIVES = 256  # other actions that the demonstrated one is told from
NUM_ITERATIONS = 5  # rounds of weighing, each one pass of the net; actions are scattered in between
STD = 0.33  # standard deviation of the first scattering, in half ranges of the actions
SHRINK = 0.5  # factor on the deviation from round to round
MARGIN = 0.05  # share of the range of the actions by which their box is wider on each side
MAX_ELEMENTS = 2**28  # hidden features of one pass in sampling: bounds the memory (1 GiB in float32)


class Energy(nn.Module):
    """A residual perceptron of tokens and action; the tokens are read once for all actions."""

    def __init__(self, config: IBCConfig, token_size: int, size: int) -> None:
        super().__init__()
        width = config.net.width
        self.given = nn.Linear(token_size * config.num_observations, width)
        self.action = nn.Linear(size, width, bias=False)
        self.blocks = nn.Sequential(*(Block(width, config.net.dropout) for _ in range(config.net.depth)))
        self.norm = nn.LayerNorm(width)
        self.outward = nn.Linear(width, 1)

    def forward(self, tokens: Float[Tensor, "B K F"], actions: Float[Tensor, "B N D"]) -> Float[Tensor, "B N"]:
        x = self.given(tokens.flatten(1))[:, None] + self.action(actions)
        return self.outward(self.norm(self.blocks(x.flatten(0, 1)))).reshape(actions.shape[:2])


class IBC(ImitationModel):
    """The lowest energy is the action."""

    config: IBCConfig
    passes = NUM_ITERATIONS
    low: Tensor
    high: Tensor

    def __init__(self, nets: Mapping[str, nn.Module], scale: Scale, config: IBCConfig) -> None:
        super().__init__(nets, scale, config)
        for name, value in (("low", -1.0), ("high", 1.0)):
            self.register_buffer(name, torch.full(scale.shape, value).flatten())

    @classmethod
    def make_net(cls, config: ImitationConfig, token_size: int, size: int) -> nn.Module:
        assert isinstance(config, IBCConfig)
        return Energy(config, token_size, size)

    def measure(self, data: Transitions) -> Transition:
        """The box of actions: their range, and a margin."""
        pairs = super().measure(data)
        y = self.scale.states(pairs.next).flatten(1)
        low, high = y.amin(0), y.amax(0)
        margin = MARGIN * (high - low).clamp(min=1e-6)
        self.low.copy_(low - margin)
        self.high.copy_(high + margin)
        return pairs

    def energy(self, tokens: Tensor, actions: Float[Tensor, "B N D"]) -> Float[Tensor, "B N"]:
        """One pass of the net, for all the actions of a row."""
        rows = max(1, MAX_ELEMENTS // (actions.shape[1] * self.config.net.width))
        if self.training or len(tokens) <= rows:
            return self.nets["net"](tokens, actions).float()
        parts = zip(tokens.split(rows), actions.split(rows))
        return torch.cat([self.nets["net"](*part).float() for part in parts])

    def _uniform(self, noise: Noise, step: int | Tensor, num: int) -> Float[Tensor, "B N D"]:
        """Actions all over the box."""
        return torch.lerp(self.low, self.high, noise.uniform(step, (num, len(self.low))).to(self.low.dtype))

    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        tokens, y = self.read(batch)
        actions = torch.cat([y[:, None], self._uniform(noise, 1, NUM_NEGATIVES)], dim=1)
        return {"energy": -torch.log_softmax(-self.energy(tokens, actions), dim=1)[:, 0].mean()}

    def act(self, tokens: Tensor, step: Step, noise: Noise) -> Tensor:
        num, last = self.config.num_samples, NUM_ITERATIONS - 1
        first = step.index * NUM_ITERATIONS
        actions = self._uniform(noise, first, num)
        spread = STD * (self.high - self.low) / 2
        for k in range(last + 1):
            uniform = noise.uniform(first + k, (num if k < last else 1,), stream=CHOICE)
            chosen = draw_index(-self.energy(tokens, actions), uniform)[:, :, None]
            actions = actions.gather(1, chosen.expand(-1, -1, actions.shape[2]))
            if k < last:
                scatter = spread * noise.normal(first + k, (num, len(self.low)), stream=FRESH)
                actions = (actions + scatter).clamp(self.low, self.high)
                spread = spread * SHRINK
        return actions[:, 0]
