"""A model of series at even times as a graph: level, season and scale go in beside the values, and values come out.

What is taken off a series is found anew from its past by least squares, which a graph cannot hold. `series_inputs` finds it
with numpy; the graph takes it off, rolls out the rest, and puts it back. How a series goes on in its own way is taken off by
`series_inputs` already.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuralsde.core.doors import Count, Seed, door
from neuralsde.core.records import check
from neuralsde.export.draws import GivenNoise
from neuralsde.export.graphs import Graph, Port
from neuralsde.export.rollout import Rollout, copy_for_export
from neuralsde.forecast.decomposition import Decomposition
from neuralsde.forecast.panel import Past, contexts_ahead
from neuralsde.forecast.series import SeriesModel
from neuralsde.solvers.noise import Noise

LEAST = -1e30  # where values may be of any size
SMALLEST = 0.1  # scale of the random series by which it is checked
SMOOTHING = (
    "a value e above level + phi trend + kappa deviation makes them level + phi trend + alpha e, phi trend + beta e and "
    "kappa deviation + theta e"
)


class SeriesGraph(nn.Module):
    """Values (B, T, d) after the last ones (B, H, d), given offsets (B, H + T, d), scales and least values (B, d).

    Where each series goes on in its own way, what this leaves comes in place of the values, offsets are those of the coming
    steps, and then come coefficients (B, 5, d), state (B, 3, d) and size of its noise (B, d).
    """

    def __init__(self, rollout: Rollout, off: Decomposition) -> None:
        super().__init__()
        self.rollout, self.off, self.own = rollout, off, off.own is not None

    def forward(self, history: Tensor, offset: Tensor, scale: Tensor, least: Tensor, *more: Tensor) -> Tensor:
        """The rest of the series is rolled out, and made whole again."""
        return self._whole(self.rollout.roll, (history, offset, scale, least), more)

    def check(self, history: Tensor, offset: Tensor, scale: Tensor, least: Tensor, *more: Tensor) -> Tensor:
        """The same by the solver."""
        return self._whole(self.rollout.eager, (history, offset, scale, least), more)

    def _whole(self, roll: Any, given: tuple[Tensor, ...], more: tuple[Tensor, ...]) -> Tensor:
        history, offset, scale, least = given[0], given[1], given[2], given[3][:, None]
        slots = self.rollout.model.config.history
        if self.own:
            way, more = more[:3], more[3:]
            rest = history.float()
        else:
            y = history.log() if self.off.curve == "log" else history
            rest, offset = ((y - offset[:, :slots]) / scale[:, None]).float(), offset[:, slots:]
        context = more[0] if self.rollout.model.scale.context_size else None
        noise: Noise = GivenNoise.of(self.rollout.draws, more if context is None else more[1:])
        made = roll(rest, None, context, noise).double()
        if self.own:
            made = _smoothed(torch.cat([rest[:, -1:].double(), made], dim=1), *way)
        made = made * scale[:, None] + offset
        made = made.exp() if self.off.curve == "log" else made
        return torch.maximum(made, least).float()


def _smoothed(walk: Tensor, coefficients: Tensor, state: Tensor, size: Tensor) -> Tensor:
    """How a series goes on (B, T, d), of the walk (B, T + 1, d) of what its own way leaves."""
    (phi, alpha, beta, kappa, theta), (level, trend, away) = coefficients.unbind(1), state.unbind(1)
    e, states = walk.diff(dim=1) * size[:, None], []
    for k in range(e.shape[1]):
        level, trend, away = level + phi * trend, phi * trend, kappa * away
        states.append(level + away + e[:, k])
        level, trend, away = level + alpha * e[:, k], trend + beta * e[:, k], away + theta * e[:, k]
    return torch.stack(states, dim=1)


def series_graphs(fitted: SeriesModel, sampler: Any, num_steps: int) -> dict[str, Graph]:
    """One step of the series, and as many as are forecast."""
    check(
        fitted.record.off.curve != "ranks",
        "A graph of series cannot take values by their ranks. Got a model that does: it was chosen since many values are equal. "
        "Draw with `forecast`.",
    )
    model = copy_for_export(fitted.model)
    sampler = replace(model.own_sampler(sampler), box=None)
    return {
        "step": _graph(fitted, Rollout(model, [0.0, model.scale.step], sampler)),
        "plan": _graph(fitted, Rollout(model, [model.scale.step * k for k in range(num_steps + 1)], sampler)),
    }


def _graph(fitted: SeriesModel, rollout: Rollout) -> Graph:
    rollout.listen()
    model, off, num = rollout.model, fitted.record.off, len(rollout.times) - 1
    slots, size, scale = model.config.history, model.scale.shape[0], model.scale
    module, own = SeriesGraph(rollout, off), off.own is not None
    log = off.curve == "log"
    of = "the logarithm of the values" if log else "the values"
    past = (
        f"running sum of what the own way left of the last {slots} steps, in units of `size`, oldest first"
        if own
        else f"the last {slots} values, one step apart, oldest first, in raw units"
    )
    told = "level plus season, at the coming steps" if own else "level plus season, at the past and at the coming steps"
    inputs = [
        Port("history", (slots, size), past, "float64"),
        Port("offset", (num if own else slots + num, size), f"of {of}: {told}", "float64"),
        Port("scale", (size,), f"what {of} are divided by once the offset is taken off", "float64"),
        Port("least", (size,), "no forecast is below: 0 where no value was, else a number below all", "float64"),
    ]
    if own:
        inputs += [
            Port("coefficients", (5, size), "phi, alpha, beta, kappa and theta of its smoothing", "float64"),
            Port("state", (3, size), f"level, trend and deviation, in units of `scale`; {SMOOTHING}", "float64"),
            Port("size", (size,), "of what the own way leaves, in units of `scale`", "float64"),
        ]
    if scale.context_size:
        told = (
            "covariates, those known ahead at the step that is reached too, then sine and cosine of each season's phase"
        )
        told += " where the decomposition has `phases`"
        inputs.append(Port("context", (num, scale.context_size), f"{told}; each holds to the next step"))

    def random(batch: int, rng: torch.Generator) -> list[Tensor]:
        level = 2.0 + torch.rand(batch, 1, size, generator=rng, dtype=torch.float64)
        spread = SMALLEST + SMALLEST * torch.rand(batch, size, generator=rng, dtype=torch.float64)
        rest = scale.raw(0.3 * torch.randn(batch, slots, size, generator=rng)).double()
        y = rest * spread[:, None] + level
        ahead = level.expand(-1, num if own else slots + num, -1).contiguous()
        made = [y.exp() if log else y, ahead, spread, torch.full_like(spread, LEAST)]
        if own:
            shapes = (5, size), (3, size), (size,)
            made[0] = rest
            made += [torch.rand(batch, *shape, generator=rng, dtype=torch.float64) for shape in shapes]
        if scale.context_size:
            wave = torch.randn(batch, num, scale.context_size, generator=rng)
            made.append(scale.context_mean + scale.context_std * wave)
        return [*made, *(d.random(batch, rng) for d in rollout.draws)]

    output = Port("plan", (num, size), "values at the coming steps, in raw units")
    record = {"times": [float(k + 1) for k in range(num)], "solver_steps": len(rollout.lengths)}
    unit = SMALLEST * scale.std
    return Graph(module, module.check, random, tuple(inputs), output, rollout.draws, unit, log, record)


@door
def series_inputs(
    fitted: SeriesModel, table: Any = None, *, steps: Count | None = None, future: Any = None, seed: Seed = 0
) -> dict[str, np.ndarray]:
    """The inputs of the exported plan but for its noise, one row per series of a table.

    Where each column was learned as a series of its own, there is one row per series and column. `future` is a table of the
    covariates that are known ahead, one row per step. Where each series goes on in its own way, `seed` picks one of these, as
    for a forecast of one path: give another for each.
    """
    own = fitted.table if table is None else fitted.read(table)
    if own is None:
        raise ValueError("A model that was loaded has no table. Give `table`, a file or a frame.")
    model, off, num = fitted.own, fitted.record.off, steps or fitted.record.horizon
    panel = fitted.panel(own)
    ahead = fitted.planned(own, panel, num, future)
    if model.scale.shape == (1,) and panel.size > 1:  # columns apart
        ahead = None if ahead is None else ahead.repeat(panel.size, 0)
        panel = panel.apart()
    slots, past = model.config.history, Past.of(off, panel)
    parts, rest = past.parts, past.slots(slots)
    around = [s[-1] + np.arange(1 - slots, num + 1) for s in panel.steps]
    offset, scale = np.stack([p.offset(at) for p, at in zip(parts, around)]), np.stack([p.scale for p in parts])
    least = np.stack([np.maximum(np.broadcast_to(p.least, p.scale.shape), LEAST) for p in parts])
    if off.own is not None:
        rng = np.random.default_rng(seed)
        picks = [pick for k in range(len(parts)) if (pick := past.pick(k, 1, rng))]
        made = {"history": rest, "offset": offset[:, slots:], "scale": scale, "least": least}
        made |= {
            name: np.concatenate([getattr(pick, name) for pick in picks]) for name in ("coefficients", "state", "size")
        }
    else:
        y = rest * scale[:, None] + offset[:, :slots]
        made = {"history": np.exp(y) if off.curve == "log" else y, "offset": offset, "scale": scale, "least": least}
    context = contexts_ahead(off, panel, np.stack([at[slots - 1 :] for at in around]), ahead)
    return made | ({} if context is None else {"context": context[:, :-1].astype(np.float32)})
