"""A context that is known ahead or planned, from a file: for the paths of a table, and in its time.

A plan is written by its user, so nothing is left out: a row that cannot be read is an error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from neuralsde.data.columns import KINDS, has_zone, in_paths, parse_stamps, unread
from neuralsde.data.tables.cells import Cells, as_names, as_numbers, check_names, read_cells, show_cell
from neuralsde.data.tables.read import Table
from neuralsde.data.tables.zones import UNIVERSAL

Plan = list[tuple[np.ndarray, np.ndarray]]
"""Of each path: stamps (M,), and contexts (M, C) that hold from them on."""


def read_plan(
    path: str | os.PathLike[str],
    table: Table,
    *,
    columns: Sequence[str] | None = None,
    date_format: str | None = None,
) -> Plan:
    """Contexts after the last observations of a table, for each of its paths.

    Args:
        path: a file as `read_table` takes it, with the id, time and context columns of the table. Other columns and other
            paths are passed over. Where the table has no time column, rows follow its last ones, 1 apart.
        table: what is known.
        columns: those of the context that are read; None: all.
        date_format: of dates that are not ISO, as for strptime, if not that of the table.
    """
    if not table.context:
        raise ValueError(
            f"{table.report.file} was read without a context, as for a model that takes no context. Leave out the table of "
            "its future."
        )
    cells = read_cells(path)
    names = [name for name in (table.id, table.time.column) if name is not None]
    context = table.context if columns is None else tuple(columns)
    check_names(cells, [*names, *context])
    if cells.broken:
        raise ValueError(f"{cells.file}, line {cells.broken[0]}: not as many fields as the header has. Mend it.")
    if not len(cells.line):
        raise ValueError(f"{cells.file} has no rows. Add the contexts that are to come, or leave it out.")
    values = np.stack([_numbers(cells, name) for name in context], axis=1)
    paths = np.zeros(len(values), int) if table.id is None else _places(cells, table)
    stamps = None if table.time.column is None else _stamps(cells, table, date_format or table.layout.date_format)
    here = np.flatnonzero(paths >= 0)
    order, lengths = in_paths(paths[here], None if stamps is None else stamps[here])
    parts = np.split(here[order], lengths.cumsum()[:-1])
    return [_path(cells, table, k, rows, stamps, values) for k, rows in enumerate(parts)]


def _numbers(cells: Cells, name: str) -> np.ndarray:
    values = as_numbers(cells.columns[name])[0]
    _all_read(cells, name, np.isfinite(values), "a number in every row")
    return values


def _all_read(cells: Cells, name: str, read: np.ndarray, what: str) -> None:
    if not read.all():
        k = int(np.argmin(read))
        cell = show_cell(cells.columns[name].iloc[k])
        raise ValueError(f"{cells.file}: the column {name!r} must hold {what}. Got {cell} in line {cells.line[k]}.")


def _places(cells: Cells, table: Table) -> np.ndarray:
    """The place of each row's path in the table; -1: it is not there."""
    place = {name: k for k, name in enumerate(table.ids)}
    column = str(table.id)
    names, missing = as_names(cells.columns[column])
    _all_read(cells, column, ~missing, "an id in every row")
    found = np.array([place.get(name, -1) for name in names], dtype=int)
    lacking = [name for name, num in zip(table.ids, np.bincount(found + 1, minlength=len(place) + 1)[1:]) if not num]
    if lacking:
        raise ValueError(
            f"{cells.file} has no row for {len(lacking)} of {len(table.ids)} path(s), first {lacking[0]!r}. Add them, or choose "
            "paths with `ids`."
        )
    return found


def _stamps(cells: Cells, table: Table, date_format: str | None) -> np.ndarray:
    """The time of each row, as the table counts it."""
    column = str(table.time.column)
    written = cells.columns[column]
    tried = [parse_stamps(written, date_format=f) for f in dict.fromkeys((date_format, None))]
    found = next((s for s in tried if KINDS[s.dtype.kind] == table.time.kind and not unread(s).any()), tried[0])
    _all_read(cells, column, ~unread(found), f"a time in every row ({table.time.kind}, as in {table.report.file})")
    if KINDS[found.dtype.kind] != table.time.kind:
        raise ValueError(
            f"{cells.file}: the column {column!r} must hold {table.time.kind}, as in {table.report.file}. Got "
            f"{KINDS[found.dtype.kind]}, e.g. {written.iloc[0]!r}."
        )
    zone = has_zone(written)
    if table.time.zone not in UNIVERSAL and not zone.all():
        raise ValueError(
            f"{cells.file}: the column {column!r} must name time zones, as {table.report.file} does. Got "
            f"{written[~zone].iloc[0]!r}."
        )
    return np.asarray(table.time.count(found))


def _path(
    cells: Cells, table: Table, path: int, rows: np.ndarray, stamps: np.ndarray | None, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Stamps and contexts of one path, in order of time."""
    last = float(table.data.ends[path])
    if stamps is None:
        return last + 1 + np.arange(len(rows)), values[rows]
    if stamps[rows[-1]] <= last:
        when = table.time.show(last)
        raise ValueError(f"{cells.file} has no row of {table.ids[path]!r} after its last one, {when}. Add some.")
    again = np.append(False, np.diff(stamps[rows]) == 0)
    differ = again & np.append(False, (np.diff(values[rows], axis=0) != 0).any(1))
    if differ.any():
        line = cells.line[rows[int(np.argmax(differ))]]
        raise ValueError(f"{cells.file}, line {line}: a second context of {table.ids[path]!r} at one time. Keep one.")
    return stamps[rows[~again]], values[rows[~again]]
