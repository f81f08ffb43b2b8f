"""The past of series: odd values, gaps and series that do not change do not spoil forecasts."""

import numpy as np
import pandas as pd
import pytest

import neuralsde as nsde
from neuralsde.forecast.backtest import Backtest, Origins, grows_with_level
from neuralsde.forecast.decomposition import Decomposition
from neuralsde.forecast.panel import Kind, Panel, draw, learn
from neuralsde.forecast.past import FEWEST, SOON, bridged, limits, settled, still
from neuralsde.training.config import TrainConfig

BRIEF = TrainConfig(steps=20, batch_size=64)


def weekly(np_rng, num=300):
    t = np.arange(num)
    return t, 100 + 10 * np.sin(2 * np.pi * t / 7) + np_rng.standard_normal(num)


# Odd values


def test_single_odd_values_are_left_out_and_the_rest_stays(np_rng):
    y = np_rng.standard_normal(200).cumsum()
    odd = y.copy()
    odd[[40, 41, 120]] = [300, -250, 1e6]
    clean, num, end = settled(odd)
    assert np.isnan(clean[[40, 41, 120]]).all() and num == 3 and end.num == 0
    kept = np.isfinite(clean)
    np.testing.assert_array_equal(clean[kept], y[kept])
    assert settled(y)[0] is y
    assert settled(odd[: FEWEST - 1])[1] == 0  # too few to say


def test_a_new_level_is_kept_and_what_came_before_is_moved_to_it(np_rng):
    y = np_rng.standard_normal(200).cumsum()
    moved = y.copy()
    moved[:30] += 1e5
    clean, num, end = settled(moved)
    assert num == 1 and end.num == 0
    np.testing.assert_allclose(np.delete(np.diff(clean), 29), np.delete(np.diff(y), 29), atol=1e-9)
    np.testing.assert_array_equal(clean[30:], y[30:])


@pytest.mark.parametrize("num", [1, SOON, SOON + 1])
def test_odd_values_at_the_end_may_be_a_new_level(np_rng, num):
    y = np_rng.standard_normal(200)
    y[-num:] += 500
    clean, _, end = settled(y)
    if num > SOON:  # it is one
        assert end.num == 0 and np.isfinite(clean).all() and np.abs(clean[-20:] - 500).max() < 20
    else:
        assert end.num == num and end.jump == pytest.approx(500, abs=10) and np.isnan(clean[-num:]).all()


def test_little_is_odd_by_chance(np_rng):
    kinds = {
        "walks": lambda: np_rng.standard_normal(200).cumsum(),
        "tails": lambda: np_rng.standard_t(5, 200).cumsum(),
        "counts": lambda: np_rng.poisson(0.3, 200) * 1.0,
        "prices": lambda: np.exp(0.02 * np_rng.standard_normal(200).cumsum()),
        "growth": lambda: np.exp(0.05 * np.arange(200)),
    }
    for name, make in kinds.items():
        assert np.mean([settled(make())[1] > 0 for _ in range(200)]) <= 0.02, name


@pytest.mark.parametrize("last", [500.0, 1e4, 1e-3])
@pytest.mark.parametrize("kind", [Decomposition(seasons=(7.0,)), Decomposition(seasons=(7.0,), curve="log")])
def test_forecasts_after_an_odd_last_value_are_those_from_before_and_those_from_it(np_rng, last, kind):
    t, y = weekly(np_rng)
    y[-1] = last
    panel = Panel([t], [y[:, None]])
    drawn = draw(learn(Kind(off=kind), panel, BRIEF), panel, 14, num_paths=400)[0, :, :, 0]
    assert np.isfinite(drawn).all()
    before, after = drawn[::2], drawn[1::2]
    assert before.min() > 60 and before.max() < 140
    middle = np.median(after) / 100 if kind.curve == "log" else np.median(after) - 100
    assert middle == pytest.approx(last / 100 if kind.curve == "log" else last - 100, rel=0.3, abs=20)


def test_paths_do_not_leave_the_range_that_the_past_makes_likely(np_rng):
    y = np_rng.standard_normal((200, 1)).cumsum(0)
    low, high = limits(y, 10)
    assert low < y.min() - 10 and high > y.max() + 10 and high - low < 300
    rise = np.arange(6.0)[:, None]
    assert limits(rise, 60)[1] > 65  # a trend goes on


# Gaps


def test_gaps_are_bridged_inside_alone():
    y = np.array([[np.nan, np.nan], [1.0, np.nan], [np.nan, np.nan], [3.0, np.nan], [np.nan, np.nan]])
    np.testing.assert_array_equal(bridged(y), [[1, 0], [1, 0], [2, 0], [3, 0], [3, 0]])


def smooth_panel(np_rng):
    t, values = np.arange(120), []
    for k in range(8):
        wiggle = np.convolve(np_rng.standard_normal(125), np.ones(6) / 6, "valid").cumsum()
        values.append((1_000 * (k + 1) + (10 + k) * t + 5 * wiggle)[:, None])
    values[0][85:119] = np.nan
    return Panel([t] * 8, values)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_a_long_gap_before_the_last_value_is_neither_momentum_nor_certainty(np_rng, own, alone):
    panel = smooth_panel(np_rng)
    panel = panel.cut([0], [120]) if alone else panel
    model = learn(Kind(off=Decomposition(), own=own), panel, BRIEF)
    drawn = draw(model, panel, 12, num_paths=300)[0, :, :, 0]
    last = panel.values[0][-1, 0]
    assert drawn[:, -1].mean() - last == pytest.approx(120, abs=90)
    assert 0.4 < drawn[:, 0].std() < 30


def test_of_alternate_values_gaps_are_learned(np_rng):
    y = np_rng.standard_normal((200, 1)).cumsum(0)
    y[1::2] = np.nan
    panel = Panel([np.arange(200)], [y])
    drawn = draw(learn(Kind(off=Decomposition()), panel, BRIEF), panel, 4, num_paths=300)
    assert drawn[0, :, -1].std() == pytest.approx(2, rel=0.4)


# What does not change


def test_what_does_not_change_goes_on_and_takes_no_part(np_rng):
    t, moving = np.arange(60), [1e3 * np.exp(0.05 * np_rng.standard_normal((60, 1)).cumsum(0)) for _ in range(6)]
    panel = Panel([t] * 8, [*moving, np.full((60, 1), 7.0), np.zeros((60, 1))])
    assert (
        still(panel.values[6][:, 0]) == 7 and np.isnan(still(np.array([5.0, 5.0]))) and np.isnan(still(moving[0][:, 0]))
    )
    assert set(Origins.of(panel, 6).series) == set(range(6))
    for curve in ("none", "log"):
        kind = Kind(off=Decomposition(curve=curve), own=True)
        model, without = (learn(kind, Panel(p.steps[:n], p.values[:n]), BRIEF) for p, n in ((panel, 8), (panel, 6)))
        drawn = draw(model, panel, 6, num_paths=50)
        assert (drawn[6] == 7).all() and (drawn[7] == 0).all()
        np.testing.assert_allclose(drawn[:6], draw(without, panel.cut(range(6), [60] * 6), 6, num_paths=50), rtol=1e-4)
    scores = Backtest(panel, 6, BRIEF).score(np.ones((1, 5, 6, 1)), np.arange(len(Origins.of(panel, 6).series)) == 0)
    assert np.isfinite(scores).all()


def test_what_was_found_in_the_past_is_said(np_rng, short_search):
    days, parts = pd.date_range("2024-01-01", periods=60, freq="D"), []
    for name in ("fine", "still", "typo", "end"):
        y = 100 + np_rng.standard_normal(60).cumsum()
        y = np.full(60, 7.0) if name == "still" else y
        y[{"typo": 30, "end": 59}.get(name, [])] = -999
        parts.append(pd.DataFrame({"unique_id": name, "ds": days, "y": y}))
    frame = pd.concat(parts)
    fitted = nsde.fit_series(frame, horizon=3, season="none", budget=1, progress=False)
    text = str(fitted.report)
    for line in ("No changes in still: ", "Odd values in typo, end: ", "last values of end. One part of the forecasts"):
        assert line in text
    with pytest.warns(UserWarning, match="last values of end. One part of the forecasts goes on from these") as said:
        made = fitted.forecast(3).to_frame()
    assert len(said) == 1
    assert (made[made["unique_id"] == "still"][["NSDE", "NSDE-lo-80", "NSDE-hi-95"]] == 7).all(axis=None)
    low, high = (made[made["unique_id"] == "end"][f"NSDE-{e}-80"] for e in ("lo", "hi"))
    assert (low < -900).all() and (high > 80).all()


def test_columns_that_tell_nothing_keep_their_place(np_rng):
    t = np.arange(120)
    walk = np_rng.standard_normal(120).cumsum()
    panel = Panel([t], [np.stack([walk, np.full(120, 5.0), 7 + 3.0 * t], axis=1)])
    drawn = draw(learn(Kind(off=Decomposition(), history=1, own=True), panel, BRIEF), panel, 10, num_paths=200)[0]
    assert (drawn[..., 1] == 5).all()
    np.testing.assert_allclose(drawn[..., 2].mean(0), 7 + 3 * (120 + np.arange(10)), atol=3)
    assert drawn[:, 0, 0].std() == pytest.approx(1, rel=0.4)


@pytest.mark.parametrize("log", [False, True])
def test_the_logarithm_is_the_default_where_steps_grow_with_the_level(np_rng, log):
    rate = 1 + 0.02 * np_rng.standard_normal((300, 1)).cumsum(0)
    series = (
        np.exp(0.01 * np.arange(300)[:, None] + rate) if log else 5 + (1 + np_rng.poisson(3, (300, 1))).cumsum(0) * 1.0
    )
    panel = Panel([np.arange(300)], [series])
    assert series.max() > 3 * series.min() and grows_with_level(panel) == log
    assert not grows_with_level(Panel([np.arange(300)], [series - series.min()]))  # 0 has none
