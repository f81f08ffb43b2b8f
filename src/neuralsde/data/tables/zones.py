"""Time zones: which one the stamps of a table are in, the wall time there, and back to UTC.

Stamps are kept in UTC, so that gaps are what they were. People count days and months by the wall clock. A file may name
offsets alone, such as +01:00 in winter and +02:00 in summer: then the zone is one whose clock showed the same.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any
from zoneinfo import available_timezones

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

TAIL = r":\d\d.*?(Z|[+-]\d\d:?(?:\d\d)?)$"
OFFSET = re.compile(r"(?:(Z)|([+-])(\d\d):?(\d\d)?)$")
UNIVERSAL = (None, "UTC")
"""Zones whose wall time is that of the stamps."""
USUAL = (
    *("Europe/Berlin", "Europe/London", "Europe/Athens", "Europe/Lisbon"),
    *("America/New_York", "America/Chicago", "America/Denver", "America/Los_Angeles", "America/Halifax"),
    *("America/Sao_Paulo", "Australia/Sydney", "Australia/Adelaide", "Pacific/Auckland", "Asia/Jerusalem"),
)
"""Tried first: others have the same clock."""
MOST = 5_000  # stamps by which a zone is found


def zone_of(column: pd.Series, stamps: np.ndarray) -> str | None:
    """The zone of a column whose stamps are these in UTC; None where it names none, or more than one zone explains."""
    if column.dtype != object:
        return _name(getattr(column.dtype, "tz", None))
    each = column.map(str).str.extract(TAIL, expand=False)
    minutes = each.map({tail: _minutes(tail) for tail in each.dropna().unique()}).to_numpy(dtype=float)
    found = np.unique(minutes)
    if np.isnan(minutes).any() or not len(found):
        return None
    if len(found) == 1:
        return "UTC" if found[0] == 0 else _fixed(int(found[0]))
    few = np.unique(np.linspace(0, len(stamps) - 1, MOST).astype(int))
    shown = stamps.astype("M8[us]") + (60e6 * minutes).astype("m8[us]")
    return _explains(tuple(stamps[few].astype("M8[us]").tolist()), tuple(shown[few].tolist()))


@cache
def _explains(stamps: tuple[object, ...], shown: tuple[object, ...]) -> str | None:
    """A zone whose clock showed this at these times."""
    times, wanted = np.array(stamps, "M8[us]"), np.array(shown, "M8[us]")
    names = [*USUAL, *sorted(name for name in available_timezones() if "/" in name and not name.startswith("Etc/"))]
    return next((name for name in names if (wall(times, name) == wanted).all()), None)


def _name(zone: Any) -> str | None:
    """A zone by a name that pandas knows; None where there is none."""
    import pandas as pd

    if zone is None:
        return None
    for name in (getattr(zone, "key", None), getattr(zone, "zone", None), str(zone)):
        if name is not None and not re.match(r"UTC[+-]", str(name)):
            try:
                pd.Timestamp(0, tz=name)
                return "UTC" if name in ("UTC", "utc", "Etc/UTC") else str(name)
            except Exception:  # each library of zones has its own
                continue
    return _fixed(int(zone.utcoffset(None).total_seconds() // 60))


def _minutes(tail: str) -> int:
    found = OFFSET.search(tail)
    assert found is not None
    if found[1]:
        return 0
    return (-1 if found[2] == "-" else 1) * (60 * int(found[3]) + int(found[4] or 0))


def _fixed(minutes: int) -> str:
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


def wall(stamps: np.ndarray, zone: str | None) -> np.ndarray:
    """What clocks in the zone show at these times in UTC."""
    if zone in UNIVERSAL:
        return stamps
    import pandas as pd

    there = pd.DatetimeIndex(stamps.astype("M8[us]")).tz_localize("UTC").tz_convert(zone)
    return there.tz_localize(None).to_numpy().astype("M8[us]")


def universal(shown: np.ndarray, zone: str | None) -> np.ndarray:
    """The times in UTC at which clocks show this: the first of two, and where none does, the next that is shown."""
    if zone in UNIVERSAL:
        return shown
    import pandas as pd

    first = np.ones(shown.shape, dtype=bool)
    there = pd.DatetimeIndex(shown.astype("M8[us]")).tz_localize(zone, nonexistent="shift_forward", ambiguous=first)
    return there.tz_convert("UTC").tz_localize(None).to_numpy().astype("M8[us]")


def with_zone(stamps: np.ndarray, zone: str | None) -> pd.DatetimeIndex:
    """Times in UTC as pandas has them: in their zone, or without one."""
    import pandas as pd

    index = pd.DatetimeIndex(stamps)
    return index if zone is None else index.tz_localize("UTC").tz_convert(zone)


def as_text(stamps: np.ndarray, zone: str | None) -> list[str]:
    """Times in UTC as people write them: 2024-05-15, or with the time of day where one has any; with the offset of a zone."""
    shown = wall(stamps.astype("M8[us]"), zone)
    days = zone is None and bool((shown == shown.astype("M8[D]")).all())
    units = ("D", "m", "s") if days else ("m", "s")
    unit = next((u for u in units if bool((shown == shown.astype(f"M8[{u}]")).all())), "us")
    texts = [t.replace("T", " ") for t in shown.astype(f"M8[{unit}]").astype(str).tolist()]
    if zone is None:
        return texts
    minutes = ((shown - stamps.astype("M8[us]")) / np.timedelta64(1, "m")).astype(int)
    return [text + ("Z" if zone == "UTC" else _fixed(m)) for text, m in zip(texts, minutes.tolist())]


def offsets(column: pd.Series) -> list[str]:
    """The different offsets that text names, in order."""
    return sorted(column.map(str).str.extract(TAIL, expand=False).dropna().unique())
