"""The benchmark of latency: who takes part, whose turn it is, what is counted, and a run with small nets."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import pusht_latency as benchmark
from pusht_latency import SLOW, Entrant, digest, race

from neuralsde.experiments.recipes.pusht import comparison
from neuralsde.nets.config import ChunkTransformerConfig, EncodedConfig, GPTConfig, LSTMConfig, MLPConfig, UNet1DConfig
from neuralsde.policy.controller import SDEPolicy
from neuralsde.solvers.replay import READY

SMALL = {
    MLPConfig: MLPConfig(width=8, depth=1),
    EncodedConfig: EncodedConfig(width=8, depth=1, memory=4, step_width=8, step_depth=1),
    UNet1DConfig: UNet1DConfig(widths=(8, 8)),
    ChunkTransformerConfig: ChunkTransformerConfig(layers=1, heads=2, width=8, dropout=0.0),
    LSTMConfig: LSTMConfig(width=8, layers=1),
    GPTConfig: GPTConfig(layers=1, heads=2, width=8),
}


def small(run):
    model = replace(run.model, net=SMALL.get(type(run.model.net), run.model.net))
    return replace(run, model=replace(model, num_samples=64) if hasattr(model, "num_samples") else model)


@pytest.fixture
def rows(monkeypatch):
    """The comparison with small nets."""
    made = {label: small(run) for label, run in comparison().items() if "image" not in label}
    monkeypatch.setattr(benchmark, "comparison", lambda: made)
    monkeypatch.setattr(benchmark, "shipped_policy", lambda: None)
    return made


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["pusht_latency.py", *map(str, arguments)])
    benchmark.main()


def test_a_run_from_end_to_end(rows, monkeypatch, tmp_path, capsys):
    pytest.importorskip("diffusers", reason="needs diffusers: pip install 'neuralsde[baselines]'")
    output = tmp_path / "results" / "latency.json"
    run(monkeypatch, "--rounds", 2, "--slow-rounds", 1, "--also", "NSDE, three nets", "--output", output)
    values = json.loads(output.read_text())
    source = values["runs"]["cpu"]
    assert source["commit"] and source["hardware"]["threads"] == 1 and source["trained_policy"] is False
    passes = {label: (row["network_passes"], row["num_actions"]) for label, row in values["rows"].items()}
    assert passes == {
        "NSDE": (8, 8),
        "Diffusion Policy, U-Net": (10, 8),
        "Diffusion Policy, U-Net, DDPM-100": (100, 8),
        "Diffusion Policy, transformer": (10, 8),
        "Diffusion Policy, transformer, DDPM-100": (100, 8),
        "Rectified Flow policy": (10, 8),
        "behaviour cloning": (1, 8),
        "LSTM-GMM": (1, 1),
        "IBC": (5, 1),
        "BET": (1, 1),
        "NSDE, three nets": (24, 8),
    }
    for row in values["rows"].values():
        assert row["cpu"]["n"] in (1, 2) and 0 < row["cpu"]["p50_ms"] <= row["cpu"]["p95_ms"] and row["parameters"] > 0
    assert values["rows"]["NSDE"]["cpu"]["ratio"] == 1.0
    text = capsys.readouterr().out
    assert "| LSTM-GMM | 1 | 1 | cpu " in text and f"Wrote {output}" in text


def test_ours_can_be_the_trained_policy(rows, monkeypatch, tmp_path):
    model = replace(rows["NSDE"].model, net=MLPConfig(width=16, depth=1))
    policy = benchmark.untrained_policy(replace(rows["NSDE"], model=model), benchmark.random_demonstrations())
    policy.save_pretrained(tmp_path / "policy")
    job = ["--rounds", 2, "--output", tmp_path / "a.json"]
    run(monkeypatch, "--policy", tmp_path / "policy", "--only", "NSDE", *job)
    values = json.loads((tmp_path / "a.json").read_text())
    wanted = sum(p.numel() for p in SDEPolicy.from_pretrained(tmp_path / "policy").model.parameters())
    assert values["runs"]["cpu"]["trained_policy"] is True and list(values["rows"]) == ["NSDE"]
    assert values["rows"]["NSDE"]["parameters"] == wanted and values["rows"]["NSDE"]["cpu"]["n"] == 2
    with pytest.raises(SystemExit, match=r"No row contains nothing\. Rows: NSDE;"):
        run(monkeypatch, "--only", "nothing", *job)


def test_what_another_device_took_stays():
    """A file of one machine with a GPU and one without; a row that is no longer run keeps what is still true of it."""
    before = {"runs": {"cpu": {"commit": "a"}, "gpu": {"commit": "b"}}}
    before["rows"] = {"NSDE": {"cpu": 1, "gpu": 2, "parameters": 3}, "IBC": {"cpu": 4, "gpu": 5}, "BET": {"cpu": 6}}
    now = {"runs": {"cpu": {"commit": "c"}}, "rows": {"NSDE": {"cpu": 7, "parameters": 8}}}
    assert benchmark.merged(before, now) == {
        "runs": {"cpu": {"commit": "c"}, "gpu": {"commit": "b"}},
        "rows": {"NSDE": {"cpu": 7, "gpu": 2, "parameters": 8}, "IBC": {"gpu": 5}},
    }
    assert benchmark.merged({}, now) == now


def test_methods_take_turns_and_slow_ones_fewer():
    """With a clock that only plans move: a fast method of 1 ms, and one at the limit."""
    now, log = [0.0], []

    def takes(name, seconds):
        def plan(k):
            log.append(name)
            now[0] += seconds

        return Entrant(plan)

    entrants = {"fast": takes("fast", 0.001), "slow": takes("slow", 2 * SLOW)}
    race(entrants, rounds=10, slow_rounds=3, clock=lambda: now[0])
    assert [e.slow for e in entrants.values()] == [False, True]
    assert entrants["fast"].seconds == pytest.approx([0.001] * 10) and entrants["slow"].seconds == pytest.approx(
        [0.2] * 3
    )
    turns = "".join(name[0] for name in log[2 * READY :])
    assert turns == "ffs" + "ff" * 3 + "ffs" + "ff" * 2 + "ffs" + "ff" * 2 + "f" * 10  # at the end it goes alone
    assert entrants["fast"].alone == pytest.approx([0.001] * 10) and not entrants["slow"].alone


def test_percentiles_and_ratios():
    entrants = {"NSDE": Entrant(print, seconds=[0.001, 0.002, 0.003]), "other": Entrant(print, seconds=[0.01, 0.03])}
    found = digest(entrants)
    assert found["NSDE"] == pytest.approx({"p50_ms": 2.0, "p95_ms": 2.9, "n": 3, "ratio": 1.0})
    assert found["other"]["ratio"] == pytest.approx(10.0) and found["other"]["n"] == 2
    assert "ratio" not in digest({"other": entrants["other"]})["other"]
    entrants["NSDE"].alone = [0.001, 0.0015, 0.004]
    assert digest(entrants)["NSDE"]["alone_ms"] == pytest.approx(1.5)


def test_what_is_timed_is_a_plan_from_a_new_observation(rows):
    policy = benchmark.contenders()["NSDE"]
    timed = benchmark.entrant(policy, "cpu")
    timed.prepare(3)
    timed.plan(3)
    first = policy.plan
    timed.prepare(4)
    timed.plan(4)
    assert first.shape == (1, 8, 2) and policy.plan.shape == (1, 8, 2) and policy.num_plans == 1
    assert (first != policy.plan).any()
