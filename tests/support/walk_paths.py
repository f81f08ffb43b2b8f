"""Walks and a model of them."""

import math

import numpy as np
import torch
from toy_models import field_model

import neuralsde as nsde

DRIFT, DIFFUSION = 0.2, 0.5


def walks(rng, num_paths=120, regular=False):
    states, times = [], []
    for _ in range(num_paths):
        dt = np.full(40, 0.3) if regular else rng.exponential(0.3, size=rng.integers(30, 60))
        steps = DRIFT * dt[:, None] + DIFFUSION * np.sqrt(dt)[:, None] * rng.standard_normal((len(dt), 2))
        states.append(steps.cumsum(0))
        times.append(dt.cumsum())
    return nsde.Trajectories.from_arrays(states, times)


def walk_model(wider=1.0, dt_ref=0.5):
    """dx = DRIFT dt + DIFFUSION dw in two dimensions: the law is Gaussian at any time."""
    log_g = math.log(wider * DIFFUSION * math.sqrt(dt_ref))
    model = field_model(
        (2,), dt_ref, flow=lambda x, c: 0 * x + DRIFT * dt_ref, log_g=lambda x, c: torch.full_like(x, log_g)
    )
    model.scale.low.fill_(-100.0)
    model.scale.high.fill_(100.0)
    return model
