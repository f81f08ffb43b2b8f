import base64
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import yaml
from commands import ENV, call, fails
from safetensors.torch import load_file

from neuralsde import __version__
from neuralsde.cli.commands import COMMANDS
from neuralsde.core.records import load_yaml
from neuralsde.experiments.config import Experiment
from neuralsde.experiments.demos import branching as branching_demo
from neuralsde.experiments.demos.branching import METHODS
from neuralsde.experiments.recipes import branching as branching_recipes
from neuralsde.experiments.recipes.registry import COMPARISONS, RECIPES
from neuralsde.nets.config import MLPConfig
from neuralsde.sde.config import NeuralSDEConfig

TINY = [
    *("--model.net.width", "8", "--model.net.depth", "1", "--train.steps", "4", "--train.batch-size", "32"),
    *("--log-every", "2", "--no-progress", "--cpu"),
    *("--task.num-paths", "4"),
]
COARSE = ["--model.sampler.substeps", "1"]  # of models that have a sampler


def nsde(*arguments, **kwargs):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "neuralsde.cli", *map(str, arguments)]
    return subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=120, **kwargs)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A finished run."""
    folder = tmp_path_factory.mktemp("runs") / "branching"
    call("train", "branching", *TINY, *COARSE, "--output", folder)
    return folder


# Help


@pytest.mark.parametrize("arguments", [["--help"], ["train", "branching", "--help"], ["list"], ["sample", "--help"]])
def test_help_is_instant_and_imports_no_torch(arguments):
    code = (
        "import sys, time\n"
        "from neuralsde.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "heavy = [m for m in ('torch', 'accelerate', 'numpy', 'matplotlib') if m in sys.modules]\n"
        "print('HEAVY', heavy, 'SECONDS', time.process_time())"  # of this process: the machine may be busy
    )
    library = "import time, tyro; print(time.process_time())"  # a second, or as slow as this machine is
    base = float(subprocess.run([sys.executable, "-c", library], env=ENV, capture_output=True, text=True).stdout)
    limit, seconds = max(1.0, 5 * base), []
    while len(seconds) < 5 and not any(s < limit for s in seconds):  # a busy machine is slow now and then
        done = subprocess.run([sys.executable, "-c", code, *arguments], env=ENV, capture_output=True, text=True)
        assert done.returncode == 0 and "HEAVY [] SECONDS" in done.stdout, done.stderr
        seconds.append(float(done.stdout.split()[-1]))
    assert min(seconds) < limit


def test_overview_names_every_command_and_no_arguments_show_it(capsys):
    call("--help")
    text = capsys.readouterr().out
    for name in COMMANDS:
        assert re.search(rf"^  {name}\b", text, re.M)
    call()
    assert capsys.readouterr().out == text
    call("--version")
    assert capsys.readouterr().out == f"neuralsde {__version__}\n"


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"train"}))
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as stop:
        call(name, "--help")
    assert stop.value.code == 0 and f"nsde {name}" in capsys.readouterr().out


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_has_help_and_is_listed(recipe, capsys):
    with pytest.raises(SystemExit) as stop:
        call("train", recipe, "--help")
    text = capsys.readouterr().out
    assert stop.value.code == 0
    video = dict.fromkeys(["collisions", "people"], "clips.source")
    own = ({"branching": "density", "ou": "system", "pusht": "observation"} | video)[recipe.split("-")[0]]
    for option in (
        "--train.lr",
        "--model.net.width" if recipe.endswith("-autoencoder") else "--model.normalise",
        f"--task.{own}",
        "--resume",
        "--dry-run",
        "--output",
    ):
        assert option in text
    call("list")
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.split()[0] == recipe]
    assert len(line.split()) > 2


def test_train_help_lists_the_recipes(capsys):
    call("train", "--help")
    text = capsys.readouterr().out
    assert "nsde train RECIPE" in text and all(name in text for name in RECIPES)


# Dry runs and repeats


@pytest.mark.parametrize("recipe", RECIPES)
def test_dry_run_prints_settings_that_config_accepts(recipe, capsys, tmp_path):
    name, value = ("num_episodes", 3) if recipe.startswith("pusht") else ("lag", 3.0)
    call("train", recipe, "--dry-run", "--train.lr", "0.125", f"--task.{name.replace('_', '-')}", value)
    text = capsys.readouterr().out
    (tmp_path / "config.yaml").write_text(text)
    wanted = RECIPES[recipe]()
    wanted = replace(wanted, train=replace(wanted.train, lr=0.125), task=replace(wanted.task, **{name: value}))
    assert load_yaml(Experiment, tmp_path / "config.yaml") == wanted
    call("train", "--config", tmp_path / "config.yaml", "--dry-run")
    assert capsys.readouterr().out == text
    call("train", "--config", tmp_path / "config.yaml", "--dry-run", "--train.seed", "9")
    assert yaml.safe_load(capsys.readouterr().out)["train"]["seed"] == 9


def test_dry_run_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    call("train", "branching", "--dry-run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_leaves_its_record(run_dir):
    names = {p.name for p in run_dir.iterdir()}
    assert {"config.yaml", "results.json", "metrics.jsonl", "model", "checkpoints"} <= names
    config = load_yaml(Experiment, run_dir / "config.yaml")
    assert (config.train.steps, config.task.num_paths, config.model.net.width) == (4, 4, 8)
    results = json.loads((run_dir / "results.json").read_text())
    assert results["experiment"]["train"]["seed"] == 0
    assert re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?|unknown", results["commit"])
    assert {"python", "torch", "numpy", "neuralsde", "accelerate"} <= results["versions"].keys()
    assert results["hardware"]["cores"] >= 1 and results["hardware"]["cpu"]
    scores = results["scores"]
    assert scores["num_paths"] == 4 and len(scores["branch_fraction"]) == 2 and scores["train_seconds"] > 0
    assert sum(scores["branch_fraction"]) + scores["neither"] == pytest.approx(1)
    assert [json.loads(x)["step"] for x in (run_dir / "metrics.jsonl").read_text().splitlines()] == [2, 4]


def test_config_repeats_a_run_bitwise(run_dir, tmp_path):
    quiet = ["--no-progress", "--cpu"]  # of no record
    call("train", "--config", run_dir / "config.yaml", "--output", tmp_path / "again", *quiet)
    weights = "model/model.safetensors"
    assert (tmp_path / "again" / weights).read_bytes() == (run_dir / weights).read_bytes()
    assert (tmp_path / "again" / "config.yaml").read_bytes() == (run_dir / "config.yaml").read_bytes()
    scores = [json.loads((d / "results.json").read_text())["scores"] for d in (run_dir, tmp_path / "again")]
    kept = [k for k in scores[0] if not k.endswith("_seconds")]
    assert str([scores[0][k] for k in kept]) == str([scores[1][k] for k in kept])
    call("train", "--config", run_dir / "config.yaml", "--output", tmp_path / "other", "--train.seed", "1", *quiet)
    assert (tmp_path / "other" / weights).read_bytes() != (run_dir / weights).read_bytes()


def test_the_seed_chooses_the_initial_weights(tmp_path):
    for seed in (0, 1):
        still = ["--train.lr", "1e-30", "--train.seed", seed, "--output", tmp_path / str(seed)]
        call("train", "branching", *TINY, *COARSE, *still)
    a, b = (load_file(tmp_path / d / "model" / "model.safetensors")["nets.flow.inward.weight"] for d in "01")
    assert (a - b).abs().max() > 0.01


@pytest.mark.parametrize("recipe", ["branching-ddim", "branching-rectified-flow", "branching-three", "branching-paper"])
def test_other_recipes_run(recipe, tmp_path):
    coarse = COARSE if isinstance(RECIPES[recipe]().model, NeuralSDEConfig) else []
    call("train", recipe, *TINY, *coarse, "--output", tmp_path / "run")
    assert (tmp_path / "run" / "results.json").exists()


def test_validation_paths_can_be_held_out(tmp_path):
    call("train", "branching", *TINY, *COARSE, "--train.val-fraction", "0.25", "--output", tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert "val_flow" in json.loads(lines[-1])


# Resume


def test_a_folder_with_a_run_needs_resume(run_dir, capsys):
    before = (run_dir / "config.yaml").read_bytes()
    text = fails(capsys, "train", "branching", *TINY, "--output", run_dir)
    assert "already holds a run. Give `--resume` to go on with it, or another folder." in text
    text = fails(capsys, "train", "branching", *TINY, *COARSE, "--output", run_dir, "--resume", "--train.lr", "0.5")
    assert "with another `--train.lr`" in text
    text = fails(capsys, "train", "branching", *TINY, *COARSE, "--output", run_dir, "--resume", "--model.tau", "start")
    assert "with another `tau`" in text
    assert (run_dir / "config.yaml").read_bytes() == before  # a refused command changes nothing


def test_ctrl_c_saves_and_resume_finishes_to_the_same_weights(tmp_path):
    job = ["train", "branching", *TINY, *COARSE, "--train.steps", "200", "--checkpoint-every", "50"]
    command = [sys.executable, "-m", "neuralsde.cli", *job, "--output", str(tmp_path / "stopped")]
    process = subprocess.Popen(command, env=ENV, stderr=subprocess.PIPE, text=True)
    for _ in range(6000):
        if (tmp_path / "stopped" / "metrics.jsonl").exists() or process.poll() is not None:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    message = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert re.search(r"nsde: Stopped at step \d+ of 200 and saved\. Go on with the same command and --resume", message)
    assert "Traceback" not in message
    call(*job, "--output", tmp_path / "stopped", "--resume")
    call(*job, "--output", tmp_path / "whole")
    a, b = (tmp_path / d / "model" / "model.safetensors" for d in ("stopped", "whole"))
    assert a.read_bytes() == b.read_bytes()


# Using a run


def test_sample_writes_npz_and_csv(run_dir, tmp_path, capsys):
    common = ["--start", "0", "0", "--stop", "4", "--num-times", "5", "--num-paths", "3", "--seed", "7"]
    call("sample", run_dir, *common, "--output", tmp_path / "a.npz")
    assert "Wrote 3 paths at 5 times" in capsys.readouterr().out
    call("sample", run_dir / "model", *common, "--output", tmp_path / "a.csv")
    arrays = np.load(tmp_path / "a.npz")
    assert arrays["times"].tolist() == [0, 1, 2, 3, 4] and arrays["paths"].shape == (3, 5, 2)
    assert (arrays["paths"][:, 0] == 0).all() and arrays["paths"][:, 1:].std() > 0
    table = np.genfromtxt(tmp_path / "a.csv", delimiter=",", names=True)
    assert table.dtype.names == ("path", "time", "x0", "x1")
    assert table["path"].tolist() == np.repeat([0, 1, 2], 5).tolist()
    np.testing.assert_allclose(table["x1"].reshape(3, 5), arrays["paths"][..., 1], rtol=1e-6)
    call("sample", run_dir, *common, "--pull", "0", "--substeps", "2", "--output", tmp_path / "b.npz")
    assert not np.array_equal(np.load(tmp_path / "b.npz")["paths"], arrays["paths"])


def test_sample_errors(run_dir, tmp_path, capsys):
    common = ["--start", "0", "0", "--stop", "4", "--num-paths", "1"]
    assert "must end in .npz or .csv" in fails(capsys, "sample", run_dir, *common, "--output", tmp_path / "a.txt")
    assert "holds no config.json" in fails(capsys, "sample", tmp_path / "nothing", *common)
    wrong = ["--start", "0", "--stop", "4", "--output", tmp_path / "a.npz"]
    assert "`history` must have shape (B, 1, 2). Got (1,)" in fails(capsys, "sample", run_dir, *wrong)
    assert "`--stop` must be positive" in fails(capsys, "sample", run_dir, *common[:3], "--stop", "-1")
    where = tmp_path / "no" / "a.npz"
    assert "No such file or directory" in fails(capsys, "sample", run_dir, *common, "--output", where)


def test_evaluate_prints_scores(run_dir, capsys):
    call("evaluate", run_dir, "--num-paths", "5", "--seed", "3")
    scores = json.loads(capsys.readouterr().out)
    assert scores["num_paths"] == 5 and scores["distance"] > 0
    assert "is not a run folder" in fails(capsys, "evaluate", run_dir / "nothing")
    unread = ["--output", "x", "--horizon", "3", "--num-times", "4", "--ids", "p0"]
    text = fails(capsys, "evaluate", run_dir, *unread)
    assert "--ids, --horizon, --num-times, --output: this is for a table. Give one with --data" in text


def test_plot_writes_an_image(run_dir, tmp_path, capsys):
    call("plot", run_dir, "--num-paths", "3", "--output", tmp_path / "paths.png")
    assert (tmp_path / "paths.png").read_bytes().startswith(b"\x89PNG")
    assert "Wrote" in capsys.readouterr().out
    assert "`--num-paths` must be at least 1. Got 0" in fails(capsys, "plot", run_dir, "--num-paths", "0")


def tiny(experiment):
    train = replace(experiment.train, steps=4, batch_size=32)
    model = replace(experiment.model, net=MLPConfig(width=8, depth=1))
    if isinstance(model, NeuralSDEConfig):
        model = replace(model, sampler=replace(model.sampler, substeps=1))
    return replace(experiment, train=train, model=model, task=replace(experiment.task, num_paths=4))


def test_compare_runs_what_is_missing(monkeypatch, tmp_path, capsys):
    rows = {k: tiny(v) for k, v in branching_recipes.comparison().items()}
    monkeypatch.setitem(COMPARISONS, "branching", lambda: rows)
    job = ["compare", "branching", "--only", "60°", "--num-workers", "1", "--output", tmp_path / "results" / "b.json"]
    call(*job, "--num-seeds", "2")
    text = capsys.readouterr().out
    assert "[2/2]" in text and "| NSDE, 60° fork |" in text and text.count("\n|") == 3
    first = json.loads((tmp_path / "results" / "b.json").read_text())
    assert [(r["label"], r["seed"]) for r in first["runs"]] == [("NSDE, 60° fork", 0), ("NSDE, 60° fork", 1)]
    distances = [r["scores"]["distance"] for r in first["runs"]]
    summary = first["summary"]["NSDE, 60° fork"]["distance"]
    assert summary["mean"] == pytest.approx(sum(distances) / 2) and summary["max"] == max(distances)
    commands = [r["command"] for r in first["runs"]]
    assert commands[1] == "nsde compare branching --only 'NSDE, 60° fork' --num-seeds 2 --output results/b.json"
    monkeypatch.chdir(tmp_path)
    call(*shlex.split(commands[1])[1:], "--num-workers", "1")  # nothing to do
    assert "[1/" not in capsys.readouterr().out
    assert "No row contains 'nothing'" in fails(capsys, "compare", "branching", "--only", "nothing")


def test_demo_trains_draws_and_reports(monkeypatch, tmp_path, capsys, short_search):
    """In threads: what `nsde compare` trains in processes of its own is tested above."""
    monkeypatch.setattr(branching_demo, "worker_pool", ThreadPoolExecutor)
    small = partial(branching_demo.fit_data, net=MLPConfig(width=8, depth=1))
    monkeypatch.setattr(branching_demo, "fit_data", small)
    for name, recipe in METHODS.items():
        monkeypatch.setitem(METHODS, name, partial(tiny, recipe()))
    monkeypatch.setattr(branching_demo, "DENSITIES", (1, 2))
    call("demo", "--steps", "4", "--num-paths", "4", "--num-workers", "1", "--output", tmp_path / "demo")
    text = capsys.readouterr().out
    names = ("NSDE", "DDIM, predicts the sample", "Rectified Flow")
    assert all(f"| {m}, density {d} |" in text for m in names for d in (1, 2))
    page = (tmp_path / "demo" / "report.html").read_text()
    images = [base64.b64decode(x) for x in re.findall(r'src="data:image/png;base64,([^"]+)"', page)]
    assert images == [(tmp_path / "demo" / f"{n}.png").read_bytes() for n in ("fit", "density", "ablation")]
    assert page.count("<tr>") == 7 and "http" not in page
    results = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert len(results["runs"]) == 6 and results["commit"]
    assert len(list((tmp_path / "demo" / "models").glob("*/model/model.safetensors"))) == 6


@pytest.mark.slow
def test_demo_as_a_user_types_it(tmp_path):
    done = nsde("demo", "--steps", "4", "--num-paths", "4", "--output", "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "demo" / "report.html").exists()


# Mistakes


def test_mistakes_end_with_code_2_and_one_line(capsys, tmp_path):
    assert "There is no command 'trian'. Commands: demo, list" in fails(capsys, "trian")
    assert "Got branchin. Recipes: branching, branching-dense" in fails(capsys, "train", "branchin")
    assert "Got nothing" in fails(capsys, "train")
    assert "There is no config file" in fails(capsys, "train", "--config", tmp_path / "none.yaml")
    assert "is not a regular file" in fails(capsys, "train", "--config", tmp_path)
    (tmp_path / "bad.yaml").write_text("nam: x\n")
    assert "Unknown key `nam`" in fails(capsys, "train", "--config", tmp_path / "bad.yaml")
    (tmp_path / "file").write_text("")
    text = fails(capsys, "train", "branching", *TINY, "--output", tmp_path / "file" / "run")
    assert "Cannot write to the folder" in text
    text = fails(capsys, "train", "branching", *TINY, "--output", tmp_path / "run", "--model.history", "2")
    assert "`--model.history` must be 1" in text and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["train", "branching", "--train.leraning-rate", "1"], "--train.leraning-rate"),
        (["train", "branching", "--train.steps", "many"], "many"),
        (["train", "branching", "--train.lr", "-1", "--dry-run"], "`lr` must be positive"),
        (["compare", "images"], "images"),
        (["demo", "--stepz", "1"], "--stepz"),
        (["sample", "model"], "--stop"),
    ],
)
def test_wrong_options_end_with_code_2_and_are_named(arguments, named, capsys):
    with pytest.raises(SystemExit) as stop:
        call(*arguments)
    captured = capsys.readouterr()
    assert stop.value.code == 2 and named in captured.err + captured.out


def test_the_installed_command_prints_no_traceback(tmp_path):
    done = nsde("train", "nothing", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
