"""Published numbers: results/ holds what the documentation claims, with its origin. Nothing is computed anew."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from neuralsde.core.formats import current
from neuralsde.core.records import from_dict
from neuralsde.experiments.compare import stale_rows
from neuralsde.experiments.config import Experiment
from neuralsde.experiments.recipes import branching as recipes
from neuralsde.experiments.recipes import known_sdes as known_recipes
from neuralsde.experiments.recipes.registry import rows_of
from neuralsde.training.run_folder import rows_before, write_results

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def values():
    return json.loads((ROOT / "results" / "branching.json").read_text(encoding="utf-8"))


def test_every_number_says_where_it_came_from(values):
    for run in values["runs"]:
        assert run["commit"] not in ("", "unknown") and "dirty" not in run["commit"]
        assert run["versions"]["torch"] and run["hardware"]["cores"]
        assert run["scores"]["num_paths"] == 1000


def test_rows_are_those_of_the_code_and_complete(values):
    rows = recipes.comparison()
    assert list(values["summary"]) == list(rows)
    for label, row in rows.items():
        runs = [r for r in values["runs"] if r["label"] == label]
        assert [r["seed"] for r in runs] == [0, 1, 2, 3, 4], label
        for run in runs:
            asked = replace(row, train=replace(row.train, seed=run["seed"]))
            got = from_dict(Experiment, current(run["experiment"]))
            assert got == asked, f"{label} was run with other settings: nsde compare branching"


@pytest.mark.parametrize("density", [1, 10])
def test_the_neural_sde_meets_its_targets(values, density):
    row = values["summary"][f"NSDE, density {density}"]
    up = row["branch_fraction"][0]
    assert 0.47 <= up["mean"] <= 0.53
    assert up["min"] >= 0.42 and up["max"] <= 0.58
    assert row["neither"]["max"] <= 0.002
    assert row["distance"]["mean"] <= 0.004
    assert abs(row["fork_offset"]["mean"]) <= 0.04
    assert row["end_error"]["mean"] <= 0.08


@pytest.mark.parametrize("label", ["NSDE, three branches", "NSDE, 60° fork"])
def test_other_forks_without_tuning(values, label):
    shares = values["summary"][label]["branch_fraction"]
    for branch in shares:
        assert abs(branch["mean"] - 1 / len(shares)) <= 0.1


KNOWN = json.loads((ROOT / "results" / "known_sdes.json").read_text(encoding="utf-8"))


def test_known_sdes_say_where_they_came_from():
    for run in KNOWN["runs"]:
        assert len(run["commit"]) == 12 and run["versions"]["torch"] and run["hardware"]["cores"]
        assert run["scores"]["num_forecasts"] == 5000
    assert list(KNOWN["summary"]) == list(known_recipes.comparison())


@pytest.mark.parametrize("system", known_recipes.CORE)
@pytest.mark.parametrize("mode", ["start", "interpolated"])
def test_known_sdes_meet_their_targets(system, mode):
    row, best = KNOWN["summary"][f"{system}, {mode}"], KNOWN["summary"][f"{system}, start"]
    assert row["num_seeds"] >= 3
    limits = {
        "drift_error": max(0.05, 2 * best["parametric_drift_error"]["mean"]),
        "diffusion_error": 0.03,
        "excess_nll": 0.01,
    }
    for score, limit in limits.items():
        assert row[score]["mean"] <= limit, score
    assert abs(row["coverage_80"]["mean"] - 0.8) <= 0.02 and abs(row["coverage_95"]["mean"] - 0.95) <= 0.02


@pytest.mark.parametrize("system", known_recipes.CORE)
@pytest.mark.parametrize("mode", ["start", "interpolated"])
def test_irregular_stamps_cost_little(system, mode):
    regular, irregular = KNOWN["summary"][f"{system}, {mode}"], KNOWN["summary"][f"{system}, {mode}, irregular"]
    for score in ("drift_error", "diffusion_error"):
        assert irregular[score]["mean"] <= 1.5 * regular[score]["mean"], score


@pytest.mark.parametrize("system", ["ou", "double_well"])
def test_moments_take_most_of_the_bias_of_wide_gaps(system):
    euler, moments = (KNOWN["summary"][f"{system}, gaps 0.5, {kind}"] for kind in ("euler", "moments"))
    for score in ("drift_error", "diffusion_error"):
        assert moments[score]["mean"] < 0.35 * euler[score]["mean"], score


def test_the_papers_equation_finds_the_noise_and_the_authors_code_half_of_it():
    for system in ("ou", "cir", "double_well"):
        paper, code = (KNOWN["summary"][f"{system}, {way}"] for way in ("paper's equation", "authors' code"))
        assert min(paper["drift_error"]["mean"], code["drift_error"]["mean"]) > 0.9
        assert paper["diffusion_error"]["mean"] < 0.1 and 0.45 < code["diffusion_error"]["mean"] < 0.5


def test_documented_tables_are_those_of_the_results(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    runpy.run_path(str(ROOT / "docs" / "tables.py"), run_name="__main__")  # exits where they are not


def test_rows_whose_recipe_has_changed_are_stale(tmp_path, values):
    assert stale_rows("branching", ROOT / "results" / "branching.json") == {}
    lost, other, *_ = rows_of("branching")
    runs = [run for run in values["runs"] if run["label"] not in (lost, other)]
    old = next(run for run in values["runs"] if run["label"] == other)
    changed = {**old["experiment"], "train": {**old["experiment"]["train"], "steps": 7}}
    past = {**old["experiment"], "name": "gone"}
    file = tmp_path / "branching.json"
    more = [{**old, "experiment": changed}, {**old, "label": "of the past", "experiment": past}]
    file.write_text(json.dumps({"runs": runs + more}))
    assert stale_rows("branching", file) == {
        lost: "not measured",
        other: "measured with other settings",
        "of the past": "has no recipe",
    }


def test_a_benchmark_that_goes_on_keeps_rows_of_its_commit_and_what_is_not_asked_for(tmp_path):
    first, other = {"set": "s", "method": "a"}, [{"set": "s", "method": "b"}, {"set": "t", "method": "a"}]
    file, own = tmp_path / "rows.json", {"set": "s", "method": "a", "commit": "new"}
    assert rows_before(file, "2 min", "new", [("s", "a")]) == []
    write_results(file, {"budget": "2 min", "commit": "old", "rows": [first, *other, own]})
    assert rows_before(file, "2 min", "new", [("s", "a")]) == [*({"commit": "old", **row} for row in other), own]
    assert len(rows_before(file, "2 min", "old", [("s", "a"), ("s", "b"), ("t", "a")])) == 3
    assert rows_before(file, "1 min", "old", []) == []
