"""Public tables for forecasting, as they are: what is known, and what followed at fixed origins.

Files are taken from a folder: ETTh1.csv and ETTh2.csv (zhouhaoyi/ETDataset), exchange_rate.txt.gz
(laiguokun/multivariate-time-series-data), Hourly-train.csv, Hourly-test.csv, Weekly-train.csv and Weekly-test.csv
(Mcompetitions/M4-methods), M3C.xls (the M3 competition, forecasters.org; `pip install xlrd` to read it). The small ones come
with statsmodels (co2) and vega_datasets (temperatures, employment, prices).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from neuralsde.data.tables.public import read_public_table

M4_SERIES = 60  # of each kind, evenly spread over the file
M3_SERIES, M3_FIRST = (
    60,
    1,
)  # of each kind, evenly spread over the file from this one on: 7 of 180 were seen in development
LONG_ORIGINS = 12  # of tables of one series, evenly spread over their last fifth
PANEL_WINDOWS = 3  # horizons at the end of the small panels


@dataclass(frozen=True)
class Set:
    """A table, its origins and its horizon."""

    frame: pd.DataFrame  # unique_id, ds, and columns of numbers
    horizon: int
    origins: tuple[int, ...]  # steps before the end of each series, the first where training ends
    season: int  # of the rivals that need to be told
    seasons: tuple[int, ...]

    @property
    def columns(self) -> list[str]:
        return [c for c in self.frame.columns if c not in ("unique_id", "ds")]

    def series(self) -> dict[str, pd.DataFrame]:
        """By id, in the order of time."""
        return {str(k): g.reset_index(drop=True) for k, g in self.frame.groupby("unique_id", sort=False)}


def _long(frame: pd.DataFrame, horizon: int, season: int, seasons: tuple[int, ...]) -> Set:
    """A single table: training ends before its last fifth."""
    test = max(len(frame) // 5, horizon * 4)
    origins = tuple(int(n) for n in np.linspace(test, horizon, LONG_ORIGINS))
    return Set(frame, horizon, origins, season, seasons)


def _ett(name: str, horizon: int) -> Callable[[Path], Set]:
    def read(folder: Path) -> Set:
        frame = read_public_table(name.lower(), folder)
        frame["ds"] = pd.to_datetime(frame["ds"])
        frame.insert(0, "unique_id", name)
        return _long(frame.iloc[:14_400], horizon, 24, (24, 168))

    return read


def _exchange(horizon: int) -> Callable[[Path], Set]:
    def read(folder: Path) -> Set:
        frame = read_public_table("exchange", folder)
        frame.insert(0, "unique_id", "exchange")
        return _long(frame, horizon, 1, (7,))

    return read


def _m4(kind: str, horizon: int, season: int, seasons: tuple[int, ...]) -> Callable[[Path], Set]:
    def read(folder: Path) -> Set:
        frame = read_public_table(f"m4-{kind}", folder)
        every = frame["unique_id"].unique()
        some = every[np.unique(np.linspace(0, len(every) - 1, M4_SERIES).astype(int))]
        return Set(frame[frame["unique_id"].isin(some)].reset_index(drop=True), horizon, (horizon,), season, seasons)

    return read


def _m3(sheet: str, freq: str, horizon: int, season: int) -> Callable[[Path], Set]:
    """The official horizon at the end of each series."""

    def read(folder: Path) -> Set:
        table = pd.read_excel(folder / "M3C.xls", sheet_name=sheet)
        some = table.iloc[M3_FIRST :: len(table) // M3_SERIES].iloc[:M3_SERIES]
        parts = []
        for name, num, *rest in some.itertuples(index=False):
            y = np.array(rest[4 : 4 + int(num)], dtype=float)
            dates = pd.date_range("1970-01-01", periods=len(y), freq=freq)
            parts.append(pd.DataFrame({"unique_id": str(name).strip(), "ds": dates, "y": y}))
        return Set(pd.concat(parts, ignore_index=True), horizon, (horizon,), season, (season,) if season > 1 else ())

    return read


def _co2(folder: Path) -> Set:
    import statsmodels.api as sm

    weeks = sm.datasets.co2.load_pandas().data["co2"].resample("W-SAT").mean()
    frame = pd.DataFrame({"unique_id": "co2", "ds": weeks.index, "y": weeks.to_numpy()})
    return _long(frame, 52, 52, (52,))


def _temperatures(folder: Path) -> Set:
    from vega_datasets import local_data

    table = local_data.seattle_temps()
    frame = pd.DataFrame({"unique_id": "seattle", "ds": table["date"], "y": table["temp"].astype(float)})
    frame = frame.drop_duplicates("ds")
    return _long(frame, 24, 24, (24, 168))


def _panel(frame: pd.DataFrame, horizon: int, season: int) -> Set:
    origins = tuple(horizon * k for k in range(PANEL_WINDOWS, 0, -1))
    return Set(frame, horizon, origins, season, (season,) if season > 1 else ())


def _employment(folder: Path) -> Set:
    from vega_datasets import local_data

    table = local_data.us_employment().drop(columns=["nonfarm_change"])
    frame = table.melt("month", var_name="unique_id", value_name="y").rename(columns={"month": "ds"})
    frame["ds"] = pd.to_datetime(frame["ds"])
    frame["y"] = frame["y"].astype(float)
    return _panel(frame[["unique_id", "ds", "y"]].sort_values(["unique_id", "ds"]), 12, 12)


def _prices(folder: Path) -> Set:
    from vega_datasets import local_data

    table = local_data.stocks().rename(columns={"symbol": "unique_id", "date": "ds", "price": "y"})
    table["ds"] = pd.to_datetime(table["ds"])
    return _panel(table[["unique_id", "ds", "y"]].sort_values(["unique_id", "ds"]), 12, 1)


SETS: dict[str, Callable[[Path], Set]] = {
    "ETTh1, 24 h": _ett("ETTh1", 24),
    "ETTh1, 96 h": _ett("ETTh1", 96),
    "ETTh2, 24 h": _ett("ETTh2", 24),
    "ETTh2, 96 h": _ett("ETTh2", 96),
    "exchange, 24 d": _exchange(24),
    "exchange, 96 d": _exchange(96),
    "M4 hourly": _m4("hourly", 48, 24, (24, 168)),
    "M4 weekly": _m4("weekly", 13, 52, (52,)),
    "M3 yearly": _m3("M3Year", "YS", 6, 1),
    "M3 quarterly": _m3("M3Quart", "QS", 8, 4),
    "M3 monthly": _m3("M3Month", "MS", 18, 12),
    "CO2, weekly": _co2,
    "Seattle, hourly": _temperatures,
    "US employment, monthly": _employment,
    "prices, monthly": _prices,
}
