"""How good forecasts are: likelihood, proper scores, calibration, and the same of two references that need no model.

Scores of one path depend on each other, so that intervals of their means take paths as the independent unit (or, where
there is one path only, its origins, which is too few where these overlap). Means over features are in units of each
feature's standard deviation in the data; by feature, scores are in raw units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from neuralsde.core.doors import Positive, Seed, door
from neuralsde.data.trajectories import Paths, Trajectories
from neuralsde.forecast.futures import Forecasts, forecasts
from neuralsde.forecast.references import climatology, random_walk
from neuralsde.metrics import forecast as metrics
from neuralsde.metrics.forecast import mean_ci
from neuralsde.models.sequence import SequenceModel

LEVELS = (0.5, 0.8, 0.95)  # central intervals that are reported
RELIABILITY = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Levels of the curve of nominal against observed coverage."""
NUM_LEADS = 10  # parts of the horizon by which scores are reported
MAX_FEATURES = 64  # features up to which each is reported
MAX_ELEMENTS = 2**23  # numbers that are scored at once (64 MiB in double precision)


@door
def evaluate_forecasts(
    model: SequenceModel,
    data: Paths,
    *,
    horizon: Positive,
    reference: Paths | None = None,
    seed: Seed = 0,
    **options: Any,
) -> dict[str, Any]:
    """Scores of a model on paths that it was not trained on, as plain numbers; `options` are those of `forecasts`.

    `reference` gives other paths to the references than the evaluated ones.
    """
    made = forecasts(model, data, horizon=horizon, seed=seed, **options)
    return {"nll": negative_log_likelihood(model, data)} | score_forecasts(made, data, reference=reference, seed=seed)


def negative_log_likelihood(model: SequenceModel, data: Trajectories) -> dict[str, Any] | None:
    """Of each observation given those before, in raw units; None where the model has no likelihood, or none follows another."""
    own = type(model).transition_log_prob is not SequenceModel.transition_log_prob
    law = getattr(model.config, "law", None)
    if not own or not getattr(law, "stochastic", True):
        return None
    try:
        path = data.transitions(history=model.config.history, spacing=model.lag).path.cpu()
    except ValueError:  # no feature is observed at two consecutive observations: there is no likelihood to add up
        return None
    num = torch.bincount(path, minlength=len(data))
    each = -model.log_prob(data).cpu().double() / num
    return mean_ci(each[path], path)


@dataclass(frozen=True)
class Laws:
    """Samples of references by name, (K, N, T, *S), for some of the forecasts."""

    rows: Int[Tensor, " K"]
    samples: dict[str, Tensor]


def score_forecasts(
    made: Forecasts,
    data: Trajectories,
    *,
    reference: Trajectories | None = None,
    laws: Laws | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Scores of forecasts of `data`, and those of the references for the same observations: `laws`, or else the random walk and
    the climatology.

    Without a `reference` these draw from the other paths; of a single one, from before the forecast, and forecasts with
    too little before them count in the scores of the model alone. A reference that has no forecast left is left out.
    """
    data = data.to("cpu")
    rng = torch.Generator().manual_seed(seed)
    if not bool(made.mask.any()):
        raise ValueError("Forecasts without any truth cannot be scored. Make them with `forecasts`, not `futures`.")
    scorer = _Scorer(made, data)
    num_paths, known = made.samples.shape[1], made.mask.flatten(2).any(2)
    lead = made.lead.where(known, made.lead[known].min())  # padding may lie beyond the end of every path
    if laws is None:
        pool, path = (data, made.path) if reference is None else (reference.to("cpu"), None)
        drawn: dict[str, Any] = {"origin": made.origin, "num_paths": num_paths, "rng": rng}
        walk = random_walk(pool, made.start, path, lead, **drawn)
        marginal = climatology(pool, path, **drawn)[:, :, None].expand_as(made.samples)
        laws = Laws(torch.arange(len(made.path)), {"random_walk": walk, "climatology": marginal})

    size = math.prod(data.shape)
    names = data.names if data.names is not None and len(data.names) == size else [f"x{k}" for k in range(size)]
    own, own_crps = scorer.scores(made.samples)
    references = {}
    some = _rows(made, laws.rows)
    for name, samples in laws.samples.items():
        there = some.mask & ~samples.isnan().any(1)  # a single path has a past to draw from only later on
        if bool(there.any()):
            scores, values = _Scorer(replace(some, mask=there), data).scores(samples)
            common = own_crps[laws.rows].where(~values.isnan(), torch.nan)
            references[name] = scores | {"skill": _skill(common, values, scorer.groups[laws.rows])}
    return {
        "horizon": float(lead.max()),
        "num_paths": num_paths,
        "num_series": len(torch.unique(made.path)),
        "num_origins": len(made.path),
        "independent": scorer.independent,
        "features": list(names[:MAX_FEATURES]),
        **own,
        **scorer.calibration(made.samples, rng),
        "references": references,
    }


def _rows(made: Forecasts, rows: Int[Tensor, " K"]) -> Forecasts:
    """Some of the forecasts."""
    names = ("path", "origin", "start", "times", "samples", "truth", "mask")
    parts: dict[str, Any] = {name: getattr(made, name)[rows] for name in names}
    return replace(made, **parts)


def _skill(own: Tensor, other: Tensor, groups: Tensor) -> dict[str, Any]:
    """1 - ratio of mean scores: 1 is perfect, 0 no better than the reference. The interval is that of the paired ratio."""
    below = float(other[~other.isnan()].mean())
    if below == 0:
        return mean_ci(torch.full_like(own, torch.nan), groups)
    ratio = float(own[~own.isnan()].mean()) / below
    out = mean_ci(own - ratio * other, groups)
    return out | {"mean": 1 - ratio, "ci95": None if out["ci95"] is None else out["ci95"] / below}


class _Scorer:
    """The truth of some forecasts, with features flattened, and what means are taken over."""

    def __init__(self, made: Forecasts, data: Trajectories) -> None:
        self.truth: Float[Tensor, "B T D"] = made.truth.flatten(2).double()
        self.mask: Bool[Tensor, "B T D"] = made.mask.flatten(2)
        single = bool((made.path == made.path[0]).all())
        self.independent = "origin" if single else "path"
        self.groups: Int[Tensor, " B"] = torch.arange(len(made.path)) if single else made.path
        states = data.states.flatten(1).double()
        seen = torch.ones_like(states, dtype=torch.bool) if data.observed is None else data.observed.flatten(1)
        values = states.where(seen, torch.nan)
        spread = (values - values.nanmean(0)).square().nanmean(0).sqrt()
        self.unit: Float[Tensor, " D"] = spread.where(spread > 0, 1.0)
        known = self.mask.any(2)
        horizon = float(made.lead[known].max())
        part = (made.lead / horizon * NUM_LEADS - 1e-6).long().clamp(0, NUM_LEADS - 1)
        self.leads = [
            (float(made.lead[p].mean()), p) for p in (known & (part == k) for k in range(NUM_LEADS)) if p.any()
        ]

    def each(self, score: Callable[..., Tensor], samples: Tensor, unit: Tensor | float = 1.0) -> Tensor:
        """The score of every entry, in parts that fit into memory."""
        size = max(1, MAX_ELEMENTS // max(1, samples[0].numel()))
        parts = []
        for rows in torch.arange(len(samples)).split(size):
            x = samples[rows].flatten(3).movedim(1, 0).double() / unit
            parts.append(score(x, self.truth[rows] / unit, self.mask[rows]))
        return torch.cat(parts)

    def mean(self, values: Tensor) -> dict[str, Any]:
        return mean_ci(values, self.groups)

    def by_feature(self, values: Float[Tensor, "B T D"]) -> list[dict[str, Any]]:
        return [self.mean(v) for v in values.unbind(2)] if values.shape[2] <= MAX_FEATURES else []

    def scores(self, samples: Float[Tensor, "B N T *S"]) -> tuple[dict[str, Any], Float[Tensor, "B T D"]]:
        """Scores of one law, and the scaled CRPS of every entry."""
        raw = self.each(lambda x, y, mask: metrics.crps(x, y, mask=mask), samples)
        scaled = raw / self.unit
        energy = self.each(lambda x, y, mask: metrics.energy_score(x, y, mask=mask), samples, self.unit)
        error = self.each(lambda x, y, mask: (x.mean(0) - y).square().where(mask, torch.nan), samples)
        out: dict[str, Any] = {
            "crps": self.mean(scaled),
            "crps_by_feature": self.by_feature(raw),
            "crps_by_lead": [
                {"lead": lead} | self.mean(scaled.where(part[..., None], torch.nan)) for lead, part in self.leads
            ],
            "energy_score": self.mean(energy),
            "rmse": _root(self.mean(error / self.unit**2)),
            "rmse_by_feature": [_root(m) for m in self.by_feature(error)],
            "coverage": {},
            "width": {},
        }
        for level in LEVELS:
            width = self.each(
                lambda x, y, mask, level=level: metrics.interval_width(x, level).where(mask, torch.nan), samples
            )
            out["coverage"][f"{level:g}"] = self.coverage(samples, level)
            out["width"][f"{level:g}"] = self.mean(width / self.unit)
        return out, scaled

    def coverage(self, samples: Tensor, level: float) -> dict[str, Any]:
        covered = self.each(lambda x, y, mask: metrics.interval_coverage(x, y, level, mask=mask), samples)
        return metrics.coverage_ci(covered, level, self.groups)

    def calibration(self, samples: Float[Tensor, "B N T *S"], rng: torch.Generator) -> dict[str, Any]:
        """The curve of coverage and the PIT histogram."""
        places = self.each(lambda x, y, mask: metrics.pit(x, y, rng=rng, mask=mask), samples)
        return {
            "reliability": [{"level": level} | self.coverage(samples, level) for level in RELIABILITY],
            "pit": metrics.pit_histogram(places, groups=self.groups),
        }


def _root(square: dict[str, Any]) -> dict[str, Any]:
    """The root of a mean, its interval by the slope of the root."""
    if not square["mean"]:
        return square
    root = math.sqrt(square["mean"])
    return square | {"mean": root, "ci95": None if square["ci95"] is None else square["ci95"] / (2 * root)}
