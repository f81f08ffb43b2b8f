"""Paths of a trained model as files: from a state, or from the ends of the series in a table."""

from __future__ import annotations

import csv
import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neuralsde.data.columns import parse_stamps
from neuralsde.data.tables.read import Table
from neuralsde.data.tables.series import Series
from neuralsde.data.tables.time_axis import TimeAxis
from neuralsde.forecast.futures import futures
from neuralsde.forecast.table_model import AnyModel, TableModel
from neuralsde.models.config import Sampling
from neuralsde.records import check, with_settings


@dataclass(frozen=True)
class SampledPaths:
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
    passes: dict[str, int] = dataclasses.field(default_factory=dict)
    """Network passes per path, of each net."""

    def write(self, output: str | os.PathLike[str]) -> None:
        """Write .npz or .csv; without ids there is one start, and no axis for it."""
        dates = None if self.axis is None else [[self.axis.date(t) for t in row] for row in self.times.tolist()]
        if Path(output).suffix == ".npz":
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


def sample_state(
    model: AnyModel,
    start: Any,
    *,
    stop: float,
    start_context: Sequence[float] = (),
    start_time: str | float | None = None,
    num_times: int = 101,
    num_paths: int = 100,
    substeps: int | None = None,
    pull: float | None = None,
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
) -> SampledPaths:
    """Draw paths from a state.

    Args:
        model: a folder, or what was loaded from one.
        start: the first state, one number per feature; with a history, slot by slot, the oldest first.
        stop: last output time, counted from the first state.
        start_context: context of the first state, which is held.
        start_time: time or date of the first state; None: 0, or the last date of the training data.
        num_times: output times from 0 to `stop`.
        substeps, pull: of the sampler, if not the model's.
        output: an .npz or .csv file to write.
    """
    _check(output, stop, num_times)
    trained = TableModel.load(model)
    own, series = trained.model, trained.series
    slots, shape, size = own.config.history, own.scale.shape, own.scale.context_size
    if len(start_context) != size:
        given = " ".join(map(str, start_context)) or "nothing"
        raise ValueError(f"`start_context` must hold the model's {size} context value(s). Got {given}.")
    values = np.ravel(start)
    whole = len(values) == slots * math.prod(shape)
    times = np.linspace(0.0, stop, num_times)
    drawn = own.draw(
        values.reshape(1, slots, *shape) if whole else values,
        times,
        context=[list(start_context)] if len(start_context) else None,
        num_paths=num_paths,
        sampler=_sampler(own.sampler, substeps, pull),
        rng=seed,
    )
    names = tuple(f"x{k}" for k in range(math.prod(shape))) if series is None else series.columns
    axis, first = _first_time(start_time, series)
    return _written(SampledPaths(None, times[None] + first, drawn.paths.cpu().numpy(), names, axis, drawn.nfe), output)


def sample_table(
    model: AnyModel,
    table: Table | str | os.PathLike[str],
    *,
    stop: float,
    num_times: int = 101,
    num_paths: int = 100,
    substeps: int | None = None,
    pull: float | None = None,
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
) -> SampledPaths:
    """Draw paths from the last observation of each series of a table; arguments as for `sample_state`."""
    _check(output, stop, num_times)
    trained = TableModel.load(model)
    table, own = trained.read(table), trained.model
    made = futures(
        own,
        table.data,
        horizon=stop,
        num_times=num_times - 1,
        num_paths=num_paths,
        sampler=_sampler(own.forecast_sampler, substeps, pull),  # a table holds measurements
        seed=seed,
    )
    first = made.start[:, None, None].expand(-1, num_paths, 1, *made.start.shape[1:])
    paths = torch.cat([first, made.samples], dim=2).numpy()
    times = torch.cat([made.origin[:, None], made.times], dim=1).numpy()
    axis = table.time if table.time.kind == "dates" else None
    ids = [table.ids[k] for k in made.path.tolist()]
    return _written(SampledPaths(ids, times, paths, table.columns, axis, made.nfe), output)


def _check(output: str | os.PathLike[str] | None, stop: float, num_times: int) -> None:
    if output is not None and Path(output).suffix not in (".npz", ".csv"):
        raise ValueError(f"`output` must end in .npz or .csv. Got {output}.")
    check(0 < stop < math.inf, f"`stop` must be positive and finite, in the units of the time stamps. Got {stop}.")
    check(num_times >= 2, f"`num_times` must be at least 2. Got {num_times}.")


def _sampler(usual: Sampling, substeps: int | None, pull: float | None) -> Sampling:
    return with_settings(usual, {k: v for k, v in (("substeps", substeps), ("pull", pull)) if v is not None})


def _written(drawn: SampledPaths, output: str | os.PathLike[str] | None) -> SampledPaths:
    if output is not None:
        drawn.write(output)
    return drawn


def _first_time(start: str | float | None, series: Series | None) -> tuple[TimeAxis | None, float]:
    """How times are shown, and the time of the first state."""
    if series is None or series.time_kind != "dates":
        try:
            return None, float(start or 0.0)
        except ValueError:
            raise ValueError(f"`start_time` must be a number for this model. Got {start}.") from None
    axis = TimeAxis(series.time, "dates", series.time_unit, series.time_origin)
    if start is None:
        return axis, series.time_last
    import pandas as pd

    first = parse_stamps(pd.Series([start], dtype=object))[0]
    if not isinstance(first, np.datetime64) or np.isnat(first):
        raise ValueError(f"`start_time` must be an ISO date for this model. Got {start}.")
    return axis, axis.time(first)
