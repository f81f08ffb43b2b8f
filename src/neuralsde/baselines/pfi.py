"""Probabilistic forecasting with stochastic interpolants and Föllmer processes (Chen et al., ICML 2024).

Between the present state and the next one lies X_s = β(s) y + σ(s) W_s, where y is the increment, σ(s) = ε (1 - s) and β is s.
The net learns the drift b = E[y + σ' W_s | X_s]; from X_0 = 0 the SDE dX = b ds + σ dW has the law of y at s = 1. With
β = s², the paper's other choice, the drift is 0 at the start, so that a single pass could not move.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neuralsde.baselines.config import Generation, PFIConfig
from neuralsde.baselines.next_state import Fresh, Net, NextStateModel
from neuralsde.solvers.noise import Noise

EPSILON = 0.3  # noise of the process at its start, in units of the increments


class PFI(NextStateModel):
    """A diffusion from the present state to the next one, in a time of its own."""

    config: PFIConfig

    def interpolate(self, y: Tensor, s: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """X_s and the rate whose mean the drift is, for W_s = √s z."""
        noise = s.sqrt() * z
        return s * y + EPSILON * (1 - s) * noise, y - EPSILON * noise

    def generation_loss(self, y: Tensor, history: Tensor, condition: Tensor | None, noise: Noise) -> Tensor:
        z, s = noise.normal(1, tuple(y.shape[1:])), noise.uniform(2).float()
        x, rate = self.interpolate(y, s.reshape(-1, *[1] * (y.ndim - 1)), z)
        return (self.net(x, s, history, condition) - rate) ** 2

    def generate(self, z: Tensor, net: Net, fresh: Fresh, sampler: Generation) -> Tensor:
        x, num = torch.zeros_like(z), sampler.num_steps
        for k in range(num):
            s = torch.full((1,), k / num, device=z.device)
            x = x + net(x, s) / num
            if k + 1 < num:  # the last step ends on the mean: its noise would outlast it
                x = x + EPSILON * (1 - k / num) * (z if k == 0 else fresh(k)) / num**0.5
        return x
