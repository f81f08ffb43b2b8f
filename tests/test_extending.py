"""The page *Extending* as a user would follow it: a model, a law and a task of their own, trained, saved, loaded and compared."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import neuralsde as nsde
from neuralsde.core.records import Choice
from neuralsde.experiments.config import Experiment, KnownSDEConfig
from neuralsde.experiments.recipes.registry import RECIPES
from neuralsde.experiments.run import load_run, plot_run, run, score_run
from neuralsde.experiments.task import Task, TaskConfig, task_for

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "extending.md"
MOST_LINES = 90
"""Of a new model, a new law and a new task together, without the lines that use them."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """What the page leaves: its names, in the folder it ran in."""
    folder, kinds = tmp_path_factory.mktemp("page"), dict(Choice._kinds)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S))
    names = {"__name__": "page"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(code, str(PAGE), "exec", dont_inherit=True), names)
        yield names
    Choice._kinds.clear()
    Choice._kinds.update(kinds)


def test_a_new_model_a_new_law_and_a_new_task_are_short():
    sections = re.findall(r"## A new [^\n]*\n.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert len(sections) == 3
    defined = [re.split(r"\n(?=walk =|tails =|parts =)", code)[0] for code in sections]
    assert sum(len([x for x in code.splitlines() if x.strip()]) for code in defined) <= MOST_LINES


def test_the_new_model_is_trained_saved_and_loaded(page):
    walk, again = page["walk"], page["walk_again"]
    assert type(again) is page["RandomWalk"] and again.config == walk.config
    one, two = (model.draw(torch.zeros(2, 3), [0, 1, 3], num_paths=2, rng=1) for model in (walk, again))
    assert torch.equal(one.paths, two.paths) and one.nfe == {"net": 3}
    assert page["walk"].nets["net"].weight.abs().max() > 0
    with pytest.raises(ValueError, match="RandomWalk has no likelihood"):
        walk.log_prob(page["data"])


def test_the_new_law_has_its_density_and_its_draw(page):
    tails, again, data = page["tails"], page["tails_again"], page["data"]
    assert again.config.law == page["Laplace"]() and torch.equal(tails.log_prob(data), again.log_prob(data))
    drawn = tails.sample(torch.zeros(1, 3), [0.0, 1.0], num_paths=20_000, rng=0)[0, :, 1]
    drift, spread = (v[0] for v in tails.fields(torch.zeros(1, 3)))
    z = (drawn - drift) / spread  # one step of dt 1: Laplace of scale 1
    assert (z.median(0).values.abs() < 0.05).all()
    assert torch.allclose(z.abs().mean(0), torch.ones(3), atol=0.05)
    assert torch.allclose((z.abs() > 3).float().mean(0), torch.tensor(-3.0).exp(), atol=0.01)
    batch = data.transitions()[torch.arange(50)]
    by_hand = -((batch.next - batch.history[:, -1]) - tails.fields(batch.history)[0]).abs()
    g = tails.fields(batch.history)[1]
    torch.testing.assert_close(tails.log_prob(batch), (by_hand / g - (2 * g).log()).sum(1), rtol=1e-4, atol=1e-3)


def test_the_new_task_runs_and_is_read_again(page):
    scores = json.loads(Path("runs/walk/results.json").read_text())["scores"]
    assert 5 < scores["variance"] < 20
    _, experiment = load_run("runs/walk")
    assert experiment == page["experiment"] and type(experiment.task) is page["WalkConfig"]
    assert score_run("runs/walk", num_walks=3)["variance"] == scores["variance"]  # of the same model and seed
    with pytest.raises(ValueError, match="Unknown key `num_paths` for WalkConfig"):
        score_run("runs/walk", num_paths=3)
    with pytest.raises(ValueError, match="WalkTask draws no figure of paths"):
        plot_run("runs/walk")


def test_a_kind_that_was_not_imported_is_named(page, monkeypatch):
    monkeypatch.delitem(Choice._kinds, "RandomWalkConfig")
    with pytest.raises(ValueError, match=r"unknown kind 'RandomWalkConfig'. Import the module that defines it first"):
        nsde.load("runs/random-walk")


@pytest.mark.parametrize("recipe", ["branching", "ou-start", "pusht", "collisions-autoencoder", "collisions"])
def test_every_config_has_its_task(recipe):
    config = RECIPES[recipe]().task
    task = task_for(config)
    assert task.config is config and type(task).__name__ == type(config).__name__.replace("Config", "Task")
    assert task.starts_from_history == (recipe == "collisions")


def test_a_place_is_imported_when_it_is_needed(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)

    @dataclass(frozen=True, kw_only=True)
    class FarConfig(TaskConfig):
        builds: ClassVar[str] = "own_tasks:Own"

    with pytest.raises(ModuleNotFoundError, match="own_tasks"):
        task_for(FarConfig())
    (tmp_path / "own_tasks.py").write_text("from neuralsde.experiments.tasks.branching import BranchingTask as Own")
    assert type(task_for(FarConfig())).__name__ == "BranchingTask"
    Choice._kinds.pop("FarConfig")


def test_a_config_without_a_task_says_what_to_do():
    @dataclass(frozen=True, kw_only=True)
    class LostConfig(TaskConfig):
        pass

    experiment = Experiment(name="lost", task=LostConfig(), model=RECIPES["branching"]().model)
    with pytest.raises(ValueError, match=r"LostConfig names no class. Set its `builds`"):
        run(experiment)
    Choice._kinds.pop("LostConfig")


def test_a_task_must_have_data_and_scores():
    with pytest.raises(TypeError, match="abstract"):
        Task(KnownSDEConfig())
