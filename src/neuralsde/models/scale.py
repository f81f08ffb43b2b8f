"""Units of the data, which travel with the weights: nets see states of unit size and times in reference steps."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.data.transition import Transition
from neuralsde.models.config import Normalise
from neuralsde.nets.memo import Memo


class Scale(nn.Module):
    """Units of the data: offset and scale of states and context, the reference step, and the range that was seen."""

    mean: Tensor
    std: Tensor
    low: Tensor
    high: Tensor
    context_mean: Tensor
    context_std: Tensor
    dt_ref: Tensor

    def __init__(self, shape: tuple[int, ...], context_size: int = 0) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.context_size = context_size
        for name, value in (("mean", 0.0), ("std", 1.0), ("low", -1.0), ("high", 1.0)):
            self.register_buffer(name, torch.full(self.shape, value))
        self.register_buffer("context_mean", torch.zeros(context_size))
        self.register_buffer("context_std", torch.ones(context_size))
        self.register_buffer("dt_ref", torch.ones((), dtype=torch.float64))
        self._step: Memo[float] = Memo()
        self._box: Memo[tuple[Tensor, Tensor]] = Memo()

    @torch.no_grad()
    def measure(self, pairs: Transition, mode: Normalise) -> None:
        """Set the units from the data. A constant feature gets the scale 1."""
        states = torch.cat([pairs.history[:, -1], pairs.next]).double()
        if pairs.mask is not None:
            _check_mask(pairs.mask)
            states = states.where(pairs.mask.repeat(2, *[1] * (states.ndim - 1)), math.nan)
        per_channel = (0, *range(2, states.ndim))  # vectors: per feature; images and latents: per channel
        if states.ndim == 3:  # chunks (horizon, features): per feature
            per_channel = (0, 1)
        low = states.nan_to_num(math.inf).amin(per_channel, keepdim=True)[0]
        high = states.nan_to_num(-math.inf).amax(per_channel, keepdim=True)[0]
        if mode == "min_max":
            mean, std = (low + high) / 2, (high - low) / 2
        else:
            mean = states.nanmean(per_channel, keepdim=True)
            std = (states - mean).square().nanmean(per_channel, keepdim=True).sqrt()[0]
            mean = mean[0]
            if mode == "isotropic":
                std = std.square().mean().sqrt().expand_as(std)
        if mode == "none":
            mean, std = torch.zeros_like(mean), torch.ones_like(std)
        constant = std <= 1e-6 * torch.maximum(mean.abs(), torch.full_like(mean, 1e-30))
        std = torch.where(constant, torch.ones_like(std), std)
        for name, value in (("mean", mean), ("std", std), ("low", low), ("high", high)):
            getattr(self, name).copy_(value.expand(self.shape))
        self.dt_ref.copy_(pairs.dt.double().median())

    @torch.no_grad()
    def measure_context(self, context: Float[Tensor, "B C"]) -> None:
        """Set the units of the context from the data."""
        spread = context.std(0, correction=0)
        self.context_mean.copy_(context.mean(0))
        known = spread > 1e-6 * self.context_mean.abs().clamp(min=1e-30)
        self.context_std.copy_(torch.where(known, spread, torch.ones_like(spread)))

    @property
    def step(self) -> float:
        """The reference step in raw time; read from the device once, not in every solver step."""
        return self._step.get([self.dt_ref], lambda: float(self.dt_ref))

    def states(self, x: Tensor) -> Tensor:
        """Raw states in units of the scale."""
        return (x - self.mean) / self.std

    def raw(self, u: Tensor) -> Tensor:
        """The inverse of `states`."""
        return u * self.std + self.mean

    def steps(self, dt: Float[Tensor, " B"]) -> Tensor:
        """Raw time differences in reference steps, shaped to broadcast against states."""
        return (dt / self.step).reshape(-1, *[1] * len(self.shape))

    def log_volume(self, mask: Tensor | None, batch: int) -> Float[Tensor, " B"]:
        """What a log density in these units exceeds that in raw units by, over the entries (B, *S) that were observed."""
        units = self.std.log().expand(batch, *self.shape)
        return (units if mask is None else units * mask).flatten(1).sum(1)

    def box(self, ranges: float) -> tuple[Tensor, Tensor]:
        """The data's range widened by `ranges` times its width on both sides, in units of the scale."""

        def widened() -> tuple[Tensor, Tensor]:
            low, high = self.states(self.low), self.states(self.high)
            width = (high - low).clamp(min=1.0)
            return low - ranges * width, high + ranges * width

        return self._box.get([self.mean, self.std, self.low, self.high], widened, ranges)

    def contexts(self, context: Tensor) -> Tensor:
        """Raw contexts in units of the scale."""
        return (context - self.context_mean) / self.context_std

    def condition(self, context: Tensor | None, time: Tensor | None) -> Tensor | None:
        """The vector the nets are conditioned on: scaled context, then time in reference steps."""
        return join_condition(None if context is None else self.contexts(context), time)


def join_condition(context: Tensor | None, time: Tensor | None) -> Tensor | None:
    """Scaled context and time end to end, as far as they are there."""
    if time is None:
        return context
    return time[:, None].float() if context is None else torch.cat([context, time[:, None].float()], dim=1)


def _check_mask(mask: Tensor) -> None:
    never = (~mask.any(0)).nonzero()
    if len(never):
        raise ValueError(
            f"Every feature must be observed at both ends of some transition. Got none for feature {never[0].tolist()}. "
            "Give a `lag` after which it is observed again, or drop it."
        )
