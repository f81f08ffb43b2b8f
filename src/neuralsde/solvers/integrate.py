"""The one loop: it walks a time grid, keeps the record of the path, and knows nothing of schemes or of nets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from neuralsde.core.records import RunError
from neuralsde.solvers.grid import Grid
from neuralsde.solvers.noise import Noise

CHECK_EVERY = 64
WARM_UP = 2  # steps before a recording, in which libraries set up their memory
STRETCH = 16  # steps that are recorded together
LONG_STRETCH = 64  # of small states on a GPU, whose host is slow beside it
BLOCK = 2**22  # numbers of noise that are drawn at once
ENOUGH = 32  # steps of a roll-out from which on a recording pays

Recording = Callable[..., Tensor]
"""What is called with the number of steps that count, a state, and what a stretch of steps is given."""
Older = Callable[[Tensor], Tensor]
"""The older slots (P, H-1, *S) of the state at times (P,): the path's own record, linearly interpolated."""


@dataclass(frozen=True)
class Step:
    """What a step starts from."""

    x: Float[Tensor, "P *S"]
    time: Float[Tensor, " P"]
    dt: Float[Tensor, "P ..."]  # broadcasts against x
    older: Older
    z: Float[Tensor, "P *S"]  # standard normal
    dw: Float[Tensor, "P *S"]  # of the Wiener process: √dt z
    index: int | Int[Tensor, ""]  # a tensor where the step is recorded, and repeated as another

    def state(self, x: Float[Tensor, "P *S"], t: Float[Tensor, " P"]) -> Float[Tensor, "P H *S"]:
        """What the nets see when the newest slot is x, at times t."""
        older, newest = self.older(t), x.unsqueeze(1)
        return torch.cat([older, newest], dim=1) if older.shape[1] else newest


@dataclass(frozen=True)
class Stretches:
    """Steps with the same kernels are recorded together, so many at a time."""

    record: Callable[[Callable[..., Tensor]], Recording]
    length: int = STRETCH
    after: int = WARM_UP
    """The first steps, which are taken one by one."""
    padded: bool = False
    """Whether the last stretch is filled up with steps of length 0; the kernels must not look at the path before."""


class Diverged(RunError):
    """A path left every region the model could know."""


Check = Callable[[Tensor, Tensor], None]
"""Refuses states (P, M, *S) at times (P, M)."""


def walk(
    advance: Callable[[Step], Tensor],
    history: Float[Tensor, "P H *S"],
    grid: Grid,
    noise: Noise,
    *,
    spacing: float = 1.0,
    check: Check | None = None,
    stretches: Stretches | None = None,
) -> Float[Tensor, "P K *S"]:
    """Walk the grid from the newest state of `history`; return the states at all of its times.

    Args:
        advance: takes all paths one step on.
        history: slots `spacing` apart, oldest first.
        grid: the time steps; one row, or one row per path.
        noise: one key per path; step m of a path uses the noise (key, m).
        spacing: time between the slots of the state.
        check: sees the states every CHECK_EVERY steps (it waits for the device).
        stretches: how steps are recorded, where all are the same kernels.
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
    newest = torch.zeros((), dtype=torch.int64, device=time.device)  # a tensor, which a recorded step reads anew
    behind = torch.arange(1 - num_slots, 0, device=time.device)
    known = num_slots > 1 and grid.steps_are(spacing)

    def older(now: Tensor, m: int | None, t: Tensor) -> Tensor:
        """For step m, which begins now; None: for the one of a recording that comes next."""
        if num_slots == 1:
            return none
        if known and t is now:
            return record.index_select(1, newest + behind) if m is None else record[:, m : m + num_slots - 1]
        query = t[:, None] - back
        right = torch.searchsorted(knots, query).clamp(min=1)
        right = torch.minimum(right, newest) if m is None else right.clamp(max=num_slots - 1 + m)
        t0, t1 = knots.gather(1, right - 1), knots.gather(1, right)
        weight = ((query - t0) / (t1 - t0).clamp(min=1e-12)).clamp(0, 1).to(record.dtype)
        rows = torch.arange(num_paths, device=t.device)[:, None]
        weight = weight.reshape(*weight.shape, *[1] * len(shape))
        return torch.lerp(record[rows, right - 1], record[rows, right], weight)

    def several(x: Tensor, *given: Tensor, advance: Callable[[Step], Tensor] = advance) -> Tensor:
        """As many steps as are given, by kernels that do not depend on where the path is; the states after each of them."""
        states = []
        *values, number = given
        for now, step, z, dw, index in zip(*(value.unbind(1) for value in values), number.unbind()):
            x = advance(Step(x, now, step, partial(older, now, None), z, dw, index))
            states.append(x)
            if num_slots > 1:  # the next step looks back at it
                record.index_copy_(1, newest.add_(1)[None], x[:, None])
        return torch.stack(states, dim=1)

    recorded = None if stretches is None else stretches.record(several)
    most, after, padded = (stretches.length, stretches.after, stretches.padded) if stretches else (0, 0, False)
    numbers = torch.arange(num_steps if recorded else 0, device=time.device)
    x = history[:, -1]
    block = max(1, min(num_steps, BLOCK // max(1, x.numel())))  # noise is drawn for many steps at once
    block -= block % most if 0 < most <= block < num_steps else 0  # whole stretches
    m = first = checked = 0
    z = dw = dt[:, :0]
    while m < num_steps:
        if m == first + z.shape[1]:
            first, own = m, dt[:, m : m + block]
            z = noise.normal(torch.arange(m, m + own.shape[1], device=x.device), shape).to(x.dtype)
            dw = own.sqrt() * z
        k = m - first
        ready = min(most, z.shape[1] - k) if m >= after else 0
        if recorded and (ready == most or (padded and m + ready == num_steps and 4 * ready >= most)):
            newest.fill_(num_slots - 1 + m)
            here, ahead, lacking = slice(m, m + ready), slice(k, k + ready), most - ready
            given = (time[:, here], dt[:, here], z[:, ahead], dw[:, ahead])
            states = recorded(ready, x, *(_padded(v, 1, lacking) for v in given), _padded(numbers[here], 0, lacking))
            record[:, num_slots + m : num_slots + m + ready] = states[:, :ready]
            x, m = states[:, ready - 1], m + ready
        else:
            length, now = dt.select(1, m), time.select(1, m)  # one operation where an index is two
            moved = advance(Step(x, now, length, partial(older, now, m), z.select(1, k), dw.select(1, k), m))
            x = torch.where(length == 0, x, moved) if grid.waits[m] else moved
            record.select(1, num_slots + m).copy_(x)
            m += 1
        if check is not None and (m - checked >= CHECK_EVERY or m == num_steps):
            check(record[:, num_slots + checked : num_slots + m], time[:, checked + 1 :])
            checked = m
    return record[:, num_slots - 1 :]


def _padded(values: Tensor, axis: int, num: int) -> Tensor:
    """With `num` zeros more along an axis."""
    if not num:
        return values
    shape = [num if k == axis else size for k, size in enumerate(values.shape)]
    return torch.cat([values, values.new_zeros(shape)], dim=axis)


def at_outputs(path: Float[Tensor, "P K *S"], grid: Grid) -> Float[Tensor, "P T *S"]:
    """The states at the output times."""
    if len(grid.output) == 1:
        return path.index_select(1, grid.output[0])
    return path[torch.arange(len(path), device=path.device)[:, None], grid.output]


def inside(states: Float[Tensor, "P M *S"], box: tuple[Tensor, Tensor] | None) -> Bool[Tensor, "P M *S"]:
    """Which states are between lowest and highest values; without those, which are finite."""
    return torch.isfinite(states) if box is None else (states >= box[0]) & (states <= box[1])  # NaN is in no box


def check_inside(
    states: Float[Tensor, "P M *S"],
    time: Float[Tensor, "P N"],
    *,
    box: tuple[Tensor, Tensor] | None,
    first_path: int = 0,
) -> None:
    """Refuse states outside lowest and highest values; None only refuses what is not finite. Messages count from `first_path`."""
    good = inside(states, box)
    if bool(good.all()):
        return
    path, step, *index = (int(i) for i in (~good).nonzero()[0])
    when, value = float(time[path, step]), float(states[(path, step, *index)])
    found = f"Path {first_path + path} left the data at time {when:.4g} (in training steps): component {index} is {value:.4g}"
    among = f"{int((~good).flatten(1).any(1).sum())} of {len(states)} paths did"
    if not math.isfinite(value) or when <= 1:  # no step is short enough for fields that are wrong
        remedy = "The model does not know the dynamics: look at its losses and its data, and train longer or with a lower `lr`"
    else:
        remedy = "Check the model first: its losses, its data, and whether paths start inside them"
    raise Diverged(
        f"{found} in units of the data's scale ({among}). {remedy}. Then try more `substeps`, a positive `pull` or shorter "
        "paths; a larger `box` allows more room."
    )
