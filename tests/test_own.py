"""Each series goes on in its own way: as far from the others as its past and theirs say, and undone exactly."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_t

import neuralsde as nsde
from neuralsde.forecast import own as smoothing
from neuralsde.forecast.backtest import first_kind, usual_moves
from neuralsde.forecast.decomposition import Decomposition
from neuralsde.forecast.own import SURE, Left, Own, ways
from neuralsde.forecast.panel import Kind, Panel, draw, learn
from neuralsde.training.config import TrainConfig


def walks(np_rng, num=20, length=60):
    return [np_rng.standard_normal((length, 1)).cumsum(0) for _ in range(num)]


def noises(np_rng, num=20, length=60):
    return [np_rng.standard_normal((length, 1)) / np.sqrt(2) for _ in range(num)]


def ahead_of(way, np_rng, num=5):
    """Without noise, the mean over the ways."""
    return way.pick(400, np_rng).whole(np.zeros((400, num + 1, way.weights.shape[1]))).mean(0)


def left_by(way, y, level, trend, away=0.0):
    """e of one way, one after the other, and the state after them."""
    phi, alpha, beta, kappa, theta = way
    out = []
    for x in y:
        e = x - (level + phi * trend + kappa * away)
        level, trend, away = level + phi * trend + alpha * e, phi * trend + beta * e, kappa * away + theta * e
        out.append(e)
    return np.array(out), (level, trend, away)


def begin_of(way, y, moved):
    """Beside a deviation, the first value is the sum of both."""
    return y[0] + moved[0], moved[1], -moved[0] * (way[3] > 0)


def test_level_and_trend_at_the_beginning_are_integrated_out(np_rng):
    y = (0.3 + np_rng.standard_normal(30)).cumsum()
    found = Left.of([y])
    logs = []
    for k, (*way, first, second) in enumerate(ways()):
        base = left_by(way, y[1:], *begin_of(way, y, (0, 0)))[0]
        moved = np.stack([left_by(way, y[1:], *begin_of(way, y, m))[0] - base for m in ((1, 0), (0, 1))], axis=1)
        prior = np.diag([first**2, max(second, 1e-6) ** 2])
        logs.append(multivariate_t.logpdf(base, shape=0.7 * (np.eye(29) + moved @ prior @ moved.T), df=SURE))
        begin = prior @ moved.T @ np.linalg.solve(np.eye(29) + moved @ prior @ moved.T, base)
        np.testing.assert_allclose(found.moved[:, 0, k], -begin, atol=1e-6)
    evidence = found.evidence(0.7)[0]
    np.testing.assert_allclose(evidence - evidence[0], np.array(logs) - logs[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("later", [0, 7])
def test_the_end_of_the_past_is_that_of_its_ways(np_rng, later):
    y = np_rng.standard_normal((50, 2)).cumsum(0)  # more than one block of rows
    past = np.concatenate([y, np.full((later, 2), np.nan)])
    way = Own.of([y]).ways([past])[0]
    for k in range(2):
        m = int(way.weights[:, k].argmax())
        told = way.coefficients[m, :, k]
        place = int(np.abs(ways()[:, :5] - told).sum(1).argmin())
        *_, (level, trend, away) = left_by(
            told, y[1:, k], *begin_of(told, y[:, k], Left.of([y[:, k]]).moved[:, 0, place])
        )
        for _ in range(later):  # nothing is seen: they go on
            level, trend, away = level + told[0] * trend, told[0] * trend, told[3] * away
        np.testing.assert_allclose(way.state[m, :, k], [level, trend, away], atol=1e-8)


def test_the_walk_is_of_what_the_ways_leave_by_their_weights(np_rng):
    y = np_rng.standard_normal(75).cumsum()
    left = Left.of([y])
    weights = np_rng.random((1, len(ways())))
    e = 0.0
    for (*told, _, _), weight, moved in zip(ways(), weights[0], left.moved[:, 0].T):
        e = e + weight * left_by(told, y[1:], *begin_of(told, y, moved))[0]
    np.testing.assert_allclose(left.walks(weights)[0], np.append(0, np.cumsum(e)), rtol=1e-7, atol=1e-7)


def test_lines_over_gaps_say_nothing_of_the_noise(np_rng):
    y = np_rng.standard_normal(200).cumsum()
    y[60:120] = np.nan
    left = Left.of([y])
    assert left.num[0, 0] == 138  # 200 steps, of which 61 are in the gap, and none before the first value
    assert left.noise[0] == pytest.approx(1, rel=0.3)
    sparse = np.where(np.arange(200) % 2, np.nan, np_rng.standard_normal(200).cumsum())
    assert Left.of([sparse]).num[0, 0] == 99  # no two are side by side: each tells


def test_a_walk_and_noise_in_one_panel_go_on_as_each_of_them(np_rng):
    series = walks(np_rng) + noises(np_rng)
    own = Own.of(series)
    assert own.noise == pytest.approx(0.8, rel=0.3)
    for s in series[:20]:
        np.testing.assert_allclose(ahead_of(own.ways([s])[0], np_rng), np.repeat(s[-1:], 5, 0), atol=2.0)
    back = [ahead_of(own.ways([s])[0], np_rng)[-1, 0] ** 2 for s in series[20:]]
    assert np.mean(back) < 0.4 * np.mean([s[-1, 0] ** 2 for s in series[20:]])  # the mean is 0


def test_paths_go_the_ways_that_the_past_leaves_likely(np_rng):
    series = noises(np_rng, length=12)
    way = Own.of(series + walks(np_rng)).ways(series[:1])[0]
    pick = way.pick(1_000, np_rng)
    for told, weight in zip(way.coefficients[..., 0], way.weights[:, 0]):
        same = (way.coefficients[..., 0] == told).all(1)
        share = (pick.coefficients[..., 0] == told).all(1).mean()
        assert share == pytest.approx(way.weights[same, 0].sum(), abs=2e-3), weight


@pytest.mark.parametrize("columns", [1, 3])
def test_what_is_left_becomes_the_series_again(np_rng, columns, monkeypatch):
    monkeypatch.setattr(smoothing, "LIKELY", 1)
    rest = np_rng.standard_normal((70, columns)).cumsum(0)
    own = Own.of([rest])
    way = own.ways([rest[:60]])[0]
    later = rest[60:]
    e = np.stack(
        [
            left_by(way.coefficients[0, :, k], later[:, k], *way.state[0, :, k])[0] / way.sizes[0, k]
            for k in range(columns)
        ],
        axis=1,
    )
    walk = np.concatenate([np.zeros((1, columns)), e.cumsum(0)])
    np.testing.assert_allclose(way.pick(1, np_rng).whole(walk[None])[0], later, atol=1e-9)


def test_what_is_left_is_a_walk_of_unit_steps_without_drift(np_rng):
    rest = (0.5 + np_rng.standard_normal((400, 2))).cumsum(0)
    rest[np_rng.permutation(400)[:40], 0] = np.nan
    left = Own.of([rest]).ways([rest])[0].walk
    np.testing.assert_array_equal(np.isnan(left), np.isnan(rest))
    steps = np.diff(left[:, 1])
    assert steps.std() == pytest.approx(1, abs=0.05) and steps.mean() == pytest.approx(0, abs=0.1)


def test_what_is_not_seen_says_nothing_of_the_drift(np_rng):
    whole = (1 + np_rng.standard_normal((100, 2))).cumsum(0) / np.sqrt(2)
    late = whole.copy()
    late[:60, 1] = late[90:, 0] = np.nan
    way = Own.of([whole]).ways([late])[0]
    for column in way.walk.T:
        steps = np.diff(column[np.isfinite(column)])
        assert steps.mean() == pytest.approx(0, abs=0.5)  # beside a drift of 0.7
    assert way.state[0, 0, 1] == pytest.approx(late[-1, 1], abs=5)
    assert way.state[0, 0, 0] == pytest.approx(late[89, 0] + 7, abs=5)  # the trend goes on where nothing was seen


@pytest.mark.parametrize("length", [3, 8])
def test_short_series_do_not_make_the_noise_look_small(np_rng, length):
    series = walks(np_rng, 400, length) + walks(np_rng, 5)
    left = [w.walk for w in Own.of(series).ways(series)]
    size = np.sqrt(np.mean(np.concatenate([np.diff(x[:, 0]) for x in left[:400]]) ** 2))
    assert size == pytest.approx(1, abs=0.2)


@pytest.mark.filterwarnings("error")
def test_one_step_says_nothing_of_the_noise(np_rng):
    own = Own.of(walks(np_rng))
    for short in (np.array([[3.0]]), np.array([[3.0], [4.0]]), np.array([[np.nan], [np.nan]])):
        way = own.ways([short])[0]
        assert np.isnan(way.walk).all() and np.isfinite(ahead_of(way, np_rng)).all()


def test_a_series_without_a_scale_of_its_own_tells_the_others_nothing(np_rng):
    series = walks(np_rng)
    assert Own.of([*series, np.array([[1e4], [2e4], [4e4]])]) == Own.of(series)


def test_long_series_are_told_by_their_last_rows(np_rng, monkeypatch):
    monkeypatch.setattr(smoothing, "LONGEST", 100)
    rest = np.concatenate([np.linspace(0, 500, 500), 500 + np_rng.standard_normal(200).cumsum()])[:, None]
    way = Own.of([rest]).ways([rest])[0]
    assert np.isfinite(way.walk).all() and abs(ahead_of(way, np_rng)[-1, 0] - rest[-1, 0]) < 5


@pytest.mark.parametrize("log", [False, True])
def test_forecasts_follow_the_pace_of_each_series(np_rng, log):
    t = np.arange(60)
    paces = np.linspace(-0.04, 0.04, 9)
    values = [5 + pace * t + 0.01 * np_rng.standard_normal(60).cumsum() for pace in paces]
    values = [np.exp(v)[:, None] if log else v[:, None] for v in values]
    panel = Panel([t] * 9, values)
    kind = Kind(off=Decomposition(curve="log" if log else "none"), history=1)
    alike, own = (learn(replace(kind, own=o), panel, TrainConfig(steps=50, batch_size=64)) for o in (False, True))
    assert alike.off.own is None and own.off.own is not None
    ends = [draw(m, panel, 12, num_paths=100).mean(1)[:, -1, 0] for m in (alike, own)]
    ends = [np.log(e) if log else e for e in ends]
    wanted = 5 + paces * 71
    off = [np.abs(e - wanted).mean() for e in ends]
    assert off[1] < 0.5 * off[0]


def test_a_model_that_is_read_again_forecasts_new_series_alike(np_rng, tmp_path):
    dates = pd.date_range("2020-01-01", periods=40, freq="MS")
    parts = [pd.DataFrame({"unique_id": k, "ds": dates, "y": 50 + w[:, 0]}) for k, w in enumerate(walks(np_rng, 7, 40))]
    fitted = nsde.fit_series(pd.concat(parts[:6]), horizon=4, max_trials=1, progress=False, output=tmp_path / "run")
    assert fitted.record.off.own is not None and "each series in its own way" in fitted.report.choice
    again = nsde.TableModel.load(tmp_path / "run")
    one, other = (m.forecast(4, table=parts[6], num_paths=50).to_frame() for m in (fitted, again))
    pd.testing.assert_frame_equal(one, other)


def test_each_series_goes_on_in_its_own_way_first(np_rng):
    t, (y, *_) = np.arange(60), walks(np_rng)
    first = first_kind(Panel([t], [y]), (), False)
    moves = dict(usual_moves(Panel([t], [y]), first))
    assert first.own and first.history == 1 and not moves["all alike"](first).own
    assert moves["curved, narrow"](first) is None and moves["history"](first).history == 8
