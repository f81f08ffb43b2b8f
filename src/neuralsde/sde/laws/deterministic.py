"""No noise: a step is the flow alone. It has no likelihood."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from neuralsde.sde.fields import Fields
from neuralsde.sde.laws.law import StepLaw
from neuralsde.sde.losses import flow_mse
from neuralsde.sde.pairs import Gap, Pair
from neuralsde.solvers.noise import Noise


class DeterministicStep(StepLaw):
    """x + f Δt."""

    @property
    def reads(self) -> tuple[str, ...]:
        return ("flow",)

    def losses(self, fields: Fields, read: dict[str, Tensor], pair: Pair, noise: Noise) -> dict[str, Tensor]:
        return {"flow": flow_mse(read["flow"] - pair.target, pair.dt)}

    def log_prob(self, gap: Gap, coefficients: Any) -> Float[Tensor, " B"]:
        raise ValueError("A deterministic model has no likelihood. Train with a law that has noise: law=Euler().")
