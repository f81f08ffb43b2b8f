"""CLEVRER: objects that collide, 20,000 films of 128 frames of 480×320; every fifth frame is used, as in video prediction."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from neuralsde.data.download import Source
from neuralsde.data.videos.clips import Clip, find_videos
from neuralsde.data.videos.decode import FrameSettings

SITE = "http://data.csail.mit.edu/clevrer/videos"
RANGES = {"train": (0, 10_000), "validation": (10_000, 15_000), "test": (15_000, 20_000)}
"""Numbers of the films of each part."""
SOURCES = {part: Source(f"video_{part}.zip", f"{SITE}/{part}/video_{part}.zip") for part in RANGES}
SETTINGS = FrameSettings(size=(128, 128), fit="stretch", every=5)
CONTEXT, FUTURE = 4, 12

NAME = re.compile(r"video_(\d{5})\.mp4", re.IGNORECASE)


def clevrer_clips(
    source: str | os.PathLike[str], parts: tuple[str, ...] = tuple(RANGES)
) -> tuple[list[Clip], list[str]]:
    """All films in a folder, with or without folders (`video_00000-01000`) and zips in it, and remarks on the whole.

    Args:
        source: holds `video_00000.mp4`, … in any folder or zip; the number says which part of the split a film is in.
        parts: only these.
    """
    clips: dict[int, Clip] = {}
    others = []
    for file in find_videos(source):
        match = NAME.fullmatch(file.name.split("/")[-1])
        number = -1 if match is None else int(match[1])
        part = next((part for part, (first, end) in RANGES.items() if first <= number < end), None)
        if part is None:
            others.append(file.name)
        elif part in parts:
            name = f"video_{number:05d}"
            clips.setdefault(number, Clip(name, file.file, file.member, group=name, splits={"official": part}))
    if not clips:
        raise ValueError(f"{Path(source)} holds no films of CLEVRER such as video_00000-01000/video_00000.mp4.")
    counts = Counter(clip.splits["official"] for clip in clips.values())
    whole = {part: RANGES[part][1] - RANGES[part][0] for part in parts}
    shown = [f"{part} {number:,}" for part, number in whole.items()]
    partly = [f"{part} {counts[part]:,} of {whole[part]:,}" for part in parts]
    complete = counts == whole
    remarks = [f"{'All' if complete else 'Not all'} films are there: {', '.join(shown if complete else partly)}."]
    if others:
        some = ", ".join(others[:5])
        remarks.append(f"{len(others)} video(s) are not named as those of CLEVRER and not used: {some}.")
    return [clips[number] for number in sorted(clips)], remarks
