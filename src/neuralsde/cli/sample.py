"""The command `nsde sample`: paths of a trained model, from a state, from the ends of a table's paths, or from a clip."""

from __future__ import annotations

import csv
import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional

from neuralsde.cli.forecast import OF_TABLES, TableOptions, load_model
from neuralsde.cli.options import given, refuse
from neuralsde.cli.sample_video import VideoSample, sample_video
from neuralsde.data.series import Series

if TYPE_CHECKING:
    import numpy as np

    from neuralsde.config import Sampler
    from neuralsde.data.tables import TimeAxis
    from neuralsde.sequence import SequenceModel


NUM_PATHS = 100
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
            sample_video(self, self.clip, folder)
            return
        if self.clip is not None:
            raise ValueError(
                f"{self.model} is no model of videos: it has no video.json. Leave out {self.clip}, or give the run folder of "
                "`nsde fit` on videos."
            )
        refuse(given(self.video), f"this is for a model of videos. {self.model} is none.")
        self._sample_states(self.output or Path("paths.npz"))

    def _sample_states(self, output: Path) -> None:
        if self.stop is None:
            raise ValueError("Give --stop, the last output time, counted from the first state.")
        if output.suffix not in (".npz", ".csv"):
            raise ValueError(f"`--output` must end in .npz or .csv. Got {output}.")
        if bool(self.start) == (self.data is not None):
            raise ValueError("Give either --start, the first state, or --data, a table to go on from.")
        if self.data is None:
            refuse(given(self, OF_TABLES), "this is for a table. Give one with --data, in place of --start.")
        else:
            why = "this goes with --start. A table has times and context of its own: leave it out."
            refuse(given(self, {"start_time", "start_context"}), why)
        if self.num_times < 2:
            raise ValueError(f"`--num-times` must be at least 2. Got {self.num_times}.")
        model = load_model(self.model)
        changes: dict[str, Any] = {k: v for k, v in (("substeps", self.substeps), ("pull", self.pull)) if v is not None}
        usual = model.sampler if self.data is None else model.forecast_sampler  # a table holds measurements
        sampler = dataclasses.replace(usual, **changes)
        drawn = (
            self._from_state(model, sampler, self.stop)
            if self.data is None
            else self._from_table(self.data, model, sampler, self.stop)
        )
        drawn.write(output)
        passes = ", ".join(f"{name} {n}" for name, n in model.nfe.items())
        each = "" if drawn.ids is None else f" from each of {len(drawn.ids)} ends"
        print(
            f"Wrote {self._num_paths} paths{each} at {self.num_times} times to {output} "
            f"(network passes per path: {passes})."
        )

    @property
    def _num_paths(self) -> int:
        return NUM_PATHS if self.num_paths is None else self.num_paths

    def _from_state(self, model: SequenceModel, sampler: Sampler, stop: float) -> Drawn:
        import numpy as np

        slots, shape, size = model.config.history, model.scale.shape, model.scale.context_size
        if len(self.start_context) != size:
            given = " ".join(map(str, self.start_context)) or "nothing"
            raise ValueError(f"`--start-context` must hold the model's {size} context value(s). Got {given}.")
        whole = len(self.start) == slots * math.prod(shape)
        start = np.reshape(self.start, (1, slots, *shape)) if whole else list(self.start)
        times = np.linspace(0.0, stop, self.num_times)
        paths = model.sample(
            start,
            times,
            context=[list(self.start_context)] if self.start_context else None,
            num_paths=self._num_paths,
            sampler=sampler,
            rng=self.seed,
        ).cpu()
        series = Series.load(self.model)
        names = tuple(f"x{k}" for k in range(math.prod(shape))) if series is None else series.columns
        axis, first = self._first_time(series)
        return Drawn(None, times[None] + first, paths.numpy(), names, axis)

    def _first_time(self, series: Series | None) -> tuple[TimeAxis | None, float]:
        """How times are shown, and the time of the first state."""
        if series is None or series.time_kind != "dates":
            try:
                return None, float(self.start_time or 0.0)
            except ValueError:
                raise ValueError(f"`--start-time` must be a number for this model. Got {self.start_time}.") from None
        import numpy as np

        from neuralsde.data.columns import parse_stamps
        from neuralsde.data.tables import TimeAxis

        axis = TimeAxis(series.time, "dates", series.time_unit, series.time_origin)
        if self.start_time is None:
            return axis, series.time_last
        import pandas as pd

        first = parse_stamps(pd.Series([self.start_time], dtype=object))[0]
        if not isinstance(first, np.datetime64) or np.isnat(first):
            raise ValueError(f"`--start-time` must be an ISO date for this model. Got {self.start_time}.")
        return axis, axis.time(first)

    def _from_table(self, file: Path, model: SequenceModel, sampler: Sampler, stop: float) -> Drawn:
        import torch

        from neuralsde.forecast.futures import futures

        table = self.read(file, self.model, model)
        made = futures(
            model,
            table.data,
            horizon=stop,
            num_times=self.num_times - 1,
            num_paths=self._num_paths,
            sampler=sampler,
            seed=self.seed,
        )
        first = made.start[:, None, None].expand(-1, self._num_paths, 1, *made.start.shape[1:])
        paths = torch.cat([first, made.samples], dim=2).numpy()
        times = torch.cat([made.origin[:, None], made.times], dim=1).numpy()
        axis = table.time if table.time.kind == "dates" else None
        return Drawn([table.ids[k] for k in made.path.tolist()], times, paths, table.columns, axis)


@dataclass(frozen=True)
class Drawn:
    """Paths from B starts."""

    ids: list[str] | None
    """Of the starts, where they have any."""
    times: np.ndarray
    """(B, T)"""
    paths: np.ndarray
    """(B, N, T, *S)"""
    names: tuple[str, ...]
    """Of the features."""
    axis: TimeAxis | None
    """How times become dates; None: they are shown as numbers."""

    def write(self, output: Path) -> None:
        """Write .npz or .csv; without ids there is one start, and no axis for it."""
        import numpy as np

        dates = None if self.axis is None else [[self.axis.date(t) for t in row] for row in self.times.tolist()]
        if output.suffix == ".npz":
            arrays: dict[str, Any] = {"times": self.times, "paths": self.paths}
            arrays |= {} if dates is None else {"dates": np.array(dates)}
            one = {k: v[0] for k, v in arrays.items()}
            np.savez_compressed(output, **(one if self.ids is None else {"ids": np.array(self.ids), **arrays}))
            return
        shown = [[f"{t:.12g}" for t in row] for row in self.times.tolist()] if dates is None else dates
        flat = self.paths.reshape(*self.paths.shape[:3], -1)
        with open(output, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*([] if self.ids is None else ["id"]), "path", "time", *self.names])
            for b, stamps in enumerate(shown):
                name = [] if self.ids is None else [self.ids[b]]
                for n, path in enumerate(flat[b].tolist()):
                    writer.writerows([*name, n, t, *(f"{v:.8g}" for v in x)] for t, x in zip(stamps, path))
