"""Forecasts from observed states: of what is known, for scores, and of what is not.

A forecast starts from an *origin*, an observation with the history that the model asks for; where entries are missing or
noise was learned, from what is known of the true state there. Nothing that was observed after the origin enters it,
except the context where it is taken to be known ahead.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from neuralsde.core.doors import Count, Positive, Seed, door, show
from neuralsde.core.records import check
from neuralsde.data.arrays import as_tensor
from neuralsde.data.trajectories import Paths, Trajectories
from neuralsde.models.config import Drawing, Sampling
from neuralsde.models.sequence import MAX_NUMBERS, SequenceModel, Starts

SAME = 1e-6  # share of a training step by which stamps that mean the same time may differ


@dataclass(frozen=True)
class Forecasts:
    """B forecasts of N samples each at T times, and the truth."""

    path: Int[Tensor, " B"]
    origin: Float[Tensor, " B"]
    """Time of the state that the forecast starts from."""
    start: Float[Tensor, "B *S"]
    """That state."""
    times: Float[Tensor, "B T"]
    samples: Float[Tensor, "B N T *S"]
    truth: Float[Tensor, "B T *S"]
    mask: Bool[Tensor, "B T *S"]
    """Where the truth was observed: forecasts with fewer than T times are padded."""
    nfe: dict[str, int] = field(default_factory=dict)
    """Network passes per sample, by net."""

    @property
    def lead(self) -> Float[Tensor, "B T"]:
        """Time since the origin."""
        return self.times - self.origin[:, None]


@door
def forecasts(
    model: SequenceModel,
    data: Paths,
    *,
    horizon: Positive,
    num_times: Count = 20,
    num_paths: Count = 200,
    origins_per_path: Count = 1,
    sampler: Drawing = None,
    seed: Seed = 0,
    batch_size: Count = 32,
    hold_context: bool = False,
) -> Forecasts:
    """Forecast what was observed, at the stamps of the observations.

    Args:
        model: any sequence model.
        data: paths that it was not trained on.
        horizon: time ahead; origins are spread evenly over the part of each path that leaves room for it.
        num_times: observations per forecast, evenly spread over those within the horizon.
        num_paths: samples per forecast.
        origins_per_path: forecasts per path.
        sampler: replaces `model.forecast_sampler`, which draws measurements where the model learned their noise.
        seed: of the samples, which are the same whatever `batch_size`.
        batch_size: origins that are sampled at once.
        hold_context: keep the context of the origin, as `futures` does, where what follows is not known ahead.
    """
    _check_size(model, num_times, num_paths, batch_size)
    data = _for_model(model, data)
    origins = _origins(model, data)
    ahead = _observations_ahead(data, horizon)
    usable = ahead[origins.row] > 0
    if not bool(usable.any()):
        longest = f"The longest lasts {float(data.durations.max()):g}. Use a shorter horizon or longer paths."
        slots = f"{model.config.history} slot(s) of history"
        raise ValueError(f"No path leaves room for `horizon={horizon:g}` after {slots}. {longest}")
    origins = _spread_over_paths(origins[usable], origins_per_path)
    left_out = len(data) - len(torch.unique(origins.path))
    if left_out:
        warnings.warn(f"{left_out} of {len(data)} paths leave no room for {horizon=} and are not used.", stacklevel=2)
    count = ahead[origins.row]
    offset, known = _evenly(count, num_times)
    target = origins.row[:, None] + offset

    # A context that changes must be read at every observation, also at those that are not asked for
    changes = data.context is not None and not hold_context
    drawn, end = _evenly(count, int(count.max())) if changes else (offset, known)
    rows = torch.cat([origins.row[:, None], origins.row[:, None] + drawn], dim=1)
    late = (~end).cumsum(1) * model.scale.step  # padding goes on, step by step, after the horizon
    times = data.times[rows]
    times[:, 1:] += late
    context = data.context_at(rows if changes else origins.row)
    history = data.states[origins.slots]
    since = times - origins.path_start[:, None]
    nfe: dict[str, int] = {}
    rng = torch.Generator().manual_seed(seed)
    sampler = sampler or model.forecast_sampler
    starts = model.starts(data, origins.row, sampler)
    samples = _sample(model, history, since, context, starts, num_paths, sampler, rng, batch_size, nfe)
    if changes:
        samples = _at(samples, offset - 1)
        times = times.gather(1, torch.cat([torch.zeros_like(offset[:, :1]), offset], dim=1))

    seen = known.reshape(*known.shape, *[1] * len(data.shape)).expand(*known.shape, *data.shape)
    return Forecasts(
        path=origins.path,
        origin=data.times[origins.row],
        start=history[:, -1],
        times=times[:, 1:],
        samples=samples,
        truth=data.states[target],
        mask=seen.clone() if data.observed is None else seen & data.observed[target],
        nfe=nfe,
    )


@door
def futures(
    model: SequenceModel,
    data: Paths,
    *,
    horizon: Positive,
    num_times: Count = 50,
    num_paths: Count = 200,
    sampler: Drawing = None,
    seed: Seed = 0,
    batch_size: Count = 32,
    plan: Annotated[Sequence[Any] | None, "Give (stamps, contexts) for each path."] = None,
) -> Forecasts:
    """Forecast beyond the last observation of each path, at even times; the truth is all masked.

    The last context of a path is held, until `plan` has another: for each path of `data`, stamps (M,) in its time and
    contexts (M, C), each of which holds from its stamp on. Stamps up to the last observation are passed over.
    """
    _check_size(model, num_times, num_paths, batch_size)
    data = _for_model(model, data)
    planned = None if plan is None else _checked(plan, data)
    origins = _origins(model, data)
    origins = origins[origins.row == (data.lengths.cumsum(0) - 1)[origins.path]]
    left_out = sorted(set(range(len(data))) - set(origins.path.tolist()))
    if left_out:
        why = f"no history of {model.config.history} slot(s) at the last observation"
        if len(left_out) == len(data):
            raise ValueError(f"No path can be continued: {why}. Use longer paths, or a model with a shorter history.")
        warnings.warn(f"{len(left_out)} of {len(data)} paths are left out, first {left_out[0]}: {why}.", stacklevel=2)
    origin = data.times[origins.row]
    times = origin[:, None] + horizon * torch.arange(num_times + 1, dtype=torch.float64) / num_times
    context = data.context_at(origins.row)
    history = data.states[origins.slots]
    nfe: dict[str, int] = {}
    rng = torch.Generator().manual_seed(seed)
    sampler = sampler or model.forecast_sampler
    starts = model.starts(data, origins.row, sampler)
    draw = partial(_sample, model, sampler=sampler, rng=rng, num_paths=num_paths, batch_size=batch_size, nfe=nfe)
    if planned is None or context is None:
        samples = draw(history, times - origins.path_start[:, None], context, starts)
    else:
        own = [planned[k] for k in origins.path.tolist()]
        samples = _as_planned(draw, history, times, origins.path_start, context, starts, own, SAME * model.scale.step)
    unknown = torch.full_like(samples[:, 0], torch.nan)
    return Forecasts(
        path=origins.path,
        origin=origin,
        start=history[:, -1],
        times=times[:, 1:],
        samples=samples,
        truth=unknown,
        mask=torch.zeros_like(unknown, dtype=torch.bool),
        nfe=nfe,
    )


def _checked(plan: Sequence[tuple[Any, Any]], data: Trajectories) -> list[tuple[Tensor, Tensor]]:
    if data.context is None:
        raise ValueError("The model takes no context, and therefore no `plan` of one. Leave it out.")
    if len(plan) != len(data):
        raise ValueError(f"`plan` must have stamps and contexts for each of the {len(data)} path(s). Got {len(plan)}.")
    found = []
    for k, (own, last) in enumerate(zip(plan, data.ends.tolist())):
        check(isinstance(own, Sequence) and len(own) == 2, f"`plan[{k}]` must be (stamps, contexts). Got {show(own)}.")
        stamps, contexts = own
        times, values = (as_tensor(x, f"plan[{k}]", torch.float64, "cpu") for x in (stamps, contexts))
        if values.shape != (*times.shape, data.context_size) or times.ndim != 1:
            wanted = f"stamps (M,) and contexts (M, {data.context_size})"
            raise ValueError(
                f"`plan[{k}]` must be {wanted}. Got shapes {tuple(times.shape)} and {tuple(values.shape)}."
            )
        if not bool(values.isfinite().all()) or not bool(times.isfinite().all()) or bool((times.diff() <= 0).any()):
            raise ValueError(f"`plan[{k}]` must have finite contexts at increasing times. Fill, drop or sort its rows.")
        if not bool((times > last).any()):
            end = f"{float(times[-1]):g}" if len(times) else "no stamp"
            remedy = f"Got {end} as its last stamp. Give stamps in the time of the data."
            raise ValueError(f"`plan[{k}]` must go on after the last observation of its path, at {last:g}. {remedy}")
        found.append((times, values))
    return found


def _as_planned(
    draw: Callable[..., Tensor],
    history: Float[Tensor, "B H *S"],
    times: Float[Tensor, "B K"],
    path_start: Float[Tensor, " B"],
    context: Float[Tensor, "B C"],
    starts: Starts | None,
    plan: list[tuple[Tensor, Tensor]],
    slack: float,
) -> Float[Tensor, "B N T *S"]:
    """Samples at all but the first of `times`, which are drawn where a context changes too: paths with as many changes at once."""
    legs = [_legs(own, known, *ahead, slack) for own, known, ahead in zip(times, context, plan)]
    counts = torch.tensor([len(stops) for stops, _ in legs])
    if all(bool((held == held[0]).all()) for _, held in legs):
        warnings.warn("The plan changes no context before the horizon ends: the last ones are held.", stacklevel=3)
    samples: Any = None
    for count in counts.unique().tolist():
        rows = (counts == count).nonzero()[:, 0]
        stops, held = (torch.stack([legs[k][part] for k in rows.tolist()]) for part in (0, 1))
        known = None if starts is None else starts[rows]
        drawn = draw(history[rows], stops - path_start[rows, None], held, known)
        drawn = _at(drawn, torch.searchsorted(stops, times[rows, 1:].contiguous()) - 1)
        samples = drawn.new_empty(len(legs), *drawn.shape[1:]) if samples is None else samples
        samples[rows] = drawn
    return samples


def _legs(
    times: Float[Tensor, " K"], known: Float[Tensor, " C"], stamps: Tensor, contexts: Tensor, slack: float
) -> tuple[Float[Tensor, " L"], Float[Tensor, "L C"]]:
    """These times and those between them at which the context changes, and the context from each on."""
    ahead = (stamps > times[0]) & (stamps < times[-1] - slack)
    stamps, contexts = stamps[ahead], contexts[ahead].to(known)
    changes = (contexts != torch.cat([known[None], contexts])[:-1]).any(1)
    stamps, contexts = stamps[changes], contexts[changes]
    after = torch.searchsorted(times, stamps - slack)  # the first of `times` that is not before the stamp
    between = stamps[(times[after] - stamps).abs() > slack]
    stops = torch.cat([times, between]).sort().values
    return stops, torch.cat([known[None], contexts])[torch.searchsorted(stamps, stops + slack, right=True)]


def _at(samples: Float[Tensor, "B N K *S"], places: Int[Tensor, "B T"]) -> Float[Tensor, "B N T *S"]:
    index = places.reshape(len(places), 1, -1, *[1] * (samples.ndim - 3))
    return samples.gather(2, index.expand(-1, samples.shape[1], -1, *samples.shape[3:]))


def _check_size(model: SequenceModel, num_times: int, num_paths: int, batch_size: int) -> None:
    """Refuse forecasts that no memory can hold, before anything is made."""
    size = math.prod(model.scale.shape)
    check(
        num_times * num_paths * size <= MAX_NUMBERS,
        f"`num_times` times `num_paths` is too much. Got {num_times=}, {num_paths=}.",
    )
    check(batch_size < 2**31, f"`batch_size` must be below 2^31. Got {batch_size}.")


def _for_model(model: SequenceModel, data: Trajectories) -> Trajectories:
    model.check_data(data, model.config.history)
    return data.to("cpu")


@dataclass(frozen=True)
class _Origins:
    """Observations to start from."""

    row: Int[Tensor, " K"]
    path: Int[Tensor, " K"]
    path_start: Float[Tensor, " K"]
    """Time of the first observation of the path."""
    slots: Int[Tensor, "K H"]
    """Rows of the history, oldest first."""

    def __getitem__(self, chosen: Tensor) -> _Origins:
        return _Origins(*(part[chosen] for part in (self.row, self.path, self.path_start, self.slots)))


def _origins(model: SequenceModel, data: Trajectories) -> _Origins:
    """Every observation whose history is there."""
    # Transitions need a next observation: give each path one more
    lengths = data.lengths + 1
    path = torch.repeat_interleave(torch.arange(len(data)), lengths)
    last = data.lengths.cumsum(0)[path] - 1
    row = torch.arange(len(path)) - path
    longer = torch.minimum(row, last)
    extended = Trajectories(data.states[longer], data.times[longer] + (row > last), lengths, begin=data.begin)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of paths that are too short: callers say which they leave out
        config = model.config
        pairs = extended.transitions(history=config.history, spacing=model.lag, pad=config.pad_history)
    slots = pairs.start[:, None] if pairs.stacked is None else pairs.stacked[:, :-1]
    slots = slots - pairs.path[:, None]
    met = _met(data).flatten(1).all(1)[slots].all(1)
    check(bool(met.any()), "No observation can start a forecast: in every path some feature is missing all the time.")
    return _Origins(slots[:, -1], pairs.path, pairs.origin, slots)[met]


def _met(data: Trajectories) -> Bool[Tensor, "L *S"]:
    if data.observed is None:
        return torch.ones_like(data.states, dtype=torch.bool)
    first = torch.repeat_interleave(data.lengths.cumsum(0) - data.lengths, data.lengths)
    index = torch.arange(len(data.states)).reshape(-1, *[1] * len(data.shape))
    last_seen = torch.where(data.observed, index, -1).cummax(0).values
    return last_seen >= first.reshape(index.shape)


def _observations_ahead(data: Trajectories, horizon: float) -> Int[Tensor, " L"]:
    """How many observations follow each one within the horizon; 0 where the path ends before it."""
    slack = 1e-6 * horizon  # stamps such as 0.1 k are not exact
    counts = []
    for times in data.times.split(data.lengths.tolist()):
        count = torch.searchsorted(times, times + horizon + slack, right=True) - 1 - torch.arange(len(times))
        counts.append(torch.where(times[-1] >= times + horizon - slack, count, 0))
    return torch.cat(counts)


def _spread_over_paths(origins: _Origins, per_path: int) -> _Origins:
    """At most `per_path` origins of each path, evenly spread over it."""
    _, count = torch.unique_consecutive(origins.path, return_counts=True)
    first = count.cumsum(0) - count
    num = count.clamp(max=min(per_path, int(count.max())))
    k = torch.arange(int(num.max()))
    place = first[:, None] + (2 * k + 1) * count[:, None] // (2 * num[:, None])
    return origins[place[k < num[:, None]]]


def _evenly(count: Int[Tensor, " B"], num: int) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """At most `num` of the numbers 1 … count, the last included, and which are not padding (a repeat of the last)."""
    length = count.clamp(max=num)[:, None]
    k = torch.arange(1, int(length.max()) + 1)
    return torch.minimum(-(-k * count[:, None] // length), count[:, None]), k <= length


def _sample(
    model: SequenceModel,
    history: Float[Tensor, "B H *S"],
    times: Float[Tensor, "B K"],
    context: Tensor | None,
    starts: Starts | None,
    num_paths: int,
    sampler: Sampling,
    rng: torch.Generator,
    batch_size: int,
    nfe: dict[str, int],
) -> Float[Tensor, "B N T *S"]:
    """Samples at all but the first of `times`; the passes of a path are noted in `nfe`."""
    parts = []
    for rows in torch.arange(len(history)).split(batch_size):
        held, known = None if context is None else context[rows], None if starts is None else starts[rows]
        drawn = model.draw(
            history[rows], times[rows], context=held, num_paths=num_paths, sampler=sampler, rng=rng, starts=known
        )
        nfe.update(drawn.nfe)
        parts.append(drawn.paths[:, :, 1:].cpu())
    return torch.cat(parts)
