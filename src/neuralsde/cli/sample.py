"""The command `nsde sample`: paths of a trained model, from a state, from the ends of a table's paths, or from a clip."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from neuralsde.cli.forecast import OF_TABLES, TableOptions, refuse_videos
from neuralsde.cli.options import given, keywords, refuse
from neuralsde.cli.sample_video import VideoSample, sample_video

STATES = {"stop", "start", "data", "start_context", "start_time", "num_times", *OF_TABLES}
"""Options of paths of numbers alone."""


@dataclass(frozen=True, kw_only=True)
class Sample(TableOptions):
    """Draw paths from a trained model: of numbers, from a state or a table; or of frames, from a clip."""

    model: Positional[Path]
    """Folder written by save_pretrained, or a run folder."""
    clip: Positional[Path | None] = None
    """Of a model of videos: the video file to go on from."""
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
    """Solver steps per training step, if not the model's."""
    pull: float | None = None
    """Contraction towards the data, if not the model's."""
    output: Path | None = None
    """Where to write: .npz (arrays times and paths) or .csv (path, time, features), default paths.npz; of a clip .mp4, .gif, .png
    (a strip of frames) or .npz, default futures.mp4."""
    video: Annotated[VideoSample, tyro.conf.arg(name="")] = field(default_factory=VideoSample)

    def run(self) -> None:
        """Sample and write."""
        from neuralsde.video.model import video_folder

        folder = video_folder(self.model)
        if folder is not None:
            if self.clip is None:
                raise ValueError(f"{self.model} is a model of videos. Give a clip: nsde sample {self.model} CLIP.mp4")
            refuse(given(self, STATES), "this is for paths of numbers, not for a clip.")
            output = self.output or Path("futures.mp4")
            settings = {name: getattr(self, name) for name in ("num_paths", "seed", "substeps", "pull")}
            sample_video(self.video, self.clip, folder, output, **settings)
            return
        if self.clip is not None:
            raise ValueError(
                f"{self.model} is no model of videos: it has no video.json. Leave out {self.clip}, or give the run folder of "
                "`nsde fit` on videos."
            )
        refuse(given(self.video), f"this is for a model of videos. {self.model} is none.")
        self._sample_states(self.output or Path("paths.npz"))

    def _sample_states(self, output: Path) -> None:
        from neuralsde.forecast.sample import sample_state, sample_table

        if self.stop is None:
            raise ValueError("Give --stop, the last output time, counted from the first state.")
        if bool(self.start) == (self.data is not None):
            raise ValueError("Give either --start, the first state, or --data, a table to go on from.")
        if self.data is None:
            refuse(given(self, OF_TABLES), "this is for a table. Give one with --data, in place of --start.")
            refuse_videos(self.model)
            drawn = sample_state(self.model, self.start, **keywords(sample_state, self) | {"output": output})
        else:
            why = "this goes with --start. A table has times and context of its own: leave it out."
            refuse(given(self, {"start_time", "start_context"}), why)
            model, table = self.open(self.model, self.data)
            drawn = sample_table(model, table, **keywords(sample_table, self) | {"output": output})
        passes = ", ".join(f"{name} {n}" for name, n in drawn.passes.items())
        each = "" if drawn.ids is None else f" from each of {len(drawn.ids)} ends"
        print(
            f"Wrote {drawn.paths.shape[1]} paths{each} at {self.num_times} times to {output} "
            f"(network passes per path: {passes})."
        )
