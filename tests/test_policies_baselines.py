"""Rivals of a policy: their laws, two ways to act, and what they owe as sequence models."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import neuralsde as nsde
from neuralsde.baselines.bet import k_means
from neuralsde.baselines.config import (
    BETConfig,
    DDIMConfig,
    DiffusionSteps,
    IBCConfig,
    LSTMGMMConfig,
    RectifiedFlowConfig,
)
from neuralsde.baselines.imitation import draw_index
from neuralsde.data.trajectories import Trajectories
from neuralsde.models.build import build
from neuralsde.nets.config import ChunkTransformerConfig, GPTConfig, LSTMConfig, MLPConfig, UNet1DConfig
from neuralsde.sde.config import Deterministic, NeuralSDEConfig
from neuralsde.solvers.noise import Noise

MLP = MLPConfig(width=32, depth=2)
UNET = UNet1DConfig(widths=(32, 32))
TRANSFORMER = ChunkTransformerConfig(layers=1, heads=2, width=32, dropout=0.0)
POLICIES = {
    "LSTMGMM": LSTMGMMConfig(net=LSTMConfig(width=32, layers=2)),
    "IBC": IBCConfig(net=MLP, num_samples=256),
    "BET": BETConfig(net=GPTConfig(layers=1, heads=2, width=32), num_bins=8),
}
DIFFUSERS = {
    "DDIM-unet": DDIMConfig(net=UNET, normalise="min_max"),
    "DDIM-transformer": DDIMConfig(net=TRANSFORMER, normalise="min_max"),
    "DDPM-unet": DDIMConfig(net=UNET, normalise="min_max", sampler=DiffusionSteps(variant="ddpm", num_steps=100)),
    "RF-unet": RectifiedFlowConfig(net=UNET, normalise="min_max"),
    "RF-transformer": RectifiedFlowConfig(net=TRANSFORMER, normalise="min_max"),
}
PASSES = {"LSTMGMM": 1, "IBC": 5, "BET": 1, "DDPM-unet": 100}
ALL = POLICIES | DIFFUSERS
every_model = pytest.mark.parametrize("name", ALL)
every_policy = pytest.mark.parametrize("name", POLICIES)


def demonstrations(shape, num=600, seed=0):
    """Two observations of two numbers; the action is +m or -m with even odds, and m = 1 + c / 2 for an observed c.

    Observations come in units of their own, and actions are about 3.
    """
    rng = np.random.default_rng(seed)
    seen = rng.uniform(-1, 1, (num, 2, 2))
    size = 1 + seen[:, 1, 0] / 2
    sign = rng.choice([-1.0, 1.0], num)
    action = np.broadcast_to((sign * size).reshape(num, *[1] * len(shape)), (num, *shape))
    states = np.stack([np.zeros_like(action), action + 0.02 * rng.standard_normal(action.shape)], axis=1) + 3
    context = np.repeat((10 * seen + 5).reshape(num, 1, 4), 2, axis=1)
    return Trajectories.from_arrays(states, dt=1.0, context=context)


def shape_of(name):
    return (2,) if name in POLICIES else (4, 2)


def make(name, shape=None, **settings):
    pairs = demonstrations(shape or shape_of(name)).transitions()
    model = build(replace(ALL[name], **settings), pairs)
    torch.manual_seed(0)
    torch.nn.init.normal_(model.nets["net"].outward.weight, std=0.3)  # they may start at 0, where much looks right
    return model, pairs


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# The law of each


def mixture(model, batch):
    with torch.no_grad():
        log_weight, mean, std = model.eval().law(model.read(batch)[0])
    parts = torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)
    return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=log_weight), parts)


@pytest.mark.parametrize("shape", [(2,), (3, 2)])
def test_the_density_of_a_mixture_is_that_of_torch(shape):
    model, pairs = make("LSTMGMM", shape)
    batch = pairs[torch.arange(20)]
    y = model.scale.states(batch.next).flatten(1)
    law = mixture(model, batch).log_prob(y)
    torch.testing.assert_close(model.log_prob(batch), law - model.scale.std.log().sum())
    assert float(model.loss(batch, Noise(torch.arange(20)))["likelihood"].detach()) == pytest.approx(-float(law.mean()))
    assert model.log_prob(demonstrations(shape)).shape == (600,)


def test_the_density_of_a_mixture_integrates_to_one():
    model, pairs = make("LSTMGMM")
    axis = torch.linspace(-17, 23, 201)
    grid = torch.tensor(list(itertools.product(axis.tolist(), repeat=2)))
    one = pairs[torch.zeros(1, dtype=torch.long)]
    batch = replace(
        one,
        history=one.history.expand(len(grid), -1, -1),
        next=grid,
        context=one.context.expand(len(grid), -1),
        dt=one.dt.expand(len(grid)),
        time=one.time.expand(len(grid)),
    )
    assert float(model.log_prob(batch).exp().sum()) * 0.2**2 == pytest.approx(1.0, abs=0.01)


def test_a_mixture_is_drawn_from_at_its_means():
    model, pairs = make("LSTMGMM")
    batch = pairs[torch.arange(1)]
    call = {"context": batch.context, "num_paths": 20_000}
    law = mixture(model, batch)
    drawn = model.scale.states(model.sample(batch.history, [0, 1], rng=seeded(), **call)[0, :, 1])
    means = law.component_distribution.mean[0]
    nearest = torch.cdist(drawn, means)
    assert float(nearest.amin(1).max()) < 1e-3
    share = torch.bincount(nearest.argmin(1), minlength=5) / 20_000
    torch.testing.assert_close(share, law.mixture_distribution.probs[0], atol=0.02, rtol=0)


def test_places_are_drawn_by_their_probability():
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 2.0]])
    uniform = Noise.draw(seeded(), 1).uniform(0, (40_000,))
    share = torch.bincount(draw_index(logits, uniform)[0], minlength=4) / 40_000
    torch.testing.assert_close(share, torch.softmax(logits[0], 0), atol=0.01, rtol=0)
    assert draw_index(logits, torch.tensor([[1e-17, 1 - 1e-16]], dtype=torch.float64)).tolist() == [[0, 3]]
    assert (
        int(draw_index(logits[:, [2, 0]], torch.zeros(1, 1, dtype=torch.float64))) == 1
    )  # what has no share is never drawn


@pytest.mark.parametrize("seed", range(5))
def test_k_means_finds_separate_clusters(seed):
    rng = seeded(seed)
    truth = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0], [9.0, 9.0], [-6.0, 3.0]])
    points = (truth[:, None] + 0.2 * torch.randn(5, 40, 2, generator=rng)).flatten(0, 1)
    centres = k_means(points[torch.randperm(200, generator=rng)], 5, seed=seed)
    means = points.reshape(5, 40, 2).mean(1)
    assert float(torch.cdist(means, centres).amin(1).max()) < 1e-4
    assert torch.equal(k_means(points, 3), k_means(points, 3))


def test_k_means_of_fewer_points_than_clusters():
    assert set(k_means(torch.tensor([[1.0], [1.0], [2.0]]), 5)[:, 0].tolist()) == {1.0, 2.0}


def test_bins_and_offsets_give_back_the_action():
    model, pairs = make("BET")
    batch = pairs[torch.arange(50)]
    y = model.read(batch)[1]
    own = torch.cdist(y, model.centres).argmin(1)

    def perfect(_):
        logits = torch.full((50, 8), -50.0).scatter(1, own[:, None], 50.0)
        offset = ((y - model.centres[own]) / model.spread)[:, None].expand(-1, 8, -1)
        return torch.cat([logits[:, :, None], offset], dim=2)

    model.nets["net"].forward = perfect
    losses = model.loss(batch, Noise(torch.arange(50)))
    assert float(losses["bins"]) < 1e-6 and float(losses["offset"]) < 1e-10
    paths = model.sample(batch.history, [0, 1], context=batch.context)
    torch.testing.assert_close(paths[:, 0, 1], batch.next, atol=1e-4, rtol=1e-4)


def test_the_focal_loss_is_cross_entropy_of_what_is_unlikely():
    model, pairs = make("BET")
    batch, noise = pairs[torch.arange(50)], Noise(torch.arange(50))
    tokens, y = model.read(batch)
    p = torch.exp(model.choices(tokens)[0]).gather(1, torch.cdist(y, model.centres).argmin(1)[:, None])
    focal = float(model.loss(batch, noise)["bins"].detach())
    assert focal == pytest.approx(float(((1 - p) ** 2 * -p.log()).mean().detach()), rel=1e-4)


def test_samples_are_weighed_by_their_energy_and_scattered_less_and_less():
    model, pairs = make("IBC", num_samples=1_024)
    torch.testing.assert_close(model.high, torch.full((2,), 1.1), atol=0.03, rtol=0)  # a margin of 5 % of 2
    model.nets["net"].forward = lambda tokens, actions: 20 * (actions - 0.1).square().sum(2)
    batch = pairs[torch.arange(1)]
    call = {"context": batch.context, "num_paths": 400, "rng": seeded()}
    drawn = model.scale.states(model.sample(batch.history, [0, 1], **call)[0, :, 1])
    variance = 1 / 40  # of exp(-energy): Gaussians stay Gaussian
    for k in range(4):
        variance = 1 / (1 / (variance + (0.33 * 0.5**k * float(model.high[0])) ** 2) + 40)
    torch.testing.assert_close(drawn.mean(0), torch.full((2,), 0.1), atol=4 * math.sqrt(variance / 400), rtol=0)
    assert float(drawn.var(0).mean().sqrt()) == pytest.approx(math.sqrt(variance), rel=0.1)
    model.nets["net"].forward = lambda tokens, actions: 0 * actions.sum(2)
    drawn = model.scale.states(model.sample(batch.history, [0, 1], **call)[0, :, 1])
    assert float((drawn - model.high).max()) <= 1e-5 and float((model.low - drawn).max()) <= 1e-5


def test_the_energy_loss_is_that_of_the_right_one_among_all():
    model, pairs = make("IBC")
    batch, noise = pairs[torch.arange(50)], Noise(torch.arange(50))
    model.nets["net"].forward = lambda tokens, actions: 0 * actions.sum(2)
    assert float(model.loss(batch, noise)["energy"]) == pytest.approx(math.log(257))
    seen = []
    model.nets["net"].forward = lambda tokens, actions: seen.append(actions) or 0 * actions.sum(2)
    model.loss(batch, noise)
    torch.testing.assert_close(seen[0][:, 0], model.scale.states(batch.next))
    others = (seen[0][:, 1:] - model.low) / (model.high - model.low)
    assert others.min() >= 0 and others.max() <= 1
    assert float(others.mean()) == pytest.approx(0.5, abs=0.02) and float(others.var()) == pytest.approx(
        1 / 12, rel=0.05
    )


# Two ways to act

STEPS = {"LSTMGMM": 200, "IBC": 500, "BET": 150, "DDIM-unet": 300, "RF-transformer": 400}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ("DDIM-unet", "IBC"))) for n in STEPS]
)
def test_both_ways_are_taken_about_equally_often(name):
    model, pairs = make(name)
    nsde.fit(model, pairs, steps=STEPS[name], batch_size=64, lr=3e-3, progress=False)
    for c in (-0.6, 0.6):
        context = torch.tensor([[0.0, 0.0, 10 * c, 0.0]]) + 5
        drawn = model.sample(torch.full(shape_of(name), 3.0), [0, 1], context=context, num_paths=400, rng=seeded())
        action = drawn[0, :, 1].reshape(400, -1) - 3
        least = 0.2 if name == "IBC" else 0.3  # whose five weighings raise small differences to the fifth power
        assert least < float((action.mean(1) > 0).float().mean()) < 1 - least
        right = (action.mean(1).abs() - (1 + c / 2)).abs() < 0.3
        assert float(right.float().mean()) > 0.75


def test_plain_behaviour_cloning_gives_the_mean_of_the_chunks():
    pairs = demonstrations((4, 2)).transitions()
    config = NeuralSDEConfig(net=MLP, law=Deterministic(), denoiser=None, noise=0.0, tau="start")
    model, batch = build(config, pairs), pairs[torch.arange(100)]
    with torch.no_grad():
        error = model.loss(batch, Noise(torch.arange(100)))["flow"]
    again = model.scale.states(batch.next) - model.scale.states(batch.history[:, -1])
    assert float(error) == pytest.approx(float(again.square().mean()), rel=1e-4)  # nets start at 0: a regression
    nsde.fit(model, pairs, steps=300, batch_size=128, lr=3e-3, progress=False)
    context = torch.tensor([[5.0, 5.0, 8.0, 5.0]])
    done = model.draw(torch.full((4, 2), 3.0), [0, 1], context=context, num_paths=3, rng=seeded())
    drawn = done.paths[0, :, 1]
    assert float((drawn - 3).abs().max()) < 0.5  # between the two ways, which are 1.15 away
    assert torch.equal(drawn[0], drawn[1]) and done.nfe == {"flow": 1}


# What every model owes


@every_model
def test_a_saved_model_acts_the_same(name, tmp_path):
    model, pairs = make(name)
    batch = pairs[torch.arange(4)]
    call = {"context": batch.context, "num_paths": 2}
    before = model.sample(batch.history, [0, 1], rng=seeded(), **call)
    again = nsde.load(model.save_pretrained(tmp_path / "model"))
    assert type(again) is type(model) and again.config == model.config
    assert torch.equal(again.sample(batch.history, [0, 1], rng=seeded(), **call), before)


@every_model
def test_passes_are_counted(name):
    model, pairs = make(name)
    batch, passes = pairs[torch.arange(2)], []
    model.nets["net"].register_forward_hook(lambda *_: passes.append(1))
    nfe = model.draw(batch.history, [0, 1], context=batch.context, num_paths=3).nfe
    assert nfe == {"net": PASSES.get(name, 10)} and len(passes) == PASSES.get(name, 10)


@every_model
def test_a_path_does_not_depend_on_its_neighbours(name):
    model, pairs = make(name)
    batch, keys = pairs[torch.arange(5)], Noise.draw(seeded(), 5)
    paths = model.sample(batch.history, [0, 1, 2], context=batch.context, rng=keys)
    alone = model.sample(batch.history[3:4], [0, 1, 2], context=batch.context[3:4], rng=keys[3:4])
    torch.testing.assert_close(alone, paths[3:4], atol=1e-3, rtol=1e-3)
    assert len(torch.unique(paths[:, 0, 1:, 0])) > 5


@every_model
def test_losses_reach_every_parameter_and_are_repeatable(name):
    model, pairs = make(name, time_input=True)
    noise = Noise.for_step(0, 0, torch.arange(32))
    batch = pairs.batch(noise)
    losses = model(batch, noise)
    sum(losses.values()).backward()
    assert all(v.ndim == 0 and torch.isfinite(v) for v in losses.values())
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    assert all(p.grad.any() for n, p in model.named_parameters() if "query" not in n and ".key_value.bias" not in n)
    again = model(batch, noise)
    assert all(torch.equal(losses[k], again[k]) for k in losses)


@every_model
def test_another_context_or_step_is_refused_at_the_door(name):
    model, pairs = make(name)
    history = pairs[torch.arange(2)].history
    for wrong in (None, torch.zeros(2, 3), torch.zeros(1, 4)):
        with pytest.raises(ValueError, match="`context` must have"):
            model.sample(history, [0, 1], context=wrong)
    with pytest.raises(ValueError, match="only generates at its training step 1"):
        model.sample(history, [0, 0.5], context=torch.zeros(2, 4))


@every_policy
def test_a_policy_takes_chunks_too(name):
    model, pairs = make(name, (4, 2))
    batch = pairs[torch.arange(3)]
    assert model.sample(batch.history, [0, 1], context=batch.context, num_paths=2).shape == (3, 2, 2, 4, 2)


@every_policy
def test_the_action_before_is_not_seen(name):
    model, pairs = make(name)
    batch, keys = pairs[torch.arange(8)], Noise.draw(seeded(), 8)
    acts = [model.sample(batch.history + k, [0, 1], context=batch.context, rng=keys)[:, 0, 1] for k in (0, 2.0)]
    assert torch.equal(*acts)


@every_policy
def test_tokens_are_the_observations_oldest_first(name):
    model, pairs = make(name, time_input=True)
    batch = pairs[torch.arange(3)]
    tokens, y = model.read(batch)
    assert tokens.shape == (3, 2, 2 + 1) and y.shape == (3, 2)
    seen = model.scale.condition(batch.context, None)
    assert torch.equal(tokens[:, 0, :2], seen[:, :2]) and torch.equal(tokens[:, 1, :2], seen[:, 2:])


@every_policy
def test_data_that_no_policy_can_take_is_refused(name):
    with pytest.raises(ValueError, match=r"must hold `num_observations`=3 observations of one size. Got 4 value\(s\)"):
        make(name, num_observations=3)
    bare = Trajectories.from_arrays(np.random.default_rng(0).uniform(size=(9, 2, 2)))
    with pytest.raises(ValueError, match=r"must hold `num_observations`=2 .* Got 0 value\(s\)"):
        build(POLICIES[name], bare.transitions())
    states = np.random.default_rng(0).uniform(size=(9, 3, 2))
    states[0, 1, 0] = np.nan
    holes = Trajectories.from_arrays(states, context=np.zeros((9, 4)), missing=True)
    with pytest.raises(ValueError, match=r"takes whole actions\. Got data with missing entries"):
        build(POLICIES[name], holes.transitions())
    with pytest.raises(ValueError, match=r"`nets` must hold \['net'\]"):
        build(POLICIES[name], demonstrations((2,)).transitions(), nets={"flow": torch.nn.Identity()})


def test_energies_of_many_rows_are_taken_in_parts(monkeypatch):
    model, pairs = make("IBC")
    batch = pairs[torch.arange(7)]
    call = {"context": batch.context, "rng": Noise.draw(seeded(), 7)}
    whole = model.sample(batch.history, [0, 1], **call)
    monkeypatch.setattr("neuralsde.baselines.ibc.MAX_ELEMENTS", 2 * 256 * 32)
    parts = model.draw(batch.history, [0, 1], **call)
    torch.testing.assert_close(parts.paths, whole, atol=1e-3, rtol=1e-3)
    assert parts.nfe == {"net": 5}


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (LSTMGMMConfig, {"normalise": "mean_std"}, "Means are within the range of the data.* Use 'min_max'"),
        (LSTMGMMConfig, {"num_observations": 0}, "`num_observations` must be at least 1"),
        (LSTMConfig, {"layers": 0}, "`layers` must be at least 1"),
        (IBCConfig, {"num_samples": 0}, "`num_samples` must be at least 1"),
        (BETConfig, {"num_bins": 0}, "`num_bins` must be at least 1"),
        (GPTConfig, {"width": 100}, "`width` must be a multiple of `heads`"),
    ],
)
def test_settings_out_of_range_are_refused(config, values, message):
    with pytest.raises(ValueError, match=message):
        config(**values)
