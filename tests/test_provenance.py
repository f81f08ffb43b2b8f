"""Where things come from: the notice, the cards of shipped weights, and the command of every picture."""

import ast
import json
import re
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
