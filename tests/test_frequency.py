"""Stamps as whole steps of a calendar: there and back, found in the data, or refused."""

import datetime

import numpy as np
import pandas as pd
import pytest

from neuralsde.data.columns import parse_stamps
from neuralsde.data.tables.frequency import find_frequency
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


def test_gaps_and_series_that_begin_later_are_on_one_calendar():
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
