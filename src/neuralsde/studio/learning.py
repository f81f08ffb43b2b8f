"""What happens in the worker when *learn* is pressed: a model for drawn paths, with a word on what was chosen and why.

*Quick* asks the diagnosis of `nsde.fit` which model it would try first, and trains that one for a fixed number of steps: an
answer in seconds. *Search* is `nsde.fit(data, budget=…)` itself. While a quick model learns, paths are drawn from it as it is
at that moment.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from neuralsde.data.diagnosis import diagnose
from neuralsde.data.trajectories import Trajectories
from neuralsde.sde.model import NeuralSDE
from neuralsde.selection.candidates import SMALL, Candidate, plan
from neuralsde.selection.fit import fit_data
from neuralsde.selection.report import Report
from neuralsde.selection.search import in_words
from neuralsde.selection.trials import build_for, sampler_of
from neuralsde.studio.desk import Desk, meanwhile
from neuralsde.studio.figures import DT
from neuralsde.training.config import RunOptions
from neuralsde.training.fit import fit

LAG = 3 * DT  # of smooth strokes, all of which have one speed
NOISE = 0.04  # on the inputs: about as far as two strokes of one hand lie apart
SMOOTH_SAMPLER = {"pull": 0.25, "substeps": 4}
"""Pull per lag. A strong one narrows paths before a fork, and a small error of the drift there then decides their branch."""
NEAR, BACK = 0.05, 0.24  # distance at which paths meet, and how far before and after it they are compared
SPARE = 3.0  # times as long as drawing them took pass between two sets of paths
SHOWN = 24  # paths of each set


def learn(desk: Desk, paths: list[np.ndarray], steps: int, seed: int, budget: float | None = None) -> dict[str, Any]:
    """Work of the Draw tab: leaves the model in `desk.folder / "model"`, returns what was chosen."""
    data = Trajectories.from_arrays(paths, dt=DT)
    run = desk.folder / "run"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if budget is None:
            model, choice = _quick(desk, data, steps, seed, run)
        else:
            with _watch_search(desk, run, budget):
                model = fit_data(data, budget=budget, seed=seed, run_dir=run, progress=False, cpu=True)
            report = Report.of(model)
            settings = {k: v for k, v in report.settings.items() if v is not None}
            choice = {
                "name": report.choice,
                "why": report.reason,
                "sampler": report.sampler,
                "steps": report.steps,
                "settings": {k: str(v) for k, v in settings.items()},
                "traits": [[t.name, t.text] for t in report.traits],
                "tried": len(report.tried),
                "budget": budget,
            }
    notes = dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning))
    model.save_pretrained(desk.folder / "model")
    return {"choice": {**choice, "notes": list(notes), "seed": seed}}


def warm_up() -> None:
    """Take one training step of anything: what torch loads at its first step is then there."""
    data = Trajectories.from_arrays(np.zeros((1, 9, 2)) + np.linspace(0, 1, 9)[:, None], dt=DT)
    model = NeuralSDE.for_data(data, net=SMALL)
    fit(model, data, steps=1, batch_size=4, progress=False, cpu=True)


def quick_candidate(data: Trajectories) -> tuple[Candidate, Any, Any]:
    """The model that is trained at once, how it is trained, and what was found in the data."""
    found = diagnose(data)
    paths = [data[k][0].numpy() for k in range(len(data))]
    smooth = "rough" not in found
    meets = smooth and crosses(paths)
    fixed: dict[str, Any] = {"time_input": False, "history": 2 if meets else 1, "pad_history": meets}
    if smooth:
        fixed |= {"lag": LAG, "noise": NOISE}
    steps = plan(found, fixed)
    words = "Paths cross: where one goes on depends on where it came from, so the model sees two states, not one."
    one = "One state tells where a path goes on"
    long = f"{one}. The strokes are smooth, so a step of the model spans {round(LAG / DT)} of their points."
    why = words if meets else long if smooth else f"{one}; {steps.default.why}."
    return replace(steps.default, why=why, name="two states" if meets else "one state"), steps.train, found


def _quick(desk: Desk, data: Trajectories, steps: int, seed: int, run: Path) -> tuple[NeuralSDE, dict[str, Any]]:
    candidate, train, found = quick_candidate(data)
    config = replace(train, steps=steps, seed=seed)
    model, pairs = build_for(candidate, data, seed)
    how = SMOOTH_SAMPLER if candidate.config.start_probability < 1 else {}
    if candidate.config.denoiser is None:
        how = {}
    model.sampler = sampler_of(model, how)
    options = RunOptions(progress=False, cpu=True, log_every=max(1, steps // 80), checkpoint_every=10**6)
    with _watch(desk, model, data, run, steps):
        fit(model, pairs, config=config, options=options, run_dir=run)
    shown = {k: v for k, v in candidate.settings.items() if k != "lag"}
    choice = {
        "name": candidate.name,
        "why": candidate.why,
        "sampler": in_words(how),
        "steps": steps,
        "lag": candidate.lag,
        "batch_size": config.batch_size,
        "lr": config.lr,
        "ema": config.ema,
        "settings": {k: repr(v) for k, v in shown.items()},
        "traits": [[t.name, t.text] for t in found.traits],
        "tried": 1,
    }
    return model, choice


def crosses(paths: list[Float[np.ndarray, "T 2"]]) -> bool:
    """Whether paths meet that came from different places and go to different places: one state does not tell them apart."""
    back = round(BACK / DT)
    inner = [p[back:-back:2] for p in paths if len(p) > 2 * back]
    if not inner:
        return False
    now = np.concatenate(inner)
    before = np.concatenate(
        [p[: -2 * back : 2][: len(q)] for p, q in zip((p for p in paths if len(p) > 2 * back), inner)]
    )
    after = np.concatenate([p[2 * back :: 2][: len(q)] for p, q in zip((p for p in paths if len(p) > 2 * back), inner)])
    rows = np.linspace(0, len(now) - 1, min(len(now), 1_500)).astype(int)
    now, before, after = now[rows], before[rows], after[rows]
    apart = [np.linalg.norm(v[:, None] - v[None], axis=-1) for v in (now, before, after)]
    far = 0.75 * BACK
    return bool(((apart[0] < NEAR) & (apart[1] > far) & (apart[2] > far)).any())


def starts_of(data: Trajectories, history: int, num: int) -> Float[torch.Tensor, "B H 2"]:
    """Where some of the paths begin, as histories."""
    first = (data.lengths.cumsum(0) - data.lengths)[:: max(1, len(data) // num)][:num]
    return data.states[first][:, None].expand(-1, history, -1).clone()


@contextmanager
def _watch(desk: Desk, model: NeuralSDE, data: Trajectories, run: Path, steps: int) -> Iterator[None]:
    """Meanwhile, report losses and paths of the model as it is."""
    metrics = run / "metrics.jsonl"
    starts = starts_of(data, model.config.history, 8)
    span = float(data.durations.max())
    times = np.arange(0.0, span + model.scale.step, model.scale.step)
    rough = replace(model.sampler, substeps=1, pull=min(model.sampler.pull, 0.9 / model.scale.step))

    def watch(over: threading.Event) -> None:
        sent, wait, seed = 0, 0.2, 0
        while not over.wait(wait):
            losses, sent = _new_losses(metrics, sent)
            began, seed = time.monotonic(), seed + 1
            paths = None
            if sent:
                with suppress(ValueError, RuntimeError):
                    drawn = model.sample(starts, times, num_paths=max(1, SHOWN // len(starts)), sampler=rough, rng=seed)
                    paths = drawn.flatten(0, 1).numpy()
            more = {} if paths is None else {"paths": paths}
            desk.report("progress", losses=losses, steps=steps, dt=model.scale.step, **more)
            wait = min(max(0.3, SPARE * (time.monotonic() - began)), 2.0)
        losses, sent = _new_losses(metrics, sent)
        desk.report("progress", losses=losses, steps=steps)

    with meanwhile(watch):
        yield


def _new_losses(metrics: Path, sent: int) -> tuple[list[dict[str, float]], int]:
    """Lines of metrics.jsonl after the first `sent`."""
    if not metrics.exists():
        return [], sent
    lines = [line for line in metrics.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    names = ("step", "flow", "diffusion", "denoiser")
    found = [{k: v for k, v in json.loads(line).items() if k in names} for line in lines[sent:]]
    return found, len(lines)


@contextmanager
def _watch_search(desk: Desk, run: Path, budget: float) -> Iterator[None]:
    """Meanwhile, report how far the search is: its trials, then the losses of the last training."""
    began = time.monotonic()

    def watch(over: threading.Event) -> None:
        sent = 0
        while not over.wait(0.5):
            trials = run / "trials.json"
            num = 0
            if trials.exists():
                with suppress(ValueError, OSError):
                    num = len(json.loads(trials.read_text(encoding="utf-8")))
            losses, sent = _new_losses(run / "metrics.jsonl", sent)
            share = min(0.99, (time.monotonic() - began) / budget)
            desk.report("progress", losses=losses, share=share, trials=num)

    with meanwhile(watch):
        yield
