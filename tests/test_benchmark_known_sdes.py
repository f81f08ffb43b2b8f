"""The benchmark of rivals: fair sizes, right objectives, honest tables, and a run from end to end on tiny budgets."""

import json
import math
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.distributions import Normal, kl_divergence

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import known_sdes as benchmark
from peers import contenders, memory, report
from peers.contenders import METHODS, Shape, matched
from peers.prior import LatentModel, Windows, build_prior
from peers.sde_matching import NAMES, Matching, load_notebook

from neuralsde.experiments.config import KnownSDEConfig
from neuralsde.experiments.tasks import known_sdes
from neuralsde.nets.config import MLPConfig

TORCHSDE = ("torchsde_bptt", "torchsde_adjoint", "torchsde_reversible")

# A stand-in for the notebook, with the same names and shapes and none of its code
TOY = """
def jvp(): ...
def t_dir(): ...
def grad(): ...
class SDE: ...
class PriorInitDistribution(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(size))
class PosteriorEncoder(nn.Module):
    def __init__(self, size, memory):
        super().__init__()
        self.gru = nn.GRU(size, memory, batch_first=True)
class PosteriorAffine(nn.Module):
    def __init__(self, size, memory):
        super().__init__()
        self.out = nn.Linear(memory, size)
class MatchingSDE(nn.Module):
    def __init__(self, first, sde, observe, encoder, affine):
        super().__init__()
        self.first, self.sde, self.observe, self.encoder, self.affine = first, sde, observe, encoder, affine
    def forward(self, xs: Tensor, ts: Tensor) -> Tensor:
        z = self.affine.out(self.encoder.gru(xs)[0])[:, 3] + self.first.mean
        match = (self.sde.drift(z, ts[:, 3]) / self.sde.vol(z, ts[:, 3])) ** 2
        return match.sum(1) - self.observe(z).log_prob(xs[:, 3])
"""


@pytest.fixture
def checkout(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# not code"]},
        {"cell_type": "code", "source": ["raise SystemExit('the notebook itself is not run')"]},
        {"cell_type": "code", "source": TOY.splitlines(keepends=True)},
    ]
    (tmp_path / "sde_matching_from_scratch.ipynb").write_text(json.dumps({"cells": cells}))
    return tmp_path


@pytest.fixture(scope="module")
def data():
    return known_sdes.KnownSDETask(KnownSDEConfig(system="ou", num_transitions=2_000)).data()


@pytest.mark.parametrize("dim", [1, 3])
def test_all_methods_have_as_many_parameters(dim, checkout):
    data = known_sdes.KnownSDETask(KnownSDEConfig(system={1: "ou", 3: "lorenz"}[dim], num_transitions=600)).data()
    sizes = {}
    for name, method in METHODS.items():
        shape = matched(name, data, Shape(0, 0, checkout=checkout))
        sizes[name] = method.build(data, shape).num_parameters
    target = sizes["neuralsde"]
    assert all(abs(size / target - 1) < 0.02 for size in sizes.values()), sizes


def test_windows_are_pieces_of_the_paths(data):
    prior = build_prior(data, MLPConfig(width=8, depth=1))
    x = prior.scale.raw(Windows(data, prior, 20).draw(50, torch.Generator().manual_seed(0)))
    assert x.shape == (50, 21, 1)
    states = data.states.flatten().double()
    for piece in x[:5].flatten(1).double():
        first = int((states - piece[0]).abs().argmin())
        torch.testing.assert_close(piece, states[first : first + 21], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", TORCHSDE)
def test_the_bound_of_a_posterior_that_is_the_prior(data, name):
    """All drifts start at 0: the paths diverge by nothing, and the bound is the reconstruction less the first state's."""
    contender = METHODS[name].build(data, Shape(8, 8))
    model, x = contender.trained, contender.windows.draw(4, torch.Generator().manual_seed(0))
    seen = []
    solve = model.solve
    model.solve = lambda *args: seen.append(solve(*args)) or seen[-1]
    torch.manual_seed(0)
    loss = float(model.loss(x, 1.0).detach())
    z, divergence = seen[0]
    torch.testing.assert_close(divergence, torch.zeros(20, 4))
    with torch.no_grad():
        mean, log_std = model.start(model.context[:, 0]).chunk(2, dim=1)
        first = kl_divergence(Normal(mean, log_std.exp()), Normal(torch.zeros(1), torch.ones(1))).sum(1)
        log_prob = Normal(z.transpose(0, 1), model.log_error.exp()).log_prob(x).sum((1, 2))
    assert loss == pytest.approx(float((first - log_prob).mean() / 21), rel=1e-5)
    model.context = torch.zeros(500, 3, 9)  # and the paths are the prior's, here Brownian motion
    steps = solve(torch.zeros(500, 1), torch.arange(3.0))[0].diff(dim=0)
    assert float(steps.std()) == pytest.approx(float(model.prior.sizes.typical.exp()), rel=0.1)


@pytest.mark.parametrize("name", TORCHSDE)
def test_the_divergence_is_that_of_girsanov(data, name):
    """A posterior drift of constant c against none: c² / 2 g² per unit of time."""
    contender = METHODS[name].build(data, Shape(8, 8))
    model = contender.trained
    model.posterior.outward.bias.data.fill_(0.7)
    model.context = torch.zeros(16, 4, 9)
    with torch.no_grad():
        _, divergence = model.solve(torch.zeros(16, 1), torch.arange(4.0))
        u = 0.7 * model.prior.sizes.rate / model.prior.sizes.typical.exp()
    torch.testing.assert_close(divergence, (0.5 * u**2).expand(3, 16), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", TORCHSDE)
def test_gradients_reach_every_parameter(data, name):
    contender = METHODS[name].build(data, Shape(8, 8))
    for net in (
        contender.trained.posterior,
        *contender.trained.prior.nets["diffusion"].nets,
        contender.model.nets["flow"],
    ):
        torch.nn.init.normal_(net.outward.weight, std=0.1)
    contender.loss().backward()
    for name, p in contender.trained.named_parameters():
        assert p.grad is not None and torch.isfinite(p.grad).all() and p.grad.any(), name


def test_only_the_named_definitions_of_a_notebook_are_run(checkout, tmp_path):
    theirs = load_notebook(checkout)
    assert sorted(theirs) == sorted(NAMES)
    file = checkout / "sde_matching_from_scratch.ipynb"
    file.write_text(file.read_text().replace("class MatchingSDE", "class Other"))
    with pytest.raises(ValueError, match="defines no MatchingSDE"):
        load_notebook(checkout)
    with pytest.raises(ValueError, match="holds no sde_matching_from_scratch"):
        load_notebook(tmp_path / "nothing")
    with pytest.raises(ValueError, match="pass --sde-matching PATH"):
        METHODS["sde_matching"].build(None, Shape(8, 8))


def test_sde_matching_sees_the_prior_in_the_time_of_a_window(data, checkout):
    prior = build_prior(data, MLPConfig(width=8, depth=1))
    torch.nn.init.normal_(prior.nets["flow"].outward.weight)
    model = Matching(prior, load_notebook(checkout), 8, 40, noise=None, whole=True)
    z = torch.randn(5, 1, generator=torch.Generator().manual_seed(0))
    sde, observe = model.matching.sde, model.matching.observe
    f, g = prior.fields(prior.scale.raw(z))
    span = 40 * prior.scale.step
    torch.testing.assert_close(sde.drift(z, None), f / prior.scale.std * span)
    torch.testing.assert_close(sde.vol(z, None), g / prior.scale.std * math.sqrt(span))
    density = Normal(z, model.log_error.exp()).log_prob(torch.zeros(5, 1)).sum(1)
    torch.testing.assert_close(observe(z).log_prob(torch.zeros(5, 1)), 41 * density)
    once = Matching(prior, load_notebook(checkout), 8, 40, noise=0.01, whole=False)
    assert float(once.log_error.exp()) == pytest.approx(0.01) and not once.log_error.requires_grad
    assert len(list(model.parameters())) == len({id(p) for p in model.parameters()})


def test_training_by_the_clock_lowers_the_bound(data, checkout):
    for name in ("torchsde_bptt", "sde_matching"):
        contender = METHODS[name].build(data, Shape(8, 8, checkout=checkout, length=5))
        torch.manual_seed(0)
        x = contender.windows.draw(64, torch.Generator().manual_seed(1))
        before = float(contender.trained.loss(x, 1.0).detach())
        spent = contender.train(0.8, 1e-2, time.process_time)
        assert spent["steps"] >= 3 and 0.7 < spent["cpu_seconds"] < 3.3
        assert float(contender.trained.loss(x, 1.0).detach()) < before
        assert not contender.model.training


def test_a_loss_that_breaks_down_stops_the_training(data):
    class Broken(LatentModel):
        def loss(self, x, weight):
            return math.nan * self.drift(x[:, 0]).sum()

    model = Broken(build_prior(data, MLPConfig(width=8, depth=1)), None)
    contender = contenders.Latent(model, data, length=5, batch=4, anneal=0.0, seed=0)
    with pytest.raises(FloatingPointError, match="not finite at step 1"):
        contender.train(1.0, 1e-3, time.process_time)


def test_ours_takes_about_the_time_it_is_given(data):
    contender = METHODS["neuralsde"].build(data, Shape(8, 8))
    spent = contender.train(1.0, 1e-3, time.process_time)
    assert 0.4 < spent["cpu_seconds"] < 2.5 and spent["steps"] > 10


class Copy:
    """A model that stays where it is, and one that is the truth."""

    def __init__(self, truth=None):
        self.truth = truth

    def sample(self, x, times, *, rng):
        import numpy as np

        if self.truth is None:
            return x[:, None, None].expand(-1, 1, len(times), -1)
        return self.truth.simulate(x.double(), times.expand(len(x), -1), np.random.default_rng(5))[:, None]


def test_energy_distances_tell_a_frozen_model_from_the_truth(monkeypatch):
    monkeypatch.setattr(benchmark, "NUM_STARTS", 1_000)
    config = KnownSDEConfig(system="ou")
    frozen, right = (benchmark.energies(Copy(t), config) for t in (None, known_sdes.system(config)))
    for lead in benchmark.LEADS:
        assert frozen[f"energy_{lead}"] > 0.1  # the law of the later state alone would be the same
        assert abs(right[f"energy_{lead}"]) < 0.01 and abs(right[f"energy_{lead}_floor"]) < 0.01


def test_memory_is_flat_for_transitions_and_grows_for_sequences(checkout):
    size = {
        (name, length): {r["batch"]: r["bytes"] for r in memory.measure(name, length, checkout)}
        for name in ("neuralsde", "torchsde_bptt", "torchsde_adjoint", "sde_matching")
        for length in (10, 40)
    }
    assert size["neuralsde", 10]["a minibatch"] == size["neuralsde", 40]["a minibatch"]
    assert size["neuralsde", 40]["all transitions"] / size["neuralsde", 10]["all transitions"] == pytest.approx(
        4, rel=0.1
    )
    for name in ("torchsde_bptt", "torchsde_adjoint", "sde_matching"):
        growth = size[name, 40]["whole sequences"] / size[name, 10]["whole sequences"]
        assert 2.5 < growth < 4.5, name
    assert size["torchsde_adjoint", 40]["whole sequences"] < size["torchsde_bptt", 40]["whole sequences"] / 4


def rows(method, values, *, quality="drift_error", seed=0, task="ou"):
    same = {"task": task, "method": method, "seed": seed}
    return [same | {"mark": m, "cpu_seconds": m + 0.5, "steps": 50 * m, quality: v} for m, v in values.items()]


def test_factors_are_times_to_the_same_quality():
    ours = rows("neuralsde", {1: 0.5, 2: 0.3, 4: 0.1, 8: 0.05})
    theirs = rows("sde_matching", {30: 0.4, 120: 0.21, 600: 0.2})
    (entry,) = report.factors(ours + theirs)
    (seed,) = entry["seeds"]
    assert entry["quality"] == "drift_error"
    assert (seed["rival_seconds"], seed["rival_value"]) == (120.5, 0.21)  # within 5 % of its best
    assert seed["factor"] == pytest.approx(120.5 / 4.5) and not seed["first"] and seed["back"] is None
    assert seed["beyond"] == pytest.approx(600.5 / 8.5)
    (entry,) = report.factors(rows("neuralsde", {1: 0.01}) + theirs)
    assert entry["seeds"][0]["first"] and entry["seeds"][0]["factor"] == pytest.approx(120.5 / 1.5)
    (entry,) = report.factors(rows("neuralsde", {1: 0.5, 120: 0.3}) + theirs)  # a loss
    assert entry["seeds"][0]["factor"] is None and entry["seeds"][0]["back"] == pytest.approx(120.5 / 120.5)
    chance = {"quality": "excess_nll"}
    both = rows("neuralsde", {1: 9e-4}, **chance) + rows("gaussian_mlp", {1: -2e-4, 2: -5e-4}, **chance)
    assert report.factors(both)[0]["seeds"][0]["factor"] == 1  # below the resolution nobody is better


def test_a_step_is_compared_by_the_gaps_that_it_learns_from():
    text = report.steps_table({"rows": [*rows("neuralsde", {40: 0.1}), *rows("sde_matching", {40: 0.1})]})
    ours, theirs = ([c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()[2:])
    assert ours == ["Ornstein-Uhlenbeck", "ours", "512", "20.2", "39.6", "1 ×"]  # 40.5 s of 2,000 steps
    assert theirs == ["Ornstein-Uhlenbeck", "SDE Matching", "2,560", "20.2", "7.91", "0.2 ×"]


def test_tables_name_wins_losses_and_what_was_not_measured():
    found = rows("neuralsde", {1: 0.5, 2: 0.3}) + rows("neuralsde", {1: 0.6, 2: 0.2}, seed=1)
    found += rows("sde_matching", {30: 0.4}) + rows("sde_matching", {30: 0.1}, seed=1)
    found += rows("torchsde_bptt", {30: 0.7}) + rows("torchsde_adjoint", {30: None})
    found += rows("neuralsde", {2: 0.9}, task="ou_noisy") + rows("sde_matching", {30: 0.1}, task="ou_noisy")
    sizes = [
        {"method": m, "length": n, "batch": "b", "bytes": n * 2**20}
        for m in ("neuralsde", "sde_matching")
        for n in (1, 2)
    ]
    text = report.table({"rows": found, "memory": sizes})
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line]
    assert ["Ornstein-Uhlenbeck", "SDE Matching", "0.25 (0.1 to 0.4)"] in lines
    assert ["Ornstein-Uhlenbeck", "ours", "as at 2 s"] in lines
    factor = next(line for line in lines if line[1:3] == ["SDE Matching", "drift error"])
    assert factor[3] == "2" and factor[5] == "not reached by us"
    factor = next(line for line in lines if line[1:3] == ["torchsde, back-propagation", "drift error"])
    assert factor[3] == "1" and factor[5:] == ["≥ 20 ×", "0.3", "over 12 × our time"]
    assert ["ours", "b", "1", "2"] in lines
    assert ["Ornstein-Uhlenbeck", "torchsde, back-propagation", "0.7 [1]"] in lines
    assert ["Ornstein-Uhlenbeck, noisy", "SDE Matching", "0.1"] in lines
    assert set(report.LABELS) == set(METHODS)
    assert set(report.TASK_LABELS) == set(benchmark.TASKS)


class Inline:
    """A pool without processes."""

    def __init__(self, *args, **kwargs): ...
    def __enter__(self):
        return self

    def __exit__(self, *args): ...
    def submit(self, function, *args):
        return function(*args)


@pytest.fixture
def tiny(monkeypatch):
    class Done(list):
        def result(self):
            return list(self)

    monkeypatch.setattr(benchmark, "worker_pool", Inline)
    monkeypatch.setattr(benchmark, "as_completed", lambda waiting: map(Done, waiting))
    monkeypatch.setattr(benchmark, "NUM_STARTS", 50)
    monkeypatch.setattr(benchmark, "LEADS", (1, 10))
    benchmark.true_paths.cache_clear()
    for name in ("NUM_STATES", "NUM_PAIRS"):
        monkeypatch.setattr(known_sdes, name, 100)


@pytest.mark.slow
def test_a_run_from_end_to_end(tiny, tmp_path, checkout, capsys):
    output = tmp_path / "peers.json"
    common = [
        "--output",
        str(output),
        "--transitions",
        "2000",
        "--seeds",
        "0",
        "--marks",
        "0.2",
        "--own-marks",
        "0.1",
        "0.2",
    ]
    peers = ["--sde-matching", str(checkout)]
    benchmark.main([*common, *peers, "--systems", "ou"])
    benchmark.main([*common, *peers, "--systems", "ou_noisy", "--only", "neuralsde_measured"])
    values = json.loads(output.read_text())
    assert {r["method"] for r in values["rows"]} == {*benchmark.COMPARED, *benchmark.WITH_NOISE}
    assert not [r for r in values["rows"] if "error" in r]
    for row in values["rows"]:
        assert row["steps"] >= 1 and row["parameters"] and row["seconds"] > 0
        assert row["run"] == (row["task"] == "ou_noisy")
        assert ("excess_nll" in row) == (row["task"] == "ou") and math.isfinite(row["energy_10"])
        assert ("drift_error" in row) == (row["method"] != "gaussian_mlp")
    assert values["runs"][0]["versions"]["torchsde"] and values["runs"][0]["load"]
    assert str(tmp_path) not in json.dumps(values)  # no paths of this machine

    benchmark.main([*common, *peers, "--systems", "ou"])  # nothing is left to do
    assert json.loads(output.read_text() if output.exists() else "{}")["rows"] == values["rows"]
    benchmark.main([*common, "--systems", "ou", "--only", "sde_matching"])
    assert "not measured" in capsys.readouterr().out
    benchmark.main([*common, *peers, "--only", "gaussian_mlp", "--systems", "ou", "--tune"])
    benchmark.main([*common, *peers, "--only", "neuralsde", "sde_matching", "--memory", "10", "20"])
    values = json.loads(output.read_text())
    assert [r["lr"] for r in values["tuning"]] == list(contenders.LEARNING_RATES)
    assert len(values["memory"]) == 6
    assert "SDE Matching" in benchmark.table(values)


def test_a_failure_is_a_row(tiny, tmp_path, monkeypatch):
    def fail(*args):
        raise RuntimeError("no")

    monkeypatch.setattr(contenders.Pairs, "train", fail)
    job = benchmark.Job("ou", "gaussian_mlp", 0, (0.1,), 400)
    assert benchmark.run(job)[0]["error"] == "RuntimeError: no"


def test_jobs_come_longest_first_and_short_marks_share_a_worker():
    from argparse import Namespace

    args = Namespace(
        systems=["ou"],
        only=["neuralsde", "torchsde_bptt"],
        sde_matching=None,
        marks=[30, 120, 600],
        own_marks=[1, 2, 120],
        seeds=[0],
        budget=600,
        transitions=10,
        clock="wall",
    )
    found = [(job.method, job.marks) for job in benchmark.jobs(args, {("ou", "torchsde_bptt", 0, 120.0)})]
    assert found == [
        ("torchsde_bptt", (600.0,)),
        ("neuralsde", (120.0,)),
        ("neuralsde", (1.0, 2.0, 30.0)),
        ("torchsde_bptt", (30.0,)),
    ]
