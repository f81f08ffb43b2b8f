"""Faults of folders: killed saves, broken or hostile files, two runs in one folder."""

import itertools
import json
import math
import multiprocessing
import os
import re
import resource
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import hostile
import numpy as np
import pytest
import save_loop
import yaml
from distributed_fit import problem
from safetensors.torch import save

import neuralsde as nsde
from neuralsde import fit
from neuralsde.core.files import alone, replacing
from neuralsde.core.records import RunError, load_yaml, save_yaml, to_dict
from neuralsde.data.tables.series import Series
from neuralsde.experiments.compare import compare
from neuralsde.experiments.config import Experiment
from neuralsde.experiments.recipes.registry import RECIPES
from neuralsde.experiments.run import run
from neuralsde.policy.controller import SDEPolicy
from neuralsde.training.config import TrainConfig
from neuralsde.training.fit import Interrupted
from neuralsde.training.run_folder import open_run
from neuralsde.video.model import load_video_model


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
    assert left <= max(2, num // 10)  # a name for the new file exists for a moment only
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


# Broken and hostile files


def one_line(call):
    """The message of what is refused, or None for what is taken; quick, and in one line."""
    began = time.perf_counter()
    try:
        call()
        message = None
    except (ValueError, RunError) as error:
        message = str(error)
        assert "\n" not in message and len(message) < 1_500
    assert time.perf_counter() - began < 10
    return message


def fuzz(file, record, load, **which):
    """Try records with a wrong value; how many were refused, each by a line that names the file, and how many taken."""
    counts = [0, 0]
    for path, value, changed in hostile.variants(record, **which):
        file.write_text(json.dumps(changed))
        message = one_line(load)
        counts[message is None] += 1
        assert message is None or str(file.parent) in message, (path, value, message)
    file.write_text(json.dumps(record))
    load()
    return counts


def saved_records(folder):
    """The records of everything that is saved: a file, and what reads it."""
    for kind in ("policy", "video"):
        save_loop.save(save_loop.MAKE[kind]("a"), folder / kind)
    named = {"file": "a.csv", "id": None, "time": "t", "columns": ("x", "y"), "context": ()}
    series = Series(**named, time_unit="s", time_kind="numbers", time_last=1.0)
    problem()[0].save_pretrained(folder / "run" / "model", beside={"series.json": to_dict(series)})
    save_yaml(RECIPES["pusht"](), folder / "config.yaml")
    return {
        "model": (folder / "policy" / "config.json", lambda: nsde.load(folder / "policy")),
        "policy": (folder / "policy" / "policy.json", lambda: SDEPolicy.from_pretrained(folder / "policy")),
        "video": (folder / "video" / "video.json", lambda: load_video_model(folder / "video")),
        "series": (folder / "run" / "model" / "series.json", lambda: Series.load(folder / "run")),
        "experiment": (folder / "config.yaml", lambda: load_yaml(Experiment, folder / "config.yaml")),
    }


@pytest.mark.parametrize(("every", "first"), [(41, 3), pytest.param(1, 0, marks=pytest.mark.slow)])
def test_a_wrong_value_in_any_record_is_refused_in_one_line(every, first, tmp_path):
    before, num = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    for name, (file, load) in saved_records(tmp_path).items():
        record = yaml.safe_load(file.read_text())
        refused, taken = fuzz(file, record, load, every=every, first=first)
        assert refused > taken, name
        num += refused + taken
    assert num > 3_000 // every
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # a gibibyte, in KiB


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"net": {"kind": "MLPConfig", "width": 100_000, "depth": 1}},
            r"`width` must be at most 8,192\. Got width=100000",
        ),
        ({"net": {"kind": "MLPConfig", "width": 8_000, "depth": 1}}, r"has shape \(16,\), not \(8000,\)"),
        ({"net": {"kind": "MLPConfig", "width": 16, "depth": 10**6}}, r"`depth` must be at most 1,000"),
        ({"net": {"kind": "MLPConfig", "width": 16, "depth": 900}}, r"asks for far more than the \d+ tensors there"),
        ({"history": 10**9}, "does not fit its config"),
        ({"history": 10**30}, "describes no model|does not fit"),
    ],
)
def test_sizes_are_compared_before_memory_is_taken(change, message, tmp_path):
    file = problem()[0].save_pretrained(tmp_path) / "config.json"
    record = json.loads(file.read_text())
    record["config"] |= change
    file.write_text(json.dumps(record))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = one_line(lambda: nsde.load(tmp_path))
    assert found is not None and re.search(message, found)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nets.flow.outward.weight", math.nan, r"not finite: nets\.flow\.outward\.weight\[0, 0\] is nan"),
        ("scale.mean", math.inf, r"not finite: scale\.mean\[0\] is inf"),
        ("scale.std", 0.0, r"`scale\.std` must be positive\. Got 0 in model\.safetensors"),
        ("scale.dt_ref", 0.0, r"`scale\.dt_ref` must be positive\. Got 0"),
        ("scale.dt_ref", -1.0, r"`scale\.dt_ref` must be positive\. Got -1"),
        ("scale.dt_ref", 7.0, r"`dt_ref` must be that of model\.safetensors, 7\. Got 0\.1"),
        ("scale.low", 1e6, r"`scale\.low` must not exceed `scale\.high`"),
    ],
)
def test_numbers_that_mean_nothing_are_not_loaded(name, value, message, tmp_path):
    model = problem()[0]
    file = model.save_pretrained(tmp_path) / "model.safetensors"
    tensors = model.state_dict()
    tensors[name] = tensors[name].clone().contiguous()
    tensors[name].flatten()[0] = value
    file.write_bytes(save(tensors))
    found = one_line(lambda: nsde.load(tmp_path))
    assert found is not None and re.search(message, found) and str(tmp_path) in found


@pytest.mark.parametrize("value", [0, -1, "nan", math.nan, math.inf, [1]])
def test_a_reference_step_that_is_none_is_not_loaded(value, tmp_path):
    file = problem()[0].save_pretrained(tmp_path) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"dt_ref": value}))
    assert "`dt_ref`" in (one_line(lambda: nsde.load(tmp_path)) or "")


def test_a_model_that_is_not_finite_is_not_saved_over_a_good_one(tmp_path):
    model = problem()[0]
    model.save_pretrained(tmp_path)
    next(model.parameters()).data[0] = math.nan
    with pytest.raises(ValueError, match=r"not finite is not saved: nets\..*is nan"):
        model.save_pretrained(tmp_path)
    nsde.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"limits": [[math.nan, -1], [1, 1]]}, r"`limits` must be finite\. Got \[nan, -1\.0\]"),
        ({"limits": [[1, 1], [-1, -1]]}, r"`limits` must be the lowest and the highest action\. Got .*entry \[0, 1\]"),
        ({"limits": [[1], [2]]}, r"`limits` must hold 2 number"),
        ({"default_action": [math.nan, 0]}, r"`default_action` must be finite"),
        ({"levels": {"7": [1.0]}}, r"`levels` must name entries from 0 to 1\. Got \[7\]"),
        ({"levels": {"0": [math.nan]}}, r"`levels` must be finite"),
        ({"levels": {"0": []}}, r"`levels` must hold one or more"),
    ],
)
def test_limits_that_are_none_are_not_loaded(change, message, tmp_path):
    file = save_loop.a_policy("a").save_pretrained(tmp_path) / "policy.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    found = one_line(lambda: SDEPolicy.from_pretrained(tmp_path))
    assert found is not None and re.search(message, found) and "policy.json cannot be used" in found
    record = json.loads(file.read_text()) | {"limits": [[-math.inf] * 2, [math.inf] * 2], "levels": {}}
    file.write_text(json.dumps(record | {"default_action": [0, 0]}))
    SDEPolicy.from_pretrained(tmp_path)  # no limit is one


def replace_by(file, what):
    file.unlink()
    if what == "fifo":
        os.mkfifo(file)
    elif what == "folder":
        file.mkdir()
    elif what == "huge":
        with file.open("wb") as data:
            data.truncate(2**40)
    elif what == "deep":
        file.write_text("[" * 10**6 + "]" * 10**6)
    elif what == "less deep":
        file.write_text('{"a":' * 500 + "1" + "}" * 500)
    else:
        file.symlink_to(what)


@pytest.mark.parametrize("what", ["/dev/zero", "fifo", "folder", "huge", "deep", "less deep", "/nowhere"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "policy.json"])
def test_what_is_no_file_of_a_model_is_refused(name, what, tmp_path):
    save_loop.a_policy("a").save_pretrained(tmp_path)
    replace_by(tmp_path / name, what)
    found = one_line(lambda: SDEPolicy.from_pretrained(tmp_path))
    if what == "/nowhere" and name != "model.safetensors":
        assert found is None  # the tensors hold a copy
    else:
        assert found is not None and name in found


@pytest.mark.parametrize("what", ["/dev/zero", "fifo", "folder", "huge", "deep", "less deep", "/nowhere"])
def test_what_is_no_config_file_is_refused(what, tmp_path):
    (tmp_path / "config.yaml").touch()
    replace_by(tmp_path / "config.yaml", what)
    assert "config.yaml" in (one_line(lambda: load_yaml(Experiment, tmp_path / "config.yaml")) or "")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in itertools.pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "holds too much"),
        ("name: &a [*a]", "holds too much|not valid YAML"),
        ("x: " + "[" * 10**5, "not valid YAML"),
        ("? {a: 1}\n: 2", "not valid YAML|cannot be used"),
        ("x: 2024-99-99", "not valid YAML|cannot be used"),
        ("a: 1\n" * 10**5, r"At most [\d,]+ are read"),
        ("\0", "not valid YAML"),
    ],
)
def test_yaml_that_is_a_trap_is_refused(text, message, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    found = one_line(lambda: load_yaml(Experiment, tmp_path / "config.yaml"))
    assert found is not None and re.search(message, found)


@pytest.mark.parametrize("name", ["../../x", "/x", "..", "", ".", "a/b", "a\\b", "a\0b"])
def test_the_name_of_an_experiment_leads_nowhere_else(name):
    assert "`name` must be a name" in (one_line(lambda: replace(RECIPES["branching"](), name=name)) or "")


def test_the_next_writer_removes_what_a_dead_writer_left(tmp_path):
    (tmp_path / ".0badcafe-config.json.new").write_text("half")
    with replacing(tmp_path / "config.json") as new:
        new.write_text("one")
        with replacing(tmp_path / "config.json") as other:  # beside a writer that lives
            other.write_text("two")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("config.json", "one")]


def test_disks_without_nameless_files_are_written_to_as_well(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE")
    test_the_next_writer_removes_what_a_dead_writer_left(tmp_path)
