"""The rules of the project, as tests."""

import ast
import functools
import re
import shlex
from pathlib import Path

import pytest

import neuralsde
from neuralsde.cli.commands import COMMANDS
from neuralsde.cli.commands import command as options_of
from neuralsde.experiments.recipes.registry import RECIPES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "neuralsde"
FILES = sorted(SOURCE.rglob("*.py"))


@functools.cache
def syntax(file):
    return ast.parse(file.read_text())


def offenders(rule):
    """Where files break a rule, which gives for a file what is wrong in it."""
    return [f"{file.relative_to(SOURCE)}: {wrong}" for file in FILES for wrong in rule(file)]


def test_there_are_files_to_check():
    assert len(FILES) > 15
    assert offenders(lambda file: ["first"] if file == FILES[0] else []) == ["__init__.py: first"]


def test_a_module_is_an_idea_with_a_docstring():
    def rule(file):
        if file.stem in {"utils", "util", "common", "helpers", "helper", "misc", "base"}:
            yield "is named after no idea"
        if file.name == "__init__.py" and file.parent not in (SOURCE, SOURCE / "cli"):
            if file.read_text().strip():  # sub-packages import nothing: help stays instant
                yield "is not empty"
        elif not ast.get_docstring(syntax(file)):
            yield "has no docstring"

    assert not offenders(rule)


ROOMS = {
    "sde": ("model", "fields", "losses", "config", "laws"),
    "models": ("sequence", "scale", "saving", "build"),
    "solvers": ("noise", "schemes", "grid", "integrate"),
}


@pytest.mark.parametrize("room", ROOMS)
def test_what_a_reader_looks_for_is_in_its_room(room):
    assert all((SOURCE / room / f"{name}.py").is_file() or (SOURCE / room / name).is_dir() for name in ROOMS[room])


def test_there_are_few_rooms():
    rooms = {f.relative_to(SOURCE).parts[0] for f in FILES} - {"__init__.py"}
    assert len(rooms) <= 22


def test_nothing_is_probed_for():
    """What a class can do is said by its type: no `hasattr` on models, configs or tasks (arrays of other libraries apart)."""

    def rule(file):
        if file.relative_to(SOURCE).parts[0] == "data" or file.name == "physics.py":
            return []
        calls = [n for n in ast.walk(syntax(file)) if isinstance(n, ast.Call)]
        return [n.lineno for n in calls if isinstance(n.func, ast.Name) and n.func.id == "hasattr"]

    assert not offenders(rule)


def test_the_seam_names_no_subclass():
    named = r"NeuralSDE\b(?! whose)|isinstance\(self, |isinstance\(model, "
    assert not offenders(lambda file: re.findall(named, file.read_text()) if file.parent.name == "models" else [])


PARTICIPLES = set(
    ["drawn", "given", "kept", "known", "made", "seen", "shown", "taken", "written", "chosen", "moved", "joined"]
)


def test_functions_are_not_named_by_a_bare_participle():
    def rule(file):
        names = {n.name.strip("_") for n in ast.walk(syntax(file)) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        return names & PARTICIPLES

    assert not offenders(rule)


def test_nothing_draws_from_a_global_generator():
    """Every draw names its generator; the global one is seeded only inside `fork_rng`."""
    draws = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "rand_like", "randn_like"}

    def rule(file):
        for node in ast.walk(syntax(file)):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            drawn = name.startswith("torch.") and name.removeprefix("torch.") in draws
            if drawn and not any(k.arg == "generator" for k in node.keywords):
                yield node.lineno
            if re.match(r"(np|numpy)\.random\.(?!default_rng|Generator)|random\.\w+$", name):
                yield node.lineno
            if name.endswith("manual_seed") and "Generator()" not in name and "fork_rng" not in file.read_text():
                yield node.lineno

    assert not offenders(rule)


def test_no_function_is_left_untyped():
    def rule(file):
        functions = [n for n in ast.walk(syntax(file)) if isinstance(n, ast.FunctionDef)]
        return [f"{n.lineno} {n.name}" for n in functions if n.returns is None]

    assert not offenders(rule)


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
    from neuralsde.cli.options import PARTS

    for _, command, *rest in commands_of(file.read_text()):
        assert command in {*COMMANDS, "--help", "--version"}, command
        if command == "train":
            if rest[0] == "--config":
                continue
            assert rest[0] in {*RECIPES, "RECIPE"}, rest[0]
            cli.main(["train", rest[0].replace("RECIPE", "branching"), *rest[1:], "--dry-run"])
        elif command in COMMANDS and "--help" not in rest:
            tyro.cli(options_of(command), args=rest, registry=PARTS)
    capsys.readouterr()
