"""What every sequence model has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from neuralsde.doors import Count, check_fields
from neuralsde.nets.config import MLPConfig, NetConfig
from neuralsde.records import Choice, check

Normalise = Literal["mean_std", "isotropic", "min_max", "none"]


@dataclass(frozen=True, kw_only=True)
class Sampling(Choice):
    """How paths are drawn; models with more to choose have their own kind. It is saved with the model."""

    box: float | None = 20.0
    """Stop with an error when a state is further than this many data ranges outside the data. None: only when not finite."""

    def __post_init__(self) -> None:
        check_fields(self)
        check(self.box is None or self.box > 0, f"`box` must be positive or None. Got {self.box=}.")


Drawing = Annotated[Sampling | None, "Write a Sampler(…), or the sampler of the model's kind with other settings."]
"""How the paths of one call are drawn; None: as the model's sampler says."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Choice):
    """Base of the settings of models; `builds` names the model's class."""

    normalise: Normalise = "mean_std"
    """Scale of states: per feature, one scale for all features (keeps angles), to [-1, 1], or none."""
    history: Count = 1
    """Observations in the state, spaced by the lag of the data. Only the newest is predicted."""
    time_input: bool = False
    """Give the nets the time since the start of the path (the model is then no longer time-invariant)."""
    sampler: Sampling = field(default_factory=Sampling)
    """How paths are drawn."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def num_late(self) -> int:
        """Last entries of the condition of the nets, after the context: they change along a path."""
        return int(self.time_input)


@dataclass(frozen=True, kw_only=True)
class BackboneModelConfig(ModelConfig):
    """Base of the settings of models whose nets are backbones of one kind."""

    net: Annotated[NetConfig, "Nets of your own go into `nets`."] = field(default_factory=MLPConfig)
    """The backbone of each net: a perceptron of all slots, or one with an encoder of the history."""
