"""What needs no net, to measure a model against: a random walk, the climatology, and Brownian motion by its likelihood.

The random walk adds to the present state an increment that the data took over the same lead; the climatology draws a
state of the data whatever the present one is. A model that does not beat both has learned nothing of use. The data
may be the paths that are forecast: each is then served by the others, and a single one by what it did before the
forecast, so that no path is forecast from its own future. Where a single path has done too little yet, samples are NaN.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from neuralsde.data.trajectories import Trajectories

POOL = 4_000  # states or increments that are drawn from
FEW = 10  # states or increments that are enough to draw from
MAX_LEADS = 20  # leads for which increments are collected; others take the nearest, scaled by the square root of time


def random_walk(
    data: Trajectories,
    start: Float[Tensor, "B *S"],
    path: Int[Tensor, " B"] | None,
    lead: Float[Tensor, "B T"],
    *,
    origin: Float[Tensor, " B"],
    num_paths: int,
    rng: torch.Generator,
) -> Float[Tensor, "B N T *S"]:
    """States at the times `origin` plus increments over the same lead; `path` None where the data are other paths."""
    samples = start[:, None, None].repeat(1, num_paths, lead.shape[1], *[1] * (start.ndim - 1))
    for typical, chosen in _groups(lead):
        increments, dt, owner, end = _increments(data, typical)
        increments = increments * _aside((typical / dt).sqrt().to(increments.dtype), increments)
        row, column = chosen.nonzero().unbind(1)
        source = _Pool(increments, owner, end)
        drawn = source.draw(None if path is None else path[row], origin[row], num_paths, rng)
        samples[row, :, column] += drawn * _aside((lead[chosen] / typical).sqrt().to(drawn.dtype), drawn)
    return samples


def climatology(
    data: Trajectories,
    path: Int[Tensor, " B"] | None,
    *,
    origin: Float[Tensor, " B"],
    num_paths: int,
    rng: torch.Generator,
) -> Float[Tensor, "B N *S"]:
    """States of the data for each forecast, whenever they were seen; `path` and `origin` as in `random_walk`."""
    rows = _pool(_complete(data))
    owner = torch.repeat_interleave(torch.arange(len(data)), data.lengths)
    return _Pool(data.states[rows], owner[rows], data.times[rows]).draw(path, origin, num_paths, rng)


def _aside(factor: Float[Tensor, " K"], values: Tensor) -> Tensor:
    """A factor per row, shaped to broadcast."""
    return factor.reshape(-1, *[1] * (values.ndim - 1))


def _groups(lead: Float[Tensor, "B T"]) -> Iterator[tuple[float, Bool[Tensor, "B T"]]]:
    """Leads that share their increments: the equal ones or, where there are many, neighbours; and one of each group."""
    grid = 1e-6 * float(lead.max())
    each = torch.unique((lead / grid).round())
    if len(each) <= MAX_LEADS:
        edges = (each[1:] + each[:-1]) / 2 * grid
    else:
        some = lead.flatten()[:: -(-lead.numel() // 100_000)]
        edges = torch.quantile(some, torch.linspace(0, 1, MAX_LEADS + 1)[1:-1].double())
    group = torch.bucketize(lead.contiguous(), edges)
    for k in torch.unique(group):
        yield float(lead[group == k].median()), group == k


def _increments(
    data: Trajectories, lead: float
) -> tuple[Float[Tensor, "K *S"], Float[Tensor, " K"], Int[Tensor, " K"], Float[Tensor, " K"]]:
    """Increments over about this lead, the time each took, the path it is from, and when it ended."""
    filled = Trajectories(data.states, data.times, data.lengths)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # paths shorter than the lead add nothing
        try:
            pairs = filled.transitions(lag=lead)
        except ValueError:  # no two observations are that far apart: single steps, scaled as those of a random walk
            pairs = filled.transitions()
    after = pairs.start + 1 if pairs.stacked is None else pairs.stacked[:, -1]
    near = (data.times[after] - data.times[pairs.start] - lead).abs() < 0.1 * lead
    complete = _complete(data)
    rows = _pool(near, complete[pairs.start] & complete[after])
    begin, end = pairs.start[rows], after[rows]
    took = data.times[end] - data.times[begin]
    return data.states[end] - data.states[begin], took, pairs.path[rows], data.times[end]


def _complete(data: Trajectories) -> Bool[Tensor, " L"]:
    if data.observed is None:
        return torch.ones(len(data.states), dtype=torch.bool)
    return data.observed.flatten(1).all(1)


def _pool(*wishes: Bool[Tensor, " K"]) -> Int[Tensor, " P"]:
    """Rows that fulfil the wishes, one after the other as long as a few do, evenly spread over all such rows."""
    rows = torch.arange(len(wishes[0]))
    for wish in wishes:
        if int(wish[rows].sum()) >= FEW:
            rows = rows[wish[rows]]
    num = min(POOL, len(rows))
    return rows[torch.arange(num) * len(rows) // num]


@dataclass(frozen=True)
class _Pool:
    """States or increments to draw from."""

    values: Float[Tensor, "P *S"]
    owner: Int[Tensor, " P"]
    """The path of each."""
    end: Float[Tensor, " P"]
    """When it was known."""

    def draw(
        self, path: Int[Tensor, " B"] | None, origin: Float[Tensor, " B"], num_paths: int, rng: torch.Generator
    ) -> Float[Tensor, "B N *S"]:
        """Some for each forecast: of other paths than its own or, where there are none, of its own past."""
        if path is None:
            return self.values[torch.randint(len(self.owner), (len(origin), num_paths), generator=rng)]
        parts = []
        for own, now in zip(path.split(1_000), origin.split(1_000)):
            usable = self.owner != own[:, None]
            alone = ~usable.any(1)
            usable[alone] = self.end <= now[alone, None]
            few = alone & (usable.sum(1) < FEW)
            usable[few] = True  # to have something to draw
            drawn = self.values[torch.multinomial(usable.double(), num_paths, replacement=True, generator=rng)]
            drawn[few] = torch.nan
            parts.append(drawn)
        return torch.cat(parts)


def brownian_nll(train: Trajectories, held_out: Trajectories) -> float | None:
    """Mean of -log p of a held-out observation under dx = m dt + s dw, fitted to the training steps.

    None where s is 0, or not known because training saw no step of a feature that has some held out.
    """
    dx, dt, seen = _steps(train)
    mean = (dx * seen).sum(0) / (dt * seen).sum(0)  # NaN without steps
    variance = ((dx - mean * dt) ** 2 / dt * seen).sum(0) / seen.sum(0)
    still = variance <= 1e-10 * (dx**2 / dt).mean(0)
    dx, dt, seen = _steps(held_out)
    if bool((still | (variance.isnan() & (seen.sum(0) > 0))).any()):
        return None
    terms = 0.5 * (dx - mean * dt) ** 2 / (variance * dt) + 0.5 * torch.log(2 * math.pi * variance * dt)
    return float(terms.where(seen > 0, 0.0).sum(1).mean())


def _steps(data: Trajectories) -> tuple[Tensor, Tensor, Tensor]:
    """Δx (K, F), Δt (K, 1), and 1 where Δx was observed, else 0."""
    pairs = data.transitions()
    batch = pairs[torch.arange(len(pairs), device=pairs.start.device)]
    dx = (batch.next - batch.history[:, -1]).flatten(1).double()
    seen = torch.ones_like(dx) if batch.mask is None else batch.mask.flatten(1).double()
    return dx, batch.dt[:, None].double(), seen
