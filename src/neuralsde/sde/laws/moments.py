"""The law of a step that is not small: Gaussian, with the mean and covariance of the SDE over the whole gap.

Where training states are those at the start of a step, flow and diffusion are learned together by its likelihood. Where they
are interpolated, the flow is a conditional mean as in the paper and only the diffusion is learned by the likelihood.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralsde.core.memo import Memo
from neuralsde.models.sequence import Condition
from neuralsde.sde.config import Law, Sampler
from neuralsde.sde.fields import Fields
from neuralsde.sde.laws.law import StepLaw
from neuralsde.sde.losses import flow_mse
from neuralsde.sde.pairs import Gap, Pair, slots_after
from neuralsde.sde.propagation import propagate
from neuralsde.solvers.gaussian import cholesky, log_density, solve_lower
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import PROBES, Noise
from neuralsde.solvers.schemes import Coefficients

LOWEST, HIGHEST = -8, 16  # powers of two of the reference step between which gaps are told apart
TOLERANCE, TRIED = 0.02, 256  # of step doubling: difference in standard deviations, gaps tried
REACH = 1.0  # standard deviations of the data over which the SDE is made linear
MAX_DIMENSIONS = 32  # features up to which the points and the covariance are affordable


class MomentsStep(StepLaw):
    """N(m, P) after the gap."""

    steps: Tensor

    def __init__(self, config: Law, shape: tuple[int, ...], *, start: bool, correlated: bool = False) -> None:
        super().__init__(config, shape, start=start, correlated=correlated)
        size = torch.Size(shape).numel()
        if size > MAX_DIMENSIONS:
            raise ValueError(f"The law `Moments` takes up to {MAX_DIMENSIONS} features. Got {size}. Use Euler().")
        self.register_buffer("steps", torch.full((HIGHEST - LOWEST + 1,), self.config.steps))
        self._equal: Memo[int | None] = Memo()

    # How many steps a gap takes

    def num_steps(self, gaps: Float[Tensor, "B ..."]) -> Int[Tensor, " B"] | int:
        """One number where all gaps take equally many, else one per gap."""
        equal = self._equal.get([self.steps], lambda: _only(self.steps.tolist()))
        return self.steps[_class_of(gaps)] if equal is None else equal

    def num_points(self, num_steps: int) -> int:
        """States that are read for a gap of so many steps."""
        size = torch.Size(self.shape).numel()
        return 1 + 2 * size + (num_steps - 1) * 4 * size

    @torch.no_grad()
    def fix_length(self, length: float) -> None:
        self.steps.fill_(int(self.steps[_class_of(torch.tensor([length], device=self.steps.device))]))

    @property
    def same_kernels(self) -> bool:
        return isinstance(self.num_steps(torch.ones(1)), int)

    @property
    def repeats(self) -> bool:
        return False  # a Cholesky factor waits for the device

    @torch.no_grad()
    def settle(self, gap: Gap, coefficients: Any) -> None:
        """As many steps per class of gaps as step doubling asks for; a class without data takes twice those of the one below."""
        classes, least, most = _class_of(gap.dt), self.config.steps, self.config.most
        found = self.steps.new_full(self.steps.shape, least)
        for place in range(len(found)):
            rows = (classes == place).nonzero()[:TRIED, 0]
            if len(rows):
                found[place] = self._settled(gap.rows(rows), coefficients)
            elif place:
                found[place] = min(2 * int(found[place - 1]), most) if found[place - 1] > least else least
        self.steps.copy_(found)

    def _settled(self, gap: Gap, coefficients: Any) -> int:
        num, (mean, cov) = self.config.steps, self._moments(gap, coefficients, self.config.steps)
        while 2 * num <= self.config.most:
            finer = self._moments(gap, coefficients, 2 * num)
            if float(_difference(mean, cov, *finer).quantile(0.9)) < TOLERANCE:
                break
            num, (mean, cov) = 2 * num, finer
        return num

    @property
    def spans_gaps(self) -> bool:
        return True

    def standardised(self, gap: Gap, coefficients: Any) -> Float[Tensor, "B d"]:
        mean, cov = self._moments(gap, coefficients, self.num_steps(gap.dt))
        return solve_lower(cholesky(cov), gap.step.flatten(1) - (mean - gap.state[:, -1].flatten(1)))

    @property
    def reads(self) -> tuple[str, ...]:
        return () if self.start else ("flow",)

    @property
    def weighs_gaps(self) -> bool:
        return not self.start

    def losses(self, fields: Fields, read: dict[str, Tensor], pair: Pair, noise: Noise) -> dict[str, Tensor]:
        if not self.start:
            flow = flow_mse(read["flow"] - pair.target, pair.dt)
            return {"flow": flow, "diffusion": self._loss(pair.gap(pair.now), partly(fields))}
        return {"likelihood": self._loss(pair.gap(pair.state), together(fields))}

    def _loss(self, gap: Gap, coefficients: Any) -> Tensor:
        """Negative log density per observed entry, one value per row."""
        entries = gap.step[0].numel() if gap.mask is None else gap.mask.float().sum() / len(gap.step)
        return -self.log_prob(gap, coefficients) / entries

    def log_prob(self, gap: Gap, coefficients: Any) -> Float[Tensor, " B"]:
        seen = None if gap.mask is None else gap.mask.flatten(1)
        first, step = gap.state[:, -1].flatten(1), gap.step.flatten(1)
        mean, cov = self.step_moments(gap, coefficients)
        return log_density(step - (mean - first), cov, seen)

    def step_moments(self, gap: Gap, coefficients: Any) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B d d"]]:
        return self._moments(gap, coefficients, self.num_steps(gap.dt))

    def _moments(self, gap: Gap, coefficients: Any, num_steps: Tensor | int) -> tuple[Tensor, Tensor]:
        """Mean and covariance of the newest slot after the gap, flattened."""
        state, dt = gap.state, gap.dt

        def at(x: Tensor, share: float, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
            own, given = state[rows], gap.conditions(share)
            times = x.shape[0] // own.shape[0]
            before, past = (v.repeat_interleave(times, 0) for v in (own, share * dt[rows]))
            slots = slots_after(before, x.reshape(-1, *own.shape[2:]), past)
            c = coefficients(slots, None if given is None else given[rows].repeat_interleave(times, 0), rows)
            g = c.diffusion.flatten(1)
            return c.drift.flatten(1), g.square() if c.correlation is None else c.correlation.covariance(g)

        return propagate(at, state[:, -1].flatten(1), dt.reshape(-1, 1), num_steps, REACH)

    def advance(self, fields: Fields, step: Step, condition: Condition, noise: Noise, sampler: Sampler) -> Tensor:
        """A draw from N(m, P); other solvers, and flows without noise, take small steps of the same SDE."""
        if sampler.solver != "law":
            return super().advance(fields, step, condition, noise, sampler)
        if sampler.diffusion == 0:
            return super().advance(fields, step, condition, noise, replace(sampler, solver="heun"))
        before, calls = Counter(fields.passes), 0

        def sde(slots: Tensor, given: Tensor | None, rows: Tensor | slice) -> Coefficients:
            nonlocal calls
            calls += 1

            def signs() -> Tensor:  # one probe for all points of a path
                own = noise.signs(step.index, self.shape, stream=PROBES)[rows]
                return own.repeat_interleave(slots.shape[0] // own.shape[0], 0)

            return fields.coefficients(slots, given, sampler, signs, correction=False)

        def conditions(share: float) -> Tensor | None:
            return condition(step.time + share * step.dt.reshape(step.time.shape))

        dt = step.dt.clamp(min=1e-9)  # paths that wait take no step
        num_steps = self.num_steps(dt)
        gap = Gap(step.state(step.x, step.time), step.x, dt, conditions, None)
        mean, cov = self._moments(gap, sde, num_steps)
        points = self.num_points(num_steps if isinstance(num_steps, int) else int(num_steps.max()))
        for name, passes in fields.passes.items():  # each point that is read for a path is a pass
            fields.passes[name] = before[name] + (passes - before[name]) // calls * points
        z = step.z.flatten(1)
        return (mean + (cholesky(cov) @ z[..., None])[..., 0]).reshape(step.x.shape)


def _class_of(gaps: Tensor) -> Tensor:
    """The class (B,) of gaps in reference steps: up to each power of two."""
    return torch.log2(gaps.flatten()).ceil().long().clamp(LOWEST, HIGHEST) - LOWEST


def _only(numbers: list[int]) -> int | None:
    """The number that all of them are."""
    return numbers[0] if len(set(numbers)) == 1 else None


def _difference(mean: Tensor, cov: Tensor, finer_mean: Tensor, finer_cov: Tensor) -> Tensor:
    """How far two Gaussians are apart, by their means in standard deviations or the ratio of these; NaN is far."""
    spread, finer = (torch.diagonal(c, dim1=1, dim2=2).clamp(min=1e-30).sqrt() for c in (cov, finer_cov))
    apart = torch.maximum((mean - finer_mean).abs() / finer, (spread / finer - 1).abs()).amax(1)
    return apart.nan_to_num(math.inf)


def together(fields: Fields) -> Any:
    """Drift and diffusion while they are learned together."""

    further = fields.config.covariance.further

    def at(state: Tensor, condition: Tensor | None, rows: Tensor | slice) -> Coefficients:
        read = fields.read(state, condition, "flow", "diffusion", *further)
        return Coefficients(read["flow"], torch.exp(read["diffusion"]), correlation=fields.correlation(read))

    return at


def partly(fields: Fields) -> Any:
    """The diffusion while it is learned, and the drift of the flow as it is, without g∂g: ripples of g would grow."""

    def at(state: Tensor, condition: Tensor | None, rows: Tensor | slice) -> Coefficients:
        read = fields.read(state, condition, "diffusion", *fields.config.covariance.further)
        with torch.no_grad():
            known = fields.evaluated.coefficients(state, condition, Sampler(correction="off"), None, correction=False)
        return Coefficients(known.drift, torch.exp(read["diffusion"]), correlation=fields.correlation(read))

    return at
