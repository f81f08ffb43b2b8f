"""Videos in HDF5 as RIVER stores them: `shard_0001.hdf5`, … in a folder for each of train, val and test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from neuralsde.core.extras import need
from neuralsde.data.videos.clips import HDF5_SUFFIXES, Clip
from neuralsde.data.videos.decode import Pictures
from neuralsde.data.videos.report import BadVideo

LAYOUT = (
    "`len/<v>` = number of frames of video v, and `<v>/<t>` = frame t as bytes (height, width, 3), both counted from 0, "
    "in files .hdf5 or .h5 (a folder, or folders train, val, test)"
)
PARTS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
"""Part of a split by the name of a file or folder."""


def find_hdf5(source: str | os.PathLike[str], *, fps: float | None = None) -> list[Clip]:
    """The videos of a file or of all files in a folder; the part of the split from the folder's or the file's name.

    Args:
        source: a file or a folder.
        fps: frames per second, as the files hold no times; absent, frames are 1 apart.
    """
    if fps is not None and not 0 < fps < 1e6:
        raise ValueError(f"`fps` must be a positive number of frames per second. Got {fps}.")
    root = Path(source)
    files = [root] if root.is_file() else sorted(f for f in root.rglob("*") if f.suffix.lower() in HDF5_SUFFIXES)
    if not files:
        raise ValueError(f"{root} holds no HDF5. It must hold videos as RIVER stores them: {LAYOUT}.")
    clips = []
    for file in files:
        name = file.relative_to(root).with_suffix("").as_posix() if root.is_dir() else file.stem
        words = [file.parent.name, *name.lower().split("/")]
        part = next((PARTS[word] for word in reversed(words) if word in PARTS), "train")
        splits = {"folders": part}
        clips += [Clip(f"{name}/{k}", file, str(k), splits=splits, fps=fps) for k in range(_num_videos(file))]
    return clips


class Hdf5Video(Pictures):
    """One video of a file."""

    def __init__(self, file: Path, member: str, fps: float | None) -> None:
        super().__init__()
        self.file, self.member, self.fps = file, member, fps
        self.rate = "1 (assumed)" if fps is None else f"{fps:g}"

    def __iter__(self) -> Iterator[tuple[float, Callable[[], np.ndarray]]]:
        try:
            with _h5py().File(self.file, "r") as store:
                yield from self._frames(store)
        except (OSError, KeyError, RuntimeError) as error:
            raise BadVideo(f"is damaged at frame {self.num_frames} ({error})") from None

    def _frames(self, store: Any) -> Iterator[tuple[float, Callable[[], np.ndarray]]]:
        num_frames = int(store["len"][self.member][()])
        video = store[self.member]
        if num_frames < 1:
            raise BadVideo("holds no frame")
        if num_frames != len(video):
            raise BadVideo(f"is damaged: {num_frames} frames are announced, {len(video)} are there")
        for t in range(num_frames):
            frame = video[str(t)]
            if frame.ndim != 3 or frame.shape[2] != 3 or not frame.size or frame.dtype != np.uint8:
                raise BadVideo(f"has a frame {t} of shape {frame.shape}, {frame.dtype}. The layout must be {LAYOUT}")
            self.size = f"{frame.shape[1]}×{frame.shape[0]}"
            pixels = np.asarray(frame[()])
            self.num_frames = t + 1
            yield t / (self.fps or 1.0), lambda pixels=pixels: pixels


def _num_videos(file: Path) -> int:
    """How many videos there are, or why the file is something else."""
    h5py = _h5py()
    try:
        with h5py.File(file, "r") as store:
            lengths = store.get("len")
            names = list(store)
            if isinstance(lengths, h5py.Group) and all(
                str(k) in lengths and str(k) in store for k in range(len(lengths))
            ):
                if not len(lengths):
                    raise ValueError(f"{file} holds no videos.")
                return len(lengths)
    except OSError as error:
        raise ValueError(f"{file} is cut short or not HDF5 ({error}). Copy it again.") from None
    has = f"{', '.join(map(str, names[:8]))}{', …' if len(names) > 8 else ''}" or "nothing"
    raise ValueError(f"{file} holds no videos as RIVER stores them. It must hold {LAYOUT}. It has {has}.")


def _h5py() -> Any:
    need("HDF5", "h5py")
    import h5py

    return h5py
