"""`nsde sample` on a clip: several futures of it, at any frame rate, as a film, a strip or arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuralsde.records import with_settings

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


def sample_video(options: VideoSample, clip: Path, folder: Path, output: Path, **settings: Any) -> None:
    """Read the clip, draw its futures, write them; `settings` are options that paths of numbers have too."""
    from neuralsde.files import writable_folder
    from neuralsde.video.files import FASTEST
    from neuralsde.video.model import SUFFIXES, load_video_model

    if output.suffix.lower() not in SUFFIXES:
        raise ValueError(f"`--output` must end in {', '.join(SUFFIXES)} for videos. Got {output}.")
    if options.frames < 1:
        raise ValueError(f"`--frames` must be at least 1. Got {options.frames}.")
    asked = settings.pop("num_paths")
    num_paths = NUM_PATHS if asked is None else asked
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
    seed = settings.pop("seed")
    given = video.read(clip)
    drawn = video.futures(
        given,
        num_frames=options.frames,
        fps=fps,
        num_paths=num_paths,
        at=options.at,
        sampler=with_settings(video.model.sampler, {k: v for k, v in settings.items() if v is not None}),
        seed=seed,
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
