"""Mean and covariance of an SDE over a gap that is not small.

The Euler density takes drift and noise as they are at the start of a step. Over a gap dt this biases what is learned by
O(dt): an Ornstein-Uhlenbeck rate of 1 is read as (1 - e^-dt)/dt. Here the first two moments obey their own equations,

    m' = E f(X),    P' = E[A] P + P E[A]' + E Σ(X),    X ~ N(m, P),

whose expectations are taken over 2d points on the axes of P (exact for cubic functions) at the middle of the step. They make
the SDE linear, c + A (x - m), and the linear one is solved over the whole step: by short steps of third order, doubled
`DOUBLINGS` times. One step costs 1 + 2d evaluations in two batched passes. Its error is of third order in dt. For linear f
and constant Σ only that of the short steps is left, so it stays stable where rates are fast against the gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralsde.solvers.gaussian import cholesky

DOUBLINGS = 4  # the linear step is made of 2⁴ short ones: 1 % off at rate · gap 10, stable up to 40

Fields = Callable[[Tensor, float, "Tensor | slice"], tuple[Tensor, Tensor]]
"""Drift (N, d) and covariance of the noise, (N, d) variances or (N, d, d), of N states when a share of the gap has passed;
the states belong, in order, to the given rows of the batch, each repeated equally often."""


def propagate(
    fields: Fields,
    x: Float[Tensor, "B d"],
    dt: Float[Tensor, "B 1"],
    num_steps: int | Int[Tensor, " B"],
    reach: float = math.inf,
) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B d d"]]:
    """Mean and covariance after `dt`, from x.

    `num_steps` is one number, or one per row. The SDE is made linear no further than about `reach` from where a step starts.
    """
    if isinstance(num_steps, Tensor):
        return _by_groups(fields, x, dt, num_steps, reach)
    return _propagate(fields, x, dt, num_steps, reach, slice(None))


def _by_groups(fields: Fields, x: Tensor, dt: Tensor, num_steps: Tensor, reach: float) -> tuple[Tensor, Tensor]:
    """Rows that take equally many steps, together."""
    numbers = num_steps.unique().tolist()
    if len(numbers) == 1:
        return _propagate(fields, x, dt, numbers[0], reach, slice(None))
    parts, places = [], []
    for number in numbers:
        rows = (num_steps == number).nonzero()[:, 0]
        parts.append(_propagate(fields, x[rows], dt[rows], number, reach, rows))
        places.append(rows)
    back = torch.cat(places).argsort()
    return torch.cat([mean for mean, _ in parts])[back], torch.cat([cov for _, cov in parts])[back]


def _propagate(
    fields: Fields, x: Tensor, dt: Tensor, num_steps: int, reach: float, rows: Tensor | slice
) -> tuple[Tensor, Tensor]:
    h = dt / num_steps
    mean: Tensor = x
    cov: Tensor | None = None
    for k in range(num_steps):
        # Expectations at the start of the step, then at its middle
        f, q = _expect(fields, k / num_steps, mean, cov if cov is None else cholesky(cov), rows)[:2]
        ahead, grow = _limited(f * h / 2, reach), q * h.reshape(-1, *[1] * (q.ndim - 1)) / 2
        if q.ndim == 2:
            grow = grow / (1 + grow / reach**2)
        if cov is None:
            root = torch.diag_embed(grow.sqrt()) if q.ndim == 2 else cholesky(grow)
        else:
            root = cholesky(cov + (torch.diag_embed(grow) if q.ndim == 2 else grow))
        drift, q, rise = _expect(fields, (k + 0.5) / num_steps, mean + ahead, root, rows)
        slope = _solve_right(rise, root, diagonal=cov is None and q.ndim == 2)  # A, from A · axes = rise
        first = drift - (slope @ ahead[..., None])[..., 0]  # of the linear drift, at the mean
        moved, decay, grown = _linear_step(first, slope, torch.diag_embed(q) if q.ndim == 2 else q, h[..., None])
        mean = mean + moved
        cov = grown if cov is None else decay @ cov @ decay.mT + grown
    assert cov is not None
    return mean, cov


def _limited(step: Tensor, reach: float) -> Tensor:
    """A step that is not longer than `reach`; short ones hardly change."""
    return step / (1 + (step / reach).square()).sqrt()


def _linear_step(first: Tensor, slope: Tensor, noise: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shift of the mean, decay and grown covariance of dx = (first + slope x) dt + dW, Cov dW = noise dt, from 0 over h."""
    h = h / 2**DOUBLINGS
    a = h * slope
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    squared = a @ a
    half = eye + a / 2 + squared / 8
    decay = eye + a + squared / 2 + squared @ a / 6
    grown = (noise + 4 * half @ noise @ half.mT + decay @ noise @ decay.mT) * (h / 6)  # Simpson: positive
    moved = h * ((eye + a / 2 + squared / 6) @ first[..., None])
    for _ in range(DOUBLINGS):
        moved = decay @ moved + moved
        grown = decay @ grown @ decay.mT + grown
        decay = decay @ decay
    return moved[..., 0], decay, grown


def _expect(
    fields: Fields, share: float, mean: Tensor, root: Tensor | None, rows: Tensor | slice
) -> tuple[Tensor, Tensor, Tensor]:
    """E f, E Σ and the rise of f along the columns of `root`, over the points of N(mean, root root')."""
    if root is None:
        f, q = fields(mean, share, rows)
        return f, q, f
    n, d = mean.shape
    axes = math.sqrt(d) * root.mT
    points = torch.cat([mean[:, None] + axes, mean[:, None] - axes], dim=1)
    f, q = fields(points.reshape(-1, d), share, rows)
    f, q = f.reshape(n, 2 * d, d), q.reshape(n, 2 * d, *q.shape[1:])
    return f.mean(1), q.mean(1), 0.5 / math.sqrt(d) * (f[:, :d] - f[:, d:]).mT


def _solve_right(rise: Tensor, axes: Tensor, *, diagonal: bool) -> Tensor:
    """rise · axes⁻¹ for lower triangular axes."""
    if diagonal or axes.shape[-1] == 1:
        return rise / torch.diagonal(axes, dim1=1, dim2=2)[:, None, :]
    if not torch.compiler.is_exporting():
        return torch.linalg.solve_triangular(axes, rise, upper=False, left=False)
    columns: list[Tensor] = []  # written out, last first: ONNX has no solver
    for j in reversed(range(axes.shape[-1])):
        known = sum(axes[:, k, j, None] * column for k, column in zip(range(j + 1, axes.shape[-1]), columns))
        columns.insert(0, (rise[:, :, j] - known) / axes[:, j, j, None])
    return torch.stack(columns, dim=-1)
