"""Any folder of videos, split by file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from neuralsde.data.videos.clips import HDF5_SUFFIXES, SUFFIXES, Clip, file_mark, find_videos
from neuralsde.data.videos.hdf5 import PARTS, find_hdf5


def folder_clips(
    source: str | os.PathLike[str],
    *,
    seed: int = 0,
    validation: float = 0.1,
    test: float = 0.1,
    fps: float | None = None,
) -> list[Clip]:
    """Every video in a folder and the folders inside, or all those in HDF5 as RIVER stores it.

    Where the first folders are called train, val and test, they are the split; else it is drawn by file, copies together.

    Args:
        source: a folder, a zip, or one file.
        seed: of the split.
        validation: share of the files.
        test: share of the files.
        fps: frames per second of HDF5, which has no times.
    """
    root = Path(source)
    if not root.exists():
        raise ValueError(f"There is no file or folder {root}.")
    clips = [] if root.suffix.lower() in HDF5_SUFFIXES else find_videos(root)
    if not clips:
        if root.is_file() or any(file.suffix.lower() in HDF5_SUFFIXES for file in root.rglob("*")):
            return find_hdf5(root, fps=fps)
        raise ValueError(f"{root} holds no videos. They must end in {', '.join(SUFFIXES)}, or lie in a zip or in HDF5.")
    marks: dict[Path, str] = {}
    first: dict[str, str] = {}
    groups = [first.setdefault(file_mark(clip, marks), clip.name) for clip in clips]  # copies stay together
    names = list(first.values())
    drawn = dict(zip(names, split_by_file(names, seed=seed, validation=validation, test=test)))
    parts = [drawn[group] for group in groups]
    folders = [PARTS.get(clip.name.split("/")[0].lower()) for clip in clips]
    ways = [
        {"folders": folder, "random": part} if folder is not None and None not in folders else {"random": part}
        for folder, part in zip(folders, parts)
    ]
    return [replace(clip, group=group, splits=way) for clip, group, way in zip(clips, groups, ways)]


def split_by_file(names: Sequence[str], *, seed: int = 0, validation: float = 0.1, test: float = 0.1) -> list[str]:
    """train, validation or test for each name, the same for the same names in any order; three names fill three parts."""
    if validation < 0 or test < 0 or validation + test >= 1:
        raise ValueError(f"`validation` and `test` are shares, together below 1. Got {validation}, {test}.")
    shares = {"test": test, "validation": validation}
    order = np.random.default_rng(seed).permutation(len(names))
    shuffled = [sorted(names)[k] for k in order]
    part: dict[str, str] = {}
    for name, share in shares.items():
        count = round(share * len(names)) or int(share > 0 and len(names) >= 3)
        for chosen in shuffled[len(part) : len(part) + count]:
            part[chosen] = name
    return [part.get(name, "train") for name in names]
