"""Series on one calendar, and a model of what a decomposition leaves of them: learned, and drawn from their ends."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from neuralsde.core.records import check
from neuralsde.data.tables.frequency import Frequency
from neuralsde.data.tables.read import Table
from neuralsde.data.trajectories import Trajectories
from neuralsde.forecast.decomposition import Decomposition, Parts
from neuralsde.forecast.own import Own, filled
from neuralsde.models.build import build
from neuralsde.nets.config import StepsConfig
from neuralsde.sde.config import Covariance, Diagonal, Euler, Full, LowRank, Mixture, NeuralSDEConfig, Sampler
from neuralsde.sde.model import NeuralSDE
from neuralsde.training.config import RunOptions, TrainConfig
from neuralsde.training.fit import fit

MOST_FULL = 16  # columns whose noise is correlated without a restriction
MOST_NUMBERS = 2**24  # numbers that are drawn at once
MOST_ROWS = 1_000_000  # that are learned from
MOST_DRAWN = 2**28  # numbers of all forecasts: 2 GiB
TELLING = 200  # series that tell the usual scale
MOST_GAP = 64  # rows before the slots that may tell what is missing in them
NEAREST = 0.25  # of a step: rows further from any are not on the calendar
WIDE = 64  # of a net that is deeper too
BOX = None  # walks have no range that they must stay in


def spread(num: int, most: int) -> list[int]:
    """At most so many places of `num`, evenly spread."""
    return np.unique(np.linspace(0, num - 1, min(num, most)).astype(int)).tolist() if num else []


@dataclass(frozen=True)
class Panel:
    """Series (n, d) at whole steps of one calendar, one after the other; NaN is missing."""

    steps: list[np.ndarray]
    values: list[np.ndarray]
    context: list[np.ndarray] | None = None
    """Covariates (n, c); where a row is missing, those before."""
    known: tuple[int, ...] = ()
    """Places of the covariates that are known ahead."""

    @classmethod
    def of(cls, table: Table, frequency: Frequency, known: tuple[int, ...] = ()) -> Panel:
        """The series of a table, with a row for every step."""
        data = table.data.to("cpu")
        lengths = data.lengths.tolist()
        states = data.states.flatten(1).double()
        if data.observed is not None:
            states = states.where(data.observed.flatten(1), torch.nan)
        context = None if data.context is None else table.contexts()
        steps, values, others = [], [], []
        for k, (times, own) in enumerate(zip(data.times.split(lengths), states.split(lengths))):
            exact = frequency.steps(table.time.stamps(times.numpy()))
            on = np.abs(exact - np.round(exact)) <= NEAREST
            place = np.round(exact[on] if on.any() else exact).astype(int)
            every = np.arange(place[0], place[-1] + 1)
            full = np.full((len(every), own.shape[1]), np.nan)
            full[place - place[0]] = own.numpy()[on] if on.any() else np.nan
            steps.append(every)
            values.append(full)
            if context is not None:
                stamped = np.round(frequency.steps(table.time.stamps(context[k][0]))).astype(int)
                others.append(context[k][1][np.searchsorted(stamped, every, side="right") - 1])
        return cls(steps, values, others if context is not None else None, known)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def size(self) -> int:
        return self.values[0].shape[1]

    @property
    def fingerprint(self) -> str:
        """To notice that a search goes on with other data."""
        found = hashlib.sha256()
        for array in (*self.steps, *self.values, *(self.context or ())):
            found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()[:16]

    def cut(self, places: Sequence[int], ends: Sequence[int]) -> Panel:
        """The first rows of some of the series."""
        both = list(zip(places, ends))
        context = None if self.context is None else [self.context[k][:n] for k, n in both]
        steps, values = [self.steps[k][:n] for k, n in both], [self.values[k][:n] for k, n in both]
        return Panel(steps, values, context, self.known)

    def spread(self, most: int) -> Panel:
        """At most so many of the series, evenly spread over all of them."""
        places = spread(len(self), most)
        return self.cut(places, [len(self.steps[k]) for k in places])

    def some(self, most: int) -> Panel:
        """At most so many rows: series evenly spread over all of them, or the last rows of the first."""
        total = sum(len(s) for s in self.steps)
        if total <= most:
            return self
        num = max(1, int(len(self) * most / total))
        kept = self.spread(num)
        if num > 1 or len(kept.steps[0]) <= most:
            return kept
        context = None if kept.context is None else [kept.context[0][-most:]]
        return Panel([kept.steps[0][-most:]], [kept.values[0][-most:]], context, self.known)

    def apart(self) -> Panel:
        """Each column as a series of its own."""
        context = None if self.context is None else [c for c in self.context for _ in range(self.size)]
        steps = [s for s in self.steps for _ in range(self.size)]
        return Panel(steps, [v[:, [k]] for v in self.values for k in range(self.size)], context, self.known)

    def until(self, ends: Sequence[int]) -> Panel:
        """Of each series the first so many rows; those of which less than two are left go."""
        kept = [k for k, end in enumerate(ends) if end >= 2]
        return self.cut(kept, [ends[k] for k in kept])


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is learned of series."""

    off: Decomposition
    """What is taken off before."""
    history: int = 8
    """Slots."""
    width: int = 0
    """Of the hidden layers; 0: the drift is linear."""
    tails: bool = False
    """Steps that are not Gaussian."""
    apart: bool = False
    """Each column is a series of its own: one model for all, which draws them independently."""
    own: bool = False
    """How each series goes on in its own way is taken off too."""

    @property
    def net(self) -> StepsConfig:
        """Few data are learned by narrow nets, or by none."""
        wide = {} if not self.width else {"width": self.width, "depth": 1 if self.width < WIDE else 2}
        return StepsConfig(linear=not self.width, level=self.off.level, **wide)

    @property
    def rate(self) -> float:
        """At which it learns."""
        return 1e-3 if self.width else 3e-3

    def config(self, size: int) -> NeuralSDEConfig:
        """Settings of the model, for series of `size` columns."""
        noise: Covariance = Diagonal()
        if size > 1 and not self.tails:
            noise = Full() if size <= MOST_FULL else LowRank(rank=4)
        return NeuralSDEConfig(
            net=self.net,
            history=self.history,
            pad_history=True,
            noise=0.0,
            denoiser=None,
            law=Mixture(components=4) if self.tails else Euler(),
            covariance=noise,
            sampler=Sampler(box=BOX),
        )


@dataclass(frozen=True)
class Learned:
    """A model of what a decomposition leaves."""

    model: NeuralSDE
    off: Decomposition


def learn(kind: Kind, panel: Panel, train: TrainConfig, **more: Any) -> Learned:
    """A model of the rest of the series; of many, some tell as much as all."""
    panel = panel.some(MOST_ROWS)
    panel = panel.apart() if kind.apart else panel
    off = kind.off
    if kind.own:
        rests = [p.rest(s, v) for p, s, v in zip(parts_of(off, panel), panel.steps, panel.values)]
        off = replace(off, own=Own.of(rests))
    data = rest_of(off, panel)
    config = kind.config(panel.size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pairs = data.transitions(history=config.history, pad=True)
        model = build(config, pairs, seed=train.seed)
        assert isinstance(model, NeuralSDE)
        model.begin_noise(pairs)
        more.setdefault("options", RunOptions(progress=False))
        fit(model, pairs, config=replace(train, lr=kind.rate), **more)
    return Learned(model, off)


def parts_of(off: Decomposition, panel: Panel) -> list[Parts]:
    """Those of each series; one that is too short to have a scale gets the median of the first others."""
    unknown = np.full(panel.size, np.nan)
    every = [off.parts(s, v, unknown) for s, v in zip(panel.steps, panel.values)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = np.nanmedian(np.stack([parts.scale for parts in every[:TELLING]]), axis=0)
    usual = np.where(np.isfinite(found) & (found > 0), found, 1.0)
    every = [replace(parts, scale=np.where(np.isnan(parts.scale), usual, parts.scale)) for parts in every]
    if off.own is None:
        return every
    ways = off.own.ways([p.rest(s, v) for p, s, v in zip(every, panel.steps, panel.values)])
    return [replace(parts, way=way) for parts, way in zip(every, ways)]


def rest_of(off: Decomposition, panel: Panel) -> Trajectories:
    """What is left of the series, as paths; their time is in steps."""
    rests = [p.rest(s, v) for p, s, v in zip(parts_of(off, panel), panel.steps, panel.values)]
    own = [None] * len(panel) if panel.context is None else panel.context
    context = [_join(off, s, c, panel.known) for s, c in zip(panel.steps, own)]
    times = [s.astype(float) for s in panel.steps]
    return Trajectories.from_arrays(rests, times, context=None if context[0] is None else context, missing=True)


def _join(
    off: Decomposition, steps: np.ndarray, context: np.ndarray | None, known: tuple[int, ...]
) -> np.ndarray | None:
    """What is told of a step from each row (..., T, C): its covariates, those known of the row after it, and phases.

    No step starts from the last row: nothing is known after it.
    """
    parts = [part for part in (context, off.contexts(steps)) if part is not None]
    if context is not None and known:
        after = np.concatenate([context[..., 1:, :], context[..., -1:, :]], axis=-2)
        parts.insert(1, after[..., list(known)])
    return np.concatenate(parts, axis=-1) if parts else None


def contexts_ahead(
    off: Decomposition, past: Panel, ahead: np.ndarray, ahead_context: np.ndarray | None
) -> np.ndarray | None:
    """What is told of steps from rows `ahead` (B, T + 1, C), of which the first are the last of the past."""
    held = None
    if past.context is not None:
        now = np.stack([c[-1] for c in past.context])[:, None]
        later = now.repeat(ahead.shape[1] - 1, 1) if ahead_context is None else ahead_context
        held = np.concatenate([now, later], axis=1)
    return _join(off, ahead, held, past.known)


def draw(
    learned: Learned,
    past: Panel,
    horizon: int,
    *,
    ahead_context: np.ndarray | None = None,
    num_paths: int,
    sampler: Sampler | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Futures (B, N, horizon, d) of the series, from their last steps; covariates are `ahead_context` (B, horizon, c), or held."""
    model, off = learned.model, learned.off
    size, never = past.size, np.stack([~np.isfinite(v).any(0) for v in past.values])
    numbers = len(past) * num_paths * horizon * size
    check(
        numbers <= MOST_DRAWN,
        f"Forecasts of {numbers:,} numbers are too many at once. Use fewer `num_paths` or series.",
    )
    if model.scale.shape == (1,) and size > 1:  # columns apart
        past = past.apart()
        ahead_context = None if ahead_context is None else ahead_context.repeat(size, 0)
    parts = parts_of(off, past)
    slots = np.stack(
        [last_slots(p.rest(s, v), model.config.history) for p, s, v in zip(parts, past.steps, past.values)]
    )
    ahead = np.stack([s[-1] + np.arange(horizon + 1) for s in past.steps])
    context = contexts_ahead(off, past, ahead, ahead_context)
    starts = np.array([s[0] for s in past.steps])
    rng = torch.Generator().manual_seed(seed)
    most = max(1, MOST_NUMBERS // max(1, num_paths * (horizon + 1) * past.size))
    out = []
    for rows in np.array_split(np.arange(len(past)), -(-len(past) // most)):
        made = model.draw(
            torch.tensor(slots[rows], dtype=torch.float32),
            torch.tensor((ahead - starts[:, None])[rows], dtype=torch.float64),
            context=None if context is None else torch.tensor(context[rows], dtype=torch.float32),
            num_paths=num_paths,
            sampler=sampler or model.forecast_sampler,
            rng=rng,
        )
        rests = made.paths.double().cpu().numpy()
        out += [parts[b].whole(ahead[b, 1:], rest) for b, rest in zip(rows, rests)]
    drawn = np.stack(out)
    if drawn.shape[3] < size:
        drawn = np.moveaxis(drawn[..., 0].reshape(-1, size, *drawn.shape[1:3]), 1, -1)
    drawn[np.broadcast_to(never[:, None, None], drawn.shape)] = np.nan  # nothing is known of these
    return drawn


def last_slots(rest: np.ndarray, num: int) -> np.ndarray:
    """The last `num` rows; before the beginning as at it."""
    rest = np.nan_to_num(filled(rest[-(num + MOST_GAP) :]))
    short = max(0, num - len(rest))
    return np.concatenate([np.repeat(rest[:1], short, axis=0), rest[-num:]])


def with_noise(model: NeuralSDE, share: float) -> Sampler:
    """The model's sampler with more or less noise."""
    return replace(model.sampler, diffusion=share)
