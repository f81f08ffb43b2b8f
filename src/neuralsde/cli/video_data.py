"""Videos for `nsde data`: public originals or your own files, decoded once into shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from neuralsde.data.download import Source
    from neuralsde.data.videos.clips import Clip
    from neuralsde.data.videos.decode import FrameSettings
    from neuralsde.data.videos.shards import VideoShards


@dataclass(frozen=True, kw_only=True)
class VideoOptions:
    """Videos: how they are read; what is absent is as is usual for the data set."""

    size: int | None = None
    """Height and width of frames in pixels; absent: 64, CLEVRER 128."""
    fit: Literal["crop", "stretch"] | None = None
    """Cut a square out of the middle, or squeeze all into it; absent: crop, public data sets stretch."""
    colour: bool | None = None
    """Three channels or one; absent: colour, KTH and Weizmann grey."""
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
    num_workers: int | None = None
    """Processes that decode; 0: none but this; absent: one for each processor."""
    on_bad: Literal["skip", "raise"] = "skip"
    """Leave out files that cannot be used and name them in the report, or stop at the first."""

    def settings(self, usual: FrameSettings) -> FrameSettings:
        """Of the frames."""
        given: dict[str, Any] = {
            "size": None if self.size is None else (self.size, self.size),
            "fit": self.fit,
            "grey": None if self.colour is None else not self.colour,
            "every": self.every,
            "min_frames": self.min_frames,
        }
        return replace(usual, **{name: value for name, value in given.items() if value is not None})


def write_videos(task: str, source: Path | None, output: Path, options: VideoOptions) -> None:
    """Get, check, decode, describe."""
    from neuralsde.data.videos.decode import FrameSettings
    from neuralsde.data.videos.sharding import write_shards
    from neuralsde.files import writable_folder

    if options.fps is not None and task != "videos":
        raise ValueError(f"--fps is for `nsde data videos` on HDF5: {task} has true times.")
    writable_folder(output)
    usual, context, future = FrameSettings(), 1, 0
    if task == "videos":
        clips, remarks, place = *_own(source, options), source
    else:
        known = _known(task)
        usual, context, future = known.SETTINGS, known.CONTEXT, known.FUTURE
        only = _chosen(task, options.only, tuple(known.SOURCES))
        place = source or _download(task, [known.SOURCES[name] for name in only], output / "originals")
        clips, remarks = _clips(task, place, only, published=source is None)
    settings = options.settings(usual)
    shards = write_shards(
        clips,
        output,
        settings,
        on_bad=options.on_bad,
        num_workers=options.num_workers,
        source=str(place),
        remarks=remarks,
        progress=True,
    )
    lines = [str(shards.report), *_parts(shards), *_short(shards, context, future)]
    shape = "×".join(map(str, settings.shape))
    lines.append(f"Wrote {output}: {shards.num_frames:,} frames of {shape} ({settings.fit}), every {settings.every}.")
    print("\n".join(lines))


def known_videos(task: str, place: Path) -> tuple[list[Clip], list[str], FrameSettings]:
    """A public data set as it lies on disk: its videos, remarks on the whole, and how its frames are usually made."""
    known = _known(task)
    clips, remarks = _clips(task, place, tuple(known.SOURCES), published=False)
    return clips, remarks, known.SETTINGS


def _known(task: str) -> Any:
    """The module of a data set."""
    from importlib import import_module

    return import_module(f"neuralsde.data.videos.{task}")


def _own(source: Path | None, options: VideoOptions) -> tuple[list[Clip], list[str]]:
    from neuralsde.data.videos.folders import folder_clips

    if source is None:
        raise ValueError("Name the folder with your videos: nsde data videos --from FOLDER.")
    if options.only:
        raise ValueError("--only is for kth, clevrer and weizmann. Name a folder that holds only what you want.")
    return folder_clips(source, seed=options.seed, fps=options.fps), []


def _chosen(task: str, only: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    for name in only:
        if name not in names:
            raise ValueError(f"{task} has no {name!r}. `--only` takes {', '.join(names)}.")
    return only or names


def _download(task: str, sources: Sequence[Source], folder: Path) -> Path:
    """All originals into one folder; those that are there already stay."""
    from neuralsde.data.download import fetch
    from neuralsde.data.videos.kth import LIST_SOURCE

    for source in [*([LIST_SOURCE] if task == "kth" else []), *sources]:
        fetch(source, folder)
    return folder


def _clips(task: str, place: Path, only: tuple[str, ...], published: bool) -> tuple[list[Clip], list[str]]:
    """The videos of a data set, and what is to be said of the whole."""
    from neuralsde.data.videos.clevrer import clevrer_clips
    from neuralsde.data.videos.kth import kth_clips
    from neuralsde.data.videos.weizmann import weizmann_clips

    find = {"kth": kth_clips, "clevrer": clevrer_clips, "weizmann": weizmann_clips}[task]
    try:
        clips, remarks = find(place, only)
        if published and not remarks[0].startswith("All"):
            raise ValueError(f"The download is not the data that was published: {remarks[0]}")
    except ValueError as error:
        remedy = f" Delete {place} and run again, or pass a good copy by --from." if published else ""
        raise ValueError(f"{error}{remedy}") from None
    if published:
        remarks.append("The checksums of the originals are not known to us; their content was checked instead.")
    return clips, remarks


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
