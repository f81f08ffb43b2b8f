"""A run: build, train, evaluate, and the record of it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuralsde.core.extras import need
from neuralsde.core.records import load_yaml, need_extras, save_yaml, to_dict, with_settings
from neuralsde.experiments.config import Experiment
from neuralsde.experiments.task import Task, task_for
from neuralsde.models.build import build, load
from neuralsde.models.sequence import SequenceModel
from neuralsde.training.config import RunOptions
from neuralsde.training.fit import fit
from neuralsde.training.run_folder import (
    RunFolder,
    check_run,
    first_process,
    holds_run,
    open_run,
    provenance,
    write_results,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_KEPT = 200  # scored paths kept in the run folder


@dataclass(frozen=True)
class Outcome:
    """What a run leaves."""

    model: SequenceModel
    results: dict[str, Any]
    checksums: dict[str, str]
    """Of the files that the results stand on."""


def run(
    experiment: Experiment,
    run_dir: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    options: RunOptions | None = None,
) -> Outcome:
    """Train and score one experiment; with `run_dir`, leave config.yaml, metrics, checkpoints, the model and results.json."""
    need_extras(experiment.task, experiment.model)
    task = task_for(experiment.task)
    check_run(run_dir, resume=resume)
    if experiment.model.history != 1 and not task.starts_from_history:
        raise ValueError(f"This task starts from one state: `history` must be 1. Got {experiment.model.history}.")
    with open_run(run_dir, resume=resume) as opened:
        return _run(experiment, task, opened, resume, options)


def _run(
    experiment: Experiment, task: Task[Any], run_dir: RunFolder | None, resume: bool, options: RunOptions | None
) -> Outcome:
    folder = run_dir.path if run_dir is not None and first_process() else None  # to write to
    if folder is not None and not holds_run(folder):  # a resumed run keeps its record: fit may yet refuse the changes
        save_yaml(experiment, folder / "config.yaml")
    data, checksums = task.data(experiment.train.seed), task.checksums()
    pairs = data.transitions(lag=experiment.task.lag, history=experiment.model.history)
    model = build(experiment.model, pairs, seed=experiment.train.seed)
    began = time.perf_counter()
    fit(model, data, config=experiment.train, options=options, run_dir=run_dir, resume=resume)
    seconds = time.perf_counter() - began
    model = task.finish(model, data)
    if folder is not None:
        task.save(model, folder / "model")
    scores = task.score(model, experiment.train.seed)
    results = scores.values | {"train_seconds": round(seconds, 2)}
    if folder is not None:
        if scores.paths is not None:
            np.savez_compressed(folder / "paths.npz", paths=scores.paths[:NUM_KEPT].numpy())
        origin = {**provenance(), **checksums}
        write_results(folder / "results.json", {"experiment": to_dict(experiment), **origin, "scores": results})
    return Outcome(model, results, checksums)


def load_run(run_dir: str | os.PathLike[str]) -> tuple[SequenceModel, Experiment]:
    """The model and the settings of a finished run."""
    folder = Path(run_dir)
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder} is not a run folder of `nsde train`. For a saved model use `nsde sample`.")
    return load(folder / "model"), load_yaml(Experiment, folder / "config.yaml")


def score_run(run_dir: str | os.PathLike[str], *, seed: int = 0, **settings: Any) -> dict[str, Any]:
    """The scores of a finished run, drawn anew, with these settings of its task changed."""
    model, experiment = load_run(run_dir)
    return task_for(with_settings(experiment.task, settings)).score(model, seed).values


def plot_run(run_dir: str | os.PathLike[str], *, num_paths: int = 200, seed: int = 0) -> Figure:
    """A figure of paths of a finished run."""
    need("A figure", "matplotlib")
    model, experiment = load_run(run_dir)
    return task_for(experiment.task).plot(model, title=experiment.name, num_paths=num_paths, seed=seed)
