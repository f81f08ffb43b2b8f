"""The command `nsde forecast`, and the options with which a trained model reads a table."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from neuralsde.cli.options import in_flags, keywords
from neuralsde.core.extras import need

if TYPE_CHECKING:
    from neuralsde.data.tables.read import Table
    from neuralsde.forecast.tables import TableModel


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How a table is read."""

    id: str | None = None
    """Column with the series id."""
    time: str | None = None
    """Column of the time stamps: numbers, ISO dates or durations."""
    columns: tuple[str, ...] = ()
    """Columns of the features."""
    context: tuple[str, ...] = ()
    """Columns of the covariates."""
    time_unit: Literal["us", "ms", "s", "min", "h", "d"] | None = None
    """Unit of dates and durations."""
    date_format: str | None = None
    """Format of dates that are not ISO, as for strptime, e.g. "%d/%m/%Y %H:%M" (found if one fits all); or quarter (2005Q1),
    week (2024-W05), excel (days) or unix (seconds)."""
    separator: str | None = None
    """Column separator of the CSV (detected if not given)."""
    decimal: Literal[".", ","] | None = None
    """Decimal separator of the CSV (detected if not given)."""
    na_values: tuple[str, ...] = ()
    """Cells that mean that there is no value, e.g. -999."""


@dataclass(frozen=True, kw_only=True)
class TableOptions(Columns):
    """Where a table is read otherwise than the record that `nsde fit` left beside the model says; features and
    covariates are named in the order of the training."""

    ids: tuple[str, ...] = ()
    """Only these series."""

    def open(self, folder: Path, file: Path) -> tuple[TableModel, Table]:
        """The model, and the table in the form that it was trained on; what was read is printed."""
        from neuralsde.forecast.tables import TableModel

        refuse_videos(folder)
        model = TableModel.load(folder)
        table = model.read(file, **{name: getattr(self, name) for name in OF_TABLES})
        print(in_flags(str(table.report), type(self)))
        return model, table


OF_TABLES = {field.name for field in dataclasses.fields(TableOptions)}  # options that need --data


def refuse_videos(folder: Path) -> None:
    """A model of videos is no model of tables."""
    from neuralsde.video.model import video_folder

    if video_folder(folder) is not None:
        scores = "report.md or results.json in its run has its scores"
        raise ValueError(f"{folder} holds a model of videos: {scores}. Draw with `nsde sample {folder} CLIP`.")


@dataclass(frozen=True)
class Forecast(TableOptions):
    """Forecast each series of a table from its last observation."""

    model: Positional[Path]
    """Folder written by save_pretrained, or a run folder."""
    data: Path
    """Table with one row per observation: .csv or .parquet."""
    future: Path | None = None
    """Table of known or planned covariates: id, time and context columns (the last covariates are held if not given)."""
    horizon: float | None = None
    """Steps ahead of a model of series (default as in its fit); else time ahead in the unit of the training."""
    num_times: int = 50
    """Forecast times of a model of uneven stamps."""
    num_paths: int = 200
    """Samples per series."""
    quantiles: tuple[float, ...] = ()
    """Probabilities of quantiles in the file (the ends of the 80 and 95 % intervals if not given)."""
    seed: int = 0
    """Seed of the samples."""
    output: Path = Path("forecast.csv")
    """Where to write: unique_id, ds, NSDE (the mean), NSDE-lo-80, NSDE-hi-80, …"""
    plot: Path | None = None
    """Image file of a fan chart of the first series."""

    def run(self) -> None:
        from neuralsde.forecast.tables import forecast_table

        if self.plot is not None:
            need("A figure", "matplotlib")
        model, table = self.open(self.model, self.data)
        made = forecast_table(model, table, **keywords(forecast_table, self))
        print(f"Wrote forecasts of {made.num_series} series, {made.span}, to {self.output}.")
        if self.plot is not None:
            made.draw(self.plot)
            print(f"Wrote {self.plot}")
