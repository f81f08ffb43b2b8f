"""Where a model of series stands: its scores beside those of forecasts that need no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch

from neuralsde.forecast.backtest import Backtest, Trial
from neuralsde.forecast.past import filled
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


def standings(test: Backtest, best: Trial, seasons: Sequence[float]) -> list[Standing]:
    """The choice and the references at the origins that took no part in the choice."""
    late = test.origins.judge
    past = test.origins.past(test.panel, late)
    truth = test.origins.truth(test.panel, late, test.horizon)
    rng = np.random.default_rng(0)
    drawn = {"model": test.draw_from(test.model, late, best.noise, NUM_PATHS)}
    period = round(min(seasons)) if seasons else 0
    pasts = [np.nan_to_num(filled(values)) for values in past.values]
    for name, reference in references(period).items():
        drawn[name] = np.stack([reference(own, test.horizon, rng) for own in pasts])
    found = []
    for name, samples in drawn.items():
        seen = np.isfinite(truth)
        inside = interval_coverage(torch.tensor(samples).movedim(1, 0), torch.tensor(np.where(seen, truth, 0.0)), 0.8)
        found.append(Standing(name, float(test.score(samples, late).mean()), float(inside.numpy()[seen].mean())))
    return found


Reference = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]
"""From the past of a series (n, d) to samples (N, horizon, d)."""


def references(period: int) -> dict[str, Reference]:
    """By name."""
    made: dict[str, Reference] = {"naive": naive}
    if period > 1:
        made["seasonal naive"] = lambda past, horizon, rng: seasonal_naive(past, horizon, rng, period)
    made["climatology"] = climatology
    if find_spec("statsforecast") is not None:
        made["ETS"] = lambda past, horizon, rng: smoothing(past, horizon, rng, max(period, 1))
    return made


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


def smoothing(past: np.ndarray, horizon: int, rng: np.random.Generator, period: int) -> np.ndarray:
    """Exponential smoothing by statsforecast, its bands taken as those of Gaussians."""
    from statsforecast.models import AutoETS

    out = []
    for column in past[-1_000:].T:
        made = AutoETS(season_length=period if period <= 24 else 1).forecast(column, h=horizon, level=[80])
        spread = np.maximum(np.asarray(made["hi-80"]) - np.asarray(made["mean"]), 0.0) / 1.2815515655446004
        out.append(np.asarray(made["mean"]) + spread * rng.standard_normal((NUM_PATHS, horizon)))
    return np.stack(out, axis=-1)
