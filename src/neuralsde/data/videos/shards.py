"""Videos on disk, ready to be used: bytes of all frames end to end in a few files, mapped and not read."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neuralsde.data.videos.decode import FrameSettings
from neuralsde.data.videos.report import VideoReport

VERSION = 1
INDEX, TIMES, PARTS, UNFINISHED = "videos.json", "times.npy", "parts-of-shards", "unfinished.json"
AGAIN = "Delete the folder and write it again (nsde data, or write_shards)."


class VideoShards:
    """Videos of one frame size: opened at once, read where they are looked at. Nothing can be written to them."""

    def __init__(self, folder: Path, index: dict[str, Any], chosen: np.ndarray | None = None) -> None:
        self.folder, self.index = folder, index
        self.settings = FrameSettings.from_dict(index["settings"])
        self.report = VideoReport.from_dict(index["report"])
        """What was read and what was not, in writing the shards."""
        self.fingerprint: str = index["fingerprint"]
        self.chosen = np.arange(len(index["videos"])) if chosen is None else chosen
        videos = [index["videos"][k] for k in self.chosen]
        self.names = tuple(str(video["name"]) for video in videos)
        self.labels = tuple(str(video["label"]) for video in videos)
        self.groups = tuple(str(video["group"]) for video in videos)
        self.lengths = np.array([video["length"] for video in videos], dtype=np.int64)
        """(V,) frames of each video."""
        ends = np.cumsum([video["length"] for video in index["videos"]])
        self._starts = (ends - [video["length"] for video in index["videos"]])[self.chosen]
        self._shard_starts = np.cumsum([0, *(shard["num_frames"] for shard in index["shards"])])
        self._maps: dict[str, np.ndarray] = {}

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, settings: FrameSettings | None = None) -> VideoShards:
        """Open what `write_shards` or `nsde data` wrote; what is not whole, or has other `settings`, is refused."""
        place = Path(folder)
        index = _read_index(place)
        shape = FrameSettings.from_dict(index["settings"]).shape
        for shard in index["shards"]:
            _check_array(place / shard["file"], (shard["num_frames"], *shape), np.dtype(np.uint8))
        num_frames = sum(shard["num_frames"] for shard in index["shards"])
        _check_array(place / TIMES, (num_frames,), np.dtype(np.float64))
        if num_frames != sum(video["length"] for video in index["videos"]):
            raise ValueError(f"{place / INDEX} does not fit its shards. {AGAIN}")
        if settings is not None and settings.to_dict() != index["settings"]:
            has, asked = index["settings"], settings.to_dict()
            other = [name for name in asked if has[name] != asked[name]]
            text = ", ".join(f"{name} is {has[name]}, asked for is {asked[name]}" for name in other)
            raise ValueError(f"{place} holds frames of other settings: {text}. Name another folder or delete it.")
        return cls(place, index)

    def __len__(self) -> int:
        return len(self.chosen)

    def __getstate__(self) -> dict[str, Any]:
        """For other processes, which map the files themselves."""
        return self.__dict__ | {"_maps": {}}

    @property
    def num_frames(self) -> int:
        """Of all videos."""
        return int(self.lengths.sum())

    @property
    def ways(self) -> tuple[str, ...]:
        """Names of the ways to split, the usual one first."""
        return tuple(dict.fromkeys(way for k in self.chosen for way in self.index["videos"][k]["splits"]))

    def parts(self, way: str | None = None) -> tuple[str, ...]:
        """train, validation or test for each video."""
        way = way or next(iter(self.ways), None)
        if way not in self.ways:
            raise ValueError(f"`way` must be one of {', '.join(self.ways) or 'none: there is no split'}. Got {way!r}.")
        return tuple(self.index["videos"][k]["splits"].get(way, "") for k in self.chosen)

    def select(
        self,
        part: str | None = None,
        *,
        way: str | None = None,
        labels: Collection[str] | None = None,
        groups: Collection[str] | None = None,
        names: Collection[str] | None = None,
    ) -> VideoShards:
        """Some of the videos, by part of a split, label, group or name.

        Args:
            part: train, validation or test.
            way: of splitting, for `part`, where there are several; absent, the usual one.
            labels: only these.
            groups: only these.
            names: only these.
        """
        left = np.ones(len(self), bool)
        wanted = {"labels": (labels, self.labels), "groups": (groups, self.groups), "names": (names, self.names)}
        if part is not None:
            wanted["part"] = ([part], self.parts(way))
        for argument, (values, own) in wanted.items():
            if values is None:
                continue
            values = [values] if isinstance(values, str) else list(values)
            for value in values:
                if value not in own:
                    near = difflib.get_close_matches(value, set(own), 1, 0.5)
                    hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(sorted(set(own))[:12])}."
                    raise ValueError(f"No video has {value!r} for `{argument}`. {hint}")
            left &= np.isin(np.array(own, dtype=object), values)
        if not left.any():
            raise ValueError("No video is left: each is there, but not together.")
        return VideoShards(self.folder, self.index, self.chosen[left])

    def video(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Frames (T, C, H, W) and times (T,) in seconds of a video: views of the files, read-only."""
        return self._cut(i, 0, int(self.lengths[i]), 1)

    def windows(self, length: int, stride: int = 1, step: int = 1) -> Windows:
        """All clips of `length` frames, each `step` after the last, that begin every `stride` frames of a video."""
        if min(length, stride, step) < 1:
            raise ValueError(f"`length`, `stride` and `step` must be at least 1. Got {length}, {stride}, {step}.")
        span = (length - 1) * step + 1
        counts = np.maximum(0, (self.lengths - span) // stride + 1)
        if not counts.any():
            raise ValueError(f"No video has {span} frames: the longest has {self.lengths.max()}. Ask for fewer.")
        videos = np.repeat(np.arange(len(self)), counts)
        starts = (np.arange(len(videos)) - np.repeat(counts.cumsum() - counts, counts)) * stride
        return Windows(self, videos, starts, length, step)

    def _cut(self, i: int, start: int, stop: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        first = int(self._starts[i])
        shard = int(np.searchsorted(self._shard_starts, first, side="right")) - 1
        frames = self._map(self.index["shards"][shard]["file"])
        offset = first - int(self._shard_starts[shard])
        times = self._map(TIMES)
        return frames[offset + start : offset + stop : step], times[first + start : first + stop : step]

    def _map(self, name: str) -> np.ndarray:
        if name not in self._maps:
            self._maps[name] = np.load(self.folder / name, mmap_mode="r")
        return self._maps[name]


@dataclass(frozen=True, eq=False)
class Windows:
    """Clips of one length."""

    shards: VideoShards
    videos: np.ndarray
    """(W,) the video that each is from."""
    starts: np.ndarray
    """(W,) the frame of it that each begins with."""
    length: int
    step: int

    def __len__(self) -> int:
        return len(self.videos)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return (self.clip(i) for i in range(len(self)))

    def clip(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Frames (length, C, H, W) and their true times (length,) in seconds: views of the files, read-only."""
        start = int(self.starts[i])
        return self.shards._cut(int(self.videos[i]), start, start + (self.length - 1) * self.step + 1, self.step)

    def batch(self, places: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Several clips in memory: frames (B, length, C, H, W) and times (B, length)."""
        clips = [self.clip(int(i)) for i in places]
        return np.stack([frames for frames, _ in clips]), np.stack([times for _, times in clips])


def _read_index(folder: Path) -> dict[str, Any]:
    file = folder / INDEX
    if not file.exists():
        if (folder / UNFINISHED).exists():
            raise ValueError(f"{folder} is not finished. Run the command that wrote it again: it goes on.")
        raise ValueError(f"{folder} holds no shards of videos, no {INDEX}. Write them (nsde data, or write_shards).")
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
        version = index["version"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{file} is damaged. {AGAIN}") from None
    if version != VERSION:
        raise ValueError(f"{folder} was written by another neuralsde (form {version}, not {VERSION}). {AGAIN}")
    return index


def _check_array(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse a file that is not the array announced; only its head is read."""
    try:
        with file.open("rb") as data:
            np.lib.format.read_magic(data)
            got, _, kind = np.lib.format.read_array_header_1_0(data)
            size = data.tell() + int(np.prod(shape)) * dtype.itemsize
    except FileNotFoundError:
        raise ValueError(f"{file} is missing. Copy the whole folder, or delete it and write it again.") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is damaged ({error}). {AGAIN}") from None
    length = file.stat().st_size
    if got != shape or kind != dtype or length != size:
        raise ValueError(f"{file} must hold {dtype} of shape {shape}. Got {kind}, {got}, {length:,} bytes. {AGAIN}")
