"""The command `nsde forecast`: a trained model on the user's own table."""

from __future__ import annotations

import csv
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from neuralsde.data.series import Series
from neuralsde.forecast.report import MAX_FANS, draw_fans

if TYPE_CHECKING:
    from neuralsde.data.plans import Plan
    from neuralsde.data.tables import Table
    from neuralsde.sequence import SequenceModel

DEFAULT_STEPS = 20
"""Training steps in a horizon that was not asked for."""


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table is read, where the record that `nsde fit` left beside the model does not say it, or is not to be followed."""

    id: str | None = None
    """Column that names the path of a row."""
    time: str | None = None
    """Column of the time stamps."""
    columns: tuple[str, ...] = ()
    """Columns of the features, in the order of the training."""
    context: tuple[str, ...] = ()
    """Columns of the context, in the order of the training."""
    time_unit: Literal["us", "ms", "s", "min", "h", "d"] | None = None
    """Unit of dates and durations."""
    date_format: str | None = None
    """How dates are written that are not ISO, as for strptime."""
    separator: str | None = None
    """Between the columns of a CSV, if it is not to be found out."""
    decimal: Literal[".", ","] | None = None
    """Decimal sign in a CSV, if it is not to be found out."""
    ids: tuple[str, ...] = ()
    """Only these paths."""

    def read(self, file: Path, model_folder: Path, model: SequenceModel) -> Table:
        """The table in `file`, in the form that the model was trained on."""
        from neuralsde.data.tables import read_table

        series = Series.load(model_folder)
        options: dict[str, Any] = {}
        for name in ("id", "time", "columns", "context", "time_unit", "date_format", "separator", "decimal"):
            options[name] = self._told(name, series)
        table = read_table(file, **{name: value for name, value in options.items() if value})
        print(table.report)
        if series is not None:
            _check_time(table, series, told=self.time_unit is not None)
        wanted = (math.prod(model.scale.shape), model.scale.context_size)
        if (len(table.columns), len(table.context)) != wanted:
            raise ValueError(
                f"The model takes {wanted[0]} feature(s) and {wanted[1]} context value(s). Got {', '.join(table.columns)} and "
                f"{', '.join(table.context) or 'no context'}. Name them with --columns and --context."
            )
        return _only(table, self.ids) if self.ids else table

    def _told(self, name: str, series: Series | None) -> Any:
        """An option as the user gives it, else as the training had it."""
        return getattr(self, name) or (series and getattr(series, name))


OF_TABLES = {field.name for field in dataclasses.fields(TableOptions)}
"""Options that need --data."""


def _check_time(table: Table, series: Series, *, told: bool) -> None:
    """Refuse stamps whose unit cannot be that of the training; `told`: the user has said the unit of dates."""
    counted = ("dates", "durations")  # in a unit; other times are plain numbers
    if (table.time.kind in counted) == (series.time_kind in counted) or (told and table.time.kind in counted):
        return
    words = {"order": "rows 1 apart"} | {kind: f"{kind} in {series.time_unit}" for kind in counted}
    remedy = "Say in which unit it was trained, e.g. --time-unit h"
    if table.time.kind == "numbers":
        remedy = "Write them as dates, with --date-format where they are not ISO"
    raise ValueError(
        f"The model was trained on {words.get(series.time_kind, 'numbers')} as time. Got {table.time.kind} in "
        f"{table.time.column!r} of {table.report.file}. {remedy}, or name another column with --time."
    )


def _only(table: Table, ids: tuple[str, ...]) -> Table:
    """The table with these paths alone."""
    for name in ids:
        if name not in table.ids:
            few = ", ".join(table.ids[:10]) + (", …" if len(table.ids) > 10 else "")
            raise ValueError(f"There is no path {name!r} in {table.report.file}. Its paths are {few}.")
    return dataclasses.replace(table, data=table.data.select([table.ids.index(name) for name in ids]), ids=ids)


def load_model(folder: Path) -> SequenceModel:
    """The model of a run folder, or of a folder written by save_pretrained."""
    from neuralsde.models import load

    refuse_videos(folder)
    return load(folder)


def refuse_videos(folder: Path) -> None:
    """A model of videos is no model of tables."""
    from neuralsde.video.model import video_folder

    if video_folder(folder) is not None:
        raise ValueError(
            f"{folder} holds a model of videos: report.md or results.json in its run has its scores. "
            f"Draw with `nsde sample {folder} CLIP`."
        )


@dataclass(frozen=True)
class Forecast(TableOptions):
    """Forecast each path of a table from its last observation."""

    model: Positional[Path]
    """Folder written by save_pretrained, or a run folder."""
    data: Path
    """Table with one row per observation: .csv or .parquet."""
    future: Path | None = None
    """Table of the context after the last observations, where it is known or planned: the id, time and context columns. A row
    holds until the next one; without a time column rows are 1 apart. Else the last context is held."""
    horizon: float | None = None
    """Time ahead, in the units of the stamps (of dates: in the unit of the training); default 20 training steps, or to the
    end of --future where that is later."""
    num_times: int = 50
    """Forecast times."""
    num_paths: int = 200
    """Samples per path."""
    quantiles: tuple[float, ...] = (0.05, 0.5, 0.95)
    """Probabilities of the quantiles in the file."""
    seed: int = 0
    """Seed of the samples."""
    output: Path = Path("forecast.csv")
    """Where to write: id, time, feature, mean, quantiles."""
    plot: Path | None = None
    """Image file of a fan chart of the first paths."""

    def run(self) -> None:
        """Forecast and write."""
        from neuralsde.forecast.futures import futures
        from neuralsde.metrics.forecast import quantiles

        if self.output.suffix != ".csv":
            raise ValueError(f"`--output` must end in .csv. Got {self.output}.")
        model = load_model(self.model)
        table = self.read(self.data, self.model, model)
        plan = None if self.future is None else self._plan(self.future, table)
        horizon = self.horizon
        if horizon is None:
            ahead = [stamps[-1] - end for (stamps, _), end in zip(plan or [], table.data.ends.tolist())]
            horizon = max([DEFAULT_STEPS * model.scale.step, *ahead])
        made = futures(
            model,
            table.data,
            horizon=horizon,
            num_times=self.num_times,
            num_paths=self.num_paths,
            seed=self.seed,
            plan=plan,
        )
        samples = made.samples.flatten(3).movedim(1, 0)
        columns = [samples.double().mean(0), *quantiles(samples, self.quantiles)]
        with open(self.output, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "time", "feature", "mean", *(f"q{p:g}" for p in self.quantiles)])
            for b, path in enumerate(made.path.tolist()):
                for t, time in enumerate(made.times[b].tolist()):
                    for k, name in enumerate(table.columns):
                        values = [f"{float(c[b, t, k]):.8g}" for c in columns]
                        writer.writerow([table.ids[path], table.time.show(time), name, *values])
        print(f"Wrote forecasts of {len(made.path)} path(s), {horizon:g} ahead, to {self.output}.")
        if self.plot is not None:
            draw_fans(made, table, list(range(min(MAX_FANS, len(made.path)))), self.plot)
            print(f"Wrote {self.plot}")

    def _plan(self, file: Path, table: Table) -> Plan:
        from neuralsde.data.plans import read_plan

        return read_plan(file, table, date_format=self._told("date_format", Series.load(self.model)))
