"""The branching task: geometry by hand, scores on paths whose scores are known, and the rivals' size."""

import math

import pytest
import torch

from neuralsde.experiments.config import BranchingConfig
from neuralsde.experiments.recipes import branching as recipes
from neuralsde.experiments.recipes.registry import RECIPES
from neuralsde.experiments.tasks import branching
from neuralsde.metrics.trajectory import crossing, distance_to_segments
from neuralsde.models.build import build


@pytest.mark.parametrize("density", [1, 10])
def test_geometry(density):
    config = BranchingConfig(density=density)
    paths = branching.truth(config)
    assert paths.shape == (2, 100 * density + 1, 2)
    assert torch.allclose(paths[:, 45 * density], torch.tensor([4.5, 0.0], dtype=torch.float64))
    cos, sin = math.cos(math.pi / 6), math.sin(math.pi / 6)
    ends = torch.tensor([[4.5 + 5.5 * cos, 5.5 * sin], [4.5 + 5.5 * cos, -5.5 * sin]], dtype=torch.float64)
    assert torch.allclose(paths[:, -1], ends)
    speed = paths.diff(dim=1).norm(dim=-1) * density
    assert torch.allclose(speed, torch.full_like(speed, 0.1))


def test_data_has_as_many_paths_on_each_branch():
    config = BranchingConfig(num_branches=3)
    data = branching.BranchingTask(config).data()
    assert len(data) == 3 * branching.PATHS_PER_BRANCH
    finals = torch.stack([data[k][0][-1] for k in range(len(data))])
    for end in branching.truth(config)[:, -1].float():
        assert int(torch.isclose(finals, end).all(1).sum()) == branching.PATHS_PER_BRANCH


@pytest.mark.parametrize(("num_branches", "angle"), [(2, 30.0), (3, 30.0), (2, 60.0), (5, 45.0)])
def test_truth_scores_perfectly(num_branches, angle):
    config = BranchingConfig(num_branches=num_branches, angle=angle, density=10)
    scores = branching.evaluate(branching.truth(config), config)
    assert scores["branch_fraction"] == pytest.approx([1 / num_branches] * num_branches)
    assert scores["neither"] == 0
    assert scores["distance"] < 1e-9 and scores["end_error"] < 1e-9
    assert abs(scores["fork_offset"]) < 1e-9


def test_scores_of_paths_with_known_errors():
    config = BranchingConfig()
    straight = torch.stack([0.1 * branching.times(config), torch.zeros(101, dtype=torch.float64)], dim=-1)
    late = branching.truth(config)[:1].clone()
    late[0, 45:, 0] += 0.2  # turns 0.2 late, then runs parallel to the branch
    late[0, 45, 0] -= 0.1
    scores = branching.evaluate(torch.cat([straight[None], late, branching.truth(config)[1:]]), config)
    assert scores["neither"] == pytest.approx(1 / 3)
    assert scores["branch_fraction"] == pytest.approx([1 / 3, 1 / 3])
    assert scores["fork_offset"] == pytest.approx(0.1, abs=1e-6)  # mean of 0.2 late and 0
    end = branching.truth(config)[:, -1]
    lost = float((straight[-1] - end).norm(dim=-1).min())
    assert scores["end_error"] == pytest.approx((lost + 0.2 + 0) / 3, abs=1e-6)


def test_distance_and_crossing_by_hand():
    segments = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]])
    points = torch.tensor([[0.5, 2.0], [2.0, 0.0], [-3.0, 4.0], [0.3, 0.0]])
    assert torch.allclose(distance_to_segments(points, segments), torch.tensor([2.0, 1.0, 5.0, 0.0]))
    path = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [2.0, -0.4]]])
    assert float(crossing(path, 0.1)) == pytest.approx(1.25)
    assert torch.isnan(crossing(path, 1.0)).all()


@pytest.mark.parametrize("name", ["branching-ddim", "branching-rectified-flow"])
def test_rivals_are_as_large_as_all_nets_of_the_neural_sde(name):
    ours, rival = recipes.neural_sde(), RECIPES[name]()
    pairs = branching.BranchingTask(ours.task).data().transitions()
    budget, size = (sum(p.numel() for p in build(c, pairs).parameters()) for c in (ours.model, rival.model))
    assert abs(size - budget) / budget < 0.02
    assert (rival.train.steps, rival.train.batch_size) == (ours.train.steps, ours.train.batch_size)


def test_one_setting_serves_both_densities():
    sparse, dense = recipes.neural_sde(), recipes.neural_sde_dense()
    assert sparse.model == dense.model and sparse.train == dense.train
    assert (sparse.task.density, dense.task.density) == (1, 10)
    assert sparse.task.lag == dense.task.lag


def test_a_rival_of_a_longer_step_is_straight_between_its_steps():
    run = recipes.with_lag(recipes.at_density(recipes.rectified_flow(), 10), 3.0)
    task = branching.BranchingTask(run.task)
    model = build(run.model, task.data().transitions(lag=3.0))
    drawn = branching.draw(model, run.task, num_paths=2)
    path = drawn.paths[0]
    assert path.shape == (2, 1001, 2) and sum(drawn.nfe.values()) == 34 * 10
    corners = path[:, [0, 30, 60]]
    assert torch.allclose(path[:, 15], corners[:, :2].mean(1), atol=1e-5)
    assert torch.allclose(path[:, 40], torch.lerp(corners[:, 1], corners[:, 2], 1 / 3), atol=1e-5)


@pytest.mark.parametrize("density", [1, 10])
def test_without_the_lag_paths_take_as_many_solver_steps_in_a_unit_of_time(density):
    ours = recipes.at_density(recipes.neural_sde(), density)
    bare = recipes.with_lag(ours, None)
    assert bare.task.lag is None and ours.model.sampler.substeps / ours.task.lag == 4
    assert bare.model.sampler.substeps * density == max(4, density)
