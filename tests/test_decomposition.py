"""Level, season and scale of a series: found from its past, undone exactly."""

import numpy as np
import pytest
import torch

import neuralsde as nsde
from neuralsde.forecast.decomposition import Decomposition, strength
from neuralsde.nets.backbone import Form
from neuralsde.nets.config import StepsConfig
from neuralsde.nets.steps import StepsNet


def seasonal(np_rng, num=300, period=12, noise=0.1):
    t = np.arange(num)
    season = np.sin(2 * np.pi * t / period) + 0.5 * np.cos(4 * np.pi * t / period)
    return t, season, 0.02 * t + season + noise * np_rng.standard_normal(num)


@pytest.mark.parametrize("curve", ["none", "log", "ranks"])
@pytest.mark.parametrize("level", [False, True])
def test_what_is_taken_off_comes_back_exactly(np_rng, curve, level):
    t, _, y = seasonal(np_rng)
    values = np.exp(y)[:, None] if curve == "log" else np.stack([y, 3 * y + 5, np.maximum(y.round(), 0)], 1)
    parts = Decomposition(curve=curve, level=level, seasons=(12.0,)).parts(t, values)
    np.testing.assert_allclose(parts.whole(t[1:], parts.rest(t, values)), values[1:], rtol=1e-10, atol=1e-12)


def test_ranks_are_gaussian_scores_and_forecasts_take_values_of_the_past(np_rng):
    y = np.stack([np_rng.poisson(0.3, 2_000) * 1.0, np_rng.exponential(size=2_000)], axis=1)
    off = Decomposition(curve="ranks", level=True)
    parts = off.parts(np.arange(2_000), y)
    scores = np.sort(off.to(y, parts.table), axis=0)
    normal = torch.special.ndtri(torch.arange(2_000).double().add(0.5) / 2_000).numpy()
    assert np.abs(scores - normal[:, None]).max(1)[50:-50].max() < 0.15
    drawn = off.back(np_rng.standard_normal((20_000, 2)), parts.table)
    assert set(drawn[:, 0]) <= set(y[:, 0])
    assert (drawn[:, 0] == 0).mean() == pytest.approx((y[:, 0] == 0).mean(), abs=0.03)


def test_no_value_is_below_0_where_none_was(np_rng):
    walk = np.linspace(0, -9, 11)[:, None]
    y = np_rng.random((50, 2)) - [0, 0.5]
    free, bounded = Decomposition().parts(np.arange(50), y).whole(np.arange(50, 60), walk).T[::-1]
    assert free.min() < 0 and bounded.min() == 0


def test_the_season_is_found_beside_the_trend(np_rng):
    t, _, y = seasonal(np_rng)
    parts = Decomposition(seasons=(12.0,)).parts(t, y[:, None])
    later = np.arange(300, 324)
    found = (parts.waves.at(later) @ parts.season)[:, 0]
    wanted = np.sin(2 * np.pi * later / 12) + 0.5 * np.cos(4 * np.pi * later / 12)
    assert np.abs(found - wanted).max() < 0.1
    rest = parts.rest(t, y[:, None])[:, 0]
    assert np.polyfit(t, rest * parts.scale[0], 1)[0] == pytest.approx(0.02, abs=0.002)  # the trend is left


def test_a_season_that_is_chance_is_shrunk_away(np_rng):
    sizes = []
    for _ in range(20):
        y = np_rng.standard_normal(120)
        parts = Decomposition(seasons=(12.0,)).parts(np.arange(120), y[:, None])
        sizes.append(np.var(parts.waves.at(np.arange(120)) @ parts.season))
    assert np.mean(sizes) < 0.05  # least squares would have 11/120 of the variance: 0.09


def test_strength_tells_a_season_from_none(np_rng):
    t, _, y = seasonal(np_rng, noise=0.5)
    assert strength(12.0, (), t, y) > 0.5
    assert strength(12.0, (), t, np_rng.standard_normal(300)) < 0.05
    assert strength(12.0, (), t, np_rng.standard_normal(300).cumsum()) < 0.2


def test_missing_values_do_not_matter(np_rng):
    t, _, y = seasonal(np_rng)
    holes = y.copy()
    holes[np_rng.permutation(300)[:60]] = np.nan
    whole, some = (Decomposition(seasons=(12.0,)).parts(t, v[:, None]) for v in (y, holes))
    np.testing.assert_allclose(whole.season, some.season, atol=0.08)
    assert some.scale == pytest.approx(whole.scale, rel=0.2)


def test_series_of_other_sizes_have_the_same_rest(np_rng):
    t, _, y = seasonal(np_rng)
    off = Decomposition(seasons=(12.0,))
    one, other = (off.parts(t, v[:, None]).rest(t, v[:, None]) for v in (y, 1e5 * y + 7e6))
    np.testing.assert_allclose(one, other, atol=1e-6)


# The net of steps


def test_steps_do_not_know_the_level(rng):
    net = StepsNet(StepsConfig(width=16, depth=1), Form((2,), 4))
    torch.nn.init.normal_(net.outward.weight)
    state = torch.randn(5, 4, 2, generator=rng)
    torch.testing.assert_close(net(state), net(state + torch.tensor([100.0, -3.0])), atol=1e-3, rtol=1e-3)
    aware = StepsNet(StepsConfig(linear=True, level=True), Form((2,), 4))
    torch.nn.init.normal_(aware.outward.weight)
    assert (aware(state) - aware(state + 1)).abs().max() > 0.1


def test_the_linear_part_is_the_regression(np_rng):
    steps = np.zeros(4000)
    for k in range(2, 4000):
        steps[k] = 0.5 * steps[k - 1] - 0.3 * steps[k - 2] + np_rng.standard_normal()
    data = nsde.Trajectories.from_arrays([(steps + 0.2).cumsum()[:, None]])
    how = {"history": 4, "pad_history": True, "noise": 0.0, "denoiser": None}
    model = nsde.NeuralSDE.for_data(data, net=StepsConfig(linear=True), **how)
    before = model.nets["flow"].outward.weight.clone()
    nsde.fit(model, data, config=nsde.TrainConfig(steps=20, batch_size=64), options=nsde.RunOptions(progress=False))
    flow = model.nets["flow"]
    torch.testing.assert_close(flow.outward.weight, before)  # training leaves it
    unit = float(flow.step_unit) / float(model.sizes.rate)
    found = flow.outward.weight[0].detach().numpy() / unit  # of steps, newest last
    np.testing.assert_allclose(found, [0.0, -0.3, 0.5], atol=0.06)


def test_a_net_without_inputs_is_a_constant():
    net = StepsNet(StepsConfig(), Form((3,), 1))
    assert net(torch.zeros(4, 1, 3)).shape == (4, 3)
