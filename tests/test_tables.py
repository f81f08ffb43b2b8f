"""Tables in files: what can be used arrives, and every row that does not is accounted for."""

import gzip
import random
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralsde.data.tables.cells import read_cells
from neuralsde.data.tables.read import read_table
from neuralsde.data.tables.time_axis import TimeAxis


@pytest.fixture
def write(tmp_path):
    """A CSV file with this text."""

    def write(text, name="table.csv"):
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        return file

    return write


def reasons(table):
    return {d.reason: d.num_rows for d in table.report.dropped}


def paths(table):
    return {name: states.tolist() for name, (states, _) in zip(table.ids, table.data)}


CLEAN = "run,t,x,y,u\na,0,1,10,5\na,1,2,20,5\nb,0,3,30,6\nb,2,4,40,7\n"


# What arrives


def test_a_clean_table_arrives_whole(write):
    table = read_table(write(CLEAN), id="run", time="t", columns=["y", "x"], context=["u"])
    assert paths(table) == {"a": [[10, 1], [20, 2]], "b": [[30, 3], [40, 4]]}
    assert table.data.times.tolist() == [0, 1, 0, 2] and table.data.context[:, 0].tolist() == [5, 5, 6, 7]
    assert table.data.names == table.columns == ("y", "x") and table.context == ("u",) and table.id == "run"
    assert table.time == TimeAxis("t", "numbers")
    assert str(table.report) == "table.csv: 4 rows read, 4 kept"


def test_without_columns_all_numbers_are_taken(write):
    text = ",run,t,x,word,flag,nothing\n0,a,0,1,red,true,\n1,a,1,2,blue,false,\n"
    table = read_table(write(text), id="run", time="t")
    assert table.columns == ("x", "flag") and paths(table) == {"a": [[1, 1], [2, 0]]}
    assert table.report.unused == {"column 1": "it has no name", "word": "no numbers", "nothing": "empty"}
    table = read_table(write(text), id="run", time="t", columns=["flag"])
    assert set(table.report.unused.values()) == {"not asked for"}


def test_without_id_and_time_the_rows_are_one_path_in_order(write):
    table = read_table(write("x\n3\n1\n1\n2\n"))
    assert paths(table) == {"0": [[3], [1], [1], [2]]} and table.data.times.tolist() == [0, 1, 2, 3]
    assert table.time.kind == "order" and table.report.dropped == ()
    assert list(table.report.notes) == [
        "no id column was named: all rows are one path",
        "no time column was named: rows are taken in their order, 1 apart",
    ]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_are_found_out(separator, write):
    table = read_table(write(CLEAN.replace(",", separator)), id="run", time="t", context=["u"])
    assert paths(table) == {"a": [[1, 10], [2, 20]], "b": [[3, 30], [4, 40]]}


def test_decimal_commas_are_found_out_or_told(write):
    text = 't;x;note\n0;"1,5";a, b\n0,5;-2,25e1;c\n'
    table = read_table(write(text), time="t")
    assert paths(table) == {"0": [[1.5], [-22.5]]} and table.data.times.tolist() == [0, 0.5]
    assert "columns are separated by ';', numbers have decimal commas" in table.report.notes
    mixed = write("t;x\n0;1.5\n1;2,5\n2;3.5\n3;4\n", "mixed.csv")
    assert "1 cell(s) without a number, e.g. '2,5' in line 3: missing" in str(read_table(mixed, time="t").report)
    assert read_table(write("t,x\n0,'\n1,1\n2,2"), time="t", separator=",", decimal=".").data.states.tolist() == [
        [1],
        [2],
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("t;x\n0;999,5\n1;1.218,67\n2;1.000\n3;-1.234.567,5", [999.5, 1218.67, 1000, -1234567.5]),
        ('t,x\n0,999.5\n1,"1,218.67"\n2,"1,000"\n3,"-1,234,567"', [999.5, 1218.67, 1000, -1234567]),
        ('t,x\n0,7\n1,"1,218"', [7, 1218]),  # in a table with commas, this is no decimal sign
        ("t;x\n0;7\n1;1.218\n2;1.219", [7, 1.218, 1.219]),  # may be either: taken as it stands
        ("t;x\n0;1,218\n1;2,5", [1.218, 2.5]),
    ],
)
def test_thousands_separators_are_read_where_no_other_reading_is_left(text, wanted, write):
    table = read_table(write(text), time="t")
    np.testing.assert_allclose(table.data.states[:, 0], wanted, rtol=1e-6)
    assert ("numbers have thousands separators" in str(table.report)) == (max(map(abs, wanted)) > 1_000)


def test_files_of_other_kinds(write, tmp_path):
    wanted = read_table(write(CLEAN), id="run", time="t").data
    (tmp_path / "table.csv.gz").write_bytes(gzip.compress(CLEAN.encode()))
    (tmp_path / "latin.csv").write_bytes(CLEAN.replace("run", "größe").encode("latin-1"))
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbf" + CLEAN.replace("\n", "\r\n").encode())
    pd.read_csv(tmp_path / "table.csv").to_parquet(tmp_path / "table.parquet")
    for name, id in (("table.csv.gz", "run"), ("latin.csv", "größe"), ("bom.csv", "run"), ("table.parquet", "run")):
        table = read_table(tmp_path / name, id=id, time="t")
        assert table.data.states.tolist() == wanted.states.tolist(), name
    assert "Latin-1" in str(read_table(tmp_path / "latin.csv", id="größe", time="t").report)


def test_typed_columns_of_a_parquet_file(tmp_path):
    frame = pd.DataFrame(
        {
            "run": [7, 7, 7],
            "t": pd.to_datetime(["2024-01-01", "2024-01-03", None]).tz_localize("Europe/Berlin"),
            "n": pd.array([1, None, 3], dtype="Int64"),
            "x": [0.5, np.inf, 1.0],
            "when": pd.to_datetime(["2024-01-01"] * 3),
            "word": ["a", "b", "c"],
            "flag": [True, False, True],
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet", id="run", time="t", time_unit="d")
    assert table.ids == ("7",) and table.columns == ("n", "x", "flag") and table.data.times.tolist() == [0, 2]
    assert table.data.observed.tolist() == [[True, True, True], [False, False, True]]
    assert table.data.states[:, 2].tolist() == [1, 0]
    assert table.report.unused == {"when": "no numbers", "word": "no numbers"} and reasons(table) == {"no t": 1}
    assert table.time.zone == "Europe/Berlin" and table.time.date(2.0) == "2024-01-03 00:00+01:00"
    assert list(table.report.notes) == [
        "n: 1 empty cell(s), the first in line 2: missing",
        "x: 1 infinite value(s), inf in line 2: missing",
    ]


def test_named_levels_of_the_index_of_a_parquet_file_are_columns(tmp_path):
    frame = pd.DataFrame({"run": ["a", "a", "b", "b"], "t": [0, 1, 0, 2], "x": [1.0, 2, 3, 4]})
    frame.set_index(["run", "t"]).to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet", id="run", time="t")
    assert paths(table) == {"a": [[1], [2]], "b": [[3], [4]]} and table.data.times.tolist() == [0, 1, 0, 2]
    frame.set_index("t", drop=False).to_parquet(tmp_path / "both.parquet")  # the column is there already
    assert read_table(tmp_path / "both.parquet", id="run", time="t").data.times.tolist() == [0, 1, 0, 2]
    frame.iloc[::-1].to_parquet(tmp_path / "plain.parquet")  # a nameless index is no column
    assert read_table(tmp_path / "plain.parquet", id="run", time="t").columns == ("x",)


# Stamps


def test_dates_count_from_the_first_of_the_file_in_the_unit_asked_for(write):
    text = "run,t,x\na,2024-03-31T01:30+01:00,1\na,2024-03-31T03:30+02:00,2\nb,2024-03-31 12:00:00.25Z,3\nb,2024-04-01T00:00Z,4\n"
    table = read_table(write(text), id="run", time="t", time_unit="h")
    np.testing.assert_allclose(table.data.times, [0, 1, 11.5 + 0.25 / 3600, 23.5])
    assert table.time == TimeAxis("t", "dates", "h", "2024-03-31T00:30:00Z")
    assert [table.time.date(t) for t in table.data.times.tolist()] == [
        "2024-03-31 00:30Z",
        "2024-03-31 01:30Z",
        "2024-03-31 12:00:00.250000Z",
        "2024-04-01 00:00Z",
    ]
    note = "t was converted to UTC: no time zone has the offsets +01:00, +02:00, Z at these times"
    assert note in table.report.notes
    mixed = read_table(write(text.replace("Z,3", ",3")), id="run", time="t")
    assert "t has a time zone in 3 row(s); the others are taken as UTC" in mixed.report.notes


def test_dates_that_can_be_read_in_two_ways_are_refused_until_one_is_named(write):
    file = write("t,x\n03/04/2024 10:00,1\n04/04/2024 10:00,2\n")
    with pytest.raises(ValueError, match=r"can be read in 2 ways, e.g. '03/04/2024 10:00' in line 2") as caught:
        read_table(file, time="t")
    each = "`date_format='{}'` ('03/04/2024 10:00' is {}, one each {})"
    assert each.format("%d/%m/%Y %H:%M", "2024-04-03 10:00", "day") in str(caught.value)
    assert each.format("%m/%d/%Y %H:%M", "2024-03-04 10:00", "month") in str(caught.value)
    with pytest.raises(ValueError, match=r"'t' must hold times.* Got 'soon' in line 2\..*date_format="):
        read_table(write("t,x\nsoon,1\nlater,2\n"), time="t")
    file = write("t,x\n03/04/2024 10:00,1\n04/04/2024 10:00,2\n")
    assert read_table(file, time="t", date_format="%d/%m/%Y %H:%M").data.times.tolist() == [0, 86400]
    compact = write("t,x\n20240229,1\n20240301,2\n")
    assert read_table(compact, time="t", date_format="%Y%m%d", time_unit="d").data.times.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("stamps", "date_format", "days"),
    [
        ([20240229, 20240301], "%Y%m%d", [0, 1]),
        (pd.array([20240229, None, 20240301], dtype="Int64"), "%Y%m%d", [0, 1]),
        ([20240229.0, np.nan, 20240301.0], "%Y%m%d", [0, 1]),
        ([1012024, 10012024], "%d%m%Y", [0, 9]),  # numbers have no leading zeros
        ([20240229120000500, 20240301120000500], "%Y%m%d%H%M%S%f", [0, 1]),
    ],
)
def test_numbers_are_dates_where_a_format_says_so(stamps, date_format, days, tmp_path):
    frame = pd.DataFrame({"t": stamps, "x": np.arange(float(len(stamps)))})
    frame.to_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet", time="t", date_format=date_format, time_unit="d")
    assert table.data.times.tolist() == days and table.time.kind == "dates"


@pytest.mark.parametrize(
    ("cells", "date_format", "first", "words"),
    [
        (["01.01.2023", "2.1.2023", "03.01.2023"], "%d.%m.%Y", "2023-01-01", "day"),
        (["01.12.22 06:00", "01.12.22 07:00", "01.12.22 08:00"], "%d.%m.%y %H:%M", "2022-12-01 06:00", "hour"),
        (["12/30/2017", "12/31/2017", "1/1/2018"], "%m/%d/%Y", "2017-12-30", "day"),
        (["30/12/2017", "31/12/2017", "1/1/2018"], "%d/%m/%Y", "2017-12-30", "day"),
        (
            ["12/30/2017 11:00 PM", "12/31/2017 12:00 AM", "12/31/2017 1:00 AM"],
            "%m/%d/%Y %I:%M %p",
            "2017-12-30 23:00",
            "hour",
        ),
        (["Jan 2018", "Feb 2018", "May 2018"], "%b %Y", "2018-01-01", ""),
        (["Mar-18", "Apr-18", "May-18"], "%b-%y", "2018-03-01", "month"),
        (["May 2018", "May 2019", "May 2020"], "%b %Y", "2018-05-01", "year"),
        (["Jan 5, 2018", "Jan 6, 2018", "Jan 7, 2018"], "%b %d, %Y", "2018-01-05", "day"),
        (["2005Q1", "2005Q2", "2005Q3"], "quarter", "2005-01-01", "quarter"),
        (["Q4 2005", "Q1 2006", "Q2-2006"], "quarter", "2005-10-01", "quarter"),
        (["2020-W52", "2020-W53", "2021-W01"], "week", "2020-12-21", "week"),
        (["20180101", "20180102", "20180103"], "%Y%m%d", "2018-01-01", "day"),
        (["201811", "201812", "201901"], "%Y%m", "2018-11-01", "month"),
        (["01/2018", "02/2018", "03/2018"], "%m/%Y", "2018-01-01", "month"),
    ],
)
def test_the_one_way_to_read_dates_is_found_and_told(cells, date_format, first, words, write):
    text = "".join(f'"{cell}",{k}\n' for k, cell in enumerate(cells))
    table = read_table(write("when,x\n" + text), time="when")
    each = f", one each {words}" if words else ""
    assert f"when was read as `date_format={date_format!r}` ({cells[0]!r} is {first}{each})" in table.report.notes
    assert table.time.date(0.0) == first and table.layout.date_format == date_format
    noted = read_table(write("when,x\n" + text), time="when", date_format=date_format)
    assert noted.data.times.tolist() == table.data.times.tolist() and "was read as" not in str(noted.report)
    said = str(read_table(write("when,x\n" + text)).report)  # not named: offered
    assert "when holds dates" in said and "give `time='when'` to use it" in said


def test_a_date_column_that_can_be_read_in_two_ways_is_offered_in_both(write):
    said = str(read_table(write("when,x\n01/02/2024,1\n02/02/2024,2\n")).report)
    both = "give `time='when', date_format='%d/%m/%Y'` or `time='when', date_format='%m/%d/%Y'` to use it"
    assert both in said
    said = str(read_table(write("year,x\n1990,1\n1991,2\n")).report)
    assert "year holds dates or times, e.g. '1990': give `time='year'` to use it" in said
    assert "holds dates" not in str(read_table(write("size,x\n1990,1\n1991,2\n")).report)


def test_dates_in_several_ways_are_refused(write):
    iso, other = [f"2024-01-{k:02d}" for k in range(10, 28)], [f"{k}/02/2024" for k in range(10, 28)]
    for rows in ([*iso, *other[:7]], [*other, *iso[:7]]):
        text = "".join(f"{cell},{k}\n" for k, cell in enumerate(rows))
        with pytest.raises(
            ValueError, match=r"are written in several ways: most are .*, but not '.*' in line \d+. Write them in one"
        ):
            read_table(write("t,x\n" + text), time="t")
    with pytest.raises(
        ValueError, match=r"several ways: most are `date_format='%d/%m/%Y'`, but not '2024-01-05' in line 21"
    ):
        read_table(write("t,x\n" + "".join(f"{k}/02/2024,1\n" for k in range(10, 29)) + "2024-01-05,1\n"), time="t")
    total = read_table(write("t,x\n" + "".join(f"{k}.02.2024,1\n" for k in range(1, 29)) + "Total,28\n"), time="t")
    assert reasons(total) == {"t is no time, e.g. 'Total' in line 30": 1}


def test_months_in_another_language_are_refused_with_the_first_of_them(write):
    names = ["Jan", "Feb", "Mär", "Apr", "Mai", "Jun", "Jul", "Aug", "Sep", "Okt", "Nov", "Dez"]
    file = write("Monat,x\n" + "".join(f"{name} 2020,{k}\n" for k, name in enumerate(names)))
    with pytest.raises(ValueError, match=r"Most can be read as `date_format='%b %Y'`, but not 'Mär 2020' in line 4"):
        read_table(file, time="Monat")
    note = "Monat may hold times, but 'Mär 2020' is not one that can be read: write dates as 2024-05-31"
    assert note in read_table(file).report.notes


def test_a_time_without_the_id_of_its_series_throws_nothing_away(write):
    rows = [f"2024-01-{k:02d},{k:02d}:00,p{i},{10 * i + k}\n" for i in range(3) for k in range(1, 21)]
    file = write("day,clock,product,qty\n" + "".join(rows))
    with pytest.raises(
        ValueError, match=r"40 of 60 rows have the time of an earlier row.* day and clock hold dates and times of"
    ):
        read_table(file, time="day")
    assert "day and clock hold dates and times of the day: write them in one column" in str(read_table(file).report)
    file = write("day,product,qty\n" + "".join(row.replace(row[10:16], "") for row in rows))
    with pytest.raises(
        ValueError, match=r"40 of 60 rows have the time of an earlier row, and other values. .* `id='product'`\."
    ):
        read_table(file, time="day")
    assert "give `time='day', id='product'` to use it" in str(read_table(file).report)
    assert len(read_table(file, time="day", id="product").ids) == 3
    file = write("year,month,x\n" + "".join(f"{2000 + k // 12},{k % 12 + 1},{k}\n" for k in range(36)))
    table = read_table(file)
    assert table.columns == ("x",) and "year, month hold parts of dates" in str(table.report)


def test_columns_that_are_named_by_dates_are_refused_with_the_line_that_turns_them(write):
    months = [f"2020-{k:02d}" for k in range(1, 13)]
    with pytest.raises(ValueError, match=r"named by dates, e.g. '2020-01'.*melt\(id_vars=\['store'\], var_name='ds'"):
        read_table(write(f"store,{','.join(months)}\na,{','.join('123456789012')}\n"))


@pytest.mark.parametrize(
    ("cells", "wanted", "note"),
    [
        (["12.5%", "-3 %", "", "0%"], [12.5, -3, 0], "% was taken off in x"),
        (["$1,234.50", "$-3.00", "-$4.25"], [1234.5, -3, -4.25], "$ was taken off in x"),
        (["1.234,50 €", "3,00 €", "-4,25 €"], [1234.5, 3, -4.25], "€ was taken off in x"),
        (["12\u202f345,5", "1 234,0", "7,5"], [12345.5, 1234, 7.5], "numbers have decimal commas"),
        (["1'234.5", "12'345'678", "7"], [1234.5, 12345678, 7], ""),
        (["(12.5)", "3.0", "(4)"], [-12.5, 3, -4], ""),
        (["CHF 12.50", "CHF 1'000.00"], [12.5, 1000], "CHF was taken off in x"),
    ],
)
def test_numbers_with_signs_are_numbers(cells, wanted, note, write):
    text = "t;x\n" + "".join(f"{k};{cell}\n" for k, cell in enumerate(cells))
    table = read_table(write(text), time="t")
    np.testing.assert_allclose(table.data.states[:, 0], wanted)
    assert note in str(table.report)


def test_other_text_is_left_as_it_is(write):
    text = "t,who,share,money,day\n" + "".join(
        f'{k},"{who}",{share},{money},{day}\n'
        for k, (who, share, money, day) in enumerate(
            [("12 b", "50%", "$5", "01 02 2024"), ("(7)x", "0.5", "€5", "02 02 2024"), ("3", "7", "$7", "03 02 2024")]
            * 4
        )
    )
    cells = read_cells(write(text)).columns
    assert [list(cells[name][:2]) for name in ("who", "share", "money", "day")] == [
        ["12 b", "(7)x"],
        ["50%", "0.5"],
        ["$5", "€5"],
        ["01 02 2024", "02 02 2024"],
    ]


def test_other_texts_of_other_programs(write, tmp_path):
    (tmp_path / "unicode.csv").write_bytes("t\tx\n0\t1\n1\t2\n".encode("utf-16"))
    table = read_table(tmp_path / "unicode.csv", time="t")
    assert table.columns == ("x",) and "the text was read as UTF-16" in str(table.report)
    table = read_table(write("t x\n0 1\n1 2\n"), time="t")
    assert table.columns == ("x",) and "columns are separated by ' '" in str(table.report)
    assert list(read_cells(write("my comment,x\na b c,1\n")).columns) == ["my comment", "x"]
    with pytest.raises(ValueError, match=r"first line .* must hold the names of the columns. Got 2022-01-03, 5"):
        read_table(write("2022-01-03,5\n2022-01-04,6\n"))


def test_the_names_of_the_field_are_found_in_any_letters(write):
    table = read_table(write("Unique_ID,DS,Y,z\na,0,1,5\na,1,2,5\nb,0,3,5\nb,1,4,5\n"))
    assert table.id == "Unique_ID" and table.time.column == "DS" and table.columns == ("Y",)
    table = read_table(write("DS,ds,y\n5,0,1\n5,1,2\n"))
    assert table.time.column == "ds"


def test_dates_that_stand_for_none_are_left_out(write):
    rows = [f"2024-01-{k:02d},{k}\n" for k in range(1, 29)]
    table = read_table(write("ds,y\n9999-12-31,5\n" + "".join(rows)))
    assert reasons(table) == {"a date far from all others, e.g. '9999-12-31' in line 2": 1}
    assert table.time.date(0.0) == "2024-01-01" and len(table.data.times) == 28
    apart = read_table(write("ds,y\n1900-01-01,5\n1901-01-01,4\n2024-01-01,6\n"))
    assert len(apart.data.times) == 3


def test_times_of_the_day_are_no_dates(write):
    file = write("time,x\n" + "".join(f"{k:02d}:00,{k}\n" for k in range(24)))
    with pytest.raises(
        ValueError, match=r"'time' holds times of the day without a date, e.g. '00:00' in line 2. Write the date"
    ):
        read_table(file, time="time")
    assert "time holds times of the day without a date" in str(read_table(file).report)


def test_a_file_of_titles_alone_is_refused(write):
    with pytest.raises(ValueError, match=r"has no line with the names of its columns. Got 'Sales report;;' first."):
        read_table(write("Sales report;;\n2023;;\n"))


def test_lines_above_the_header_are_passed_over(write):
    text = "Sales report 2023;;\nCreated 2024-01-01\n\nt;x;y\n0;1;2\n1;2;3\n"
    table = read_table(write(text), time="t")
    assert table.columns == ("x", "y") and "2 line(s) above the header were passed over" in str(table.report)
    assert read_table(write("x\n1\n2\n")).columns == ("x",)


@pytest.mark.parametrize(
    ("cells", "word", "first"),
    [
        ([43101, 43102, 43103.5], "excel", "2018-01-01 00:00"),
        ([1514764800, 1514764860, 1514764920], "unix", "2018-01-01 00:00"),
        ([1514764800000, 1514764860000, 1514764860500], "unix", "2018-01-01 00:00:00.000000"),
    ],
)
def test_numbers_that_count_from_some_day_are_asked_about(cells, word, first, write):
    file = write("t,x\n" + "".join(f"{cell},{k}\n" for k, cell in enumerate(cells)))
    table = read_table(file, time="t")
    assert table.time.kind == "numbers" and f"give `date_format={word!r}`" in str(table.report)
    table = read_table(file, time="t", date_format=word)
    assert table.time.dates(table.data.times.numpy())[0] == first


def test_other_numbers_are_no_dates(write):
    for other in ("20240230", "20240229.5", "7", "201713"):  # no such day, a part of one, other numbers
        table = read_table(write(f"t,x\n{other},1\n20240301,2\n"), time="t")
        assert table.time.kind == "numbers" and "was read as" not in str(table.report)


# What is left out


def test_rows_over_several_lines_are_pointed_out(write):
    table = read_table(write('t,x,note\n0,1,"two\nlines"\n\n1,2,one\n'), time="t")
    assert "1 row(s) span several lines, the first from line 2 (a stray quote?)" in table.report.notes
    assert table.report.rows_read == 2 == table.report.rows_kept


def test_each_reason_is_counted_with_its_first_line(write):
    text = """run,t,x,y,u
a,0,1,1,1
a,1,2,2,1
a,2
,3,3,3,1
a,,4,4,1
a,soon,5,5,1
a,6,,oops,1
a,7,7,7,none
a,8,8,8,1
a,8,8,8,1
a,8,9,8,1
b,0,1,1,1
a,5,inf,6,1
"""
    table = read_table(write(text), id="run", time="t", columns=["x", "y"], context=["u"])
    assert [(d.reason, d.num_rows, d.first_line) for d in table.report.dropped] == [
        ("another number of fields than the header has", 1, 4),
        ("no run", 1, 5),
        ("no t", 1, 6),
        ("t is no time, e.g. 'soon' in line 7", 1, 7),
        ("no number in any column", 1, 8),
        ("repeats an earlier row", 1, 11),
        ("same path and time as an earlier row, joined into it", 1, 12),
        ("path with fewer than two observations", 1, 13),
    ]
    assert table.report.rows_read == 13 and table.report.rows_kept == 5
    assert table.data.times.tolist() == [0, 1, 5, 7, 8]
    assert table.data.states.tolist() == [[1, 1], [2, 2], [2, 6], [7, 7], [8, 8]]  # filled from the past
    assert table.data.observed.tolist() == [[True, True], [True, True], [False, True], [True, True], [True, True]]
    assert table.data.context[:, 0].tolist() == [1, 1, 1, 0, 1]
    assert list(table.report.notes) == [
        "x: 1 empty cell(s), the first in line 8: missing",
        "x: 1 infinite value(s), 'inf' in line 14: missing",
        "y: 1 cell(s) without a number, e.g. 'oops' in line 8: missing",
        "u holds 1 or nothing: 1 empty cell(s) are taken as 0",
        "1 row(s) earlier than the row before in their path: sorted by time",
        "1 row(s) differ from an earlier one of their path and time, which is kept",
        "1 path(s) too short: b",
    ]
    lines = str(table.report).splitlines()
    assert lines[0] == "table.csv: 13 rows read, 5 kept" and "- 1 dropped: no run (first: line 5)" in lines


def test_a_context_that_is_missing_is_held_and_drops_nothing(write):
    text = "run,t,x,u,mark\na,0,1,,\na,1,2,5,1\na,2,3,,\na,3,4,6,\nb,0,5,,\nb,1,6,,1\nc,0,7,8,\nc,1,,9,\nc,2,8,,\n"
    table = read_table(write(text), id="run", time="t", columns=["x"], context=["u", "mark"])
    assert table.ids == ("a", "c") and paths(table) == {"a": [[1], [2], [3], [4]], "c": [[7], [8]]}
    assert table.data.context.tolist() == [[5, 0], [5, 1], [5, 0], [6, 0], [8, 0], [9, 0]]
    assert "u: 5 empty cell(s), the first in line 2: the value before is held" in table.report.notes
    assert "mark holds 1 or nothing: 7 empty cell(s) are taken as 0" in table.report.notes
    assert reasons(table) == {
        "no number in any column": 1,
        "no number in a context column in any row of the path": 2,
    }
    assert table.report.rows_read == table.report.rows_kept + 3


def test_rows_without_a_number_are_kept_aside(write):
    """They tell the frequency, and what is known of the future: there nothing is held."""
    text = "run,t,x,u\na,0,,1\na,1,1,2\na,2,,\na,3,2,3\na,4,,4\na,5,,\nlone,0,,1\nb,2,3,5\nb,0,4,6\nb,1,,7\nb,1,,7\n"
    table = read_table(write(text), id="run", time="t", columns=["x"], context=["u"])
    assert table.ids == ("a", "b") and table.data.times.tolist() == [1, 3, 0, 2]
    (first, values), (second, others) = table.blanks()
    assert first.tolist() == [0, 2, 4, 5] and second.tolist() == [1] and others.tolist() == [[7]]
    np.testing.assert_array_equal(values[:, 0], [1, 2, 4, np.nan])
    assert [s.tolist() for s in table.every_stamp()] == [[0, 1, 2, 3, 4, 5], [0, 1, 2]]
    assert [(t.tolist(), c[:, 0].tolist()) for t, c in table.contexts()] == [
        ([0, 1, 2, 3], [1, 2, 2, 3]),
        ([0, 1, 2], [6, 7, 5]),
    ]
    assert [t.tolist() for t, _ in table.select([1]).blanks()] == [[1]]
    assert read_table(write(CLEAN), id="run", time="t").blank is None


def test_rows_without_a_number_are_steps_of_a_table_without_time(write):
    table = read_table(write('x\n3\n""\n1\n-\n-\n2\n'))
    assert table.data.times.tolist() == [0, 2, 5] and table.data.states[:, 0].tolist() == [3, 1, 2]


def test_rows_of_one_time_complement_each_other(write):
    table = read_table(write("t,x,y\n0,1,\n0,,2\n0,5,6\n1,3,4\n"), time="t")
    assert table.data.states.tolist() == [[1, 2], [3, 4]] and table.data.observed is None
    assert reasons(table) == {"same path and time as an earlier row, joined into it": 2}


CELLS = ["1", "2.5", "-3e1", "", "NA", "err", "inf", " 4 ", "nan"]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_no_row_of_a_mess_is_lost(tmp_path_factory, seed):
    """Against a plain reading, row by row."""
    rng = random.Random(seed)
    rows = []
    for _ in range(rng.randint(0, 40)):
        row = [
            rng.choice(["a", "b", "c", "c", ""]),
            rng.choice([*map(str, range(8)), "", "later"]),
            rng.choice(CELLS),
            rng.choice(CELLS),
            rng.choice(["0", "1", "1", "1", "x"]),
        ]
        rows.append(row[: rng.choice([5, 5, 5, 5, 5, 5, 5, 3])] + rng.choice([[], [], [], [], ["extra"], [""]]))
    rows += [["a", "0", "1", "1", "1"], ["a", "100", "1", "1", "1"]] + [["d", str(k), "0", "0", "0"] for k in range(60)]
    rng.shuffle(rows)
    file = tmp_path_factory.mktemp("mess") / "mess.csv"
    file.write_text("id,t,x,y,u\n" + "\n".join(",".join(r) for r in rows) + "\n")
    table = read_table(file, id="id", time="t", columns=["x", "y"], context=["u"])

    def number(cell):
        try:
            value = float(cell)
        except ValueError:
            return None
        return value if np.isfinite(value) else None

    wanted: dict = {}
    every: dict = {}
    for row in rows:
        if len(row) < 5 or any(row[5:]):
            continue
        name, time, x, y, u = row[0], number(row[1]), number(row[2]), number(row[3]), number(row[4])
        if name == "" or time is None:
            continue
        every.setdefault(name, []).append((time, x, y, u))
    for name, own in every.items():
        own.sort(key=lambda row: row[0])  # stable
        known = next((u for _, _, _, u in own if u is not None), None)
        for time, x, y, u in own:
            known = known if u is None else u  # held
            if known is None or (x is None and y is None):
                continue
            old = wanted.setdefault(name, {}).setdefault(time, (x, y, known))
            wanted[name][time] = tuple(b if a is None else a for a, b in zip(old, (x, y, known)))
    wanted = {name: p for name, p in wanted.items() if len(p) > 1}
    report = table.report
    assert report.rows_read == len(rows) == report.rows_kept + sum(d.num_rows for d in report.dropped)
    assert report.rows_kept == len(table.data.states) == sum(map(len, wanted.values()))
    assert set(table.ids) == set(wanted)
    first = 0
    for name, (states, times) in zip(table.ids, table.data):
        rows_of = slice(first, first + len(times))
        first += len(times)
        assert times.tolist() == list(wanted[name])
        seen = np.ones((len(times), 2), bool) if table.data.observed is None else table.data.observed[rows_of].numpy()
        values = [[v if s else None for v, s in zip(*row)] for row in zip(states.tolist(), seen.tolist())]
        assert values == [[x, y] for x, y, _ in wanted[name].values()]
        assert table.data.context[rows_of, 0].tolist() == [u for _, _, u in wanted[name].values()]


# What is refused


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (CLEAN, {"columns": ["z"]}, r"table.csv has no column 'z'\. It has run, t, x, y, u"),
        (CLEAN, {"columns": ["Run"]}, "Did you mean 'run'"),
        (CLEAN, {"columns": ["x", "t"], "time": "t"}, "'t' was named twice"),
        (CLEAN, {"columns": "x"}, "`columns` must be a list, each text"),
        (
            CLEAN,
            {"columns": ["run"]},
            r"'run' must hold numbers\. Got text, e\.g\. 'a' in line 2\. Encode it .*get_dummies",
        ),
        (CLEAN, {"columns": ["x"], "context": ["run"]}, "'run' must hold numbers"),
        (CLEAN, {"time": "run"}, r"'run' must hold times"),
        (CLEAN, {"time_unit": "weeks"}, "`time_unit` must be one of us, ms, s, min, h, d"),
        ("t,x\n,1\n,2\n", {"time": "t"}, "Got nothing"),
        ("x,y\n1,\n2,\n", {"columns": ["x", "y"]}, "'y' holds no number in any row that could be used"),
        ("word\na\nb\n", {}, "no column of numbers"),
        ("x\n1e30\n1\n", {}, r"'x' must be at most 1e\+15 in size. Got '1e30' in line 2"),
        (
            "id,lon\ncar,52.000001\ncar,52.000002\ncar,52.000003\n",
            {"id": "id"},
            r"path 'car' changes by less .*column 'lon'",
        ),
        ("id,x\na,1\nb,2\n", {"id": "id"}, r"No path with two observations is left\. .*2 path\(s\) too short: a, b"),
        ("x,x\n1,2\n", {}, "two columns 'x'"),
        ("1,2\n3,4\n", {}, "must hold the names of the columns"),
        ("", {}, "is empty"),
        ("x,y\n", {}, "no column of numbers"),
        ('x,y\n1,"2\n', {}, r"cannot be read after line 2 .*stray quote"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(text, settings, message, write):
    with pytest.raises(ValueError, match=message):
        read_table(write(text), **settings)


def test_files_that_are_no_tables(write, tmp_path):
    with pytest.raises(ValueError, match="There is no file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(ValueError, match=r"must end in \.csv"):
        read_table(write("x", "table.xlsx"))
    with pytest.raises(ValueError, match="not a parquet file"):
        read_table(write("x", "table.parquet"))
    with pytest.raises(ValueError, match="not a whole gzip file"):
        read_table(write("x", "table.csv.gz"))
    (tmp_path / "wide.csv").write_bytes("x,y\n1,2\n".encode("utf-16-le"))
    with pytest.raises(ValueError, match="Save it as CSV in UTF-8"):
        read_table(tmp_path / "wide.csv")


def test_without_pandas_the_remedy_is_one_line(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ValueError, match=r"pip install 'neuralsde\[data\]'"):
        read_table(write(CLEAN))
