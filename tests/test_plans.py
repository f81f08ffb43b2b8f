"""Contexts that are known ahead, from files."""

import pytest

pd = pytest.importorskip("pandas")

from neuralsde.data.tables.plans import read_plan  # noqa: E402
from neuralsde.data.tables.read import read_table  # noqa: E402

KNOWN = {
    "numbers": "who,t,x,c\na,1,0,5\na,2,0,5\nb,1,0,6\nb,4,0,6\n",
    "dates": "who,t,x,c\na,2026-01-01 00:00,0,5\na,2026-01-01 02:00,0,5\nb,2026-01-01 01:00,0,6\nb,2026-01-01 04:00,0,6\n",
    "zones": "who,t,x,c\na,2026-01-01T00:00+02:00,0,5\na,2026-01-01T02:00+02:00,0,5\n",
}


def known(tmp_path, kind):
    file = tmp_path / "known.csv"
    file.write_text(KNOWN[kind])
    return read_table(file, id="who", time="t", columns=["x"], context=["c"], time_unit="h")


def plan_of(tmp_path, text, table, **options):
    file = tmp_path / "plan.csv"
    file.write_text(text)
    return [(times.tolist(), values.tolist()) for times, values in read_plan(file, table, **options)]


def test_rows_go_to_their_paths_in_order_of_time(tmp_path):
    """Whatever their order, with other paths and columns between them, and rows that say the same twice."""
    text = "note,c,t,who\n,1,9,b\n,2,3,a\n,3,5,b\n,4,2.5,a\n,7,8,other\n,2,3,a\n"
    assert plan_of(tmp_path, text, known(tmp_path, "numbers")) == [
        ([2.5, 3.0], [[4.0], [2.0]]),
        ([5.0, 9.0], [[3.0], [1.0]]),
    ]


def test_dates_count_from_the_first_date_of_the_table(tmp_path):
    table = known(tmp_path, "dates")
    rows = "who,t,c\na,{}03:30{},1\nb,{}06:00{},2\n"
    wanted = [([3.5], [[1.0]]), ([6.0], [[2.0]])]
    for before, after in (("2026-01-01 ", ""), ("2026-01-01T", "Z")):
        assert plan_of(tmp_path, rows.format(*[before, after] * 2), table) == wanted
    shifted = "who,t,c\na,2026-01-01T05:30+02,1\nb,2026-01-01T08:00+0200,2\n"
    assert plan_of(tmp_path, shifted, table) == wanted
    told = {"date_format": "%d/%m/%Y %H:%M"}
    assert plan_of(tmp_path, rows.format(*["01/01/2026 ", ""] * 2), table, **told) == wanted
    # The table alone may be so written
    assert plan_of(tmp_path, rows.format(*["2026-01-01 ", ""] * 2), table, **told) == wanted


def test_without_stamps_rows_follow_the_last_ones(tmp_path):
    file = tmp_path / "known.csv"
    file.write_text("x;c\n0;5,5\n1;5,5\n2;5,5\n")
    table = read_table(file, columns=["x"], context=["c"])
    assert plan_of(tmp_path, "c\n1.5\n2.5\n", table) == [([3.0, 4.0], [[1.5], [2.5]])]


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    stamps = pd.to_timedelta([3.0, 4.0], "h")
    frame = pd.DataFrame({"who": "a", "t": stamps, "x": 0.0, "c": 1.0})
    frame.assign(t=stamps - pd.Timedelta("2h")).to_parquet(tmp_path / "known.parquet")
    table = read_table(tmp_path / "known.parquet", id="who", time="t", columns=["x"], context=["c"], time_unit="h")
    frame[["who", "t", "c"]].to_parquet(tmp_path / "plan.parquet")
    ((times, values),) = read_plan(tmp_path / "plan.parquet", table)
    assert times.tolist() == [3.0, 4.0] and values.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("numbers", "who,t,c\n", "plan.csv has no rows"),
        ("numbers", "who,t,c\na,5,1\n", "no row for 1 of 2 path.s., first 'b'. Add them, or .*`ids`"),
        ("numbers", "who,t,c\na,5,1\nb,5,\n", "'c' must hold a number in every row. Got .* in line 3"),
        ("numbers", "who,t,c\na,5,1\nb,5,on\n", "Got 'on' in line 3"),
        (
            "numbers",
            "who,t,c\na,5,1\nb,soon,2\nb,6,2\n",
            "'t' must hold a time in every row .numbers, as in known.csv.. Got 'soon' in line 3",
        ),
        ("numbers", "who,t,c\na,5,1\nb,3,2\n", "no row of 'b' after its last one, 4"),
        ("numbers", "who,t,c\na,5,1\na,5,2\nb,5,2\n", "line 3: a second context of 'a' at one time"),
        ("numbers", "who,t,c\na,5,1\nb,5,2,3\n", "line 3: not as many fields"),
        (
            "numbers",
            "who,t,c\na,2026-01-02,1\nb,2026-01-02,2\n",
            "must hold numbers, as in known.csv. Got dates, e.g. '2026-01-02'",
        ),
        ("numbers", "who,t\na,5\nb,5\n", "plan.csv has no column 'c'"),
        ("dates", "who,t,c\na,5,1\nb,5,2\n", "must hold dates, as in known.csv. Got numbers, e.g. '5'"),
        (
            "dates",
            "who,t,c\na,2026-01-01 01:00,1\nb,2026-01-02,2\n",
            "no row of 'a' after its last one, 2026-01-01 02:00. Add",
        ),
        ("zones", "who,t,c\na,2026-01-01T03:00,1\n", "must name time zones, as known.csv does. Got '2026-01-01T03:00'"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, kind, text, words):
    table = known(tmp_path, kind)
    with pytest.raises(ValueError, match=words):
        plan_of(tmp_path, text, table)


def test_a_table_without_context_has_no_plan(tmp_path):
    table = known(tmp_path, "numbers")
    (tmp_path / "plan.csv").write_text("who,t,c\na,5,1\n")
    plain = read_table(tmp_path / "known.csv", id="who", time="t", columns=["x"])
    with pytest.raises(ValueError, match="without a context"):
        read_plan(tmp_path / "plan.csv", plain)
    assert table.context == ("c",)
