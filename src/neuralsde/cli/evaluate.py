"""The command `nsde evaluate`: how good a trained model is on a table, in its own task, or as a policy in simulation."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from tyro.conf import Positional

from neuralsde.cli.episodes import Episodes, policy_folder
from neuralsde.cli.forecast import DEFAULT_STEPS, OF_TABLES, TableOptions, load_model, refuse_videos
from neuralsde.cli.options import given, refuse
from neuralsde.data.tables.series import Series
from neuralsde.forecast.report import save_figures, score_table

if TYPE_CHECKING:
    from neuralsde.data.tables.read import Table

FORECASTS = {"horizon", "num_times", "origins_per_path", "output", *OF_TABLES}
"""Options of tables alone."""
ENOUGH_FORECASTS = 100
"""Forecasts that are scored, where it was not said how many."""


@dataclass(frozen=True)
class Evaluate(TableOptions):
    """Score a model on a table that it was not trained on; without --data, a finished run of `nsde train`, or a policy."""

    model: Positional[Path]
    """Run folder, or a folder written by save_pretrained: of a policy, or with --data of any model."""
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
    """Folder for results.json, fans.png and calibration.png, default `evaluation` in the model's folder; of a policy: a .json."""
    episodes: tyro.conf.OmitArgPrefixes[Episodes] = field(default_factory=Episodes)

    def run(self) -> None:
        """Score and print."""
        folder = policy_folder(self.model)
        if folder is not None:
            tables = {f.name for f in dataclasses.fields(self)} - {"model", "output", "episodes"}
            refuse(given(self, tables), f"{self.model} holds a policy, which is scored in simulation. Leave it out.")
            self.episodes.run(folder, self.output)
            return
        refuse(given(self.episodes), f"this is for a policy. {self.model} holds none: it has no policy.json.")
        if self.data is None:
            self._score_run()
        else:
            self._score_table(self.data)

    def _score_run(self) -> None:
        from neuralsde.experiment import evaluate, load_run

        refuse_videos(self.model)
        if Series.load(self.model) is not None:
            raise ValueError(f"{self.model} was fitted on a table. Give one to score it on: --data FILE.")
        refuse(given(self, FORECASTS), "this is for a table. Give one with --data, or leave it out.")
        model, experiment = load_run(self.model)
        task = experiment.task
        if hasattr(task, "num_paths"):
            task = dataclasses.replace(task, num_paths=1_000 if self.num_paths is None else self.num_paths)
        else:
            refuse(given(self, {"num_paths"}), f"the task of {experiment.name} has no such setting. Leave it out.")
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
            hold_context=True,  # as `nsde forecast` has to
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


def _warn_of_training_data(file: Path, table: Table, model_folder: Path) -> None:
    """Scores on what a model was trained on flatter it."""
    series = Series.load(model_folder)
    if series is None or series.file != file.name:
        return
    remedy = ""
    if series.holdout_from is not None:
        begin = series.holdout_from
        if series.time_origin is not None and table.time.origin is not None:  # times count from the first date of each
            begin += table.time.time(series.time_origin)
        if float(table.data.times.min()) >= begin - 1e-12 * abs(series.holdout_from):  # dates are rounded
            return
        remedy = f" Held out was its end: score a table that begins at {table.time.show(begin)}."
    elif series.holdout_ids:
        if set(table.ids) <= set(series.holdout_ids):
            return
        remedy = f" Held out were: --ids {' '.join(series.holdout_ids)}"
    print(f"! The model was trained on a table of this name: scores on what it has seen flatter it.{remedy}")
