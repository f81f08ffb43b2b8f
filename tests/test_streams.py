import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from stream_fit import TRAIN, model_for

from neuralsde import MLPConfig, Moments, NeuralSDE, Stream, Trajectories, fit
from neuralsde.data.streams import blocks as blocks_file
from neuralsde.data.streams.blocks import concatenate
from neuralsde.data.streams.order import Lane, deal, shuffle
from neuralsde.data.transition import Transition

SCRIPT = Path(__file__).parent / "support" / "stream_fit.py"


def walks(lengths, seed=0, dim=2, **more):
    rng = np.random.default_rng(seed)
    paths = [rng.standard_normal((n, dim)).cumsum(0).astype(np.float32) for n in lengths]
    return Trajectories.from_arrays(paths, [np.sort(rng.uniform(0, n, n)) for n in lengths], **more)


def rows_of(batches):
    """Every transition as a tuple of all of its numbers."""
    found = []
    for batch in batches:
        parts = [v.flatten(1) if v.ndim > 1 else v[:, None] for v in vars(batch).values() if v is not None]
        found += map(tuple, torch.cat([p.double() for p in parts], dim=1).tolist())
    return found


def all_rows(pairs):
    return sorted(rows_of([pairs[torch.arange(len(pairs))]]))


def take(pairs, num, *, step=0, seed=0, batch_size=32, **share):
    batches = pairs.batches(seed, step, batch_size, **share)
    try:
        return [next(batches) for _ in range(num)]
    finally:
        batches.close()


# The order


def test_a_shuffle_is_a_permutation_that_depends_on_the_key_alone():
    assert shuffle(1_000, 3).sort().values.tolist() == list(range(1_000))
    assert torch.equal(shuffle(1_000, 3), shuffle(1_000, 3)) and not torch.equal(shuffle(1_000, 3), shuffle(1_000, 4))
    firsts = torch.stack([shuffle(8, key)[0] for key in range(1_600)]).bincount(minlength=8).double()
    assert float(((firsts - 200) ** 2 / 200).sum()) < 35  # chi-squared with 7 degrees of freedom: 1e-5 lies at 35.6


def test_blocks_are_dealt_out_evenly():
    counts = np.array([5, 1, 4, 4, 2, 8, 3, 3])
    lanes = deal(counts, 3)
    assert sorted(np.concatenate(lanes)) == list(range(8))
    assert sorted(int(counts[lane].sum()) for lane in lanes) == [9, 10, 11]
    assert [len(lane) for lane in deal(np.full(24, 7), 8)] == [3] * 8


def test_a_lane_can_be_entered_anywhere():
    counts = np.array([5, 1, 4, 4, 2])
    lane = Lane(1, np.arange(5), counts, pool_size=6, seed=3)

    def places(first, num):
        found = []
        for pool in lane.pools(first):
            found += [(tuple(pool.blocks), int(k)) for k in pool.order()]
            if len(found) >= num:
                return found[:num]
        raise AssertionError

    whole = places(0, 60)
    assert len(set(whole[:16])) == 16  # an epoch: each transition once
    assert whole[:16] != whole[16:32]
    for first in range(40):
        assert places(first, 20) == whole[first : first + 20]


@pytest.mark.parametrize("kind", ["plain", "history", "lag", "context", "missing"])
def test_an_epoch_holds_what_the_data_in_memory_holds(tmp_path, kind):
    context = {"context": [np.full(2, k) for k in range(16)]} if kind == "context" else {}
    data = walks([33] * 16, **context)
    if kind == "missing":
        holes = data.states.clone()
        holes[torch.rand(holes.shape, generator=torch.Generator().manual_seed(1)) < 0.05] = torch.nan
        data = Trajectories.from_arrays(holes.reshape(16, 33, 2), data.times.reshape(16, 33), missing=True)
    how = {"history": {"history": 3}, "lag": {"lag": 2.0}}.get(kind, {})
    stream = Stream.write(data, tmp_path / "s", block_size=70)  # two paths each
    assert len(stream.blocks) == stream.lanes == 8
    pairs, memory = stream.transitions(**how), data.transitions(**how).to_learn_from()
    assert len(pairs) == len(memory)
    assert all_rows(pairs.in_memory) == all_rows(memory)
    lanes = [Lane(k, b, pairs.counts[b], 10**6, 0) for k, b in enumerate(pairs.lanes)]
    assert sorted(rows_of(Transition(*pairs.fields_of(next(lane.pools(0)))) for lane in lanes)) == all_rows(memory)


def test_batches_are_the_same_from_any_step_and_for_any_number_of_processes(tmp_path):
    pairs = Stream.write(walks(range(20, 60)), tmp_path / "s", block_size=60).transitions()
    whole = take(pairs, 130)  # several epochs and chunks
    assert rows_of(take(pairs, 20, step=77)) == rows_of(whole[77:97])
    for num in (2, 4):
        for process in range(num):
            part = take(pairs, 30, step=3, process=process, num_processes=num)
            for mine, all_of_it in zip(part, whole[3:]):
                assert torch.equal(mine.next, all_of_it.next[process::num])
                assert torch.equal(mine.time, all_of_it.time[process::num])
    assert rows_of(take(pairs, 4, seed=1)) != rows_of(whole[:4])
    uneven = rows_of(take(pairs, 40, batch_size=30))  # rows of a batch need not be a multiple of the lanes
    assert uneven[:600] == rows_of(whole)[:600]


def test_every_lane_is_read_by_one_process_alone(tmp_path, monkeypatch):
    pairs = Stream.write(walks([33] * 32), tmp_path / "s", block_size=40).transitions()
    read, original = set(), pairs.stream.blocks.read
    monkeypatch.setattr(pairs.stream.blocks, "read", lambda k: read.add(k) or original(k))
    take(pairs, 200, process=1, num_processes=4)
    assert read == {int(block) for lane in pairs.lanes[1::4] for block in lane}


def test_a_long_path_is_cut_without_losing_a_pair(tmp_path):
    data = walks([500, 7, 300])
    stream = Stream.write(iter([data.select([0]), data.select([1, 2])]), tmp_path / "s", block_size=64)
    assert max(len(stream.blocks.read(k).states) for k in range(len(stream.blocks))) <= 64
    pieces = concatenate([stream.blocks.read(k) for k in range(len(stream.blocks))])
    assert all_rows(pieces.transitions()) == all_rows(data.transitions())  # with the time since the path began


def test_states_of_any_shape_are_streamed_and_blocks_bounded_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks_file, "BLOCK_BYTES", 20_000)
    monkeypatch.setattr(blocks_file, "SHARD_BYTES", 50_000)
    states = torch.randn(6, 11, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    stream = Stream.write(Trajectories.from_arrays(states, dt=0.5), tmp_path / "s")
    assert len(list((tmp_path / "s").glob("*.safetensors"))) > 1
    back = concatenate([stream.blocks.read(k) for k in range(len(stream.blocks))])
    assert max(len(stream.blocks.read(k).states) for k in range(len(stream.blocks))) * 3 * 64 * 4 <= 20_000
    assert stream.shape == (3, 8, 8) and len(back.transitions()) == 60


# Parquet


def frame_of(data):
    pd = pytest.importorskip("pandas")
    path = np.repeat(np.arange(len(data)), data.lengths)
    columns = {"who": [f"p{k}" for k in path], "t": data.times.numpy()}
    return pd.DataFrame(columns | {f"x{k}": data.states[:, k].numpy() for k in range(data.shape[0])})


def test_parquet_in_long_form_is_a_stream(tmp_path):
    data = walks([30, 41, 22, 50, 33, 60])
    frame = frame_of(data)
    frame.iloc[:143].to_parquet(tmp_path / "a.parquet", row_group_size=71)
    frame.iloc[143:].to_parquet(tmp_path / "b.parquet", row_group_size=33)
    how = {"columns": ["x0", "x1"], "id": "who", "time": "t"}
    stream = Stream.open(tmp_path / "*.parquet", **how)
    found = [row for k in range(len(stream.blocks)) for row in all_rows(stream.blocks.read(k).transitions())]
    truth = all_rows(data.transitions())
    assert set(found) < set(truth)
    assert len(truth) - len(found) == 2  # of the paths of 50 and of 60 rows, where a row group ends
    assert len(stream.transitions()) == len(found)
    assert len(Stream.open(tmp_path, **how).blocks) == len(stream.blocks)
    model = NeuralSDE.for_data(stream)
    fit(model, stream, steps=2, batch_size=8, progress=False, cpu=True)


def test_parquet_dates_count_in_seconds_and_context_comes_along(tmp_path):
    pd = pytest.importorskip("pandas")
    data = walks([30])
    frame = frame_of(data)
    frame["t"] = pd.Timestamp("2024-01-01", tz="UTC") + pd.to_timedelta(np.arange(30) * 500, unit="ms")
    frame.to_parquet(tmp_path / "a.parquet")
    pairs = Stream.open(tmp_path / "a.parquet", columns=["x0"], time="t", context=["x1"]).transitions().in_memory
    batch = pairs[torch.arange(len(pairs))]
    assert torch.allclose(batch.dt, torch.full((29,), 0.5))
    assert torch.equal(batch.context[:, 0], data.states[:-1, 1])


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda f: f.drop(columns="x1"), "has no column 'x1'"),
        (lambda f: f.iloc[::-1], "stamps of a path must rise.*Sort the rows by 'who' and 't'"),
        (lambda f: f.assign(x0=np.nan), "column 'x0' must be finite"),
        (lambda f: f.assign(x0="a"), "column 'x0' must be numbers"),
        (lambda f: f.assign(t="a"), "column 't' must hold numbers, dates or durations"),
        (lambda f: f.assign(t=None), "must hold a stamp in every row|must hold numbers"),
        (lambda f: f.assign(who=None), "must name the path of every row"),
        (lambda f: f.iloc[:0], "must hold a path with two rows"),
    ],
)
def test_parquet_that_is_no_stream_is_refused(tmp_path, change, words):
    change(frame_of(walks([30, 20]))).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=words):
        stream = Stream.open(tmp_path / "a.parquet", columns=["x0", "x1"], id="who", time="t")
        stream.blocks.read(0)


# Training


def test_units_are_those_of_the_data_in_memory_where_the_sample_is_all_of_it(tmp_path):
    data = walks([33] * 12)
    stream = Stream.write(data, tmp_path / "s", block_size=70)
    ours, theirs = NeuralSDE.for_data(stream).state_dict(), NeuralSDE.for_data(data).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_training_killed_with_sigkill_goes_on_to_the_same_numbers(tmp_path):
    stream = Stream.write(walks(range(20, 60)), tmp_path / "s", block_size=60)
    command = [sys.executable, str(SCRIPT), "train", str(tmp_path / "s"), str(tmp_path / "run")]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    metrics = tmp_path / "run" / "metrics.jsonl"
    for _ in range(6_000):
        if process.poll() is not None or (metrics.exists() and metrics.read_text().count("\n") >= 5):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    whole = fit(model_for(stream), stream, run_dir=tmp_path / "whole", **TRAIN)
    resumed = fit(model_for(stream), stream, run_dir=tmp_path / "run", resume=True, **TRAIN)
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    lines = [[json.loads(line) for line in (tmp_path / r / "metrics.jsonl").open()] for r in ("run", "whole")]
    free = ("steps_per_second", "waiting")
    ours, theirs = ([{k: v for k, v in line.items() if k not in free} for line in each] for each in lines)
    assert ours == theirs and len(ours) == 12
    assert all(0 <= line["waiting"] <= 1 for line in lines[0])
    record = json.loads((tmp_path / "run" / "checkpoints" / "00000060" / "state.json").read_text())["data"]
    assert record["lanes"] == 8 and record["num_blocks"] == len(stream.blocks)
    other = Stream.open(tmp_path / "s", lanes=4)
    with pytest.raises(ValueError, match=r"on other data: it had .*'lanes': 8"):
        fit(model_for(other), other, run_dir=tmp_path / "run", resume=True, **TRAIN)


def test_an_epoch_of_a_large_stream_takes_little_memory(tmp_path):
    """32 MB of states, which in memory with their index would be 100 MB."""
    rng = torch.Generator().manual_seed(0)
    states = torch.randn(2_000, 1_001, 2, generator=rng)
    times = torch.arange(1_001, dtype=torch.float64).repeat(2_000)
    data = Trajectories(states.reshape(-1, 2), times, torch.full((2_000,), 1_001))
    Stream.write(data, tmp_path / "s", block_size=10_010)
    command = [sys.executable, str(SCRIPT), "read", str(tmp_path / "s")]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    before, after, total = map(float, done.stdout.split())
    assert after - before < 25
    assert total == pytest.approx(float(states[:, 1:].double().sum()), rel=1e-9)


def test_what_goes_wrong_in_reading_is_raised_where_it_is_trained(tmp_path):
    stream = Stream.write(walks([33] * 16), tmp_path / "s", block_size=40)
    model = model_for(stream)
    (tmp_path / "s" / "00000.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"00000\.safetensors is damaged .* Delete the folder and write it again"):
        fit(model, stream, **TRAIN)


def test_streams_that_cannot_be_are_refused(tmp_path):
    data = walks([33] * 16)
    stream = Stream.write(data, tmp_path / "s", block_size=40)
    with pytest.raises(ValueError, match=r"already holds a stream"):
        Stream.write(data, tmp_path / "s")
    with pytest.raises(ValueError, match=r"holds no stream, no stream\.json"):
        Stream.open(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"`columns` is for parquet files"):
        Stream.open(tmp_path / "s", columns=["x"])
    with pytest.raises(ValueError, match=r"at least one set of Trajectories. Got none"):
        Stream.write([], tmp_path / "none")
    with pytest.raises(ValueError, match=r"must be Trajectories, or give them. Got a int"):
        Stream.write([1], tmp_path / "numbers")
    with pytest.raises(ValueError, match=r"must be Trajectories, or give them. Got a str"):
        Stream.write("data", tmp_path / "text")
    with pytest.raises(ValueError, match=r"one shape and one size of context. Got \(3,\) and 0 after \(2,\) and 0"):
        Stream.write([data, walks([5], dim=3)], tmp_path / "mixed")
    with pytest.raises(ValueError, match=r"`lanes` must be a multiple of the 3 processes. Got 8 lanes of 16 blocks"):
        stream.transitions().batches(0, 0, 30, num_processes=3)
    with pytest.raises(ValueError, match=r"Got a Stream. Write model = NeuralSDE.for_data"):
        fit(stream)
    with pytest.raises(ValueError, match=r"`val_fraction` splits by path"):
        fit(model_for(stream), stream, val_fraction=0.1, **TRAIN)
    with pytest.raises(ValueError, match=r"No path is long enough"):
        stream.transitions(history=40)
    (tmp_path / "s" / "stream.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is damaged, or of another version"):
        Stream.open(tmp_path / "s")
    (tmp_path / "a.parquet").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"Parquet files need `columns` and `time`"):
        Stream.open(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"Cannot read .* as parquet"):
        Stream.open(tmp_path / "a.parquet", columns=["x"], time="t")


def test_measurement_noise_is_not_learned_from_a_stream(tmp_path):
    stream = Stream.write(walks([33] * 16), tmp_path / "s", block_size=40)
    model = NeuralSDE.for_data(stream, law=Moments(measurement=True), net=MLPConfig(width=8, depth=1))
    with pytest.raises(ValueError, match=r"from paths in memory. Got a Stream"):
        fit(model, stream, **TRAIN)
