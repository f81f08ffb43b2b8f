"""What generative models of p(next state | state) share: the condition, the target's units, the fixed step.

They transport noise to the next observation, conditioned on the present one, and can only be sampled at the step they
were trained with. The net sees the (optionally noisy) history, the half-generated target and its generation time.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.config import NextStateConfig, Sampler
from neuralsde.noise import Noise
from neuralsde.sequence import Condition, Scale, SequenceModel, Transition
from neuralsde.solvers import Step

EMBEDDING = 32
"""Features of the generation time."""


def embed_time(s: Float[Tensor, " B"]) -> Float[Tensor, "B E"]:
    """Sines and cosines of the generation time s in [0, 1], periods from 4 down to 1/60."""
    angle = s[:, None] * torch.exp(torch.linspace(math.log(1.5), math.log(400.0), EMBEDDING // 2, device=s.device))
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class NextStateModel(SequenceModel):
    """Base of the baselines: a child says how targets are noised and how they are generated."""

    config: NextStateConfig
    shift: Tensor
    spread: Tensor
    limit: Tensor

    def __init__(self, nets: dict[str, nn.Module], scale: Scale, config: NextStateConfig) -> None:
        super().__init__(scale, config)
        if list(nets) != ["net"]:
            raise ValueError(f"`nets` must hold ['net'] for this config. Got {sorted(nets)}.")
        self.nets = nn.ModuleDict(nets)
        for name, value in (("shift", 0.0), ("spread", 1.0), ("limit", 1.0)):
            self.register_buffer(name, torch.full(scale.shape, value))

    @abstractmethod
    def generation_loss(self, y: Tensor, history: Tensor, condition: Tensor | None, noise: Noise) -> Tensor:
        """Squared error (B, *S) of the net for clean targets y."""

    @abstractmethod
    def generate(self, z: Tensor, history: Tensor, condition: Tensor | None) -> Tensor:
        """A target from the noise z."""

    def fit_bounds(self, pairs: Transition) -> None:
        """Scale the targets to mean 0 and variance 1, and note how far they reach."""
        y = self._target(pairs)
        seen = torch.ones_like(y) if pairs.mask is None else pairs.mask.to(y)
        if self.config.target == "increment":
            mean = (y * seen).sum(0) / seen.sum(0)
            variance = ((y - mean).square() * seen).sum(0) / (seen.sum(0) - 1).clamp(min=1)
            self.shift.copy_(mean)
            self.spread.copy_(variance.sqrt().clamp(min=1e-6))
        self.limit.copy_(1.1 * ((y - self.shift) / self.spread * seen).abs().amax(0).clamp(min=1.0))

    def _target(self, batch: Transition) -> Tensor:
        after = self.scale.states(batch.next)
        return after if self.config.target == "next" else after - self.scale.states(batch.history[:, -1])

    def net(self, y: Tensor, s: Tensor, history: Tensor, condition: Tensor | None) -> Tensor:
        """The net at generation time s (1,) or (B,)."""
        self.count(net=1)
        parts = [y.flatten(1), embed_time(s.expand(len(y)))] + ([] if condition is None else [condition])
        return self.nets["net"](history, torch.cat(parts, dim=1)).float()

    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        history = self.scale.states(batch.history)
        history = history + self.config.noise * noise.normal(0, tuple(history.shape[1:]))
        y = (self._target(batch) - self.shift) / self.spread
        condition = self._condition(batch.context, batch.time / self.scale.step)
        error = self.generation_loss(y, history, condition, noise)
        return {"loss": error.mean() if batch.mask is None else (error * batch.mask).sum() / batch.mask.sum()}

    def check_sampler(self, sampler: Sampler, gaps: Tensor) -> None:
        off = (gaps - gaps.round().clamp(min=1)).abs() > 1e-3
        if bool(off.any()):
            raise ValueError(
                f"{type(self).__name__} only generates at its training step {self.scale.step:g}. Got times "
                f"{float(gaps[off][0]) * self.scale.step:g} apart. Pass times on that grid; a NeuralSDE takes any times."
            )

    def max_step(self, sampler: Sampler) -> float:
        return 1.0

    def advance(self, step: Step, condition: Condition, noise: Noise) -> Tensor:
        history = torch.cat([step.older(step.time), step.x[:, None]], dim=1)
        y = self.generate(step.z, history, condition(step.time)) * self.spread + self.shift
        return y if self.config.target == "next" else step.x + y
