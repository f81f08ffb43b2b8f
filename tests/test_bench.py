"""Races: turns are interleaved, ratios are those of one run, and who is not there is named."""

import json
import sys

import pytest
import torch

from neuralsde.experiments import bench as benches
from neuralsde.experiments.bench import PATIENCE, Field, bench, kept_bytes, race, rehearse, table
from neuralsde.solvers.replay import READY


def test_turns_are_interleaved_and_ratios_are_to_ours(monkeypatch):
    order, clock = [], [0.0]
    monkeypatch.setattr(benches.time, "perf_counter", lambda: clock[0])

    def way(name, seconds):
        def turn():
            order.append(name)
            clock[0] += seconds

        return turn

    ways = {"ours": way("ours", 0.002), "rival": way("rival", 0.006), "away": None}
    rows = race(Field({"paths": 3}, ways), 3)
    assert order == ["ours"] * READY + ["rival"] * READY + ["ours", "rival"] * 3  # a rehearsal before it counts
    assert [row["method"] for row in rows] == ["ours", "rival", "away"]
    assert rows[1]["ms"] == pytest.approx(6) and rows[1]["times_ours"] == pytest.approx(3)
    assert rows[2] == {"paths": 3, "method": "away", "absent": "not installed"}
    assert "3.0 × ours" in table(rows) and "not installed" in table(rows)


def test_what_a_step_keeps_for_its_gradients_is_counted_once_without_its_weights():
    weight, x = torch.ones(8, 8, requires_grad=True), torch.ones(16, 8)

    def step():
        hidden = (x @ weight).tanh()  # keeps x and what it gives, which the next product keeps too
        (hidden @ weight).sum().backward()

    assert kept_bytes(step) == 4 * (16 * 8 + 16 * 8)
    (row,) = race(Field({}, {"ours": step}, learns=True), 1)
    assert row["kept_mib"] == pytest.approx(kept_bytes(step) / 2**20) and "MiB kept" in table([row])


def test_a_slow_rehearsal_ends(monkeypatch):
    turns, clock = [], [0.0]
    monkeypatch.setattr(benches.time, "perf_counter", lambda: clock[0])

    def turn():
        turns.append(clock[0])
        clock[0] += 0.7 * PATIENCE

    rehearse(turn)
    assert len(turns) == 2


def test_a_bench_leaves_rows_and_a_picture(monkeypatch, tmp_path, fitted_labels):
    def small(device, repeats):
        return race(Field({"paths": 1}, {"ours": lambda: None, "rival": lambda: None}), repeats)

    monkeypatch.setitem(benches.COMPARISONS, "sampling", small)
    bench("sampling", tmp_path / "a.json", repeats=2, cpu=True)
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["command"] == "nsde bench sampling" and found["device"] == "cpu" and len(found["rows"]) == 2
    assert (tmp_path / "a.png").stat().st_size > 1000
    with pytest.raises(
        ValueError, match=r"There is no comparison 'other'. Comparisons: sampling, training, plans, video"
    ):
        bench("other", tmp_path / "b.json")
    with pytest.raises(ValueError, match=r"`repeats` must be at least 1. Got 0"):
        bench("sampling", tmp_path / "b.json", repeats=0)


def test_rivals_that_are_not_installed_are_absent(monkeypatch):
    monkeypatch.setattr(benches, "_missing", lambda *modules: bool(modules))
    monkeypatch.setattr(benches, "race", lambda field, repeats, wait: [field])
    away = ("torchsde", "DDIM", "DDPM", "Diffusion Policy")
    for field in [*benches.sampling("cpu", 1), *benches.training("cpu", 1), *benches.plans("cpu", 1)]:
        there = {name for name, way in field.ways.items() if way is not None}
        assert "ours" in there and not [name for name in there if name.startswith(away)]


@pytest.mark.parametrize("name", ["training", "plans", "video", "loading"])
def test_every_way_runs(name, monkeypatch):
    fields = []
    monkeypatch.setattr(benches, "race", lambda field, repeats, wait: fields.append(field) or [])
    monkeypatch.setattr(benches, "NUM_BATCHES", 2)
    benches.COMPARISONS[name]("cpu", 1)
    for way in fields[0].ways.values():
        assert way is not None
        way()
    assert "ours" in fields[0].ways and len(fields[0].ways) >= 3


def test_imports_are_timed_in_processes_of_their_own(monkeypatch):
    ran = []
    monkeypatch.setattr(benches.subprocess, "run", lambda command, **_: ran.append(command))
    monkeypatch.setattr(benches, "_missing", lambda name: name not in ("torch", "torchsde"))
    rows = benches.imports("cpu", 1)
    assert {row["method"] for row in rows if "absent" not in row} == {"ours", "torch", "torchsde"}
    assert all(command[0] == sys.executable and "import" in command[2] for command in ran)
    assert "× ours" in table(rows)
