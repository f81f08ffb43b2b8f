"""Tasks: those of the library are found by their configs, and a user's own runs, is recorded and is read again."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import neuralsde as nsde
from neuralsde.experiments.config import Experiment, KnownSDEConfig, TaskConfig
from neuralsde.experiments.recipes.registry import RECIPES
from neuralsde.experiments.run import load_run, plot_run, run, score_run
from neuralsde.experiments.task import Task, task_for
from neuralsde.records import from_dict, to_dict

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


@pytest.fixture
def walk(monkeypatch, tmp_path):
    """The names that the page's new task leaves, its run included."""
    code = re.search(r"## A new task.*?```python\n(.*?)```", PAGE.read_text(), re.S).group(1)
    monkeypatch.chdir(tmp_path)
    for registry in (TASKS, TaskConfig.kinds):
        monkeypatch.setitem(registry, "WalkConfig", None)  # is put back
    names = {"__name__": "walks", "nsde": nsde, "torch": torch}
    exec(compile(code, "walks", "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("recipe", ["branching", "ou-start", "pusht", "collisions-autoencoder", "collisions"])
def test_every_config_has_its_task(recipe):
    config = RECIPES[recipe]().task
    task = task_for(config)
    assert task.config is config and type(task).__name__ == type(config).__name__.replace("Config", "Task")
    assert task.starts_from_history == (recipe == "collisions")


def test_the_task_of_the_page_runs_and_is_read_again(walk):
    scores = json.loads(Path("runs/walk/results.json").read_text())["scores"]
    assert 5 < scores["variance"] < 20
    _, experiment = load_run("runs/walk")
    assert experiment == walk["experiment"] and type(experiment.task) is walk["WalkConfig"]
    assert score_run("runs/walk", num_walks=3)["variance"] == scores["variance"]  # of the same model and seed
    with pytest.raises(ValueError, match="Unknown key `num_paths` for WalkConfig"):
        score_run("runs/walk", num_paths=3)
    with pytest.raises(ValueError, match="WalkTask draws no figure of paths"):
        plot_run("runs/walk")


def test_a_place_is_imported_when_it_is_needed(monkeypatch, tmp_path):
    config = RECIPES["ou-start"]().task
    monkeypatch.setitem(TASKS, "KnownSDEConfig", None)
    monkeypatch.syspath_prepend(tmp_path)
    register(KnownSDEConfig, "own_tasks:Own")
    with pytest.raises(ModuleNotFoundError, match="own_tasks"):
        task_for(config)
    (tmp_path / "own_tasks.py").write_text("from neuralsde.experiments.tasks.branching import BranchingTask as Own")
    assert type(task_for(config)).__name__ == "BranchingTask"


def test_a_config_without_a_task_says_what_to_do(monkeypatch):
    monkeypatch.setitem(TaskConfig.kinds, "LostConfig", None)

    @dataclass(frozen=True, kw_only=True)
    class LostConfig(TaskConfig):
        pass

    experiment = Experiment(name="lost", task=LostConfig(), model=RECIPES["branching"]().model)
    with pytest.raises(ValueError, match=r"No task is registered for LostConfig. Call .*register\(LostConfig"):
        run(experiment)


def test_a_task_must_have_data_and_scores():
    with pytest.raises(TypeError, match="abstract"):
        Task(KnownSDEConfig())


def test_a_record_names_one_of_the_known_kinds():
    values = to_dict(RECIPES["ou-start"]())
    assert from_dict(Experiment, values) == RECIPES["ou-start"]()
    for kind in ("TaskConfig", "MLPConfig", "NoConfig"):
        with pytest.raises(ValueError, match=rf"`task.kind` must be one of .*'KnownSDEConfig'.*Got '{kind}'"):
            from_dict(Experiment, values | {"task": {"kind": kind}})
    with pytest.raises(ValueError, match=r"`task` must be a mapping\. Got None"):
        from_dict(Experiment, values | {"task": None})
