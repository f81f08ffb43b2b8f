"""A trained model with the record of its table, and what it draws: forecasts, how good they are, and paths as files.

Other tables are read as the first one was.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import torch

from neuralsde.core.doors import Count, Positive, Seed, door
from neuralsde.core.files import replacing, writable_folder
from neuralsde.core.records import built_by, check, to_dict, with_settings
from neuralsde.data.arrays import as_array
from neuralsde.data.columns import has_zone, parse_stamps
from neuralsde.data.tables.plans import read_plan
from neuralsde.data.tables.read import Table, read_table
from neuralsde.data.tables.series import FILE, Series
from neuralsde.data.tables.time_axis import TimeAxis
from neuralsde.data.tables.zones import universal
from neuralsde.data.trajectories import Trajectories
from neuralsde.forecast.futures import Forecasts, forecasts, futures
from neuralsde.forecast.record import SeriesRecord
from neuralsde.forecast.report import MAX_FANS, MAX_MULTIPLES, draw_fans, lead_words, save_figures, score_table
from neuralsde.forecast.skill import Laws, negative_log_likelihood, score_forecasts
from neuralsde.metrics.forecast import quantiles as quantiles_of
from neuralsde.models.build import load
from neuralsde.models.config import Sampling
from neuralsde.models.hub import local_folder, push
from neuralsde.models.sequence import SequenceModel
from neuralsde.training.run_folder import provenance, write_results

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_STEPS = 20  # training steps in a horizon that was not asked for
ENOUGH_FORECASTS = 100  # forecasts that are scored, where it was not said how many
MOST_SORTED = 2**24  # samples of which quantiles are taken at once
NOTED = ("id", "time", "columns", "context", "time_unit", "date_format", "separator", "decimal", "na_values")
"""Arguments of `read_table` that the record of a table holds."""


@dataclass(frozen=True)
class TableModel:
    """A model of a table."""

    model: SequenceModel
    series: Series | None = None
    """What `fit_table` noted about its table; None for a model that was trained otherwise."""
    folder: Path | None = None
    """Where it lies, if it does."""

    @staticmethod
    @door
    def load(source: AnyModel) -> TableModel:
        """From a run folder, a folder written by save_pretrained, a name on the Hub, or a model in memory."""
        if isinstance(source, TableModel):
            return source
        if isinstance(source, SequenceModel):
            return TableModel(source)
        folder = local_folder(source)
        record, series = SeriesRecord.load(folder), Series.load(folder)
        if record is not None:
            return built_by(record)(load(folder), series, folder, record=record)
        return TableModel(load(folder), series, folder)

    @door
    def read(
        self,
        table: Any,
        *,
        ids: Sequence[str] = (),
        **reading: Any,
    ) -> Table:
        """A table in the form that the model was trained on; `ids` chooses paths.

        `reading` are arguments of `read_table` that replace what the record says.
        """
        if not isinstance(table, Table):
            noted = {} if self.series is None else {name: getattr(self.series, name) for name in NOTED}
            options = noted | {name: value for name, value in reading.items() if value}
            table = read_table(table, **{name: value for name, value in options.items() if value})
            if self.series is not None:
                _check_time(table, self.series, told=reading.get("time_unit") is not None)
        wanted = self.takes
        if (len(table.columns), len(table.context)) != wanted:
            found = f"{', '.join(table.columns)} and {', '.join(table.context) or 'no context'}"
            takes = f"{wanted[0]} feature(s) and {wanted[1]} context value(s)"
            raise ValueError(f"The model takes {takes}. Got {found}. Name them with `columns` and `context`.")
        few = ", ".join(table.ids[:10]) + (", …" if len(table.ids) > 10 else "")
        for name in ids:
            check(name in table.ids, f"There is no path {name!r} in {table.report.file}. Its paths are {few}.")
        return table.select([table.ids.index(name) for name in ids]) if ids else table

    @property
    def records(self) -> dict[str, Any]:
        """What lies beside its weights, by file."""
        return {} if self.series is None else {FILE: to_dict(self.series)}

    @door
    def push_to_hub(
        self, name: str, *, private: bool = False, data: str = "", scores: Mapping[str, Any] | None = None
    ) -> str:
        """Upload model and records to the Hugging Face Hub: see `SequenceModel.push_to_hub`."""
        names = () if self.series is None else self.series.columns
        card = self.model.card(name, data=data, scores=scores, loader="nsde.TableModel.load", features=names)
        return push(name, lambda path: self.model.save_pretrained(path, beside=self.records), card, private=private)

    @property
    def takes(self) -> tuple[int, int]:
        """Features and covariates of its tables."""
        return math.prod(self.model.scale.shape), self.model.scale.context_size

    def futures(
        self,
        table: Table,
        *,
        horizon: float | None = None,
        num_times: int = 50,
        num_paths: int = 200,
        sampler: Sampling | None = None,
        seed: int = 0,
        future: Any = None,
    ) -> Forecasts:
        """Futures of each series; `future` is a table of the context that is to come."""
        plan = None if future is None else read_plan(future, table)
        if horizon is None:
            ahead = [stamps[-1] - end for (stamps, _), end in zip(plan or [], table.data.ends.tolist())]
            horizon = max([DEFAULT_STEPS * self.model.scale.step, *ahead])
        options: dict[str, Any] = {"num_times": num_times, "num_paths": num_paths, "seed": seed, "sampler": sampler}
        return futures(self.model, table.data, horizon=horizon, plan=plan, **options)

    def parts(
        self, table: Table, *, quantiles: tuple[float, ...] = (), horizon: float | None = None, **options: Any
    ) -> Iterator[TableForecast]:
        """Futures of all series, in parts that can be held."""
        made = self.futures(table, horizon=horizon, **options)
        ahead = float(made.lead.max()) if horizon is None else float(horizon)
        span = f"{ahead:g} {table.time.unit or ''}".strip() + " ahead"
        yield TableForecast(made, table, ahead, quantiles, span, len(made.path))

    def scored(self, table: Table, *, horizon: float | None, origins_per_path: int | None, **options: Any) -> Forecasts:
        """Forecasts of what a table holds."""
        told = {"horizon": horizon, "origins_per_path": origins_per_path}
        usual = usual_scoring(self.model, table.data) | {k: v for k, v in told.items() if v is not None}
        return forecasts(self.model, table.data, **usual, **options)

    def laws(self, table: Table, *, horizon: float | None, origins_per_path: int | None) -> Laws | None:
        """References for what `scored` forecasts; None: those that fit all tables."""
        return None

    def lead_words(self, scores: dict[str, Any], made: Forecasts, table: Table) -> dict[str, Any]:
        """How far ahead scores are, in words."""
        return lead_words(scores, table)

    def check_state(self) -> None:
        """Refuse a start that is a state alone, where the model needs more."""

    def nll(self, table: Table) -> dict[str, Any] | None:
        """Of an observation given those before it."""
        return negative_log_likelihood(self.model, table.data)


AnyModel = Union[str, "os.PathLike[str]", SequenceModel, TableModel]
"""What the functions of this room take for a model: a folder, or what was loaded from one."""


def _check_time(table: Table, series: Series, *, told: bool) -> None:
    """Refuse stamps whose unit cannot be that of the training; `told`: the user has said the unit of dates."""
    counted = ("dates", "durations")  # in a unit; other times are plain numbers
    if (table.time.kind in counted) == (series.time_kind in counted) or (told and table.time.kind in counted):
        return
    words = {"order": "rows 1 apart"} | {kind: f"{kind} in {series.time_unit}" for kind in counted}
    remedy = 'Say in which unit it was trained, e.g. `time_unit="h"`'
    if table.time.kind == "numbers":
        remedy = "Write them as dates, with `date_format` where they are not ISO"
    found = f"{table.time.kind} in {table.time.column!r} of {table.report.file}"
    remedy += ", or name another column with `time`."
    raise ValueError(
        f"The model was trained on {words.get(series.time_kind, 'numbers')} as time. Got {found}. {remedy}"
    )


def series_record(table: Table, held_out: Table | None) -> Series:
    """What is noted about a table, and about what of it was held out."""
    whole = held_out is None or len(table.ids) > 1
    return Series(
        file=table.report.file,
        id=table.id,
        time=table.time.column,
        columns=table.columns,
        context=table.context,
        **asdict(table.layout),
        time_kind=table.time.kind,
        time_origin=table.time.origin,
        time_zone=table.time.zone,
        time_last=float(table.data.times.max()),
        holdout_ids=() if held_out is None else held_out.ids,
        holdout_from=None if whole or held_out is None else float(held_out.data.times[0]),
    )


def usual_scoring(model: SequenceModel, data: Trajectories) -> dict[str, Any]:
    """Options of `forecasts` for scores, where nothing else was said."""
    horizon = min(DEFAULT_STEPS * model.scale.step, 0.5 * float(data.durations.max()))
    return {"horizon": horizon, "origins_per_path": math.ceil(ENOUGH_FORECASTS / len(data)), "hold_context": True}


# Forecasts


LEVELS = (80.0, 95.0)
"""Central intervals of a forecast, in percent."""


@dataclass(frozen=True)
class TableForecast:
    """Futures of the series in a table."""

    forecasts: Forecasts
    table: Table
    horizon: float
    quantiles: tuple[float, ...] = ()
    """Probabilities that are written in place of the intervals."""
    span: str = ""
    """How far ahead it looks, in words."""
    num_series: int = 0
    """All that were forecast: of too many to hold, `forecasts` are the first."""
    past: float = 0.0
    """How much of the past a picture shows, at least."""

    @property
    def header(self) -> list[str]:
        """Columns of the file: those of `to_frame`, or with quantiles where these were asked for."""
        feature = ["feature"] if len(self.table.columns) > 1 else []
        return ["unique_id", "ds", *feature, "NSDE", *self._ends(LEVELS)]

    def _ends(self, level: Sequence[float]) -> dict[str, float]:
        """Probabilities of quantiles by the name of their column."""
        if self.quantiles:
            return {f"q{p:g}": p for p in self.quantiles}
        ends = {"lo": lambda each: (100 - each) / 200, "hi": lambda each: (100 + each) / 200}
        return {f"NSDE-{end}-{each:g}": at(each) for each in level for end, at in ends.items()}

    def _values(self, probabilities: Sequence[float]) -> list[torch.Tensor]:
        """Mean and quantiles, each (B, T, d); some series at a time, since sorting takes memory."""
        parts = []
        for own in self.forecasts.samples.flatten(3).split(max(1, MOST_SORTED // self.forecasts.samples[0].numel())):
            samples = own.movedim(1, 0)
            parts.append([samples.double().mean(0), *quantiles_of(samples, probabilities)])
        return [torch.cat(each) for each in zip(*parts)]

    def rows(self) -> Iterator[list[Any]]:
        """Series by series, time by time: mean and quantiles of each feature, as `header` says."""
        values, times = self._values([*self._ends(LEVELS).values()]), self.forecasts.times
        shown = iter(self.table.time.texts(times.flatten().numpy()))
        several = len(self.table.columns) > 1
        for b, path in enumerate(self.forecasts.path.tolist()):
            for t in range(times.shape[1]):
                time = next(shown)
                for k, name in enumerate(self.table.columns):
                    feature = [name] if several else []
                    yield [self.table.ids[path], time, *feature, *(float(v[b, t, k]) for v in values)]

    def text(self, *, header: bool = True) -> str:
        """The file, with eight digits of each number."""
        out = io.StringIO(newline="")
        writer, names = csv.writer(out), self.header
        if header:
            writer.writerow(names)
        num = names.index("NSDE")
        writer.writerows([*row[:num], *(f"{value:.8g}" for value in row[num:])] for row in self.rows())
        return out.getvalue()

    def write(self, output: str | os.PathLike[str]) -> None:
        """Write `rows` as CSV."""
        write_forecasts([self], output)

    def draw(self, output: str | os.PathLike[str]) -> None:
        """Fan charts of some series as an image file."""
        self.plot(output)

    def plot(self, output: str | os.PathLike[str] | None = None) -> Any:
        """Fan charts of up to 12 series: a matplotlib Figure, which is written to `output` where that is given."""
        most = MAX_FANS if len(self.table.columns) > 1 else MAX_MULTIPLES
        every = len(self.forecasts.path)
        few = np.unique(np.linspace(0, every - 1, min(most, every)).astype(int)).tolist()
        file = None if output is None else Path(output)
        return draw_fans(self.forecasts, self.table, few, file, past=self.past, num=max(every, self.num_series))

    def to_frame(self, level: Sequence[float] = LEVELS) -> pd.DataFrame:
        """One row per series and time: the mean as NSDE, and the ends of central intervals as NSDE-lo-80, NSDE-hi-80, ….

        With several columns in the table, the column `feature` says which. Where quantiles were asked for, they stand in place
        of the intervals.
        """
        import pandas as pd

        wrong = [each for each in level if not 0 < each < 100]
        check(not wrong, f"`level` must be in percent, between 0 and 100. Got {wrong}. For 80 % write 80.")
        ends = self._ends(level)
        values = self._values([*ends.values()])
        num, steps, size = values[0].shape
        table, path = self.table, self.forecasts.path.tolist()
        columns: dict[str, Any] = {"unique_id": np.repeat([table.ids[k] for k in path], steps * size)}
        columns["ds"] = table.time.index(self.forecasts.times.numpy().ravel()).repeat(size)
        if size > 1:
            columns["feature"] = np.tile(np.array(table.columns), num * steps)
        return pd.DataFrame(columns | {name: v.flatten().numpy() for name, v in zip(("NSDE", *ends), values)})


def write_forecasts(parts: Iterable[TableForecast], output: str | os.PathLike[str]) -> list[TableForecast]:
    """Write forecasts of some series after the other into one file; what is returned is the first part."""
    first: list[TableForecast] = []
    with replacing(Path(output)) as new, open(new, "w", newline="", encoding="utf-8") as file:
        for made in parts:
            file.write(made.text(header=not first))
            first = first or [made]
    return first


@door
def forecast_table(
    model: AnyModel,
    table: Any,
    *,
    future: Any = None,
    horizon: Positive | None = None,
    num_times: Count = 50,
    num_paths: Count = 200,
    quantiles: Sequence[float] = (),
    seed: Seed = 0,
    output: str | os.PathLike[str] | None = None,
) -> TableForecast:
    """Forecast each series of a table from its last observation.

    Args:
        model: a folder, or what was loaded from one.
        table: a file or a frame, read as the table of the training was, or what `TableModel.read` made of one.
        future: a table of the context after the last observations, as `read_plan` takes it; else the last context is held.
        horizon: time ahead; None: 20 training steps, or to the end of `future` where that is later. Models of `fit_series`
            count it in steps, and forecast each of these.
        num_times: forecast times of a model of uneven stamps.
        quantiles: probabilities of quantiles in the rows; none: the ends of the 80 and 95 % intervals.
        output: a .csv file to write the rows to, in the form of `TableForecast.to_frame`.
    """
    if output is not None and Path(output).suffix != ".csv":
        raise ValueError(f"`output` must end in .csv. Got {output}.")
    trained = TableModel.load(model)
    table = trained.read(table)
    options: dict[str, Any] = {"num_times": num_times, "num_paths": num_paths, "seed": seed}
    parts = trained.parts(table, horizon=horizon, future=future, quantiles=tuple(quantiles), **options)
    if output is not None:
        return write_forecasts(parts, output)[0]
    return next(iter(parts))


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


@door
def evaluate_table(
    model: AnyModel,
    table: Any,
    *,
    horizon: Positive | None = None,
    num_times: Count = 20,
    num_paths: Count = 200,
    origins_per_path: Count | None = None,
    seed: Seed = 0,
    output: str | os.PathLike[str] | None = None,
) -> TableScores:
    """Score a model on a table that it was not trained on; model and table as for `forecast_table`.

    Args:
        horizon: steps ahead of a model of series, else time ahead; None: as in its fit, or 20 training steps or half the longest
            series.
        num_times: observations scored per forecast of uneven stamps; the context of its origin is held.
        origins_per_path: forecasts per series; None: as in the backtest, or 100 over all of them.
        output: a folder for results.json, fans.png and calibration.png.
    """
    trained = TableModel.load(model)
    table = trained.read(table)
    options = {"num_times": num_times, "num_paths": num_paths, "seed": seed}
    made = trained.scored(table, horizon=horizon, origins_per_path=origins_per_path, **options)
    laws = trained.laws(table, horizon=horizon, origins_per_path=origins_per_path)
    values = {"nll": trained.nll(table)} | score_forecasts(made, table.data, laws=laws, seed=seed)
    values["leads"] = trained.lead_words(values, made, table)
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


# Paths


@dataclass(frozen=True)
class SampledPaths:
    """Paths from B starts."""

    ids: list[str] | None
    """Of the starts, where they have any."""
    times: np.ndarray
    """(B, T)"""
    paths: np.ndarray
    """(B, N, T, *S)"""
    names: tuple[str, ...]
    """Of the features."""
    axis: TimeAxis | None
    """How times become dates; None: they are shown as numbers."""
    passes: dict[str, int] = field(default_factory=dict)
    """Network passes per path, of each net."""

    def write(self, output: str | os.PathLike[str] | None) -> SampledPaths:
        """Write .npz or .csv, if at all; without ids there is one start, and no axis for it."""
        if output is None:
            return self
        dates = None
        if self.axis is not None:
            every = self.axis.dates(self.times.ravel())
            dates = [every[k : k + self.times.shape[1]] for k in range(0, len(every), self.times.shape[1])]
        if Path(output).suffix == ".npz":
            arrays: dict[str, Any] = {"times": self.times, "paths": self.paths}
            arrays |= {} if dates is None else {"dates": np.array(dates)}
            one = {k: v[0] for k, v in arrays.items()}
            np.savez_compressed(output, **(one if self.ids is None else {"ids": np.array(self.ids), **arrays}))
            return self
        shown = [[f"{t:.12g}" for t in row] for row in self.times.tolist()] if dates is None else dates
        flat = self.paths.reshape(*self.paths.shape[:3], -1)
        with open(output, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*([] if self.ids is None else ["id"]), "path", "time", *self.names])
            for b, stamps in enumerate(shown):
                name = [] if self.ids is None else [self.ids[b]]
                for n, path in enumerate(flat[b].tolist()):
                    writer.writerows([*name, n, t, *(f"{v:.8g}" for v in x)] for t, x in zip(stamps, path))
        return self


@door
def sample_state(
    model: AnyModel,
    start: Any,
    *,
    stop: Positive,
    start_context: Sequence[float] = (),
    start_time: str | float | None = None,
    num_times: Count = 101,
    num_paths: Count = 100,
    substeps: Count | None = None,
    pull: float | None = None,
    seed: Seed = 0,
    output: str | os.PathLike[str] | None = None,
) -> SampledPaths:
    """Draw paths from a state.

    Args:
        model: a folder, or what was loaded from one.
        start: the first state, one number per feature; with a history, slot by slot, the oldest first.
        stop: last output time, counted from the first state.
        start_context: context of the first state, which is held.
        start_time: time or date of the first state; None: 0, or the last date of the training data.
        num_times: output times from 0 to `stop`.
        substeps, pull: of the sampler, if not the model's.
        output: an .npz or .csv file to write.
    """
    _check(output, num_times)
    trained = TableModel.load(model)
    trained.check_state()
    own, series = trained.model, trained.series
    slots, shape, size = own.config.history, own.scale.shape, own.scale.context_size
    if len(start_context) != size:
        given = " ".join(map(str, start_context)) or "nothing"
        raise ValueError(f"`start_context` must hold the model's {size} context value(s). Got {given}.")
    values = np.ravel(as_array(start, "start"))
    whole = len(values) == slots * math.prod(shape)
    times = np.linspace(0.0, stop, num_times)
    drawn = own.draw(
        values.reshape(1, slots, *shape) if whole else values,
        times,
        context=[list(start_context)] if len(start_context) else None,
        num_paths=num_paths,
        sampler=_sampler(own.sampler, substeps, pull),
        rng=seed,
    )
    names = tuple(f"x{k}" for k in range(math.prod(shape))) if series is None else series.columns
    axis, first = _first_time(start_time, series)
    return SampledPaths(None, times[None] + first, drawn.paths.cpu().numpy(), names, axis, drawn.nfe).write(output)


@door
def sample_table(
    model: AnyModel,
    table: Any,
    *,
    stop: Positive,
    num_times: Count = 101,
    num_paths: Count = 100,
    substeps: Count | None = None,
    pull: float | None = None,
    seed: Seed = 0,
    output: str | os.PathLike[str] | None = None,
) -> SampledPaths:
    """Draw paths from the last observation of each series of a table; arguments as for `sample_state`."""
    _check(output, num_times)
    trained = TableModel.load(model)
    table, own = trained.read(table), trained.model
    made = trained.futures(
        table,
        horizon=stop,
        num_times=num_times - 1,
        num_paths=num_paths,
        sampler=_sampler(own.forecast_sampler, substeps, pull),  # a table holds measurements
        seed=seed,
    )
    first = made.start[:, None, None].expand(-1, num_paths, 1, *made.start.shape[1:])
    paths = torch.cat([first, made.samples], dim=2).numpy()
    times = torch.cat([made.origin[:, None], made.times], dim=1).numpy()
    axis = table.time if table.time.kind == "dates" else None
    ids = [table.ids[k] for k in made.path.tolist()]
    return SampledPaths(ids, times, paths, table.columns, axis, made.nfe).write(output)


def _check(output: str | os.PathLike[str] | None, num_times: int) -> None:
    if output is not None and Path(output).suffix not in (".npz", ".csv"):
        raise ValueError(f"`output` must end in .npz or .csv. Got {output}.")
    check(num_times >= 2, f"`num_times` must be at least 2. Got {num_times}.")


def _sampler(usual: Sampling, substeps: int | None, pull: float | None) -> Sampling:
    return with_settings(usual, {k: v for k, v in (("substeps", substeps), ("pull", pull)) if v is not None})


def _first_time(start: str | float | None, series: Series | None) -> tuple[TimeAxis | None, float]:
    """How times are shown, and the time of the first state."""
    if series is None or series.time_kind != "dates":
        try:
            return None, float(start or 0.0)
        except ValueError:
            raise ValueError(f"`start_time` must be a number for this model. Got {start}.") from None
    axis = TimeAxis(series.time, "dates", series.time_unit, series.time_origin, series.time_zone)
    if start is None:
        return axis, series.time_last
    import pandas as pd

    text = pd.Series([start], dtype=object)
    first = parse_stamps(text)
    if first.dtype.kind != "M" or np.isnat(first[0]):
        raise ValueError(f"`start_time` must be an ISO date for this model. Got {start}.")
    return axis, axis.time((first if has_zone(text)[0] else universal(first, axis.zone))[0])
