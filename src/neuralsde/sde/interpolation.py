"""States between two observations: what the nets are trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from neuralsde.sde.fields import Fields
from neuralsde.sde.slots import moved
from neuralsde.solvers.noise import Noise


def draw_tau(start_probability: float, noise: Noise) -> Tensor:
    """τ (B,): 0 with this probability, else uniform on [0, 1]."""
    start, tau = noise.uniform(0, (2,), stream=1).float().unbind(1)
    return torch.where(start <= start_probability, 0.0, tau)


def linear(
    fields: Fields, now: Tensor, after: Tensor, tau: Tensor, dt: Tensor, condition: Tensor | None, noise: Noise
) -> Tensor:
    """The straight line (eq:interpolation), all slots by the same time."""
    return moved(now, torch.lerp(now[:, -1], after, tau), tau * dt)


def bridge(
    fields: Fields, now: Tensor, after: Tensor, tau: Tensor, dt: Tensor, condition: Tensor | None, noise: Noise
) -> Tensor:
    """A Brownian bridge: x_τ then has the law of the path, which the straight line narrows."""
    x = linear(fields, now, after, tau, dt, condition, noise)
    with torch.no_grad():
        spread = torch.exp(fields.evaluated.log_diffusion(x, condition)) * (tau * (1 - tau) * dt).sqrt()
    x[:, -1] += spread * noise.normal(0, tuple(after.shape[1:]), stream=2)
    return x


INTERPOLATIONS = {"linear": linear, "bridge": bridge}
