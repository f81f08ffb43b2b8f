"""`nsde evaluate`, `nsde demo` and `nsde compare` for policies of Push-T."""

import base64
import hashlib
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("gym_pusht", reason="needs gym-pusht: pip install 'neuralsde[pusht]'")


from commands import call, fails

from neuralsde.core.records import save_yaml
from neuralsde.experiments import compare, result_tables
from neuralsde.experiments.config import ROBUSTNESS, Variant
from neuralsde.experiments.demos import pusht as demo
from neuralsde.experiments.pusht import sim as pusht_sim
from neuralsde.experiments.pusht.rollout import Failure
from neuralsde.experiments.recipes.pusht import comparison
from neuralsde.experiments.recipes.registry import COMPARISONS, RECIPES
from neuralsde.experiments.run import load_run
from neuralsde.experiments.tasks import pusht
from neuralsde.metrics.imitation import summary
from neuralsde.models.build import build
from neuralsde.nets.config import EncodedConfig
from neuralsde.policy import shipped as shipped_policy
from neuralsde.policy.controller import SDEPolicy
from neuralsde.training.config import TrainConfig

FEW = ["--num-episodes", "2", "--num-workers", "1"]


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    """Three episodes of an agent that wanders about a block at rest."""
    rng = np.random.default_rng(0)
    agent = np.clip(256 + rng.normal(0, 10, (3, 30, 2)).cumsum(1), 50, 450).astype(np.float32)
    block = np.broadcast_to(np.float32([256.0, 300.0, 0.7]), (3, 30, 3))
    file = tmp_path_factory.mktemp("data") / "demos.npz"
    state = np.concatenate([agent, block], axis=2)
    np.savez(file, action=agent.reshape(-1, 2), state=state.reshape(-1, 5), episode_ends=[30, 60, 90])
    return file


def tiny(file, **task):
    """The recipe with a small net, few steps and two episodes."""
    run = RECIPES["pusht"]()
    return replace(
        run,
        task=replace(run.task, data=str(file), variants=(), num_episodes=2, **task),
        model=replace(run.model, net=EncodedConfig(width=8, depth=1, memory=4, step_width=8, step_depth=1)),
        train=TrainConfig(steps=2, batch_size=16),
    )


@pytest.fixture(scope="module")
def folder(demonstrations, tmp_path_factory):
    """A policy with random weights."""
    run = tiny(demonstrations)
    model = build(run.model, pusht.PushTTask(run.task).data().transitions())
    torch.nn.init.normal_(model.nets["trunk"].outward.weight, std=0.3, generator=torch.Generator().manual_seed(0))
    return pusht.PushTTask(run.task).policy(model).save_pretrained(tmp_path_factory.mktemp("policy"))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Episodes of a second, in this process where nothing else is asked for."""
    whole = pusht.conditions
    monkeypatch.setattr(pusht, "evaluate", partial(pusht.evaluate, num_workers=1))
    monkeypatch.setattr(pusht, "conditions", lambda variant: replace(whole(variant), seconds=1.0))


# Evaluate


def test_a_run_of_a_recipe_leaves_a_policy(demonstrations, tmp_path, capsys):
    save_yaml(tiny(demonstrations), tmp_path / "tiny.yaml")
    call("train", "--config", tmp_path / "tiny.yaml", "--output", tmp_path / "run")
    scores = json.loads((tmp_path / "run" / "results.json").read_text())["scores"]
    assert SDEPolicy.from_pretrained(tmp_path / "run" / "model").observation == "keypoints"
    assert load_run(tmp_path / "run")[1].task.num_episodes == 2
    capsys.readouterr()
    same = ["--first-seed", "200000", *FEW]
    call("evaluate", tmp_path / "run", *same)
    of_run = capsys.readouterr().out
    call("evaluate", tmp_path / "run" / "model", *same)
    assert capsys.readouterr().out == of_run
    assert f"score    {scores['score']:.3f}" in of_run and "seeds 200000-200001" in of_run


def test_evaluate_prints_both_figures_and_writes_them(folder, tmp_path, capsys):
    files = [tmp_path / "new" / name for name in ("film.gif", "paths.png", "results.json")]
    call(
        "evaluate",
        folder,
        *FEW,
        "--video",
        files[0],
        "--picture",
        files[1],
        "--output",
        files[2],
        "--video-seed",
        200001,
    )
    text = capsys.readouterr().out
    wanted = summary(pusht.evaluate(folder, [200000, 200001], num_workers=1).episodes)
    assert re.search(rf"^score    {wanted['score']['mean']:.3f}  \(95 %: 0\.\d+ to [01]\.\d+\)$", text, re.M)
    assert re.search(
        rf"^success  {wanted['success']['mean']:.3f}  \(95 %: {wanted['success']['low']:.3f} to", text, re.M
    )
    assert "2 episode(s), seeds 200000-200001" in text and "Lost" not in text
    assert "The score is the mean over episodes of the best reward" in text and "success is the share" in text
    assert all(f"Wrote {file}" in text for file in files) and text.count("the episode of seed 200001") == 2
    assert files[0].read_bytes().startswith(b"GIF8") and files[1].read_bytes().startswith(b"\x89PNG")
    record = json.loads(files[2].read_text())
    assert record["scores"]["score"]["mean"] == wanted["score"]["mean"] and record["scores"]["score"]["n"] == 2
    assert record["failures"] == [] and list(record["best_coverage"]) == ["200000", "200001"]
    assert record["commit"] and record["hardware"]["cores"] and record["parameters"] > 100


def test_one_episode_has_no_interval(folder, capsys):
    call("evaluate", folder, "--num-episodes", "1", "--num-workers", "1")
    assert re.search(r"^score    0\.\d{3}$", capsys.readouterr().out, re.M)


@pytest.fixture
def stand_in(folder, monkeypatch):
    """Two episodes in place of what is asked for, with what was asked and room for failures."""
    rollout = pusht.evaluate(folder, [200000, 200001], num_workers=1)
    asked = {"failures": rollout.failures}

    def evaluate(folder, seeds, **options):
        asked.update(options, folder=folder, seeds=seeds)
        return rollout

    monkeypatch.setattr(pusht, "evaluate", evaluate)
    return asked


@pytest.mark.parametrize(
    "option", ["noise=0.01", "delay=1", "push=50.0", "control_hz=20.0", "chunk=4", "diffusion=0.5", "pull=2.0"]
)
def test_every_option_reaches_the_simulation(folder, stand_in, option):
    name, value = option.split("=")
    call("evaluate", folder, "--first-seed", "7", "--num-workers", "3", f"--{name.replace('_', '-')}", value)
    assert stand_in["seeds"] == range(7, 507) and stand_in["num_workers"] == 3 and stand_in["folder"] == folder
    assert stand_in["variant"] == replace(stand_in["variant"], **{name: float(value)})
    assert Variant(**vars(stand_in["variant"])) != Variant(name="")


def test_lost_episodes_are_reported_and_the_others_count(folder, stand_in, tmp_path, capsys):
    stand_in["failures"].append(Failure((200002, 200003), "The worker died with exit code -9."))
    lost = ["--num-episodes", "4", "--video-seed", "200003", "--picture", tmp_path / "a.png"]
    call("evaluate", folder, *lost, "--output", tmp_path / "r.json")
    text = capsys.readouterr().out
    assert "! Lost: the episodes of seeds 200002-200003. The worker died with exit code -9." in text
    assert "2 episode(s), seeds 200000-200001" in text
    assert "! The episode of seed 200003 was lost: nothing is drawn." in text and not (tmp_path / "a.png").exists()
    assert json.loads((tmp_path / "r.json").read_text())["failures"][0]["seeds"] == "200002-200003"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--video", "a.avi"], "`--video` must end in .gif or .mp4. Got a.avi"),
        (["--picture", "a.gif"], "`--picture` must end in .png or .pdf or .svg. Got a.gif"),
        (["--output", "results"], "`--output` must end in .json for a policy. Got results"),
        (["--video-seed", "5"], "`--video-seed` must be one of the episodes, 200000 to 200499. Got 5"),
        (["--num-episodes", "0"], "`--num-episodes` must be at least 1. Got 0"),
        (["--control-hz", "7"], "`--control-hz` must divide 100"),
        (["--chunk", "99"], "`--chunk` must not exceed `--horizon`"),
        (["--delay", "-1", "--num-workers", "1"], "`--delay` must be >= 0. Got -1"),
        (["--first-seed", "-2", *FEW], "`seeds` must be different integers >= 0"),
        (["--generation", "ddpm"], "`--generation` is for diffusion models. Got a NeuralSDE"),
        (["--data", "table.csv", "--num-paths", "3"], "--data, --num-paths: "),
    ],
)
def test_what_cannot_be_simulated_is_said_at_once(folder, options, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, "evaluate", folder, *options)
    assert list(tmp_path.iterdir()) == []


def test_options_of_policies_are_for_policies(tmp_path, capsys):
    text = fails(capsys, "evaluate", tmp_path, "--noise", "0.1", *FEW)
    assert "--num-episodes, --num-workers, --noise: this is for a policy" in text and "has no policy.json" in text


def test_a_policy_of_another_task_is_refused(folder, tmp_path, capsys):
    policy = SDEPolicy.from_pretrained(folder)
    policy.observation = "joints"
    policy.save_pretrained(tmp_path)
    assert "does not act on Push-T: it observes 'joints'" in fails(capsys, "evaluate", tmp_path, *FEW)


@pytest.mark.parametrize(
    ("module", "options", "extra"),
    [
        ("gym_pusht.envs", [], "pusht"),
        ("PIL", ["--video", "a.gif"], "video"),
        ("av", ["--video", "a.mp4"], "video"),
        ("matplotlib", ["--picture", "a.png"], "plots"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "demo"])
def test_what_is_not_installed_is_named(folder, module, options, extra, command, monkeypatch, capsys):
    if command == "demo" and module == "av":
        return
    pusht_sim.gym_pusht.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    arguments = ["evaluate", folder, *options] if command == "evaluate" else ["demo", "pusht", "--policy", folder]
    assert f"pip install 'neuralsde[{extra}]'" in fails(capsys, *arguments)


# Demo


def test_demo_plays_draws_and_reports(folder, tmp_path, capsys):
    call(
        "demo", "pusht", "--policy", folder, "--output", tmp_path / "demo", "--num-episodes", "3", "--num-workers", "1"
    )
    text = capsys.readouterr().out
    assert "score  " in text and "3 episode(s), seeds 200000-200002" in text
    assert all(str(tmp_path / "demo" / name) in text for name in ("episode.gif", "trajectories.png", "report.html"))
    page = (tmp_path / "demo" / "report.html").read_text()
    images = [base64.b64decode(x) for x in re.findall(r'src="data:image/\w+;base64,([^"]+)"', page)]
    assert images == [(tmp_path / "demo" / name).read_bytes() for name in ("episode.gif", "trajectories.png")]
    assert "seed 200000" in page and "3 episode(s)" in page and "http" not in page
    results = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert results["scores"]["score"]["n"] == 3 and results["commit"] and results["failures"] == []


def test_demo_needs_a_policy(tmp_path, capsys, monkeypatch):
    assert "holds no policy.json" in fails(capsys, "demo", "pusht", "--policy", tmp_path)
    monkeypatch.setattr(shipped_policy.resources, "files", lambda package: tmp_path)
    assert "holds no trained policy" in fails(capsys, "demo", "pusht", "--output", tmp_path / "demo")
    (tmp_path / "weights" / "pusht").mkdir(parents=True)
    (tmp_path / "weights" / "pusht" / "policy.json").write_text("{}")
    assert demo.shipped() == tmp_path / "weights" / "pusht"


def test_demo_options_belong_to_one_of_them(folder, capsys):
    assert "--steps: this is for `nsde demo branching`." in fails(capsys, "demo", "pusht", "--steps", "4")
    assert "--policy: this is for `nsde demo pusht`." in fails(capsys, "demo", "--policy", folder)
    assert "must be at least 1. Got 0" in fails(capsys, "demo", "pusht", "--policy", folder, "--num-episodes", "0")


# Compare


def test_compare_takes_the_data_from_where_it_lies(demonstrations, tmp_path, capsys, monkeypatch):
    """In threads: processes of their own are tested in test_cli.py."""
    monkeypatch.setattr(compare, "worker_pool", ThreadPoolExecutor)
    rows = {"NSDE": tiny("data/pusht.npz", first_seed=200_000), "BET": tiny("nowhere.npz")}
    monkeypatch.setitem(COMPARISONS, "pusht", lambda: rows)
    output = tmp_path / "pusht.json"
    latency = {"rows": {"NSDE": {"num_actions": 8, "network_passes": 8, "cpu": {"p50_ms": 3.456}}}}
    (tmp_path / "pusht_latency.json").write_text(json.dumps(latency))
    job = ["compare", "pusht", "--only", "NSDE", "--num-seeds", "1", "--num-workers", "1", "--output", output]
    call(*job, "--data", demonstrations, "--num-episodes", "1")
    text = capsys.readouterr().out
    assert re.search(
        r"^\| NSDE \| 0\.\d{3} \| 0\.000 ± 0\.397 \| 0\.00 M \| 8 \| 3\.46 \| – \| \d+ \| 1 × 1 \|$", text, re.M
    )
    (run,) = json.loads(output.read_text())["runs"]
    assert run["experiment"]["task"]["data"] == "data/pusht.npz" and run["experiment"]["task"]["num_episodes"] == 1
    assert run["demonstrations_sha256"] == hashlib.sha256(Path(demonstrations).read_bytes()).hexdigest()
    assert "--num-episodes=1" in run["command"] and str(demonstrations) not in run["command"]
    call(*job, "--num-episodes", "1")  # nothing to do, so nothing to read
    assert "[1/" not in capsys.readouterr().out
    assert "--data: this is for `nsde compare pusht`." in fails(capsys, "compare", "branching", "--data", "a")


def summarised(**scores):
    runs = [{"seed": k, "scores": {name: value + 0.01 * k for name, value in scores.items()}} for k in range(3)]
    for run in runs:
        run["scores"] |= {"num_episodes": 500, "parameters": 2_500_000}
    return compare.summarise(runs)


def cells(table, label):
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_mirror_images_are_episodes_of_their_own(demonstrations):
    """What is learned from the second half is the mirror image of what is learned from the first."""
    plain, both = (tiny(demonstrations, mirror=mirror).task for mirror in (False, True))
    once, twice = pusht.PushTTask(plain).data(), pusht.PushTTask(both).data()
    assert len(pusht.PushTTask(both).demonstrations()) == 6 and len(twice) == 2 * len(once)
    first, second = twice.states.reshape(2, -1, 2)
    torch.testing.assert_close(first, once.states)
    torch.testing.assert_close(second, pusht_sim.SIZE - first.flip(1))
    agent = twice.context[:, :2].reshape(2, -1, 2)
    torch.testing.assert_close(agent[1], pusht_sim.SIZE - agent[0].flip(1))
    assert len(pusht.PushTTask(tiny(demonstrations, mirror=True, num_demonstrations=2).task).demonstrations()) == 4


def test_tables_show_methods_worlds_and_ablations():
    worlds = {f"{v.name}: {k}": x for v in ROBUSTNESS for k, x in (("score", 0.8), ("success", 0.3))}
    base = {"score": 0.96, "success": 0.5, "train_seconds": 100.0}
    values = {
        "summary": {
            "NSDE": summarised(**base, **worlds),
            "Diffusion Policy, U-Net": summarised(
                **base, **{"DDPM-100: score": 0.9, "DDPM-100: success": 0.4}, **worlds
            ),
            "BET": {},
            "NSDE, new": summarised(**base, **{"chunk 4: score": 0.7, "chunk 4: success": 0.2}),
        },
        "latency": {
            "rows": {
                "NSDE": {"num_actions": 8, "network_passes": 8, "cpu": {"p50_ms": 4.0}, "gpu": {"p50_ms": 2.5}},
                "BET": {"num_actions": 1, "network_passes": 1, "parameters": 1_000_000, "cpu": {"p50_ms": 1.25}},
            }
        },
    }
    methods, robustness, ablations = result_tables.pusht(values).split("\n\n")
    half = "0.970 ± 0.025"
    assert cells(methods, "NSDE") == [half, "0.510 ± 0.025", "2.50 M", "8", "4", "2.5", "100", "3 × 500"]
    assert cells(methods, "Diffusion Policy, U-Net, DDPM-100")[:2] == ["0.910 ± 0.025", "0.410 ± 0.025"]
    assert cells(methods, "BET") == ["not measured", "–", "1.00 M", "1", "1.25 per action", "–", "–", "–"]
    assert cells(methods, "IBC")[0] == "not measured"  # not in the file at all
    shown = [line.split("|")[1].strip() for table in (methods, ablations) for line in table.splitlines()[2:]]
    planned = [
        f"{name}, {v.name}" for name, row in comparison().items() for v in row.task.variants if v not in ROBUSTNESS
    ]
    assert sorted(shown) == sorted(
        [*comparison(), *planned, "NSDE, new", "NSDE, new, chunk 4", "NSDE"]
    )  # ours is in both
    tried = ["NSDE", "Diffusion Policy, U-Net", "NSDE, learned from noisy observations"]
    columns = [f"{name}: {figure}" for name in tried for figure in ("score", "success")]
    assert robustness.splitlines()[0] == f"| world | {' | '.join(columns)} |"
    assert cells(robustness, "as in training")[::2] == [half, half, "not measured"]
    assert cells(robustness, "noise 1 %") == ["0.810 ± 0.025", "0.310 ± 0.025"] * 2 + ["not measured", "–"]
    assert cells(ablations, "NSDE")[0] == half and cells(ablations, "NSDE without denoiser")[0] == "not measured"
    assert cells(ablations, "NSDE, new, chunk 4") == ["0.710 ± 0.025", "0.210 ± 0.025", "3 × 500"]
    once = compare.summarise([{"seed": 0, "scores": {**base, "score_half_width": 0.01, "num_episodes": 500}}])
    alone = result_tables.pusht_ablations({"summary": {"NSDE": once}})  # one seed: intervals over episodes
    assert cells(alone, "NSDE") == ["0.960 ± 0.010", "0.500 ± 0.044", "1 × 500"]
    nothing = result_tables.pusht_robustness({"summary": {}})
    assert cells(nothing, "5 Hz") == ["not measured", "–"] * 3


def test_runs_with_other_scores_are_summarised_by_what_they_have():
    runs = [{"seed": 0, "scores": {"score": 1.0}}, {"seed": 1, "scores": {"score": 3.0, "more": 5.0, "parameters": 7}}]
    out = compare.summarise(runs)
    assert out["score"]["mean"] == 2.0 and out["more"]["mean"] == 5.0 and out["parameters"] == 7
