"""The tabs Your table and Video without a browser: what is guessed, refused, drawn and kept."""

import csv
import io
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pandas")

from neuralsde.data.tables.cells import read_cells
from neuralsde.data.tables.read import read_table
from neuralsde.data.videos.decode import FrameSettings
from neuralsde.forecast.series import fit_series
from neuralsde.forecast.tables import TableForecast
from neuralsde.studio.columns import guess_reading
from neuralsde.studio.desk import Desk, read
from neuralsde.studio.examples import EXAMPLES, write_example
from neuralsde.studio.forecasting import LEVELS, TESTS, _apart, clock_of, forecast, panels_of
from neuralsde.studio.table import MOST_BYTES, YourTable
from neuralsde.studio.video import Video


@pytest.fixture
def tab(tmp_path):
    return YourTable(SimpleNamespace(folder=tmp_path, cancel=lambda job: None), "table")


def given(tab, text, name="mine.csv"):
    file = tab.visit.folder / "upload"
    file.write_text(text)
    return tab.upload(name, file)


def test_examples_are_read_as_they_are_meant(tab):
    found = {name: tab.call("example", {"name": name})["table"] for name in EXAMPLES}
    assert not any(table["error"] or table["dropped"] for table in found.values())
    assert {n: (t["time"], t["id"], t["every"], t["num_series"]) for n, t in found.items()} == {
        "electricity": ("time", None, "hour", 1),
        "weather": ("date", None, "day", 1),
        "shops": ("date", "shop", "day", 4),
        "sensor": ("measured_at", None, "", 1),
    }
    assert found["weather"]["columns"] == ["temperature", "pressure", "wind"]
    with pytest.raises(ValueError, match="There is no example"):
        tab.call("example", {"name": "../x"})


@pytest.mark.parametrize(
    ("dates", "form"),
    [
        (["2024-01-30", "2024-01-31", "2024-02-01"], None),
        (["30.01.2024", "31.01.2024", "01.02.2024"], "%d.%m.%Y"),
        (["01/30/2024", "01/31/2024", "02/01/2024"], "%m/%d/%Y"),
        (["01/02/2024", "02/02/2024", "03/02/2024"], None),  # two readings: none is guessed
    ],
)
def test_how_dates_are_written_is_guessed_only_where_it_is_sure(tmp_path, dates, form):
    file = tmp_path / "dates.csv"
    file.write_text("value,when\n" + "\n".join(f"{k},{date}" for k, date in enumerate(dates)))
    found = guess_reading(read_cells(file))
    assert (found.time, found.date_format) == ("when", form)


def test_the_series_id_is_guessed_where_times_repeat(tmp_path):
    file = tmp_path / "long.csv"
    rows = [f"2024-01-0{d},{shop},{colour},{d}" for d in range(1, 7) for shop, colour in (("a", "red"), ("b", "red"))]
    file.write_text("date,shop,colour,sold\n" + "\n".join(rows))
    assert guess_reading(read_cells(file)).id == "shop"


def test_a_table_that_cannot_be_read_says_why_and_may_be_mended(tab):
    dates = "\n".join(f"{1 + k % 9:02d}/{1 + k // 9:02d}/2024,{k * k % 17}" for k in range(81))
    shown = given(tab, f"when,level\n{dates}\n")
    assert "can be read in 2 ways" in shown["table"]["error"] and not shown["panels"]
    with pytest.raises(ValueError, match="can be read in 2 ways"):
        tab.call("forecast", {})
    shown = tab.call("read", {"time": "when", "date_format": "%d/%m/%Y"})
    assert shown["table"]["error"] == "" and shown["table"]["kept"] == 81
    assert shown["panels"][0]["past"]["t"][0] == 1704067200000.0  # 1 January 2024 in UTC
    shown = tab.call("read", {"time": "when", "date_format": "%d/%m/%Y", "na_values": "16, 9"})
    assert None in shown["panels"][0]["past"]["y"] or shown["table"]["kept"] < 81


@pytest.mark.parametrize(
    ("text", "name", "match"),
    [
        ("", "empty.csv", "empty"),
        ("a,b\n1,2\n", "table.exe", "A table must end in .csv"),
        ("a,b\n1,2\n", "..", "A table must end in .csv"),
        ("x" * (MOST_BYTES + 1), "large.csv", "may have 8 MB here"),
        ("a\n" + "1\n" * 100_001, "long.csv", "may have 100,000 rows here"),
    ],
)
def test_what_is_no_table_is_refused_without_naming_folders(tab, text, name, match):
    with pytest.raises(ValueError, match=match) as error:
        given(tab, text, name)
    assert str(tab.visit.folder) not in str(error.value)
    assert tab.state()["table"] is None


def test_names_of_files_stay_in_their_folder(tab):
    given(tab, "a,b\n1,2\n2,3\n3,5\n", "../../" + "é" * 300 + "/\x00.csv")
    assert tab.file.parent == tab.folder and tab.file.exists()


def test_columns_that_are_not_there_are_refused(tab):
    tab.call("example", {"name": "weather"})
    for wrong in ({"time": "nothing"}, {"columns": ["nothing"]}, {"columns": "wind"}, {"columns": [3]}):
        with pytest.raises(ValueError, match=r"no column|list of columns"):
            tab.call("read", wrong)
    shown = tab.call("read", {"time": "date", "columns": ["wind", "pressure"]})
    assert [p["title"] for p in shown["panels"]] == ["wind", "pressure"]
    assert shown["panels"][0]["past"]["y"].count(None) > 0  # the line breaks where nothing was observed
    for what in ("forecast", "python"):
        with pytest.raises(ValueError, match="no forecast yet"):
            tab.download(what) if what == "forecast" else tab.call(what, {})


def test_fans_that_lie_over_each_other_are_not_shown_together():
    fans = [{"origin": [k, 0.0], "t": [k + 1, k + 2, k + 3]} for k in (0, 1, 3, 5, 6)]
    assert [f["origin"][0] for f in _apart(fans)] == [0, 3, 6]
    many = [{"origin": [3 * k, 0.0], "t": [3 * k + 3]} for k in range(9)]
    assert [f["origin"][0] for f in _apart(many)] == [3 * k for k in range(9 - TESTS, 9)]


def test_dates_are_counted_as_a_browser_does():
    assert clock_of(np.array(["1970-01-02T00:00:00.5"], dtype="M8[us]")) == [86_400_500.0]
    assert clock_of(np.array([1.5, 2.0])) == [1.5, 2.0]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    said = []
    table = read_table(write_example("shops", tmp_path_factory.mktemp("table")), time="date", id="shop")
    model = fit_series(table, budget=1, max_trials=1, horizon=7, progress=False, say=said.append)
    return model, said


def test_a_fit_with_one_trial_says_so_and_forecasts_what_it_did_not_see(fitted):
    model, said = fitted
    assert len(said) == 1 and said[0].startswith("default")
    judged, table = model.backtest_forecasts(), model.table
    test, _ = model.tested
    for b, path in enumerate(judged.path.tolist()):
        first = int(table.data.lengths[:path].sum())
        own = slice(first, first + int(table.data.lengths[path]))
        times, states = table.data.times[own], table.data.states[own, 0]
        row = int((times - judged.origin[b]).abs().argmin())
        assert test.origins.cut[path] <= row + 1  # learned from nothing that is forecast
        np.testing.assert_allclose(judged.truth[b, :, 0], states[row + 1 : row + 8], rtol=1e-6)


def test_panels_hold_what_the_model_drew(fitted):
    model, _ = fitted
    made = model.forecast(7, num_paths=50).forecasts
    panels = panels_of(model.table, made, (model.table, model.backtest_forecasts()))
    assert [p["title"] for p in panels] == ["Bergen", "Lyon", "Porto", "Turin"]
    drawn = np.quantile(made.samples[2, :, :, 0].double().numpy(), LEVELS, axis=0)
    np.testing.assert_allclose(panels[2]["ahead"]["q"], drawn, rtol=1e-5)
    last = panels[2]["past"]
    assert panels[2]["ahead"]["origin"] == [last["t"][-1], last["y"][-1]]
    assert np.all(np.diff([last["t"][-1], *panels[2]["ahead"]["t"]]) == 86_400_000)
    fan = panels[0]["tests"][-1]
    seen = dict(zip(panels[0]["past"]["t"], panels[0]["past"]["y"]))
    assert fan["truth"] == [seen[t] for t in fan["t"]]


def test_the_file_of_forecasts_is_that_of_the_library(fitted, tmp_path):
    model, _ = fitted
    made = model.forecast(7, num_paths=20, quantiles=(0.1, 0.9))
    assert isinstance(made, TableForecast)
    made.write(tmp_path / "forecast.csv")
    assert made.text().encode() == (tmp_path / "forecast.csv").read_bytes()
    rows = list(csv.DictReader(io.StringIO(made.text())))
    assert len(rows) == 4 * 7 and rows[0]["ds"] == "2025-06-09"


@pytest.mark.slow
def test_uneven_times_are_fitted_as_a_table_and_scored_on_their_end(tmp_path):
    output = io.BytesIO()
    file = write_example("sensor", tmp_path)
    reading = {"time": "measured_at", "time_unit": "min"}
    how = {"budget": 10.0, "max_trials": 1, "steps": 10, "horizon": 5, "seed": 0}
    made = forecast(Desk(tmp_path, output), file=str(file), reading=reading, **how)
    assert [row["name"] for row in made["report"]["standings"]] == ["model", "naive (random walk)", "climatology"]
    assert "the last 100 observations" in made["report"]["words"]
    (panel,) = made["panels"]
    seen = dict(zip(np.round(panel["past"]["t"], -3), panel["past"]["y"]))
    for fan in panel["tests"]:
        assert fan["truth"] == [seen[t] for t in np.round(fan["t"], -3)]
    assert len(panel["ahead"]["t"]) == 5 and made["csv"].count("\n") == 6
    said = []
    output.seek(0)
    while (record := read(output)) is not None:
        said.append(record[1]["said"])
    assert "Forecasting what was held out" in said


@pytest.mark.parametrize(("name", "match"), [("x.exe", "A video must end in"), ("", "Got no name")])
def test_what_is_no_video_is_refused(tmp_path, name, match):
    pytest.importorskip("av")
    video = Video(SimpleNamespace(folder=tmp_path), "video")
    (tmp_path / "upload").write_bytes(b"0")
    with pytest.raises(ValueError, match=match):
        video.upload(name, tmp_path / "upload")
    with pytest.raises(ValueError, match="There is no clip yet"):
        video.call("clip", {})
    with pytest.raises(ValueError, match="from 1 to 24"):
        video.call("clip", {"rate": 1000.0})


def test_a_broken_video_is_named_without_its_folder(tmp_path):
    pytest.importorskip("av")
    from neuralsde.studio.filming import _own

    file = tmp_path / "broken.mp4"
    file.write_bytes(b"no video" * 100)
    settings = FrameSettings()
    with pytest.raises(ValueError, match=r"broken\.mp4") as error:
        _own(SimpleNamespace(settings=settings, need="four frames"), file, 0.5)
    assert str(tmp_path) not in str(error.value)
