"""A task: data to learn from, and scores of what was learned. This module imports no torch, its tasks do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from neuralsde.config.task import TaskConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from neuralsde.sequence import SequenceModel
    from neuralsde.trajectories import Trajectories

Config = TypeVar("Config", bound=TaskConfig)


@dataclass(frozen=True)
class Scores:
    """How good a model is."""

    values: dict[str, Any]
    """By name, as results.json holds them."""
    paths: Tensor | None = None
    """The paths that were scored, if a run is to keep some."""


class Task(ABC, Generic[Config]):
    """One kind of experiment. A run calls `data`, trains, then calls `finish`, `save` and `score`."""

    starts_from_history: ClassVar[bool] = False
    """Whether samples start from several states; if not, `history` of the model must be 1."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @abstractmethod
    def data(self, seed: int = 0) -> Trajectories:
        """The training data."""

    @abstractmethod
    def score(self, model: SequenceModel, seed: int = 0) -> Scores:
        """Score a trained model."""

    def finish(self, model: SequenceModel, data: Trajectories) -> SequenceModel:
        """The model after what follows its training; by default nothing does."""
        return model

    def save(self, model: SequenceModel, folder: Path) -> None:
        """Write what a user of the model loads."""
        model.save_pretrained(folder)

    def plot(self, model: SequenceModel, *, title: str, num_paths: int, seed: int = 0) -> Figure:
        """A figure of paths of the model."""
        raise ValueError(f"{type(self).__name__} draws no figure of paths. The branching task does. Got {title!r}.")


TASKS: dict[str, str | type[Task[Any]]] = {
    "BranchingConfig": "neuralsde.experiments.tasks.branching:BranchingTask",
    "KnownSDEConfig": "neuralsde.experiments.tasks.known_sdes:KnownSDETask",
    "PushTConfig": "neuralsde.experiments.tasks.pusht:PushTTask",
    "FramesConfig": "neuralsde.experiments.tasks.video:FramesTask",
    "VideoConfig": "neuralsde.experiments.tasks.video:VideoTask",
}
"""By the name of the config: the class, or where to import it from."""


def register(config: type[TaskConfig], task: str | type[Task[Any]]) -> None:
    """Have experiments with this config run `task`: a class, or "module:Class", which is imported when it is first run."""
    TASKS[config.__name__] = task


def task_for(config: TaskConfig) -> Task[Any]:
    """The task that a config describes."""
    kind = type(config).__name__
    if kind not in TASKS:
        raise ValueError(f"No task is registered for {kind}. Call neuralsde.experiments.task.register({kind}, ...).")
    found = TASKS[kind]
    if isinstance(found, str):
        module, name = found.split(":")
        found = getattr(import_module(module), name)
    return found(config)
