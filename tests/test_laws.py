"""A law is drawn as it was learned, whatever the gaps and the noise: what was wrong in the first release stays right."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from toy_models import constant_model

import neuralsde as nsde
from neuralsde.data.transition import Transition
from neuralsde.models.scale import Scale
from neuralsde.sde.config import Denoiser, Euler, Full, LowRank, Mixture, Moments, NeuralSDEConfig
from neuralsde.sde.model import NeuralSDE
from neuralsde.solvers.noise import Noise
from neuralsde.solvers.schemes import newest_divergence

TINY = nsde.MLPConfig(width=16, depth=1)


class Exact(nn.Module):
    """A net that is a function of the newest slot."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, state, condition=None):
        return self.function(state[:, -1])


def exact(drift, g, law, dt=1.0, shape=(1,), **settings):
    """A model whose fields are known, in units of its own."""
    config = NeuralSDEConfig(law=law, noise=0.0, denoiser=None, **settings)
    nets = {"flow": Exact(drift), "diffusion": Exact(torch.zeros_like)}
    scale = Scale(shape)
    scale.dt_ref.fill_(dt)
    scale.low.fill_(-4.0)
    scale.high.fill_(4.0)
    model = NeuralSDE(nets, scale, config)
    log_g = math.log(g * math.sqrt(dt))
    model.sizes.low.fill_(log_g - 3)
    model.sizes.high.fill_(log_g + 3)
    model.sizes.typical.fill_(log_g)
    model.sizes.rate.fill_(dt)
    return model.eval()


def walks(rng, num=40, length=60, smooth=False):
    steps = rng.standard_normal((num, length, 2))
    return (steps.cumsum(1) if smooth else steps).cumsum(1) * 0.1


# 1 and 5: moments over a gap


@pytest.mark.parametrize("gap", [0.5, 1.0, 3.0, 5.0])
def test_moments_draw_the_law_of_the_gap(gap):
    """Ornstein-Uhlenbeck from 1 over one gap; Euler's step would have mean 1 - gap and std √(2 gap)."""
    model = exact(lambda x: -x, math.sqrt(2), Moments(), dt=gap)
    end = model.sample(torch.ones(40_000, 1), [0.0, gap], rng=0)[:, 0, 1, 0]
    assert float(end.mean()) == pytest.approx(math.exp(-gap), abs=0.02)
    assert float(end.std()) == pytest.approx(math.sqrt(1 - math.exp(-2 * gap)), abs=0.02)


def test_its_density_is_that_of_its_draws():
    model = exact(lambda x: x - x**3, 0.5, Moments(), dt=1.0)
    x = torch.full((20_000, 1), 0.8)
    draws = model.sample(x, [0.0, 1.0], rng=0)[:, 0, 1]
    zero = torch.zeros(len(x))
    log_prob = model.log_prob(Transition(history=x[:, None], next=draws, dt=zero + 1.0, time=zero))
    entropy = 0.5 * math.log(2 * math.pi * math.e * float(draws.var()))
    assert float(log_prob.mean()) == pytest.approx(-entropy, abs=0.02)


def test_wide_gaps_take_more_steps_where_the_drift_bends():
    """A double well: over a gap of 8 one step is wrong. The number is found by doubling, saved, and used by all."""
    model = exact(lambda x: x - x**3, 0.5, Moments(), dt=0.25)
    rng = torch.Generator().manual_seed(0)
    x, dt = 1.2 * torch.randn(600, 1, generator=rng), torch.tensor([0.25, 2.0, 8.0]).repeat(200)
    pairs = Transition(history=x[:, None], next=x, dt=dt, time=0 * dt)
    before = model.transition_log_prob(pairs)
    model.settle(pairs)
    short, middle, long = (int(model.law.num_steps(torch.tensor([[d / 0.25]]))) for d in (0.25, 2.0, 8.0))
    assert short <= 2 < middle <= long <= 32
    assert not torch.allclose(before, model.transition_log_prob(pairs))
    end = model.sample(torch.full((4_000, 1), 0.3), [0.0, 8.0], rng=0)[:, 0, 1]
    assert bool((end.abs() < 3).all())


def test_linear_drift_takes_one_step_whatever_the_gap():
    model = exact(lambda x: -x, math.sqrt(2), Moments(), dt=0.5)
    x, dt = torch.randn(300, 1), torch.tensor([0.5, 2.0, 5.0]).repeat(100)
    model.settle(Transition(history=x[:, None], next=x, dt=dt, time=0 * dt))
    assert model.law.num_steps(torch.tensor([[10.0]])) == 1 and model.law.same_kernels


def test_the_number_of_steps_travels_with_the_model(tmp_path):
    data = nsde.Trajectories.from_arrays(walks(np.random.default_rng(0)), dt=0.1)
    model = NeuralSDE.for_data(data, net=TINY, law=Moments())
    model.law.steps[-3:] = 4
    loaded = NeuralSDE.from_pretrained(model.save_pretrained(tmp_path))
    assert torch.equal(loaded.law.steps, model.law.steps)


# 2: a history and interpolated states


def test_a_history_with_interpolated_states_is_for_smooth_paths(np_rng):
    rough, smooth = (nsde.Trajectories.from_arrays(walks(np_rng, smooth=s), dt=0.1) for s in (False, True))
    with pytest.raises(ValueError, match=r"only for smooth paths\. Got steps .* correlation .*tau='start'"):
        NeuralSDE.for_data(rough, history=2, tau="uniform")
    NeuralSDE.for_data(smooth, history=2, tau="uniform")
    NeuralSDE.for_data(rough, history=2, tau="start")
    NeuralSDE.for_data(rough, history=2, tau="uniform", sampler=nsde.Sampler(balance=1.0))  # the ablation


# 3: noise that goes together


@pytest.mark.parametrize("how", ["exact", "probe"])
def test_the_divergence_of_a_matrix_field(how):
    """Against its closed form; one probe is right on average."""
    x = torch.randn(20_000 if how == "probe" else 7, 1, 2, generator=torch.Generator().manual_seed(0)) * 0
    x += torch.tensor([0.7, -0.4])

    def field(state):
        a, b = state[:, -1].unbind(1)
        return torch.stack([torch.stack([a**2 + b, a * b], 1), torch.stack([a * b, b**3], 1)], 1)

    signs = lambda: torch.randint(0, 2, (len(x), 2), generator=torch.Generator().manual_seed(1)) * 2.0 - 1  # noqa: E731
    found, passes = newest_divergence(field, x, how, signs)
    a, b = 0.7, -0.4
    expected = torch.tensor([2 * a + a, b + 3 * b**2])  # ∂a Σ11 + ∂b Σ12, ∂a Σ21 + ∂b Σ22
    torch.testing.assert_close(found.mean(0), expected, atol=0.05 if how == "probe" else 1e-5, rtol=0)
    assert passes == (1 if how == "probe" else 2)


def correlated_paths(seed=0, num=300, length=100, dt=0.05, rho=0.9):
    rng = np.random.default_rng(seed)
    root, decay = np.linalg.cholesky([[1, rho], [rho, 1]]), math.exp(-dt)
    x = [rng.normal(size=(num, 2)) @ root.T]
    for _ in range(length):
        x.append(decay * x[-1] + math.sqrt(1 - decay**2) * rng.normal(size=(num, 2)) @ root.T)
    return np.stack(x, 1)


@pytest.mark.parametrize(
    ("law", "covariance"),
    [
        pytest.param(Euler(), Full(), id="euler-full"),
        pytest.param(Euler(), LowRank(rank=1), id="euler-low rank"),
        pytest.param(Moments(), Full(), id="moments-full"),
        pytest.param(Moments(), LowRank(rank=1), id="moments-low rank", marks=pytest.mark.slow),
    ],
)
def test_correlated_noise_is_learned_and_drawn(law, covariance):
    data = nsde.Trajectories.from_arrays(correlated_paths(), dt=0.05)
    model = NeuralSDE.for_data(data, net=TINY, law=law, covariance=covariance, noise=0.0, denoiser=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is left to be said
        nsde.fit(model, data, steps=150, batch_size=256, lr=1e-2, ema=0.97, progress=False)
    sigma = model.noise_covariance(torch.zeros(1, 2))[0]
    assert float(sigma[0, 1] / (sigma[0, 0] * sigma[1, 1]).sqrt()) == pytest.approx(0.9, abs=0.03)
    steps = model.sample(torch.zeros(20_000, 2), [0.0, 0.05], rng=0)[:, 0, 1]
    assert float(torch.corrcoef(steps.T)[0, 1]) == pytest.approx(0.9, abs=0.03)
    assert float(steps.std(0).mean()) == pytest.approx(math.sqrt(1 - math.exp(-0.1)), rel=0.05)


def test_independent_noise_of_correlated_data_is_said():
    data = nsde.Trajectories.from_arrays(correlated_paths(), dt=0.05)
    model = NeuralSDE.for_data(data, net=TINY, noise=0.0, denoiser=None)
    with pytest.warns(UserWarning, match=r"features 0 and 1 goes together: 0\.(8|9).*covariance=Full\(\)"):
        nsde.fit(model, data, steps=100, batch_size=512, lr=1e-2, progress=False)


def test_what_cannot_have_a_covariance_refuses_it():
    for settings, message in (
        ({"law": Mixture()}, "has no correlated noise"),
        ({"law": Euler(diffusion_loss="match")}, "learned by diffusion_loss='nll'"),
        ({"denoiser": Denoiser(alpha=True)}, "has no correlated noise"),
    ):
        with pytest.raises(ValueError, match=message):
            NeuralSDEConfig(covariance=Full(), **settings)
    data = nsde.Trajectories.from_arrays(np.random.default_rng(0).standard_normal((4, 9, 40)).cumsum(1))
    with pytest.raises(ValueError, match=r"up to 32 entries\. Got 40\. Use LowRank"):
        NeuralSDE.for_data(data, covariance=Full())
    model = NeuralSDE.for_data(data, covariance=LowRank(), net=TINY)
    with pytest.raises(ValueError, match="needs independent noise"):
        model.sample(np.zeros((1, 40)), [0.0, 1.0], sampler=nsde.Sampler(solver="heun"))


# 6: gaps that depend on the state


def test_the_denoiser_is_weighted_by_the_gap_like_the_flow():
    model = constant_model(shape=(1,), dt_ref=0.5, tau="uniform")
    x = torch.zeros(4, 2, 1)
    dt = torch.tensor([0.5, 0.5, 1.0, 2.0])
    noise = Noise.for_step(0, 0, torch.arange(4))
    batch = Transition(history=x[:, :1], next=x[:, 1], dt=dt, time=0 * dt)
    eps = noise.normal(0, (1, 1))[:, 0, 0]
    expected = ((-0.4 + eps) ** 2 * dt / 0.5).mean()
    assert float(model.loss(batch, noise)["denoiser"]) == pytest.approx(float(expected), rel=1e-5)


# What is said after a training


def test_gaps_over_which_steps_are_not_gaussian_are_named():
    """A double well with little noise, after a long gap: two modes."""
    model = exact(lambda x: 4 * (x - x**3), 0.7, Moments(), dt=1.0)
    rng = np.random.default_rng(0)
    x = np.zeros((4_000, 1))
    for _ in range(200):
        x = x + 4 * (x - x**3) * 0.01 + 0.7 * 0.1 * rng.normal(size=x.shape)
    start, end = torch.zeros(4_000, 1), torch.from_numpy(x).float()
    pairs = Transition(history=start[:, None], next=end, dt=torch.full((4_000,), 2.0), time=torch.zeros(4_000))
    model.settle(pairs)
    (said,) = model.findings(pairs)
    assert "Steps over gaps of 1 to 2 are not Gaussian" in said


def test_what_euler_learned_belongs_to_its_steps():
    """A fast relaxation read by Euler: half a step twice is another step."""
    model = exact(lambda x: -0.9 * x, 0.3, Euler(), dt=1.0)
    x = torch.randn(2_000, 1, generator=torch.Generator().manual_seed(0))
    z = torch.randn(2_000, 1, generator=torch.Generator().manual_seed(1))
    ones = torch.ones(2_000)
    pairs = Transition(history=x[:, None], next=0.1 * x + 0.3 * z, dt=ones, time=0 * ones)
    (said,) = model.findings(pairs)
    assert said.startswith("What Euler learned belongs to steps of 1") and "law=Moments()" in said
    slow = exact(lambda x: -0.02 * x, 0.3, Euler(), dt=1.0)
    assert slow.findings(Transition(history=x[:, None], next=0.98 * x + 0.3 * z, dt=ones, time=0 * ones)) == []
