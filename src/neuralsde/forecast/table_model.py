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
from neuralsde.data.trajectories import Trajectories
from neuralsde.models.build import load
from neuralsde.models.sequence import SequenceModel

DEFAULT_STEPS = 20  # training steps in a horizon that was not asked for
ENOUGH_FORECASTS = 100  # forecasts that are scored, where it was not said how many
NOTED = ("id", "time", "columns", "context", "time_unit", "date_format", "separator", "decimal")
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


def usual_scoring(model: SequenceModel, data: Trajectories) -> dict[str, Any]:
    """Options of `forecasts` for scores, where nothing else was said."""
    horizon = min(DEFAULT_STEPS * model.scale.step, 0.5 * float(data.durations.max()))
    return {"horizon": horizon, "origins_per_path": math.ceil(ENOUGH_FORECASTS / len(data)), "hold_context": True}


def _only(table: Table, ids: Sequence[str]) -> Table:
    """The table with these paths alone."""
    for name in ids:
        if name not in table.ids:
            few = ", ".join(table.ids[:10]) + (", …" if len(table.ids) > 10 else "")
            raise ValueError(f"There is no path {name!r} in {table.report.file}. Its paths are {few}.")
    return table.select([table.ids.index(name) for name in ids])
