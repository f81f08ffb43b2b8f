"""Which kind of model forecasts some series best: tried on their last part, from many origins, as it would have been then.

Each kind is trained on what came before the first origin. At each origin level, season and scale are found from the past
alone. The score is the CRPS in units of the mean step of each series. The last origins take no part in the choice: they say
how good it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from neuralsde.core.files import read_text, write_json
from neuralsde.core.records import RunError
from neuralsde.forecast.decomposition import Decomposition
from neuralsde.forecast.panel import Kind, Learned, Panel, Past, draw, learn_from, learned_past, with_noise
from neuralsde.forecast.past import changes, settled, spread
from neuralsde.metrics.forecast import crps
from neuralsde.training.config import TrainConfig

TESTED = 0.3  # share of a series, at its end, in which origins lie, where there are few series
WINDOWS = 3  # horizons that this part has at least, where the series is long enough; of many series as many
MOST_ORIGINS, MOST_WINDOWS = 120, 12  # in all, and of one series, if they overlap
FEWEST_WINDOWS = 3  # of one series: two that choose, since one moment may mislead, and one that judges
MOST_SERIES = MOST_ORIGINS // FEWEST_WINDOWS  # on which kinds are tried
MOST_LEARNED, MOST_ROWS = 1_000, 200_000  # series and rows from which trials learn
FEWEST = 16  # rows before the first origin
NUM_PATHS = 100
NARROW, WIDE, TAILS, PER_SLOT = 1_000, 4_000, 1_000, 40
"""Steps in the data from which on narrow and wide nets and tails are tried, and for each slot and column of a longer history."""
TAKEN = 2.5  # how often a season must have been seen to be taken off
JUDGED = 1 / 3  # share of the origins, the last, that take no part in the choice
ERRORS, LEAST_GAIN = 1.0, 0.005  # standard errors, and share, by which a change must be better
NOISES = (0.9, 1.1, 1.25, 1.5)
SLOTS, MOST_SLOTS = 8, 60  # a year of weeks
TIED = 0.1  # share of equal values from which on values are tried by their ranks


@dataclass(frozen=True)
class Trial:
    """A kind and its score."""

    name: str
    kind: Kind
    scores: np.ndarray  # per origin
    noise: float = 1.0

    @property
    def mean(self) -> float:
        return float(self.scores.mean())


@dataclass(frozen=True)
class Origins:
    """Where forecasts start: a series, and how many of its rows are known."""

    series: list[int]
    rows: list[int]
    judge: np.ndarray  # which take no part in the choice
    turn: np.ndarray  # the first, second, … of its series: those of one turn are of about one time
    cut: list[int]  # rows of each series that are trained on

    @classmethod
    def of(cls, panel: Panel, horizon: int) -> Origins:
        """Spread over the end of some of the series, evenly. Many series are tried at their very end, where they go on.

        What does not change before says nothing: it is not tried.
        """
        early = [v[: max(len(v) - WINDOWS * horizon, len(v) // 2)] for v in panel.values]
        moving = [k for k, v in enumerate(early) if changes(v)]
        chosen = {moving[k] for k in spread(len(moving), MOST_SERIES)}
        most = max(FEWEST_WINDOWS, min(MOST_WINDOWS, MOST_ORIGINS // max(len(chosen), 1)))
        share = TESTED if most == MOST_WINDOWS else 0.0
        series, rows, judge, turn = [], [], [], []
        cut = [len(s) for s in panel.steps]
        for k, steps in enumerate(panel.steps):
            length = len(steps)
            first = max(length - max(int(share * length), WINDOWS * horizon), min(FEWEST, length // 2))
            last = length - horizon
            if last < first:  # too short to be tried: it is learned from up to its last horizon
                cut[k] = max(last, 0) if last >= FEWEST // 2 else 0
                continue
            cut[k] = first
            if k not in chosen:
                continue
            seen = np.isfinite(panel.values[k]).any(1)
            able = [n for n in range(first, last + 1) if seen[n - 1] and seen[n : n + horizon].any()]
            apart = min(len(able) // horizon, MOST_ORIGINS // (len(chosen) * panel.size))  # each tells something new
            places = np.array(able)[spread(len(able), max(most, apart))] if able else np.zeros(0, int)
            late = max(1, round(JUDGED * len(places))) if len(places) > 1 else 0
            for j, place in enumerate(places.tolist()):
                series.append(k)
                rows.append(place)
                judge.append(j >= len(places) - late)
                turn.append(j)
        return cls(series, rows, np.array(judge, dtype=bool), np.array(turn, dtype=int), cut)

    def past(self, panel: Panel, which: np.ndarray) -> Panel:
        """What is known at some of the origins."""
        places = np.flatnonzero(which)
        return panel.cut([self.series[i] for i in places], [self.rows[i] for i in places])

    def covariates(self, panel: Panel, which: np.ndarray, horizon: int) -> np.ndarray | None:
        """Those that follow (B, horizon, c): as they came where they are known ahead, else as at the origin."""
        if panel.context is None:
            return None
        out = []
        for i in np.flatnonzero(which):
            own, row = panel.context[self.series[i]], self.rows[i]
            ahead = np.repeat(own[row - 1 : row], horizon, axis=0)
            ahead[:, list(panel.known)] = own[row : row + horizon][:, list(panel.known)]
            out.append(ahead)
        return np.stack(out)

    def truth(self, panel: Panel, which: np.ndarray, horizon: int) -> np.ndarray:
        """What followed (B, horizon, d)."""
        return np.stack([panel.values[self.series[i]][self.rows[i] :][:horizon] for i in np.flatnonzero(which)])


@dataclass
class Backtest:
    """Trials of kinds on the end of some series.

    What they found is kept in `file`, so that a search that was stopped goes on from there, to the same choice.
    """

    panel: Panel
    horizon: int
    train: TrainConfig
    tick: Callable[[str], object] = lambda text: None
    file: Path | None = None
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.found: dict[str, list[float] | None] = {}
        self.pasts: dict[tuple[object, ...], Past] = {}  # kinds share them
        if self.file is not None and self.file.exists():
            self.found = json.loads(read_text(self.file))
        self.origins = Origins.of(self.panel, self.horizon)
        known = self.panel.until(self.origins.cut)
        self.learned = known.spread(MOST_LEARNED).some(MOST_ROWS)
        self.choosing = ~self.origins.judge if self.origins.judge.any() else np.ones(len(self.origins.series), bool)
        self.units = np.stack([_unit(v[:n]) for v, n in zip(self.panel.values, self.origins.cut)])

    @property
    def able(self) -> bool:
        """Whether there is anything to try."""
        return bool(self.choosing.any()) and len(self.learned) > 0

    def score(self, samples: np.ndarray, which: np.ndarray) -> np.ndarray:
        """CRPS of each origin in units of the series' steps; NaN where nothing was observed."""
        each = self.each(samples, which)
        with np.errstate(all="ignore"):
            return np.nan_to_num(np.nanmean(each.reshape(len(each), -1), axis=1), nan=0.0, posinf=1e9)

    def each(self, samples: np.ndarray, which: np.ndarray) -> np.ndarray:
        """CRPS of each value (B, T, d) in units of the series' steps; NaN where nothing was observed."""
        truth = self.origins.truth(self.panel, which, self.horizon)
        seen = np.isfinite(truth)
        units = self.units[[self.origins.series[i] for i in np.flatnonzero(which)]]
        each = crps(torch.tensor(samples).movedim(1, 0), torch.tensor(np.where(seen, truth, 0.0))).numpy()
        return np.where(seen, each / units[:, None], np.nan)

    def train_kind(self, kind: Kind) -> Learned:
        """A model of the kind, of what was known."""
        key = (kind.off, kind.apart, kind.own)
        if key not in self.pasts:
            self.pasts[key] = learned_past(kind, self.learned)
        return learn_from(kind, self.pasts[key], self.train)

    def draw_from(self, learned: Learned, which: np.ndarray, noise: float = 1.0, num: int = NUM_PATHS) -> np.ndarray:
        """Forecasts from some of the origins."""
        past, how = self.origins.past(self.panel, which), with_noise(learned.model, noise)
        ahead = self.origins.covariates(self.panel, which, self.horizon)
        key = (learned.off, learned.apart, which.tobytes())
        if key not in self.pasts:
            self.pasts[key] = learned.past(past)
        known = self.pasts[key]
        return draw(learned, past, self.horizon, known=known, ahead_context=ahead, num_paths=num, sampler=how)

    def try_kind(self, name: str, kind: Kind) -> tuple[Trial, Learned | None] | None:
        """A kind, trained and scored, and its model, if it was not known already; None where it cannot be."""
        key, model = f"{name}: {kind}", None
        if key not in self.found:
            self.found[key], model = self._scores(kind)
            if self.file is not None:
                write_json(self.file, self.found)
        scores = self.found[key]
        if scores is None:
            return None
        trial = Trial(name, kind, np.array(scores))
        self.trials.append(trial)
        self.tick(f"{name}: {trial.mean:.3f}")
        return trial, model

    def _scores(self, kind: Kind) -> tuple[list[float] | None, Learned | None]:
        try:
            model = self.train_kind(kind)
        except (ValueError, RunError):
            return None, None
        return self.score(self.draw_from(model, self.choosing), self.choosing).tolist(), model

    def _better(self, one: np.ndarray, other: np.ndarray) -> bool:
        """Clearly so: over origins, and over times, since series of one time go together."""
        saved, turn = other - one, self.origins.turn[self.choosing]
        times = np.array([saved[turn == k].mean() for k in np.unique(turn)])
        error = max(_error(saved), _error(times))
        return bool(saved.mean() > max(ERRORS * error, LEAST_GAIN * other.mean()))

    def run(self, first: Kind, moves: Sequence[tuple[str, Callable[[Kind], Kind | None]]]) -> Trial:
        """From the default to the best: one change after the other, each kept where it is clearly better."""
        begun = self.try_kind("default", first)
        if begun is None:
            raise ValueError("The series are too short or too much is missing to learn from them.")
        best, model = begun
        for name, change in moves:
            kind = change(best.kind)
            if kind is None or kind == best.kind:
                continue
            found = self.try_kind(name, kind)
            if found is not None and self._better(found[0].scores, best.scores):
                best, model = found
        self.model = self.train_kind(best.kind) if model is None else model
        for noise in NOISES:
            scores = self.score(self.draw_from(self.model, self.choosing, noise), self.choosing)
            if self._better(scores, best.scores):
                best = Trial(best.name, best.kind, scores, noise)
        return best


def _error(saved: np.ndarray) -> float:
    return float(saved.std(ddof=1) / np.sqrt(len(saved))) if len(saved) > 1 else 0.0


def _unit(values: np.ndarray) -> np.ndarray:
    """The mean size of a step of each column, but for odd ones; NaN where there is none."""
    sizes = []
    for column in values.T:
        steps = np.abs(np.diff(settled(column)[0]))
        steps = steps[np.isfinite(steps)]
        sizes.append(steps.mean() if (steps > 0).any() else np.nan)
    return np.array(sizes)


def grows_with_level(panel: Panel) -> bool:
    """Whether steps are those of a walk of the logarithm rather than of the values: the likelihood of Box and Cox, of steps with
    Laplace's law beside their median, which odd ones do not decide."""
    gained = 0.0
    for values in panel.values[:: max(1, len(panel) // MOST_LEARNED)]:
        for column in values.T:
            y = column[np.isfinite(column)]
            if len(y) < 3 or (y == y[0]).all():
                continue
            if y.min() <= 0:
                return False
            sizes = [np.abs(steps - np.median(steps)).mean() for steps in (np.diff(y), np.diff(np.log(y)))]
            own, other = (np.log(max(size, 1e-12)) for size in sizes)
            gained += len(y) * (own - other - np.log(y).mean())
    return gained > 0


def first_kind(panel: Panel, seasons: tuple[float, ...], log: bool) -> Kind:
    """What is tried first: each series in its own way, without the seasons that were found, if what is trained on shows them often
    enough; the steps that this leaves know nothing of those before."""
    length = float(np.median([len(s) for s in panel.steps]))
    taken = length >= TAKEN * max(seasons, default=0.0)
    off = Decomposition(curve="log" if log else "none", seasons=seasons, taken=taken)
    return Kind(off=off, history=1, own=True)


def _tied(column: np.ndarray) -> float:
    """The share of a series that has its most frequent value."""
    seen = column[np.isfinite(column)]
    return float(np.unique(seen, return_counts=True)[1].max() / len(seen)) if len(seen) else 0.0


def usual_moves(
    panel: Panel, first: Kind, periods: Sequence[float] = (), standing_out: float | None = None
) -> list[tuple[str, Callable[[Kind], Kind | None]]]:
    """Changes in the order in which they are tried. A longer history holds the shortest season; if none was found, the shortest
    of the calendar's periods: some of the series may have it. A period that stands out is not yet a season."""
    seasons, length = first.off.seasons, float(np.median([len(s) for s in panel.steps]))
    positive = all(bool((v[np.isfinite(v)] > 0).all()) for v in panel.values)
    period = min(seasons or [p for p in periods if p < MOST_SLOTS], default=0.0)
    slots = int(min(SLOTS, max(1, length // 6)))
    longer = int(min(max(period + 1, 16), length // 6, MOST_SLOTS))
    other = {"none": "log", "log": "none"}
    ties = np.median([_tied(c) for v in panel.values for c in v.T]) >= TIED
    num = sum(len(s) for s in panel.steps)
    enough = num >= PER_SLOT * longer

    def off(kind: Kind, **changes: object) -> Kind:
        return replace(kind, off=replace(kind.off, **changes))  # type: ignore[arg-type]

    return [
        ("season", lambda k: off(k, seasons=(standing_out,)) if standing_out else None),
        ("columns apart", lambda k: replace(k, apart=True) if panel.size > 1 else None),
        ("ranks", lambda k: replace(off(k, curve="ranks", level=True), own=False, history=slots) if ties else None),
        ("history", lambda k: replace(k, history=slots)),
        ("all alike", lambda k: replace(k, own=False, history=slots)),
        ("level", lambda k: replace(off(k, level=True), own=False, history=slots)),
        ("no season", lambda k: off(k, seasons=()) if k.off.seasons else None),
        ("logarithm", lambda k: off(k, curve=other[k.off.curve]) if positive and k.off.curve in other else None),
        ("shorter history", lambda k: replace(k, history=2) if k.history > 2 else None),
        ("longer history", lambda k: replace(k, history=longer) if longer > k.history and enough else None),
        ("curved, narrow", lambda k: replace(k, width=16) if num >= NARROW and k.history > 1 else None),
        ("curved, wide", lambda k: replace(k, width=64) if num >= WIDE and k.history > 1 else None),
        (
            "phases",
            lambda k: off(replace(k, width=k.width or 16), phases=True) if k.off.seasons and num >= NARROW else None,
        ),
        ("tails", lambda k: replace(k, tails=True) if num >= TAILS else None),
    ]
