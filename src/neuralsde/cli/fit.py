"""The command `nsde fit`: from a table or a folder of videos of the user's to a trained model and a report."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional

from neuralsde.cli.options import given, in_flags, refuse
from neuralsde.config import HistoryConfig, NeuralSDEConfig, TrainConfig
from neuralsde.data.series import Series
from neuralsde.records import to_dict
from neuralsde.video.config import VideoFit

if TYPE_CHECKING:
    from neuralsde.data.tables import Table
    from neuralsde.sequence import SequenceModel

TABLES = {
    *("id", "time", "columns", "context", "time_unit", "date_format", "separator", "decimal"),
    *("lag", "encoder", "model"),
}
"""Options of tables alone."""
PASSES, MIN_STEPS = 100, 200
"""How often each transition is seen where it was not said how long to train, and the fewest steps."""


@tyro.conf.configure(tyro.conf.AvoidSubcommands)
@dataclass(frozen=True, kw_only=True)
class Fit:
    """Learn a Neural SDE from a table with one row per observation (.csv, .csv.gz, .parquet), or from a folder of videos."""

    data: Positional[Path]
    """The table; or the videos: a folder or a zip of them, or the shards of `nsde data`."""
    id: str | None = None
    """Column that names the path of a row; absent: one path."""
    time: str | None = None
    """Column of the time stamps: numbers, ISO dates or durations; absent: rows are 1 apart."""
    columns: tuple[str, ...] = ()
    """Columns of the features; absent: all columns of numbers that have no other use."""
    context: tuple[str, ...] = ()
    """Columns of exogenous numbers."""
    time_unit: Literal["us", "ms", "s", "min", "h", "d"] = "s"
    """Unit in which dates and durations are counted: of `lag`, and of horizons later."""
    date_format: str | None = None
    """How dates are written that are not ISO, as for strptime, e.g. "%d/%m/%Y %H:%M"."""
    separator: str | None = None
    """Between the columns of a CSV, if it is not to be found out."""
    decimal: Literal[".", ","] | None = None
    """Decimal sign in a CSV, if it is not to be found out."""
    output: Path | None = None
    """Run folder; default runs/NAME-OF-THE-FILE."""
    resume: bool = False
    """Go on with the run in the folder."""
    holdout: float = 0.2
    """Share held out for the report: of the paths or videos, or of a single one its end; 0: nothing."""
    steps: int | None = None
    """Optimiser steps; default: so many that each transition is seen 100 times, from 200 up to those of `train` (videos: from
    300 up to those of the recipe on a GPU, else 2,000)."""
    lag: tuple[float | None, ...] = ()
    """Time between the states of a transition, one or several; None: consecutive observations, the default."""
    encoder: Literal["gru", "transformer"] | None = None
    """Encode the history (with --history of 8 and more) by one of these."""
    model: Annotated[NeuralSDEConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: NeuralSDEConfig(transition="moments")  # tables have wide and uneven gaps
    )
    train: TrainConfig = field(default_factory=TrainConfig)
    video: Annotated[VideoFit, tyro.conf.arg(name="")] = field(default_factory=VideoFit)

    def run(self) -> None:
        """Read, describe, train, report."""
        from neuralsde.data.videos.clips import holds_videos

        if not 0 <= self.holdout < 1:
            raise ValueError(f"`--holdout` is a share within [0, 1). Got {self.holdout}.")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"`--steps` must be at least 1. Got {self.steps}.")
        named = self.data if self.data.name.strip(".") else self.data.resolve()
        folder = self.output or Path("runs") / named.name.split(".")[0]
        if not self.resume and any((folder / name).exists() for name in ("checkpoints", "autoencoder/checkpoints")):
            raise ValueError(f"{folder} already holds a run. Pass --resume to go on with it, or another --output.")
        if not self.data.exists():
            raise ValueError(f"There is no file or folder {self.data}.")
        if holds_videos(self.data):
            refuse(given(self, TABLES), f"this is for tables. {self.data} is taken for videos.")
            self._fit_videos(folder)
        else:
            refuse(given(self.video), f"this is for videos. {self.data} is taken for a table.")
            self._fit_table(folder)

    def _fit_videos(self, folder: Path) -> None:
        from neuralsde.video.fit import fit_videos

        with in_flags({"train", "output", *(f.name for f in dataclasses.fields(self.video))}):
            found = fit_videos(
                self.data,
                output=folder,
                options=self.video,
                steps=self.steps,
                holdout=self.holdout,
                train=self.train,
                resume=self.resume,
                say=partial(print, flush=True),
            )
        print(f"\n{found.summary}\n\nWrote {folder}: report.md, {', '.join(found.files)}")

    def _fit_table(self, folder: Path) -> None:
        from neuralsde.cli.fit_report import score, write_report
        from neuralsde.data.tables import read_table
        from neuralsde.experiment import provenance, write_results
        from neuralsde.files import writable_folder
        from neuralsde.train import fit

        table = read_table(
            self.data,
            id=self.id,
            time=self.time,
            columns=self.columns or None,
            context=self.context,
            time_unit=self.time_unit,
            date_format=self.date_format,
            separator=self.separator,
            decimal=self.decimal,
        )
        summary = table.data.describe()
        print(f"{table.report}\n\n{summary}\n")
        if all(f.low == f.high for f in summary.features):
            raise ValueError(f"No column changes: there is nothing to learn. Got {', '.join(table.columns)}.")
        known, held_out, words = _hold_out(table, self.holdout, self.train.seed)
        model = self._build(known, held_out)
        writable_folder(folder)
        val, config = None if held_out is None else held_out.data, self._training(known)
        fit(model, known.data, val=val, config=config, run_dir=folder, resume=self.resume)

        model.save_pretrained(folder / "model")
        for place in (folder, folder / "model"):
            self._series(table, held_out).save(place)
        scores = None if held_out is None else score(model, known, held_out, words, folder)
        write_report(folder, table, summary, model, scores)
        record = {"model": model.settings(), "train": to_dict(config), "table": table.report.to_dict()}
        record |= {"data": summary.to_dict(), **provenance(), "scores": None if scores is None else scores.values}
        write_results(folder / "results.json", record)
        if scores is not None:
            print("\n".join(scores.lines()))
        print(f"Wrote {folder}: report.md, model/, series.json, metrics.jsonl, results.json")

    def _training(self, known: Table) -> TrainConfig:
        """Small data is soon known by heart: the steps grow with it."""
        num = len(known.data.states) - len(known.ids)
        enough = max(MIN_STEPS, PASSES * num // self.train.batch_size)
        steps = min(self.train.steps, enough) if self.steps is None else self.steps
        return dataclasses.replace(self.train, steps=steps, val_every=min(self.train.val_every, max(50, steps // 10)))

    def _build(self, known: Table, held_out: Table | None) -> SequenceModel:
        """A new model for the data; what could not be trained or scored is refused here."""
        from neuralsde.models import build
        from neuralsde.moments import MAX_DIMENSIONS

        config, lag = self.model, None if not self.lag else self.lag[0] if len(self.lag) == 1 else self.lag
        if self.encoder is not None:
            if config.history < 2:
                raise ValueError(
                    f"`--encoder` needs a history. Got --history {config.history}. Give e.g. --history 16."
                )
            sizes = dataclasses.asdict(config.net)
            config = dataclasses.replace(config, net=HistoryConfig(encoder=self.encoder, **sizes))
        if config.transition == "moments" and len(known.columns) > MAX_DIMENSIONS:
            print(f"{len(known.columns)} features are too many for transition='moments': the Euler density it is.\n")
            config = dataclasses.replace(config, transition="euler")
        _refuse_unread(config)
        model = build(config, known.data.transitions(lag=lag, history=config.history), seed=self.train.seed)
        if held_out is not None:
            try:
                held_out.data.transitions(lag=lag, history=config.history)
            except ValueError as error:
                raise ValueError(
                    f"Held out is too little: {error} Or hold out more, or nothing (--holdout 0)."
                ) from None
        return model

    def _series(self, table: Table, held_out: Table | None) -> Series:
        whole = held_out is None or len(table.ids) > 1
        return Series(
            file=table.report.file,
            id=table.id,
            time=table.time.column,
            columns=table.columns,
            context=table.context,
            time_unit=self.time_unit,
            date_format=self.date_format,
            separator=self.separator,
            decimal=self.decimal,
            time_kind=table.time.kind,
            time_origin=table.time.origin,
            time_last=float(table.data.times.max()),
            holdout_ids=() if held_out is None else held_out.ids,
            holdout_from=None if whole or held_out is None else float(held_out.data.times[0]),
        )


def _refuse_unread(config: NeuralSDEConfig) -> None:
    """Settings of losses that the training does not have."""
    log = not config.by_likelihood and config.flow_loss == "log"
    options = {
        "flow_loss": (not config.by_likelihood, "--transition euler"),
        "delta": (log, "--transition euler --flow-loss log"),
        "diffusion_loss": (config.transition == "euler", "--transition euler"),
        "interpolation": (config.start_probability < 1, "--tau uniform"),
    }
    for name, (read, remedy) in options.items():
        flags = [] if read else given(config, {name})
        settings = f"--transition {config.transition} --tau {config.tau}"
        settings += f" --flow-loss {config.flow_loss}" if name == "delta" else ""
        refuse(flags, f"nothing reads it with {settings}. Leave it out, or give {remedy}.")


def _hold_out(table: Table, share: float, seed: int) -> tuple[Table, Table | None, str]:
    """The table for training, the one for scores, and in words what that is: whole paths, or the end of a single one."""
    if share == 0:
        return table, None, ""
    if len(table.ids) > 1:
        parts = table.data.draw_paths(share, seed=seed)
        known, held_out = (
            dataclasses.replace(table, data=table.data.select(k), ids=tuple(table.ids[i] for i in k)) for k in parts
        )
        few = ", ".join(held_out.ids[:10]) + (", …" if len(held_out.ids) > 10 else "")
        return known, held_out, f"{len(held_out.ids)} of {len(table.ids)} paths ({few})"
    early, late = table.data.split_in_time(share)
    known, held_out = (dataclasses.replace(table, data=part) for part in (early, late))
    return known, held_out, f"the last {len(late.times)} observations, from {table.time.show(float(late.times[0]))} on"
