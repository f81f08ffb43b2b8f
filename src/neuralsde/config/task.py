"""The base of the settings of tasks."""

from __future__ import annotations

from dataclasses import dataclass

from neuralsde.records import Choice


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Choice, usual="BranchingConfig"):
    """Data with a way to score. A subclass and its task, registered in `experiments.task`, make a new one."""

    lag: float | tuple[float, ...] | None = None
    """Physical time between the two states of a transition; None is one data step."""
