"""Settings of models, training and experiments: frozen dataclasses, and their YAML record.

Dataclasses are the one description of a run: Python builds them, the command line is made from them, a run folder
records them as YAML and repeats from that record. This module imports no torch, so that help and dry runs are instant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Union

from neuralsde.records import Choice, check, check_choices


@dataclass(frozen=True, kw_only=True)
class MLPConfig(Choice):
    """A residual perceptron: pre-norm blocks of two linear layers."""

    width: int = 128
    """Features of the hidden layers."""
    depth: int = 3
    """Number of residual blocks."""
    dropout: float = 0.0
    """Dropout probability inside the blocks."""

    def __post_init__(self) -> None:
        check_choices(self)
        check(
            self.width > 0 and self.depth > 0,
            f"`width` and `depth` must be positive. Got {self.width=}, {self.depth=}.",
        )
        check(0 <= self.dropout < 1, f"`dropout` must be in [0, 1). Got {self.dropout=}.")


@dataclass(frozen=True, kw_only=True)
class HistoryConfig(Choice):
    """An encoder of the history slots, whose memory a residual perceptron takes beside the newest slot."""

    encoder: Literal["gru", "transformer"] = "gru"
    """Recurrent from the oldest slot to the newest, or attention with learned positions (several times slower)."""
    memory: int = 64
    """Features of the memory, and of the encoder."""
    layers: int = 1
    """Layers of the encoder."""
    heads: int = 4
    """Attention heads of the transformer; they share out the memory."""
    width: int = 128
    """Features of the perceptron's hidden layers."""
    depth: int = 3
    """Number of its residual blocks."""
    dropout: float = 0.0
    """Dropout probability inside the blocks, and in the transformer."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("memory", "layers", "heads"):
            check(getattr(self, name) >= 1, f"`{name}` must be at least 1. Got {name}={getattr(self, name)}.")
        shared = self.encoder == "gru" or self.memory % self.heads == 0
        check(shared, f"`memory` must be a multiple of `heads`. Got {self.memory=}, {self.heads=}.")
        assert self.mlp  # refuses what it cannot take

    @property
    def mlp(self) -> MLPConfig:
        """The perceptron."""
        return MLPConfig(width=self.width, depth=self.depth, dropout=self.dropout)


NetConfig = Union[MLPConfig, HistoryConfig]


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
    measured: bool = False
    """The start is a measurement: draw the true state behind it, and add the learned measurement noise to what comes out."""
    box: float | None = 20.0
    """Stop with an error when a state is further than this many data ranges outside the data. None: only when not finite."""

    def __post_init__(self) -> None:
        check_choices(self)
        check(self.substeps >= 1, f"`substeps` must be at least 1. Got {self.substeps=}.")
        check(self.pull >= 0, f"`pull` must not be negative, it would push paths off the data. Got {self.pull=}.")
        check(self.diffusion >= 0, f"`diffusion` must not be negative. Got {self.diffusion=}.")
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
        check(self.history >= 1, f"`history` must be at least 1. Got {self.history=}.")
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
        needs = "It trains with the score and g: set `denoiser=True`, `diffusion=True` and `noise` > 0."
        check(
            not self.alpha or (self.denoiser and self.diffusion and min(levels) > 0), f"`alpha` got no score. {needs}"
        )

    @property
    def parts(self) -> list[str]:
        """The nets that are learned."""
        return ["flow"] + [name for name in ("diffusion", "denoiser", "alpha") if getattr(self, name)]

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
    """Denoising diffusion with the deterministic DDIM sampler of diffusers."""

    num_train_timesteps: int = 100
    """Noise levels in training."""
    beta_schedule: Literal["squaredcos_cap_v2", "linear"] = "squaredcos_cap_v2"
    """Noise schedule."""
    prediction: Literal["epsilon", "sample", "v_prediction"] = "epsilon"
    """What the net predicts."""


@dataclass(frozen=True, kw_only=True)
class RectifiedFlowConfig(NextStateConfig):
    """Straight paths from noise to the next state, Euler steps."""


@dataclass(frozen=True, kw_only=True)
class GaussianConfig(ModelSettings):
    """A Gaussian law of the next state: one net gives mean and variance, by maximum likelihood."""

    def __post_init__(self) -> None:
        check_choices(self)
        check(self.history >= 1, f"`history` must be at least 1. Got {self.history=}.")


ModelConfig = Union[NeuralSDEConfig, DDIMConfig, RectifiedFlowConfig, GaussianConfig]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The training loop."""

    steps: int = 5_000
    """Optimiser steps."""
    batch_size: int = 512
    """Transitions per step, over all processes together."""
    lr: float = 1e-3
    """Peak learning rate of AdamW."""
    warmup: float = 0.05
    """Share of the steps in which the rate rises linearly; then it falls as a cosine."""
    final_lr: float = 0.01
    """Last learning rate as a share of the peak."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    clip: float = 1.0
    """Largest norm of the gradient of each trained part; 0 turns clipping off."""
    ema: float = 0.995
    """Decay of the moving average of the weights that is kept as the result; 0 keeps the last weights."""
    seed: int = 0
    """Seed of the data order and the injected noise (of the initial weights too, in a recipe)."""
    stages: tuple[str, ...] = ()
    """Train parts one after another, e.g. ("flow", "denoiser", "diffusion"); "a+b" trains two together. Empty: all at once."""
    precision: Literal["no", "bf16"] = "no"
    """Mixed precision."""
    val_fraction: float = 0.0
    """Share of the paths kept for the validation loss."""
    val_every: int = 500
    """Steps between validation losses."""
    log_every: int = 50
    """Steps between lines of metrics.jsonl."""
    checkpoint_every: int = 1_000
    """Steps between checkpoints, where there is a run folder."""
    keep: int = 2
    """Checkpoints kept."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Experiment trackers, through Accelerate."""
    progress: bool = True
    """Show a progress bar."""
    graph: bool = True
    """Replay the training step as a CUDA graph, where there is one GPU and no dropout."""
    cpu: bool = False
    """Stay on the CPU though there is an accelerator."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("steps", "batch_size", "val_every", "log_every", "checkpoint_every", "keep"):
            check(getattr(self, name) >= 1, f"`{name}` must be at least 1. Got {name}={getattr(self, name)}.")
        check(self.lr > 0, f"`lr` must be positive. Got {self.lr=}.")
        check(0 <= self.ema < 1, f"`ema` must be within [0, 1). Got {self.ema=}.")
        check(0 <= self.val_fraction < 1, f"`val_fraction` must be within [0, 1). Got {self.val_fraction=}.")
        check(0 <= self.warmup < 1, f"`warmup` is a share of the steps in [0, 1). Got {self.warmup=}.")
        check(0 <= self.final_lr <= 1, f"`final_lr` is a share of `lr` within [0, 1]. Got {self.final_lr=}.")


@dataclass(frozen=True, kw_only=True)
class BranchingConfig(Choice):
    """Two-dimensional paths that run straight, then fork (the paper's Section 4.1)."""

    density: int = 1
    """Points per unit of time; the paper's two settings are 1 and 10."""
    num_branches: int = 2
    """Branches, spread evenly over the fan."""
    angle: float = 30.0
    """Degrees between the stem and the outermost branch."""
    paths_per_branch: int = 50
    """Identical copies of each branch in the training data."""
    lag: float | None = 1.0
    """Physical time between the two states of a transition; None is one data step."""
    num_paths: int = 1_000
    """Paths drawn for the scores."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("density", "num_branches", "paths_per_branch", "num_paths"):
            check(getattr(self, name) >= 1, f"`{name}` must be at least 1. Got {name}={getattr(self, name)}.")
        check(0 < self.angle < 90, f"`angle` must be between 0 and 90 degrees. Got {self.angle=}.")


@dataclass(frozen=True, kw_only=True)
class KnownSDEConfig(Choice):
    """Paths of an SDE whose truth is known, observed as asked."""

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
    lag: float | tuple[float, ...] | None = None
    """Physical time between the two states of a transition; None is one observation."""
    num_forecasts: int = 5_000
    """Held-out paths that are forecast for the coverage of the bands."""
    reference: bool = False
    """Also fit the true family to the same paths by maximum likelihood, and score it."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("num_transitions", "num_forecasts"):
            check(getattr(self, name) >= 1, f"`{name}` must be at least 1. Got {name}={getattr(self, name)}.")
        check(self.dt is None or self.dt > 0, f"`dt` must be positive. Got {self.dt=}.")
        check(self.gap_ratio >= 1, f"`gap_ratio` must be at least 1. Got {self.gap_ratio=}.")
        check(0 <= self.missing < 1, f"`missing` is a share in [0, 1). Got {self.missing=}.")
        check(self.measurement >= 0, f"`measurement` must not be negative. Got {self.measurement=}.")


if TYPE_CHECKING:
    TaskConfig = Any  # which one it is, only its recipe and its task know
else:
    TaskConfig = Union[BranchingConfig, KnownSDEConfig]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One run: data, model, training, evaluation."""

    name: str
    """Name of the recipe."""
    task: TaskConfig
    """The data and how it is scored."""
    model: ModelConfig
    """The model."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """The training."""
