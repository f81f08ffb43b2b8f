"""`nsde.fit`: a model for data that nobody has seen. Diagnose, try, score, choose, train on everything, and say so."""

from __future__ import annotations

import json
import math
import os
import re
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, overload

from tqdm import tqdm

from neuralsde.core.doors import Seed, door
from neuralsde.core.files import read_text, replacing
from neuralsde.core.records import check
from neuralsde.data.diagnosis import Diagnosis, diagnose
from neuralsde.data.streams.stream import Stream
from neuralsde.data.trajectories import Paths, Trajectories, Transitions
from neuralsde.models.sequence import SequenceModel
from neuralsde.sde.config import Moments, NeuralSDEConfig
from neuralsde.sde.model import NeuralSDE
from neuralsde.selection.candidates import Candidate, Plan, plan
from neuralsde.selection.folds import Fold, split
from neuralsde.selection.report import Report
from neuralsde.selection.scores import Score, Segments
from neuralsde.selection.search import ALONE, LONGER, Choice, Search, drawing_time, num_units, quick_samplers
from neuralsde.selection.trials import (
    QUIET,
    Effort,
    Gaps,
    Trials,
    ends_with_windows,
    measure_draws,
    measure_gaps,
    measure_step,
    measure_windows,
    quietly,
    sampler_of,
    small_products,
    train,
)
from neuralsde.training.fit import fingerprint
from neuralsde.training.fit import fit as fit_model
from neuralsde.training.run_folder import open_run

SEARCH = "search.json"
DRAWING = 0.35  # largest share for drawing paths, before fewer are drawn
TRAINING = 0.45  # least share for training
DRAWS = ((32, 32), (16, 32), (16, 16), (8, 16))  # origins of a fold, and paths from each
OF_THE_CALLER = 5  # frames from `fit_data` to the line that called `nsde.fit`
SPARE = 0.9  # of the budget that is planned for
LADDER = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.4, 8.0)  # times powers of ten: steps are rounded down to these
FEWEST, MOST = 20, 2_000  # steps of a short trial
LONG, ENOUGH = 300.0, 100  # seconds of a budget and steps of a short trial from which on nets are large
SHORT = 60.0  # seconds of a budget under which less is tried, where there is no time for everything
PARTS = (1.0, 0.5, 0.25, 0.0)  # of the candidates, their changes and the folds
MOST_STEPS = 20_000  # of the last training
PLENTY = 1_500  # steps of the last training beyond which time goes into larger batches
BEYOND = 4  # steps of the last training at most, in those of the final
WORSE = 1.3  # how much worse the last training may score on its own data than the trials on that of others
UNITS = {
    "s": 1,
    "second": 1,
    "seconds": 1,
    "min": 60,
    "minute": 60,
    "minutes": 60,
    "h": 3600,
    "hour": 3600,
    "hours": 3600,
}


@overload
def fit(model: SequenceModel, data: Paths | Transitions | Stream, **settings: Any) -> SequenceModel: ...
@overload
def fit(model: Paths, data: None = None, **settings: Any) -> NeuralSDE: ...
@door
def fit(model: Any, data: Any = None, **settings: Any) -> Any:
    """`fit(data)` chooses a model for the data, trains it and says what it chose; `fit(model, data)` trains a model of yours.

    See `fit_data` and `neuralsde.training.fit.fit` for the settings of each.
    """
    if isinstance(model, SequenceModel):
        check(data is not None, "`fit(model, data)` needs the data. Got none.")
        return fit_model(model, data, **settings)
    check(
        not isinstance(model, Stream),
        "`fit(data)` chooses a model by data in memory. Got a Stream. Write model = NeuralSDE.for_data(stream), then "
        "fit(model, stream).",
    )
    check(data is None, "`fit` takes `fit(data)`, or `fit(model, data)` with a model first. Got two sets of data.")
    return fit_data(as_paths(model), **settings)


def as_paths(data: Any) -> Trajectories:
    """Paths as they are, or arrays of them: a list of (T, d), or one (P, T, d)."""
    return data if isinstance(data, Trajectories) else Trajectories.from_arrays(data)


@door
def fit_data(
    data: Paths,
    *,
    budget: str | float = "2 min",
    seed: Seed = 0,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = True,
    cpu: bool = False,
    **fixed: Any,
) -> NeuralSDE:
    """Choose a model for `data`, train it on all of it, and say what was chosen and why (`model.report`).

    Args:
        data: paths.
        budget: time for everything, such as "2 min" or seconds. It becomes a number of steps once, which is recorded: with
            the same number and seed the choice is the same.
        seed: of everything.
        run_dir: folder for search.json, trials.json, choice.md, model/ and what the last training writes; None keeps nothing.
        resume: go on with the search in `run_dir`.
        progress: show a bar with the time left, and print the report.
        cpu: stay on the CPU though there is an accelerator.
        fixed: fields of `NeuralSDEConfig`, and `lag`, that are not to be chosen, e.g. `history=2`.
    """
    seconds = seconds_of(budget)
    _check_fixed(fixed)
    with open_run(run_dir, resume=resume) as run, small_products:
        folder = None if run is None else run.path
        found = diagnose(data)
        inner, outer, folds = split(data, seed, forward="wanders" in found)
        what = {
            "seed": seed,
            "budget": seconds,
            "data": fingerprint(data.transitions()),
            "fixed": {k: repr(v) for k, v in sorted(fixed.items())},
        }
        steps, effort = _planned(found, fixed, folds, seconds, folder, what, resume)
        steps = replace(steps, train=replace(steps.train, seed=seed))
        steps, folds = some_of(steps, folds, effort.part)
        unit = effort.unit
        total = num_units(steps, len(folds)) * unit + effort.last
        bar = tqdm(total=round(total), disable=not progress, desc="nsde.fit", unit="step", mininterval=1.0)
        with bar:
            file = None if folder is None else folder / "trials.json"
            trials = Trials(folds, steps.train, effort, file, lambda done: bar.update(round(done)))
            choice = Search(steps, trials, unit, lambda text: bar.set_postfix_str(text[:60])).run()
            scores = _outer(choice, steps, inner, outer, LONGER * unit, cpu)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model, last, num = _refit(choice, data, steps, effort, run, resume, cpu)
        report = _report(found, choice, last, num, unit, budget, seed, scores, outer)
        notes = tuple(dict.fromkeys([*(str(w.message) for w in caught), *_no_better(report)]))
        report = replace(report, notes=notes, equations=_equations(model, data))
        model.report = report.to_dict()
        if folder is not None:
            model.save_pretrained(folder / "model")
            with replacing(folder / "choice.md") as new:
                new.write_text(f"{report}\n", encoding="utf-8")
    for note in notes:
        warnings.warn(note, stacklevel=OF_THE_CALLER)
    if progress:
        print(report)
    return model


def _check_fixed(fixed: Mapping[str, Any]) -> None:
    known = {f.name for f in fields(NeuralSDEConfig)} - {"sampler"} | {"lag"}
    wrong = sorted(set(fixed) - known)
    check(not wrong, f"`fit` has no setting {', '.join(wrong)}. It takes {', '.join(sorted(known))}.")


def seconds_of(budget: str | float) -> float:
    """A budget in seconds."""
    if isinstance(budget, (int, float)):
        seconds = float(budget)
    else:
        parts = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]+)\s*", budget)
        check(parts is not None and parts[2] in UNITS, f"`budget` must be such as '2 min' or '90 s'. Got {budget!r}.")
        assert parts is not None
        seconds = float(parts[1]) * UNITS[parts[2]]
    check(0 < seconds < math.inf, f"`budget` must be positive. Got {budget!r}.")
    return seconds


def _planned(
    found: Diagnosis,
    fixed: Mapping[str, Any],
    folds: list[Fold],
    seconds: float,
    folder: Path | None,
    what: dict[str, Any],
    resume: bool,
) -> tuple[Plan, Effort]:
    """What is tried and how long, once, and then as recorded.

    Nets are large for smooth paths, where that leaves enough steps for a trial. Of rough paths a large net learns the noise.
    """
    known, long = recorded_search(folder, what, resume), seconds >= LONG
    if known is not None:
        effort = Effort(**{f.name: known[f.name] for f in fields(Effort) if f.name in known})
    else:
        for large in (True, False) if long and "smooth" in found else (False,):
            effort = replace(_effort(plan(found, fixed, large=large, long=long), folds, seconds), large=large)
            if effort.unit >= ENOUGH:
                break
        if folder is not None:
            with replacing(folder / SEARCH) as new:
                new.write_text(json.dumps({**asdict(effort), **what}), encoding="utf-8")
    moments = Moments(most=effort.moments)
    return plan(found, fixed, large=effort.large, long=long, moments=moments).with_costs(effort.costs), effort


def _effort(steps: Plan, folds: list[Fold], seconds: float) -> Effort:
    """What the budget comes to on this machine, on a ladder."""
    short, began = seconds < SHORT, time.perf_counter()
    step = measure_step(steps.default, folds[0], steps.train, len(folds))
    costs = {} if short else _costs(steps, folds, step)
    steps = steps.with_costs(costs)
    last = steps.trained_last(steps.default)
    gaps = Gaps() if short else measure_gaps(last, folds[0].known)
    by_moments = next((c for c in (last, *steps.every()) if isinstance(c.config.law, Moments)), last)
    told = gaps if short or by_moments is last else measure_gaps(by_moments, folds[0].known)
    ends = next((c for c in (last, *steps.every()) if ends_with_windows(c, folds[0].known)), None)
    windows = 1.0 if ends is None else measure_windows(ends, folds[0].known, steps.train)
    gaps = replace(gaps, longer=gaps.longer * (windows if ends is last else 1.0))
    every = [(c, how) for c in (steps.default, *steps.first) for how in quick_samplers(c).values()]
    sizes = DRAWS[-1:] if short else DRAWS
    took, grown = measure_draws(every[:1] if short else every, folds[0], sizes)
    took = {c.name: took.get(c.name, took[steps.default.name]) for c, _ in every}
    budget = SPARE * seconds - min(time.perf_counter() - began + (gaps.solving if steps.sparse else 0.0), seconds / 4)
    for part in PARTS if short else PARTS[:1]:
        some, few = some_of(steps, folds, part)
        drawing, units = drawing_time(some, len(few), took), num_units(some, len(few))
        if drawing + FEWEST * step * units <= (1 - steps.last) * budget:
            break
    fitting = ((size, times) for size, times in zip(sizes, grown) if drawing * times <= DRAWING * budget)
    size, times = next(fitting, (sizes[-1], grown[-1]))
    left = max(budget - drawing * times, TRAINING * budget)
    search = left * min(units / (units + ALONE * BEYOND * LONGER), 1 - steps.last)
    unit = int(min(max(on_ladder(search / step / units), FEWEST), MOST))
    alone = max(left - step * units * unit, steps.last * budget)
    batch, one = _batch(steps, folds[0], alone / gaps.longer, min(PLENTY, BEYOND * LONGER * unit))
    num = _last_steps(alone / gaps.longer / one, unit, gaps.longer * batch / steps.train.batch_size)
    return Effort(unit, num, *size, part, batch=batch, costs=costs, moments=told.steps, windows=windows)


def _costs(steps: Plan, folds: list[Fold], step: float) -> dict[str, float]:
    """Of a training step of each candidate, in steps of the default; without those that data of this kind cannot train."""
    costs = {steps.default.name: 1.0}
    for candidate in steps.every()[1:]:
        with suppress(ValueError):
            took = measure_step(candidate, folds[0], steps.train, len(folds))
            costs[candidate.name] = max(round(took / step, 2), 0.01)
    return costs


def _last_steps(wanted: float, unit: int, larger: float) -> int:
    """Steps of the last training, on the ladder; bounded, since a choice holds for trainings of about the final's length.

    At least as much is seen as in the final, in steps that hold and take so many times more.
    """
    return int(max(min(on_ladder(wanted), BEYOND * LONGER * unit, MOST_STEPS), LONGER * unit / larger))


def _batch(steps: Plan, fold: Fold, seconds: float, plenty: float) -> tuple[int, float]:
    """The largest batch of a last training of the default that leaves plenty of steps, and the seconds of one.

    Rough steps are mostly noise: their drift is told by how many of them were seen, and a large batch shows more in equal time.
    """
    last, batch = steps.trained_last(steps.default), steps.train.batch_size

    def one(size: int) -> float:
        return measure_step(last, fold, replace(steps.train, batch_size=size), 1)

    took = one(batch)
    while 2 * batch <= steps.largest and seconds / (larger := one(2 * batch)) >= plenty:
        batch, took = 2 * batch, larger
    return batch, took


def some_of(steps: Plan, folds: list[Fold], part: float) -> tuple[Plan, list[Fold]]:
    """A part of what there is to try; of nothing there remains the default, and one fold."""

    def some(every: list[Any], least: int = 0) -> list[Any]:
        return every[: max(least, math.ceil(part * len(every)))]

    return replace(steps, first=some(steps.first), moves=some(steps.moves)), some(folds, 1)


def recorded_search(folder: Path | None, what: Mapping[str, Any], resume: bool) -> dict[str, Any] | None:
    """What a search in `folder` began with, which must have been `what` too; None where there is none."""
    if folder is None or not (folder / SEARCH).exists():
        return None
    check(resume, f"{folder} already holds a search. Give `resume=True` to go on with it, or another folder.")
    known = json.loads(read_text(folder / SEARCH))
    for name, value in what.items():
        same = known.get(name) == value
        check(same, f"The search in {folder} had another `{name}`. Go on as it began, or give another folder.")
    return known


def on_ladder(value: float) -> float:
    """The largest number of the ladder that is not larger."""
    power = 10.0 ** math.floor(math.log10(max(value, 1.0)))
    return max(step * power for step in LADDER if step * power <= max(value, 1.0))


def _refit(
    choice: Choice, data: Trajectories, steps: Plan, effort: Effort, run: Any, resume: bool, cpu: bool
) -> tuple[NeuralSDE, Candidate, int]:
    """The choice, trained on everything; with what it was trained as, and for how many steps."""
    unit, default = effort.unit, steps.trained_last(steps.default)
    own = steps.trained_last(choice.candidate) if choice.exact else choice.candidate
    batch = effort.batch or steps.train.batch_size

    def grown(candidate: Candidate) -> float:
        """Times that its training step takes, over one of a trial."""
        gaps = measure_gaps(candidate, data).longer if effort.costs else 1.0
        return gaps * (effort.windows if ends_with_windows(candidate, data) else 1.0)

    longer = grown(own)
    usual = longer if own.same_as(default) else grown(default)
    wanted = effort.last * default.cost * usual / (own.cost * longer)
    num = _last_steps(wanted, unit, longer * batch / steps.train.batch_size)
    num = num if choice.most is None else min(num, choice.most)
    config = replace(steps.train, steps=num, batch_size=batch, ema=0.995 if num > 1_000 else steps.train.ema)
    options = replace(QUIET, cpu=cpu)
    model = train(own, data, config, options=options, run_dir=run, resume=resume)
    model.sampler = sampler_of(model, choice.sampler)
    score = Segments.of(data, data, most=effort.origins).score(model, num_paths=effort.num_paths, seed=1).mean
    if score > WORSE * choice.score and num > unit:  # on its own data, worse than before on that of others
        warnings.warn(
            f"A longer training made the choice worse ({score:.3f} on its own data, {choice.score:.3f} in the trials): the shorter "
            "one is kept. Look at the report, and try another seed or a larger budget.",
            stacklevel=2,
        )
        brief = LONGER * unit if num > LONGER * unit else unit
        own, config = choice.candidate, replace(steps.train, steps=brief)
        model = quietly(train, own, data, config, options=options)
        model.sampler = sampler_of(model, choice.sampler)
    return model, own, config.steps


def _equations(model: NeuralSDE, data: Trajectories) -> tuple[str, ...]:
    """The drift, where it has a formula."""
    if not model.config.net.solved or model.scale.turns:
        return ()
    return tuple(model.equations(data.names))


def _no_better(report: Report) -> list[str]:
    """What is to be said where standing still forecasts as well."""
    if report.score is None or report.score["score"] <= 1:
        return []
    what = f"Its forecasts are no better than standing still ({report.score['score']:.2f} where that has about 1), {report.words}"
    return [
        f"{what}. Give more paths, features that tell what comes, or a larger budget; the report has what was found."
    ]


def _outer(
    choice: Choice, steps: Plan, inner: Trajectories, outer: Trajectories | None, num: int, cpu: bool
) -> tuple[Score, Score] | None:
    """The choice and the default on paths that took no part in the choice."""
    if outer is None:
        return None
    segments = Segments.of(outer, inner)
    config = replace(steps.train, steps=num)

    def one(candidate: Candidate, how: dict[str, float]) -> Score:
        model = quietly(train, candidate, inner, config, options=replace(QUIET, cpu=cpu))
        return segments.score(model, sampler_of(model, how))

    own = one(choice.candidate, choice.sampler)
    return own, own if choice.candidate is steps.default else one(steps.default, {})


def _report(
    found: Diagnosis,
    choice: Choice,
    last: Candidate,
    num: int,
    unit: int,
    budget: str | float,
    seed: int,
    scores: tuple[Score, Score] | None,
    outer: Trajectories | None,
) -> Report:
    words = "" if outer is None else "on the end of the path, which took no part in the choice"
    if outer is not None and found.num_paths > 1:
        words = f"on {len(outer)} path(s) that took no part in the choice"
    reason = choice.reason
    if last.config.law != choice.candidate.config.law:
        reason += " Its last training is by the moments of whole gaps, so that its fields hold at any gap."
    return Report(
        traits=found.traits,
        tried=choice.tried,
        choice=choice.candidate.name,
        reason=reason,
        sampler=choice.sampler_name,
        settings={name: str(value) for name, value in last.settings.items()},
        steps=num,
        unit=unit,
        budget=str(budget),
        seed=seed,
        score=None if scores is None else scores[0].to_dict(),
        default_score=None if scores is None else scores[1].to_dict(),
        words=words,
    )
