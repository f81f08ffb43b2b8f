"""Frames between those that a model draws, made of its own frames: what a model that takes any time is compared with.

A path has its start at place 0. Between two of its places, `rate` - 1 new ones are evenly spread.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def straight(path: Float[Tensor, "N T *S"], rate: int) -> Float[Tensor, "N U *S"]:
    """On straight lines: of latents, or of pixels, where one image fades into the next."""
    shares = torch.arange(1, rate, device=path.device, dtype=path.dtype) / rate
    return torch.lerp(path[:, :-1, None], path[:, 1:, None], shares.reshape(-1, *[1] * (path.ndim - 2))).flatten(1, 2)


def cubic(
    before: Float[Tensor, "N *S"], path: Float[Tensor, "N T *S"], after: Float[Tensor, "N *S"], rate: int
) -> Float[Tensor, "N U *S"]:
    """On cubics, see `cubic_at`."""
    around = torch.cat([before[:, None], path, after[:, None]], dim=1)
    places = torch.arange(rate * (path.shape[1] - 1)) / rate
    return cubic_at(around, places[torch.arange(len(places)) % rate > 0])


def cubic_at(around: Float[Tensor, "N T *S"], places: Float[Tensor, " U"]) -> Float[Tensor, "N U *S"]:
    """On cubics (Hermite's) whose velocity at each place is the mean of those on both sides.

    That is what a flow learned from interpolated states gives at a frame; one learned from start states gives the velocity
    of the side that follows. The path has one place more at either end of `around`: place 0 is the second there.
    """
    left = places.floor().long().clamp(0, around.shape[1] - 4).to(around.device)
    s = (places.to(around) - left).reshape(-1, *[1] * (around.ndim - 2))
    before, x0, x1, after = (around[:, left + k] for k in range(4))
    v0, v1 = (x1 - before) / 2, (after - x0) / 2
    step = 3 * s**2 - 2 * s**3
    return x0 + step * (x1 - x0) + (s - 2 * s**2 + s**3) * v0 + (s**3 - s**2) * v1
