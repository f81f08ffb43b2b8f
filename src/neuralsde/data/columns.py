"""Columns of tables in memory: numbers, and time stamps as numbers, dates with or without a zone, durations or ISO text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from neuralsde.data.dates import WORDS, read_word

if TYPE_CHECKING:
    import pandas as pd

KINDS: dict[str, Literal["dates", "durations", "numbers"]] = {"M": "dates", "m": "durations", "f": "numbers"}
"""Of stamps, by the kind of their dtype."""
ZONE = r":\d\d.*(?:Z|[+-]\d\d(?::?\d\d)?)$"  # the end of a time with its zone


def as_columns(frame: pd.DataFrame, names: Sequence[str | int]) -> np.ndarray:
    """The named columns as numbers (rows, columns), NaN where a value is missing."""
    import pandas as pd

    for name in names:
        if not isinstance(frame[name], pd.Series):
            raise ValueError(f"The table has two columns {name!r}. Rename one.")
        if not pd.api.types.is_numeric_dtype(frame[name]):
            raise ValueError(f"The column {name!r} must be numbers. Got {frame[name].dtype}. Encode or leave it out.")
    values = frame[list(names)].to_numpy()
    return values if values.dtype != object else frame[list(names)].to_numpy(np.float64, na_value=np.nan)


def as_stamps(column: pd.Series) -> np.ndarray:
    """The stamps of a column, every one of them."""
    stamps = parse_stamps(column)
    lacking = np.isnan(stamps)
    if lacking.any():
        value = column.iloc[int(np.argmax(lacking))]
        raise ValueError(
            f"The column {column.name!r} must hold a stamp in every row: a number, a date or ISO text. Got {value!r} in row "
            f"{int(np.argmax(lacking))}. Drop such rows, or convert them with pandas.to_datetime."
        )
    return stamps


def parse_stamps(column: pd.Series, *, date_format: str | None = None) -> np.ndarray:
    """Stamps as float64, datetime64 (UTC) or timedelta64; what cannot be read is NaN or NaT.

    Text is read as numbers where half of it or more are numbers, else as dates: ISO, or as `date_format` (strptime, or one of
    `dates.WORDS`) says, which numbers follow too. Dates without a zone are taken as UTC.
    """
    import pandas as pd

    kind = pd.api.types
    if kind.is_timedelta64_dtype(column):
        return column.to_numpy()
    if kind.is_datetime64_any_dtype(column):
        return (column.dt.tz_convert(None) if column.dt.tz is not None else column).to_numpy()
    if date_format in WORDS:
        return read_word(column, date_format)
    if date_format is None:
        numbers = pd.to_numeric(column, errors="coerce")
        if kind.is_numeric_dtype(column) or numbers.notna().sum() >= 0.5 * max(1, column.notna().sum()):
            return numbers.to_numpy(dtype=np.float64, na_value=np.nan)
    try:
        if date_format is not None and kind.is_numeric_dtype(column):
            width = len(
                pd.Timestamp(0).strftime(date_format.replace("%f", ""))
            )  # numbers have lost their leading zeros
            column = column.astype(object).map(lambda v: _digits(v).zfill(width), na_action="ignore")
        dates = pd.to_datetime(column, errors="coerce", utc=True, format=date_format or "ISO8601")
    except ValueError as error:  # with `errors="coerce"` it is the format alone
        raise ValueError(
            f'`date_format` must be written as for strptime, e.g. "%d/%m/%Y %H:%M". Got {date_format!r} ({error}).'
        ) from None
    return dates.dt.tz_convert(None).to_numpy()


def _digits(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def unread(stamps: np.ndarray) -> np.ndarray:
    """Which of parsed stamps could not be read (rows,)."""
    return ~np.isfinite(stamps)  # NaT is not finite either


def has_zone(column: pd.Series) -> np.ndarray:
    """Which stamps name a time zone (rows,)."""
    if column.dtype != object:
        return np.full(len(column), getattr(column.dtype, "tz", None) is not None)
    return column.map(str).str.contains(ZONE, regex=True).to_numpy(dtype=bool)


def format_of_numbers(stamps: np.ndarray) -> str | None:
    """How all these numbers read as dates: days as 20240131, or months over a turn of the year as 202401; None: they do not."""
    import pandas as pd

    if len(stamps) < 2 or not (stamps == stamps.round()).all():
        return None
    low, high = stamps.min(), stamps.max()
    if low >= 19000101 and high <= 21001231:
        texts = stamps.astype(np.int64).astype(str)
        days = bool(pd.to_datetime(texts, format="%Y%m%d", errors="coerce").notna().all())
        return "%Y%m%d" if days else None
    months = low >= 190001 and high <= 210012 and high - low >= 89 and (stamps % 100 >= 1) & (stamps % 100 <= 12)
    return "%Y%m" if np.all(months) else None


def guess_numbers(stamps: np.ndarray) -> str | None:
    """The word for numbers that may be dates: days as Excel counts them, or seconds since 1970; None: neither."""
    low, high = (np.min(stamps), np.max(stamps)) if len(stamps) > 1 else (0.0, 0.0)
    if low >= 20_000 and high <= 80_000 and high - low < 20_000:
        return "excel"
    return "unix" if (low >= 3e8 and high <= 4.2e9) or (low >= 3e11 and high <= 4.2e12) else None


def number_ids(column: pd.Series) -> np.ndarray:
    """The number of each row's path, in the order of their appearance; missing ids are refused."""
    try:
        codes = column.factorize()[0]
    except TypeError:  # lists and dicts
        raise ValueError(f"The column {column.name!r} must name paths. Got {column.iloc[0]!r}. Write names.") from None
    if (codes < 0).any():
        rows = np.flatnonzero(codes < 0)
        raise ValueError(
            f"The column {column.name!r} must name the path of every row. Got {len(rows)} missing value(s), first in row "
            f"{rows[0]}. Fill or drop it."
        )
    return codes


def in_paths(path: np.ndarray, stamps: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Rows path by path (numbered 0, 1, …), each in the order of its stamps, and the number of rows of each path."""
    order = np.arange(len(path)) if stamps is None else np.argsort(stamps, kind="stable")
    order = order[np.argsort(path[order], kind="stable")]
    return order, np.bincount(path)
