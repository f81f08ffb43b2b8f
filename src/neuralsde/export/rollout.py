"""A roll-out as one module of plain operations: raw states and noise in, raw states out.

The loop of the solver keeps a record of the path and looks up older slots in it. Here the times are fixed, so the places of
these slots are known beforehand and the loop is written out step by step. What a step does is the model's own `advance`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neuralsde.export.draws import Draws, GivenNoise, Listener
from neuralsde.models.scale import join_condition
from neuralsde.models.sequence import SequenceModel
from neuralsde.solvers.grid import Grid, grid_between, output_times
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import Noise

Place = list[tuple[int, float]]
"""Of each older slot: the later of the two records that it lies between, and its share of that one."""


def copy_for_export(model: SequenceModel) -> SequenceModel:
    """The same model on the host, in evaluation mode and without gradients."""
    nets = dict(copy.deepcopy(model.nets).items()) if model.own_nets else None
    with torch.random.fork_rng(devices=[]):
        own = model.assemble(model.config, model.scale.shape, model.scale.context_size, nets=nets)
    own.load_state_dict({name: value.detach().cpu() for name, value in model.state_dict().items()})
    own.lag, own.sampler = model.lag, model.sampler
    return own.eval().requires_grad_(False)


class Rollout(nn.Module):
    """States (B, T, *S) at fixed times after a history (B, H, *S).

    Further inputs, as far as the model takes them: the time (B,) of the newest state since the start of its path, contexts
    (B, C) or (B, T, C), of which each holds up to the next time, and the noise of `draws`.
    """

    def __init__(
        self, model: SequenceModel, times: Sequence[float], sampler: Any, *, fixed_start: bool = False
    ) -> None:
        """`times` begin at the history. With `fixed_start` the first of them counts as the time since the path's start."""
        super().__init__()
        self.model, self.sampler, self.times = model, sampler, list(times)
        checked = output_times(torch.tensor([self.times], dtype=torch.float64), model.scale.step)
        model.check_sampler(sampler, checked.gaps)
        self.start = float(checked.start) if fixed_start else None
        grid = grid_between(checked.since, model.max_step(sampler), torch.device("cpu"))
        self.grid_times: list[float] = grid.time[0].tolist()
        self.interval: list[int] = grid.interval[0].tolist()
        self.output: list[int] = grid.output[0].tolist()
        self.lengths: list[float] = grid.lengths[0].tolist()
        model.fix_length(self.lengths[0])
        self.places = [_older_slots(grid, m, model.config.history) for m in range(len(self.lengths))]
        self.draws: tuple[Draws, ...] = ()

    @property
    def takes_time(self) -> bool:
        """Whether the time of the history is an input."""
        return self.start is None and self.model.config.time_input is not False

    def listen(self, batch: int = 2) -> None:
        """Find out what is drawn, by the solver itself; what is kept for later calls is made then too."""
        scale, slots = self.model.scale, self.model.config.history
        middle = scale.raw(torch.zeros(batch, slots, *scale.shape))
        context = scale.context_mean.expand(batch, -1) if scale.context_size else None
        listener = Listener(Noise.draw(0, batch).keys)
        self.eager(middle, None, context, listener)
        self.draws = listener.draws

    def eager(self, history: Tensor, time: Tensor | None, context: Tensor | None, noise: Noise) -> Tensor:
        """The same by `SequenceModel.draw`: what the exported graph has to agree with."""
        begin = self.times[0] if self.start is not None else 0.0
        since = torch.tensor(self.times, dtype=torch.float64) - self.times[0] + begin
        times = since if time is None else since + time.double()[:, None]
        if context is not None and context.ndim == 3:  # the last context holds after the last time
            context = torch.cat([context, context[:, -1:]], dim=1)
        paths = self.model.draw(history, times, context=context, rng=noise, sampler=self.sampler).paths
        return paths[:, 0, 1:]

    def roll(self, history: Tensor, time: Tensor | None, context: Tensor | None, noise: Noise) -> Tensor:
        """Step by step, by operations that a graph can hold."""
        model, scale, batch = self.model, self.model.scale, history.shape[0]
        held = None if context is None else scale.contexts(context)
        start = history.new_full((batch,), self.start or 0.0, dtype=torch.float64)
        if time is not None:
            start = time.double() / scale.step

        def condition_in(interval: int) -> Any:
            own = held[:, interval] if held is not None and held.ndim == 3 else held
            return lambda t: join_condition(own, scale.times(start + t, model.config.time_input))

        u = scale.states(history)
        u = model.begin(u, condition_in(0)(torch.zeros_like(start)), noise, self.sampler)
        record = list(u.unbind(1))
        first = len(record) - 1
        for m, length in enumerate(self.lengths):
            x = record[-1]
            now = history.new_full((batch,), self.grid_times[m], dtype=torch.float64)
            dt = history.new_full((batch, *[1] * len(scale.shape)), length)
            z = noise.normal(m, scale.shape)

            def older(t: Tensor, m: int = m, now: Tensor = now) -> Tensor:
                return _slots(record, self.places[m][0 if t is now else 1])

            step = Step(x, now, dt, older, z, dt.sqrt() * z, m)
            record.append(model.advance(step, condition_in(self.interval[m]), noise, self.sampler).x)
        states = torch.stack([record[first + k] for k in self.output], dim=1)
        return scale.raw(model.observe(states, noise, self.sampler))[:, 1:]

    def forward(self, *inputs: Tensor) -> Tensor:
        """History, time and contexts as far as there are any, then the noise."""
        return self.roll(*self.parts(inputs))

    def check(self, *inputs: Tensor) -> Tensor:
        """The same by the solver."""
        return self.eager(*self.parts(inputs))

    def parts(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, Tensor | None, Noise]:
        """The inputs by what they are."""
        history, *rest = inputs
        time = rest.pop(0) if self.takes_time else None
        context = rest.pop(0) if self.model.scale.context_size else None
        return history, time, context, GivenNoise.of(self.draws, rest)


def _older_slots(grid: Grid, m: int, slots: int) -> tuple[Place, Place]:
    """Where the older slots lie in the record of a path when step m begins, and when it ends: as `walk` finds them."""
    time = grid.time[0]
    back = torch.arange(slots - 1, 0, -1, dtype=time.dtype)
    knots = torch.cat([time[0] - back, time])
    newest = slots - 1 + m
    places = []
    for now in (time[m], time[m] + grid.lengths[0, m]):
        query = now - back
        right = torch.searchsorted(knots, query).clamp(min=1, max=max(newest, 1))
        t0, t1 = knots[right - 1], knots[right]
        share = ((query - t0) / (t1 - t0).clamp(min=1e-12)).clamp(0, 1).float()
        places.append(list(zip(right.tolist(), share.tolist())))
    return places[0], places[1]


def _slots(record: list[Tensor], places: Place) -> Tensor:
    if not places:
        return record[-1].unsqueeze(1)[:, :0]
    between = [_between(record[right - 1], record[right], share) for right, share in places]
    return torch.stack(between, dim=1)


def _between(before: Tensor, after: Tensor, share: float) -> Tensor:
    return before if share == 0 else after if share == 1 else torch.lerp(before, after, share)
