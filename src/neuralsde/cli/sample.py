"""The command `nsde sample`: paths of a trained model, from a state, from the ends of a table's paths, or from a clip."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from neuralsde.cli.forecast import OF_TABLES, TableOptions, refuse_videos
from neuralsde.cli.options import flags_of, keywords, refuse
from neuralsde.core.extras import need
from neuralsde.core.records import check, with_settings

STATES = {"stop", "start", "data", "start_context", "start_time", "num_times", *OF_TABLES}
"""Options of paths of numbers alone."""


@dataclass(frozen=True, kw_only=True)
class VideoSample:
    """Futures of a clip, by a model of videos."""

    fps: str | None = None
    """Frames per second of the futures: a number, or a multiple such as 2x (those of the training if not given)."""
    frames: int = 16
    """Frames of each future."""
    at: float | None = None
    """Time of the last given frame in seconds; what follows is shown as the truth (the end of the clip if not given)."""
    speed: float = 1.0
    """How fast the film plays: 0.25 is slow motion."""


@dataclass(frozen=True, kw_only=True)
class Sample(TableOptions):
    """Draw paths from a trained model: of numbers, from a state or a table; or of frames, from a clip."""

    model: Positional[Path]
    """Folder written by save_pretrained, or a run folder."""
    clip: Positional[Path | None] = None
    """Video file to continue, for a model of videos."""
    stop: float | None = None
    """Last output time, counted from the first state."""
    start: tuple[float, ...] = ()
    """The first state, one number per feature; with a history, slot by slot, the oldest first."""
    data: Path | None = None
    """In place of --start: a table, to go on from the last observation of each path in it."""
    start_context: tuple[float, ...] = ()
    """Context that goes with --start."""
    start_time: str | None = None
    """Time or date of --start in the output; default 0, or the last date of the training data."""
    num_times: int = 101
    """Output times from 0 to `stop`."""
    num_paths: int | None = None
    """Paths to draw from each start; default 100, of a clip 4."""
    seed: int = 0
    """Seed of the paths."""
    substeps: int | None = None
    """Solver steps per training step (those of the model if not given)."""
    pull: float | None = None
    """Contraction towards the data (that of the model if not given)."""
    output: Path | None = None
    """Output file: .npz or .csv (paths.npz if not given); for a clip .mp4, .gif, .png or .npz (futures.mp4)."""
    video: Annotated[VideoSample, tyro.conf.arg(name="")] = field(default_factory=VideoSample)

    def run(self) -> None:
        from neuralsde.video.model import video_folder

        folder = video_folder(self.model)
        if folder is not None:
            if self.clip is None:
                raise ValueError(f"{self.model} is a model of videos. Give a clip: nsde sample {self.model} CLIP.mp4")
            refuse(flags_of(self, STATES), "this is for paths of numbers, not for a clip.")
            self._sample_video(self.clip, folder, self.output or Path("futures.mp4"))
            return
        if self.clip is not None:
            remedy = f"Leave out {self.clip}, or give the run folder of `nsde fit` on videos."
            raise ValueError(f"{self.model} is no model of videos: it has no video.json. {remedy}")
        refuse(flags_of(self.video), f"this is for a model of videos. {self.model} is none.")
        self._sample_states(self.output or Path("paths.npz"))

    def _sample_states(self, output: Path) -> None:
        from neuralsde.forecast.tables import sample_state, sample_table

        if self.stop is None:
            raise ValueError("Give --stop, the last output time, counted from the first state.")
        if bool(self.start) == (self.data is not None):
            raise ValueError("Give either --start, the first state, or --data, a table to go on from.")
        if self.data is None:
            refuse(flags_of(self, OF_TABLES), "this is for a table. Give one with --data, in place of --start.")
            refuse_videos(self.model)
            drawn = sample_state(self.model, self.start, **keywords(sample_state, self) | {"output": output})
        else:
            why = "this goes with --start. A table has times and context of its own: leave it out."
            refuse(flags_of(self, {"start_time", "start_context"}), why)
            model, table = self.open(self.model, self.data)
            drawn = sample_table(model, table, **keywords(sample_table, self) | {"output": output})
        each = "" if drawn.ids is None else f" from each of {len(drawn.ids)} ends"
        paths = f"{drawn.paths.shape[1]} paths{each} at {self.num_times} times"
        print(f"Wrote {paths} to {output} (network passes per path: {_show(drawn.passes)}).")

    def _sample_video(self, clip: Path, folder: Path, output: Path) -> None:
        from neuralsde.core.files import writable_folder
        from neuralsde.video.files import FASTEST
        from neuralsde.video.model import SUFFIXES, load_video_model

        num_frames, speed = self.video.frames, self.video.speed
        num_paths = 4 if self.num_paths is None else self.num_paths
        suffix = output.suffix.lower()
        check(suffix in SUFFIXES, f"`--output` must end in {', '.join(SUFFIXES)} for videos. Got {output}.")
        if suffix != ".npz":
            need(f"To write {output.name}", "av" if suffix == ".mp4" else "PIL")
        check(num_frames >= 1, f"`--frames` must be at least 1. Got {num_frames}.")
        check(num_paths >= 1, f"`--num-paths` must be at least 1. Got {num_paths}.")
        check(0 < speed < math.inf, f"`--speed` must be positive. Got {speed}.")
        video = load_video_model(folder)
        fps = _frame_rate(self.video.fps, video.fps)
        if suffix in (".mp4", ".gif") and not 0 < fps * speed <= FASTEST:
            remedy = f"Give --speed {FASTEST / fps:.2g} or less, or write .npz."
            raise ValueError(f"A film plays at most at {FASTEST:g} frames a second. Got {fps:g} × {speed:g}. {remedy}")
        writable_folder(output.parent)
        given = video.read(clip)
        changes = {k: v for k in ("substeps", "pull") if (v := getattr(self, k)) is not None}
        sampler = with_settings(video.model.sampler, changes)
        many = {"num_frames": num_frames, "num_paths": num_paths, "seed": self.seed}
        drawn = video.futures(given, fps=fps, at=self.video.at, sampler=sampler, **many)
        drawn.save(output, fps=fps, speed=speed)
        futures = f"{num_paths} futures of {given.name}, {num_frames} frames at {fps:.4g} per second"
        passes = f"network passes per future: {_show(drawn.nfe)}"
        print(f"Wrote {futures} after {video.context} given ones, to {output} ({passes}).")


def _show(passes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in passes.items())


def _frame_rate(text: str | None, usual: float) -> float:
    """Frames per second from a number or a multiple of the usual rate."""
    if text is None:
        return usual
    number = text.strip().lower()
    try:
        value = float(number.removesuffix("x"))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        multiple = f"a multiple of the model's {usual:.4g} such as 2x"
        raise ValueError(f"`--fps` must be a positive number, or {multiple}. Got {text!r}.")
    return value * usual if number.endswith("x") else value
