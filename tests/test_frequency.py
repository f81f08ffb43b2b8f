"""Stamps as whole steps of a calendar: there and back, found in the data, or refused."""

import datetime

import numpy as np
import pandas as pd
import pytest

from neuralsde.data.columns import parse_stamps
from neuralsde.data.tables.calendars import find_frequency, why_uneven
from neuralsde.data.tables.zones import as_text, universal, zone_of


def stamps(freq, num=40, start="2023-01-31 06:00"):
    return pd.date_range(start, periods=num, freq=freq).to_numpy().astype("M8[us]")


@pytest.mark.parametrize(
    ("freq", "words"),
    [
        ("s", "second"),
        ("15min", "15 minutes"),
        ("h", "hour"),
        ("D", "day"),
        ("W", "week"),
        ("B", "business day"),
        ("MS", "month"),
        ("ME", "month"),
        ("QS", "quarter"),
        ("YS", "year"),
        ("2MS", "2 months"),
        ("BMS", "month"),
        ("BME", "month"),
        ("BQE", "quarter"),
        ("QS-FEB", "quarter"),
        ("YE-JUN", "year"),
        ("W-WED", "week"),
        ("ms", "millisecond"),
    ],
)
def test_a_frequency_is_found_and_goes_on_as_pandas_does(freq, words):
    known = stamps(freq, 60)
    found = find_frequency([known[:40]])
    assert found.words == words
    np.testing.assert_allclose(found.steps(known), np.arange(60), atol=0.05)
    np.testing.assert_array_equal(found.stamps(np.arange(60)), known)


def test_months_keep_their_day_and_end_with_the_month():
    day = np.array([f"2023-{m:02d}-30" if m != 2 else "2023-02-28" for m in range(1, 13)], dtype="M8[us]")
    found = find_frequency([day])
    np.testing.assert_array_equal(found.stamps(np.arange(12, 14)), np.array(["2024-01-30", "2024-02-29"], "M8[us]"))
    ends = find_frequency([stamps("ME", 14, "2023-01-31")])
    assert str(ends.stamps(np.array([25]))[0])[:10] == "2025-02-28"


def test_months_begin_on_a_short_one():
    day = np.array([f"2023-{m:02d}-{28 if m == 2 else 30}" for m in [*range(2, 13)]], dtype="M8[us]")
    found = find_frequency([day])
    np.testing.assert_array_equal(found.stamps(found.steps(day)), day)


def trading(days, hours, minute=0):
    clock = [pd.Timedelta(hours=h, minutes=minute) for h in hours]
    return pd.DatetimeIndex([d + h for d in days for h in clock]).to_numpy().astype("M8[us]")


@pytest.mark.parametrize(
    ("days", "hours", "words", "periods"),
    [
        (pd.bdate_range("2024-01-03", periods=60), range(9, 17), "hour, Monday to Friday, 09:00 to 16:00", [8, 40]),
        (
            [d for d in pd.date_range("2024-01-03", periods=80) if d.dayofweek not in (4, 5)],
            (0,),
            "day, Sunday to Thursday",
            [5],
        ),
        ([d for d in pd.date_range("2024-01-03", periods=80) if d.dayofweek < 6], (0,), "day, Monday to Saturday", [6]),
        (
            [d for d in pd.date_range("2024-01-03", periods=80) if d.dayofweek in (0, 2, 4)],
            (0,),
            "day, Monday, Wednesday, Friday",
            [3],
        ),
        (pd.date_range("2024-01-03", periods=40), (8, 12, 18), "2 hours, 08:00 to 18:00", [3, 21]),
        (pd.date_range("2024-01-03", periods=5), range(6, 20), "hour, 06:00 to 19:00", [14, 98]),
    ],
)
def test_only_hours_and_days_that_are_observed_are_forecast(days, hours, words, periods):
    every = trading(days, hours, 30 if len(hours) > 3 else 0)
    num = len(every) - 2 * len(hours)
    rng = np.random.default_rng(0)
    known = every[np.sort(rng.choice(num, int(0.9 * num), replace=False))] if num > 60 else every[:num]
    found = find_frequency([known])
    assert found.words == words.replace(":00", ":30" if len(hours) > 3 else ":00")
    step = found.steps(every)
    np.testing.assert_array_equal(np.diff(step), 1)
    np.testing.assert_array_equal(found.stamps(step), every)
    assert [p for name, p in found.periods().items() if name != "year"] == periods
    assert found.steps_of(365.25 * 86_400) == pytest.approx(365.25 / 7 * periods[-1])


def test_a_rare_day_is_not_on_the_calendar():
    days = trading(pd.bdate_range("2022-01-03", periods=600), (0,))
    rare = np.sort(np.append(days, np.datetime64("2023-05-06")))
    found = find_frequency([rare])
    assert found.words == "business day" and abs(found.steps(np.array(["2023-05-06"], "M8[us]")) % 1) == 0.5
    half = trading(pd.bdate_range("2022-01-03", periods=60), range(9, 17))
    assert "Saturday" not in find_frequency([np.append(half, half[-1] + np.timedelta64(20, "h"))]).words


def test_hours_that_are_missing_by_chance_are_open(np_rng):
    hours = stamps("h", 24 * 30)
    few = hours[np.sort(np_rng.choice(len(hours), 500, replace=False))]
    assert find_frequency([few]).words == "hour" and find_frequency([few]).open == ()
    outage = np.concatenate([hours[:200], hours[260:]])
    assert find_frequency([outage]).open == ()


def test_trading_hours_follow_the_wall_clock():
    days = pd.bdate_range("2024-03-01", periods=60)
    local = pd.DatetimeIndex([d + pd.Timedelta(hours=h) for d in days for h in range(9, 17)], tz="America/New_York")
    utc = local.tz_convert("UTC").tz_localize(None).to_numpy().astype("M8[us]")
    found = find_frequency([utc[:400]], zone="America/New_York")
    assert found.words == "hour, Monday to Friday, 09:00 to 16:00"
    np.testing.assert_array_equal(found.stamps(found.steps(utc[:1]) + np.arange(480)), utc)


def test_months_on_all_sorts_of_days_have_no_calendar_until_one_is_named(np_rng):
    days = stamps("MS", 40, "2020-01-01") + np_rng.integers(0, 25, 40).astype("m8[D]")
    assert find_frequency([days]) is None
    said = why_uneven([days])
    assert "They fall on days" in said and "Give `freq='MS'`" in said
    for freq in ("MS", "ME", "BMS", "BME"):
        calendar = find_frequency([days], freq)
        found = calendar.stamps(calendar.steps(days)[:3])
        np.testing.assert_array_equal(found.astype("M8[D]"), pd.date_range("2020-01-01", periods=3, freq=freq))
    with pytest.raises(
        ValueError, match=r"days \d+ to 2\d of their months: name the day .* 'MS', 'ME', 'BMS' or 'BME'"
    ):
        find_frequency([days], "M")


def test_weeks_on_different_weekdays_are_weeks_where_that_is_named(np_rng):
    days = stamps("W-TUE", 50, "2024-01-02") + np_rng.choice([0, 0, 0, 1, 2, -1], 50).astype("m8[D]")
    assert find_frequency([days]) is None
    assert "usually 7 days. Give `freq='W'` if each is of its own week" in why_uneven([days])
    found = find_frequency([days], "W")
    np.testing.assert_array_equal(found.steps(days), np.arange(50) + found.steps(days)[0])
    ahead = found.stamps(found.steps(days[-1:]) + np.arange(1, 4))
    assert (pd.DatetimeIndex(ahead).dayofweek == 1).all() and ahead[0] > days[-1]
    with pytest.raises(
        ValueError, match=r"Got 202\d-\d\d-\d\d.*, a \w+day. Give `freq='W'` if each is of its own week"
    ):
        find_frequency([days], "W-TUE")
    readings = stamps("D", 50, "2024-01-01 08:00") + np_rng.integers(-170, 170, 50).astype("m8[m]")
    assert find_frequency([readings]) is None and "Give `freq='D'`" in why_uneven([readings])
    np.testing.assert_array_equal(np.diff(find_frequency([readings], "D").steps(readings)), 1)


@pytest.mark.parametrize(("freq", "words"), [("h", "hour"), ("15min", "15 minutes"), ("D", "day")])
def test_clocks_that_are_not_exact_have_the_frequency_that_is_meant(freq, words, np_rng):
    known = stamps(freq, 200, "2023-01-01 08:00")
    size = (known[1] - known[0]) / np.timedelta64(1, "us")
    jitter = (0.02 * size * np_rng.uniform(-1, 1, 200)).astype("m8[us]")
    found = find_frequency([(known + jitter)[:150]])
    assert found.words == words
    np.testing.assert_array_equal(found.stamps(np.arange(200)), known)


def test_uneven_stamps_have_none_that_begin_later_are_on_one_calendar():
    known = stamps("h", 50)
    found = find_frequency([known[[0, 1, 2, 7, 8, 20]], known[10:15]])
    assert found.words == "hour"
    np.testing.assert_array_equal(found.steps(known[10:15]), np.arange(10, 15))


def test_numbers_have_a_frequency_too():
    found = find_frequency([3.0 + 0.5 * np.arange(9)])
    np.testing.assert_allclose(found.steps(np.array([3.0, 5.0])), [0, 4])
    np.testing.assert_allclose(found.stamps(np.array([9])), [7.5])


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "+05:30"])
@pytest.mark.parametrize(
    ("freq", "words"),
    [("B", "business day"), ("D", "day"), ("W", "week"), ("MS", "month"), ("ME", "month"), ("h", "hour")],
)
def test_days_and_months_follow_the_wall_clock_of_their_zone(freq, words, zone):
    """As pandas counts: hours pass as they do, so that each real hour has one stamp, also where clocks change."""
    known = pd.date_range("2023-01-31", periods=1_200 if freq == "h" else 120, freq=freq, tz=zone)
    if freq == "h":
        known = pd.date_range("2023-10-10", periods=1_200, freq=freq, tz=zone)
    utc = known.tz_convert("UTC").tz_localize(None).to_numpy().astype("M8[us]")
    found = find_frequency([utc[:100]], zone=zone)
    assert found.words == words
    np.testing.assert_allclose(found.steps(utc), np.arange(len(utc)), atol=0.05)
    np.testing.assert_array_equal(found.stamps(np.arange(len(utc))), utc)


def test_six_hours_may_follow_the_wall_clock():
    clock = pd.date_range("2023-10-20", periods=80, freq="6h").tz_localize("Europe/Berlin")
    utc = clock.tz_convert("UTC").tz_localize(None).to_numpy().astype("M8[us]")
    found = find_frequency([utc[:60]], zone="Europe/Berlin")
    assert found.zone == "Europe/Berlin"
    np.testing.assert_array_equal(found.stamps(np.arange(80)), utc)


def test_a_wall_time_that_no_clock_shows_is_the_next_that_one_does():
    shown = np.array(["2024-03-30T02:30", "2024-03-31T02:30", "2024-10-27T02:30"], "M8[us]")
    utc = universal(shown, "Europe/Berlin")
    assert utc.astype(str).tolist() == [f"2024-{t}:00.000000" for t in ("03-30T01:30", "03-31T01:00", "10-27T00:30")]
    assert as_text(utc, "Europe/Berlin") == [
        "2024-03-30 02:30+01:00",
        "2024-03-31 03:00+02:00",
        "2024-10-27 02:30+02:00",
    ]
    assert as_text(shown[:2].astype("M8[D]"), None) == ["2024-03-30", "2024-03-31"]


@pytest.mark.parametrize(
    ("column", "zone"),
    [
        (["2024-01-01 10:00", "2024-07-01 10:00"], None),
        (["2024-01-01", "2024-07-05"], None),
        (["2024-01-01T10:00Z", "2024-07-01T10:00Z"], "UTC"),
        (["2024-01-01 10:00:00+00:00", "2024-07-01 10:00:00+00"], "UTC"),
        (["2024-01-01 10:00-0330", "2024-07-01 10:00-0330"], "-03:30"),
        (["2024-01-01 10:00+01:00", "2024-07-01 10:00+02:00"], "Europe/Berlin"),
        (["2024-01-01 10:00-05:00", "2024-07-01 10:00-04:00"], "America/New_York"),
        (["2024-01-01 10:00+11:00", "2024-07-01 10:00+10:30"], "Australia/LHI"),
        (["2024-01-01 10:00+01:00", "2024-01-01 10:00+07:00"], None),
        (pd.date_range("2024", periods=3, tz="Asia/Tokyo"), "Asia/Tokyo"),
        (pd.date_range("2024", periods=3, tz=datetime.timezone(datetime.timedelta(hours=-2))), "-02:00"),
        (pd.date_range("2024", periods=3, tz="UTC"), "UTC"),
    ],
)
def test_the_zone_is_named_or_is_the_one_that_explains_all_offsets(column, zone):
    column = pd.Series(column, dtype=object if isinstance(column, list) else None)
    assert zone_of(column, parse_stamps(column)) == zone


def test_uneven_stamps_have_none(np_rng):
    assert find_frequency([np.cumsum(np_rng.exponential(size=50))]) is None


def test_a_frequency_that_the_stamps_contradict_is_refused():
    with pytest.raises(ValueError, match=r"`freq='D'` is not that of the stamps. Got 2023-01-31 09:00, which"):
        find_frequency([stamps("h", 30)], "D")
    with pytest.raises(ValueError, match="two observations within one month"):
        find_frequency([stamps("W", 30)], "MS")
    with pytest.raises(ValueError, match=r"stamps that are a month apart"):
        find_frequency([stamps("ME", 30)], "D")
    for freq, known, message in [
        ("W-MON", "W-SUN", r"Got 2023-02-05 06:00, a Sunday\. Leave"),
        ("MS", "ME", r"Got 2023-01-31 06:00, and others that are not the firsts of months"),
        ("BME", "ME", "not the last weekdays of months"),
        ("QS-FEB", "QS-JAN", r"Got 2023-04-01 06:00, which is in APR"),
        ("YE-JUN", "YE", "which is in DEC"),
        ("bh", "h", "no hours of the week that are left out"),
        ("B", "D", r"Got 2023-02-04 06:00, which is no business day"),
    ]:
        with pytest.raises(ValueError, match=message):
            find_frequency([stamps(known, 30)], freq)
    for freq, known in [
        ("W-SUN", "W"),
        ("W", "W-FRI"),
        ("Q", "QE-JAN"),
        ("QE-APR", "QE-JAN"),
        ("A", "YE"),
        ("M", "ME"),
        ("BMS", "BMS"),
    ]:
        np.testing.assert_array_equal(
            find_frequency([stamps(known, 30)], freq).stamps(np.arange(30)), stamps(known, 30)
        )
    with pytest.raises(ValueError, match=r"must be one of MON, TUE.* Got 'JAN'"):
        find_frequency([stamps("W", 30)], "W-JAN")
    with pytest.raises(ValueError, match=r"such as 'h', '15min'.* Got 'fortnight'"):
        find_frequency([stamps("h", 30)], "fortnight")
    with pytest.raises(ValueError, match="Got 'h' for stamps that are numbers"):
        find_frequency([np.arange(9.0)], "h")


def test_seasons_of_the_calendar_are_in_steps():
    assert find_frequency([stamps("h")]).periods() == pytest.approx({"day": 24, "week": 168, "year": 8766})
    assert find_frequency([stamps("MS")]).periods() == pytest.approx({"year": 12})
    assert find_frequency([stamps("W")]).periods() == pytest.approx({"year": 365.25 / 7})
    assert find_frequency([stamps("B")]).periods() == {"week": 5, "year": 261}
    assert find_frequency([stamps("YS", 12)]).periods() == {}
