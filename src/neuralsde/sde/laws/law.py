"""The law of a step: how it is learned, weighed and drawn. A new law is one file with a child of `StepLaw` and its settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.models.sequence import Condition
from neuralsde.sde.config import Law, Sampler
from neuralsde.sde.fields import Fields
from neuralsde.sde.pairs import Gap, Pair, of_another_length
from neuralsde.sde.stepping import euler_step
from neuralsde.solvers.correlation import LowRankCorrelation
from neuralsde.solvers.gaussian import cholesky, solve_lower
from neuralsde.solvers.grid import steps_in
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import PROBES, SHARED, Noise
from neuralsde.solvers.schemes import SCHEMES, Coefficients, euler


class StepLaw(nn.Module, ABC):
    """Base: it owns the losses of flow and diffusion, the density of a step and its draw."""

    def __init__(self, config: Law, shape: tuple[int, ...], *, start: bool, correlated: bool = False) -> None:
        """Settings, the shape of a state, whether all training states are at the start of a step (τ = 0), and whether
        the noise goes together."""
        super().__init__()
        self.config: Any = config
        self.shape = shape
        self.start = start
        self.correlated = correlated

    @property
    def reads(self) -> tuple[str, ...]:
        """Fields at x̃ that the losses take; they come from one pass together with the denoiser."""
        return ("flow", "diffusion", "correlation") if self.correlated else ("flow", "diffusion")

    @property
    def weighs_gaps(self) -> bool:
        """Whether the flow's loss weighs a pair by its gap Δt: the score must then be that of the states weighed alike."""
        return True

    @abstractmethod
    def losses(self, fields: Fields, read: dict[str, Tensor], pair: Pair, noise: Noise) -> dict[str, Tensor]:
        """Losses (B, *S) or (B,) by part; `read` holds the fields at x̃."""

    @abstractmethod
    def log_prob(self, gap: Gap, coefficients: Any) -> Float[Tensor, " B"]:
        """Log density of steps; `coefficients(state, condition, rows)` gives those of the SDE that was learned."""

    def step_moments(self, gap: Gap, coefficients: Any) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B d d"]]:
        """Mean and covariance of the newest slot after the gap, flattened, where the law is Gaussian."""
        raise NotImplementedError

    def check_data(self, gaps: Tensor) -> None:
        """Refuse data that the law cannot be learned from; `gaps` are in reference steps."""

    @property
    def is_sde(self) -> bool:
        """Whether its steps are those of dx = drift dt + g dw, as they become short."""
        return True

    @property
    def spans_gaps(self) -> bool:
        """Whether it learns the SDE of continuous time, whatever the gap; else what it learned belongs to steps of that length."""
        return False

    def standardised(self, gap: Gap, coefficients: Any) -> Float[Tensor, "B d"]:
        """Steps in units of the Gaussian that was learned: independent unit Gaussians, if the law is right."""
        c = coefficients(gap.state, gap.conditions(0.0))
        error = ((gap.step - c.drift * gap.dt) / (c.diffusion * gap.dt.sqrt())).flatten(1)
        return error if c.correlation is None else solve_lower(cholesky(c.correlation.matrix), error)

    def findings(self, gap: Gap, fields: Fields, coefficients: Any) -> list[str]:
        """What is to be said of a law that was just learned, besides what holds for all of them."""
        return []

    @property
    def same_kernels(self) -> bool:
        """Whether a training step is the same kernels for every batch: a CUDA graph can then repeat it."""
        return True

    @property
    def repeats(self) -> bool:
        """Whether its draw is the same kernels at every step: a CUDA graph can then repeat it."""
        return True

    def fix_length(self, length: float) -> None:
        """Keep only what steps of this length need, in reference steps."""

    def settle(self, gap: Gap, coefficients: Any) -> None:
        """Fix what follows from what was learned so far; called at set points of a training."""

    def check_sampler(self, sampler: Sampler, gaps: Tensor, max_step: float, unit: float) -> None:
        """Refuse what cannot be drawn; times are in reference steps of `unit`."""

    def advance(self, fields: Fields, step: Step, condition: Condition, noise: Noise, sampler: Sampler) -> Tensor:
        """eq:euler_maruyama_discretization, or a scheme of higher order."""
        if SCHEMES[sampler.solver] is euler:
            made = euler_step(fields, step, condition, sampler)
            if made is not None:
                return made

        def sde(x: Tensor, t: Tensor, *, correction: bool) -> Coefficients:
            signs = partial(noise.signs, step.index, self.shape, stream=PROBES)
            c = fields.coefficients(step.state(x, t), condition(t), sampler, signs, correction=correction)
            if not isinstance(c.correlation, LowRankCorrelation):
                return c
            shared = noise.normal(step.index, (c.correlation.columns.shape[-1],), stream=SHARED)
            return replace(c, further=step.dt.reshape(-1, 1).sqrt() * shared)

        return SCHEMES[sampler.solver](sde, step.x, step.time, step.dt, step.dw)


def check_one_length(name: str, gaps: Tensor, remedy: str = "Give a `lag`, or use Euler().") -> None:
    """Refuse data of which a law of one length cannot be learned."""
    if bool(of_another_length(gaps).any()):
        raise ValueError(f"The law `{name}` learns steps of one length. Got gaps that differ. {remedy}")


def check_that_length(
    who: str,
    sampler: Sampler,
    gaps: Tensor,
    max_step: float,
    unit: float,
    remedy: str = "Draw at times that far apart with substeps=1 and the solver of the law.",
) -> None:
    """Refuse to draw steps of another length than those that were learned."""
    steps = gaps / steps_in(gaps, max_step)
    off = steps[(gaps > 0) & of_another_length(steps)]
    if len(off) or sampler.solver not in ("law", "euler_maruyama"):
        took = f"steps of {float(off[0]) * unit:g}" if len(off) else f"{sampler.solver=}"
        raise ValueError(f"{who} knows Euler's steps of {unit:g}. Got {took}. {remedy}")


def residual(fields: Fields, read: dict[str, Tensor], pair: Pair) -> Tensor:
    """r = f(x̃) - Δx/Δt for the diffusion: dropout must not leak into it."""
    if not fields.has_dropout:
        return read["flow"] - pair.target
    with torch.no_grad():
        return fields.evaluated.flow(pair.state, pair.condition) - pair.target
