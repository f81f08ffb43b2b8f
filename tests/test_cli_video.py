"""`nsde fit`, `nsde sample` and `nsde demo` on videos, from files to films, with models trained here in seconds."""

import json
import os
import re
import shutil
import signal
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from commands import call, fails, stops
from safetensors.torch import load_file
from video_files import write_film, write_sound

from neuralsde.data.videos.decode import FrameSettings, read_video
from neuralsde.experiments.collisions.clips import clips
from neuralsde.experiments.demos import video as demo
from neuralsde.sde.config import Transport
from neuralsde.training.config import RunOptions, TrainConfig
from neuralsde.video.config import VideoFit
from neuralsde.video.fit import fit_videos
from neuralsde.video.model import load_video_model

TINY = ["--size", "16", "--num-context", "3", "--width", "32", "--batch-size", "8", "--num-workers", "0"]
TINY += ["--autoencoder-steps", "6", "--steps", "8", "--no-progress", "--cpu"]
TINY += ["--log-every", "4", "--checkpoint-every", "4"]


pytestmark = pytest.mark.filterwarnings("error:noise:UserWarning")


def frames_of(file):
    with av.open(str(file)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """Ten frames per second of six scenes, and four files that cannot be used."""
    folder = tmp_path_factory.mktemp("data") / "films"
    made = clips(range(6), num_frames=14, fps=10.0, size=32).frames.permute(0, 1, 3, 4, 2).numpy()
    for k, frames in enumerate(made):
        write_film(folder / f"scene{k}.mp4", frames, rate=10)
    write_film(folder / "short.mp4", made[0][:2], rate=10)
    write_sound(folder / "sound.mp4")
    (folder / "broken.avi").write_bytes(b"nothing of the kind")
    (folder / "empty.mkv").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def run_dir(films, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "films"
    call("fit", films, *TINY, "--output", folder)
    return folder


# Fit


def test_fit_leaves_a_model_a_report_and_pictures(films, run_dir):
    names = {p.name for p in run_dir.iterdir()}
    kept = {"shards", "autoencoder", "latents.safetensors", "checkpoints", "config.yaml", "metrics.jsonl"}
    assert kept | {"model", "report.md", "results.json", "predictions.png", "predictions.mp4"} == names
    report = (run_dir / "report.md").read_text()
    for text in (
        "7 of 10 files read",
        "broken.avi is not a video that can be read",
        "empty.mkv is empty",
        "sound.mp4 holds sound and no pictures",
        "short.mp4: not learned from, without 3 + 1 frames that are 0.1 s apart",
        "| copy of the last frame |",
        "| decoder, at best |",
        "![predictions.png](predictions.png)",
        "nsde sample ",
    ):
        assert text in report, text
    results = json.loads((run_dir / "results.json").read_text())
    scores = results["scores"]
    assert scores["context"] == 3 and scores["future"] == 11 and scores["num_clips"] >= 1
    assert all(np.isfinite(scores[f"{who}{what}"]) for who in ("", "copy: ", "decoder: ") for what in ("psnr", "ssim"))
    assert {s["name"] for s in results["videos"]["skipped"]} == {"broken.avi", "empty.mkv", "sound.mp4"}
    assert len(frames_of(run_dir / "predictions.mp4")) == 14


def test_python_does_the_same_in_one_call(films, run_dir, tmp_path):
    settings = VideoFit(size=16, num_context=3, width=32, batch_size=8, num_workers=0, autoencoder_steps=6)
    options, said = RunOptions(progress=False, cpu=True, log_every=4, checkpoint_every=4), []
    found = fit_videos(films, output=tmp_path / "run", settings=settings, steps=8, options=options, say=said.append)
    before, after = (load_file(d / "model" / "model.safetensors") for d in (run_dir, tmp_path / "run"))
    assert all(torch.equal(before[name], value) for name, value in after.items())
    assert found.scores == json.loads((run_dir / "results.json").read_text())["scores"]
    assert found.report.is_file() and found.summary in found.report.read_text() and len(said) == 4
    assert found.model.futures(found.model.read(films / "scene1.mp4"), num_frames=2).frames.shape[1] == 2
    with pytest.raises(
        ValueError, match=r"already holds a run\. Give `resume=True` to go on with it, or another folder"
    ):
        fit_videos(films, output=tmp_path / "run", settings=settings)
    with pytest.raises(ValueError, match=r"`train.lr`: for videos this is chosen"):
        fit_videos(films, output=tmp_path / "b", train=TrainConfig(lr=0.1))
    for settings, text in (
        ({"steps": 0}, "`steps` must be at least 1"),
        ({"holdout": 1.0}, "`holdout` must be within"),
    ):
        with pytest.raises(ValueError, match=text):
            fit_videos(films, output=tmp_path / "b", **settings)


def test_scores_are_those_of_the_futures_that_are_shown(run_dir):
    """The copy's PSNR again, by hand, from the held-out frames."""
    from neuralsde.data.videos.shards import VideoShards

    results = json.loads((run_dir / "results.json").read_text())["scores"]
    held = VideoShards.open(run_dir / "shards").select("test")
    errors = []
    for i in range(len(held)):
        frames = held.video(i)[0].astype(float) / 255
        if len(frames) >= 14:
            error = np.square(frames[3:14] - frames[2]).mean((1, 2, 3))
            errors.append(np.where(error > 0, -10 * np.log10(np.maximum(error, 1e-10)), 100.0).mean())
    assert results["num_clips"] == len(errors)
    assert results["copy: psnr"] == pytest.approx(np.mean(errors), abs=1e-3)


def test_the_model_folder_is_complete_in_itself(films, run_dir, tmp_path):
    files = [p for p in (run_dir / "model").rglob("*") if p.is_file()]
    assert {p.suffix for p in files} == {".json", ".safetensors"} and len(files) == 5
    shutil.copytree(run_dir / "model", tmp_path / "elsewhere")
    here, there = load_video_model(run_dir), load_video_model(tmp_path / "elsewhere")
    assert (there.context, there.settings.shape) == (3, (3, 16, 16)) and there.fps == pytest.approx(10, rel=1e-4)
    drawn = [m.futures(m.read(films / "scene1.mp4"), num_frames=4, seed=1).frames for m in (here, there)]
    assert torch.equal(*drawn)


def test_a_run_that_was_stopped_gives_the_same_model(films, run_dir, tmp_path, capsys):
    """Stopped in the training of the SDE; before it; and in that of the autoencoder."""
    wanted = load_file(run_dir / "model" / "model.safetensors")
    for k, lost in enumerate(
        (
            ["model", "checkpoints/00000008"],
            ["model", "checkpoints", "latents.safetensors", "metrics.jsonl"],
            ["model", "checkpoints", "latents.safetensors", "autoencoder/model", "autoencoder/checkpoints/00000006"],
        )
    ):
        again = tmp_path / f"run{k}"
        shutil.copytree(run_dir, again)
        for name in lost:
            shutil.rmtree(again / name) if (again / name).is_dir() else (again / name).unlink()
        call("fit", films, *TINY, "--output", again, "--resume")
        got = load_file(again / "model" / "model.safetensors")
        assert all(torch.equal(got[name], value) for name, value in wanted.items())
    assert "already holds a run" in fails(capsys, "fit", films, *TINY, "--output", run_dir)
    text = fails(capsys, "fit", films, *TINY, "--width", "64", "--output", run_dir, "--resume")
    assert "another model.net.width: it ran with 32. Got 64" in text
    text = fails(capsys, "fit", films, *TINY, "--size", "32", "--output", run_dir, "--resume")
    assert "frames of other settings" in text


def test_ctrl_c_and_resume(films, tmp_path, monkeypatch, capsys):
    """In this process; a process of its own gets the signal in test_cli.py."""
    options = [*TINY, "--autoencoder-steps", "4000", "--checkpoint-every", "1000", "--output", tmp_path / "run"]
    said = stops(monkeypatch, capsys, signal.SIGINT, "fit", films, *options)
    assert "and saved. Go on with the same command and --resume" in said
    assert list((tmp_path / "run" / "autoencoder" / "checkpoints").iterdir())


def test_frames_decoded_by_nsde_data(films, tmp_path, capsys):
    call("data", "videos", "--from", films, "--size", "16", "--num-workers", "0", "--output", tmp_path / "shards")
    capsys.readouterr()
    options = [o for o in TINY if o not in ("--size", "16")]
    call("fit", tmp_path / "shards", *options, "--output", tmp_path / "run")
    assert not (tmp_path / "run" / "shards").exists() and load_video_model(tmp_path / "run").settings.size == (16, 16)
    assert "decoded already" in fails(capsys, "fit", tmp_path / "shards", *TINY, "--output", tmp_path / "b")


def test_frame_rates_keep_true_time(films, tmp_path, capsys):
    call("fit", films, *TINY, "--fps", "5", "--output", tmp_path / "run")
    video = load_video_model(tmp_path / "run")
    assert video.step == pytest.approx(0.2, rel=1e-4)
    clip = video.read(films / "scene2.mp4")  # ten per second: every second frame is given
    np.testing.assert_array_equal(video.last_frames(clip), clip.frames[[-5, -3, -1]])
    assert "more than the videos have, 10" in fails(
        capsys, "fit", films, *TINY, "--fps", "30", "--output", tmp_path / "b"
    )


def test_a_model_of_three_passes_draws_so(films, tmp_path, capsys):
    call("fit", films, *TINY, "--passes", "3", "--output", tmp_path / "run")
    video = load_video_model(tmp_path / "run")
    assert isinstance(video.model.config.law, Transport)
    assert video.futures(video.read(films / "scene1.mp4"), num_frames=4, seed=1).nfe == {"trunk": 4, "transport": 8}
    call(
        "sample", tmp_path / "run", films / "scene1.mp4", "--fps", "2x", "--frames", "4", "--output", tmp_path / "a.mp4"
    )
    with pytest.raises(SystemExit, match="2"):
        call("fit", films, *TINY, "--passes", "0", "--output", tmp_path / "b")
    text = capsys.readouterr().err
    assert "`passes` must be from 1 to" in text


def test_copies_are_learned_from_and_only_the_films_are_counted(films, run_dir, tmp_path, capsys):
    call("fit", films, *TINY, "--copies", "2", "--output", tmp_path / "run")
    assert " video(s) and 2 copies of each, " in capsys.readouterr().out
    plain, more = (load_file(d / "latents.safetensors") for d in (run_dir, tmp_path / "run"))
    assert len(more["train.states"]) == 3 * len(plain["train.states"])
    assert len(more["validation.states"]) == len(plain["validation.states"])
    counted = [re.search(r"learned from: .*", (d / "report.md").read_text())[0] for d in (run_dir, tmp_path / "run")]
    assert counted[0] == counted[1]
    text = fails(capsys, "fit", films, *TINY, "--copies", "1", "--output", tmp_path / "run", "--resume")
    assert "with another copies: it ran with 2. Got 1" in text


def test_variable_and_other_rates_are_kept_or_named(films, tmp_path, capsys):
    """Steps of 0.1 s: a film whose frames drop out is learned from where it can be, one of 12 per second is named."""
    for name in ("scene0.mp4", "scene1.mp4", "scene2.mp4"):
        (tmp_path / "mixed" / "train").mkdir(parents=True, exist_ok=True)
        shutil.copy(films / name, tmp_path / "mixed" / "train" / name)
    frames = frames_of(films / "scene3.mp4")
    stamps = [0, 100, 200, 300, 400, 700, 800, 900, 1000, 1100, 1200, 1290, 1400, 1500]
    write_film(tmp_path / "mixed" / "train" / "uneven.mkv", frames, rate=10, stamps=stamps)
    write_film(tmp_path / "mixed" / "train" / "twelve.mp4", frames, rate=12)
    write_film(tmp_path / "mixed" / "test" / "scene4.mp4", frames_of(films / "scene4.mp4"), rate=10)
    call("fit", tmp_path / "mixed", *TINY, "--output", tmp_path / "run")
    report = (tmp_path / "run" / "report.md").read_text()
    assert "train/uneven.mkv has a variable frame rate, kept as it is" in report
    assert "train/twelve.mp4: not learned from, without 3 + 1 frames that are 0.1 s apart" in report
    assert "learned from: 4 video(s), 56 frames" in report and "1 of 6 videos, the part `test`" in report
    for name in ("latents.safetensors", "model"):
        assert (tmp_path / "run" / name).exists()
    text = fails(capsys, "fit", tmp_path / "mixed", *TINY, "--way", "random", "--output", tmp_path / "run", "--resume")
    assert "with another videos" in text  # its latents are those of another split


def test_one_video_is_held_out_by_its_end(films, tmp_path, capsys):
    call("fit", films / "scene0.mp4", *TINY, "--holdout", "0.4", "--output", tmp_path / "run")
    assert "the last 40% of each of 1 video(s)" in capsys.readouterr().out
    call("fit", films / "scene0.mp4", *TINY, "--holdout", "0", "--output", tmp_path / "all")
    assert "Nothing was held out" in (tmp_path / "all" / "report.md").read_text()


def test_an_autoencoder_is_used_again(films, run_dir, tmp_path, capsys):
    options = [o for o in TINY if o not in ("--autoencoder-steps", "6")]
    call("fit", films, *options, "--autoencoder", run_dir, "--output", tmp_path / "run")
    before, after = (load_file(d / "model" / "autoencoder" / "model.safetensors") for d in (run_dir, tmp_path / "run"))
    assert all(torch.equal(before[name], value) for name, value in after.items())
    assert not (tmp_path / "run" / "autoencoder").exists()
    options[options.index("16")] = "32"
    text = fails(capsys, "fit", films, *options, "--autoencoder", run_dir, "--output", tmp_path / "b")
    assert "takes frames of shape (3, 16, 16). Got (3, 32, 32)" in text
    with pytest.raises(SystemExit, match="2"):
        call("fit", films, *TINY, "--autoencoder", tmp_path, "--output", tmp_path / "c")
    assert "`autoencoder_steps`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--size", "20"], "must be a multiple of 8"),
        (["--id", "who"], "--id: this is for tables"),
        (["--noise", "0.2"], "--noise: this is for tables"),
        (["--train.lr", "0.1"], "`--train.lr`: for videos this is chosen"),
        (["--num-context", "0"], "at least 1"),
        (["--copies", "-1"], "`copies` must be 0 or more"),
        (["--num-context", "40"], "No video has 40 + 1 frames"),
        (["--width", "20"], "multiple of 32"),
        (["--steps", "0"], "`--steps` must be at least 1"),
        (["--on-bad", "raise"], "broken.avi is not a video"),
        (["--autoencoder", "nowhere"], "holds no config.json"),
        (["--dataset", "clevrer"], "holds no films of CLEVRER"),
    ],
)
def test_what_fit_refuses(films, tmp_path, capsys, options, text):
    usual = [o for o in TINY if "--autoencoder" not in options or o not in ("--autoencoder-steps", "6")]
    with pytest.raises(SystemExit, match="2"):
        call("fit", films, *usual, *options, "--output", tmp_path / "run")
    assert text in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_folders_without_videos_and_tables_with_options_of_videos(tmp_path, capsys):
    (tmp_path / "none").mkdir()
    assert "holds no videos" in fails(capsys, "fit", tmp_path / "none", "--output", tmp_path / "run")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.mp4").write_bytes(b"")
    text = fails(capsys, "fit", tmp_path / "bad", "--num-workers", "0", "--no-progress", "--output", tmp_path / "r")
    assert "No video can be used" in text and "a.mp4 is empty" in text
    (tmp_path / "t.csv").write_text("a,b\n1,2\n2,3\n")
    assert "--size: this is for videos" in fails(capsys, "fit", tmp_path / "t.csv", "--size", "32")


# Sample


def test_futures_of_a_clip_in_every_form(films, run_dir, tmp_path, capsys):
    clip, options = films / "scene1.mp4", ["--num-paths", "4", "--fps", "2x", "--frames", "6"]
    for name in ("out.mp4", "out.gif", "out.png", "out.npz"):
        call("sample", run_dir, clip, *options, "--output", tmp_path / name)
    assert "4 futures of scene1.mp4, 6 frames at 20 per second after 3 given ones" in capsys.readouterr().out
    found = np.load(tmp_path / "out.npz")
    assert found["frames"].shape == (4, 6, 3, 16, 16) and found["frames"].dtype == np.uint8
    np.testing.assert_allclose(found["times"], np.arange(1, 7) / 20, rtol=1e-4)
    np.testing.assert_array_equal(found["given"], read_video(clip, FrameSettings(size=(16, 16))).frames[-3:])
    film = frames_of(tmp_path / "out.mp4")
    assert len(film) == 5 + 6 and film.shape[2] > 4 * 128  # given frames stay for two of the film's
    assert np.abs(film[0].astype(int) - film[1]).mean() < 1
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert container.streams.video[0].average_rate == pytest.approx(20, rel=1e-3)
    call("sample", run_dir, clip, "--fps", "4x", "--frames", "4", "--speed", "0.25", "--output", tmp_path / "slow.mp4")
    with av.open(str(tmp_path / "slow.mp4")) as container:
        assert container.streams.video[0].average_rate == pytest.approx(10, rel=1e-3)


def test_the_same_seed_gives_the_same_futures_and_others_differ(films, run_dir, tmp_path):
    made = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        output = tmp_path / f"{name}.npz"
        call("sample", run_dir, films / "scene1.mp4", "--seed", seed, "--num-paths", "2", "--output", output)
        made[name] = np.load(output)["frames"]
    assert np.array_equal(made["a"], made["b"]) and not np.array_equal(made["a"], made["c"])
    assert not np.array_equal(made["a"][0], made["a"][1])


def test_clips_of_other_sizes_rates_and_colours(run_dir, films, tmp_path):
    big = clips([3], num_frames=31, fps=30.0, size=64).frames[0].permute(0, 2, 3, 1).numpy()
    grey = np.repeat(big.mean(-1, keepdims=True).astype(np.uint8), 3, axis=-1)
    for name, frames in (("wide.mp4", np.pad(big, [(0, 0), (0, 0), (20, 21), (0, 0)])), ("grey.avi", grey)):
        codec = {"codec": "libx264"} if name.endswith("mp4") else {"codec": "mpeg4"}
        write_film(tmp_path / name, frames[:, :, : frames.shape[2] // 2 * 2], rate=30, **codec)
        call("sample", run_dir, tmp_path / name, "--frames", "2", "--output", tmp_path / "out.npz")
        given = np.load(tmp_path / "out.npz")["given"]
        whole = read_video(tmp_path / name, FrameSettings(size=(16, 16))).frames
        np.testing.assert_array_equal(given, whole[[-7, -4, -1]])  # a tenth of a second apart


def test_what_follows_is_shown_as_the_truth(films, run_dir, tmp_path):
    call("sample", run_dir, films / "scene1.mp4", "--at", "0.5", "--frames", "4", "--output", tmp_path / "with.mp4")
    call("sample", run_dir, films / "scene1.mp4", "--frames", "4", "--output", tmp_path / "without.mp4")
    one, other = frames_of(tmp_path / "with.mp4"), frames_of(tmp_path / "without.mp4")
    assert one.shape[2] > other.shape[2] + 100 and len(one) == len(other) == 7


def test_it_is_no_model_of_tables(run_dir, tmp_path, capsys):
    (tmp_path / "t.csv").write_text("t,x\n0,1\n1,2\n")
    for command in (
        ("evaluate",),
        ("plot",),
        ("forecast", "--data", tmp_path / "t.csv"),
        ("evaluate", "--data", tmp_path / "t.csv"),
    ):
        assert "holds a model of videos" in fails(capsys, command[0], run_dir, *command[1:])


def test_bad_clips_are_refused_with_a_remedy(films, run_dir, tmp_path, capsys):
    for name, text in (
        ("broken.avi", "broken.avi is not a video that can be read"),
        ("sound.mp4", "sound.mp4 holds sound and no pictures"),
        ("empty.mkv", "empty.mkv is empty"),
        ("nowhere.mp4", "nowhere.mp4 is not there"),
        ("short.mp4", "short.mp4 is too short: 2 frame(s)"),
    ):
        said = fails(capsys, "sample", run_dir, films / name, "--output", tmp_path / "out.mp4")
        assert text in said and "at least 3 frames at 10 per second (0.2 s)" in said
    slow = np.repeat(frames_of(films / "scene0.mp4")[:6], 1, axis=0)
    write_film(tmp_path / "slow.mp4", slow, rate=2)
    assert "2 frames per second" in fails(capsys, "sample", run_dir, tmp_path / "slow.mp4")
    clip = films / "scene0.mp4"
    for options, text in (
        (["--fps", "fast"], "such as 2x. Got 'fast'"),
        (["--fps", "0"], "must be a positive number"),
        (["--fps", "20x"], "plays at most at 100"),
        (["--frames", "0"], "`--frames` must be at least 1"),
        (["--num-paths", "0"], "`--num-paths` must be at least 1"),
        (["--speed", "0"], "`--speed` must be positive"),
        (["--at", "9"], "lasts 1.3 s. Got at=9"),
        (["--stop", "1"], "--stop: this is for paths of numbers"),
        (["--output", "out.csv"], "must end in .mp4, .gif, .png, .npz"),
    ):
        assert text in fails(capsys, "sample", run_dir, clip, *options)
    assert "Give a clip: nsde sample" in fails(capsys, "sample", run_dir)
    assert "is no model of videos" in fails(capsys, "sample", run_dir / "autoencoder", clip)
    assert "--frames: this is for a model of videos" in fails(
        capsys, "sample", run_dir / "autoencoder", "--stop", "1", "--frames", "3"
    )


# Demonstration


def test_the_demonstration_draws_futures_and_slow_motion(run_dir, tmp_path, capsys):
    call("demo", "video", "--model", run_dir, "--num-paths", "3", "--output", tmp_path / "demo")
    out = capsys.readouterr().out
    assert "3 futures of 12 frames" in out and "12 network passes each" in out
    names = {p.name for p in (tmp_path / "demo").iterdir()}
    wanted = {f"{name}.{kind}" for name in ("futures", "slow") for kind in ("mp4", "gif", "png")}
    assert names == wanted | {"report.html", "results.json"}
    results = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert results["slow"]["frames"] == 48 and 0.1 < results["collision"] < 0.8
    assert len(frames_of(tmp_path / "demo" / "futures.mp4")) == 3 + 12
    assert len(frames_of(tmp_path / "demo" / "slow.mp4")) == 9 + 48
    assert (tmp_path / "demo" / "report.html").read_text().count("data:image/") == 4


def test_the_truth_beside_the_futures_is_that_of_the_scene():
    """Filmed at four times the rate, the frames of the lower rate are among them; the collision is where it is said to be."""
    scene, hit = demo.collision(0, 0.3, 1.5)
    made = clips([scene], num_frames=20, fps=10.0, size=16)
    assert any(abs(contact["time"] - hit) < 1e-9 for contact in made.contacts)
    with pytest.raises(ValueError, match="so many scenes have a collision"):
        demo.collision(1_000, 0.3, 1.5)


def test_a_copy_without_weights_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo.resources, "files", lambda name: tmp_path)
    assert "holds no trained model of videos" in fails(capsys, "demo", "video", "--output", tmp_path / "demo")
    assert "--policy: this is for `nsde demo pusht`" in fails(capsys, "demo", "video", "--policy", "x")


def test_the_shipped_model():
    try:
        folder = demo.shipped()
    except ValueError:
        pytest.skip("no model of videos is shipped yet")
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) <= 15_000_000
    video = load_video_model(folder)
    assert video.settings.shape[0] == 3 and video.context >= 2


# Public data sets, from files of their form


def test_clevrer_from_its_files_to_a_model(tmp_path, capsys):
    """Films named, sized, timed and split as those of CLEVRER; every fifth frame is used."""
    numbers = [0, 1, 999, 10_000, 15_000]
    made = clips(range(len(numbers)), num_frames=26, fps=25.6, size=32).frames.permute(0, 1, 3, 4, 2).numpy()
    for number, frames in zip(numbers, made):
        first = number // 1_000 * 1_000
        file = tmp_path / "clevrer" / f"video_{first:05d}-{first + 1_000:05d}" / f"video_{number:05d}.mp4"
        write_film(file, frames.repeat(10, axis=1).repeat(15, axis=2), rate=Fraction(128, 5))
    call("data", "clevrer", "--from", tmp_path / "clevrer", "--num-workers", "0", "--output", tmp_path / "shards")
    out = capsys.readouterr().out
    assert "train 3 of 10,000, validation 1 of 5,000, test 1 of 5,000" in out and "30 frames of 3×128×128" in out
    options = ["--num-context", "2", "--width", "32", "--batch-size", "1", "--autoencoder-steps", "1", "--steps", "1"]
    options += ["--no-progress", "--cpu"]
    call("fit", tmp_path / "shards", *options, "--output", tmp_path / "run")
    video = load_video_model(tmp_path / "run")
    assert video.settings.shape == (3, 128, 128) and video.fps == pytest.approx(5.12, rel=1e-3)
    scores = json.loads((tmp_path / "run" / "results.json").read_text())["scores"]
    assert (scores["num_clips"], scores["future"]) == (1, 4)
    clip = tmp_path / "clevrer" / "video_15000-16000" / "video_15000.mp4"
    call("sample", tmp_path / "run", clip, "--frames", "2", "--num-paths", "2", "--output", tmp_path / "out.npz")
    assert np.load(tmp_path / "out.npz")["frames"].shape == (2, 2, 3, 128, 128)

    # In one command, smaller
    where = ["--dataset", "clevrer", "--size", "16", "--num-workers", "0", "--output", tmp_path / "whole"]
    call("fit", tmp_path / "clevrer", *options, *where)
    assert "Not all films are there" in (tmp_path / "whole" / "report.md").read_text()
    assert load_video_model(tmp_path / "whole").fps == pytest.approx(5.12, rel=1e-3)


@pytest.mark.skipif("NEURALSDE_DATA" not in os.environ, reason="NEURALSDE_DATA names no folder with kth")
def test_kth_from_its_files_to_a_model(tmp_path):
    source = Path(os.environ["NEURALSDE_DATA"]) / "kth"
    (tmp_path / "kth").mkdir()
    for name in ("person01_walking_d1", "person04_running_d1", "person23_running_d3"):
        (tmp_path / "kth" / f"{name}_uncomp.avi").symlink_to(source / f"{name}_uncomp.avi")
    (tmp_path / "kth" / "00sequences.txt").symlink_to(source / "00sequences.txt")
    call("fit", tmp_path / "kth", "--dataset", "kth", *TINY, "--num-context", "4", "--output", tmp_path / "run")
    video = load_video_model(tmp_path / "run")
    assert video.settings.shape == (1, 16, 16) and video.fps == pytest.approx(25, rel=1e-3)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["videos"]["files_read"] == 3 and results["scores"]["future"] == 12
    report = (tmp_path / "run" / "report.md").read_text()
    assert "596 of the 599 files listed are not there" in report and "the part `test`" in report
    clip = source / "person25_boxing_d4_uncomp.avi"
    call("sample", tmp_path / "run", clip, "--frames", "3", "--fps", "2x", "--output", tmp_path / "out.mp4")
    assert len(frames_of(tmp_path / "out.mp4")) == 7 + 3


# The page


def test_the_page_runs_as_it_stands(tmp_path, monkeypatch):
    """Films, the first two commands and the Python of docs/guides/videos.md, with a smaller net and fewer steps."""
    text = (Path(__file__).parents[1] / "docs" / "guides" / "videos.md").read_text(encoding="utf-8")
    make, use, save = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    fit, sample = [line.split()[1:] for line in re.findall(r"\n\n```\n(.*?)```", text, flags=re.DOTALL)[0].splitlines()]
    monkeypatch.chdir(tmp_path)
    exec(make.replace("range(8), num_frames=40", "range(4), num_frames=20"), {})
    call(*fit, "--width", "32", "--batch-size", "1", "--autoencoder-steps", "1", "--steps", "1", "--no-progress")
    call(*sample)
    exec(use, {})
    exec(save, {})
    call("sample", "small", "films/0.mp4", "--frames", "2")
    assert (tmp_path / "futures.mp4").stat().st_size > 1_000
