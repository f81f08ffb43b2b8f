"""Settings of the method: what is learned, from which states, how a step is distributed, how paths are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from neuralsde.core.doors import Count, Positive, check_fields
from neuralsde.core.records import Choice, check
from neuralsde.models.config import TURNED, BackboneModelConfig, Sampling

MOST_SUBSTEPS = 10_000  # a step of float32 is lost in rounding beyond
MOST_PASSES = 1_000


@dataclass(frozen=True, kw_only=True)
class Sampler(Sampling):
    """How paths are drawn from a Neural SDE. It is saved with the model and replaceable in each call of `sample`."""

    solver: Literal["law", "euler_maruyama", "heun", "milstein"] = "law"
    """As the law of a step draws, or a scheme for the Ito SDE: Euler-Maruyama, stochastic Heun, Milstein."""
    substeps: Count = 1
    """Solver steps per training step `dt_ref`. Output times closer than that add steps of their own."""
    balance: float | None = None
    """Weight of (g^2/2 score + g dg) in the drift; None takes 2 E[tau], the value that belongs to the training."""
    pull: float = 0.0
    """Rate (per unit of time) of the contraction towards the data. It sharpens the law: 0 for likelihoods and coverage."""
    diffusion: float = 1.0
    """Factor on g; 0 gives the deterministic flow (the probability-flow ODE when tau is uniform)."""
    correction: Literal["auto", "exact", "probe", "off"] = "auto"
    """The term g dg: exact by autograd, one Hutchinson probe, or left out; auto is exact up to 32 dimensions."""
    passes: int = 4
    """Law `Transport`: passes of its flow in every step; 0 draws its Gaussian, more come nearer to the law of the data."""
    measured: bool = False
    """The start is a measurement: draw the true state behind it, and add the learned measurement noise to what comes out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.substeps <= MOST_SUBSTEPS,
            f"`substeps` must be at most {MOST_SUBSTEPS:,}. Got {self.substeps:,}. A solver gains nothing from more.",
        )
        check(self.pull >= 0, f"`pull` must not be negative, it would push paths off the data. Got {self.pull=}.")
        check(self.diffusion >= 0, f"`diffusion` must not be negative. Got {self.diffusion=}.")
        check(0 <= self.passes <= MOST_PASSES, f"`passes` must be from 0 to {MOST_PASSES}. Got {self.passes=}.")
        check(self.balance is None or 0 <= self.balance <= 2, f"`balance` must be within [0, 2]. Got {self.balance=}.")
        missing = self.correction == "off" and self.solver in ("heun", "milstein")
        check(
            not missing,
            f"`solver={self.solver}` needs g dg. Got {self.correction=}. Use 'auto', or solver='euler_maruyama'.",
        )


# The law of a step: one value


@dataclass(frozen=True, kw_only=True)
class Law(Choice):
    """How one step is distributed: base of its kinds. `builds` names the class that learns, weighs and draws it."""

    stochastic: ClassVar[bool] = True
    """Whether g is learned."""
    correlates: ClassVar[bool] = False
    """Whether its noise may go together."""
    gaussian: ClassVar[bool] = False
    """Whether a step is Gaussian in its draws too: the filter takes its mean and covariance (`moments`)."""
    transports: ClassVar[bool] = False
    """Whether it has a net of a step that is being made, `transport`: always one of its own, since it takes more."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def solvable(self) -> bool:
        """Whether a flow may be found by least squares: others are trained beside it, and steps are between true states."""
        return self.stochastic

    @property
    def likely(self) -> bool:
        """Whether its losses seek what makes the data most likely: a training may then end with the filter's likelihood."""
        return self.gaussian

    @property
    def further(self) -> dict[str, int]:
        """Nets beyond flow, diffusion and denoiser, and how many fields each gives."""
        return {}

    def check(self, config: NeuralSDEConfig) -> None:
        """Refuse what this law cannot go with."""


@dataclass(frozen=True, kw_only=True)
class Euler(Law):
    """Gaussian, with drift and noise as they are at the start of the step (the paper)."""

    builds: ClassVar[str] = "neuralsde.sde.laws.euler:EulerStep"
    correlates: ClassVar[bool] = True
    gaussian: ClassVar[bool] = True

    flow_loss: Literal["mse", "log", "nll"] = "mse"
    """Squared error, the paper's logarithm of it, or the likelihood with g held fixed."""
    delta: Positive = 1e-3
    """Desingularisation of the log loss, in squared units of std / dt_ref."""
    diffusion_loss: Literal["nll", "match", "log"] = "nll"
    """Gaussian likelihood of the residual, the paper's squared error on g^2, or its authors' on log g (biased; for comparison)."""

    @property
    def likely(self) -> bool:
        return self.flow_loss != "log" and self.diffusion_loss == "nll"

    def check(self, config: NeuralSDEConfig) -> None:
        able = self.diffusion_loss == "nll" or not config.covariance.further
        check(able, f"A covariance is learned by diffusion_loss='nll'. Got {self.diffusion_loss=}.")


@dataclass(frozen=True, kw_only=True)
class Deterministic(Law):
    """No noise: the flow alone, without a likelihood."""

    builds: ClassVar[str] = "neuralsde.sde.laws.deterministic:DeterministicStep"
    stochastic: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Moments(Law):
    """Gaussian, with the mean and covariance of the SDE over the whole gap; flow and diffusion by its likelihood."""

    builds: ClassVar[str] = "neuralsde.sde.laws.moments:MomentsStep"
    correlates: ClassVar[bool] = True
    gaussian: ClassVar[bool] = True

    steps: Count = 1
    """Steps in which the moments are propagated; each has an error of third order in its length."""
    most: Count = 32
    """Steps of a gap at most, which bounds the time of a training step: fields that need more are not learned."""
    measurement: bool = False
    """Learn the standard deviation of measurement noise too, from several lags and by the filter."""

    @property
    def solvable(self) -> bool:
        return not self.measurement

    def check(self, config: NeuralSDEConfig) -> None:
        check(self.most >= self.steps, f"`most` is at least `steps`. Got steps={self.steps}, most={self.most}.")
        able = config.start_probability == 1 and config.history == 1
        remedy = "It needs tau='start' and history=1."
        check(not self.measurement or able, f"`measurement` is learned by the likelihood of several lags. {remedy}")
        mixed = self.measurement and config.normalise in TURNED
        check(
            not mixed,
            f"`measurement` is noise of each feature; {config.normalise=} mixes them. Use `normalise='mean_std'`.",
        )


@dataclass(frozen=True, kw_only=True)
class Mixture(Law):
    """Tails and modes: a mixture of Gaussians in units of Euler's step, by likelihood. It learns steps of one length."""

    builds: ClassVar[str] = "neuralsde.sde.laws.mixture:MixtureStep"

    components: Count = 8
    """Gaussians of the mixture: two for a coin, more for tails."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.components >= 2, f"`components` must be at least 2; one is Euler(). Got {self.components=}.")

    @property
    def further(self) -> dict[str, int]:
        return {"mixture": 3 * self.components}  # weights, means and widths

    def check(self, config: NeuralSDEConfig) -> None:
        able = config.start_probability == 1 and not (config.denoiser and config.denoiser.alpha)
        remedy = "It needs tau='start' and a `denoiser` without `alpha`."
        check(able, f"`Mixture` learns how steps from observed states are distributed. {remedy}")


@dataclass(frozen=True, kw_only=True)
class Transport(Law):
    """Any law: Euler's Gaussian, carried to the law of a step by a flow of a few passes. It learns steps of one length."""

    builds: ClassVar[str] = "neuralsde.sde.laws.transport:TransportStep"
    transports: ClassVar[bool] = True

    flow_loss: Literal["mse", "nll"] = "mse"
    """Squared error, or the likelihood with g held fixed."""

    def check(self, config: NeuralSDEConfig) -> None:
        able = config.start_probability == 1 and not (config.denoiser and config.denoiser.alpha)
        remedy = "It needs tau='start' and a `denoiser` without `alpha`."
        check(able, f"`Transport` learns how steps from observed states are distributed. {remedy}")


# How the noise of a step goes together: one value


@dataclass(frozen=True, kw_only=True)
class Covariance(Choice):
    """Of the noise of a step: base of its kinds."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def further(self) -> dict[str, int | None]:
        """The net that gives its correlation, and the number of its fields."""
        return {}

    def check(self, config: NeuralSDEConfig) -> None:
        """Refuse what it cannot go with."""
        able = config.law.correlates and not (config.denoiser and config.denoiser.alpha)
        remedy = "Use Euler() or Moments() without `alpha`, or covariance=Diagonal()."
        check(not self.further or able, f"The law has no correlated noise. Got {self!r}. {remedy}")


@dataclass(frozen=True, kw_only=True)
class Diagonal(Covariance):
    """Independent noise of each entry (the paper)."""


@dataclass(frozen=True, kw_only=True)
class Full(Covariance):
    """Any covariance, by its Cholesky root: up to 32 entries."""

    @property
    def further(self) -> dict[str, int | None]:
        return {"correlation": None}


@dataclass(frozen=True, kw_only=True)
class LowRank(Covariance):
    """Independent noise of each entry and a few columns of noise that they share."""

    rank: Count = 4
    """Number of columns."""

    @property
    def further(self) -> dict[str, int | None]:
        return {"correlation": self.rank}


# Parts that may be absent


@dataclass(frozen=True, kw_only=True)
class Denoiser(Choice):
    """d, which gives the score, and with it balance and pull."""

    weight: Positive = 1.0
    """Of its loss in the sum; less leaves more of a `shared` net to the flow."""
    antithetic: bool = False
    """Train on +eps and -eps together: one more pass, and far less variance where `noise` is small."""
    alpha: bool = False
    """Learn the weight of the score as a function of the state, in place of balance * g^2 / 2 (unless `balance` is given)."""

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, config: NeuralSDEConfig) -> None:
        """Refuse what it cannot go with."""
        able = config.law.stochastic and config.noisy and not config.shared
        needs = "It trains with the score and g, in a net of its own: a law with noise, `noise` > 0, shared=False."
        check(not self.alpha or able, f"`alpha` got no score. {needs}")


@dataclass(frozen=True, kw_only=True)
class NeuralSDEConfig(BackboneModelConfig):
    """The method: what is learned, from which states, and how a step is distributed."""

    builds: ClassVar[str] = "neuralsde.sde.model:NeuralSDE"

    tau: Literal["start", "uniform"] | float = "start"
    """Where between two observed states the nets are trained: at the start, uniformly, or at the start with this probability."""
    noise: float | tuple[float, ...] = 0.05
    """Standard deviation of the noise added to training inputs, in units of the data's scale: one, or one per feature. With
    normalise="whiten" that of the fastest direction; slower ones get less, in proportion to their steps."""
    interpolation: Literal["linear", "bridge"] = "linear"
    """States between two observed ones lie on the straight line (the paper), or on a Brownian bridge, as those of the path do."""
    law: Law = field(default_factory=Euler)
    """How one step is distributed: Euler, Moments, Mixture, Transport or Deterministic."""
    covariance: Covariance = field(default_factory=Diagonal)
    """How the noise of a step goes together: Diagonal, Full or LowRank."""
    denoiser: Denoiser | None = field(default_factory=Denoiser)
    """The part that gives the score. None: no balance and no pull."""
    directions: Count | None = None
    """With normalise="principal": how many directions the nets see and move. Each other one reverts to its mean by itself, as fast
    and with as much noise as it does in the data. None: all."""
    shared: bool = False
    """One net for all fields: a pass gives flow, diffusion (on features it does not train) and denoiser together."""
    sampler: Sampler = field(default_factory=Sampler)
    """How paths are drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        inside = isinstance(self.tau, str) or 0 <= self.tau <= 1
        check(inside, f"`tau` as a probability of the start state must be within [0, 1]. Got {self.tau=}.")
        levels = self.noise if isinstance(self.noise, tuple) else (self.noise,)
        check(bool(levels), "`noise` must be one number, or one per feature. Got none.")
        check(min(levels) >= 0, f"`noise` must not be negative. Got {self.noise=}.")
        all_or_none = (min(levels) > 0) == (max(levels) > 0)
        check(all_or_none, f"`noise` must be positive for all features or none. Got {self.noise=}.")
        turned = self.normalise in TURNED and isinstance(self.noise, tuple)
        check(
            not turned, f"normalise={self.normalise!r} mixes the features. Got one `noise` for each. Give one for all."
        )
        check(
            self.directions is None or self.normalise == "principal",
            f"`directions` are principal ones. Got {self.normalise=}. Set `normalise='principal'`, or leave them out.",
        )
        able = self.directions is None or not (
            self.law.further or self.law.transports or isinstance(self.covariance, LowRank)
        )
        check(
            able,
            "`directions` go with Euler() or Moments(), and with noise that is Diagonal() or Full(). Use one of each.",
        )
        bridge = self.interpolation == "bridge" and not self.law.stochastic
        check(not bridge, "interpolation='bridge' needs the diffusion. Use a law with noise, or 'linear'.")
        solvable = self.start_probability == 1 and not self.shared and self.law.solvable
        check(
            solvable or not self.net.solved,
            "A polynomial flow is found by least squares from start states, and not trained. It needs tau='start', shared=False, "
            f"and a law with noise but without `measurement`. Got {self.tau=}, {self.shared=}, {self.law!r}.",
        )
        alone = self.shared and list(self.parts) == ["flow"]
        check(not alone, "`shared` takes flow with diffusion or denoiser. Set `shared=False`.")
        for part in (self.law, self.covariance, self.denoiser):
            if part is not None:
                part.check(self)

    def num_fields(self, size: int) -> dict[str, int]:
        """How many fields each net gives for states of `size` entries."""
        return {name: size if num is None else num for name, num in self.parts.items()}

    @property
    def parts(self) -> dict[str, int | None]:
        """The nets that are learned, and how many fields each gives: one per entry of the state where it says None."""
        learned = self.denoiser is not None and self.denoiser.alpha
        asked = {"diffusion": self.law.stochastic, "denoiser": self.denoiser is not None, "alpha": learned}
        return {
            "flow": 1,
            **{name: 1 for name, there in asked.items() if there},
            **self.covariance.further,
            **self.law.further,
        }

    @property
    def noisy(self) -> bool:
        """Whether noise is added to training inputs."""
        return max(self.noise) > 0 if isinstance(self.noise, tuple) else self.noise > 0

    @property
    def start_probability(self) -> float:
        """P(tau = 0); the rest of tau is uniform on [0, 1]."""
        return {"start": 1.0, "uniform": 0.0}[self.tau] if isinstance(self.tau, str) else float(self.tau)
