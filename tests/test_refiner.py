"""Steps that are not Gaussian: what the refiner learns, and what it makes of the noise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from toy_models import FixedNoise, constant_model, fields_of

import neuralsde as nsde
from neuralsde.data.transition import Transition
from neuralsde.nets.config import EncodedConfig, MLPConfig
from neuralsde.sde import losses
from neuralsde.sde.config import Denoiser, Euler, NeuralSDEConfig, Refined, Sampler
from neuralsde.sde.laws.refined import refiner
from neuralsde.solvers.noise import Noise

REFINED = {"tau": "start", "history": 2, "law": Refined(), "denoiser": None}


def model_with(h=0.0, **settings):
    """Constant nets: the law of a step is known."""
    model = constant_model(values={"refiner": h}, **{**REFINED, **settings})
    return model.eval()


def coin_paths(num=200, length=40, seed=0):
    """Walks with steps of exactly ±1: mean 0, variance 1, and as far from a Gaussian as can be."""
    rng = np.random.default_rng(seed)
    return nsde.Trajectories.from_arrays(rng.choice([-1.0, 1.0], (num, length, 1)).cumsum(1), dt=1.0)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(True, id="one net", marks=pytest.mark.slow),
        pytest.param(False, id="three nets", marks=pytest.mark.slow),
    ],
)
def coin(request):
    """A model of the walks, with nets that see steps and not places: these have no end."""
    data = coin_paths()
    model = nsde.NeuralSDE.for_data(
        data,
        history=2,
        law=Refined(weight=1.0),
        denoiser=None,
        shared=request.param,
        normalise="none",
        noise=0.0,
        net=MLPConfig(width=48, depth=2),
    )
    for net in model.nets.values():
        net.register_forward_pre_hook(lambda net, args: (args[0] - args[0][:, :1], *args[1:]))
    nsde.fit(model, data, steps=1_200, batch_size=256, lr=3e-3, progress=False)
    return model.eval()


# What is learned


@settings(deadline=None)
@given(st.floats(-3, 3), st.floats(-3, 3))
def test_loss_asks_for_half_the_difference(xi, eps):
    goal = (xi - eps) / math.sqrt(2)
    one = torch.tensor([goal + 0.5])
    found = losses.refiner_mse(one, torch.tensor([xi]), torch.tensor([eps]))
    torch.testing.assert_close(found, torch.tensor([0.25]))


def test_far_residuals_do_not_rule():
    found = losses.refiner_mse(torch.zeros(1), torch.tensor([1e6]), torch.zeros(1))
    torch.testing.assert_close(found, torch.tensor([losses.FAR**2]))


def test_refiner_sees_the_noisy_end_in_the_place_of_the_newest_slot():
    model = model_with(h=0.25, noise=0.0, law=Refined(weight=0.5)).train()
    history, after = torch.tensor([[[0.0, 1.0], [2.0, 3.0]]]), torch.tensor([[2.5, 2.0]])
    batch = Transition(history=history, next=after, dt=torch.tensor([0.5]), time=torch.zeros(1))
    found = model.loss(batch, FixedNoise(1, 0.0, 1.5))

    scaled, end = model.scale.states(history), model.scale.states(after)
    flow, log_g = (model.nets[k](scaled) for k in ("flow", "diffusion"))
    g = torch.exp(model.sizes.log_g(log_g))
    mean = scaled[:, -1] + model.sizes.velocity(flow)  # one reference step on
    torch.testing.assert_close(model.nets["refiner"].state, torch.stack([scaled[:, -1], end + 1.5 * g], 1))
    expected = 0.5 * losses.refiner_mse(torch.full((1, 2), 0.25), (end - mean) / g, torch.full((1, 2), 1.5)).mean()
    torch.testing.assert_close(found["refiner"], expected)


def test_losses_of_flow_and_diffusion_are_those_without_a_refiner():
    batch = Transition(
        history=torch.randn(3, 2, 2), next=torch.randn(3, 2), dt=torch.full((3,), 0.5), time=torch.zeros(3)
    )
    with_it, without = (
        constant_model(values={"refiner": 0.3}, **{**REFINED, "law": law}).loss(batch, FixedNoise(3, 0.0, 0.7))
        for law in (Refined(), Euler())
    )
    assert with_it.keys() - without.keys() == {"refiner"}
    for name, value in without.items():
        torch.testing.assert_close(with_it[name], value)


def test_it_learns_the_law_of_a_coin(coin):
    """Of ξ = ±1 the mean is E[ξ | u] = tanh u, so h = √2 (tanh u - u/2)."""
    state = torch.zeros(1, 2, 1)
    with torch.no_grad():
        c = fields_of(coin).coefficients(state, None, Sampler(), None, correction=False)
        flow, g = c.drift, c.diffusion
    assert abs(float(flow)) < 0.1 and float(g) == pytest.approx(1, abs=0.1)
    u = torch.linspace(-2.5, 2.5, 21)[:, None]
    with torch.no_grad():
        h = refiner(fields_of(coin), state.expand(21, 2, 1), None, u)
    torch.testing.assert_close(h, math.sqrt(2) * (torch.tanh(u) - u / 2), atol=0.12, rtol=0)


# What is drawn


def one_step(model, num=40_000, **sampler):
    start = model.scale.raw(torch.zeros(1, 2, *model.scale.shape))
    drawn = model.sample(start, [0.0, model.scale.step], num_paths=num, sampler=Sampler(**sampler), rng=0)
    return model.scale.states(drawn[0, :, 1])


def test_without_a_correction_it_is_the_gaussian_step():
    model = model_with(h=0.0)
    refined, plain = one_step(model), one_step(model, refine=False)
    torch.testing.assert_close(refined.mean(0), plain.mean(0), atol=0.01, rtol=0)
    torch.testing.assert_close(refined.std(0), plain.std(0), atol=0.01, rtol=0.01)


def test_noise_of_one_step_tells_nothing_of_the_next():
    model = model_with(h=0.0)
    start = model.scale.raw(torch.zeros(1, 2, 2))
    path = model.scale.states(model.sample(start, [0.0, 0.5, 1.0, 1.5], num_paths=20_000, rng=0)[0])
    steps = path.diff(dim=1)  # of a constant drift and diffusion
    for one, two in ((0, 1), (1, 2), (0, 2)):
        related = torch.corrcoef(torch.stack([steps[:, one, 0], steps[:, two, 0]]))[0, 1]
        assert abs(float(related)) < 0.03
    torch.testing.assert_close(steps[:, 2].std(0), steps[:, 0].std(0), rtol=0.03, atol=0)


@settings(max_examples=10, deadline=None)
@given(st.floats(-1, 1), st.floats(0, 2), st.floats(0.1, 2))
def test_law_of_a_step_with_a_constant_correction(h, rest, diffusion):
    """m + g (z + h + rest z')/√2."""
    model = model_with(h=h)
    found = one_step(model, num=20_000, refine_noise=rest, diffusion=diffusion)
    plain = one_step(model, num=2, diffusion=0.0)
    state = torch.zeros(1, 2, 2)
    g = diffusion * torch.exp(model.sizes.log_g(model.nets["diffusion"](state)))[0].detach()
    torch.testing.assert_close(found.mean(0), plain[0] + g * h / math.sqrt(2), atol=0.05 * float(g.max()), rtol=0)
    torch.testing.assert_close(found.std(0), g * math.sqrt((1 + rest**2) / 2), rtol=0.05, atol=0)


@pytest.mark.parametrize("rest", [0.0, 0.6, 1.0])
def test_a_coin_is_drawn_by_the_law_that_its_refiner_has(coin, rest):
    """tanh(√2 z) + rest z'/√2; a Gaussian step is far from it."""
    z, other = torch.randn(2, 40_000, generator=torch.Generator().manual_seed(1))
    law = torch.tanh(math.sqrt(2) * z) + rest * other / math.sqrt(2)
    refined, plain = (one_step(coin, **how)[:, 0] for how in ({"refine_noise": rest}, {"refine": False}))
    near, far = (stats.wasserstein_distance(drawn, law) for drawn in (refined, plain))
    assert near < 0.025 and near < 0.5 * far


def test_a_coin_is_drawn_closer_to_the_truth_than_by_a_gaussian(coin):
    truth = torch.tensor([-1.0, 1.0]).repeat(20_000)
    far = [
        stats.wasserstein_distance(one_step(coin, **how)[:, 0], truth)
        for how in ({"refine": False}, {}, {"refine_noise": 0.0})
    ]
    assert far[0] > far[1] + 0.01 and far[1] > far[2] + 0.1


def test_passes_are_counted():
    model = model_with()
    start = torch.zeros(1, 2, 2)
    times = [0.0, 0.5, 1.0, 1.5]
    assert model.draw(start, times).nfe == {"flow": 3, "diffusion": 3, "refiner": 3}
    assert model.draw(start, times, sampler=Sampler(refine=False)).nfe == {"flow": 3, "diffusion": 3}
    assert model.draw(start, times, sampler=Sampler(diffusion=0.0)).nfe == {"flow": 3}


def test_one_net_is_told_its_passes_apart(coin):
    """Else it would tell a proposal by how clean it is, and read clean states as proposals in the pass of the flow."""
    if not coin.config.shared:
        pytest.skip("of one net")
    seen = []
    hook = coin.nets["trunk"].register_forward_hook(lambda net, args, out: seen.append(args[1]))
    coin.sample(torch.zeros(3, 2, 1), [0.0, 1.0], rng=0)
    hook.remove()
    flow, refiner = seen
    assert flow.tolist() == [[0.0]] * 3 and refiner.tolist() == [[1.0]] * 3


def test_a_mark_stands_after_context_and_time():
    data = nsde.Trajectories.from_arrays(
        np.random.default_rng(0).normal(size=(4, 12, 1)), dt=1.0, context=np.arange(8.0).reshape(4, 1, 2).repeat(12, 1)
    )
    net = EncodedConfig(width=8, depth=1, memory=4, step_width=8, step_depth=1)
    model = nsde.NeuralSDE.for_data(data, **REFINED, shared=True, time_input=True, net=net)
    seen = []
    model.nets["trunk"].register_forward_hook(lambda net, args, out: seen.append(args[1]))
    model.eval().sample(torch.zeros(1, 2, 1), [0.0, 1.0], context=torch.zeros(1, 2), rng=0)
    assert [tuple(c.shape) for c in seen] == [(1, 4), (1, 4)] and [float(c[0, 3]) for c in seen] == [0.0, 1.0]


def test_one_net_takes_two_passes_a_step(coin):
    if not coin.config.shared:
        pytest.skip("of one net")
    assert coin.draw(torch.zeros(1, 2, 1), [0.0, 1.0, 2.0]).nfe == {"trunk": 4}


def test_without_the_second_pass_paths_are_those_of_the_plain_model():
    start = torch.zeros(1, 2, 2)
    plain = constant_model(**{**REFINED, "law": Euler()}).eval()
    expected = plain.sample(start, [0.0, 0.5, 1.0], rng=3)
    torch.testing.assert_close(
        model_with(h=0.7).sample(start, [0.0, 0.5, 1.0], sampler=Sampler(refine=False), rng=3), expected
    )


def test_a_path_does_not_depend_on_its_neighbours():
    model = model_with(h=0.3)
    start = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0))
    keys = Noise(torch.arange(3))
    together = model.sample(start, [0.0, 0.5, 1.0], rng=keys)
    alone = model.sample(start[1:2], [0.0, 0.5, 1.0], rng=keys[1:2])
    torch.testing.assert_close(together[1:2], alone)


def test_saved_and_loaded_it_draws_the_same(coin, tmp_path):
    for net in coin.nets.values():
        net._forward_pre_hooks.clear()
    again = nsde.load(coin.save_pretrained(tmp_path))
    start = torch.zeros(1, 2, 1)
    torch.testing.assert_close(again.sample(start, [0.0, 1.0], rng=1), coin.sample(start, [0.0, 1.0], rng=1))


# Bad input


@pytest.mark.parametrize(
    "settings",
    [
        {"history": 1},
        {"tau": "uniform", "denoiser": Denoiser()},
    ],
)
def test_what_a_refiner_needs_is_said(settings):
    with pytest.raises(ValueError, match=r"`Refined` turns .* It needs tau='start'"):
        NeuralSDEConfig(**{**REFINED, **settings})


def test_weights_are_positive():
    with pytest.raises(ValueError, match="`weight` must be positive"):
        Refined(weight=0.0)
    with pytest.raises(ValueError, match="refine_noise"):
        Sampler(refine_noise=-0.1)


@pytest.mark.parametrize(
    ("times", "sampler", "words"),
    [
        ([0.0, 0.25], {}, "Got steps of 0.25"),
        ([0.0, 0.5, 1.25], {}, "Got steps of 0.375"),
        ([0.0, 0.5], {"substeps": 2}, "Got steps of 0.25"),
        ([0.0, 0.5], {"solver": "heun"}, "Got sampler.solver='heun'"),
    ],
)
def test_steps_of_another_length_are_refused(times, sampler, words):
    with pytest.raises(ValueError, match=f"knows Euler's steps of 0.5. {words}.*refine=False"):
        model_with().sample(torch.zeros(1, 2, 2), times, sampler=Sampler(**sampler))
    model_with().sample(torch.zeros(1, 2, 2), times, sampler=Sampler(**sampler, refine=False), rng=0)


def test_gaps_of_several_steps_are_walked():
    assert model_with().draw(torch.zeros(1, 2, 2), [0.0, 1.5, 2.0]).nfe["refiner"] == 4


def test_irregular_gaps_are_refused_before_training():
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.uniform(0.1, 2, (5, 30)), 1)
    data = nsde.Trajectories.from_arrays(rng.normal(size=(5, 30, 2)), times=times)
    with pytest.raises(ValueError, match="learns steps of one length"):
        nsde.NeuralSDE.for_data(data, history=2, law=Refined(), denoiser=None)
