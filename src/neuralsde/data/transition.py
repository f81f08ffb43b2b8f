"""One batch of pairs of states."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxtyping import Bool, Float
from torch import Tensor

from neuralsde.core.doors import door
from neuralsde.data.arrays import Device
from neuralsde.solvers.noise import Noise


@dataclass
class Transition:
    """A batch of pairs of states, in raw units."""

    history: Float[Tensor, "B H *S"]
    """Oldest first; history[:, -1] is the state before the step."""
    next: Float[Tensor, "B *S"]
    dt: Float[Tensor, " B"]
    time: Float[Tensor, " B"]
    """Time of the newest history state since the start of its path."""
    context: Float[Tensor, "B C"] | None = None
    mask: Bool[Tensor, "B *S"] | None = None
    """True where both ends of the step were observed."""

    def __len__(self) -> int:
        return len(self.next)

    @door
    def to(self, device: Device) -> Transition:
        """The same batch on another device."""
        moved = {k: v.to(device) for k, v in vars(self).items() if v is not None}
        return replace(self, **moved)

    def rows(self, rows: slice) -> Transition:
        """Some of them."""
        return replace(self, **{k: v[rows] for k, v in vars(self).items() if v is not None})

    def with_context_noise(self, std: Tensor, noise: Noise) -> Transition:
        """The same batch seen by noisier sensors: Gaussian noise of `std` (C,) on the context."""
        assert self.context is not None
        return replace(self, context=self.context + std * noise.child(1).normal(0, tuple(std.shape)))
