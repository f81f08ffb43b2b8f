"""Two observed states as the method sees them, in units of the scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

Conditions = Callable[[float], "Tensor | None"]
"""The condition of the nets (B, K) when a share of the gap has passed."""


@dataclass(frozen=True)
class Gap:
    """A step from one observation to the next."""

    state: Float[Tensor, "B H *S"]
    """Before it."""
    step: Float[Tensor, "B *S"]
    """Δx."""
    dt: Float[Tensor, "B ..."]
    """Broadcasts against states."""
    conditions: Conditions
    mask: Bool[Tensor, "B *S"] | None
    """Entries that were observed at both ends."""


@dataclass(frozen=True)
class Pair:
    """What the nets see between two observations, and what they are to say of it."""

    now: Float[Tensor, "B H *S"]
    """Clean, as observed."""
    after: Float[Tensor, "B *S"]
    dt: Float[Tensor, "B ..."]
    state: Float[Tensor, "B H *S"]
    """x̃ = x_τ + σε."""
    eps: Float[Tensor, "B H *S"]
    condition: Float[Tensor, "B K"] | None
    """At the time of x̃."""
    target: Float[Tensor, "B *S"]
    """Δx/Δt of the clean states: a noisy one would add σ²/Δt to g²."""
    conditions: Conditions
    mask: Bool[Tensor, "B *S"] | None

    def gap(self, state: Float[Tensor, "B H *S"]) -> Gap:
        """The whole step, from a state."""
        return Gap(state, self.target * self.dt, self.dt, self.conditions, self.mask)
