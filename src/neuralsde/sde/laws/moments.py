"""The law of a step that is not small: Gaussian, with the mean and covariance of the SDE over the whole gap.

Where training states are those at the start of a step, flow and diffusion are learned together by its likelihood. Where they
are interpolated, the flow is a conditional mean as in the paper and only the diffusion is learned by the likelihood.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from neuralsde.sde.config import Law, Sampler
from neuralsde.sde.fields import Fields
from neuralsde.sde.laws.law import StepLaw
from neuralsde.sde.losses import flow_mse
from neuralsde.sde.measurement import Measured
from neuralsde.sde.pairs import Gap, Pair, slots_after
from neuralsde.sde.propagation import propagate
from neuralsde.solvers.gaussian import log_density
from neuralsde.solvers.noise import Noise

MAX_DIMENSIONS = 32  # features up to which the points and the covariance are affordable


class MomentsStep(StepLaw):
    """N(m, P) after the gap."""

    def __init__(self, config: Law, shape: tuple[int, ...], *, start: bool) -> None:
        super().__init__(config, shape, start=start)
        size = torch.Size(shape).numel()
        if size > MAX_DIMENSIONS:
            raise ValueError(f"The law `Moments` takes up to {MAX_DIMENSIONS} features. Got {size}. Use Euler().")

    @property
    def reads(self) -> tuple[str, ...]:
        return () if self.start else ("flow",)

    def losses(self, fields: Fields, read: dict[str, Tensor], pair: Pair, noise: Noise) -> dict[str, Tensor]:
        if not self.start:
            flow = flow_mse(read["flow"] - pair.target, pair.dt)
            return {"flow": flow, "diffusion": self._loss(pair.gap(pair.now), partly(fields), None)}
        measured = None
        state = pair.state
        if self.config.measurement:
            state = pair.now
            measured = fields.measured(state, pair.conditions(0.0))
        return {"likelihood": self._loss(pair.gap(state), together(fields), measured)}

    def _loss(self, gap: Gap, coefficients: Any, measured: Measured | None) -> Tensor:
        """Negative log density per observed entry, one value per row."""
        entries = gap.step[0].numel() if gap.mask is None else gap.mask.float().sum() / len(gap.step)
        return -self.log_prob(gap, coefficients, measured) / entries

    def log_prob(self, gap: Gap, coefficients: Any, measured: Measured | None) -> Float[Tensor, " B"]:
        state, seen = gap.state, None if gap.mask is None else gap.mask.flatten(1)

        def at(x: Tensor, share: float) -> tuple[Tensor, Tensor]:
            times, given = len(x) // len(state), gap.conditions(share)
            before, past = (v.repeat_interleave(times, 0) for v in (state, share * gap.dt))
            slots = slots_after(before, x.reshape(-1, *state.shape[2:]), past)
            f, g = coefficients(slots, None if given is None else given.repeat_interleave(times, 0))
            return f.flatten(1), g.flatten(1)

        first, dt, step = state[:, -1].flatten(1), gap.dt.reshape(-1, 1), gap.step.flatten(1)
        if measured is None:
            mean, cov = propagate(at, first, dt, self.config.steps)
            return log_density(step - (mean - first), cov, seen)
        shift, before = measured.law()
        mean, cov = propagate(at, first + shift, dt, self.config.steps, before)
        return log_density(step - (mean - first), cov + torch.diag_embed(measured.variance.expand_as(step)), seen)


def together(fields: Fields) -> Any:
    """Drift and diffusion while they are learned together."""

    def at(state: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor]:
        read = fields.read(state, condition, "flow", "diffusion")
        return read["flow"], torch.exp(read["diffusion"])

    return at


def partly(fields: Fields) -> Any:
    """The diffusion while it is learned, and the drift of the flow as it is, without g∂g: ripples of g would grow."""

    def at(state: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor]:
        g = torch.exp(fields.log_diffusion(state, condition))
        with torch.no_grad():
            known = fields.evaluated.coefficients(state, condition, Sampler(correction="off"), None, correction=False)
        return known.drift, g

    return at
