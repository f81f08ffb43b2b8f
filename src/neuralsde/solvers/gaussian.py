"""Gaussian densities with full covariances, written out in few dimensions, where that is faster and needs no host."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

WRITTEN_OUT = 4  # dimensions up to which triangular systems are written out


def cholesky(cov: Tensor) -> Tensor:
    """Lower root of a batch of covariances; written out in few dimensions, where it is faster and needs no host."""
    d = cov.shape[-1]
    if d > WRITTEN_OUT and not torch.compiler.is_exporting():  # ONNX has none
        return torch.linalg.cholesky(cov)
    root: list[list[Tensor]] = []
    for i in range(d):
        row: list[Tensor] = []
        for j in range(i + 1):
            rest = cov[..., i, j] - sum((row[k] * root[j][k] if j < i else row[k] ** 2) for k in range(j))
            row.append(rest.sqrt() if i == j else rest / root[j][j])
        root.append(row)
    zero = torch.zeros_like(cov[..., 0, 0])
    return torch.stack([torch.stack(row + [zero] * (d - len(row)), dim=-1) for row in root], dim=-2)


def solve_lower(root: Tensor, y: Tensor) -> Tensor:
    """x with root x = y, for vectors y (B, d)."""
    d = y.shape[-1]
    if d > WRITTEN_OUT:
        return torch.linalg.solve_triangular(root, y[..., None], upper=False)[..., 0]
    x: list[Tensor] = []
    for i in range(d):
        x.append((y[..., i] - sum(root[..., i, k] * x[k] for k in range(i))) / root[..., i, i])
    return torch.stack(x, dim=-1)


def log_density(
    error: Float[Tensor, "B d"], cov: Float[Tensor, "B d *d"], seen: Bool[Tensor, "B d"] | None = None
) -> Float[Tensor, " B"]:
    """log N(error; 0, cov) of the dimensions that were seen; a matrix (B, d) holds variances."""
    if seen is None:
        seen = torch.ones_like(error, dtype=torch.bool)
    error = error.where(seen, 0.0)  # no error and unit variance: what was not seen says nothing
    if cov.ndim == 2:
        z, log_std = error * cov.rsqrt(), 0.5 * cov.log().where(seen, 0.0)
    else:
        both = seen[:, :, None] & seen[:, None, :]
        root = cholesky(cov.where(both, 0.0) + torch.diag_embed((~seen).to(cov)))
        z = solve_lower(root, error)
        log_std = torch.diagonal(root, dim1=1, dim2=2).log()
    return (-0.5 * z.square() - log_std).sum(1) - 0.5 * math.log(2 * math.pi) * seen.sum(1)
