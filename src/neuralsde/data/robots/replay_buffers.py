"""Replay buffers as Diffusion Policy writes them: arrays with one row per instant, and the row where each episode ends.

They come as an npz file with `episode_ends` among its arrays, or as a zarr store with the groups `data` and `meta`, in a
folder or in a zip, which is read in place. Arrays are read when they are asked for. Nothing that is read is executed:
arrays of pickled objects stay closed.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neuralsde.core.extras import need
from neuralsde.data.robots.recording import Recording, lengths_from_ends

ENDS = "episode_ends"
STAMPS = "timestamp"
METADATA = (".zarray", "zarr.json")  # the file that makes a folder an array, in versions 2 and 3 of the format
BLOCK = 2**26  # bytes that are read at a time from arrays of images


@dataclass(frozen=True)
class _Entry:
    """An array that has not been read."""

    shape: tuple[int, ...]
    kind: str
    """Of its numpy type: one letter; O also for what is pickled."""


def _recording(
    where: Path,
    entries: dict[str, _Entry],
    ends: np.ndarray,
    load: Callable[[str, Sequence[tuple[int, int]]], np.ndarray],
) -> Recording:
    """The recording with these arrays; `load` gets the rows of one in several spans."""
    lengths = lengths_from_ends(ends, where)
    numbers = tuple(name for name, entry in entries.items() if entry.kind in "fiub" and entry.shape)

    def read(names: Sequence[str], episodes: Sequence[int]) -> dict[str, np.ndarray]:
        for name in names:
            num_rows = entries[name].shape[0]
            if num_rows < ends[-1]:
                raise ValueError(
                    f"{where} is cut short: episodes go up to row {ends[-1]}, {name!r} has {num_rows}. Copy or download it again, "
                    "or leave the array out."
                )
            if num_rows > ends[-1]:
                raise ValueError(
                    f"{where}: {name!r} has {num_rows} rows, `{ENDS}` only accounts for {ends[-1]}. Add the end of the last "
                    "episode, or leave the array out by naming the `observations`."
                )
        spans = _join([(int(ends[e] - lengths[e]), int(ends[e])) for e in episodes])
        return {name: load(name, spans) for name in names}

    return Recording(
        where,
        lengths,
        numbers,
        tuple(name for name in numbers if name != STAMPS),
        {name: _why_closed(entry) for name, entry in entries.items() if name not in numbers},
        STAMPS if STAMPS in numbers else None,
        read,
    )


def _why_closed(entry: _Entry) -> str:
    if entry.kind == "O":
        return "made of pickled objects, which are never loaded: they can run code."
    return "a single value, no array." if not entry.shape else "no array of numbers."


def _join(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbours as one span."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _rows(array: Any, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Rows of an array; images with pixels 0, 1, …, 255 that were stored as floats become uint8, a quarter of the memory."""
    if array.dtype.kind == "f" and len(array.shape) == 4 and array.shape[-1] in (1, 3, 4):
        step = max(1, BLOCK // max(1, array.dtype.itemsize * math.prod(array.shape[1:])))
        pixels: list[np.ndarray] = []
        for a, b in ((k, min(k + step, end)) for start, end in spans for k in range(start, end, step)):
            block = np.asarray(array[a:b])
            with np.errstate(invalid="ignore"):
                pixels.append(block.astype(np.uint8))
            if not np.array_equal(pixels[-1], block):
                break
        else:
            if max(int(block.max()) for block in pixels) > 1:  # else it may be a mask
                return np.concatenate(pixels)
    return np.concatenate([np.asarray(array[a:b]) for a, b in spans])


# npz


def open_npz(file: Path) -> Recording:
    """An npz file with `episode_ends` and arrays."""
    with _whole(file), zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        entries = {name.removesuffix(".npy"): _header(archive, name) for name in names}
    end = entries.pop(ENDS, None)
    if end is None:
        raise ValueError(
            f"{file} has no `{ENDS}`: the row after the last of each episode, counted from the start of the file. It has "
            f"{', '.join(entries)}. Add it."
        )

    def load(name: str, spans: Sequence[tuple[int, int]]) -> np.ndarray:
        with _whole(file), np.load(file, allow_pickle=False) as arrays:
            return _rows(arrays[name], spans)

    if end.kind == "O":
        raise ValueError(f"{file}: `{ENDS}` is {_why_closed(end)}")
    with _whole(file), np.load(file, allow_pickle=False) as arrays:
        ends = arrays[ENDS]
    return _recording(file, entries, ends, load)


def _header(archive: zipfile.ZipFile, name: str) -> _Entry:
    """Shape and type, without the numbers."""
    with archive.open(name) as data:
        version = np.lib.format.read_magic(data)
        if version > (2, 0):
            return _Entry((), "V")
        old = version == (1, 0)
        shape, _, dtype = (np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0)(data)
    return _Entry(tuple(shape), "O" if dtype.hasobject else dtype.kind)


@contextmanager
def _whole(place: Path) -> Iterator[None]:
    """One message for all the ways in which a file can be broken."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # of zipfile, zlib, numpy, zarr and its codecs
        what = str(error) or type(error).__name__
        raise ValueError(f"{place} is cut short or broken ({what}). Copy or download it again.") from None


# zarr


def zarr_root(place: Path) -> str | None:
    """Where in this folder or zip a replay buffer lies: "" at its top, None for nowhere."""
    if place.is_dir():
        return "" if any((place / "meta" / ENDS / name).is_file() for name in METADATA) else None
    with zipfile.ZipFile(place) as archive:
        for name in archive.namelist():
            parts = name.split("/")
            if parts[-3:-1] == ["meta", ENDS] and parts[-1] in METADATA and parts[0] != "__MACOSX":
                return "/".join(parts[:-3])
    return None


def open_zarr(place: Path) -> Recording:
    """A zarr store with the groups `data` and `meta`, as a folder or in a zip."""
    need("A zarr store", "zarr")
    import zarr

    root = zarr_root(place)
    assert root is not None

    def load(name: str, spans: Sequence[tuple[int, int]] | None) -> np.ndarray:
        lost, rows = 0, None
        with _whole(place), ExitStack() as stack:
            if place.is_dir():
                array = zarr.open_array(str(place / name), mode="r")
            else:
                store = stack.enter_context(closing(zarr.storage.ZipStore(str(place), mode="r")))
                array = zarr.open_array(store, path=f"{root}/{name}".lstrip("/"), mode="r")
            lost = _lost_chunks(array)
            if not lost:
                rows = array[:] if spans is None else _rows(array, spans)
        if lost:
            raise ValueError(
                f"{place} is cut short: {lost} of {array.nchunks} chunks of {name!r} are missing and would be read as "
                f"{array.fill_value}. Copy or download it again; if they were never written, write it with write_empty_chunks."
            )
        return np.asarray(rows)

    with _whole(place):
        inside: Any = place if place.is_dir() else zipfile.Path(place, f"{root}/" if root else "")
        end = _metadata(inside / "meta" / ENDS)
        entries = {}
        for child in sorted((inside / "data").iterdir(), key=lambda p: p.name) if (inside / "data").is_dir() else []:
            entry = _metadata(child) if child.is_dir() else None
            if entry is not None:
                entries[child.name] = entry
    assert end is not None
    if not entries:
        raise ValueError(f"{place} has no arrays in its group `data`. Copy or download it again.")
    if end.kind == "O":
        raise ValueError(f"{place}: `{ENDS}` is {_why_closed(end)}")
    ends = load(f"meta/{ENDS}", None) if end.shape != (0,) else np.zeros(0, np.int64)
    return _recording(place, entries, ends, lambda name, spans: load(f"data/{name}", spans))


def _lost_chunks(array: Any) -> int:
    """Chunks without a file; version 3 of the format leaves out chunks that hold nothing but the fill value."""
    version = getattr(array.metadata, "zarr_format", 2) if hasattr(array, "metadata") else 2
    return int(array.nchunks - array.nchunks_initialized) if version == 2 else 0


def _metadata(array: Any) -> _Entry | None:
    """What the store says of an array; None where there is none."""
    for name in METADATA:
        file = array / name
        if not file.is_file():
            continue
        values = json.loads(file.read_bytes())
        if values.get("node_type", "array") != "array":
            return None
        codecs = json.dumps([values.get("filters"), values.get("compressor"), values.get("codecs")])
        try:
            dtype = np.dtype(values["dtype"] if "dtype" in values else values["data_type"])
            kind = "O" if "pickle" in codecs or dtype.hasobject else dtype.kind
        except TypeError:  # a record or an extension
            kind = "V"
        return _Entry(tuple(values["shape"]), kind)
    return None
