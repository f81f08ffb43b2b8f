"""A step of any law: Euler's Gaussian, carried to it by a flow of a few passes.

In units of the learned Gaussian a step is ξ = (x' - x - f Δt) / g√Δt, of mean 0 and variance 1. Between a Gaussian z and ξ
lies, at generation time s from 0 to 1,

    u = cos(πs/2) z + sin(πs/2) ξ,        v(u, s) = E[cos(πs/2) ξ - sin(πs/2) z | u],        du/ds = π/2 v(u, s)

The variance of u is 1 throughout, and v is 0 where ξ is Gaussian: a net that has learned nothing, or no pass at all, is
Euler's step. v is also 0 at s = 0, where u says nothing of ξ. As passes grow in number the law of what is drawn becomes
that of the data.
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
from neuralsde.sde.losses import diffusion_nll, flow_loss
from neuralsde.sde.pairs import Gap, Pair
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import PROBES, Noise

MEAN_OFF, VARIANCE_OFF = 0.05, 0.1  # of the draws, from which on it is said
OWN = 5  # number of the noise that the flow is trained with


class TransportStep(EulerStep):
    """x + f Δt + g √Δt u. Its density is that of Euler's step."""

    def losses(self, fields: Fields, read: dict[str, Tensor], pair: Pair, noise: Noise) -> dict[str, Tensor]:
        log_g, r = read["diffusion"], residual(fields, read, pair)
        xi = -r.detach() * pair.dt.sqrt() * torch.exp(-log_g.detach())
        own = noise.child(OWN)
        z, s = own.normal(0, self.shape), own.uniform(1).float()
        angle = (0.5 * math.pi * s).reshape(-1, *[1] * len(self.shape))
        xi = xi if pair.mask is None else xi.where(pair.mask, z)
        v = fields.transport(pair.state, pair.condition, angle.cos() * z + angle.sin() * xi, s)
        return {
            "flow": flow_loss(self.config.flow_loss, read["flow"] - pair.target, pair.dt, log_g),
            "diffusion": diffusion_nll(r, pair.dt, log_g),
            "transport": (v - (angle.cos() * xi - angle.sin() * z)) ** 2,
        }

    def carry(self, fields: Fields, state: Tensor, condition: Tensor | None, z: Tensor, passes: int) -> Tensor:
        """Steps in units of the Gaussian, from unit Gaussians; z itself after no pass."""
        u, before, h = z, torch.zeros_like(z), 0.5 * math.pi / (passes + 1)
        for k in range(1, passes + 1):  # Adams and Bashforth, of second order; v is 0 at s = 0, which takes no pass
            v = fields.transport(state, condition, u, torch.full((1,), k / (passes + 1), device=z.device))
            u, before = u + h * (1.5 * v - 0.5 * before), v
        return u

    @torch.no_grad()
    def moments(self, fields: Fields, gap: Gap, passes: int) -> tuple[float, float]:
        """Mean and variance of what is drawn at the states of some steps, in units of the Gaussian: 0 and 1 are the data's."""
        z = Noise.draw(0, len(gap.state)).normal(0, self.shape).to(gap.state.device)
        u = self.carry(fields, gap.state, gap.conditions(0.0), z, passes)
        return float(u.mean()), float(u.var())

    def findings(self, gap: Gap, fields: Fields, coefficients: Any) -> list[str]:
        passes = fields.config.sampler.passes
        mean, variance = self.moments(fields, gap, passes)
        if abs(mean) < MEAN_OFF and abs(variance - 1) < VARIANCE_OFF:
            return []
        what = f"With passes={passes}, steps have mean {mean:.2f} and variance {variance:.2f} in units of the Gaussian"
        return [f"{what}; 0 and 1 are right. Use more `passes`, or train longer."]

    @property
    def is_sde(self) -> bool:
        return False

    def check_data(self, gaps: Tensor) -> None:
        check_one_length("Transport", gaps)

    def check_sampler(self, sampler: Sampler, gaps: Tensor, max_step: float, unit: float) -> None:
        if sampler.passes and sampler.diffusion:
            check_that_length("The law `Transport`", sampler, gaps, max_step, unit)

    def advance(self, fields: Fields, step: Step, condition: Condition, noise: Noise, sampler: Sampler) -> Tensor:
        if not (sampler.passes and sampler.diffusion):
            return super().advance(fields, step, condition, noise, sampler)
        state, given = step.state(step.x, step.time), condition(step.time)
        signs = partial(noise.signs, step.index, self.shape, stream=PROBES)
        c = fields.coefficients(state, given, sampler, signs, correction=False)
        u = self.carry(fields, state, given, step.z, sampler.passes)
        return step.x + c.drift * step.dt + c.diffusion * step.dt.sqrt() * u
