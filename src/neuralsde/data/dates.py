"""How dates are written, where it is not ISO: found where one way of reading is left, several where there are.

Beside the formats of strptime there are four words: `quarter` (2005Q1), `week` (2024-W05), `excel` (days since 1899-12-30) and
`unix` (seconds or milliseconds since 1970).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

WORDS = ("quarter", "week", "excel", "unix")
QUARTER = r"^\s*(?:(\d{4})\s*[-/: ]?\s*[Qq]([1-4])|[Qq]([1-4])\s*[-/' ]?\s*(\d{4})|([1-4])[Qq]\s*[-/ ]?\s*(\d{4}))\s*$"
WEEK = r"^\s*(\d{4})\s*[-/ ]?\s*[Ww](\d{1,2})\s*$"
DATES = (
    *("%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%Y", "%m-%d-%Y", "%d-%m-%y"),
    *("%Y/%d/%m", "%Y%m%d", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d %b %y", "%d %B %Y", "%d. %B %Y", "%d/%b/%Y"),
    *("%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y", "%a %b %d %Y", "%a, %d %b %Y", "%A, %d %B %Y", "%A, %B %d, %Y"),
    *("%b %Y", "%B %Y", "%b-%Y", "%b-%y", "%b %y", "%B-%y", "%Y %b", "%Y-%b", "%m/%Y", "%m.%Y", "%m-%Y", "%YM%m"),
)
TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", ", %H:%M", ", %I:%M %p", ", %H:%M:%S")
SAMPLE = 50  # cells on which all formats are tried
MOSTLY = 0.95  # share of the cells that a format must fit


def read_word(column: pd.Series, word: str) -> np.ndarray:
    """Stamps as dates of cells in one of `WORDS`; NaT where they are not."""
    import pandas as pd

    if word in ("excel", "unix"):
        numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        if word == "excel":
            return np.datetime64("1899-12-30", "us") + _ticks(8.64e10 * numbers)
        milli = np.nanmax(np.abs(numbers), initial=0.0) > 1e11
        return np.datetime64("1970-01-01", "us") + _ticks((1e3 if milli else 1e6) * numbers)
    text = column.map(str)
    if word == "quarter":
        found = text.str.extract(QUARTER).to_numpy(dtype=object)
        year, part = (_first(found[:, k]) for k in ([0, 3, 5], [1, 2, 4]))
        months = 12 * (year - 1970) + 3 * (part - 1)
        return _whole(months).astype("M8[M]").astype("M8[us]")
    found = text.str.extract(WEEK).to_numpy(dtype=object)
    year, part = (_first(found[:, [k]]) for k in (0, 1))
    year[~((part >= 1) & (part <= 53))] = np.nan
    begin = (_whole(year - 1970).astype("M8[Y]")).astype("M8[D]") + np.timedelta64(3, "D")  # weeks hold a Thursday
    monday = begin - ((begin.astype(int) + 3) % 7).astype("m8[D]")
    return np.asarray((monday + 7 * (_whole(part) - 1).astype("m8[D]")).astype("M8[us]"))


def _first(columns: np.ndarray) -> np.ndarray:
    """The number in each row (n, k); NaN where there is none."""
    return np.array([next((c for c in row if isinstance(c, str)), "nan") for row in columns], dtype=float)


def _whole(values: np.ndarray) -> np.ndarray:
    """Integers, NaT's where there is none."""
    return np.where(np.isfinite(values), np.nan_to_num(values), np.iinfo(np.int64).min).astype(np.int64)


def _ticks(microseconds: np.ndarray) -> np.ndarray:
    return _whole(np.round(microseconds)).astype("m8[us]")


def find_formats(column: pd.Series) -> list[str]:
    """Ways in which all dates of a column of text can be read, other than ISO: none, one or several."""
    import pandas as pd

    cells = pd.Series(pd.unique(column.map(str)), dtype=object)
    few = cells.iloc[np.unique(np.linspace(0, len(cells) - 1, SAMPLE).astype(int))]
    if not few.str.contains(r"\d").mean() >= MOSTLY:
        return []
    likely = [f for f in _candidates(few) if (~np.isnat(parse(few, f))).mean() >= 0.5]
    fits = {f: ~np.isnat(parse(cells, f)) for f in likely}
    dates = np.any([*fits.values()], axis=0) if fits else np.zeros(len(cells), bool)
    found = {f: parse(cells, f).tobytes() for f, own in fits.items() if own[dates].all() and own.mean() >= MOSTLY}
    return [f for k, f in enumerate(found) if found[f] not in list(found.values())[:k]]  # that tell dates apart


def nearest_format(cells: pd.Series) -> tuple[str, int] | None:
    """The format that reads most cells of text, if these are half of them, and the place of the first that it does not read."""
    few = cells.iloc[:SAMPLE].map(str)
    read = {f: ~np.isnat(parse(few, f)) for f in _candidates(few)}
    best = max(read, key=lambda f: read[f].sum(), default=None)
    if best is None or not 0.5 <= read[best].mean() < 1:
        return None
    return best, int(np.argmin(read[best]))


def are_dates(cells: pd.Series) -> np.ndarray:
    """Which cells of text are dates in some form (n,)."""
    import pandas as pd

    found = pd.to_datetime(cells, errors="coerce", format="ISO8601", utc=True).notna().to_numpy()
    for date_format in [*_candidates(cells), *_candidates(cells.str.replace(":", ""))]:
        found = found | ~np.isnat(parse(cells, date_format))
    return found & cells.str.contains(r"[^\d]").to_numpy()


def _candidates(few: pd.Series) -> list[str]:
    """Formats with as many numbers and letters as the cells: few of all."""
    words = few.str.contains("[A-Za-z]").mean() > 0.5
    clock = few.str.contains(":").mean() > 0.5
    dates = [f for f in DATES if words or not any(c in f for c in ("%b", "%B", "%a", "%A", "M%"))]
    times = [t for t in TIMES if bool(t) == clock]
    return [d + t for d in dates for t in times] + (["quarter", "week"] if words or clock else [])


def parse(cells: pd.Series, date_format: str) -> np.ndarray:
    """Dates of text without a time zone; NaT where the format does not fit."""
    import pandas as pd

    if date_format in WORDS:
        return read_word(cells, date_format)
    return pd.to_datetime(cells, errors="coerce", format=date_format).to_numpy().astype("M8[us]")
