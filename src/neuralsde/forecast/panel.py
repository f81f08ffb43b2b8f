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
from neuralsde.forecast.own import Own, Pick
from neuralsde.forecast.past import End, bridged, limits, settled, spread, still
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
NEAREST = 0.25  # of a step: rows further from any are not on the calendar
OFTEN_SEEN = 0.1  # share of values that are seen one step after another from which on gaps teach no steps
DULL = 1e-3  # of a step: columns that move less
WIDE = 64  # of a net that is deeper too
BOX = None  # walks have no range that they must stay in


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

    @property
    def apart(self) -> bool:
        """Whether it knows one column."""
        return self.model.scale.shape == (1,)

    def past(self, panel: Panel) -> Past:
        """The past from which it forecasts: where columns were learned apart, one series for each."""
        return Past.of(self.off, panel.apart() if self.apart else panel)


@dataclass(frozen=True)
class Past:
    """Series as they are learned and forecast from, what is taken off them, and what was found in them."""

    panel: Panel
    """Without odd values, and without what does not change."""
    off: Decomposition
    parts: list[Parts]
    still: np.ndarray
    """The values (B, d) of what does not change; NaN of the rest."""
    odd: np.ndarray
    """How many values and levels (B, d) were odd."""
    ends: list[list[End]]

    @classmethod
    def of(cls, off: Decomposition, panel: Panel) -> Past:
        """What covariates move may look odd: where some are known ahead, all values are kept."""
        constant = np.array([[still(c) for c in v.T] for v in panel.values])
        changing = [np.where(np.isfinite(c), np.nan, v) for c, v in zip(constant, panel.values)]
        found = [_found(off, s, v, panel.known) for s, v in zip(panel.steps, changing)]
        values, parts, odd, ends = (list(each) for each in zip(*found))
        past = cls(replace(panel, values=values), off, _scaled(parts), constant, np.array(odd), ends)
        return past if off.own is None else past.in_own_ways(off.own)

    def in_own_ways(self, own: Own) -> Past:
        """How each series goes on in its own way is taken off too."""
        ways = own.ways(self.rests)
        parts = [replace(parts, way=way) for parts, way in zip(self.parts, ways)]
        return replace(self, off=replace(self.off, own=own), parts=parts)

    @property
    def rests(self) -> list[np.ndarray]:
        """What is left of each series."""
        return [p.rest(s, v) for p, s, v in zip(self.parts, self.panel.steps, self.panel.values)]

    def cut(self, places: Sequence[int]) -> Past:
        """Some of the series."""
        panel = self.panel.cut(places, [len(self.panel.steps[k]) for k in places])
        parts, ends, rows = [self.parts[k] for k in places], [self.ends[k] for k in places], list(places)
        return replace(self, panel=panel, parts=parts, still=self.still[rows], odd=self.odd[rows], ends=ends)

    def slots(self, num: int) -> np.ndarray:
        """The last rows (B, num, d) of what is left."""
        return np.stack([last_slots(rest, num) for rest in self.rests])

    def jump(self, place: int, num_paths: int) -> np.ndarray:
        """From the end of a series to odd values after it, for the share of its paths (N, 1, d) that go on from these."""
        ends = self.ends[place]
        paths = np.arange(num_paths)[:, None]
        return np.where(paths % [e.num + 1 for e in ends], [e.jump for e in ends], 0.0)[:, None]

    def pick(self, place: int, num_paths: int, rng: np.random.Generator) -> Pick | None:
        """Which of its own ways each path of a series goes."""
        way = self.parts[place].way
        return None if way is None else way.pick(num_paths, rng)

    def findings(self, names: Sequence[str]) -> list[str]:
        """What is to be said of series with these names: of what does not change, and of odd values."""
        still, odd, ends = (
            _few(names, np.asarray(found).reshape(len(names), -1))
            for found in (np.isfinite(self.still), self.odd, [[end.num for end in own] for own in self.ends])
        )
        return [
            *(
                [f"No changes in {still}: forecasts are the value itself, and take no part in the scores."]
                if still
                else []
            ),
            *([f"Odd values in {odd}: steps far beyond all others are left out."] if odd else []),
            *([f"{ENDS} {ends}. {AFTER_ENDS}"] if ends else []),
        ]

    def limits(self, place: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
        """What states of a series stay within."""
        return limits(self.parts[place].states(self.panel.steps[place], self.panel.values[place]), horizon)

    def data(self) -> Trajectories:
        """What is left of the series, as paths; their time is in steps."""
        panel, rests = self.panel, [rest.astype(np.float32) for rest in _moving(self.rests)]
        own = [None] * len(panel) if panel.context is None else panel.context
        told = [_join(self.off, s, c, panel.known) for s, c in zip(panel.steps, own)]
        context = None if told[0] is None else told
        times = [s.astype(float) for s in panel.steps]
        seen = [np.isfinite(rest) for rest in rests]
        next_to = sum(int((s[1:] & s[:-1]).sum()) for s in seen)
        if panel.size > 1 or next_to < OFTEN_SEEN * sum(int(s.sum()) for s in seen):
            return Trajectories.from_arrays(rests, times, context=context, missing=True)
        # Slots in gaps lie on straight lines; steps are learned from where both ends were seen
        data = Trajectories.from_arrays([bridged(rest) for rest in rests], times, context=context)
        data.observed = torch.from_numpy(np.concatenate(seen))
        return data


def _moving(rests: list[np.ndarray]) -> list[np.ndarray]:
    """What is left of series; columns of which nothing is keep their place as walks of chance."""
    steps = np.concatenate([np.diff(rest, axis=0) for rest in rests])
    seen = np.isfinite(steps)
    dull = np.sqrt((np.where(seen, steps, 0.0) ** 2).sum(0) / np.maximum(seen.sum(0), 1)) < DULL
    if not dull.any() or dull.all():
        return rests
    rng = np.random.default_rng(0)
    return [np.where(dull, rng.standard_normal(rest.shape).cumsum(0), rest) for rest in rests]


ENDS = "Far from all before them are the last values of"
AFTER_ENDS = (
    "One part of the forecasts goes on from these, the other from what came before. Mend them if they are wrong."
)


def _few(names: Sequence[str], found: np.ndarray) -> str:
    """The names of series in which something (B, d) was found."""
    where = [name for name, some in zip(names, found) if some.any()]
    return ", ".join(where[:5]) + (f" and {len(where) - 5} more" if len(where) > 5 else "")


def _found(
    off: Decomposition, steps: np.ndarray, values: np.ndarray, known: tuple[int, ...]
) -> tuple[np.ndarray, Parts, list[int], list[End]]:
    """A series without odd values, its parts, how many were odd, and those at the end of each column.

    What is odd beside a season shows once that is taken off.
    """
    unknown, size = np.full(values.shape[1], np.nan), values.shape[1]
    if known or off.curve == "ranks":  # by ranks, nothing is far
        return values, off.parts(steps, values, unknown), [0] * size, [End()] * size
    columns, num, ends = zip(*(settled(column) for column in off.to(values).T))
    values = values if not sum(num) else off.back(np.stack(columns, axis=1))
    parts = off.parts(steps, values, unknown)
    if not parts.waves.num:
        return values, parts, list(num), list(ends)
    columns, more, later = zip(*(settled(column) for column in parts.states(steps, values).T))
    if sum(more):
        values = off.back(np.stack(columns, axis=1) * parts.scale + parts.offset(steps))
        later = [replace(end, jump=end.jump * scale) for end, scale in zip(later, parts.scale)]
        parts = off.parts(steps, values, unknown)
    return values, parts, [a + b for a, b in zip(num, more)], [a if a.num else b for a, b in zip(ends, later)]


def _scaled(every: list[Parts]) -> list[Parts]:
    """A series that is too short to have a scale gets the median of the first others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = np.nanmedian(np.stack([parts.scale for parts in every[:TELLING]]), axis=0)
    usual = np.where(np.isfinite(found) & (found > 0), found, 1.0)
    return [replace(parts, scale=np.where(np.isnan(parts.scale), usual, parts.scale)) for parts in every]


def learned_past(kind: Kind, panel: Panel) -> Past:
    """What a kind learns from; of many series, some tell as much as all."""
    panel = panel.some(MOST_ROWS)
    past = Past.of(kind.off, panel.apart() if kind.apart else panel)
    past = past.cut([k for k, values in enumerate(past.panel.values) if np.isfinite(values).any()])
    return past.in_own_ways(Own.of(past.rests)) if kind.own else past


def learn(kind: Kind, panel: Panel, train: TrainConfig, **more: Any) -> Learned:
    """A model of the rest of the series."""
    return learn_from(kind, learned_past(kind, panel), train, **more)


def learn_from(kind: Kind, past: Past, train: TrainConfig, **more: Any) -> Learned:
    """The same, of a past that was found already."""
    config = kind.config(past.panel.size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pairs = past.data().transitions(history=config.history, pad=True)
        model = build(config, pairs, seed=train.seed)
        assert isinstance(model, NeuralSDE)
        model.begin_noise(pairs)
        more.setdefault("options", RunOptions(progress=False))
        fit(model, pairs, config=replace(train, lr=kind.rate), **more)
    return Learned(model, past.off)


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
    known: Past | None = None,
    ahead_context: np.ndarray | None = None,
    num_paths: int,
    sampler: Sampler | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Futures (B, N, horizon, d) of the series, from their last steps; covariates are `ahead_context` (B, horizon, c), or held.

    `known` is what `learned` makes of the past, if that was found already.
    """
    model, off = learned.model, learned.off
    size, never = past.size, np.stack([~np.isfinite(v).any(0) for v in past.values])
    numbers = len(past) * num_paths * horizon * size
    check(
        numbers <= MOST_DRAWN,
        f"Forecasts of {numbers:,} numbers are too many at once. Use fewer `num_paths` or series.",
    )
    known = learned.past(past) if known is None else known
    past = known.panel
    if past.size < size and ahead_context is not None:  # columns apart
        ahead_context = ahead_context.repeat(size, 0)
    slots = known.slots(model.config.history)
    ahead = np.stack([s[-1] + np.arange(horizon + 1) for s in past.steps])
    context = contexts_ahead(off, past, ahead, ahead_context)
    starts = np.array([s[0] for s in past.steps])
    rng, picks = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
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
        for b, rest in zip(rows, rests):
            within, jump, pick = known.limits(b, horizon), known.jump(b, num_paths), known.pick(b, num_paths, picks)
            out.append(known.parts[b].whole(ahead[b, 1:], rest, within, jump, pick))
    drawn = np.stack(out)
    if drawn.shape[3] < size:
        drawn = np.moveaxis(drawn[..., 0].reshape(-1, size, *drawn.shape[1:3]), 1, -1)
    drawn = np.where(never[:, None, None], np.nan, drawn)  # nothing is known of these
    constant = known.still.reshape(-1, 1, 1, size)
    return np.where(np.isfinite(constant), constant, drawn)


def last_slots(rest: np.ndarray, num: int) -> np.ndarray:
    """The last `num` rows; before the beginning as at it."""
    rest = bridged(rest)
    short = max(0, num - len(rest))
    return np.concatenate([np.repeat(rest[:1], short, axis=0), rest[-num:]])


def with_noise(model: NeuralSDE, share: float) -> Sampler:
    """The model's sampler with more or less noise."""
    return replace(model.sampler, diffusion=share)
