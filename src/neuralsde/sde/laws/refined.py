"""A step that need not be Gaussian: Euler's step, decided by a second pass.

A step as long as a gap of the data is m + g√Δt ξ, where ξ has mean 0 and variance 1: a thing comes into view or it does not.
A refiner h learns the rest of its law from u = ξ + ε:

    E[ξ | u] = u/2 + h/√2,        ξ drawn as (z + h + z')/√2 from u = √2 z        (z, z' unit Gaussians)

which is exact where ξ is Gaussian (h = 0); otherwise h makes one decision of what white noise only hints at.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neuralsde.models.sequence import Condition
from neuralsde.sde.config import Sampler
from neuralsde.sde.fields import Fields
from neuralsde.sde.laws.euler import EulerStep
from neuralsde.sde.laws.law import check_one_length, check_that_length, residual
from neuralsde.sde.losses import diffusion_nll, flow_loss, refiner_mse
from neuralsde.sde.pairs import Gap, Pair
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import Noise

MEAN_OFF, VARIANCE_OFF = 0.05, 0.1  # of the draws, from which on it is said


def refiner(fields: Fields, state: Tensor, condition: Tensor | None, proposed: Tensor) -> Tensor:
    """h: what a step has beyond its Gaussian, from the states before it and a proposal of its end, as the newest slot."""
    return fields.read(torch.cat([state[:, 1:], proposed[:, None]], dim=1), condition, "refiner")["refiner"]


class RefinedStep(EulerStep):
    """Its density is that of Euler's step."""

    def losses(self, fields: Fields, read: dict[str, Tensor], pair: Pair, noise: Noise) -> dict[str, Tensor]:
        log_g = read["diffusion"]
        r = residual(fields, read, pair)
        spread = torch.exp(log_g.detach()) * pair.dt.sqrt()
        xi, eps = -r.detach() * pair.dt / spread, noise.normal(0, self.shape, stream=3)
        h = refiner(fields, pair.state, pair.condition, pair.after + spread * eps)
        return {
            "flow": flow_loss(self.config.flow_loss, read["flow"] - pair.target, pair.dt, log_g),
            "diffusion": diffusion_nll(r, pair.dt, log_g),
            "refiner": self.config.weight * refiner_mse(h, xi, eps),
        }

    def findings(self, gap: Gap, fields: Fields, coefficients: Any) -> list[str]:
        """Mean and variance of the draws in units of the Gaussian: 0 and 1 belong to the data."""
        given, keys = gap.conditions(0.0), Noise.draw(0, len(gap.state))
        c = coefficients(gap.state, given)
        mean, spread = gap.state[:, -1] + c.drift * gap.dt, c.diffusion * gap.dt.sqrt()
        z, rest = (keys.normal(0, self.shape, stream=k).to(mean.device) for k in (0, 2))
        xi = (z + refiner(fields, gap.state, given, mean + math.sqrt(2) * spread * z) + rest) / math.sqrt(2)
        shift, variance = float(xi.mean()), float(xi.var())
        if abs(shift) < MEAN_OFF and abs(variance - 1) < VARIANCE_OFF:
            return []
        what = f"Refined steps have mean {shift:.2f} and variance {variance:.2f} in units of the learned Gaussian"
        return [f"{what}; 0 and 1 are right. Rare events are drawn too seldom. Use Mixture(), or Euler()."]

    @property
    def is_sde(self) -> bool:
        return False

    def check_data(self, gaps: Tensor) -> None:
        check_one_length("Refined", gaps, "Use Euler().")

    def check_sampler(self, sampler: Sampler, gaps: Tensor, max_step: float, unit: float) -> None:
        if refines(sampler):
            remedy = "Draw at times that far apart, or pass Sampler(refine=False)."
            check_that_length("The refiner", sampler, gaps, max_step, unit, remedy)

    def advance(self, fields: Fields, step: Step, condition: Condition, noise: Noise, sampler: Sampler) -> Tensor:
        if not refines(sampler):
            return super().advance(fields, step, condition, noise, sampler)
        state, given = step.state(step.x, step.time), condition(step.time)
        signs = partial(noise.signs, step.index, self.shape, stream=1)
        c = fields.coefficients(state, given, sampler, signs, correction=False)
        mean, spread = step.x + c.drift * step.dt, c.diffusion * step.dt.sqrt()
        h = refiner(fields, state, given, mean + math.sqrt(2) * spread * step.z)
        rest = sampler.refine_noise * noise.normal(step.index, self.shape, stream=2)
        return mean + spread * (step.z + h + rest) / math.sqrt(2)


def refines(sampler: Sampler) -> bool:
    """Whether steps take a second pass."""
    return sampler.refine and sampler.diffusion > 0
