"""What generative models of p(next state | state) share: the condition, the target's units, the fixed step.

They transport noise to the next observation, conditioned on the present one, and can only be sampled at the step they
were trained with. The net sees the (optionally noisy) history, the half-generated target and its generation time: nets
that want the target apart get it as one more slot of the state, all others in the condition.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from neuralsde.baselines.config import Generation, NextStateConfig
from neuralsde.baselines.fixed_step import FixedStepModel
from neuralsde.data.trajectories import Transitions
from neuralsde.data.transition import Transition
from neuralsde.models.scale import Scale
from neuralsde.models.sequence import Advance, Condition
from neuralsde.nets.backbone import Form, backbone_of
from neuralsde.nets.target import read_target, target_form
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import FRESH, Noise

Fresh = Callable[[int], Tensor]
"""The noise (P, *S) of generation step k."""
Net = Callable[[Tensor, Tensor], Tensor]
"""The net of a half-generated target (P, *S) at generation time (1,), for the paths of one step."""


class NextStateModel(FixedStepModel):
    """Base of the baselines: a child says how targets are noised and how they are generated."""

    config: NextStateConfig
    shift: Tensor
    spread: Tensor
    limit: Tensor

    def __init__(self, nets: Mapping[str, nn.Module], scale: Scale, config: NextStateConfig) -> None:
        super().__init__(nets, scale, config)
        for name, value in (("shift", 0.0), ("spread", 1.0), ("limit", 1.0)):
            self.register_buffer(name, torch.full(scale.shape, value))

    @abstractmethod
    def generation_loss(self, y: Tensor, history: Tensor, condition: Tensor | None, noise: Noise) -> Tensor:
        """Squared error (B, *S) of the net for clean targets y."""

    @abstractmethod
    def generate(self, z: Tensor, net: Net, fresh: Fresh, sampler: Any) -> Tensor:
        """A target from the noise z, and from `fresh` noise where the steps themselves are random."""

    @classmethod
    def default_nets(cls, config: NextStateConfig, shape: tuple[int, ...], context_size: int) -> dict[str, nn.Module]:
        net, late = backbone_of(config.net), config.num_late
        return {"net": net(config.net, target_form(net, Form(shape, config.history, context_size + late, late=late)))}

    @property
    def input_noise(self) -> Tensor:
        return torch.tensor(self.config.noise)

    def measure(self, data: Transitions) -> Transition:
        """Scale the targets to mean 0 and variance 1, and note how far they reach."""
        pairs = super().measure(data)
        y = self._target(pairs)
        seen = torch.ones_like(y) if pairs.mask is None else pairs.mask.to(y)
        if self.config.target == "increment":
            mean = (y * seen).sum(0) / seen.sum(0)
            variance = ((y - mean).square() * seen).sum(0) / (seen.sum(0) - 1).clamp(min=1)
            self.shift.copy_(mean)
            self.spread.copy_(variance.sqrt().clamp(min=1e-6))
        exact = self.config.normalise == "min_max" and self.config.target == "next"  # the range is the unit itself
        self.limit.copy_((1.0 if exact else 1.1) * ((y - self.shift) / self.spread * seen).abs().amax(0).clamp(min=1.0))
        return pairs

    def _target(self, batch: Transition) -> Tensor:
        after = self.scale.states(batch.next)
        return after if self.config.target == "next" else after - self.scale.states(batch.history[:, -1])

    def net(self, y: Tensor, s: Tensor, history: Tensor, condition: Tensor | None) -> Tensor:
        """The net at generation time s (1,) or (B,)."""
        return read_target(self.nets["net"], y, s, history, condition)

    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        history = self.scale.states(batch.history)
        history = history + self.config.noise * noise.normal(0, tuple(history.shape[1:]))
        y = (self._target(batch) - self.shift) / self.spread
        condition = self._condition(batch.context, batch.time / self.scale.step)
        error = self.generation_loss(y, history, condition, noise)
        return {"loss": error.mean() if batch.mask is None else (error * batch.mask).sum() / batch.mask.sum()}

    def same_steps(self, sampler: Any) -> bool:
        return True

    def passes_in_step(self, sampler: Generation) -> int:
        return sampler.num_steps

    def advance(self, step: Step, condition: Condition, noise: Noise, sampler: Generation) -> Advance:
        history, given = step.state(step.x, step.time), condition(step.time)
        first, shape = step.index * sampler.num_steps, self.scale.shape
        passes = Counter[str]()

        def net(y: Tensor, s: Tensor) -> Tensor:
            passes["net"] += 1
            return self.net(y, s, history, given)

        def fresh(k: int) -> Tensor:
            return sampler.temperature * noise.normal(first + k, shape, stream=FRESH)

        y = self.generate(sampler.temperature * step.z, net, fresh, sampler)
        y = y * self.spread + self.shift
        return Advance(y if self.config.target == "next" else step.x + y, passes)
