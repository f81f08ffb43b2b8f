"""What happens in the worker when *forecast* is pressed: `nsde.fit_series` where stamps are even, `nsde.fit_table` elsewhere.

What comes back is what the page draws: quantiles of each series by date, and the same of forecasts of what is known, made by a
model that had not seen it.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from neuralsde.core.records import RunError
from neuralsde.data.tables.read import Table, read_table
from neuralsde.data.trajectories import Trajectories
from neuralsde.forecast.fit import FittedTable, fit_table, hold_out
from neuralsde.forecast.futures import Forecasts
from neuralsde.forecast.report import verdict
from neuralsde.forecast.series import SeriesModel, SeriesReport, fit_series, frequency_of
from neuralsde.forecast.skill import score_forecasts
from neuralsde.forecast.tables import TableForecast, TableModel
from neuralsde.selection.report import Report
from neuralsde.studio.desk import Desk, meanwhile
from neuralsde.training.config import RunOptions, TrainConfig

LEVELS = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975)
"""Quantiles: the ends of the 95, 80 and 50 % bands, and the median between."""
NUM_PATHS, SHOWN_PATHS = 400, 12
PAST = 600  # observations of a series that are shown
TESTS = 4  # forecasts of the backtest that are shown of a series
HOLDOUT = 0.2
AHEAD = 20  # times of the forecast where stamps are uneven
SCORED, SCORED_PATHS = 24, 64  # forecasts of what was held out, and samples of each
NAMES = {"random_walk": "naive (random walk)"}


def forecast(
    desk: Desk,
    file: str,
    reading: dict[str, Any],
    budget: float,
    max_trials: int | None,
    steps: int | None,
    horizon: int | None,
    seed: int,
) -> dict[str, Any]:
    """Work of the tab Your table: fit, test, forecast; all of it comes back as plain values."""
    table = read_table(file, **reading)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if frequency_of(table) is not None:
            fitted, report, tests = _even(desk, table, budget, max_trials, horizon, seed)
        else:
            fitted, report, tests = _uneven(desk, table, budget, steps, horizon, seed)
    desk.report("progress", share=0.97, said="Drawing the forecasts")
    ahead = horizon if report["kind"] == "series" else report["span"]
    num_times = {} if report["kind"] == "series" else {"num_times": report["horizon"]}
    made = fitted.futures(table, horizon=ahead, num_paths=NUM_PATHS, seed=seed, **num_times)
    notes = dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning))
    return {
        "report": {**report, "notes": list(notes), "seed": seed},
        "panels": panels_of(table, made, tests),
        "csv": TableForecast(made, table, 0.0, LEVELS).text(),
    }


def _even(
    desk: Desk, table: Table, budget: float, max_trials: int | None, horizon: int | None, seed: int
) -> tuple[TableModel, dict[str, Any], tuple[Table, Forecasts] | None]:
    began, tried = time.monotonic(), []

    def say(text: str) -> None:
        tried.append(text)
        share = max((time.monotonic() - began) / (budget + 2), len(tried) / ((max_trials or 10) + 2))
        desk.report("progress", share=min(0.95, share), said=f"Trial {len(tried)}, {text} (CRPS, smaller is better)")

    how: dict[str, Any] = {"budget": budget, "max_trials": max_trials, "seed": seed}
    fitted = fit_series(table, horizon=horizon, progress=False, say=say, **how)
    tests = fitted.backtest_forecasts()
    return fitted, series_words(fitted), None if tests is None else (table, tests)


def series_words(fitted: SeriesModel) -> dict[str, Any]:
    """What `fit_series` reports, for the page."""
    report = fitted.report
    assert isinstance(report, SeriesReport)
    return {
        "kind": "series",
        **report.to_dict(),
        "unit": "in mean steps of a series",
        "verdict": [line for line in str(report).splitlines() if line.startswith(("Better than", "The series are"))],
    }


def _uneven(
    desk: Desk, table: Table, budget: float, steps: int | None, horizon: int | None, seed: int
) -> tuple[TableModel, dict[str, Any], tuple[Table, Forecasts] | None]:
    run = desk.folder / "run"
    told: dict[str, Any] = {"budget": budget} if steps is None else {"steps": steps}
    known, later, words = hold_out(table, HOLDOUT, seed)
    assert later is not None
    options = RunOptions(progress=False, cpu=True)
    with _watch(desk, run, budget if steps is None else None, steps):
        fitted = fit_table(known, output=run, options=options, train=TrainConfig(seed=seed), holdout=0.0, **told)
    desk.report("progress", share=0.9, said="Forecasting what was held out")
    scores, tests = None, None
    try:
        few = -(-SCORED // len(later.ids))
        made = fitted.scored(later, horizon=None, origins_per_path=few, num_paths=SCORED_PATHS, seed=seed)
        scores, tests = {"nll": None, **score_forecasts(made, later.data, reference=known.data)}, (later, made)
        lines = verdict(scores)
    except (ValueError, RunError) as error:
        lines = [f"No forecasts were scored: {error}"]
    ahead = horizon or AHEAD
    report = {**table_words(fitted, scores), "horizon": ahead, "span": ahead * fitted.model.scale.step}
    return fitted, {**report, "verdict": lines, "words": words}, tests


def table_words(fitted: FittedTable, scores: dict[str, Any] | None) -> dict[str, Any]:
    """What `fit_table` chose and how it scores, for the page."""
    laws = {} if scores is None else {"model": scores, **scores["references"]}
    rows = [
        {
            "name": NAMES.get(name, name),
            "crps": law["crps"]["mean"],
            "coverage": law["coverage"]["0.8"]["mean"],
        }
        for name, law in laws.items()
    ]
    chosen = Report.of(fitted.model) if fitted.model.report else None
    return {
        "kind": "table",
        "frequency": "",
        "num_series": len(fitted.table.ids),
        "seasons": [],
        "tried": [],
        "choice": "the default of a table" if chosen is None else chosen.choice,
        "reason": "It holds for wide and uneven gaps." if chosen is None else chosen.reason,
        "standings": rows,
        "num_judged": 0 if scores is None else scores["num_origins"],
        "unit": "in standard deviations of the data",
    }


# What the page draws


def panels_of(table: Table, made: Forecasts, tests: tuple[Table, Forecasts] | None) -> list[dict[str, Any]]:
    """One panel for each series and column: what was seen, what may come, and what was forecast of what then came."""
    seen = pasts_of(table)
    found = {}
    for b, path in enumerate(made.path.tolist()):
        for k, panel in enumerate(seen[path]):
            panel["ahead"] = _fan(table, made, b, k, paths=True)
            panel["tests"] = []
            found[table.ids[path], k] = panel
    if tests is not None:
        held_out, judged = tests
        for b, path in enumerate(judged.path.tolist()):
            for k in range(len(table.columns)):
                own = found.get((held_out.ids[path], k))
                if own is not None:
                    own["tests"].append(_fan(held_out, judged, b, k))
    for panel in found.values():
        panel["tests"] = _apart(panel["tests"])
    return list(found.values())


def _apart(fans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last of some fans, as many as do not lie over each other."""
    kept: list[dict[str, Any]] = []
    for fan in reversed([f for f in fans if f["t"]]):
        if not kept or fan["t"][-1] <= kept[-1]["origin"][0]:
            kept.append(fan)
    return kept[:TESTS][::-1]


def pasts_of(table: Table) -> list[list[dict[str, Any]]]:
    """For each series a panel per column, with the last observations."""
    data = table.data
    assert isinstance(data, Trajectories)
    states = data.states.flatten(1).double().cpu().numpy().copy()
    if data.observed is not None:
        states[~data.observed.flatten(1).cpu().numpy()] = np.nan
    parts = np.split(states, data.lengths.cumsum(0)[:-1].cpu().numpy())
    found = []
    for name, times, values in zip(table.ids, data.times.cpu().split(data.lengths.tolist()), parts):
        at = clock_of(table.time.clock(times[-PAST:].numpy()))
        many, several = len(table.ids) > 1, len(table.columns) > 1
        found.append(
            [
                {
                    "title": " · ".join([*([name] if many else []), *([column] if several or not many else [])]),
                    "past": {"t": at, "y": _short(values[-PAST:, k])},
                    "num": len(values),
                }
                for k, column in enumerate(table.columns)
            ]
        )
    return found


def _fan(table: Table, made: Forecasts, b: int, k: int, *, paths: bool = False) -> dict[str, Any]:
    samples = made.samples[b].flatten(2)[..., k].double().numpy()
    truth, mask = made.truth[b].flatten(1)[:, k].double().numpy(), made.mask[b].flatten(1)[:, k].numpy()
    times = made.times[b].double().numpy()
    real = np.isfinite(times) & (np.diff(times, prepend=-np.inf) > 0)  # forecasts with fewer times are padded
    if not paths and mask.any():
        real &= np.arange(len(times)) <= np.flatnonzero(mask)[-1]
    stamps = table.time.clock(times[real])
    start = float(made.start[b].flatten()[k])
    return {
        "origin": [
            clock_of(table.time.clock(made.origin[b : b + 1].double().numpy()))[0],
            _short(np.array([start]))[0],
        ],
        "t": clock_of(stamps),
        "q": [_short(row) for row in np.quantile(samples[:, real], LEVELS, axis=0)],
        **({"paths": [_short(row) for row in samples[:SHOWN_PATHS, real]]} if paths else {}),
        **({} if paths else {"truth": _short(np.where(mask, truth, np.nan)[real])}),
    }


def clock_of(stamps: np.ndarray) -> list[float]:
    """Dates as milliseconds since 1970, as the page counts them; numbers as they are."""
    if stamps.dtype.kind == "M":
        stamps = stamps.astype("M8[us]").astype(np.int64) / 1e3
    return [float(v) for v in stamps]


def _short(values: np.ndarray) -> list[float | None]:
    """Six digits are enough for a picture; None where nothing was observed."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]


@contextmanager
def _watch(desk: Desk, run: Path, budget: float | None, steps: int | None) -> Iterator[None]:
    """Meanwhile, report how far `fit_table` is: trials of a search, or steps."""
    began = time.monotonic()

    def watch(over: threading.Event) -> None:
        while not over.wait(0.5):
            num, step = 0, 0
            with suppress(ValueError, OSError, IndexError, KeyError):
                num = len(json.loads((run / "trials.json").read_text(encoding="utf-8")))
            with suppress(ValueError, OSError, IndexError, KeyError):
                step = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])["step"]
            if budget is None:
                share, said = step / (steps or 1), f"Step {step} of {steps}"
            else:
                share, said = (time.monotonic() - began) / budget, f"{num} trials" if not step else f"Step {step}"
            desk.report("progress", share=min(0.95, share), said=said)

    with meanwhile(watch):
        yield
