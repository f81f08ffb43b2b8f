"""Scores of probabilistic forecasts that are given as samples, and distances between sampled laws.

The CRPS E|X - y| - E|X - X'| / 2 and its multivariate form, the energy score, are proper: the true law has the least
expectation (Gneiting & Raftery, JASA 2007). Over N samples the mean of |X - X'| counts the N pairs of a sample with
itself; `fair` leaves them out, so that the expectation does not depend on N (Ferro, QJRMS 2014).

Calibration rests on ranks: where truth and N samples are exchangeable, the truth is equally likely to fall into each
of the N + 1 gaps between them. The share of a gap that lies within an interval is counted as such, so that calibrated
forecasts have the nominal coverage in expectation for every N.

Samples come first, (N, *B) for a truth (*B). Where `mask` is False nothing was observed, and the score is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from neuralsde.core.doors import door

MAX_PAIRS = 2**22  # pairs of samples whose distance is computed at once (32 MiB)
MOST_PAIRED = 2_048  # samples of which all pairs are taken
Z_95 = 1.959963984540054


def _aligned(
    samples: Tensor, truth: Tensor, mask: Tensor | None, *, least: int = 1
) -> tuple[Float[Tensor, "N *B"], Float[Tensor, "*B"], Bool[Tensor, "*B"]]:
    """The door: double precision, and zeros where nothing was observed."""
    if samples.ndim == 0 or samples.shape[1:] != truth.shape:
        raise ValueError(
            f"`samples` must have shape (N, *truth) for a truth of shape {tuple(truth.shape)}. Got {tuple(samples.shape)}. "
            "Bring the samples to the front with movedim."
        )
    if len(samples) < least:
        raise ValueError(f"This score needs at least {least} samples. Got {len(samples)}. Draw more (`num_paths`).")
    if mask is not None and mask.shape != truth.shape:
        raise ValueError(f"`mask` must have the shape of truth, {tuple(truth.shape)}. Got {tuple(mask.shape)}.")
    seen = torch.ones_like(truth, dtype=torch.bool) if mask is None else mask
    x, y = samples.double().where(seen, 0.0), truth.double().where(seen, 0.0)
    for name, values in (("samples", x), ("truth", y)):
        if not bool(torch.isfinite(values).all()):
            where = tuple(int(i) for i in (~torch.isfinite(values)).nonzero()[0])
            raise ValueError(f"`{name}` must be finite. Got {float(values[where])} at {where}. Mask what is missing.")
    return x, y, seen


@door
def crps(
    samples: Float[Tensor, "N ..."],
    truth: Float[Tensor, "..."],
    *,
    fair: bool = True,
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """Continuous ranked probability score of each entry, in its units; less is better."""
    x, y, seen = _aligned(samples, truth, mask, least=2 if fair else 1)
    num = len(x)
    x = (x - y).sort(0).values  # about the truth: no cancellation in the sums
    weight = torch.arange(1 - num, num, 2, device=x.device, dtype=x.dtype).reshape(-1, *[1] * y.ndim)
    spread = (weight * x).sum(0) / (num * (num - fair))  # sum over pairs i < j of x_j - x_i
    return (x.abs().mean(0) - spread).where(seen, torch.nan)


@door
def energy_score(
    samples: Float[Tensor, "N ... D"],
    truth: Float[Tensor, "... D"],
    *,
    fair: bool = True,
    mask: Bool[Tensor, "... D"] | None = None,
) -> Float[Tensor, "..."]:
    """E|X - y| - E|X - X'| / 2 with the Euclidean norm over the last axis (of what was observed); less is better."""
    x, y, seen = _aligned(samples, truth, mask, least=2 if fair else 1)
    num, size = len(x), y.shape[-1]
    x = (x - y).reshape(num, -1, size).movedim(0, 1)
    rows = max(1, MAX_PAIRS // min(num, MOST_PAIRED) ** 2)
    apart = torch.cat([_mean_distance(part) for part in x.split(rows)])
    score = x.norm(dim=-1).mean(1) - (0.5 if fair else 0.5 * (num - 1) / num) * apart
    return score.reshape(y.shape[:-1]).where(seen.any(-1), torch.nan)


def _mean_distance(x: Float[Tensor, "B N D"]) -> Float[Tensor, " B"]:
    """Of two different samples: over all pairs, or over those within groups of `MOST_PAIRED`, which have the same expectation."""
    groups = x.split(MOST_PAIRED, dim=1)
    pairs = sum(part.shape[1] * (part.shape[1] - 1) for part in groups)
    return torch.stack([_distances(part, part).sum((1, 2)) for part in groups]).sum(0) / max(pairs, 1)


def _distances(a: Float[Tensor, "*B N D"], b: Float[Tensor, "*B M D"]) -> Float[Tensor, "*B N M"]:
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")  # products of matrices lose near pairs


def _gap(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The ends, in [0, 1], of the gaps between samples in which the truth may lie: several where it ties with samples."""
    below, ties = (x < y).sum(0).double(), (x == y).sum(0)
    return below / (len(x) + 1), (below + ties + 1) / (len(x) + 1)


@door
def pit(
    samples: Float[Tensor, "N ..."],
    truth: Float[Tensor, "..."],
    *,
    rng: torch.Generator,
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """Probability integral transform: the place of the truth among the samples, exactly uniform if they are calibrated.

    `rng` places it within its gap.
    """
    x, y, seen = _aligned(samples, truth, mask)
    low, high = _gap(x, y)
    share = torch.rand(y.shape, generator=rng, device=rng.device, dtype=torch.float64).to(y.device)
    return torch.lerp(low, high, share).where(seen, torch.nan)


@door
def interval_coverage(
    samples: Float[Tensor, "N ..."],
    truth: Float[Tensor, "..."],
    level: float,
    *,
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "..."]:
    """Whether the truth lies in the central interval of probability `level`: 1, 0, or the share at its ends."""
    _check_probability(level, "level")
    x, y, seen = _aligned(samples, truth, mask)
    low, high = _gap(x, y)
    inside = high.clamp(max=(1 + level) / 2) - low.clamp(min=(1 - level) / 2)
    return (inside.clamp(min=0) / (high - low)).where(seen, torch.nan)


def _check_probability(value: float, name: str) -> None:
    if not 0 < value < 1:
        raise ValueError(f"`{name}` must be between 0 and 1. Got {value:g}. For 90 % write 0.9.")


@door
def quantiles(samples: Float[Tensor, "N *B"], probabilities: Sequence[float]) -> Float[Tensor, "Q *B"]:
    """Quantiles at position p (N + 1) of the sorted samples: a calibrated truth is below with probability p."""
    for p in probabilities:
        _check_probability(p, "probabilities")
    if not samples.ndim:
        raise ValueError("`samples` must have shape (N, …). Got a single number.")
    num = len(samples)
    extreme = min([*probabilities, *(1 - p for p in probabilities)], default=1.0)
    if extreme * (num + 1) < 1 - 1e-9:
        need = math.ceil(1 / extreme - 1 - 1e-9)
        raise ValueError(f"A probability of {extreme:g} needs {need} samples. Got {num}. Draw more (`num_paths`).")
    x = samples.double().sort(0).values
    place = torch.as_tensor(list(probabilities), device=x.device, dtype=x.dtype) * (num + 1) - 1
    left = place.floor().long().clamp(0, max(num - 2, 0))
    share = (place - left).clamp(0, 1).reshape(-1, *[1] * (x.ndim - 1))
    return torch.lerp(x[left], x[(left + 1).clamp(max=num - 1)], share)


@door
def interval_width(samples: Float[Tensor, "N *B"], level: float) -> Float[Tensor, "*B"]:
    """Width of the central interval of probability `level`."""
    _check_probability(level, "level")
    low, high = quantiles(samples, [(1 - level) / 2, (1 + level) / 2])
    return high - low


# Means with intervals


def student_t(dof: int) -> float:
    """Student's t for a two-sided 95 % interval: exact for 1 and 2 degrees of freedom, else Cornish-Fisher (to 0.2 %)."""
    if dof == 1:
        return math.tan(0.475 * math.pi)
    if dof == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z = Z_95
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / dof**k for k, term in enumerate(terms))


def _drop_unknown(values: Tensor, groups: Tensor | None) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"], int]:
    """The values that are not NaN, the number of the group of each, and how many groups there are."""
    if groups is None:
        flat = values.double().flatten()
        group = torch.arange(flat.numel(), device=flat.device)
    else:
        if groups.shape != values.shape[: groups.ndim]:
            raise ValueError(f"`groups` must name one per row of {tuple(values.shape)}. Got {tuple(groups.shape)}.")
        wide = groups.reshape(*groups.shape, *[1] * (values.ndim - groups.ndim)).expand(values.shape)
        flat, group = values.double().flatten(), wide.flatten().to(values.device)
    known = ~flat.isnan()
    names, group = torch.unique(group[known], return_inverse=True)
    return flat[known], group, len(names)


@door
def mean_ci(values: Float[Tensor, "..."], groups: Int[Tensor, "..."] | None = None) -> dict[str, Any]:
    """Mean and half width of its 95 % interval over `groups` that are independent of each other (one per row of values).

    NaN was not observed. Without `groups` every value counts as independent; one group has no interval.
    """
    flat, group, num_groups = _drop_unknown(values, groups)
    n = len(flat)
    if n == 0:
        return {"mean": None, "ci95": None, "n": 0, "num_groups": 0}
    mean = flat.mean()
    half = None
    if num_groups > 1:
        sums = torch.zeros(num_groups, dtype=flat.dtype, device=flat.device).index_add_(0, group, flat - mean)
        error = math.sqrt(num_groups / (num_groups - 1) * float(sums.square().sum())) / n
        half = student_t(num_groups - 1) * error
    return {"mean": float(mean), "ci95": half, "n": n, "num_groups": num_groups}


@door
def coverage_ci(
    covered: Float[Tensor, "..."], level: float, groups: Int[Tensor, "..."] | None = None
) -> dict[str, Any]:
    """`mean_ci` of coverage, whose interval is never below that of as many independent truths: all covered is not ± 0."""
    out = mean_ci(covered, groups)
    if out["ci95"] is not None:
        out["ci95"] = max(out["ci95"], Z_95 * math.sqrt(level * (1 - level) / out["n"]))
    return out


@door
def pit_histogram(
    values: Float[Tensor, "..."], *, num_bins: int = 10, groups: Int[Tensor, "..."] | None = None
) -> dict[str, Any]:
    """Fraction of PIT values in equal bins, and the band that holds 95 % of the fractions where they are uniform.

    Values of one group depend on each other: the band is that of fewer independent ones, `n_independent`, by the
    variance between groups. One group has no band.
    """
    flat, group, num_groups = _drop_unknown(values, groups)
    n = len(flat)
    if n == 0:
        raise ValueError("A PIT histogram needs at least one value that is not NaN. Got none.")
    hit = torch.nn.functional.one_hot((flat * num_bins).long().clamp(0, num_bins - 1), num_bins).double()
    fraction = hit.mean(0)
    out: dict[str, Any] = {"fraction": fraction.tolist(), "low": None, "high": None, "n": n, "n_independent": None}
    if num_groups < 2:
        return out
    sums = torch.zeros(num_groups, num_bins, dtype=hit.dtype, device=hit.device).index_add_(0, group, hit - fraction)
    between = num_groups / (num_groups - 1) * float(sums.square().sum()) / n
    alone = float((fraction * (1 - fraction)).sum())
    num = n if alone == 0 else max(1, round(n / max(1.0, between / alone)))
    low, high = _binomial_band(num, 1 / num_bins)
    return out | {"low": low / num, "high": high / num, "n_independent": num}


def _binomial_band(num: int, p: float) -> tuple[int, int]:
    """The 2.5 % and 97.5 % quantiles of Binomial(num, p)."""
    k = torch.arange(num + 1, dtype=torch.float64)
    ways = math.lgamma(num + 1) - torch.lgamma(k + 1) - torch.lgamma(num - k + 1)
    law = torch.exp(ways + k * math.log(p) + (num - k) * math.log1p(-p)).cumsum(0)
    low, high = torch.searchsorted(law, torch.tensor([0.025, 0.975], dtype=torch.float64)).clamp(max=num).tolist()
    return low, high


# Distances between laws


def _two_samples(a: Tensor, b: Tensor, least: int = 1) -> tuple[Tensor, Tensor]:
    """The door of the distances."""
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(f"Both samples must have values of one shape. Got {tuple(a.shape)} and {tuple(b.shape)}.")
    if min(len(a), len(b)) < least:
        raise ValueError(f"This distance needs at least {least} sample(s) of each law. Got {len(a)} and {len(b)}.")
    for values in (a, b):
        if not bool(torch.isfinite(values).all()):
            where = tuple(int(i) for i in (~torch.isfinite(values)).nonzero()[0])
            raise ValueError(f"Samples must be finite. Got {float(values[where])} at {where}. Drop what is missing.")
    return a.double(), b.double()


@door
def wasserstein_1d(a: Float[Tensor, "N ..."], b: Float[Tensor, "M ..."]) -> Float[Tensor, "..."]:
    """Wasserstein-1 distance of two samples, each along the first axis: the area between their distribution functions."""
    values, order = torch.cat(_two_samples(a, b)).sort(0)
    step = torch.full_like(values, -1 / len(b)).masked_fill(order < len(a), 1 / len(a))
    return (step.cumsum(0)[:-1].abs() * values.diff(dim=0)).sum(0)


@door
def energy_distance(a: Float[Tensor, "N _"], b: Float[Tensor, "M _"], *, unbiased: bool = False) -> float:
    """2 E|A - B| - E|A - A'| - E|B - B'| of two samples: 0 for one law, more for two.

    By default over all pairs, each value with itself included: never negative, and slightly above 0 for one law.
    `unbiased` leaves those out. In one dimension `scipy.stats.energy_distance` is the square root of the default.
    """
    x, y = _two_samples(a, b, least=2 if unbiased else 1)

    def total(u: Tensor, v: Tensor) -> float:
        return sum(float(_distances(part, v).sum()) for part in u.split(max(1, MAX_PAIRS // len(v))))

    num, other = len(x), len(y)
    within = total(x, x) / (num * (num - unbiased)) + total(y, y) / (other * (other - unbiased))
    return 2 * total(x, y) / (num * other) - within
