"""Euler's Gaussian: drift and noise as they are at the start of the step. The paper's objectives for f and g."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from neuralsde.sde.fields import Fields
from neuralsde.sde.laws.law import StepLaw, residual
from neuralsde.sde.losses import DIFFUSION_LOSSES, flow_loss
from neuralsde.sde.measurement import Measured
from neuralsde.sde.pairs import Gap, Pair
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
        r = residual(fields, read, pair)
        return {
            "flow": flow_loss(config.flow_loss, read["flow"] - pair.target, pair.dt, log_g, config.delta),
            "diffusion": DIFFUSION_LOSSES[config.diffusion_loss](r, pair.dt, log_g),
        }

    def log_prob(self, gap: Gap, coefficients: Any, measured: Measured | None) -> Float[Tensor, " B"]:
        f, g = (v.flatten(1) for v in coefficients(gap.state, gap.conditions(0.0)))
        dt, seen = gap.dt.reshape(-1, 1), None if gap.mask is None else gap.mask.flatten(1)
        return log_density(gap.step.flatten(1) - f * dt, g**2 * dt, seen)
