"""Rectified Flow (Liu et al., ICLR 2023) for the next state: y_s = (1-s) z + s y, velocity y - z, Euler steps."""

from __future__ import annotations

import torch
from torch import Tensor

from neuralsde.baselines.config import Generation
from neuralsde.baselines.next_state import Fresh, Net, NextStateModel
from neuralsde.solvers.noise import Noise


class RectifiedFlow(NextStateModel):
    """Straight transport from noise to the next state."""

    def generation_loss(self, y: Tensor, history: Tensor, condition: Tensor | None, noise: Noise) -> Tensor:
        z = noise.normal(1, tuple(y.shape[1:]))
        s = noise.uniform(2).float()
        y_s = torch.lerp(z, y, s.reshape(-1, *[1] * (y.ndim - 1)))
        return (self.net(y_s, s, history, condition) - (y - z)) ** 2

    def generate(self, z: Tensor, net: Net, fresh: Fresh, sampler: Generation) -> Tensor:
        y, h = z, 1.0 / sampler.num_steps
        for k in range(sampler.num_steps):
            y = y + h * net(y, torch.full((1,), k * h, device=y.device))
        return y
