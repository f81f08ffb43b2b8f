"""What a set of paths holds, in numbers and in words: sizes, gaps, features, and what looks as if it were not meant."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from neuralsde.core.doors import door
from neuralsde.data.diagnosis import Trait, diagnose
from neuralsde.data.trajectories import Paths

FEW_VALUES = 10  # up to so many distinct values look like categories
ENOUGH = 50  # observations from which a suspicion is uttered
FAR = 20.0  # robust standard deviations from the median that make an outlier
SHOWN = 40  # features listed in the text


@dataclass(frozen=True)
class Spread:
    """Smallest, median and largest of some numbers."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: np.ndarray) -> Spread:
        """The three of `values`."""
        return cls(float(values.min()), float(np.median(values)), float(values.max()))

    def __str__(self) -> str:
        same = self.low == self.high
        return f"{self.low:.6g}" if same else f"{self.low:.6g} to {self.high:.6g} (median {self.median:.6g})"


@dataclass(frozen=True)
class Feature:
    """One feature over all paths; only what was observed counts."""

    name: str
    low: float
    high: float
    mean: float
    std: float
    missing: float  # share of its entries that were not observed
    still: float  # share of its steps, observed at both ends, that are zero
    num_missing: int = 0  # the number of entries that were not observed

    @property
    def shown_missing(self) -> str:
        """Their share, or their number where the share would read as nothing."""
        share = f"{100 * self.missing:5.1f} %"
        return f"{self.num_missing:7,}" if self.num_missing and share == "  0.0 %" else share


@dataclass(frozen=True)
class Description:
    """A summary of paths; `print` it, or take `to_dict()` for JSON."""

    num_paths: int
    num_observations: int
    lengths: Spread  # observations per path
    durations: Spread  # time from the first to the last observation of a path
    gaps: Spread  # time between consecutive observations
    features: tuple[Feature, ...]
    traits: tuple[Trait, ...]  # what kind of paths these are, each with what follows from it
    warnings: tuple[str, ...]  # what looks as if it were not meant, each with what to do about it

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        factor = self.gaps.high / self.gaps.low
        width = max(len("feature"), *(len(f.name) for f in self.features[:SHOWN]))
        lines = [
            f"{self.num_paths} path(s), {self.num_observations} observations; per path: {self.lengths}",
            f"duration of a path: {self.durations}",
            f"time between observations: {self.gaps}"
            + (f", irregular by a factor {factor:.3g}" if factor > 1.01 else ""),
            f"{'feature':{width}}  {'min':>11} {'max':>11} {'mean':>11} {'std':>11}  missing  still",
        ]
        for f in self.features[:SHOWN]:
            numbers = " ".join(f"{v:11.5g}" for v in (f.low, f.high, f.mean, f.std))
            lines.append(f"{f.name:{width}}  {numbers}  {f.shown_missing} {100 * f.still:5.1f} %")
        if len(self.features) > SHOWN:
            lines.append(f"… and {len(self.features) - SHOWN} more features")
        lines += [f"{trait.name}: {trait.text}" for trait in self.traits]
        return "\n".join([*lines, *(f"! {warning}" for warning in self.warnings)])


@door
def describe(data: Paths) -> Description:
    """Sizes, gaps, features and what looks suspicious: print it before you train.

    Arrays with several axes are summarised per entry of the first, e.g. per channel.
    """
    lengths, times = data.lengths.cpu().numpy(), data.times.cpu().numpy()
    last = lengths.cumsum() - 1
    inner = np.delete(np.arange(len(times) - 1), last[:-1])  # steps within paths
    gaps = np.diff(times)[inner]
    states = data.states.cpu().numpy().reshape(len(times), data.shape[0], -1)
    whole = np.ones(states.shape, bool)
    observed = whole if data.observed is None else data.observed.cpu().numpy().reshape(states.shape)
    names = data.names or tuple(f"feature {k}" for k in range(data.shape[0]))
    features, warnings = [], []
    for k, name in enumerate(names):
        x = np.where(observed[:, k], states[:, k].astype(np.float64), np.nan)
        features.append(_summary(name, x, inner))
        if len(data.shape) == 1:
            warnings += [f"{name} {text}" for text in _suspicions(features[-1], x[:, 0], inner, gaps)]
    spread = Spread.of(gaps)
    if spread.high > 10 * spread.low:
        warnings.append(
            f"the time between observations ranges over a factor {spread.high / spread.low:.3g}: give a `lag`, or learn with "
            'transition="moments", which holds for wide gaps (`nsde fit` does)'
        )
    if len(gaps) < 200:
        warnings.append(f"there are only {len(gaps)} steps to learn from: expect a rough model")
    if len(data.shape) == 1:
        warnings += _repeated(names, np.where(observed[..., 0], states[..., 0], np.nan))
    return Description(
        num_paths=len(lengths),
        num_observations=len(times),
        lengths=Spread.of(lengths),
        durations=Spread.of(times[last] - times[last - lengths + 1]),
        gaps=spread,
        features=tuple(features),
        traits=diagnose(data).traits,
        warnings=tuple(warnings),
    )


def _summary(name: str, x: np.ndarray, inner: np.ndarray) -> Feature:
    """Of entries x (L, K), NaN where not observed."""
    if np.isnan(x).all():
        nan = math.nan
        return Feature(name, nan, nan, nan, nan, missing=1.0, still=0.0, num_missing=x.size)
    steps = np.diff(x, axis=0)[inner]
    known = ~np.isnan(steps)
    return Feature(
        name=name,
        low=float(np.nanmin(x)),
        high=float(np.nanmax(x)),
        mean=float(np.nanmean(x)),
        std=float(np.nanstd(x)),
        missing=float(np.isnan(x).mean()),
        still=float((steps[known] == 0).mean()) if known.any() else 0.0,
        num_missing=int(np.isnan(x).sum()),
    )


def _suspicions(feature: Feature, x: np.ndarray, inner: np.ndarray, gaps: np.ndarray) -> list[str]:
    """What to look at in one feature (L,)."""
    if feature.missing == 1:
        return ["was never observed: drop it"]
    seen, steps = x[~np.isnan(x)], np.diff(x)
    within = steps[inner]
    moves = within[~np.isnan(within)]
    if feature.low == feature.high:
        return ["never changes: drop it"]
    found = []
    if feature.missing > 0.5:
        found.append(f"is missing in {100 * feature.missing:.0f} % of the observations: the filled values are guesses")
    if len(seen) >= ENOUGH and len(distinct := np.unique(seen)) <= FEW_VALUES:
        text = f"takes only {len(distinct)} values: a category? It is no diffusion; make it context, or drop it"
        return [*found, text]
    if len(moves) >= ENOUGH and (moves.min() >= 0 or moves.max() <= 0):
        way = "grows" if moves.min() >= 0 else "falls"
        found.append(f"only ever {way}: a counter or a clock? Use its increments, or drop it")
    median = np.median(seen)
    far = np.abs(seen - median) > FAR * 1.4826 * np.median(np.abs(seen - median))
    if 0 < far.sum() <= 0.01 * len(seen):
        found.append(
            f"has {far.sum()} value(s) more than {FAR:g} robust standard deviations from its median, e.g. {seen[far][0]:g}: "
            "a marker for missing values, or an error?"
        )
    scaled = np.full(len(steps), np.nan)
    scaled[inner] = within / np.sqrt(gaps)
    pairs = np.stack([scaled[:-1], scaled[1:]])[:, ~np.isnan(scaled[:-1] + scaled[1:])]
    if pairs.shape[1] < ENOUGH:
        return found
    pairs = pairs[:, (np.abs(pairs) <= 8 * np.nanstd(scaled)).all(0)]  # a single spike must not decide
    if pairs.shape[1] >= ENOUGH and pairs.std(1).all():
        cancel = float(np.corrcoef(pairs)[0, 1])
        if cancel < -0.15 and cancel * pairs.shape[1] ** 0.5 < -4:
            found.append(
                f"has steps that cancel one another (correlation {cancel:.2f}): measurement noise, which would be learned as "
                "diffusion, or observations too far apart. Smooth it, or learn the noise: several lags and measurement=True"
            )
    return found


def _repeated(names: tuple[str, ...], states: np.ndarray) -> list[str]:
    """Features (L, F) that are another one over again, up to scale and offset."""
    found = []
    for k in range(1, min(len(names), 200)):
        for j in range(k):
            both = states[:, [j, k]][~np.isnan(states[:, [j, k]]).any(1)].astype(np.float64)
            if len(both) < 3 or not both.std(0).all():
                continue
            a, b = ((both - both.mean(0)) / both.std(0)).T
            if np.abs(a - np.sign(a @ b) * b).max() < 1e-4:
                found.append(f"{names[k]} repeats {names[j]}: drop one of them")
                break
    return found
