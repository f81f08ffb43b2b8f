"""Exported graphs: the same numbers as the eager model, in a runtime of their own, and files that are whole or not there."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import neuralsde as nsde
from neuralsde.cli import main
from neuralsde.core.records import RunError
from neuralsde.data.robots.demonstrations import Demonstrations
from neuralsde.export import write
from neuralsde.export.draws import GivenNoise, Listener
from neuralsde.export.formats import largest_error, run_onnx, to_onnx, trace
from neuralsde.export.graphs import model_graphs, policy_graphs
from neuralsde.export.rollout import Rollout, copy_for_export
from neuralsde.forecast import series
from neuralsde.forecast.backtest import first_kind
from neuralsde.models.build import build
from neuralsde.nets.config import EncodedConfig
from neuralsde.solvers.noise import Noise

EXAMPLE = Path(__file__).parents[1] / "examples" / "onnx_run.py"
NET = nsde.MLPConfig(width=16, depth=1)
onnx = pytest.mark.skipif(
    not all(find_spec(name) for name in write.NEEDS["onnx"]), reason="needs pip install 'neuralsde[export]'"
)
CASES = {
    "euler": {},
    "context and time": {"time_input": True},
    "phase of a period": {"time_input": 5.0},
    "history": {"history": 3, "sampler": nsde.Sampler(substeps=2)},
    "pull": {"shared": True, "sampler": nsde.Sampler(pull=0.5)},
    "moments": {"law": nsde.Moments(steps=2)},
    "mixture": {"law": nsde.Mixture()},
    "transport": {"law": nsde.Transport()},
    "deterministic": {"law": nsde.Deterministic()},
    "full": {"covariance": nsde.Full()},
    "low rank": {"covariance": nsde.LowRank(rank=1)},
    "log": {"transform": "log"},
    "whiten": {"normalise": "whiten"},
    "directions": {"normalise": "principal", "directions": 1},
}
SLOPES = {
    "heun": {"sampler": nsde.Sampler(solver="heun")},
    "heun, history": {"history": 3, "sampler": nsde.Sampler(solver="heun", substeps=2)},
    "milstein": {"sampler": nsde.Sampler(solver="milstein")},
    "uniform tau": {"tau": "uniform"},
    "measurement": {"law": nsde.Moments(measurement=True)},
}


def model_of(context=False, **settings):
    """A model with weights that matter, of two features around 100."""
    rng, times = np.random.default_rng(0), np.arange(60) * 0.5
    walks = 100 + 3 * rng.normal(0, 1, (6, 60, 2)).cumsum(1)
    held = [np.cos(times)[:, None]] * 6 if context else None
    data = nsde.Trajectories.from_arrays(list(walks), [times] * 6, context=held)
    model = nsde.NeuralSDE.for_data(data, net=NET, **settings)
    own = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.nets.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=own)
    return model.eval()


def policy_of(**settings):
    """A policy that encodes what it sees, with weights that matter."""
    rng = np.random.default_rng(0)
    seen = 256 + rng.normal(0, 8, (4, 30, 3)).cumsum(1).reshape(-1, 3)
    demos = Demonstrations.from_arrays({"state": seen}, seen[:, -2:], [30] * 4, dt=0.1)
    config = nsde.PolicyConfig(history=2, horizon=4, chunk=2, first_action=(1, 2), **settings)
    net = EncodedConfig(width=16, depth=1, memory=8, step_width=8, step_depth=1)
    sdes = nsde.NeuralSDEConfig(net=net, time_input=True, shared=True, sampler=nsde.Sampler(pull=2.0))
    model = build(sdes, nsde.action_paths(demos, seen, config).transitions())
    own = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.nets.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=own)
    return nsde.SDEPolicy.for_demonstrations(model.eval(), config, demos)


# Noise as an input


@pytest.mark.parametrize("name", ["euler", "mixture", "low rank"])
def test_a_path_is_the_same_by_keys_and_by_their_numbers(name):
    """What the solver would draw by its keys, handed over as arrays, is the same path, bit by bit."""
    model, keys = model_of(**CASES[name]), Noise.draw(3, 4)
    start = model.scale.raw(torch.zeros(4, model.config.history, 2))
    times = model.scale.step * torch.arange(6)
    listener = Listener(keys.keys)
    wanted = model.sample(start, times, rng=listener)
    assert torch.equal(wanted, model.sample(start, times, rng=keys))  # listening changes nothing
    assert listener.draws[0].name == "noise" and listener.draws[0].num_steps == 5
    assert len(listener.draws) == (1 if name == "euler" else 2)
    values = [getattr(keys, d.kind)(torch.arange(d.num_steps), d.shape, stream=d.stream) for d in listener.draws]
    given = GivenNoise.of(listener.draws, values)
    assert torch.equal(model.sample(start, times, rng=given), wanted)
    assert torch.equal(model.sample(start[1:3], times, rng=given[1:3]), wanted[1:3])


def test_what_draws_whole_numbers_is_refused():
    with pytest.raises(ValueError, match="draws whole numbers"):
        Listener(Noise.draw(0, 2).keys).integers(3)


# The loop, written out


@pytest.mark.parametrize("name", [*CASES, *SLOPES])
def test_the_loop_written_out_is_that_of_the_solver(name):
    settings = {**CASES, **SLOPES}[name]
    model = copy_for_export(model_of(context=name == "context and time", **settings))
    for graph in model_graphs(model, model.forecast_sampler, 4).values():
        with torch.set_grad_enabled(False):
            worst, _ = largest_error(graph, graph.module, (1, 5), 0)
        assert worst <= 2e-6


def test_slots_between_steps_are_interpolated():
    """Uneven output times: the older slots then lie between the points of the record."""
    model = copy_for_export(model_of(history=3))
    rollout = Rollout(model, [0.0, 0.3, 0.5, 1.25], replace(model.sampler, box=None))
    rollout.listen()
    rng = torch.Generator().manual_seed(0)
    start = model.scale.raw(torch.randn(4, 3, 2, generator=rng))
    z = [d.random(4, rng) for d in rollout.draws]
    assert any(0 < share < 1 for before, _ in rollout.places for _, share in before)
    with torch.no_grad():
        torch.testing.assert_close(rollout(start, *z), rollout.check(start, *z), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("discrete", [(), (1,)])
@pytest.mark.parametrize("form", ["path", "chunk"])
def test_a_plan_is_that_of_the_policy(form, discrete, monkeypatch):
    """By the public way: `select_action` of a policy whose noise is given."""
    monkeypatch.setattr("neuralsde.policy.controller.MAX_LEVELS", 1_000)
    policy = chunk_policy() if form == "chunk" else policy_of(discrete=discrete)
    graph = policy_graphs(policy)["plan"]
    observations, previous, *noise = graph.random(3, torch.Generator().manual_seed(1))
    with torch.no_grad():
        made = graph.module(observations, previous, *noise)
    policy.reset([0, 1, 2])
    policy.keys = GivenNoise.of(graph.draws, noise)
    policy.previous, policy.left = previous.numpy(), policy.left[:, :0]
    policy.seen = [seen.numpy() for seen in observations.unbind(1)][:-1]
    first = policy.select_action(observations[:, -1].numpy())
    np.testing.assert_allclose(made.numpy(), policy.plan, rtol=1e-6)
    np.testing.assert_allclose(made[:, 0].numpy(), first, rtol=1e-6)


def chunk_policy():
    from neuralsde.baselines.config import GaussianConfig

    rng = np.random.default_rng(0)
    seen = 256 + rng.normal(0, 8, (4, 30, 3)).cumsum(1).reshape(-1, 3)
    demos = Demonstrations.from_arrays({"state": seen}, seen[:, -2:], [30] * 4, dt=0.1)
    config = nsde.PolicyConfig(form="chunk", history=2, horizon=4, chunk=3)
    model = build(GaussianConfig(net=NET), nsde.action_paths(demos, seen, config).transitions())
    return nsde.SDEPolicy.for_demonstrations(model.eval(), config, demos)


# Files


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """A small policy and a small model as ONNX."""
    folder = tmp_path_factory.mktemp("exports")
    policy, model = policy_of(), model_of()
    nsde.export_model(policy, folder / "policy")
    nsde.export_model(model, folder / "model", steps=2)
    return folder, policy, model


@onnx
def test_onnx_agrees_with_the_policy_to_1e_5(exports):
    folder, policy, _ = exports
    contract = json.loads((folder / "policy" / "contract.json").read_text())
    for name, graph in policy_graphs(policy).items():
        record = contract["graphs"][name]
        data = (folder / "policy" / record["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == record["sha256"]
        worst, _ = largest_error(graph, run_onnx(data), (1, 3, 64), seed=5)
        assert worst <= 1e-5 and record["parity"]["max_error"] <= 1e-5


@onnx
def test_what_does_not_change_is_encoded_once(exports):
    """The plan has two steps, and one product with the first layer of the encoder."""
    import onnx as library

    folder, policy, _ = exports
    nodes = library.load(folder / "policy" / "plan.onnx").graph.node
    layers = [
        n for n in nodes if any("encoder" in i or "trunk" in i for i in n.input) and n.op_type in ("Gemm", "MatMul")
    ]
    trunk = policy.model.nets["trunk"]
    encoder = sum(isinstance(m, torch.nn.Linear) for m in trunk.encoder.modules())
    every = sum(isinstance(m, torch.nn.Linear) for m in trunk.modules())
    assert len(layers) == encoder + 2 * (every - encoder)


@onnx
def test_the_contract_says_what_goes_in(exports):
    folder, _, model = exports
    contract = json.loads((folder / "policy" / "contract.json").read_text())
    assert sorted(p.name for p in (folder / "policy").iterdir()) == ["contract.json", "plan.onnx", "step.onnx"]
    plan = contract["graphs"]["plan"]
    shapes = {p["name"]: (p["shape"], p["dtype"]) for p in plan["inputs"]}
    assert shapes == {
        "observations": (["batch", 2, 3], "float32"),
        "previous_action": (["batch", 2], "float32"),
        "noise": (["batch", 2, 2], "float32"),
    }
    assert plan["noise"] == ["noise"] and plan["output"]["shape"] == ["batch", 2, 2]
    assert plan["times"] == pytest.approx([0.1, 0.2]) and contract["policy"]["config"]["first_action"] == [1, 2]
    assert {"neuralsde", "torch", "onnx", "onnxruntime"} <= set(contract["versions"])
    contract = json.loads((folder / "model" / "contract.json").read_text())
    assert contract["model"]["units"]["mean"] == pytest.approx(model.scale.mean.tolist())
    assert contract["graphs"]["plan"]["output"]["shape"] == ["batch", 2, 2]
    assert contract["graphs"]["step"]["output"]["shape"] == ["batch", 2]


@onnx
def test_steps_end_to_end_are_the_plan(exports):
    """The step's graph, called twice with the noise of each step, gives the plan's states."""
    folder, _, model = exports
    step, plan = (run_onnx((folder / "model" / f"{name}.onnx").read_bytes()) for name in ("step", "plan"))
    rng = torch.Generator().manual_seed(0)
    x, z = model.scale.raw(torch.randn(4, 1, 2, generator=rng)), torch.randn(4, 2, 2, generator=rng)
    whole = plan(x, z)
    first = step(x, z[:, :1])
    second = step(first[:, None], z[:, 1:])
    torch.testing.assert_close(torch.stack([first, second], 1), whole, rtol=1e-6, atol=1e-4)


@onnx
def test_the_example_runs_where_torch_cannot_be_imported(exports, tmp_path):
    folder, _, _ = exports
    (tmp_path / "torch.py").write_text("raise ImportError('torch is not installed')\n")
    run = [sys.executable, str(EXAMPLE), str(folder / "policy"), str(folder / "model")]
    done = subprocess.run(run, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "plan (1, 2, 2)" in done.stdout and "forecast (200, 2, 2)" in done.stdout
    source = [line for line in EXAMPLE.read_text().splitlines() if line.strip()]
    assert len(source) <= 40 and not [line for line in source if "import torch" in line]


def test_the_command_writes_pt2_that_torch_runs(tmp_path, capsys):
    model = model_of()
    model.save_pretrained(tmp_path / "model")
    main(["export", str(tmp_path / "model"), "--format", "pt2", "--steps", "2", "--output", str(tmp_path / "out")])
    text = capsys.readouterr().out
    assert "plan from history batch×1×2, noise batch×2×2 to plan batch×2×2" in text
    plan = torch.export.load(tmp_path / "out" / "plan.pt2").module()
    rng = torch.Generator().manual_seed(0)
    x, z = model.scale.raw(torch.randn(9, 1, 2, generator=rng)), torch.randn(9, 2, 2, generator=rng)
    wanted = model.sample(x, model.scale.step * torch.arange(3), rng=GivenNoise({("normal", 0, (2,)): z}))[:, 0, 1:]
    torch.testing.assert_close(plan(x, z), wanted, rtol=1e-6, atol=1e-4)


# Doors


def test_a_slope_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ValueError, match=r"A slope of the fields is taken in every step.*correction='off'"):
        nsde.export_model(model_of(tau="uniform"), tmp_path / "out", format="pt2", steps=1)
    assert not list(tmp_path.iterdir())


def test_a_graph_that_disagrees_is_not_written(tmp_path, monkeypatch):
    model = model_of()
    graph = model_graphs(model, None, 2)["step"]
    monkeypatch.setattr(write, "trace", lambda graph: None)
    monkeypatch.setitem(write.WRITERS, "pt2", lambda graph, program: b"bytes")
    std = float(model.scale.std.min())
    off = [0.0]
    monkeypatch.setitem(write.RUNNERS, "pt2", lambda data: lambda *inputs: graph.check(*inputs) + off[0])
    monkeypatch.setattr(write, "model_graphs", lambda *given: {"step": graph})
    nsde.export_model(model, tmp_path / "right", format="pt2")
    off[0] = 1e-3 * std
    with pytest.raises(RunError, match=r"is off the eager model by 0\.001.*Nothing was written"):
        nsde.export_model(model, tmp_path / "wrong", format="pt2")
    assert [p.name for p in tmp_path.iterdir()] == ["right"]


def test_doors(tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="full exists and is not an empty folder"):
        nsde.export_model(model_of(), tmp_path / "full", format="pt2")
    with pytest.raises(ValueError, match=r"`model` must be a model, a policy, a table model or a folder\. Got a int"):
        nsde.export_model(3, tmp_path / "out")
    with pytest.raises(ValueError, match="`format` must be one of"):
        nsde.export_model(model_of(), tmp_path / "out", format="tflite")
    with pytest.raises(ValueError, match="`steps` is for models"):
        nsde.export_model(policy_of(), tmp_path / "out", format="pt2", steps=3)
    with pytest.raises(ValueError, match="`sampler` of a policy is its own"):
        nsde.export_model(policy_of(), tmp_path / "out", format="pt2", sampler=nsde.Sampler())
    with pytest.raises(ValueError, match="`steps` must give at most 1,000 solver steps"):
        nsde.export_model(model_of(), tmp_path / "out", format="pt2", steps=2_000)
    video = Path(nsde.__file__).parent / "weights" / "video"
    with pytest.raises(ValueError, match="holds a model of videos"):
        nsde.export_model(video, tmp_path / "out", format="pt2")
    monkeypatch.setattr("neuralsde.core.extras.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"Export to onnx needs onnx: pip install 'neuralsde\[export\]'"):
        nsde.export_model(model_of(), tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["full"]


# Minutes


@onnx
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_law_as_onnx(name):
    model = model_of(context=name == "context and time", **CASES[name])
    for graph in model_graphs(model, None, 3).values():
        worst, _ = largest_error(graph, run_onnx(to_onnx(graph, trace(graph))), (1, 2, 7), 0)
        assert worst <= 1e-5


@onnx
@pytest.mark.slow
def test_the_policy_of_the_library_as_onnx(tmp_path, capsys):
    main(["export", "pusht", "--output", str(tmp_path / "pusht")])
    policy = nsde.SDEPolicy.from_pretrained(Path(nsde.__file__).parent / "weights" / "pusht")
    run = run_onnx((tmp_path / "pusht" / "plan.onnx").read_bytes())
    worst, _ = largest_error(policy_graphs(policy)["plan"], run, (1, 64), seed=9)
    assert worst <= 1e-5


def test_series_that_are_taken_by_ranks_are_refused(tmp_path):
    counts = np.random.default_rng(0).poisson(0.5, 60).astype(float)
    fitted = nsde.fit_series(counts, horizon=4, max_trials=1, budget="2s", progress=False)
    record = replace(fitted.record, off=replace(fitted.record.off, curve="ranks"))
    fitted = replace(fitted, record=record)
    with pytest.raises(ValueError, match="cannot take values by their ranks"):
        nsde.export_model(fitted, tmp_path / "out")


@onnx
@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_a_model_of_series_as_onnx(tmp_path, monkeypatch, own):
    """Without noise the graph gives the library's own forecast: level, season and scale are put back."""
    import pandas as pd

    rng, days = np.random.default_rng(0), np.arange(120)
    season = 5 * np.sin(2 * np.pi * days / 7)
    frame = pd.concat(
        pd.DataFrame({"shop": k, "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(days, "D"), "sales": y})
        for k, y in enumerate(100 + season + rng.normal(0, 1, (3, 120)).cumsum(1))
    )
    monkeypatch.setattr(series, "first_kind", lambda *given: replace(first_kind(*given), own=own))
    fitted = nsde.fit_series(frame, id="shop", time="day", columns=["sales"], max_trials=1, budget="2s", progress=False)
    assert (fitted.record.off.own is not None) == own
    still = replace(fitted.model.forecast_sampler, diffusion=0.0)
    nsde.export_model(fitted, tmp_path / "out", steps=5, sampler=still)
    run = run_onnx((tmp_path / "out" / "plan.onnx").read_bytes())
    contract = json.loads((tmp_path / "out" / "contract.json").read_text())
    inputs = nsde.series_inputs(fitted, steps=5)
    noise = {p["name"]: np.zeros((3, *p["shape"][1:]), p["dtype"]) for p in contract["graphs"]["plan"]["inputs"]}
    given = [torch.from_numpy({**noise, **inputs}[p["name"]]) for p in contract["graphs"]["plan"]["inputs"]]
    wanted = fitted.futures(fitted.table, horizon=5, num_paths=1, sampler=still).samples[:, 0]
    torch.testing.assert_close(run(*given), wanted, rtol=2e-6, atol=1e-4)
    if not own:
        np.testing.assert_allclose(inputs["history"][:, -1, 0], frame.groupby("shop")["sales"].last())
