"""Numerical solution of dx = a(x, t) dt + g(x, t) dw (Ito, diagonal g): one step per scheme, one loop for all.

A *scheme* maps a state over one step; `integrate` walks a time grid, keeps the record of the path, and knows nothing
of schemes or of nets. Output times may be anything that increases: the grid puts as many equal steps between two
of them as the step limit asks for, path by path, so that a path does not depend on its neighbours in the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralsde.noise import Noise
from neuralsde.records import RunError

Settings = ParamSpec("Settings")
Made = TypeVar("Made")

EXACT_UP_TO = 32
"""Dimensions up to which "auto" computes g dg exactly."""
MAX_KNOWN = 64
"""Output times up to which they and their grid are kept."""


@dataclass(frozen=True)
class Coefficients:
    """Values of the SDE at one point: a, g, and the diagonal of g dg/dx, which may be 0 where it was not asked for."""

    drift: Float[Tensor, "P *S"]
    diffusion: Float[Tensor, "P *S"]
    correction: Float[Tensor, "P *S"] | float = 0.0


@runtime_checkable
class SDE(Protocol):
    """An Ito SDE as the schemes see it."""

    def __call__(self, x: Tensor, t: Tensor, *, correction: bool) -> Coefficients: ...


def diagonal_slope(y: Tensor, x: Tensor, how: str, signs: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """The diagonal dy_i/dx_i of y(x), both (P, *S), and the backward passes it took.

    Exact, with one pass per dimension, or by one Hutchinson probe of random signs; "auto" is exact in few dimensions.
    """
    y = y + 0 * x  # y may be constant
    size = y[0].numel()
    if how == "probe" or (how == "auto" and size > EXACT_UP_TO):
        v = signs()
        return torch.autograd.grad((y * v).sum(), x)[0] * v, 1
    flat = y.flatten(1)
    slopes = [torch.autograd.grad(flat[:, i].sum(), x, retain_graph=True)[0].flatten(1)[:, i] for i in range(size)]
    return torch.stack(slopes, dim=1).reshape(x.shape), size


def newest_slope(
    field: Callable[[Tensor], Tensor], state: Float[Tensor, "P H *S"], how: str, signs: Callable[[], Tensor]
) -> tuple[Tensor, Tensor, int]:
    """A field at a state, its diagonal slope by the newest slot, and the backward passes that took."""
    with torch.enable_grad():
        x = state[:, -1].detach().requires_grad_()
        y = field(torch.cat([state[:, :-1].detach(), x[:, None]], dim=1))
        slope, passes = diagonal_slope(y, x, how, signs)
    return y.detach(), slope, passes


def euler(sde: SDE, x: Tensor, t: Tensor, dt: Tensor, dw: Tensor) -> Tensor:
    """Euler-Maruyama: strong order 1/2, weak order 1."""
    c = sde(x, t, correction=False)
    return x + c.drift * dt + c.diffusion * dw


def milstein(sde: SDE, x: Tensor, t: Tensor, dt: Tensor, dw: Tensor) -> Tensor:
    """Milstein for diagonal noise: strong order 1."""
    c = sde(x, t, correction=True)
    return x + c.drift * dt + c.diffusion * dw + 0.5 * c.correction * (dw**2 - dt)


def heun(sde: SDE, x: Tensor, t: Tensor, dt: Tensor, dw: Tensor) -> Tensor:
    """Stochastic Heun: strong order 1 for diagonal noise, order 2 in the deterministic part.

    The trapezoidal rule converges to the Stratonovich solution, so it is given the drift in that form, a - g dg / 2.
    """
    c0 = sde(x, t, correction=True)
    a0 = c0.drift - 0.5 * c0.correction
    c1 = sde(x + a0 * dt + c0.diffusion * dw, t + dt.reshape(t.shape), correction=True)
    a1 = c1.drift - 0.5 * c1.correction
    return x + 0.5 * (a0 + a1) * dt + 0.5 * (c0.diffusion + c1.diffusion) * dw


SCHEMES = {"euler": euler, "heun": heun, "milstein": milstein}


@dataclass(frozen=True)
class Times:
    """Output times on the host, in reference steps: one row for all paths, or one row for each."""

    start: Float[Tensor, "P 1"]
    since: Float[Tensor, "P T"]
    """After the start."""
    gaps: Float[Tensor, "P T-1"]

    @classmethod
    def checked(cls, times: Float[Tensor, "P T"], unit: float) -> Times:
        """Raw times, which must increase."""
        gaps = times.diff(dim=1)
        good = (gaps > 0) & torch.isfinite(gaps)
        if not bool(good.all()):
            row, k = (int(i) for i in (~good).nonzero()[0])
            before, after = float(times[row, k]), float(times[row, k + 1])
            raise ValueError(
                f"`times` must increase and be finite. Got times[{row}][{k + 1}]={after} after {before}. Sort them."
            )
        return cls(start=times[:, :1] / unit, since=(times - times[:, :1]) / unit, gaps=gaps / unit)


def _keeping(make: Callable[Concatenate[Tensor, Settings], Made]) -> Callable[Concatenate[Tensor, Settings], Made]:
    """`make` for times (P, T) on the host; what a controller needs, which asks for the same few again and again, is kept."""

    @lru_cache(maxsize=64)
    def known(times: tuple[float, ...], inference: bool, *args: Settings.args, **settings: Settings.kwargs) -> Made:
        return make(torch.tensor([times], dtype=torch.float64), *args, **settings)

    def made(times: Tensor, /, *args: Settings.args, **settings: Settings.kwargs) -> Made:
        if len(times) == 1 and times.shape[1] <= MAX_KNOWN:
            return known(tuple(times[0].tolist()), torch.is_inference_mode_enabled(), *args, **settings)  # type: ignore[arg-type]
        return make(times, *args, **settings)

    return made


output_times = _keeping(Times.checked)


def steps_in(gaps: Tensor, max_step: float) -> Tensor:
    """How many equal steps of at most `max_step` each gap takes."""
    return torch.ceil(gaps / max_step * (1 - 1e-6)).clamp(min=1)  # whole steps, whatever the rounding


@dataclass(frozen=True)
class Grid:
    """Solver steps between output times, for each path; shorter paths end in steps of length 0."""

    time: Float[Tensor, "P K"]
    """K = M + 1 times for M steps."""
    interval: Int[Tensor, "P M"]
    """The output interval each step lies in."""
    output: Int[Tensor, "P T"]
    """Where the output times are on the grid."""

    @classmethod
    def between(cls, times: Float[Tensor, "P T"], max_step: float) -> Grid:
        """Equal steps of at most `max_step` in each interval of `times`."""
        gaps = times.diff(dim=1)
        steps = steps_in(gaps, max_step).long()
        ends = steps.cumsum(1)
        output = torch.cat([torch.zeros_like(ends[:, :1]), ends], dim=1)
        m = torch.arange(int(ends[:, -1].max()) + 1, device=times.device).repeat(len(times), 1)
        interval = torch.searchsorted(ends, m, right=True).clamp(max=gaps.shape[1] - 1)
        share = (m - output.gather(1, interval)).to(times.dtype) / steps.gather(1, interval)
        time = times.gather(1, interval) + share * gaps.gather(1, interval)
        time = torch.where(m < ends[:, -1:], time, times[:, -1:])  # shorter rows wait, exactly, at their last time
        return cls(time=time, interval=interval[:, :-1], output=output)

    @cached_property
    def lengths(self) -> Float[Tensor, "P M"]:
        """Of the steps."""
        return self.time.diff(dim=1)

    @cached_property
    def waits(self) -> list[bool]:
        """Whether a path, in each step, only waits for longer ones."""
        return (self.lengths == 0).any(0).tolist()


@_keeping
def grid_between(times: Float[Tensor, "P T"], max_step: float, device: torch.device) -> Grid:
    """`Grid.between` on a device, for times on the host."""
    return Grid.between(times.to(device), max_step)


Older = Callable[[Tensor], Tensor]
"""The older slots (P, H-1, *S) of the state at times (P,): the path's own record, linearly interpolated."""


@dataclass(frozen=True)
class Step:
    """What a step starts from."""

    x: Float[Tensor, "P *S"]
    time: Float[Tensor, " P"]
    dt: Float[Tensor, "P ..."]
    """Broadcasts against x."""
    older: Older
    z: Float[Tensor, "P *S"]
    """Standard normal."""
    dw: Float[Tensor, "P *S"]
    """Of the Wiener process: √dt z."""
    index: int

    def state(self, x: Float[Tensor, "P *S"], t: Float[Tensor, " P"]) -> Float[Tensor, "P H *S"]:
        """What the nets see when the newest slot is x, at times t."""
        older, newest = self.older(t), x.unsqueeze(1)
        return torch.cat([older, newest], dim=1) if older.shape[1] else newest


class Diverged(RunError):
    """A path left every region the model could know."""


def integrate(
    advance: Callable[[Step], Tensor],
    history: Float[Tensor, "P H *S"],
    grid: Grid,
    noise: Noise,
    *,
    spacing: float = 1.0,
    box: tuple[Tensor, Tensor] | None = None,
    check_every: int = 64,
    first_path: int = 0,
) -> Float[Tensor, "P T *S"]:
    """Walk the grid from the newest state of `history`; return the states at the output times.

    Args:
        advance: takes all paths one step on.
        history: slots `spacing` apart, oldest first.
        grid: the time steps; one row, or one row per path.
        noise: one key per path; step m of a path uses the noise (key, m).
        spacing: time between the slots of the state.
        box: lowest and highest values allowed; None only refuses values that are not finite.
        check_every: steps between checks (each check waits for the device).
        first_path: number of the first path, for messages.
    """
    num_paths, num_slots = history.shape[:2]
    shape = tuple(history.shape[2:])
    time = grid.time.expand(num_paths, -1)
    num_steps = time.shape[1] - 1
    dt = grid.lengths.to(history.dtype).expand(num_paths, -1).reshape(num_paths, num_steps, *[1] * len(shape))

    if num_slots > 1:
        back = torch.arange(num_slots - 1, 0, -1, device=time.device, dtype=time.dtype) * spacing
        knots = torch.cat([time[:, :1] - back, time], dim=1)
    record = history.new_empty(num_paths, num_slots + num_steps, *shape)
    record[:, :num_slots] = history
    none = record[:, :0]

    def older(t: Tensor) -> Tensor:
        if num_slots == 1:
            return none
        query = t[:, None] - back
        right = torch.searchsorted(knots, query).clamp(1, num_slots - 1 + m)  # at most the newest state, that of step m
        t0, t1 = knots.gather(1, right - 1), knots.gather(1, right)
        weight = ((query - t0) / (t1 - t0).clamp(min=1e-12)).clamp(0, 1).to(record.dtype)
        rows = torch.arange(num_paths, device=t.device)[:, None]
        weight = weight.reshape(*weight.shape, *[1] * len(shape))
        return torch.lerp(record[rows, right - 1], record[rows, right], weight)

    x = history[:, -1]
    block = max(1, min(num_steps, 2**22 // max(1, x.numel())))  # noise is drawn for many steps at once
    z: tuple[Tensor, ...] = ()
    dw: tuple[Tensor, ...] = ()
    for m, (now, step) in enumerate(zip(time.unbind(1), dt.unbind(1))):
        if m % block == 0:
            steps = torch.arange(m, min(m + block, num_steps), device=x.device)
            normal = noise.normal(steps, shape).to(x.dtype)
            z, dw = normal.unbind(1), (dt[:, m : m + block].sqrt() * normal).unbind(1)
        moved = advance(Step(x, now, step, older, z[m % block], dw[m % block], m))
        x = torch.where(step == 0, x, moved) if grid.waits[m] else moved
        record[:, num_slots + m] = x
        if (m + 1) % check_every == 0 or m + 1 == num_steps:
            first = num_slots + m - m % check_every
            _check_inside(record[:, first : num_slots + m + 1], time[:, first - num_slots + 1 :], box, first_path)
    path = record[:, num_slots - 1 :]
    if len(grid.output) == 1:
        return path.index_select(1, grid.output[0])
    return path[torch.arange(num_paths, device=time.device)[:, None], grid.output]


def _check_inside(states: Tensor, time: Tensor, box: tuple[Tensor, Tensor] | None, first_path: int) -> None:
    inside = torch.isfinite(states) if box is None else (states >= box[0]) & (states <= box[1])  # NaN is in no box
    if bool(inside.all()):
        return
    path, step, *index = (int(i) for i in (~inside).nonzero()[0])
    raise Diverged(
        f"Path {first_path + path} left the data at time {float(time[path, step]):.4g} (in training steps): component {index} is "
        f"{float(states[(path, step, *index)]):.4g} in units of the data's scale. Use more `substeps`, a positive `pull`, "
        "shorter paths or longer training; a larger `box` allows more room."
    )
