"""The command `nsde data`: public tables, demonstrations and videos, downloaded or as they lie on disk, made ready."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import tyro
from tyro.conf import Positional

from neuralsde.cli.options import flags_of
from neuralsde.core.records import check
from neuralsde.video.config import Decoding

if TYPE_CHECKING:
    from neuralsde.data.robots.demonstrations import Demonstrations
    from neuralsde.data.videos.shards import VideoShards

Table = Literal["etth1", "etth2", "exchange", "m4-hourly", "m4-weekly"]
EPISODES, ROWS = 206, 25_650  # of the published demonstrations of Push-T
DIGEST = "a8e508a9dcd2e9948f7b448927a117bf14935a8fe42e3ff7135c4bdcc7118ae0"
"""SHA-256 over action, state (float32) and episode_ends (int64) of the copy that our results come from."""
WIDTHS = {"action": 2, "state": 5, "agent_pos": 2, "environment_state": 16}  # numbers per row
LEROBOT = {"agent_pos": "observation.state", "environment_state": "observation.environment_state"}
"""Columns of LeRobot's versions, by what they are called here: `state` is kept for agent and block."""


@dataclass(frozen=True, kw_only=True)
class VideoOptions(Decoding):
    """Videos: how they are read. Defaults are those of the data set."""

    every: int | None = None
    """Keep every n-th frame (1, CLEVRER 5, if not given)."""
    min_frames: int | None = None
    """Fewest frames of a video; shorter ones are left out (2 if not given)."""
    only: tuple[str, ...] = ()
    """Some actions of KTH or Weizmann, some parts (train, validation, test) of CLEVRER (all if not given)."""
    fps: float | None = None
    """Frames per second of HDF5, which has no times."""
    seed: int = 0
    """Seed of the split of your own folder."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Get a data set ready.

    Push-T becomes one npz file: action, state, keypoint and episode_ends. Videos (KTH, CLEVRER, Weizmann, or any of yours) are
    decoded once into shards: frames of one size with their true times. Tables (ETT, exchange rates, M4) become a CSV file for
    `nsde fit`. A run that was stopped goes on where it was.
    """

    task: Positional[Literal["pusht", "kth", "clevrer", "weizmann", "videos", Table]]
    """The data set; videos: a folder of your own."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Local files: npz, zarr or LeRobot for pusht; a folder, zips or RIVER's HDF5 for videos; a folder for tables (downloaded if
    not given)."""
    output: Path | None = None
    """The npz or CSV file, or the folder of shards (data/pusht.npz, data/kth, data/etth1.csv, … if not given)."""
    videos: tyro.conf.OmitArgPrefixes[VideoOptions] = field(default_factory=VideoOptions)

    def run(self) -> None:
        if self.task == "pusht":
            self._pusht(self.output or Path("data/pusht.npz"))
            return
        if self.task in get_args(Table):
            self._table(self.output or Path(f"data/{self.task}.csv"))
            return
        _write_videos(self.task, self.source, self.output or Path("data") / self.task, self.videos)

    def _check_flags(self, output: Path, suffix: str) -> None:
        flags = flags_of(self.videos)
        check(not flags, f"{', '.join(flags)} is for videos, not for {self.task}.")
        check(output.suffix == suffix, f"`--output` must end in {suffix}. Got {output}.")

    def _table(self, output: Path) -> None:
        from neuralsde.core.extras import need
        from neuralsde.core.files import writable_folder

        self._check_flags(output, ".csv")
        need("A public table", "pandas")
        from neuralsde.data.tables.public import write_public_table

        check(self.source is None or self.source.exists(), f"`--from` must be a folder. {self.source} is not there.")
        writable_folder(output.parent)
        lines = write_public_table(self.task, output, self.source)
        print("\n".join([*lines, f"Wrote {output}", f"Go on with: nsde fit {output}"]))

    def _pusht(self, output: Path) -> None:
        from neuralsde.core.extras import need
        from neuralsde.core.files import writable_folder
        from neuralsde.data.download import SOURCES, fetch

        self._check_flags(output, ".npz")
        if self.source is None:
            need("The published data", "zarr")
        writable_folder(output.parent)
        place = self.source or fetch(SOURCES[self.task], output.parent)
        try:
            data = _read(place)
            notes = _check(data, published=self.source is None)
        except ValueError as error:
            remedy = "" if self.source else f" Delete {place} and run again, or pass a good copy by --from."
            raise ValueError(f"{error}{remedy}") from None
        _write(data, output)
        if self.source is None:
            notes.insert(0, "The checksum of the original is not known to us; its content was checked instead.")
        print("\n".join([f"{place}:", *_describe(data), *(f"- {note}" for note in notes), f"Wrote {output}"]))


def _read(place: Path) -> Demonstrations:
    """What is there of the arrays to write, under the names they are written by."""
    from neuralsde.data.robots.read import open_recording, read_demonstrations

    there = open_recording(place).names
    if LEROBOT["agent_pos"] in there:
        names = {ours: theirs for ours, theirs in LEROBOT.items() if theirs in there}
    else:
        names = {name: name for name in ("state", "keypoint", "agent_pos", "environment_state") if name in there}
        check(bool(names), f"{place} must hold `state`, the agent's and the block's pose. It has {', '.join(there)}.")
    data = read_demonstrations(place, observations=list(names.values()))
    return replace(data, observations={ours: data.observations[theirs] for ours, theirs in names.items()})


def _check(data: Demonstrations, published: bool) -> list[str]:
    """Refuse what is not Push-T, and what was published otherwise; say what else is odd."""
    for name, value in {"action": data.actions, **data.observations}.items():
        if name in WIDTHS and value.shape[1:] != (WIDTHS[name],):
            wanted = f"Push-T has {WIDTHS[name]} numbers in every row of `{name}`"
            raise ValueError(f"{wanted}. Got shape {value.shape}: this is something else.")
    notes = []
    if (len(data), len(data.actions)) != (EPISODES, ROWS):
        text = f"the published data has {EPISODES} episodes and {ROWS:,} rows, this has {len(data)} and {len(data.actions):,}"
        check(not published, f"The download is not the data that was published: {text}.")
        notes.append(f"Not the published demonstrations: {text}.")
    if "state" not in data.observations:
        absent = "The pose of the block is not in it (no `state` with agent xy, block xy, angle)"
        remedy = "take the original instead (`nsde data pusht` without --from, or its zarr or npz by --from)"
        notes.append(f"{absent}, so a policy on states cannot be learned from it: {remedy}. ")
        notes[-1] += f"Written is what is there: {', '.join(data.observations)}."
    elif not notes:
        digest = hashlib.sha256()
        for value, kind in ((data.actions, "<f4"), (data.observations["state"], "<f4"), (data.lengths.cumsum(), "<i8")):
            digest.update(value.astype(kind, order="C").tobytes())
        same = digest.hexdigest() == DIGEST
        source = "those that our results come from"
        differ = f"The numbers differ from {source}, in action, state or the ends of episodes."
        notes.append(f"The numbers are {source}." if same else differ)
    return notes


def _write(data: Demonstrations, file: Path) -> None:
    """All or nothing: another process never sees half a file."""
    import numpy as np

    from neuralsde.core.files import replacing

    arrays = {"action": data.actions, **data.observations, "episode_ends": data.lengths.cumsum()}
    if not np.array_equal(data.times, np.concatenate([np.arange(n) for n in data.lengths])):
        arrays["timestamp"] = data.times
    with replacing(file) as place, place.open("wb") as new:
        np.savez_compressed(new, **arrays)  # type: ignore[arg-type]


def _describe(data: Demonstrations) -> list[str]:
    import numpy as np

    low, middle, high = np.percentile(data.lengths, [0, 50, 100])
    lines = [f"{len(data)} episodes, {len(data.actions):,} rows; {low:g} to {high:g} rows each, median {middle:g}"]
    for name, value in {"action": data.actions, **data.observations}.items():
        columns = value.T if value.ndim == 2 and value.shape[1] <= 5 else [value]  # all as one where they are many
        ranges = "  ".join(f"{column.min():.4g} … {column.max():.4g}" for column in columns)
        lines.append(f"  {name:18} {'×'.join(map(str, value.shape)):12} {ranges}")
    return lines


# Videos


def _write_videos(task: str, source: Path | None, output: Path, options: VideoOptions) -> None:
    from neuralsde.core.files import writable_folder
    from neuralsde.data.videos.decode import FrameSettings
    from neuralsde.data.videos.folders import folder_clips
    from neuralsde.data.videos.public import MODULES, write_public
    from neuralsde.data.videos.sharding import write_shards

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
        check(not options.only, "--only is for kth, clevrer and weizmann. Name a folder that holds only what you want.")
        clips = folder_clips(source, seed=options.seed, fps=options.fps)
        shards = write_shards(clips, output, FrameSettings().changed(**frames), source=str(source), **more)
    settings = shards.settings
    lines = [str(shards.report), *_parts(shards), *_short(shards, context, future)]
    shape = "×".join(map(str, settings.shape))
    lines.append(f"Wrote {output}: {shards.num_frames:,} frames of {shape} ({settings.fit}), every {settings.every}.")
    print("\n".join(lines))


def _parts(shards: VideoShards) -> list[str]:
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
