"""Data with a way to score, and the experiment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from neuralsde.core.doors import check_fields
from neuralsde.core.records import check
from neuralsde.experiments.task import TaskConfig
from neuralsde.experiments.video_config import VideoConfig
from neuralsde.models.config import ModelConfig
from neuralsde.policy.config import PolicyConfig
from neuralsde.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class BranchingConfig(TaskConfig):
    """Two-dimensional paths that run straight, then fork (the paper's Section 4.1)."""

    builds: ClassVar[str] = "neuralsde.experiments.tasks.branching:BranchingTask"

    density: int = 1
    """Points per unit of time; the paper's two settings are 1 and 10."""
    num_branches: int = 2
    """Branches, spread evenly over the fan."""
    angle: float = 30.0
    """Degrees between the stem and the outermost branch."""
    lag: float | None = 1.0
    """Physical time between the two states of a transition; None is one data step."""
    num_paths: int = 1_000
    """Paths drawn for the scores."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("density", "num_branches", "num_paths"):
            check(getattr(self, name) >= 1, f"`{name}` must be at least 1. Got {name}={getattr(self, name)}.")
        check(0 < self.angle < 90, f"`angle` must be between 0 and 90 degrees. Got {self.angle=}.")


@dataclass(frozen=True, kw_only=True)
class KnownSDEConfig(TaskConfig):
    """Paths of an SDE whose truth is known, observed as asked."""

    builds: ClassVar[str] = "neuralsde.experiments.tasks.known_sdes:KnownSDETask"

    system: Literal["ou", "ou10", "gbm", "cir", "double_well", "van_der_pol", "lorenz", "noise_branching"] = "ou"
    """The SDE."""
    num_transitions: int = 400_000
    """Transitions between consecutive observations, over all paths."""
    dt: float | None = None
    """Mean time between observations; None is the usual one of the system."""
    gap_ratio: float = 1.0
    """Largest over smallest gap; gaps are spread evenly on a logarithmic scale. 1: regular stamps."""
    missing: float = 0.0
    """Share of the entries that are not observed."""
    measurement: float = 0.0
    """Standard deviation of the measurement noise, in units of the mean size of a step's noise, g sqrt(dt)."""
    reference: bool = False
    """Also fit the true family to the same paths by maximum likelihood, and score it."""

    def __post_init__(self) -> None:
        check_fields(self)
        check(self.num_transitions >= 1, f"`num_transitions` must be at least 1. Got {self.num_transitions=}.")
        check(self.dt is None or self.dt > 0, f"`dt` must be positive. Got {self.dt=}.")
        check(self.gap_ratio >= 1, f"`gap_ratio` must be at least 1. Got {self.gap_ratio=}.")
        check(0 <= self.missing < 1, f"`missing` is a share in [0, 1). Got {self.missing=}.")
        check(self.measurement >= 0, f"`measurement` must not be negative. Got {self.measurement=}.")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Another way to run a trained policy, or a harder world."""

    name: str
    """In the results."""
    chunk: int | None = None
    """Actions carried out of a plan (those of the policy if not given)."""
    diffusion: float | None = None
    """Factor on the learned noise (that of the sampler if not given)."""
    pull: float | None = None
    """Pull of the sampler (its own if not given)."""
    generation: Literal["ddpm", "ddim"] | None = None
    """DDPM takes every noise level of a diffusion model, DDIM ten steps."""
    noise: float = 0.0
    """Observation noise, as a share of the range."""
    delay: int = 0
    """Control steps until an action acts."""
    push: float = 0.0
    """Pixels by which the block is displaced at half time."""
    control_hz: float = 10.0
    """Actions per second."""


ROBUSTNESS = (
    Variant(name="noise 1 %", noise=0.01),
    Variant(name="noise 3 %", noise=0.03),
    Variant(name="delay 1 step", delay=1),
    Variant(name="push 50 px", push=50.0),
    Variant(name="5 Hz", control_hz=5.0),
    Variant(name="20 Hz", control_hz=20.0),
)
"""Worlds that no demonstration showed."""


@dataclass(frozen=True, kw_only=True)
class PushTConfig(TaskConfig):
    """Imitation of the Push-T demonstrations, scored in simulation (the paper's Section 4.2)."""

    builds: ClassVar[str] = "neuralsde.experiments.tasks.pusht:PushTTask"
    needs: ClassVar[tuple[str, ...]] = ("gym_pusht",)

    data: str = "data/pusht.npz"
    """The demonstrations, as `nsde data pusht` leaves them."""
    num_demonstrations: int | None = None
    """Only the first so many; None: all."""
    mirror: bool = False
    """Learn from their mirror images too: plane, block and goal are symmetric, so each is a second demonstration."""
    observation: Literal["pose", "keypoints", "near", "image"] = "keypoints"
    """What the policy sees: the agent, and of the block its pose, corners, also how far these are off the goal, or a picture."""
    policy: PolicyConfig = field(default_factory=lambda: PolicyConfig(first_action=(0, 1)))
    """How it plans and acts."""
    first_seed: int = 200_000
    """Seed of the first episode; 100000 to 100499 are for reported numbers alone."""
    num_episodes: int = 500
    """Episodes."""
    variants: tuple[Variant, ...] = ()
    """Scored too, with the same seeds."""

    def __post_init__(self) -> None:
        check_fields(self)
        check(self.num_episodes >= 1, f"`num_episodes` must be at least 1. Got {self.num_episodes=}.")
        seen = self.observation != "image" or self.policy.form != "state"
        check(seen, "form='state' moves what is seen on by itself, which no image is. Use form='path'.")
        check(self.lag is None, f"`lag` must be None: actions follow one another. Got {self.lag=}.")


if TYPE_CHECKING:
    OneTask = Any  # which one it is, only its recipe and its task know
else:
    OneTask = TaskConfig


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One run: data, model, training, evaluation."""

    name: str
    """Name of the recipe."""
    task: OneTask
    """The data and how it is scored."""
    model: ModelConfig
    """The model."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """The training."""

    def __post_init__(self) -> None:
        plain = self.name.strip(".") != "" and not set(self.name) & set("/\\\0")
        check(plain, f"`name` must be a name, of which a folder can be made. Got {self.name!r}.")
        if isinstance(self.task, VideoConfig):
            self.task.check_given(self.model.history)
