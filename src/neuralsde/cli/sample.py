"""The command `nsde sample`: paths of a trained model, from a given state or from the end of each path of a table."""

from __future__ import annotations

import csv
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from neuralsde.cli.forecast import TableOptions, load_model
from neuralsde.data.series import Series

if TYPE_CHECKING:
    import numpy as np

    from neuralsde.config import Sampler
    from neuralsde.data.tables import TimeAxis
    from neuralsde.sequence import SequenceModel


@dataclass(frozen=True)
class Sample(TableOptions):
    """Draw paths from a trained model."""

    model: Positional[Path]
    """Folder written by save_pretrained, or a run folder."""
    stop: float
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
    num_paths: int = 100
    """Paths to draw from each start."""
    seed: int = 0
    """Seed of the paths."""
    substeps: int | None = None
    """Solver steps per training step, if not the model's."""
    pull: float | None = None
    """Contraction towards the data, if not the model's."""
    output: Path = Path("paths.npz")
    """Where to write: .npz (arrays times and paths) or .csv (path, time, features)."""

    def run(self) -> None:
        """Sample and write."""
        if self.output.suffix not in (".npz", ".csv"):
            raise ValueError(f"`--output` must end in .npz or .csv. Got {self.output}.")
        if bool(self.start) == (self.data is not None):
            raise ValueError("Give either --start, the first state, or --data, a table to go on from.")
        if self.num_times < 2:
            raise ValueError(f"`--num-times` must be at least 2. Got {self.num_times}.")
        model = load_model(self.model)
        changes: dict[str, Any] = {k: v for k, v in (("substeps", self.substeps), ("pull", self.pull)) if v is not None}
        sampler = dataclasses.replace(model.sampler, **changes)
        drawn = self._from_state(model, sampler) if self.data is None else self._from_table(self.data, model, sampler)
        drawn.write(self.output)
        passes = ", ".join(f"{name} {n}" for name, n in model.nfe.items())
        each = "" if drawn.ids is None else f" from each of {len(drawn.ids)} ends"
        print(
            f"Wrote {self.num_paths} paths{each} at {self.num_times} times to {self.output} "
            f"(network passes per path: {passes})."
        )

    def _from_state(self, model: SequenceModel, sampler: Sampler) -> Drawn:
        import numpy as np
        import torch

        slots, shape, size = model.config.history, model.scale.shape, model.scale.context_size
        if len(self.start_context) != size:
            given = " ".join(map(str, self.start_context)) or "nothing"
            raise ValueError(f"`--start-context` must hold the model's {size} context value(s). Got {given}.")
        whole = len(self.start) == slots * math.prod(shape)
        start = np.reshape(self.start, (1, slots, *shape)) if whole else list(self.start)
        times = np.linspace(0.0, self.stop, self.num_times)
        paths = model.sample(
            start,
            times,
            context=[list(self.start_context)] if self.start_context else None,
            num_paths=self.num_paths,
            sampler=sampler,
            rng=torch.Generator().manual_seed(self.seed),
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
        from neuralsde.data.tables import SECONDS, TimeAxis

        axis = TimeAxis(series.time, "dates", series.time_unit, series.time_origin)
        if self.start_time is None:
            return axis, series.time_last
        import pandas as pd

        origin, first = (
            parse_stamps(pd.Series([text], dtype=object))[0] for text in (series.time_origin, self.start_time)
        )
        if not isinstance(first, np.datetime64) or np.isnat(first):
            raise ValueError(f"`--start-time` must be an ISO date for this model. Got {self.start_time}.")
        return axis, float((first - origin) / np.timedelta64(1, "us")) * 1e-6 / SECONDS[series.time_unit]

    def _from_table(self, file: Path, model: SequenceModel, sampler: Sampler) -> Drawn:
        import torch

        from neuralsde.forecast.futures import futures

        table = self.read(file, self.model, model)
        made = futures(
            model,
            table.data,
            horizon=self.stop,
            num_times=self.num_times - 1,
            num_paths=self.num_paths,
            sampler=sampler,
            seed=self.seed,
        )
        first = made.start[:, None, None].expand(-1, self.num_paths, 1, *made.start.shape[1:])
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
