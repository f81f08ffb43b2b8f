import itertools
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from toy_models import constant_model, field_model, fields_of, mlp_model, pairs

import neuralsde as nsde
from neuralsde import NeuralSDE, Sampler, Trajectories
from neuralsde.models.sequence import finite
from neuralsde.nets.config import MLPConfig, UViTConfig
from neuralsde.sde.config import Denoiser, Deterministic, Euler
from neuralsde.solvers.noise import Noise

ALPHA = 1e-5
NET = MLPConfig(width=16, depth=1)


def walks(seed=0, num_paths=20, num_times=15):
    """Ragged, irregular two-dimensional walks: states and times."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, num_times, num_paths)
    states = [rng.standard_normal((n, 2)).cumsum(0) * 0.3 for n in lengths]
    times = [rng.uniform(0.2, 1.5, n).cumsum() for n in lengths]
    return states, times


def trained(states, times, **settings):
    data = Trajectories.from_arrays(states, times)
    model = NeuralSDE.for_data(data, noise=0.1, net=NET, **settings)
    return nsde.fit(model, data, steps=20, batch_size=64, lr=1e-2, progress=False)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# Units


@pytest.mark.parametrize("solver", ["euler_maruyama", "heun"])
@pytest.mark.parametrize(
    "setting", [{"tau": "start"}, {"tau": "uniform", "time_input": True}, {"law": Euler(flow_loss="log")}]
)
@pytest.mark.parametrize("unit", [3.7, 1 / 1024])
def test_the_unit_of_time_does_not_matter(unit, setting, solver):
    states, times = walks()
    one, other = trained(states, times, **setting), trained(states, [unit * t for t in times], **setting)
    for (name, a), b in zip(one.nets.state_dict().items(), other.nets.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)
    x, grid = torch.zeros(3, 2), np.array([0.0, 0.3, 1.1, 4.0])
    paths = [
        model.sample(x, u * grid, num_paths=4, sampler=Sampler(solver=solver, pull=0.4 / u, substeps=2), rng=seeded())
        for model, u in ((one, 1.0), (other, unit))
    ]
    torch.testing.assert_close(*paths, rtol=1e-3, atol=1e-3)
    (f, g), (f_, g_) = one.fields(x), other.fields(x)
    torch.testing.assert_close(f_, f / unit, rtol=1e-3, atol=1e-4 / unit)
    torch.testing.assert_close(g_, g / unit**0.5, rtol=1e-3, atol=1e-4 / unit**0.5)


@pytest.mark.parametrize("normalise", ["mean_std", "min_max"])
def test_the_units_of_the_state_do_not_matter(normalise):
    states, times = walks()
    size, shift = np.array([100.0, 1e-3]), np.array([-7.0, 2e-3])
    one = trained(states, times, tau="uniform", normalise=normalise)
    other = trained([x * size + shift for x in states], times, tau="uniform", normalise=normalise)
    for (name, a), b in zip(one.nets.state_dict().items(), other.nets.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3, msg=name)
    x, grid = torch.rand(3, 2, generator=seeded()), [0.0, 1.0, 3.0]
    moved = x * torch.tensor(size) + torch.tensor(shift)
    paths, paths_ = one.sample(x, grid, rng=seeded()), other.sample(moved, grid, rng=seeded())
    torch.testing.assert_close(paths * size + shift, paths_.double(), rtol=1e-2, atol=1e-5)
    # The density is one of raw states: its log moves by the sum of log size.
    data = Trajectories.from_arrays(states, times)
    data_ = Trajectories.from_arrays([x * size + shift for x in states], times)
    expected = one.log_prob(data) - (data.lengths - 1) * np.log(size).sum()
    torch.testing.assert_close(other.log_prob(data_), expected.float(), rtol=1e-2, atol=1e-2)


# Likelihood


@pytest.mark.parametrize("tau", ["start", "uniform", 0.25])
def test_log_prob_is_that_of_scipy(tau):
    model, batch = constant_model(tau=tau, dt_ref=0.5).eval(), pairs(50)
    with torch.no_grad():
        g = math.exp(float(fields_of(model).log_diffusion(model.scale.states(batch.history), None)[0, 0]))
    balance = {"start": 0.0, "uniform": 1.0}.get(tau, 0.75)
    velocity = 2.0 * 0.3 + balance * 0.5 * g**2 * (-0.4 / 0.1)  # flow + balance g^2 / 2 score, g constant
    std, steps = model.scale.std.numpy(), (batch.dt / 0.5).numpy()[:, None]
    mean = batch.history[:, -1].numpy() + velocity * std * steps
    expected = stats.norm.logpdf(batch.next.numpy(), mean, g * std * np.sqrt(steps)).sum(1)
    np.testing.assert_allclose(model.log_prob(batch).numpy(), expected, rtol=1e-4, atol=1e-4)
    model.sampler = Sampler(pull=1.0, diffusion=0.3, balance=0.0)  # how paths are drawn is no part of the density
    np.testing.assert_allclose(model.log_prob(batch).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_log_prob_leaves_out_what_was_not_observed():
    mask = torch.rand(50, 2, generator=seeded()) < 0.5
    model, batch = constant_model().eval(), pairs(50)
    whole = model.log_prob(batch)
    parts = [model.log_prob(pairs(50, mask=m)) for m in (mask, ~mask)]
    torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-4, atol=1e-4)


def test_log_prob_of_paths_sums_consecutive_transitions():
    states, times = walks()
    data = Trajectories.from_arrays(states, times)
    model = trained(states, times, tau="uniform", time_input=True)
    model.lag = 5.0  # lagged pairs overlap and must not be summed
    by_path = []
    for x, t in zip(states, times):
        x, t = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(t, dtype=torch.float32)
        steps = nsde.Transition(history=x[:-1, None], next=x[1:], dt=t.diff(), time=t[:-1] - t[0])
        by_path.append(model.log_prob(steps).sum())
    torch.testing.assert_close(model.log_prob(data), torch.stack(by_path), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.log_prob(data, batch_size=7), torch.stack(by_path), rtol=1e-4, atol=1e-4)


def test_dropout_is_off_in_log_prob_fields_and_samples():
    model, batch = mlp_model(dropout="flow").train(), pairs(8)
    assert torch.equal(model.log_prob(batch), model.log_prob(batch))
    assert torch.equal(model.fields(batch.next)[0], model.fields(batch.next)[0])
    one, two = (model.sample(batch.next, [0.0, 1.0], rng=seeded()) for _ in range(2))
    assert torch.equal(one, two)
    assert all(m.training for m in model.modules())


def test_a_model_without_diffusion_has_no_likelihood():
    with pytest.raises(ValueError, match="no likelihood"):
        constant_model(law=Deterministic()).log_prob(pairs())


# Score and drift


def test_the_denoiser_learns_the_score_of_a_gaussian():
    x = np.random.default_rng(0).standard_normal((2000, 20, 2)) * [3.0, 0.2] + [5.0, -1.0]
    data, sigma = Trajectories.from_arrays(x), 0.3
    model = NeuralSDE.for_data(data, noise=sigma, law=Deterministic(), net=MLPConfig(width=32, depth=1))
    nsde.fit(model, data, steps=300, batch_size=1024, lr=1e-2, progress=False)
    u = model.scale.states(torch.as_tensor(x[:, :1], dtype=torch.float32))
    with torch.no_grad():
        score = fields_of(model).denoiser(u, None) / sigma
    truth = -u[:, 0] / (1 + sigma**2)
    assert float((score - truth).square().mean().sqrt()) < 0.1


@pytest.mark.parametrize("shape", [(3,), (1, 2, 2)])
def test_g_dg_is_the_diagonal_of_the_jacobian(shape):
    model = mlp_model(shape=shape, history=2).eval()
    state = torch.randn(5, 2, *shape, generator=seeded())

    def half_g2(x):
        return 0.5 * torch.exp(
            2 * fields_of(model).log_diffusion(torch.cat([state[:, :1], x[:, None]], 1), None)
        ).flatten(1)

    jacobian = torch.autograd.functional.jacobian(lambda x: half_g2(x).sum(0), state[:, 1])  # (D, B, *S)
    expected = torch.stack([jacobian[i].flatten(1)[:, i] for i in range(len(jacobian))], 1).reshape(5, *shape)
    unused = Noise(torch.arange(5)).signs  # the exact slope takes no probe
    g, g_dg = fields_of(model)._g_and_dg(state, None, Sampler(correction="exact"), unused)
    torch.testing.assert_close(g_dg, expected, rtol=1e-4, atol=1e-6)
    # The probe is unbiased: its mean over all sign vectors is exact.
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=math.prod(shape)))).reshape(-1, *shape)
    probes = [
        fields_of(model)._g_and_dg(state, None, Sampler(correction="probe"), lambda v=v: v.expand(5, *shape))[1]
        for v in signs
    ]
    assert not torch.allclose(probes[0], expected, rtol=1e-2)
    torch.testing.assert_close(torch.stack(probes).mean(0), expected, rtol=1e-3, atol=1e-5)
    # A factor on g enters both twice over.
    half, half_slope = fields_of(model)._g_and_dg(state, None, Sampler(correction="exact", diffusion=0.5), unused)
    torch.testing.assert_close(half, 0.5 * g)
    torch.testing.assert_close(half_slope, 0.25 * g_dg)


@pytest.mark.parametrize("factor", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("pull", [0.0, 0.3])
@pytest.mark.parametrize("balance", [None, 0.0, 0.4])
def test_the_drift_is_put_together_as_the_module_says(balance, pull, factor):
    """f + balance (g^2/2 s + g dg) + pull sigma^2 s, in raw units."""
    sigma, dt_ref = 0.2, 0.25
    model = field_model(
        tau="uniform",
        noise=sigma,
        dt_ref=dt_ref,
        flow=lambda x, c: torch.sin(x),
        log_g=lambda x, c: 0.3 * x - 1,
        denoiser=lambda x, c: -0.1 * x,
    )
    x = torch.linspace(-2, 2, 9)[:, None]
    drift, diffusion = model.fields(x, sampler=Sampler(balance=balance, pull=pull / dt_ref, diffusion=factor))
    g, score = factor * torch.exp(0.3 * x - 1), -0.1 * x / sigma
    b = 1.0 if balance is None else balance
    expected = torch.sin(x) + b * (0.5 * g**2 * score + 0.3 * g**2) + pull * sigma**2 * score
    torch.testing.assert_close(drift, expected / dt_ref, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(diffusion, g / dt_ref**0.5, rtol=1e-4, atol=1e-5)


# Refusals


@pytest.mark.parametrize("lack", [{"denoiser": None}, {"noise": 0.0}])
def test_balance_without_a_score_is_refused(lack):
    model, batch = constant_model(tau="uniform", **lack).eval(), pairs()
    for call in (
        lambda s: model.sample(batch.next, [0.0, 0.5], sampler=s),
        lambda s: model.fields(batch.next, sampler=s),
    ):
        with pytest.raises(ValueError, match=r"balance=1 needs a score.*tau='start'"):
            call(Sampler())
        call(Sampler(balance=0.0))  # the explicit ablation
        call(Sampler(diffusion=0.0))  # the flow itself owes nothing
        with pytest.raises(ValueError, match="`pull` needs a denoiser"):
            call(Sampler(balance=0.0, pull=0.1))
    with pytest.raises(ValueError, match="tau='start'"):
        model.log_prob(batch)
    constant_model(tau="start", **lack).eval().sample(batch.next, [0.0, 0.5])


def test_a_pull_that_overshoots_is_refused():
    model, x = constant_model(tau="start", dt_ref=0.5).eval(), torch.zeros(1, 2)
    with pytest.raises(ValueError, match=r"`pull` \* step must be <= 1. Got 2.5 \* 0.5. Use 2 `substeps`"):
        model.sample(x, [0.0, 1.0], sampler=Sampler(pull=2.5))
    for sampler, times in ((Sampler(pull=2.0), [0.0, 1.0]), (Sampler(pull=2.5, substeps=2), [0.0, 1.0])):
        model.sample(x, times, sampler=sampler)
    model.sample(x, [0.0, 0.3, 0.6], sampler=Sampler(pull=2.5))  # output times that are close enough


@pytest.mark.parametrize(
    "times", [[0.0, float("inf")], [float("-inf"), 0.0], [0.0, float("nan")], [0.0, 0.0], [1.0, 0.5]]
)
def test_times_must_increase_and_be_finite(times):
    with pytest.raises(ValueError, match="`times` must increase and be finite"):
        constant_model(tau="start").sample(torch.zeros(1, 2), times)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_states_must_be_finite(bad):
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([[0.0, largest], [-largest, 0.0]])
    assert finite(x)
    x[1, 1] = bad
    assert not finite(x)
    with pytest.raises(ValueError, match=r"`history` must be finite. Got history\[\(1, 0, 1\)\]=-?(inf|nan)"):
        constant_model(tau="start").sample(x, [0.0, 1.0])


# Sampling


@pytest.mark.parametrize("solver", ["euler_maruyama", "milstein", "heun"])
@pytest.mark.parametrize("tau", ["start", "uniform"])
@pytest.mark.parametrize("correction", ["exact", "probe", "off"])
@pytest.mark.parametrize(
    ("pull", "factor", "alpha"), [(0.0, 1.0, False), (0.5, 1.0, True), (0.5, 0.0, False), (0.0, 0.0, False)]
)
def test_passes_are_counted(solver, tau, correction, pull, factor, alpha):
    if correction == "off" and solver != "euler_maruyama":
        with pytest.raises(ValueError, match="needs g dg"):
            Sampler(solver=solver, correction=correction)
        return
    model = mlp_model(tau=tau, denoiser=Denoiser(alpha=alpha)).eval()
    forward = dict.fromkeys(model.nets, 0)

    def note(name):
        def hook(*_):
            forward[name] += 1

        return hook

    for name, net in model.nets.items():
        net.register_forward_hook(note(name))
    sampler = Sampler(solver=solver, correction=correction, pull=pull, diffusion=factor, substeps=2, box=None)
    call = {"num_paths": 3, "sampler": sampler, "rng": seeded()}
    nfe = model.draw(torch.zeros(4, 2), [0.0, 1.0, 1.2, 3.0], **call).nfe

    calls = (2 + 1 + 4) * (2 if solver == "heun" else 1)
    on = factor > 0
    slope = on and correction != "off" and (tau == "uniform" or solver != "euler_maruyama")
    backward = {"exact": 2, "probe": 1, "off": 0}[correction] if slope else 0
    score = (on and (tau == "uniform" or alpha)) or pull > 0
    expected = {"flow": calls, "diffusion": calls * (on + backward), "denoiser": calls * score}
    expected["alpha"] = calls * (alpha and on)
    assert nfe == {k: v for k, v in expected.items() if v}
    assert forward["diffusion"] == calls * on
    assert all(forward[k] == expected[k] for k in forward if k != "diffusion")
    in_chunks = model.draw(torch.zeros(4, 2), [0.0, 1.0, 1.2, 3.0], chunk=5, **call)
    assert in_chunks.nfe == nfe  # per path, however many chunks


@settings(deadline=None, max_examples=25)
@given(gaps=st.lists(st.floats(0.05, 3.0), min_size=2, max_size=6), data=st.data())
def test_splitting_the_times_of_a_flow_changes_nothing(gaps, data):
    cut = data.draw(st.integers(1, len(gaps) - 1))
    times = np.cumsum([0.7, *gaps])
    model = field_model(flow=lambda x, c: torch.sin(x + c), time_input=True, noise=0.0)
    x = torch.linspace(-2, 2, 5)[:, None]
    whole = model.sample(x, times)
    head = model.sample(x, times[: cut + 1])
    tail = model.sample(head[:, 0, -1], times[cut:])
    torch.testing.assert_close(torch.cat([head, tail[:, :, 1:]], 2), whole, rtol=1e-4, atol=1e-5)


def test_splitting_the_times_of_an_sde_keeps_the_law():
    model = field_model(tau="start", flow=lambda x, c: -0.3 * x, log_g=lambda x, c: -0.5 + 0.2 * torch.sin(x))
    x = torch.ones(4000, 1)
    whole = model.sample(x, [0.0, 2.0, 5.0], rng=seeded(0))[:, 0, -1, 0]
    middle = model.sample(x, [0.0, 2.0], rng=seeded(1))[:, 0, -1]
    split = model.sample(middle, [2.0, 5.0], rng=seeded(2))[:, 0, -1, 0]
    assert stats.ks_2samp(whole.numpy(), split.numpy()).pvalue > ALPHA
    assert stats.ks_2samp(whole.numpy(), middle[:, 0].numpy()).pvalue < ALPHA  # it could have failed


def test_any_output_times_have_the_right_law():
    """Constant f and g: x(t) - x(0) is N(f t, g^2 t) at every time, far below the step of the data too."""
    f, g, dt_ref = 0.4, 0.6, 0.5
    model = field_model(tau="start", dt_ref=dt_ref, flow=lambda x, c: 0 * x + f, log_g=lambda x, c: 0 * x + math.log(g))
    times = 3.0 + np.array([0.0, 0.013, 0.1, 0.77, 0.78, 2.6])
    paths = model.sample(torch.zeros(1), times, num_paths=4000, rng=seeded())[0, :, :, 0].double().numpy()
    gaps = np.diff(times) / dt_ref
    z = (np.diff(paths, axis=1) - f * gaps) / (g * np.sqrt(gaps))
    for k in range(len(gaps)):
        assert stats.kstest(z[:, k], "norm").pvalue > ALPHA
    correlation = np.corrcoef(z.T) - np.eye(len(gaps))
    assert np.abs(correlation).max() < 5 / math.sqrt(4000)


def test_the_first_state_is_the_given_one():
    model = constant_model(tau="start").eval()
    model.scale.std.copy_(torch.tensor([0.7, 0.3]))
    x = torch.randn(200, 2, generator=seeded())
    assert not torch.equal(model.scale.raw(model.scale.states(x)), x)  # there is rounding to undo
    paths = model.sample(x, [2.0, 2.5], num_paths=3, sampler=Sampler(box=None), rng=seeded())
    assert torch.equal(paths[:, :, 0], x[:, None].expand(200, 3, 2))


@pytest.mark.parametrize("solver", ["euler_maruyama", "heun"])
def test_the_order_of_the_batch_does_not_matter(solver, monkeypatch):
    model, batch = mlp_model(history=2).eval(), pairs(9, history=2)
    times = batch.dt.double().cumsum(0)[:, None] * torch.tensor([0.0, 1.0, 1.3, 4.0], dtype=torch.float64)[None]
    times = times + torch.arange(9.0)[:, None]
    keys, order = Noise.draw(seeded(), 9).keys, torch.randperm(9, generator=seeded())
    sampler = Sampler(solver=solver, correction="probe")
    out = []
    for rows in (torch.arange(9), order):
        monkeypatch.setattr(Noise, "draw", lambda *_, r=rows: Noise(keys[r]))
        out.append(model.sample(batch.history[rows], times[rows], sampler=sampler))
    torch.testing.assert_close(out[0][order], out[1], rtol=1e-4, atol=1e-5)


def test_context_holds_from_one_output_time_to_the_next():
    model = field_model(flow=lambda x, c: c, noise=0.0, context_size=1, dt_ref=0.5)
    times, context = torch.tensor([0.0, 0.2, 1.0, 2.5]), torch.tensor([[[1.0], [-2.0], [0.5], [9.0]]] * 2)
    paths = model.sample(torch.zeros(2, 1), times, context=context)
    expected = torch.cat([torch.zeros(1), (torch.tensor([1.0, -2.0, 0.5]) * times.diff() / 0.5).cumsum(0)])
    torch.testing.assert_close(paths[1, 0, :, 0], expected)
    constant = model.sample(torch.zeros(2, 1), times, context=torch.tensor([[1.0], [2.0]]))
    torch.testing.assert_close(constant[1, 0, :, 0], 2 * times / 0.5)


def test_time_is_given_in_reference_steps_since_the_start():
    model = field_model(flow=lambda x, c: c, noise=0.0, time_input=True, dt_ref=0.5)
    end = model.sample(torch.zeros(1), [1.0, 3.0], sampler=Sampler(substeps=64))[0, 0, -1, 0]
    assert float(end) == pytest.approx((6**2 - 2**2) / 2, rel=0.01)  # t dt from 2 to 6 reference steps


# Law


@pytest.mark.parametrize(
    ("sampler", "keeps"),
    [
        (Sampler(), True),
        (Sampler(diffusion=0.5), True),  # any share of g keeps the law where the balance is right
        (Sampler(solver="heun"), True),
        (Sampler(balance=0.0), False),
        (Sampler(pull=2.0), False),
    ],
)
def test_what_keeps_the_smoothed_law_of_a_gaussian(sampler, keeps):
    """Stationary data N(0, 1): its probability-flow velocity is 0, its smoothed density N(0, 1 + sigma^2)."""
    sigma, num = 0.5, 5000
    spread = math.sqrt(1 + sigma**2)
    model = field_model(
        tau="uniform",
        noise=sigma,
        flow=lambda x, c: 0 * x,
        log_g=lambda x, c: 0 * x + math.log(0.3),
        denoiser=lambda x, c: -sigma * x / (1 + sigma**2),
    )
    x = spread * torch.randn(num, 1, generator=seeded(1))
    end = model.sample(x, [0.0, 20.0], sampler=replace(sampler, substeps=4), rng=seeded(2))[:, 0, -1, 0]
    p = stats.kstest(end.double().numpy(), "norm", (0, spread)).pvalue
    assert p > ALPHA if keeps else p < ALPHA


@pytest.mark.parametrize("solver", ["euler_maruyama", "milstein", "heun"])
def test_every_solver_samples_the_ito_law_of_a_state_dependent_g(solver):
    """Geometric Brownian motion by its fields; Heun would be off by s^2/2 per unit of time on the bare drift."""
    mu, s = 0.1, 0.4
    model = field_model(
        tau="start",
        flow=lambda x, c: mu * x,
        log_g=lambda x, c: torch.log(s * x.clamp(min=1e-3)),
        low=-12.0,
        high=4.0,
    )
    end = model.sample(
        torch.ones(1), [0.0, 1.0], num_paths=10_000, sampler=Sampler(solver=solver, substeps=32), rng=seeded()
    )
    log = np.log(end[0, :, -1, 0].double().numpy())
    assert log.mean() == pytest.approx(mu - s**2 / 2, abs=5 * s / 100 + 0.003)
    assert log.std() == pytest.approx(s, abs=0.02)


def test_log_prob_spaces_the_slots_as_training_did():
    walk = torch.randn(4, 200, 1, generator=seeded()).cumsum(1) * 0.1
    data = Trajectories.from_arrays(walk, dt=0.1)
    model = NeuralSDE.for_data(data, lag=1.0, history=2, noise=0.01)
    seen = []
    model.nets["flow"].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model.log_prob(data)
    apart = torch.cat(seen).diff(dim=1).std() * model.scale.std[0]
    lagged = (walk[:, 10:] - walk[:, :-10]).std()
    assert float(apart) == pytest.approx(float(lagged), rel=0.05)


def test_probed_densities_do_not_depend_on_the_batch():
    data = Trajectories.from_arrays(torch.randn(3, 20, 40, generator=seeded()).cumsum(1))
    model = NeuralSDE.for_data(data, tau="uniform")
    torch.nn.init.normal_(model.nets["diffusion"].outward.weight, generator=seeded())
    torch.testing.assert_close(model.log_prob(data), model.log_prob(data, batch_size=7), rtol=1e-5, atol=1e-3)


def test_velocities_are_scaled_as_the_loss_weighs_them():
    gaps = torch.distributions.Exponential(1.0).sample((1, 2000)).double() + 1e-6
    times = torch.cat([torch.zeros(1, 1), gaps.cumsum(1)], dim=1)
    walk = torch.cat([torch.zeros(1, 1), torch.randn(1, 2000, generator=seeded()) * gaps.sqrt()], dim=1).cumsum(1)
    model = NeuralSDE.for_data(Trajectories.from_arrays(walk[..., None], times))
    expected = 1 / gaps.mean().sqrt() * model.scale.step / model.scale.std
    assert float(model.sizes.rate) == pytest.approx(float(expected), rel=0.1)


def test_a_net_of_the_wrong_shape_is_refused():
    class Slots(torch.nn.Module):
        def forward(self, state, condition):
            return state

    data = Trajectories.from_arrays(torch.randn(2, 20, 3))
    with pytest.raises(ValueError, match=r"The net 'flow' must map a state \(2, 1, 3\) to \(2, 3\). Got \(2, 1, 3\)"):
        NeuralSDE.for_data(data, nets={"flow": Slots(), "diffusion": Slots(), "denoiser": Slots()})


def test_data_of_another_form_is_refused_by_log_prob():
    data = Trajectories.from_arrays(torch.randn(2, 20, 3))
    model = NeuralSDE.for_data(data)
    with pytest.raises(ValueError, match=r"takes states of shape \(3,\).*Got data with \(1,\)"):
        model.log_prob(Trajectories.from_arrays(torch.randn(2, 20, 1)))
    with pytest.raises(ValueError, match=r"must be a Transition or a Trajectories\. Got a Tensor\. Use Trajectories"):
        model.log_prob(torch.randn(2, 20, 3))


def test_noise_that_hides_the_velocity_is_warned_of():
    times = torch.arange(2000) * 0.02
    data = Trajectories.from_arrays(torch.sin(times)[None, :, None], times)
    with pytest.warns(UserWarning, match="hides the differences between slots"):
        NeuralSDE.for_data(data, history=2)


def test_pictures_bear_more_noise_than_numbers():
    """White states: slots differ by √2 (rms); 0.4 of it as noise is borne by pictures, 0.8 by nobody."""
    steps = torch.randn(8, 12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    pictures, numbers = (Trajectories.from_arrays(x) for x in (steps, steps.flatten(2)))
    noise = 0.4 * math.sqrt(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NeuralSDE.for_data(pictures, history=2, noise=noise, net=UViTConfig(width=32))
    with pytest.warns(UserWarning, match="hides the differences"):
        NeuralSDE.for_data(pictures, history=2, noise=2 * noise, net=UViTConfig(width=32))
    with pytest.warns(UserWarning, match="hides the differences"):
        NeuralSDE.for_data(numbers, history=2, noise=noise)
