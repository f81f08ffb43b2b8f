"""Forecasts of the series in a table, and how good they are."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralsde.data.tables.plans import read_plan
from neuralsde.data.tables.read import Table
from neuralsde.data.tables.series import Series
from neuralsde.files import writable_folder
from neuralsde.forecast.futures import Forecasts, forecasts, futures
from neuralsde.forecast.report import MAX_FANS, draw_fans, save_figures, score_table
from neuralsde.forecast.skill import negative_log_likelihood, score_forecasts
from neuralsde.forecast.table_model import DEFAULT_STEPS, AnyModel, TableModel, usual_scoring
from neuralsde.metrics.forecast import quantiles as quantiles_of
from neuralsde.training.run_folder import provenance, write_results


@dataclass(frozen=True)
class TableForecast:
    """Futures of the series in a table."""

    forecasts: Forecasts
    table: Table
    horizon: float
    quantiles: tuple[float, ...]

    @property
    def header(self) -> list[str]:
        """The names of what `rows` gives."""
        return ["id", "time", "feature", "mean", *(f"q{p:g}" for p in self.quantiles)]

    def rows(self) -> Iterator[list[Any]]:
        """Series by series, time by time: mean and quantiles of each feature."""
        samples = self.forecasts.samples.flatten(3).movedim(1, 0)
        values = [samples.double().mean(0), *quantiles_of(samples, self.quantiles)]
        for b, path in enumerate(self.forecasts.path.tolist()):
            for t, time in enumerate(self.forecasts.times[b].tolist()):
                for k, name in enumerate(self.table.columns):
                    yield [self.table.ids[path], self.table.time.show(time), name, *(float(v[b, t, k]) for v in values)]

    def write(self, output: str | os.PathLike[str]) -> None:
        """Write the rows as CSV."""
        with open(output, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self.header)
            writer.writerows([*row[:3], *(f"{value:.8g}" for value in row[3:])] for row in self.rows())

    def draw(self, output: str | os.PathLike[str]) -> None:
        """A fan chart of the first series as an image file."""
        draw_fans(self.forecasts, self.table, list(range(min(MAX_FANS, len(self.forecasts.path)))), Path(output))


def forecast_table(
    model: AnyModel,
    table: Table | str | os.PathLike[str],
    *,
    future: str | os.PathLike[str] | None = None,
    horizon: float | None = None,
    num_times: int = 50,
    num_paths: int = 200,
    quantiles: Sequence[float] = (0.05, 0.5, 0.95),
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
) -> TableForecast:
    """Forecast each series of a table from its last observation.

    Args:
        model: a folder, or what was loaded from one.
        table: a file, read as the table of the training was, or what `TableModel.read` made of one.
        future: a table of the context after the last observations, as `read_plan` takes it; else the last context is held.
        horizon: time ahead; None: 20 training steps, or to the end of `future` where that is later.
        quantiles: probabilities of the quantiles in the rows.
        output: a .csv file to write the rows to.
    """
    if output is not None and Path(output).suffix != ".csv":
        raise ValueError(f"`output` must end in .csv. Got {output}.")
    trained = TableModel.load(model)
    table = trained.read(table)
    plan = None if future is None else read_plan(future, table)
    if horizon is None:
        ahead = [stamps[-1] - end for (stamps, _), end in zip(plan or [], table.data.ends.tolist())]
        horizon = max([DEFAULT_STEPS * trained.model.scale.step, *ahead])
    options: dict[str, Any] = {"num_times": num_times, "num_paths": num_paths, "seed": seed}
    made = futures(trained.model, table.data, horizon=horizon, plan=plan, **options)
    found = TableForecast(made, table, float(horizon), tuple(quantiles))
    if output is not None:
        found.write(output)
    return found


@dataclass(frozen=True)
class TableScores:
    """Scores of forecasts of a table; `print` it."""

    values: dict[str, Any]
    forecasts: Forecasts
    caution: str
    """What to say where the model was trained on such a table; else empty."""
    files: tuple[Path, ...] = ()
    """What was written."""

    def __str__(self) -> str:
        return (f"! {self.caution}\n\n" if self.caution else "") + score_table(self.values)


def evaluate_table(
    model: AnyModel,
    table: Table | str | os.PathLike[str],
    *,
    horizon: float | None = None,
    num_times: int = 20,
    num_paths: int = 200,
    origins_per_path: int | None = None,
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
) -> TableScores:
    """Score a model on a table that it was not trained on; model and table as for `forecast_table`.

    Args:
        horizon: time ahead; None: 20 training steps, or half the longest series.
        num_times: observations scored per forecast; the context of its origin is held.
        origins_per_path: forecasts per series; None: 100 over all of them.
        output: a folder for results.json, fans.png and calibration.png.
    """
    trained = TableModel.load(model)
    table = trained.read(table)
    data, own = table.data, trained.model
    told = {"horizon": horizon, "origins_per_path": origins_per_path}
    options = usual_scoring(own, data) | {name: value for name, value in told.items() if value is not None}
    made = forecasts(own, data, num_times=num_times, num_paths=num_paths, seed=seed, **options)
    values = {"nll": negative_log_likelihood(own, data)} | score_forecasts(made, data, seed=seed)
    caution = "" if trained.series is None else _caution(table, trained.series)
    if output is None:
        return TableScores(values, made, caution)
    folder = writable_folder(output)
    record = {"model": str(trained.folder), "data": table.report.to_dict(), **provenance(), "scores": values}
    write_results(folder / "results.json", record)
    files = (folder / "results.json", *save_figures(made, values, table, folder))
    return TableScores(values, made, caution, files)


def _caution(table: Table, series: Series) -> str:
    """Scores on what a model was trained on flatter it."""
    if series.file != table.report.file:
        return ""
    remedy = ""
    if series.holdout_from is not None:
        begin = series.holdout_from
        if series.time_origin is not None and table.time.origin is not None:  # times count from the first date of each
            begin += table.time.time(series.time_origin)
        if float(table.data.times.min()) >= begin - 1e-12 * abs(series.holdout_from):  # dates are rounded
            return ""
        remedy = f" Held out was its end: score a table that begins at {table.time.show(begin)}."
    elif series.holdout_ids:
        if set(table.ids) <= set(series.holdout_ids):
            return ""
        remedy = f" Held out were: `ids={list(series.holdout_ids)}`"
    return f"The model was trained on a table of this name: scores on what it has seen flatter it.{remedy}"
