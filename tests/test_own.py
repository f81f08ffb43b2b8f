"""Each series goes on in its own way: as far from the others as its steps and theirs say, and undone exactly."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_t

import neuralsde as nsde
from neuralsde.forecast.backtest import first_kind, seasons_in, usual_moves
from neuralsde.forecast.decomposition import Decomposition
from neuralsde.forecast.own import FASTEST, MEMORIES, SURE, Moments, Own, averages, recursion
from neuralsde.forecast.panel import Kind, Panel, draw, learn
from neuralsde.training.config import TrainConfig


def walks(np_rng, num=20, length=60):
    return [np_rng.standard_normal((length, 1)).cumsum(0) for _ in range(num)]


def noises(np_rng, num=20, length=60):
    return [np_rng.standard_normal((length, 1)) / np.sqrt(2) for _ in range(num)]


def test_averages_are_the_recursion(np_rng):
    steps = np_rng.standard_normal((150, 2))  # more than one block
    kept, gain = recursion()
    z = np.zeros((len(MEMORIES), 2))
    for k, step in enumerate(steps):
        np.testing.assert_allclose(averages(steps)[k], z, atol=1e-12)
        z = kept[:, None] * z + gain[:, None] * step
    np.testing.assert_allclose(averages(steps)[-1], z, atol=1e-12)
    many = averages(np_rng.standard_normal((20_000, 1)))[1_000:]
    np.testing.assert_allclose(many.std(0)[:, 0], 1, atol=0.1)


def test_the_posterior_is_that_of_a_regression_with_a_random_part(np_rng):
    rest, spread, noise = np_rng.standard_normal(30).cumsum(), (0.2, 0.05), 0.7
    steps = np.diff(rest)
    x = np.concatenate([averages(steps[:, None])[:-1, :, 0], np.ones((29, 1))], axis=1)
    prior = np.diag([0.2] * len(MEMORIES) + [0.05])
    found = Moments.of([rest]).posterior(spread, noise)
    marginal = np.eye(29) + x @ prior @ x.T
    np.testing.assert_allclose(found.mean[0], prior @ x.T @ np.linalg.solve(marginal, steps), rtol=1e-8)
    other = Moments.of([rest]).posterior((1.0, 0.0), noise)
    wider = np.eye(29) + x @ np.diag([1.0] * len(MEMORIES) + [0.0]) @ x.T
    wanted = [multivariate_t.logpdf(steps, shape=noise * m, df=SURE) for m in (marginal, wider)]
    assert found.evidence[0] - other.evidence[0] == pytest.approx(wanted[0] - wanted[1], rel=1e-8)


def test_series_that_are_alike_stay_so(np_rng):
    series = walks(np_rng, num=100)
    own = Own.of(series)
    far = [np.abs(own.ways([s])[0].coefficients[:, 0] - own.usual).max() for s in series]
    assert np.mean(far) < 0.05 and np.abs(own.usual).max() < 0.2
    assert own.noise == pytest.approx(1, rel=0.1)


def test_a_walk_and_noise_in_one_panel_go_on_as_each_of_them(np_rng):
    series = walks(np_rng) + noises(np_rng)
    own = Own.of(series)
    still = np.zeros((2, 6, 1))
    for k in range(20):
        last = series[k][-1]
        np.testing.assert_allclose(
            own.ways([series[k]])[0].whole(still[0][None])[0], np.repeat(last[None], 5, 0), atol=2.0
        )
    back, stays = [], []
    for s in series[20:]:
        ahead = own.ways([s])[0].whole(still)[0, -1, 0]
        back.append(ahead**2)  # the mean is 0
        stays.append(s[-1, 0] ** 2)
    assert np.mean(back) < 0.4 * np.mean(stays)


@pytest.mark.parametrize("columns", [1, 3])
def test_what_is_left_becomes_the_series_again(np_rng, columns):
    rest = np_rng.standard_normal((70, columns)).cumsum(0)
    way = Own.of([rest]).ways([rest])[0]
    walk = np_rng.standard_normal((4, 11, columns)).cumsum(1)
    ahead = way.whole(walk)
    for path, own in zip(ahead, walk):
        steps = np.diff(np.concatenate([rest, path]), axis=0)
        told = (averages(steps)[:-1] * way.coefficients[:-1]).sum(1) + way.coefficients[-1]
        np.testing.assert_allclose(((steps - told) / way.size)[69:], np.diff(own, axis=0), atol=1e-9)


def test_what_is_left_is_a_walk_of_unit_steps_without_drift(np_rng):
    rest = (0.5 + np_rng.standard_normal((400, 2))).cumsum(0)
    rest[np_rng.permutation(400)[:40], 0] = np.nan
    left = Own.of([rest]).ways([rest])[0].surprises(rest)
    np.testing.assert_array_equal(np.isnan(left), np.isnan(rest))
    steps = np.diff(left[:, 1])
    assert steps.std() == pytest.approx(1, abs=0.05) and steps.mean() == pytest.approx(0, abs=1e-9)


def test_what_is_not_seen_says_nothing_of_the_drift(np_rng):
    whole = (1 + np_rng.standard_normal((100, 2))).cumsum(0)
    late = whole.copy()
    late[:60, 1] = late[90:, 0] = np.nan
    way = Own.of([whole]).ways([late])[0]
    for column in way.surprises(late).T:
        steps = np.diff(column[np.isfinite(column)])
        assert steps.mean() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("length", [3, 8])
def test_short_series_do_not_make_the_noise_look_small(np_rng, length):
    series = walks(np_rng, 400, length) + walks(np_rng, 5)
    own = Own.of(series)
    left = [w.surprises(s) for w, s in zip(own.ways(series), series)]
    size = np.sqrt(np.mean(np.concatenate([np.diff(x[:, 0]) for x in left[:400]]) ** 2))
    assert size == pytest.approx(1, abs=0.15)


@pytest.mark.filterwarnings("error")
def test_one_step_says_nothing_of_the_noise(np_rng):
    own = Own.of(walks(np_rng))
    for short in (np.array([[3.0]]), np.array([[3.0], [4.0]])):
        assert np.isnan(own.ways([short])[0].surprises(short)).all()


def test_a_series_without_a_scale_of_its_own_tells_the_others_nothing(np_rng):
    series = walks(np_rng)
    assert Own.of([*series, np.array([[1e4], [2e4], [4e4]])]) == Own.of(series)


def test_momentum_with_which_paths_would_run_away_is_made_less(np_rng):
    rest = np.exp(0.2 * np.arange(60.0))[:, None]
    rest /= np.sqrt(np.mean(np.diff(rest[:, 0]) ** 2))
    way = Own.of([rest, *walks(np_rng)]).ways([rest])[0]
    kept, gain = recursion()
    moves = np.diag(kept) + np.outer(gain, way.coefficients[:-1, 0])
    assert np.abs(np.linalg.eigvals(moves)).max() <= FASTEST + 1e-9
    assert np.isfinite(way.whole(np.zeros((1, 1_001, 1)))).all()


def test_one_point_is_told_by_the_others(np_rng):
    series = [np.array([[3.0]]), np.array([[np.nan], [1.0]]), *walks(np_rng)]
    own = Own.of(series)
    for s in series[:2]:
        np.testing.assert_allclose(own.ways([s])[0].coefficients[:, 0], own.usual, atol=0.05)


@pytest.mark.parametrize("log", [False, True])
def test_forecasts_follow_the_pace_of_each_series(np_rng, log):
    t = np.arange(60)
    paces = np.linspace(-0.04, 0.04, 9)
    values = [5 + pace * t + 0.01 * np_rng.standard_normal(60).cumsum() for pace in paces]
    values = [np.exp(v)[:, None] if log else v[:, None] for v in values]
    panel = Panel([t] * 9, values)
    kind = Kind(off=Decomposition(log=log), history=1)
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


def test_many_series_are_taken_as_different_and_a_few_as_alike(np_rng):
    t, (y, *_) = np.arange(60), walks(np_rng)
    many, few = (first_kind(Panel([t] * num, [y] * num), (), False) for num in (5, 4))
    assert many.own and not few.own
    for first, name in ((many, "all alike"), (few, "each in its own way")):
        assert dict(usual_moves(Panel([t] * 5, [y] * 5), first))[name](first).own != first.own


def test_a_season_of_some_of_the_series_is_found(np_rng):
    t = np.arange(120)
    panel = Panel([t] * 8, [w[:, :1] for w in walks(np_rng, num=8, length=120)])
    panel.values[0] = panel.values[0] + 0.5 * np.sin(2 * np.pi * t / 12)[:, None]
    assert seasons_in(panel, [12.0], log=False) == ()  # one of eight, and hardly
    panel.values[3] = panel.values[3] + 10 * np.sin(2 * np.pi * t / 12)[:, None]
    assert seasons_in(panel, [12.0], log=False) == (12.0,)
