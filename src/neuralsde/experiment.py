"""A run: build, train, evaluate, and the record of it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from neuralsde.config import BranchingConfig, Experiment, FramesConfig, KnownSDEConfig, PushTConfig, VideoConfig
from neuralsde.files import writable_folder
from neuralsde.models import build, load
from neuralsde.records import save_yaml, to_dict
from neuralsde.run_folder import provenance, write_results
from neuralsde.sequence import SequenceModel
from neuralsde.tasks import branching, frames, known_sdes, pusht, video
from neuralsde.train import fit
from neuralsde.video.model import save_video_model

TASKS: dict[type, Any] = {
    BranchingConfig: branching,
    KnownSDEConfig: known_sdes,
    PushTConfig: pusht,
    FramesConfig: frames,
    VideoConfig: video,
}
"""Modules with `data(config, seed)`, `assess(model, config, seed=…)` and, if a model is to act, `policy(model, config)`, or, if
training does not end it, `finish(model, data)`, or, if it is to draw futures of clips, `frames_by(config)`."""
NUM_KEPT = 200
"""Scored paths kept in the run folder."""


@dataclass(frozen=True)
class Outcome:
    """What a run leaves."""

    model: SequenceModel
    results: dict[str, Any]


def run(experiment: Experiment, run_dir: str | os.PathLike[str] | None = None, *, resume: bool = False) -> Outcome:
    """Train and score one experiment; with `run_dir`, leave config.yaml, metrics, checkpoints, the model and results.json."""
    task = TASKS[type(experiment.task)]
    if experiment.model.history != 1 and not hasattr(task, "STARTS_FROM_HISTORY"):
        raise ValueError(f"This task starts from one state: `history` must be 1. Got {experiment.model.history}.")
    folder = None if run_dir is None else writable_folder(run_dir)
    if folder is not None:
        if not resume and (folder / "checkpoints").exists():
            raise ValueError(f"{folder} already holds a run. Pass --resume to go on with it, or another --output.")
        if not (folder / "checkpoints").exists():  # a resumed run keeps its record: fit may yet refuse the changes
            save_yaml(experiment, folder / "config.yaml")
    data = task.data(experiment.task, experiment.train.seed)
    pairs = data.transitions(lag=experiment.task.lag, history=experiment.model.history)
    model = build(experiment.model, pairs, seed=experiment.train.seed)
    began = time.perf_counter()
    fit(model, data, config=experiment.train, run_dir=folder, resume=resume)
    seconds = time.perf_counter() - began
    if hasattr(task, "finish"):
        model = task.finish(model, data)
    if folder is not None and hasattr(task, "frames_by"):
        autoencoder, settings = task.frames_by(experiment.task)
        save_video_model(folder / "model", model, autoencoder, settings=settings)
    elif folder is not None:
        kept = task.policy(model, experiment.task) if hasattr(task, "policy") else model
        kept.save_pretrained(folder / "model")
    scores, paths = evaluate(model, experiment)
    results = scores | {"train_seconds": round(seconds, 2)}
    if folder is not None:
        if paths is not None:
            np.savez_compressed(folder / "paths.npz", paths=paths[:NUM_KEPT].numpy())
        write_results(folder / "results.json", {"experiment": to_dict(experiment), **provenance(), "scores": results})
    return Outcome(model, results)


def evaluate(model: SequenceModel, experiment: Experiment) -> tuple[dict[str, Any], Tensor | None]:
    """The task's scores of a trained model, and the paths that were scored, where it keeps them."""
    return TASKS[type(experiment.task)].assess(model, experiment.task, seed=experiment.train.seed)


def load_run(run_dir: str | os.PathLike[str]) -> tuple[SequenceModel, Experiment]:
    """The model and the settings of a finished run."""
    from neuralsde.records import load_yaml

    folder = Path(run_dir)
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"{folder} is not a run folder of `nsde train`. For a saved model use `nsde sample`.")
    return load(folder / "model"), load_yaml(Experiment, folder / "config.yaml")
