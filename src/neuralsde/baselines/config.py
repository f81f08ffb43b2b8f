"""Settings of the baselines, and how they generate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from neuralsde.models.config import ModelConfig, Normalise, Sampling
from neuralsde.nets.config import GPTConfig, LSTMConfig, MLPConfig, NetConfig
from neuralsde.records import check


@dataclass(frozen=True, kw_only=True)
class Generation(Sampling):
    """How a generative model makes the next state from noise."""

    num_steps: int = 10
    """Network passes per generated state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.num_steps >= 1, f"`num_steps` must be at least 1. Got {self.num_steps=}.")


@dataclass(frozen=True, kw_only=True)
class DiffusionSteps(Generation):
    """How a diffusion model generates."""

    variant: Literal["ddim", "ddpm"] = "ddim"
    """Deterministic DDIM steps, or the random steps of DDPM through all the noise levels of training."""

    def check_levels(self, levels: int) -> None:
        """Refuse steps that training with so many noise levels does not know."""
        steps = self.num_steps
        check(steps <= levels, f"`num_steps` must not exceed `num_train_timesteps`={levels}. Got num_steps={steps}.")
        every = self.variant == "ddim" or steps == levels
        check(every, f"variant='ddpm' takes every noise level. Got num_steps={steps}. Set num_steps={levels}.")


@dataclass(frozen=True, kw_only=True)
class NextStateConfig(ModelConfig):
    """What the generative baselines of p(next state | state) share."""

    net: NetConfig = field(default_factory=MLPConfig)
    """The backbone."""
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

    num_train_timesteps: int = 100
    """Noise levels in training."""
    beta_schedule: Literal["squaredcos_cap_v2", "linear"] = "squaredcos_cap_v2"
    """Noise schedule."""
    prediction: Literal["epsilon", "sample", "v_prediction"] = "epsilon"
    """What the net predicts."""
    sampler: DiffusionSteps = field(default_factory=DiffusionSteps)
    """How states are generated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sampler.check_levels(self.num_train_timesteps)


@dataclass(frozen=True, kw_only=True)
class RectifiedFlowConfig(NextStateConfig):
    """Straight paths from noise to the next state, Euler steps."""

    builds: ClassVar[str] = "neuralsde.baselines.rectified_flow:RectifiedFlow"


@dataclass(frozen=True, kw_only=True)
class PFIConfig(NextStateConfig):
    """A Föllmer process from the present state to the next one (probabilistic forecasting with interpolants)."""

    builds: ClassVar[str] = "neuralsde.baselines.pfi:PFI"

    target: Literal["next", "increment"] = "increment"
    """Only increments: the process starts at the present state."""
    beta: Literal["linear", "quadratic"] = "linear"
    """Share of the increment at generation time s: s, or s^2 (the first of several passes then does not move)."""
    epsilon: float = 0.3
    """Noise of the process at its start, in units of the increments."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.target == "increment", f"PFI starts at the present state. Got {self.target=}. Use 'increment'.")
        check(self.epsilon >= 0, f"`epsilon` must not be negative. Got {self.epsilon=}.")


@dataclass(frozen=True, kw_only=True)
class GaussianConfig(ModelConfig):
    """A Gaussian law of the next state: one net gives mean and variance, by maximum likelihood."""

    builds: ClassVar[str] = "neuralsde.baselines.gaussian:GaussianMLP"

    net: NetConfig = field(default_factory=MLPConfig)
    """The backbone."""


@dataclass(frozen=True, kw_only=True)
class ImitationConfig(ModelConfig):
    """What one-shot policies p(action | last observations) share."""

    normalise: Normalise = "min_max"
    """Scale of actions."""
    num_observations: int = 2
    """Observations in the context, end to end, oldest first."""
    use_history: bool = False
    """Look at the history, the actions before, beside the observations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.num_observations >= 1, f"`num_observations` must be at least 1. Got {self.num_observations=}.")


@dataclass(frozen=True, kw_only=True)
class LSTMGMMConfig(ImitationConfig):
    """A recurrent net of the observations and a mixture of Gaussians for the action, by maximum likelihood."""

    builds: ClassVar[str] = "neuralsde.baselines.lstm_gmm:LSTMGMM"

    net: LSTMConfig = field(default_factory=LSTMConfig)
    """The recurrent net."""
    num_modes: int = 5
    """Components of the mixture."""
    min_std: float = 1e-4
    """Smallest standard deviation of a component, in units of the scale."""
    tanh_mean: bool = True
    """Means stay within [-1, 1], the range of the data under "min_max"."""
    low_noise: bool = True
    """Act with the deviation `min_std` about the mean of a component; False: with the learned one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.num_modes >= 1, f"`num_modes` must be at least 1. Got {self.num_modes=}.")
        check(self.min_std > 0, f"`min_std` must be positive. Got {self.min_std=}.")
        within = not self.tanh_mean or self.normalise == "min_max"
        check(within, f"`tanh_mean` needs normalise='min_max'. Got {self.normalise=}. Set `tanh_mean=False`.")


@dataclass(frozen=True, kw_only=True)
class IBCConfig(ImitationConfig):
    """An energy of observations and action, learned against actions all over their box, and minimised to act."""

    builds: ClassVar[str] = "neuralsde.baselines.ibc:IBC"

    net: MLPConfig = field(default_factory=lambda: MLPConfig(width=256, depth=4))
    """The perceptron of the energy."""
    num_negatives: int = 256
    """Other actions that the demonstrated one is told from."""
    num_samples: int = 16_384
    """Actions that are weighed against each other to act."""
    num_iterations: int = 5
    """Rounds of weighing, each one pass of the net; they are scattered in between."""
    std: float = 0.33
    """Standard deviation of the first scattering, in half ranges of the actions."""
    shrink: float = 0.5
    """Factor on the deviation from round to round."""
    margin: float = 0.05
    """Share of the range of the actions by which their box is wider on each side."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_negatives", "num_samples", "num_iterations"):
            check(getattr(self, name) >= 1, f"`{name}` must be at least 1. Got {name}={getattr(self, name)}.")
        check(self.std >= 0, f"`std` must not be negative. Got {self.std=}.")
        check(0 < self.shrink <= 1, f"`shrink` must be within (0, 1]. Got {self.shrink=}.")
        check(self.margin >= 0, f"`margin` must not be negative. Got {self.margin=}.")


@dataclass(frozen=True, kw_only=True)
class BETConfig(ImitationConfig):
    """A transformer of the observations that chooses a bin of actions, and an offset from its centre."""

    builds: ClassVar[str] = "neuralsde.baselines.bet:BET"

    net: GPTConfig = field(default_factory=GPTConfig)
    """The transformer."""
    num_bins: int = 64
    """Clusters of the actions of the data."""
    gamma: float = 2.0
    """Exponent of the focal loss, which spends less on what is already likely; 0: cross-entropy."""
    offset_weight: float = 1.0
    """Weight of the squared error of the offset, in units of the typical one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.num_bins >= 1, f"`num_bins` must be at least 1. Got {self.num_bins=}.")
        check(self.gamma >= 0, f"`gamma` must not be negative. Got {self.gamma=}.")
        check(self.offset_weight > 0, f"`offset_weight` must be positive. Got {self.offset_weight=}.")
