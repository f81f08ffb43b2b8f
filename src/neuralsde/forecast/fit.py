"""From a table to a trained model, its scores on what was held out, and a report."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from neuralsde.core.doors import Count, Share, door
from neuralsde.core.files import replacing
from neuralsde.core.records import RunError, check, to_dict
from neuralsde.data.describe import Description, describe
from neuralsde.data.tables.read import Table, read_table
from neuralsde.data.tables.series import FILE
from neuralsde.data.trajectories import Lag
from neuralsde.forecast.futures import forecasts
from neuralsde.forecast.references import brownian_nll
from neuralsde.forecast.report import HeldOut, fit_report, lead_words, save_figures, score_table
from neuralsde.forecast.skill import negative_log_likelihood, score_forecasts
from neuralsde.forecast.tables import TableModel, series_record, usual_scoring
from neuralsde.models.build import build
from neuralsde.models.sequence import SequenceModel
from neuralsde.nets.config import HistoryConfig
from neuralsde.sde.config import Euler, Moments, NeuralSDEConfig
from neuralsde.sde.laws.moments import MAX_DIMENSIONS
from neuralsde.selection.fit import fit_data
from neuralsde.selection.folds import too_short
from neuralsde.training.config import RunOptions, TrainConfig
from neuralsde.training.fit import fit
from neuralsde.training.run_folder import check_run, open_run, provenance, write_results

MODEL = NeuralSDEConfig(law=Moments())  # the default model of a table: tables have wide and uneven gaps
BUDGET = "2 min"  # in which a model is chosen where nothing was said about it
PASSES, MIN_STEPS = 100, 200
"""How often each transition is seen where it was not said how long to train, and the fewest steps."""


@dataclass(frozen=True, kw_only=True)
class FittedTable(TableModel):
    """A model that was fitted on a table."""

    table: Table
    description: Description
    held_out: HeldOut | None
    """Scores on what was held out; None where nothing was."""

    @property
    def report(self) -> str:
        """What was read, what was learned, and how good it is, as Markdown."""
        return fit_report(self.table, self.description, self.model, self.held_out, self.folder)


@door
def fit_table(
    table: Table | str | os.PathLike[str],
    *,
    model: NeuralSDEConfig = MODEL,
    train: TrainConfig | None = None,
    options: RunOptions | None = None,
    budget: str | float | None = None,
    steps: Count | None = None,
    lag: Lag = None,
    encoder: Literal["gru", "transformer"] | None = None,
    holdout: Share = 0.2,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
    **reading: Any,
) -> FittedTable:
    """Learn a Neural SDE from a table with one row per observation.

    Args:
        table: a file, or what `read_table` made of one.
        model: settings of the model.
        train: settings of the training.
        options: how it runs.
        budget: time in which a model is chosen and trained by `neuralsde.fit`; "2 min" where none of `model`, `train`, `steps`
            and `encoder` is given. With one of these nothing is chosen.
        steps: optimiser steps; None: so many that each transition is seen 100 times, from 200 up to `train.steps`.
        lag: time between the states of a transition, one or several; None: consecutive observations.
        encoder: encode the history by one of these.
        holdout: share held out for the scores: of the series, or of a single one its end; 0: nothing.
        output: run folder for model, report.md, results.json and figures; None writes nothing.
        resume: go on with the run in `output`.
        say: called before training with what was read and what it looks like, e.g. `print`.
        reading: arguments of `read_table`, where `table` is a file.
    """
    folder, train = None if output is None else Path(output), train or TrainConfig()
    given = {
        "model": model != MODEL,
        "train": train != TrainConfig(seed=train.seed),
        "steps": steps,
        "encoder": encoder,
    }
    if budget is not None and any(given.values()):
        raise ValueError(f"`budget` chooses the model. Leave out {', '.join(f'`{k}`' for k, v in given.items() if v)}.")
    check_run(folder, holdout=holdout, steps=steps, resume=resume)
    if not isinstance(table, Table):
        table = read_table(table, **reading)
    elif reading:
        raise ValueError(f"`table` has been read already. Leave out {', '.join(reading)}.")
    summary = describe(table.data)
    say(f"{table.report}\n\n{summary}\n")
    if all(f.low == f.high for f in summary.features):
        raise ValueError(f"No column changes: there is nothing to learn. Got {', '.join(table.columns)}.")
    known, later, words = hold_out(table, holdout, train.seed)
    if budget is None and not any(given.values()) and not too_short(known.data):
        budget = BUDGET
    if isinstance(model.law, Moments) and len(table.columns) > MAX_DIMENSIONS:
        say(f"{len(table.columns)} features are too many for `law=Moments()`: Euler() is used.\n")
        model = dataclasses.replace(model, law=Euler())
    config = training_settings(known, train, steps)
    options = options or RunOptions()
    learned = None if budget is not None else _build(_with_encoder(model, encoder), known, later, lag, train.seed)
    options = dataclasses.replace(options, val_every=min(options.val_every, max(50, config.steps // 10)))
    val = None if later is None else later.data
    with open_run(folder, resume=resume) as run:
        if learned is not None:
            fit(learned, known.data, val=val, config=config, options=options, run_dir=run, resume=resume)
        else:
            how: dict[str, Any] = {
                "seed": train.seed,
                "progress": options.progress,
                "cpu": options.cpu,
                "budget": budget,
            }
            fixed: dict[str, Any] = {} if lag is None else {"lag": lag}
            learned = fit_data(known.data, run_dir=run, resume=resume, **how, **fixed)
        series = series_record(table, later)
        if folder is not None:
            learned.save_pretrained(folder / "model", beside={FILE: to_dict(series)})
            series.save(folder)
        held_out = None if later is None else _score(learned, known, later, words, folder)
        fitted = FittedTable(learned, series, folder, table=table, description=summary, held_out=held_out)
        if folder is not None:
            with replacing(folder / "report.md") as new:
                new.write_text(fitted.report, encoding="utf-8")
            record = {"model": to_dict(learned.config), "train": to_dict(config), "table": table.report.to_dict()}
            record |= {"data": summary.to_dict(), **provenance()}
            scores = None if held_out is None else held_out.values
            write_results(folder / "results.json", {**record, "scores": scores})
    return fitted


def training_settings(known: Table, train: TrainConfig, steps: int | None = None) -> TrainConfig:
    """Small data is soon known by heart: the steps grow with it."""
    num = len(known.data.states) - len(known.ids)
    enough = max(MIN_STEPS, PASSES * num // train.batch_size)
    steps = min(train.steps, enough) if steps is None else steps
    return dataclasses.replace(train, steps=steps)


def _with_encoder(config: NeuralSDEConfig, encoder: Literal["gru", "transformer"] | None) -> NeuralSDEConfig:
    if encoder is None:
        return config
    check(config.history >= 2, f"`encoder` needs a history. Got `history={config.history}`. Give e.g. `history=16`.")
    return dataclasses.replace(config, net=HistoryConfig(encoder=encoder, **dataclasses.asdict(config.net)))


def _build(config: NeuralSDEConfig, known: Table, held_out: Table | None, lag: Lag, seed: int) -> SequenceModel:
    """A new model for the data; what could not be trained or scored is refused here."""
    refuse_unread(config)
    model = build(config, known.data.transitions(lag=lag, history=config.history), seed=seed)
    if held_out is not None:
        try:
            held_out.data.transitions(lag=lag, history=config.history)
        except ValueError as error:
            raise ValueError(f"Held out is too little: {error} Or hold out more, or nothing (`holdout=0`).") from None
    return model


def refuse_unread(config: NeuralSDEConfig) -> None:
    """A setting that this training does not read must not seem to do something."""
    if config.start_probability == 1 and config.interpolation != "linear":
        remedy = 'Leave it out, or give `tau="uniform"`.'
        raise ValueError(f'`interpolation`: nothing reads it with `tau="{config.tau}"`. {remedy}')


def hold_out(table: Table, share: float, seed: int) -> tuple[Table, Table | None, str]:
    """The table for training, the one for scores, and in words what that is: whole paths, or the end of a single one."""
    if share == 0:
        return table, None, ""
    if len(table.ids) > 1:
        known, held_out = (table.select(part) for part in table.data.draw_paths(share, seed=seed))
        few = ", ".join(held_out.ids[:10]) + (", …" if len(held_out.ids) > 10 else "")
        return known, held_out, f"{len(held_out.ids)} of {len(table.ids)} paths ({few})"
    early, late = table.data.split_in_time(share)
    known, held_out = (dataclasses.replace(table, data=part) for part in (early, late))
    return known, held_out, f"the last {len(late.times)} observations, from {table.time.show(float(late.times[0]))} on"


def _score(model: SequenceModel, known: Table, held_out: Table, words: str, folder: Path | None) -> HeldOut:
    """Score the model on what was held out, and draw figures into `folder` where matplotlib is there."""
    values: dict[str, Any] = {"nll": None, "brownian_nll": None}
    data = held_out.data
    with suppress(ValueError):  # the model is trained and saved: the report goes without
        values["nll"] = negative_log_likelihood(model, data)
        values["brownian_nll"] = brownian_nll(known.data, data)
    try:
        made = forecasts(model, data, **usual_scoring(model, data))
        values |= score_forecasts(made, data, reference=known.data)
        values["leads"] = lead_words(values, known)
    except (ValueError, RunError) as error:  # the model is trained and saved: the report says what it cannot do
        return HeldOut(words, values, f"No forecasts were scored: {error}")
    figures = () if folder is None else save_figures(made, values, held_out, folder)
    return HeldOut(words, values, score_table(values), tuple(file.name for file in figures))
