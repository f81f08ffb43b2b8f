"""Measurement noise: its standard deviation is learned; the filter says what is known of the true states behind it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from neuralsde.solvers.noise import Noise


class MeasurementNoise(nn.Module):
    """Gaussian, independent from one observation to the next."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(shape))
        """In units of the scale."""

    @torch.no_grad()
    def measure(self, log_g: Tensor, shortest: float) -> None:
        """Start at a quarter of the smallest steps."""
        self.log_std.copy_(log_g + 0.5 * math.log(shortest / 16))

    def measurements(self, states: Tensor, noise: Noise) -> Tensor:
        """Measurements of states (P, T, *S)."""
        steps = torch.arange(states.shape[1], device=states.device)
        return states + torch.exp(self.log_std.detach()) * noise.normal(steps, tuple(self.log_std.shape), stream=3)
