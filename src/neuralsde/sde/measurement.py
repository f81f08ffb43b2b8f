"""Measurement noise: its standard deviation is learned; the filter says what is known of the true states behind it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuralsde.solvers.noise import MEASUREMENT, Noise


class MeasurementNoise(nn.Module):
    """Gaussian, independent from one observation to the next."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(shape))
        """In units of the scale."""

    @torch.no_grad()
    def measure(self, step: Tensor, dt: Tensor, mask: Tensor | None) -> None:
        """Start where E Δx² = 2R + q Δt says, by least squares; at a quarter of the steps where gaps do not tell."""
        seen = torch.ones_like(step) if mask is None else mask.to(step)
        share = seen / seen.sum(0).clamp(min=1.0)
        gap, square = (share * dt).sum(0), (share * step.square()).sum(0)
        apart = share * (dt - gap)
        spread, both = (apart * (dt - gap)).sum(0), (apart * step.square()).sum(0)
        nugget = square - both / spread.clamp(min=1e-12) * gap
        told = spread > 1e-4 * gap.square()
        least, most = square / 32, 0.45 * square
        variance = torch.where(told, torch.minimum(torch.maximum(nugget / 2, least), most), least)
        self.log_std.copy_(0.5 * variance.clamp(min=1e-12).log())

    def measurements(self, states: Tensor, noise: Noise) -> Tensor:
        """Measurements of states (P, T, *S)."""
        steps = torch.arange(states.shape[1], device=states.device)
        return states + torch.exp(self.log_std.detach()) * noise.normal(
            steps, tuple(self.log_std.shape), stream=MEASUREMENT
        )
