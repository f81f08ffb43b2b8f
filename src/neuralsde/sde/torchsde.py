"""A learned SDE in the form that torchsde takes: f(t, y), g(t, y), in raw units.

In raw units dy = f dt + G dw. Where features are scaled one by one and their noise is independent, G is diagonal. Whitened
states and learned covariances mix the noise, and G is a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.models.scale import Scale
from neuralsde.solvers.correlation import Correlation, FullCorrelation, LowRankCorrelation
from neuralsde.solvers.schemes import Coefficients

At = Callable[[Tensor, Tensor], Coefficients]
"""Coefficients in units of the scale at states (B, 1, *S) in these units, at times (B,) in reference steps."""


class TorchSDE(nn.Module):
    """An Ito SDE for `torchsde.sdeint`; states are flattened to (B, d)."""

    sde_type = "ito"

    def __init__(self, scale: Scale, at: At, nets: nn.Module, *, correlated: bool) -> None:
        super().__init__()
        self.scale, self.nets = scale, nets
        self.at = at
        self.correlated = correlated
        self.noise_type = "general" if correlated or scale.turns else "diagonal"

    def _coefficients(self, t: Any, y: Tensor) -> tuple[Tensor, Coefficients]:
        x = y.reshape(-1, *self.scale.shape)
        time = torch.as_tensor(t, dtype=torch.float64, device=y.device).expand(x.shape[0]) / self.scale.step
        return x, self.at(self.scale.states(x)[:, None], time)

    def f(self, t: Any, y: Float[Tensor, "B d"]) -> Float[Tensor, "B d"]:
        """The drift per unit of time, in raw units (Ito)."""
        x, c = self._coefficients(t, y)
        return self.scale.fields(x, c.drift, c.diffusion, c.correlation)[0].reshape(y.shape)

    def g(self, t: Any, y: Float[Tensor, "B d"]) -> Float[Tensor, "B d ..."]:
        """The diffusion per root of a unit of time, in raw units: (B, d), or (B, d, m) where the noise is mixed."""
        x, c = self._coefficients(t, y)
        if self.noise_type == "diagonal":
            return self.scale.fields(x, c.drift, c.diffusion)[1].reshape(y.shape)
        root = c.diffusion.flatten(1)[..., None] * _root(c.correlation, c.diffusion.flatten(1))
        return self.scale.root(x, root)


def _root(correlation: Correlation | None, like: Float[Tensor, "B d"]) -> Float[Tensor, "B d m"]:
    """R of the noise R z: square, or with columns for the noise that dimensions share after those of their own."""
    if isinstance(correlation, FullCorrelation):
        return correlation.root
    if isinstance(correlation, LowRankCorrelation):
        own = torch.diag_embed(correlation.own)
        return torch.cat([own, correlation.own[..., None] * correlation.columns], dim=-1)
    return torch.diag_embed(torch.ones_like(like))
