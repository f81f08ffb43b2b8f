"""Which seasons some series have: those of the calendar, or a period that stands out in the data.

A season counts where it explains more of the series than it would of series that have their steps and no season: its strength, on
average over the series, is compared with that in simulated ones. A walk has waves of any period by chance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuralsde.forecast.decomposition import STRONG, Waves, strength
from neuralsde.forecast.panel import Panel
from neuralsde.forecast.past import bridged, changes, settled, spread

MOST_SERIES = 50  # that are looked at
MOST_PERIODS, MOST_ROWS = 20, 500  # the last rows of each: so many periods, and at least so many rows
SIMULATED = 40  # series, or as many as there are
BEYOND = 3.0  # standard deviations above the mean of the strength in simulated series
ORDER = 3  # steps before that tell the next one in them
RETURNS = 20.0  # rate at which a series comes back to a level, times its length, from which on it is no walk
SURELY = 6.0  # standard deviations by which a longer period must stand out more than its part
SEEN = 3.0  # how often a period must have been seen to stand out
AROUND = 10  # frequencies on each side of one that may stand out
MULTIPLES = 6  # what stands out may be so short a part of the period
PARTS, STEADY = 4, 0.9  # of a series, which must agree on the phase
NEAR = 0.25  # of the resolution: how near to a whole number a period is taken for it
CHANCE, STRONGEST = 1 / np.log(2), 100.0  # power beside the median around: mean without a period, and as much as counts
ALIKE = 0.03  # share by which the periods of several series may differ

Series = tuple[np.ndarray, np.ndarray]
"""Steps and values (n,)."""


def seasons_in(panel: Panel, candidates: Sequence[float], *, log: bool) -> tuple[float, ...]:
    """Those of some periods that the series show, the shortest first."""
    series, rng = _columns(panel, log), np.random.default_rng(0)
    found: tuple[float, ...] = ()
    for period in sorted(candidates):
        part = [_last(s, period) for s in series]
        both = (*found, period)
        by_chance = [strength(period, found, *made) for s in part for made in _simulated(s, both, len(part), rng)]
        if _is_beyond([strength(period, found, *s) for s in part], by_chance):
            found = (*found, period)
    return found


def standing_out(panel: Panel, *, log: bool) -> float | None:
    """The period that stands out in the series, if they show it more than simulated ones show theirs, and keep its phase."""
    series, rng = [_last(s, 0.0) for s in _columns(panel, log)], np.random.default_rng(0)
    own = [period_of(*s) for s in series]
    known = [p for p in own if p]
    if not known:
        return None
    period = max(known, key=lambda p: sum(abs(p / other - 1) < ALIKE for other in known))
    if np.median([steadiness(period, y) for _, y in series]) < STEADY:
        return None
    made = [each for s, p in zip(series, own) for each in _simulated(s, (p or period,), len(series), rng)]
    by_chance = [strength(period_of(*each) or 2.0, (), *each) for each in made]
    return period if _is_beyond([strength(period, (), *s) for s in series], by_chance) else None


def _columns(panel: Panel, log: bool) -> list[Series]:
    """Those of some of the series, without odd values."""
    series = []
    for k in spread(len(panel), MOST_SERIES):
        columns = np.log(panel.values[k]) if log else panel.values[k]
        series += [(panel.steps[k], settled(c)[0]) for c in columns.T if changes(c[:, None])]
    return series


def _is_beyond(strengths: Sequence[float], by_chance: Sequence[float]) -> bool:
    if not strengths:
        return False
    chance = np.mean(by_chance) + BEYOND * np.std(by_chance) / np.sqrt(len(strengths))
    return bool(np.mean(strengths) > max(STRONG, chance))


def _last(series: Series, period: float) -> Series:
    rows = slice(-int(max(MOST_PERIODS * period, MOST_ROWS)), None)
    return series[0][rows], series[1][rows]


def _simulated(series: Series, seasons: tuple[float, ...], num: int, rng: np.random.Generator) -> list[Series]:
    """One of `num` series in others with what its seasons leave, by an autoregression: of the steps, or around a level.

    The level is that of Dickey and Fuller: a walk comes back to one by chance, and is simulated as a walk.
    """
    steps, y = series
    waves = Waves.of(seasons, len(steps))
    rest = bridged((y - (waves.at(steps) @ waves.fit(steps, y, np.ones(len(steps))) if waves.num else 0.0))[:, None])
    rest = rest[:, 0] - rest[:, 0].mean()
    moves = np.diff(rest)
    if len(moves) < 4 * ORDER:
        return [series]
    before = [moves[ORDER - k : -k] for k in range(1, ORDER + 1)]
    x = np.stack([np.ones(len(moves) - ORDER), *before, rest[ORDER:-1]], axis=1)
    told = np.linalg.lstsq(x, moves[ORDER:], rcond=1e-8)[0]
    if -len(x) * told[-1] < RETURNS * (1 - told[1:-1].sum()):
        told = np.append(np.linalg.lstsq(x[:, :-1], moves[ORDER:], rcond=1e-8)[0], 0.0)
    some = -(-SIMULATED // num)
    noise = (moves[ORDER:] - x @ told)[rng.integers(len(x), size=(len(moves), some))]
    made = np.repeat(rest[:, None], some, axis=1)
    for t in range(ORDER + 1, len(made)):
        last = made[t - ORDER - 1 : t]
        made[t] = last[-1] + told[0] + told[1:-1] @ np.diff(last, axis=0)[::-1] + told[-1] * last[-1] + noise[t - 1]
    return [(steps, np.where(np.isfinite(y), each, np.nan)) for each in made.T]


def steadiness(period: float, y: np.ndarray) -> float:
    """How well the parts of a series agree on the phase of a period: 1 if they all do. Cycles of no fixed length lose it."""
    moves, found = np.diff(bridged(y[:, None])[:, 0]), []
    for part in np.array_split(np.arange(len(moves)), PARTS):
        weights = np.hanning(len(part) + 2)[1:-1]
        waves = weights * (moves[part] - moves[part].mean()) * np.exp(-2j * np.pi * part / period)
        found.append(waves.sum() / weights.sum())
    return float(np.abs(np.sum(found)) / max(np.abs(found).sum(), 1e-300))


def period_of(steps: np.ndarray, y: np.ndarray) -> float | None:
    """The period of a series whose steps stand out most: by how much more power they have than those of periods near it."""
    num = len(y)
    if np.isfinite(y).sum() < 2 * AROUND:
        return None
    moves = np.diff(bridged(y[:, None])[:, 0])
    moves = np.hanning(len(moves)) * (moves - moves.mean())
    power = np.abs(np.fft.rfft(moves)) ** 2
    wide = np.pad(power[1:], AROUND, mode="reflect")
    usual = np.median(np.lib.stride_tricks.sliding_window_view(wide, 2 * AROUND + 1), axis=1)
    ratio = np.concatenate([[0.0], power[1:] / np.maximum(usual, 1e-300)])
    first = int(np.ceil(SEEN * len(moves) / num))
    if len(ratio) <= first + 1:
        return None
    line = first + int(ratio[first:].argmax())
    near = (line + np.linspace(-1, 1, 41)) / len(moves)
    turn = near[np.abs(np.exp(-2j * np.pi * near[:, None] * np.arange(len(moves))) @ moves).argmax()]
    scores = {}
    for k in range(1, MULTIPLES + 1):
        period = k / turn
        if 2 <= period <= num / SEEN:
            places = np.round(len(moves) / period * np.arange(1, int(period / 2) + 1)).astype(int)
            lines = ratio[places[places < len(ratio)]] - CHANCE
            scores[period] = np.minimum(lines, STRONGEST).sum() - SURELY * CHANCE * np.sqrt(len(lines))
    if not scores:
        return None
    period = max(scores, key=lambda p: scores[p])
    whole = round(period)
    return float(whole) if abs(period - whole) < NEAR * period**2 / num else float(period)
