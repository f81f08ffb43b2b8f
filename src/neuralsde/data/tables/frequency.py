"""How often a series is observed: stamps as whole steps of a calendar, and steps as stamps again.

A month is one step, whatever its days; so is a business day, or an hour of trading. What follows a series then falls on the
dates on which the series itself would go on. `calendars` finds the frequency in stamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from neuralsde.data.tables.zones import universal, wall

NEAR = 0.1  # of a step: how far a stamp may be from its place on the calendar
DAY, WEEK, YEAR = 86_400.0, 7 * 86_400.0, 365.25 * 86_400.0
MONDAY = np.datetime64("1970-01-05", "us")  # weeks are counted from here
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
UNITS = {
    1e-6: "microsecond",
    1e-3: "millisecond",
    1.0: "second",
    60.0: "minute",
    3_600.0: "hour",
    DAY: "day",
    WEEK: "week",
}
USUAL = {"seconds": 48, "business days": 20, "months": 18, "numbers": 20}
"""Steps ahead, where nothing was said."""


def ahead_words(words: str, num: int) -> str:
    """So many steps of a frequency in words: 18 months, 6 steps of 15 minutes."""
    if words.startswith("step of "):
        return f"{num} step{'s' * (num != 1)} of {words[8:]}"
    if words.replace(" ", "").isalpha():
        return f"{num} {words}{'s' * (num != 1)}"
    return f"{num} step{'s' * (num != 1)} of {words}" if words[0].isdigit() else f"{num} steps, each {words}"


@dataclass(frozen=True, kw_only=True)
class Frequency:
    """The time between two observations."""

    unit: Literal["seconds", "business days", "months", "numbers"]
    size: float
    """How many of these."""
    origin: str
    """The stamp of step 0: a date in ISO format, or a number."""
    month_end: bool = False
    """Months end on their last day, whatever its number."""
    business: bool = False
    """Months end, or begin, on a weekday."""
    open: tuple[int, ...] = ()
    """Of the steps of a week, counted from Monday, those that there are: days or hours of trading. Empty: all."""
    nearest: bool = False
    """Stamps that lie between steps are those of the nearest one."""
    zone: str | None = None
    """Steps follow the wall clock of this time zone; None: that of the stamps. The stamps themselves are in UTC."""

    @property
    def words(self) -> str:
        """In words."""
        if self.unit == "seconds":
            known = next(
                (n for n in sorted(UNITS, reverse=True) if abs(self.size / n - round(self.size / n)) < 1e-9), 1.0
            )
            num = self.size / known
            return (UNITS[known] if round(num, 9) == 1 else f"{num:g} {UNITS[known]}s") + self._open_words
        if self.unit == "months":
            year, quarter = self.size == 12, self.size == 3
            return "year" if year else "quarter" if quarter else "month" if self.size == 1 else f"{self.size:g} months"
        if self.unit == "business days":
            return "business day"
        return "step" if self.size == 1 else f"step of {self.size:g}"

    @property
    def _open_words(self) -> str:
        if not self.open:
            return ""
        days, places = np.divmod(np.array(self.open), self._in_day)
        which = sorted(set(days.tolist()))
        starts = [d for d in which if (d - 1) % 7 not in which]
        run = len(starts) == 1 and len(which) > 2
        names = [DAYS[(starts[0] + k) % 7] for k in (0, len(which) - 1)] if run else [DAYS[d] for d in which]
        said = "" if len(which) == 7 else f", {' to '.join(names)}" if run else f", {', '.join(names)}"
        if self._in_day == 1:
            return said
        each = [tuple(places[days == d].tolist()) for d in which]
        first, last = (self.origin_in_day + self.size * each[0][k] for k in (0, -1))
        hours = f"{first // 3600:02.0f}:{first % 3600 // 60:02.0f} to {last // 3600:02.0f}:{last % 3600 // 60:02.0f}"
        return f"{said}, {hours}" if len(set(each)) == 1 else f"{said}, {len(self.open)} a week"

    @property
    def _in_week(self) -> int:
        return round(WEEK / self.size)

    @property
    def _in_day(self) -> int:
        return max(1, round(DAY / self.size))

    @property
    def origin_in_day(self) -> float:
        """Seconds by which the steps of a day are later than midnight."""
        return float((np.datetime64(self.origin, "us") - MONDAY) / np.timedelta64(1, "us") / 1e6 % min(self.size, DAY))

    @property
    def _seconds(self) -> float:
        """A step, in the mean."""
        if self.unit == "seconds":
            return WEEK / len(self.open) if self.open else self.size
        return {"business days": WEEK / 5, "months": YEAR / 12}[self.unit] * self.size

    def steps_of(self, period: float) -> float | None:
        """A time in seconds, in steps; months and business days are taken as their mean."""
        return None if self.unit == "numbers" else period / self._seconds

    @property
    def horizon(self) -> int:
        """Steps ahead where nothing was said."""
        if self.unit == "months":
            return {1.0: 18, 3.0: 8, 12.0: 6}.get(self.size, 12)
        if self.unit == "seconds" and self.size >= DAY:
            return 4 * len(self.open) if self.open else 14 if self.size < WEEK else 13
        return USUAL[self.unit]

    def periods(self) -> dict[str, float]:
        """Seasons of a calendar that are longer than a step, in steps, by name."""
        if self.unit == "business days":
            return {"week": 5.0, "year": 261.0}
        named = {"day": DAY, "week": WEEK, "year": YEAR}
        found = {name: self.steps_of(period) for name, period in named.items()}
        if self.open:
            each = np.bincount(np.array(self.open) // self._in_day)
            each = each[each > 0]
            found["day"] = float(each[0]) if (each == each[0]).all() else None  # days differ
        return {name: steps for name, steps in found.items() if steps is not None and steps > 1.99}

    def steps(self, stamps: np.ndarray) -> np.ndarray:
        """The step of each stamp (dates, or numbers): whole up to rounding; halves are stamps that the calendar does not have."""
        if self.unit == "numbers":
            return (stamps - float(self.origin)) / self.size
        stamps, first = wall(stamps, self.zone), np.datetime64(self.origin, "us")
        if self.open:
            return self._open_steps(stamps) - self._open_steps(first)
        if self.unit == "seconds":
            found = (stamps - first) / np.timedelta64(1, "us") / (1e6 * self.size)
            return np.round(found) if self.nearest else found
        if self.unit == "business days":
            days = stamps.astype("M8[D]")
            found = np.busday_count(first.astype("M8[D]"), days, weekmask="1111100").astype(float)
            return np.where(np.is_busday(days, weekmask="1111100"), found, found - 0.5)
        months = stamps.astype("M8[M]").astype(int) - first.astype("M8[M]").astype(int)
        return months / self.size

    def _open_steps(self, stamps: np.ndarray | np.datetime64) -> np.ndarray:
        """Open steps since the first Monday."""
        seconds = (stamps - MONDAY) / np.timedelta64(1, "us") / 1e6 - self.origin_in_day
        place = np.asarray(seconds / self.size)
        whole = np.round(place)
        week, inside = np.divmod(whole, self._in_week)
        rank = np.searchsorted(self.open, inside)
        there = np.append(self.open, -1)[rank] == inside
        return week * len(self.open) + rank + np.where(there, place - whole, -0.5)

    def stamps(self, steps: np.ndarray) -> np.ndarray:
        """The stamps of whole steps."""
        if self.unit == "numbers":
            return float(self.origin) + self.size * steps
        return universal(self._clock(np.round(steps).astype(int)), self.zone)

    def _clock(self, steps: np.ndarray) -> np.ndarray:
        """What the clock shows at these steps."""
        first = np.datetime64(self.origin, "us")
        if self.open:
            week, rank = np.divmod(steps + round(float(self._open_steps(first))), len(self.open))
            place = week * self._in_week + np.array(self.open)[rank]
            return MONDAY + np.round(1e6 * (self.origin_in_day + self.size * place)).astype("m8[us]")
        if self.unit == "seconds":
            return first + np.round(1e6 * self.size * steps).astype("m8[us]")
        clock = first - first.astype("M8[D]").astype("M8[us]")
        if self.unit == "business days":
            days = np.busday_offset(first.astype("M8[D]"), steps, roll="forward", weekmask="1111100")
        else:
            days = self._day(first.astype("M8[M]") + (steps * int(self.size)).astype("m8[M]"))
        return days.astype("M8[us]") + clock

    def _day(self, month: np.ndarray) -> np.ndarray:
        """The day on which a month is dated."""
        last = (month + np.timedelta64(1, "M")).astype("M8[D]") - np.timedelta64(1, "D")
        if self.business:
            start, roll = (last, "backward") if self.month_end else (month.astype("M8[D]"), "forward")
            return np.busday_offset(start, 0, roll=roll, weekmask="1111100")  # type: ignore[call-overload]
        if self.month_end:
            return last
        first = np.datetime64(self.origin, "us")
        return np.minimum(month.astype("M8[D]") + (first.astype("M8[D]") - first.astype("M8[M]").astype("M8[D]")), last)
