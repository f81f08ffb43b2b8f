"""Two observed states, in units of the scale, and the states between them that the nets are trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from neuralsde.sde.fields import Fields
from neuralsde.solvers.correlation import LowRankCorrelation
from neuralsde.solvers.noise import BRIDGE, BRIDGE_SHARED, TAU, Noise

Conditions = Callable[[float], "Tensor | None"]
"""The condition of the nets (B, K) when a share of the gap has passed."""
LENGTH_TOLERANCE = 0.1  # how far a step may be off the learned length, as a share of it


@dataclass(frozen=True)
class Gap:
    """A step from one observation to the next."""

    state: Float[Tensor, "B H *S"]  # before it
    step: Float[Tensor, "B *S"]  # Δx
    dt: Float[Tensor, "B ..."]  # broadcasts against states
    conditions: Conditions
    mask: Bool[Tensor, "B *S"] | None  # entries that were observed at both ends
    fields: Fields | None = None  # for laws with a net of their own

    def rows(self, rows: Tensor) -> Gap:
        """Some of them."""

        def conditions(share: float) -> Tensor | None:
            given = self.conditions(share)
            return None if given is None else given[rows]

        mask = None if self.mask is None else self.mask[rows]
        return Gap(self.state[rows], self.step[rows], self.dt[rows], conditions, mask, self.fields)


@dataclass(frozen=True)
class Pair:
    """What the nets see between two observations, and what they are to say of it."""

    now: Float[Tensor, "B H *S"]  # clean, as observed
    after: Float[Tensor, "B *S"]
    dt: Float[Tensor, "B ..."]
    state: Float[Tensor, "B H *S"]  # x̃ = x_τ + σε
    eps: Float[Tensor, "B H *S"]
    condition: Float[Tensor, "B K"] | None  # at the time of x̃
    target: Float[Tensor, "B *S"]  # Δx/Δt of the clean states: a noisy one would add σ²/Δt to g²
    conditions: Conditions
    mask: Bool[Tensor, "B *S"] | None

    def gap(self, state: Float[Tensor, "B H *S"]) -> Gap:
        """The whole step, from a state."""
        return Gap(state, self.target * self.dt, self.dt, self.conditions, self.mask)


def of_another_length(steps: Tensor) -> Tensor:
    """Which steps, in units of the learned one, a law that learns steps of one length does not know."""
    return (steps - 1).abs() > LENGTH_TOLERANCE


def slots_after(state: Float[Tensor, "B H *S"], newest: Float[Tensor, "B *S"], past: Tensor) -> Float[Tensor, "B H *S"]:
    """The slots, one reference step apart, when `past` (B values) steps have passed and the newest state is `newest`.

    Older ones follow the path by straight lines between what is known of it.
    """
    last = state.shape[1] - 1
    if last == 0:
        return newest[:, None]
    past = past.reshape(-1, 1)
    place = torch.arange(last, device=past.device) + past
    low = place.clamp(max=last).floor().clamp(max=last - 1).long()
    rows, shape = torch.arange(state.shape[0], device=state.device)[:, None], (*place.shape, *[1] * (newest.ndim - 1))
    share = (place - low).clamp(max=1.0).reshape(shape)
    beyond = ((place - last).clamp(min=0.0) / past.clamp(min=1e-12)).reshape(shape)
    older = torch.lerp(torch.lerp(state[rows, low], state[rows, low + 1], share), newest[:, None], beyond)
    return torch.cat([older, newest[:, None]], dim=1)


def draw_tau(start_probability: float, noise: Noise) -> Tensor:
    """τ (B,): 0 with this probability, else uniform on [0, 1]."""
    start, tau = noise.uniform(0, (2,), stream=TAU).float().unbind(1)
    return torch.where(start <= start_probability, 0.0, tau)


def linear(
    fields: Fields, now: Tensor, after: Tensor, tau: Tensor, dt: Tensor, condition: Tensor | None, noise: Noise
) -> Tensor:
    """The straight line (eq:interpolation), all slots by the same time."""
    return slots_after(now, torch.lerp(now[:, -1], after, tau), tau * dt)


def bridge(
    fields: Fields, now: Tensor, after: Tensor, tau: Tensor, dt: Tensor, condition: Tensor | None, noise: Noise
) -> Tensor:
    """A Brownian bridge: x_τ then has the law of the path, which the straight line narrows."""
    x = linear(fields, now, after, tau, dt, condition, noise)
    with torch.no_grad():
        read = fields.evaluated.read(x, condition, "diffusion", *fields.config.covariance.further)
        spread = torch.exp(read["diffusion"]) * (tau * (1 - tau) * dt).sqrt()
    correlation, z = fields.correlation(read), noise.normal(0, tuple(after.shape[1:]), stream=BRIDGE)
    if isinstance(correlation, LowRankCorrelation):
        shared = noise.normal(0, (correlation.columns.shape[-1],), stream=BRIDGE_SHARED)
        z = correlation.mix(z.flatten(1), shared).reshape(z.shape)
    elif correlation is not None:
        z = correlation.mix(z.flatten(1), None).reshape(z.shape)
    x[:, -1] += spread * z
    return x


INTERPOLATIONS = {"linear": linear, "bridge": bridge}
