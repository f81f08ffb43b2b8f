import math

import numpy as np
import pytest
import torch
from problems import OrnsteinUhlenbeck
from scipy import stats
from toy_models import FixedNoise, constant_model, fields_of, mlp_model, pairs

import neuralsde as nsde
from neuralsde.nets.config import MLPConfig
from neuralsde.sde import losses as objectives
from neuralsde.sde.config import Denoiser, Euler
from neuralsde.sde.model import NeuralSDE
from neuralsde.sde.pairs import slots_after
from neuralsde.solvers.noise import Noise

LOG_2PI = math.log(2 * math.pi)


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


# The functions, by hand


def test_values_by_hand():
    r, dt, log_g = f64(3.0, -0.5), f64(0.5, 2.0), f64(math.log(2.0), 0.0)
    torch.testing.assert_close(objectives.flow_mse(r, dt), f64(4.5, 0.5))
    torch.testing.assert_close(objectives.flow_log(r, 0.1), f64(0.5 * math.log(9.1), 0.5 * math.log(0.35)))
    torch.testing.assert_close(objectives.flow_nll(r, dt, log_g), f64(4.5 / 8, 0.25))
    torch.testing.assert_close(objectives.diffusion_nll(r, dt, log_g), f64(4.5 / 8 + math.log(2), 0.25))
    torch.testing.assert_close(objectives.diffusion_match(r, dt, log_g), f64(0.5 * 0.5**2, 0.5 * 0.5**2))
    torch.testing.assert_close(objectives.denoiser_dsm(f64(1.0, -2.0), f64(0.5, 2.0)), f64(2.25, 0.0))
    torch.testing.assert_close(objectives.diffusion_log(f64(2.0), f64(0.25), f64(0.3)), f64(0.5 * 0.3**2))


def test_flow_nll_plus_log_g_is_the_negative_log_likelihood():
    r, dt, log_g = f64(0.8), f64(0.3), f64(-0.4)
    std = math.exp(-0.4) * math.sqrt(0.3)
    nll = objectives.diffusion_nll(r, dt, log_g) + 0.5 * LOG_2PI + 0.5 * math.log(0.3)
    assert float(nll) == pytest.approx(-stats.norm.logpdf(0.8 * 0.3, 0, std), abs=1e-12)


def test_log_loss_tends_to_the_squared_error():
    r = f64(0.3, 2.0, -5.0)
    for delta in (1e6, 1e8):
        torch.testing.assert_close(
            2 * delta * (objectives.flow_log(r, delta) - 0.5 * math.log(delta)), r**2, rtol=1e-4, atol=1e-6
        )


def test_log_loss_without_delta_does_not_see_the_scale():
    r = f64(0.3, 2.0, -5.0).requires_grad_()
    shift = objectives.flow_log(10 * r, 1e-30) - objectives.flow_log(r, 1e-30)
    torch.testing.assert_close(shift, f64(*[math.log(10)] * 3))
    (grad,) = torch.autograd.grad(objectives.flow_log(r, 1e-30).sum(), r)
    (grad_10,) = torch.autograd.grad(objectives.flow_log(10 * r, 1e-30).sum(), r)
    torch.testing.assert_close(grad, grad_10)
    torch.testing.assert_close(grad, 1 / r.detach())


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: objectives.flow_mse(x, y.detach().abs()),
        lambda x, y: objectives.flow_log(x, 1e-3),
        lambda x, y: objectives.flow_nll(x, y.detach().abs(), y.detach()),
        lambda x, y: objectives.diffusion_nll(y.detach(), y.detach().abs(), x),
        lambda x, y: objectives.diffusion_match(y.detach(), y.detach().abs(), x),
        lambda x, y: objectives.denoiser_dsm(x, y.detach()),
        lambda x, y: objectives.diffusion_log(y.detach(), y.detach().abs(), x),
    ],
)
def test_gradients_are_those_of_finite_differences(loss):
    rng = torch.Generator().manual_seed(1)
    x, y = (torch.randn(5, 3, generator=rng, dtype=torch.float64).requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(lambda v: loss(v, y), (x,))


@pytest.mark.parametrize("loss", [objectives.diffusion_nll, objectives.diffusion_match])
def test_the_minimum_of_the_diffusion_losses_is_the_mean_of_r2_dt(loss, np_rng):
    r, dt = torch.as_tensor(np_rng.standard_t(5, 10_000)), torch.as_tensor(np_rng.uniform(0.1, 2, 10_000))
    best = 0.5 * torch.log((r**2 * dt).mean())

    def slope(log_g):
        log_g = log_g.clone().requires_grad_()
        return float(torch.autograd.grad(loss(r, dt, log_g).mean(), log_g)[0])

    assert slope(best) == pytest.approx(0, abs=1e-9)
    assert slope(best - 0.05) < 0 < slope(best + 0.05)


def test_diffusion_losses_hold_the_residual_and_flow_nll_holds_g():
    r, log_g, dt = f64(0.5).requires_grad_(), f64(0.1).requires_grad_(), f64(1.0)
    for loss in (objectives.diffusion_nll, objectives.diffusion_match):
        assert torch.autograd.grad(loss(r, dt, log_g).sum(), r, allow_unused=True)[0] is None
    assert torch.autograd.grad(objectives.flow_nll(r, dt, log_g).sum(), log_g, allow_unused=True)[0] is None


# What the nets see


@pytest.mark.parametrize("tau", [0.0, 0.25, 1.0])
def test_interpolation_hits_its_end_points(tau):
    model, batch = constant_model(history=3, time_input=True), pairs(history=3)
    model.loss(batch, FixedNoise(4, tau, eps=0.0))
    now, after = model.scale.states(batch.history), model.scale.states(batch.next)
    newest = (1 - tau) * now[:, -1] + tau * after
    for net in model.nets.values():
        torch.testing.assert_close(net.state[:, -1], newest)
        torch.testing.assert_close(net.condition, ((batch.time + tau * batch.dt) / 0.5)[:, None])
        # Slots are a step of 0.5 apart; the older ones have moved for as long as the newest one
        torch.testing.assert_close(net.state, slots_after(now, newest, tau * batch.dt / 0.5))
    if tau == 0.0:
        assert torch.equal(model.nets["flow"].state, now)


@pytest.mark.parametrize(
    ("setting", "start", "seen"), [("start", 1.0, 0.0), ("uniform", 1e-12, 0.7), (0.4, 0.3, 0.0), (0.4, 0.5, 0.7)]
)
def test_tau_setting_decides_where_the_nets_are_trained(setting, start, seen):
    model, batch = constant_model(tau=setting), pairs()
    model.loss(batch, FixedNoise(4, 0.7, eps=0.0, start=start))
    now, after = model.scale.states(batch.history[:, 0]), model.scale.states(batch.next)
    torch.testing.assert_close(model.nets["flow"].state[:, 0], torch.lerp(now, after, seen))


def test_share_of_start_states():
    model, batch = constant_model(tau=0.3, noise=0.0, denoiser=None), pairs(20_000)
    model.loss(batch, Noise.for_step(0, 0, torch.arange(20_000)))
    at_start = (model.nets["flow"].state == model.scale.states(batch.history)).flatten(1).all(1)
    assert stats.binomtest(int(at_start.sum()), 20_000, 0.3).pvalue > 1e-5


def test_noise_is_added_to_what_the_nets_see_in_units_of_the_scale():
    model, batch = constant_model(noise=(0.1, 0.4), history=2), pairs(history=2)
    model.loss(batch, FixedNoise(4, 0.0, eps=2.0))
    expected = model.scale.states(batch.history) + torch.tensor([0.2, 0.8])
    torch.testing.assert_close(model.nets["denoiser"].state, expected)


# The losses of the model


def by_hand(model, batch):
    """r, dt and log g of constant nets, from the definitions."""
    step = (batch.next - batch.history[:, -1]) / model.scale.std
    dt = (batch.dt / 0.5)[:, None]
    width = 7.0
    middle = math.log(4 / 3)  # logit of (-1 + 5) / 7
    log_g = -5 + width / (1 + math.exp(-(middle + 0.2 * 4 / width)))
    return 2.0 * 0.3 - step / dt, dt, log_g


@pytest.mark.parametrize("eps", [0.0, 1.5])
@pytest.mark.parametrize("history", [1, 3])
def test_model_losses_by_hand(eps, history):
    """The residual is that of the clean, newest states: neither eps nor older slots enter it."""
    batch = pairs(history=history)
    noise = FixedNoise(4, 0.3, eps=eps)
    model = constant_model(history=history)
    r, dt, log_g = by_hand(model, batch)
    losses = {k: v.detach() for k, v in model.loss(batch, noise).items()}
    assert set(losses) == {"flow", "diffusion", "denoiser"}
    assert float(losses["flow"]) == pytest.approx(float((r**2 * dt).mean()), rel=1e-5)
    nll = 0.5 * r**2 * dt * math.exp(-2 * log_g) + log_g
    assert float(losses["diffusion"]) == pytest.approx(float(nll.mean()), rel=1e-5)
    assert float(losses["denoiser"]) == pytest.approx((-0.4 + eps) ** 2 * float(dt.mean()), rel=1e-5)

    less = {
        k: v.detach()
        for k, v in constant_model(history=history, denoiser=Denoiser(weight=0.1)).loss(batch, noise).items()
    }
    assert float(less["denoiser"]) == pytest.approx(0.1 * float(losses["denoiser"])) and less["flow"] == losses["flow"]
    other = constant_model(history=history, law=Euler(flow_loss="log", delta=0.02, diffusion_loss="match")).loss(
        batch, noise
    )
    other = {k: v.detach() for k, v in other.items()}
    assert float(other["flow"]) == pytest.approx(float(0.5 * torch.log(r**2 + 0.02).mean()), rel=1e-5)
    match = 0.5 * (math.exp(2 * log_g) - r**2 * dt) ** 2
    assert float(other["diffusion"]) == pytest.approx(float(match.mean()), rel=1e-4)
    nll = constant_model(history=history, law=Euler(flow_loss="nll")).loss(batch, noise)["flow"].detach()
    assert float(nll) == pytest.approx(float((0.5 * r**2 * dt).mean()) * math.exp(-2 * log_g), rel=1e-5)


def test_mask_leaves_out_what_was_not_observed():
    mask = torch.tensor([[True, False], [True, True], [False, False], [True, True]])
    batch = pairs(mask=mask)
    batch.next[~mask] = 1e4
    model = constant_model()
    r, dt, log_g = by_hand(model, batch)
    losses = {k: v.detach() for k, v in model.loss(batch, FixedNoise(4, 0.0, eps=1.0)).items()}
    assert float(losses["flow"]) == pytest.approx(float((r**2 * dt)[mask].mean()), rel=1e-5)
    nll = 0.5 * r**2 * dt * math.exp(-2 * log_g) + log_g
    assert float(losses["diffusion"]) == pytest.approx(float(nll[mask].mean()), rel=1e-5)
    assert float(losses["denoiser"]) == pytest.approx(0.36 * float(dt.expand_as(r)[mask].mean()), rel=1e-5)


# Gradients do not mix


@pytest.mark.parametrize("flow_loss", ["mse", "log", "nll"])
@pytest.mark.parametrize("dropout", [None, "flow"])
def test_each_loss_trains_its_own_net(flow_loss, dropout):
    model, batch = mlp_model(law=Euler(flow_loss=flow_loss), denoiser=Denoiser(alpha=True), dropout=dropout), pairs(16)
    for name in ("flow", "diffusion", "denoiser", "alpha"):
        model.zero_grad(set_to_none=True)
        model.loss(batch, Noise(torch.arange(16)))[name].backward()
        touched = [
            n for n, net in model.nets.items() if any(p.grad is not None and p.grad.any() for p in net.parameters())
        ]
        assert touched == [name]


def test_dropout_does_not_leak_into_the_diffusion_residual():
    model, batch, noise = mlp_model(dropout="flow"), pairs(16), Noise(torch.arange(16))
    trained = [model.train().loss(batch, noise) for _ in range(2)]
    clean = model.eval().loss(batch, noise)
    assert trained[0]["flow"] != trained[1]["flow"]
    for losses in trained:
        assert losses["diffusion"] == clean["diffusion"]
    model.train().loss(batch, noise)
    assert model.training and all(m.training for m in model.modules())


# Alpha


def test_alpha_is_trained_by_the_likelihood_of_clean_pairs():
    """Its loss differs from -log_prob by what does not depend on alpha; g depends on the state here."""
    model, batch = mlp_model(denoiser=Denoiser(alpha=True)), pairs(16)
    losses = model.loss(batch, Noise(torch.arange(16)))["alpha"], -model.transition_log_prob(batch).mean() / 2
    gradients = [torch.autograd.grad(v, list(model.nets["alpha"].parameters())) for v in losses]
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("tau", "half_g2"), [("uniform", 1.0), ("start", 0.0)])
def test_alpha_learns_the_weight_of_the_score(tau, half_g2):
    ou = OrnsteinUhlenbeck(dt=0.1)
    x = ou.paths(np.random.default_rng(0), 500, 201)
    data = nsde.Trajectories.from_arrays(x, dt=ou.dt)
    model = NeuralSDE.for_data(
        data, tau=tau, denoiser=Denoiser(alpha=True), noise=0.05, net=MLPConfig(width=32, depth=1)
    )
    nsde.fit(model, data, steps=500, lr=5e-3, batch_size=1024, progress=False)
    state = model.scale.states(torch.as_tensor(x[:, -1:], dtype=torch.float32))
    with torch.no_grad():
        alpha = fields_of(model).alpha(state, None) * model.scale.std**2 / model.scale.step
    weight = model.scale.states(torch.as_tensor(x[:, -1])).square()  # where the score is 0, alpha is free
    assert float((alpha * weight).sum() / weight.sum()) == pytest.approx(half_g2, abs=0.15)
