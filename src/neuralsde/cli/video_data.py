"""Videos for `nsde data`: public originals or your own files, decoded once into shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuralsde.video.config import Decoding

if TYPE_CHECKING:
    from neuralsde.data.videos.shards import VideoShards


@dataclass(frozen=True, kw_only=True)
class VideoOptions(Decoding):
    """Videos: how they are read; what is absent is as is usual for the data set."""

    every: int | None = None
    """Take every so many-th frame; absent: 1, CLEVRER 5."""
    min_frames: int | None = None
    """Leave out videos with fewer frames; absent: 2."""
    only: tuple[str, ...] = ()
    """Some actions of KTH or Weizmann, some parts (train, validation, test) of CLEVRER; absent: all."""
    fps: float | None = None
    """Frames per second of HDF5, which has no times."""
    seed: int = 0
    """Of the split of a folder of your own."""


def write_videos(task: str, source: Path | None, output: Path, options: VideoOptions) -> None:
    """Get, check, decode, describe."""
    from neuralsde.data.videos.decode import FrameSettings
    from neuralsde.data.videos.folders import folder_clips
    from neuralsde.data.videos.public import MODULES, write_public
    from neuralsde.data.videos.sharding import write_shards
    from neuralsde.files import writable_folder

    frames: dict[str, Any] = {name: getattr(options, name) for name in ("size", "fit", "colour", "every", "min_frames")}
    more: dict[str, Any] = {"on_bad": options.on_bad, "num_workers": options.num_workers, "progress": True}
    if options.fps is not None and task != "videos":
        raise ValueError(f"--fps is for `nsde data videos` on HDF5: {task} has true times.")
    writable_folder(output)
    context, future = 1, 0
    if task != "videos":
        shards = write_public(task, output, source=source, only=options.only, **more, **frames)
        context, future = MODULES[task].CONTEXT, MODULES[task].FUTURE
    else:
        if source is None:
            raise ValueError("Name the folder with your videos: nsde data videos --from FOLDER.")
        if options.only:
            raise ValueError("--only is for kth, clevrer and weizmann. Name a folder that holds only what you want.")
        clips = folder_clips(source, seed=options.seed, fps=options.fps)
        shards = write_shards(clips, output, FrameSettings().changed(**frames), source=str(source), **more)
    settings = shards.settings
    lines = [str(shards.report), *_parts(shards), *_short(shards, context, future)]
    shape = "×".join(map(str, settings.shape))
    lines.append(f"Wrote {output}: {shards.num_frames:,} frames of {shape} ({settings.fit}), every {settings.every}.")
    print("\n".join(lines))


def _parts(shards: VideoShards) -> list[str]:
    """A line for each way of splitting."""
    lines = []
    for way in shards.ways:
        parts = shards.parts(way)
        texts = []
        for part in dict.fromkeys(parts):
            lengths = [n for n, own in zip(shards.lengths, parts) if own == part]
            texts.append(f"{part or 'no part'} {len(lengths)} videos, {sum(lengths):,} frames")
        lines.append(f"  split {way!r}: {'; '.join(texts)}")
    return lines


def _short(shards: VideoShards, context: int, future: int) -> list[str]:
    """What is too short for the clips that are usual for the data set."""
    length = context + future
    short = [name for name, n in zip(shards.names, shards.lengths) if n < length]
    if not short:
        return []
    shown = f"{', '.join(short[:5])}{', …' if short[5:] else ''}"
    return [f"- {len(short)} of {len(shards)} videos are shorter than a clip of {context} + {future} frames: {shown}"]
