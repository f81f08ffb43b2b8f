"""Where a model of series stands: its scores beside those of forecasts that need no model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch

from neuralsde.forecast.backtest import Backtest, Trial
from neuralsde.forecast.panel import Panel
from neuralsde.forecast.past import filled
from neuralsde.forecast.smoothing import smoothing
from neuralsde.metrics.forecast import interval_coverage

NUM_PATHS = 200


@dataclass(frozen=True)
class Standing:
    """One row of the table."""

    name: str
    crps: float
    """In mean steps of a series."""
    coverage: float
    """Share of the truths inside the 80 % band."""
    by_lead: tuple[float, ...] = ()
    """CRPS of each step ahead; NaN where nothing was observed."""


def standings(test: Backtest, best: Trial, seasons: Sequence[float]) -> list[Standing]:
    """The choice and the references at the origins that took no part in the choice."""
    late = test.origins.judge
    past = test.origins.past(test.panel, late)
    truth = test.origins.truth(test.panel, late, test.horizon)
    rng = np.random.default_rng(0)
    drawn = {"model": test.draw_from(test.model, late, best.noise, NUM_PATHS)}
    drawn |= draw_references(past, test.horizon, period_of(seasons), rng)
    found = []
    for name, samples in drawn.items():
        seen = np.isfinite(truth)
        inside = interval_coverage(torch.tensor(samples).movedim(1, 0), torch.tensor(np.where(seen, truth, 0.0)), 0.8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            each = np.nanmean(test.each(samples, late), axis=(0, 2))
        score = float(test.score(samples, late).mean())
        found.append(Standing(name, score, float(inside.numpy()[seen].mean()), tuple(each.tolist())))
    return found


def period_of(seasons: Sequence[float]) -> int:
    """Of the references: the shortest season, in whole steps; 0: none."""
    return round(min(seasons)) if seasons else 0


def draw_references(past: Panel, horizon: int, period: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Futures (B, N, horizon, d) from the ends of some series, by the name of the reference."""
    pasts = [np.nan_to_num(filled(values)) for values in past.values]
    made: dict[str, Reference] = {"naive": naive}
    if period > 1:
        made["seasonal naive"] = lambda past, horizon, rng: seasonal_naive(past, horizon, rng, period)
    made["climatology"] = climatology
    library = find_spec("statsforecast") is not None
    if library:
        made["ETS"] = lambda past, horizon, rng: auto_ets(past, horizon, rng, max(period, 1))
    drawn = {name: np.stack([reference(own, horizon, rng) for own in pasts]) for name, reference in made.items()}
    return drawn if library else drawn | {"ETS": smoothing(pasts, horizon, NUM_PATHS, period, rng)}


Reference = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]
"""From the past of a series (n, d) to samples (N, horizon, d)."""


def naive(past: np.ndarray, horizon: int, rng: np.random.Generator) -> np.ndarray:
    """The last value goes on, with steps as large as those of the past."""
    size = np.sqrt(np.mean(np.diff(past, axis=0) ** 2, axis=0))
    return past[-1] + size * rng.standard_normal((NUM_PATHS, horizon, past.shape[1])).cumsum(1)


def seasonal_naive(past: np.ndarray, horizon: int, rng: np.random.Generator, period: int) -> np.ndarray:
    """The last season goes on, with changes from one to the next as large as those of the past."""
    if len(past) <= period:
        return naive(past, horizon, rng)
    size = np.sqrt(np.mean((past[period:] - past[:-period]) ** 2, axis=0))
    ahead = np.arange(horizon)
    mean = past[len(past) - period + ahead % period]
    spread = np.sqrt(ahead // period + 1)[:, None] * size
    return mean + spread * rng.standard_normal((NUM_PATHS, horizon, past.shape[1]))


def climatology(past: np.ndarray, horizon: int, rng: np.random.Generator) -> np.ndarray:
    """Any value of the past."""
    return past[rng.integers(len(past), size=(NUM_PATHS, horizon))]


def auto_ets(past: np.ndarray, horizon: int, rng: np.random.Generator, period: int) -> np.ndarray:
    """Exponential smoothing by statsforecast, its bands taken as those of Gaussians."""
    from statsforecast.models import AutoETS

    out = []
    for column in past[-1_000:].T:
        made = AutoETS(season_length=period if period <= 24 else 1).forecast(column, h=horizon, level=[80])
        spread = np.maximum(np.asarray(made["hi-80"]) - np.asarray(made["mean"]), 0.0) / 1.2815515655446004
        out.append(np.asarray(made["mean"]) + spread * rng.standard_normal((NUM_PATHS, horizon)))
    return np.stack(out, axis=-1)
