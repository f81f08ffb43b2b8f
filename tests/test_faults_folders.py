"""Faults of folders: killed saves, broken or hostile files, two runs in one folder."""

import itertools
import json
import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import save_loop
from distributed_fit import problem

import neuralsde as nsde
from neuralsde import fit
from neuralsde.experiments.compare import compare
from neuralsde.experiments.recipes.registry import RECIPES
from neuralsde.experiments.run import run
from neuralsde.files import alone
from neuralsde.policy.controller import SDEPolicy
from neuralsde.training.config import TrainConfig
from neuralsde.training.fit import Interrupted
from neuralsde.training.run_folder import open_run


def names(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def kills(kind, folder, num):
    """Kill saves; each leaves one of both whole, and the next save leaves nothing of it. How often the JSON was behind."""
    both = [save_loop.MAKE[kind](name) for name in save_loop.NAMES]
    known, seen, left = [save_loop.content(made) for made in both], set(), 0
    for made in both:
        save_loop.save(made, folder / made.__class__.__name__)
    for _ in range(num):
        save_loop.kill_a_save(folder / "saved", both)
        left += any(name.split("/")[-1].startswith(".") for name in names(folder / "saved"))
        seen.add(known.index(save_loop.content(save_loop.load(kind, folder / "saved"))))  # else a ValueError
    save_loop.save(both[0], folder / "saved")
    expected = [n.replace("autoencoder-2", "autoencoder") for n in names(folder / type(both[0]).__name__)]
    assert [n.replace("autoencoder-2", "autoencoder") for n in names(folder / "saved")] == expected
    assert left <= num // 10  # a name for the new file exists for a moment only
    return seen


@pytest.mark.parametrize("kind", ["model", "policy", "video"])
def test_a_killed_save_leaves_the_old_or_the_new_whole(kind, tmp_path):
    kills(kind, tmp_path, 8)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("kind", ["model", "policy", "video"])
def test_a_save_may_end_before_any_of_its_moves(kind, tmp_path, monkeypatch):
    both = [save_loop.MAKE[kind](name) for name in save_loop.NAMES]
    known, move, found = [save_loop.content(made) for made in both], os.replace, []
    for num in range(10):
        save_loop.save(both[0], tmp_path)
        left = iter(range(num))

        def last_moves(old, new, left=left):
            if next(left, None) is None:
                raise Killed
            move(old, new)

        monkeypatch.setattr(os, "replace", last_moves)
        try:
            save_loop.save(both[1], tmp_path)
        except Killed:
            found.append(known.index(save_loop.content(save_loop.load(kind, tmp_path))))
        monkeypatch.setattr(os, "replace", move)
    moves = {"model": 2, "policy": 3, "video": 5}[kind]
    tensors = 2 if kind == "video" else 0  # those of the autoencoder and its record come first
    assert found == [int(k > tensors) for k in range(moves)]


def test_a_record_beside_a_model_may_be_edited_but_not_be_another_models(tmp_path):
    policy = save_loop.a_policy("a")
    file = policy.save_pretrained(tmp_path) / "policy.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"limits": [[-9, -9], [9, 9]]}))
    assert SDEPolicy.from_pretrained(tmp_path).limits[1].tolist() == [9, 9]
    policy.model.save_pretrained(tmp_path)  # without the policy
    with pytest.raises(ValueError, match=r"holds no policy\.json of its model"):
        SDEPolicy.from_pretrained(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "policy", "video"])
def test_many_killed_saves(kind, tmp_path):
    assert kills(kind, tmp_path, 25) == {0, 1}


# Two runs, and runs that go on


def lines_of(folder):
    """metrics.jsonl without the wall clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "steps_per_second"} for line in lines]


@pytest.mark.parametrize("stopped", [7, 12])
def test_metrics_after_a_resume_are_those_of_a_run_that_was_not_stopped(stopped, tmp_path):
    data = problem()[1]
    train = {"steps": 20, "log_every": 5, "val_every": 10, "checkpoint_every": 4, "progress": False, "val": data}
    fit(problem()[0], data, run_dir=tmp_path / "whole", **train)
    model, calls = problem()[0], itertools.count(1)
    model.register_forward_pre_hook(lambda *_: signal.raise_signal(signal.SIGTERM) if next(calls) == stopped else None)
    with pytest.raises(Interrupted):
        fit(model, data, run_dir=tmp_path / "stopped", **train)
    fit(problem()[0], data, run_dir=tmp_path / "stopped", resume=True, **train)
    assert lines_of(tmp_path / "stopped") == lines_of(tmp_path / "whole")


def test_metrics_that_are_damaged_are_named(tmp_path):
    train = {"run_dir": tmp_path, "steps": 4, "log_every": 2, "progress": False}
    fit(*problem(), **train)
    (tmp_path / "metrics.jsonl").write_text('{"step": 2}\n[1]}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged .*Move it away"):
        fit(*problem(), resume=True, **train)


IN_USE = r"is in use by another run\. Wait until it has ended, or name another"


def test_a_second_run_is_refused_until_the_first_has_died(tmp_path):
    processes = multiprocessing.get_context("fork")
    started = processes.Event()

    def hold():
        with open_run(tmp_path, resume=False):
            started.set()
            time.sleep(60)

    process = processes.Process(target=hold)
    process.start()
    assert started.wait(60)
    small = replace(RECIPES["branching"](), train=TrainConfig(steps=1))
    second = {
        "fit": lambda: fit(*problem(), run_dir=tmp_path, steps=2, progress=False),
        "resume": lambda: fit(*problem(), run_dir=tmp_path, resume=True, steps=2, progress=False),
        "run": lambda: run(small, tmp_path),
        "fit_table": lambda: nsde.fit_table(a_table(tmp_path.parent), output=tmp_path, steps=2),
    }
    for call in second.values():
        with pytest.raises(ValueError, match=IN_USE):
            call()
    assert not list(tmp_path.iterdir())
    process.kill()
    process.join()
    fit(*problem(), run_dir=tmp_path, steps=2, progress=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "metrics.jsonl"]  # no file for the lock


def a_table(folder):
    rows = [f"{t},{np.sin(t / 5):.3f}" for t in range(60)]
    (folder / "table.csv").write_text("\n".join(["t,x", *rows]))
    return folder / "table.csv"


def test_two_threads_do_not_share_a_folder(tmp_path):
    with open_run(tmp_path, resume=False), ThreadPoolExecutor(1) as pool:
        second = pool.submit(fit, *problem(), run_dir=tmp_path, steps=2, progress=False)
        with pytest.raises(ValueError, match=IN_USE):
            second.result()


def test_two_comparisons_do_not_write_one_file(tmp_path):
    output = tmp_path / "results.json"
    with alone(output):
        with pytest.raises(ValueError, match=IN_USE):
            compare({}, output, num_seeds=1, num_workers=1)
        compare({}, tmp_path / "other.json", num_seeds=1, num_workers=1)
    compare({}, output, num_seeds=1, num_workers=1)
    assert not list(tmp_path.glob(".*"))
    output.write_text("[1]")
    with pytest.raises(ValueError, match=r"results\.json is no results file"):
        compare({}, output, num_seeds=1, num_workers=1)
