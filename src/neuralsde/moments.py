"""The law of a step that is not small: Gaussian, with the mean and covariance of the SDE over the whole gap.

The Euler density takes drift and noise as they are at the start of a step. Over a gap dt this biases what is learned by
O(dt): an Ornstein-Uhlenbeck rate of 1 is read as (1 - e^-dt)/dt. Here the first two moments obey their own equations,

    m' = E f(X),    P' = E[A] P + P E[A]' + E g²(X),    X ~ N(m, P),

whose expectations are taken over 2d points on the axes of P (exact for cubic functions) at the middle of the step. One
step costs 1 + 2d evaluations in two batched passes; its error is of third order in dt, and it is exact in P for linear f.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

WRITTEN_OUT = 4
"""Dimensions up to which triangular systems are written out."""
MAX_DIMENSIONS = 32
"""Features up to which the points and the covariance are affordable."""


Fields = Callable[[Tensor, float], tuple[Tensor, Tensor]]
"""Drift and diffusion (N, d) of N states when a share of the gap has passed; the states belong, in order, to the rows of
the batch, each repeated equally often."""


def propagate(
    fields: Fields,
    x: Float[Tensor, "B d"],
    dt: Float[Tensor, "B 1"],
    num_steps: int,
    start: Float[Tensor, "B d"] | None = None,
) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B d d"]]:
    """Mean and covariance after `dt`, from N(x, diag(start)), or from x itself."""
    h, d = dt / num_steps, x.shape[1]
    eye = torch.eye(d, dtype=x.dtype, device=x.device)
    mean, cov = x, None if start is None else torch.diag_embed(start)
    for k in range(num_steps):
        # Expectations at the start of the step, then at its middle
        f, q = _expect(fields, k / num_steps, mean, cov if cov is None else cholesky(cov))[:2]
        grow = q * h / 2
        root = torch.diag_embed(grow.sqrt()) if cov is None else cholesky(cov + torch.diag_embed(grow))
        drift, q, rise = _expect(fields, (k + 0.5) / num_steps, mean + f * h / 2, root)
        slope = h[..., None] * _solve_right(rise, root, diagonal=cov is None)  # A h, from A · axes = rise
        half = eye + slope / 2 + slope @ slope / 8
        whole = half @ half
        row = q[:, None, :]  # X diag(q) X' = (X * q) @ X'
        grown = (torch.diag_embed(q) + 4 * (half * row) @ half.mT + (whole * row) @ whole.mT) * (h[..., None] / 6)
        cov = grown if cov is None else whole @ cov @ whole.mT + grown
        bend = (slope @ slope @ f[..., None])[..., 0] / 6
        mean = mean + h * (drift + bend)
    assert cov is not None
    return mean, cov


def _expect(fields: Fields, share: float, mean: Tensor, root: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """E f, E g² and the rise of f along the columns of `root`, over the points of N(mean, root root')."""
    if root is None:
        f, g = fields(mean, share)
        return f, g.square(), f
    n, d = mean.shape
    axes = math.sqrt(d) * root.mT
    points = torch.cat([mean[:, None] + axes, mean[:, None] - axes], dim=1)
    f, g = (v.reshape(n, 2 * d, d) for v in fields(points.reshape(-1, d), share))
    return f.mean(1), g.square().mean(1), 0.5 / math.sqrt(d) * (f[:, :d] - f[:, d:]).mT


def cholesky(cov: Tensor) -> Tensor:
    """Lower root of a batch of covariances; written out in few dimensions, where it is faster and needs no host."""
    d = cov.shape[-1]
    if d > WRITTEN_OUT:
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


def _solve_right(rise: Tensor, axes: Tensor, *, diagonal: bool) -> Tensor:
    """rise · axes⁻¹ for lower triangular axes."""
    if diagonal or axes.shape[-1] == 1:
        return rise / torch.diagonal(axes, dim1=1, dim2=2)[:, None, :]
    return torch.linalg.solve_triangular(axes, rise, upper=False, left=False)


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


@dataclass(frozen=True)
class Measured:
    """What is known of the true state behind a measured one, flattened."""

    variance: Float[Tensor, " d"]
    """Of the measurement noise."""
    score: Float[Tensor, "B d"]
    """Of the density of measured states."""
    slope: Float[Tensor, "B d"]
    """Diagonal of the score's Jacobian."""

    def law(self) -> tuple[Tensor, Tensor]:
        """Shift and variance of the true state given the measured one (Tweedie's formula)."""
        return self.variance * self.score, self.variance * (1 + self.variance * self.slope).clamp(min=0.1)


def moved(state: Float[Tensor, "B H *S"], newest: Float[Tensor, "B *S"], past: Tensor) -> Float[Tensor, "B H *S"]:
    """The slots, one reference step apart, when `past` (B values) steps have passed and the newest state is `newest`.

    Older ones follow the path by straight lines between what is known of it.
    """
    last = state.shape[1] - 1
    if last == 0:
        return newest[:, None]
    past = past.reshape(-1, 1)
    place = torch.arange(last, device=past.device) + past
    low = place.clamp(max=last).floor().clamp(max=last - 1).long()
    rows, shape = torch.arange(len(state), device=state.device)[:, None], (*place.shape, *[1] * (newest.ndim - 1))
    share = (place - low).clamp(max=1.0).reshape(shape)
    beyond = ((place - last).clamp(min=0.0) / past.clamp(min=1e-12)).reshape(shape)
    older = torch.lerp(torch.lerp(state[rows, low], state[rows, low + 1], share), newest[:, None], beyond)
    return torch.cat([older, newest[:, None]], dim=1)


def step_log_prob(
    fields: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]],
    condition: Callable[[float], Tensor | None],
    state: Float[Tensor, "B H *S"],
    step: Float[Tensor, "B *S"],
    dt: Float[Tensor, "B ..."],
    num_steps: int,
    seen: Bool[Tensor, "B d"] | None,
    measured: Measured | None,
) -> Float[Tensor, " B"]:
    """Log density of the step that the newest slot of `state` makes in `dt`.

    Args:
        fields: drift and diffusion (N, *S) of states (N, H, *S) with their conditions.
        condition: when a share of the gap has passed.
        state: the newest slot moves, and the older ones with it.
        step: the difference to the next observation.
        dt: the gap.
        num_steps: in which the moments are propagated; 0 takes Euler's.
        seen: dimensions that were observed.
        measured: where both ends of the step are noisy measurements.
    """

    def at(x: Tensor, share: float) -> tuple[Tensor, Tensor]:
        times, given = len(x) // len(state), condition(share)
        before, past = (v.repeat_interleave(times, 0) for v in (state, share * dt))
        slots = moved(before, x.reshape(-1, *state.shape[2:]), past)
        f, g = fields(slots, None if given is None else given.repeat_interleave(times, 0))
        return f.flatten(1), g.flatten(1)

    first, dt, step = state[:, -1].flatten(1), dt.reshape(-1, 1), step.flatten(1)
    if num_steps == 0:
        f, g = at(first, 0.0)
        return log_density(step - f * dt, g**2 * dt, seen)
    if measured is None:
        mean, cov = propagate(at, first, dt, num_steps)
        return log_density(step - (mean - first), cov, seen)
    shift, before = measured.law()
    mean, cov = propagate(at, first + shift, dt, num_steps, before)
    return log_density(step - (mean - first), cov + torch.diag_embed(measured.variance.expand_as(step)), seen)
