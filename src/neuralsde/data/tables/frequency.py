"""How often a series is observed: stamps as whole steps of a calendar, and steps as stamps again.

A month is one step, whatever its days; so is a business day. What follows a series then falls on the dates on which the
series itself would go on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from neuralsde.core.records import check
from neuralsde.data.tables.zones import UNIVERSAL, as_text, universal, wall

NEAR = 0.1  # of a step: how far a stamp may be from its place on the calendar
MOST_OFF = 0.05  # share of stamps that may be further
DAY, WEEK, YEAR = 86_400.0, 7 * 86_400.0, 365.25 * 86_400.0
ALIASES: dict[str, tuple[str, float]] = {
    "s": ("seconds", 1.0),
    "min": ("seconds", 60.0),
    "t": ("seconds", 60.0),
    "h": ("seconds", 3_600.0),
    "d": ("seconds", DAY),
    "w": ("seconds", WEEK),
    "b": ("business days", 1.0),
    "m": ("months", 1.0),
    "ms": ("months", 1.0),
    "me": ("months", 1.0),
    "q": ("months", 3.0),
    "qs": ("months", 3.0),
    "qe": ("months", 3.0),
    "y": ("months", 12.0),
    "ys": ("months", 12.0),
    "ye": ("months", 12.0),
}
"""What pandas calls them, in lower case, without an anchor such as -SUN."""
USUAL = {"seconds": 48, "business days": 20, "months": 18, "numbers": 20}
"""Steps ahead, where nothing was said."""


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
    zone: str | None = None
    """Steps follow the wall clock of this time zone; None: that of the stamps. The stamps themselves are in UTC."""

    @property
    def words(self) -> str:
        """In words."""
        names = {1.0: "second", 60.0: "minute", 3_600.0: "hour", DAY: "day", WEEK: "week"}
        if self.unit == "seconds":
            known = next((n for n in sorted(names, reverse=True) if self.size % n == 0), 1.0)
            num = self.size / known
            return names[known] if num == 1 else f"{num:g} {names[known]}s"
        if self.unit == "months":
            year, quarter = self.size == 12, self.size == 3
            return "year" if year else "quarter" if quarter else "month" if self.size == 1 else f"{self.size:g} months"
        return "business day" if self.unit == "business days" else f"step of {self.size:g}"

    def steps_of(self, period: float) -> float | None:
        """A time in seconds, in steps; months and business days are taken as their mean."""
        mean = {"seconds": 1.0, "business days": WEEK / 5, "months": YEAR / 12}.get(self.unit)
        return None if mean is None else period / (mean * self.size)

    @property
    def horizon(self) -> int:
        """Steps ahead where nothing was said."""
        usual = USUAL[self.unit]
        if self.unit == "months":
            return {1.0: 18, 3.0: 8, 12.0: 6}.get(self.size, 12)
        if self.unit == "seconds" and self.size >= DAY:
            return 14 if self.size < WEEK else 13
        return usual

    def periods(self) -> dict[str, float]:
        """Seasons of a calendar that are longer than a step, in steps, by name."""
        if self.unit == "business days":
            return {"week": 5.0, "year": 261.0}
        named = {"day": DAY, "week": WEEK, "year": YEAR}
        found = {name: self.steps_of(period) for name, period in named.items()}
        return {name: steps for name, steps in found.items() if steps is not None and steps > 1.99}

    def steps(self, stamps: np.ndarray) -> np.ndarray:
        """The step of each stamp (dates, or numbers): whole up to rounding."""
        if self.unit == "numbers":
            return (stamps - float(self.origin)) / self.size
        stamps, first = wall(stamps, self.zone), np.datetime64(self.origin, "us")
        if self.unit == "seconds":
            return (stamps - first) / np.timedelta64(1, "us") / (1e6 * self.size)
        if self.unit == "business days":
            days = np.busday_count(first.astype("M8[D]"), stamps.astype("M8[D]"), weekmask="1111100")
            return days.astype(float)
        months = stamps.astype("M8[M]").astype(int) - first.astype("M8[M]").astype(int)
        return months / self.size

    def stamps(self, steps: np.ndarray) -> np.ndarray:
        """The stamps of whole steps."""
        if self.unit == "numbers":
            return float(self.origin) + self.size * steps
        return universal(self._clock(np.round(steps).astype(int)), self.zone)

    def _clock(self, steps: np.ndarray) -> np.ndarray:
        """What the clock shows at these steps."""
        first = np.datetime64(self.origin, "us")
        if self.unit == "seconds":
            return first + np.round(1e6 * self.size * steps).astype("m8[us]")
        clock = first - first.astype("M8[D]").astype("M8[us]")
        if self.unit == "business days":
            days = np.busday_offset(first.astype("M8[D]"), steps, roll="forward", weekmask="1111100")
            return days.astype("M8[us]") + clock
        month = first.astype("M8[M]") + (steps * int(self.size)).astype("m8[M]")
        last = (month + np.timedelta64(1, "M")).astype("M8[D]") - np.timedelta64(1, "D")
        day = first.astype("M8[D]") - first.astype("M8[M]").astype("M8[D]")
        same = np.minimum(month.astype("M8[D]") + day, last)
        return (last if self.month_end else same).astype("M8[us]") + clock


def find_frequency(stamps: list[np.ndarray], freq: str | None = None, zone: str | None = None) -> Frequency | None:
    """The frequency of some series, from their stamps; None where they have none. With `freq` it must be that one.

    Stamps are in UTC. Days and months follow the wall clock of `zone`; hours pass as they do, unless the clock fits better.
    """
    gaps = np.concatenate([np.diff(each) for each in stamps])
    if not len(gaps):
        return None
    clocks: tuple[str | None, ...] = (None,)
    if zone not in UNIVERSAL:
        clocks = (zone, None) if np.median(gaps) > np.timedelta64(20, "h") else (None, zone)
    wrong = None
    for clock in clocks:
        shown = [wall(each, clock) for each in stamps]
        made, off = _on_clock(shown, freq)
        if made is not None:
            return replace(made, zone=clock)
        wrong = wrong or off
    if freq is not None:
        raise ValueError(
            f"`freq={freq!r}` is not that of the stamps. Got {wrong}. Leave it out to have it found, or mend the stamps."
        )
    return None


def _on_clock(stamps: list[np.ndarray], freq: str | None) -> tuple[Frequency | None, str | None]:
    """The frequency by what a clock showed; or what speaks against the one that was named."""
    every, gaps = np.concatenate(stamps), np.concatenate([np.diff(each) for each in stamps])
    origin = every.min()
    if freq is None:
        return next((made for made in _guesses(every, gaps, origin) if _off(made, stamps) is None), None), None
    made = _named(freq, every, origin)
    off = _off(made, stamps)
    if off is None and np.median(np.concatenate([np.diff(made.steps(s)) for s in stamps])) > 1.5:
        found = _on_clock(stamps, None)[0]  # rows may be missing, but then gaps are of many sizes
        off = None if found is None else f"stamps that are a {found.words} apart"
    return (made, None) if off is None else (None, off)


def _guesses(every: np.ndarray, gaps: np.ndarray, origin: np.generic) -> list[Frequency]:
    if every.dtype.kind != "M":
        return [Frequency(unit="numbers", size=float(np.median(gaps)), origin=repr(float(origin)))]
    seconds = np.median(gaps / np.timedelta64(1, "us")) / 1e6
    made = []
    if seconds >= 27 * DAY:
        months = float(max(1, round(seconds / (YEAR / 12))))
        made.append(_months(months, every, origin))
    weekend = np.is_busday(every.astype("M8[D]"), weekmask="0000011").any()
    if seconds == DAY and not weekend and len(every) > 5:
        made.append(Frequency(unit="business days", size=1.0, origin=str(origin)))
    made.append(Frequency(unit="seconds", size=float(seconds), origin=str(origin)))
    return made


def _months(num: float, every: np.ndarray, origin: np.generic) -> Frequency:
    days = every.astype("M8[D]")
    last = (every.astype("M8[M]") + np.timedelta64(1, "M")).astype("M8[D]") - np.timedelta64(1, "D")
    return Frequency(unit="months", size=num, origin=str(origin), month_end=bool((days == last).mean() > 0.9))


def _named(freq: str, every: np.ndarray, origin: np.generic) -> Frequency:
    parts = re.fullmatch(r"\s*(\d*)\s*([A-Za-z]+?)(?:-[A-Za-z]{3})?\s*", freq)
    check(
        parts is not None and parts[2].lower() in ALIASES,
        f"`freq` must be such as 'h', '15min', 'D', 'B', 'W', 'MS', 'QS' or 'YS'. Got {freq!r}.",
    )
    assert parts is not None
    if every.dtype.kind != "M":
        raise ValueError(
            f"`freq` is of dates. Got {freq!r} for stamps that are numbers. Name a column of dates with `time`."
        )
    unit, size = ALIASES[parts[2].lower()]
    size *= int(parts[1] or 1)
    if unit == "months":
        return _months(size, every, origin)
    return Frequency(unit="business days" if unit == "business days" else "seconds", size=size, origin=str(origin))


def _off(made: Frequency, stamps: list[np.ndarray]) -> str | None:
    """What speaks against a frequency: stamps between its steps, or two in one."""
    if not made.size > 0:
        return "stamps that do not go on"
    steps = [made.steps(each) for each in stamps]
    every, whole = np.concatenate(steps), [np.round(each) for each in steps]
    off = np.abs(every - np.round(every)) > NEAR
    if off.mean() > MOST_OFF:
        return f"{_show(np.concatenate(stamps)[off][0])}, which is {every[off][0]:.2f} steps of a {made.words} from the first"
    twice = [int(np.argmax(np.diff(each) <= 0)) for each in whole if (np.diff(each) <= 0).any()]
    if twice:
        k = next(k for k, each in enumerate(whole) if (np.diff(each) <= 0).any())
        return f"two observations within one {made.words}, e.g. {_show(stamps[k][twice[0]])} and {_show(stamps[k][twice[0] + 1])}"
    return None


def _show(stamp: np.generic) -> str:
    """A stamp for a message."""
    return as_text(np.array([stamp]), None)[0] if isinstance(stamp, np.datetime64) else f"{stamp:g}"
