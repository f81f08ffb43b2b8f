"""Exponential smoothing: the recursion by hand, the likelihood, and forecasts of what it could have made."""

import numpy as np
import pytest

from neuralsde.forecast.smoothing import Smoother, smoothers, smoothing


def test_the_recursion_is_that_of_the_equations(np_rng):
    y = np_rng.standard_normal((1, 30)).cumsum(1) + 10
    model = Smoother(trend=True, period=4)
    alpha, beta, phi, gamma = 0.4, 0.1, 0.9, 0.2
    total, states = model.run(y, np.array([[[alpha, beta, phi, gamma]]]))
    level, slope, season = (x[0] for x in model.begin(y))
    season, wanted = season.copy(), 0.0
    for t, value in enumerate(y[0]):
        e = value - (level + phi * slope + season[t % 4])
        level, slope = level + phi * slope + alpha * e, phi * slope + beta * e
        season[t % 4] += gamma * e
        wanted += e**2
    assert total[0, 0] == pytest.approx(wanted, rel=1e-12)
    np.testing.assert_allclose([states[0][0, 0], states[1][0, 0]], [level, slope])
    ahead = model.draw(y, np.array([[alpha, beta, phi, gamma]]), np.zeros(1), 6, 1, np_rng)[0, 0]
    damped = np.cumsum(phi ** np.arange(1, 7))
    np.testing.assert_allclose(ahead, level + damped * slope + season[np.arange(30, 36) % 4])


def test_values_that_begin_later_are_as_those_of_a_shorter_series(np_rng):
    y = np_rng.standard_normal((1, 24)).cumsum(1)
    model = Smoother(trend=True, period=6)
    values = np.array([[[0.3, 0.1, 0.9, 0.2]]])
    padded = np.concatenate([np.full((1, 12), np.nan), y], axis=1)
    assert model.run(padded, values)[0] == pytest.approx(model.run(y, values)[0])


def test_no_other_parameters_are_much_likelier(np_rng):
    """A walk with noise of variance one beside steps of variance one: α = 0.618."""
    y = np_rng.standard_normal((8, 300)).cumsum(1) + np_rng.standard_normal((8, 300))
    model = Smoother(trend=False, period=0)
    values, total = model.fit(y)
    alpha = np.linspace(0.01, 0.99, 99)
    every = model.run(y, np.stack([alpha, 0 * alpha, 0 * alpha, 0 * alpha], -1)[None].repeat(8, 0))[0]
    assert (total <= every.min(1) * 1.002).all()
    assert np.median(values[:, 0]) == pytest.approx(0.618, abs=0.12)


def test_a_season_and_a_trend_are_forecast_with_bands_that_hold(np_rng):
    t = np.arange(132)
    y = [(100 + 0.3 * t + 8 * np.sin(2 * np.pi * t / 12) + np_rng.standard_normal(132))[:, None] for _ in range(30)]
    y[0] = y[0][60:]  # unequal lengths
    made = smoothing([own[:-12] for own in y], 12, 300, 12, np_rng)
    truth = np.stack([own[-12:] for own in y])
    assert made.shape == (30, 300, 12, 1)
    assert np.sqrt(np.mean((made.mean(1) - truth) ** 2)) < 1.6
    low, high = np.quantile(made, [0.1, 0.9], axis=1)
    assert 0.7 < np.mean((truth > low) & (truth < high)) < 0.9


def test_walks_are_forecast_as_walks(np_rng):
    y = np_rng.standard_normal((40, 200)).cumsum(1)
    made = smoothing([own[:, None] for own in y], 9, 400, 0, np_rng)
    np.testing.assert_allclose(made.mean(1)[:, 0, 0], y[:, -1], atol=1)
    np.testing.assert_allclose(made.std(1).mean(0)[:, 0], np.sqrt(np.arange(1, 10)), rtol=0.15)


@pytest.mark.parametrize("num", [1, 2, 3, 5, 9])
def test_short_series_and_several_columns(num, np_rng):
    y = np_rng.standard_normal((num, 3)) * [1, 10, 0]
    made = smoothing([y, y + 5], 4, 20, 12, np_rng)
    assert made.shape == (2, 20, 4, 3) and np.isfinite(made).all()
    assert np.ptp(made[0, ..., 2]) == 0


def test_a_season_is_tried_where_it_was_seen_often_enough():
    assert [(m.trend, m.period) for m in smoothers(40, 12)] == [(False, 0), (True, 0), (False, 12), (True, 12)]
    assert all(m.period == 0 for m in smoothers(20, 12))
