"""Geometry of planar paths."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def distance_to_segments(points: Float[Tensor, "*B 2"], segments: Float[Tensor, "K 2 2"]) -> Float[Tensor, "*B"]:
    """Distance of each point to the nearest of K segments (start, end)."""
    start, along = segments[:, 0], segments[:, 1] - segments[:, 0]
    offset = points[..., None, :] - start
    share = ((offset * along).sum(-1) / (along**2).sum(-1)).clamp(0, 1)
    return (offset - share[..., None] * along).norm(dim=-1).amin(-1)


def crossing(paths: Float[Tensor, "N T 2"], height: float) -> Float[Tensor, " N"]:
    """The x at which each path first has |y| = height, linearly interpolated; NaN where it never does."""
    x, y = paths[..., 0], paths[..., 1].abs()
    over = y >= height
    k = over.float().argmax(1).clamp(min=1)[:, None]
    x0, x1, y0, y1 = x.gather(1, k - 1), x.gather(1, k), y.gather(1, k - 1), y.gather(1, k)
    at = x0 + (x1 - x0) * ((height - y0) / (y1 - y0).clamp(min=1e-12)).clamp(0, 1)
    return torch.where(over.any(1), at[:, 0], torch.nan)


def shares(labels: Int[Tensor, " N"], num_labels: int) -> list[float]:
    """Fraction of each label 0 … num_labels - 1; a label of -1 counts for none."""
    return [float((labels == k).float().mean()) for k in range(num_labels)]
