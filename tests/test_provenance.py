"""Where things come from: the notice, the cards of shipped weights, and the command of every picture."""

import ast
import json
import re
import runpy
import subprocess
from pathlib import Path

import pytest

from neuralsde.core.tensors import read_tensors
from neuralsde.training import run_folder

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "neuralsde"
WEIGHTS = sorted(file.parent for file in PACKAGE.glob("weights/*/config.json"))
FACTS = (
    "Data",
    "Licence of the data",
    "Licence of the weights",
    "Training seed",
    "Commit of the training",
    "Training command",
)


def rows_of(text, columns):
    """Rows of the Markdown tables with as many columns."""
    lines = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line.startswith("|")
    ]
    return [row for row in lines if len(row) == columns and not set("".join(row)) <= set("-| ")]


def look_up(file, key):
    """The value in a file of results: keys with points, and runs[LABEL,SEED]."""
    value, rest = json.loads((ROOT / "results" / file).read_text(encoding="utf-8")), key
    if found := re.match(r"runs\[(.*),(\d+)\]\.", key):
        (value,) = (r for r in value["runs"] if (r["label"], r["seed"]) == (found[1], int(found[2])))
        rest = key[found.end() :]
    for part in rest.split("."):
        value = value[part]
    return value


def first_words(file):
    """The docstring of a module."""
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


def test_a_commit_is_clean_while_only_results_differ(monkeypatch, tmp_path):
    module = tmp_path / "src" / "run_folder.py"
    for file in (module, tmp_path / "results" / "a.json"):
        file.parent.mkdir()
        file.write_text("1")
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(run_folder, "__file__", str(module))
    monkeypatch.delenv("NEURALSDE_COMMIT", raising=False)
    clean = run_folder.commit()
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (tmp_path / "results" / "a.json").write_text("2")
    assert run_folder.commit() == clean
    module.write_text("2")
    assert run_folder.commit() == f"{clean}-dirty"


def listing():
    return runpy.run_path(str(ROOT / "docs" / "stale.py"))


def test_rows_of_results_name_their_commits():
    """Their own where they have one, else that of the file, however the file holds its rows."""
    rows_in = listing()["rows_in"]
    own = {"commit": "a", "rows": [{"set": "s", "method": "m", "commit": "b"}, {"set": "t"}]}
    assert rows_in(own) == [("s m", "b"), ("t", "a")]
    assert rows_in({"commit": "a", "cases": {"one": {"commit": "c"}, "two": {}}}) == [("one", "c"), ("two", "a")]
    assert rows_in({"one": {"commit": "c"}, "two": {"commit": "d"}}) == [("one", "c"), ("two", "d")]
    assert rows_in({"commit": "a", "median": 1.0, "versions": {}}) == [("the file", "a")]


def test_what_is_stale_is_told_row_by_row(tmp_path):
    found = listing()
    counts = {("a", "benchmarks/laws.py"): 0, ("b", "benchmarks/laws.py"): 3, ("a", "src/neuralsde/sde"): None}
    found["stale"].__globals__["commits_since"] = lambda commit, *paths: counts.get((commit.split("-")[0], *paths), 5)
    file = tmp_path / "laws.json"
    cases = {"one": {"commit": "a"}, "two": {"commit": "b-dirty"}, "three": {"commit": "b-dirty"}}
    file.write_text(json.dumps({"command": "python benchmarks/laws.py --output x", "cases": cases}))
    assert found["stale"](file) == [
        "laws.json: 3 rows of 2 commits; laws.py +0 to +3, sde +5 or unknown",
        "  not of a clean tree: two; three",
    ]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the history")
def test_git_counts_what_came_since():
    since = listing()["commits_since"]
    assert since("HEAD", "docs") == 0 == since("HEAD-dirty", "docs")
    assert since("no-commit-at-all", "docs") is None


@pytest.mark.parametrize("file", sorted((ROOT / "results").glob("*.json")), ids=lambda f: f.stem)
def test_every_file_of_results_has_its_script_and_its_commits(file):
    found, values = listing(), json.loads(file.read_text(encoding="utf-8"))
    assert (ROOT / found["script_of"](file.stem, values)).is_file()
    assert all((PACKAGE / room).is_dir() for room in found["rooms_of"](file.stem))
    rows = found["rows_in"](values)
    assert rows and all(name and re.match("[0-9a-f]{7}", commit) for name, commit in rows)


def test_weights_are_found():
    assert [folder.name for folder in WEIGHTS] == ["pusht", "video"]


@pytest.mark.parametrize("folder", WEIGHTS, ids=lambda f: f.name)
def test_every_shipped_model_has_a_card_whose_numbers_are_those_of_the_results(folder):
    text = (folder / "README.md").read_text(encoding="utf-8")
    facts = dict(rows_of(text, 2))
    assert all(facts.get(fact) for fact in FACTS), facts
    assert "## Scores" in text and "## Limits" in text
    scores = [row for row in rows_of(text, 4) if row[0] != "score" or row[1] != "value"]
    assert len(scores) >= 7
    for name, value, file, key in scores:
        digits = len(value.partition(".")[2])
        assert value == f"{look_up(file, key):.{digits}f}", (name, key)


@pytest.mark.parametrize("folder", WEIGHTS, ids=lambda f: f.name)
def test_the_card_counts_the_parameters_that_are_there(folder):
    shown = {name: value for name, value, *_ in rows_of((folder / "README.md").read_text(encoding="utf-8"), 4)}
    for name, place in (("parameters", folder), ("autoencoder: parameters", folder / "autoencoder")):
        if place.is_dir():
            found = sum(t.numel() for t in read_tensors(place / "model.safetensors").values() if t.dtype.itemsize == 2)
            assert int(shown[name]) == found, name


def test_the_wheel_takes_the_cards():
    """The wheel is the package folder as it is, less what git ignores."""
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '[tool.hatch.build.targets.wheel]\npackages = ["src/neuralsde"]\n\n' in settings
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    for card in (folder / "README.md" for folder in WEIGHTS):
        parts = [*card.parents, card]
        assert not [line for line in ignored for part in parts if part.match(line.strip("/"))], card


def test_the_notice_is_packed_and_names_what_nets_and_baselines_are_built_after():
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'license-files = ["LICENSE", "NOTICE"]' in settings and '"NOTICE", "CHANGELOG.md"]' in settings
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    built_after = r"et al\., [A-Z]\w+ \d{4}|et al\., \d{4}|github\.com/\S+|\w+ & \w+, \w+ \d{4}"
    files = [f for room in ("nets", "baselines", "metrics", "solvers") for f in (PACKAGE / room).glob("*.py")]
    named = [f for f in files if re.search(built_after, first_words(f))]
    assert len(named) >= 12
    lacking = [f"{f.parent.name}/{f.name}" for f in named if f"{f.parent.name}/{f.name}" not in notice]
    assert not lacking, lacking


def test_every_picture_has_its_command():
    page = (ROOT / "docs" / "results" / "pictures.md").read_text(encoding="utf-8")
    listed = {row[0].strip("`"): row[1:] for row in rows_of(page, 3) if row[0].startswith("`")}
    there = {
        f.name for f in (ROOT / "docs" / "assets").iterdir() if f.suffix in (".png", ".mp4", ".gif", ".svg", ".jpg")
    }
    assert set(listed) == there
    assert all(command and data for command, data in listed.values())
    for script in re.findall(r"python (\S+\.py)", page):
        assert (ROOT / script).is_file(), script
