"""The time of a table: what its stamps count, and how a time is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from neuralsde.data.tables.zones import as_text, wall, with_zone

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
"""Units of time for dates and durations."""


@dataclass(frozen=True)
class TimeAxis:
    """What the numbers in `Trajectories.times` mean."""

    column: str | None
    kind: Literal["order", "numbers", "dates", "durations"]
    """Places of rows where there is no time column, numbers as in the file, or dates and durations in `unit`."""
    unit: str | None = None
    origin: str | None = None
    """The date of time 0, in UTC."""
    zone: str | None = field(default=None, compare=False)
    """The time zone that dates are shown in: that of the table; None: it names none."""

    def date(self, time: float) -> str:
        """The date of a time, as people write it."""
        return self.dates(np.array([time]))[0]

    def dates(self, times: np.ndarray) -> list[str]:
        """The dates of some times (n,), all in one form."""
        assert self.kind == "dates"
        return as_text(self.stamps(times), self.zone)

    def show(self, time: float) -> str:
        """A time as the file would have it."""
        return self.texts(np.array([time]))[0]

    def texts(self, times: np.ndarray) -> list[str]:
        """Some times (n,) as the file would have them."""
        return self.dates(times) if self.kind == "dates" else [f"{t:.15g}" for t in times.tolist()]

    def index(self, times: np.ndarray) -> Any:
        """Times (n,) as a column of a frame: dates in their zone, whole numbers as integers."""
        if self.kind == "dates":
            return with_zone(self.stamps(times), self.zone)
        return times.astype(np.int64) if (times == np.round(times)).all() else times

    def clock(self, times: np.ndarray) -> Any:
        """Times (n,) as they are in the table: dates on its clock, or numbers."""
        return wall(self.stamps(times), self.zone) if self.kind == "dates" else times

    def time(self, date: np.datetime64 | str) -> float:
        """The time of a date in UTC, or of one as `origin` has it."""
        return float(self.count(np.datetime64(date.removesuffix("Z"), "us") if isinstance(date, str) else date))

    def count(self, stamps: Any) -> Any:
        """Parsed stamps as times."""
        if self.kind == "numbers":
            return stamps
        assert self.unit is not None
        since = stamps if self.origin is None else stamps - np.datetime64(self.origin.removesuffix("Z"), "us")
        return since / np.timedelta64(round(1e6 * SECONDS[self.unit]), "us")

    def stamps(self, times: np.ndarray) -> np.ndarray:
        """Times as dates; others as they are."""
        if self.kind != "dates":
            return times
        assert self.origin is not None and self.unit is not None
        ticks = np.round(1e6 * SECONDS[self.unit] * times).astype("m8[us]")
        return np.datetime64(self.origin.removesuffix("Z"), "us") + ticks

    def times(self, stamps: np.ndarray) -> np.ndarray:
        """The inverse of `stamps`."""
        return np.asarray(self.count(stamps) if self.kind == "dates" else stamps, dtype=float)
