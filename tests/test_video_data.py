"""Videos from real files of every kind: exact pixels, true times, and every bad file named."""

import json
import os
import re
import shutil
import struct
import sys
import zipfile
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip("av", reason="PyAV is not installed")
h5py = pytest.importorskip("h5py", reason="h5py is not installed")

from PIL import Image  # noqa: E402
from video_files import lossless, pictures, read_videos, write_film  # noqa: E402
from video_sets import LIST, bad_files, write_kth, write_river  # noqa: E402

from neuralsde.data.videos.clips import Clip, find_videos  # noqa: E402
from neuralsde.data.videos.decode import FrameSettings, read_video  # noqa: E402
from neuralsde.data.videos.folders import folder_clips, split_by_file  # noqa: E402
from neuralsde.data.videos.hdf5 import LAYOUT, find_hdf5  # noqa: E402
from neuralsde.data.videos.kth import OFFICIAL, PREDICTION, kth_clips, read_sequences  # noqa: E402
from neuralsde.data.videos.report import BadVideo, VideoReport  # noqa: E402
from neuralsde.data.videos.weizmann import weizmann_clips  # noqa: E402

WHOLE = FrameSettings(size=(48, 64))


# Pixels


def test_frames_come_back_to_the_bit(tmp_path):
    frames = pictures(7)
    video = read_video(lossless(tmp_path / "a.mkv", frames), WHOLE)
    np.testing.assert_array_equal(video.frames, frames.transpose(0, 3, 1, 2))
    np.testing.assert_allclose(video.times, np.arange(7) / 25)
    assert (video.stored_size, video.rate, video.notes) == ("64×48", "25", ()) and video.frames.dtype == np.uint8


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt"),
    [
        ("a.mp4", "libx264", "yuv420p"),
        ("a.mov", "libx264", "yuv420p"),
        ("a.avi", "mpeg4", "yuv420p"),
        ("a.mkv", "libx264", "yuv420p"),
        ("a.webm", "libvpx-vp9", "yuv420p"),
        ("a.gif", "gif", "rgb8"),
    ],
)
def test_containers_and_codecs(name, codec, pix_fmt, tmp_path):
    frames = pictures(6)
    options = {"deadline": "realtime", "cpu-used": "8"} if codec == "libvpx-vp9" else {}
    video = read_video(write_film(tmp_path / name, frames, codec, pix_fmt=pix_fmt, options=options), WHOLE)
    difference = video.frames.astype(int) - frames.transpose(0, 3, 1, 2)
    assert video.frames.shape == (6, 3, 48, 64) and np.abs(difference).mean() < (25 if codec == "gif" else 6)
    np.testing.assert_allclose(video.times, np.arange(6) / 25)
    assert video.rate == "25" and not video.notes


def test_area_is_the_mean_over_blocks(tmp_path):
    frames = pictures(2)
    file = lossless(tmp_path / "a.mkv", frames)
    means = frames.reshape(2, 24, 2, 32, 2, 3).mean((2, 4)).transpose(0, 3, 1, 2)
    halves = read_video(file, FrameSettings(size=(24, 32))).frames
    assert np.abs(halves - means).max() <= 1.0  # rounded twice
    linear = read_video(file, FrameSettings(size=(24, 32), resize="bilinear")).frames
    assert not np.array_equal(halves, linear) and np.abs(linear - means).mean() < 3
    grey = read_video(file, FrameSettings(size=(48, 64), grey=True)).frames
    known = np.stack([np.asarray(Image.fromarray(frame).convert("L")) for frame in frames])[:, None]
    np.testing.assert_array_equal(grey, known)


def test_crop_takes_the_middle_and_stretch_takes_all(tmp_path):
    frames = pictures(2)
    file = lossless(tmp_path / "a.mkv", frames)
    crop = read_video(file, FrameSettings(size=(48, 48), fit="crop")).frames
    np.testing.assert_array_equal(crop, frames[:, :, 8:56].transpose(0, 3, 1, 2))
    tall = read_video(file, FrameSettings(size=(48, 16), fit="crop")).frames
    np.testing.assert_array_equal(tall, frames[:, :, 24:40].transpose(0, 3, 1, 2))
    stretch = read_video(file, FrameSettings(size=(48, 32), fit="stretch")).frames
    means = frames.reshape(2, 48, 32, 2, 3).mean(3).transpose(0, 3, 1, 2)
    assert np.abs(stretch - means).max() <= 1.0


def test_pixels_that_are_not_square(tmp_path):
    """Twice as wide as high: a square on the screen is twice as high as wide in the file."""
    frames = pictures(2)
    flat = read_video(write_film(tmp_path / "a.mp4", frames), WHOLE).frames
    settings = FrameSettings(size=(48, 24))
    crop = read_video(write_film(tmp_path / "b.mp4", frames, aspect=Fraction(2, 1)), settings).frames
    np.testing.assert_array_equal(crop, flat[..., 26:38].repeat(2, -1))


def test_a_film_held_upright_is_turned(tmp_path):
    """Phones write a matrix into the head of the track."""
    frames = pictures(3)
    file = write_film(tmp_path / "a.mp4", frames, options={"qp": "0"})
    flat = read_video(file, WHOLE).frames
    data = bytearray(file.read_bytes())
    matrix = data.index(b"tkhd") + 4 + 4 + 8 + 4 + 4 + 4 + 8 + 8
    assert data[matrix : matrix + 4] == b"\0\1\0\0"
    turn = np.array([0, 1 << 16, 0, -(1 << 16), 0, 0, 48 << 16, 0, 1 << 30], ">i4")
    data[matrix : matrix + 36] = turn.tobytes()
    file.write_bytes(data)
    upright = read_video(file, FrameSettings(size=(64, 48))).frames
    np.testing.assert_array_equal(upright, np.rot90(flat, -1, (2, 3)))


@pytest.mark.parametrize(("name", "codec", "pix_fmt"), [("a.mov", "png", "rgba"), ("a.mkv", "ffv1", "bgra")])
def test_four_channels_lie_over_black(name, codec, pix_fmt, tmp_path):
    alpha = np.zeros((3, 48, 64, 1), np.uint8)
    alpha[:, :24], alpha[:, 24:36] = 255, 51
    file = write_film(tmp_path / name, np.concatenate([pictures(3), alpha], -1), codec, pix_fmt=pix_fmt)
    video = read_video(file, WHOLE)
    shown = np.round(pictures(3) * (alpha / 255)).transpose(0, 3, 1, 2)
    assert np.abs(video.frames - shown).max() <= 1 and video.notes == ("has see-through pixels, laid over black",)
    with pytest.raises(BadVideo, match=r"a\.m.* has see-through pixels"):
        read_video(file, FrameSettings(refuse=("alpha",)))
    alpha[:] = 255  # four channels, and nothing to be seen through
    file = write_film(tmp_path / f"b{name}", np.concatenate([pictures(3), alpha], -1), codec, pix_fmt=pix_fmt)
    assert not read_video(file, FrameSettings(refuse=("alpha",))).notes


# Times


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp4", "libx264"), ("a.mov", "mpeg4"), ("a.mkv", "ffv1"), ("b.mkv", "libx264")]
)
def test_uneven_stamps_are_kept(name, codec, tmp_path):
    stamps = [0, 40, 60, 200, 210, 900, 933]
    file = write_film(tmp_path / name, pictures(7), codec, stamps=stamps)
    video = read_video(file, FrameSettings())
    np.testing.assert_allclose(video.times, np.array(stamps) / 1000, atol=1e-9)
    assert video.rate == "variable" and video.notes == ("has a variable frame rate, kept as it is",)
    with pytest.raises(BadVideo, match="variable frame rate"):
        read_video(file, FrameSettings(refuse=("variable",)))


def test_rounded_stamps_are_no_variable_rate(tmp_path):
    video = read_video(write_film(tmp_path / "a.mkv", pictures(20), rate=30), FrameSettings())
    assert video.rate in ("29.99", "30", "30.02", "30.03", "29.97") and not video.notes
    np.testing.assert_allclose(video.times, np.arange(20) / 30, atol=1e-3)


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.webm", "libvpx")])
def test_a_film_that_begins_late(name, codec, tmp_path):
    stamps = 5000 + 40 * np.arange(10)
    file = write_film(tmp_path / name, pictures(10), codec, stamps=stamps)
    np.testing.assert_allclose(read_video(file, FrameSettings()).times, stamps / 1000)
    np.testing.assert_allclose(read_video(unsized(file), FrameSettings()).times, stamps / 1000)  # as far as times tell


def unsized(file):
    """A Matroska file as live recordings write it, which do not know how long they will be."""
    data = file.read_bytes()
    place = data.find(b"\x18\x53\x80\x67") + 4
    if place > 4:
        file.write_bytes(data[:place] + b"\x01" + b"\xff" * 7 + data[place + 8 :])
    return file


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.mp4", "libx264", {"movflags": "faststart"}),
        ("b.mp4", "libx264", {}),
        ("a.mkv", "libx264", {}),
        ("a.webm", "libvpx", {}),
    ],
)
def test_a_last_picture_that_is_held_long(name, codec, options, tmp_path):
    stamps = 100 * np.arange(10)
    file = write_film(tmp_path / name, pictures(10), codec, stamps=stamps, container_options=options, hold=2.0)
    with av.open(str(file)) as container:
        assert container.duration > 2.5e6
    np.testing.assert_allclose(read_video(file, FrameSettings()).times, stamps / 1000)
    data = file.read_bytes()
    for share in (0.5, 0.7, 0.9):
        file.write_bytes(data[: int(share * len(data))])
        with pytest.raises(BadVideo):
            read_video(file)


def test_a_film_whose_beginning_was_edited_away(tmp_path):
    """An edit list leaves out frames that the file announces: it is not cut short."""
    file = write_film(
        tmp_path / "a.mp4",
        pictures(30),
        stamps=40 * (np.arange(30) - 10),
        options={"bf": "0"},
        container_options={"avoid_negative_ts": "disabled", "use_editlist": "1"},
    )
    video = read_video(file, FrameSettings())
    np.testing.assert_allclose(video.times, np.arange(20) / 25)


def test_parts_and_every_so_many_th_frame(tmp_path):
    frames = pictures(20)
    file = lossless(tmp_path / "a.mkv", frames)
    video = read_video(file, FrameSettings(size=(48, 64), every=3), start=4, stop=12)
    np.testing.assert_array_equal(video.frames, frames[[4, 7, 10]].transpose(0, 3, 1, 2))
    np.testing.assert_allclose(video.times, [0.16, 0.28, 0.4])
    with pytest.raises(BadVideo, match=r"has 3 frame\(s\) \(every 3\. frame\), 4 are asked for"):
        read_video(file, FrameSettings(every=3, min_frames=4), start=4, stop=12)


# Bad files


def test_every_bad_file_is_named(tmp_path):
    reasons = bad_files(tmp_path / "in" / "bad")
    lossless(tmp_path / "in" / "odd.mkv", pictures(5, 47, 63))
    write_film(tmp_path / "in" / "uneven.mp4", pictures(4), stamps=[0, 10, 500, 540])
    videos, report = read_videos(tmp_path / "in")
    assert sorted(videos) == ["good.avi", "good.mp4", "odd.mkv", "uneven.mp4"]
    assert report.files_found == len(reasons) + 4 and report.files_read == 4 and report.num_videos == 4
    assert report.num_frames == 30 + 30 + 5 + 4 and report.rates == {"25": 3, "variable": 1}
    skipped = {item.name.removeprefix("bad/"): item.text for item in report.skipped}
    assert set(skipped) == set(reasons)
    for name, reason in reasons.items():
        assert re.match(reason, skipped[name]), (name, skipped[name])
    notes = {(item.name, item.text) for item in report.notes}
    assert ("odd.mkv", "has a side with an odd number of pixels") in notes
    assert ("odd.mkv", "is not of the usual size 64×48") in notes
    assert ("uneven.mp4", "has a variable frame rate, kept as it is") in notes

    text = str(report)
    assert f"4 of {len(reasons) + 4} files read, 4 videos, 69 frames" in text
    assert "- skipped: bad/sound.avi, bad/sound.mp4 holds sound and no pictures" in text
    assert "- used, but uneven.mp4 has a variable frame rate, kept as it is" in text
    values = json.loads(json.dumps(report.to_dict()))
    assert VideoReport.from_dict(values) == report and len(values["skipped"]) == len(reasons)

    with pytest.raises(ValueError, match=r'bad/cut\.avi is cut short.*Remove or mend it.*on_bad="skip"'):
        read_videos(tmp_path / "in", on_bad="raise")
    with pytest.raises(ValueError, match="`on_bad` must be"):
        read_videos(tmp_path / "in", on_bad="ignore")
    with pytest.raises(BadVideo, match=r"nothing\.mp4 is not there"):
        read_video(tmp_path / "nothing.mp4")
    with pytest.raises(BadVideo, match=r"folder\.mp4 is not a file"):
        read_video(tmp_path / "in" / "bad" / "folder.mp4")


def test_a_file_that_announces_vast_pictures_is_not_decoded(tmp_path):
    side = struct.pack("<HH", 10_000, 10_000)
    frame = b"\x2c" + bytes(4) + side + b"\x00\x02\x02\x4c\x01\x00"
    (tmp_path / "vast.gif").write_bytes(b"GIF89a" + side + b"\x80\x00\x00" + b"\x00" * 6 + frame * 4 + b";")
    with pytest.raises(BadVideo, match="10000x10000 exceeds"):
        read_video(tmp_path / "vast.gif")


def test_a_list_of_other_files_is_not_followed(tmp_path):
    write_film(tmp_path / "good.mp4", pictures(4))
    (tmp_path / "list.mp4").write_text("ffconcat version 1.0\nfile good.mp4\n")
    with av.open(str(tmp_path / "list.mp4")) as container:
        assert len(list(container.decode(video=0))) == 4  # what FFmpeg would do by itself
    with pytest.raises(BadVideo, match=r"list\.mp4 is not a video"):
        read_video(tmp_path / "list.mp4")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    file = write_film(tmp_path / "a.mp4", pictures(4))
    monkeypatch.setattr(av, "open", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(BadVideo, match="may not be read"):
        read_video(file)


def test_oddities_are_refused_as_asked(tmp_path):
    odd = lossless(tmp_path / "a.mkv", pictures(5, 47, 63))
    assert read_video(odd, FrameSettings(size=(16, 16))).frames.shape == (5, 3, 16, 16)
    _, report = read_videos(tmp_path, FrameSettings(refuse=("odd", "variable")))
    assert [item.text for item in report.skipped] == ["has a side with an odd number of pixels"]


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt", "options"),
    [
        ("a.mp4", "libx264", "yuv420p", {"movflags": "faststart"}),
        ("b.mp4", "libx264", "yuv420p", {}),
        ("a.avi", "mpeg4", "yuv420p", {}),
        ("a.mkv", "ffv1", "bgr0", {}),
        ("a.gif", "gif", "rgb8", {}),
    ],
)
def test_no_cut_goes_unnoticed_and_no_damage_is_fatal(name, codec, pix_fmt, options, tmp_path, np_rng):
    frames = pictures(24)
    data = write_film(tmp_path / name, frames, codec, pix_fmt=pix_fmt, container_options=options).read_bytes()
    file = tmp_path / f"x{name}"
    for share in np.linspace(0.02, 0.85, 12):
        file.write_bytes(data[: int(share * len(data))])
        with pytest.raises(BadVideo):
            read_video(file)
    named = 0
    for _ in range(12):
        damaged = bytearray(data)
        place = int(np_rng.integers(0, len(data) - 40))
        damaged[place : place + 40] = np_rng.bytes(40)
        file.write_bytes(damaged)
        try:  # where the format cannot tell, frames are still frames
            assert read_video(file).frames.shape[1:] == (3, 64, 64)
        except BadVideo as error:
            named += 1
            assert str(error).startswith(f"{file} ")
    assert named


def test_settings_are_checked():
    for wrong, message in [
        ({"size": (0, 64)}, "`size` must be"),
        ({"fit": "fill"}, "`fit` is crop or stretch"),
        ({"resize": "cubic"}, "`resize` area or bilinear"),
        ({"every": 0}, "`every` and `min_frames`"),
        ({"refuse": "odd"}, "`refuse` is a list"),
        ({"refuse": ("sound",)}, "`refuse` is a list"),
    ]:
        with pytest.raises(ValueError, match=message):
            FrameSettings(**wrong)
    settings = FrameSettings(grey=True, refuse=("odd",))
    assert FrameSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    assert settings.shape == (1, 64, 64)


@pytest.mark.parametrize(("module", "message"), [("av", "A video needs PyAV"), ("h5py", "HDF5 needs h5py")])
def test_without_the_extra(module, message, tmp_path, monkeypatch):
    video, store = write_film(tmp_path / "a.mp4", pictures(3)), write_river(tmp_path / "a.h5", [2])
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"{message}.*pip install 'neuralsde\[video\]'"):
        read_video(video) if module == "av" else find_hdf5(store)


# Folders


def test_a_folder_with_folders_and_zips(tmp_path):
    for k, name in enumerate(["a.mp4", "deep/er/B.AVI", "deep/c.mkv", ".hidden.mp4", "__MACOSX/d.mp4", "zipped.mp4"]):
        write_film(tmp_path / "in" / name, pictures(3 + k), "mpeg4" if name.endswith("AVI") else "libx264")
    with zipfile.ZipFile(tmp_path / "in" / "more.zip", "w") as archive:
        archive.write(tmp_path / "in" / "zipped.mp4", "inside/../z.mp4")
        archive.write(tmp_path / "in" / "zipped.mp4", "__MACOSX/._z.mp4")
        archive.write(tmp_path / "in" / "a.mp4", "a.mp4")
        archive.writestr("readme.txt", "hello")
    (tmp_path / "in" / "notes.txt").write_text("hello")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in", target_is_directory=True)
    names = ["a.mp4", "deep/c.mkv", "deep/er/B.AVI", "zipped.mp4"]
    found = {clip.name for clip in find_videos(tmp_path / "in")}
    assert found - set(names) <= {"z.mp4"} and set(names) <= found
    videos, report = read_videos(tmp_path / "in")
    assert {name: len(video.times) for name, video in videos.items() if name in names} == dict(zip(names, [3, 5, 4, 8]))
    assert report.files_read == len(found) and sorted(p.name for p in tmp_path.iterdir()) == [
        "in"
    ]  # nothing was unpacked


def test_copies_of_a_video_stay_on_one_side(tmp_path):
    for k in range(6):
        write_film(tmp_path / f"{k}.mp4", pictures(3, seed=k))
    alone = {clip.name: clip.splits["random"] for clip in folder_clips(tmp_path)}
    for k in range(6):
        (tmp_path / f"{k} copy.mp4").write_bytes((tmp_path / f"{k}.mp4").read_bytes())
    clips = {clip.name: clip for clip in folder_clips(tmp_path)}
    assert set(alone.values()) == {"train", "validation", "test"} and len(clips) == 12
    for k in range(6):
        one, other = clips[f"{k}.mp4"], clips[f"{k} copy.mp4"]
        assert one.group == other.group and one.splits == other.splits


def test_bad_places(tmp_path):
    with pytest.raises(ValueError, match="There is no file or folder"):
        folder_clips(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"holds no videos\. They must end in \.mp4, \.avi"):
        folder_clips(tmp_path)
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(ValueError, match=r"a\.zip is not a zip, or is cut short.*get it again"):
        folder_clips(tmp_path)


def test_a_zip_with_a_damaged_member(tmp_path):
    write_film(tmp_path / "a.mp4", pictures(5))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "a.mp4", "b.mp4")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[200:210] = bytes(10)
    (tmp_path / "a.zip").write_bytes(data)
    videos, report = read_videos(tmp_path)
    assert list(videos) == ["a.mp4"] and report.skipped[0].text.startswith("cannot be taken out of its zip (Bad CRC-32")


def test_the_split_by_file():
    names = [f"{k}.mp4" for k in range(40)]
    parts = split_by_file(names, seed=3, validation=0.1, test=0.2)
    assert Counter(parts) == {"train": 28, "validation": 4, "test": 8}
    assert dict(zip(reversed(names), split_by_file(names[::-1], seed=3, validation=0.1, test=0.2))) == dict(
        zip(names, parts)
    )
    assert parts != split_by_file(names, seed=4, validation=0.1, test=0.2)
    assert sorted(split_by_file(["a", "b", "c"])) == ["test", "train", "validation"] and split_by_file(["a"]) == [
        "train"
    ]
    assert set(split_by_file(names, test=0)) == {"train", "validation"}
    with pytest.raises(ValueError, match="are shares, together below 1"):
        split_by_file(names, validation=0.5, test=0.5)


def test_folders_can_be_the_split(tmp_path):
    for name in ("train/a.mp4", "val/b.mp4", "test/x/c.mp4"):
        write_film(tmp_path / name, pictures(3))
    assert [clip.splits["folders"] for clip in folder_clips(tmp_path)] == ["test", "train", "validation"]
    shutil.copy(tmp_path / "train" / "a.mp4", tmp_path / "d.mp4")
    assert all(list(clip.splits) == ["random"] for clip in folder_clips(tmp_path))


# HDF5 as RIVER stores it


def test_hdf5_of_river(tmp_path):
    write_river(tmp_path / "train" / "shard_0001.hdf5", [12, 3])
    write_river(tmp_path / "train" / "shard_0002.hdf5", [4], seed=5)
    write_river(tmp_path / "val" / "shard_0001.hdf5", [5], seed=9)
    clips = folder_clips(tmp_path, fps=25)
    assert [(c.name, c.splits["folders"]) for c in clips] == [
        ("train/shard_0001/0", "train"),
        ("train/shard_0001/1", "train"),
        ("train/shard_0002/0", "train"),
        ("val/shard_0001/0", "validation"),
    ]
    videos, report = read_videos(clips, FrameSettings(size=(16, 16)))
    np.testing.assert_array_equal(videos["train/shard_0001/0"].frames, pictures(12, 16, 16).transpose(0, 3, 1, 2))
    np.testing.assert_allclose(videos["train/shard_0001/0"].times, np.arange(12) / 25)
    assert report.num_frames == 24 and report.rates == {"25": 4} and report.sizes == {"16×16": 4}
    alone = read_videos(find_hdf5(tmp_path / "train" / "shard_0002.hdf5"))[0]["shard_0002/0"]
    np.testing.assert_array_equal(alone.times, np.arange(4))
    with pytest.raises(ValueError, match="`fps` must be"):
        find_hdf5(tmp_path, fps=0)


def test_other_hdf5_is_refused_with_the_layout(tmp_path):
    file = tmp_path / "a.hdf5"
    with h5py.File(file, "w") as store:
        store["videos"] = np.zeros((2, 3, 4, 4), np.uint8)
    with pytest.raises(ValueError) as error:
        folder_clips(tmp_path)
    assert LAYOUT in str(error.value) and "It has videos." in str(error.value)
    write_river(file, [])
    with pytest.raises(ValueError, match="holds no videos"):
        find_hdf5(file)
    file.write_bytes(write_river(file, [3, 3]).read_bytes()[:1500])
    with pytest.raises(ValueError, match="cut short or not HDF5"):
        find_hdf5(file)
    write_river(file, [3, 4, 5, 2])
    with h5py.File(file, "a") as store:
        del store["0"]["2"]
        del store["1"]["3"]
        store["1"]["3"] = np.zeros((16, 16, 3), np.float32)
        del store["2"]["4"]
        store["2"]["x"] = 0
    videos, report = read_videos(find_hdf5(file))
    assert list(videos) == ["a/3"]
    texts = [item.text for item in report.skipped]
    assert "3 frames are announced, 2 are there" in texts[0] and "float32. The layout must be" in texts[1]
    assert "is damaged at frame 4" in texts[2]
    with pytest.raises(ValueError, match=r"holds no HDF5\. It must hold videos as RIVER stores them"):
        find_hdf5(tmp_path / "nothing")


# KTH, CLEVRER, Weizmann


def test_kth_takes_the_listed_frames(tmp_path):
    walking, boxing = write_kth(tmp_path)
    assert read_sequences(tmp_path / "00sequences.txt")["person01_walking_d1"] == ((0, 10), (20, 30), (14, 24))
    clips, remarks = kth_clips(tmp_path)
    assert [clip.name for clip in clips] == [
        *(f"person01_walking_d1/{k}" for k in (1, 2, 3)),
        *(f"person17_boxing_d4/{k}" for k in (1, 2)),
    ]
    assert remarks == ["1 of the 3 files listed are not there (boxing 1)."]
    assert clips[0].label == "walking" and clips[0].group == "person01" and clips[4].group == "person17"
    assert clips[0].splits == {"prediction": "train", "official": "validation"}
    assert clips[4].splits == {"prediction": "test", "official": "train"}
    settings = FrameSettings(fit="stretch", grey=True)
    videos, report = read_videos(clips, settings)
    whole = read_video(walking, settings)
    for clip in clips[:3]:
        np.testing.assert_array_equal(videos[clip.name].frames, whole.frames[clip.start : clip.stop])
        np.testing.assert_array_equal(videos[clip.name].times, whole.times[clip.start : clip.stop])
    assert len(videos["person17_boxing_d4/2"].times) == 40 - 11
    assert ("person17_boxing_d4/2", "is listed to frame 44, the file has 40") in {
        (n.name, n.text) for n in report.notes
    }
    assert report.files_found == 2 and report.num_videos == 5 and report.sizes == {"160×120": 2}
    videos, report = read_videos(clips, FrameSettings(min_frames=20))
    assert list(videos) == ["person17_boxing_d4/2"] and report.files_read == 1 and len(report.skipped) == 4
    boxing.write_bytes(boxing.read_bytes()[:9000])
    _, report = read_videos(clips, settings)
    assert [item.name for item in report.skipped] == ["person17_boxing_d4_uncomp.avi"] and report.num_videos == 3


def test_kth_in_zips_and_folders_and_what_is_missing(tmp_path):
    files = write_kth(tmp_path / "in")
    with zipfile.ZipFile(tmp_path / "in" / "boxing.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(files[1], files[1].name)
        archive.write(files[0], "walking/person25_walking_d9.avi")
    files[1].unlink()
    clips, remarks = kth_clips(tmp_path / "in")
    assert len(clips) == 5 and len(read_videos(clips)[0]) == 5 and clips[4].file.name == "boxing.zip"
    assert "1 video(s) are not in the list and not used: walking/person25_walking_d9.avi" in remarks[1]
    assert {clip.label for clip in kth_clips(tmp_path / "in", ("boxing",))[0]} == {"boxing"}
    (tmp_path / "in" / "00sequences.txt").write_text("person01_walking_d1 frames 1-10, 5\n")
    with pytest.raises(ValueError, match=r"00sequences\.txt, line 1 is not like"):
        kth_clips(tmp_path / "in")
    (tmp_path / "in" / "00sequences.txt").write_text("Not found")
    with pytest.raises(ValueError, match="lists no sequences"):
        kth_clips(tmp_path / "in")
    (tmp_path / "in" / "00sequences.txt").unlink()
    with pytest.raises(ValueError, match=r"must hold 00sequences\.txt.*Get it from http"):
        kth_clips(tmp_path / "in")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "00sequences.txt").write_text(LIST)
    with pytest.raises(ValueError, match="holds no files of KTH such as person01_walking_d1_uncomp"):
        kth_clips(tmp_path / "empty")


def test_the_persons_of_kth_are_in_one_part_each():
    for parts in (OFFICIAL, PREDICTION):
        assert sorted(person for persons in parts.values() for person in persons) == list(range(1, 26))
    assert PREDICTION["train"] == tuple(range(1, 17)) and OFFICIAL["test"][0] == 22 and len(OFFICIAL["test"]) == 9


def test_names_of_weizmann(tmp_path):
    names = [
        "run/lena_run1.avi",
        "run/lena_run2.avi",
        "wave1/moshe_wave1.avi",
        "pjump/lyova_pjump.avi",
        "jack/Ira_jack.avi",
    ]
    film = write_film(tmp_path / "film.avi", pictures(3, 144, 180), "mpeg4")
    for name in [*names, "run/lena_run3.avi"]:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(film, tmp_path / "in" / name)
    clips, remarks = weizmann_clips(tmp_path / "in")
    assert [(c.name, c.label, c.group, c.splits["person"]) for c in clips] == [
        ("ira_jack", "jack", "ira", "train"),
        ("lena_run1", "run", "lena", "train"),
        ("lena_run2", "run", "lena", "train"),
        ("lyova_pjump", "pjump", "lyova", "validation"),
        ("moshe_wave1", "wave1", "moshe", "test"),
    ]
    assert remarks[0].startswith("86 of 90 are not there") and "run/lena_run3.avi" in remarks[1]
    with pytest.raises(ValueError, match="holds no films of Weizmann"):
        weizmann_clips(film)
    assert isinstance(clips[0], Clip) and len(read_videos(clips)[0]) == 5


# The real files

real = pytest.mark.skipif(
    "NEURALSDE_DATA" not in os.environ, reason="NEURALSDE_DATA names no folder with kth and weizmann"
)


@real
def test_the_real_kth():
    folder = Path(os.environ["NEURALSDE_DATA"]) / "kth"
    _, report = read_videos(folder, FrameSettings(size=(8, 8), grey=True))
    assert (report.files_read, report.num_frames, report.skipped, report.notes) == (14, 6_224, (), ())
    assert report.sizes == {"160×120": 14} and report.rates == {"25": 14}
    sequences = read_sequences(folder / "00sequences.txt")
    assert sum(map(bool, sequences.values())) == 599 and sum(map(len, sequences.values())) == 2391
    assert [name for name, ranges in sequences.items() if not ranges] == ["person13_handclapping_d3"]
    text = (folder / "00sequences.txt").read_text(encoding="latin-1")
    for part, title in (("train", "Training"), ("validation", "Validation"), ("test", "Test")):
        line = next(line for line in text.splitlines() if line.startswith(f"{title}:"))
        assert tuple(int(word[-2:]) for word in line.split(":")[1].replace(",", " ").split()) == OFFICIAL[part]
    clips, _ = kth_clips(folder)
    _, report = read_videos(clips, FrameSettings(size=(8, 8), grey=True))
    assert (report.files_read, report.num_videos, report.num_frames) == (14, 56, 4_731) and not report.skipped


@real
def test_the_real_weizmann():
    clips, remarks = weizmann_clips(Path(os.environ["NEURALSDE_DATA"]) / "weizmann")
    _, report = read_videos(clips, FrameSettings(size=(8, 8), grey=True))
    assert (report.files_read, report.num_frames, report.skipped, report.notes) == (90, 5_855, (), ())
    assert report.sizes == {"180×144": 90} and remarks == ["All persons and actions are there, in 90 files."]
    assert Counter(clip.splits["person"] for clip in clips) == {"train": 60, "validation": 10, "test": 20}
