"""What the columns of a visitor's table are for: a first guess, which the visitor may change."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralsde.data.columns import parse_stamps, unread
from neuralsde.data.tables.cells import Cells, as_numbers, is_missing
from neuralsde.data.tables.time_axis import SECONDS

if TYPE_CHECKING:
    import pandas as pd

LOOKED_AT = 2_000  # rows from which a column is judged
MOSTLY = 0.9  # share of its cells that must be of a kind
FORMATS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%Y/%m/%d")
"""How dates are written that are not ISO; one is taken only where no other reads the column as well."""
CLOCKS = ("ds", "time", "date", "datetime", "timestamp", "t")
NAMES = ("unique_id", "id", "series", "item", "name")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a table is read: arguments of `read_table`, in the words of the page."""

    time: str | None = None
    id: str | None = None
    columns: tuple[str, ...] | None = None
    date_format: str | None = None
    na_values: tuple[str, ...] = ()
    time_unit: str = "s"

    def arguments(self) -> dict[str, Any]:
        """What differs from the defaults of `read_table`."""
        usual = asdict(Reading())
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items() if v != usual[k] and v != ()}


def guess_reading(cells: Cells) -> Reading:
    """Which column is the time, how its dates are written, and which names the series."""
    time, form = _guess_time(cells)
    stamps = None if time is None else parse_stamps(cells.columns[time], date_format=form)
    return Reading(time=time, date_format=form, id=_guess_id(cells, time, stamps), time_unit=guess_unit(stamps))


def guess_unit(stamps: np.ndarray | None) -> str:
    """The largest unit of time that is no longer than the usual gap of dates."""
    if stamps is None or stamps.dtype.kind != "M":
        return "s"
    gaps = np.diff(np.unique(stamps[~unread(stamps)])) / np.timedelta64(1, "s")
    usual = float(np.median(gaps)) if len(gaps) else 1.0
    return next((unit for unit in ("d", "h", "min") if SECONDS[unit] <= usual), "s")


def _guess_time(cells: Cells) -> tuple[str | None, str | None]:
    named = sorted(cells.columns, key=lambda name: name.lower() not in CLOCKS)  # stable: else as in the file
    for name in named:
        few = _few(cells.columns[name])
        if len(few) and few.dtype.kind == "O" and _are_dates(few, None):
            return name, None
    for name in named:
        few = _few(cells.columns[name])
        if not len(few) or few.dtype.kind != "O":
            continue
        forms = [form for form in FORMATS if _are_dates(few, form)]
        if len(forms) == 1:
            return name, forms[0]
        if forms:
            return name, None  # 01/02/2024 may be two dates: the visitor must say which
    return next((name for name in named if name.lower() in CLOCKS), None), None


def _guess_id(cells: Cells, time: str | None, stamps: np.ndarray | None) -> str | None:
    """The column under which no time comes twice."""
    import pandas as pd

    if time is None or stamps is None or not pd.Series(stamps).duplicated().any():
        return None
    named = sorted((n for n in cells.columns if n != time), key=lambda name: name.lower() not in NAMES)
    for name in named:
        column = cells.columns[name]
        numbers, _ = as_numbers(column)
        text = np.isfinite(numbers).sum() < 0.5 * len(numbers)
        if not (text or name.lower() in NAMES) or column.nunique() > len(column) // 2:
            continue
        if pd.DataFrame({"id": column.to_numpy(), "time": stamps}).duplicated().mean() < 1 - MOSTLY:
            return name
    return None


def _few(column: pd.Series) -> pd.Series:
    few = column.iloc[:LOOKED_AT]
    return few[~is_missing(few)]


def _are_dates(few: pd.Series, form: str | None) -> bool:
    stamps = parse_stamps(few, date_format=form)
    return stamps.dtype.kind == "M" and float(unread(stamps).mean()) < 1 - MOSTLY
