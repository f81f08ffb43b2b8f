"""Paths larger than memory: read from disk a few blocks at a time, shuffled, on a thread beside the training.

Which transition comes when is a function of the seed (`order`). A resumed run therefore goes on with the very next one, and
several processes share the blocks.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralsde.core.doors import Count, door
from neuralsde.data.streams.blocks import INDEX, Blocks, TensorBlocks, concatenate, write_blocks
from neuralsde.data.streams.order import Lane, Pool, deal
from neuralsde.data.streams.parquet import ParquetBlocks
from neuralsde.data.trajectories import ENOUGH_WHOLE, Lag, Names, Trajectories, Transitions, pair_up
from neuralsde.data.transition import Transition

SAMPLE_BLOCKS = 16  # that units and bounds are measured on, evenly spread
SAMPLE_NUMBERS = 2**25  # entries of states in them, at most
STRETCH_STEPS, STRETCH_NUMBERS = 64, 2**20  # of the batches that are made at once
STRETCHES = 3  # made in advance


class Stream:
    """Paths on disk, to train on: `fit(model, stream)`."""

    def __init__(self, blocks: Blocks, place: str, *, shuffle: int, lanes: int) -> None:
        """Use `open` or `write`."""
        self.blocks, self.place, self.shuffle = blocks, place, shuffle
        self.lanes = lanes
        while self.lanes > len(blocks):
            self.lanes //= 2

    @classmethod
    @door
    def open(
        cls,
        place: str | os.PathLike[str],
        *,
        columns: Names = (),
        id: str | None = None,
        time: str | None = None,
        context: Names = (),
        shuffle: Count = 2**20,
        lanes: Count = 8,
    ) -> Stream:
        """Open a folder that `Stream.write` wrote, or parquet files in long form.

        Args:
            place: a folder, a parquet file, or a pattern of parquet files such as "data/*.parquet".
            columns: parquet only: the columns of the state.
            id: parquet only: column that names the path of a row, whose rows lie together; absent, each file is one path.
            time: parquet only: column of the time stamps, which rise along a path; dates count in seconds.
            context: parquet only: columns of the context.
            shuffle: transitions that are in memory and shuffled together, about.
            lanes: parts in which the blocks are read; the number of processes of a training must divide it.
        """
        files = _parquet_files(Path(place))
        settings: dict[str, Any] = {"shuffle": shuffle, "lanes": lanes}
        if not files:
            named = [n for n, v in (("columns", columns), ("id", id), ("time", time), ("context", context)) if v]
            if named:
                raise ValueError(
                    f"`{named[0]}` is for parquet files. Got a folder that Stream.write wrote, or none: {place}."
                )
            return cls(TensorBlocks(Path(place)), str(place), **settings)
        if not columns or time is None:
            raise ValueError(
                f"Parquet files need `columns` and `time`. Got {columns=}, {time=}. Write Stream.open({str(place)!r}, "
                "columns=['x', 'y'], id='path', time='t')."
            )
        blocks = ParquetBlocks(
            files, columns=list(map(str, columns)), id=id, time=time, context=list(map(str, context))
        )
        return cls(blocks, str(place), **settings)

    @classmethod
    @door
    def write(cls, paths: Any, folder: str | os.PathLike[str], *, block_size: Count = 65_536) -> Stream:
        """Write paths to a new folder and open it; no more than a file's worth of them is in memory.

        Args:
            paths: Trajectories, or anything that gives Trajectories one after another, such as a generator.
            folder: for the files; it must not hold a stream yet.
            block_size: observations that are read at once, at most; blocks must be many for a good shuffle.
        """
        given = [paths] if isinstance(paths, Trajectories) else paths
        if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
            raise ValueError(f"`paths` must be Trajectories, or give them. Got a {type(paths).__name__}.")
        return cls.open(write_blocks(given, folder, block_size))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        return self.blocks.shape

    @property
    def context_size(self) -> int:
        """Length of the context vector, 0 where there is none."""
        return self.blocks.context_size

    def __repr__(self) -> str:
        return f"Stream({self.place}: {len(self.blocks)} blocks, observations of shape {self.shape})"

    @door
    def transitions(self, *, lag: Lag = None, history: Count = 1, pad: bool = False) -> StreamTransitions:
        """All pairs of states to learn from; see `Trajectories.transitions`. Those of missing entries are counted first."""
        return StreamTransitions(self, lag, history, pad)


def _parquet_files(place: Path) -> list[Path]:
    if place.is_dir():
        return [] if (place / INDEX).exists() else sorted(place.glob("*.parquet"))
    if place.suffix == ".parquet" and place.is_file():
        return [place]
    found = place.parent.glob(place.name) if place.parent.is_dir() else ()
    return sorted(file for file in found if file.suffix == ".parquet")


class StreamTransitions:
    """The transitions of a stream, in an order that depends on a seed."""

    def __init__(self, stream: Stream, lag: Lag, history: int, pad: bool) -> None:
        self.stream, self.lag, self.history, self.pad = stream, lag, history, pad
        self.counts = np.array([self._count(block) for block in range(len(stream.blocks))])
        """Transitions of each block."""
        self.lanes = deal(self.counts, stream.lanes)
        if not all(self.counts[blocks].sum() for blocks in self.lanes):
            self.in_memory  # noqa: B018 - says why, where there are none at all
            raise ValueError(
                f"Each of the {len(self.lanes)} lanes must have a transition. Got {int(self.counts.sum())} in all. Use "
                "fewer `lanes`."
            )

    def __len__(self) -> int:
        return int(self.counts.sum())

    def _count(self, block: int) -> int:
        plain = self.lag is None and not self.stream.blocks.missing and not self.pad
        if plain:  # known without reading the states
            return int((self.stream.blocks.lengths(block) - self.history).clamp(min=0).sum())
        return len(self._pairs(block).start)

    @cached_property
    def in_memory(self) -> Transitions:
        """Transitions of some blocks, evenly spread over the stream, in memory: what units and bounds are measured on."""
        blocks, num = self.stream.blocks, len(self.stream.blocks)
        first = blocks.read(0)
        wanted = min(num, SAMPLE_BLOCKS, max(1, SAMPLE_NUMBERS // max(1, first.states.numel())))
        parts = [first, *(blocks.read(k * num // wanted) for k in range(1, wanted))]
        return pair_up(concatenate(parts), self.lag, self.history, None, pad=self.pad).to_learn_from()

    @cached_property
    def _whole(self) -> bool:
        """Whether states with a missing entry are not learned from: whether enough are without, by the sample's first blocks."""
        data = self.in_memory.data
        every = pair_up(data, self.lag, self.history, None, pad=self.pad, quiet=True)
        return data.observed is not None and float(every.whole().float().mean()) >= ENOUGH_WHOLE

    def _pairs(self, block: int) -> Transitions:
        data = self.stream.blocks.read(block)
        pairs = pair_up(data, self.lag, self.history, None, pad=self.pad, quiet=True)
        return (
            pairs.select(pairs.whole())
            if self.stream.blocks.missing and self._whole and data.observed is not None
            else pairs
        )

    def fields_of(self, pool: Pool) -> list[Tensor | None]:
        """The fields of the transitions of a pool, in its order."""
        batches = [pairs[torch.arange(len(pairs))] for pairs in map(self._pairs, pool.blocks)]
        found: list[Tensor | None] = []
        order = pool.order()
        for field in fields(Transition):
            values = [getattr(batch, field.name) for batch in batches]
            if field.name == "mask" and self.stream.blocks.missing:
                values = [torch.ones_like(b.next, dtype=torch.bool) if b.mask is None else b.mask for b in batches]
            found.append(None if values[0] is None else torch.cat(values)[order])
        return found

    def record(self) -> dict[str, Any]:
        """What the order depends on besides the seed, for a checkpoint."""
        blocks = self.stream.blocks
        order = {"num_blocks": len(blocks), "lanes": len(self.lanes), "shuffle": self.stream.shuffle}
        return {"stream": blocks.fingerprint, **order}

    def to_learn_from(self) -> StreamTransitions:
        """Those that are learned from, as they are: states with a missing entry are left out already, if the rest is enough."""
        return self

    def batches(
        self, seed: int, step: int, batch_size: int, *, process: int = 0, num_processes: int = 1, device: Any = "cpu"
    ) -> Batches:
        """Every `num_processes`-th row, from `process` on, of the batches of a training from `step` on, without end."""
        if len(self.lanes) % num_processes:
            raise ValueError(
                f"`lanes` must be a multiple of the {num_processes} processes. Got {len(self.lanes)} lanes of "
                f"{len(self.counts)} blocks. Open the stream with lanes={num_processes}, or write smaller blocks."
            )
        per_lane = max(1, self.stream.shuffle // len(self.lanes))
        own = [
            _LaneReader(self, Lane(k, blocks, self.counts[blocks], per_lane, seed))
            for k, blocks in enumerate(self.lanes)
            if k % num_processes == process
        ]
        return Batches(
            _stretches(own, len(self.lanes), step, batch_size, process, num_processes, device),
            batch_size // num_processes,
        )


class _LaneReader:
    """Takes the transitions of a lane one after another."""

    def __init__(self, pairs: StreamTransitions, lane: Lane) -> None:
        self.pairs, self.lane = pairs, lane
        self.place = -1
        self.held: list[Tensor | None] = []
        self.left = 0

    def take(self, place: int, num: int) -> list[list[Tensor | None]]:
        """The `num` transitions from `place` on, in parts: the fields of each."""
        if place != self.place:
            self.pools, self.left = self.lane.pools(place), 0
        self.place = place + num
        parts = []
        while num:
            if not self.left:
                pool = next(self.pools)
                self.held = self.pairs.fields_of(pool)
                self.left = pool.count - pool.skip
            size = min(num, self.left)
            start = len(self.held[1]) - self.left  # type: ignore[arg-type]
            parts.append([None if f is None else f[start : start + size] for f in self.held])
            self.left -= size
            num -= size
        return parts


def _stretches(
    lanes: list[_LaneReader], num_lanes: int, step: int, batch_size: int, process: int, num_processes: int, device: Any
) -> Iterator[Transition]:
    """The batches of several steps end to end, again and again."""
    shape = lanes[0].pairs.stream.shape
    per_step = (lanes[0].pairs.history + 1) * math.prod(shape) * batch_size
    num_steps = max(1, min(STRETCH_STEPS, STRETCH_NUMBERS // per_step))
    while True:
        first, stop = step * batch_size, (step + num_steps) * batch_size  # places
        out: list[Tensor | None] = []
        for lane in lanes:
            start = first + (lane.lane.number - first) % num_lanes
            num = max(0, -(-(stop - start) // num_lanes))
            row = (start - first - process) // num_processes
            for part in lane.take(start // num_lanes, num):
                if not out:
                    size = (stop - first) // num_processes
                    out = [None if f is None else f.new_empty((size, *f.shape[1:])) for f in part]
                taken = len(part[1])  # type: ignore[arg-type]
                rows = slice(row, None, num_lanes // num_processes)
                for k, value in enumerate(part):
                    if value is not None:
                        out[k][rows][:taken] = value  # type: ignore[index]
                row += taken * (num_lanes // num_processes)
        yield Transition(*out).to(device)  # type: ignore[arg-type]
        step += num_steps


class Batches:
    """Batches that a thread makes in advance; close them when there is no more need."""

    def __init__(self, stretches: Iterator[Transition], size: int) -> None:
        self.size = size
        self.waited = 0.0
        """Seconds in which the next batch was not ready."""
        self._ready: queue.Queue[Any] = queue.Queue(STRETCHES)
        self._closed = threading.Event()
        self._stretch: Transition | None = None
        self._row = 0
        self._thread = threading.Thread(target=self._make, args=(stretches,), daemon=True)
        self._thread.start()

    def _make(self, stretches: Iterator[Transition]) -> None:
        made: Any = None
        while not self._closed.is_set():
            try:
                made = next(stretches)
            except Exception as error:  # handed over, and raised where the batch is asked for
                made = error
            while not self._closed.is_set():
                try:
                    self._ready.put(made, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(made, Exception):
                return

    def __next__(self) -> Transition:
        if self._stretch is None or self._row == len(self._stretch):
            began = time.perf_counter()
            made = self._ready.get()
            self.waited += time.perf_counter() - began
            if isinstance(made, Exception):
                raise made
            self._stretch, self._row = made, 0
        rows = slice(self._row, self._row + self.size)
        self._row += self.size
        return self._stretch.rows(rows)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._ready.get_nowait()
            except queue.Empty:
                self._thread.join(0.05)
