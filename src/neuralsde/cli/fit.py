"""The command `nsde fit`: from a table or a folder of videos of the user's to a trained model and a report."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional

from neuralsde.cli.forecast import Columns
from neuralsde.cli.options import flags_of, in_flags, keywords, refuse
from neuralsde.core.records import check
from neuralsde.sde.config import Moments, NeuralSDEConfig
from neuralsde.training.config import RunOptions, TrainConfig
from neuralsde.video.config import VideoFit

if TYPE_CHECKING:
    from neuralsde.data.tables.read import Table


@dataclass(frozen=True, kw_only=True)
class TableFit(Columns):
    """Tables: one row per observation (.csv, .csv.gz, .parquet). Without --id the table is one series, without --time
    rows are 1 apart, without --columns all numeric columns without another use are features."""

    time_unit: Literal["us", "ms", "s", "min", "h", "d"] = "s"
    """Unit in which dates and durations are counted, in --lag and in horizons later."""
    lag: tuple[float | None, ...] = ()
    """Time between the states of a transition, one or several; None: consecutive observations, the default."""
    encoder: Literal["gru", "transformer"] | None = None
    """Encoder of the history, with --history of 8 and more."""


@dataclass(frozen=True, kw_only=True)
class SeriesFit:
    """Series at even times (dates with a frequency, or any of these options): they are forecast step by step."""

    horizon: int | None = None
    """Steps ahead; as is usual for the frequency if not given."""
    season: tuple[str, ...] = ("auto",)
    """auto, none, or periods: day, week, year, or numbers of steps."""
    freq: str | None = None
    """Frequency as pandas writes it: h, D, B, W, MS, … (found if not given)."""
    known_ahead: tuple[str, ...] = ()
    """Columns of --context whose future is known; the others are held at their last value."""
    future: Path | None = None
    """Table of their future, one row per step: id, time and these columns."""


@tyro.conf.configure(tyro.conf.AvoidSubcommands)
@dataclass(frozen=True, kw_only=True)
class Fit:
    """Learn a Neural SDE from a table with one row per observation (.csv, .csv.gz, .parquet), or from a folder of videos.

    `--help` shows the options that most people need, `--help-all` also those of the model and of the training.
    """

    SHORT: ClassVar[dict[str, tuple[str, ...]]] = {
        **dict.fromkeys(("data", "output", "holdout", "budget", "steps", "resume"), ()),
        "table": ("id", "time", "columns", "context", "time_unit", "date_format", "na_values"),
        "series": ("horizon", "season", "known_ahead", "future"),
        "video": ("dataset", "size", "fps", "num_context"),
    }
    """The options that `--help` shows."""

    data: Positional[Path]
    """The table; or the videos: a folder or a zip of them, or the shards of `nsde data`."""
    output: Path | None = None
    """Run folder; runs/NAME-OF-THE-FILE if not given."""
    holdout: float = 0.2
    """Share held out for the report: of the series or videos, or of a single one its end; 0: nothing."""
    budget: str | None = None
    """Tables: time in which a model is chosen and trained; "2 min" if no option of the model or the training is given."""
    steps: int | None = None
    """Optimiser steps; by the size of the data if not given."""
    resume: bool = False
    """Go on with the run in the folder."""
    table: OmitArgPrefixes[TableFit] = field(default_factory=TableFit)
    series: OmitArgPrefixes[SeriesFit] = field(default_factory=SeriesFit)
    model: Annotated[NeuralSDEConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: NeuralSDEConfig(law=Moments())  # as forecast.fit.MODEL
    )
    train: TrainConfig = field(default_factory=TrainConfig)
    options: OmitArgPrefixes[RunOptions] = field(default_factory=RunOptions)
    video: OmitArgPrefixes[VideoFit] = field(default_factory=VideoFit)

    def run(self) -> None:
        from neuralsde.data.videos.clips import holds_videos

        named = self.data if self.data.name.strip(".") else self.data.resolve()
        folder = self.output or Path("runs") / named.name.split(".")[0]
        check(self.data.exists(), f"There is no file or folder {self.data}.")
        if holds_videos(self.data):
            refuse(
                flags_of(self, {"table", "series", "model", "budget"}),
                f"this is for tables. {self.data} is taken for videos.",
            )
            self._fit_videos(folder)
        else:
            refuse(flags_of(self.video), f"this is for videos. {self.data} is taken for a table.")
            self._fit_table(folder)

    def _fit_videos(self, folder: Path) -> None:
        from neuralsde.video.fit import fit_videos

        found = fit_videos(self.data, **(keywords(fit_videos, self) | {"output": folder, "settings": self.video}))
        print(f"\n{found.summary}\n\nWrote {folder}: report.md, {', '.join(found.files)}")

    def _fit_table(self, folder: Path) -> None:
        from neuralsde.data.tables.read import read_table
        from neuralsde.forecast.fit import fit_table

        own = dataclasses.asdict(self.table) | {"columns": self.table.columns or None}
        lag, encoder = own.pop("lag"), own.pop("encoder")
        table = read_table(self.data, **own)
        if self._is_even(table):
            self._fit_series(table, folder)
            return
        options = keywords(fit_table, self) | {"output": folder, "encoder": encoder}
        options |= {"lag": lag[0] if len(lag) == 1 else lag or None, "say": lambda text: print(in_flags(text, Fit))}
        fitted = fit_table(table, **options)
        if fitted.held_out is not None:
            print("\n".join(fitted.held_out.lines()))
        print(f"Wrote {folder}: report.md, model/, series.json, metrics.jsonl, results.json")
        if table.report.offer:
            print(f"! Rows were taken in their order. {in_flags(table.report.offer, Fit)}")

    def _is_even(self, table: Table) -> bool:
        """Whether the table is taken for series at even times: asked for, or dates with a frequency and nothing against it."""
        from neuralsde.data.tables.calendars import why_uneven
        from neuralsde.forecast.series import SHORTEST, frequency_of

        train = {"train"} if self.train != TrainConfig(seed=self.train.seed) else set()
        asked, chosen = flags_of(self, {"series"}), flags_of(self, {"model", "steps", "holdout", *train})
        against = chosen or self.table.lag or self.table.encoder
        if asked:
            refuse(chosen, "series at even times are forecast by a model that is chosen for them.")
            return True
        long = int(table.data.lengths.max()) >= 2 * SHORTEST
        if against or not long or table.time.kind != "dates":
            return False
        even = frequency_of(table) is not None
        if not even:
            why = in_flags(why_uneven(table.every_stamp()), Fit)
            print(f"! The stamps are not evenly spaced: series are fitted as paths. {why}\n")
        return even

    def _fit_series(self, table: Table, folder: Path) -> None:
        from neuralsde.forecast.series import command_ahead, fit_series

        print(in_flags(str(table.report), Fit))
        how = dict(vars(self.series))
        how |= {"seed": self.train.seed, "progress": self.options.progress, "budget": self.budget or "2 min"}
        fitted = fit_series(table, output=folder, resume=self.resume, **how)
        if not self.options.progress:
            print(f"\n{fitted.report}")
        names = ("report.md", "forecast.csv", "forecast.png", "model", "results.json")
        print(f"\nWrote {folder}: {', '.join(name for name in names if (folder / name).exists())}")
        if not (folder / "forecast.csv").exists():
            known = ", ".join(fitted.record.known_ahead)
            print(f"No forecast was made: {known} must be known ahead. Type\n  {command_ahead(folder, self.data)}")
