"""What happens in the worker of the Video tab: a clip is filmed or read, and the shipped model draws what may follow.

The clip goes to the page as soon as it is there; futures follow.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from neuralsde.data.videos.decode import read_video
from neuralsde.data.videos.report import BadVideo
from neuralsde.experiments.collisions.clips import clips
from neuralsde.experiments.demos.video import collision, shipped
from neuralsde.studio.desk import Desk
from neuralsde.video.clips import Clip
from neuralsde.video.model import VideoModel, load_video_model

FINER = 4  # frames that are filmed of a scene, for each that the model learned from
SECONDS = 2.4  # that are forecast
MOST_READ = 900  # frames of a file of the visitor's


def draw_futures(
    desk: Desk, file: str | None, scene: int, share: float, rate: float, num_paths: int, seed: int
) -> dict[str, Any]:
    """Work of the Video tab: frames that are given, futures and their spread, and what really followed where it is known."""
    desk.report("progress", share=0.05, said="Loading the model")
    video = load_video_model(shipped())
    desk.report("progress", share=0.2, said="Filming the scene" if file is None else "Reading the clip")
    clip, at = _scene(video, scene) if file is None else _own(video, Path(file), share)
    num = max(1, round(SECONDS * rate))
    given = video.last_frames(clip, at).numpy()
    before = video.step * np.arange(1 - video.context, 1)
    desk.report("clip", given=given, given_times=before.tolist(), name=clip.name)
    desk.report("progress", share=0.4, said=f"Drawing {num_paths} futures")
    made = video.futures(clip, at=at, num_frames=num, fps=rate, num_paths=num_paths, seed=seed)
    frames = made.frames.numpy()
    spread = frames.astype(np.float32).std(0).mean(1)  # over futures, then colours
    found = {
        "given": given,
        "given_times": made.given_times.tolist(),
        "frames": frames,
        "times": made.times.tolist(),
        "spread": np.clip(np.round(spread), 0, 255).astype(np.uint8),
        "passes": int(sum(made.nfe.values())),
        "step": video.step,
        "between": video.knows_only_frames,
        "name": clip.name,
        "at": at,
    }
    return found if made.truth is None else {**found, "truth": made.truth.numpy()}


def _scene(video: VideoModel, scene: int) -> tuple[Clip, float]:
    """A scene in which objects collide soon after the frames that are given."""
    now = (video.context - 1) * video.step
    number, _ = collision(scene, now + video.step, now + 0.5 * SECONDS)
    num = int((video.context + SECONDS * video.fps) * FINER) + FINER
    filmed = clips([number], num_frames=num, fps=video.fps * FINER, size=video.settings.shape[-1])
    return Clip(f"scene {scene + 1}", filmed.frames[0].cpu().numpy(), filmed.times), now


def _own(video: VideoModel, file: Path, share: float) -> tuple[Clip, float]:
    """The beginning of a video file, and where in it the futures begin."""
    try:
        found = read_video(file, replace(video.settings, min_frames=1, every=1), stop=MOST_READ)
    except BadVideo as error:
        said = str(error).replace(f"{file.parent}/", "")
        raise ValueError(f"{said}. Give a video that plays, of {video.need}.") from None
    clip = Clip(file.name, found.frames, found.times)
    least = (video.context - 1) * video.step
    last = float(clip.since[-1])
    return clip, max(min(least, last), share * last)
