"""What a training left unsaid: noise that goes together, steps that are not Gaussian, what finer steps would change.

Each finding is one sentence with its number and what to do. They come from steps of the data in the units of the law that was
learned, in which they should be independent unit Gaussians.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from neuralsde.sde.laws.law import StepLaw
from neuralsde.sde.pairs import Gap

ENOUGH = 500  # steps from which on something is said
MOST_FEATURES = 256
TOGETHER = 0.2  # correlation of the noise of two features from which on it is said
APART = 0.06  # largest difference of distribution functions from which on steps are not Gaussian
SHIFT = 0.1  # standard deviations of a step by which finer steps may shift its mean


def findings(law: StepLaw, gap: Gap, coefficients: Any, unit: float) -> list[str]:
    """Sentences about a model that was just trained; times are in units of `unit`."""
    if gap.mask is not None:
        gap = gap.rows(gap.mask.flatten(1).all(1).nonzero()[:, 0])
    if len(gap.state) < ENOUGH or len(law.shape) != 1 or law.shape[0] > MOST_FEATURES:
        return []
    z = law.standardised(gap, coefficients)
    return [
        *_correlation(z, law),
        *(_gaussian(z, gap, unit) if law.spans_gaps else []),
        *([] if law.spans_gaps else _finer(gap, coefficients, unit)),
    ]


def _correlation(z: Tensor, law: StepLaw) -> list[str]:
    if z.shape[1] < 2:
        return []
    found = torch.corrcoef(z.T).nan_to_num(0.0).fill_diagonal_(0.0)
    place = int(found.abs().argmax())
    i, j = place // len(found), place % len(found)
    value = float(found[i, j])
    if abs(value) < TOGETHER:
        return []
    means = "Sums and differences of features then spread wrongly" + (
        ", and interpolated states or Moments also bend the drift" if law.spans_gaps or not law.start else ""
    )
    remedy = "Use covariance=Full()" if z.shape[1] <= 32 else "Use covariance=LowRank()"
    return [
        f"The noise of features {i} and {j} goes together: {value:.2f} is left in the residuals. {means}. {remedy}."
    ]


def _gaussian(z: Tensor, gap: Gap, unit: float) -> list[str]:
    """Classes of gaps whose steps are not Gaussian, by the distance of Kolmogorov and Smirnov."""
    classes = torch.log2(gap.dt.flatten()).ceil().long()
    far = []
    for number in sorted(classes.unique().tolist()):
        own = z[classes == number]
        if len(own) < ENOUGH:
            continue
        far += [(number, distance)] if (distance := _distance(own)) > APART + 1.6 / math.sqrt(len(own)) else []
    if not far:
        return []
    spans = ", ".join(f"{2.0 ** (k - 1) * unit:.3g} to {2.0**k * unit:.3g}" for k, _ in far)
    worst = max(d for _, d in far)
    what = f"Steps over gaps of {spans} are not Gaussian: distribution functions differ by up to {worst:.2f}"
    return [
        f"{what}. Moments then match their mean and variance alone. Mixture() learns even gaps with tails and modes."
    ]


def _distance(z: Tensor) -> float:
    """Largest difference to the unit Gaussian's distribution function, over features."""
    values = z.sort(0).values
    rank = (torch.arange(len(z), device=z.device)[:, None] + 0.5) / len(z)
    return float((torch.special.ndtr(values) - rank).abs().max())


def _finer(gap: Gap, coefficients: Any, unit: float) -> list[str]:
    """How far two steps of half the length shift the mean of a step, in its standard deviations."""
    state, dt, given = gap.state, gap.dt, gap.conditions(0.0)
    if state.shape[1] > 1:  # the slots of a state are steps apart
        return []
    c = coefficients(state, given)
    half = state[:, -1] + c.drift * dt / 2
    second = coefficients(half[:, None], given).drift
    shift = float(((second - c.drift) * dt / 2 / (c.diffusion * dt.sqrt())).square().mean().sqrt())
    if not shift > SHIFT:
        return []
    what = f"What Euler learned belongs to steps of {unit:.3g}: two of half the length shift the mean by {shift:.2f} of its std"
    return [f"{what}. Draw at the times of the data, or use law=Moments()."]
