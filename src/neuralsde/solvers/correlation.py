"""Noise that goes together: the correlation of the noise of a step, as a root with rows of unit length.

The noise of a step is g ⊙ (R z), so g stays its standard deviation per dimension and Σ = g g' ⊙ R R'. A net gives the columns
of R before they are scaled; where it gives 0 the noise is independent.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from neuralsde.solvers.gaussian import log_density, solve_lower

BEGIN = 0.3  # size of the shared columns before training


class Correlation(ABC):
    """Of flattened states, one per row of a batch."""

    @abstractmethod
    def mix(self, z: Float[Tensor, "B d"], further: Float[Tensor, "B k"] | None) -> Float[Tensor, "B d"]:
        """Correlated noise of unit variance from independent numbers; `further` ones are read where there are columns for them."""

    @property
    @abstractmethod
    def matrix(self) -> Float[Tensor, "B d d"]:
        """R R'."""

    @abstractmethod
    def times(self, v: Float[Tensor, "B d"]) -> Float[Tensor, "B d"]:
        """R R' v."""

    @abstractmethod
    def log_density(self, error: Float[Tensor, "B d"], seen: Bool[Tensor, "B d"] | None) -> Float[Tensor, " B"]:
        """log N(error; 0, R R') of the dimensions that were seen."""

    def covariance(self, g: Float[Tensor, "B d"]) -> Float[Tensor, "B d d"]:
        """Σ of noise with standard deviations g."""
        return g[:, :, None] * self.matrix * g[:, None, :]


@dataclass(frozen=True)
class FullCorrelation(Correlation):
    """Any correlation, by its Cholesky root."""

    root: Float[Tensor, "B d d"]  # lower triangular

    @classmethod
    def of(cls, columns: Float[Tensor, "B d d"]) -> FullCorrelation:
        """From what a net gives: entry (j, i) for column j of row i."""
        lower = columns.mT.tril(-1)
        length = (1 + lower.square().sum(-1)).sqrt()
        eye = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
        return cls((lower + eye) / length[..., None])

    def mix(self, z: Tensor, further: Tensor | None) -> Tensor:
        return (self.root @ z[..., None])[..., 0]

    @property
    def matrix(self) -> Tensor:
        return self.root @ self.root.mT

    def times(self, v: Tensor) -> Tensor:
        return (self.root @ (self.root.mT @ v[..., None]))[..., 0]

    def log_density(self, error: Tensor, seen: Tensor | None) -> Tensor:
        if seen is not None:
            return log_density(error, self.matrix, seen)
        z = solve_lower(self.root, error)
        log_std = torch.diagonal(self.root, dim1=1, dim2=2).log()
        return (-0.5 * z.square() - log_std).sum(1) - 0.5 * math.log(2 * math.pi) * error.shape[1]


@dataclass(frozen=True)
class LowRankCorrelation(Correlation):
    """Independent noise and a few columns that are shared: C = diag(own²) + own own' ⊙ V V', by Woodbury's formula."""

    own: Float[Tensor, "B d"]  # share of a dimension's own noise, 1/√(1 + |v|²)
    columns: Float[Tensor, "B d k"]  # V

    @classmethod
    def of(cls, columns: Float[Tensor, "B k d"]) -> LowRankCorrelation:
        """From what a net gives; from 0 there would be no way to either sign, so it begins at small cosines."""
        rank, size = columns.shape[1:]
        place = torch.arange(size, device=columns.device) + 0.5
        wave = torch.arange(1, rank + 1, device=columns.device)[:, None]
        v = (columns + BEGIN * torch.cos(math.pi / size * wave * place)).mT
        return cls((1 + v.square().sum(-1)).rsqrt(), v)

    def mix(self, z: Tensor, further: Tensor | None) -> Tensor:
        assert further is not None
        return self.own * (z + (self.columns @ further[..., None])[..., 0])

    @property
    def matrix(self) -> Tensor:
        shared = self.own[..., None] * self.columns
        return shared @ shared.mT + torch.diag_embed(self.own.square())

    def times(self, v: Tensor) -> Tensor:
        scaled = self.own * v
        return self.own * (scaled + (self.columns @ (self.columns.mT @ scaled[..., None]))[..., 0])

    def log_density(self, error: Tensor, seen: Tensor | None) -> Tensor:
        own, v = self.own, self.columns
        if seen is not None:  # no error, no column and unit variance: what was not seen says nothing
            error, own, v = error.where(seen, 0.0), own.where(seen, 1.0), v.where(seen[..., None], 0.0)
        num = error.shape[1] if seen is None else seen.sum(1)
        white = error / own
        inner = v.mT @ v + torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
        root = torch.linalg.cholesky(inner)
        along = solve_lower(root, (v.mT @ white[..., None])[..., 0])
        log_std = own.log().sum(1) + torch.diagonal(root, dim1=1, dim2=2).log().sum(1)
        return -0.5 * (white.square().sum(1) - along.square().sum(1)) - log_std - 0.5 * math.log(2 * math.pi) * num
