"""Settings of the baselines, and how they generate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from neuralsde.core.records import check
from neuralsde.models.config import BackboneModelConfig, ModelConfig, Normalise, Sampling
from neuralsde.nets.config import GPTConfig, LSTMConfig, MLPConfig

NOISE_LEVELS = 100  # of diffusion models, in training


@dataclass(frozen=True, kw_only=True)
class Generation(Sampling):
    """How a generative model makes the next state from noise."""

    num_steps: int = 10
    """Network passes per generated state."""
    temperature: float = 1.0
    """Factor on the noise that a state is made from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.temperature >= 0, f"`temperature` must not be negative. Got {self.temperature=}.")
        check(self.num_steps >= 1, f"`num_steps` must be at least 1. Got {self.num_steps=}.")


@dataclass(frozen=True, kw_only=True)
class DiffusionSteps(Generation):
    """How a diffusion model generates."""

    variant: Literal["ddim", "ddpm"] = "ddim"
    """Deterministic DDIM steps, or the random steps of DDPM through all the noise levels of training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        steps, levels = self.num_steps, NOISE_LEVELS
        check(steps <= levels, f"`num_steps` must not exceed the {levels} noise levels of training. Got {steps}.")
        every = self.variant == "ddim" or steps == levels
        check(every, f"variant='ddpm' takes every noise level. Got num_steps={steps}. Set num_steps={levels}.")


@dataclass(frozen=True, kw_only=True)
class NextStateConfig(BackboneModelConfig):
    """What the generative baselines of p(next state | state) share."""

    target: Literal["next", "increment"] = "next"
    """Generate the next state itself, or its difference to the present one, scaled to unit variance."""
    noise: float = 0.0
    """Standard deviation of the noise added to the condition in training, in units of the data's standard deviation."""
    sampler: Generation = field(default_factory=Generation)
    """How states are generated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.noise >= 0, f"`noise` must not be negative. Got {self.noise=}.")


@dataclass(frozen=True, kw_only=True)
class DDIMConfig(NextStateConfig):
    """Denoising diffusion with the scheduler of diffusers."""

    builds: ClassVar[str] = "neuralsde.baselines.ddim:DDIM"
    needs: ClassVar[tuple[str, ...]] = ("diffusers",)

    prediction: Literal["epsilon", "sample", "v_prediction"] = "epsilon"
    """What the net predicts."""
    sampler: DiffusionSteps = field(default_factory=DiffusionSteps)
    """How states are generated."""


@dataclass(frozen=True, kw_only=True)
class RectifiedFlowConfig(NextStateConfig):
    """Straight paths from noise to the next state, Euler steps."""

    builds: ClassVar[str] = "neuralsde.baselines.rectified_flow:RectifiedFlow"


@dataclass(frozen=True, kw_only=True)
class PFIConfig(NextStateConfig):
    """A Föllmer process from the present state to the next one (probabilistic forecasting with interpolants)."""

    builds: ClassVar[str] = "neuralsde.baselines.pfi:PFI"

    target: ClassVar[Literal["increment"]] = "increment"  # type: ignore[misc]
    """The process starts at the present state."""


@dataclass(frozen=True, kw_only=True)
class GaussianConfig(BackboneModelConfig):
    """A Gaussian law of the next state: one net gives mean and variance, by maximum likelihood."""

    builds: ClassVar[str] = "neuralsde.baselines.gaussian:GaussianMLP"


@dataclass(frozen=True, kw_only=True)
class ImitationConfig(ModelConfig):
    """What one-shot policies p(action | last observations) share."""

    normalise: Normalise = "min_max"
    """Scale of actions."""
    num_observations: int = 2
    """Observations in the context, end to end, oldest first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.num_observations >= 1, f"`num_observations` must be at least 1. Got {self.num_observations=}.")


@dataclass(frozen=True, kw_only=True)
class LSTMGMMConfig(ImitationConfig):
    """A recurrent net of the observations and a mixture of Gaussians for the action, by maximum likelihood."""

    builds: ClassVar[str] = "neuralsde.baselines.lstm_gmm:LSTMGMM"

    net: LSTMConfig = field(default_factory=LSTMConfig)
    """The recurrent net."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within = self.normalise == "min_max"
        check(within, f"Means are within the range of the data. Got {self.normalise=}. Use 'min_max'.")


@dataclass(frozen=True, kw_only=True)
class IBCConfig(ImitationConfig):
    """An energy of observations and action, learned against actions all over their box, and minimised to act."""

    builds: ClassVar[str] = "neuralsde.baselines.ibc:IBC"

    net: MLPConfig = field(default_factory=lambda: MLPConfig(width=256, depth=4))
    """The perceptron of the energy."""
    num_samples: int = 16_384
    """Actions that are weighed against each other to act."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.num_samples >= 1, f"`num_samples` must be at least 1. Got {self.num_samples=}.")
        check(type(self.net) is MLPConfig, f"The energy is a plain perceptron. Got {type(self.net).__name__}.")


@dataclass(frozen=True, kw_only=True)
class BETConfig(ImitationConfig):
    """A transformer of the observations that chooses a bin of actions, and an offset from its centre."""

    builds: ClassVar[str] = "neuralsde.baselines.bet:BET"

    net: GPTConfig = field(default_factory=GPTConfig)
    """The transformer."""
    num_bins: int = 64
    """Clusters of the actions of the data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.num_bins >= 1, f"`num_bins` must be at least 1. Got {self.num_bins=}.")
