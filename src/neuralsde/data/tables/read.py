"""From a table in a file to paths: what can be used is used, what cannot is left out and accounted for.

Every row of the file is kept, or dropped for one reason that stands in the report with its count. Cells that are no
finite number count as missing. Rows of one path and one time are joined: the first value of each column is kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralsde.core.doors import door
from neuralsde.core.records import from_dict
from neuralsde.data.arrays import LARGEST
from neuralsde.data.columns import KINDS, format_of_numbers, guess_numbers, has_zone, in_paths, parse_stamps, unread
from neuralsde.data.dates import are_dates, find_formats, nearest_format
from neuralsde.data.tables.calendars import find_frequency
from neuralsde.data.tables.cells import (
    Cells,
    as_names,
    as_numbers,
    check_names,
    first_few,
    is_missing,
    read_cells,
    show_cell,
)
from neuralsde.data.tables.time_axis import SECONDS, TimeAxis
from neuralsde.data.tables.zones import as_text, offsets, zone_of
from neuralsde.data.trajectories import Trajectories

if TYPE_CHECKING:
    import pandas as pd

CLOSE, ONE_TIME = 1e-6, 1e-9
"""Shares of the median gap: nearer times are refused, and still nearer ones are one time."""


CLOCKS = {
    *("t", "ds", "date", "day", "week", "month", "quarter", "year", "time", "datetime", "timestamp", "period"),
    *("datum", "tag", "woche", "monat", "jahr", "zeit", "fecha", "mes", "mois", "data"),
}
"""Names of columns of times, in lower case."""
CLOCK_TIME = r"\d{1,2}:\d\d(?::\d\d)?(?: ?[AaPp][Mm])?"
LOST = 0.25  # share of the rows from which on an id is missed
SENTINELS = (-99.0, -999.0, -9999.0, -99999.0, 99999.0, 9999.0, 999.0)
"""Numbers that are written for missing ones."""
FAR, RARE, YEAR_OF_DAYS = (
    20,
    0.05,
    365,
)  # spans of most dates, at least years, from which on some are none; and their share
LOOKED_AT, MIXED = (
    1_000,
    0.01,
)  # cells that are no stamps, and share of all from which on they are another way to write dates
EXACT = 2.0**53  # up to which whole numbers are exact
FEW = 10  # other numbers from which on one is told to be such


@dataclass(frozen=True)
class Dropped:
    """Rows that were left out."""

    reason: str
    num_rows: int
    first_line: int
    """Where the first of them stands in the file (in a parquet file: its number)."""


@dataclass(frozen=True)
class TableReport:
    """What became of the rows and columns of a file; `print` it, or take `to_dict()` for JSON."""

    file: str
    rows_read: int
    rows_kept: int
    dropped: tuple[Dropped, ...]
    """With `rows_kept` they add up to `rows_read`."""
    unused: dict[str, str]
    """Columns that were not asked for or hold no numbers, and why."""
    notes: tuple[str, ...]
    """All else that was changed in reading."""
    offer: str = ""
    """What could be named as the time, where nothing was."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.file}: {self.rows_read} rows read, {self.rows_kept} kept"]
        lines += [f"- {d.num_rows} dropped: {d.reason} (first: line {d.first_line})" for d in self.dropped]
        lines += [f"- {note}" for note in self.notes]
        if self.unused:
            lines.append("- columns not used: " + ", ".join(f"{name} ({why})" for name, why in self.unused.items()))
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a file is written, as far as it was told."""

    time_unit: str = "s"
    date_format: str | None = None
    separator: str | None = None
    decimal: str | None = None
    na_values: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Uses:
    """Which columns are used for what."""

    id: str | None
    time: str | None
    columns: tuple[str, ...] | None
    context: tuple[str, ...]


@dataclass(frozen=True)
class Blank:
    """Rows with a time and no number in any feature, in order of path and time: rows that were missed, or are yet to come."""

    path: np.ndarray
    times: np.ndarray
    context: np.ndarray
    """(rows, C); NaN is missing after the last observation of the path. Before it, the context is held as elsewhere."""


@dataclass(frozen=True)
class Table:
    """Paths read from a file."""

    data: Trajectories
    report: TableReport
    ids: tuple[str, ...]
    """Of the paths, in their order."""
    id: str | None
    time: TimeAxis
    columns: tuple[str, ...]
    context: tuple[str, ...]
    layout: Layout = Layout()
    blank: Blank | None = None

    def stamps(self) -> list[np.ndarray]:
        """Of each path: dates, or numbers."""
        return [self.time.stamps(t.numpy()) for t in self.data.times.cpu().split(self.data.lengths.tolist())]

    def every_stamp(self) -> list[np.ndarray]:
        """Of each path, also those of its rows without a number."""
        if self.blank is None:
            return self.stamps()
        return [
            np.sort(np.append(own, self.time.stamps(times))) for own, (times, _) in zip(self.stamps(), self.blanks())
        ]

    def blanks(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each path, times (M,) and contexts (M, C) of the rows without a number."""
        if self.blank is None:
            return [(np.zeros(0), np.zeros((0, len(self.context))))] * len(self.ids)
        cuts = np.bincount(self.blank.path, minlength=len(self.ids)).cumsum()[:-1]
        return list(zip(np.split(self.blank.times, cuts), np.split(self.blank.context, cuts)))

    def contexts(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each path, times (M,) and contexts (M, C) of all rows up to the last observation."""
        assert self.data.context is not None
        lengths = self.data.lengths.tolist()
        parts = zip(
            self.data.times.cpu().split(lengths), self.data.context.cpu().double().split(lengths), self.blanks()
        )
        found = []
        for own_times, own, (times, values) in parts:
            inside = times < float(own_times[-1])
            every = np.append(own_times.numpy(), times[inside])
            order = np.argsort(every, kind="stable")
            found.append((every[order], np.concatenate([own.numpy(), values[inside]])[order]))
        return found

    def select(self, paths: Sequence[int]) -> Table:
        """The table with these paths alone."""
        blank = self.blank
        if blank is not None:
            rows = [np.flatnonzero(blank.path == k) for k in paths]
            path = np.repeat(np.arange(len(paths)), [len(r) for r in rows])
            here = np.concatenate(rows)
            blank = Blank(path, blank.times[here], blank.context[here])
        return replace(self, data=self.data.select(paths), ids=tuple(self.ids[k] for k in paths), blank=blank)


@door
def read_table(
    path: Any,
    *,
    id: str | None = None,
    time: str | None = None,
    columns: Sequence[str] | None = None,
    context: Sequence[str] = (),
    time_unit: str = "s",
    date_format: str | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    na_values: Sequence[str] = (),
) -> Table:
    """Read a table in long form, one row per observation.

    Args:
        path: CSV (.csv, .tsv, .txt, also .gz) or parquet; or a frame, a pandas Series or an array.
        id: column that names the path of a row; absent, `unique_id` where there is one, else all rows are one path.
        time: column of stamps (numbers, dates, durations, ISO text); absent, `ds` where there is one, else rows are 1 apart, in
            the order of the file.
        columns: the features; absent, all columns of numbers that have no other use.
        context: columns of exogenous numbers.
        time_unit: of dates and durations: us, ms, s, min, h or d. Numbers stay as they are.
        date_format: of dates that are not ISO, as for strptime, e.g. "%d/%m/%Y %H:%M"; or "quarter" (2005Q1), "week" (2024-W05),
            "excel" (days) or "unix" (seconds). Absent, it is found if one fits all.
        separator: of a CSV, if it is not to be found out.
        decimal: sign in the numbers of a CSV, "." or ",", if it is not to be found out.
        na_values: cells that mean that there is no value, e.g. "-999".
    """
    if isinstance(columns, str) or isinstance(context, str):
        raise ValueError(f"`columns` and `context` are lists of names. Got {columns=}, {context=}.")
    from_dict(_Uses, {"id": id, "time": time, "columns": columns, "context": context})  # of the right kinds
    told = {"time_unit": time_unit, "date_format": date_format, "separator": separator, "decimal": decimal}
    layout = from_dict(Layout, {**told, "na_values": [str(v) for v in na_values]})
    if time_unit not in SECONDS:
        raise ValueError(f"`time_unit` must be one of {', '.join(SECONDS)}. Got {time_unit!r}.")
    if decimal not in (None, ".", ","):
        raise ValueError(f'`decimal` must be "." or ",". Got {decimal!r}. Leave it out to have it found.')
    cells = read_cells(path, separator=separator, decimal=decimal)
    id, time, columns = _conventional(cells, id, time, columns, context)
    roles = [name for name in (id, time) if name is not None]
    check_names(cells, [*roles, *(columns or ()), *context])
    _refuse_wide(cells)
    rows = _Rows(cells, layout.na_values)
    names = rows.names(id)
    stamps, axis = rows.stamps(time, time_unit, date_format)
    layout = replace(layout, date_format=date_format or rows.date_format)
    chosen, unused = rows.choose(columns, [*roles, *context])
    states = np.stack([rows.numbers(name) for name in chosen], axis=1)
    conditions = np.stack([rows.covariate(name) for name in context], axis=1) if context else np.zeros((len(names), 0))
    empty = rows.left & (np.isnan(states).sum(1) == len(chosen))

    # Path by path, in order of time
    kept = np.flatnonzero(rows.left)
    ids, codes = _numbered(names[kept])
    if stamps is not None:
        rows.note_order(codes[~empty[kept]], stamps[kept][~empty[kept]])
    order, _ = in_paths(codes, None if stamps is None else stamps[kept])
    kept, codes = kept[order], codes[order]
    states, conditions, empty = states[kept], conditions[kept], empty[kept]
    times = _places(codes) if stamps is None else stamps[kept]
    held = _hold(codes, conditions)
    rows.drop_places(kept[empty], "no number in any column")
    never = ~empty & (np.isnan(held).sum(1) > 0)
    rows.drop_places(kept[never], "no number in a context column in any row of the path")

    # Rows without a number are kept aside: they tell the frequency, and what is known of the future
    aside = (codes[empty], times[empty], held[empty], conditions[empty])
    left = ~empty & ~never
    kept, codes, times, states, held = kept[left], codes[left], times[left], states[left], held[left]
    if stamps is not None:
        first, states = rows.join(kept, codes, times, states, held, None if id is not None else time)
        kept, codes, times, held = kept[first], codes[first], times[first], held[first]
    lengths = np.bincount(codes, minlength=len(ids))
    short = lengths < 2
    if (short & (lengths > 0)).any():
        few = [ids[k] for k in np.flatnonzero(short & (lengths > 0))]
        rows.notes.append(f"{len(few)} path(s) too short: {first_few(few)}")
        rows.drop_places(kept[short[codes]], "path with fewer than two observations")
    long = ~short[codes]
    report = rows.report(unused)
    if not long.any():
        raise ValueError("No path with two observations is left. " + str(report).replace("\n-", ";"))
    ids = [name for name, few in zip(ids, short) if not few]
    kept, times, cuts = kept[long], times[long], lengths[~short].cumsum()[:-1]
    data = _paths(
        ids,
        chosen,
        np.split(states[long], cuts),
        None if stamps is None and not len(aside[0]) else np.split(times, cuts),
        np.split(held[long], cuts) if context else None,
    )
    numbers = np.where(short, -1, np.cumsum(~short) - 1)  # those of the paths that are left
    blank = _blank(numbers, data.ends.cpu().numpy(), *aside)
    return Table(data, report, tuple(ids), id, axis, tuple(chosen), tuple(context), layout, blank)


def _places(codes: np.ndarray) -> np.ndarray:
    """The place of each row in its path; rows are path by path."""
    begin = np.append(True, np.diff(codes) != 0)
    return (np.arange(len(codes)) - np.maximum.accumulate(np.where(begin, np.arange(len(codes)), 0))).astype(float)


def _hold(codes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The value before where one is missing, or the first of the path; NaN in paths without any."""
    seen = np.isfinite(values)
    if seen.all():
        return values
    place = np.arange(len(values))[:, None]
    before = np.maximum.accumulate(np.where(seen, place, -1), axis=0)
    after = np.minimum.accumulate(np.where(seen, place, len(values))[::-1], axis=0)[::-1]
    own = (before >= 0) & (codes[np.maximum(before, 0)] == codes[:, None])
    later = (after < len(values)) & (codes[np.minimum(after, len(values) - 1)] == codes[:, None])
    source = np.where(own, before, np.where(later, after, place))
    return np.take_along_axis(values, source, axis=0)


def _blank(
    numbers: np.ndarray, ends: np.ndarray, codes: np.ndarray, times: np.ndarray, held: np.ndarray, raw: np.ndarray
) -> Blank | None:
    """The rows without a number of the paths that are left, one of each time."""
    path = numbers[codes]
    here = path >= 0
    again = np.append(False, (np.diff(path) == 0) & (np.diff(times) == 0)) if len(path) else here
    here &= ~again
    if not here.any():
        return None
    path, times = path[here], times[here]
    later = times > ends[path]
    return Blank(path, times, np.where(later[:, None], raw[here], held[here]))


def _refuse_wide(cells: Cells) -> None:
    """Refuse columns that are named by dates: one row per series."""
    import pandas as pd

    names = pd.Series(list(cells.columns), dtype=object).map(str)
    dates = are_dates(names)
    if dates.sum() > max(3, 0.5 * len(names)):
        others = names[~dates].tolist()
        melted = f"frame.melt(id_vars={others}, var_name='ds', value_name='y')"
        raise ValueError(
            f"The columns of {cells.file} are named by dates, e.g. {names[dates].iloc[0]!r}: one row per observation is read, not "
            f"one per series. Turn it with pandas: {melted}."
        )


def _conventional(
    cells: Cells, id: str | None, time: str | None, columns: Sequence[str] | None, context: Sequence[str]
) -> tuple[str | None, str | None, Sequence[str] | None]:
    """The columns `unique_id`, `ds` and `y`, where they are there and nothing else was said."""
    used = {*(columns or ()), *context}
    free = {name.lower(): name for name in reversed(cells.columns) if name not in used}
    free |= {name: name for name in ("ds", "unique_id", "y") if name in cells.columns and name not in used}
    if time is None and "ds" in free:
        time = free["ds"]
        if id is None and "unique_id" in free:
            id = free["unique_id"]
        if columns is None and "y" in free:
            columns = [free["y"]]
    return id, time, columns


def _numbered(names: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The different names in the order of their appearance, and the place of each name among them."""
    import pandas as pd

    codes, different = pd.factorize(names)
    return [str(name) for name in different], codes


def _paths(
    ids: list[str],
    columns: list[str],
    states: list[np.ndarray],
    times: list[np.ndarray] | None,
    context: list[np.ndarray] | None,
) -> Trajectories:
    """`from_arrays`, with errors that speak of ids and columns."""
    never = np.isnan(np.concatenate(states)).all(0)
    if never.any():
        name = columns[int(np.argmax(never))]
        raise ValueError(f"The column {name!r} holds no number in any row that could be used. Leave it out.")
    try:
        data = Trajectories.from_arrays(states, times, context=context, missing=True)
    except ValueError as error:
        text = re.sub(r"states\[(\d+)\]", lambda m: f"The path {ids[int(m[1])]!r}", str(error))
        text = re.sub(r"feature (\d+)", lambda m: f"column {columns[int(m[1])]!r}", text)
        raise ValueError(text) from None
    data.names = tuple(columns)
    return data


class _Rows:
    """The rows of a file on their way to paths: which are left, why others are not, and what was changed."""

    def __init__(self, cells: Cells, na_values: Sequence[str] = ()) -> None:
        self.cells, self.na_values = cells, na_values
        self.left = np.ones(len(cells.line), bool)
        self.dropped: dict[str, Dropped] = {}
        self.notes = [cells.layout] if cells.layout else []
        self.date_format: str | None = None
        """How dates are written, where this was found."""
        self.offer = ""
        self.times: list[str] = []
        """Columns of numbers that are taken for times."""
        self._numbers: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        if cells.broken:
            reason = "another number of fields than the header has"
            self.dropped[reason] = Dropped(reason, len(cells.broken), cells.broken[0])

    def drop(self, rows: np.ndarray, reason: str) -> None:
        """Leave out these rows (a mask), unless they are already."""
        now = rows & self.left
        if now.any():
            assert reason not in self.dropped
            self.dropped[reason] = Dropped(reason, int(now.sum()), int(self.cells.line[now].min()))
            self.left = self.left & ~now

    def drop_places(self, places: np.ndarray, reason: str) -> None:
        """Leave out the rows at these places."""
        rows = np.zeros_like(self.left)
        rows[places] = True
        self.drop(rows, reason)

    def example(self, column: str, rows: np.ndarray) -> str:
        """The first of these cells, and its line."""
        k = int(np.argmax(rows))
        return f"{show_cell(self.cells.columns[column].iloc[k])} in line {self.cells.line[k]}"

    def names(self, column: str | None) -> np.ndarray:
        """The path of each row."""
        if column is None:
            self.notes.append("no id column was named: all rows are one path")
            return np.full(len(self.left), "0", dtype=object)
        names, missing = as_names(self.cells.columns[column])
        self.drop(missing, f"no {column}")
        return names

    def stamps(self, column: str | None, unit: str, date_format: str | None) -> tuple[np.ndarray | None, TimeAxis]:
        """The time of each row, in `unit` where it was a date or a duration."""
        if column is None:
            self.notes.append("no time column was named: rows are taken in their order, 1 apart")
            self._offer_dates()
            return None, TimeAxis(None, "order")
        cells = self.cells.columns[column]
        missing = is_missing(cells)
        cells = cells.where(~missing, None)
        stamps = parse_stamps(cells, date_format=date_format)
        wrong = unread(stamps) & ~missing
        if missing.all():
            raise ValueError(f"The column {column!r} must hold times. Got nothing. Name another column.")
        if date_format is None and (found := self._format(column, cells, stamps, wrong)):
            date_format = self.date_format = found
            stamps = parse_stamps(cells, date_format=date_format)
            wrong = unread(stamps) & ~missing
        if wrong.sum() > 0.5 * (~missing).sum():
            near = None if date_format is not None else nearest_format(cells[wrong])
            if near is not None:
                mask = np.zeros_like(wrong)
                mask[np.flatnonzero(wrong)[near[1]]] = True
                raise ValueError(
                    f"The column {column!r} must hold times. Most can be read as `date_format={near[0]!r}`, but not "
                    f"{self.example(column, mask)}. Write all in one way."
                )
            if self._is_clock(column):
                raise ValueError(
                    f"The column {column!r} holds times of the day without a date, e.g. {self.example(column, wrong)}. Write the "
                    "date with them, or name no time column where rows are evenly spaced."
                )
            read_as = "ISO dates" if date_format is None else f"dates written as `date_format={date_format!r}`"
            raise ValueError(
                f"The column {column!r} must hold times: numbers or {read_as}. Got {self.example(column, wrong)}. Name another "
                'column, or say how its dates are written, e.g. `date_format="%d/%m/%Y %H:%M"`.'
            )
        self.drop(missing, f"no {column}")
        if wrong.any():
            self._refuse_mixed(column, wrong, int((~missing).sum()), date_format)
            self.drop(wrong, f"{column} is no time, e.g. {self.example(column, wrong)}")
        read = ~missing & ~wrong
        far = _far(stamps, read)
        if far.any():
            self.drop(far, f"a date far from all others, e.g. {self.example(column, far)}")
            read &= ~far
            stamps = np.where(far, np.datetime64("NaT"), stamps)
        zone = self._zone(column, read, stamps[read])
        kind = KINDS[stamps.dtype.kind]
        if kind == "numbers" and (word := guess_numbers(stamps[read])):
            said = {"excel": "days as Excel counts them", "unix": "seconds or milliseconds since 1970"}[word]
            self.notes.append(f"{column} was read as numbers: if they are {said}, give `date_format={word!r}`")
        first = f"{np.nanmin(stamps.astype('datetime64[us]'))}Z".replace(".000000Z", "Z") if kind == "dates" else None
        axis = TimeAxis(column, kind, None if kind == "numbers" else unit, first, zone)
        return axis.count(stamps), axis

    def _format(self, column: str, cells: pd.Series, stamps: np.ndarray, wrong: np.ndarray) -> str | None:
        """How dates that are not ISO are written, if one way of reading is left."""
        there = ~unread(stamps)
        if KINDS[stamps.dtype.kind] == "numbers" and wrong.sum() <= 0.05 * len(stamps):
            found = format_of_numbers(stamps[there])
            formats = [found] if found else []
        elif wrong.sum() > 0.5 * (wrong | there).sum():
            formats = find_formats(cells[wrong | there])
            if not formats and (mixed := find_formats(cells[wrong])):
                self._refuse_mixed(column, there, int((wrong | there).sum()), mixed[0])
        else:
            return None
        if len(formats) > 1:
            each = [self._reading(cells, f) for f in formats]
            raise ValueError(
                f"The dates of {column!r} can be read in {len(formats)} ways, e.g. {self.example(column, wrong | there)}: "
                f"{'; '.join(each)}. Say which."
            )
        if formats:
            shown = self._reading(cells, formats[0])
            self.notes.append(f"{column} was read as {shown}")
        return formats[0] if formats else None

    def _reading(self, cells: pd.Series, date_format: str) -> str:
        """A format and what it makes of the first cell that tells it from others."""
        stamps = parse_stamps(cells, date_format=date_format)
        k = int(np.argmax(~unread(stamps)))
        date = as_text(stamps[k : k + 1].astype("M8[us]"), None)[0]
        made = find_frequency([np.unique(stamps[~unread(stamps)]).astype("M8[us]")])
        each = "" if made is None else f", one each {made.words}"
        return f"`date_format={date_format!r}` ({show_cell(cells.iloc[k])} is {date}{each})"

    def _refuse_mixed(self, column: str, rows: np.ndarray, num: int, date_format: str | None) -> None:
        """Dates that are written in another way than most are not dropped unseen."""
        places = np.flatnonzero(rows)[:LOOKED_AT]
        others = places[are_dates(self.cells.columns[column].iloc[places].map(str))]
        if len(others) > MIXED * num:
            usual = "ISO" if date_format is None else f"`date_format={date_format!r}`"
            mask = np.zeros_like(rows)
            mask[others] = True
            raise ValueError(
                f"The dates of {column!r} are written in several ways: most are {usual}, but not {self.example(column, mask)}. "
                "Write them in one way."
            )

    def _offer_dates(self) -> None:
        """Name a column that looks like dates."""
        for name, cells in self.cells.columns.items():
            told = self._offer(name, cells[~is_missing(cells)])
            if told:
                self.offer = told
                self.notes.append(told)
                return

    def _offer(self, name: str, cells: pd.Series) -> str:
        """What to type for a column that looks like dates; empty where it does not."""
        few = cells.iloc[:LOOKED_AT]
        if not len(few):
            return ""
        stamps, called = parse_stamps(few), name.lower() in CLOCKS
        if stamps.dtype.kind == "f":
            numbers = stamps[~unread(stamps)]
            counted = called and len(numbers) > 1 and bool((np.diff(numbers) >= 0).all())
            if format_of_numbers(numbers) is None and not counted:
                return ""
            self.times.append(name)
            parts = [n for n in self.cells.columns if n.lower() in ("year", "month", "day")]
            if name.lower() == "year" and len(parts) > 1:
                self.times += parts
                return f"{', '.join(parts)} hold parts of dates: write them as one column, e.g. 2024-05-31, to use it as the time"
            return f"{name} holds dates or times, e.g. {show_cell(few.iloc[0])}: give `time={name!r}` to use it"
        read = ~unread(stamps)
        forms = find_formats(few) if read.mean() <= 0.5 else []
        if not forms and read.mean() < 0.9:
            if not called:
                return ""
            if self._is_clock(name):
                return f"{name} holds times of the day without a date, e.g. {show_cell(few.iloc[0])}: write the date with them"
            near = nearest_format(few)
            cell = show_cell(few.iloc[int(np.argmin(read)) if near is None else near[1]])
            return f"{name} may hold times, but {cell} is not one that can be read: write dates as 2024-05-31"
        clock = next((n for n in self.cells.columns if n != name and self._is_clock(n)), None)
        if clock is not None:
            return f"{name} and {clock} hold dates and times of the day: write them in one column to use it as the time"
        whole = parse_stamps(cells, date_format=next(iter(forms), None))
        options = [f"time={name!r}" + (f", date_format={f!r}" if len(forms) > 1 else "") for f in forms or [""]]
        who = self._id_of(name, whole[~unread(whole)], cells.index[~unread(whole)])
        options = [f"`{option}{who and f', id={who!r}'}`" for option in options]
        example = few.iloc[int(np.argmax(read if not forms else ~unread(parse_stamps(few, date_format=forms[0]))))]
        return f"{name} holds dates, e.g. {show_cell(example)}: give {' or '.join(options)} to use it"

    def _is_clock(self, name: str) -> bool:
        few = self.cells.columns[name].iloc[:LOOKED_AT].map(str)
        return len(few) > 0 and bool(few.str.fullmatch(CLOCK_TIME).mean() > 0.9)

    def _id_of(self, time: str, stamps: np.ndarray, rows: Any) -> str:
        """The column that could name the series of rows whose times come again; empty where there is none."""
        import pandas as pd

        if not pd.Series(stamps).duplicated().any():
            return ""
        for name, column in self.cells.columns.items():
            own = column.loc[rows]
            if name == time or own.isna().any() or self._is_clock(name) or not 1 < own.nunique() <= len(own) // 2:
                continue
            if not pd.DataFrame({"id": own.map(str).to_numpy(), "time": stamps}).duplicated().mean() > 0.05:
                return name
        return ""

    def _zone(self, column: str, rows: np.ndarray, stamps: np.ndarray) -> str | None:
        """The time zone of the stamps, which are in UTC."""
        cells = self.cells.columns[column][rows]
        named = has_zone(cells)
        if not named.any():
            return None
        if not named.all():
            self.notes.append(f"{column} has a time zone in {int(named.sum())} row(s); the others are taken as UTC")
            return "UTC"
        zone = zone_of(cells, stamps)
        if zone is None:
            few = first_few(offsets(cells), 4)
            self.notes.append(f"{column} was converted to UTC: no time zone has the offsets {few} at these times")
        elif cells.dtype == object and "/" in zone:
            few = first_few(offsets(cells), 4)
            self.notes.append(
                f"{column} has the offsets {few}: taken for the time zone {zone}, or one of the same clock"
            )
        return zone or "UTC"

    def choose(self, columns: Sequence[str] | None, taken: list[str]) -> tuple[list[str], dict[str, str]]:
        """The features, and why other columns are not among them."""
        chosen, unused = list(columns or ()), {}
        used = {*taken, *chosen}
        for name in self.cells.columns:
            if name in used:
                continue
            if columns is not None:
                unused[name] = "not asked for"
                continue
            values, text = self._read(name)
            numbers = int(np.isfinite(values).sum())
            if name in self.cells.unnamed:
                unused[name] = "it has no name"
            elif name in self.times:
                unused[name] = "it is taken for a time"
            elif numbers and numbers >= text.sum():
                chosen.append(name)
            else:
                unused[name] = "no numbers" if text.any() else "empty"
        if not chosen:
            raise ValueError(f"There is no column of numbers to learn from. Got {first_few(self.cells.columns)}.")
        return chosen, unused

    def _read(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        if column not in self._numbers:
            values, text = as_numbers(self.cells.columns[column])
            if self.na_values:
                cells = self.cells.columns[column].map(str).to_numpy(dtype=object)
                nothing = np.isin(cells, list(self.na_values))
                plain = [float(v) for v in self.na_values if _is_number(v)]
                nothing |= np.isin(values, plain)
                values, text = np.where(nothing, np.nan, values), text & ~nothing
            self._numbers[column] = values, text
        return self._numbers[column]

    def covariate(self, column: str) -> np.ndarray:
        """The numbers of a column of the context. One that holds 1 or nothing marks rows: nothing is 0 there."""
        values, text = self._read(column)
        seen = np.isfinite(values)
        marks = bool(seen.any()) and not seen.all() and not text.any() and bool((values[seen] == 1).all())
        if not marks:
            return self.numbers(column, "the value before is held")
        self.notes.append(f"{column} holds 1 or nothing: {int((~seen & self.left).sum())} empty cell(s) are taken as 0")
        return np.where(seen, values, 0.0)

    def numbers(self, column: str, then: str = "missing") -> np.ndarray:
        """The numbers of a column, NaN where there is none; `then` says what becomes of these."""
        values, text = self._read(column)
        if text.sum() > np.isfinite(values).sum():
            raise ValueError(
                f"The column {column!r} must hold numbers. Got text, e.g. {self.example(column, text)}. Encode it as numbers "
                "(pandas.get_dummies makes a column of each word), or leave it out."
            )
        if text.any():
            where = self.example(column, text)
            self.notes.append(f"{column}: {text.sum()} cell(s) without a number, e.g. {where}: {then}")
        empty = np.isnan(values) & ~text & self.left
        if empty.any():
            first = self.cells.line[int(np.argmax(empty))]
            self.notes.append(f"{column}: {empty.sum()} empty cell(s), the first in line {first}: {then}")
        self._note_sentinels(column, values)
        endless = np.isinf(values)
        if endless.any():
            self.notes.append(f"{column}: {endless.sum()} infinite value(s), {self.example(column, endless)}: {then}")
            values = np.where(endless, np.nan, values)
        whole = np.isfinite(values) & (np.abs(values) > EXACT)
        if whole.any() and self.cells.columns[column][whole].map(lambda c: str(c).lstrip("+-").isdigit()).all():
            raise ValueError(
                f"The column {column!r} holds whole numbers beyond 2^53, which lose digits: {self.example(column, whole)}. "
                "If it is an id or a stamp, name it as such; else leave it out, or divide it."
            )
        if (np.abs(values) > LARGEST).any():
            where = self.example(column, np.abs(values) > LARGEST)
            raise ValueError(f"The column {column!r} must be at most {LARGEST:g} in size. Got {where}. Rescale it.")
        return values

    def _note_sentinels(self, column: str, values: np.ndarray) -> None:
        """Ask about a number that stands for a missing one: -999 and the like, far from all others."""
        for mark in SENTINELS:
            same = values == mark
            others = values[np.isfinite(values) & ~same]
            if not same.any() or len(others) < FEW:
                continue
            low, high = others.min(), others.max()
            if mark < low - (high - low) or mark > high + (high - low):
                self.notes.append(
                    f"{column}: {same.sum()} cell(s) are {mark:g}, far from all others: give `na_values=[{f'{mark:g}'!r}]` if that "
                    "means missing"
                )

    def note_order(self, path: np.ndarray, stamps: np.ndarray) -> None:
        """Count rows that stand after a later time of their path."""
        order = np.argsort(path, kind="stable")
        back = (np.diff(stamps[order]) < 0) & (np.diff(path[order]) == 0)
        if back.any():
            self.notes.append(f"{back.sum()} row(s) earlier than the row before in their path: sorted by time")

    def join(
        self,
        places: np.ndarray,
        path: np.ndarray,
        stamps: np.ndarray,
        states: np.ndarray,
        context: np.ndarray,
        time: str | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of sorted rows: the first of each path and time (a mask), and their states with the first value of each column."""
        index = np.arange(len(path))
        first = np.ones(len(path), bool)
        first[1:] = (np.diff(path) != 0) | ~self._one_time(places, path, stamps)
        if first.all():
            return first, states
        group = first.cumsum() - 1
        start = index[first][group]
        joined = states[first]
        for k in range(states.shape[1]):
            known = ~np.isnan(states[:, k])
            nearest = np.minimum.accumulate(np.where(known, index, len(index) - 1)[::-1])[::-1][first]
            joined[:, k] = np.where(group[nearest] == np.arange(len(joined)), states[nearest, k], np.nan)
        values = np.concatenate([states, context], axis=1)
        same = ((values == values[start]) | (np.isnan(values) & np.isnan(values[start]))).all(1)
        self.drop_places(places[~first & same], "repeats an earlier row")
        self.drop_places(places[~first & ~same], "same path and time as an earlier row, joined into it")
        lost = ~first & (~np.isnan(states) & (states != joined[group])).any(1)
        if time is not None and lost.sum() > max(FEW, LOST * len(path)):
            self._miss_id(time, places, stamps, int(lost.sum()))
        if lost.any():
            self.notes.append(f"{lost.sum()} row(s) differ from an earlier one of their path and time, which is kept")
        return first, joined

    def _miss_id(self, time: str, places: np.ndarray, stamps: np.ndarray, lost: int) -> None:
        """Refuse to throw away rows of many series as if they were one."""
        said = f"{lost} of {len(places)} rows have the time of an earlier row, and other values"
        clock = next((n for n in self.cells.columns if n != time and self._is_clock(n)), None)
        if clock is not None:
            raise ValueError(f"{said}. {time} and {clock} hold dates and times of the day: write them in one column.")
        who = self._id_of(time, stamps, self.cells.columns[time].index[places])
        raise ValueError(
            f"{said}. Name the column of the series"
            + (f": `id={who!r}`." if who else " with `id`, or drop these rows.")
        )

    def _one_time(self, places: np.ndarray, path: np.ndarray, stamps: np.ndarray) -> np.ndarray:
        """Which sorted rows, from the second on, have the time of the row before, up to rounding; close ones are refused."""
        gaps = np.where(np.diff(path) == 0, np.diff(stamps), np.inf)
        rounding = gaps <= 4 * np.spacing(np.abs(stamps[1:]))
        apart = gaps[np.isfinite(gaps) & ~rounding]
        usual = float(np.median(apart)) if len(apart) else 0.0
        close = gaps < CLOSE * usual
        one = (gaps == 0) | (close & (rounding | (gaps <= ONE_TIME * usual)))
        wrong = close & ~one
        if wrong.any():
            k = int(np.argmax(wrong))
            lines = self.cells.line[places[k : k + 2]]
            raise ValueError(
                f"{self.cells.file}, lines {lines[0]} and {lines[1]}: one path has two times that are {gaps[k]:.3g} apart, where "
                f"{usual:.3g} is usual. Such steps cannot be learned from. Round the times, or drop a row."
            )
        rounded = one & (gaps > 0)
        if rounded.any():
            self.notes.append(f"{rounded.sum()} row(s) differ from the time before by rounding: taken as one time")
        return one

    def report(self, unused: dict[str, str]) -> TableReport:
        """The account."""
        return TableReport(
            file=self.cells.file,
            rows_read=len(self.cells.line) + len(self.cells.broken),
            rows_kept=int(self.left.sum()),
            dropped=tuple(self.dropped.values()),
            unused=unused,
            notes=tuple(self.notes),
            offer=self.offer,
        )


def _far(stamps: np.ndarray, read: np.ndarray) -> np.ndarray:
    """Dates that stand for none, such as 0001-01-01 and 9999-12-31: a few, very far from the others (rows,)."""
    if stamps.dtype.kind != "M" or read.sum() < FEW:
        return np.zeros(len(stamps), bool)
    days = np.where(read, stamps.astype("M8[D]").astype(np.int64), 0)
    low, high = np.quantile(days[read], [0.1, 0.9])
    away = FAR * max(high - low, YEAR_OF_DAYS)
    far = read & ((days < low - away) | (days > high + away))
    return far if far.sum() <= RARE * read.sum() else np.zeros_like(far)


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
