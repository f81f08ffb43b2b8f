"""Trials of candidates: trained briefly on a fold, drawn by several samplers, scored on what was held out.

A trial is known by its candidate, its steps and its fold. What it found is kept in one file that is replaced as a whole, so that a
search that was stopped goes on from there, with the same numbers.
"""

from __future__ import annotations

import json
import math
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from neuralsde.core.files import read_text, replacing
from neuralsde.core.records import RunError
from neuralsde.data.trajectories import Trajectories, Transitions
from neuralsde.models.build import build
from neuralsde.sde.config import Moments, Sampler
from neuralsde.sde.model import NeuralSDE
from neuralsde.sde.solving import num_rows
from neuralsde.selection.candidates import Candidate, of_few_terms
from neuralsde.selection.folds import Fold
from neuralsde.selection.scores import FAILED, MOST_ORIGINS, NUM_PATHS, Score, Segments, together
from neuralsde.selection.stack import fit_together, form_of
from neuralsde.solvers.noise import Noise
from neuralsde.training.config import RunOptions, TrainConfig
from neuralsde.training.fit import LAST, PER_WINDOW, fit

QUIET = RunOptions(progress=False)
UNTOLD = 4  # steps of a gap, where they cannot be foretold
MOST_TOGETHER = 16  # models trained in one batch
MOST_STEPS = 20_000  # held-out steps of a fold whose likelihoods are compared
Samplers = dict[str, dict[str, float]]
"""By name: `pull` per reference step, share of the noise, substeps."""
USUAL: Samplers = {"as trained": {}}


def build_for(candidate: Candidate, data: Trajectories, seed: int) -> tuple[Any, Transitions]:
    """A model of the candidate, and what it learns from."""
    settings = candidate.config
    how = {"lag": candidate.lag, "history": settings.history, "pad": settings.pad_history}
    pairs = quietly(data.transitions, **how).to_learn_from()
    return quietly(build, settings, pairs, seed=seed), pairs


def quietly(call: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """Without warnings: they would be of trials, not of what is chosen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **more)


def train(candidate: Candidate, data: Trajectories, config: TrainConfig, **more: Any) -> Any:
    """A model of the candidate, trained on `data`."""
    model, pairs = build_for(candidate, data, config.seed)
    return fit(model, pairs, config=config, **more)


def _key(candidate: Candidate, steps: int, fold: int) -> str:
    return f"{candidate.name} | {steps} | {fold}"


def sampler_of(model: NeuralSDE, changes: dict[str, float]) -> Sampler:
    """The model's sampler with a pull per reference step, a share of the noise, or more substeps."""
    own: dict[str, Any] = dict(changes)
    if "pull" in own:
        own["pull"] = own["pull"] / model.scale.step
    return replace(model.sampler, **own)


@dataclass(frozen=True)
class Effort:
    """What a budget came to on one machine."""

    unit: int  # steps of a short trial
    last: int  # of the last training, were it of the default
    origins: int = MOST_ORIGINS  # of a fold
    num_paths: int = NUM_PATHS  # from each
    part: float = 1.0  # of the candidates, their changes and the folds
    large: bool = False  # whether nets are
    batch: int = 0  # of the last training; 0: as in the trials
    costs: dict[str, float] = field(default_factory=dict)  # of a step of each candidate, in steps of the default
    moments: int = Moments().most  # steps of a gap at most
    windows: float = 1.0  # times that a training takes which ends with windows, over one of pairs alone


class Trials:
    """Runs trials, or reads what is known of them."""

    def __init__(
        self, folds: list[Fold], config: TrainConfig, effort: Effort, file: Path | None, tick: Callable[[float], object]
    ) -> None:
        self.folds, self.config, self.effort, self.file, self.tick = folds, config, effort, file, tick
        self.known: dict[str, Any] = {}
        self.segments = [Segments.of(f.held_out, f.known, most=effort.origins) for f in folds]
        self.models: dict[str, Any] = {}  # trained in this process: samplers are tried on them without another training
        self.cost: dict[str, float] = {}
        if file is not None and file.exists():
            self.known = json.loads(read_text(file))

    def train(self, candidates: Iterable[Candidate], steps: int, folds: Iterable[int]) -> None:
        """Train what is not known yet; models of one form in one batch."""
        wanted = [(c, fold) for c in candidates for fold in folds]
        stacks: dict[Hashable, list[tuple[str, Any, Transitions]]] = {}
        for candidate, fold in wanted:
            key = _key(candidate, steps, fold)
            if key in self.models or key in self.known:
                continue
            try:
                model, pairs = build_for(candidate, self.folds[fold].known, self.config.seed)
            except ValueError as error:
                self.models[key] = error
                continue
            stacks.setdefault(form_of(model, pairs), []).append((key, model, pairs))
            self.cost[key] = candidate.cost * steps
        for members in stacks.values():
            for some in (members[k : k + MOST_TOGETHER] for k in range(0, len(members), MOST_TOGETHER)):
                keys, models, data = (list(part) for part in zip(*some))
                try:
                    fit_together(models, data, replace(self.config, steps=steps))
                except (ValueError, RunError) as error:
                    models = [error] * len(keys)
                self.models |= dict(zip(keys, models))
                self.tick(sum(self.cost[key] for key in keys))

    def score(
        self, candidate: Candidate, steps: int, folds: Iterable[int], samplers: Samplers = USUAL
    ) -> dict[str, Score]:
        """The scores of a candidate over some folds, by sampler."""
        found: dict[str, list[Score]] = {name: [] for name in samplers}
        for fold in folds:
            for name, score in self._one(candidate, steps, fold, samplers).items():
                found[name].append(score)
        return {name: together(each) for name, each in found.items()}

    def _one(self, candidate: Candidate, steps: int, fold: int, samplers: Samplers) -> dict[str, Score]:
        key = _key(candidate, steps, fold)
        known = self.known.setdefault(key, {})
        missing = {name: how for name, how in samplers.items() if name not in known}
        if missing:
            model = self._model(candidate, steps, fold)
            for name, how in missing.items():
                score = self._draw(model, how, fold)
                known[name] = {"parts": score.parts.tolist(), "unit": score.unit.tolist(), "error": score.error}
            self._save()
        return {
            name: Score(
                torch.tensor(known[name]["parts"], dtype=torch.float64),
                torch.tensor(known[name]["unit"]),
                known[name]["error"],
            )
            for name in samplers
        }

    def _model(self, candidate: Candidate, steps: int, fold: int) -> Any:
        """Of this process; trained again where a search goes on, whose scores are known and whose models are not."""
        key = _key(candidate, steps, fold)
        if key not in self.models:
            known = self.known.pop(key, None)
            self.train([candidate], steps, [fold])
            if known is not None:
                self.known[key] = known
        return self.models[key]

    def _draw(self, model: Any, how: dict[str, float], fold: int) -> Score:
        segments = self.segments[fold]
        if isinstance(model, Exception):
            lost = torch.full((len(segments.row), 5), FAILED, dtype=torch.float64)
            return Score(lost, segments.unit, str(model))
        return quietly(segments.score, model, sampler_of(model, how), num_paths=self.effort.num_paths)

    def likelier(self, one: Candidate, other: Candidate, steps: int, folds: Iterable[int]) -> tuple[float, float]:
        """By how much the log density of a held-out step is larger by one model than by the other, and its standard error."""
        key = f"{one.name} beside {other.name} | {steps}"
        if key not in self.known:
            both = [torch.cat([self._log_probs(c, steps, fold) for fold in folds]) for c in (one, other)]
            apart = both[0] - both[1]
            apart = apart[apart.isfinite()]
            error = float(apart.std()) / math.sqrt(len(apart)) if len(apart) > 1 else math.inf
            self.known[key] = [float(apart.mean()) if len(apart) else 0.0, error]
            self._save()
        gained, error = self.known[key]
        return gained, error

    def _log_probs(self, candidate: Candidate, steps: int, fold: int) -> torch.Tensor:
        """Log densities of held-out steps, evenly spread; none where the model has none."""
        model, settings = self._model(candidate, steps, fold), candidate.config
        held_out = self.folds[fold].held_out
        if isinstance(model, Exception):
            return torch.full((1,), -math.inf)
        pairs = quietly(held_out.transitions, lag=candidate.lag, history=settings.history, pad=settings.pad_history)
        return model.log_prob(pairs.spread(MOST_STEPS)).double()

    def forget(self) -> None:
        """Let go of the models of a round."""
        self.models.clear()

    def _save(self) -> None:
        if self.file is not None:
            with replacing(self.file) as new:
                new.write_text(json.dumps(self.known), encoding="utf-8")


def measure_step(candidate: Candidate, fold: Fold, config: TrainConfig, members: int, num: int = 5) -> float:
    """Seconds of a step of a member of a stack: what `num` more steps take, without what it takes to begin."""
    models, pairs = zip(*(build_for(candidate, fold.known, k) for k in range(members)))

    def took(steps: int) -> float:
        began = time.perf_counter()
        fit_together(models, pairs, replace(config, steps=steps))
        return time.perf_counter() - began

    took(1)  # the first takes longer
    more = [min(took(steps) for _ in range(2)) for steps in (1, 1 + num)]
    return max(more[1] - more[0], 0.1 * more[1]) / num / members


@dataclass(frozen=True)
class Gaps:
    """What a gap of the data will take in a whole training."""

    steps: int = UNTOLD  # of the moments, at most
    longer: float = 1.0  # times that a training step takes, over one of a trial
    solving: float = 0.0  # seconds in which a drift is found by least squares


def measure_gaps(candidate: Candidate, data: Trajectories) -> Gaps:
    """How many steps a gap takes, which a training finds on its way, foretold by the drift that least squares find before it."""
    few = of_few_terms(candidate) if isinstance(candidate.config.law, Moments) else None
    began = time.perf_counter()
    try:
        model, pairs = (None, None) if few is None else build_for(few, data, 0)
    except ValueError:  # data of this kind cannot train it
        model = None
    if model is None or pairs is None:
        return Gaps()
    took, law, some = time.perf_counter() - began, model.law, pairs.some()
    first, every = (min(len(pairs), num_rows(law, model.scale.shape, first=first)) for first in (True, False))
    model.settle(some)
    taken = torch.as_tensor(law.num_steps(some.dt / model.scale.step)).expand(len(some))
    steps, gaps = (each.tolist() for each in taken.unique(return_counts=True))
    longer = sum(law.num_points(num) * times for num, times in zip(steps, gaps)) / len(some) / law.num_points(1)
    return Gaps(max(steps), longer, took * longer * every / first)


def ends_with_windows(candidate: Candidate, data: Trajectories) -> bool:
    """Whether a training of the candidate does."""
    law, solved = candidate.config.law, candidate.config.net.solved
    if solved or (data.observed is None and not (isinstance(law, Moments) and law.measurement)):
        return False
    try:
        model, pairs = build_for(candidate, data, 0)
    except ValueError:  # data of this kind cannot train it
        return False
    return model.window_for(pairs) > 0


def measure_windows(candidate: Candidate, data: Trajectories, config: TrainConfig) -> float:
    """Times that a whole training that ends with windows takes, over one of pairs alone."""
    model, pairs = build_for(candidate, data, 0)
    noise = Noise.for_step(0, 0, torch.arange(config.batch_size))
    batch, windows = pairs.batch(noise), pairs.windows(noise[::PER_WINDOW], model.window_for(pairs))

    def took(*more: Trajectories) -> float:
        began = time.perf_counter()
        sum(model(batch, noise, *more).values()).backward()
        return time.perf_counter() - began

    took(windows)  # the first takes longer
    alone, late = (min(took(*more) for _ in range(2)) for more in ((), (windows,)))
    return 1 + LAST * max(late / alone - 1, 0.0)


def measure_draws(
    tried: Sequence[tuple[Candidate, dict[str, float]]], fold: Fold, sizes: Sequence[tuple[int, int]]
) -> tuple[dict[str, float], list[float]]:
    """Seconds of a draw of the last of `sizes` by each candidate and sampler, and how many times that one of each size takes."""
    where = [Segments.of(fold.held_out, fold.known, most=origins) for origins, _ in sizes]

    def one(candidate: Candidate, how: dict[str, float], size: int) -> float:
        try:
            model = build_for(candidate, fold.known, 0)[0].eval()
        except ValueError:  # data of this kind cannot train it
            return 0.0
        began = time.perf_counter()
        quietly(where[size].score, model, sampler_of(model, how), num_paths=sizes[size][1])
        return time.perf_counter() - began

    last = len(sizes) - 1
    one(*tried[0], last)  # the first draw takes longer
    took = {candidate.name: one(candidate, how, last) for candidate, how in tried}
    rows = [len(w.row) * num for w, (_, num) in zip(where, sizes)]
    if rows[0] == rows[last]:
        return took, [1.0] * len(sizes)
    grown = max(one(*tried[0], 0) / took[tried[0][0].name], 1.0) - 1
    return took, [1 + grown * (r - rows[last]) / (rows[0] - rows[last]) for r in rows]


class _SmallProducts:
    """Products of small matrices on a CPU: one thread, and without oneDNN, which takes longer to start than they do.

    Both are set for the process, while at least one search is under way.
    """

    def __init__(self) -> None:
        self.lock, self.inside, self.before = threading.Lock(), 0, (1, True)

    def __enter__(self) -> None:
        with self.lock:
            if not self.inside:
                self.before = torch.get_num_threads(), torch.backends.mkldnn.set_flags(False)[0]
                torch.set_num_threads(1)
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                torch.set_num_threads(self.before[0])
                torch.backends.mkldnn.set_flags(self.before[1])


small_products = _SmallProducts()
