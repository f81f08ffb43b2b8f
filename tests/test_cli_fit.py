"""`nsde fit` and `nsde sample` on a table: from a messy file to a model, a report and dated paths."""

import csv
import json
import re

import numpy as np
import pytest
from commands import call, fails
from tables import NAMES, TINY, write_table

from neuralsde import futures, load
from neuralsde.cli.fit import Fit
from neuralsde.cli.options import PARTS, in_flags
from neuralsde.data.tables.read import read_table
from neuralsde.data.tables.series import Series
from neuralsde.data.trajectories import Trajectories
from neuralsde.forecast.references import brownian_nll
from neuralsde.sde.config import Moments
from neuralsde.training.run_folder import losses

TINY += ["--no-progress", "--cpu"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A finished fit beside its table."""
    here = tmp_path_factory.mktemp("fit")
    write_table(here / "pumps.csv")
    call("fit", here / "pumps.csv", *NAMES, "--time-unit", "min", *TINY, "--output", here / "run")
    return here / "run"


def read(file):
    with open(file, newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


# Fit


def test_fit_leaves_a_model_its_record_and_a_report(run_dir):
    names = {p.name for p in run_dir.iterdir()}
    assert {
        "model",
        "series.json",
        "report.md",
        "results.json",
        "metrics.jsonl",
        "fans.png",
        "calibration.png",
    } <= names
    assert load(run_dir / "model").scale.context_size == 1
    series = Series.load(run_dir)
    assert series == Series.load(run_dir / "model")
    assert (series.file, series.id, series.time) == ("pumps.csv", "who", "when")
    assert (series.columns, series.context, series.time_unit) == (("a", "b"), ("u",), "min")
    assert (series.time_kind, series.time_origin, series.time_last) == ("dates", "2026-03-28T23:00:00Z", 39.0)
    assert len(series.holdout_ids) == 1 and series.holdout_ids[0].startswith("pump ")
    text = (run_dir / "report.md").read_text()
    for wanted in (
        "# A Neural SDE of pumps.csv",
        "- pumps.csv: 202 rows read, 200 kept",
        "- 1 dropped: no when (first: line 203)",
        "- 1 dropped: repeats an earlier row (first: line 202)",
        "- b: 1 cell(s) without a number, e.g. 'error' in line 5: missing",
        "- 2 row(s) earlier than the row before in their path: sorted by time",
        "- columns not used: state (not asked for), n (not asked for)",
        "- time: when, dates; counted in min from 2026-03-29 00:00+01:00",
        "5 path(s), 200 observations; per path: 40",
        "the default settings, but net.width = 8, net.depth = 1, law = Moments(steps=1, most=32, measurement=False)",
        "one step is 1 min",
        "| step | likelihood | denoiser | val_likelihood |",
        f"Held out: 1 of 5 paths ({series.holdout_ids[0]}).",
        "Log-likelihood per observation: ",
        "coverage of 80 %",
        "![fans.png](fans.png)",
    ):
        assert wanted in text, wanted
    results = json.loads((run_dir / "results.json").read_text())
    assert results["table"]["rows_kept"] == 200 and results["data"]["num_paths"] == 5 and results["commit"]
    assert results["train"]["steps"] == 4 and results["scores"]["crps"]["mean"] > 0


def test_the_reported_likelihood_is_that_of_the_held_out_paths(run_dir):
    table = read_table(
        run_dir.parent / "pumps.csv", id="who", time="when", columns=["a", "b"], context=["u"], time_unit="min"
    )
    series = Series.load(run_dir)
    held_out = table.data.select([table.ids.index(name) for name in series.holdout_ids])
    rest = table.data.select([k for k, name in enumerate(table.ids) if name not in series.holdout_ids])
    model, scores = load(run_dir / "model"), json.loads((run_dir / "results.json").read_text())["scores"]
    num = len(held_out.transitions())
    assert -scores["nll"]["mean"] == pytest.approx(float(model.log_prob(held_out).sum()) / num, rel=1e-5)
    assert scores["brownian_nll"] == pytest.approx(brownian_nll(rest, held_out))


def test_brownian_motion_has_the_likelihood_of_its_definition(np_rng):
    from scipy import stats

    gaps = np_rng.random(3000) + 0.5
    steps = 0.3 * gaps + 2.0 * np.sqrt(gaps) * np_rng.standard_normal(3000)
    states, times = np.append(0, steps.cumsum())[:, None], np.append(0, gaps.cumsum())
    data = Trajectories.from_arrays([states], [times])
    wanted = -stats.norm.logpdf(steps, 0.3 * gaps, 2.0 * np.sqrt(gaps)).mean()
    assert brownian_nll(data, data) == pytest.approx(wanted, abs=2e-3)
    gone = np.where(np_rng.random((3001, 2)) < 0.3, np.nan, states)  # half of the steps of each feature are left
    part = brownian_nll(data, Trajectories.from_arrays([gone[:, :1]], [times], missing=True))
    pairs = Trajectories.from_arrays([gone], [times], missing=True)
    assert brownian_nll(pairs, pairs) == pytest.approx(2 * wanted * 0.49 / (1 - 0.51**2), rel=0.05)
    assert part > wanted  # wider gaps
    still = Trajectories.from_arrays([np.concatenate([states, 0 * states], 1)], [times])
    assert brownian_nll(still, still) is None


def test_a_feature_without_two_observations_in_a_row_is_left_out_of_brownian_motion(np_rng):
    x = np_rng.standard_normal((200, 2)).cumsum(0)
    alone = brownian_nll(*[Trajectories.from_arrays([x[:, :1]])] * 2)
    turns = x.copy()
    turns[1::2, 1] = np.nan
    sparse, full = (Trajectories.from_arrays([v], missing=True) for v in (turns, x))
    assert brownian_nll(sparse, sparse) == pytest.approx(alone)
    assert brownian_nll(sparse, full) is None  # nothing is known of the second


def test_a_single_path_is_split_in_time(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = "".join(f"{0.5 * k:g},{x:.4f}\n" for k, x in enumerate(rng.standard_normal(60).cumsum()))
    (tmp_path / "one.csv").write_text("t,x\n" + rows)
    job = ["fit", tmp_path / "one.csv", "--time", "t", "--separator", ",", "--decimal", ".", *TINY]
    call(*job, "--lag", "0.5", "1", "--output", tmp_path / "run")
    assert "Held out: the last 12 observations, from 24 on." in capsys.readouterr().out
    series = Series.load(tmp_path / "run")
    assert series.holdout_from == 24.0 and series.time_kind == "numbers" and series.columns == ("x",)
    assert (series.separator, series.decimal) == (",", ".")  # as they were told
    assert load(tmp_path / "run" / "model").lag == (0.5, 1.0)
    call("fit", tmp_path / "one.csv", "--time", "t", *TINY, "--holdout", "0", "--output", tmp_path / "all")
    assert "Nothing was held out" in (tmp_path / "all" / "report.md").read_text()
    assert Series.load(tmp_path / "all").holdout_ids == ()


def test_sensors_in_turn_are_fitted_over_a_lag(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 2)).cumsum(0)
    rows = [f"{k},{x[k, 0]:.3f}," if k % 2 else f"{k},,{x[k, 1]:.3f}" for k in range(60)]
    (tmp_path / "turn.csv").write_text("t,x,y\n" + "\n".join(rows) + "\n")
    job = ["fit", tmp_path / "turn.csv", "--time", "t", *TINY, "--output", tmp_path / "run"]
    with pytest.raises(SystemExit):
        call(*job)
    assert "or observed at both ends of it," in capsys.readouterr().err
    call(*job, "--lag", "2")
    text = capsys.readouterr().out
    assert "Held out: the last 12 observations" in text and "Log-likelihood" not in text


def test_settings_reach_the_model(tmp_path):
    file = write_table(tmp_path / "pumps.csv")
    options = ["--noise", "0.1", "--tau", "start", "--history", "3", "--encoder", "gru", "--normalise", "isotropic"]
    options += ["--sampler.substeps", "2", "--train.seed", "3", "--lag", "60", "--holdout", "0"]
    call("fit", file, *NAMES, *TINY, *options, "--output", tmp_path / "run")
    config = load(tmp_path / "run" / "model").config
    assert (config.noise, config.tau, config.history, config.normalise) == (0.1, "start", 3, "isotropic")
    assert (config.net.encoder, config.net.width, config.sampler.substeps) == ("gru", 8, 2)
    report = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert "net.encoder = gru" in report and "sampler.substeps = 2" in report
    moments = ["--law", "Moments(measurement=True)", "--lag", "None", "120", "--holdout", "0"]
    call("fit", file, *NAMES, *TINY, *moments, "--output", tmp_path / "moments")
    model = load(tmp_path / "moments" / "model")
    assert model.config.law == Moments(measurement=True) and model.lag == (None, 120.0)
    # A table holds measurements: futures of it are drawn from and as such
    out = tmp_path / "futures.npz"
    draw = ["--stop", "300", "--num-times", "3", "--num-paths", "5", "--output", out]
    call("sample", tmp_path / "moments", "--data", file, *draw)
    table = read_table(file, id="who", time="when", columns=["a", "b"], context=["u"])
    wanted = futures(model, table.data, horizon=300.0, num_times=2, num_paths=5)
    np.testing.assert_allclose(np.load(out)["paths"][:, :, 1:], wanted.samples, rtol=1e-4)


def test_steps_grow_with_the_data(tmp_path):
    from neuralsde.forecast.fit import training_settings
    from neuralsde.training.config import TrainConfig

    small = read_table(write_table(tmp_path / "pumps.csv"), id="who", time="when")
    assert training_settings(small, TrainConfig()).steps == 200
    assert training_settings(small, TrainConfig(batch_size=10)).steps == 100 * 195 // 10
    assert training_settings(small, TrainConfig(batch_size=1)).steps == 5_000
    assert training_settings(small, TrainConfig(), 7).steps == 7


def test_resume_goes_on_and_a_second_run_is_refused(run_dir, capsys):
    table = run_dir.parent / "pumps.csv"
    job = ["fit", table, *NAMES, "--time-unit", "min", *TINY, "--output", run_dir]
    assert "already holds a run. Give `--resume` to go on with it, or another folder." in fails(capsys, *job)
    before = (run_dir / "model" / "model.safetensors").read_bytes()
    call(*job, "--resume")
    assert (run_dir / "model" / "model.safetensors").read_bytes() == before
    capsys.readouterr()
    with pytest.raises(SystemExit):
        call(*job, "--resume", "--holdout", "0.4")
    assert "Cannot resume" in capsys.readouterr().err


def test_the_default_folder_is_named_after_the_file(tmp_path, monkeypatch, capsys):
    write_table(tmp_path / "pumps.csv")
    monkeypatch.chdir(tmp_path)
    call("fit", "pumps.csv", *NAMES, *TINY, "--holdout", "0")
    assert "Wrote runs/pumps: report.md" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--interpolation", "bridge"], "`--interpolation`: .* `--tau start`.* or give `--tau uniform`"),
        (["--tau", "uniform", "--interpolation", "bridge"], None),
    ],
)
def test_settings_that_nothing_reads_are_refused(options, message):
    import tyro

    from neuralsde.forecast.fit import refuse_unread

    config = tyro.cli(Fit, args=["pumps.csv", *options], registry=PARTS).model
    if message is None:
        refuse_unread(config)
    else:
        with pytest.raises(ValueError) as error:
            refuse_unread(config)
        assert re.search(message, in_flags(str(error.value), Fit))


def test_what_is_not_there_is_named(tmp_path, capsys):
    for options in ([], ["--size", "16"]):
        assert "There is no file or folder nowhere." in fails(capsys, "fit", "nowhere", *options)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("t,x\n0,1\n1,1\n2,1\n3,1\n4,1\n", ["--time", "t"], "No column changes: there is nothing to learn. Got x"),
        ("t,x\n0,1\n1,2\n2,1\n", ["--time", "t"], "`fraction` must leave two observations"),
        (
            "t,x\n0,1\n1,2\n2,1\n3,4\n4,1\n5,2\n",
            ["--time", "t", "--history", "3"],
            "Held out is too little: No path is long",
        ),
        ("t,x\n0,1\n1,2\n2,1\n3,4\n4,1\n", ["--time", "t", "--encoder", "gru"], "`--encoder` needs a history"),
        ("t,x\n0,1\n1,2\n", ["--time", "x1"], "has no column 'x1'. Did you mean 'x'?"),
        ("t,x\n0,1\n1,2\n2,3\n3,5\n4,1\n", ["--holdout", "1"], "`--holdout` must be within [0, 1)"),
        ("t,x\n0,1\n1,2\n2,3\n3,5\n4,1\n", ["--time", "t", "--lag", "50"], "No path is long enough"),
        ("t,x\n0,1\n1,2\n2,3\n3,5\n4,1\n", ["--time", "t", "--interpolation", "bridge"], "nothing reads it"),
    ],
)
def test_what_cannot_work_is_refused_before_training(text, options, message, tmp_path, capsys):
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(SystemExit) as stop:
        call("fit", tmp_path / "table.csv", *options, *TINY, "--output", tmp_path / "run")
    assert stop.value.code == 2 and message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# Sample


def test_sample_goes_on_from_the_end_of_each_path(run_dir, tmp_path, capsys):
    job = [
        "sample",
        run_dir,
        "--data",
        run_dir.parent / "pumps.csv",
        "--stop",
        "3",
        "--num-times",
        "4",
        "--num-paths",
        "2",
    ]
    call(*job, "--output", tmp_path / "p.csv")
    assert "Wrote 2 paths from each of 5 ends at 4 times" in capsys.readouterr().out
    rows = read(tmp_path / "p.csv")
    assert list(rows[0]) == ["id", "path", "time", "a", "b"] and len(rows) == 5 * 2 * 4
    assert [r["time"] for r in rows[:4]] == [f"2026-03-29 00:{m}+01:00" for m in (39, 40, 41, 42)]
    last = [line.split(",") for line in (run_dir.parent / "pumps.csv").read_text().splitlines() if "T00:39" in line]
    for line in last:
        own = [r for r in rows if r["id"] == line[0]]
        assert len(own) == 8 and float(own[0]["b"]) == pytest.approx(float(line[3]), abs=1e-5)
    call(*job, "--output", tmp_path / "p.npz")
    arrays = np.load(tmp_path / "p.npz")
    assert arrays["paths"].shape == (5, 2, 4, 2) and arrays["times"].shape == (5, 4)
    assert arrays["ids"].tolist() == [f"pump {k}" for k in range(5)] and arrays["dates"][0, 1] == rows[1]["time"]
    np.testing.assert_allclose(arrays["paths"][0, 0, :, 1], [float(r["b"]) for r in rows[:4]], rtol=1e-6)


def test_sample_from_a_state_of_a_model_that_knows_dates(run_dir, tmp_path, capsys):
    job = ["sample", run_dir / "model", "--start", "0.5", "1", "--stop", "2", "--num-times", "3", "--num-paths", "1"]
    out = ["--output", tmp_path / "p.csv"]
    call(*job, *out, "--start-context", "1")
    rows = read(tmp_path / "p.csv")
    assert list(rows[0]) == ["path", "time", "a", "b"] and rows[0]["a"] == "0.5"
    assert [r["time"] for r in rows] == [f"2026-03-29 00:{m}+01:00" for m in (39, 40, 41)]  # from the end of the data
    call(*job, *out, "--start-context", "1", "--start-time", "2030-07-01")  # midnight there
    assert read(tmp_path / "p.csv")[0]["time"] == "2030-07-01 00:00+01:00"
    call(*job, *out, "--start-context", "1", "--start-time", "2030-01-01T12:00:00+02:00")
    assert [r["time"][:16] for r in read(tmp_path / "p.csv")] == [f"2030-01-01 11:0{m}" for m in range(3)]
    assert "`--start-time` must be an ISO date" in fails(capsys, *job, "--start-context", "1", "--start-time", "7")
    assert "`--start-context` must hold the model's 1 context value(s). Got nothing" in fails(capsys, *job)
    assert "either --start, the first state, or --data" in fails(capsys, "sample", run_dir, "--stop", "1")
    both = ["sample", run_dir, "--stop", "1", "--start", "1", "--data", "x.csv"]
    assert "either --start" in fails(capsys, *both)
    assert "--ids: this is for a table. Give one with --data" in fails(capsys, *job, "--ids", "p0")
    table = ["sample", run_dir, "--stop", "1", "--data", "x.csv", "--start-time", "5", "--start-context", "3"]
    assert "--start-context, --start-time: this goes with --start." in fails(capsys, *table)


def test_sample_with_a_history(tmp_path, capsys):
    file = write_table(tmp_path / "pumps.csv")
    call(
        "fit",
        file,
        *NAMES[:-2],
        *TINY,
        "--history",
        "2",
        "--noise",
        "0.01",
        "--holdout",
        "0",
        "--output",
        tmp_path / "run",
    )
    common = ["--stop", "120", "--num-times", "3", "--num-paths", "2", "--output", tmp_path / "p.npz"]
    call("sample", tmp_path / "run", "--start", "0", "1", "2", "3", *common)
    arrays = np.load(tmp_path / "p.npz")
    assert arrays["paths"].shape == (2, 3, 2) and arrays["paths"][:, 0].tolist() == [[2, 3], [2, 3]]  # the newest slot
    call("sample", tmp_path / "run", "--data", file, *common)
    assert np.load(tmp_path / "p.npz")["paths"].shape == (5, 2, 3, 2)
    capsys.readouterr()
    assert "`history` must have shape (B, 2, 2)" in fails(
        capsys, "sample", tmp_path / "run", "--start", "0", "1", *common
    )


def test_numbers_of_time_are_written_in_full(tmp_path):
    from neuralsde.forecast.tables import SampledPaths

    times = 1.7e9 + np.array([[0.0, 0.25]])
    SampledPaths(None, times, np.zeros((1, 1, 2, 1), np.float32), ("x",), None).write(tmp_path / "p.csv")
    assert [r["time"] for r in read(tmp_path / "p.csv")] == ["1700000000", "1700000000.25"]


@pytest.mark.parametrize("name", ["val_likelihood", "val_diffusion"])
def test_a_rising_loss_is_remarked_on(tmp_path, name):
    values = [0.9, 0.6, 0.7]
    lines = [json.dumps({"step": 100 * (k + 1), name: v} | ({"flow": 1.0} if k else {})) for k, v in enumerate(values)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert "lowest at step 200" in losses(tmp_path / "metrics.jsonl")[-1]
    assert "nan" not in "".join(losses(tmp_path / "metrics.jsonl"))  # the first line has no flow
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines[:2]) + "\n")
    assert "lowest" not in "".join(losses(tmp_path / "metrics.jsonl"))


def test_a_date_column_that_was_not_named_is_offered_at_the_end_too(tmp_path, capsys):
    rows = [f"{k % 28 + 1:02d}.{k // 28 + 1:02d}.2024,{k % 7}\n" for k in range(60)]
    (tmp_path / "sales.csv").write_text("Datum,amount\n" + "".join(rows))
    call("fit", tmp_path / "sales.csv", *TINY, "--output", tmp_path / "run")
    said = "! Rows were taken in their order. Datum holds dates, e.g. '01.01.2024': give `--time Datum` to use it"
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_stamps_that_are_not_even_are_told_with_what_to_type(np_rng, tmp_path, capsys):
    days = np.datetime64("2021-01-04") + np.arange(0, 7 * 60, 7) + np_rng.integers(0, 3, 60)
    (tmp_path / "weeks.csv").write_text("ds,y\n" + "".join(f"{d},{k % 9}\n" for k, d in enumerate(days)))
    call("fit", tmp_path / "weeks.csv", "--budget", "1 s", "--no-progress", "--output", tmp_path / "run")
    said = capsys.readouterr().out
    assert "! The stamps are not evenly spaced: series are fitted as paths. Got gaps of" in said
    assert "Give `--freq W` if each is of its own week." in said
