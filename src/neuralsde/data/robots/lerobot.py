"""LeRobot datasets, versions 2 and 3: a folder with `meta/info.json` and parquet files.

In version 2 each episode has a file of its own, in version 3 a file holds many. Time is the column `timestamp`, as it was
recorded. Images inside the parquet files are decoded when they are asked for; videos are not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neuralsde.core.extras import need
from neuralsde.data.robots.parquet_columns import kind_of, values_of
from neuralsde.data.robots.recording import Recording

STAMPS, EPISODE = "timestamp", "episode_index"
BOOKKEEPING = frozenset({STAMPS, EPISODE, "frame_index", "index", "task_index"})
"""Columns that every dataset has beside its features."""
VIDEO = (
    "a video, which is not decoded here. Use a dataset that keeps its images in the parquet files, or learn from the other "
    "columns."
)


@dataclass(frozen=True)
class _Episode:
    index: int
    length: int
    file: Path


def open_lerobot(folder: Path) -> Recording:
    """A dataset as LeRobot writes it."""
    need("A LeRobot dataset", "pyarrow")
    info = _info(folder)
    episodes = _episodes(folder, info)
    schema = _open(episodes[0].file).schema_arrow
    features = info.get("features", {})
    closed = {name: VIDEO for name, feature in features.items() if feature.get("dtype") == "video"}
    names, default = [], []
    for name in schema.names:
        kind = kind_of(schema.field(name).type)
        if name in closed or kind == "closed":
            closed.setdefault(name, "no column of numbers or images.")
            continue
        names.append(name)
        if kind == "numbers" and name not in BOOKKEEPING and not name.startswith("next."):
            default.append(name)

    def read(names: Sequence[str], kept: Sequence[int]) -> dict[str, np.ndarray]:
        files: dict[Path, dict[int, _Episode]] = {}
        for e in kept:
            files.setdefault(episodes[e].file, {})[e] = episodes[e]
        parts: dict[int, dict[str, np.ndarray]] = {}
        for file, inside in files.items():
            parts |= _read_file(file, names, inside)
        joined = {name: _join([parts[e][name] for e in kept], name, folder) for name in names}
        for name, values in joined.items():
            shape = features.get(name, {}).get("shape")
            if shape and name not in BOOKKEEPING and values[0].size == math.prod(shape) and values.dtype != np.uint8:
                joined[name] = values.reshape(len(values), *shape)
        return joined

    return Recording(
        folder,
        np.array([e.length for e in episodes], np.int64),
        tuple(names),
        tuple(default),
        closed,
        STAMPS if STAMPS in names else None,
        read,
    )


def _join(parts: list[np.ndarray], name: str, folder: Path) -> np.ndarray:
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"{folder}: {name!r} must have one shape in all episodes. Got {sorted(shapes)}. Leave it out.")
    return np.concatenate(parts)


# What the folder says of itself


def _info(folder: Path) -> dict[str, Any]:
    file = folder / "meta" / "info.json"
    try:
        info = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON ({error}). Copy or download it again.") from None
    version = str(info.get("codebase_version")) if isinstance(info, dict) else "nothing"
    if version.split(".")[0] not in ("v2", "v3"):
        raise ValueError(f"{file}: `codebase_version` must be v2.x or v3.x. Got {version}. LeRobot can convert it.")
    if "data_path" not in info:
        raise ValueError(f"{file} has no `data_path`. Copy or download it again.")
    return info


def _episodes(folder: Path, info: dict[str, Any]) -> list[_Episode]:
    """The episodes in order, and the file of each."""
    rows = _rows_v2(folder, info) if info["codebase_version"].startswith("v2") else _rows_v3(folder)
    try:
        files = [folder / info["data_path"].format(**places) for _, places in rows]
        episodes = [_Episode(int(row[EPISODE]), int(row["length"]), file) for (row, _), file in zip(rows, files)]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{folder / 'meta'} does not say where episodes are ({error!r}). Download it again.") from None
    episodes.sort(key=lambda e: e.index)
    if not episodes:
        raise ValueError(f"{folder} holds no episodes. Record some, or look for another dataset.")
    for what, number in (("total_episodes", len(episodes)), ("total_frames", sum(e.length for e in episodes))):
        if info.get(what, number) != number:
            raise ValueError(
                f"{folder} is cut short: meta/info.json has {what}={info[what]}, the list of episodes comes to {number}. "
                "Download it again."
            )
    return episodes


def _rows_v2(folder: Path, info: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, int]]]:
    """Entries of meta/episodes.jsonl, and what the name of their file is made of."""
    file = folder / "meta" / "episodes.jsonl"
    _check_there(file)
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        size, total = int(info.get("chunks_size", 1000)), int(info.get("total_episodes", len(rows)))
        return [(r, {"episode_chunk": r[EPISODE] // size, EPISODE: r[EPISODE], "total_episodes": total}) for r in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is cut short or broken ({error!r}). Download it again.") from None


def _rows_v3(folder: Path) -> list[tuple[dict[str, Any], dict[str, int]]]:
    """Entries of the tables in meta/episodes, and what the name of their file is made of."""
    files = sorted((folder / "meta" / "episodes").glob("*/*.parquet"))
    if not files:
        _check_there(folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    columns = [EPISODE, "length", "data/chunk_index", "data/file_index"]
    rows: list[dict[str, Any]] = []
    for file in files:
        rows += _table(file, columns).to_pylist()
    return [(r, {"chunk_index": r["data/chunk_index"], "file_index": r["data/file_index"]}) for r in rows]


# Parquet


def _check_there(file: Path) -> None:
    if not file.is_file():
        raise ValueError(f"{file} is missing: the dataset is not whole. Download it again, with all its files.")


def _open(file: Path) -> Any:
    import pyarrow.parquet as pq

    _check_there(file)
    try:
        return pq.ParquetFile(file)
    except Exception as error:  # pyarrow's own errors
        with file.open("rb") as start:
            pointer = start.read(20).startswith(b"version https://git-")
        remedy = "It is a pointer of git LFS: run `git lfs pull`." if pointer else "Copy or download it again."
        raise ValueError(f"{file} is cut short or no parquet file ({error}). {remedy}") from None


def _table(file: Path, columns: Sequence[str]) -> Any:
    data = _open(file)
    missing = [name for name in columns if name not in data.schema_arrow.names]
    if missing:
        raise ValueError(f"{file} has no column {missing[0]!r}. It has {', '.join(data.schema_arrow.names)}.")
    try:
        return data.read(columns=list(columns))
    except Exception as error:  # pyarrow's own errors
        raise ValueError(f"{file} is cut short or broken ({error}). Copy or download it again.") from None


def _read_file(file: Path, names: Sequence[str], wanted: dict[int, _Episode]) -> dict[int, dict[str, np.ndarray]]:
    """The arrays of these episodes, which lie in one file."""
    table = _table(file, list(dict.fromkeys([*names, EPISODE])))
    index = table[EPISODE].to_numpy()
    order = np.argsort(index, kind="stable")
    arrays = {}
    for e, episode in wanted.items():
        start, end = np.searchsorted(index[order], [episode.index, episode.index + 1])
        if end - start != episode.length:
            raise ValueError(
                f"{file} is cut short or not of this dataset: it has {end - start} rows of episode {episode.index}, the list of "
                f"episodes says {episode.length}. Download it again."
            )
        rows = table.take(order[start:end])
        arrays[e] = {name: values_of(rows[name], f"{file}: {name!r}") for name in names}
    return arrays
