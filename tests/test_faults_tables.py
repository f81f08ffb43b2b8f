"""Hostile tables: each is read as it should be, or refused with one line of ours, in bounded time and memory."""

import datetime
import decimal
import gzip
import random
import time
import traceback
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import neuralsde
from neuralsde.data.tables import cells as cells_module
from neuralsde.data.tables.plans import read_plan
from neuralsde.data.tables.read import read_table
from neuralsde.data.trajectories import Trajectories

HOME = str(Path(neuralsde.__file__).parent)


@pytest.fixture
def write(tmp_path):
    def write(content, name="table.csv"):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        return file

    return write


# One by one


def test_an_id_column_without_any_id(write, tmp_path):
    message = r"No path with two observations is left.*2 dropped: no id \(first: line 2\)"
    with pytest.raises(ValueError, match=message):
        read_table(write("id,t,x\n,0,1\n,1,2\n"), id="id", time="t")
    file = tmp_path / "table.parquet"
    pd.DataFrame({"id": [None, None], "t": [0, 1], "x": [1.0, 2.0]}).to_parquet(file)
    with pytest.raises(ValueError, match="2 dropped: no id"):
        read_table(file, id="id", time="t")


@pytest.mark.parametrize("separator", [";;", '"', "\n", "\r", 5, b";", [";"]])
def test_a_separator_is_one_character(separator, write):
    with pytest.raises(ValueError, match="`separator` must be"):
        read_table(write("t;;x\n0;;1\n1;;3\n"), separator=separator)


NAMES = ["NA", "nan", "None", "NaN", "null"]


def test_ids_are_text(write, tmp_path):
    """Words that mean nothing elsewhere are names here, each its own; an empty id is none."""
    rows = "".join(f"{name},{t},{k}\n" for k, name in enumerate(NAMES) for t in (0, 1))
    table = read_table(write("id,t,x\n" + rows + ",0,7\n,1,8\n"), id="id", time="t")
    assert table.ids == tuple(NAMES)
    assert [float(states[0, 0]) for states, _ in table.data] == [0, 1, 2, 3, 4]
    assert [(d.reason, d.num_rows) for d in table.report.dropped] == [("no id", 2)]
    frame = pd.DataFrame({"id": np.repeat(NAMES, 2), "x": np.arange(10.0)})
    assert len(Trajectories.from_dataframe(frame, id="id", columns=["x"])) == 5


@pytest.mark.parametrize("nothing", [None, np.nan, ""])
def test_a_plan_without_an_id_is_no_plan_of_the_path_nan(nothing, write, tmp_path):
    text = "id,t,x,u\nnan,0,1,1\nnan,1,2,1\nNone,0,1,1\nNone,1,2,1\n"
    table = read_table(write(text), id="id", time="t", columns=["x"], context=["u"])
    plan = pd.DataFrame({"id": ["nan", "None", nothing], "t": [2.0, 2.0, 3.0], "u": [5.0, 6.0, 7.0]})
    plan.to_parquet(tmp_path / "plan.parquet")
    with pytest.raises(ValueError, match=r"must hold an id in every row.* in line 3"):
        read_plan(tmp_path / "plan.parquet", table)
    plan[:2].to_parquet(tmp_path / "plan.parquet")
    assert [values.tolist() for _, values in read_plan(tmp_path / "plan.parquet", table)] == [[[5]], [[6]]]


def test_times_that_differ_by_rounding_are_one_time(write):
    text = "t,x\n.1,1\n.2,2\n.3,3\n.30000000000000004,4\n.4,5\n"
    table = read_table(write(text), time="t")
    assert table.data.times.tolist() == [0.1, 0.2, 0.3, 0.4] and table.data.states[:, 0].tolist() == [1, 2, 3, 5]
    assert [(d.reason, d.num_rows) for d in table.report.dropped] == [
        ("same path and time as an earlier row, joined into it", 1)
    ]
    assert "1 row(s) differ from the time before by rounding" in str(table.report)


def test_every_time_twice_up_to_rounding(write):
    """The usual gap is not that of the rounding, even where half of all gaps are."""
    stamps = np.arange(1, 20) / 10
    rows = [f"{t!r},{k}\n" for k, pair in enumerate(zip(stamps, np.nextafter(stamps, 9))) for t in map(float, pair)]
    assert read_table(write("t,x\n" + "".join(rows)), time="t").data.times.tolist() == stamps.tolist()


def test_seconds_since_1970_that_differ_by_rounding(write):
    start = 1_700_000_000.0
    stamps = [start, start + 1, float(np.nextafter(start + 1, 1e12)), start + 2]
    table = read_table(write("t,x\n" + "".join(f"{t!r},{k}\n" for k, t in enumerate(stamps))), time="t")
    assert table.data.times.tolist() == [start, start + 1, start + 2]


def test_times_too_close_to_learn_from_are_refused_with_both_rows(write):
    with pytest.raises(
        ValueError, match=r"lines 3 and 5: one path has two times that are 1e-08 apart.*Round the times"
    ):
        read_table(write("t,x\n0,1\n1,2\n2,3\n1.00000001,4\n3,5\n"), time="t")


@pytest.mark.parametrize("shortest", [1e-5, 1e-3, 0.1])
def test_short_gaps_are_data(shortest, write):
    table = read_table(write(f"t,x\n0,1\n1,2\n{1 + shortest},4\n2,3\n3,5\n"), time="t")
    assert len(table.data.times) == 5 and not table.report.dropped


def test_counts_at_the_end_of_float64_stay_apart(write):
    text = "t,x\n" + "".join(f"{2**53 + 2 * k},{k}\n" for k in range(5))
    assert len(read_table(write(text), time="t").data.times) == 5


def test_a_hundred_thousand_columns(write, tmp_path):
    names = [f"c{k}" for k in range(100_000)]
    file = write(",".join(names) + "\n" + ",".join("1" * len(names)) + "\n")
    begin = time.monotonic()
    with pytest.raises(ValueError, match=r"has 100,000 columns\. At most 10,000 are read") as caught:
        read_table(file)
    assert time.monotonic() - begin < 5 and len(str(caught.value)) < 300


def test_wide_parquet_files_and_long_ones(tmp_path, monkeypatch):
    file = tmp_path / "table.parquet"
    pd.DataFrame({f"c{k}": [1.0, 2.0] for k in range(6)}).to_parquet(file)
    monkeypatch.setattr(cells_module, "MAX_COLUMNS", 5)
    with pytest.raises(ValueError, match=r"has 6 columns\. At most 5 are read"):
        read_table(file)
    monkeypatch.setattr(cells_module, "MAX_COLUMNS", 6)
    monkeypatch.setattr(cells_module, "MAX_CELLS", 11)
    with pytest.raises(ValueError, match=r"has more than 11 cells. Got 2 rows"):
        read_table(file)


def test_three_thousand_columns_are_read_in_seconds(write):
    names = [f"c{k}" for k in range(3_000)]
    rows = [",".join(str(k % 7 + r) for k in range(3_000)) for r in range(4)]
    file = write("\n".join([",".join(names), *rows]))
    begin = time.process_time()
    assert len(read_table(file).columns) == 3_000
    assert time.process_time() - begin < 5
    with pytest.raises(ValueError, match="has no column") as caught:
        read_table(file, id="nowhere to be found")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", [b"1", b"1\n", b"t,x\n" + b"1,2\n" * 10])
def test_a_gzip_bomb_is_refused_before_it_takes_memory(text, tmp_path):
    file = tmp_path / "bomb.csv.gz"
    block = text * (2**20 // len(text))
    with gzip.open(file, "wb", compresslevel=1) as packed:
        for _ in range(200):
            packed.write(block)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"holds too much text: over \d+ MiB.*Split it"):
            read_table(file)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_packed_tables_of_users_are_read(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"a long name of a site,{k},{x:.4f}\n" for k, x in enumerate(rng.normal(size=50_000))]
    file = tmp_path / "table.csv.gz"
    file.write_bytes(gzip.compress(("id,t,x\n" + "".join(rows)).encode()))
    assert len(read_table(file, id="id", time="t").data.times) == 50_000


def test_a_file_that_is_too_large(write, monkeypatch):
    monkeypatch.setattr(cells_module, "MAX_TEXT", 10)
    with pytest.raises(ValueError, match="holds too much text"):
        read_table(write("t,x\n0,1\n1,2\n"))


# Many

HEAD, BODY = "id,t,x,u\n", "a,0,1,2\na,1,2,2\nb,0,3,1\nb,1,4,1\n"
USES = [{}, {"id": "id"}, {"time": "t"}, {"id": "id", "time": "t", "columns": ["x"], "context": ["u"]}]
CELLS = [
    *[
        "",
        " ",
        "NA",
        "nan",
        "None",
        "inf",
        "-inf",
        "1e308",
        "1e400",
        "1e16",
        "0x10",
        "1_000",
        "１２",
        "1,5",
        '"',
        "\x00",
    ],
    *["\ufeff", "\u2028", "true", "2024-01-01", "2024-13-45", "99999-01-01", "0001-01-01", "2262-04-12", "9" * 400],
    *["1e-320", "+-1", "50%", "a" * 1000, "2024-01-01T00:00:00+99:99", "P1D", "1 days", "\\N", "1j", "=1+1", "\x1a"],
]
TYPED = {
    "none": [None] * 4,
    "categories": pd.Categorical(["p", "q", "p", "p"]),
    "numbers as categories": pd.Categorical([1.0, 2, 1, 3]),
    "bool": pd.array([True, None, True, False], dtype="boolean"),
    "unsigned": np.array([2**63, 2**63 + 1, 3, 4], np.uint64),
    "nullable": pd.array([1, None, 3, 2**62], dtype="Int64"),
    "half": np.array([1, 2, 3, np.inf], np.float16),
    "text": ["1", "2", "x", None],
    "bytes": [b"1", b"2", b"\xff", None],
    "lists": [[1], [2, 3], [], None],
    "records": [{"a": 1}] * 4,
    "days": [datetime.date(2024, 1, k + 1) for k in range(4)],
    "hours": [datetime.time(k) for k in range(4)],
    "decimals": [decimal.Decimal("1.5")] * 3 + [None],
    "zoned": pd.date_range("2024", periods=4, tz="Europe/Berlin"),
    "far dates": pd.Series(["0001-01-01", "9999-12-31", None, "2024-01-01"]).astype("datetime64[s]"),
    "durations": pd.to_timedelta([1, 2, None, 3], unit="h"),
    "periods": pd.period_range("2024", periods=4, freq="D"),
    "intervals": pd.interval_range(0, 4),
    "huge": [1e308, -1e308, 1, 2],
    "no dates": [pd.NaT] * 4,
}


def hostile_text():
    """CSV files: odd cells, odd headers, odd bytes."""
    for cell in CELLS:
        quoted = '"' + cell.replace('"', '""') + '"'
        for place in range(4):
            rows = [row.split(",") for row in BODY.splitlines()]
            for row in rows[1:] if len(cell) % 2 else rows[1:2]:
                row[place] = quoted
            yield f"{cell[:20]!r} in column {place}", HEAD + "\n".join(map(",".join, rows))
    for head in ("", "id,id,x", "id,t,x,", "  ,,,", '"id,t,x\n', "1,2,3,4", "id,t,x,u\x00", "a" * 200_000):
        yield f"header {head[:20]!r}", head + "\n" + BODY
    for body in ("", "\n\n", ",,,\n", "a\n", "a,0,1,2\r\ra,1,1,2\r\r", '"', '"a"b,0,1,2\n', "a,0,1,2\na,5e-324,1,2\n"):
        yield f"body {body[:20]!r}", HEAD + body
    rng = random.Random(0)
    for k in range(60):
        data = bytearray((HEAD + BODY).encode())
        for _ in range(rng.randrange(1, 12)):
            at = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[at] = rng.randrange(256)
            else:
                data[at:at] = bytes(rng.choice(b',;"\n\r\t\0|. -1e') for _ in range(rng.randrange(1, 4)))
        yield f"mutant {k}", bytes(data)
    yield from ((f"noise {k}", rng.randbytes(rng.randrange(1, 2000))) for k in range(10))
    yield from ((code, (HEAD + BODY).encode(code)) for code in ("utf-16", "utf-16-le", "utf-32", "cp037"))


def hostile_frames():
    """Frames with one column of an odd type."""
    for name, column in TYPED.items():
        for place in ("id", "t", "x", "u"):
            plain = {"id": ["a", "a", "b", "b"], "t": [0.0, 1, 0, 1], "x": [1.0, 2, 3, 4], "u": [0.0, 0, 1, 1]}
            yield f"{name} as {place}", pd.DataFrame({**plain, place: column})
    twice = pd.DataFrame(np.ones((4, 4)), columns=["id", "t", "x", "x"])
    yield "a column twice", twice


def hostile_arguments():
    wrong = ["", 5, None, [], "nope", b"id", True, float("nan"), {"x"}]
    for name in ("id", "time", "columns", "context", "separator", "decimal", "date_format", "time_unit"):
        yield from ({name: value} for value in wrong)
    yield from ({name: [value]} for name in ("columns", "context") for value in wrong)
    yield from ({"time": "t", "date_format": text} for text in ("%", "%Q", "%s", "%z%Z", "%" * 99, "\0", "%Y%m%d%H"))


def raw(attempt):
    """What went wrong that no line of ours explains; None: nothing."""
    begin = time.monotonic()
    try:
        attempt()
    except Exception as error:
        text, place = str(error), traceback.extract_tb(error.__traceback__)[-1].filename
        if type(error) is not ValueError or not place.startswith(HOME) or "\n" in text or len(text) > 1000:
            return f"{type(error).__name__}: {text[:200]}"
    return f"{time.monotonic() - begin:.0f} s" if time.monotonic() - begin > 10 else None


def check_all(attempts):
    found = {name: raw(attempt) for name, attempt in attempts}
    assert len(found) > 30
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.filterwarnings("ignore")
def test_no_text_ends_in_a_raw_error(write):
    files = [(name, write(text, f"{k}.csv")) for k, (name, text) in enumerate(hostile_text())]
    assert len(files) > 200
    check_all((f"{name}, {use}", lambda f=file, u=use: read_table(f, **u)) for name, file in files for use in USES)


@pytest.mark.filterwarnings("ignore")
def test_no_packed_or_broken_file_ends_in_a_raw_error(write, tmp_path):
    packed = gzip.compress((HEAD + BODY).encode())
    parts = [
        b"",
        packed[:2],
        packed[:-5],
        packed + b"junk",
        packed[:10] + b"\xff" * 50,
        gzip.compress(packed),
        b"PK\3\4",
    ]
    files = [write(part, f"{k}.csv.gz") for k, part in enumerate(parts)]
    pd.DataFrame({"t": [0.0, 1.0], "x": [1.0, 2.0]}).to_parquet(tmp_path / "good.parquet")
    whole, rng = (tmp_path / "good.parquet").read_bytes(), random.Random(0)
    for k in range(30):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        files.append(write(bytes(data[: None if k % 5 else rng.randrange(len(data))]), f"{k}.parquet"))
    odd = ["", None, 5, b"x.csv", [], "a\0b.csv", "x" * 5000 + ".csv", "/dev/zero", tmp_path, tmp_path / "none.csv"]
    check_all((str(file)[:200], lambda f=file: read_table(f)) for file in [*files, *odd])


@pytest.mark.filterwarnings("ignore")
def test_no_frame_ends_in_a_raw_error(tmp_path):
    def of_file(frame, use):
        frame.to_parquet(tmp_path / "table.parquet")
        read_table(tmp_path / "table.parquet", **use)

    def of_frame(frame):
        Trajectories.from_dataframe(
            frame, id="id", time="t", columns=["x"], context=["u"][: "u" in frame], missing=True
        )

    frames = list(hostile_frames())
    check_all((name, lambda f=frame: of_frame(f)) for name, frame in frames)
    written = [(name, frame) for name, frame in frames if frame.columns.is_unique]
    check_all((f"{name}, {use}", lambda f=frame, u=use: of_file(f, u)) for name, frame in written for use in USES)


def test_no_argument_ends_in_a_raw_error(write):
    file = write(HEAD + BODY)
    check_all((str(use), lambda u=use: read_table(file, **u)) for use in hostile_arguments())


@pytest.mark.filterwarnings("ignore")
def test_no_plan_ends_in_a_raw_error(write, tmp_path):
    table = read_table(write(HEAD + BODY), id="id", time="t", columns=["x"], context=["u"])

    def of_file(frame):
        frame.drop(columns="x").to_parquet(tmp_path / "plan.parquet")
        read_plan(tmp_path / "plan.parquet", table)

    frames = [(name, frame) for name, frame in hostile_frames() if frame.columns.is_unique]
    check_all((name, lambda f=frame: of_file(f)) for name, frame in frames)
    files = [(name, write(text, f"{k}.csv")) for k, (name, text) in enumerate(hostile_text())]
    check_all((name, lambda f=file: read_plan(f, table)) for name, file in files)
