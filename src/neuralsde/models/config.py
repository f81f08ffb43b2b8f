"""What every sequence model has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from neuralsde.core.doors import Count, check_fields
from neuralsde.core.records import Choice, check
from neuralsde.nets.config import MLPConfig, NetConfig

Normalise = Literal["mean_std", "isotropic", "min_max", "whiten", "principal", "none"]
TURNED: tuple[Normalise, ...] = ("whiten", "principal")  # these mix features: states are turned to other coordinates
Transform = Literal["none", "log", "logit"]
Precision = Literal["no", "tf32", "bf16"]


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
    """Scale of states: per feature, one for all features (keeps angles), to [-1, 1], uncorrelated coordinates of unit size,
    uncorrelated coordinates in one unit for all (principal directions, largest first), or none."""
    transform: Transform | tuple[Transform, ...] = "none"
    """What is learned of a state before it is scaled: itself, its log (states above 0) or its logit (between 0 and 1); one, or
    one per feature. Paths stay in its range; steps, noise and states between two observed ones are those of the transform."""
    history: Count = 1
    """Observations in the state, spaced by the lag of the data. Only the newest is predicted."""
    pad_history: bool = False
    """Where a path begins, slots before it hold its first observation: starts are learned, and a state given alone is one."""
    time_input: bool | float = False
    """Give the nets the time since the start of the path, or its phase in a period of this length, in the units of the time
    stamps. The model is then no longer time-invariant."""
    sampler: Sampling = field(default_factory=Sampling)
    """How paths are drawn."""

    def __post_init__(self) -> None:
        check_fields(self)
        check(self.transform != (), "`transform` must be one, or one per feature. Got none.")
        period = 1.0 if type(self.time_input) is bool else self.time_input
        check(period > 0, f"`time_input` must be True, False or a positive period. Got {self.time_input=}.")

    @property
    def num_late(self) -> int:
        """Last entries of the condition of the nets, after the context: they change along a path."""
        return int(self.time_input) if type(self.time_input) is bool else 2


@dataclass(frozen=True, kw_only=True)
class BackboneModelConfig(ModelConfig):
    """Base of the settings of models whose nets are backbones of one kind."""

    net: Annotated[NetConfig, "Nets of your own go into `nets`."] = field(default_factory=MLPConfig)
    """The backbone of each net: a perceptron of all slots, or one with an encoder of the history."""
