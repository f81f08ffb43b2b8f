"""Flows that are found by least squares instead of training.

A flow is to give Δx / Δt, as Euler's step has it, or the field whose mean over each gap is that of the data. The law says by how
much the mean m of a step is more than f Δt, and the regression is for

    f + κ (Δx - (m - x)) / Δt,        weighted by Δt / g²,

again until f stays as it is. Then the errors of the mean have nothing left of what the flow can give, whatever the gap. κ is by
how much more f must change than the mean shows (the step of Barzilai and Borwein); 1 where gaps are short.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from neuralsde.nets.backbone import Backbone
from neuralsde.sde.fields import Fields
from neuralsde.sde.laws.law import StepLaw
from neuralsde.sde.pairs import Gap

MOST, FIRST = 3_000_000, 100_000  # states that a regression sees, and before training
MOST_PASSES, CHUNK = 12, 10_000  # regressions, and rows of a gap at once
SETTLED = 0.1  # change of twice the log-likelihood below which a flow stays as it is
FASTEST = 10.0  # largest κ


def num_rows(law: StepLaw, shape: tuple[int, ...], *, first: bool = False) -> int:
    """Steps that a regression sees: a law that spans gaps reads 1 + 2d states for each."""
    return (FIRST if first else MOST) // (1 + 2 * math.prod(shape) if law.spans_gaps else 1)


def solve(
    flow: Backbone, gap: Gap, law: StepLaw, fields: Fields, coefficients: Any, zero: Tensor | None = None
) -> None:
    """Let the flow find what it can, from steps between whole states."""
    if gap.mask is not None:
        gap = gap.rows(gap.mask.flatten(1).all(1).nonzero()[:, 0])
    sizes, condition = fields.sizes, gap.conditions(0.0)
    state = sizes.leading(gap.state)
    if not flow.refines:
        flow.solve(state, condition, sizes.leading(gap.step / gap.dt / sizes.rate))
        return
    before: tuple[Tensor, Tensor] | None = None
    kept, best, weight = _copied(flow), math.inf, None
    for _ in range(MOST_PASSES if law.spans_gaps else 1):
        mean, log_g = _means(gap, law, coefficients)
        weight = sizes.leading(gap.dt * (sizes.rate * torch.exp(-log_g)) ** 2) if weight is None else weight
        own, left = _outputs(flow, state, condition), sizes.leading((gap.step - mean) / gap.dt / sizes.rate)
        error = float((weight * left**2).sum())
        if not error < best + SETTLED:  # worse than before, or not finite: what is found does not come nearer
            break
        kept, best = _copied(flow), error
        now = own, sizes.leading(mean / gap.dt / sizes.rate)
        kappa = 1.0 if before is None else _response(before, now, weight)
        before = now
        flow.solve(state, condition, own + kappa * left, weight, zero)
        if not law.spans_gaps or float((weight * (_outputs(flow, state, condition) - own) ** 2).sum()) < SETTLED:
            return
    flow.load_state_dict(kept)


def _copied(flow: Backbone) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in flow.state_dict().items()}


def _means(gap: Gap, law: StepLaw, coefficients: Any) -> tuple[Float[Tensor, "B *S"], Float[Tensor, "B *S"]]:
    """The law's mean of each step, and log g at its start; one part of the gaps after the other."""
    parts = []
    for rows in torch.arange(len(gap.state), device=gap.state.device).split(CHUNK):
        some = gap.rows(rows)
        c = coefficients(some.state, some.conditions(0.0))
        mean = c.drift * some.dt
        if law.spans_gaps:
            mean = law.step_moments(some, coefficients)[0].reshape(mean.shape) - some.state[:, -1]
        parts.append((mean, c.diffusion.log()))
    mean, log_g = (torch.cat(each) for each in zip(*parts))
    return mean, log_g


def _outputs(flow: Backbone, state: Tensor, condition: Tensor | None) -> Float[Tensor, "B *S"]:
    """What the flow's net gives."""
    parts = torch.arange(len(state), device=state.device).split(CHUNK)
    return torch.cat([flow(state[rows], None if condition is None else condition[rows]) for rows in parts])


def _response(before: tuple[Tensor, Tensor], now: tuple[Tensor, Tensor], weight: Tensor) -> float:
    """κ: a change of the flow over that of the mean."""
    flow, mean = (new - old for new, old in zip(now, before))
    asked, shown = float((weight * flow * mean).sum()), float((weight * mean**2).sum())
    return min(max(asked / shown, 1.0), FASTEST) if shown > 0 else 1.0
