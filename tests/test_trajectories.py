import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralsde import NeuralSDE, Trajectories, fit
from neuralsde.nets.config import MLPConfig
from neuralsde.solvers.noise import Noise


def ramp(length, dim=2, offset=0.0):
    """A path whose values name their place."""
    return offset + np.arange(length * dim, dtype=np.float64).reshape(length, dim)


def all_rows(pairs):
    return pairs[torch.arange(len(pairs))]


# Reading


def test_ragged_lengths_pair_within_paths_only():
    paths = [ramp(3), ramp(2, offset=100), ramp(5, offset=200)]
    batch = all_rows(Trajectories.from_arrays(paths).transitions())
    np.testing.assert_array_equal(batch.history[:, 0], np.concatenate([p[:-1] for p in paths]))
    np.testing.assert_array_equal(batch.next, np.concatenate([p[1:] for p in paths]))


def test_absent_times_are_dt_apart_and_default_to_one():
    data = Trajectories.from_arrays([ramp(3), ramp(4)], dt=0.25)
    assert data[1][1].tolist() == [0.0, 0.25, 0.5, 0.75]
    assert Trajectories.from_arrays([ramp(3)])[0][1].tolist() == [0.0, 1.0, 2.0]


def test_irregular_times_give_each_pair_its_own_dt_and_time_since_the_start():
    data = Trajectories.from_arrays([ramp(3), ramp(3)], [[10.0, 10.5, 12.5], [-1.0, 0.0, 4.0]])
    batch = all_rows(data.transitions())
    assert batch.dt.tolist() == [0.5, 2.0, 1.0, 4.0]
    assert batch.time.tolist() == [0.0, 0.5, 0.0, 1.0]


def test_large_stamps_keep_their_small_differences():
    data = Trajectories.from_arrays([ramp(3)], [1.7e9 + np.array([0.0, 1e-3, 3e-3])])
    np.testing.assert_allclose(all_rows(data.transitions()).dt, [1e-3, 2e-3], rtol=1e-3)


def test_one_time_array_serves_all_paths():
    data = Trajectories.from_arrays(np.stack([ramp(3), ramp(3)]), np.array([0.0, 1.0, 5.0]))
    assert data[0][1].tolist() == data[1][1].tolist() == [0.0, 1.0, 5.0]


def test_datetime_stamps_count_seconds_from_the_start_of_their_path():
    stamps = np.array(["2024-01-01T00:00:00", "2024-01-01T00:00:30", "2024-01-01T01:00:00"], dtype="datetime64[ms]")
    assert Trajectories.from_arrays([ramp(3)], [stamps])[0][1].tolist() == [0.0, 30.0, 3600.0]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, bool])
def test_integers_are_converted_when_lossless(dtype):
    states = np.array([[0, 1], [1, 0], [1, 1]], dtype=dtype)
    data = Trajectories.from_arrays([states])
    assert data.states.dtype == torch.float32
    np.testing.assert_array_equal(data.states, states)


def test_lists_tensors_and_frames_are_read_alike():
    wanted = Trajectories.from_arrays([ramp(3)]).states
    for path in (ramp(3).tolist(), torch.from_numpy(ramp(3)), pd.DataFrame(ramp(3)), ramp(3).astype(np.float16)):
        assert torch.equal(Trajectories.from_arrays([path]).states, wanted)


def test_iteration_yields_every_path_once():
    data = Trajectories.from_arrays([ramp(3), ramp(4), ramp(2)])
    assert [len(states) for states, _ in data] == [3, 4, 2]


# History, context, dataframes, splits


def test_history_slots_are_oldest_first_and_never_cross_paths():
    a, b = ramp(4, 1), ramp(3, 1, offset=100)
    with pytest.warns(UserWarning, match="too short"):
        batch = all_rows(Trajectories.from_arrays([a, b]).transitions(history=3))
    assert batch.history[..., 0].tolist() == [[0, 1, 2]]
    assert batch.next[:, 0].tolist() == [3.0]
    batch = all_rows(Trajectories.from_arrays([a, b]).transitions(history=2))
    assert batch.history[..., 0].tolist() == [[0, 1], [1, 2], [100, 101]]
    assert batch.next[:, 0].tolist() == [2, 3, 102]


def test_history_slots_are_a_lag_apart():
    batch = all_rows(Trajectories.from_arrays([ramp(7, 1)], dt=0.5).transitions(lag=1.0, history=2))
    rows = [
        (*h, n, t) for h, n, t in zip(batch.history[..., 0].tolist(), batch.next[:, 0].tolist(), batch.time.tolist())
    ]
    assert {(0, 2, 4, 1.0), (1, 3, 5, 1.5), (2, 4, 6, 2.0)} <= {(int(a), int(b), int(c), t) for a, b, c, t in rows}


def test_paths_too_short_are_left_out_with_a_warning():
    data = Trajectories.from_arrays([ramp(5), ramp(2)])
    with pytest.warns(UserWarning, match=r"1 of 2 paths are too short for lag=None and history=3"):
        pairs = data.transitions(history=3)
    assert pairs.path.tolist() == [0, 0]


def test_context_per_path_holds_at_every_step_and_per_step_is_that_of_the_start():
    paths = [ramp(3), ramp(2)]
    batch = all_rows(Trajectories.from_arrays(paths, context=[[1.0, 2.0], [3.0, 4.0]]).transitions())
    assert batch.context.tolist() == [[1, 2], [1, 2], [3, 4]]
    batch = all_rows(Trajectories.from_arrays(paths, context=[[[1], [2], [3]], [[4], [5]]]).transitions())
    assert batch.context.tolist() == [[1], [2], [4]]


def test_dataframe_in_long_form_is_grouped_and_sorted_by_time():
    frame = pd.DataFrame(
        {"run": ["b", "a", "b", "a", "a"], "t": [1.0, 3.0, 0.0, 1.0, 2.0], "x": [11, 3, 10, 1, 2], "c": [7, 8, 7, 8, 8]}
    )
    data = Trajectories.from_dataframe(frame, columns=["x"], id="run", time="t", context=["c"])
    assert [s[:, 0].tolist() for s, _ in data] == [[10, 11], [1, 2, 3]]
    assert [t.tolist() for _, t in data] == [[0, 1], [1, 2, 3]]
    assert data.context[:, 0].tolist() == [7, 7, 8, 8, 8]
    assert len(Trajectories.from_dataframe(frame, columns=["x", "t"])) == 1


def test_dataframe_errors_name_the_column():
    frame = pd.DataFrame({"run": [1.0, 1.0, None], "x": [1.0, 2.0, 3.0], "word": ["a", "b", "c"]})
    with pytest.raises(ValueError, match=r"no column 'y'\. It has run, x, word"):
        Trajectories.from_dataframe(frame, columns=["y"])
    with pytest.raises(ValueError, match="'run' must name the path of every row"):
        Trajectories.from_dataframe(frame, columns=["x"], id="run")
    with pytest.raises(ValueError, match="must be numbers"):
        Trajectories.from_dataframe(frame, columns=["x", "word"])
    with pytest.raises(ValueError, match=r"Use Trajectories\.from_dataframe"):
        Trajectories.from_arrays(frame)
    with pytest.raises(ValueError, match="at least one path"):
        Trajectories.from_dataframe(frame[:0], columns=["x"], id="run")


def test_dataframe_stamps_may_be_numbers_dates_durations_or_text():
    dates = pd.Series(pd.to_datetime(["2024-03-31T00:30", "2024-03-31T01:30", "2024-03-31T02:00"]))
    local = ["2024-03-31T01:30+01:00", "2024-03-31T03:30+02:00", "2024-03-31T04:00+02:00"]  # over a change of clocks
    columns = {
        "float": [0.0, 3600.0, 5400.0],
        "nullable": pd.array([0, 3600, 5400], dtype="Int64"),
        "date": dates,
        "zone": dates.dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin"),
        "text": local,
        "mixed": ["2024-03-31", "2024-03-31 01:00:00", "2024-03-31T01:30:00Z"],
        "duration": pd.to_timedelta([0, 60, 90], unit="min"),
        "numbers as text": ["0", "3600", "5.4e3"],
    }
    for name, column in columns.items():
        frame = pd.DataFrame({"t": column, "x": [1.0, 2.0, 3.0]})[::-1]
        data = Trajectories.from_dataframe(frame, columns=["x"], time="t")
        assert data.times.tolist() == [0.0, 3600.0, 5400.0], name
        assert data.states[:, 0].tolist() == [1.0, 2.0, 3.0]
    frame["t"] = ["2024-03-31", "yesterday", "2024-04-01"]
    with pytest.raises(ValueError, match=r"'t' must hold a stamp in every row.* Got 'yesterday' in row 1\. Drop"):
        Trajectories.from_dataframe(frame, columns=["x"], time="t")


def test_dataframe_with_missing_values_and_nullable_types():
    frame = pd.DataFrame(
        {
            "run": [1, 1, 1],
            "x": [1.0, None, 3.0],
            "n": pd.array([1, 2, None], dtype="Int64"),
            "flag": pd.array([True, False, True], dtype="boolean"),
        }
    )
    data = Trajectories.from_dataframe(frame, columns=["x", "n", "flag"], id="run", missing=True)
    assert data.observed.tolist() == [[True, True, True], [False, True, True], [True, False, True]]
    assert data.states.tolist() == [[1, 1, 1], [1, 2, 0], [3, 2, 1]]
    assert data.names == data.select([0]).to("cpu").names == ("x", "n", "flag")
    with pytest.raises(ValueError, match=r"states\[0\]\[1\]\[0\]=nan.*pass missing=True"):
        Trajectories.from_dataframe(frame, columns=["x", "n"])


@given(st.integers(2, 40), st.floats(0.05, 0.95), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_split_is_by_path_disjoint_complete_and_reproducible(num, fraction, seed):
    data = Trajectories.from_arrays([np.full((2 + i % 3, 1), i) for i in range(num)], context=[[i] for i in range(num)])
    if round(fraction * num) >= num:
        return
    train, val = data.split(fraction, seed=seed)
    again = data.split(fraction, seed=seed)[1]
    ids = [[int(s[0, 0]) for s, _ in part] for part in (train, val, again)]
    assert ids[1] == ids[2] and len(ids[1]) == max(1, round(fraction * num))
    assert sorted(ids[0] + ids[1]) == list(range(num))
    for part in (train, val):  # lengths and context go with their path
        assert [len(s) for s, _ in part] == [2 + int(s[0, 0]) % 3 for s, _ in part]
        assert torch.equal(part.context, part.states)


def test_split_depends_on_the_seed_and_refuses_to_empty_a_side():
    data = Trajectories.from_arrays([np.full((2, 1), i) for i in range(20)])
    assert not torch.equal(data.split(0.5, seed=0)[1].states, data.split(0.5, seed=1)[1].states)
    for fraction in (0.0, 1.0, 0.99):
        with pytest.raises(ValueError, match=r"must leave paths on both sides\. Got fraction="):
            data.split(fraction)


# Lag in physical time


def brute_force_pairs(times, lag, history):
    """Start, slots and end of every transition by the definition: the nearest stamp, at most half a lag off (slots: 1/4)."""

    def nearest(t, want, near):
        k = int(np.argmin(np.abs(t - want)))
        return k if abs(t[k] - want) <= near * lag else None

    pairs = []
    for path, t in enumerate(times):
        for k in range(len(t)):
            slots = [nearest(t, t[k] - j * lag, 0.25) for j in range(history - 1, 0, -1)]
            rows = [*slots, k, nearest(t, t[k] + lag, 0.5)]
            if None not in rows and all(a < b for a, b in itertools.pairwise(rows)):
                pairs.append((path, rows))
    return pairs


ticks = st.lists(st.integers(1, 12), min_size=1, max_size=12)


@given(st.lists(ticks, min_size=1, max_size=5), st.integers(1, 40), st.integers(1, 3), st.integers(-1000, 1000))
@settings(max_examples=200, deadline=None)
@pytest.mark.filterwarnings("ignore:.*too short")
def test_lag_pairs_the_nearest_observation_with_its_true_dt(gaps, lag_ticks, history, offset):
    lag = lag_ticks / 8  # eighths: ties are exact
    times = [(offset + np.concatenate([[0], np.cumsum(g)])) / 8 for g in gaps]
    states = [100.0 * p + np.arange(len(t))[:, None] for p, t in enumerate(times)]
    wanted = brute_force_pairs(times, lag, history)
    data = Trajectories.from_arrays(states, times)
    if not wanted:
        with pytest.raises(ValueError, match=r"No path is long enough|lag` is shorter"):
            data.transitions(lag=lag, history=history)
        return
    pairs = data.transitions(lag=lag, history=history)
    batch = all_rows(pairs)
    assert pairs.path.tolist() == [p for p, _ in wanted]
    assert batch.history[..., 0].tolist() == [[100.0 * p + k for k in rows[:-1]] for p, rows in wanted]
    assert batch.next[:, 0].tolist() == [100.0 * p + rows[-1] for p, rows in wanted]
    assert batch.dt.tolist() == [times[p][rows[-1]] - times[p][rows[-2]] for p, rows in wanted]
    assert batch.time.tolist() == [times[p][rows[-2]] - times[p][0] for p, rows in wanted]


def test_lag_errors():
    data = Trajectories.from_arrays([ramp(4), ramp(6)], dt=0.5)
    with pytest.raises(ValueError, match=r"No path is long enough .* lag=9.*longest path lasts 2.5 with 6 obs"):
        data.transitions(lag=9.0)
    with pytest.raises(ValueError, match=r"No path is long enough.*history=6"):
        data.transitions(history=6)
    for lag in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="`lag` must be positive and finite"):
            data.transitions(lag=lag)
    with pytest.raises(ValueError, match="`history` must be at least 1"):
        data.transitions(history=0)


@given(
    st.lists(ticks, min_size=1, max_size=5),
    st.lists(st.one_of(st.none(), st.integers(1, 40)), min_size=1, max_size=3),
    st.integers(1, 3),
)
@settings(max_examples=200, deadline=None)
@pytest.mark.filterwarnings("ignore:.*too short")
def test_several_lags_give_the_union_of_their_pairs(gaps, eighths, history):
    lags = [None if n is None else n / 8 for n in eighths]
    times = [np.concatenate([[0], np.cumsum(g)]) / 8 for g in gaps]
    data = Trajectories.from_arrays([100.0 * p + np.arange(len(t))[:, None] for p, t in enumerate(times)], times)
    shortest = None if None in lags else min(lags)
    wanted = set()
    for lag in lags:
        try:
            batch = all_rows(data.transitions(lag=lag, history=history, spacing=(shortest,)))
        except ValueError:
            continue
        wanted |= {(*map(float, h), float(n)) for h, n in zip(batch.history[..., 0], batch.next[:, 0])}
    if not wanted:
        with pytest.raises(ValueError, match=r"No path is long enough|lag` is shorter"):
            data.transitions(lag=lags, history=history)
        return
    pairs = data.transitions(lag=lags, history=history)
    batch = all_rows(pairs)
    got = [(*map(float, h), float(n)) for h, n in zip(batch.history[..., 0], batch.next[:, 0])]
    assert len(got) == len(set(got)) and set(got) == wanted  # each once
    assert pairs.history == history and pairs.lag == tuple(sorted(set(lags), key=lambda lag: lag or 0.0))
    stamps = {100.0 * p + k: t for p, row in enumerate(times) for k, t in enumerate(row)}
    assert batch.dt.tolist() == [stamps[row[-1]] - stamps[row[-2]] for row in got]


def test_several_lags_step_by_the_shortest_and_say_which_are_idle():
    data = Trajectories.from_arrays([ramp(9)], dt=0.5)
    assert data.transitions(lag=(2.0, 0.5, 1.0)).step == 0.5
    with pytest.warns(UserWarning, match=r"`lag`=0\.5, 30\.0 adds no transition"):
        pairs = data.transitions(lag=(None, 0.5, 30.0))
    assert pairs.step == 0.5 and len(pairs) == 8
    for lags in ((), (1.0, 0.0), (None, float("nan"))):
        with pytest.raises(ValueError, match="`lag` must be positive and finite"):
            data.transitions(lag=lags)
    assert len(data.transitions(lag=np.array([0.5, 1.0]))) == 15


# Batches


@pytest.mark.parametrize(("lag", "history"), [(None, 1), (None, 2), (1.0, 1), (1.0, 2)])
def test_batches_hold_true_pairs_of_every_path(lag, history):
    lengths = [9, 4, 7]
    paths = [1000.0 * i + np.arange(n)[:, None] for i, n in enumerate(lengths)]
    pairs = Trajectories.from_arrays(paths, dt=0.5).transitions(lag=lag, history=history)
    times = [0.5 * np.arange(n) for n in lengths]
    allowed = {tuple(1000.0 * i + k for k in rows) for i, rows in brute_force_pairs(times, lag or 0.5, history)}
    batch = pairs.batch(Noise.for_step(0, 0, torch.arange(2000)))
    drawn = {(*map(float, h), float(n)) for h, n in zip(batch.history[..., 0], batch.next[:, 0])}
    assert drawn == allowed  # all of them, and nothing else
    assert torch.equal(batch.dt, 0.5 * (batch.next - batch.history[:, -1])[:, 0])


def test_batches_repeat_with_their_keys_and_are_uniform():
    pairs = Trajectories.from_arrays([ramp(11, 1)]).transitions()
    draw = lambda step: pairs.batch(Noise.for_step(3, step, torch.arange(20_000))).next[:, 0]  # noqa: E731
    assert torch.equal(draw(5), draw(5)) and not torch.equal(draw(5), draw(6))
    counts = torch.bincount(draw(5).long(), minlength=11)[1:]
    assert counts.sum() == 20_000
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 45  # chi-square, 9 degrees of freedom, alpha 1e-6


@pytest.mark.parametrize("length", [5, 101, 150, 199, 1000])
def test_spread_covers_the_whole_set_evenly(length):
    pairs = Trajectories.from_arrays([ramp(length + 1, 1)]).transitions()
    rows = pairs.spread(100).history[:, 0, 0]
    assert len(rows) == min(100, length)
    assert rows[0] == 0 and rows[-1] >= length - 1 - length / 100
    assert rows.diff().max() - rows.diff().min() <= 1


def test_ten_million_transitions_need_no_loop_to_batch_or_split():
    num, steps = 1_000_000, 3
    states = torch.arange(num * steps, dtype=torch.float32).reshape(-1, 1)
    times = torch.arange(steps, dtype=torch.float64).repeat(num)
    data = Trajectories(states, times, torch.full((num,), steps))
    train, val = data.split(0.1)  # quadratic or per-path Python would take minutes
    assert (len(train), len(val)) == (900_000, 100_000)
    batch = train.transitions().batch(Noise.for_step(0, 0, torch.arange(512)))
    assert torch.equal(batch.next - batch.history[:, 0], torch.ones(512, 1))


# Bad input


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([ramp(3), np.array([[0.0, 1.0], [2.0, np.nan]])], r"must be finite\. Got states\[1\]\[1\]\[1\]=nan\. Drop"),
        ([np.array([[0.0], [np.inf]])], r"must be finite\. Got states\[0\]\[1\]\[0\]=inf"),
        ([np.array([[0.0], [1e30]])], r"at most 1e\+15 in magnitude\. Got states\[0\]\[1\]\[0\]=1e\+30\. Rescale"),
        ([ramp(3), ramp(1)], r"at least two observations\. Got 1 in states\[1\]"),
        ([np.zeros((0, 2))], r"at least two observations\. Got 0 in states\[0\]"),
        ([], "at least one path. Got an empty list"),
        (np.zeros((0, 3, 2)), "at least one path"),
        ([np.zeros((3, 0))], r"at least one feature\. Got states\[0\] of shape \(3, 0\)"),
        ([ramp(3, 2), ramp(3, 3)], r"one shape\. Got \(3,\) in states\[1\], \(2,\) in states\[0\]"),
        (
            [np.array([[1.0], ["x"]], dtype=object)],
            r"`states\[0\]` must be numbers\. Got dtype object.*encode them first",
        ),
        ([np.array([["a"], ["b"]])], "must be numbers"),
        ([np.array([[1 + 2j], [0j]])], "must be numbers"),
        ([np.array([["2024-01-01"], ["2024-01-02"]], dtype="datetime64[D]")], "must be numbers"),
        (
            [np.array([[2**24 + 1], [0]])],
            r"states\[0\] holds integers that float32 cannot hold exactly, up to 16777217\. Subtract an offset or rescale",
        ),
        ([np.array([[2**63 - 1], [0]])], "integers that float32 cannot hold"),
        ([np.arange(5.0)], r"\(time, features\)\. Got \(5,\) in states\[0\]\. For a scalar: x\[:, None\]"),
        (np.arange(5.0), r"\(paths, time, features\)\. Got \(5,\).*for scalar series add a last axis"),
        (np.zeros((5, 2)), r"For a single path \(time, features\) pass \[states\]"),
        ([[[1.0, 2.0], [3.0]]], r"`states\[0\]` must have rows of one length"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_bad_states(states, message):
    with pytest.raises(ValueError, match=message):
        Trajectories.from_arrays(states)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([[0.0, 2.0, 1.0]], r"must increase\. Got times\[0\]\[2\]=1.0 after 2.0"),
        ([[0.0, 1.0, 1.0]], r"must increase\. Got times\[0\]\[2\]=1.0 after 1.0\. Drop duplicates"),
        ([[0.0, 1.0]], r"one stamp per observation\. Got times\[0\] of shape \(2,\) for 3"),
        ([[]], r"one stamp per observation\. Got times\[0\] of shape \(0,\)"),
        ([np.array([], dtype="datetime64[s]")], "one stamp per observation"),
        ([], r"one array per path\. Got 0 for 1 paths"),
        ([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]], r"one array per path\. Got 2 for 1 paths"),
        ([[0.0, np.nan, 2.0]], r"must be finite\. Got times\[0\]\[1\]=nan"),
        ([np.array(["2024-01-01", "NaT", "2024-01-03"], dtype="datetime64[D]")], r"times\[0\]\[1\]=nan"),
        ([np.array(["a", "b", "c"])], "must be numbers, datetime64 or timedelta64"),
        ([np.array([0, 1, None], dtype=object)], "must be numbers, datetime64 or timedelta64"),
        ([[[0.0], [1.0], [2.0]]], r"shape \(3, 1\)"),
    ],
)
def test_bad_times(times, message):
    with pytest.raises(ValueError, match=message):
        Trajectories.from_arrays([ramp(3)], times)


def test_bad_dt():
    for dt in (0, 0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="`dt` must be positive"):
            Trajectories.from_arrays([ramp(3)], dt=dt)
    with pytest.raises(ValueError, match="both given"):
        Trajectories.from_arrays([ramp(3)], [[0.0, 1.0, 2.0]], dt=0.1)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ([[1.0]], r"one entry per path\. Got 1 for 2 paths"),
        ([1.0, 2.0], r"must be \(C,\) or \(3, C\) here\. Got shape \(\) in context\[0\]"),
        ([[1.0], [1.0, 2.0]], r"Got shape \(2,\) in context\[1\]"),
        ([np.zeros((3, 1)), np.zeros((2, 1))], r"Got shape \(2, 1\) in context\[1\]"),
        ([[1.0], [np.nan]], r"must be finite\. Got a missing value in context\[1\]"),
        ([[1.0], [1e30]], r"at most 1e\+15 in size\. Got more in context\[1\]"),
        ([["a"], ["b"]], r"`context\[0\]` must be numbers"),
    ],
)
def test_bad_context(context, message):
    with pytest.raises(ValueError, match=message):
        Trajectories.from_arrays([ramp(3), ramp(3)], context=context)


def test_a_constant_dimension_trains_samples_and_scores(np_rng):
    walk = np_rng.standard_normal((8, 30)).cumsum(1)
    data = Trajectories.from_arrays(np.stack([walk, np.full_like(walk, 3.0)], axis=-1), dt=0.1)
    model = NeuralSDE.for_data(data, net=MLPConfig(width=16, depth=1))
    fit(model, data, steps=20, batch_size=64, progress=False)
    paths = model.sample(data[0][0][0], np.linspace(0, 1, 11), num_paths=20, rng=torch.Generator().manual_seed(0))
    assert paths.isfinite().all() and model.log_prob(data).isfinite().all()
    assert (paths[..., 1] - 3).abs().max() < 0.1 < paths[..., 0].std()


def test_timedeltas_and_dates_become_seconds():
    gaps = np.array([0, 90, 100], dtype="timedelta64[s]")
    for stamps in (gaps, np.datetime64("2026-01-01") + gaps):
        assert Trajectories.from_arrays([ramp(3)], [stamps]).times.tolist() == [0.0, 90.0, 100.0]


def test_stamps_may_be_a_pandas_series_whatever_its_index():
    pd = pytest.importorskip("pandas")
    stamps = pd.Series([0.0, 1.0, 3.0], index=[7, 8, 9])
    for times in (stamps, [stamps]):
        assert Trajectories.from_arrays([ramp(3)], times).times.tolist() == [0.0, 1.0, 3.0]


def test_a_lag_below_the_data_step_is_named():
    with pytest.raises(
        ValueError, match=r"`lag` is shorter than the time between observations. Got lag=0.1, gaps from 0.5"
    ):
        Trajectories.from_arrays([ramp(4)], dt=0.5).transitions(lag=0.1)


def test_steps_that_float32_would_lose_are_refused():
    degrees = 52.0 + 1e-6 * np.arange(10.0)[:, None]
    with pytest.raises(ValueError, match=r"states\[1\] changes by less than float32 can hold .* Subtract an offset"):
        Trajectories.from_arrays([np.arange(10.0)[:, None], degrees])


def test_a_feature_of_rounding_errors_is_constant(np_rng):
    walk = np.c_[np_rng.normal(size=(50, 1)).cumsum(0), 1e-5 + 1e-13 * np_rng.random((50, 1))]
    data = Trajectories.from_arrays([walk])
    assert float(data.states[:, 1].std()) < 1e-11


def test_columns_are_a_list():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"price": [1.0, 2.0]})
    with pytest.raises(
        ValueError, match=r"`columns` must be a list, each text or a whole number. Got 'price'. Write \['name'\]"
    ):
        Trajectories.from_dataframe(frame, columns="price")


def test_slots_may_be_spaced_otherwise_than_pairs():
    data = Trajectories.from_arrays([np.arange(20.0)[:, None]], dt=0.1)
    pairs = data.transitions(history=2, spacing=0.5)
    batch = pairs[torch.arange(len(pairs))]
    assert (batch.history[:, 1] - batch.history[:, 0]).unique().tolist() == [
        4.0,
        5.0,
    ]  # 4 only at the start of the path
    assert (batch.next - batch.history[:, 1]).unique().tolist() == [1.0]


def test_the_later_part_of_a_path_keeps_the_time_since_its_beginning():
    data = Trajectories.from_arrays(
        [np.arange(10.0)[:, None], np.arange(8.0)[:, None]], [5 + np.arange(10), np.arange(8)]
    )
    early, late = data.split_in_time(0.3)
    rows = late.transitions()[torch.arange(3)]
    assert rows.time.tolist() == [7.0, 8.0, 6.0]
    assert early.transitions()[torch.arange(1)].time.tolist() == [0.0]
    assert late.select([1]).to("cpu").transitions()[torch.arange(1)].time.tolist() == [6.0]
