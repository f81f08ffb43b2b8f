"""Units of states and time: transforms and their densities, whitened coordinates, time since the start of a path."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats
from toy_models import Field

import neuralsde as nsde
from neuralsde import Trajectories, fit
from neuralsde.baselines.config import DDIMConfig, GaussianConfig, PFIConfig, RectifiedFlowConfig
from neuralsde.core.records import from_dict, to_dict
from neuralsde.data.transition import Transition
from neuralsde.models.build import build
from neuralsde.models.scale import Scale
from neuralsde.nets.config import MLPConfig
from neuralsde.sde.config import Deterministic, Euler, Moments, NeuralSDEConfig, Sampler
from neuralsde.sde.model import NeuralSDE
from neuralsde.solvers.noise import Noise

NET, TINY = MLPConfig(width=32, depth=2), MLPConfig(width=8, depth=1)
KINDS = ["none", "log", "logit"]


def inside(kind, x):
    """Any numbers as states of a kind."""
    return {"none": x, "log": x.exp(), "logit": x.sigmoid()}[kind]


def exact_model(flow, log_g, shape=(1,), dt_ref=0.05, **settings):
    """Fields as functions of the state in units of the scale, which are not 1."""
    config = NeuralSDEConfig(law=Euler(), denoiser=None, noise=0.0, **settings)
    scale = Scale(shape, normalise=config.normalise, transform=config.transform)
    scale.mean.copy_(torch.linspace(-0.3, 0.4, math.prod(shape)).reshape(shape))
    scale.std.copy_(torch.linspace(0.6, 1.7, math.prod(shape)).reshape(shape))
    scale.dt_ref.fill_(dt_ref)
    low, width = -8.0, 10.0
    nets = {
        "flow": Field(lambda x, c: flow(x)),
        "diffusion": Field(lambda x, c: torch.logit((log_g(x) - low) / width) * width / 4),
    }
    model = NeuralSDE(nets, scale, config)
    model.sizes.low.fill_(low)
    model.sizes.high.fill_(low + width)
    model.sizes.typical.fill_(low + width / 2)
    return model.eval()


def pairs_of(before, after, dt=0.05, **more):
    before, after = (torch.as_tensor(v, dtype=torch.float32) for v in (before, after))
    return Transition(before[:, None], after, torch.full((len(after),), dt), torch.zeros(len(after)), **more)


# Transforms


@pytest.mark.parametrize(
    ("shape", "transform"),
    [
        ((3,), "log"),
        ((3,), ("log", "none", "logit")),
        ((4, 3), ("log", "none", "logit")),  # a chunk: one per feature
        ((3, 5, 5), ("log", "none", "logit")),  # an image: one per channel
    ],
)
@pytest.mark.parametrize("normalise", ["mean_std", "min_max", "isotropic", "none"])
def test_states_are_scaled_after_their_transform(shape, transform, normalise, rng):
    axis = -1 if len(shape) < 3 else -3
    kinds = transform if isinstance(transform, tuple) else [transform] * 3
    y = torch.randn(200, 2, *shape, generator=rng) * 2 + 1
    x = torch.stack([inside(kind, v) for kind, v in zip(kinds, y.unbind(axis))], axis)
    scale, plain = Scale(shape, normalise=normalise, transform=transform), Scale(shape, normalise=normalise)
    for each, values in ((scale, x), (plain, y)):
        each.measure(Transition(values[:, :1], values[:, 1], torch.ones(200), torch.zeros(200)))
    torch.testing.assert_close(scale.states(x), plain.states(y), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(scale.raw(scale.states(x)), x, rtol=1e-4, atol=1e-5)


def test_the_density_of_geometric_brownian_motion_is_log_normal(np_rng):
    mu, s, dt = 0.2, 0.4, 0.05
    model = exact_model(lambda x: x * 0 + drift, lambda x: x * 0 + log_g, transform="log")
    drift = (mu - s**2 / 2) * dt / model.scale.std
    log_g = (s * dt**0.5 / model.scale.std).log()
    x = np.exp(np_rng.standard_normal((500, 1)))
    y = x * np.exp((mu - s**2 / 2) * dt + s * dt**0.5 * np_rng.standard_normal((500, 1)))
    x, y = x.astype(np.float32), y.astype(np.float32)
    truth = stats.lognorm.logpdf(y[:, 0], s * dt**0.5, scale=x[:, 0] * np.exp((mu - s**2 / 2) * dt))
    np.testing.assert_allclose(model.log_prob(pairs_of(x, y)).numpy(), truth, atol=1e-5 * max(1, np.abs(truth).max()))
    found, g = model.fields(x)
    np.testing.assert_allclose(found.numpy(), mu * x, rtol=1e-4)
    np.testing.assert_allclose(g.numpy(), s * x, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_densities_integrate_to_one(kind):
    model = exact_model(lambda x: -0.3 * x, lambda x: -1 + 0.3 * x.tanh(), transform=kind)
    y = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    ends = inside(kind, y).float()
    start = inside(kind, torch.tensor(0.7)).expand(len(ends), 1)
    density = model.log_prob(pairs_of(start, ends[:, None])).double().exp()
    kept = density.isfinite()
    assert float(torch.trapezoid(density[kept], ends[kept].double())) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_raw_fields_are_those_of_itos_formula(kind, rng):
    model = exact_model(lambda x: -0.3 * x + 0.1, lambda x: -1 + 0.3 * x.tanh(), transform=kind)
    y = torch.randn(50, 1, generator=rng, dtype=torch.float64)
    x, scale = inside(kind, y), model.scale
    u = (y - scale.mean) / scale.std
    drift, g = scale.std * (-0.3 * u + 0.1) / scale.step, scale.std * (-1 + 0.3 * u.tanh()).exp() / scale.step**0.5
    back = y.clone().requires_grad_()
    slope = torch.autograd.grad(inside(kind, back).sum(), back, create_graph=True)[0]
    bend = torch.autograd.grad(slope.sum(), back)[0] if kind != "none" else torch.zeros_like(y)
    expected = slope.detach() * drift + 0.5 * bend * g**2, slope.detach() * g
    for found, wanted in zip(model.fields(x), expected):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


def test_states_outside_the_domain_are_refused(np_rng):
    states = np.exp(np_rng.standard_normal((3, 30, 2)))
    share = states / (1 + states)
    data, cfg = Trajectories.from_arrays(states), {"net": TINY, "transform": "log"}
    model = NeuralSDE.for_data(data, **cfg)
    line = r"`transform='log'` takes states above 0\. Got -0\.5\. Mend such values, shift the data, or use `transform='none'`"
    states[1, 4, 0] = -0.5
    bad = Trajectories.from_arrays(states)
    for refused in (
        lambda: NeuralSDE.for_data(bad, **cfg),
        lambda: fit(model, bad, steps=1, progress=False),
        lambda: model.log_prob(bad),
        lambda: model.log_prob(pairs_of([[1.0, 1.0]], [[1.0, -0.5]])),
        lambda: model.sample([1.0, -0.5], [0.0, 1.0]),
        lambda: model.fields([[-0.5, 1.0]]),
    ):
        with pytest.raises(ValueError, match=line):
            refused()
    share[0, 0, 1] = 1.0
    with pytest.raises(ValueError, match=r"`transform='logit'` takes states between 0 and 1\. Got 1 in feature 1\."):
        NeuralSDE.for_data(Trajectories.from_arrays(share), net=TINY, transform=("none", "logit"))
    with pytest.raises(ValueError, match=r"`transform` must be one, or one per feature \(2\)\. Got 3 of them"):
        NeuralSDE.for_data(data, net=TINY, transform=("none", "log", "log"))
    with pytest.raises(ValueError, match=r"`transform` must be one of .* Got 'sqrt'"):
        NeuralSDEConfig(transform="sqrt")


@pytest.mark.parametrize("kind", ["log", "logit"])
def test_states_that_were_drawn_can_be_drawn_from(kind):
    model = exact_model(lambda x: x * 0, lambda x: x * 0 + 1.9, transform=kind, sampler=Sampler(box=None))
    paths = model.sample(inside(kind, torch.zeros(200, 1)), 0.05 * np.arange(500.0), rng=0)[:, 0]
    assert torch.isfinite(paths).all() and paths.min() > 0 and (kind == "log" or paths.max() < 1)
    assert paths.min() < 1e-30 and paths.max() > (1e30 if kind == "log" else 0.9999999)
    assert torch.isfinite(model.sample(paths[:, -1], [0.0, 0.05], rng=0)).all()


EVERY = [
    NeuralSDEConfig(net=TINY),
    NeuralSDEConfig(net=TINY, tau="uniform"),
    NeuralSDEConfig(net=TINY, law=Moments()),
    GaussianConfig(net=TINY),
    RectifiedFlowConfig(net=TINY),
    PFIConfig(net=TINY),
    DDIMConfig(net=TINY, target="increment"),
]
each_model = pytest.mark.parametrize("config", EVERY, ids=lambda c: f"{type(c).__name__}-{getattr(c, 'tau', '')}")


@each_model
def test_a_model_of_the_log_is_that_model_of_log_states(config, np_rng, tmp_path):
    logs = 0.3 * np_rng.standard_normal((4, 40, 2)).cumsum(1)
    kinds = {"transform": ("log", "none")}
    config = type(config)(**{**vars(config), **kinds})
    raw = logs.copy()
    raw[..., 0] = np.exp(raw[..., 0])
    one = build(config, Trajectories.from_arrays(raw).transitions(history=config.history))
    two = build(
        type(config)(**{**vars(config), "transform": "none"}),
        Trajectories.from_arrays(logs).transitions(history=config.history),
    )
    for model, states in ((one, raw), (two, logs)):
        fit(model, Trajectories.from_arrays(states), steps=3, batch_size=16, lr=1e-2, progress=False)
    start = slice(0, config.history) if config.history > 1 else 0
    first, second = (m.sample(x[:, start], [0.0, 1, 2], rng=0) for m, x in ((one, raw), (two, logs)))
    second[..., 0] = second[..., 0].exp()
    torch.testing.assert_close(first, second, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(
        nsde.load(one.save_pretrained(tmp_path)).sample(raw[:, start], [0.0, 1, 2], rng=0), first
    )
    if not isinstance(config, (NeuralSDEConfig, GaussianConfig)):
        return
    volume = logs[:, config.history :, 0].sum(1)  # log dx/dφ = log x
    found = one.log_prob(Trajectories.from_arrays(raw)) + torch.as_tensor(volume)
    torch.testing.assert_close(found.float(), two.log_prob(Trajectories.from_arrays(logs)), rtol=2e-3, atol=2e-2)


def cir_paths(num, length, seed, dt=0.1):
    """dx = (1 - x) dt + √x dw, exactly: stationary Gamma(2, ½), which is near 0 often."""
    rng, c = np.random.default_rng(seed), (1 - np.exp(-dt)) / 4
    x = [rng.gamma(2, 0.5, num)]
    while len(x) < length:
        x.append(c * rng.noncentral_chisquare(4, x[-1] * np.exp(-dt) / c))
    return np.stack(x, 1)[..., None]


def test_a_process_near_zero_keeps_its_sign_and_its_law():
    data = Trajectories.from_arrays(cir_paths(200, 250, 0), dt=0.1)
    model = NeuralSDE.for_data(data, net=NET, noise=0.0, denoiser=None, transform="log")
    fit(model, data, steps=400, batch_size=512, lr=5e-3, progress=False)
    paths = model.sample(cir_paths(4_000, 1, 1)[:, 0], 0.1 * np.arange(101), rng=0)[:, 0, :, 0].numpy()
    assert paths.min() > 0
    exact = [cir_paths(4_000, 1, seed)[:, 0, 0] for seed in range(2, 10)]
    floor = np.mean([stats.wasserstein_distance(exact[0], other) for other in exact[1:]])
    assert np.mean([stats.wasserstein_distance(paths[:, -1], other) for other in exact]) < 1.5 * floor


# Whitened coordinates


def cointegrated(num=100, length=500, dt=0.05, seed=0):
    """Two walks with a common factor, whose difference reverts at rate 1."""
    rng, decay = np.random.default_rng(seed), np.exp(-dt)
    common = 20 * rng.standard_normal((num, 1)) + np.sqrt(dt) * rng.standard_normal((num, length)).cumsum(1)
    apart = [rng.standard_normal(num)]
    while len(apart) < length:
        apart.append(decay * apart[-1] + np.sqrt(1 - decay**2) * rng.standard_normal(num))
    apart = np.stack(apart, 1)
    return np.stack([common + apart / 2, common - apart / 2], -1)


def test_the_spread_of_large_series_is_learned_in_whitened_coordinates():
    states = cointegrated()
    data = Trajectories.from_arrays(states, dt=0.05)
    model = NeuralSDE.for_data(data, net=NET, normalise="whiten", denoiser=None, law=Deterministic())
    fit(model, data, steps=250, batch_size=512, lr=5e-3, progress=False)
    at = states[:, ::25].reshape(-1, 2)
    drift = model.fields(at)[0].numpy()
    slope = np.polyfit(at[:, 0] - at[:, 1], drift[:, 0] - drift[:, 1], 1)[0]
    assert slope == pytest.approx(-1, abs=0.1)  # with "mean_std" it is -0.28: the noise of the inputs hides the spread


def test_whitened_states_have_unit_covariance_and_uncorrelated_steps(np_rng):
    states = np_rng.standard_normal((20, 50, 4)).cumsum(1) @ np_rng.standard_normal((4, 4)) + 100
    states[..., 2] = 7.0  # constant
    states[..., 3] = 3 * states[..., 0] - states[..., 1]  # of the others
    data = Trajectories.from_arrays(states, dt=0.5)
    model = NeuralSDE.for_data(data, net=TINY, normalise="whiten", noise=0.1)
    batch = data.transitions()[torch.arange(20 * 49)]
    before, after = (model.scale.states(x).double() for x in (batch.history[:, 0], batch.next))
    covariance, steps = torch.cat([before, after]).T.cov(correction=0), (after - before).T @ (after - before)
    known = covariance.diag() > 0.1  # two directions; the others have no width
    assert int(known.sum()) == 2
    torch.testing.assert_close(covariance[known][:, known], torch.eye(2).double(), atol=1e-4, rtol=0)
    steps = steps[known][:, known]
    assert float(steps[0, 1].abs()) < 1e-4 * float(steps.diag().min())
    sizes = steps.diag().sqrt() / steps.diag().max().sqrt()
    torch.testing.assert_close(model.input_noise[known].double(), 0.1 * sizes, rtol=1e-3, atol=0)
    torch.testing.assert_close(model.scale.raw(before.float()), batch.history[:, 0], rtol=1e-5, atol=1e-3)


def test_coarse_precision_does_not_hide_the_spread():
    states = cointegrated(num=10, length=40)
    data = Trajectories.from_arrays(states, dt=0.05)
    scale = NeuralSDE.for_data(data, net=TINY, normalise="whiten").scale
    with torch.autocast("cpu", dtype=torch.bfloat16):  # as in fit(…, precision="bf16")
        coarse = scale.states(data.states)
    torch.testing.assert_close(coarse, scale.states(data.states))


def test_densities_of_whitened_states_integrate_to_one():
    model = exact_model(
        lambda x: -0.3 * x, lambda x: -0.5 + 0.3 * x.tanh(), shape=(2,), normalise="whiten", transform=("none", "log")
    )
    model.scale.turn.copy_(torch.tensor([[1.0, 0.4], [-0.6, 0.9]]))
    model.scale.back.copy_(model.scale.turn.inverse())
    a, b = torch.linspace(-12, 12, 801), torch.linspace(-12, 12, 801)
    ends = torch.stack(torch.meshgrid(a, b.exp(), indexing="ij"), -1).reshape(-1, 2)
    start = torch.tensor([0.3, 1.2]).expand(len(ends), 2)
    density = model.log_prob(pairs_of(start, ends)).double().exp().reshape(801, 801)
    assert float(torch.trapezoid(torch.trapezoid(density, b.exp().double(), dim=1), a.double())) == pytest.approx(
        1, abs=1e-3
    )


def test_raw_fields_of_whitened_states_are_the_moments_of_a_short_step():
    model = exact_model(lambda x: 1 - x, lambda x: x * 0 - 1, shape=(2,), normalise="whiten", transform=("none", "log"))
    model.scale.turn.copy_(torch.tensor([[1.0, 0.4], [-0.6, 0.9]]))
    model.scale.back.copy_(model.scale.turn.inverse())
    x, dt = torch.tensor([[0.3, 1.2]]), 0.05 * 1e-3
    drift, g = model.fields(x)
    drawn = model.sample(x.expand(400_000, 2), [0.0, dt], rng=0)[:, 0, 1].double()
    step = drawn - x
    torch.testing.assert_close(step.std(0) / dt**0.5, g[0].double(), rtol=0.01, atol=0)
    error = float(g.max()) / (400_000 * dt) ** 0.5
    torch.testing.assert_close(step.mean(0) / dt, drift[0].double(), rtol=0, atol=4 * error)


def test_what_features_are_mixed_of_does_not_matter():
    states, mix = cointegrated(num=10, length=40), np.array([[2.0, 1.0], [-1.0, 3.0]])
    models = []
    for each in (states, states @ mix):
        data = Trajectories.from_arrays(each, dt=0.05)
        models.append(NeuralSDE.for_data(data, net=TINY, normalise="whiten", tau="uniform"))
        fit(models[-1], data, steps=5, batch_size=64, lr=1e-2, progress=False)
    one, two = (m.sample(x[:, 0], [0.0, 0.1, 0.2], rng=0).numpy() for m, x in zip(models, (states, states @ mix)))
    np.testing.assert_allclose(one @ mix, two, atol=2e-2)


def test_whitening_refuses_what_it_cannot_turn(np_rng):
    states = np_rng.standard_normal((3, 30, 2)).cumsum(1)
    whole = Trajectories.from_arrays(states)
    states[1, 4, 0] = np.nan
    holes = Trajectories.from_arrays(states, missing=True)
    model = NeuralSDE.for_data(whole, net=TINY, normalise="whiten")
    line = r"`normalise='whiten'` needs whole states: .* Got missing entries\. Fill them, or use `normalise='mean_std'`"
    for refused in (
        lambda: NeuralSDE.for_data(holes, net=TINY, normalise="whiten"),
        lambda: fit(model, holes, steps=1, progress=False),
        lambda: model.log_prob(holes),
    ):
        with pytest.raises(ValueError, match=line):
            refused()
    for shape in ((65,), (4, 2), (3, 4, 4)):
        with pytest.raises(
            ValueError, match=r"`normalise='whiten'` takes vectors of up to 64 features\. Got states of shape"
        ):
            Scale(shape, normalise="whiten")
    with pytest.raises(ValueError, match="normalise='whiten' mixes the features"):
        NeuralSDEConfig(normalise="whiten", noise=(0.1, 0.2))
    with pytest.raises(
        ValueError, match=r"`measurement` is noise of each feature; config.normalise='whiten' mixes them"
    ):
        NeuralSDEConfig(normalise="whiten", law=Moments(measurement=True))


def test_a_path_that_leaves_whitened_data_is_stopped():
    states = cointegrated(num=10, length=40)
    model = NeuralSDE.for_data(Trajectories.from_arrays(states, dt=0.05), net=TINY, normalise="whiten")
    low, high = model.scale.box(2.0)
    u = model.scale.states(torch.as_tensor(states, dtype=torch.float32)).flatten(0, 1)
    torch.testing.assert_close(low, u.amin(0) - 2 * (u.amax(0) - u.amin(0)), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(high, u.amax(0) + 2 * (u.amax(0) - u.amin(0)), rtol=1e-3, atol=1e-3)


@each_model
def test_every_model_learns_whitened_states(config, tmp_path):
    states = cointegrated(num=6, length=40)
    config = type(config)(**{**vars(config), "normalise": "whiten"})
    model = build(config, Trajectories.from_arrays(states, dt=0.05).transitions(history=config.history))
    fit(model, Trajectories.from_arrays(states, dt=0.05), steps=2, batch_size=16, progress=False)
    start = states[:, : config.history] if config.history > 1 else states[:, 0]
    paths = model.sample(start, [0.0, 0.05, 0.1], rng=0)
    torch.testing.assert_close(nsde.load(model.save_pretrained(tmp_path)).sample(start, [0.0, 0.05, 0.1], rng=0), paths)


# Time


@cache
def seasonal(num=60, length=2_000, dt=0.05):
    """One season: dx = cos(2πt / 100) dt + 0.2 dw from anywhere, exactly."""
    rng, times = np.random.default_rng(0), dt * np.arange(length + 1)
    mean = 100 / (2 * np.pi) * np.sin(2 * np.pi * times / 100)
    noise = 0.2 * np.sqrt(dt) * rng.standard_normal((num, length)).cumsum(1)
    noise = np.concatenate([np.zeros((num, 1)), noise], 1)
    return (10 * rng.standard_normal((num, 1)) + mean + noise)[..., None], times


def error_of_the_season(time_input):
    states, times = seasonal()
    data = Trajectories.from_arrays(states, times)
    model = NeuralSDE.for_data(data, net=NET, noise=0.0, denoiser=None, law=Deterministic(), time_input=time_input)
    fit(model, data, steps=400, batch_size=512, lr=5e-3, progress=False)
    truth = np.cos(2 * np.pi * times[::40] / 100)
    found = [model.fields(states[:, k], time=times[k])[0].numpy()[:, 0] for k in range(0, len(times), 40)]
    return float(np.sqrt(np.mean((np.stack(found) - truth[:, None]) ** 2) / np.mean(truth**2)))


def test_a_long_season_is_learned_from_elapsed_time():
    assert error_of_the_season(True) <= 0.05


def test_a_long_season_is_learned_from_its_period():
    assert error_of_the_season(100.0) <= 0.05


@pytest.mark.parametrize("how", [True, 3.0])
@pytest.mark.parametrize("history", [1, 2])
def test_nets_see_scaled_time_and_phase_alike_in_training_and_sampling(how, history, np_rng):
    data = Trajectories.from_arrays(np_rng.standard_normal((5, 30, 1)).cumsum(1), dt=0.5)
    shown = []

    def flow(x, c):
        shown.append(c.detach())
        return 0 * x

    num = 1 if how is True else 2
    config = {"law": Deterministic(), "denoiser": None, "noise": 0.0, "time_input": how, "history": history}
    model = NeuralSDE.for_data(data, nets={"flow": Field(flow)}, **config)
    assert model.config.num_late == num
    pairs = data.transitions(history=history)
    batch = pairs[torch.arange(len(pairs))]
    shown.clear()
    model.loss(batch, Noise(torch.arange(len(batch))))
    (trained,) = shown
    phase = 2 * math.pi * batch.time / 3.0
    scaled = (batch.time - batch.time.mean()) / batch.time.std(correction=0)
    wanted = scaled[:, None] if how is True else torch.stack([phase.sin(), phase.cos()], 1)
    torch.testing.assert_close(trained, wanted, rtol=1e-4, atol=1e-5)
    shown.clear()
    model.sample(batch.history[:1], [float(batch.time[0]), float(batch.time[0]) + 1.0])
    torch.testing.assert_close(torch.cat(shown), trained[:2], rtol=1e-4, atol=1e-5)


def test_a_single_time_has_the_unit_of_one_step():
    scale = Scale((1,))
    scale.measure_time(torch.full((10,), 3.0))
    assert float(scale.time_mean) == 3 and float(scale.time_std) == 1


@each_model
def test_every_model_takes_a_period(config, np_rng, tmp_path):
    data = Trajectories.from_arrays(
        np_rng.standard_normal((4, 30, 2)).cumsum(1), context=np_rng.standard_normal((4, 3))
    )
    config = type(config)(**{**vars(config), "time_input": 7.0})
    model = build(config, data.transitions(history=config.history))
    fit(model, data, steps=2, batch_size=16, lr=1e-1, progress=False)
    given = {"context": np.zeros((1, 3)), "rng": 0}
    at = np.zeros((1, config.history, 2)) if config.history > 1 else np.zeros((1, 2))
    paths = model.sample(at, [1.0, 2.0, 3.0], **given)
    torch.testing.assert_close(model.sample(at, [8.0, 9.0, 10.0], **given), paths, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(model.sample(at, [3.0, 4.0, 5.0], **given), paths, rtol=1e-4, atol=1e-4)
    again = nsde.load(model.save_pretrained(tmp_path))
    assert again.config.time_input == 7.0
    torch.testing.assert_close(again.sample(at, [1.0, 2.0, 3.0], **given), paths)


def test_models_saved_without_units_of_time_are_as_they_were(np_rng, tmp_path):
    data = Trajectories.from_arrays(np_rng.standard_normal((4, 30, 1)).cumsum(1))
    model = NeuralSDE.for_data(data, net=TINY, time_input=True)
    fit(model, data, steps=2, batch_size=16, lr=1e-1, progress=False)
    folder = model.save_pretrained(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if "time" not in k}, folder / "model.safetensors")
    old, scaled = nsde.load(folder), model.sample([[0.0]], [5.0, 6.0], rng=0)
    model.scale.time_mean.zero_()
    model.scale.time_std.fill_(1.0)
    assert torch.equal(old.sample([[0.0]], [5.0, 6.0], rng=0), model.sample([[0.0]], [5.0, 6.0], rng=0))
    assert not torch.equal(old.sample([[0.0]], [5.0, 6.0], rng=0), scaled)


def test_how_time_is_given_is_one_value():
    for value, num in ((False, 0), (True, 1), (24.0, 2), (1.0, 2)):
        config = NeuralSDEConfig(time_input=value)
        assert config.num_late == num and from_dict(NeuralSDEConfig, to_dict(config)) == config
        assert type(from_dict(NeuralSDEConfig, to_dict(config)).time_input) is type(value)
    for value in (0.0, -1.0, math.nan, math.inf, "day"):
        with pytest.raises(ValueError, match="`time_input` must be"):
            NeuralSDEConfig(time_input=value)
