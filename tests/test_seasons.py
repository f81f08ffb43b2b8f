"""Seasons: those of the calendar that series show, and periods that stand out; cycles that lose their phase are none."""

import numpy as np
import pytest

import neuralsde as nsde
from neuralsde.forecast.backtest import first_kind, usual_moves
from neuralsde.forecast.panel import Panel
from neuralsde.forecast.seasons import period_of, seasons_in, standing_out, steadiness


def one(y):
    return Panel([np.arange(len(y))], [y[:, None]])


def cycles(rng, num, period, radius=0.97):
    """A resonance: waves of about one period, whose phase wanders."""
    y = np.zeros(num + 200)
    for k in range(2, len(y)):
        y[k] = 2 * radius * np.cos(2 * np.pi / period) * y[k - 1] - radius**2 * y[k - 2] + rng.standard_normal()
    return y[200:]


def test_a_season_of_some_of_the_series_is_found(np_rng):
    t = np.arange(120)
    panel = Panel([t] * 8, [w for w in np_rng.standard_normal((8, 120, 1)).cumsum(1)])
    panel.values[0] = panel.values[0] + 0.5 * np.sin(2 * np.pi * t / 12)[:, None]
    assert seasons_in(panel, [12.0], log=False) == ()  # one of eight, and hardly
    panel.values[3] = panel.values[3] + 10 * np.sin(2 * np.pi * t / 12)[:, None]
    assert seasons_in(panel, [12.0], log=False) == (12.0,)


@pytest.mark.parametrize("period", [5.0, 12.0, 12.42, 31.7])
def test_a_period_that_is_on_no_calendar_stands_out(np_rng, period):
    turn = 2 * np.pi * np.arange(600) / period
    y = 2 * np.sin(turn) + 0.5 * np.sin(2 * turn) + 0.3 * np_rng.standard_normal(600).cumsum()
    assert standing_out(one(y), log=False) == pytest.approx(period, rel=0.01)


def test_walks_and_noise_have_none(np_rng):
    found = [standing_out(one(y), log=False) for y in np_rng.standard_normal((20, 150))]
    found += [standing_out(one(y.cumsum()), log=False) for y in np_rng.standard_normal((20, 150))]
    assert sum(period is not None for period in found) <= 1


def test_cycles_lose_their_phase_and_seasons_keep_it(np_rng):
    kept, lost = [], []
    for _ in range(20):
        y = cycles(np_rng, 600, 14.0)
        lost.append(steadiness(period_of(np.arange(600), y) or 2.0, y))
        kept.append(steadiness(14.0, np.sin(2 * np.pi * np.arange(600) / 14) + np_rng.standard_normal(600)))
    assert np.median(lost) < 0.9 < np.quantile(kept, 0.1)


def test_a_period_that_stands_out_must_prove_itself(np_rng):
    panel = one(np_rng.standard_normal(200))
    first = first_kind(panel, (), False)
    moves = dict(usual_moves(panel, first, (), 7.0))
    assert not first.off.seasons and moves["season"](first).off.seasons == (7.0,)
    assert dict(usual_moves(panel, first))["season"](first) is None


def test_an_array_with_a_tide_is_forecast_by_it(np_rng):
    turn = 2 * np.pi * np.arange(500) / 12.42
    y = 3 * np.sin(turn) + 0.2 * np_rng.standard_normal(500)
    model = nsde.fit_series(y[:-24], horizon=24, budget=20, max_trials=6, progress=False)
    assert model.record.seasons == pytest.approx((12.42,), rel=0.01)
    mean = model.forecast().forecasts.samples.mean(1).squeeze().numpy()
    assert np.abs(mean - 3 * np.sin(turn[-24:])).mean() < 0.3
