"""What kind of paths these are, from the data alone: smooth or rough, their order, their noise, their time.

Everything is measured on steps of the data in units of its spread, most of it by one question: *how much smaller is the error
of predicting the next step when one more thing is known?* The predictor is a ridge regression on random features, fitted on some
blocks of time and judged on the others, so that it bends where the data does and does not count what it has by heart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neuralsde.data.trajectories import Trajectories

MOST_STEPS = 3_000  # steps that are looked at
FEATURES = 150  # random features of the regressions
USUAL = 3.0  # standard deviations beyond which these are constant
MOST_DIMENSIONS = 256  # of states; more, and pictures, are not looked at
FEWEST_TOGETHER, MOST_TOGETHER = 3, 200  # paths whose mean is looked at
FEWEST = 30  # steps from which on something is said
SMOOTH = 0.75  # growth of increments from which on paths are smooth; a diffusion has 1/2, a line 1
CANCEL = 0.35  # growth below which steps cancel one another
HELPS = 0.05  # share of the error that something must take away to be said to help
TOGETHER = 0.25  # correlation of residuals
TAILS = 1.4  # how far the 99.5 % quantile of residuals lies out, in units of where a Gaussian's does
MEASURED = 0.3  # share of a step's variance that does not shrink with its length
FAST = 5.0  # how much faster a direction of small variance forgets than the largest
MANY, FEW, MOST_OF_IT = 9, 0.4, 0.95  # features, and the share of directions that hold most of their variance
UNEXPLAINED = 1e-3  # share of a step that must be left for its noise to be looked at
FEW_PATHS = 12
AHEAD = (0.16, 0.25)  # of a path, over which its change is looked at; a quarter of that, of one path
WHERE = 0.1  # share of that change that levels tell, where there are any to come back to
WRAPS, REST = 0.7, 0.3  # of a feature's range: steps of an angle that goes round, and all the others
ALONE, FAR = 12.0, 2.0  # how far a faulty observation is from its neighbours, in usual distances and in spreads
AGREE, FAULTY = 0.3, 0.03  # how far these are apart, in that distance; the largest share of such observations
MIDDLE = 0.1  # share of observations that are not at the ends of the range
FEWEST_VALUES = 5  # of a feature, up to which it jumps from one to the other
DENSE = 40  # steps of a path from which on a longer lag is worth a trial
NEAR = 0.15  # of both ends, for states between 0 and 1
LEVEL = 0.15  # rank correlation of the size of steps with the level
BINS, OF_A_BIN, RANGE = 10, 200, 2.0  # of levels; steps of each, and the factor that they span
POWER_ERROR = 0.15  # of noise in proportion to the level


@dataclass(frozen=True)
class Trait:
    """One thing that was found: its name, its number, and a sentence with what follows from it."""

    name: str
    value: float
    text: str


@dataclass(frozen=True)
class Diagnosis:
    """What was found in a set of paths."""

    traits: tuple[Trait, ...]
    num_paths: int
    num_steps: int  # of all paths together
    path_steps: int  # of a typical path
    gap: float  # the typical time between observations
    duration: float  # of a typical path
    dimensions: int

    together: float = 0.0  # share of the variance that the mean path explains: paths that go somewhere, from one start
    uneven: bool = False  # whether features have scales that differ by more than a factor of five
    complete: bool = True  # whether every entry was observed

    def __contains__(self, name: str) -> bool:
        return any(trait.name == name for trait in self.traits)

    def value(self, name: str) -> float:
        """The number of a trait; NaN where it was not found."""
        return next((trait.value for trait in self.traits if trait.name == name), math.nan)

    def __str__(self) -> str:
        return "\n".join(f"{trait.name}: {trait.text}" for trait in self.traits)


def diagnose(data: Trajectories) -> Diagnosis:
    """Look at the steps of `data`."""
    lengths = data.lengths.cpu().numpy()
    times = data.times.cpu().numpy().astype(np.float64)
    steps = int((lengths - 1).sum())
    first = lengths.cumsum() - lengths
    durations = times[first + lengths - 1] - times[first]
    inner = np.delete(np.arange(len(times) - 1), lengths.cumsum()[:-1] - 1)
    traits: list[Trait] = []
    if len(data.shape) == 1 and data.shape[0] <= MOST_DIMENSIONS and steps >= FEWEST:
        traits = _Steps(data, times, lengths).traits()
    return Diagnosis(
        traits=tuple(traits),
        num_paths=len(lengths),
        num_steps=steps,
        path_steps=int(np.median(lengths)) - 1,
        gap=float(np.median(np.diff(times)[inner])),
        duration=float(np.median(durations)),
        dimensions=math.prod(data.shape),
        together=_together(data, times, lengths),
        uneven=_uneven(data),
        complete=data.observed is None,
    )


def _together(data: Trajectories, times: np.ndarray, lengths: np.ndarray) -> float:
    """How much of the variance of several paths is that of their mean at the same time since the start."""
    if len(lengths) < FEWEST_TOGETHER or data.observed is not None:
        return 0.0
    states = data.states.cpu().numpy().reshape(len(times), -1).astype(np.float64)
    ends = lengths.cumsum()
    paths = [(times[a:b] - times[a], states[a:b]) for a, b in zip(ends - lengths, ends)][:MOST_TOGETHER]
    at = np.linspace(0, min(t[-1] for t, _ in paths), 20)
    seen = np.stack([x[np.searchsorted(t, at, side="right") - 1] for t, x in paths])
    whole = seen.var(axis=(0, 1)).sum()
    return float(1 - seen.var(axis=0).mean(0).sum() / whole) if whole > 0 else 0.0


def _uneven(data: Trajectories) -> bool:
    spread = data.states.cpu().double().flatten(1).std(0, correction=0)
    return bool(spread.max() > 5 * spread.min())


class _Steps:
    """Steps of the data in units of its spread, and the questions that are put to them."""

    def __init__(self, data: Trajectories, times: np.ndarray, lengths: np.ndarray) -> None:
        raw = data.states.cpu().numpy().astype(np.float64)
        if data.observed is not None:
            raw = np.where(data.observed.cpu().numpy(), raw, np.nan)
        self.names = data.names or tuple(f"feature {k}" for k in range(raw.shape[1]))
        spread = np.nanstd(raw, axis=0)
        moves = np.isfinite(spread) & (spread > 1e-9 * np.maximum(1e-300, np.nanmax(np.abs(raw), axis=0)))
        self.still = [name for name, own in zip(self.names, moves) if not own]
        self.raw, self.names = raw[:, moves], tuple(n for n, own in zip(self.names, moves) if own)
        self.x = (self.raw - np.nanmean(self.raw, axis=0)) / spread[moves] if moves.any() else self.raw
        self.times, self.lengths, self.alone = times, lengths, len(lengths) == 1
        self.path = np.repeat(np.arange(len(lengths)), lengths)
        self.first = (lengths.cumsum() - lengths)[self.path]
        self.since = times - times[self.first]
        self.last = self.first + lengths[self.path] - 1
        self.rng = np.random.default_rng(0)

    def traits(self) -> list[Trait]:
        found = [*self._still(), *self._number(), *self._values()]
        if self.x.shape[1] == 0:
            return found
        middle = self._triples()
        if len(middle) < FEWEST:
            return found
        growth = self._growth()
        rough = growth < SMOOTH
        found += self._smooth(growth)
        before, now, target = self._regression(middle)
        base = self._errors(now, target, middle)
        second = self._order(base, before, now, target, middle)
        found += second
        known = before if second else now
        left = self._residuals(known, target, middle)
        errors = (left**2).mean(1)
        found += self._time(errors, known, target, middle)
        if float(errors.mean() / np.mean(target**2)) > UNEXPLAINED and len(middle) >= 200:
            found += self._together(left)
            found += self._tails(left, now)
        if rough:
            found += self._measured(growth)
        found += [*self._wanders(), *(self._wraps() or self._alone(middle))]
        return [*found, *self._fast(), *self._few(), *self._level(), *self._gaps(), *self._dense(growth)]

    # Rows

    def _triples(self) -> np.ndarray:
        """Rows with a neighbour on both sides, all observed; evenly spread."""
        index = np.arange(len(self.x))
        good = (index > self.first) & (index < self.last)
        whole = np.asarray(np.isfinite(self.x).all(1))
        rows = index[good]
        rows = rows[whole[rows] & whole[rows - 1] & whole[rows + 1]]
        return (
            rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_STEPS)).astype(int))]
            if len(rows)
            else rows
        )

    def _starts(self, k: int) -> np.ndarray:
        """Rows that have another `k` observations later in their path."""
        index = np.arange(len(self.x) - k)
        return index[self.last[index] >= index + k]

    def _increments(self, index: np.ndarray, k: int) -> np.ndarray:
        """Mean squares of increments over `k` observations, per feature."""
        return np.nanmean((self.x[index + k] - self.x[index]) ** 2, axis=0)

    def _whole(self) -> tuple[np.ndarray, np.ndarray]:
        """Which rows were observed in all features, and the rows from which a step leads from one of these to another."""
        whole, index = np.asarray(np.isfinite(self.x).all(1)), self._starts(1)
        return whole, index[whole[index] & whole[index + 1]]

    def _regression(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What is known with the step before and without it, and the next step; in units of a step."""
        now = self.x[rows]
        ahead = (self.times[rows + 1] - self.times[rows])[:, None]
        behind = (self.times[rows] - self.times[rows - 1])[:, None]
        target = (self.x[rows + 1] - now) / np.sqrt(ahead)
        before = (now - self.x[rows - 1]) / behind * np.sqrt(np.median(ahead))
        scale = before.std(0)
        before = before / np.where(scale > 0, scale, 1.0)
        size = target.std(0)
        return np.concatenate([now, before], 1), now, target / np.where(size > 0, size, 1.0)

    # Regressions

    def _errors(self, inputs: np.ndarray, target: np.ndarray, rows: np.ndarray, *, forward: bool = False) -> np.ndarray:
        """Squared error of each row."""
        return np.asarray((self._residuals(inputs, target, rows, forward=forward) ** 2).mean(1))

    def _residuals(
        self, inputs: np.ndarray, target: np.ndarray, rows: np.ndarray, *, forward: bool = False
    ) -> np.ndarray:
        """What the best of three regressions on other blocks of time (`forward`: earlier ones), or other paths, leaves of each row.

        They are of a constant, of the inputs, and of waves of them: where levels are new, waves say anything.
        """
        design, num = self._design(inputs), inputs.shape[1]
        block = (5 * np.arange(len(rows)) // len(rows)) if len(self.lengths) < 5 else self.path[rows] % 5
        every = []
        for some in (design[:, :1], design[:, : 1 + num], design)[: 3 if num else 1]:
            left = np.zeros_like(target)
            for fold in np.unique(block):
                own, other = block == fold, block < fold if forward else block != fold
                if other.sum() < 10:
                    left[own] = target[own]
                    continue
                left[own] = target[own] - _ridge(some[other], target[other], some[own])
            every.append(left)
        return min(every, key=lambda left: float((left**2).mean()))

    def _design(self, inputs: np.ndarray) -> np.ndarray:
        """A constant, the inputs, and random waves of them, as far as these are usual."""
        rng = np.random.default_rng(1)
        d = inputs.shape[1]
        num = min(FEATURES, max(20, len(inputs) // 4))
        waves = rng.standard_normal((d, num)) / math.sqrt(d) * rng.choice([0.5, 1.0, 2.0], num)
        seen = np.clip(inputs, -USUAL, USUAL)
        return np.concatenate(
            [np.ones((len(inputs), 1)), inputs, np.cos(seen @ waves + rng.uniform(0, 2 * np.pi, num))], 1
        )

    # Questions

    def _still(self) -> list[Trait]:
        if not self.still:
            return []
        what = f"{_listed(self.still)} never changes"
        return [Trait("constant", len(self.still), f"{what}. It is kept as it is, and teaches nothing.")]

    def _number(self) -> list[Trait]:
        num = len(self.lengths)
        if num == 1:
            return [Trait("one path", 1, "There is one path: blocks of its time are held out in turn.")]
        if num <= FEW_PATHS:
            return [
                Trait("few paths", num, f"There are {num} paths: each is held out in turn, and small nets are tried.")
            ]
        return []

    def _values(self) -> list[Trait]:
        """Features that take few values."""
        few = [
            name for name, own in zip(self.names, self.raw.T) if len(np.unique(own[np.isfinite(own)])) <= FEWEST_VALUES
        ]
        if not few:
            return []
        what = f"{_listed(few)} takes at most {FEWEST_VALUES} values"
        return [Trait("few values", len(few), f"{what}. Paths that are drawn pass between these: round them.")]

    def _growth(self) -> float:
        """Half the slope of log squared increments against the log of their time, over one and two steps."""
        sizes, gaps = [], []
        for k in (1, 2):
            index = self._starts(k)
            if len(index) < 10:
                return 0.5
            sizes.append(self._increments(index, k))
            gaps.append(np.mean(self.times[index + k] - self.times[index]))
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.log(sizes[1] / sizes[0]) / math.log(gaps[1] / gaps[0]) / 2
        return float(np.nanmedian(slope))

    def _smooth(self, growth: float) -> list[Trait]:
        if growth >= SMOOTH:
            what = f"Paths are smooth: increments grow with the time to the power {growth:.2f}"
            return [Trait("smooth", growth, f"{what}. Two slots, or a longer lag, show the velocity.")]
        what = f"Paths are rough: increments grow with the time to the power {growth:.2f}, as those of a diffusion do (0.5)"
        return [Trait("rough", growth, f"{what}. The noise is learned step by step.")]

    def _order(
        self, base: np.ndarray, before: np.ndarray, now: np.ndarray, target: np.ndarray, rows: np.ndarray
    ) -> list[Trait]:
        gain = _gain(base, self._errors(before, target, rows))
        if gain < HELPS:
            return []
        what = f"The observation before the last takes away {100 * gain:.0f} % of the error of the next step"
        return [Trait("second order", gain, f"{what}. A history of two is tried.")]

    def _time(self, base: np.ndarray, known: np.ndarray, target: np.ndarray, rows: np.ndarray) -> list[Trait]:
        """Time since the start of the path, or a season."""
        found = []
        since = self.since[rows][:, None]
        if len(self.lengths) >= 3 and since.std() > 0:
            gain = _gain(
                base, self._errors(np.concatenate([known, 3 * (since - since.mean()) / since.std()], 1), target, rows)
            )
            if gain >= HELPS:
                what = f"The time since the start of a path takes away {100 * gain:.0f} % of the error"
                found.append(Trait("time since start", gain, f"{what}. It is tried as an input of the nets."))
        period = self._period()
        if period:
            turn = 2 * np.pi * self.times[rows][:, None] / period
            if self.alone:  # waves that are only nearly regular lose their phase
                base = self._errors(known, target, rows, forward=True)
            phase = np.concatenate([known, 2 * np.cos(turn), 2 * np.sin(turn)], 1)
            gain = _gain(base, self._errors(phase, target, rows, forward=self.alone))
            if gain >= 0.02:
                what = f"There is a season of {period:.4g}: its phase takes away {100 * gain:.0f} % of the error"
                found.append(Trait("season", period, f"{what}. It is tried as an input of the nets."))
        return found

    def _period(self) -> float:
        """The strongest period of the longest path, of which it must hold four; 0: none."""
        longest = int(self.lengths.argmax())
        own = np.flatnonzero(self.path == longest)
        times, x = self.times[own], self.x[own]
        if len(own) < 60:
            return 0.0
        grid = np.linspace(times[0], times[-1], min(2 * len(own), 16_384))
        power: np.ndarray | float = 0.0
        for k in range(min(x.shape[1], 32)):
            known = np.isfinite(x[:, k])
            if known.sum() < 60:
                continue
            line = np.interp(grid, times[known], x[known, k])
            line = line - np.polyval(np.polyfit(grid, line, 1), grid)
            power = power + np.abs(np.fft.rfft(line * np.hanning(len(line)))) ** 2
        if isinstance(power, float) or power[4:].sum() <= 0:
            return 0.0
        cycles = 4 + int(power[4 : len(power) // 4].argmax())
        near = power[cycles - 1 : cycles + 2].sum() / power[4:].sum()
        if near < 0.2 or power[cycles] < power[cycles - 1]:
            return 0.0
        a, b, c = np.log(power[cycles - 1 : cycles + 2] + 1e-300)
        exact = cycles + 0.5 * (a - c) / (a - 2 * b + c) if a - 2 * b + c < 0 else float(cycles)
        return float((times[-1] - times[0]) * len(grid) / (len(grid) - 1) / exact)

    def _together(self, left: np.ndarray) -> list[Trait]:
        if left.shape[1] < 2:
            return []
        noise = left / np.maximum(left.std(0), 1e-12)
        noise = np.clip(noise, -4, 4)
        found = np.corrcoef(noise.T)
        np.fill_diagonal(found, 0.0)
        place = np.unravel_index(np.abs(found).argmax(), found.shape)
        value = float(found[place])
        if abs(value) < TOGETHER:
            return []
        what = f"The noise of {self.names[place[0]]} and {self.names[place[1]]} goes together ({value:.2f})"
        return [Trait("correlated noise", value, f"{what}. A covariance is tried.")]

    def _tails(self, left: np.ndarray, now: np.ndarray) -> list[Trait]:
        """Of residuals in units of their size at each state."""
        design = self._design(now)
        size = np.exp(0.5 * _ridge(design, np.log(left**2 + 1e-12), design))
        z = np.abs(left / size)
        low, high = np.quantile(z, [0.5, 0.995], axis=0)
        far = float(np.max(high / np.maximum(low, 1e-12)) / (2.807 / 0.6745))
        if far < TAILS:
            return []
        what = f"Steps have heavy tails or jumps: one in 200 is {far:.1f} times as large as a Gaussian's would be"
        return [Trait("heavy tails", far, f"{what}. A mixture is tried.")]

    def _measured(self, growth: float) -> list[Trait]:
        """The part of a step's variance that does not shrink with its length: to zero from one, two and three steps."""
        sizes = []
        for k in (1, 2, 3):
            index = self._starts(k)
            if len(index) < FEWEST:
                return []
            sizes.append(self._increments(index, k))
        share = float(np.max((3 * sizes[0] - 3 * sizes[1] + sizes[2]) / np.maximum(sizes[0], 1e-300)))
        if share < MEASURED or growth > CANCEL:
            return []
        what = (
            f"Steps cancel one another: {100 * min(share, 1):.0f} % of their variance does not shrink with their length"
        )
        return [Trait("measurement noise", share, f"{what}. It is measurement noise, or observations are far apart.")]

    def _wanders(self) -> list[Trait]:
        """Whether the level tells nothing of where a path goes."""
        told = max(self._told(share / 4 if self.alone else share) for share in AHEAD)
        if not told <= WHERE:
            return []
        what = "Paths wander: where one is tells nothing of where it goes"
        then = "Nets that see steps and no levels are tried, and held out is what comes later"
        return [Trait("wanders", told, f"{what}. {then}.")]

    def _told(self, share: float) -> float:
        """How much of the change over this share of a path its level tells; NaN where there are few."""
        ahead = max(1, int(share * (np.median(self.lengths) - 1)))
        whole, index = np.asarray(np.isfinite(self.x).all(1)), self._starts(ahead)
        index = index[whole[index] & whole[index + ahead]]
        if len(index) < FEWEST:
            return math.nan
        rows = index[np.unique(np.linspace(0, len(index) - 1, min(len(index), MOST_STEPS)).astype(int))]
        change = self.x[rows + ahead] - self.x[rows]
        levels = self.x[rows]
        left, without = (self._residuals(x, change, rows, forward=self.alone) for x in (levels, levels[:, :0]))
        return float(1 - (left**2).mean() / max((without**2).mean(), 1e-300))

    def _wraps(self) -> list[Trait]:
        """Features that jump by their whole range, and otherwise move little: angles."""
        index, around = self._starts(1), []
        for name, own in zip(self.names, self.raw.T):
            low, span = np.nanmin(own), np.nanmax(own) - np.nanmin(own)
            step, middle = np.abs(own[index + 1] - own[index]), np.nanmean(np.abs((own - low) / span - 0.5) < 0.25)
            jumps = step > WRAPS * span
            if middle > MIDDLE and jumps.sum() >= 3 and np.nanmax(step[~jumps], initial=0.0) < REST * span:
                around.append(name)
        if not around:
            return []
        what = f"{_listed(around)} jumps from one end of its range to the other, as an angle does"
        return [Trait("wraps", len(around), f"{what}. Give numpy.unwrap of it, or its sine and cosine.")]

    def _alone(self, rows: np.ndarray) -> list[Trait]:
        """Single observations that are far from both neighbours, which agree."""
        before, own, after = (self.x[rows + k] for k in (-1, 0, 1))
        away, apart = np.abs(own - (before + after) / 2), np.abs(after - before)
        usual = np.median(away, axis=0)
        alone = (away > np.maximum(ALONE * usual, FAR)) & (apart < AGREE * away) & (apart > 0) & (usual > 0)
        num = alone.sum(0)
        where = [name for name, own in zip(self.names, num) if 3 <= own <= FAULTY * len(rows)]
        if not where:
            return []
        share = float(num.max() / len(rows))
        what = f"Single observations of {_listed(where)} lie far from both neighbours (at most {100 * share:.1f} %)"
        then = "If they are faults, make them NaN and read the data with missing=True"
        return [Trait("outliers", share, f"{what}. {then}.")]

    def _fast(self) -> list[Trait]:
        """A direction of small variance that forgets much faster than the largest."""
        if self.x.shape[1] < 2:
            return []
        whole, index = self._whole()
        if len(index) < 100:
            return []
        values, vectors = np.linalg.eigh(np.cov(self.x[whole].T))
        size = np.maximum(values, 1e-12)
        moved = ((self.x[index + 1] - self.x[index]) @ vectors).var(0) / size  # 2 (1 - autocorrelation)
        small = size < 0.1 * size.max()
        ratio = float((moved[small] / max(moved[size.argmax()], 1e-12)).max()) if small.any() else 0.0
        if ratio < FAST or float(moved[small].max()) < 0.02:
            return []
        what = f"A direction with little variance forgets {ratio:.0f} times as fast as the widest one"
        return [Trait("fast directions", ratio, f"{what}. Uncorrelated coordinates are tried.")]

    def _few(self) -> list[Trait]:
        """Many features that move in few directions, in the units that they have and in those of their spread."""
        whole, index = self._whole()
        size = self.raw.shape[1]
        if size < MANY or len(index) < 2 * size or not whole.all():
            return []

        def needed(states: np.ndarray) -> int:
            values = np.linalg.eigvalsh(np.cov(states.T))[::-1]
            return int(np.searchsorted(values.cumsum(), MOST_OF_IT * values.sum())) + 1

        num = needed(self.raw)
        if max(num, needed(self.x)) > FEW * size:
            return []
        what = f"{num} of {size} directions hold {100 * MOST_OF_IT:.0f} % of the variance"
        return [
            Trait("few directions", num, f"{what}. A model of these is tried, with the rest as noise that reverts.")
        ]

    def _level(self) -> list[Trait]:
        """Above zero, and steps grow with the level."""
        whole, index = self._whole()
        positive = bool((self.raw[whole] > 0).all()) and len(index) >= 50
        if not positive:
            return []
        low, high = float(self.raw[whole].min(0).max()), float(self.raw[whole].max(0).min())
        if float(self.raw[whole].max()) < 1 and low < NEAR and high > 1 - NEAR:
            what = f"States lie between 0 and 1, from {low:.3g} to {high:.3g}"
            return [Trait("between 0 and 1", high, f"{what}. The logit is tried, which keeps them there.")]
        grows = [
            _rank_correlation(np.abs(self.raw[index + 1, k] - self.raw[index, k]), self.raw[index, k])
            for k in range(self.raw.shape[1])
        ]
        value = float(np.median(grows))
        if value < LEVEL:
            return []
        what = f"States are above 0 and their steps grow with their level (rank correlation {value:.2f})"
        found = [Trait("positive", value, f"{what}. The logarithm is tried.")]
        powers = [_power(self.raw[index, k], self.raw[index + 1, k]) for k in range(self.raw.shape[1])]
        if all(abs(power - 1) < POWER_ERROR for power in powers):
            what = f"The noise is in proportion to the level (power {np.median(powers):.2f})"
            found.append(Trait("proportional", float(np.median(powers)), f"{what}. The logarithm makes it even."))
        return found

    def _gaps(self) -> list[Trait]:
        gaps = np.diff(self.times)[self._starts(1)]
        low, high = np.quantile(gaps, [0.05, 0.95])
        if high < 1.2 * low:
            return []
        what = f"Gaps range from {low:.3g} to {high:.3g}"
        return [Trait("irregular", float(high / low), f"{what}. Moments over the whole gap are tried.")]

    def _dense(self, growth: float) -> list[Trait]:
        steps = int(np.median(self.lengths)) - 1
        if growth < SMOOTH or steps < DENSE:
            return []
        what = f"A smooth path has {steps} steps: what decides it is hardly seen in one of them"
        return [Trait("dense", steps, f"{what}. Longer lags are tried.")]


def _ridge(inputs: np.ndarray, target: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Predictions at other inputs; the penalty is the best of a few by generalised cross-validation."""
    size, turn = np.linalg.eigh(inputs.T @ inputs)
    size, along = size.clip(min=0.0), turn.T @ (inputs.T @ target)
    best: tuple[float, np.ndarray] | None = None
    for penalty in size[-1] * np.array([1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]):
        weights = along / (size + penalty)[:, None]
        left = (target**2).sum() - 2 * (weights * along).sum() + (weights**2 * size[:, None]).sum()
        score = left / max(1e-3, 1 - (size / (size + penalty)).sum() / len(inputs)) ** 2
        if best is None or score < best[0]:
            best = score, turn @ weights
    assert best is not None
    return at @ best[1]


def _gain(without: np.ndarray, with_it: np.ndarray) -> float:
    """Share of the error that goes, 0 where that is no more than chance (three standard errors)."""
    saved = without - with_it
    if len(saved) < 2 or saved.mean() <= 3 * saved.std() / math.sqrt(len(saved)):
        return 0.0
    return float(saved.mean() / max(without.mean(), 1e-300))


def _power(level: np.ndarray, after: np.ndarray) -> float:
    """The power of the level that the spread of steps grows with; NaN where levels are few or all alike."""
    order = level.argsort()
    if len(order) < BINS * OF_A_BIN:
        return math.nan
    bins = np.array_split(order, BINS)
    levels = np.log([level[rows].mean() for rows in bins])
    if levels[-1] - levels[0] < math.log(RANGE):
        return math.nan
    spreads = [np.std(after[rows] - level[rows]) for rows in bins]
    return float(np.polyfit(levels, np.log(np.maximum(spreads, 1e-30)), 1)[0])


def _listed(names: list[str]) -> str:
    """The first few names."""
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    ranks: Callable[[np.ndarray], np.ndarray] = lambda v: v.argsort().argsort().astype(np.float64)  # noqa: E731
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])
