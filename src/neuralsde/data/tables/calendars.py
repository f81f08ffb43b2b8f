"""The frequency of series, found in their stamps or named as pandas names it.

A calendar is taken if the stamps fall on it: even gaps, business days, the days or hours of a week that are observed at all,
months by their first or last day or weekday. Where none fits, nothing is made up: the message says what the stamps are.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from neuralsde.core.records import check
from neuralsde.data.tables.frequency import DAY, DAYS, MONDAY, NEAR, WEEK, YEAR, Frequency
from neuralsde.data.tables.zones import UNIVERSAL, as_text, wall

MOST_OFF = 0.05  # share of stamps that may be off the calendar
SAME_DAY = 0.8  # share of months that are dated by one rule
MOST_OPEN = 20_000  # steps of a week
RARE = 0.25  # a step of a week that is seen so seldom, in comparison, is closed
COMMON = 0.05  # share of the gaps, from which on their size counts
CHANCE = 0.01  # of a step that seems closed because it is missing
FEWEST_WEEKS = 1.5  # that tell which steps of a week are open
ALIASES: dict[str, tuple[str, float]] = {
    "us": ("seconds", 1e-6),
    "s": ("seconds", 1.0),
    "min": ("seconds", 60.0),
    "t": ("seconds", 60.0),
    "h": ("seconds", 3_600.0),
    "bh": ("open", 3_600.0),
    "d": ("seconds", DAY),
    "c": ("open", DAY),
    "w": ("seconds", WEEK),
    "b": ("business days", 1.0),
} | {
    f"{business}{unit}{side}": ("months", size)
    for unit, size in (("m", 1.0), ("q", 3.0), ("y", 12.0), ("a", 12.0))
    for business in ("", "b")
    for side in ("", "s", "e")
}
"""What pandas calls them, in lower case, without an anchor such as -SUN."""
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
RULES = {
    "ends of months": (True, False),
    "firsts of months": (False, False),
    "last weekdays of months": (True, True),
    "first weekdays of months": (False, True),
}
"""How months may be dated: at their end, on a weekday. Another day of the month is a rule of its own."""


def find_frequency(stamps: list[np.ndarray], freq: str | None = None, zone: str | None = None) -> Frequency | None:
    """The frequency of some series, from their stamps; None where they have none. With `freq` it must be that one.

    Stamps are in UTC. Days and months follow the wall clock of `zone`; hours pass as they do, unless the clock fits better.
    """
    gaps = np.concatenate([np.diff(each) for each in stamps])
    if not len(gaps):
        return None
    clocks: list[tuple[str | None, bool]] = [(None, True)]
    if zone not in UNIVERSAL:  # hours of trading follow the clock, others pass as they do
        days = np.median(gaps) > np.timedelta64(20, "h")
        clocks = [(zone, True), *clocks] if days else [(zone, False), *clocks, (zone, True)]
    wrong = None
    for clock, even in clocks:
        shown = [wall(each, clock) for each in stamps]
        made, off = _named(freq, shown) if freq is not None else (_found(shown, even=even), None)
        if made is not None:
            return replace(made, zone=clock)
        wrong = wrong or off
    if freq is not None:
        raise ValueError(
            f"`freq={freq!r}` is not that of the stamps. Got {wrong}. Leave it out to have it found, or mend the stamps."
        )
    return None


def _found(stamps: list[np.ndarray], *, even: bool = True) -> Frequency | None:
    """The first calendar on which the stamps fall; without `even` one of open days and hours alone."""
    every, gaps = np.concatenate(stamps), np.concatenate([np.diff(each) for each in stamps])
    if every.dtype.kind != "M":
        made = Frequency(unit="numbers", size=float(np.median(gaps)), origin=repr(float(every.min())))
        return made if _off(made, stamps) is None else None
    seconds, guesses = float(np.median(gaps / np.timedelta64(1, "us")) / 1e6), []
    if seconds >= 27 * DAY:
        guesses.append(_months(float(max(1, round(seconds / (YEAR / 12)))), every))
    guesses.append(_open(stamps))
    weekend = np.is_busday(every.astype("M8[D]"), weekmask="0000011").any()
    if seconds == DAY and not weekend and len(every) > 5:
        guesses.append(Frequency(unit="business days", size=1.0, origin=str(every.min())))
    if even:
        guesses.append(Frequency(unit="seconds", size=seconds, origin=str(every.min())))
        guesses += _rounded(seconds, every.min())
    return next((made for made in guesses if made is not None and _off(made, stamps) is None), None)


def _rounded(seconds: float, origin: np.datetime64) -> list[Frequency]:
    """Even gaps of whole minutes, hours or days near the usual one, from a full one on: where clocks are not exact."""
    units, made = (DAY, 3_600.0, 900.0, 300.0, 60.0, 1.0), []
    for unit in units:
        size = unit * round(seconds / unit)
        if size and abs(size - seconds) <= NEAR * size:
            full = (_full(origin, each) for each in units)
            begin = next((f for f in full if abs((f - origin) / np.timedelta64(1, "s")) <= NEAR * size / 2), origin)
            made.append(Frequency(unit="seconds", size=size, origin=str(begin)))
    return made


def _full(stamp: np.datetime64, unit: float) -> np.datetime64:
    """The nearest full hour, minute, …."""
    step = np.timedelta64(round(1e6 * unit), "us")
    return MONDAY + (stamp - MONDAY + step // 2) // step * step


def _months(num: float, every: np.ndarray, rule: str | None = None) -> Frequency | None:
    """Months dated by a rule; by that of the stamps where none is named; None where they have none."""
    days = every.astype("M8[D]")
    number = (days - every.astype("M8[M]").astype("M8[D]")).astype(int)
    usual = np.bincount(number).argmax() if number.max() < 28 else int(number.max())
    first = every[number == usual].min()  # a month that has this day
    plain = Frequency(unit="months", size=num, origin=str(first))
    made = {name: replace(plain, month_end=end, business=weekday) for name, (end, weekday) in RULES.items()}
    made["firsts of months"] = replace(plain, origin=str(first - np.timedelta64(int(usual), "D")))
    made["one day of months"] = plain
    share = {name: float((each._day(every.astype("M8[M]")) == days).mean()) for name, each in made.items()}
    best = max(share, key=lambda name: share[name])
    if rule is None:
        return made[best] if share[best] >= SAME_DAY else None
    clear = share[best] >= SAME_DAY and share[rule] < SAME_DAY  # stamps on all sorts of days may be dated as one likes
    return None if clear else made[rule]


def _open(stamps: list[np.ndarray]) -> Frequency | None:
    """The steps of a week that are observed, if others never are and chance does not explain it."""
    every = np.concatenate(stamps)
    gaps = np.concatenate([np.diff(each) for each in stamps]) / np.timedelta64(1, "s")
    common, counts = np.unique(np.round(gaps), return_counts=True)
    base = float(np.gcd.reduce(common[counts >= COMMON * counts.sum()].astype(int)))
    if not base or DAY % base or WEEK / base > MOST_OPEN:
        return None
    weeks = sum(float((each[-1] - each[0]) / np.timedelta64(1, "s")) + base for each in stamps) / WEEK
    made = Frequency(unit="seconds", size=base, origin=str(every.min()))
    seconds = (every - MONDAY) / np.timedelta64(1, "us") / 1e6 - made.origin_in_day
    cycle, times = (WEEK, weeks) if weeks >= FEWEST_WEEKS else (DAY, 7 * weeks)
    place = np.round(seconds / base).astype(int) % round(cycle / base)
    seen = np.bincount(place, minlength=round(cycle / base))
    there = seen > RARE * np.median(seen[seen > 0])
    often = float(seen[there].mean()) / times
    by_chance = (~there).sum() * max(1 - often, 0.0) ** times
    if there.all() or there.sum() < 2 or often < 0.5 or times < FEWEST_WEEKS or by_chance > CHANCE:
        return None
    opened = np.flatnonzero(np.tile(there, round(WEEK / cycle)))
    if base == DAY and opened.tolist() == [0, 1, 2, 3, 4]:
        return Frequency(unit="business days", size=1.0, origin=str(every[there[place]].min()))
    return replace(made, origin=str(every[there[place]].min()), open=tuple(opened.tolist()))


def _named(freq: str, stamps: list[np.ndarray]) -> tuple[Frequency | None, str | None]:
    """The calendar that was named; or what in the stamps speaks against it."""
    every = np.concatenate(stamps)
    parts = re.fullmatch(r"\s*(\d*)\s*([A-Za-z]+?)(?:-([A-Za-z]{3}))?\s*", freq)
    check(
        parts is not None and parts[2].lower() in ALIASES,
        f"`freq` must be such as 'h', '15min', 'D', 'B', 'W', 'MS', 'BME', 'QS' or 'YS'. Got {freq!r}.",
    )
    assert parts is not None
    if every.dtype.kind != "M":
        raise ValueError(
            f"`freq` is of dates. Got {freq!r} for stamps that are numbers. Name a column of dates with `time`."
        )
    name, anchor = parts[2].lower(), (parts[3] or "").upper()
    unit, size = ("seconds", 1e-3) if parts[2] == "ms" else ALIASES[name]
    size *= int(parts[1] or 1)
    off = _off_anchor(unit, name, anchor, every)
    if off is not None:
        return None, off
    made, origin = None, str(every.min())
    if unit == "months":
        side = {"s": "firsts", "e": "ends"}.get(name[-1]) if len(name) > 1 else None
        business = {"firsts": "first weekdays", "ends": "last weekdays"}
        if name[0] == "b":
            side = business.get(side or "ends")
        made = _months(size, every, None if side is None else f"{side} of months")
        if made is None and side is None:
            return None, f"{_days_of_months(every)}: name the day that forecasts fall on, 'MS', 'ME', 'BMS' or 'BME'"
        if made is None:
            return None, f"{_show(every[0])}, and others that are not the {side} of months"
    elif unit == "open":
        made = _open(stamps)
        if made is None or made.size != size:
            return None, f"no {'hours' if size < DAY else 'days'} of the week that are left out"
    else:
        made = Frequency(unit="business days" if unit == "business days" else "seconds", size=size, origin=origin)
    off = _off(made, stamps)
    if off is not None and unit == "seconds" and size >= DAY:  # of its day or week, whenever in it
        near = replace(made, nearest=True, origin=str(_middle(every, size)))
        if _off(near, stamps) is None:
            return near, None
    if off is None and np.median(np.concatenate([np.diff(made.steps(s)) for s in stamps])) > 1.5:
        found = _found(stamps)  # rows may be missing, but then gaps are of many sizes
        coarse = found is not None and not found.open
        off = f"stamps that are a {found.words} apart" if found is not None and coarse else None
    return (made, None) if off is None else (None, off)


def _off_anchor(unit: str, name: str, anchor: str, every: np.ndarray) -> str | None:
    """What speaks against the weekday or the month that a frequency names."""
    if not anchor:
        return None
    if name == "w":
        days = [day[:3].upper() for day in DAYS]
        check(anchor in days, f"The anchor of `freq` must be one of {', '.join(days)}. Got {anchor!r}.")
        own = ((every - MONDAY) // np.timedelta64(1, "D")).astype(int) % 7
        wrong = own != days.index(anchor)
        more = ". Give `freq='W'` if each is of its own week, on any day" if wrong.any() and not wrong.all() else ""
        return f"{_show(every[wrong][0])}, a {DAYS[own[wrong][0]]}{more}" if wrong.mean() > MOST_OFF else None
    check(unit == "months" and name.strip("bse") in "qya", f"`freq` has no anchor there. Got -{anchor}. Leave it out.")
    check(anchor in MONTHS, f"The anchor of `freq` must be one of {', '.join(MONTHS)}. Got {anchor!r}.")
    cycle = 3 if "q" in name else 12
    own = every.astype("M8[M]").astype(int) % 12
    wrong = (own - MONTHS.index(anchor)) % cycle != 0
    return f"{_show(every[wrong][0])}, which is in {MONTHS[own[wrong][0]]}" if wrong.mean() > MOST_OFF else None


def _middle(every: np.ndarray, size: float) -> np.datetime64:
    """A stamp on the most common weekday at a usual time of the day."""
    day = every.astype("M8[D]")
    clock = np.sort(every - day.astype("M8[us]"))[len(every) // 2]
    own = ((every - MONDAY) // np.timedelta64(1, "D")).astype(int) % 7
    common = own == np.bincount(own).argmax()
    return (day[common].min() if size >= WEEK else day.min()).astype("M8[us]") + clock


def _off(made: Frequency, stamps: list[np.ndarray]) -> str | None:
    """What speaks against a frequency: stamps between its steps, or two in one."""
    if not made.size > 0:
        return "stamps that do not go on"
    steps = [made.steps(each) for each in stamps]
    every = np.concatenate(steps)
    off = np.abs(every - np.round(every)) > NEAR
    if off.mean() > MOST_OFF:
        date = np.concatenate(stamps)[off][0]
        where = f"{every[off][0]:.2f} steps of a {made.words} from the first"
        return f"{_show(date)}, which is {'no business day' if made.unit == 'business days' else where}"
    for own, each in zip(stamps, steps):
        on = np.abs(each - np.round(each)) <= NEAR
        twice = np.flatnonzero(np.diff(np.round(each[on])) <= 0)
        if len(twice):
            one, other = own[on][twice[0] : twice[0] + 2]
            return f"two observations within one {made.words}, e.g. {_show(one)} and {_show(other)}"
    return None


def why_uneven(stamps: list[np.ndarray]) -> str:
    """What stamps without a frequency are like, and what could be named."""
    every, gaps = np.concatenate(stamps), np.concatenate([np.diff(each) for each in stamps])
    low, usual, high = (np.quantile(gaps.astype(float), q) for q in (0, 0.5, 1))
    if every.dtype.kind != "M":
        return f"Got steps of {low:g} to {high:g}, usually {usual:g}."
    low, usual, high = (x * 1e-6 for x in (low, usual, high))
    said = f"Got gaps of {time_words(low)} to {time_words(high)}, usually {time_words(usual)}."
    for freq, size in (("D", DAY), ("W", WEEK), ("MS", YEAR / 12), ("QS", YEAR / 4), ("YS", YEAR)):
        if 0.6 * size <= usual <= 1.6 * size and _named(freq, stamps)[0] is not None:
            months = f" They fall on {_days_of_months(every)}." if size > WEEK else ""
            what = {"D": "day", "W": "week", "QS": "quarter", "YS": "year"}.get(freq, "month")
            return f"{said}{months} Give `freq={freq!r}` if each is of its own {what}."
    for freq, size in (("D", DAY), ("h", 3_600.0)):
        if low == size and not (gaps % np.timedelta64(int(size * 1e6), "us")).astype(int).any():
            return f"{said} Give `freq={freq!r}` if rows are missing."
    return said


def _days_of_months(every: np.ndarray) -> str:
    number = (every.astype("M8[D]") - every.astype("M8[M]").astype("M8[D]")).astype(int) + 1
    return f"days {number.min()} to {number.max()} of their months"


def time_words(seconds: float) -> str:
    """A time in words."""
    for name, unit in (("day", DAY), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= unit:
            num = f"{seconds / unit:.3g}"
            return f"{num} {name}{'s' if name == 'day' and num != '1' else ''}"
    return f"{seconds:.3g} s"


def _show(stamp: np.generic) -> str:
    """A stamp for a message."""
    return as_text(np.array([stamp]), None)[0] if isinstance(stamp, np.datetime64) else f"{stamp:g}"
