"""A trained model and the record of its table: other tables are read as the first one was."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from neuralsde.data.tables.read import Table, read_table
from neuralsde.data.tables.series import Series
from neuralsde.models.build import load
from neuralsde.models.sequence import SequenceModel

DEFAULT_STEPS = 20
"""Training steps in a horizon that was not asked for."""
ENOUGH_FORECASTS = 100
"""Forecasts that are scored, where it was not said how many."""


@dataclass(frozen=True)
class TableModel:
    """A model of a table."""

    model: SequenceModel
    series: Series | None = None
    """What `fit_table` noted about its table; None for a model that was trained otherwise."""
    folder: Path | None = None
    """Where it lies, if it does."""

    @staticmethod
    def load(source: AnyModel) -> TableModel:
        """From a run folder, a folder written by save_pretrained, or a model in memory."""
        if isinstance(source, TableModel):
            return source
        if isinstance(source, SequenceModel):
            return TableModel(source)
        return TableModel(load(source), Series.load(Path(source)), Path(source))

    def read(
        self,
        table: Table | str | os.PathLike[str],
        *,
        id: str | None = None,
        time: str | None = None,
        columns: Sequence[str] = (),
        context: Sequence[str] = (),
        time_unit: str | None = None,
        date_format: str | None = None,
        separator: str | None = None,
        decimal: str | None = None,
        ids: Sequence[str] = (),
    ) -> Table:
        """A table in the form that the model was trained on; arguments replace what the record says, `ids` chooses paths."""
        if not isinstance(table, Table):
            told: dict[str, Any] = {"id": id, "time": time, "columns": columns, "context": context}
            told |= {"time_unit": time_unit, "date_format": date_format, "separator": separator, "decimal": decimal}
            options = {name: value or (self.series and getattr(self.series, name)) for name, value in told.items()}
            table = read_table(table, **{name: value for name, value in options.items() if value})
            if self.series is not None:
                _check_time(table, self.series, told=time_unit is not None)
        wanted = (math.prod(self.model.scale.shape), self.model.scale.context_size)
        if (len(table.columns), len(table.context)) != wanted:
            raise ValueError(
                f"The model takes {wanted[0]} feature(s) and {wanted[1]} context value(s). Got {', '.join(table.columns)} and "
                f"{', '.join(table.context) or 'no context'}. Name them with `columns` and `context`."
            )
        return _only(table, ids) if ids else table


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
    raise ValueError(
        f"The model was trained on {words.get(series.time_kind, 'numbers')} as time. Got {table.time.kind} in "
        f"{table.time.column!r} of {table.report.file}. {remedy}, or name another column with `time`."
    )


def _only(table: Table, ids: Sequence[str]) -> Table:
    """The table with these paths alone."""
    for name in ids:
        if name not in table.ids:
            few = ", ".join(table.ids[:10]) + (", …" if len(table.ids) > 10 else "")
            raise ValueError(f"There is no path {name!r} in {table.report.file}. Its paths are {few}.")
    return table.select([table.ids.index(name) for name in ids])
