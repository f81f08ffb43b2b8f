"""How large steps and velocities are in the data: what the nets' outputs are measured in, and what log g is bounded by."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuralsde.core.memo import Memo
from neuralsde.data.transition import Transition
from neuralsde.models.scale import Scale


class StepSizes(nn.Module):
    """Fixed from the data before training and saved with the weights; in units of the scale."""

    low: Tensor
    high: Tensor
    typical: Tensor
    rate: Tensor
    reverts: Tensor

    def __init__(self, shape: tuple[int, ...], directions: int | None = None) -> None:
        super().__init__()
        self.directions = directions
        if directions is not None:
            self.register_buffer("reverts", torch.zeros(shape))
        for name, value in (("low", 0.0), ("high", 0.0), ("typical", 0.0), ("rate", 1.0)):
            self.register_buffer(name, torch.full(shape, value))
        self._curve: Memo[tuple[Tensor, Tensor, Tensor]] = Memo()

    def measure(self, scale: Scale, pairs: Transition) -> None:
        """Bound log g by what the data shows: up to twice the 99.9 % quantile of |Δx|/√Δt, and down to 1e-4 of that."""
        dt = scale.steps(pairs.dt)
        dt = dt if pairs.mask is None else dt.where(pairs.mask, math.nan)  # unobserved entries drop out below
        step = scale.states(pairs.next) - scale.states(pairs.history[:, -1])
        size = (step / dt.sqrt()).abs()
        last = (999 * size.isfinite().sum(0, keepdim=True) + 999) // 1000 - 1
        high = 2 * size.sort(0).values.gather(0, last)[0].clamp(min=1e-3)  # the floor is for constant dimensions
        self.high.copy_(high.log())
        self.low.copy_((1e-4 * high).log())
        self.typical.copy_(size.square().nanmean(0).sqrt().clamp(1e-2 * high, 0.5 * high).log())
        if self.directions is not None:
            self._measure_rest(scale.states(pairs.history[:, -1]), step, dt)
        self.rate.copy_((step**2 / dt).nanmean(0).div(dt.nanmean(0)).sqrt().clamp(min=1e-6))  # Δt-weighted, as the loss

    def begin(self, left: Tensor) -> None:
        """Let nets of 0 give the size of what is left of steps (B, *S), NaN where there is none."""
        size = left.square().nanmean(0).sqrt().log()
        self.typical.copy_(size.clamp(self.low + 1e-2, self.high - 1e-2))

    def _measure_rest(self, state: Tensor, step: Tensor, dt: Tensor) -> None:
        """How fast what the nets do not see reverts to its mean, by least squares, and the noise that is left."""
        fast = -(state * step).sum(0) / (state.square() * dt).sum(0).clamp(min=1e-30)
        self.reverts[self.directions :] = fast.clamp(0.0, 1.0 / float(dt.max()))[self.directions :]
        left = ((step + self.reverts * state * dt) ** 2 / dt).mean(0).sqrt().log()
        rest = left.clamp(self.low + 1e-3, self.high - 1e-3)
        self.typical[self.directions :] = rest[self.directions :]

    def leading(self, state: Tensor) -> Tensor:
        """What nets see of states (..., *S): all of them, or their leading directions."""
        return state if self.directions is None else state[..., : self.directions]

    def whole(self, raw: Tensor) -> Tensor:
        """What nets give, of all entries of a state: 0 for those that they do not see."""
        missing = 0 if self.directions is None else self.low.numel() - self.directions
        return functional.pad(raw, (0, missing)) if missing else raw

    def velocity(self, raw: Tensor, state: Tensor) -> Tensor:
        """A velocity at a state from a net's output, which is in units of the data's; what nets do not see reverts to its mean."""
        velocity = self.rate * raw
        return velocity if self.directions is None else velocity - self.reverts * state[:, -1]

    def log_g(self, raw: Tensor) -> Tensor:
        """log g of a net's output, bounded smoothly: off the data a free log g extrapolates and roll-outs blow up."""
        width, middle, slope = self.curve
        return self.low + width * torch.sigmoid(middle + raw * slope)

    @property
    def curve(self) -> tuple[Tensor, Tensor, Tensor]:
        """`_bounds`, until the sizes change."""
        return self._curve.get([self.low, self.high, self.typical], self._bounds)

    def _bounds(self) -> tuple[Tensor, Tensor, Tensor]:
        """Width of the bounds, the place of the typical step between them (a net of 0 gives that), and the slope there."""
        width = self.high - self.low
        return width, torch.logit((self.typical - self.low) / width), 4 / width
