"""What the command line does with tables, in one call of Python each: the same files, and messages in Python's words."""

import json

import numpy as np
import pytest
from commands import call
from tables import NAMES, TINY, write_table

import neuralsde as nsde
from neuralsde.cli.fit import Fit
from neuralsde.cli.options import in_flags
from neuralsde.data.tables.series import Series
from neuralsde.sde.config import NeuralSDEConfig
from neuralsde.training.config import RunOptions, TrainConfig

READING = {"id": "who", "time": "when", "columns": ["a", "b"], "context": ["u"], "time_unit": "min"}
SETTINGS = {
    "model": NeuralSDEConfig(law=nsde.Moments(), net=nsde.MLPConfig(width=8, depth=1)),
    "train": TrainConfig(batch_size=32),
    "options": RunOptions(log_every=2, progress=False, cpu=True),
    "steps": 4,
}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A table, fitted by the command line in `cli` and by Python in `python`."""
    folder = tmp_path_factory.mktemp("both")
    file = write_table(folder / "pumps.csv")
    call("fit", file, *NAMES, "--time-unit", "min", *TINY, "--output", folder / "cli")
    nsde.fit_table(file, **SETTINGS, **READING, output=folder / "python")
    return folder


# The same as the command line


def test_python_fits_the_model_of_the_command_line(here):
    for name in ("model/model.safetensors", "model/config.json", "series.json"):
        assert (here / "cli" / name).read_bytes() == (here / "python" / name).read_bytes()
    reports = [(here / name / "report.md").read_text().replace(str(here / name), "RUN") for name in ("cli", "python")]
    assert reports[0] == reports[1]
    cli, python = (json.loads((here / name / "results.json").read_text()) for name in ("cli", "python"))
    assert cli["scores"] == python["scores"] and cli["train"] == python["train"] and cli["data"] == python["data"]


def test_a_fit_that_writes_nothing_has_it_all(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    table = nsde.read_table(here / "pumps.csv", **READING)
    fitted = nsde.fit_table(table, **SETTINGS, say=said.append)
    assert not list(tmp_path.iterdir()) and fitted.folder is None
    assert fitted.series == Series.load(here / "cli")
    scores = json.loads((here / "cli" / "results.json").read_text())["scores"]
    assert fitted.held_out.values["crps"]["mean"] == pytest.approx(scores["crps"]["mean"])
    assert "pumps.csv: 202 rows read" in said[0] and "5 path(s), 200 observations" in said[0]
    assert "# A Neural SDE of pumps.csv" in fitted.report and "nsde forecast" not in fitted.report
    made = nsde.forecast_table(fitted, here / "pumps.csv", num_times=2, num_paths=50, seed=1)
    again = nsde.forecast_table(here / "cli", table, num_times=2, num_paths=50, seed=1)
    assert list(made.rows()) == list(again.rows())


def test_forecasts_scores_and_paths_are_those_of_the_command_line(here, tmp_path, capsys):
    run, file = here / "cli", here / "pumps.csv"
    few = ["--num-paths", "40", "--seed", "2"]
    call("forecast", run, "--data", file, *few, "--horizon", "3", "--output", tmp_path / "cli.csv")
    nsde.forecast_table(run, file, num_paths=40, seed=2, horizon=3.0, output=tmp_path / "python.csv")
    assert (tmp_path / "cli.csv").read_bytes() == (tmp_path / "python.csv").read_bytes()

    call("evaluate", run, "--data", file, *few, "--ids", "pump 1", "pump 2", "--output", tmp_path / "cli")
    model = nsde.TableModel.load(run)
    table = model.read(file, ids=["pump 1", "pump 2"])
    scores = nsde.evaluate_table(model, table, num_paths=40, seed=2, output=tmp_path / "python")
    values = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("cli", "python")]
    assert values[0] == values[1] and str(scores).splitlines()[-1] in capsys.readouterr().out
    assert {f.name for f in scores.files} == {"results.json", "fans.png", "calibration.png"}

    long = ["--stop", "2", "--num-times", "3"]
    call("sample", run, "--data", file, *few, *long, "--output", tmp_path / "cli.npz")
    drawn = nsde.sample_table(run, file, stop=2.0, num_times=3, num_paths=40, seed=2)
    np.testing.assert_array_equal(np.load(tmp_path / "cli.npz")["paths"], drawn.paths)
    state = ["--start", "1", "2", "--start-context", "1"]
    call("sample", run, *state, *few, *long, "--output", tmp_path / "cli.csv")
    options = {"start_context": [1.0], "stop": 2.0, "num_times": 3, "num_paths": 40, "seed": 2}
    drawn = nsde.sample_state(run, [1, 2], **options, output=tmp_path / "python.csv")
    assert (tmp_path / "cli.csv").read_bytes() == (tmp_path / "python.csv").read_bytes()
    assert drawn.paths.shape == (1, 40, 3, 2) and drawn.passes


# Mistakes


def test_mistakes_are_told_in_the_words_of_python(here, tmp_path):
    file, run = here / "pumps.csv", here / "python"
    mistakes = {
        r"`holdout` must be within": lambda: nsde.fit_table(file, holdout=1.0),
        r"`steps` must be at least 1": lambda: nsde.fit_table(file, steps=0),
        r"`resume=True` needs the folder": lambda: nsde.fit_table(file, resume=True),
        r"Give `resume=True` to go on": lambda: nsde.fit_table(file, output=run),
        r"`encoder` needs a history. .* `history=16`": lambda: nsde.fit_table(file, encoder="gru", **READING),
        r"read already. Leave out id": lambda: nsde.fit_table(nsde.read_table(file), id="who"),
        r"`output` must end in .csv": lambda: nsde.forecast_table(run, file, output=tmp_path / "f.json"),
        r"`output` must end in .npz": lambda: nsde.sample_table(run, file, stop=1.0, output="p.json"),
        r"`stop` must be positive": lambda: nsde.sample_table(run, file, stop=0.0),
        r"`num_times` must be at least 2": lambda: nsde.sample_state(run, [1, 2], stop=1.0, num_times=1),
        r"`start_context` must hold": lambda: nsde.sample_state(run, [1, 2], stop=1.0),
        r"with `columns` and `context`": lambda: nsde.TableModel.load(run).read(file, columns=["a"]),
        r"`horizon` must be positive": lambda: nsde.evaluate_table(run, file, horizon=0.0),
    }
    for words, mistake in mistakes.items():
        with pytest.raises(ValueError, match=words):
            mistake()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("`lag` is short", "`--lag` is short"),
        ('give `date_format="%d/%m/%Y %H:%M"`', "give `--date-format '%d/%m/%Y %H:%M'`"),
        ('`tau="uniform", interpolation="bridge"`', "`--tau uniform --interpolation bridge`"),
        ("`resume=True` or `holdout=0`", "`--resume` or `--holdout 0`"),
        ("`columns=['a', 'b c']`", "`--columns a 'b c'`"),
        ("`batch_size` and `noise`", "`--train.batch-size` and `--noise`"),
        ("`nothing`, `nsde fit`, `--lag`, `data`, `lag=T`", "`nothing`, `nsde fit`, `--lag`, `data`, `lag=T`"),
    ],
)
def test_names_of_arguments_become_flags(text, wanted):
    assert in_flags(text, Fit) == wanted


# Help


def test_help_shows_what_people_use_and_help_all_the_rest(capsys):
    pages = []
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as stop:
            call("fit", flag)
        assert stop.value.code == 0
        pages.append(capsys.readouterr().out)
    flags = [{word for word in page.replace(",", " ").split() if word.startswith("--")} for page in pages]
    assert flags[0] - {"--help-all"} < flags[1] and len(flags[0]) < 25 < 80 < len(flags[1])
    assert {"--id", "--time", "--columns", "--holdout", "--steps"} <= flags[0]
    assert {"--net.width", "--train.lr", "--separator"} <= flags[1] - flags[0]
    assert all("table options" in page and "video options" in page for page in pages)


def test_a_budget_chooses_the_model(tmp_path, short_search):
    table = write_table(tmp_path / "pumps.csv")
    how = {"options": RunOptions(progress=False, cpu=True), **READING}
    fitted = nsde.fit_table(table, budget=1, output=tmp_path / "run", **how)
    assert fitted.model.report["choice"] in fitted.report and "What was chosen, and why" in fitted.report
    assert (tmp_path / "run" / "choice.md").exists()
    with pytest.raises(ValueError, match=r"`budget` chooses the model\. Leave out `steps`"):
        nsde.fit_table(table, budget=1, steps=10, **how)
