"""A step with tails and modes: a mixture of Gaussians, learned by likelihood and drawn in one pass.

Flow and diffusion are Euler's, so that the drift, the score and the pull keep their meaning. A further net learns how the
step is distributed in their units:

    ξ = (x' - x - f Δt) / g√Δt,        p(ξ) = Σ_k w_k Π_i N(ξ_i; μ_ki, s_ki²)

The weights w are those of the whole state: its features decide together. Means and widths are per feature. The widths have
a floor: steps that repeat exactly have no density, and without it the likelihood would grow without end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from neuralsde.models.sequence import Condition
from neuralsde.sde.config import Sampler
from neuralsde.sde.fields import Fields
from neuralsde.sde.laws.euler import EulerStep
from neuralsde.sde.laws.law import check_one_length, check_that_length, residual
from neuralsde.sde.losses import diffusion_nll, flow_mse
from neuralsde.sde.pairs import Gap, Pair, of_another_length
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import COMPONENT, PROBES, Noise

FARTHEST = 50.0  # mean of a component, in standard deviations of the step: an event of probability 1 / 2500
NARROWEST, WIDEST = 0.01, 20.0  # standard deviations of a component
APART = 0.7  # rms of the means before training: components that are alike would stay alike


@dataclass(frozen=True)
class Components:
    """A mixture of K Gaussians with independent features."""

    log_weight: Float[Tensor, "B K"]
    mean: Float[Tensor, "B K *S"]
    log_std: Float[Tensor, "B K *S"]

    def log_prob(self, xi: Float[Tensor, "B *S"], mask: Bool[Tensor, "B *S"] | None) -> Float[Tensor, " B"]:
        """Log density of the entries that were observed: the others drop out of each component."""
        xi = xi if mask is None else xi.where(mask, 0.0)
        z = (xi[:, None] - self.mean) * torch.exp(-self.log_std)
        each = -0.5 * z**2 - self.log_std - 0.5 * math.log(2 * math.pi)
        if mask is not None:
            each = each.where(mask[:, None], 0.0)
        return torch.logsumexp(self.log_weight + each.flatten(2).sum(2), 1)

    def draw(self, u: Float[Tensor, " B"], z: Float[Tensor, "B *S"]) -> Float[Tensor, "B *S"]:
        """ξ from a uniform number, which chooses the component, and unit Gaussians."""
        passed = self.log_weight.exp().cumsum(1)[:, :-1] < u[:, None]
        rows, chosen = torch.arange(z.shape[0], device=z.device), passed.sum(1)
        return self.mean[rows, chosen] + torch.exp(self.log_std[rows, chosen]) * z

    def moments(self) -> tuple[Float[Tensor, "B *S"], Float[Tensor, "B *S"]]:
        """Mean and standard deviation of ξ: 0 and 1 where flow and diffusion say the same of the step."""
        weight = self.log_weight.exp().reshape(*self.log_weight.shape, *[1] * (self.mean.ndim - 2))
        mean = (weight * self.mean).sum(1)
        spread = (self.mean - mean[:, None]) ** 2 + torch.exp(2 * self.log_std)
        return mean, (weight * spread).sum(1).sqrt()


def within(raw: Tensor, start: Tensor, low: float, high: float) -> Tensor:
    """A net's output, bounded smoothly: 0 gives `start`, and the slope there is 1."""
    share = (start - low) / (high - low)
    return low + (high - low) * torch.sigmoid(torch.logit(share) + raw / (share * (1 - share) * (high - low)))


class MixtureStep(EulerStep):
    """x + f Δt + g √Δt ξ."""

    @property
    def reads(self) -> tuple[str, ...]:
        return ("flow", "diffusion", "mixture")

    @property
    def weighs_gaps(self) -> bool:
        return True

    def components(self, raw: Float[Tensor, "B F *S"]) -> Components:
        """The mixture of a net's output. An output of 0 has mean 0 and variance 1, and components that differ."""
        num, size = self.config.components, math.prod(self.shape)
        weight, mean, log_std = raw.split(num, 1)
        # Means before training: cosines over the components, others for each feature, else features would go together
        wave = 1 + torch.arange(size, device=raw.device).remainder(num - 1)
        place = (torch.arange(num, device=raw.device) + 0.5) * (math.pi / num)
        start = APART * math.sqrt(2) * torch.cos(place[:, None] * wave).reshape(num, *self.shape)
        width = torch.full_like(start, 0.5 * math.log(1 - APART**2))
        return Components(
            torch.log_softmax(weight.flatten(2).mean(2), 1),
            within(mean, start, -FARTHEST, FARTHEST),
            within(log_std, width, math.log(NARROWEST), math.log(WIDEST)),
        )

    def losses(self, fields: Fields, read: dict[str, Tensor], pair: Pair, noise: Noise) -> dict[str, Tensor]:
        log_g, r = read["diffusion"], residual(fields, read, pair)
        xi = -r.detach() * pair.dt.sqrt() * torch.exp(-log_g.detach())
        entries = xi[0].numel() if pair.mask is None else pair.mask.float().sum() / len(xi)
        return {
            "flow": flow_mse(read["flow"] - pair.target, pair.dt),
            "diffusion": diffusion_nll(r, pair.dt, log_g),
            "mixture": -self.components(read["mixture"]).log_prob(xi, pair.mask) / entries,
        }

    def log_prob(self, gap: Gap, coefficients: Any) -> Float[Tensor, " B"]:
        off = gap.dt[of_another_length(gap.dt)]
        if len(off):
            remedy = "Pass transitions of one lag, or use Euler()."
            raise ValueError(f"The law `Mixture` knows steps of one length. Got {float(off[0]):g} times that. {remedy}")
        assert gap.fields is not None
        given = gap.conditions(0.0)
        c = coefficients(gap.state, given)
        spread = c.diffusion * gap.dt.sqrt()
        mixture = self.components(gap.fields.read(gap.state, given, "mixture")["mixture"])
        units = spread.log() if gap.mask is None else spread.log().where(gap.mask, 0.0)
        return mixture.log_prob((gap.step - c.drift * gap.dt) / spread, gap.mask) - units.flatten(1).sum(1)

    def moments(self, fields: Fields, state: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the step that is drawn at a state, in units of the scale."""
        read = fields.read(state, condition, *self.reads)
        mean, std = self.components(read["mixture"]).moments()
        g = torch.exp(read["diffusion"])
        return read["flow"] + g * mean, g * std

    @property
    def is_sde(self) -> bool:
        return False

    def check_data(self, gaps: Tensor) -> None:
        check_one_length("Mixture", gaps)

    def check_sampler(self, sampler: Sampler, gaps: Tensor, max_step: float, unit: float) -> None:
        if sampler.diffusion:
            check_that_length("The law `Mixture`", sampler, gaps, max_step, unit)

    def advance(self, fields: Fields, step: Step, condition: Condition, noise: Noise, sampler: Sampler) -> Tensor:
        if sampler.diffusion == 0:
            return super().advance(fields, step, condition, noise, sampler)
        state, given = step.state(step.x, step.time), condition(step.time)
        names = fields.config.parts if fields.config.shared else ("mixture",)  # a shared net gives all in one pass
        read = fields.read(state, given, *names)
        signs = partial(noise.signs, step.index, self.shape, stream=PROBES)
        c = fields.coefficients(state, given, sampler, signs, correction=False, read=read)
        xi = self.components(read["mixture"]).draw(noise.uniform(step.index, stream=COMPONENT), step.z)
        return step.x + c.drift * step.dt + c.diffusion * step.dt.sqrt() * xi
