"""Measurement noise: its standard deviation is learned, and the true state behind a measured one is known up to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.solvers.noise import Noise


@dataclass(frozen=True)
class Measured:
    """What is known of the true state behind a measured one, flattened."""

    variance: Float[Tensor, " d"]  # of the measurement noise
    score: Float[Tensor, "B d"]  # of the density of measured states
    slope: Float[Tensor, "B d"]  # diagonal of the score's Jacobian

    def law(self) -> tuple[Tensor, Tensor]:
        """Shift and variance of the true state given the measured one (Tweedie's formula)."""
        return self.variance * self.score, self.variance * (1 + self.variance * self.slope).clamp(min=0.1)


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

    def behind(self, score: Tensor, slope: Tensor) -> Measured:
        """What is known of true states, by the score of measured ones and its slope."""
        return Measured(torch.exp(2 * self.log_std).flatten(), score.flatten(1), slope.flatten(1))

    def true_states(self, state: Tensor, measured: Measured, noise: Noise) -> Tensor:
        """Draw the states (P, H, *S) behind measured ones."""
        shift, variance = measured.law()
        z = noise.normal(0, tuple(self.log_std.shape), stream=2).flatten(1)
        newest = state[:, -1] + (shift + variance.sqrt() * z).detach().reshape(state[:, -1].shape)
        return torch.cat([state[:, :-1], newest[:, None]], dim=1)

    def measurements(self, states: Tensor, noise: Noise) -> Tensor:
        """Measurements of states (P, T, *S)."""
        steps = torch.arange(states.shape[1], device=states.device)
        return states + torch.exp(self.log_std.detach()) * noise.normal(steps, tuple(self.log_std.shape), stream=3)
