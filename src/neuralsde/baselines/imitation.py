"""What one-shot policies p(action | last observations) share.

The context holds the last K observations end to end, oldest first: the tokens that a policy reads. The state is the
action, or a chunk of actions; those before are not looked at.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from neuralsde.baselines.config import ImitationConfig
from neuralsde.baselines.fixed_step import FixedStepModel
from neuralsde.data.trajectories import Transitions
from neuralsde.data.transition import Transition
from neuralsde.models.config import Sampling
from neuralsde.models.sequence import Advance, Condition
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import Noise


def draw_index(logits: Float[Tensor, "B M"], uniform: Float[Tensor, "B N"]) -> Int[Tensor, "B N"]:
    """Places drawn from softmax(logits), by inversion of uniform numbers: they belong to the rows, not to the call."""
    total = torch.softmax(logits.double(), dim=1).cumsum(1)
    return torch.searchsorted(total, uniform * total[:, -1:], right=True).clamp(max=logits.shape[1] - 1)


class ImitationModel(FixedStepModel):
    """Base: a child says how its net reads tokens, learns actions from them, and acts."""

    config: ImitationConfig
    passes: int = 1
    """Of the net, for one action."""

    @classmethod
    @abstractmethod
    def make_net(cls, config: ImitationConfig, token_size: int, size: int) -> nn.Module:
        """The net of tokens (B, K, token_size) for actions of `size` numbers."""

    @abstractmethod
    def act(self, tokens: Float[Tensor, "P K F"], step: Step, noise: Noise) -> Float[Tensor, "P D"]:
        """Actions, flat and in units of the scale."""

    @classmethod
    def default_nets(cls, config: ImitationConfig, shape: tuple[int, ...], context_size: int) -> dict[str, nn.Module]:
        num, size = config.num_observations, math.prod(shape)
        if context_size == 0 or context_size % num:
            raise ValueError(
                f"The context must hold `num_observations`={num} observations of one size. Got {context_size} value(s). "
                "Give them end to end, oldest first, or set `num_observations`."
            )
        return {"net": cls.make_net(config, context_size // num + config.num_late, size)}

    def measure(self, data: Transitions) -> Transition:
        """Measure the actions of the data."""
        pairs = super().measure(data)
        if pairs.mask is not None:
            raise ValueError(f"{type(self).__name__} takes whole actions. Got data with missing entries. Fill them.")
        return pairs

    def tokens(self, condition: Tensor | None) -> Float[Tensor, "B K F"]:
        """The observations, and beside each the time, if asked."""
        assert condition is not None
        num, size = self.config.num_observations, self.scale.context_size
        same = condition[:, None, size:].expand(-1, num, -1)
        return torch.cat([condition[:, :size].unflatten(1, (num, -1)), same], dim=2)

    def read(self, batch: Transition) -> tuple[Float[Tensor, "B K F"], Float[Tensor, "B D"]]:
        """Tokens and actions of a batch, in units of the scale."""
        condition = self._condition(batch.context, batch.time / self.scale.step)
        return self.tokens(condition), self.scale.states(batch.next).flatten(1)

    def advance(self, step: Step, condition: Condition, noise: Noise, sampler: Sampling) -> Advance:
        actions = self.act(self.tokens(condition(step.time)), step, noise)
        return Advance(actions.reshape(step.x.shape), {"net": self.passes})
