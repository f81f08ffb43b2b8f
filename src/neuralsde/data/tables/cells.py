"""Tables as they are written in files: CSV cell by cell, so that nothing is lost unseen, and parquet.

Separator and decimal sign of a CSV are found out from its first rows. What a cell means is decided later: a column of
text becomes numbers, stamps or names when someone asks for them.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralsde.core.extras import need
from neuralsde.data.arrays import as_array

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = (",", ";", "\t", "|")
NOTHING = frozenset({"", "na", "n/a", "n.a.", "#n/a", "nan", "nat", "null", "none", "-", "--", "?", "missing"})
"""Cells that say that there is no value, in lower case."""
SAMPLE = 1_000  # rows from which the decimal sign is found out
MAX_COLUMNS = 10_000
MAX_CELLS = 2**30  # of a parquet file: 8 GiB as numbers
MAX_TEXT = 4 * 2**30  # bytes of a CSV file, after decompression
MAX_RATIO, ALWAYS_TEXT = 100, 16 * 2**20
"""A .gz file may grow to this many times its size, or to this many bytes: tables grow by 30, bombs by 1,000."""
COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+(e[+-]?\d+)?", re.I)
POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+(e[+-]?\d+)?", re.I)
GROUPED = {
    ".": re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?"),
    ",": re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?"),
}
"""Numbers with thousands separators, by their decimal sign; some, as 1.234, may also be read without."""
DATE = re.compile(r"\d{4}-\d\d(-\d\d)?([ T].*)?$|\d\d?[./-]\d\d?[./-]\d{2,4}([ T].*)?$")
SIGN = r"[€$£¥₹%]|EUR|USD|GBP|CHF"
SPACED = r"\d{1,3}(?:[ \u00a0\u202f'’]\d{3})+(?:[.,]\d+)?"
DRESSED = re.compile(rf"(\(?)\s*([+-]?)\s*({SIGN})?\s*([+-]?)({SPACED}|[\d.,]*\d)\s*({SIGN})?\s*(\)?)")
"""Numbers with a currency or per cent, with spaces between thousands, or in parentheses as negative ones."""


@dataclass(frozen=True)
class Cells:
    """The rows of a file, one entry per column and row."""

    file: str  # its name, without folders
    columns: dict[str, pd.Series]  # text where the file is text, else as typed in the file
    line: np.ndarray  # where each row stands in the file, counted from 1
    unnamed: frozenset[str] = frozenset()  # columns without a name in the file; they got one here
    broken: list[int] = field(default_factory=list)
    """Lines with another number of fields than the header has; they are not among the rows."""
    layout: str = ""  # how the file was read, in words, where this was found out


def read_cells(path: Any, *, separator: str | None = None, decimal: str | None = None) -> Cells:
    """Read a CSV file (.csv, .tsv, .txt, also .gz) or a parquet file; frames, pandas Series and arrays are taken as they are."""
    if not isinstance(path, (str, os.PathLike)):
        return frame_cells(path)
    try:
        file = Path(path)
        there = file.is_file()
    except (TypeError, OSError) as error:  # no path at all, or a name that no file can have
        raise ValueError(
            f"A table must be the path of a file. Got {str(path)[:80]!r} ({type(error).__name__})."
        ) from None
    need("A table", "pandas")
    if not there:
        raise ValueError(f"There is no file {file}.")
    suffix = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
    if suffix in (".csv", ".tsv", ".txt"):
        return _read_csv(file, separator, decimal)
    if file.suffix not in (".parquet", ".pq"):
        raise ValueError(f"A table must end in .csv, .tsv, .txt (also .gz) or .parquet. Got {file.name}. Convert it.")
    return _read_parquet(file)


def frame_cells(data: Any) -> Cells:
    """The cells of a frame, a pandas Series, or an array (n,) or (n, d); an index with a name, or of dates, is a column."""
    need("A table", "pandas")
    import pandas as pd

    frame = data
    if isinstance(data, pd.Series):
        frame = data.rename("y").to_frame()
    elif not isinstance(data, pd.DataFrame):
        try:
            values = np.asarray(as_array(data, "table", missing=True), dtype=np.float64)
        except (TypeError, ValueError):
            kind = type(data).__name__
            raise ValueError(f"A table must be a file, a frame, a pandas Series or an array. Got {kind}.") from None
        if values.ndim not in (1, 2) or not values.size:
            raise ValueError(f"An array must have shape (n,) or (n, d). Got {values.shape}.")
        names = ["y"] if values.ndim == 1 else [f"y{k}" for k in range(values.shape[1])]
        frame = pd.DataFrame(values.reshape(len(values), -1), columns=names)
    if isinstance(frame.index, pd.PeriodIndex):
        frame = frame.set_axis(frame.index.to_timestamp())
    if isinstance(frame.index, pd.DatetimeIndex) and frame.index.name is None:
        frame = frame.rename_axis("ds")
    frame = _without_index(frame)
    names = [str(name) for name in frame.columns]
    twice, uses = Counter(names).most_common(1)[0] if names else ("", 2)
    if uses > 1:
        raise ValueError(f"The frame has two columns {twice!r}. Rename one." if names else "The frame has no columns.")
    _check_width(Path("The frame"), len(names))
    columns = {}
    for name, (_, column) in zip(names, frame.items()):
        text = pd.api.types.is_string_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype)
        columns[name] = column.astype(object) if text else column
    return Cells("frame", columns, np.arange(1, len(frame) + 1))


def _without_index(frame: pd.DataFrame) -> pd.DataFrame:
    """What the index names becomes columns."""
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    return (frame.reset_index(level=named) if named else frame).reset_index(drop=True)


def _read_parquet(file: Path) -> Cells:
    import pandas as pd

    need("A parquet file", "pyarrow")
    from pyarrow import parquet

    try:
        size = parquet.read_metadata(file)
        small = size.num_columns <= MAX_COLUMNS and size.num_rows * size.num_columns <= MAX_CELLS
        frame = pd.read_parquet(file) if small else None
    except Exception as error:  # pyarrow's own errors, of one line or several
        raise ValueError(f"{file} is not a parquet file ({' '.join(str(error).split())[:300]}).") from None
    _check_width(file, size.num_columns)
    if frame is None:
        raise ValueError(f"{file} has more than {MAX_CELLS:,} cells. Got {size.num_rows:,} rows. Split it.")
    frame = _without_index(frame)
    return Cells(file.name, {str(name): frame[name] for name in frame.columns}, np.arange(1, len(frame) + 1))


def _read_csv(file: Path, separator: str | None, decimal: str | None) -> Cells:
    import pandas as pd

    text, layout = _decode(file)
    first = [line for line in text[:100_000].splitlines() if line.strip()][:50]
    if not first:
        raise ValueError(f"{file} is empty.")
    if separator and (len(separator) != 1 or separator in '"\r\n'):
        raise ValueError(
            f"`separator` must be one character, and no quote or line end. Got {separator!r}. Leave it out to have it found, "
            "or replace it in the file."
        )
    if not separator:
        separator = max(SEPARATORS, key=lambda s: _agreement(first, s))
        if not any(_fields(first, s) for s in SEPARATORS) and _agreement(first, " ")[0] == 1:
            separator = " "
    lines = _rows(file, text, separator)
    titled = _fields(first, separator) > 1
    above, header = next(
        ((k, row) for k, (*_, row) in enumerate(lines) if not titled or sum(map(bool, row)) > 1), (0, [])
    )
    if not header:
        raise ValueError(f"{file} has no line with the names of its columns. Got {first[0][:80]!r} first. Add one.")
    _check_width(file, len(header))
    names = [name.strip() or f"column {k + 1}" for k, name in enumerate(header)]
    twice, uses = Counter(names).most_common(1)[0]
    if uses > 1:
        raise ValueError(f"{file} has two columns {twice!r}. Rename one.")
    if all(re.fullmatch(POINT_NUMBER, n) or n.lstrip("+-").isdigit() or DATE.match(n) for n in names):
        raise ValueError(f"The first line of {file} must hold the names of the columns. Got {', '.join(names[:5])}.")
    rows, where, broken, long = [], [], [], []
    for line, end, row in lines:
        if end > line:
            long.append(line)
        if len(row) > len(names) and not any(row[len(names) :]):
            row = row[: len(names)]  # separators at the end of the line
        if len(row) == len(names):
            rows.append(row)
            where.append(line)
        else:
            broken.append(line)
    columns = [[cell.strip() for cell in column] for column in zip(*rows)] if rows else [[] for _ in names]
    for k, name in enumerate(names):
        columns[k], signs = _undress(columns[k])
        layout += [f"{signs} was taken off in {name}"] if signs else []
    plain = [_ungroup(column, separator, decimal) for column in columns]
    grouped, columns = plain != columns, plain
    if decimal is None:
        decimal = "," if separator != "," and _has_decimal_commas([c[:SAMPLE] for c in columns]) else "."
    if decimal == ",":
        columns = [[c.replace(",", ".") if COMMA_NUMBER.fullmatch(c) else c for c in column] for column in columns]
    if long:
        layout.append(f"{len(long)} row(s) span several lines, the first from line {long[0]} (a stray quote?)")
    if above:
        layout.append(f"{above} line(s) above the header were passed over")
    if separator != ",":
        layout.append(f"columns are separated by {separator!r}")
    if decimal == ",":
        layout.append("numbers have decimal commas")
    if grouped:
        layout.append("numbers have thousands separators")
    return Cells(
        file.name,
        {name: pd.Series(column, dtype=object) for name, column in zip(names, columns)},
        np.array(where, dtype=int),
        frozenset(n for n, written in zip(names, header) if not written.strip()),
        broken,
        ", ".join(layout),
    )


def _decode(file: Path) -> tuple[str, list[str]]:
    """The text of the file, and a word where it is not UTF-8."""
    if file.suffix == ".gz":
        try:
            _check_unpacked(file)
            data = gzip.decompress(file.read_bytes())
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{file} is not a whole gzip file ({error}).") from None
    else:
        _check_size(file, file.stat().st_size, MAX_TEXT)
        data = file.read_bytes()
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        with suppress(UnicodeDecodeError):
            return data.decode("utf-16"), ["the text was read as UTF-16"]
    if b"\0" in data[:10_000]:
        raise ValueError(f"{file} is not a text file in UTF-8. Save it as CSV in UTF-8.")
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError:
        return data.decode("latin-1"), ["the text is not UTF-8 and was read as Latin-1"]


def _check_unpacked(file: Path) -> None:
    """Unpack a .gz file a block at a time, and keep nothing: its size is known before it takes memory."""
    size = 0
    with open(file, "rb") as packed, gzip.open(packed) as unpacked:
        while block := unpacked.read(2**20):
            size += len(block)
            _check_size(file, size, min(MAX_TEXT, max(ALWAYS_TEXT, MAX_RATIO * packed.tell())))


def _check_size(file: Path, size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(
            f"{file} holds too much text: over {limit / 2**20:,.0f} MiB. A CSV file may hold {MAX_TEXT // 2**30} GiB, and a .gz "
            f"file {MAX_RATIO} times its size. Split it, or write it as parquet."
        )


def _check_width(file: Path, num: int) -> None:
    if num > MAX_COLUMNS:
        raise ValueError(f"{file} has {num:,} columns. At most {MAX_COLUMNS:,} are read. Keep those that are needed.")


def _rows(file: Path, text: str, separator: str) -> Iterator[tuple[int, int, list[str]]]:
    """First line, last line and fields of every row that is not blank."""
    reader, line = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True), 0
    try:
        for row in reader:
            if row:
                yield line + 1, reader.line_num, row
            line = reader.line_num
    except csv.Error as error:
        raise ValueError(f"{file} cannot be read after line {reader.line_num} ({error}). A stray quote?") from None


def _agreement(lines: list[str], separator: str) -> tuple[float, int]:
    """How many lines have as many fields as most, and how many fields that are; one field is no separation."""
    counts = Counter(len(row) for row in csv.reader(lines, delimiter=separator))
    usual, num = counts.most_common(1)[0]
    return (num / counts.total(), usual) if usual > 1 else (0.0, 0)


def _fields(lines: list[str], separator: str) -> int:
    return _agreement(lines, separator)[1]


def _undress(column: list[str]) -> tuple[list[str], str]:
    """A column of numbers without currency, per cent, spaces between thousands and parentheses, and the signs it had."""
    few = [cell for cell in column[:SAMPLE] if cell.lower() not in NOTHING]
    found = [DRESSED.fullmatch(cell) for cell in few]
    there = [m for m in found if m is not None]
    signs = {sign for m in there for sign in (m[3], m[6]) if sign}
    dressed = signs or any((m[1] and m[7]) or re.fullmatch(SPACED, m[5]) for m in there)
    if not dressed or len(there) < 0.9 * len(few) or len(signs) > 1:
        return column, ""
    if "%" in signs and sum(m[6] == "%" for m in there) < len(there):
        return column, ""  # parts of a hundred beside parts of one
    return [_bare(cell) for cell in column], next(iter(signs), "")


def _bare(cell: str) -> str:
    found = DRESSED.fullmatch(cell)
    if found is None or bool(found[1]) != bool(found[7]):
        return cell
    minus = "-" if "-" in (found[2], found[4]) or found[1] else ""
    return minus + re.sub(r"[ \u00a0\u202f'’]", "", found[5])


def _ungroup(column: list[str], separator: str, decimal: str | None) -> list[str]:
    """A column without thousands separators; they are taken for such where a cell leaves no other reading."""
    for sign, pattern in GROUPED.items():
        group = "," if sign == "." else "."
        alone = separator == group == ","  # then it cannot be a decimal comma
        cells = filter(pattern.fullmatch, column) if decimal in (None, sign) else ()
        if any(alone or sign in cell or cell.count(",") > 1 for cell in cells):
            return [c.replace(group, "") if pattern.fullmatch(c) else c for c in column]
    return column


def _has_decimal_commas(columns: list[list[str]]) -> bool:
    cells = [cell for column in columns for cell in column]
    return any(map(COMMA_NUMBER.fullmatch, cells)) and not any(map(POINT_NUMBER.fullmatch, cells))


def check_names(cells: Cells, names: list[str]) -> None:
    """Refuse names of columns that are not there, or have two uses."""
    uses = Counter(names)
    for name in names:
        if name not in cells.columns:
            near = difflib.get_close_matches(name, cells.columns, 1, 0.5)
            hint = f"Did you mean {near[0]!r}?" if near else f"It has {first_few(cells.columns)}."
            raise ValueError(f"{cells.file} has no column {name!r}. {hint}")
        if uses[name] > 1:
            raise ValueError(f"The column {name!r} was named twice. Give it one use: id, time, a feature or context.")


def first_few(names: Iterable[str], num: int = 10) -> str:
    """Names for a message."""
    shown = [name if len(name) <= 40 else name[:40] + "…" for name in names]
    return ", ".join(shown[:num]) + (", …" if len(shown) > num else "")


def show_cell(cell: Any) -> str:
    """A cell for a message: text in quotes, and not too much of it."""
    text = repr(cell) if isinstance(cell, str) else str(cell)
    return text if len(text) <= 80 else text[:80] + "…"


def as_names(column: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """The text of each cell (rows,), and where there is none; the words NA, nan and None are text as any other."""
    missing = column.isna().to_numpy(dtype=bool)
    cells = column if column.dtype == object else column.astype(str)
    names = np.array([str(cell) for cell in cells], dtype=object)
    return names, missing | (names == "").astype(bool)


def is_missing(column: pd.Series) -> np.ndarray:
    """Cells without a value (rows,)."""
    missing = column.isna().to_numpy(dtype=bool)
    if column.dtype == object:
        missing = missing | np.array([isinstance(c, str) and c.lower() in NOTHING for c in column], dtype=bool)
    return missing


def as_numbers(column: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of a column (rows,), NaN where there is none, and where there is something else than a number."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(np.float64, na_value=np.nan), np.zeros(len(column), bool)
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        return np.full(len(column), np.nan), column.notna().to_numpy(dtype=bool)
    cells = column.to_numpy(dtype=object)
    values = np.array(pd.to_numeric(cells, errors="coerce"), dtype=np.float64)
    text = np.isnan(values)
    text[text] = ~is_missing(column[text])
    words = {str(cell).lower() for cell in cells[text]}
    if words and words <= {"true", "false"} and np.isnan(values).all():
        values[text] = [str(cell).lower() == "true" for cell in cells[text]]
        text[:] = False
    return values, text
