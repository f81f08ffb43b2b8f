"""Paths on disk in *blocks*: a few thousand observations that lie together and are read at once.

A folder of shards holds safetensors files, each with the tensors of many blocks end to end, and `stream.json`, which is written
last. A path longer than a block is cut into pieces that share one observation, so that no pair of consecutive observations
is lost; pieces keep the time at which their path began. What reaches further back than one observation ends at a cut.
"""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from neuralsde.core.files import alone, read_json, replacing, writable_folder, write_json
from neuralsde.data.trajectories import Trajectories

VERSION = 1
INDEX = "stream.json"
SHARD_BYTES = 2**27  # of one file
BLOCK_BYTES = 2**24  # at most, whatever the number of observations asked for
AGAIN = "Delete the folder and write it again with Stream.write."


class Blocks(ABC):
    """Blocks of paths of one shape, read one by one."""

    shape: tuple[int, ...]
    """Of one observation."""
    context_size: int
    names: tuple[str, ...] | None
    """Of the features, where they have any."""
    missing: bool
    """Whether entries of states are missing."""
    fingerprint: str
    """Of what is there: to notice other data."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of blocks."""

    @abstractmethod
    def lengths(self, block: int) -> Int[Tensor, " P"]:
        """Observations of each path of a block."""

    @abstractmethod
    def read(self, block: int) -> Trajectories:
        """The paths of a block."""


class TensorBlocks(Blocks):
    """Blocks in a folder of safetensors files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = _read_index(folder)
        self.shape, self.context_size = tuple(index["shape"]), index["context_size"]
        self.names = None if index["names"] is None else tuple(index["names"])
        self.missing, self.fingerprint = any(s["missing"] for s in index["shards"]), index["fingerprint"]
        self._table: list[tuple[Path, bool, list[int]]] = []
        """Of each block: the file, whether entries are missing there, first and last row, first and last path."""
        for shard in index["shards"]:
            file = folder / shard["file"]
            table = _read_shard(file, {"table": slice(None)})["table"].tolist()
            if len(table) != shard["num_blocks"] or file.stat().st_size != shard["bytes"]:
                raise ValueError(f"{file} is not the one that {INDEX} names. {AGAIN}")
            self._table += [(file, shard["missing"], row) for row in table]

    def __len__(self) -> int:
        return len(self._table)

    def lengths(self, block: int) -> Int[Tensor, " P"]:
        file, _, (_, _, first, last) = self._table[block]
        return _read_shard(file, {"lengths": slice(first, last)})["lengths"]

    def read(self, block: int) -> Trajectories:
        file, missing, (start, stop, first, last) = self._table[block]
        rows, paths = slice(start, stop), slice(first, last)
        wanted = {"states": rows, "times": rows, "lengths": paths, "begin": paths}
        wanted |= {"context": rows} if self.context_size else {}
        wanted |= {"observed": rows} if missing else {}
        return Trajectories(names=self.names, **_read_shard(file, wanted))


def _read_shard(file: Path, wanted: dict[str, slice]) -> dict[str, Tensor]:
    """Parts of the tensors of a shard, in memory of their own: the file is mapped only while it is read."""
    try:
        with safe_open(file, framework="pt") as found:
            return {name: found.get_slice(name)[part].clone() for name, part in wanted.items()}
    except FileNotFoundError:
        raise ValueError(f"{file} is missing. Copy the whole folder.") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise ValueError(f"{file} is damaged ({error}). {AGAIN}") from None


def _read_index(folder: Path) -> dict[str, Any]:
    file = folder / INDEX
    if not file.exists():
        raise ValueError(f"{folder} holds no stream, no {INDEX}. Write one with Stream.write(paths, folder).")
    index = read_json(file)
    if not isinstance(index, dict) or index.get("version") != VERSION:
        raise ValueError(f"{file} is damaged, or of another version of neuralsde. {AGAIN}")
    return index


# Writing


def write_blocks(paths: Iterable[Trajectories], folder: str | os.PathLike[str], block_size: int) -> Path:
    """Write paths as shards into a new folder, a shard's worth of them in memory at a time; the index comes last."""
    place = writable_folder(folder)
    with alone(place):
        if (place / INDEX).exists():
            raise ValueError(f"{place} already holds a stream. Name another folder, or delete it.")
        shards, digest, like = [], hashlib.sha256(), None
        for number, (data, table) in enumerate(_shards(paths, block_size)):
            like = data if like is None else like
            _check_alike(data, like)
            file = place / f"{number:05d}.safetensors"
            content = save(_tensors(data, table))
            digest.update(content)
            with replacing(file) as new:
                new.write_bytes(content)
            missing = data.observed is not None
            shards.append({"file": file.name, "num_blocks": len(table), "bytes": len(content), "missing": missing})
        if like is None:
            raise ValueError("`paths` must hold at least one set of Trajectories. Got none.")
        index = {
            "version": VERSION,
            "shape": list(like.shape),
            "context_size": like.context_size,
            "names": like.names,
            "fingerprint": digest.hexdigest()[:16],
            "shards": shards,
        }
        write_json(place / INDEX, index)
    return place


def _tensors(data: Trajectories, table: Int[Tensor, "N 4"]) -> dict[str, Tensor]:
    tensors = {"states": data.states, "times": data.times, "lengths": data.lengths, "begin": data.begin, "table": table}
    context = data.context_at(torch.arange(len(data.states), device=data.states.device))
    tensors |= {} if context is None else {"context": context}
    tensors |= {} if data.observed is None else {"observed": data.observed}
    return {name: value.cpu().contiguous() for name, value in tensors.items()}


def _shards(paths: Iterable[Trajectories], block_size: int) -> Iterator[tuple[Trajectories, Int[Tensor, "N 4"]]]:
    """Paths of about one file each, and the rows and paths of their blocks."""
    held: list[Trajectories] = []
    for data in paths:
        if not isinstance(data, Trajectories):
            raise ValueError(f"`paths` must be Trajectories, or give them. Got a {type(data).__name__}.")
        held.append(data)
        if sum(len(each.states) * _row_bytes(each) for each in held) >= SHARD_BYTES:
            yield from _files(concatenate(held), block_size)
            held = []
    if held:
        yield from _files(concatenate(held), block_size)


def _files(data: Trajectories, block_size: int) -> Iterator[tuple[Trajectories, Int[Tensor, "N 4"]]]:
    size = max(2, min(block_size, BLOCK_BYTES // _row_bytes(data)))
    data = cut_long_paths(data, size)
    per_file = max(size, SHARD_BYTES // _row_bytes(data))
    whole = _table(data, size)
    first = 0
    while first < len(whole):
        fits = int((whole[first:, 1] - whole[first, 0] <= per_file).sum())
        part = whole[first : first + max(1, fits)]
        paths = slice(int(part[0, 2]), int(part[-1, 3]))
        start = (data.lengths.cumsum(0) - data.lengths)[paths]
        yield data.cut(start, data.lengths[paths], data.begin[paths]), part - part[0, [0, 0, 2, 2]]
        first += len(part)


def _table(data: Trajectories, size: int) -> Int[Tensor, "N 4"]:
    """First and last row, first and last path of blocks of at most `size` observations, in whole paths."""
    ends = data.lengths.cumsum(0).cpu()
    table, row, path = list[list[int]](), 0, 0
    while path < len(ends):
        last = max(int(torch.searchsorted(ends, row + size, right=True)), path + 1)
        table.append([row, int(ends[last - 1]), path, last])
        row, path = int(ends[last - 1]), last
    return torch.tensor(table)


def cut_long_paths(data: Trajectories, size: int) -> Trajectories:
    """Paths longer than `size` observations as pieces that share one observation with the piece before."""
    if int(data.lengths.max()) <= size:
        return data
    pieces = (data.lengths - 2) // (size - 1) + 1
    path = torch.repeat_interleave(torch.arange(len(data), device=pieces.device), pieces)
    offset = (torch.arange(len(path), device=pieces.device) - (pieces.cumsum(0) - pieces)[path]) * (size - 1)
    first = (data.lengths.cumsum(0) - data.lengths)[path] + offset
    return data.cut(first, (data.lengths[path] - offset).clamp(max=size), data.begin[path])


def _row_bytes(data: Trajectories) -> int:
    """Of one observation on disk."""
    return 8 + 4 * data.context_size + (4 if data.observed is None else 5) * math.prod(data.shape)


def _check_alike(data: Trajectories, like: Trajectories) -> None:
    if (data.shape, data.context_size) != (like.shape, like.context_size):
        raise ValueError(
            f"All paths must have one shape and one size of context. Got {data.shape} and {data.context_size} after "
            f"{like.shape} and {like.context_size}."
        )


def concatenate(parts: Sequence[Trajectories]) -> Trajectories:
    """The paths of several sets, one after another."""
    if len(parts) == 1:
        return parts[0]
    for part in parts:
        _check_alike(part, parts[0])
    context = [part.context_at(torch.arange(len(part.states), device=part.states.device)) for part in parts]
    whole = all(part.observed is None for part in parts)
    observed = [torch.ones_like(p.states, dtype=torch.bool) if p.observed is None else p.observed for p in parts]
    return Trajectories(
        torch.cat([part.states for part in parts]),
        torch.cat([part.times for part in parts]),
        torch.cat([part.lengths for part in parts]),
        torch.cat([each for each in context if each is not None]) if parts[0].context_size else None,
        None if whole else torch.cat(observed),
        parts[0].names,
        begin=torch.cat([part.begin for part in parts]),
    )
