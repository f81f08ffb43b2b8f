"""Demonstrations in files: every row arrives once, in its episode, at its time, whatever the form of the file."""

import io
import json
import os
import pickle
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import call
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from robot_files import ENDS, LENGTHS, NUM, arrays, pusht, refused, write_zarr, zip_of

from neuralsde.data.robots.demonstrations import Demonstrations
from neuralsde.data.robots.read import read_demonstrations


def write_npz(file, values=None, ends=ENDS, **more):
    np.savez(file, **(arrays() if values is None else values), episode_ends=ends, **more)
    return file


def lerobot_columns(values, rows, episode):
    """The columns of one episode as LeRobot writes them."""
    n = len(rows)
    columns = {}
    for name, value in values.items():
        flat = pa.array(value[rows].reshape(-1))
        columns[name] = flat if value.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, value[0].size)
    columns["timestamp"] = pa.array((np.arange(n) / 10 + 0.01 * (np.arange(n) % 2)).astype(np.float32))
    columns["frame_index"] = pa.array(np.arange(n))
    columns["episode_index"] = pa.array(np.full(n, episode))
    columns["index"] = pa.array(rows)
    columns["task_index"] = pa.array(np.zeros(n, int))
    columns["next.reward"] = pa.array(np.zeros(n, np.float32))
    columns["next.done"] = pa.array(np.arange(n) == n - 1)
    columns["note"] = pa.array(["so"] * n)
    return pa.table(columns)


def write_lerobot(folder, version="v2.1", values=None, files=((0,), (1, 2)), extra=None):
    """Version 2: a file per episode. Version 3: `files` says which episodes lie in which file."""
    if values is None or "state" in values:
        known = arrays() if values is None else values
        values = {"observation.state": known["state"][:, :2], "action": known["action"]}
    tables = [lerobot_columns(values, np.arange(e - n, e), k) for k, (e, n) in enumerate(zip(ENDS, LENGTHS))]
    if extra is not None:
        tables = [extra(table, k) for k, table in enumerate(tables)]
    features = {n: {"dtype": str(v.dtype), "shape": list(v.shape[1:]) or [1], "names": None} for n, v in values.items()}
    features["observation.image"] = {"dtype": "video", "shape": [96, 96, 3], "names": ["height", "width", "channel"]}
    info = {"codebase_version": version, "robot_type": "2d pointer", "total_episodes": 3, "total_frames": NUM}
    info |= {"chunks_size": 1000, "fps": 10, "features": features}
    (folder / "meta").mkdir(parents=True)
    if version.startswith("v2"):
        info["data_path"] = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
        entries = [{"episode_index": k, "tasks": ["push"], "length": n} for k, n in enumerate(LENGTHS)]
        (folder / "meta" / "episodes.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
        parts = {f"data/chunk-000/episode_{k:06d}.parquet": table for k, table in enumerate(tables)}
    else:
        info["data_path"] = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        place = {e: f for f, inside in enumerate(files) for e in inside}
        entries = [
            {"episode_index": k, "data/chunk_index": 0, "data/file_index": place[k], "length": n, "tasks": ["push"]}
            for k, n in enumerate(LENGTHS)
        ]
        parts = {
            f"data/chunk-000/file-{f:03d}.parquet": pa.concat_tables([tables[e] for e in inside])
            for f, inside in enumerate(files)
        }
        parts["meta/episodes/chunk-000/file-000.parquet"] = pa.Table.from_pylist(entries)
    for name, table in parts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / name)
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    return folder


FORMS = {
    "npz": lambda d, v=None: write_npz(d / "lowdim.npz", v),
    "zarr": lambda d, v=None: write_zarr(d / "replay.zarr", v),
    "zarr zip": lambda d, v=None: zip_of(write_zarr(d / "replay.zarr", v), d / "replay.zarr.zip"),
    "zarr in a folder in a zip": lambda d, v=None: zip_of(
        write_zarr(d / "x.zarr", v), d / "pusht.zip", "pusht/x.zarr/"
    ),
    "zarr format 3": lambda d, v=None: write_zarr(d / "replay.zarr", v, zarr_format=3),
    "lerobot 2": lambda d, v=None: write_lerobot(d / "set", values=v),
    "lerobot 3": lambda d, v=None: write_lerobot(d / "set", "v3.0", v),
}
each_form = pytest.mark.parametrize("form", FORMS)


# What arrives


@each_form
def test_every_row_arrives_in_its_episode(form, tmp_path):
    data = read_demonstrations(FORMS[form](tmp_path))
    known = arrays()
    assert data.lengths.tolist() == LENGTHS and data.actions.dtype == np.float32
    np.testing.assert_array_equal(data.actions, known["action"])
    if "lerobot" in form:
        assert list(data.observations) == ["observation.state"]
        np.testing.assert_array_equal(data.observations["observation.state"], known["state"][:, :2])
    else:
        assert sorted(data.observations) == ["keypoint", "state"]
        np.testing.assert_array_equal(data.observations["state"], known["state"])
        np.testing.assert_array_equal(data.observations["keypoint"], known["keypoint"])


@each_form
def test_episodes_come_in_the_order_asked_for(form, tmp_path):
    place = FORMS[form](tmp_path)
    data = read_demonstrations(place, episodes=[2, 0])
    assert data.lengths.tolist() == [4, 5]
    assert data.actions[:, 0].tolist() == [8, 9, 10, 11, 0, 1, 2, 3, 4]
    whole = read_demonstrations(place).take([2, 0])
    np.testing.assert_array_equal(data.times, whole.times)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
@settings(max_examples=25, deadline=None)
def test_any_choice_of_episodes_is_that_choice_of_the_whole(tmp_path_factory, lengths, draw):
    chosen = draw.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=6))
    k = np.arange(sum(lengths), dtype=np.float32)
    values = {"action": k[:, None], "state": k[:, None] ** 2}
    folder = tmp_path_factory.mktemp("any")
    for place in (
        write_npz(folder / "a.npz", values, np.cumsum(lengths)),
        write_zarr(folder / "a.zarr", values, np.cumsum(lengths), chunk=3),
    ):
        part, whole = read_demonstrations(place, episodes=chosen), read_demonstrations(place).take(chosen)
        np.testing.assert_array_equal(part.actions, whole.actions)
        np.testing.assert_array_equal(part.observations["state"], part.actions**2)
        np.testing.assert_array_equal(part.times, whole.times)
        assert part.lengths.tolist() == whole.lengths.tolist() == [lengths[e] for e in chosen]


@each_form
def test_only_what_was_asked_for_is_read(form, tmp_path):
    name = "observation.state" if "lerobot" in form else "state"
    assert list(read_demonstrations(FORMS[form](tmp_path), observations=[name]).observations) == [name]


def test_zarr_touches_only_the_arrays_and_rows_asked_for(tmp_path):
    folder = write_zarr(tmp_path / "replay.zarr")
    for p in (folder / "data" / "keypoint").glob("[0-9]*"):
        p.write_bytes(b"broken")
    (folder / "data" / "state" / "2.0").write_bytes(b"broken")
    data = read_demonstrations(folder, observations=["state"], episodes=[0])
    assert data.observations["state"][:, 0].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"replay.zarr is cut short or broken .*Copy or download it again"):
        read_demonstrations(folder, observations=["state"])


def test_lerobot_opens_only_the_files_of_the_episodes_asked_for(tmp_path):
    folder = write_lerobot(tmp_path / "set", "v3.0")
    (folder / "data" / "chunk-000" / "file-001.parquet").unlink()
    assert read_demonstrations(folder, episodes=[0]).actions[:, 0].tolist() == [0, 1, 2, 3, 4]


# Time


@pytest.mark.parametrize("form", ["npz", "zarr"])
def test_without_stamps_rows_are_dt_apart(form, tmp_path):
    place = FORMS[form](tmp_path)
    assert read_demonstrations(place).times.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]
    times = read_demonstrations(place, dt=0.1).times
    np.testing.assert_allclose(times, [0, 0.1, 0.2, 0.3, 0.4, 0, 0.1, 0.2, 0, 0.1, 0.2, 0.3])


@pytest.mark.parametrize("form", ["lerobot 2", "lerobot 3"])
def test_the_stamps_of_lerobot_are_kept(form, tmp_path):
    place = FORMS[form](tmp_path)
    one = np.array([0, 0.11, 0.2, 0.31, 0.4])  # not frame_index / fps
    expected = np.concatenate([one[:n] for n in LENGTHS])
    np.testing.assert_allclose(read_demonstrations(place).times, expected, atol=1e-7)
    assert read_demonstrations(place, dt=2.0).times.tolist() == [0, 2, 4, 6, 8, 0, 2, 4, 0, 2, 4, 6]


@pytest.mark.parametrize("write", [write_npz, write_zarr])
def test_stamps_of_a_replay_buffer_are_used_and_not_observed(write, tmp_path):
    stamps = 1.7e9 + np.concatenate([np.cumsum(np.linspace(0.05, 0.2, n)) for n in LENGTHS])
    data = read_demonstrations(write(tmp_path / "replay.npz", arrays() | {"timestamp": stamps}))
    assert sorted(data.observations) == ["keypoint", "state"]
    first = np.repeat(stamps[ENDS - LENGTHS], LENGTHS)
    np.testing.assert_allclose(data.times, stamps - first, atol=1e-6)


def test_stamps_that_stand_still_are_refused(tmp_path):
    file = write_npz(tmp_path / "a.npz", arrays() | {"timestamp": np.zeros(NUM)})
    with pytest.raises(ValueError, match=r"a\.npz: `times` must increase.* Or pass `dt` in place of 'timestamp'"):
        read_demonstrations(file)
    assert len(read_demonstrations(file, dt=0.1)) == 3


# Shapes and types


def test_an_action_of_one_number_and_a_whole_numbered_one(tmp_path):
    values = {"action": np.arange(NUM, dtype=np.uint8), "state": arrays()["state"]}
    data = read_demonstrations(write_npz(tmp_path / "a.npz", values))
    assert data.actions.shape == (NUM, 1) and data.actions.dtype == np.float32


@pytest.mark.parametrize("version", ["v2.0", "v3.0"])
def test_lerobot_columns_of_all_shapes(version, tmp_path):
    k = np.arange(NUM, dtype=np.float32)
    known = {
        "action": np.stack([k, k], 1),
        "gripper": k.copy(),
        "observation.grid": np.arange(NUM * 6, dtype=np.float32).reshape(NUM, 2, 3),
    }

    def extra(table, e):
        rows = table["index"].to_pylist()
        return table.append_column(
            "lists", pa.array([[[float(r)], [1.0]] for r in rows], pa.list_(pa.list_(pa.float64())))
        )

    data = read_demonstrations(write_lerobot(tmp_path / "set", version, known, extra=extra))
    assert sorted(data.observations) == ["gripper", "lists", "observation.grid"]
    assert data.observations["gripper"].tolist() == [[v] for v in range(NUM)]
    np.testing.assert_array_equal(data.observations["observation.grid"], known["observation.grid"])
    np.testing.assert_array_equal(data.observations["lists"], np.stack([k, np.ones(NUM)], 1)[:, :, None])


@pytest.mark.parametrize("chunks", [4, 2**26])
@pytest.mark.parametrize("write", [write_npz, write_zarr])
def test_images_keep_or_get_bytes(write, chunks, tmp_path, monkeypatch, np_rng):
    monkeypatch.setattr("neuralsde.data.robots.replay_buffers.BLOCK", chunks)
    pixels = np_rng.integers(0, 256, (NUM, 4, 4, 3), dtype=np.uint8)
    shares = pixels.astype(np.float32) / 255
    images = {
        "bytes": pixels,
        "whole": pixels.astype(np.float32),
        "shares": shares,
        "mask": (shares > 0.5) * np.float32(1),
    }
    values = {"action": arrays()["action"]} | images
    data = read_demonstrations(write(tmp_path / "a.npz", values), episodes=[2, 0])
    rows = np.r_[8:12, 0:5]
    assert data.observations["bytes"].dtype == data.observations["whole"].dtype == np.uint8
    assert data.observations["shares"].dtype == data.observations["mask"].dtype == np.float32
    for name, image in images.items():
        np.testing.assert_array_equal(data.observations[name], image[rows])


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_images_inside_parquet_are_decoded_when_asked_for(version, tmp_path, np_rng):
    pixels = np_rng.integers(0, 256, (NUM, 4, 6, 3), dtype=np.uint8)

    def encode(image):
        data = io.BytesIO()
        Image.fromarray(image).save(data, "PNG")
        return {"bytes": data.getvalue(), "path": "frame.png"}

    def extra(table, e):
        return table.append_column("camera", pa.array([encode(pixels[r]) for r in table["index"].to_pylist()]))

    folder = write_lerobot(tmp_path / "set", version, extra=extra)
    assert "camera" not in read_demonstrations(folder).observations
    seen = read_demonstrations(folder, observations=["camera"], episodes=[1]).observations["camera"]
    assert seen.dtype == np.uint8
    np.testing.assert_array_equal(seen, pixels[5:8])


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"bytes": None, "path": "frame.png"}, "has no image in row 0, only a file's name"),
        ({"bytes": b"nonsense", "path": "frame.png"}, "has an image in row 0 that cannot be read"),
    ],
)
def test_images_that_are_none(cell, message, tmp_path):
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    folder = write_lerobot(
        tmp_path / "set", extra=lambda t, e: t.append_column("camera", pa.array([cell] * len(t), kind))
    )
    with pytest.raises(ValueError, match=message):
        read_demonstrations(folder, observations=["camera"])


# What is refused


def test_a_place_that_is_not_there():
    with pytest.raises(ValueError, match=r"There is no file or folder nowhere.npz"):
        read_demonstrations("nowhere.npz")


def test_what_is_not_recognised_says_what_is_accepted(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("hello")
    for place in (file, tmp_path):
        with pytest.raises(ValueError, match=r"no demonstrations that can be read.*npz.*zarr.*LeRobot"):
            read_demonstrations(place)
    (tmp_path / "old" / "meta_data").mkdir(parents=True)
    with pytest.raises(ValueError, match="LeRobot dataset of version 1"):
        read_demonstrations(tmp_path / "old")
    (tmp_path / "half" / "data").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"neither meta/episode_ends nor meta/info.json. Copy it whole"):
        read_demonstrations(tmp_path / "half")
    with pytest.raises(ValueError, match=r"LeRobot dataset in a zip. Unzip it"):
        read_demonstrations(zip_of(write_lerobot(tmp_path / "set"), tmp_path / "set.zip", "set/"))


def test_one_data_set_inside_a_folder_is_found_and_two_are_not_guessed(tmp_path):
    write_npz(tmp_path / "lowdim.npz")
    (tmp_path / "LICENSE").write_text("MIT")
    np.savez(tmp_path / "weights.npz", weight=np.zeros(3))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04")
    assert len(read_demonstrations(tmp_path)) == 3
    write_zarr(tmp_path / "pusht" / "replay.zarr")
    with pytest.raises(ValueError, match=r"holds 2 data sets: lowdim.npz, pusht/replay.zarr. Name one"):
        read_demonstrations(tmp_path)
    assert len(read_demonstrations(tmp_path / "pusht")) == 3


def test_arguments(tmp_path):
    file = write_npz(tmp_path / "a.npz")
    with pytest.raises(
        ValueError, match=r"`observations` must be a list, each text or None. Got 'state'. Write \['name'\]"
    ):
        read_demonstrations(file, observations="state")
    for dt in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="`dt` must be positive and finite"):
            read_demonstrations(file, dt=dt)
    for episodes in ([], [3], [-1]):
        with pytest.raises(ValueError, match="`episodes` must name some of the 3 episodes, from 0 to 2"):
            read_demonstrations(file, episodes=episodes)
    with pytest.raises(ValueError, match=r"a\.npz: `observations` must hold at least one"):
        read_demonstrations(file, observations=[])


@each_form
def test_wrong_names_list_the_right_ones(form, tmp_path):
    place = FORMS[form](tmp_path)
    right = "observation.state" if "lerobot" in form else "state"
    with pytest.raises(
        ValueError, match=rf"has no 'sate'. (Did you mean '{right}'\? )?It has .*{right}.*`observations`"
    ):
        read_demonstrations(place, observations=["sate"])
    with pytest.raises(ValueError, match=r"has no 'actions'. Did you mean 'action'\? .*`action`"):
        read_demonstrations(place, action="actions")


@pytest.mark.parametrize("write", [write_npz, write_zarr])
def test_ends_must_fit_the_rows(write, tmp_path):
    with pytest.raises(ValueError, match="holds no episodes"):
        read_demonstrations(write(tmp_path / "a.npz", ends=np.zeros(0, int)))
    with pytest.raises(ValueError, match=r"cut short: episodes go up to row 20, 'action' has 12"):
        read_demonstrations(write(tmp_path / "b.npz", ends=np.array([5, 8, 20])))
    with pytest.raises(ValueError, match=r"'action' has 12 rows, `episode_ends` only accounts for 8"):
        read_demonstrations(write(tmp_path / "c.npz", ends=np.array([5, 8])))
    with pytest.raises(ValueError, match=r"must increase, from 1 on. Got 4 for episode 1 after 5"):
        read_demonstrations(write(tmp_path / "d.npz", ends=np.array([5, 4, 12])))
    with pytest.raises(ValueError, match=r"Got 0 for episode 0."):
        read_demonstrations(write(tmp_path / "e.npz", ends=np.array([0, 12])))
    short = arrays()
    short["state"] = short["state"][:-1]
    with pytest.raises(ValueError, match=r"up to row 12, 'state' has 11"):
        read_demonstrations(write(tmp_path / "f.npz", short))


def test_ends_must_be_whole_numbers(tmp_path):
    with pytest.raises(ValueError, match=r"must be a list of whole numbers.* Got float64 of shape \(3,\)"):
        read_demonstrations(write_npz(tmp_path / "a.npz", ends=ENDS.astype(float)))
    np.savez(tmp_path / "b.npz", **arrays())
    with pytest.raises(ValueError, match=r"b.npz has no `episode_ends`.* It has action, state, keypoint"):
        read_demonstrations(tmp_path / "b.npz")


@each_form
def test_numbers_must_be_finite(form, tmp_path):
    broken = arrays()
    broken["state"][7, 1] = np.nan
    with pytest.raises(ValueError, match=r"state` must be finite. Got \S+\[7, 1\]=nan"):
        read_demonstrations(FORMS[form](tmp_path, broken))


class Harmful:
    def __reduce__(self):
        return (open, ("harm.txt", "w"))


def test_pickles_are_never_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    objects = np.array([Harmful()] * NUM, dtype=object)
    file = write_npz(tmp_path / "a.npz", arrays() | {"extra": objects})
    assert "extra" not in read_demonstrations(file).observations
    with pytest.raises(ValueError, match=r"'extra' is made of pickled objects, which are never loaded.* It has action"):
        read_demonstrations(file, observations=["extra"])
    with pytest.raises(ValueError, match="`episode_ends` is made of pickled objects"):
        read_demonstrations(write_npz(tmp_path / "b.npz", ends=objects))

    folder = write_zarr(tmp_path / "replay.zarr")
    for key, codec in (("filters", [{"id": "pickle", "protocol": 5}]), ("compressor", {"id": "pickle", "protocol": 5})):
        meta = json.loads((folder / "data" / "state" / ".zarray").read_text())
        (folder / "data" / "state" / ".zarray").write_text(
            json.dumps(meta | {"filters": None, "compressor": None, key: codec})
        )
        for chunk in (folder / "data" / "state").glob("[0-9]*"):
            chunk.write_bytes(pickle.dumps(Harmful()))
        assert list(read_demonstrations(folder).observations) == ["keypoint"]
        with pytest.raises(ValueError, match="'state' is made of pickled objects"):
            read_demonstrations(folder, observations=["state"])
    assert not (tmp_path / "harm.txt").exists()


def test_values_that_are_no_arrays_of_numbers_stay_closed(tmp_path):
    more = {"fps": np.array(10), "task": np.array(["push"] * NUM), "record": np.zeros(NUM, [("ä", "f4")])}
    file = write_npz(tmp_path / "a.npz", arrays() | more)
    assert sorted(read_demonstrations(file).observations) == ["keypoint", "state"]
    with pytest.raises(ValueError, match=r"'fps' is a single value, no array\."):
        read_demonstrations(file, observations=["fps"])
    with pytest.raises(ValueError, match=r"'task' is no array of numbers\."):
        read_demonstrations(file, observations=["task"])


def test_files_cut_short(tmp_path):
    whole = write_npz(tmp_path / "a.npz").read_bytes()
    file = tmp_path / "b.npz"
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"b.npz is cut short: it begins as a zip and has no end"):
        read_demonstrations(file)
    place = whole.index(arrays()["state"].tobytes()[:40])
    file.write_bytes(whole[:place] + b"\xff" * 40 + whole[place + 40 :])
    with pytest.raises(ValueError, match=r"b.npz is cut short or broken \(Bad CRC"):
        read_demonstrations(file)


@pytest.mark.parametrize("zipped", [False, True])
def test_lost_chunks_are_not_read_as_zeros(zipped, tmp_path):
    folder = write_zarr(tmp_path / "replay.zarr")
    (folder / "data" / "state" / "1.0").unlink()
    place = zip_of(folder, tmp_path / "replay.zip", "x/") if zipped else folder
    with pytest.raises(ValueError, match=r"cut short: 1 of 3 chunks of 'data/state' are missing.*would be read as 0"):
        read_demonstrations(place)
    assert len(read_demonstrations(place, observations=["keypoint"])) == 3


def test_zarr_without_arrays_or_with_broken_metadata(tmp_path):
    folder = write_zarr(tmp_path / "replay.zarr")
    (folder / "data" / "state" / ".zarray").write_text("{")
    with pytest.raises(ValueError, match=r"replay.zarr is cut short or broken"):
        read_demonstrations(folder)
    shutil.rmtree(folder / "data")
    with pytest.raises(ValueError, match=r"replay.zarr has no arrays in its group `data`"):
        read_demonstrations(folder)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_lerobot_files_that_are_missing_or_broken(version, tmp_path):
    folder = write_lerobot(tmp_path / "set", version)
    file = sorted((folder / "data").rglob("*.parquet"))[-1]
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"{file.name} is cut short or no parquet file .*Copy or download it again"):
        read_demonstrations(folder)
    file.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    with pytest.raises(ValueError, match=rf"{file.name} is cut short or"):
        read_demonstrations(folder)
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ValueError, match="pointer of git LFS: run `git lfs pull`"):
        read_demonstrations(folder)
    file.unlink()
    with pytest.raises(ValueError, match=rf"{file.name} is missing: the dataset is not whole"):
        read_demonstrations(folder)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_lerobot_rows_must_agree_with_the_list_of_episodes(version, tmp_path):
    folder = write_lerobot(tmp_path / "set", version)
    file = sorted((folder / "data").rglob("*.parquet"))[-1]
    pq.write_table(pq.read_table(file)[:-1], file)
    with pytest.raises(ValueError, match=rf"{file.name} is cut short .*3 rows of episode 2, .* says 4"):
        read_demonstrations(folder)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_lerobot_totals_must_agree(version, tmp_path):
    folder = write_lerobot(tmp_path / "set", version)
    file = folder / "meta" / "info.json"
    info = json.loads(file.read_text())
    for change, message in (
        ({"total_episodes": 206}, "has total_episodes=206, the list of episodes comes to 3"),
        ({"total_frames": 25650}, "has total_frames=25650, the list of episodes comes to 12"),
        ({"codebase_version": "v1.6"}, "must be v2.x or v3.x. Got v1.6. LeRobot can convert"),
        ({"data_path": "data/{nothing}.parquet"}, r"does not say where episodes are \(KeyError"),
    ):
        file.write_text(json.dumps(info | change))
        with pytest.raises(ValueError, match=message):
            read_demonstrations(folder)
    file.write_text("{")
    with pytest.raises(ValueError, match=r"info.json is not valid JSON"):
        read_demonstrations(folder)
    del info["data_path"]
    file.write_text(json.dumps(info))
    with pytest.raises(ValueError, match=r"info.json has no `data_path`"):
        read_demonstrations(folder)


def test_lerobot_without_its_list_of_episodes(tmp_path):
    two, three = write_lerobot(tmp_path / "two"), write_lerobot(tmp_path / "three", "v3.0")
    file = two / "meta" / "episodes.jsonl"
    text = file.read_text()
    file.write_text(text[:-5])
    with pytest.raises(ValueError, match=r"episodes.jsonl is cut short or broken"):
        read_demonstrations(two)
    file.write_text("")
    with pytest.raises(ValueError, match="two holds no episodes"):
        read_demonstrations(two)
    file.unlink()
    with pytest.raises(ValueError, match=r"episodes.jsonl is missing"):
        read_demonstrations(two)
    shutil.rmtree(three / "meta" / "episodes")
    with pytest.raises(ValueError, match=r"file-000.parquet is missing"):
        read_demonstrations(three)


def test_lerobot_videos_and_text_are_refused(tmp_path):
    folder = write_lerobot(tmp_path / "set", "v3.0")
    with pytest.raises(
        ValueError, match=r"'observation.image' is a video, which is not decoded here.*It has .*observation.state"
    ):
        read_demonstrations(folder, observations=["observation.image"])
    with pytest.raises(ValueError, match=r"'note' is no column of numbers"):
        read_demonstrations(folder, observations=["note"])


def test_lerobot_rows_of_different_lengths(tmp_path):
    def ragged(table, e):
        return table.append_column("ragged", pa.array([[1.0] * (1 + k % 2) for k in range(len(table))]))

    def growing(table, e):
        return table.append_column("growing", pa.array([[1.0] * (1 + e)] * len(table)))

    with pytest.raises(ValueError, match="'ragged' must have as many numbers in every row"):
        read_demonstrations(write_lerobot(tmp_path / "a", extra=ragged))
    with pytest.raises(ValueError, match="'growing' must have one shape in all episodes"):
        read_demonstrations(write_lerobot(tmp_path / "b", extra=growing))


@pytest.mark.parametrize(("form", "module"), [("zarr", "zarr"), ("lerobot 2", "pyarrow")])
def test_a_missing_extra_is_named(form, module, tmp_path, monkeypatch):
    place = FORMS[form](tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.parquet", None)
    with pytest.raises(ValueError, match=rf"needs {module}: pip install 'neuralsde\[data\]'"):
        read_demonstrations(place)


# nsde data pusht


@pytest.mark.parametrize("form", ["npz", "zarr", "zip"])
def test_pusht_from_any_form_becomes_one_npz(form, tmp_path, capsys):
    values, ends = pusht()
    more = values | {"n_contacts": values["state"][:, :1]}
    if form == "npz":
        place = write_npz(tmp_path / "lowdim.npz", more, ends)
    else:
        place = write_zarr(tmp_path / "x.zarr", more, ends, chunk=5000)
        place = zip_of(place, tmp_path / "pusht.zip", "pusht/x.zarr/") if form == "zip" else place
    output = tmp_path / "out" / "pusht.npz"
    call("data", "pusht", "--from", place, "--output", output)
    text = capsys.readouterr().out
    assert "206 episodes, 25,650 rows; 124 to 125 rows each" in text and f"Wrote {output}" in text
    assert re.search(r"action +25650×2 +1\.\d+ … 51[01]\S* +1\.\d+ … 51[01]", text)
    assert "The numbers differ from those that our results come from" in text
    assert [p.name for p in output.parent.iterdir()] == ["pusht.npz"]
    with np.load(output) as written:
        assert sorted(written) == ["action", "episode_ends", "keypoint", "state"]
        for name, value in values.items():
            np.testing.assert_array_equal(written[name], value)
        np.testing.assert_array_equal(written["episode_ends"], ends)
    first = output.read_bytes()
    call("data", "pusht", "--from", output, "--output", output)  # onto itself
    assert output.read_bytes() == first and "Wrote" in capsys.readouterr().out


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_pusht_of_lerobot_says_that_the_block_is_missing(version, tmp_path, capsys):
    values = {"observation.state": arrays()["state"][:, :2], "action": arrays()["action"]}
    values["observation.environment_state"] = np.arange(NUM * 16, dtype=np.float32).reshape(NUM, 16)
    folder, output = write_lerobot(tmp_path / "set", version, values), tmp_path / "pusht.npz"
    call("data", "pusht", "--from", folder, "--output", output)
    text = capsys.readouterr().out
    assert (
        "Not the published demonstrations: the published data has 206 episodes and 25,650 rows, this has 3 and 12"
        in text
    )
    assert (
        "The pose of the block is not in it" in text
        and "Written is what is there: agent_pos, environment_state" in text
    )
    data, known = read_demonstrations(output), read_demonstrations(folder)
    assert sorted(data.observations) == ["agent_pos", "environment_state"]
    np.testing.assert_array_equal(data.observations["agent_pos"], known.observations["observation.state"])
    np.testing.assert_allclose(data.times, known.times)


def test_pusht_refuses_other_things(tmp_path, capsys):
    values, ends = pusht(3, 30)
    output = ["--output", tmp_path / "pusht.npz"]
    three = write_npz(tmp_path / "a.npz", values | {"action": values["state"][:, :3]}, ends)
    refused(capsys, "2 numbers in every row of `action`. Got shape (30, 3)", "--from", three, *output)
    no_state = write_npz(tmp_path / "b.npz", {"action": values["action"], "pose": values["state"]}, ends)
    refused(
        capsys,
        "must hold `state`, the agent's and the block's pose. It has action, pose",
        "--from",
        no_state,
        *output,
    )
    refused(capsys, "There is no file or folder", "--from", tmp_path / "nothing", *output)
    refused(capsys, "`--output` must end in .npz", "--from", three, "--output", tmp_path / "pusht.csv")
    assert not (tmp_path / "pusht.npz").exists()


# The real thing

real = pytest.mark.skipif(
    "NEURALSDE_DATA" not in os.environ, reason="NEURALSDE_DATA names no folder with pusht/pusht_lowdim.npz"
)


@real
def test_the_published_demonstrations(tmp_path, capsys):
    folder = Path(os.environ["NEURALSDE_DATA"]) / "pusht"
    data = read_demonstrations(folder, dt=0.1)
    assert len(data) == 206 and data.actions.shape == (25_650, 2) and data.step == pytest.approx(0.1)
    assert {n: v.shape[1:] for n, v in data.observations.items() if n != "n_contacts"} == {
        "state": (5,),
        "keypoint": (9, 2),
    }
    assert data.lengths[0] == 161 and data.lengths.max() == 246
    call("data", "pusht", "--from", folder, "--output", tmp_path / "pusht.npz")
    assert "The numbers are those that our results come from." in capsys.readouterr().out

    with np.load(folder / "pusht_lowdim.npz") as arrays:
        values = {name: arrays[name] for name in ("action", "state")}
        store = write_zarr(tmp_path / "replay.zarr", values, arrays["episode_ends"], chunk=161)
    again = read_demonstrations(store, episodes=[7, 3], observations=["state"])
    whole = data.take([7, 3])
    np.testing.assert_array_equal(again.actions, whole.actions)
    np.testing.assert_array_equal(again.observations["state"], whole.observations["state"])


def test_more_episodes_are_appended():
    seen, done = np.arange(10.0).reshape(5, 2), np.arange(5.0)[:, None]
    first, second = (Demonstrations.from_arrays({"state": seen + k}, done + k, [2, 3], dt=0.5) for k in (0, 100))
    both = first.with_more(second)
    assert len(both) == 4 and both.lengths.tolist() == [2, 3, 2, 3]
    np.testing.assert_array_equal(both.observations["state"], np.concatenate([seen, seen + 100]))
    np.testing.assert_array_equal(both.take([2, 3]).actions, second.actions)
    with pytest.raises(ValueError, match="Observations differ"):
        first.with_more(Demonstrations.from_arrays({"image": seen}, done, [5]))


def test_an_array_without_a_name_is_refused():
    with pytest.raises(ValueError, match=r"arrays by name: \{'state': …\}. Got <class 'numpy.ndarray'>"):
        Demonstrations.from_arrays(np.zeros((5, 2)), np.zeros((5, 2)), [5])
