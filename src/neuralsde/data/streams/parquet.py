"""Parquet files in long form as blocks: one row per observation, and a row group is a block.

The rows of a path lie together, in the order of their stamps. A path that goes on in the next row group, or in the next file, is
two pieces: the transition between them is lost, and the second keeps the time at which the path began.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from neuralsde.core.extras import need
from neuralsde.data.streams.blocks import Blocks
from neuralsde.data.trajectories import Trajectories


class ParquetBlocks(Blocks):
    """Row groups of parquet files; the columns of ids and stamps are read once, to know where paths begin and end."""

    missing = False

    def __init__(
        self, files: Sequence[Path], *, columns: Sequence[str], id: str | None, time: str, context: Sequence[str]
    ) -> None:
        need("A parquet file", "pyarrow")
        self.columns, self.id, self.time, self.context = tuple(columns), id, time, tuple(context)
        self.shape, self.context_size = (len(self.columns),), len(self.context)
        self.names = self.columns
        self._groups: list[tuple[Path, int]] = []
        self._lengths: list[Int[Tensor, " P"]] = []
        self._begin: list[float] = []
        """When the first path of each block began."""
        digest, began = hashlib.sha256(), 0.0
        last: tuple[Path | None, Any] | None = None
        for file in files:
            digest.update(repr((file.name, file.stat().st_size)).encode())
            for group in range(self._open(file).num_row_groups):
                ids, stamps = self._keys(file, group)
                if not len(stamps):
                    continue
                first = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
                place = file if id is None else None  # without ids each file is one path
                start = began if last == (place, ids[0]) else float(stamps[0])
                began = start if len(first) == 1 else float(stamps[first[-1]])
                last = (place, ids[-1])
                lengths = torch.from_numpy(np.diff(np.r_[first, len(ids)]))
                if int(lengths.max()) > 1:
                    self._begin.append(start)
                    self._lengths.append(lengths)
                    self._groups.append((file, group))
        if not self._groups:
            raise ValueError(
                f"The parquet files must hold a path with two rows. Got none in {', '.join(f.name for f in files)}."
            )
        self.fingerprint = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._groups)

    def lengths(self, block: int) -> Int[Tensor, " P"]:
        lengths = self._lengths[block]
        return lengths[lengths > 1]

    def read(self, block: int) -> Trajectories:
        file, group = self._groups[block]
        table = self._open(file).read_row_group(group, [*self.columns, self.time, *self.context])
        where = f"row group {group} of {file}"
        states, stamps = self._numbers(table, self.columns, where), _stamps(table[self.time], self.time)
        lengths = self._lengths[block].numpy()
        if len(lengths) and lengths.sum() != len(stamps):
            raise ValueError(f"{file} has changed since it was opened. Open the stream again.")
        first = lengths.cumsum() - lengths
        falls = np.diff(stamps) <= 0
        falls[first[1:] - 1] = False  # from one path to the next
        if falls.any():
            row = int(falls.argmax())
            raise ValueError(
                f"The stamps of a path must rise. Got {stamps[row]:g} and then {stamps[row + 1]:g} in {where}. Sort the rows by "
                f"{'' if self.id is None else f'{self.id!r} and '}{self.time!r}."
            )
        begin = stamps[first]
        begin[:1] = self._begin[block]
        kept = np.repeat(lengths > 1, lengths)
        rows = self._numbers(table, self.context, where)[kept] if self.context else None
        return Trajectories(
            torch.from_numpy(states[kept]),
            torch.from_numpy(stamps[kept]),
            torch.from_numpy(lengths[lengths > 1]),
            None if rows is None else torch.from_numpy(rows),
            names=self.names,
            begin=torch.from_numpy(begin[lengths > 1]),
        )

    def _open(self, file: Path) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            found = pq.ParquetFile(file)
        except (OSError, pa.ArrowInvalid) as error:
            raise ValueError(f"Cannot read {file} as parquet: {error}.") from None
        names = found.schema_arrow.names
        for name in [*self.columns, *self.context, self.time, *([] if self.id is None else [self.id])]:
            if name not in names:
                raise ValueError(f"{file} has no column {name!r}. It has {', '.join(names)}.")
        return found

    def _keys(self, file: Path, group: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and stamps of the rows of a row group."""
        names = [self.time] if self.id is None else [self.id, self.time]
        table = self._open(file).read_row_group(group, names)
        stamps = _stamps(table[self.time], self.time)
        if self.id is None:
            return np.zeros(len(stamps), np.int64), stamps
        if table[self.id].null_count:
            raise ValueError(
                f"The column {self.id!r} must name the path of every row. Got none in {file}. Drop such rows."
            )
        return table[self.id].to_numpy(), stamps

    def _numbers(self, table: Any, names: Sequence[str], where: str) -> np.ndarray:
        """Columns as float32 (rows, columns), all of them finite."""
        values = np.empty((table.num_rows, len(names)), np.float32)
        for k, name in enumerate(names):
            try:
                values[:, k] = table[name].to_numpy()
            except (TypeError, ValueError):
                raise ValueError(f"The column {name!r} must be numbers. Got {table[name].type} in {where}.") from None
            if not np.isfinite(values[:, k]).all():
                row = int((~np.isfinite(values[:, k])).argmax())
                raise ValueError(
                    f"The column {name!r} must be finite. Got {values[row, k]} in row {row} of {where}. Fill or drop such rows, or "
                    "write the paths with Stream.write, which keeps missing values apart."
                )
        return values


def _stamps(column: Any, name: str) -> np.ndarray:
    """Stamps as float64; dates and durations in seconds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if column.null_count:
        raise ValueError(
            f"The column {name!r} must hold a stamp in every row. Got {column.null_count} without. Drop them."
        )
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        return pc.cast(column, pa.int64()).to_numpy() / per_second
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ValueError(f"The column {name!r} must hold numbers, dates or durations. Got {kind}. Convert it.")
    return column.to_numpy().astype(np.float64)
