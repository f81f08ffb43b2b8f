"""The rules of the project, as tests."""

import ast
import re
import shlex
from pathlib import Path

import pytest

import neuralsde
from neuralsde.cli import COMMANDS
from neuralsde.experiments.recipes.registry import RECIPES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "neuralsde"
FILES = sorted(SOURCE.rglob("*.py"))
each_file = pytest.mark.parametrize("file", FILES, ids=lambda p: str(p.relative_to(SOURCE)))


def test_there_are_files_to_check():
    assert len(FILES) > 15


@each_file
def test_no_file_is_long(file):
    num_lines = len(file.read_text().splitlines())
    assert num_lines <= (300 if file.name == "method.py" else 400)


@each_file
def test_a_module_is_an_idea_with_a_docstring(file):
    assert file.stem not in {"utils", "util", "common", "helpers", "helper", "misc", "base"}
    assert ast.get_docstring(ast.parse(file.read_text()))


@each_file
def test_nothing_draws_from_a_global_generator(file):
    """Every draw names its generator; the global one is seeded only inside `fork_rng`."""
    draws = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "rand_like", "randn_like"}
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name.removeprefix("torch.") in draws and name.startswith("torch."):
            assert any(k.arg == "generator" for k in node.keywords), f"{file}:{node.lineno}"
        assert not re.match(r"(np|numpy)\.random\.(?!default_rng|Generator)|random\.\w+$", name), (
            f"{file}:{node.lineno}"
        )
        if name.endswith("manual_seed") and "Generator()" not in name:
            assert "fork_rng" in file.read_text(), f"{file}:{node.lineno}"


@each_file
def test_no_function_is_left_untyped(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef):
            assert node.returns is not None, f"{file}:{node.lineno} {node.name}"


def test_public_names_are_importable_and_listed():
    for name in neuralsde.__all__:
        assert getattr(neuralsde, name) is not None
    assert set(neuralsde._HOME) | {"__version__"} == set(neuralsde.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        neuralsde.nothing  # noqa: B018
    assert (SOURCE / "py.typed").exists()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_short_documented_function(name):
    import inspect

    recipe = RECIPES[name]
    assert recipe.__doc__ and recipe().name == name
    assert len(inspect.getsource(recipe).splitlines()) <= 15


def commands_of(text):
    """Every `nsde …` command in the code blocks of a Markdown text."""
    text = text.replace("\\\n", " ")
    blocks = re.findall(r"```(?:bash|sh|shell|console)?\n(.*?)```", text, re.S)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if re.match(r"(\.venv/bin/)?nsde\b", line)]


def test_commands_are_found_in_code_blocks():
    text = "```bash\n$ nsde train branching \\\n  --resume  # on\npip install x\n```\n```\nnsde list\n```\nnsde nothing"
    assert commands_of(text) == [["nsde", "train", "branching", "--resume"], ["nsde", "list"]]


def documents():
    return [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if p.exists() and p.read_text()]


@pytest.mark.parametrize("file", documents(), ids=lambda p: p.name)
def test_commands_in_documents_exist(file, capsys):
    import tyro

    from neuralsde import cli

    for _, command, *rest in commands_of(file.read_text()):
        assert command in {*COMMANDS, "train", "--help", "--version"}, command
        if command == "train":
            if rest[0] == "--config":
                continue
            assert rest[0] in {*RECIPES, "RECIPE"}, rest[0]
            cli.main(["train", rest[0].replace("RECIPE", "branching"), *rest[1:], "--dry-run"])
        elif command in COMMANDS and "--help" not in rest:
            tyro.cli(COMMANDS[command], args=rest)
    capsys.readouterr()
