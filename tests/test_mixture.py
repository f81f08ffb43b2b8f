"""Steps with tails and modes: what the mixture learns by likelihood, its density, and its draw."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from toy_models import FixedNoise, constant_model, fields_of, mlp_model

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import laws_mixture as benchmark

import neuralsde as nsde
from neuralsde.data.transition import Transition
from neuralsde.nets.config import MLPConfig, UViTConfig
from neuralsde.sde.config import Denoiser, Euler, Mixture, NeuralSDEConfig, Sampler
from neuralsde.sde.laws.mixture import FARTHEST, NARROWEST, WIDEST, MixtureStep, within
from neuralsde.solvers.noise import Noise

MIXTURE = {"tau": "start", "law": Mixture(components=3), "denoiser": None}


def model_of(shape=(1,), seed=0, **settings):
    """Constant nets with three components that differ in all they can."""
    raw = torch.randn(9, *shape, generator=torch.Generator().manual_seed(seed))
    return constant_model(shape, values={"mixture": raw}, **{**MIXTURE, **settings}).eval()


def pairs_to(after, mask=None):
    """Transitions from one state to these, one reference step apart."""
    return Transition(
        history=torch.zeros(len(after), 1, *after.shape[1:]),
        next=after,
        dt=torch.full((len(after),), 0.5),
        time=torch.zeros(len(after)),
        mask=mask,
    )


def grid(shape, num):
    """States around the drawn ones of `model_of`, and the volume of a cell."""
    axes = [torch.linspace(-60, 60, num, dtype=torch.float64)] * shape[0]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, *shape), (120 / (num - 1)) ** shape[0]


# What comes of a net's output


@pytest.mark.parametrize("num", [2, 3, 8])
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3, 3)])
def test_an_untrained_net_gives_mean_0_and_variance_1_by_components_that_differ(num, shape):
    law = MixtureStep(Mixture(components=num), shape, start=True)
    found = law.components(torch.zeros(1, 3 * num, *shape))
    mean, std = found.moments()
    torch.testing.assert_close(mean, torch.zeros(1, *shape), atol=1e-5, rtol=0)
    torch.testing.assert_close(std, torch.ones(1, *shape), atol=1e-5, rtol=0)
    apart = (found.mean[0, :, None] - found.mean[0, None]).abs().flatten(2).amax(2)
    assert (apart + torch.eye(num) > 0.1).all()


def test_features_start_apart():
    """Up to one feature less than components, none goes with another."""
    law = MixtureStep(Mixture(components=6), (5,), start=True)
    mean = law.components(torch.zeros(1, 18, 5)).mean[0]
    torch.testing.assert_close(mean.T @ mean / 6, 0.49 * torch.eye(5), atol=1e-5, rtol=0)


def test_bounds_are_smooth_and_are_never_left():
    start = torch.tensor([-0.9, 0.0, 0.9])
    raw = torch.zeros(3, requires_grad=True)
    found = within(raw, start, -1.0, 1.0)
    torch.testing.assert_close(found, start)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), raw)[0], torch.ones(3))
    law = MixtureStep(Mixture(components=2), (1,), start=True)
    for value, mean, std in ((1e4, FARTHEST, WIDEST), (-1e4, -FARTHEST, NARROWEST)):
        found = law.components(torch.full((1, 6, 1), value))
        torch.testing.assert_close(found.mean, torch.full((1, 2, 1), mean))
        torch.testing.assert_close(found.log_std.exp(), torch.full((1, 2, 1), std))


def test_weights_belong_to_the_whole_state():
    law = MixtureStep(Mixture(components=2), (2, 2), start=True)
    raw = torch.zeros(1, 6, 2, 2)
    raw[0, 0] = torch.tensor([[4.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(law.components(raw).log_weight.exp(), torch.softmax(torch.tensor([[1.0, 0.0]]), 1))


# Density


@pytest.mark.parametrize(("shape", "num"), [((1,), 20_001), ((2,), 1_201)])
def test_density_integrates_to_1(shape, num):
    states, cell = grid(shape, num)
    log_prob = model_of(shape).log_prob(pairs_to(states.float())).double()
    assert float(log_prob.exp().sum() * cell) == pytest.approx(1, abs=2e-3)


def test_missing_entries_are_integrated_out():
    """The density of the first feature is that of both, summed over the second."""
    model = model_of((2,))
    line = torch.linspace(-60, 60, 4_001)
    for x in (-1.0, 1.5, 3.0):
        both = torch.stack([torch.full_like(line, x), line], 1)
        summed = model.log_prob(pairs_to(both)).double().exp().sum() * (120 / 4_000)
        one = pairs_to(torch.tensor([[x, math.nan]]).nan_to_num(), mask=torch.tensor([[True, False]]))
        assert float(model.log_prob(one).exp()) == pytest.approx(float(summed), rel=1e-3)


def test_density_is_in_raw_units():
    """By hand: the density of ξ, over g √Δt and the scale."""
    model, after = model_of((2,)), torch.tensor([[2.0, 1.0]])
    state, end = model.scale.states(torch.zeros(1, 2)), model.scale.states(after)
    with torch.no_grad():
        read = fields_of(model).read(state[:, None], None, *model.law.reads)
        c, g = model.law.components(read["mixture"]), read["diffusion"].exp()
    xi = (end - state - read["flow"]) / g
    each = [
        w * np.prod(stats.norm.pdf(xi[0], m, s))
        for w, m, s in zip(c.log_weight.exp()[0], c.mean[0], c.log_std.exp()[0])
    ]
    expected = np.log(sum(map(float, each))) - float((g[0] * model.scale.std).log().sum())
    assert float(model.log_prob(pairs_to(after))) == pytest.approx(expected, rel=1e-4)


# Losses


@pytest.mark.parametrize("dropout", [None, "flow", "mixture"])
def test_its_loss_trains_its_net_alone(dropout):
    model = mlp_model(**MIXTURE, dropout=dropout).train()
    batch = pairs_to(torch.randn(6, 2, generator=torch.Generator().manual_seed(0)))
    losses = model.loss(batch, Noise.for_step(0, 0, torch.arange(6)))
    for trained in ("flow", "diffusion", "mixture"):
        model.zero_grad()
        losses[trained].backward(retain_graph=True)
        for name, net in model.nets.items():
            moved = any(p.grad is not None and p.grad.any() for p in net.parameters())
            assert moved == (name == trained), (trained, name)


def test_losses_of_flow_and_diffusion_are_eulers():
    batch = pairs_to(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)))
    with_it, without = (
        constant_model(values={"mixture": 0.0}, **{**MIXTURE, "law": law}).loss(batch, FixedNoise(4, 0.0, 0.7))
        for law in (Mixture(), Euler())
    )
    assert with_it.keys() - without.keys() == {"mixture"}
    for name, value in without.items():
        torch.testing.assert_close(with_it[name], value)


def test_the_loss_is_the_likelihood_per_observed_entry():
    mask = torch.tensor([[True, True], [True, False], [False, True]])
    batch = pairs_to(torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), mask)
    model = model_of((2,), noise=0.0)
    found = model.loss(batch, FixedNoise(3, 0.0, 0.0))["mixture"]
    log_g = fields_of(model).log_diffusion(torch.zeros(3, 1, 2), None)
    units = (log_g + model.scale.std.log()).where(mask, 0.0).sum()
    torch.testing.assert_close(found, -(model.log_prob(batch).sum() + units) / 4)


# Draw


def one_step(model, num=40_000, **sampler):
    start = torch.zeros(1, *model.scale.shape)
    return model.sample(start, [0.0, model.scale.step], num_paths=num, sampler=Sampler(**sampler), rng=0)[0, :, 1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_drawn_has_the_density(seed):
    model = model_of(seed=seed)
    line = torch.linspace(-60, 60, 40_001)
    density = model.log_prob(pairs_to(line[:, None])).double().exp().numpy()
    cdf = np.cumsum(density) * (120 / 40_000)
    drawn = one_step(model)[:, 0].numpy()
    assert stats.kstest(drawn, lambda x: np.interp(x, line.numpy(), cdf)).pvalue > 0.01


def test_features_are_drawn_together():
    """Two features with the same modes: both are up or both are down."""
    raw = torch.zeros(6, 2)
    raw[2:4] = torch.tensor([[5.0], [-5.0]])
    raw[4:] = -3.0
    drawn = one_step(constant_model(values={"mixture": raw}, **{**MIXTURE, "law": Mixture(components=2)}).eval())
    assert float(torch.corrcoef(drawn.T)[0, 1]) > 0.99


@pytest.mark.parametrize("shared", [True, False])
def test_mean_and_spread_of_the_draw_are_told(shared):
    model = learned_walk(shared)
    with torch.no_grad():
        mean, std = model.law.moments(fields_of(model), model.scale.states(torch.zeros(1, 1, 2)), None)
    drawn = model.scale.states(one_step(model)) - model.scale.states(torch.zeros(2))
    torch.testing.assert_close(drawn.mean(0), mean[0], atol=0.02 * float(std.max()), rtol=0)
    torch.testing.assert_close(drawn.std(0), std[0], atol=0, rtol=0.03)


def test_the_factor_on_the_noise_scales_what_is_beyond_the_flow():
    model = model_of((2,))
    flow, half, whole = (one_step(model, num=100, diffusion=v) for v in (0.0, 0.5, 1.0))
    assert torch.equal(flow, flow[:1].expand_as(flow))
    torch.testing.assert_close(half - flow, 0.5 * (whole - flow), atol=1e-5, rtol=1e-5)


def test_the_pull_is_in_the_drift():
    model = model_of((2,), denoiser=Denoiser(), noise=0.1)
    plain, pulled = (one_step(model, num=10, pull=v) for v in (0.0, 1.0))
    shift = 1.0 * model.scale.step * 0.1 * -0.4 * model.scale.std  # pull dt σ d
    torch.testing.assert_close(pulled - plain, shift.expand_as(plain), atol=1e-5, rtol=1e-4)


def test_paths_belong_to_their_keys():
    model, start = model_of((2,)), torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    keys = Noise(torch.arange(3))
    together = model.sample(start, [0.0, 0.5, 1.0], rng=keys)
    torch.testing.assert_close(together[1:2], model.sample(start[1:2], [0.0, 0.5, 1.0], rng=keys[1:2]))
    steps = model.sample(torch.zeros(1, 2), [0.0, 0.5, 1.0], num_paths=20_000, rng=0)[0].diff(dim=1)
    assert abs(float(torch.corrcoef(torch.stack([steps[:, 0, 0], steps[:, 1, 0]]))[0, 1])) < 0.03


# Nets


def learned_walk(shared=False, net=None, shape=(2,), **settings):
    rng = np.random.default_rng(0)
    data = nsde.Trajectories.from_arrays(0.3 * rng.standard_normal((10, 20, *shape)).cumsum(1), dt=0.5)
    net = net or MLPConfig(width=16, depth=1)
    model = nsde.NeuralSDE.for_data(data, law=Mixture(components=3), shared=shared, net=net, **settings)
    nsde.fit(model, data, steps=20, batch_size=32, lr=1e-2, progress=False)
    return model.eval()


def test_a_shared_net_gives_all_in_one_pass():
    times = [0.0, 0.5, 1.0]
    model = learned_walk(shared=True)
    assert model.draw(torch.zeros(1, 2), times).nfe == {"trunk": 2}
    assert model.draw(torch.zeros(1, 2), times, sampler=Sampler(pull=0.5)).nfe == {"trunk": 2}
    assert model.config.num_late == 0  # no mark
    model = learned_walk()
    assert model.draw(torch.zeros(1, 2), times).nfe == {"flow": 2, "diffusion": 2, "mixture": 2}
    assert model.draw(torch.zeros(1, 2), times, sampler=Sampler(diffusion=0.0)).nfe == {"flow": 2}


@pytest.mark.parametrize("shared", [True, False])
def test_images_and_files(shared, tmp_path):
    model = learned_walk(shared, UViTConfig(width=32), (2, 4, 4), history=2, noise=0.02)
    start = torch.zeros(2, 2, 2, 4, 4)
    again = nsde.load(model.save_pretrained(tmp_path))
    paths = model.sample(start, [0.0, 0.5, 1.0], num_paths=3, rng=0)
    assert torch.equal(again.sample(start, [0.0, 0.5, 1.0], num_paths=3, rng=0), paths)


def test_nets_of_ones_own_must_give_all_fields():
    class Wrong(torch.nn.Module):
        def forward(self, state, condition=None):
            return state[:, -1]

    data = nsde.Trajectories.from_arrays(np.zeros((2, 5, 2)), dt=0.5)
    nets = {name: Wrong() for name in ("flow", "diffusion", "mixture")}
    with pytest.raises(ValueError, match=r"The net 'mixture' must map a state .* to \(2, 9, 2\)"):
        nsde.NeuralSDE.for_data(data, **MIXTURE, nets=nets)


# Systems whose law is known


@pytest.fixture(scope="module")
def scores():
    made = {}

    def of(name):
        if name not in made:
            made[name] = benchmark.score(name, benchmark.train(name, Mixture()))
        return made[name]

    return of


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t3", "jumps"])
def test_tails_and_jumps_have_their_likelihood(scores, name):
    found = scores(name)
    assert -0.01 < found["nats_lost"] < 0.02 and found["n"] == 30_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jumps", "coin", "event"])
def test_events_have_their_probability(scores, name):
    found = scores(name)
    assert found["probability"] == pytest.approx(found["truth"], rel=0.1) and found["draws"] >= 20_000


@pytest.mark.slow
def test_a_counter_reaches_its_mean(scores):
    """One event in 50 steps."""
    found = scores("event")
    assert found["mean_after_50"] == pytest.approx(1.0, rel=0.1)
    assert found["variance_after_50"] == pytest.approx(1.0, rel=0.15)


def test_the_truth_has_its_own_likelihood():
    """Densities of the systems belong to what they draw."""
    for system in benchmark.SYSTEMS.values():
        e = np.sort(system.draw(np.random.default_rng(0), (20_000,)))
        line = np.linspace(e[0] - 5, e[-1] + 5, 400_001)
        cdf = np.cumsum(np.exp(system.log_prob(line))) * (line[1] - line[0])
        assert stats.kstest(e, lambda x, line=line, cdf=cdf: np.interp(x, line, cdf)).pvalue > 0.01


# Bad input


@pytest.mark.parametrize("settings", [{"tau": "uniform"}, {"tau": 0.5}, {"denoiser": Denoiser(alpha=True)}])
def test_what_it_needs_is_said(settings):
    with pytest.raises(ValueError, match=r"`Mixture` learns .* It needs tau='start' and a `denoiser` without `alpha`"):
        NeuralSDEConfig(**{**MIXTURE, "denoiser": Denoiser(), **settings})


def test_one_component_is_refused():
    with pytest.raises(ValueError, match="`components` must be at least 2"):
        Mixture(components=1)


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
    with pytest.raises(ValueError, match=f"`Mixture` knows Euler's steps of 0.5. {words}"):
        model_of().sample(torch.zeros(1, 1), times, sampler=Sampler(**sampler))
    model_of().sample(torch.zeros(1, 1), times, sampler=Sampler(**sampler, diffusion=0.0), rng=0)


def test_gaps_of_several_steps_are_walked():
    assert model_of().draw(torch.zeros(1, 1), [0.0, 1.5, 2.0]).nfe["mixture"] == 4


def test_irregular_gaps_are_refused_before_training():
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.uniform(0.1, 2, (5, 30)), 1)
    data = nsde.Trajectories.from_arrays(rng.normal(size=(5, 30, 2)), times=times)
    with pytest.raises(ValueError, match="`Mixture` learns steps of one length"):
        nsde.NeuralSDE.for_data(data, law=Mixture())


def test_a_likelihood_of_other_gaps_is_refused():
    batch = pairs_to(torch.zeros(3, 1))
    batch.dt[1] = 1.0
    with pytest.raises(ValueError, match=r"`Mixture` knows steps of one length\. Got 2 times that"):
        model_of().log_prob(batch)
