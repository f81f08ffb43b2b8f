"""`nsde forecast` and `nsde evaluate` on tables."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from commands import call, fails
from walk_paths import walk_model, walks

from neuralsde.core.records import to_dict
from neuralsde.data.tables.series import FILE, Series
from neuralsde.forecast.report import score_table, show_score, verdict
from neuralsde.forecast.skill import evaluate_forecasts
from neuralsde.models.build import load

pd = pytest.importorskip("pandas")


def write_table(file, num_paths=6, *, dates=False, seed=0):
    """Walks as a table, its rows shuffled, with two columns of other things."""
    data = walks(np.random.default_rng(seed), num_paths)
    rows = []
    for p in range(len(data)):
        states, times = data[p]
        stamps = pd.Timestamp("2026-01-01") + pd.to_timedelta(times.numpy(), "h") if dates else times.numpy()
        rows.append(pd.DataFrame({"who": f"id{p}", "when": stamps, "b": states[:, 1], "note": "x", "a": states[:, 0]}))
    pd.concat(rows).sample(frac=1, random_state=0).to_csv(file, index=False)
    return data


COLUMNS = ["--id", "who", "--time", "when", "--columns", "a", "b"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model in a folder, and tables beside it."""
    import neuralsde as nsde

    here = tmp_path_factory.mktemp("forecast")
    data = write_table(here / "walks.csv")
    write_table(here / "dates.csv", dates=True)
    torch.manual_seed(0)
    model = nsde.NeuralSDE.for_data(data, net=nsde.MLPConfig(width=8, depth=1))
    model.save_pretrained(here / "model")
    return here


def read(file):
    with open(file, newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


# Forecast


def test_forecast_writes_quantiles_of_every_path(folder, tmp_path, capsys):
    options = ["--horizon", "2", "--num-times", "4", "--num-paths", "40", "--quantiles", "0.1", "0.9", "--seed", "3"]
    job = ["forecast", folder / "model", "--data", folder / "walks.csv", *COLUMNS, *options]
    call(*job, "--output", tmp_path / "f.csv", "--plot", tmp_path / "f.png")
    text = capsys.readouterr().out
    assert "walks.csv: " in text and "Wrote forecasts of 6 series, 2 ahead, to" in text
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    rows = read(tmp_path / "f.csv")
    assert list(rows[0]) == ["unique_id", "ds", "feature", "NSDE", "q0.1", "q0.9"] and len(rows) == 6 * 4 * 2
    assert {r["unique_id"] for r in rows} == {f"id{k}" for k in range(6)} and {r["feature"] for r in rows} == {"a", "b"}

    # The same by hand
    from neuralsde import load
    from neuralsde.data.tables.read import read_table
    from neuralsde.forecast.futures import futures
    from neuralsde.metrics.forecast import quantiles

    table = read_table(folder / "walks.csv", id="who", time="when", columns=["a", "b"])
    made = futures(load(folder / "model"), table.data, horizon=2.0, num_times=4, num_paths=40, seed=3)
    path = int(made.path[table.ids.index("id3")])
    own = [r for r in rows if r["unique_id"] == "id3"]
    low, high = quantiles(made.samples[path], [0.1, 0.9])
    for k, name in enumerate(("a", "b")):
        shown = [r for r in own if r["feature"] == name]
        np.testing.assert_allclose([float(r["ds"]) for r in shown], made.times[path], rtol=1e-9)
        np.testing.assert_allclose([float(r["NSDE"]) for r in shown], made.samples[path, :, :, k].mean(0), rtol=1e-5)
        np.testing.assert_allclose([float(r["q0.1"]) for r in shown], low[:, k], rtol=1e-5)
        np.testing.assert_allclose([float(r["q0.9"]) for r in shown], high[:, k], rtol=1e-5)


def test_dates_come_back_as_dates(folder, tmp_path):
    options = ["--time-unit", "h", "--horizon", "3", "--num-times", "3", "--num-paths", "50"]
    call(
        "forecast", folder / "model", "--data", folder / "dates.csv", *COLUMNS, *options, "--output", tmp_path / "f.csv"
    )
    rows = [r for r in read(tmp_path / "f.csv") if r["unique_id"] == "id0" and r["feature"] == "a"]
    source = pd.read_csv(folder / "dates.csv")
    last = pd.to_datetime(source[source.who == "id0"].when, format="ISO8601").max()
    got = [pd.Timestamp(r["ds"]).tz_localize(None) for r in rows]
    assert all(abs((g - last) - pd.Timedelta(hours=k + 1)) < pd.Timedelta(milliseconds=1) for k, g in enumerate(got))


def test_forecast_with_a_planned_context(tmp_path, capsys):
    """As `futures` draws it, to the end of the plan."""
    import neuralsde as nsde
    from neuralsde.forecast.futures import futures

    rng = np.random.default_rng(0)
    states, context, ahead = rng.normal(size=(2, 8, 1)), rng.normal(size=(2, 8, 1)), 3 * rng.normal(size=(2, 30, 1))
    data = nsde.Trajectories.from_arrays(states, context=context)
    torch.manual_seed(0)
    model = nsde.NeuralSDE.for_data(data, net=nsde.MLPConfig(width=8, depth=1))
    model.save_pretrained(tmp_path / "model")
    known = {"who": np.repeat(["one", "two"], 8), "when": np.tile(np.arange(8), 2)}
    pd.DataFrame(known | {"x": states.flatten(), "c": context.flatten()}).to_csv(tmp_path / "known.csv", index=False)
    later = {"who": np.repeat(["one", "two"], 30), "when": np.tile(np.arange(8, 38), 2), "c": ahead.flatten()}
    pd.DataFrame(later).to_csv(tmp_path / "plan.csv", index=False)
    names = ["--id", "who", "--time", "when", "--columns", "x", "--context", "c"]
    job = ["forecast", tmp_path / "model", "--data", tmp_path / "known.csv", *names, "--output", tmp_path / "f.csv"]
    job += ["--num-times", "6", "--num-paths", "50"]
    plan = [(np.arange(8.0, 38.0), values) for values in ahead]
    for more, given, horizon in ((["--future", tmp_path / "plan.csv"], plan, 30.0), ([], None, 20.0)):
        call(*job, *more)
        assert f"{horizon:g} ahead" in capsys.readouterr().out
        made = futures(model, data, horizon=horizon, num_times=6, num_paths=50, plan=given)
        got = [float(r["NSDE"]) for r in read(tmp_path / "f.csv")]
        np.testing.assert_allclose(got, made.samples.mean(1).flatten(), rtol=1e-4, atol=1e-5)
    (tmp_path / "bad.csv").write_text("who,when,c\none,9,on\ntwo,9,1\n")
    assert "'c' must hold a number in every row. Got 'on' in line 2" in fails(
        capsys, *job, "--future", tmp_path / "bad.csv"
    )


def test_a_plan_for_a_model_without_context_is_refused(folder, tmp_path, capsys):
    job = ["forecast", folder / "model", "--data", folder / "walks.csv", *COLUMNS, "--output", tmp_path / "f.csv"]
    assert "takes no context" in fails(capsys, *job, "--future", folder / "walks.csv")


def record(**changes):
    """What `nsde fit` notes about its table."""
    values = {"file": "walks.csv", "id": "who", "time": "when", "columns": ("a", "b"), "context": (), "time_unit": "s"}
    return Series(**(values | {"time_kind": "numbers", "time_last": 1.0} | changes))


def keep(series, folder):
    """Save the model in a folder again, with this note beside it."""
    load(folder).save_pretrained(folder, beside={FILE: to_dict(series)})


def test_a_model_may_bring_the_names_of_its_columns(folder, tmp_path):
    shutil.copytree(folder / "model", tmp_path / "model")
    keep(record(), tmp_path / "model")
    options = ["--horizon", "1", "--num-times", "2", "--num-paths", "50", "--output", tmp_path / "f.csv"]
    call("forecast", tmp_path / "model", "--data", folder / "walks.csv", *options)
    one = (tmp_path / "f.csv").read_text()
    call("forecast", tmp_path, "--data", folder / "walks.csv", *options)  # a run folder
    assert (tmp_path / "f.csv").read_text() == one
    call("forecast", folder / "model", "--data", folder / "walks.csv", *COLUMNS, *options)
    assert (tmp_path / "f.csv").read_text() == one
    call("forecast", tmp_path / "model", "--data", folder / "walks.csv", "--columns", "b", "a", *options)
    assert (tmp_path / "f.csv").read_text() != one  # what is given goes first


def test_stamps_of_another_kind_than_in_training_are_refused(folder, tmp_path, capsys):
    shutil.copytree(folder / "model", tmp_path / "model")
    keep(record(), tmp_path / "model")
    job = ["forecast", tmp_path / "model", "--num-times", "2", "--num-paths", "50", "--output", tmp_path / "f.csv"]
    text = fails(capsys, *job, "--data", folder / "dates.csv")
    assert "trained on numbers as time. Got dates in 'when' of dates.csv. Say in which unit" in text
    call(*job, "--data", folder / "dates.csv", "--time-unit", "h")  # now the unit is known
    for kind in ("dates", "durations"):
        keep(record(time_kind=kind, time_unit="h"), tmp_path / "model")
        text = fails(capsys, *job, "--data", folder / "walks.csv")
        assert f"trained on {kind} in h as time. Got numbers in 'when' of walks.csv. Write them as dates" in text
        call(*job, "--data", folder / "dates.csv")


def test_separator_and_decimal_sign_of_the_training_are_kept(folder, tmp_path):
    shutil.copytree(folder / "model", tmp_path / "model")
    pd.read_csv(folder / "walks.csv").to_csv(tmp_path / "space.txt", sep=" ", decimal=",", index=False)
    job = ["forecast", tmp_path / "model", "--num-times", "2", "--num-paths", "50", "--output", tmp_path / "f.csv"]
    call(*job, "--data", folder / "walks.csv", *COLUMNS)
    wanted = (tmp_path / "f.csv").read_text()
    call(*job, "--data", tmp_path / "space.txt", *COLUMNS, "--separator", " ", "--decimal", ",")
    assert (tmp_path / "f.csv").read_text() == wanted
    keep(record(separator=" ", decimal=","), tmp_path / "model")
    call(*job, "--data", tmp_path / "space.txt")
    assert (tmp_path / "f.csv").read_text() == wanted


def test_only_some_paths(folder, tmp_path, capsys):
    job = ["forecast", folder / "model", "--data", folder / "walks.csv", *COLUMNS, "--num-paths", "50"]
    call(*job, "--ids", "id4", "id1", "--output", tmp_path / "f.csv")
    assert {r["unique_id"] for r in read(tmp_path / "f.csv")} == {"id1", "id4"}
    text = fails(capsys, *job, "--ids", "id9")
    assert "There is no path 'id9' in walks.csv. Its paths are id" in text


def test_scores_on_the_training_table_are_marked(folder, tmp_path, capsys):
    shutil.copytree(folder / "model", tmp_path / "model")
    keep(record(holdout_ids=("id1", "id2")), tmp_path / "model")
    job = ["evaluate", tmp_path / "model", "--data", folder / "walks.csv", "--num-paths", "40", "--horizon", "1"]
    call(*job)
    assert "! The model was trained on a table of this name" in (text := capsys.readouterr().out)
    assert "Held out were: `--ids id1 id2`" in text
    call(*job, "--ids", "id1", "id2")
    assert "trained on" not in capsys.readouterr().out


@pytest.mark.parametrize("dates", [False, True])
def test_one_path_was_trained_on_up_to_where_it_was_held_out(dates, folder, tmp_path, capsys):
    shutil.copytree(folder / "model", tmp_path / "model")
    whole = pd.read_csv(folder / ("dates.csv" if dates else "walks.csv"))
    whole = whole[whole.who == "id0"].drop(columns="who").sort_values("when")
    begin = whole.when.iloc[20]
    origin = pd.to_datetime(whole.when, format="ISO8601").min() if dates else None
    changes = {"time_kind": "dates", "time_origin": f"{origin.isoformat()}Z", "time_unit": "h"} if dates else {}
    since = (pd.Timestamp(begin) - origin) / pd.Timedelta(hours=1) if dates else begin
    keep(record(file="one.csv", id=None, holdout_ids=("0",), holdout_from=since, **changes), tmp_path / "model")
    job = ["evaluate", tmp_path / "model", "--data", tmp_path / "one.csv", "--num-paths", "40", "--horizon", "1"]
    whole.to_csv(tmp_path / "one.csv", index=False)
    call(*job)
    assert "! The model was trained on a table of this name" in (text := capsys.readouterr().out)
    shown = str(begin)[:19] if dates else f"{begin:.6g}"
    assert f"Held out was its end: score a table that begins at {shown}" in text
    whole[whole.when >= begin].to_csv(tmp_path / "one.csv", index=False)
    call(*job)
    assert "trained on" not in capsys.readouterr().out


def test_forecast_mistakes(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = ["forecast", folder / "model", "--data", folder / "walks.csv", *COLUMNS]
    assert "`--output` must end in .csv" in fails(capsys, *job, "--output", tmp_path / "f.json")
    assert "There is no file" in fails(capsys, "forecast", folder / "model", "--data", tmp_path / "no.csv")
    assert "holds no config.json" in fails(capsys, "forecast", tmp_path, "--data", folder / "walks.csv")
    text = fails(capsys, *job[:-3], "--columns", "a")
    assert (
        "The model takes 2 feature(s) and 0 context value(s). Got a and no context. Name them with `--columns`" in text
    )
    assert "`--horizon` must be positive" in fails(capsys, *job, "--horizon", "0")
    text = fails(capsys, *job, "--num-paths", "10", "--quantiles", "0.01")
    assert "A probability of 0.01 needs 99 samples. Got 10" in text
    assert not list(tmp_path.iterdir()), "half a forecast was left"


# Evaluate


def test_evaluate_writes_scores_and_figures(folder, tmp_path, capsys):
    options = ["--horizon", "2", "--num-times", "5", "--num-paths", "40", "--origins-per-path", "2"]
    job = ["evaluate", folder / "model", "--data", folder / "walks.csv", *COLUMNS, *options]
    call(*job, "--output", tmp_path / "out")
    text = capsys.readouterr().out
    assert "12 forecasts from 6 path(s), up to" in text and "random walk" in text and "80 % intervals hold" in text
    for name in ("fans.png", "calibration.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert record["data"]["rows_kept"] > 0 and record["commit"]
    scores = record["scores"]
    assert scores["features"] == ["a", "b"] and scores["num_origins"] == 12 and scores["num_paths"] == 40

    from neuralsde import load
    from neuralsde.data.tables.read import read_table

    data = read_table(folder / "walks.csv", id="who", time="when", columns=["a", "b"]).data
    same = evaluate_forecasts(load(folder / "model"), data, horizon=2.0, num_times=5, num_paths=40, origins_per_path=2)
    assert scores.pop("leads")["span"] == f"{same['horizon']:.4g}"
    assert scores == json.loads(json.dumps(same))


def test_evaluate_chooses_a_horizon_and_a_folder(folder, capsys):
    call("evaluate", folder / "model", "--data", folder / "walks.csv", *COLUMNS, "--num-paths", "40")
    assert "102 forecasts from 6 path(s)" in capsys.readouterr().out
    assert (folder / "model" / "evaluation" / "results.json").exists()


def test_evaluate_without_a_table_needs_a_run(folder, capsys):
    assert "is not a run folder" in fails(capsys, "evaluate", folder / "model")


def test_evaluate_asks_for_a_table_where_the_model_is_of_one(folder, tmp_path, capsys):
    shutil.copytree(folder / "model", tmp_path / "model")
    keep(record(), tmp_path / "model")
    assert "was fitted on a table. Give one to score it on: --data FILE" in fails(capsys, "evaluate", tmp_path)


def test_sensors_in_turn_are_scored_without_a_likelihood(folder, tmp_path, capsys):
    frame = pd.read_csv(folder / "walks.csv").sort_values(["who", "when"], ignore_index=True)
    frame.loc[frame.index % 2 == 0, "a"] = np.nan
    frame.loc[frame.index % 2 == 1, "b"] = np.nan
    frame.to_csv(tmp_path / "turn.csv", index=False)
    job = ["evaluate", folder / "model", "--data", tmp_path / "turn.csv", *COLUMNS, "--num-paths", "40"]
    call(*job, "--origins-per-path", "2", "--output", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "results.json").read_text())["scores"]["nll"] is None
    assert "80 % intervals hold" in capsys.readouterr().out


def test_evaluate_mistakes(folder, capsys):
    job = ["evaluate", folder / "model", "--data", folder / "walks.csv", *COLUMNS]
    assert "No path leaves room for `--horizon 1000`" in fails(capsys, *job, "--horizon", "1000")
    assert "needs 39 samples. Got 20" in fails(capsys, *job, "--num-paths", "20")


def test_the_scores_in_words(np_rng):
    data = walks(np_rng, 30)
    options = {"horizon": 3.0, "num_times": 5, "num_paths": 60}
    right, wide, narrow = (evaluate_forecasts(walk_model(w), data, **options) for w in (1.0, 3.0, 0.3))
    assert "no sign of miscalibration" in verdict(right)[0]
    assert "too wide" in verdict(wide)[0] and "too narrow" in verdict(narrow)[0]
    few = evaluate_forecasts(walk_model(1.0), walks(np_rng, 2), **options)
    assert "too few to tell" in verdict(few)[0] and "±" not in verdict(few)[0]
    assert "too few paths for intervals" in score_table(few) and "±" not in score_table(few)  # two paths
    assert "± is a 95 % interval over paths" in score_table(right)
    assert verdict(right)[1].endswith("no clear difference.") and verdict(right)[2].endswith("better.")
    assert verdict(wide)[1].endswith("worse.")
    rows = [
        line
        for line in score_table(right).splitlines()
        if line.startswith(("CRPS  ", "energy", "RMSE", "cov", "wid", "skill"))
    ]
    assert len(rows) == 10 and len({len(row) for row in rows}) == 1  # aligned


def test_digits_follow_the_interval():
    assert show_score({"mean": 0.123456, "ci95": 0.01234}) == "0.123 ± 0.012"
    assert show_score({"mean": 1234.5, "ci95": 12.0}) == "1234 ± 12"
    assert show_score({"mean": -0.5, "ci95": None}) == "-0.50"
    assert show_score({"mean": 0.0, "ci95": 0.0}) == "0.000 ± 0.000"
    assert show_score(None) == show_score({"mean": None, "ci95": None}) == "–"
