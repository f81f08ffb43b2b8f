"""A Gaussian autoregressive perceptron: p(next state | state, dt), with one net for mean and variance.

The plainest model with a likelihood. It knows the law of a step and no SDE: it can only be sampled with steps as long
as those it was trained with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.baselines.config import GaussianConfig
from neuralsde.data.trajectories import Transitions
from neuralsde.data.transition import Transition
from neuralsde.models.config import Sampling
from neuralsde.models.scale import Scale
from neuralsde.models.sequence import Advance, Condition, SequenceModel, observed_mean
from neuralsde.nets.backbone import Form, backbone_of
from neuralsde.solvers.gaussian import log_density
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import Noise

MAX_LOG_STD = 4.0  # the deviation is within e^±4 of the typical one


class GaussianMLP(SequenceModel):
    """Maximum likelihood of the next increment, in units of the typical one over the same time."""

    config: GaussianConfig
    spread: Tensor
    shortest: Tensor
    longest: Tensor

    def __init__(self, nets: Mapping[str, nn.Module], scale: Scale, config: GaussianConfig) -> None:
        super().__init__(nets, scale, config)
        self.register_buffer("spread", torch.ones(scale.shape))
        for name in ("shortest", "longest"):
            self.register_buffer(name, torch.ones(()))

    @classmethod
    def default_nets(cls, config: GaussianConfig, shape: tuple[int, ...], context_size: int) -> dict[str, nn.Module]:
        size = context_size + config.num_late + 1
        form = Form(shape, config.history, size, num_fields=2, late=config.num_late)
        return {"net": backbone_of(config.net)(config.net, form)}

    def measure(self, data: Transitions) -> Transition:
        """Measure the increments of the data, and note for how long they last."""
        pairs = super().measure(data)
        dt = self.scale.steps(pairs.dt)
        y = (self.scale.states(pairs.next) - self.scale.states(pairs.history[:, -1])) / dt.sqrt()
        y = y if pairs.mask is None else y.where(pairs.mask, math.nan)
        self.spread.copy_(y.square().nanmean(0).sqrt().clamp(min=1e-6))
        self.shortest.copy_(dt.min())
        self.longest.copy_(dt.max())
        return pairs

    def law(self, history: Tensor, dt: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation of the increment over dt, in units of the scale."""
        given = [] if condition is None else [condition]
        mean, log_std = self.nets["net"](history, torch.cat([dt.reshape(-1, 1).log(), *given], dim=1)).float().unbind(1)
        unit = self.spread * dt.sqrt()
        return unit * mean, unit.log() + MAX_LOG_STD * torch.tanh(log_std / MAX_LOG_STD)

    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        mean, log_std = self._law_of(batch)
        z = (self._increment(batch) - mean) * torch.exp(-log_std)
        return {"likelihood": observed_mean(0.5 * z**2 + log_std, batch.mask)}

    def transition_log_prob(self, batch: Transition) -> Float[Tensor, " B"]:
        self._require_known(self.scale.steps(batch.dt))
        mean, log_std = self._law_of(batch)
        seen = None if batch.mask is None else batch.mask.flatten(1)
        log_prob = log_density((self._increment(batch) - mean).flatten(1), torch.exp(2 * log_std).flatten(1), seen)
        return log_prob - self.scale.log_volume(batch)

    def _law_of(self, batch: Transition) -> tuple[Tensor, Tensor]:
        condition = self._condition(batch.context, batch.time / self.scale.step)
        return self.law(self.scale.states(batch.history), self.scale.steps(batch.dt), condition)

    def _increment(self, batch: Transition) -> Tensor:
        return self.scale.states(batch.next) - self.scale.states(batch.history[:, -1])

    def _require_known(self, dt: Tensor) -> None:
        off = (dt < 0.99 * self.shortest) | (dt > 1.01 * self.longest)
        if bool(off.any()):
            low, high = (float(v) * self.scale.step for v in (self.shortest, self.longest))
            raise ValueError(
                f"GaussianMLP only knows steps of {low:g} to {high:g}, as in its training. Got one of "
                f"{float(dt[off].flatten()[0]) * self.scale.step:g}. Pass times on that grid; a NeuralSDE takes any times."
            )

    def check_sampler(self, sampler: Sampling, gaps: Tensor) -> None:
        self._require_known(gaps / torch.ceil(gaps / self.max_step(sampler)).clamp(min=1))

    def max_step(self, sampler: Sampling) -> float:
        return (1 + 1e-5) * float(self.longest)  # stamps are rounded

    def advance(self, step: Step, condition: Condition, noise: Noise, sampler: Sampling) -> Advance:
        history = step.state(step.x, step.time)
        dt = step.dt.where(step.dt > 0, self.shortest)  # paths that have ended are put back where they were
        mean, log_std = self.law(history, dt, condition(step.time))
        return Advance(step.x + mean + torch.exp(log_std) * step.z, {"net": 1})
