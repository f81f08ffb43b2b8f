"""Shards of videos: the same frames and times as in the files, whatever stops the writing; and `nsde data` on them."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av", reason="PyAV is not installed")
pytest.importorskip("h5py", reason="h5py is not installed")

from commands import call
from video_files import lossless, pictures, read_videos, write_film
from video_sets import bad_files, write_kth, write_river

from neuralsde.core.records import RunError
from neuralsde.data.download import Source
from neuralsde.data.videos import clevrer, jobs, kth, sharding, weizmann, workers
from neuralsde.data.videos.decode import FrameSettings
from neuralsde.data.videos.folders import folder_clips
from neuralsde.data.videos.sharding import write_shards
from neuralsde.data.videos.shards import VideoShards

SMALL = FrameSettings(size=(12, 16))
LENGTHS = [5, 9, 4, 12, 7]


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """Five films of different lengths, one of them uneven in time, one that cannot be used."""
    folder = tmp_path_factory.mktemp("films")
    for k, num in enumerate(LENGTHS):
        stamps = np.cumsum([0, *range(10, 10 * num, 10)]) if k == 3 else None
        lossless(folder / f"{k}.mkv", pictures(num, seed=k), stamps=stamps)
    (folder / "broken.mp4").write_bytes(b"nothing")
    return folder


def write(folder, place, **kwargs):
    return write_shards(folder_clips(folder), place, SMALL, **{"num_workers": 0, **kwargs})


def contents(place):
    """Every file of a folder, but for the lock."""
    return {p.name: p.read_bytes() for p in sorted(place.iterdir()) if p.name != ".lock"}


def customize(folder, code):
    """Code that every Python runs first that has `folder / "site"` on its path."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(code)


# What is in them


@pytest.mark.parametrize("shard_bytes", [1, 10_000, 2**30])
def test_shards_hold_the_frames_and_times_of_the_files(shard_bytes, films, tmp_path):
    videos, report = read_videos(films, SMALL)
    shards = write(films, tmp_path / "s", shard_bytes=shard_bytes)
    assert shards.names == tuple(videos) and shards.lengths.tolist() == LENGTHS and shards.num_frames == 37
    for i, video in enumerate(videos.values()):
        frames, times = shards.video(i)
        np.testing.assert_array_equal(frames, video.frames)
        np.testing.assert_array_equal(times, video.times)
    assert shards.report.skipped == report.skipped and shards.report.num_frames == 37
    num = len(list((tmp_path / "s").glob("frames-*.npy")))
    assert num == {1: 5, 10_000: 2, 2**30: 1}[shard_bytes]
    assert not list((tmp_path / "s").glob("*.tmp")) and not (tmp_path / "s" / "parts-of-shards").exists()


def test_several_processes_write_the_same(films, tmp_path):
    write(films, tmp_path / "one", shard_bytes=9000)
    write(films, tmp_path / "two", shard_bytes=9000, num_workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_windows_are_all_there_and_read_only(films, tmp_path):
    shards = write(films, tmp_path / "s", shard_bytes=9000)
    videos, _ = read_videos(films, SMALL)
    for length, stride, step in [(4, 1, 1), (5, 3, 1), (3, 2, 2), (12, 1, 1), (2, 5, 4)]:
        known = [
            (i, start)
            for i, num in enumerate(LENGTHS)
            for start in range(0, num, stride)
            if start + (length - 1) * step < num
        ]
        windows = shards.windows(length, stride, step)
        assert list(zip(windows.videos.tolist(), windows.starts.tolist())) == known and len(windows) == len(known)
        for (i, start), (frames, times) in zip(known, windows):
            kept = slice(start, start + (length - 1) * step + 1, step)
            np.testing.assert_array_equal(frames, videos[shards.names[i]].frames[kept])
            np.testing.assert_array_equal(times, videos[shards.names[i]].times[kept])
    frames, times = shards.windows(4).clip(0)
    assert isinstance(frames.base, np.memmap) or isinstance(frames, np.memmap)
    for array in (frames, times):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0
    frames, times = shards.windows(4).batch([0, 3, 1])
    assert frames.shape == (3, 4, 3, 12, 16) and times.shape == (3, 4) and frames.flags.writeable
    with pytest.raises(ValueError, match=r"No video has 13 frames: the longest has 12\. Ask for fewer"):
        shards.windows(13)
    with pytest.raises(ValueError, match="`length`, `stride` and `step` must be at least 1"):
        shards.windows(0)


def test_true_times_of_an_uneven_film(films, tmp_path):
    shards = write(films, tmp_path / "s").select(names=["3.mkv"])
    np.testing.assert_allclose(shards.windows(3, 1, 2).clip(1)[1], [0.01, 0.06, 0.15], atol=1e-9)


def test_videos_are_opened_where_they_are_looked_at(films, tmp_path):
    shards = write(films, tmp_path / "s", shard_bytes=1)
    assert not shards._maps
    shards.video(2)
    assert sorted(shards._maps) == ["frames-00002.npy", "times.npy"]
    again = pickle.loads(pickle.dumps(shards))
    assert not again._maps
    np.testing.assert_array_equal(again.video(2)[0], shards.video(2)[0])


def test_some_of_the_videos(tmp_path):
    write_kth(tmp_path / "in")
    clips, _ = kth.kth_clips(tmp_path / "in")
    shards = write_shards(clips, tmp_path / "s", SMALL, num_workers=0)
    assert shards.ways == ("prediction", "official") and set(shards.parts()) == {"train", "test"}
    test = shards.select("test")
    assert (
        test.names == ("person17_boxing_d4/1", "person17_boxing_d4/2") == shards.select("train", way="official").names
    )
    np.testing.assert_array_equal(test.video(1)[0], shards.video(4)[0])
    assert len(shards.select(labels="walking")) == 3 and shards.select(groups=["person01"]).labels == ("walking",) * 3
    assert len(test.windows(10)) == 3 + 20
    for kwargs, message in [
        ({"part": "test", "way": "oficial"}, "`way` must be one of prediction, official"),
        ({"part": "validation"}, r"No video has 'validation' for `part`\. There are test, train"),
        ({"labels": ["walkin"]}, "Did you mean 'walking'"),
        ({"part": "train", "labels": ["boxing"]}, "No video is left"),
    ]:
        with pytest.raises(ValueError, match=message):
            shards.select(**kwargs)


# What stops the writing


def test_bad_files_do_not_stop_it_unless_asked(tmp_path):
    reasons = bad_files(tmp_path / "in" / "bad")
    shards = write(tmp_path / "in", tmp_path / "s", num_workers=2)
    assert shards.names == ("good.avi", "good.mp4") and len(shards.report.skipped) == len(reasons)
    with pytest.raises(ValueError, match=r'bad/cut\.avi is cut short.*on_bad="skip"'):
        write(tmp_path / "in", tmp_path / "t", num_workers=2, on_bad="raise")
    with pytest.raises(ValueError, match=r"is not finished\. Run the command that wrote it again"):
        VideoShards.open(tmp_path / "t")
    write(tmp_path / "in", tmp_path / "t")
    assert contents(tmp_path / "t") == contents(tmp_path / "s")
    with pytest.raises(ValueError, match=r"No video can be used\..*bad: 0 of 11 files read.*sound\.mp4 holds sound"):
        write_shards(folder_clips(tmp_path / "in" / "bad"), tmp_path / "u", SMALL, num_workers=0, source="bad")


def test_stopped_at_every_step_it_goes_on(films, tmp_path, monkeypatch):
    """Each renaming and each deletion in turn is the last thing that happens."""
    known = contents(write(films, tmp_path / "known", shard_bytes=9000).folder)
    steps = {"replace": os.replace, "unlink": os.unlink}

    class Stop(BaseException):
        pass

    def stopping(number, when):
        count = [0]

        def step(name, *arguments, **kwargs):
            count[0] += 1
            if count[0] == number and when == "before":
                raise Stop
            try:
                steps[name](*arguments, **kwargs)
            finally:
                if count[0] == number and when == "after":
                    raise Stop

        return step

    for when in ("before", "after"):
        for number in range(1, 1000):
            place = tmp_path / f"{when}{number}"
            with monkeypatch.context() as patch:
                step = stopping(number, when)
                for name in steps:
                    patch.setattr(os, name, partial(step, name))
                try:
                    write(films, place, shard_bytes=9000)
                    break
                except Stop:
                    pass
            write(films, place, shard_bytes=9000)
            assert contents(place) == known, (when, number)
            shutil.rmtree(place)
        assert number > 25


def test_what_is_done_is_not_done_again(films, tmp_path, monkeypatch):
    done = []

    def decode_into(folder, key, clips, settings):
        if len(done) == 3:
            done.append("stop")
            raise KeyboardInterrupt
        done.append(clips[0].name)
        return jobs.decode_into(folder, key, clips, settings)

    monkeypatch.setattr(workers, "decode_into", decode_into)
    with pytest.raises(KeyboardInterrupt):
        write(films, tmp_path / "s", shard_bytes=1)
    assert not list((tmp_path / "s" / "parts-of-shards").iterdir())  # nothing lies there twice
    write(films, tmp_path / "s", shard_bytes=1)
    assert done == ["0.mkv", "1.mkv", "2.mkv", "stop", "3.mkv", "4.mkv", "broken.mp4"]
    write(films, tmp_path / "s", shard_bytes=1)
    assert len(done) == 7


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_killed_in_the_middle_it_goes_on(tmp_path, monkeypatch):
    for k in range(10):
        lossless(tmp_path / "in" / f"{k}.mkv", pictures(12, seed=k))
    place = tmp_path / "s"
    customize(
        tmp_path,
        "import time\n"
        "from neuralsde.data.videos.decode import FrameSettings\n"
        "real = FrameSettings.frame\n"
        "FrameSettings.frame = lambda *a: time.sleep(0.01) or real(*a)\n",
    )
    code = (
        "from neuralsde.data.videos.folders import folder_clips\n"
        "from neuralsde.data.videos.sharding import write_shards\n"
        f"write_shards(folder_clips({str(tmp_path / 'in')!r}), {str(place)!r}, num_workers=2, shard_bytes=2**18)\n"
    )
    paths = os.pathsep.join([str(tmp_path / "site"), *(path for path in sys.path if path)])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    run = subprocess.Popen([sys.executable, "-c", code], env=env)
    limit = time.monotonic() + 60
    while not (place / "frames-00000.json").exists():
        assert run.poll() is None and time.monotonic() < limit
        time.sleep(0.001)
    children = [pid for file in Path(f"/proc/{run.pid}/task").glob("*/children") for pid in file.read_text().split()]
    assert children
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert not (place / "videos.json").exists()
    while any(Path(f"/proc/{pid}").exists() for pid in children):  # workers end by themselves
        assert time.monotonic() < limit
        time.sleep(0.01)

    notes = [json.loads(file.read_text()) for file in place.glob("frames-*.json")]
    done = {key for note in notes for key in note["keys"]} | {
        p.stem for p in (place / "parts-of-shards").glob("*.json")
    }
    decoded = []
    monkeypatch.setattr(workers, "decode_into", lambda *job: (decoded.append(job[1]), jobs.decode_into(*job))[1])
    shards = write_shards(folder_clips(tmp_path / "in"), place, num_workers=0, shard_bytes=2**18)
    assert len(shards) == 10 and len(done) >= 2 and len(decoded) == 10 - len(done) > 0 and not done & set(decoded)
    videos, _ = read_videos(tmp_path / "in")
    for i, video in enumerate(videos.values()):
        np.testing.assert_array_equal(shards.video(i)[0], video.frames)


def test_a_file_that_brings_the_decoder_down(films, tmp_path, monkeypatch):
    """A worker that dies takes one file along and nothing else."""
    shutil.copytree(films, tmp_path / "in")
    shutil.copy(films / "1.mkv", tmp_path / "in" / "deadly.mkv")
    customize(
        tmp_path,
        "import os, av\n"
        "real = av.open\n"
        "av.open = lambda file, *a, **k: os._exit(3) if 'deadly' in str(file) else real(file, *a, **k)\n",
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    shards = write(tmp_path / "in", tmp_path / "s", num_workers=2)
    assert len(shards) == 5
    assert ("deadly.mkv", "brings the decoder down (exit code 3)") in {(n.name, n.text) for n in shards.report.skipped}


def test_workers_that_cannot_start(films, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (tmp_path / "neuralsde.py").write_text("")
    with pytest.raises(RunError, match=r"cannot be started.*num_workers=0"):
        write(films, tmp_path / "s", num_workers=1)
    assert "neuralsde" in capfd.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="limits of Unix")
def test_a_full_disk_is_said_and_what_is_done_stays(films, tmp_path, monkeypatch):
    customize(tmp_path, "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path / "site")
        with pytest.raises(
            RunError, match=r"Cannot write to .*\(File too large\)\. Make room and run the command again"
        ):
            write(films, tmp_path / "s", num_workers=1)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(RunError, match=r"Cannot write to .* \(No space left on device\)\. Make room"):
            write(films, tmp_path / "s")
    assert len(write(films, tmp_path / "s")) == 5 and not list((tmp_path / "s").glob("*.tmp"))


def test_one_run_at_a_time(films, tmp_path):
    fcntl = pytest.importorskip("fcntl", reason="no locks here")
    (tmp_path / "s").mkdir()
    with (tmp_path / "s" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="Another process is writing to"):
            write(films, tmp_path / "s")
    assert len(write(films, tmp_path / "s")) == 5


def test_copies_of_one_file(films, tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / "in" / name).mkdir(parents=True)
        shutil.copy(films / "1.mkv", tmp_path / "in" / name / "x.mkv")
    shards = write(tmp_path / "in", tmp_path / "s", shard_bytes=1)
    assert len(shards) == 3
    np.testing.assert_array_equal(shards.video(0)[0], shards.video(2)[0])
    assert "- used, but b/x.mkv, c/x.mkv is a copy of a/x.mkv" in str(shards.report)


# What is wrong or stale


def test_other_files_or_settings_are_refused(films, tmp_path):
    shutil.copytree(films, tmp_path / "in")
    write(tmp_path / "in", tmp_path / "s")
    before = contents(tmp_path / "s")
    with pytest.raises(ValueError, match=r"grey is False, asked for is True\. Name another folder or delete it"):
        write_shards(folder_clips(tmp_path / "in"), tmp_path / "s", FrameSettings(size=(12, 16), grey=True))
    with pytest.raises(ValueError, match=r"size is \[12, 16\], asked for is \[64, 64\]"):
        VideoShards.open(tmp_path / "s", settings=FrameSettings())
    shutil.copy(tmp_path / "in" / "1.mkv", tmp_path / "in" / "2.mkv")
    with pytest.raises(
        ValueError, match=r"1 file\(s\) are new or changed, 1 gone\. Delete the folder to decode them anew"
    ):
        write(tmp_path / "in", tmp_path / "s")
    assert contents(tmp_path / "s") == before
    shutil.copy(films / "2.mkv", tmp_path / "in" / "2.mkv")
    os.utime(tmp_path / "in" / "2.mkv", (0, 0))
    assert len(write(tmp_path / "in", tmp_path / "s")) == 5


def test_another_split_needs_no_decoding(films, tmp_path, monkeypatch):
    first = write(films, tmp_path / "s")
    monkeypatch.setattr(sharding, "decode_jobs", None)
    again = write_shards(folder_clips(films, seed=1), tmp_path / "s", SMALL, remarks=["hello"])
    assert again.parts() != first.parts() and again.report.remarks == ("hello",)
    assert VideoShards.open(tmp_path / "s").parts() == again.parts()


def test_an_unfinished_run_with_other_settings(films, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"broken\.mp4 is not a video"):
        write(films, tmp_path / "s", on_bad="raise", shard_bytes=1)
    with pytest.raises(
        ValueError, match=r"the beginning of a run with other settings.*Repeat them to go on, delete the folder"
    ):
        write_shards(folder_clips(films), tmp_path / "s", FrameSettings())
    shutil.copytree(films, tmp_path / "in")
    (tmp_path / "in" / "broken.mp4").unlink()
    (tmp_path / "in" / "0.mkv").unlink()
    shards = write(tmp_path / "in", tmp_path / "s", on_bad="raise", shard_bytes=1)
    assert shards.names == ("1.mkv", "2.mkv", "3.mkv", "4.mkv")
    np.testing.assert_array_equal(shards.video(0)[0], read_videos(films, SMALL)[0]["1.mkv"].frames)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: shutil.rmtree(f), "holds no shards of videos, no videos.json"),
        (lambda f: (f / "frames-00000.npy").unlink(), "frames-00000.npy is missing. Copy the whole folder"),
        (
            lambda f: os.truncate(f / "frames-00000.npy", 1000),
            "frames-00000.npy must hold uint8 of shape .* 1,000 bytes",
        ),
        (lambda f: (f / "frames-00000.npy").write_bytes(b"x"), "frames-00000.npy is damaged"),
        (lambda f: np.save(f / "times.npy", np.zeros(3)), "times.npy must hold float64"),
        (lambda f: (f / "videos.json").write_text("{"), "videos.json is damaged. Delete the folder and write it again"),
        (lambda f: change(f, version=0), r"another neuralsde \(form 0, not 1\)"),
        (lambda f: change(f, videos=[]), "videos.json does not fit its shards"),
    ],
)
def test_wrong_shards_are_refused_with_the_remedy(harm, message, films, tmp_path):
    write(films, tmp_path / "s")
    harm(tmp_path / "s")
    with pytest.raises(ValueError, match=message):
        VideoShards.open(tmp_path / "s")


def change(folder, **values):
    index = json.loads((folder / "videos.json").read_text())
    (folder / "videos.json").write_text(json.dumps(index | values))


def test_what_can_be_refused_at_the_door(films, tmp_path):
    clips = folder_clips(films)
    with pytest.raises(ValueError, match="There are no clips"):
        write_shards([], tmp_path / "s")
    with pytest.raises(ValueError, match="a name of its own"):
        write_shards([clips[0], clips[0]], tmp_path / "s")
    with pytest.raises(ValueError, match="`on_bad` must be"):
        write_shards(clips, tmp_path / "s", on_bad="no")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="Cannot write to the folder"):
        write_shards(clips, tmp_path / "file")


def test_workers_need_no_torch():
    code = "import sys, neuralsde.data.videos.jobs; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True)


# nsde data


def said(capsys, *arguments):
    call("data", *arguments)
    return capsys.readouterr().out


def refused(capsys, message, *arguments):
    with pytest.raises(SystemExit) as stop:
        call("data", *arguments)
    *_, last = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code == 2 and last.startswith("nsde: ") and re.search(message, last), last


def test_kth_end_to_end(tmp_path, capsys):
    write_kth(tmp_path / "in")
    command = ("kth", "--from", tmp_path / "in", "--output", tmp_path / "kth", "--num-workers", 0)
    text = said(capsys, *command)
    assert "2 of 2 files read, 5 videos, 71 frames" in text and "size as stored: 160×120; frames per second: 25" in text
    assert "1 of the 3 files listed are not there (boxing 1)." in text
    assert "split 'prediction': train 3 videos, 30 frames; test 2 videos, 41 frames" in text
    assert "5 of 5 videos are shorter than a clip of 4 + 36 frames" in text
    assert f"Wrote {tmp_path / 'kth'}: 71 frames of 1×64×64 (stretch), every 1." in text
    assert said(capsys, *command) == text
    refused(capsys, "grey is True, asked for is False", *command, "--colour", "True")
    refused(capsys, r"kth has no 'sleeping'\. `--only` takes boxing", *command, "--only", "sleeping")
    refused(capsys, "--fps is for `nsde data videos`", *command, "--fps", 3)
    (tmp_path / "in" / "00sequences.txt").unlink()
    refused(capsys, r"must hold 00sequences\.txt", "kth", "--from", tmp_path / "in", "--output", tmp_path / "x")


def test_clevrer_end_to_end(tmp_path, capsys):
    """Films of exactly CLEVRER's form, in a folder and in a zip."""
    film = write_film(tmp_path / "film.mp4", pictures(128, 320, 480), options={"preset": "ultrafast"})
    place = tmp_path / "in" / "video_train" / "video_00000-01000"
    place.mkdir(parents=True)
    shutil.copy(film, place / "video_00000.mp4")
    shutil.copy(film, place / "video_00001.mp4")
    (place / "video_00001.mp4").write_bytes(film.read_bytes()[:5000])
    with zipfile.ZipFile(tmp_path / "in" / "video_validation.zip", "w") as archive:
        archive.write(film, "video_10000-11000/video_10000.mp4")
        archive.write(film, "video_15000-16000/video_99999.mp4")
    text = said(capsys, "clevrer", "--from", tmp_path / "in", "--output", tmp_path / "c")
    assert "2 of 3 files read, 2 videos, 52 frames" in text and "size as stored: 480×320" in text
    assert "skipped: video_00001 is cut short" in text
    assert "Not all films are there: train 2 of 10,000, validation 1 of 5,000, test 0 of 5,000." in text
    assert "split 'official': train 1 videos, 26 frames; validation 1 videos, 26 frames" in text
    assert "not named as those of CLEVRER and not used: video_15000-16000/video_99999.mp4" in text
    shards = VideoShards.open(tmp_path / "c", settings=clevrer.SETTINGS)
    windows = shards.select("validation").windows(clevrer.CONTEXT + clevrer.FUTURE)
    assert len(windows) == 11 and shards.names == ("video_00000", "video_10000")
    frames, times = windows.clip(0)
    assert frames.shape == (16, 3, 128, 128)
    np.testing.assert_allclose(times, np.arange(16) / 5)
    assert "validation 1 videos" in said(
        capsys,
        "clevrer",
        "--from",
        tmp_path / "in",
        "--output",
        tmp_path / "d",
        "--only",
        "validation",
        "--num-workers",
        0,
    )
    refused(capsys, "holds no films of CLEVRER", "clevrer", "--from", film, "--output", tmp_path / "e")


def test_a_folder_of_ones_own_and_hdf5(films, tmp_path, capsys):
    text = said(
        capsys, "videos", "--from", films, "--output", tmp_path / "v", "--size", 32, "--num-workers", 0, "--seed", 2
    )
    assert "5 of 6 files read, 5 videos, 37 frames" in text and "skipped: broken.mp4 is not a video" in text
    assert "used, but 3.mkv has a variable frame rate" in text and "3×32×32 (crop)" in text
    refused(capsys, r"broken\.mp4 is not", "videos", "--from", films, "--output", tmp_path / "w", "--on-bad", "raise")
    refused(capsys, "Name the folder with your videos", "videos", "--output", tmp_path / "w")
    refused(capsys, "--only is for", "videos", "--from", films, "--output", tmp_path / "w", "--only", "a")
    write_river(tmp_path / "h" / "train" / "shard_0001.hdf5", [5, 6])
    text = said(capsys, "videos", "--from", tmp_path / "h", "--output", tmp_path / "x", "--fps", 25, "--num-workers", 1)
    assert "2 videos, 11 frames, 0.4 s" in text and "split 'folders': train 2 videos" in text
    refused(capsys, "--every is for videos, not for pusht", "pusht", "--every", 2, "--output", tmp_path / "p.npz")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The originals of KTH and Weizmann, served here."""
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path / "site"
    files = write_kth(folder)
    for action, file in zip(("walking", "boxing"), files):
        with zipfile.ZipFile(folder / f"{action}.zip", "w") as archive:
            archive.write(file, file.name)
    (folder / "00sequences.txt").write_text(
        (folder / "00sequences.txt").read_text().replace("person22_boxing_d1\t\tframes\t1-92\n", "")
    )

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    for module in (kth, weizmann):
        monkeypatch.setattr(module, "SOURCES", {n: Source(f"{n}.zip", f"{address}/{n}.zip") for n in module.SOURCES})
    monkeypatch.setattr(kth, "LIST_SOURCE", Source(kth.LIST, f"{address}/{kth.LIST}"))
    yield folder
    server.shutdown()
    server.server_close()


def test_originals_are_downloaded_and_their_content_checked(site, tmp_path, capsys):
    command = ("kth", "--output", tmp_path / "kth", "--num-workers", 0, "--only", "walking", "boxing")
    text = said(capsys, *command)
    assert "All 2 files listed are there; person13_handclapping_d3 is missing in the original." in text
    assert "The checksums of the originals are not known to us; their content was checked instead." in text
    originals = tmp_path / "kth" / "originals"
    assert sorted(p.name for p in originals.iterdir()) == ["00sequences.txt", "boxing.zip", "walking.zip"]
    assert VideoShards.open(tmp_path / "kth").num_frames == 71 and said(capsys, *command) == text
    refused(
        capsys, "jogging.zip answers 404.*pass it by --from DIR", "kth", "--output", tmp_path / "x", "--only", "jogging"
    )

    with zipfile.ZipFile(site / "bend.zip", "w") as archive:
        archive.write(site / "person01_walking_d1_uncomp.avi", "daria_bend.avi")
    command = ("weizmann", "--output", tmp_path / "w", "--only", "bend")
    refused(
        capsys,
        r"not the data that was published: 8 of 9 are not there: denis.*Delete .*originals and run",
        *command,
    )
    (tmp_path / "w" / "originals" / "bend.zip").write_bytes(b"<html>Moved</html>")
    refused(capsys, r"bend\.zip is not a zip, or is cut short", *command)


# The real files


@pytest.mark.skipif("NEURALSDE_DATA" not in os.environ, reason="NEURALSDE_DATA names no folder with kth and weizmann")
def test_the_real_files_end_to_end(tmp_path, capsys):
    data = Path(os.environ["NEURALSDE_DATA"])
    text = said(capsys, "kth", "--from", data / "kth", "--output", tmp_path / "kth")
    assert "14 of 14 files read, 56 videos, 4,731 frames, 187.0 s" in text and "10 of 56 videos are shorter" in text
    shards = VideoShards.open(tmp_path / "kth", settings=kth.SETTINGS)
    frames, times = shards.select("test").windows(40, 40).clip(0)
    assert frames.shape == (40, 1, 64, 64) and frames.std() > 5
    np.testing.assert_allclose(np.diff(times), 1 / 25)
    text = said(capsys, "weizmann", "--from", data / "weizmann", "--output", tmp_path / "weizmann")
    assert "90 of 90 files read, 90 videos, 5,855 frames" in text
    assert set(VideoShards.open(tmp_path / "weizmann").select("test").groups) == {"moshe", "shahar"}
