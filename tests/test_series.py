"""`fit_series`: from a table to forecasts with dates, and what it refuses."""

import json
import shutil
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from commands import call

import neuralsde as nsde
from neuralsde.data.tables.calendars import find_frequency
from neuralsde.data.tables.frequency import ahead_words
from neuralsde.forecast import series
from neuralsde.forecast.backtest import Backtest, Origins, first_kind, usual_moves
from neuralsde.forecast.decomposition import Decomposition
from neuralsde.forecast.panel import Kind, Panel, draw, learn
from neuralsde.forecast.series import describe_kind
from neuralsde.metrics.forecast import crps, interval_coverage
from neuralsde.training.config import TrainConfig

QUICK = {"budget": 1, "progress": False}


def monthly(np_rng, levels=(500.0, 140_000.0), num=96):
    t, frames = np.arange(num), []
    for k, level in enumerate(levels):
        shape = 0.004 * t + 0.1 * np.sin(2 * np.pi * t / 12) + 0.01 * np_rng.standard_normal(num).cumsum()
        frames.append(
            pd.DataFrame(
                {
                    "unique_id": f"s{k}",
                    "ds": pd.date_range("2010-01-31", periods=num, freq="ME"),
                    "y": level * np.exp(shape),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def frame():
    return monthly(np.random.default_rng(0))


@pytest.fixture(scope="module")
def fitted(frame, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "SHORT", 0.0)  # everything is tried, though the budget is one second
        made = nsde.fit_series(frame, horizon=6, output=tmp_path_factory.mktemp("run") / "sales", **QUICK)
    assert len(made.report.tried) > 3
    return made


def test_under_a_minute_fewer_are_tried_where_there_is_no_time(monkeypatch):
    panel = Panel([np.arange(50)], [np.zeros((50, 1))])
    monkeypatch.setattr(series, "learn", lambda *_: None)

    def most(seconds, per_step):
        ticks = iter([0.0, 20 * per_step, 0.0, 40 * per_step])
        monkeypatch.setattr(series, "clock", SimpleNamespace(perf_counter=lambda: next(ticks)))
        return series._effort(Kind(off=Decomposition()), panel, seconds, None, 0, 6, False)

    assert most(1, 0.01) == (200, 1) and most(59, 0.01) == (320, 18)
    assert most(60, 1.0) == (200, series.MOST_TRIALS)  # from a minute on, nothing is left out


def test_a_frame_is_fitted_and_forecast_in_three_lines(fitted, frame):
    made = fitted.forecast(6)
    table = made.to_frame()
    assert list(table.columns) == ["unique_id", "ds", "NSDE", "NSDE-lo-80", "NSDE-hi-80", "NSDE-lo-95", "NSDE-hi-95"]
    assert list(table["ds"][:3].astype(str)) == ["2018-01-31", "2018-02-28", "2018-03-31"]
    for name, own in table.groupby("unique_id"):  # levels of 500 and 140,000 are both learned
        last = frame[frame["unique_id"] == name]["y"].iloc[-12:]
        assert own["NSDE"].between(0.8 * last.min(), 1.25 * last.max()).all()
    assert (table["NSDE-lo-95"] <= table["NSDE-lo-80"]).all() and (table["NSDE-hi-80"] <= table["NSDE-hi-95"]).all()
    assert made.plot().axes


def test_what_was_found_is_said(fitted):
    report = fitted.report
    assert report.frequency == "month" and report.seasons == ("year",) and report.horizon == 6
    assert [s.name for s in report.standings[:4]] == ["model", "naive", "seasonal naive", "climatology"]
    assert report.standings[0].crps < report.standings[1].crps
    text = str(report)
    assert "which took no part in the choice" in text and "forecasts of 6 months." in text
    own, other = report.standings[:2]
    assert len(own.by_lead) == 6 and np.mean(own.by_lead) == pytest.approx(own.crps, rel=1e-6)
    row = next(line for line in text.splitlines() if line.startswith("naive")).split()
    assert row[1:3] == [f"{other.crps:.3f}", f"{100 * (1 - own.crps / other.crps):+.0f}"]
    head = next(k for k, line in enumerate(text.splitlines()) if "CRPS by step" in line)
    assert text.splitlines()[head + 1].split() == ["1", "2-3", "4", "5-6"]
    assert float(row[-1]) == pytest.approx(np.mean(other.by_lead[4:]), abs=1e-3)


def test_the_folder_holds_it_all_and_forecasts_the_same(fitted, frame):
    names = {p.name for p in fitted.folder.iterdir()}
    assert {
        "model",
        "series.json",
        "forecast.json",
        "report.md",
        "results.json",
        "forecast.csv",
        "forecast.png",
    } <= names
    again = nsde.TableModel.load(fitted.folder)
    one, other = (m.forecast(6, table=frame, num_paths=50).to_frame() for m in (fitted, again))
    pd.testing.assert_frame_equal(one, other)
    assert json.loads((fitted.folder / "results.json").read_text())["series"]["frequency"] == "month"
    with pytest.raises(ValueError, match="Got a state alone"):
        nsde.sample_state(fitted.folder, [1.0], stop=1.0)


def test_a_run_that_has_ended_is_read_again(fitted, frame):
    again = nsde.fit_series(frame, horizon=6, output=fitted.folder, resume=True, **QUICK)
    one, other = (m.forecast(6, table=frame, num_paths=50).to_frame() for m in (fitted, again))
    pd.testing.assert_frame_equal(one, other)
    with pytest.raises(ValueError, match=r"resume=True"):
        nsde.fit_series(frame, horizon=6, output=fitted.folder, **QUICK)


def test_a_search_that_was_stopped_goes_on_to_the_same_choice(fitted, frame, tmp_path, monkeypatch):
    monkeypatch.setattr(series, "SHORT", 0.0)
    known, began = json.loads((fitted.folder / "trials.json").read_text()), []
    assert len(known) == len(fitted.report.tried)

    def stop(text):
        began.append(text)
        if len(began) == 3:
            raise KeyboardInterrupt

    how = {"horizon": 6, "output": tmp_path / "sales", **QUICK}
    how["output"].mkdir()
    shutil.copy(fitted.folder / "search.json", how["output"])
    with pytest.raises(KeyboardInterrupt):
        nsde.fit_series(frame, say=stop, resume=True, **how)
    trained = []
    monkeypatch.setattr(
        Backtest, "train_kind", lambda test, kind, own=Backtest.train_kind: trained.append(kind) or own(test, kind)
    )
    again = nsde.fit_series(frame, resume=True, **how)
    assert len(trained) in (len(known) - 3, len(known) - 2)  # and once more, if the best is one of the first three
    assert again.report == fitted.report
    one, other = (m.forecast(6, table=frame, num_paths=50).to_frame() for m in (fitted, again))
    pd.testing.assert_frame_equal(one, other)
    with pytest.raises(ValueError, match="another `data`"):
        nsde.fit_series(frame.assign(y=2 * frame["y"]), resume=True, **how)


def test_what_is_not_known_is_not_made_up(np_rng):
    t = np.arange(60)
    y = np_rng.standard_normal((60, 2)).cumsum(0)
    kind = Kind(off=Decomposition())
    model = learn(kind, Panel([t], [y]), TrainConfig(steps=5, batch_size=32))
    y[:, 1] = np.nan
    drawn = draw(model, Panel([t], [y]), 3, num_paths=4)
    assert np.isfinite(drawn[..., 0]).all() and np.isnan(drawn[..., 1]).all()
    with pytest.raises(ValueError, match=r"takes the logarithm of series. Got -1"):
        Decomposition(curve="log").parts(t, -np.ones((60, 1)))
    with pytest.raises(ValueError, match=r"too many at once"):
        draw(model, Panel([t], [y]), 1_000, num_paths=10**6)


def test_of_many_rows_some_are_learned_from():
    many = Panel([np.arange(50)] * 40, [np.zeros((50, 1))] * 40)
    assert len(many.some(500)) == 10 and many.some(10**6) is many
    one = Panel([np.arange(900)], [np.arange(900.0)[:, None]])
    assert one.some(100).steps[0][0] == 800 and len(one.some(100).values[0]) == 100


def test_many_series_are_tried_at_their_very_end_and_few_over_their_last_third():
    many, few = (Panel([np.arange(1_000)] * num, [np.arange(1_000.0)[:, None]] * num) for num in (60, 3))
    origins = Origins.of(many, 13)
    assert set(origins.cut) == {1_000 - 3 * 13}
    assert len(set(origins.turn[~origins.judge])) == 2 and len(origins.series) == 120
    assert set(Origins.of(few, 13).cut) == {700}


def test_a_long_series_is_tried_from_every_horizon_of_its_end():
    def num(rows, horizon, size=1):
        return len(
            Origins.of(Panel([np.arange(rows)], [np.random.default_rng(0).random((rows, size))]), horizon).series
        )

    assert num(2_000, 20) == 29  # of the last 600 rows
    assert num(2_000, 20, size=10) == 12 and num(10_000, 20, size=4) == 30  # so many columns are drawn at most
    assert num(300, 40) == 12  # these overlap


@pytest.mark.parametrize(
    ("seasons", "periods", "slots"),
    [
        ((), [52.18], 53),  # a year of weeks, though most series do not show it
        ((), [7.0, 365.25], 16),
        ((24.0, 168.0), [24.0, 168.0], 25),
        ((), [144.0], 16),  # too long to be held
    ],
)
def test_a_longer_history_holds_a_season(seasons, periods, slots):
    panel = Panel([np.arange(400)] * 20, [np.ones((400, 1))] * 20)
    first = Kind(off=Decomposition(seasons=seasons))
    moves = dict(usual_moves(panel, first, periods))
    assert moves["longer history"](Kind(off=Decomposition(), history=8)).history == slots
    few = Panel([np.arange(60)], [np.ones((60, 1))])
    assert dict(usual_moves(few, first, periods))["longer history"](Kind(off=Decomposition(), history=8)) is None


def test_a_constant_table_is_refused():
    with pytest.raises(ValueError, match="No column changes"):
        nsde.fit_series(np.ones(40), **QUICK)


def test_a_longer_table_is_forecast_from_its_own_end(fitted, frame):
    more = frame.copy()
    more["ds"] = more["ds"] + pd.offsets.MonthEnd(5)
    made = fitted.forecast(2, table=more, num_paths=50).to_frame()
    assert str(made["ds"][0])[:10] == "2018-06-30"


def test_scores_of_a_table_come_from_its_end(fitted, frame):
    scores = nsde.evaluate_table(fitted, frame, num_paths=50)
    assert scores.values["num_series"] == 2 and 0.5 < scores.values["coverage"]["0.8"]["mean"] <= 1
    found = scores.values["references"]
    assert list(found) == ["naive", "seasonal naive", "climatology", "ETS"]  # those of the report of the fit
    assert [s.name for s in fitted.report.standings[1:]] == list(found)
    assert found["naive"]["skill"]["mean"] > 0
    text = str(scores)
    assert "up to 6 months ahead" in text and "CRPS, step 1 " in text and "CRPS, step 6 " in text
    assert "CRPS against the seasonal naive: " in text and "NLL" not in text
    again = nsde.evaluate_table(nsde.TableModel.load(fitted.folder), frame, num_paths=50)
    assert str(again).split("!")[-1].splitlines()[2:] == text.split("!")[-1].splitlines()[2:]


def test_references_of_many_forecasts_are_those_of_some(fitted, frame, monkeypatch):
    monkeypatch.setattr(series, "MOST_REFERENCED", 3)
    scores = nsde.evaluate_table(fitted, frame, num_paths=50).values
    assert scores["crps"]["n"] > 2 * scores["references"]["ETS"]["crps"]["n"] > 0
    laws = fitted.laws(fitted.table, horizon=None, origins_per_path=None)
    assert len(laws.rows) == 3 and laws.samples["naive"].shape[0] == 3


@pytest.mark.parametrize(
    ("words", "num", "said"),
    [
        ("month", 18, "18 months"),
        ("month", 1, "1 month"),
        ("business day", 5, "5 business days"),
        ("15 minutes", 96, "96 steps of 15 minutes"),
        ("hour, Monday to Friday, 09:00 to 16:00", 8, "8 steps, each hour, Monday to Friday, 09:00 to 16:00"),
        ("step", 7, "7 steps"),
        ("step of 0.5", 7, "7 steps of 0.5"),
    ],
)
def test_horizons_have_units(words, num, said):
    assert ahead_words(words, num) == said


def test_the_command_line_does_the_same(frame, tmp_path, capsys, short_search):
    file = tmp_path / "sales.csv"
    frame.to_csv(file, index=False)
    call(
        "fit",
        file,
        "--budget",
        "1 s",
        "--horizon",
        "4",
        "--season",
        "none",
        "--output",
        tmp_path / "run",
        "--no-progress",
    )
    text = (tmp_path / "run" / "report.md").read_text()
    assert "one observation each month; forecasts of 4 months" in text and "![forecast](forecast.png)" in text
    call("forecast", tmp_path / "run", "--data", file, "--horizon", "3", "--output", tmp_path / "f.csv")
    rows = pd.read_csv(tmp_path / "f.csv")
    assert len(rows) == 6 and list(rows) == list(
        nsde.TableModel.load(tmp_path / "run").forecast(3, table=file).to_frame()
    )
    assert rows["ds"][0] == "2018-01-31"
    assert "Wrote forecasts of 2 series, 3 months ahead (to 2018-03-31), to" in capsys.readouterr().out


def test_series_and_arrays_are_tables(np_rng, short_search):
    y = 10 + np.sin(np.arange(120) / 4) + 0.1 * np_rng.standard_normal(120)
    days = pd.Series(y, index=pd.date_range("2024-01-01", periods=120, freq="D"))
    made = nsde.fit_series(days, horizon=3, season="none", **QUICK).forecast(2)
    assert str(made.to_frame()["ds"][0])[:10] == "2024-04-30"
    plain = nsde.read_table(y)
    assert plain.columns == ("y",) and plain.time.kind == "order"
    assert nsde.read_table(np.stack([y, y], 1)).columns == ("y0", "y1")


def test_covariates_that_are_known_ahead_are_used_and_scored(np_rng):
    promo = (np_rng.random(200) < 0.3).astype(float)
    y = 0.2 * np_rng.standard_normal(200)
    y[1:] += 5 * promo[:-1]  # what is known at a step moves the next
    frame = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=200, freq="D"), "y": y, "promo": promo})
    known = frame.iloc[:190]
    fitted = nsde.fit_series(known, context=["promo"], known_ahead=["promo"], horizon=5, season="none", **QUICK)
    made = fitted.forecast(5, future=frame.iloc[190:], num_paths=400).to_frame()
    wanted = 5 * promo[190:194]
    assert np.abs(made["NSDE"].to_numpy()[1:] - wanted).max() < 1.5
    with pytest.raises(ValueError, match=r"promo must be known ahead. Got no `future`"):
        fitted.forecast(5)
    with pytest.raises(
        ValueError, match=r"promo must be known for each of the 12 steps ahead. Got none for 2024-07-19\. Add"
    ):
        fitted.forecast(12, future=frame.iloc[190:])


@pytest.mark.parametrize("num", [1, 6])  # of many series, each goes on in its own way
def test_covariates_that_are_known_ahead_act_on_their_own_row(np_rng, num):
    days = pd.date_range("2024-01-01", periods=200, freq="D")
    promo = (np_rng.random((num, 200)) < 0.3).astype(float)
    noise = 0.5 * np_rng.standard_normal((num, 200))
    parts = [
        pd.DataFrame({"unique_id": f"s{k}", "ds": days, "y": 50 + 10 * p + e, "promo": p})
        for k, (p, e) in enumerate(zip(promo, noise))
    ]
    past, later = (pd.concat([part.iloc[rows] for part in parts]) for rows in (slice(190), slice(190, None)))
    reading = {"context": ["promo"], "known_ahead": ["promo"]}
    fitted = nsde.fit_series(past, horizon=10, season="none", budget=20, max_trials=4, progress=False, **reading)
    made = fitted.forecast(10, future=later, num_paths=300).to_frame()
    off = made["NSDE"].to_numpy() - 50 - 10 * promo[:, 190:].ravel()
    assert np.sqrt(np.mean(off**2)) < 1
    assert fitted.report.standings[0].crps < 0.3 * fitted.report.standings[1].crps  # naive
    with pytest.raises(ValueError, match="promo must be known ahead"):
        nsde.series_inputs(fitted)
    given = nsde.series_inputs(fitted, future=later)["context"]
    np.testing.assert_array_equal(given[0, :, 0], promo[0, 189:199])
    np.testing.assert_array_equal(given[0, :, 1], promo[0, 190:])


def test_the_noise_is_what_known_covariates_leave_however_short_the_training(np_rng):
    t, promo = np.arange(300), (np_rng.random(300) < 0.3).astype(float)[:, None]
    y = 10 * promo + 0.5 * np_rng.standard_normal((300, 1))
    panel = Panel([t], [y], [promo], (0,))
    model = learn(Kind(off=Decomposition(level=True)), panel, TrainConfig(steps=5, batch_size=32))
    drawn = draw(model, panel, 2, ahead_context=np.array([[[1.0], [0.0]]]), num_paths=400)[0, :, :, 0]
    np.testing.assert_allclose(drawn.mean(0), [10, 0], atol=0.3)
    np.testing.assert_allclose(drawn.std(0), 0.5, rtol=0.25)


def test_a_model_whose_covariates_act_on_the_next_row_alone_is_refused(np_rng, tmp_path, short_search):
    days = pd.date_range("2024-01-01", periods=60, freq="D")
    frame = pd.DataFrame({"ds": days, "y": np_rng.standard_normal(60), "promo": np_rng.random(60)})
    run = tmp_path / "run"
    nsde.fit_series(frame, context=["promo"], horizon=3, season="none", output=run, **QUICK)
    for file in (run / "forecast.json", run / "model" / "forecast.json"):
        record = json.loads(file.read_text())
        file.write_text(json.dumps(record | {"known_ahead": ["promo"]}))
    with pytest.raises(ValueError, match=r"known ahead only act on the next row .* Fit again"):
        nsde.TableModel.load(run)


def test_counts_are_forecast_as_counts(np_rng):
    t, rate = np.arange(300), 0.4
    panel = Panel([t] * 3, [(np_rng.poisson(rate, (300, 1)) * 1.0) for _ in range(3)])
    first = first_kind(panel, (), False)
    moves = dict(usual_moves(panel, first))
    assert dict(usual_moves(Panel([t], [np_rng.random((300, 1))]), first))["ranks"](first) is None
    model = learn(moves["ranks"](first), panel, TrainConfig(steps=50, batch_size=64))
    drawn = draw(model, panel, 10, num_paths=400)
    assert set(np.unique(drawn)) <= set(range(10)) and drawn.mean() == pytest.approx(rate, abs=0.15)
    assert draw(learn(first, panel, TrainConfig(steps=50, batch_size=64)), panel, 10, num_paths=400).min() == 0


def test_the_record_of_an_earlier_version_is_read(fitted, tmp_path):
    run = shutil.copytree(fitted.folder, tmp_path / "run")
    for file in (run / "forecast.json", run / "model" / "forecast.json"):
        record = json.loads(file.read_text())
        log = record["off"].pop("curve") == "log"
        file.write_text(json.dumps(record | {"off": record["off"] | {"log": log}}))
    assert nsde.TableModel.load(run).record.off.curve == fitted.record.off.curve


def test_a_model_sees_nothing_of_the_future(np_rng):
    t = np.arange(120)
    y = (0.1 * t + np_rng.standard_normal(120).cumsum())[:, None]
    panel = Panel([t], [y])
    kind = Kind(off=Decomposition(seasons=(12.0,)))
    model = learn(kind, panel.until([80]), TrainConfig(steps=5, batch_size=32))
    other = y.copy()
    other[100:] += 50
    one, two = (draw(model, Panel([t], [v]).until([100]), 6, num_paths=10) for v in (y, other))
    np.testing.assert_array_equal(one, two)


def test_origins_leave_the_last_ones_out_of_the_choice():
    panel = Panel([np.arange(n) for n in (100, 60, 5)], [np.arange(n * 1.0)[:, None] for n in (100, 60, 5)])
    origins = Origins.of(panel, 6)
    assert set(origins.series) == {0, 1} and origins.judge.any() and not origins.judge.all()
    for own, row in zip(origins.series, origins.rows):
        assert origins.cut[own] <= row <= len(panel.steps[own]) - 6


def test_columns_apart_are_drawn_as_columns_of_their_own(np_rng):
    y = np_rng.standard_normal((80, 3)).cumsum(0) * [1.0, 10.0, 100.0]
    panel = Panel([np.arange(80)], [y])
    kind = Kind(off=Decomposition(), apart=True)
    model = learn(kind, panel, TrainConfig(steps=5, batch_size=32))
    drawn = draw(model, panel, 4, num_paths=300)
    assert drawn.shape == (1, 300, 4, 3)
    spread = drawn[0, :, 0].std(0)
    np.testing.assert_allclose(spread / spread[0], [1, 10, 100], rtol=0.5)
    np.testing.assert_allclose(drawn[0, :, 0].mean(0), y[-1], atol=4 * spread.max())


def test_the_score_is_the_crps_in_steps(np_rng):
    import scoringrules

    y = np_rng.standard_normal((90, 1)).cumsum(0)
    test = Backtest(Panel([np.arange(90)], [y]), 5, TrainConfig(steps=1))
    which = test.choosing
    samples = np_rng.standard_normal((int(which.sum()), 40, 5, 1))
    truth = test.origins.truth(test.panel, which, 5)
    wanted = scoringrules.crps_ensemble(truth, samples, m_axis=1, estimator="fair")[..., 0].mean(1) / test.units[0]
    np.testing.assert_allclose(test.score(samples, which), wanted, rtol=1e-6)


def test_the_frame_is_scored_by_utilsforecast_as_here(fitted, frame, np_rng):
    losses = pytest.importorskip("utilsforecast.losses")
    made = fitted.forecast(6, num_paths=300)
    table = made.to_frame()
    table["y"] = table["NSDE"] * (1 + 0.03 * np_rng.standard_normal(len(table)))
    truth = torch.tensor(table["y"].to_numpy().reshape(2, 6, 1))
    samples = made.forecasts.samples.movedim(1, 0).double()
    own = interval_coverage(samples, truth, 0.8).flatten(1).mean(1).numpy()
    theirs = losses.coverage(table, ["NSDE"], 80)["NSDE"].to_numpy()
    np.testing.assert_allclose(own, theirs, atol=1e-6)
    error = losses.mae(table, ["NSDE"])["NSDE"].to_numpy()
    np.testing.assert_allclose((samples.mean(0) - truth).abs().flatten(1).mean(1).numpy(), error, rtol=1e-6)


def retail(np_rng, num=90, series=2):
    frames = []
    for k in range(series):
        promo, heat = (np_rng.random(num) < 0.3).astype(float), np_rng.standard_normal(num)
        y = 50 + 10 * promo + 0.5 * np_rng.standard_normal(num)
        ds = pd.date_range("2024-01-01", periods=num, freq="D")
        frames.append(pd.DataFrame({"unique_id": f"s{k}", "ds": ds, "y": y, "promo": promo, "heat": heat}))
    return pd.concat(frames, ignore_index=True)


KNOWN = {"context": ["promo", "heat"], "known_ahead": ["promo"], "season": "none", "max_trials": 1}


def test_rows_without_a_value_at_the_end_are_the_future(np_rng, tmp_path, short_search):
    """Of the covariates that are known ahead alone; what is held need not be there."""
    frame = retail(np_rng)
    later = frame["ds"] > "2024-03-23"
    frame.loc[later, ["y", "heat"]] = np.nan
    known, ahead = frame[~later], frame[later].drop(columns=["y", "heat"])
    one = nsde.fit_series(frame, horizon=5, output=tmp_path / "one", **KNOWN, **QUICK)
    other = nsde.fit_series(known, horizon=5, output=tmp_path / "other", future=ahead, **KNOWN, **QUICK)
    assert (tmp_path / "one/forecast.csv").read_text() == (tmp_path / "other/forecast.csv").read_text()
    assert len(pd.read_csv(tmp_path / "one/forecast.csv")) == 10
    pd.testing.assert_frame_equal(one.forecast(7).to_frame(), other.forecast(7, future=ahead).to_frame())
    assert "heat: held at the last value in forecasts" in str(one.report)
    with pytest.raises(
        ValueError, match=r"each of the 8 steps ahead. Got none for 2024-03-31 of 's0'. Add it to `future`"
    ):
        one.forecast(8)
    gap = frame.copy()
    gap.loc[gap["ds"] == "2024-03-25", "promo"] = np.nan
    with pytest.raises(ValueError, match=r"Got none for 2024-03-25 of 's0'"):
        one.forecast(3, table=gap)


def test_the_future_is_checked_before_the_training(np_rng, tmp_path, short_search):
    frame = retail(np_rng)
    known, ahead = frame[frame["ds"] <= "2024-03-23"], frame[frame["ds"] > "2024-03-23"]
    with pytest.raises(ValueError, match=r"a row for each of the 9 steps ahead. Got 7 without a gap"):
        nsde.fit_series(known, horizon=9, future=ahead, **KNOWN, **QUICK)
    with pytest.raises(ValueError, match=r"`future` is of covariates that are known ahead. Got no `known_ahead`"):
        nsde.fit_series(known, future=ahead, **QUICK)
    assert nsde.fit_series(known, future=ahead, **KNOWN, **QUICK).report.horizon == 7


def test_the_command_line_says_what_it_wrote_and_what_to_type(np_rng, tmp_path, capsys, short_search):
    frame = retail(np_rng)
    known, ahead = frame[frame["ds"] <= "2024-03-23"], frame[frame["ds"] > "2024-03-23"]
    known.to_csv(tmp_path / "known.csv", index=False)
    ahead.drop(columns=["y", "heat"]).to_csv(tmp_path / "ahead.csv", index=False)
    options = [
        "--context",
        "promo",
        "heat",
        "--known-ahead",
        "promo",
        "--horizon",
        "5",
        "--budget",
        "1 s",
        "--no-progress",
    ]
    call("fit", tmp_path / "known.csv", *options, "--output", tmp_path / "one")
    text = capsys.readouterr().out
    command = f"nsde forecast {tmp_path / 'one'} --data {tmp_path / 'known.csv'} --future FUTURE.csv"
    assert f"Wrote {tmp_path / 'one'}: report.md, model, results.json\n" in text
    assert f"No forecast was made: promo must be known ahead. Type\n  {command}\n" in text
    assert "No forecast was made: promo must be known ahead" in (tmp_path / "one/report.md").read_text()
    words = command.replace("FUTURE.csv", str(tmp_path / "ahead.csv")).split()[1:]
    call(*words, "--output", tmp_path / "f.csv", "--num-paths", "500")
    call("fit", tmp_path / "known.csv", *options, "--future", tmp_path / "ahead.csv", "--output", tmp_path / "two")
    assert (
        f"Wrote {tmp_path / 'two'}: report.md, forecast.csv, forecast.png, model, results.json\n"
        in capsys.readouterr().out
    )
    assert (tmp_path / "two/forecast.csv").read_text() == (tmp_path / "f.csv").read_text()


# Messy tables


def daily(np_rng, num=120, **more):
    y = 10 + np.sin(2 * np.pi * np.arange(num) / 7) + 0.1 * np_rng.standard_normal(num)
    return pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=num, freq="D"), "y": y, **more})


@pytest.mark.parametrize("freq", [None, "D"])
def test_the_frequency_is_that_of_all_rows_also_of_those_without_a_value(np_rng, freq, short_search):
    frame = daily(np_rng, 200)
    frame.loc[np_rng.random(200) < 0.7, "y"] = np.nan
    frame.loc[199, "y"] = 10.0
    fitted = nsde.fit_series(frame, horizon=3, freq=freq, max_trials=1, **QUICK)
    assert fitted.report.frequency == "day"
    assert list(fitted.forecast(2, num_paths=50).to_frame()["ds"].astype(str)) == ["2024-07-19", "2024-07-20"]


def test_a_named_frequency_is_not_refused_for_rows_that_are_not_there(np_rng):
    frame = daily(np_rng, 200)
    kept = np.sort(np_rng.choice(199, 70, replace=False))
    table = nsde.read_table(frame.iloc[np.append(kept, 199)])
    assert series.frequency_of(table) is None and series.frequency_of(table, "D").words == "day"
    with pytest.raises(ValueError, match=r"Got stamps that are a week apart"):
        series.frequency_of(nsde.read_table(frame.iloc[::7]), "D")


def test_covariates_of_rows_without_a_value_are_used(np_rng):
    frame = daily(np_rng, 40, u=np.arange(40.0))
    frame.loc[[5, 6, 20], "y"] = np.nan
    frame.loc[30, "u"] = np.nan
    table = nsde.read_table(frame, context=["u"])
    panel = Panel.of(table, series.frequency_of(table))
    wanted = np.arange(40.0)
    wanted[30] = 29
    np.testing.assert_array_equal(panel.context[0][:, 0], wanted)
    assert np.isnan(panel.values[0][[5, 6, 20], 0]).all() and np.isfinite(panel.values[0][30, 0])


@pytest.mark.parametrize("as_text", [False, True])
def test_forecasts_can_be_joined_to_a_table_with_a_time_zone(np_rng, as_text, tmp_path, short_search):
    days = pd.bdate_range("2023-09-01", periods=200, tz="Europe/Berlin")
    y = 10 + np.sin(2 * np.pi * np.arange(200) / 5) + 0.1 * np_rng.standard_normal(200)
    whole = pd.DataFrame({"ds": days, "y": y})
    known = whole.iloc[:150]
    file = tmp_path / "days.csv"
    known.to_csv(file, index=False)
    how = {"horizon": 5, "max_trials": 1, "output": tmp_path / "run", **QUICK}
    fitted = nsde.fit_series(file if as_text else known, **how)
    assert fitted.report.frequency == "business day"
    made = fitted.forecast(50, num_paths=50)
    joined = made.to_frame().merge(whole, on="ds")
    assert len(joined) == 50 and str(made.to_frame()["ds"].dtype).endswith("Europe/Berlin]")
    made.write(tmp_path / "f.csv")
    stamps = pd.read_csv(tmp_path / "f.csv").iloc[:, 1]
    assert stamps[0] == "2024-03-29 00:00+01:00" and (pd.to_datetime(stamps, utc=True) == days[150:]).all()
    again = nsde.TableModel.load(fitted.folder).forecast(3, table=known, num_paths=50)
    assert (again.to_frame()["ds"] == days[150:153]).all()
    with pytest.raises(ValueError, match=r"trained on dates in Europe/Berlin. Got dates without a time zone in frame"):
        fitted.forecast(3, table=known.assign(ds=known["ds"].dt.tz_localize(None)))


@pytest.mark.parametrize("freq", ["BME", "BMS"])
def test_monthly_prices_are_forecast_on_weekdays(np_rng, freq, short_search):
    days = pd.date_range("2015-01-01", periods=92, freq=freq)
    frame = pd.DataFrame({"ds": days[:80], "y": 50 + np_rng.standard_normal(80).cumsum()})
    fitted = nsde.fit_series(frame, horizon=5, max_trials=1, **QUICK)
    assert (fitted.forecast(12, num_paths=50).to_frame()["ds"] == days[80:]).all()


def test_trading_hours_and_stamps_beside_them(np_rng, short_search):
    hours = [d + pd.Timedelta(hours=h) for d in pd.bdate_range("2024-01-01", periods=60) for h in range(9, 17)]
    frame = pd.DataFrame({"ds": hours, "y": 50 + np_rng.standard_normal(480).cumsum()})
    frame = pd.concat([frame.iloc[:400], pd.DataFrame({"ds": [hours[199] + pd.Timedelta(hours=9)], "y": [1e4]})])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = nsde.fit_series(frame, horizon=5, max_trials=1, **QUICK)
    assert fitted.report.frequency == "hour, Monday to Friday, 09:00 to 16:00"
    assert "1 row(s) are not on that calendar and were left out, the first at 2024-02-03 01:00" in str(fitted.report)
    assert max(v.max() for v in Panel.of(fitted.table, fitted.record.frequency).values) < 1e3
    assert list(fitted.forecast(80, num_paths=50).to_frame()["ds"]) == hours[400:]


@pytest.mark.parametrize(("horizon", "past"), [(6, 24), (12, 36), (1, 10)])
def test_the_picture_shows_three_horizons_or_two_seasons(fitted, horizon, past):
    """Two seasons of a year, unless they are more than ten horizons: then three, and ten observations at least."""
    figure = fitted.forecast(horizon, num_paths=50).plot()
    line = next(line for line in figure.axes[0].lines if line.get_label() == "past")
    assert len(line.get_xdata()) == past + 1
    assert line.get_xdata()[-1] == np.datetime64("2017-12-31")


def test_up_to_twelve_series_are_drawn(np_rng, short_search):
    frame = monthly(np_rng, levels=tuple(10.0 * k for k in range(1, 15)), num=40)
    figure = nsde.fit_series(frame, horizon=2, max_trials=1, **QUICK).forecast(2, num_paths=50).plot()
    assert len(figure.axes) == 12 and figure.get_suptitle() == "12 of 14 series"
    assert figure.axes[0].get_title() == "s0, from 2013-04-30" and figure.axes[-1].get_title().startswith("s13")


def test_whole_numbers_stay_whole(np_rng, short_search, tmp_path):
    frame = pd.DataFrame({"ds": np.arange(1950, 2010), "y": np_rng.standard_normal(60).cumsum()})
    made = nsde.fit_series(frame, horizon=3, max_trials=1, **QUICK).forecast(3, num_paths=50)
    assert made.to_frame()["ds"].tolist() == [2010, 2011, 2012] and made.to_frame()["ds"].dtype == np.int64
    made.write(tmp_path / "f.csv")
    assert pd.read_csv(tmp_path / "f.csv")["ds"].tolist() == [2010, 2011, 2012]
    long = nsde.read_table(frame.assign(ds=1_700_000_000_000 + 60_000 * np.arange(60)))
    assert long.time.show(1_700_000_060_000) == "1700000060000"


def test_forecasts_of_many_series_are_written_in_parts(np_rng, tmp_path, monkeypatch, short_search):
    """What could not be held in memory at once is written after a training all the same."""
    frame = monthly(np_rng, levels=(10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0), num=40)
    how = {"horizon": 2, "max_trials": 1, **QUICK}
    whole = nsde.fit_series(frame, **how).forecast(2, num_paths=500)
    monkeypatch.setattr(series, "MOST_AT_ONCE", 500 * 2 * 3)
    monkeypatch.setattr(series, "MOST_HELD", 500 * 2 * 6)
    fitted = nsde.fit_series(frame, output=tmp_path / "run", **how)
    assert {"report.md", "results.json", "forecast.csv", "forecast.png"} <= {p.name for p in fitted.folder.iterdir()}
    rows = pd.read_csv(fitted.folder / "forecast.csv", parse_dates=["ds"])
    wanted = whole.to_frame()
    pd.testing.assert_frame_equal(rows[["unique_id", "ds"]], wanted[["unique_id", "ds"]], check_dtype=False)
    np.testing.assert_allclose(rows.iloc[:6, 2:], wanted.iloc[:6, 2:], rtol=1e-5)  # the first part has the same noise
    own = rows.iloc[[0, 6], 2:].to_numpy() / [[10.0], [40.0]]
    assert np.abs(own[0] / own[1] - 1).min() > 1e-4  # later parts have another
    with pytest.raises(ValueError, match=r"More than 6,000 numbers are too many to hold. Use fewer `num_paths`"):
        fitted.forecast(2)
    made = nsde.forecast_table(fitted, frame, num_paths=500, output=tmp_path / "f.csv")
    assert made.num_series == 7 and len(made.forecasts.path) == 3 and len(pd.read_csv(tmp_path / "f.csv")) == 14


def test_quantiles_are_written_where_they_are_asked_for(fitted, tmp_path):
    made = fitted.forecast(2, num_paths=50, quantiles=(0.1, 0.5))
    made.write(tmp_path / "f.csv")
    names = ["unique_id", "ds", "NSDE", "q0.1", "q0.5"]
    assert list(pd.read_csv(tmp_path / "f.csv")) == names == list(made.to_frame())


def test_what_was_read_is_told_in_python_too(np_rng, capsys, short_search):
    frame = daily(np_rng, 60).rename(columns={"ds": "Datum"})
    frame["Datum"] = frame["Datum"].dt.strftime("%d.%m.%Y")
    how = {"horizon": 3, "max_trials": 1, "season": "none", "budget": 1}
    nsde.fit_series(frame, **how)
    assert "- Datum holds dates, e.g. '01.01.2024': give `time='Datum'` to use it" in capsys.readouterr().out
    made = nsde.fit_series(frame, time="Datum", **how)
    assert "Datum was read as `date_format='%d.%m.%Y'`" in capsys.readouterr().out
    assert str(made.forecast(1, num_paths=50).to_frame()["ds"][0]) == "2024-03-01 00:00:00"
    nsde.fit_series(nsde.read_table(frame), **how)
    assert "holds dates" not in capsys.readouterr().out  # it has been read, and told, before


def test_dates_without_a_zone_get_none(fitted, tmp_path):
    made = fitted.forecast(2, num_paths=50)
    assert made.to_frame()["ds"].dt.tz is None
    made.write(tmp_path / "f.csv")
    assert pd.read_csv(tmp_path / "f.csv").iloc[:2, 1].tolist() == ["2018-01-31", "2018-02-28"]


@pytest.mark.parametrize("num", [20, 51])
def test_the_crps_is_that_of_utilsforecast_on_the_same_samples(num, np_rng):
    """Twice the mean quantile loss at (i - 1/2) / N is the CRPS of N samples; without pairs of a sample and itself it is ours."""
    losses = pytest.importorskip("utilsforecast.losses")
    samples = 100 + np_rng.standard_normal((num, 3, 8)).cumsum(2)
    truth = 100 + np_rng.standard_normal((3, 8)).cumsum(1)
    levels = (np.arange(num) + 0.5) / num
    names = [f"q{k}" for k in range(num)]
    frame = pd.DataFrame({"unique_id": np.repeat(list("abc"), 8), "ds": np.tile(np.arange(8), 3), "y": truth.ravel()})
    frame[names] = np.sort(samples, axis=0).reshape(num, -1).T
    draws, real = torch.tensor(samples), torch.tensor(truth)
    plain = crps(draws, real, fair=False)
    theirs = losses.mqloss(frame, {"m": names}, levels)["m"].to_numpy()
    np.testing.assert_allclose(2 * theirs, plain.mean(1), rtol=1e-6)
    scaled = losses.scaled_crps(frame, {"m": names}, levels)["m"].to_numpy()
    np.testing.assert_allclose(scaled, plain.sum(1) / real.abs().sum(1), rtol=1e-6)
    pairs = (draws[:, None] - draws[None]).abs().sum((0, 1)) / (2 * num**2 * (num - 1))
    np.testing.assert_allclose((plain - crps(draws, real)).numpy(), pairs, atol=1e-12)


# What is refused, and what is asked about


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"season": 60}, r"A season of 60 steps must be seen twice. Got series of at most 96 steps"),
        ({}, {"season": "moon"}, r"`season` must be a number of steps or one of auto, none, year. Got 'moon'"),
        ({}, {"season": True}, r"`season` must be text or a number .* Got True"),
        ({}, {"season": "auto year"}, r"Got 'auto'"),
        ({}, {"horizon": 90}, r"`horizon` must be at most half of the longest series, 48 steps. Got 90"),
        ({}, {"freq": "D"}, r"`freq='D'` is not that of the stamps. Got stamps that are a month apart"),
        ({}, {"freq": "BME"}, r"Got 2010-01-31, and others that are not the last weekdays of months"),
        ({}, {"known_ahead": ["promo"]}, r"`known_ahead` names columns of `context`. Got promo"),
        ({}, {"budget": "soon"}, r"`budget` must be such as '2 min'"),
        (
            {"ds": "uneven"},
            {},
            r"not evenly spaced. Got gaps of 1.85 min to 6.06 days, usually 19.6 h. `fit_table` takes any",
        ),
    ],
)
def test_what_cannot_be_is_refused(frame, np_rng, change, options, message):
    own = frame[frame["unique_id"] == "s0"].copy()
    if change:
        own["ds"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(np_rng.exponential(size=len(own)).cumsum(), unit="D")
    with pytest.raises(ValueError, match=message):
        nsde.fit_series(own, **{**QUICK, **options})


@pytest.mark.parametrize(
    ("season", "periods"),
    [
        ("day week", (24.0, 168.0)),
        (["day", "week"], (24.0, 168.0)),
        ("Week, day", (24.0, 168.0)),
        ("24", (24.0,)),
        (["24", 12.5], (12.5, 24.0)),
        ("none", ()),
    ],
)
def test_seasons_are_named_in_a_list_or_in_one_text(season, periods):
    hours = find_frequency([np.datetime64("2024-01-01", "us") + np.arange(600).astype("m8[h]")])
    panel = Panel([np.arange(600)], [np.arange(600.0)[:, None]])
    assert series._seasons(season, panel, hours)[0] == periods


def test_a_choice_is_told_in_words():
    kind = Kind(off=Decomposition(seasons=(12.0, 7.0)), history=3)
    assert "season of a year taken off, season of 7 steps taken off" in describe_kind(kind, {12.0: "year"}, 1.0)


def test_series_of_one_point_are_left_out_with_a_word(frame):
    one = pd.DataFrame({"unique_id": ["lone"], "ds": [pd.Timestamp("2015-01-31")], "y": [1.0]})
    table = nsde.read_table(pd.concat([frame, one]))
    assert table.ids == ("s0", "s1") and "1 path(s) too short: lone" in str(table.report)


def test_habits_of_files(tmp_path):
    file = tmp_path / "messy.csv"
    rows = [f"2024-01-{k:02d},{20 + k % 5 if k != 9 else -999}" for k in range(1, 29)]
    file.write_text("\n".join(["day,temp", *rows]))
    said = str(nsde.read_table(file).report)
    assert "temp: 1 cell(s) are -999, far from all others: give `na_values=['-999']` if that means missing" in said
    assert "day holds dates, e.g. '2024-01-01': give `time='day'` to use it" in said
    table = nsde.read_table(file, time="day", na_values=["-999"])
    assert float(table.data.states.min()) >= 20 and "far from all" not in str(table.report)
    with pytest.raises(ValueError, match=r"numbers or dates written as `date_format='%d/%m/%Y'`. Got '2024-01-01'"):
        nsde.read_table(file, time="day", date_format="%d/%m/%Y")


def test_whole_numbers_that_lose_digits_and_columns_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"'y' holds whole numbers beyond 2\^53"):
        nsde.read_table(pd.DataFrame({"y": [2**60 + k for k in range(5)]}))
    with pytest.raises(ValueError, match="The frame has two columns 'y'"):
        nsde.read_table(pd.DataFrame(np.zeros((4, 2)), columns=["y", "y"]))
    with pytest.raises(ValueError, match=r"a file, a frame, a pandas Series or an array. Got dict"):
        nsde.read_table({"a": "b"})


def test_a_season_that_could_not_be_tried_is_taken_off_in_the_end(np_rng):
    dates, t = pd.date_range("2024-01-01", periods=28, freq="D"), np.arange(28)
    frame = pd.DataFrame({"ds": dates, "y": 100 + 20 * np.sin(2 * np.pi * t / 7) + np_rng.standard_normal(28)})
    fitted = nsde.fit_series(frame, horizon=7, season="week", budget=2, max_trials=2, progress=False)
    assert "season of a week taken off" in fitted.report.choice and "not to try it" in fitted.report.reason
    made = fitted.forecast().to_frame()
    np.testing.assert_allclose(made["NSDE"], 100 + 20 * np.sin(2 * np.pi * np.arange(28, 35) / 7), atol=5)
    assert (made["NSDE-hi-80"] - made["NSDE-lo-80"]).mean() < 10


def test_changes_that_were_not_tried_are_counted(monkeypatch, np_rng):
    monkeypatch.setattr(series, "_effort", lambda *_: (20, 3))
    fitted = nsde.fit_series(np_rng.standard_normal(60).cumsum(), horizon=5, progress=False)
    assert "were not tried: the budget is short. Give a longer `budget`." in str(fitted.report)


def test_a_table_of_another_frequency_is_refused(np_rng):
    def frame(num, freq):
        return pd.DataFrame(
            {"ds": pd.date_range("2024-01-07", periods=num, freq=freq), "y": np_rng.standard_normal(num)}
        )

    fitted = nsde.fit_series(frame(60, "D"), horizon=5, budget=1, max_trials=1, progress=False)
    with pytest.raises(ValueError, match=r"one observation each day. Got none within two of another .* same frequency"):
        fitted.forecast(3, table=frame(20, "W"))
    assert len(fitted.forecast(3, table=frame(20, "D")).to_frame()) == 3


def test_the_frequency_of_stamps_with_many_gaps_is_offered(np_rng):
    dates = pd.date_range("2024-01-01", periods=300, freq="D")[np.sort(np_rng.permutation(300)[:120])]
    frame = pd.DataFrame({"ds": dates, "y": np_rng.standard_normal(120)})
    with pytest.raises(ValueError, match=r"not evenly spaced. .* Give `freq='D'` if rows are missing."):
        nsde.fit_series(frame, horizon=5, budget=1, progress=False)
    assert nsde.fit_series(frame, freq="D", horizon=5, budget=1, max_trials=1, progress=False).report.frequency == "day"
