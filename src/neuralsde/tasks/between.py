"""Frames between those that a model draws, made of its own frames: what a model that takes any time is compared with.

A path has its start at place 0. Between two of its places, `rate` - 1 new ones are evenly spread.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def _shares(rate: int, path: Float[Tensor, "N T *S"]) -> Float[Tensor, "1 1 R *O"]:
    """How far the new places are on their way from one to the next."""
    shares = torch.arange(1, rate, device=path.device, dtype=path.dtype) / rate
    return shares.reshape(1, 1, -1, *[1] * (path.ndim - 2))


def straight(path: Float[Tensor, "N T *S"], rate: int) -> Float[Tensor, "N U *S"]:
    """On straight lines: of latents, or of pixels, where one image fades into the next."""
    return torch.lerp(path[:, :-1, None], path[:, 1:, None], _shares(rate, path)).flatten(1, 2)


def cubic(
    before: Float[Tensor, "N *S"], path: Float[Tensor, "N T *S"], after: Float[Tensor, "N *S"], rate: int
) -> Float[Tensor, "N U *S"]:
    """On cubics (Hermite's) whose velocity at each place is the mean of those on both sides.

    That is what a flow learned from interpolated states gives at a frame; one learned from start states gives the velocity
    of the side that follows.
    """
    s = _shares(rate, path)
    around = torch.cat([before[:, None], path, after[:, None]], dim=1)
    velocity = (around[:, 2:] - around[:, :-2]) / 2
    x0, x1, v0, v1 = (v[:, :, None] for v in (path[:, :-1], path[:, 1:], velocity[:, :-1], velocity[:, 1:]))
    step = 3 * s**2 - 2 * s**3
    return (x0 + step * (x1 - x0) + (s - 2 * s**2 + s**3) * v0 + (s**3 - s**2) * v1).flatten(1, 2)
