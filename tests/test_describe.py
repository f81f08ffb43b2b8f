"""The summary of a set of paths: right numbers, and a word about every column that is not meant to be there."""

import json

import numpy as np
import pytest

from neuralsde import Trajectories, describe


def walks(rng, num_features=1, num_paths=5, length=200):
    return rng.standard_normal((num_paths, length, num_features)).cumsum(1)


def warnings_of(states, times=None, **settings):
    return describe(Trajectories.from_arrays(states, times, missing=True, **settings)).warnings


def test_numbers_are_those_of_the_data():
    nan = np.nan
    states = [np.array([[1.0, nan], [1.0, 2.0], [3.0, 2.0]]), np.array([[5.0, 7.0], [nan, 8.0]])]
    summary = describe(Trajectories.from_arrays(states, [[0.0, 1.0, 3.0], [10.0, 14.0]], missing=True))
    assert (summary.num_paths, summary.num_observations) == (2, 5)
    assert (summary.lengths.low, summary.lengths.median, summary.lengths.high) == (2, 2.5, 3)
    assert (summary.durations.low, summary.durations.high) == (3, 4)
    assert (summary.gaps.low, summary.gaps.median, summary.gaps.high) == (1, 2, 4)
    first, second = summary.features
    assert (first.low, first.high, first.mean, first.missing, first.still) == (1, 5, 2.5, 0.2, 0.5)
    assert first.std == pytest.approx(np.std([1, 1, 3, 5]))
    assert (second.low, second.high, second.missing) == (2, 8, 0.2) and second.still == 0.5
    text = str(summary)
    assert "2 path(s), 5 observations; per path: 2 to 3 (median 2.5)" in text
    assert "time between observations: 1 to 4 (median 2), irregular by a factor 4" in text
    assert "feature 1            2           8" in text and "20.0 %" in text
    assert json.loads(json.dumps(summary.to_dict()))["features"][0]["missing"] == 0.2


def test_few_missing_entries_are_counted_where_their_share_reads_as_nothing(np_rng):
    states = walks(np_rng, 2, num_paths=1, length=4_001)
    states[0, 10, 1] = np.nan
    summary = describe(Trajectories.from_arrays(states, missing=True))
    assert [f.num_missing for f in summary.features] == [0, 1]
    first, second = (line for line in str(summary).splitlines() if line.startswith(("feature 0", "feature 1")))
    assert first.split()[-4:-2] == ["0.0", "%"] and second.split()[-3] == "1" and len(first) == len(second)


def test_names_and_regular_stamps(np_rng):
    data = Trajectories.from_arrays(walks(np_rng, 2), dt=0.1)
    data.names = ("price", "volume")
    text = str(describe(data))
    assert "price" in text and "irregular" not in text and "time between observations: 0.1" in text
    images = Trajectories.from_arrays(np_rng.random((2, 150, 3, 4, 4)))
    assert [f.name for f in describe(images).features] == ["feature 0", "feature 1", "feature 2"]


def test_an_ordinary_process_raises_no_suspicion(np_rng):
    x = walks(np_rng, 3)
    decay = np.zeros_like(x)
    for k in range(1, x.shape[1]):
        decay[:, k] = 0.9 * decay[:, k - 1] + np.diff(x, axis=1)[:, k - 1]
    assert warnings_of(x) == warnings_of(decay) == warnings_of(np.where(np_rng.random(x.shape) < 0.2, np.nan, x)) == ()


def spoil(rng, what):
    """Five walks whose second feature is `what`."""
    x = walks(rng, 2)
    place = np.arange(x.shape[1])[None].repeat(5, 0)
    x[..., 1] = {
        "constant": np.full(place.shape, 3.0),
        "category": rng.integers(0, 3, place.shape),
        "clock": 0.5 * place,
        "countdown": -(place**1.5),
        "outlier": np.where(place == 7, -9999.0, x[..., 1]),
        "missing": np.where(rng.random(place.shape) < 0.7, np.nan, x[..., 1]),
        "noise": 0.2 * x[..., 1] + rng.standard_normal(place.shape),
        "copy": x[..., 0],
        "mirror": 5 - 2 * x[..., 0],
    }[what]
    return x


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("constant", "feature 1 never changes: drop it"),
        ("category", "feature 1 takes only 3 values: a category"),
        ("clock", "feature 1 only ever grows: a counter or a clock"),
        ("countdown", "feature 1 only ever falls"),
        ("outlier", "feature 1 has 5 value(s) more than 20 robust standard deviations from its median, e.g. -9999"),
        ("missing", "feature 1 is missing in "),
        ("noise", "feature 1 has steps that cancel one another (correlation -0.4"),
        ("copy", "feature 1 repeats feature 0: drop one of them"),
        ("mirror", "feature 1 repeats feature 0: drop one of them"),
    ],
)
def test_a_suspicious_column_is_named_once(what, message, np_rng):
    found = warnings_of(spoil(np_rng, what))
    assert [w for w in found if w.startswith(message)] and len(found) == 1, found


def test_gaps_and_small_data(np_rng):
    times = np.cumsum(np.where(np.arange(200) % 50 == 0, 30.0, 1.0))
    (text,) = warnings_of(walks(np_rng), [times] * 5)
    assert text.startswith("the time between observations ranges over a factor 30")
    (text,) = warnings_of(walks(np_rng, num_paths=1, length=50))
    assert "only 49 steps" in text


def test_a_part_in_which_a_feature_is_never_observed_is_described():
    data = Trajectories.from_arrays([[[1.0, 2.0], [2.0, 3.0]], [[1.0, np.nan], [3.0, np.nan]]], missing=True)
    summary = describe(data.select([1]))
    assert "feature 1 was never observed: drop it" in summary.warnings and "nan" in str(summary)
