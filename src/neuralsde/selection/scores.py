"""How good the paths of a model are, on paths that it has not seen: proper scores of segments.

A *segment* is what followed an origin at a few times, dense at first and then wider apart, the end of the path among them.
Four horizons are scored by the energy score: the next observation, the first few, all of them, and the end alone. The last
two are not the same: averaged over time, the goal of a motion hardly counts. Each is divided by the score of standing still,
or a tenth of the largest of these, so that horizons and data sets compare. Where all paths end close together, the end is
measured by how far apart they end: to miss a common goal by a little is a large error. The energy score hardly sees how
entries depend on each other; the variogram score does, and is added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from neuralsde.core.records import RunError
from neuralsde.data.trajectories import Trajectories
from neuralsde.metrics.forecast import energy_score
from neuralsde.models.sequence import SequenceModel

NUM_TIMES = 8  # of a segment
MAX_AHEAD, AHEAD_OF_ONE = 600, 200  # observations that a segment spans at most, and one of a single path
ORIGINS = 6  # per path that a segment spans whole
MOST_ORIGINS = 32
NUM_PATHS = 32  # samples per origin
PAIRS = 256  # of entries whose variogram is scored
VARIOGRAM = 0.5  # weight of the variogram score
FLOOR = 0.1  # least unit of a horizon, in the largest: errors that are small against the whole path count as small
FAILED = 10.0  # the score of paths that leave the data for good
MOST_ENDS = 256  # paths whose ends are compared
HORIZONS = ("next", "near", "all", "end")


@dataclass(frozen=True)
class Segments:
    """Where forecasts start in held-out paths, and what followed."""

    data: Trajectories
    row: Tensor  # of the origins (B,)
    ahead: Tensor  # observations from the origin to each time (B, T)
    unit: Tensor  # the path, or the block of time, of each origin: these are independent of each other
    scale: Tensor  # spread of each entry of the state in the training data
    still: Tensor  # energy score of standing still, per horizon
    rough: Tensor  # the variogram's unit

    @classmethod
    def of(
        cls, held_out: Trajectories, known: Trajectories, *, most: int = MOST_ORIGINS, from_start: bool = False
    ) -> Segments:
        """Origins spread over the held-out paths; the units are those of the `known` ones, which may be learned from."""
        lengths = held_out.lengths
        first = lengths.cumsum(0) - lengths
        rows, ahead, unit = [], [], []
        most_ahead = MAX_AHEAD if len(lengths) > 1 else AHEAD_OF_ONE
        per_path = max(1, min(ORIGINS, most // len(lengths)))
        chosen = np.unique(np.linspace(0, len(lengths) - 1, min(len(lengths), most)).astype(int))
        for k in chosen.tolist():
            steps = int(lengths[k]) - 1
            span = min(steps, most_ahead)
            if steps <= most_ahead:
                starts = [0] if from_start else [round(j * steps / per_path) for j in range(per_path)]
            else:  # several segments one after the other
                num = min(max(per_path, most // len(chosen)), 1 + (steps - span) // max(1, span // 2))
                starts = [int(v) for v in np.linspace(0, steps - span, num).round()]
            whole = bool((held_out.begin[k] == held_out.times[first[k]]).item())
            for place, start in enumerate(starts):
                start = start if whole or start else min(steps // 10, 10)
                room = min(span, steps - start)
                if room < 1:
                    continue
                rows.append(int(first[k]) + start)
                ahead.append(_places(room))
                unit.append(k if steps <= most_ahead or len(chosen) > 3 else 1000 * k + place)
        row, steps_ahead = torch.tensor(rows), torch.stack(ahead)
        spread = spread_of(known)
        spread = torch.where(spread > 0, spread, torch.ones_like(spread)).double()
        made = cls(held_out, row, steps_ahead, torch.tensor(unit), spread, torch.ones(4), torch.ones(()))
        truth, seen = made.truth()
        begin = (held_out.states[row].double() / spread).nan_to_num(0.0)
        apart = ((truth - begin[:, None]) * seen).flatten(2)
        still = torch.stack([_horizon(apart, steps_ahead, h).norm(dim=-1).mean() for h in HORIZONS])
        floor = FLOOR * still.max().clamp(min=1e-12)
        if len(lengths) > 1 and int(lengths.max()) - 1 <= most_ahead:  # segments then end where paths do
            still[-1] = torch.minimum(still[-1], _apart_at_the_end(known, spread))
        i, j = made._pairs(truth.flatten(1).shape[1])
        flat = truth.flatten(1)
        rough = (flat[:, i] - flat[:, j]).abs().mean().clamp(min=1e-12)
        return cls(held_out, row, steps_ahead, torch.tensor(unit), spread, still.clamp(min=floor), rough)

    def truth(self) -> tuple[Tensor, Tensor]:
        """What followed (B, T, *S) in units of the spread, and where it was observed."""
        rows = self.row[:, None] + self.ahead
        seen = (
            torch.ones_like(self.data.states[rows], dtype=torch.bool)
            if self.data.observed is None
            else self.data.observed[rows]
        )
        return (self.data.states[rows].double() / self.scale).where(seen, torch.zeros(())), seen

    def _pairs(self, size: int) -> tuple[Tensor, Tensor]:
        """Pairs of entries of a segment, the same in every call."""
        rng = np.random.default_rng(0)
        i = rng.integers(size, size=PAIRS)
        j = (i + rng.integers(1, max(size, 2), size=PAIRS)) % size
        return torch.from_numpy(i), torch.from_numpy(j)

    def score(
        self, model: SequenceModel, sampler: object = None, *, num_paths: int = NUM_PATHS, seed: int = 0
    ) -> Score:
        """Score the paths of `model`."""
        try:
            return self._score(self.samples(model, sampler, num_paths=num_paths, seed=seed))
        except (RunError, ValueError) as error:
            lost = torch.full((len(self.row), len(HORIZONS) + 1), FAILED, dtype=torch.float64)
            return Score(lost, self.unit, str(error))

    def samples(
        self, model: SequenceModel, sampler: object = None, *, num_paths: int = NUM_PATHS, seed: int = 0
    ) -> Tensor:
        """Paths (B, N, T, *S) of `model` from the origins, in raw units.

        A model that learned long steps and nothing between is drawn at all times of the data, as its users will draw it: what is
        right in long steps may be wrong in short ones.
        """
        rows = self.row
        slots = self.data.slots(rows, history=model.config.history, spacing=model.lag)
        place = torch.cat([torch.zeros_like(self.ahead[:, :1]), self.ahead], 1)
        if not model.knows_between:
            place = torch.minimum(torch.arange(int(self.ahead.max()) + 1), self.ahead[:, -1:])
        path = torch.searchsorted(self.data.lengths.cumsum(0), rows, right=True)
        times, origin = self.data.times[rows[:, None] + place], self.data.begin[path]
        # Rows are of one length: what is drawn beyond an end is not looked at
        beyond = (times.diff(dim=1) <= 0).cumsum(1) * model.scale.step
        times = torch.cat([times[:, :1], times[:, 1:] + beyond], 1) - origin[:, None]
        context = self.data.context_at(rows)
        start, how = self.data.states[slots], {"sampler": sampler, "rng": seed, "num_paths": num_paths}
        drawn = model.sample(start, times, context=context, **how).cpu()
        if model.knows_between:
            return drawn[:, :, 1:]
        index = self.ahead.reshape(len(rows), 1, -1, *[1] * (drawn.ndim - 3))
        return drawn.take_along_dim(index, dim=2)

    def _score(self, samples: Tensor) -> Score:
        """Of samples (B, N, T, *S) in raw units."""
        truth, seen = self.truth()
        drawn = (samples.double() / self.scale).where(seen[:, None], torch.zeros(()))
        parts = []
        for k, horizon in enumerate(HORIZONS):
            x = _horizon(drawn.flatten(3).movedim(1, 0).flatten(0, 1), self.ahead.repeat(drawn.shape[1], 1), horizon)
            x = x.unflatten(0, (drawn.shape[1], len(drawn)))
            y = _horizon(truth.flatten(2), self.ahead, horizon)
            parts.append((energy_score(x, y) / self.still[k]).clamp(max=FAILED))
        i, j = self._pairs(truth[0].numel())
        x, y = drawn.flatten(2), truth.flatten(1)
        expected = (x[..., i] - x[..., j]).abs().sqrt().mean(1)
        both = seen.flatten(1)[:, i] & seen.flatten(1)[:, j]
        apart = (expected - (y[:, i] - y[:, j]).abs().sqrt()).square() * both
        parts.append((apart.sum(1) / both.sum(1).clamp(min=1) / self.rough).clamp(max=FAILED))
        return Score(torch.stack(parts, 1), self.unit)


def spread_of(data: Trajectories) -> Tensor:
    """The standard deviation of each entry of the state."""
    states = data.states.double()
    if data.observed is None:
        return states.std(0, correction=0)
    seen = data.observed.double()
    num = seen.sum(0).clamp(min=1)
    mean = (states * seen).sum(0) / num
    return (((states - mean) * seen).square().sum(0) / num).sqrt()


def _apart_at_the_end(data: Trajectories, scale: Tensor) -> Tensor:
    """Mean distance between the ends of two paths; infinite where that cannot be known."""
    if len(data) < 2 or data.observed is not None:
        return scale.new_tensor(math.inf)
    last = data.lengths.cumsum(0)[:MOST_ENDS] - 1
    return torch.pdist((data.states[last].double() / scale).flatten(1)).mean()


def _places(room: int) -> Tensor:
    """Eight numbers of observations up to `room`, dense at first; short ones are padded by their last."""
    places = np.unique(np.round(np.geomspace(1, room, NUM_TIMES)).astype(int))
    return torch.from_numpy(np.concatenate([places, np.full(NUM_TIMES - len(places), places[-1])]))


def _horizon(values: Tensor, ahead: Tensor, name: str) -> Tensor:
    """The part of segments (B, T, D) that a horizon looks at, its norm that of one state; padding counts nothing."""
    distinct = torch.cat([torch.ones_like(ahead[:, :1], dtype=torch.bool), ahead.diff(dim=1) > 0], 1)
    if name == "next":
        return values[:, 0]
    if name == "end":
        return values[:, -1]
    if name == "near":
        distinct = distinct & (ahead <= ahead[:, -1:].double().sqrt().clamp(min=4))
    weight = distinct / distinct.sum(1, keepdim=True).clamp(min=1)
    return (values * weight.sqrt()[..., None]).flatten(1)


@dataclass(frozen=True)
class Score:
    """Of each origin: the four horizons and the variogram, in units of standing still."""

    parts: Tensor  # (B, 5)
    unit: Tensor  # (B,)
    error: str = ""  # why nothing could be drawn

    @property
    def each(self) -> Tensor:
        """One number per independent unit."""
        value = self.parts[:, : len(HORIZONS)].mean(1) + VARIOGRAM * self.parts[:, -1]
        names, place = torch.unique(self.unit, return_inverse=True)
        total = torch.zeros(len(names), dtype=value.dtype).index_add_(0, place, value)
        return total / torch.bincount(place, minlength=len(names))

    @property
    def mean(self) -> float:
        """Less is better; standing still has about 1, a right model of noise that cannot be known less than that."""
        return float(self.each.mean())

    def to_dict(self) -> dict[str, float]:
        """The parts by name."""
        names = [*HORIZONS, "variogram"]
        return {"score": self.mean, **dict(zip(names, self.parts.mean(0).tolist()))}


def together(scores: list[Score]) -> Score:
    """Scores of several folds as one."""
    shift = [torch.full_like(s.unit, 1_000_000 * k) for k, s in enumerate(scores)]
    units = torch.cat([s.unit + more for s, more in zip(scores, shift)])
    return Score(torch.cat([s.parts for s in scores]), units, next((s.error for s in scores if s.error), ""))


def gain(score: Score, over: Score) -> tuple[float, float]:
    """By how much `score` is less than another of the same units, and its standard error."""
    saved = over.each - score.each
    error = float(saved.std()) / math.sqrt(len(saved)) if len(saved) > 1 else math.inf
    return float(saved.mean()), error
