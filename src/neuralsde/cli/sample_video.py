"""`nsde sample` on a clip: several futures of it, at any frame rate, as a film, a strip or arrays."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neuralsde.cli.sample import Sample

NUM_PATHS, FRAMES = 4, 16


@dataclass(frozen=True, kw_only=True)
class VideoSample:
    """Futures of a clip, by a model of videos."""

    fps: str | None = None
    """Frames per second of the futures: a number, or a multiple of the training's such as 2x; absent: as in training."""
    frames: int = FRAMES
    """Frames of each future."""
    at: float | None = None
    """Time in the clip of the last frame that is given, in seconds; absent: its end. What follows is shown as the truth."""
    speed: float = 1.0
    """How fast the film plays: 0.25 is slow motion."""


def sample_video(command: Sample, clip: Path, folder: Path) -> None:
    """Read the clip, draw its futures, write them."""
    from neuralsde.files import writable_folder
    from neuralsde.video.files import FASTEST
    from neuralsde.video.model import SUFFIXES, load_video_model

    options, output = command.video, command.output or Path("futures.mp4")
    if output.suffix.lower() not in SUFFIXES:
        raise ValueError(f"`--output` must end in {', '.join(SUFFIXES)} for videos. Got {output}.")
    if options.frames < 1:
        raise ValueError(f"`--frames` must be at least 1. Got {options.frames}.")
    num_paths = NUM_PATHS if command.num_paths is None else command.num_paths
    if num_paths < 1:
        raise ValueError(f"`--num-paths` must be at least 1. Got {num_paths}.")
    if not 0 < options.speed < math.inf:
        raise ValueError(f"`--speed` must be positive. Got {options.speed}.")
    video = load_video_model(folder)
    fps = frame_rate(options.fps, video.fps)
    film = output.suffix.lower() in (".mp4", ".gif")
    if film and not 0 < fps * options.speed <= FASTEST:
        raise ValueError(
            f"A film plays at most at {FASTEST:g} frames per second. Got {fps:g} × {options.speed:g}. Give --speed "
            f"{FASTEST / fps:.2g} or less, or write .npz."
        )
    writable_folder(output.parent)
    given = video.read(clip)
    changes = {k: v for k, v in (("substeps", command.substeps), ("pull", command.pull)) if v is not None}
    drawn = video.futures(
        given,
        num_frames=options.frames,
        fps=fps,
        num_paths=num_paths,
        at=options.at,
        sampler=dataclasses.replace(video.model.sampler, **changes),  # type: ignore[arg-type]
        seed=command.seed,
    )
    drawn.save(output, fps=fps, speed=options.speed)
    passes = ", ".join(f"{name} {n}" for name, n in drawn.nfe.items())
    print(
        f"Wrote {num_paths} futures of {given.name}, {options.frames} frames at {fps:.4g} per second after {video.context} given "
        f"ones, to {output} (network passes per future: {passes})."
    )


def frame_rate(text: str | None, usual: float) -> float:
    """Frames per second from a number or a multiple of the usual rate."""
    if text is None:
        return usual
    factor = text.strip().lower().removesuffix("x") != text.strip().lower()
    try:
        value = float(text.strip().lower().removesuffix("x"))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(
            f"`--fps` must be a positive number, or a multiple of the model's {usual:.4g} such as 2x. Got {text!r}."
        )
    return value * usual if factor else value
