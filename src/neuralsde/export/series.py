"""A model of series at even times as a graph: level, season and scale go in beside the values, and values come out.

What is taken off a series is found anew from its past by least squares, which a graph cannot hold. `series_inputs` finds it
with numpy; the graph takes it off, rolls out the rest, and puts it back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuralsde.core.doors import Count, door
from neuralsde.export.draws import GivenNoise
from neuralsde.export.graphs import Graph, Port
from neuralsde.export.rollout import Rollout, copy_for_export
from neuralsde.forecast.panel import contexts_ahead, last_slots, parts_of
from neuralsde.forecast.series import SeriesModel
from neuralsde.solvers.noise import Noise

SMALLEST = 0.1  # scale of the random series by which it is checked


class SeriesGraph(nn.Module):
    """Values (B, T, d) after the last ones (B, H, d), given offsets (B, H + T, d) and scales (B, d)."""

    def __init__(self, rollout: Rollout, *, log: bool) -> None:
        super().__init__()
        self.rollout, self.log = rollout, log

    def forward(self, history: Tensor, offset: Tensor, scale: Tensor, *more: Tensor) -> Tensor:
        """The rest of the series is rolled out, and made whole again."""
        return self._whole(self.rollout.roll, history, offset, scale, more)

    def check(self, history: Tensor, offset: Tensor, scale: Tensor, *more: Tensor) -> Tensor:
        """The same by the solver."""
        return self._whole(self.rollout.eager, history, offset, scale, more)

    def _whole(self, roll: Any, history: Tensor, offset: Tensor, scale: Tensor, more: tuple[Tensor, ...]) -> Tensor:
        slots, y = self.rollout.model.config.history, history.log() if self.log else history
        rest = ((y - offset[:, :slots]) / scale[:, None]).float()
        context = more[0] if self.rollout.model.scale.context_size else None
        noise: Noise = GivenNoise.of(self.rollout.draws, more if context is None else more[1:])
        made = roll(rest, None, context, noise).double() * scale[:, None] + offset[:, slots:]
        return (made.exp() if self.log else made).float()


def series_graphs(fitted: SeriesModel, sampler: Any, num_steps: int) -> dict[str, Graph]:
    """One step of the series, and as many as are forecast."""
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
    module = SeriesGraph(rollout, log=off.log)
    of = "the logarithm of the values" if off.log else "the values"
    inputs = [
        Port(
            "history", (slots, size), f"the last {slots} values, one step apart, oldest first, in raw units", "float64"
        ),
        Port(
            "offset", (slots + num, size), f"level plus season of {of}, at the past and at the coming steps", "float64"
        ),
        Port("scale", (size,), f"what {of} are divided by once the offset is taken off", "float64"),
    ]
    if scale.context_size:
        told = "covariates, then sine and cosine of each season's phase where the decomposition has `phases`"
        inputs.append(Port("context", (num, scale.context_size), f"{told}; each holds to the next step"))

    def random(batch: int, rng: torch.Generator) -> list[Tensor]:
        level = 2.0 + torch.rand(batch, 1, size, generator=rng, dtype=torch.float64)
        spread = SMALLEST + SMALLEST * torch.rand(batch, size, generator=rng, dtype=torch.float64)
        rest = scale.raw(0.3 * torch.randn(batch, slots, size, generator=rng)).double()
        y = rest * spread[:, None] + level
        made = [y.exp() if off.log else y, level.expand(-1, slots + num, -1).contiguous(), spread]
        if scale.context_size:
            wave = torch.randn(batch, num, scale.context_size, generator=rng)
            made.append(scale.context_mean + scale.context_std * wave)
        return [*made, *(d.random(batch, rng) for d in rollout.draws)]

    output = Port("plan", (num, size), "values at the coming steps, in raw units")
    record = {"times": [float(k + 1) for k in range(num)], "solver_steps": len(rollout.lengths)}
    unit = SMALLEST * scale.std
    return Graph(module, module.check, random, tuple(inputs), output, rollout.draws, unit, off.log, record)


@door
def series_inputs(fitted: SeriesModel, table: Any = None, *, steps: Count | None = None) -> dict[str, np.ndarray]:
    """The inputs of the exported plan but for its noise, one row per series of a table.

    Where each column was learned as a series of its own, there is one row per series and column.
    """
    own = fitted.table if table is None else fitted.read(table)
    if own is None:
        raise ValueError("A model that was loaded has no table. Give `table`, a file or a frame.")
    model, off, num = fitted.own, fitted.record.off, steps or fitted.record.horizon
    panel = fitted.panel(own)
    panel = panel.apart() if model.scale.shape == (1,) and panel.size > 1 else panel
    slots, parts = model.config.history, parts_of(off, panel)
    around = [s[-1] + np.arange(1 - slots, num + 1) for s in panel.steps]
    rest = [last_slots(p.rest(s, v), slots) for p, s, v in zip(parts, panel.steps, panel.values)]
    made = {
        "history": np.stack([p.whole(at[:slots], r) for p, at, r in zip(parts, around, rest)]),
        "offset": np.stack([p.offset(at) for p, at in zip(parts, around)]),
        "scale": np.stack([p.scale for p in parts]),
    }
    context = contexts_ahead(off, panel, np.stack([at[slots - 1 :] for at in around]), None)
    return made | ({} if context is None else {"context": context[:, :-1].astype(np.float32)})
