"""Encoders of the history: what they compute, what they remember, and that they fit wherever a perceptron does."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from toy_models import fields_of

import neuralsde as nsde
from neuralsde import NeuralSDE, Sampler, Trajectories
from neuralsde.baselines.config import DDIMConfig, DiffusionSteps, GaussianConfig, Generation, RectifiedFlowConfig
from neuralsde.core.formats import current
from neuralsde.core.records import from_dict, load_yaml, save_yaml, to_dict
from neuralsde.experiments.config import Experiment
from neuralsde.experiments.recipes.registry import RECIPES
from neuralsde.models.build import build
from neuralsde.nets.backbone import Form
from neuralsde.nets.config import HistoryConfig, MLPConfig
from neuralsde.nets.history import HistoryMLP
from neuralsde.sde.config import Denoiser, NeuralSDEConfig
from neuralsde.solvers.noise import Noise

ENCODERS = ["gru", "transformer"]
MODELS = {
    "NeuralSDE-start": lambda **s: NeuralSDEConfig(**s),
    "NeuralSDE-uniform": lambda **s: NeuralSDEConfig(  # `balance`: the data is rough, and the ablation is meant
        tau="uniform", denoiser=Denoiser(antithetic=True), sampler=Sampler(balance=1.0), **s
    ),
    "DDIM": lambda **s: DDIMConfig(sampler=DiffusionSteps(num_steps=4), **s),
    "RectifiedFlow": lambda **s: RectifiedFlowConfig(sampler=Generation(num_steps=4), target="increment", **s),
    "Gaussian": lambda **s: GaussianConfig(**s),
}


def small(encoder, **settings):
    return HistoryConfig(encoder=encoder, **{"memory": 8, "width": 16, "depth": 1, **settings})


def lively(net):
    """Weights that are not 0, so that everything depends on everything it can depend on."""
    torch.manual_seed(0)
    nn.init.normal_(net.outward.weight, std=0.3)
    return net.double().eval()


def make_net(encoder, shape=(2,), history=5, **more):
    return lively(HistoryMLP(small(encoder), Form(shape, history, **more)))


def make(kind, encoder, shape=(2,), history=4, context_size=2, **settings):
    rng = np.random.default_rng(0)
    states = rng.standard_normal((10, 14, *shape)).cumsum(1) * 0.3
    context = rng.standard_normal((10, 14, context_size)) if context_size else None
    data = Trajectories.from_arrays(states, dt=0.5, context=context)
    config = MODELS[kind](net=small(encoder), history=history, **settings)
    pairs = data.transitions(history=history)
    model = build(config, pairs)
    torch.manual_seed(0)
    for net in model.nets.values():
        nn.init.normal_(net.outward.weight, std=0.1)
    return model, pairs


def states(num=6, history=5, shape=(2,), seed=0):
    return torch.randn(num, history, *shape, generator=seeded(seed), dtype=torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


each_encoder = pytest.mark.parametrize("encoder", ENCODERS)
each_model = pytest.mark.parametrize("kind", MODELS)


# What is computed


def test_the_memory_of_a_gru_is_that_of_its_equations():
    net, x = make_net("gru"), states()
    step, age = torch.tensor([0.5, 2.0]), torch.rand(4, 2, generator=seeded()) + 0.5
    net.step_unit.copy_(step)
    net.age_unit.copy_(age)
    p = {k.removeprefix("encoder.gru."): v.detach().numpy() for k, v in net.named_parameters()}
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    s, h = x.numpy(), np.zeros((len(x), 8))
    for k in range(4):
        older, newer, newest = s[:, k], s[:, k + 1], s[:, -1]
        token = np.concatenate([(newer - older) / step.numpy(), (older - newest) / age[k].numpy(), newest], axis=1)
        a, b = token @ p["weight_ih_l0"].T + p["bias_ih_l0"], h @ p["weight_hh_l0"].T + p["bias_hh_l0"]
        (ar, az, an), (br, bz, bn) = np.split(a, 3, axis=1), np.split(b, 3, axis=1)
        new, keep = np.tanh(an + sigmoid(ar + br) * bn), sigmoid(az + bz)
        h = (1 - keep) * new + keep * h
    memory = net.encoder(net.tokens(x)).detach().numpy()
    np.testing.assert_allclose(memory, h, rtol=1e-5, atol=1e-6)  # the units were stored in single precision


@each_encoder
def test_the_field_is_0_at_first_and_depends_on_every_slot_later(encoder):
    x = states(shape=(1, 3))
    fresh = HistoryMLP(small(encoder), Form((1, 3), history=5)).double()
    assert fresh(x).shape == (6, 1, 3) and not fresh(x).any()
    net = make_net(encoder, (1, 3))
    x.requires_grad_()
    slopes = torch.autograd.grad(net(x).sum(), x)[0].flatten(2).abs().sum(2)
    assert bool((slopes > 1e-6).all())
    assert make_net(encoder, num_fields=2)(states()).shape == (6, 2, 2)


@each_encoder
def test_the_order_of_the_slots_matters_through_positions_alone(encoder):
    """Attention knows the order only by its positions; a GRU always does."""
    net, tokens = make_net(encoder, history=6), torch.randn(4, 5, 6, generator=seeded(), dtype=torch.float64)
    shuffled = tokens[:, [2, 0, 3, 1, 4]]  # the newest stays
    assert not torch.allclose(net.encoder(tokens), net.encoder(shuffled), atol=1e-4)
    if encoder == "transformer":
        nn.init.zeros_(net.encoder.positions)
        torch.testing.assert_close(net.encoder(tokens), net.encoder(shuffled))


@each_encoder
def test_rows_do_not_see_each_other(encoder):
    net, x = make_net(encoder), states()
    whole = net(x)
    torch.testing.assert_close(torch.cat([net(row[None]) for row in x]), whole)
    changed = x.clone()
    changed[0] += 1
    torch.testing.assert_close(net(changed)[1:], whole[1:])
    assert not torch.allclose(net(changed)[0], whole[0])


@each_encoder
def test_slopes_by_the_newest_slot_are_right_in_evaluation_mode_and_of_second_order(encoder):
    """g dg takes them where nothing is trained; learned measurement noise differentiates once more."""
    net, x = make_net(encoder), states(num=3)

    def field(newest):
        return net(torch.cat([x[:, :-1], newest[:, None]], dim=1))

    newest = x[:, -1].clone().requires_grad_()
    assert torch.autograd.gradcheck(field, (newest,))
    assert torch.autograd.gradgradcheck(field, (newest,))


@each_encoder
@pytest.mark.parametrize("mode", [True, False])
def test_gradients_need_no_mode(encoder, mode):
    net = make_net(encoder).train(mode)
    x = states().requires_grad_()
    assert torch.autograd.grad(net(x).sum(), x)[0].isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@each_encoder
def test_an_accelerator_gives_the_same_slopes(encoder):
    """cuDNN's GRU would refuse the gradient in evaluation mode."""
    x = states().requires_grad_()
    slopes = [torch.autograd.grad(make_net(encoder).to(d)(x.to(d)).sum(), x)[0] for d in ("cpu", "cuda")]
    torch.testing.assert_close(*slopes)


# Units of the tokens


@each_encoder
def test_tokens_have_unit_size_whatever_the_density_of_the_data(encoder):
    rng = np.random.default_rng(0)
    for dt in (1e-3, 0.1):
        walk = np.sqrt(dt) * rng.standard_normal((50, 200, 2)).cumsum(1)
        data = Trajectories.from_arrays(np.concatenate([walk, np.full_like(walk[..., :1], 7.0)], axis=-1), dt=dt)
        model = NeuralSDE.for_data(data, history=8, noise=0.0, denoiser=None, net=small(encoder))
        net = model.nets["flow"]
        x = model.scale.states(data.transitions(history=8).spread(2000).history)
        steps, differences = (part.square().mean((0, 1)).sqrt() for part in net.tokens(x).split(3, dim=2)[:2])
        for part in (steps, differences):
            torch.testing.assert_close(part[:2], torch.ones(2), rtol=0.1, atol=0)
            assert part[2] == 0  # a constant feature says nothing, and does not divide by 0


def test_units_count_the_noise_of_training():
    data = Trajectories.from_arrays(np.random.default_rng(0).standard_normal((20, 50, 2)).cumsum(1))
    for noise in (0.05, (0.05, 0.2)):
        model = NeuralSDE.for_data(data, history=3, noise=noise, net=small("gru"))
        x = model.scale.states(data.transitions(history=3).spread(10**6).history)
        sigma = torch.tensor(noise).expand(2)
        expected = (x.diff(dim=1).square().mean((0, 1)) + 2 * sigma**2).sqrt()
        torch.testing.assert_close(model.nets["denoiser"].step_unit, expected)


# In a model


@each_encoder
@each_model
@pytest.mark.parametrize("shape", [(2,), (1, 3, 2)])
def test_losses_reach_every_parameter(kind, encoder, shape):
    model, pairs = make(kind, encoder, shape, time_input=True)
    noise = Noise.for_step(0, 0, torch.arange(32))
    losses = model(pairs.batch(noise), noise)
    sum(losses.values()).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and torch.isfinite(p.grad).all() and p.grad.any(), name


@each_encoder
@each_model
def test_saved_models_give_the_same_samples(kind, encoder, tmp_path):
    model, pairs = make(kind, encoder)
    batch = pairs[torch.arange(5)]
    call = {"context": batch.context, "num_paths": 2}
    before = model.sample(batch.history, [0.0, 0.5, 1.5], rng=seeded(), **call)
    assert before.shape == (5, 2, 3, 2) and torch.isfinite(before).all()
    loaded = nsde.load(model.save_pretrained(tmp_path / "model"))
    assert loaded.config == model.config
    assert torch.equal(loaded.sample(batch.history, [0.0, 0.5, 1.5], rng=seeded(), **call), before)
    chunks = loaded.sample(batch.history, [0.0, 0.5, 1.5], rng=seeded(), chunk=3, **call)
    torch.testing.assert_close(chunks, before)


@each_encoder
@each_model
def test_a_few_steps_of_training_lower_the_losses(kind, encoder):
    model, pairs = make(kind, encoder, context_size=0)
    noise, batch = Noise.for_step(5, 0, torch.arange(100)), pairs[torch.arange(100)]
    with torch.no_grad():
        before = model.eval().loss(batch, noise)
    nsde.fit(model, pairs, steps=60, batch_size=64, lr=1e-2, progress=False)
    with torch.no_grad():
        after = model.loss(batch, noise)
    for name in before:
        if name != "denoiser":  # which may start near their best
            assert after[name] < before[name], name


@each_encoder
@pytest.mark.parametrize("solver", ["euler_maruyama", "heun", "milstein"])
def test_g_dg_is_the_diagonal_of_the_jacobian(encoder, solver):
    model, pairs = make("NeuralSDE-uniform", encoder, context_size=0)
    x = model.scale.states(pairs[torch.arange(5)].history)
    model.eval()

    def half_g2(newest):
        return 0.5 * torch.exp(2 * fields_of(model).log_diffusion(torch.cat([x[:, :-1], newest[:, None]], 1), None))

    jacobian = torch.autograd.functional.jacobian(lambda v: half_g2(v).sum(0), x[:, -1])  # (D, B, D)
    expected = torch.stack([jacobian[i, :, i] for i in range(2)], 1)
    unused = Noise(torch.arange(5)).signs  # the exact slope takes no probe
    with torch.no_grad():
        g_dg = fields_of(model)._g_and_dg(x, None, Sampler(correction="exact"), unused)[1]
    torch.testing.assert_close(g_dg, expected, rtol=1e-4, atol=1e-6)
    paths = model.sample(pairs[torch.arange(5)].history, [0.0, 0.3, 1.0], sampler=Sampler(solver=solver))
    assert torch.isfinite(paths).all()


@each_encoder
@pytest.mark.parametrize(("net", "precision"), [({"dropout": 0.5}, "no"), ({}, "bf16")])
def test_dropout_and_mixed_precision(encoder, net, precision):
    data = Trajectories.from_arrays(np.random.default_rng(0).standard_normal((10, 30, 2)).cumsum(1))
    model = NeuralSDE.for_data(data, history=4, noise=0.05, net=small(encoder, **net))
    nsde.fit(model, data, steps=5, precision=precision, progress=False)
    assert torch.isfinite(model.log_prob(data)).all()
    assert torch.equal(model.log_prob(data), model.log_prob(data))  # dropout is off


# Settings


@each_encoder
def test_the_kind_of_net_survives_records(encoder, tmp_path):
    recipe = RECIPES["branching"]()
    experiment = replace(recipe, model=replace(recipe.model, net=small(encoder)))
    save_yaml(experiment, tmp_path / "config.yaml")
    assert load_yaml(Experiment, tmp_path / "config.yaml") == experiment
    assert to_dict(experiment)["model"]["net"]["kind"] == "HistoryConfig"
    values = to_dict(recipe)
    del values["model"]["net"]["kind"]  # a record from before there was a choice
    assert from_dict(Experiment, current(values)) == recipe


def test_the_command_line_changes_the_net_of_a_record(tmp_path, capsys):
    from neuralsde import cli

    recipe = RECIPES["branching"]()
    save_yaml(replace(recipe, model=replace(recipe.model, net=HistoryConfig())), tmp_path / "config.yaml")
    options = ["--model.net.memory", "32", "--model.net.encoder", "transformer"]
    cli.main(["train", "--config", str(tmp_path / "config.yaml"), *options, "--dry-run"])
    (tmp_path / "again.yaml").write_text(capsys.readouterr().out)
    net = load_yaml(Experiment, tmp_path / "again.yaml").model.net
    assert net == HistoryConfig(encoder="transformer", memory=32)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"encoder": "lstm"}, r"`encoder` must be one of \['gru', 'transformer'\]. Got 'lstm'"),
        ({"memory": 0}, "`memory` must be at least 1. Got memory=0"),
        (
            {"encoder": "transformer", "memory": 30},
            r"`memory` must be a multiple of 4, the heads share it out. Got memory=30",
        ),
        ({"width": 0}, "`width` and `depth` must be positive"),
        ({"dropout": 1.0}, r"`dropout` must be in \[0, 1\)"),
    ],
)
def test_values_out_of_range_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        HistoryConfig(**values)


def test_one_slot_holds_no_past():
    data = Trajectories.from_arrays(np.random.default_rng(0).standard_normal((3, 20, 2)))
    with pytest.raises(ValueError, match=r"`history` must be at least 2 for a HistoryConfig.*Got history=1. Try 16"):
        NeuralSDE.for_data(data, net=HistoryConfig())


# Learning


def recall(rng, num_paths, length=40, lag=6):
    """x repeats 0.8 of the step it made `lag` steps ago, and adds noise: a short history sees noise alone."""
    steps = rng.standard_normal((num_paths, length + lag))
    for k in range(lag, length + lag):
        steps[:, k] = 0.8 * steps[:, k - lag] + 0.6 * steps[:, k]
    return Trajectories.from_arrays(steps[:, lag:].cumsum(1)[..., None])


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["gru", "transformer"])
def test_it_remembers_what_two_slots_cannot_hold(encoder):
    """The likelihood of a step is that of N(0, 1) without the memory and N(mean, 0.6²) with it: log 0.6 apart."""
    rng = np.random.default_rng(0)
    train, held_out = recall(rng, 400), recall(rng, 100)
    batch = held_out.transitions(history=8).spread(10**6)
    scores = {}
    for history, net in ((2, MLPConfig(width=32, depth=1)), (8, small(encoder, memory=32, width=32))):
        model = NeuralSDE.for_data(train, history=history, noise=0.0, denoiser=None, net=net)
        nsde.fit(model, train, steps=600, batch_size=256, lr=4e-3, progress=False)
        scores[history] = float(model.log_prob(replace(batch, history=batch.history[:, -history:])).mean())
    entropy = 0.5 * math.log(2 * math.pi * math.e)
    assert scores[2] == pytest.approx(-entropy, abs=0.05)
    assert scores[8] == pytest.approx(-entropy - math.log(0.6), abs=0.1)


def test_published_numbers_are_complete_and_show_that_memory_pays():
    values = json.loads((Path(__file__).parents[1] / "results" / "history.json").read_text(encoding="utf-8"))
    assert all(
        r["commit"] != "unknown" and "dirty" not in r["commit"] and r["hardware"]["cores"] for r in values["runs"]
    )
    for name, row in values["summary"].items():
        assert row["seeds"] == [0, 1, 2], name
        if name.endswith("500 paths, 2000 steps"):
            low, high = {"1": (0.7, 1.0), "2": (0.28, 0.32), "16": (0.0, 0.05)}[name.split()[0]]
            assert low < row["below_optimum"]["mean"] < high, name
