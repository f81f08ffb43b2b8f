"""What every sequence model owes: the same tests for the Neural SDE and for each baseline."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import neuralsde as nsde
from neuralsde.baselines.config import DDIMConfig, DiffusionSteps, GaussianConfig, Generation, RectifiedFlowConfig
from neuralsde.data.trajectories import Trajectories
from neuralsde.models.build import build
from neuralsde.models.sequence import SequenceModel
from neuralsde.nets.config import MLPConfig
from neuralsde.sde.config import Denoiser, Mixture, NeuralSDEConfig, Sampler, Transport
from neuralsde.solvers.noise import Noise

NET = MLPConfig(width=16, depth=1)
DT = 0.5
CONFIGS = {
    "NeuralSDE-start": lambda **s: NeuralSDEConfig(net=NET, tau="start", **s),
    "NeuralSDE-uniform": lambda **s: NeuralSDEConfig(
        net=NET, tau="uniform", noise=0.2, denoiser=Denoiser(alpha=True), **s
    ),
    "NeuralSDE-mixture": lambda **s: NeuralSDEConfig(net=NET, law=Mixture(components=3), **s),
    "NeuralSDE-transport": lambda **s: NeuralSDEConfig(net=NET, law=Transport(), **s),
    "NeuralSDE-heun": lambda **s: NeuralSDEConfig(net=NET, sampler=Sampler(solver="heun", substeps=2), **s),
    "DDIM": lambda **s: DDIMConfig(net=NET, sampler=DiffusionSteps(num_steps=4), **s),
    "RectifiedFlow": lambda **s: RectifiedFlowConfig(net=NET, sampler=Generation(num_steps=4), target="increment", **s),
    "GaussianMLP": lambda **s: GaussianConfig(net=NET, **s),
}


def make(kind, shape=(2,), context_size=0, **settings):
    rng = np.random.default_rng(0)
    states = rng.standard_normal((10, 12, *shape)).cumsum(1) * 0.3
    if kind == "NeuralSDE-uniform":  # which takes a history of smooth paths only
        states = states.cumsum(1)
    context = rng.standard_normal((10, 12, context_size)) if context_size else None
    data = Trajectories.from_arrays(states, dt=DT, context=context)
    config = CONFIGS[kind](**settings)
    pairs = data.transitions(history=config.history)
    model = build(config, pairs)
    torch.manual_seed(0)
    for net in model.nets.values():  # they start at 0, where much looks right
        nn.init.normal_(net.outward.weight, std=0.1)
    return model, pairs


@pytest.fixture(params=CONFIGS)
def kind(request):
    return request.param


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(2,), (1, 3, 2)])
@pytest.mark.parametrize("history", [1, 3])
def test_losses_are_finite_scalars_that_reach_every_parameter(kind, shape, history):
    model, pairs = make(kind, shape, context_size=2, history=history, time_input=True)
    noise = Noise.for_step(0, 0, torch.arange(32))
    batch = pairs.batch(noise)
    losses = model(batch, noise)
    assert losses
    assert all(v.ndim == 0 and torch.isfinite(v) for v in losses.values())
    sum(losses.values()).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and torch.isfinite(p.grad).all() and p.grad.any(), name
    again = model(batch, noise)
    assert all(torch.equal(losses[k], again[k]) for k in losses)  # the noise is all the randomness there is
    groups = model.parameter_groups()
    grouped = [id(p) for parameters in groups.values() for p in parameters]
    assert sorted(grouped) == sorted(map(id, model.parameters()))


@pytest.mark.parametrize("shape", [(2,), (1, 3, 2)])
@pytest.mark.parametrize("num_slots", [1, 3])
def test_shapes_of_samples(kind, shape, num_slots):
    model, pairs = make(kind, shape, history=num_slots)
    history = pairs[torch.arange(5)].history
    shared = np.array([1.0, 1.5, 2.5])
    own = shared + np.arange(5.0)[:, None]
    assert model.sample(history, shared, num_paths=2).shape == (5, 2, 3, *shape)
    assert model.sample(history, own, num_paths=2).shape == (5, 2, 3, *shape)
    one = history[0, 0] if num_slots == 1 else history[0]
    assert model.sample(one, shared).shape == (1, 1, 3, *shape)
    if num_slots == 1:
        same = [model.sample(x, own, num_paths=2, rng=seeded()) for x in (history, history[:, 0])]
        assert torch.equal(*same)
        assert torch.equal(same[0][:, 0, 0], history[:, -1])
    with pytest.raises(ValueError, match="`history` must have shape"):
        model.sample(torch.zeros(5, num_slots + 1, *shape), shared)


def test_context_forms(kind):
    model, pairs = make(kind, context_size=2)
    x, times = pairs[torch.arange(5)].history, [0.0, 0.5, 1.0]
    row = torch.randn(5, 2, generator=seeded())
    fixed = model.sample(x, times, context=row, num_paths=2, rng=seeded())
    repeated = model.sample(x, times, context=row[:, None].expand(5, 3, 2), num_paths=2, rng=seeded())
    assert fixed.shape == (5, 2, 3, 2)
    torch.testing.assert_close(fixed, repeated)
    changed = row[:, None].repeat(1, 3, 1)
    changed[:, 1:] += 1
    later = model.sample(x, times, context=changed, num_paths=2, rng=seeded())
    torch.testing.assert_close(later[:, :, 1], fixed[:, :, 1])  # a context holds from its own time on
    assert not torch.allclose(later[:, :, 2], fixed[:, :, 2])
    for wrong in (None, torch.zeros(5, 3), torch.zeros(4, 2)):
        with pytest.raises(ValueError, match="`context` must"):
            model.sample(x, times, context=wrong)


def test_the_generator_alone_decides(kind):
    model, pairs = make(kind)
    x, times = pairs[torch.arange(5)].history, [0.0, 0.5, 1.5]
    before = torch.get_rng_state()
    one, two, other = (model.sample(x, times, num_paths=3, rng=seeded(s)) for s in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert len(torch.unique(one[:, :, 1:])) > 30  # of 60: paths differ, untrained DDIM clips some
    assert not torch.equal(model.sample(x, times), model.sample(x, times))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("num_slots", [1, 2])
def test_chunks_do_not_change_the_paths(kind, num_slots):
    model, pairs = make(kind, history=num_slots)
    x, times = pairs[torch.arange(5)].history, np.array([0.0, 0.5, 1.0]) + np.arange(5.0)[:, None]
    whole = model.sample(x, times, num_paths=3, rng=seeded())
    for chunk in (1, 4, 15):
        torch.testing.assert_close(model.sample(x, times, num_paths=3, rng=seeded(), chunk=chunk), whole)


@pytest.mark.parametrize("num_slots", [1, 2])
def test_a_path_drawn_alone_has_the_same_bits_in_any_batch(kind, num_slots):
    model, pairs = make(kind, context_size=2, history=num_slots)
    batch = pairs[torch.arange(5)]
    times, keys = DT * np.arange(6.0), Noise.draw(0, 5)
    many = model.sample(batch.history, times, context=batch.context, rng=keys, chunk=1)
    for k in (0, 2, 4):
        own = slice(k, k + 1)
        one = model.sample(batch.history[own], times, context=batch.context[own], rng=keys[own], chunk=1)
        assert torch.equal(many[own], one)


def test_saved_models_give_the_same_samples(kind, tmp_path):
    model, pairs = make(kind, context_size=2, history=2, time_input=True)
    batch = pairs[torch.arange(5)]
    call = {"context": batch.context, "num_paths": 2}
    before = model.sample(batch.history, [0.0, 0.5, 1.5], rng=seeded(), **call)
    model.save_pretrained(tmp_path / "model")
    for load in (type(model).from_pretrained, SequenceModel.from_pretrained, nsde.load):
        loaded = load(tmp_path / "model")
        assert type(loaded) is type(model) and loaded.config == model.config
        assert torch.equal(loaded.sample(batch.history, [0.0, 0.5, 1.5], rng=seeded(), **call), before)
    if kind.startswith(("NeuralSDE", "GaussianMLP")):
        assert torch.equal(loaded.log_prob(batch), model.log_prob(batch))


def test_passes_are_counted(kind):
    model, pairs = make(kind)
    forward = []
    for name, net in model.nets.items():
        net.register_forward_hook(lambda *_, n=name: forward.append(n))
    nfe = model.draw(pairs[torch.arange(5)].history, [0.0, 0.5, 2.0], num_paths=3).nfe
    for name in model.nets:
        if name == "diffusion" and kind in ("NeuralSDE-uniform", "NeuralSDE-heun"):  # whose derivatives are counted too
            assert nfe[name] == forward.count(name) * (1 + 2)
        else:
            assert nfe.get(name, 0) == forward.count(name)
    if "net" in model.nets:
        assert nfe == {"net": 4 * getattr(model.sampler, "num_steps", 1)}


def test_nets_see_the_same_time_in_training_and_in_sampling(kind, request):
    model, pairs = make(kind, time_input=True)
    seen = []
    next(iter(model.nets.values())).register_forward_pre_hook(lambda _, args: seen.append(args[1][:, -1]))
    batch = pairs[torch.tensor([3])]  # the fourth state of its path, at time 3 dt
    noise = Noise(torch.zeros(1, dtype=torch.int64))
    model.loss(batch, noise)
    model.sample(batch.history, [3 * DT, 4 * DT])
    in_training, in_sampling = (float(model.scale.time_mean + model.scale.time_std * v) for v in seen[:2])
    if kind == "NeuralSDE-uniform":
        assert 3 - 1e-4 <= in_training <= 4 + 1e-4
        in_training = 3
    assert (in_training, in_sampling) == pytest.approx((3, 3), abs=1e-4)  # in reference steps


def test_a_model_is_left_in_the_mode_it_was_in(kind):
    model, pairs = make(kind)
    for mode in (True, False):
        model.train(mode)
        model.sample(pairs[torch.arange(2)].history, [0.0, 0.5])
        assert all(m.training is mode for m in model.modules())


def test_a_few_steps_of_training_lower_the_losses(kind):
    model, pairs = make(kind)
    noise = Noise.for_step(5, 0, torch.arange(100))
    batch = pairs[torch.arange(100)]
    with torch.no_grad():
        before = model.eval().loss(batch, noise)
    nsde.fit(model, pairs, steps=60, batch_size=64, lr=1e-2, progress=False)
    with torch.no_grad():
        after = model.loss(batch, noise)
    for name in before:
        if name not in ("alpha", "denoiser"):  # which may start near their best
            assert after[name] < before[name], name


@pytest.mark.parametrize("name", ["DDIM", "RectifiedFlow"])
def test_a_temperature_of_zero_leaves_no_chance(name):
    model, pairs = make(name)
    history, times = pairs[torch.arange(3)].history, np.array([0.0, DT, 2 * DT])
    cold = dataclasses.replace(model.sampler, temperature=0.0)
    assert torch.equal(*(model.sample(history, times, rng=seeded(k), sampler=cold) for k in (0, 1)))
    assert not torch.equal(*(model.sample(history, times, rng=seeded(k)) for k in (0, 1)))
