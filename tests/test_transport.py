"""A step of any law: Euler's Gaussian, carried by a flow."""

import itertools
import math

import numpy as np
import pytest
import torch

import neuralsde as nsde
from neuralsde.models.build import load
from neuralsde.nets.target import target_form
from neuralsde.solvers.noise import Noise

NET = nsde.MLPConfig(width=16, depth=1)
QUIET = {"progress": False, "cpu": True}


def walks(draw, num=200, length=40, seed=0):
    rng = np.random.default_rng(seed)
    return nsde.Trajectories.from_arrays(draw(rng, (num, length)).cumsum(1)[..., None], dt=1.0)


def coin(rng, shape):
    return rng.choice([-1.0, 1.0], shape) + 0.05 * rng.standard_normal(shape)


def normal(rng, shape):
    return 0.5 + rng.standard_normal(shape)


def made(data=None, **settings):
    data = data or walks(coin)
    settings = {"noise": 0.0, "denoiser": None, "net": NET, "law": nsde.Transport(), **settings}
    return nsde.NeuralSDE.for_data(data, **settings), data


class Known(torch.nn.Module):
    """v of steps whose law is known: ±a and ±b with equal odds, in units of the Gaussian."""

    def __init__(self, places):
        super().__init__()
        self.places = torch.tensor(places)

    def forward(self, state, condition):
        u, sines = condition[:, :1] / 4, condition[:, 1:]
        s = torch.atan2(sines[:, :1], sines[:, 16:17]) / 1.5  # the slowest sine and cosine of the generation time
        cos, sin = torch.cos(0.5 * math.pi * s), torch.sin(0.5 * math.pi * s)
        odds = torch.softmax(-0.5 * ((u - sin * self.places) / cos) ** 2, 1)
        xi = (odds * self.places).sum(1, keepdim=True)
        return cos * xi - sin * (u - sin * xi) / cos


def test_with_the_true_velocity_the_law_is_reached_as_passes_grow():
    """A mean of 0 and a variance of 1 are kept on the way, and the distance falls with every doubling."""
    places = [-1.7, -0.5, 0.5, 1.7]
    places = [p / math.sqrt(np.mean(np.square(places))) for p in places]
    model, _ = made()
    model.nets["transport"] = Known(places)
    z = torch.special.ndtri((torch.arange(8_000, dtype=torch.float64) + 0.5) / 8_000).float()[:, None]
    truth = torch.tensor(places).repeat_interleave(2_000)
    state, far = torch.zeros(8_000, 1, 1), []
    for passes in (0, 2, 4, 8, 16, 32, 64):
        u = model.law.carry(model._fields(), state, None, z, passes)
        far.append(float((u[:, 0].sort().values - truth).abs().mean()))
        if passes >= 8:
            assert float(u.mean()) == pytest.approx(0.0, abs=1e-3) and float(u.var()) == pytest.approx(1.0, abs=0.06)
    assert all(after < before for before, after in itertools.pairwise(far)) and far[-1] < 0.03 * far[0]


def test_a_gaussian_stays_as_it_is():
    """Its velocity is 0, whatever the generation time: so the loss of a net of 0 is that of the best one, 1."""
    model, data = made(walks(normal))
    nsde.fit(model, data, steps=150, lr=5e-3, **QUIET)
    gap = model._gap(data.transitions().spread(4_000), model._fields())
    for passes in (0, 1, 4, 16):
        mean, variance = model.law.moments(model._fields(), gap, passes)
        assert abs(mean) < 0.06 and abs(variance - 1) < 0.1


def test_a_coin_is_learned():
    x = [np.zeros(400)]
    for step in coin(np.random.default_rng(0), (20, 400)):
        x.append(0.5 * x[-1] + step)
    data = nsde.Trajectories.from_arrays(np.stack(x, 1)[..., None], dt=1.0)
    model, _ = made(data, net=nsde.MLPConfig(width=32, depth=1))
    nsde.fit(model, data, steps=300, lr=1e-2, batch_size=256, **QUIET)
    shares = {}
    for passes in (0, 16):
        sampler = nsde.Sampler(passes=passes)
        drawn = model.sample([[0.0]], [0.0, 1.0], num_paths=4_000, rng=0, sampler=sampler)[0, :, 1, 0]
        shares[passes] = float(((drawn.abs() - 1).abs() < 0.35).float().mean())
        assert float((drawn > 0).float().mean()) == pytest.approx(0.5, abs=0.06)
    assert shares[0] < 0.5 < 0.9 < shares[16]


def test_no_pass_is_the_step_of_euler_and_passes_are_counted():
    model, _ = made()
    start, times = np.zeros((3, 1)), [0.0, 1.0, 2.0]
    plain = model.draw(start, times, rng=0, sampler=nsde.Sampler(passes=0))
    untrained = model.draw(start, times, rng=0, sampler=nsde.Sampler(passes=3))  # a net of 0 carries nothing
    torch.testing.assert_close(plain.paths, untrained.paths)
    assert plain.nfe == {"flow": 2, "diffusion": 2}
    assert untrained.nfe == {"flow": 2, "diffusion": 2, "transport": 6}


@pytest.mark.parametrize("settings", [{"shared": True}, {"history": 2}, {"net": nsde.MLPConfig(width=8, depth=1)}])
def test_it_is_saved_and_loaded(settings, tmp_path):
    model, data = made(**settings)
    nsde.fit(model, data, steps=3, **QUIET)
    again = load(model.save_pretrained(tmp_path / "m"))
    start = np.zeros((1, model.config.history, 1))
    one, other = (m.sample(start, [0.0, 1.0], num_paths=5, rng=0) for m in (model, again))
    assert torch.equal(one, other) and again.config.law == nsde.Transport()


def test_missing_entries_are_left_out():
    x = np.random.default_rng(0).standard_normal((20, 30, 2)).cumsum(1)
    x[:, 3::4, 1] = np.nan
    data = nsde.Trajectories.from_arrays(list(x), missing=True)
    model = nsde.NeuralSDE.for_data(data, law=nsde.Transport(), net=NET, noise=0.0)
    batch = data.transitions().spread(100)
    losses = model(batch, Noise.draw(0, len(batch.dt)))
    assert {"flow", "diffusion", "transport"} <= set(losses) and all(torch.isfinite(v) for v in losses.values())


def test_steps_of_another_length_are_refused():
    model, _ = made()
    with pytest.raises(ValueError, match=r"The law `Transport` knows Euler's steps of 1\. Got steps of 0\.5"):
        model.sample([[0.0]], [0.0, 0.5])
    with pytest.raises(ValueError, match=r"knows Euler's steps of 1\. Got sampler.solver='heun'"):
        model.sample([[0.0]], [0.0, 1.0], sampler=nsde.Sampler(solver="heun"))
    model.sample([[0.0]], [0.0, 0.5], sampler=nsde.Sampler(passes=0))  # Euler's own rules
    uneven = nsde.Trajectories.from_arrays(
        [np.zeros((5, 1)) + np.arange(5)[:, None]], times=[[0.0, 1.0, 1.5, 3.0, 4.0]]
    )
    with pytest.raises(ValueError, match=r"The law `Transport` learns steps of one length"):
        nsde.NeuralSDE.for_data(uneven, law=nsde.Transport(), noise=0.0)
    with pytest.raises(ValueError, match=r"needs tau='start'"):
        nsde.NeuralSDEConfig(law=nsde.Transport(), tau="uniform")
    with pytest.raises(ValueError, match=r"`passes` must be from 0 to 1000"):
        nsde.Sampler(passes=-1)


def test_a_law_that_is_not_right_is_said():
    model, data = made()
    torch.nn.init.constant_(model.nets["transport"].outward.bias, 0.3)
    with pytest.warns(UserWarning, match=r"With passes=4, steps have mean 0\.\d+ and variance"):
        nsde.fit(model, data, steps=1, lr=1e-9, ema=0.0, **QUIET)


def test_nets_of_ones_own_must_carry_one_value_per_feature():
    class Own(torch.nn.Module):
        def __init__(self, size, out=1):
            super().__init__()
            self.layer = torch.nn.Linear(1 + size, out)

        def forward(self, state, condition):
            given = [] if condition is None else [condition]
            return self.layer(torch.cat([state.flatten(1), *given], 1))

    size = target_form(type(made()[0].nets["transport"]), made()[0].nets["flow"].form).condition_size
    nets = {"flow": Own(0), "diffusion": Own(0), "transport": Own(size)}
    settings = {"law": nsde.Transport(), "noise": 0.0, "denoiser": None}
    nsde.NeuralSDE.for_data(walks(coin), nets=nets, **settings)
    with pytest.raises(
        ValueError, match=r"The net 'transport' must take a state \(2, 1, 1\) and a condition \(2, 33\)"
    ):
        nsde.NeuralSDE.for_data(walks(coin), nets=nets | {"transport": Own(0)}, **settings)
