"""A task: data to learn from, and scores of what was learned. This module imports no torch, its tasks do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from neuralsde.core.records import Choice, built_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from neuralsde.data.trajectories import Trajectories
    from neuralsde.models.sequence import SequenceModel


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Choice):
    """Data with a way to score: base of the settings of tasks; `builds` names the task's class."""

    lag: float | tuple[float, ...] | None = None
    """Physical time between the two states of a transition; None is one data step."""


Config = TypeVar("Config", bound=TaskConfig)


@dataclass(frozen=True)
class Scores:
    """How good a model is."""

    values: dict[str, Any]
    """By name, as results.json holds them."""
    paths: Tensor | None = None
    """The paths that were scored, if a run is to keep some."""


class Task(ABC, Generic[Config]):
    """One kind of experiment; the `builds` of its config names it.

    A run calls `data`, trains, then calls `finish`, `save` and `score`.
    """

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

    def checksums(self) -> dict[str, str]:
        """Of the files that data and scores are read from, under the names that results have for them."""
        return {}

    def plot(self, model: SequenceModel, *, title: str, num_paths: int, seed: int = 0) -> Figure:
        """A figure of paths of the model."""
        raise ValueError(f"{type(self).__name__} draws no figure of paths. The branching task does. Got {title!r}.")


def task_for(config: TaskConfig) -> Task[Any]:
    """The task that a config describes."""
    return built_by(config)(config)
