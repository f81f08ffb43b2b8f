"""Published numbers: results/ holds what the documentation claims, with its origin. Nothing is computed anew."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from neuralsde.config import Experiment
from neuralsde.recipes import branching as recipes
from neuralsde.records import from_dict

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
            asked = replace(row, train=replace(row.train, seed=run["seed"], progress=False))
            got = from_dict(Experiment, run["experiment"])
            assert got == asked, f"{label} was run with other settings: make results"


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


def test_documented_tables_are_those_of_the_results():
    command = [sys.executable, str(ROOT / "docs" / "tables.py"), "--check"]
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
