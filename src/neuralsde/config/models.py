"""The method, the baselines, and how paths are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Union

from neuralsde.config.nets import ConvConfig, GPTConfig, LSTMConfig, MLPConfig, NetConfig, TinyConfig
from neuralsde.records import Choice, check, check_choices


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """How paths are drawn from a Neural SDE. It is saved with the model and replaceable in each call of `sample`."""

    solver: Literal["euler", "heun", "milstein"] = "euler"
    """Euler-Maruyama, stochastic Heun (given the Stratonovich drift) or Milstein for diagonal noise. All solve the Ito SDE."""
    substeps: int = 1
    """Solver steps per training step `dt_ref`. Output times closer than that add steps of their own."""
    balance: float | None = None
    """Weight of (g^2/2 score + g dg) in the drift; None takes 2 E[tau], the value that belongs to the training."""
    pull: float = 0.0
    """Rate (per unit of time) of the contraction towards the data. It sharpens the law: 0 for likelihoods and coverage."""
    pull_noise: bool = False
    """Add the noise that makes the pull a Langevin corrector, which leaves the smoothed law unchanged."""
    diffusion: float = 1.0
    """Factor on g; 0 gives the deterministic flow (the probability-flow ODE when tau is uniform)."""
    correction: Literal["auto", "exact", "probe", "off"] = "auto"
    """The term g dg: exact by autograd, one Hutchinson probe, or left out; auto is exact up to 32 dimensions."""
    refine: bool = True
    """Of a model with a refiner: take its second pass in every step."""
    refine_noise: float = 1.0
    """Share of the noise that the second pass leaves open; 1 draws from the law of the step, less keeps closer to its mean."""
    measured: bool = False
    """The start is a measurement: draw the true state behind it, and add the learned measurement noise to what comes out."""
    box: float | None = 20.0
    """Stop with an error when a state is further than this many data ranges outside the data. None: only when not finite."""

    def __post_init__(self) -> None:
        check_choices(self)
        check(self.substeps >= 1, f"`substeps` must be at least 1. Got {self.substeps=}.")
        check(self.pull >= 0, f"`pull` must not be negative, it would push paths off the data. Got {self.pull=}.")
        check(self.diffusion >= 0, f"`diffusion` must not be negative. Got {self.diffusion=}.")
        check(self.refine_noise >= 0, f"`refine_noise` must not be negative. Got {self.refine_noise=}.")
        check(self.balance is None or 0 <= self.balance <= 2, f"`balance` must be within [0, 2]. Got {self.balance=}.")
        missing = self.correction == "off" and self.solver != "euler"
        check(not missing, f"`solver={self.solver}` needs g dg. Got {self.correction=}. Use 'auto', or solver='euler'.")
        check(self.box is None or self.box > 0, f"`box` must be positive or None. Got {self.box=}.")


Normalise = Literal["mean_std", "isotropic", "min_max", "none"]


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Choice):
    """What every sequence model has."""

    net: NetConfig = field(default_factory=MLPConfig)
    """The backbone of each net: a perceptron of all slots, or one with an encoder of the history."""
    normalise: Normalise = "mean_std"
    """Scale of states: per feature, one scale for all features (keeps angles), to [-1, 1], or none."""
    history: int = 1
    """Observations in the state, spaced by the lag of the data. Only the newest is predicted."""
    time_input: bool = False
    """Give the nets the time since the start of the path (the model is then no longer time-invariant)."""

    @property
    def num_late(self) -> int:
        """Last entries of the condition of the nets, after the context: they change along a path."""
        return int(self.time_input)


@dataclass(frozen=True, kw_only=True)
class NeuralSDEConfig(ModelSettings):
    """The method: what is learned, from which states, with which losses."""

    tau: Literal["start", "uniform"] | float = "start"
    """Where between two observed states the nets are trained: at the start, uniformly, or at the start with this probability."""
    noise: float | tuple[float, ...] = 0.05
    """Standard deviation of the noise added to training inputs, in units of the data's scale: one, or one per feature."""
    interpolation: Literal["linear", "bridge"] = "linear"
    """States between two observed ones lie on the straight line (the paper), or on a Brownian bridge, as those of the path do."""
    flow_loss: Literal["mse", "log", "nll"] = "mse"
    """Squared error, the paper's logarithm of it, or the likelihood with g held fixed."""
    delta: float = 1e-3
    """Desingularisation of the log loss, in squared units of std / dt_ref."""
    diffusion_loss: Literal["nll", "match", "log"] = "nll"
    """Gaussian likelihood of the residual, the paper's squared error on g^2, or its authors' on log g (biased; for comparison)."""
    diffusion: bool = True
    """Learn g. False: a deterministic flow, no likelihood."""
    denoiser: bool = True
    """Learn d, which gives the score. False: no balance and no pull."""
    denoiser_weight: float = 1.0
    """Of its loss in the sum; less leaves more of a `shared` net to the flow."""
    transition: Literal["euler", "moments"] = "euler"
    """Density of a step in training and `log_prob`: Gaussian, with Euler moments or with those of the SDE over the gap."""
    transition_steps: int = 1
    """Steps in which the moments are propagated; each has an error of third order in its length."""
    measurement: bool = False
    """Learn the standard deviation of measurement noise too. It needs `transition="moments"`, a denoiser and several lags."""
    antithetic: bool = False
    """Train the denoiser on +eps and -eps together: one more pass, and far less variance where `noise` is small."""
    alpha: bool = False
    """Learn the weight of the score as a function of the state, in place of balance * g^2 / 2 (unless `balance` is given)."""
    refiner: bool = False
    """Learn h, by which a second pass draws from the law of a step that is not Gaussian. It learns steps of one length."""
    refiner_weight: float = 0.1
    """Of its loss in the sum; less leaves more of a `shared` net to the flow."""
    shared: bool = False
    """One net for all fields: a pass gives flow, diffusion (on features it does not train) and denoiser together."""
    sampler: Sampler = field(default_factory=Sampler)
    """How paths are drawn."""

    def __post_init__(self) -> None:
        check_choices(self)
        if isinstance(self.tau, str):
            check(
                self.tau in ("start", "uniform"), f"`tau` must be 'start', 'uniform' or a probability. Got {self.tau=}."
            )
        else:
            check(
                0 <= self.tau <= 1, f"`tau` as a probability of the start state must be within [0, 1]. Got {self.tau=}."
            )
        levels = self.noise if isinstance(self.noise, tuple) else (self.noise,)
        check(min(levels) >= 0, f"`noise` must not be negative. Got {self.noise=}.")
        check(
            (min(levels) > 0) == (max(levels) > 0),
            f"`noise` must be positive for all features or none. Got {self.noise=}.",
        )
        check(self.delta > 0, f"`delta` must be positive. Got {self.delta=}.")
        check(self.denoiser_weight > 0, f"`denoiser_weight` must be positive. Got {self.denoiser_weight=}.")
        check(self.refiner_weight > 0, f"`refiner_weight` must be positive. Got {self.refiner_weight=}.")
        check(self.history >= 1, f"`history` must be at least 1. Got {self.history=}.")
        if self.refiner:
            able = self.diffusion and self.start_probability == 1.0 and self.transition == "euler" and self.history > 1
            remedy = "It needs `diffusion=True`, tau='start', transition='euler' and `history` of 2 or more."
            check(able, f"`refiner` turns the noise of a step from a known state into its law. {remedy}")
        joint = self.flow_loss == "nll" and not self.diffusion
        check(not joint, "flow_loss='nll' needs the diffusion. Set `diffusion=True`, or use 'mse'.")
        check(self.transition_steps >= 1, f"`transition_steps` must be at least 1. Got {self.transition_steps=}.")
        if self.measurement:
            able = self.by_likelihood and self.denoiser and min(levels) > 0 and self.history == 1
            remedy = "It needs transition='moments', tau='start', `denoiser=True`, `noise` > 0 and history=1."
            check(able, f"`measurement` is learned by the likelihood of several lags and the score. {remedy}")
        bridge = self.interpolation == "bridge" and not self.diffusion
        check(not bridge, "interpolation='bridge' needs the diffusion. Set `diffusion=True`, or use 'linear'.")
        exact = self.transition == "moments" and not self.diffusion
        check(not exact, "transition='moments' needs the diffusion. Set `diffusion=True`, or use 'euler'.")
        check(not (self.antithetic and not self.denoiser), "`antithetic` needs the denoiser. Set `denoiser=True`.")
        alone = self.shared and (self.parts == ["flow"] or self.alpha)
        check(not alone, "`shared` takes flow with diffusion or denoiser, without `alpha`. Set `shared=False`.")
        needs = "It trains with the score and g: set `denoiser=True`, `diffusion=True` and `noise` > 0."
        check(
            not self.alpha or (self.denoiser and self.diffusion and min(levels) > 0), f"`alpha` got no score. {needs}"
        )

    @property
    def parts(self) -> list[str]:
        """The nets that are learned."""
        return ["flow"] + [name for name in ("diffusion", "denoiser", "alpha", "refiner") if getattr(self, name)]

    @property
    def marks_pass(self) -> bool:
        """Whether the last entry of the condition is 1 in the pass of the refiner, 0 in the others, which share its net."""
        return self.refiner and self.shared

    @property
    def num_late(self) -> int:
        return super().num_late + self.marks_pass

    @property
    def noisy(self) -> bool:
        """Whether noise is added to training inputs."""
        return max(self.noise) > 0 if isinstance(self.noise, tuple) else self.noise > 0

    @property
    def by_likelihood(self) -> bool:
        """Whether flow and diffusion are trained together, by the likelihood of the whole step from its start."""
        return self.transition == "moments" and self.start_probability == 1.0

    @property
    def start_probability(self) -> float:
        """P(tau = 0); the rest of tau is uniform on [0, 1]."""
        return {"start": 1.0, "uniform": 0.0}[self.tau] if isinstance(self.tau, str) else float(self.tau)


@dataclass(frozen=True, kw_only=True)
class NextStateConfig(ModelSettings):
    """What the generative baselines of p(next state | state) share."""

    target: Literal["next", "increment"] = "next"
    """Generate the next state itself, or its difference to the present one, scaled to unit variance."""
    noise: float = 0.0
    """Standard deviation of the noise added to the condition in training, in units of the data's standard deviation."""
    num_steps: int = 10
    """Network passes per generated state."""

    def __post_init__(self) -> None:
        check_choices(self)
        check(self.num_steps >= 1, f"`num_steps` must be at least 1. Got {self.num_steps=}.")
        check(self.history >= 1, f"`history` must be at least 1. Got {self.history=}.")
        check(self.noise >= 0, f"`noise` must not be negative. Got {self.noise=}.")


@dataclass(frozen=True, kw_only=True)
class DDIMConfig(NextStateConfig):
    """Denoising diffusion with the scheduler of diffusers."""

    variant: Literal["ddim", "ddpm"] = "ddim"
    """Generate by deterministic DDIM steps, or by the random steps of DDPM through all the noise levels of training."""
    num_train_timesteps: int = 100
    """Noise levels in training."""
    beta_schedule: Literal["squaredcos_cap_v2", "linear"] = "squaredcos_cap_v2"
    """Noise schedule."""
    prediction: Literal["epsilon", "sample", "v_prediction"] = "epsilon"
    """What the net predicts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        levels, steps = self.num_train_timesteps, self.num_steps
        check(steps <= levels, f"`num_steps` must not exceed `num_train_timesteps`={levels}. Got num_steps={steps}.")
        every = self.variant == "ddim" or steps == levels
        check(every, f"variant='ddpm' takes every noise level. Got num_steps={steps}. Set num_steps={levels}.")


@dataclass(frozen=True, kw_only=True)
class RectifiedFlowConfig(NextStateConfig):
    """Straight paths from noise to the next state, Euler steps."""


@dataclass(frozen=True, kw_only=True)
class PFIConfig(NextStateConfig):
    """A Föllmer process from the present state to the next one (probabilistic forecasting with interpolants)."""

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
class GaussianConfig(ModelSettings):
    """A Gaussian law of the next state: one net gives mean and variance, by maximum likelihood."""

    def __post_init__(self) -> None:
        check_choices(self)
        check(self.history >= 1, f"`history` must be at least 1. Got {self.history=}.")


if TYPE_CHECKING:
    RecurrentNet = Any  # no backbones of states: only their own models take them
    CausalNet = Any
    ConvNet = Any
else:
    RecurrentNet, CausalNet, ConvNet = LSTMConfig, GPTConfig, Union[ConvConfig, TinyConfig]


@dataclass(frozen=True, kw_only=True)
class ImitationConfig(ModelSettings):
    """What one-shot policies p(action | last observations) share."""

    normalise: Normalise = "min_max"
    """Scale of actions."""
    num_observations: int = 2
    """Observations in the context, end to end, oldest first."""
    use_history: bool = False
    """Look at the history, the actions before, beside the observations."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("history", "num_observations"):
            check(getattr(self, name) >= 1, f"`{name}` must be at least 1. Got {name}={getattr(self, name)}.")


@dataclass(frozen=True, kw_only=True)
class LSTMGMMConfig(ImitationConfig):
    """A recurrent net of the observations and a mixture of Gaussians for the action, by maximum likelihood."""

    net: RecurrentNet = field(default_factory=LSTMConfig)
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

    net: CausalNet = field(default_factory=GPTConfig)
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


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig(ModelSettings):
    """Frames as small grids of latents, and back."""

    net: ConvNet = field(default_factory=ConvConfig)
    """Encoder and decoder."""
    normalise: Normalise = "none"
    """Frames have values from 0 to 1 as they are."""
    kl: float = 1e-6
    """Weight of the divergence of latents from unit Gaussians."""

    def __post_init__(self) -> None:
        check_choices(self)
        check(self.normalise == "none", f"Frames have values from 0 to 1. Got {self.normalise=}. Use 'none'.")
        check(self.history == 1, f"An autoencoder sees one frame. Got {self.history=}.")
        check(self.kl >= 0, f"`kl` must not be negative. Got {self.kl=}.")


ModelConfig = Union[
    NeuralSDEConfig,
    DDIMConfig,
    RectifiedFlowConfig,
    PFIConfig,
    GaussianConfig,
    LSTMGMMConfig,
    IBCConfig,
    BETConfig,
    AutoencoderConfig,
]
