"""Public tables of forecasting, as their authors keep them, made into CSV files that `nsde fit` reads without options.

No data comes with this library: a licence is its authors' matter, and named with each table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from neuralsde.core.files import replacing
from neuralsde.core.records import check
from neuralsde.data.download import Source, fetch

DOWNLOADS = "downloads"  # folder beside the output: names that differ in their case alone may be one file
RAW = "https://raw.githubusercontent.com"
ETT, EXCHANGE, M4 = "zhouhaoyi/ETDataset", "laiguokun/multivariate-time-series-data", "Mcompetitions/M4-methods"


@dataclass(frozen=True)
class PublicTable:
    """Files of a table, how they are read, and what is known of it."""

    files: tuple[Source, ...]
    read: Callable[..., pd.DataFrame]
    rows: int  # of the table that is written
    licence: str


def _ett(file: Path) -> pd.DataFrame:
    table = pd.read_csv(file)
    check("date" in table, f"{file} must have a column `date`. It has {', '.join(map(str, table.columns))}.")
    return table.rename(columns={"date": "ds"})


def _exchange(file: Path) -> pd.DataFrame:
    """Eight rates, one row per day; the file has no dates, but its first day is known."""
    rates = pd.read_csv(file, header=None)
    check(rates.shape[1] == 8, f"{file} must have 8 columns, the rates. Got {rates.shape[1]}.")
    rates.columns = pd.Index([f"rate {k}" for k in range(1, 9)])
    rates.insert(0, "ds", pd.date_range("1990-01-01", periods=len(rates), freq="D"))
    return rates


def _m4(freq: str) -> Callable[..., pd.DataFrame]:
    def read(known: Path, after: Path) -> pd.DataFrame:
        """Series one below the other, what followed at their ends; the dates are made, since the files have none."""
        parts = [pd.read_csv(file, index_col=0) for file in (known, after)]
        same = list(parts[0].index) == list(parts[1].index)
        check(same, f"{known} and {after} must name the same series in the same order. They do not.")
        series = []
        for name in parts[0].index:
            y = np.concatenate([part.loc[name].dropna().to_numpy(float) for part in parts])
            days = pd.date_range("2000-01-02", periods=len(y), freq=freq)
            series.append(pd.DataFrame({"unique_id": name, "ds": days, "y": y}))
        return pd.concat(series, ignore_index=True)

    return read


def _ett_file(name: str) -> tuple[Source, ...]:
    return (Source(f"{name}.csv", f"{RAW}/{ETT}/main/ETT-small/{name}.csv"),)


def _m4_files(kind: str) -> tuple[Source, ...]:
    parts = ("train", "test")
    return tuple(Source(f"{kind}-{p}.csv", f"{RAW}/{M4}/master/Dataset/{p.capitalize()}/{kind}-{p}.csv") for p in parts)


TABLES: dict[str, PublicTable] = {
    "etth1": PublicTable(_ett_file("ETTh1"), _ett, 17_420, "CC BY-ND 4.0"),
    "etth2": PublicTable(_ett_file("ETTh2"), _ett, 17_420, "CC BY-ND 4.0"),
    "exchange": PublicTable(
        (Source("exchange_rate.txt.gz", f"{RAW}/{EXCHANGE}/master/exchange_rate/exchange_rate.txt.gz"),),
        _exchange,
        7_588,
        "not stated by its authors",
    ),
    "m4-hourly": PublicTable(_m4_files("Hourly"), _m4("h"), 373_372, "of the M4 competition"),
    "m4-weekly": PublicTable(_m4_files("Weekly"), _m4("W"), 371_579, "of the M4 competition"),
}
"""By the name of the table."""


def read_public_table(name: str, folder: Path) -> pd.DataFrame:
    """A table from a folder that holds its files: `ds` and columns of numbers, `unique_id` where there are several series."""
    files = [folder / one.name for one in TABLES[name].files]
    for file in files:
        check(file.is_file(), f"{folder} must hold {file.name}. It does not. Give the folder where it is.")
    return TABLES[name].read(*files)


def write_public_table(name: str, output: Path, source: Path | None) -> list[str]:
    """Write the CSV file of a table, from a folder that holds its files or from the web; what is to be said of it."""
    known = TABLES[name]
    folder = output.parent / DOWNLOADS if source is None else source if source.is_dir() else source.parent
    if source is None:
        for one in known.files:
            fetch(one, folder)
    table = read_public_table(name, folder)
    notes = [f"Licence: {known.licence}."]
    if len(table) != known.rows:
        notes.append(f"The published table has {known.rows:,} rows, this has {len(table):,}.")
    with replacing(output) as new:
        table.to_csv(new, index=False)
    series = table["unique_id"].nunique() if "unique_id" in table else 1
    columns = [str(c) for c in table.columns if c not in ("unique_id", "ds")]
    return [f"{len(table):,} rows, {series} series, columns {', '.join(columns)}", *(f"- {note}" for note in notes)]
