"""Units of the data, which travel with the weights: nets see states of unit size and times in reference steps.

A state x becomes u = (φ(x) - mean) / std, where φ is the transform, x itself by default. With `whiten` it is then turned to
coordinates in which the covariance of states is the identity and that of steps diagonal: what differs little between large
features that go together is then as large as they are, and slow directions stand apart from fast ones. With `principal` it is
only turned: one unit for all features, and coordinates along the directions in which states spread, the widest first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.core.memo import Memo
from neuralsde.data.transition import Transition
from neuralsde.models.config import TURNED, Normalise, Transform
from neuralsde.solvers.correlation import Correlation

NEVER = 1e30  # reference steps
MAX_TURNED = {"whiten": 64, "principal": 1024}  # features
FLOOR = 1e-8  # least variance of a whitened direction, of standardised features, as a share of the largest
SLOWEST = 1e-3  # least size of steps in a whitened direction, as a share of the largest
FLOAT = torch.finfo(torch.float32)


@dataclass(frozen=True)
class Curve:
    """A transform φ of a feature, and its inverse, which stays in the domain whatever the rounding."""

    low: float
    high: float
    to: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]  # dx/dφ, by x
    bend: Callable[[Tensor], Tensor]  # d²x/dφ², by x
    domain: str = ""


def _itself(x: Tensor) -> Tensor:
    return x


CURVES: dict[Transform, Curve] = {
    "none": Curve(-math.inf, math.inf, _itself, _itself, torch.ones_like, torch.zeros_like),
    "log": Curve(0, math.inf, torch.log, lambda y: y.exp().clamp(FLOAT.tiny, FLOAT.max), _itself, _itself, "above 0"),
    "logit": Curve(
        0,
        1,
        torch.logit,
        lambda y: y.sigmoid().clamp(FLOAT.tiny, 1 - FLOAT.eps / 2),
        lambda x: x * (1 - x),
        lambda x: x * (1 - x) * (1 - 2 * x),
        "between 0 and 1",
    ),
}


class Scale(nn.Module):
    """Units of the data: offset and scale of states, context and time, the reference step, and the range that was seen."""

    mean: Tensor
    std: Tensor
    low: Tensor
    high: Tensor
    context_mean: Tensor
    context_std: Tensor
    dt_ref: Tensor
    time_mean: Tensor
    time_std: Tensor
    time_last: Tensor
    turn: Tensor
    back: Tensor
    pace: Tensor

    def __init__(
        self,
        shape: tuple[int, ...],
        context_size: int = 0,
        *,
        normalise: Normalise = "mean_std",
        transform: Transform | tuple[Transform, ...] = "none",
    ) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.context_size = context_size
        self.normalise = normalise
        self.axis = -1 if len(self.shape) <= 2 else -len(self.shape)  # vectors, chunks: features; images: channels
        kinds = transform if isinstance(transform, tuple) else (transform,)
        if isinstance(transform, tuple) and len(kinds) != self.shape[self.axis]:
            raise ValueError(
                f"`transform` must be one, or one per feature ({self.shape[self.axis]}). Got {len(kinds)} of them."
            )
        self.transforms: tuple[Transform, ...] = kinds[:1] if len(set(kinds)) == 1 else kinds
        """One for all features, or one for each."""
        for name, value in (("mean", 0.0), ("std", 1.0), ("low", -1.0), ("high", 1.0)):
            self.register_buffer(name, torch.full(self.shape, value))
        self.register_buffer("context_mean", torch.zeros(context_size))
        self.register_buffer("context_std", torch.ones(context_size))
        self.register_buffer("dt_ref", torch.ones((), dtype=torch.float64))
        self.register_buffer("time_mean", torch.zeros((), dtype=torch.float64))  # in reference steps
        self.register_buffer("time_std", torch.ones((), dtype=torch.float64))
        self.register_buffer("time_last", torch.full((), NEVER, dtype=torch.float64))
        if self.turns:
            most = MAX_TURNED[normalise]
            if len(self.shape) != 1 or self.shape[0] > most:
                raise ValueError(
                    f"`normalise={normalise!r}` takes vectors of up to {most} features. Got states of shape {self.shape}. "
                    "Use `normalise='mean_std'`."
                )
            for name in ("turn", "back"):  # rows of standardised states to turned ones, and back
                self.register_buffer(name, torch.eye(self.shape[0], dtype=torch.float64))
            self.register_buffer("pace", torch.ones(self.shape))
        self._step: Memo[float] = Memo()
        self._box: Memo[tuple[Tensor, Tensor]] = Memo()

    @torch.no_grad()
    def measure(self, pairs: Transition) -> None:
        """Set the units from the data. A constant feature gets the scale 1."""
        mode = self.normalise
        states = torch.cat([pairs.history[:, -1], pairs.next]).double()
        if pairs.mask is not None:
            _check_mask(pairs.mask)
            states = states.where(pairs.mask.repeat(2, *[1] * (states.ndim - 1)), math.nan)
        per_channel = (0, *range(2, states.ndim))  # vectors: per feature; images and latents: per channel
        if states.ndim == 3:  # chunks (horizon, features): per feature
            per_channel = (0, 1)
        low = states.nan_to_num(math.inf).amin(per_channel, keepdim=True)[0]
        high = states.nan_to_num(-math.inf).amax(per_channel, keepdim=True)[0]
        states = self._each("to", states)
        if mode == "min_max":
            ends = self._each("to", low), self._each("to", high)
            mean, std = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
        else:
            mean = states.nanmean(per_channel, keepdim=True)
            std = (states - mean).square().nanmean(per_channel, keepdim=True).sqrt()[0]
            mean = mean[0]
            if mode in ("isotropic", "principal"):
                std = std.square().mean().sqrt().expand_as(std)
        if mode == "none":
            mean, std = torch.zeros_like(mean), torch.ones_like(std)
        constant = std <= 1e-6 * torch.maximum(mean.abs(), torch.full_like(mean, 1e-30))
        std = torch.where(constant, torch.ones_like(std), std)
        for name, value in (("mean", mean), ("std", std), ("low", low), ("high", high)):
            getattr(self, name).copy_(value.expand(self.shape))
        self.dt_ref.copy_(pairs.dt.double().median())
        if self.turns:
            self._measure_directions(pairs)

    def _measure_directions(self, pairs: Transition) -> None:
        """Whitened: states of covariance 1 and uncorrelated steps, from the slowest to the fastest. Principal: the widest first."""
        before, after = (self.features(x.double()) for x in (pairs.history[:, -1], pairs.next))
        states = torch.cat([before, after])
        variance, axes = torch.linalg.eigh(states.T @ states / len(states))
        if self.normalise == "principal":
            root, turn = torch.ones_like(variance), torch.eye(len(axes)).to(axes).flip(1)
        else:
            root = variance.clamp(min=FLOOR * max(float(variance[-1]), 1e-30)).sqrt()
            steps = (after - before) / pairs.dt.double().sqrt()[:, None] @ axes / root
            size, turn = torch.linalg.eigh(steps.T @ steps / len(steps))
            size = size.clamp(min=0).sqrt()
            self.pace.copy_((size / size[-1].clamp(min=1e-30)).clamp(min=SLOWEST))
        to = axes / root @ turn
        sign = torch.where(before[0] @ to < 0, -1.0, 1.0)  # eigenvectors have none: the first state is positive
        self.turn.copy_(to * sign)
        self.back.copy_((axes * root @ turn * sign).T)
        seen = self.states(torch.cat([pairs.history[:, -1], pairs.next]))
        self.low.copy_(seen.amin(0))
        self.high.copy_(seen.amax(0))

    @torch.no_grad()
    def measure_time(self, time: Float[Tensor, " B"]) -> None:
        """Set the units of times since the start of a path from the data; a single time gets the unit of one step."""
        steps = time.double() / self.step
        spread = steps.std(correction=0)
        self.time_mean.copy_(steps.mean())
        self.time_last.copy_(steps.max() + 1)
        self.time_std.copy_(torch.where(spread > 1e-6 * steps.mean().abs(), spread, torch.ones_like(spread)))

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

    @property
    def turns(self) -> bool:
        """Whether states are turned to uncorrelated coordinates. `low` and `high` are then in these."""
        return self.normalise in TURNED

    def _each(self, part: str, x: Tensor) -> Tensor:
        """A function of the transforms, feature by feature."""
        if len(self.transforms) == 1:
            return getattr(CURVES[self.transforms[0]], part)(x)
        parts = zip(self.transforms, x.unbind(self.axis))
        return torch.stack([getattr(CURVES[kind], part)(values) for kind, values in parts], self.axis)

    def check_states(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Refuse raw states (..., *S) that have no place in these units; `mask` is of what was observed."""
        if self.turns and mask is not None:
            raise ValueError(
                f"`normalise={self.normalise!r}` needs whole states: a missing entry is part of every coordinate. Got missing "
                "entries. Fill them, or use `normalise='mean_std'`."
            )
        parts = (x,) if len(self.transforms) == 1 else x.unbind(self.axis)
        for place, (kind, values) in enumerate(zip(self.transforms, parts)):
            if kind == "none":
                continue
            curve = CURVES[kind]
            outside = values[(values <= curve.low) | (values >= curve.high)]
            if outside.numel():
                where = "" if len(parts) == 1 else f" in feature {place}"
                raise ValueError(
                    f"`transform={kind!r}` takes states {curve.domain}. Got {float(outside.flatten()[0]):g}{where}. "
                    "Mend such values, shift the data, or use `transform='none'`."
                )

    def features(self, x: Tensor) -> Tensor:
        """Raw states as transformed features of unit size: the units of the scale, but for their turn."""
        return (self._each("to", x) - self.mean) / self.std

    def states(self, x: Tensor) -> Tensor:
        """Raw states in units of the scale."""
        u = self.features(x)
        return _product(u, self.turn) if self.turns else u

    def raw(self, u: Tensor) -> Tensor:
        """The inverse of `states`."""
        u = _product(u, self.back) if self.turns else u
        return self._each("back", u * self.std + self.mean)

    def spread(self, std: Tensor) -> Tensor:
        """Standard deviations of transformed features, for those of independent entries in units of the scale."""
        if self.turns:
            std = _product(std**2, self.back**2).sqrt()
        return std * self.std

    def covariance(
        self, x: Float[Tensor, "B *S"], diffusion: Float[Tensor, "B *S"], correlation: Correlation | None
    ) -> Float[Tensor, "B d d"]:
        """Raw covariance of the noise per unit of time at raw states, flattened."""
        unit = self._each("slope", x).flatten(1) / self.step**0.5
        return unit[:, :, None] * self._turned(diffusion, correlation) * unit[:, None, :]

    def root(self, x: Float[Tensor, "B *S"], root: Float[Tensor, "B d m"]) -> Float[Tensor, "B d m"]:
        """Raw noise per root of a unit of time at raw states, flattened, for noise `root` w in units of the scale."""
        root = (self.back.mT @ root.double()).to(root.dtype) if self.turns else root
        unit = self._each("slope", x).flatten(1) * self.std.flatten() / self.step**0.5
        return unit[..., None] * root

    def _turned(self, diffusion: Tensor, correlation: Correlation | None) -> Tensor:
        """Covariance of transformed features, for noise in units of the scale."""
        g = diffusion.flatten(1)
        cov = torch.diag_embed(g.square()) if correlation is None else correlation.covariance(g)
        return self._features_covariance(cov)

    def _features_covariance(self, cov: Float[Tensor, "B d d"]) -> Float[Tensor, "B d d"]:
        """Of transformed features, for one in units of the scale."""
        cov = (self.back.mT @ cov.double() @ self.back).to(cov.dtype) if self.turns else cov
        std = self.std.flatten()
        return std[:, None] * cov * std

    def raw_covariance(self, x: Float[Tensor, "B *S"], cov: Float[Tensor, "B d d"]) -> Float[Tensor, "B d d"]:
        """Raw covariance of flattened states about raw ones, for one in units of the scale: to first order in the transform."""
        slope = self._each("slope", x).flatten(1)
        return slope[:, :, None] * self._features_covariance(cov) * slope[:, None, :]

    def law(self) -> tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
        """Mean and variance of the data in units of the scale, each entry by itself.

        Where the units are not the data's spread, its range stands for it.
        """
        if self.normalise in ("mean_std", "whiten"):
            return torch.zeros_like(self.mean), torch.ones_like(self.std)
        low, high = self._ends()
        return (low + high) / 2, ((high - low).square() / 12).clamp(min=1e-6)

    def _ends(self) -> tuple[Tensor, Tensor]:
        """The data's range in units of the scale."""
        return (self.low, self.high) if self.turns else (self.states(self.low), self.states(self.high))

    def fields(
        self, x: Tensor, drift: Tensor, diffusion: Tensor, correlation: Correlation | None = None
    ) -> tuple[Tensor, Tensor]:
        """Raw drift and diffusion at raw states, by Ito's formula, for those in units of the scale.

        Of turned states the diffusion is the standard deviation per feature; their noise is correlated.
        """
        drift = (_product(drift, self.back) if self.turns else drift) * self.std / self.step
        g, slope = self.spread(diffusion) / self.step**0.5, self._each("slope", x)
        if self.turns and correlation is not None:
            variance = torch.diagonal(self._turned(diffusion, correlation), dim1=1, dim2=2)
            g = variance.sqrt().reshape(g.shape) / self.step**0.5
        return slope * drift + 0.5 * self._each("bend", x) * g**2, slope * g

    def steps(self, dt: Float[Tensor, " B"]) -> Tensor:
        """Raw time differences in reference steps, shaped to broadcast against states."""
        return (dt / self.step).reshape(-1, *[1] * len(self.shape))

    def log_volume(self, batch: Transition) -> Float[Tensor, " B"]:
        """What a log density of the next states in these units exceeds that in raw units by, over what was observed."""
        volume = self.log_unit(batch.next, batch.mask)
        return volume + self.back.slogdet().logabsdet.float() if self.turns else volume

    def log_unit(self, x: Tensor, mask: Tensor | None) -> Float[Tensor, " B"]:
        """What a log density of the features of raw states exceeds that in raw units by, over what was observed."""
        units = self.std.log() + self._each("slope", x).log()
        return (units if mask is None else units * mask).flatten(1).sum(1)

    def box(self, ranges: float) -> tuple[Tensor, Tensor]:
        """The data's range widened by `ranges` times its width on both sides, in units of the scale."""

        def widened() -> tuple[Tensor, Tensor]:
            low, high = self._ends()
            width = (high - low).clamp(min=1.0)
            return low - ranges * width, high + ranges * width

        return self._box.get([self.mean, self.std, self.low, self.high], widened, ranges)

    def contexts(self, context: Tensor) -> Tensor:
        """Raw contexts in units of the scale."""
        return (context - self.context_mean) / self.context_std

    def times(self, time: Float[Tensor, " B"], how: bool | float) -> Float[Tensor, "B K"] | None:
        """What nets see of times since the start of a path, in reference steps: `how` is the setting `time_input`.

        Beyond the last time of the data they see that one: a field was never learned there.
        """
        if how is False:
            return None
        if how is True:
            return ((torch.minimum(time, self.time_last) - self.time_mean) / self.time_std)[:, None]
        phase = time.double() * (2 * math.pi * self.step / how)
        return torch.stack([phase.sin(), phase.cos()], dim=1)

    def condition(self, context: Tensor | None, time: Tensor | None) -> Tensor | None:
        """The vector the nets are conditioned on: scaled context, then what they see of the time."""
        return join_condition(None if context is None else self.contexts(context), time)


def join_condition(context: Tensor | None, more: Tensor | None) -> Tensor | None:
    """Scaled context and what changes along a path, (B,) or (B, K), end to end, as far as they are there."""
    if more is None:
        return context
    late = (more if more.ndim == 2 else more[:, None]).float()
    return late if context is None else torch.cat([context, late], dim=1)


def _product(x: Tensor, matrix: Tensor) -> Tensor:
    """Rows times a matrix, in double precision: `tf32` and `bf16` would round away the small differences between features."""
    return (x.double() @ matrix).to(x.dtype)


def _check_mask(mask: Tensor) -> None:
    never = (~mask.any(0)).nonzero()
    if len(never):
        raise ValueError(
            f"Every feature must be observed at both ends of some transition. Got none for feature {never[0].tolist()}. "
            "Give a `lag` after which it is observed again, or drop it."
        )
