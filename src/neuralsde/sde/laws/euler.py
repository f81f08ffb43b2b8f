"""Euler's Gaussian: drift and noise as they are at the start of the step. The paper's objectives for f and g."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from neuralsde.sde.fields import Fields
from neuralsde.sde.laws.law import StepLaw, residual
from neuralsde.sde.losses import DIFFUSION_LOSSES, flow_loss
from neuralsde.sde.pairs import Gap, Pair
from neuralsde.solvers.correlation import Correlation
from neuralsde.solvers.gaussian import log_density
from neuralsde.solvers.noise import Noise


class EulerStep(StepLaw):
    """x + f Δt + g √Δt z."""

    @property
    def weighs_gaps(self) -> bool:
        return self.config.flow_loss != "log"

    def losses(self, fields: Fields, read: dict[str, Tensor], pair: Pair, noise: Noise) -> dict[str, Tensor]:
        """eq:simplified_f_objective and eq:simplified_g_objective, or what the config has in their place."""
        config, log_g = self.config, read["diffusion"]
        r, correlation = residual(fields, read, pair), fields.correlation(read)
        if correlation is None:
            diffusion = DIFFUSION_LOSSES[config.diffusion_loss](r, pair.dt, log_g)
        else:
            entries = r[0].numel() if pair.mask is None else pair.mask.float().sum() / len(r)
            diffusion = -_log_density(r.detach() * pair.dt, torch.exp(log_g) * pair.dt.sqrt(), correlation, pair.mask)
            diffusion = diffusion / entries
        flow = flow_loss(config.flow_loss, read["flow"] - pair.target, pair.dt, log_g, config.delta)
        return {"flow": flow, "diffusion": diffusion}

    def log_prob(self, gap: Gap, coefficients: Any) -> Float[Tensor, " B"]:
        c = coefficients(gap.state, gap.conditions(0.0))
        if c.correlation is not None:
            return _log_density(gap.step - c.drift * gap.dt, c.diffusion * gap.dt.sqrt(), c.correlation, gap.mask)
        f, g = c.drift.flatten(1), c.diffusion.flatten(1)
        dt, seen = gap.dt.reshape(-1, 1), None if gap.mask is None else gap.mask.flatten(1)
        return log_density(gap.step.flatten(1) - f * dt, g**2 * dt, seen)

    def step_moments(self, gap: Gap, coefficients: Any) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B d d"]]:
        c = coefficients(gap.state, gap.conditions(0.0))
        g = (c.diffusion * gap.dt.sqrt()).flatten(1)
        cov = torch.diag_embed(g.square()) if c.correlation is None else c.correlation.covariance(g)
        return (gap.state[:, -1] + c.drift * gap.dt).flatten(1), cov


def _log_density(error: Tensor, std: Tensor, correlation: Correlation, mask: Tensor | None) -> Tensor:
    """Log density (B,) of errors with these standard deviations and this correlation."""
    seen = None if mask is None else mask.flatten(1)
    units = std.log() if mask is None else std.log().where(mask, 0.0)
    return correlation.log_density((error / std).flatten(1), seen) - units.flatten(1).sum(1)
