"""The commands `nsde forecast` and `nsde evaluate`: a trained model on the user's own table."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from neuralsde.data.series import Series
from neuralsde.forecast.report import MAX_FANS, draw_fans, save_figures, score_table, show_time

if TYPE_CHECKING:
    from neuralsde.data.tables import Table
    from neuralsde.sequence import SequenceModel

DEFAULT_STEPS = 20
"""Training steps in a horizon that was not asked for."""
ENOUGH_FORECASTS = 100
"""Forecasts that are scored, where it was not said how many."""


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
    ids: tuple[str, ...] = ()
    """Only these paths."""

    def read(self, file: Path, model_folder: Path, model: SequenceModel) -> Table:
        """The table in `file`, in the form that the model was trained on."""
        from neuralsde.data.tables import read_table

        series = Series.load(model_folder)
        options: dict[str, Any] = {}
        for name in ("id", "time", "columns", "context", "time_unit", "date_format"):
            options[name] = getattr(self, name) or (series and getattr(series, name))
        table = read_table(file, **{name: value for name, value in options.items() if value})
        print(table.report)
        wanted = (math.prod(model.scale.shape), model.scale.context_size)
        if (len(table.columns), len(table.context)) != wanted:
            raise ValueError(
                f"The model takes {wanted[0]} feature(s) and {wanted[1]} context value(s). Got {', '.join(table.columns)} and "
                f"{', '.join(table.context) or 'no context'}. Name them with --columns and --context."
            )
        return _only(table, self.ids) if self.ids else table


def _only(table: Table, ids: tuple[str, ...]) -> Table:
    """The table with these paths alone."""
    for name in ids:
        if name not in table.ids:
            few = ", ".join(table.ids[:10]) + (", …" if len(table.ids) > 10 else "")
            raise ValueError(f"There is no path {name!r} in {table.report.file}. Its paths are {few}.")
    return dataclasses.replace(table, data=table.data.select([table.ids.index(name) for name in ids]), ids=ids)


def _warn_of_training_data(file: Path, table: Table, model_folder: Path) -> None:
    """Scores on what a model was trained on flatter it."""
    series = Series.load(model_folder)
    if series is None or series.file != file.name or set(table.ids) <= set(series.holdout_ids):
        return
    remedy = ""
    if series.holdout_ids and series.holdout_from is None:
        remedy = f" Held out were: --ids {' '.join(series.holdout_ids)}"
    print(f"! The model was trained on a table of this name: scores on what it has seen flatter it.{remedy}")


def load_model(folder: Path) -> SequenceModel:
    """The model of a run folder, or of a folder written by save_pretrained."""
    from neuralsde.models import load

    return load(folder / "model" if (folder / "model").is_dir() else folder)


@dataclass(frozen=True)
class Forecast(TableOptions):
    """Forecast each path of a table from its last observation."""

    model: Positional[Path]
    """Folder written by save_pretrained, or a run folder."""
    data: Path
    """Table with one row per observation: .csv or .parquet."""
    horizon: float | None = None
    """Time ahead, in the units of the stamps (of dates: in the unit of the training); default 20 training steps."""
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
        horizon = DEFAULT_STEPS * model.scale.step if self.horizon is None else self.horizon
        made = futures(
            model, table.data, horizon=horizon, num_times=self.num_times, num_paths=self.num_paths, seed=self.seed
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
                        writer.writerow([table.ids[path], show_time(table, time), name, *values])
        print(f"Wrote forecasts of {len(made.path)} path(s), {horizon:g} ahead, to {self.output}.")
        if self.plot is not None:
            draw_fans(made, table, list(range(min(MAX_FANS, len(made.path)))), self.plot)
            print(f"Wrote {self.plot}")


@dataclass(frozen=True)
class Evaluate(TableOptions):
    """Score a model on a table that it was not trained on; without --data, score a finished run of `nsde train` again."""

    model: Positional[Path]
    """Run folder, or with --data also a folder written by save_pretrained."""
    data: Path | None = None
    """Table with one row per observation: .csv or .parquet."""
    horizon: float | None = None
    """Time ahead, in the units of the stamps; default 20 training steps, or half the longest path."""
    num_times: int = 20
    """Observations scored per forecast."""
    num_paths: int | None = None
    """Samples per forecast (default 200), or paths to draw for a run (default 1000)."""
    origins_per_path: int | None = None
    """Forecasts per path; default 100 over all paths."""
    seed: int = 0
    """Seed of the samples."""
    output: Path | None = None
    """Folder for results.json, fans.png and calibration.png; default `evaluation` in the model's folder."""

    def run(self) -> None:
        """Score and print."""
        if self.data is None:
            self._score_run()
        else:
            self._score_table(self.data)

    def _score_run(self) -> None:
        from neuralsde.experiment import evaluate, load_run

        model, experiment = load_run(self.model)
        task = experiment.task
        if hasattr(task, "num_paths"):
            task = dataclasses.replace(task, num_paths=1_000 if self.num_paths is None else self.num_paths)
        train = dataclasses.replace(experiment.train, seed=self.seed)
        print(json.dumps(evaluate(model, dataclasses.replace(experiment, task=task, train=train))[0], indent=1))

    def _score_table(self, file: Path) -> None:
        from neuralsde.experiment import provenance, write_results
        from neuralsde.files import writable_folder
        from neuralsde.forecast.futures import forecasts
        from neuralsde.forecast.skill import negative_log_likelihood, score_forecasts

        model = load_model(self.model)
        table = self.read(file, self.model, model)
        _warn_of_training_data(file, table, self.model)
        data = table.data
        default = min(DEFAULT_STEPS * model.scale.step, 0.5 * float(data.durations.max()))
        origins = math.ceil(ENOUGH_FORECASTS / len(data))
        made = forecasts(
            model,
            data,
            horizon=default if self.horizon is None else self.horizon,
            num_times=self.num_times,
            num_paths=200 if self.num_paths is None else self.num_paths,
            origins_per_path=origins if self.origins_per_path is None else self.origins_per_path,
            seed=self.seed,
        )
        nll = negative_log_likelihood(model, data)
        scores: dict[str, Any] = {"nll": nll} | score_forecasts(made, data, seed=self.seed)
        print(f"\n{score_table(scores)}\n")
        folder = writable_folder(self.output or self.model / "evaluation")
        record = {"model": str(self.model), "data": table.report.to_dict(), **provenance(), "scores": scores}
        write_results(folder / "results.json", record)
        print(f"Wrote {folder / 'results.json'}")
        figures = save_figures(made, scores, table, folder)
        print(f"Wrote {', '.join(map(str, figures))}" if figures else "No figures: pip install 'neuralsde[plots]'.")
