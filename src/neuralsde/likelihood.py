"""Models whose steps are Gaussian: the likelihood of a step, for training and for `log_prob`, and measurement noise."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.config import NeuralSDEConfig, Sampler
from neuralsde.moments import MAX_DIMENSIONS, Measured, step_log_prob
from neuralsde.noise import Noise
from neuralsde.scale import Scale
from neuralsde.sequence import SequenceModel, Transition, evaluating
from neuralsde.solvers import Coefficients, newest_slope


class GaussianSteps(SequenceModel):
    """A model with a drift and a diffusion; a step is Gaussian with Euler's moments or with those of the SDE."""

    config: NeuralSDEConfig

    def __init__(self, scale: Scale, config: NeuralSDEConfig) -> None:
        super().__init__(scale, config)
        size = math.prod(scale.shape)
        if config.transition == "moments" and size > MAX_DIMENSIONS:
            raise ValueError(f"transition='moments' takes up to {MAX_DIMENSIONS} features. Got {size}. Use 'euler'.")
        if config.measurement:
            self.log_error = nn.Parameter(torch.zeros(scale.shape))

    # What a model defines; states (N, H, *S) in, fields (N, *S) out, in units of the scale

    @abstractmethod
    def trained_fields(self, state: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor]:
        """Drift and diffusion while they are learned."""

    @abstractmethod
    def drift_and_diffusion(self, state: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor]:
        """Drift and diffusion of the SDE that was learned."""

    @abstractmethod
    def score(self, state: Tensor, condition: Tensor | None) -> Tensor:
        """Gradient of the log density of the data by the newest slot."""

    @abstractmethod
    def coefficients(
        self, state: Tensor, condition: Tensor | None, sampler: Sampler, signs: Any, *, correction: bool
    ) -> Coefficients:
        """Drift, diffusion and, if asked, g∂g of the SDE that is sampled."""

    # What they share

    @torch.no_grad()
    def fields(self, x: Any, *, context: Any = None, sampler: Sampler | None = None) -> tuple[Tensor, Tensor]:
        """Drift and diffusion at states x (B, *S) or histories (B, H, *S), in raw units and at time 0."""
        x, _, context = self._check_inputs(x, [0.0, 1.0], context, 1)
        self.nfe = {}
        self.check_sampler(sampler or self.sampler, torch.zeros(1))
        with evaluating(self):
            state, condition = self.scale.states(x), self._condition(context, torch.zeros(len(x), device=x.device))
            signs = self._fixed_signs(state)
            c = self.coefficients(state, condition, sampler or self.sampler, signs, correction=False)
        return c.drift * self.scale.std / self.scale.step, c.diffusion * self.scale.std / self.scale.step**0.5

    @property
    def measurement_std(self) -> Float[Tensor, "*S"]:
        """Learned standard deviation of the measurement noise, in raw units."""
        if not self.config.measurement:
            raise ValueError("This model was trained without measurement noise. Set `measurement=True`.")
        return torch.exp(self.log_error.detach()) * self.scale.std

    def start_measurement(self, log_g: Tensor, pairs: Transition) -> None:
        """Measurement noise starts at a quarter of the smallest steps."""
        if self.config.measurement:
            self.log_error.data.copy_(log_g + 0.5 * math.log(float(self.scale.steps(pairs.dt).min()) / 16))

    def likelihood_loss(self, batch: Transition, state: Tensor, step: Tensor) -> Tensor:
        """Negative log density per observed entry, one value per row."""
        entries = step[0].numel() if batch.mask is None else batch.mask.float().sum() / len(step)
        return -self._log_prob(batch, state, step, self.trained_fields) / entries

    def transition_log_prob(self, batch: Transition) -> Float[Tensor, " B"]:
        """In raw units; the drift is the sampler's, with the model's own balance and no pull."""
        if not self.config.diffusion:
            raise ValueError("A model without diffusion has no likelihood. Train with `diffusion=True`.")
        self.check_sampler(Sampler(correction=self.sampler.correction), torch.zeros(1))
        now = self.scale.states(batch.history)
        step = self.scale.states(batch.next) - now[:, -1]
        log_prob = self._log_prob(batch, now, step, self.drift_and_diffusion)
        return log_prob - self.scale.log_volume(batch.mask, len(batch))

    def _log_prob(self, batch: Transition, state: Tensor, step: Tensor, fields: Any) -> Float[Tensor, " B"]:
        def condition(share: float) -> Tensor | None:
            return self._condition(batch.context, (batch.time + share * batch.dt) / self.scale.step)

        measured = self._measured(state, condition(0.0)) if self.config.measurement else None
        num_steps = self.config.transition_steps if self.config.transition == "moments" else 0
        seen = None if batch.mask is None else batch.mask.flatten(1)
        return step_log_prob(fields, condition, state, step, self.scale.steps(batch.dt), num_steps, seen, measured)

    def _measured(self, state: Tensor, condition: Tensor | None) -> Measured:
        """What is known of the true state behind the newest slot."""
        with evaluating(self.nets):
            at = partial(self.score, condition=condition)
            score, slope, passes = newest_slope(at, state, "exact", self._fixed_signs(state))
        self.count(denoiser=passes)
        return Measured(torch.exp(2 * self.log_error).flatten(), score.flatten(1), slope.flatten(1))

    # Sampling from measurements, and of them

    @property
    def forecast_sampler(self) -> Sampler:
        return replace(self.sampler, measured=self.config.measurement)

    def true_states(self, state: Tensor, condition: Tensor | None, noise: Noise) -> Tensor:
        if not self.config.measurement:
            return super().true_states(state, condition, noise)
        shift, variance = self._measured(state, condition).law()
        z = noise.normal(0, self.scale.shape, stream=2).flatten(1)
        newest = state[:, -1] + (shift + variance.sqrt() * z).detach().reshape(state[:, -1].shape)
        return torch.cat([state[:, :-1], newest[:, None]], dim=1)

    def measurements(self, states: Tensor, noise: Noise) -> Tensor:
        if not self.config.measurement:
            return super().measurements(states, noise)
        steps = torch.arange(states.shape[1], device=states.device)
        return states + torch.exp(self.log_error.detach()) * noise.normal(steps, self.scale.shape, stream=3)

    def _fixed_signs(self, state: Tensor) -> Any:
        """One probe for all: fields and densities are functions of the data."""
        one = torch.zeros(len(state), dtype=torch.int64, device=state.device)
        return partial(Noise(one).signs, 0, self.scale.shape)
