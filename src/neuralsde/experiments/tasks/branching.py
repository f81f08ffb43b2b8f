"""Planar paths that run straight and then fork: can a model keep both branches, and with the right odds?

Speed 0.1 along the x axis from the origin; at (4.5, 0), after 45 units of time, a path turns by one of the branch
angles and runs for another 55. There is no noise: the data are as many polylines as there are branches.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralsde.baselines.fixed_step import FixedStepModel
from neuralsde.data.trajectories import Trajectories
from neuralsde.experiments.config import BranchingConfig
from neuralsde.experiments.task import Scores, Task
from neuralsde.metrics.trajectory import crossing, distance_to_segments, shares
from neuralsde.models.sequence import Draw, SequenceModel
from neuralsde.plots.paths import PathPanel, path_grid
from neuralsde.sde.config import Sampler

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPEED, FORK_TIME, END_TIME = 0.1, 45.0, 100.0
PATHS_PER_BRANCH = 50  # identical copies of each branch in the training data
FORK = (SPEED * FORK_TIME, 0.0)
CROSSING_HEIGHT = 0.1  # height |y| at which the fork offset is read


def angles(config: BranchingConfig) -> Float[Tensor, " K"]:
    """Branch angles in radians, the uppermost first."""
    outer = math.radians(config.angle)
    return torch.linspace(outer, -outer, config.num_branches, dtype=torch.float64)  # of one: the uppermost


def times(config: BranchingConfig) -> Float[Tensor, " T"]:
    """Time stamps at this density."""
    return torch.arange(int(END_TIME) * config.density + 1, dtype=torch.float64) / config.density


def truth(config: BranchingConfig) -> Float[Tensor, "K T 2"]:
    """One path per branch."""
    t, angle = times(config), angles(config)[:, None]
    after = SPEED * (t - FORK_TIME).clamp(min=0)
    x = SPEED * t.clamp(max=FORK_TIME) + after * angle.cos()
    return torch.stack([x, after * angle.sin()], dim=-1)


def draw(
    model: SequenceModel,
    config: BranchingConfig,
    *,
    num_paths: int | None = None,
    seed: int = 0,
    sampler: Sampler | None = None,
) -> Draw:
    """Paths (1, N, T, 2) of the model from the origin; between steps longer than those of the data they are straight."""
    rng = torch.Generator().manual_seed(seed)
    num, asked, grid = num_paths or config.num_paths, times(config), times(config)
    whole = isinstance(model, FixedStepModel) and model.scale.step > 1.001 / config.density
    if whole:
        grid = model.scale.step * torch.arange(math.ceil(END_TIME / model.scale.step) + 1, dtype=torch.float64)
    drawn = model.draw(torch.zeros(2), grid, num_paths=num, sampler=sampler, rng=rng)
    return replace(drawn, paths=_between(drawn.paths, grid, asked)) if whole else drawn


def _between(paths: Float[Tensor, "B N K 2"], grid: Float[Tensor, " K"], asked: Float[Tensor, " T"]) -> Tensor:
    """Points of these paths at other times, on the lines between their own."""
    after = torch.searchsorted(grid, asked).clamp(1, len(grid) - 1)
    share = ((asked - grid[after - 1]) / (grid[after] - grid[after - 1])).to(paths)[:, None]
    after = after.to(paths.device)
    return torch.lerp(paths[:, :, after - 1], paths[:, :, after], share)


def branch_of(paths: Float[Tensor, "N T 2"], config: BranchingConfig) -> Int[Tensor, " N"]:
    """The branch each path ends on, -1 for none.

    A path is on a branch if its last point is past the middle of the branch in x, and nearer in y than a quarter of the
    gap to any neighbouring branch (beyond the outermost ones, without limit).
    """
    ends, last = truth(config)[:, -1].to(paths.dtype), paths[:, -1]
    k = (last[:, None, 1] - ends[:, 1]).abs().argmin(1)
    past = last[:, 0] >= FORK[0] + 0.5 * (ends[k, 0] - FORK[0])
    if config.num_branches == 1:
        return torch.where(past, k, -1)
    gap = float((ends[:-1, 1] - ends[1:, 1]).min())
    y = last[:, 1].clamp(float(ends[-1, 1]), float(ends[0, 1]))
    return torch.where(past & ((y - ends[k, 1]).abs() <= 0.25 * gap), k, -1)


def distance(points: Float[Tensor, "*B 2"], config: BranchingConfig) -> Float[Tensor, "*B"]:
    """Distance of points to the true figure: the stem and the branches."""
    ends = truth(config)[:, -1]
    fork = torch.tensor(FORK, dtype=torch.float64)
    stem = torch.stack([torch.zeros_like(fork), fork])
    branches = torch.stack([fork.expand_as(ends), ends], dim=1)
    return distance_to_segments(points.double(), torch.cat([stem[None], branches]))


def evaluate(paths: Float[Tensor, "N T 2"], config: BranchingConfig) -> dict[str, float | list[float]]:
    """Scores of sampled paths.

    Keys: `branch_fraction` (uppermost first), `neither`, `distance` and `distance_p95` of all points to the true
    figure, `fork_offset` (x at |y| = 0.1 minus the true one; positive turns late) and `end_error`.
    """
    paths = paths.double()
    ends, label = truth(config)[:, -1], branch_of(paths, config)
    off = distance(paths, config).flatten()
    slope = angles(config).tan().abs()[label]
    turned = (label >= 0) & (slope > 1e-9)
    offset = crossing(paths, CROSSING_HEIGHT)[turned] - CROSSING_HEIGHT / slope[turned] - FORK[0]
    return {
        "branch_fraction": shares(label, config.num_branches),
        "neither": float((label < 0).double().mean()),
        "distance": float(off.mean()),
        "distance_p95": float(off.kthvalue(math.ceil(0.95 * len(off))).values),
        "fork_offset": float(offset.mean()) if len(offset) else math.nan,
        "end_error": float((paths[:, -1, None] - ends).norm(dim=-1).amin(1).mean()),
    }


def panel(paths: Float[Tensor, "N T 2"], config: BranchingConfig) -> PathPanel:
    """Paths with the branches they end on, to be drawn."""
    return PathPanel(paths.numpy(), branch_of(paths, config).numpy(), truth(config).numpy())


class BranchingTask(Task[BranchingConfig]):
    """The training paths, the same for every seed, and the scores of sampled ones with what they cost."""

    def data(self, seed: int = 0) -> Trajectories:
        copies = truth(self.config).repeat(PATHS_PER_BRANCH, 1, 1)
        return Trajectories.from_arrays(copies, times(self.config))

    def score(self, model: SequenceModel, seed: int = 0) -> Scores:
        began = time.perf_counter()
        drawn = draw(model, self.config, seed=seed)
        paths = drawn.paths[0].cpu()
        seconds = round(time.perf_counter() - began, 2)
        counts = {"num_paths": len(paths), "network_passes": sum(drawn.nfe.values()), "sample_seconds": seconds}
        return Scores(evaluate(paths, self.config) | counts, paths)

    def plot(self, model: SequenceModel, *, title: str, num_paths: int, seed: int = 0) -> Figure:
        paths = draw(model, self.config, num_paths=num_paths, seed=seed).paths[0].cpu()
        return path_grid({f"density {self.config.density}": {title: panel(paths, self.config)}})
