"""Series that are observed at even times: from a table to forecasts with dates.

`fit_series` finds the frequency, the seasons and the kind of model by a backtest, trains it on everything and says what it
chose. What it returns reads other tables of the kind and forecasts them on their own calendar.
"""

from __future__ import annotations

import math
import os
import shlex
import time as clock
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from neuralsde.core.doors import Count, Seed, door
from neuralsde.core.files import replacing, write_json
from neuralsde.core.records import check, to_dict
from neuralsde.data.tables.calendars import find_frequency, why_uneven
from neuralsde.data.tables.frequency import DAYS, MONDAY, NEAR, WEEK, Frequency, ahead_words
from neuralsde.data.tables.plans import Plan, read_plan
from neuralsde.data.tables.read import Table, read_table
from neuralsde.forecast.backtest import Backtest, Origins, Trial, first_kind, grows_with_level, usual_moves
from neuralsde.forecast.decomposition import OFTEN
from neuralsde.forecast.futures import Forecasts
from neuralsde.forecast.panel import ENDS, Kind, Learned, Panel, draw, learn, with_noise
from neuralsde.forecast.past import changes, filled, spread
from neuralsde.forecast.record import RECORD, SeriesRecord
from neuralsde.forecast.seasonal import Standing, draw_references, period_of, standings
from neuralsde.forecast.seasons import seasons_in, standing_out
from neuralsde.forecast.skill import NUM_LEADS, Laws
from neuralsde.forecast.tables import TableForecast, TableModel, series_record, write_forecasts
from neuralsde.sde.model import NeuralSDE
from neuralsde.selection.fit import SEARCH, SHORT, on_ladder, recorded_search, seconds_of
from neuralsde.training.config import RunOptions, TrainConfig
from neuralsde.training.run_folder import open_run, provenance, write_results

SHARE = 0.7  # of the budget for trials
TRIALS = 10.0  # as many, in the time of one of the default
MOST_TRIALS = 100  # more than there are kinds
TIMED = 20  # steps that are timed
STEPS = (200, 1_500)  # of a trial, at least and at most
LONGER = 2  # steps of the last training, in those of a trial
FEW_GAPS = 4  # between rows: less do not say how often there is one
SHORTEST = 8  # observations of the longest series
JUDGED_PATHS = 200  # of a forecast of the backtest
MOST_AT_ONCE, MOST_HELD = 2**24, 2**30  # numbers of forecasts that are drawn at once, and that are kept in memory
FEWER = "Use fewer `num_paths`, choose series with `ids`, or have them written: `nsde forecast`."
PASTS, MOST_PASTS = 3, 10  # horizons of the past in a picture: so many, or two seasons where these are not many more
MOST_REFERENCED = 400  # forecasts for which references are made
PRIME = 1_000_003  # parts of a forecast have seeds that nobody else chooses
TENSORS = ("path", "origin", "start", "times", "samples", "truth", "mask")
MOST_SEEN = 4  # the horizon is at most the length of the longest series divided by this


@dataclass(frozen=True)
class SeriesModel(TableModel):
    """A model of series at even times."""

    record: SeriesRecord = None  # type: ignore[assignment]
    table: Table | None = None
    """What it was fitted on, where that was in this process."""
    report: SeriesReport | None = None
    tested: tuple[Backtest, Trial] | None = None
    """The backtest and its choice, where that was in this process."""

    def __post_init__(self) -> None:
        assert self.series is not None
        known = self.record.known_ahead
        told = len(self.series.context) + len(known) + self.record.off.num_contexts
        check(
            self.model.scale.context_size == told,
            f"The model is of a version in which covariates known ahead only act on the next row ({', '.join(known)}). Fit again.",
        )

    def panel(self, table: Table) -> Panel:
        """The series of a table, on the calendar of the training."""
        own = self.record.frequency
        self._check_zone(table)
        steps = np.concatenate([own.steps(s) for s in table.stamps()])
        check(
            float((np.abs(steps - np.round(steps)) > 0.25).mean()) <= 0.05,
            f"The model was trained on one observation each {own.words}. Got other stamps in {table.report.file}.",
        )
        gaps = np.concatenate([np.diff(np.round(own.steps(s))) for s in table.stamps()])
        check(
            table is self.table or len(gaps) < FEW_GAPS or gaps.min() < 2,
            f"The model was trained on one observation each {own.words}. Got none within two of another in {table.report.file}. "
            "Give a table of the same frequency.",
        )
        return Panel.of(table, own, _places(table, self.record.known_ahead))

    def _check_zone(self, table: Table) -> None:
        """Refuse dates with a zone where there was none in training, and dates without where there was one."""
        known = None if self.series is None else self.series.time_zone
        if self.series is not None and (known is None) != (table.time.zone is None) and table.time.kind == "dates":
            trained, found = (f"dates in {z}" if z else "dates without a time zone" for z in (known, table.time.zone))
            raise ValueError(f"The model was trained on {trained}. Got {found} in {table.report.file}. Convert them.")

    @door
    def forecast(
        self,
        horizon: Count | None = None,
        *,
        table: Any = None,
        future: Any = None,
        num_paths: Count = 500,
        quantiles: Sequence[float] = (),
        seed: Seed = 0,
    ) -> TableForecast:
        """Futures of each series after its last observation, at the dates at which it would go on.

        Args:
            horizon: steps ahead; None: as in the backtest.
            table: another table than that of the training, or a longer one: a file or a frame.
            future: a table of the covariates that are known ahead, one row per step.
            num_paths: samples of each series.
            quantiles: probabilities of quantiles in the rows; none: the ends of the 80 and 95 % intervals.
        """
        own = self.table if table is None else self.read(table)
        if own is None:
            raise ValueError("A model that was loaded has no table. Give `table`, a file or a frame.")
        options: dict[str, Any] = {"horizon": horizon, "future": future, "num_paths": num_paths, "seed": seed}
        made = self.futures(own, **options)
        return self._table_forecast(made, own, tuple(quantiles), len(made.path))

    def _table_forecast(
        self, made: Forecasts, table: Table, quantiles: tuple[float, ...], num_series: int
    ) -> TableForecast:
        steps = made.times.shape[1]
        span = f"{ahead_words(self.record.frequency.words, steps)} ahead"
        if bool((made.times[:, -1] == made.times[0, -1]).all()):
            span += f" (to {table.time.show(float(made.times[0, -1]))})"
        season = 2 * min(self.record.seasons, default=0.0)
        past = PASTS * steps if season > MOST_PASTS * steps else max(PASTS * steps, math.ceil(season))
        begin = self.record.frequency.stamps(np.array([-past, 0]))
        shown = float(np.diff(table.time.times(begin))[0]) if table.time.kind != "order" else float(past)
        return TableForecast(made, table, float(steps), quantiles, span, num_series, shown)

    def futures(self, table: Table, **options: Any) -> Forecasts:
        """Futures in raw units, at the dates of the calendar, each of them; `horizon` is in steps."""
        parts, num = [], 0
        for made in self._draw_parts(table, **options):
            parts.append(made)
            num += made.samples.numel()
            check(num <= MOST_HELD, f"More than {MOST_HELD:,} numbers are too many to hold. {FEWER}")
        first = parts[0]
        if len(parts) == 1:
            return first
        tensors: dict[str, Any] = {name: torch.cat([getattr(p, name) for p in parts]) for name in TENSORS}
        return replace(first, **tensors)

    def parts(self, table: Table, *, quantiles: tuple[float, ...] = (), **options: Any) -> Iterator[TableForecast]:
        """Futures of all series, in parts that can be held."""
        for made in self._draw_parts(table, **options):
            yield self._table_forecast(made, table, quantiles, len(table.ids))

    def _draw_parts(
        self,
        table: Table,
        *,
        horizon: float | None = None,
        num_times: int = 0,
        num_paths: int = 500,
        sampler: Any = None,
        seed: int = 0,
        future: Any = None,
    ) -> Iterator[Forecasts]:
        """Futures of some series after the other; noise does not come again."""
        panel = self.panel(table)
        steps = self.record.horizon if horizon is None else math.ceil(horizon)
        ahead = self.planned(table, panel, steps, future)
        known = self._learned.past(panel)
        odd = [found for found in known.findings(_names(table)) if found.startswith(ENDS)]
        if odd:
            warnings.warn(odd[0], stacklevel=3)
        each = len(known.panel) // len(panel)  # columns apart
        most = max(1, MOST_AT_ONCE // (num_paths * steps * panel.size))
        for begin in range(0, len(panel), most):
            rows = range(begin, min(begin + most, len(panel)))
            past = panel.cut(rows, [len(panel.steps[k]) for k in rows])
            later = None if ahead is None else ahead[begin : rows.stop]
            noise = (seed + PRIME * begin) % 2**63
            how: dict[str, Any] = {"num_paths": num_paths, "sampler": sampler, "seed": noise}
            how["known"] = known.cut(range(each * begin, each * rows.stop))
            drawn = draw(self._learned, past, steps, ahead_context=later, **how)
            made = self._forecasts(table, past, drawn, np.full((len(past), steps, panel.size), np.nan))
            origin = table.data.ends[begin : rows.stop].to(made.times)
            yield replace(made, path=made.path + begin, origin=origin)

    def _forecasts(self, table: Table, past: Panel, drawn: np.ndarray, truth: np.ndarray) -> Forecasts:
        """What was drawn from the ends of some pasts, with its dates."""
        at = np.stack([s[-1] + np.arange(drawn.shape[2] + 1) for s in past.steps])
        times = torch.tensor(table.time.times(self.record.frequency.stamps(at.ravel()).reshape(at.shape)))
        return Forecasts(
            path=torch.arange(len(past)),
            origin=times[:, 0],
            start=torch.tensor(last_seen(past), dtype=torch.float32),
            times=times[:, 1:],
            samples=torch.tensor(drawn, dtype=torch.float32),
            truth=torch.tensor(np.nan_to_num(truth), dtype=torch.float32),
            mask=torch.tensor(np.isfinite(truth)),
        )

    def scored(self, table: Table, *, horizon: float | None, origins_per_path: int | None, **options: Any) -> Forecasts:
        """Forecasts of the end of each series, from some origins; covariates that are known ahead are as they came."""
        test, every = self._test(table, horizon, origins_per_path)
        panel, steps = test.panel, test.horizon
        past = test.origins.past(panel, every)
        ahead = test.origins.covariates(panel, every, steps)
        num_paths, seed = options.get("num_paths", 200), options.get("seed", 0)
        drawn = draw(self._learned, past, steps, ahead_context=ahead, num_paths=num_paths, seed=seed)
        made = self._forecasts(table, past, drawn, test.origins.truth(panel, every, steps))
        return replace(made, path=torch.tensor([test.origins.series[i] for i in np.flatnonzero(every)]))

    def laws(self, table: Table, *, horizon: float | None, origins_per_path: int | None) -> Laws:
        """The references of the report; of many forecasts, for some."""
        test, every = self._test(table, horizon, origins_per_path)
        rows = spread(int(every.sum()), MOST_REFERENCED)
        some = np.zeros_like(every)
        some[np.flatnonzero(every)[rows]] = True
        past, period = test.origins.past(test.panel, some), period_of(self.record.seasons)
        drawn = draw_references(past, test.horizon, period, np.random.default_rng(0))
        return Laws(torch.tensor(rows), {name: torch.tensor(x, dtype=torch.float32) for name, x in drawn.items()})

    def _test(self, table: Table, horizon: float | None, origins_per_path: int | None) -> tuple[Backtest, np.ndarray]:
        """Origins at the end of each series, and which of them are taken."""
        panel, steps = self.panel(table), self.record.horizon if horizon is None else math.ceil(horizon)
        test = Backtest(panel, steps, TrainConfig(steps=1))
        check(test.able, f"No series leaves room for a horizon of {steps} steps. Use a shorter one, or longer series.")
        every = np.ones(len(test.origins.series), bool)
        if origins_per_path is not None:
            later = np.concatenate([np.arange(n)[::-1] for n in np.bincount(test.origins.series) if n])
            every = later < origins_per_path
        return test, every

    def lead_words(self, scores: dict[str, Any], made: Forecasts, table: Table) -> dict[str, Any]:
        """How far ahead scores are, in steps."""
        words, steps = self.record.frequency.words, 1 + np.arange(made.times.shape[1])
        share = made.lead.mean(0).numpy() / float(made.lead.max())
        part = np.clip((share * NUM_LEADS - 1e-6).astype(int), 0, NUM_LEADS - 1)
        each = [steps[part == k] for k in np.unique(part)]
        return {
            "span": ahead_words(words, len(steps)),
            "words": [f"step {s[0]}" if len(s) == 1 else f"steps {s[0]}-{s[-1]}" for s in each],
            "at": [float(s.mean()) for s in each],
            "label": f"steps ahead, each a {words}",
        }

    def backtest_forecasts(self) -> Forecasts | None:
        """Forecasts from the last origins of the backtest, by a model that had not seen what followed; None without them."""
        if self.tested is None or self.table is None:
            return None
        (test, best), late = self.tested, self.tested[0].origins.judge
        drawn = test.draw_from(test.model, late, best.noise, JUDGED_PATHS)
        truth = test.origins.truth(test.panel, late, test.horizon)
        made = self._forecasts(self.table, test.origins.past(test.panel, late), drawn, truth)
        return replace(made, path=torch.tensor([test.origins.series[i] for i in np.flatnonzero(late)]))

    def nll(self, table: Table) -> None:
        """None: the likelihood is that of the rest, not of the series."""

    def check_state(self) -> None:
        raise ValueError(
            "A model of `fit_series` goes on from the past of a series. Got a state alone. Give `data`, a table."
        )

    @property
    def records(self) -> dict[str, Any]:
        return {**super().records, RECORD: to_dict(self.record)}

    @property
    def takes(self) -> tuple[int, int]:
        """Features and covariates of its tables."""
        assert self.series is not None
        return len(self.series.columns), len(self.series.context)

    @property
    def own(self) -> NeuralSDE:
        assert isinstance(self.model, NeuralSDE)
        return self.model

    @property
    def _learned(self) -> Learned:
        return Learned(self.own, self.record.off)

    def planned(self, table: Table, panel: Panel, steps: int, future: Any) -> np.ndarray | None:
        """The covariates of the coming steps (B, steps, c), from a table of those known ahead; None where none is."""
        known = self.record.known_ahead
        if not known:
            check(future is None, "The model has no covariate that is known ahead. Leave out `future`.")
            return None
        plans = plans_of(table, known, future)
        assert panel.context is not None
        places, out = list(panel.known), []
        for name, (stamps, values), own, before in zip(table.ids, plans, panel.steps, panel.context):
            at = np.round(self.record.frequency.steps(table.time.stamps(np.asarray(stamps)))).astype(int)
            wanted = own[-1] + 1 + np.arange(steps)
            lacking = np.setdiff1d(wanted, at)
            if len(lacking):
                date = table.time.show(table.time.times(self.record.frequency.stamps(lacking[:1]))[0])
                series = "" if table.id is None else f" of {name!r}"
                raise ValueError(
                    f"{', '.join(known)} must be known for each of the {steps} steps ahead. Got none for {date}{series}. Add it to "
                    "`future`, or ask for a shorter `horizon`."
                )
            ahead = np.repeat(before[-1:], steps, axis=0)
            ahead[:, places] = values[np.searchsorted(at, wanted)]
            out.append(ahead)
        return np.stack(out)


def plans_of(table: Table, known: Sequence[str], future: Any) -> Plan:
    """What is known of the covariates after the end of each series: from a table of them, or the rows there without a value."""
    if future is not None:
        return read_plan(future, table, columns=known)
    plans, places = [], _places(table, known)
    for (times, values), end in zip(table.blanks(), table.data.ends.tolist()):
        own = values[:, list(places)]
        there = (times > end) & np.isfinite(own).all(1)
        plans.append((times[there], own[there]))
    check(
        any(len(times) for times, _ in plans),
        f"{', '.join(known)} must be known ahead. Got no `future`. Give a table of it, one row per step, or add such rows to "
        "the table, with nothing to forecast in them.",
    )
    return plans


def _names(table: Table) -> Sequence[str]:
    """What its series are called."""
    return ["the series"] if table.id is None else table.ids


def _places(table: Table, known: Sequence[str]) -> tuple[int, ...]:
    return tuple(table.context.index(name) for name in known)


def last_seen(panel: Panel) -> np.ndarray:
    """The last observed value of each column (B, d); NaN where there is none."""
    return np.stack([filled(values)[-1] for values in panel.values])


@dataclass(frozen=True)
class SeriesReport:
    """What was found in some series, what was tried, and how good the choice is; `print` it."""

    frequency: str
    horizon: int
    num_series: int
    seasons: tuple[str, ...]
    tried: tuple[tuple[str, float], ...]
    choice: str
    reason: str
    standings: tuple[Standing, ...]
    num_judged: int
    steps: int
    notes: tuple[str, ...] = ()
    """What was found in the series, and what is to be known of the stamps and the covariates."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        ahead = ahead_words(self.frequency, self.horizon)
        lines = [f"{self.num_series} series, one observation each {self.frequency}; forecasts of {ahead}."]
        lines += [
            f"Season: {', '.join(self.seasons) or 'none was found'}.",
            *self.notes,
            "",
            "Tried, CRPS in mean steps of a series:",
            "",
        ]
        lines += [f"- {name}: {score:.3f}" for name, score in self.tried]
        lines += ["", f"Chosen: {self.choice}. {self.reason}", ""]
        if not self.standings:
            return "\n".join([*lines, "The series are too short to say how good forecasts are."])
        lines += [f"On {self.num_judged} later origins, which took no part in the choice:", ""]
        own, parts = self.standings[0], lead_parts(self.horizon)
        heads = [f"{begin + 1}" if begin + 1 == end else f"{begin + 1}-{end}" for begin, end in parts]
        lines += [f"{'':18}{'CRPS':>8}{'skill':>9}{'80 % band':>11}" + f"{'CRPS by step':>{9 * len(parts)}}"]
        lines += [f"{'':46}" + "".join(f"{head:>9}" for head in heads)]
        for each in self.standings:
            skill = "" if each is own or not each.crps else f"{100 * (1 - own.crps / each.crps):+.0f} %"
            means = (np.array(each.by_lead[begin:end]) for begin, end in parts)
            leads = (f"{m[np.isfinite(m)].mean():>9.3f}" if np.isfinite(m).any() else f"{'–':>9}" for m in means)
            lines.append(f"{each.name:18}{each.crps:>8.3f}{skill:>9}{100 * each.coverage:>9.0f} %{''.join(leads)}")
        lines += ["", "Skill: how much less the model's CRPS is. The 80 % band should hold 80 %."]
        worse = [s.name for s in self.standings[1:] if s.crps < self.standings[0].crps]
        lines += ["", f"Better than the model: {', '.join(worse)}. Use it, or give more data." if worse else ""]
        return "\n".join(lines).rstrip()


def lead_parts(horizon: int) -> list[tuple[int, int]]:
    """The first step ahead, and up to three parts of the others."""
    cuts = np.unique(np.round(1 + (horizon - 1) * np.arange(4) / 3).astype(int)).tolist()
    return list(zip([0, *cuts], cuts))


def describe_kind(kind: Kind, names: dict[float, str], noise: float) -> str:
    """A kind in words."""
    off = kind.off
    words = [f"nonlinear, width {kind.width}" if kind.width else "linear", f"{kind.history} slots"]
    words += {"none": [], "log": ["of the logarithm"], "ranks": ["of ranks"]}[off.curve]
    seasons = [f"a {names[p]}" if p in names else f"{p:g} steps" for p in off.seasons if off.taken]
    words += [f"season of {each} taken off" for each in seasons]
    words += ["which sees the phase"] if off.phases else []
    words += ["around a mean" if off.level else "a walk, in units of its steps"]
    words += ["each series in its own way"] if kind.own else []
    words += ["columns apart, drawn independently"] if kind.apart else []
    words += ["steps with tails"] if kind.tails else []
    words += [f"noise times {noise:g}"] if noise != 1 else []
    return ", ".join(words)


@door
def fit_series(
    table: Any,
    *,
    horizon: Count | None = None,
    season: str | float | Sequence[str | float] = "auto",
    freq: str | None = None,
    known_ahead: Sequence[str] = (),
    future: Any = None,
    budget: str | float = "2 min",
    max_trials: Count | None = None,
    seed: Seed = 0,
    progress: bool = True,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
    **reading: Any,
) -> SeriesModel:
    """Learn to forecast series that are observed at even times.

    Args:
        table: a file, a frame, a pandas Series, an array, or what `read_table` made of one. Columns `unique_id`, `ds` and `y`
            are found by their names.
        horizon: steps ahead for which the model is chosen; None: as is usual for the frequency.
        season: "auto", "none", or periods: "day", "week", "year", or numbers of steps; several in a list or as "day week".
        freq: the frequency as pandas writes it ("h", "D", "B", "W", "MS", …); None: found in the stamps.
        known_ahead: those of the columns in `context` whose future is known; the others are held.
        future: a table of the covariates that are known ahead, for the forecast in `output`: one row per step. Rows at the end
            of `table` in which only the values to forecast are missing do the same.
        budget: time for everything, such as "2 min" or seconds. A trial has at least 200 steps, whatever it is; under a minute
            fewer are made where there is no time for all.
        max_trials: models that are tried at most, for an answer in seconds; None: all that suit the series.
        seed: of everything.
        output: run folder for the model, report.md, results.json, forecast.csv and figures; None writes nothing.
        resume: go on with the run in `output`.
        say: called after each trial with its name and score, e.g. `print`.
        reading: arguments of `read_table`.
    """
    seconds = seconds_of(budget)
    folder = None if output is None else Path(output)
    if not isinstance(table, Table):
        table = read_table(table, **reading)
        if progress:
            print(table.report)
    else:
        check(not reading, f"`table` has been read already. Leave out {', '.join(reading)}.")
    found = frequency_of(table, freq)
    if found is None:
        raise ValueError(
            f"The stamps of {table.report.file} are not evenly spaced. {why_uneven(table.every_stamp())} `fit_table` takes any "
            "stamps."
        )
    wrong = [name for name in known_ahead if name not in table.context]
    check(not wrong, f"`known_ahead` names columns of `context`. Got {', '.join(wrong)}. Put them there too.")
    panel = Panel.of(table, found, _places(table, known_ahead))
    longest = max(len(s) for s in panel.steps)
    check(longest >= SHORTEST, f"The longest series must have {SHORTEST} steps to be forecast. Got {longest}.")
    check(
        any(changes(v) for v in panel.values),
        f"No column changes: there is nothing to learn. Got {', '.join(table.columns)}.",
    )
    most = max(1, longest // MOST_SEEN)
    if horizon is not None and horizon > longest // 2:
        raise ValueError(f"`horizon` must be at most half of the longest series, {longest // 2} steps. Got {horizon}.")
    ahead = horizon or min(found.horizon, most)
    if future is not None:
        check(
            bool(known_ahead),
            "`future` is of covariates that are known ahead. Got no `known_ahead`. Name them, or leave it out.",
        )
        covered = _covered(table, found, plans_of(table, known_ahead, future))
        check(
            horizon is None or covered >= horizon,
            f"`future` must have a row for each of the {horizon} steps ahead. Got {covered} without a gap.",
        )
        ahead = horizon or max(1, min(covered, longest // 2))
    names = {steps: name for name, steps in found.periods().items()}
    seasons, log = _seasons(season, panel, found)
    with open_run(folder, resume=resume) as run:
        shown = panel.until(Origins.of(panel, ahead).cut)
        first = first_kind(shown if len(shown) else panel, seasons, log)
        steps, most = _effort(first, panel, seconds, folder if run is not None else None, seed, ahead, resume)
        period = standing_out(panel, log=log) if _season_list(season) == ["auto"] and not seasons else None
        wanted = usual_moves(panel, first, list(names), period)
        moves = wanted[: min(max_trials or most, max(most, 1 + (period is not None))) - 1]
        train = TrainConfig(steps=steps, batch_size=256, lr=3e-3, ema=0.99, seed=seed)
        with tqdm(total=len(moves) + 2, disable=not progress, desc="fit_series", unit="trial") as bar:

            def tick(text: str) -> None:
                say(text)
                bar.set_postfix_str(text[:60])
                bar.update()

            file = None if folder is None else folder / "trials.json"
            test = Backtest(panel, ahead, train, tick=tick, file=file)
            best = test.run(first, moves) if test.able else Trial("default", first, np.zeros(1))
            seasons = seasons or best.kind.off.seasons
            judged = standings(test, best, seasons) if test.able and test.origins.judge.any() else ()
            last = replace(train, steps=LONGER * steps, ema=0.995)
            more = {} if run is None else {"run_dir": run, "resume": resume}
            chosen, noise, reason = best.kind, best.noise, _reason(test.trials, best)
            whole = first_kind(panel, seasons, log)
            if whole.off.taken and not first.off.taken:
                chosen, noise, reason = whole, 1.0, UNTRIED
            learned = learn(chosen, panel, last, options=RunOptions(progress=False), **more)
            bar.update()
        model, off = learned.model, learned.off
        model.sampler = with_noise(model, noise)
        record = SeriesRecord(frequency=found, off=off, horizon=ahead, seasons=seasons, known_ahead=tuple(known_ahead))
        report = SeriesReport(
            frequency=found.words,
            horizon=ahead,
            num_series=len(panel),
            seasons=tuple(names.get(p, f"{p:g} steps") for p in seasons),
            tried=tuple((t.name, t.mean) for t in test.trials),
            choice=describe_kind(chosen, names, noise),
            reason=reason,
            standings=tuple(judged),
            num_judged=int(test.origins.judge.sum()),
            steps=last.steps,
            notes=(
                *_notes(table, found),
                *_short(len(wanted) - len(moves), max_trials),
                *_held(table, known_ahead),
                *learned.past(panel).findings(_names(table)),
            ),
        )
        series = series_record(table, None)
        tested = (test, best) if judged else None
        fitted = SeriesModel(model, series, folder, record=record, table=table, report=report, tested=tested)
        if folder is not None:
            _write(fitted, folder, seed, future)
    if progress:
        print(report)
    return fitted


def _notes(table: Table, frequency: Frequency) -> list[str]:
    """What is to be said of stamps that are not on the calendar."""
    if frequency.unit == "numbers":
        return []
    stamps = np.concatenate(table.stamps())
    if frequency.nearest:
        between = replace(frequency, nearest=False).steps(stamps)
        num = int((np.abs(between - np.round(between)) > NEAR).sum())
        origin = np.datetime64(frequency.origin, "us")
        day = DAYS[int((origin - MONDAY) // np.timedelta64(1, "D")) % 7]
        near = f"{day}" if frequency.size % WEEK == 0 else frequency.words
        return [f"{num} row(s) lie between: each is taken for the nearest {near}."] if num else []
    steps = frequency.steps(stamps)
    off = np.abs(steps - np.round(steps)) > 0.25
    dates = table.time.dates(table.time.times(stamps[off][:1]))
    return [f"{off.sum()} row(s) are not on that calendar and were left out, the first at {dates[0]}."] if dates else []


def _short(num: int, asked: int | None) -> list[str]:
    """What is to be said of changes for which the budget did not suffice."""
    return (
        [f"{num} change(s) were not tried: the budget is short. Give a longer `budget`."]
        if num and asked is None
        else []
    )


def _held(table: Table, known: Sequence[str]) -> list[str]:
    """What forecasts take for the covariates that are not known ahead."""
    held = [name for name in table.context if name not in known]
    if not held:
        return []
    each = f"{', '.join(held)}: held at the last value in forecasts"
    return [f"{each}. If it is known ahead, say so; if it is neither known nor still, forecast it as a column too."]


UNTRIED = "The series are long enough to take their season off, but not to try it: trials and scores are without it."


def _reason(trials: Sequence[Trial], best: Trial) -> str:
    if not trials:
        return "The series are too short to try more."
    if best.name == "default" and best.noise == 1:
        return "No change of the default was clearly better."
    return f"It scores {best.mean:.3f}, the default {trials[0].mean:.3f}."


def frequency_of(table: Table, freq: str | None = None) -> Frequency | None:
    """The frequency of a table's stamps."""
    return find_frequency(table.every_stamp(), freq, table.time.zone)


def _season_list(season: Any) -> list[str | float]:
    """Names and periods that were given in a list or in one text."""
    found: list[str | float] = []
    for each in [season] if isinstance(season, (str, int, float)) else season:
        for word in each.replace(",", " ").split() if isinstance(each, str) else [each]:
            try:
                found.append(float(word))
            except (TypeError, ValueError):
                found.append(str(word).lower())
    check(bool(found), "`season` must name at least one. Got none. Give 'none' for no season.")
    return found


def _seasons(season: Any, panel: Panel, frequency: Frequency) -> tuple[tuple[float, ...], bool]:
    """Periods in steps, and whether the logarithm is the default."""
    log = grows_with_level(panel)
    longest = max(len(s) for s in panel.steps)
    named, given = frequency.periods(), _season_list(season)
    if given == ["none"]:
        return (), log
    if given == ["auto"]:
        candidates = [p for p in named.values() if OFTEN * p <= longest]
        return seasons_in(panel, candidates, log=log), log
    periods = []
    for each in given:
        if isinstance(each, str):
            names = ", ".join(["auto", "none", *named])
            check(each in named, f"`season` must be a number of steps or one of {names}. Got {each!r}.")
        period = float(named[each] if isinstance(each, str) else each)
        check(period > 1.99, f"A season must have at least two steps. Got {each}.")
        check(
            OFTEN * period <= longest,
            f"A season of {period:g} steps must be seen twice. Got series of at most {longest} steps. Leave it out.",
        )
        periods.append(period)
    return tuple(sorted(periods)), log


def _effort(
    kind: Kind, panel: Panel, seconds: float, folder: Path | None, seed: int, horizon: int, resume: bool
) -> tuple[int, int]:
    """Steps of a trial, on a ladder, and trials at most: what the budget comes to on this machine; once, and then as recorded."""
    what: dict[str, Any] = {"seed": seed, "budget": seconds, "horizon": horizon}
    if folder is not None:
        what["data"] = panel.fingerprint
    known = recorded_search(folder, what, resume)
    if known is not None:
        return int(known["steps"]), int(known.get("trials", MOST_TRIALS))
    few = panel.cut(range(min(len(panel), 20)), [len(s) for s in panel.steps])
    took = math.inf
    for num in (TIMED, 2 * TIMED):
        began = clock.perf_counter()
        learn(kind, few, TrainConfig(steps=num, batch_size=256))
        took = min(took, (clock.perf_counter() - began) / num)
    steps = int(min(max(on_ladder(SHARE * seconds / (TRIALS + LONGER) / took), STEPS[0]), STEPS[1]))
    fit_in = max(1, int(SHARE * seconds / took / STEPS[0]) - LONGER)
    trials = min(fit_in, MOST_TRIALS) if seconds < SHORT else MOST_TRIALS
    if folder is not None:
        write_json(folder / SEARCH, {**what, "steps": steps, "trials": trials})
    return steps, trials


def command_ahead(folder: Path, file: str | os.PathLike[str]) -> str:
    """What to type for a forecast with covariates that are known ahead."""
    return f"nsde forecast {shlex.quote(str(folder))} --data {shlex.quote(str(file))} --future FUTURE.csv"


def _covered(table: Table, frequency: Frequency, plans: Plan) -> int:
    """Steps that plans have for every series, from its end on."""
    covered = []
    for (times, _), stamps in zip(plans, table.stamps()):
        steps = np.round(frequency.steps(np.append(stamps[-1], table.time.stamps(np.asarray(times)))))
        ahead = np.unique(steps[1:] - steps[0])
        ahead = ahead[ahead > 0]
        covered.append(int((ahead == 1 + np.arange(len(ahead))).cumprod().sum()))
    return min(covered)


def _write(fitted: SeriesModel, folder: Path, seed: int, future: Any) -> None:
    assert fitted.report is not None and fitted.table is not None and fitted.series is not None
    fitted.model.save_pretrained(folder / "model", beside=fitted.records)
    fitted.series.save(folder)
    write_json(folder / RECORD, to_dict(fitted.record))
    text = f"# Forecasts of {fitted.table.report.file}\n\n{fitted.table.report}\n\n```\n{fitted.report}\n```\n"
    known = fitted.record.known_ahead
    told = not known or future is not None
    if not told and fitted.table.blank is not None:
        with suppress(ValueError):
            plans = plans_of(fitted.table, known, None)
            told = _covered(fitted.table, fitted.record.frequency, plans) >= fitted.record.horizon
    if not told:
        command = command_ahead(folder, fitted.table.report.file)
        text += f"\nNo forecast was made: {', '.join(known)} must be known ahead. Go on with `{command}`.\n"
    else:
        parts = fitted.parts(fitted.table, future=future, seed=seed)
        made = write_forecasts(parts, folder / "forecast.csv")[0]
        if find_spec("matplotlib") is not None:
            made.plot(folder / "forecast.png")
            text += "\n![forecast](forecast.png)\n"
    with replacing(folder / "report.md") as new:
        new.write_text(text, encoding="utf-8")
    record = {"table": fitted.table.report.to_dict(), "series": fitted.report.to_dict(), **provenance()}
    write_results(folder / "results.json", record)
