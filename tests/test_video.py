"""Video prediction end to end on small clips: autoencoder, latents, futures, scores."""

import hashlib
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from neuralsde.experiments.collisions.config import CollisionsConfig
from neuralsde.experiments.config import Experiment
from neuralsde.experiments.recipes.registry import RECIPES
from neuralsde.experiments.run import run
from neuralsde.experiments.tasks import clips, video
from neuralsde.experiments.video_config import ClipsConfig, FramesConfig, VideoConfig, VideoVariant
from neuralsde.metrics.video import quality
from neuralsde.models.build import load
from neuralsde.models.sequence import Draw
from neuralsde.nets.config import ConvConfig, MLPConfig, UViTConfig
from neuralsde.sde.config import Deterministic, NeuralSDEConfig
from neuralsde.training.config import TrainConfig
from neuralsde.video.predict import ClipBatch, as_values, cubic, encode_clips, predict, straight

CLIPS = ClipsConfig(length=6, collisions=CollisionsConfig(size=16, num_train=24, num_validation=8, num_test=8))
SHORT = TrainConfig(steps=8, batch_size=16, lr=3e-3, ema=0.9)
UVIT = UViTConfig(width=32)


@pytest.fixture(scope="module")
def autoencoder(tmp_path_factory):
    """A run of the recipe, on 16 × 16 frames."""
    recipe = RECIPES["collisions-autoencoder"]()
    task = FramesConfig(clips=CLIPS, num_frames=120, num_test=24)
    small = replace(recipe.model, net=ConvConfig(down=4, width=8))
    folder = tmp_path_factory.mktemp("autoencoder")
    outcome = run(Experiment(name=recipe.name, task=task, model=small, train=replace(SHORT, steps=100)), folder)
    return folder / "model", outcome


def task(folder, **settings):
    return VideoConfig(clips=CLIPS, autoencoder=str(folder), num_clips=6, num_paths=3, **settings)


def test_an_autoencoder_is_trained_finished_and_scored(autoencoder):
    folder, outcome = autoencoder
    model = load(folder)
    assert outcome.results["psnr"] > 15 and 0 < outcome.results["ssim"] < 1 and outcome.results["num_frames"] == 24
    frames = as_values(clips.read_clips(CLIPS, "train")[0].flatten(0, 1))
    z = model.encode(frames)
    assert float((z.std((0, 2, 3)) - 1).abs().max()) < 0.1  # its units were set before it was saved


@pytest.mark.parametrize("name", ["collisions", "collisions-flow-matching", "collisions-pfi", "collisions-regression"])
def test_recipes_train_and_score(autoencoder, name, tmp_path):
    recipe = RECIPES[name]()
    model = replace(recipe.model, net=UVIT, history=3)
    scores = run(Experiment(name=name, task=task(autoencoder[0]), model=model, train=SHORT), tmp_path / "run").results
    assert scores["num_clips"] == 6 and np.isfinite([scores["psnr"], scores["ssim"], scores["motion_distance"]]).all()
    assert scores["decoder: psnr"] > scores["copy: psnr"] - 3
    assert scores["passes_per_frame"] == {"collisions": 1, "collisions-regression": 1}.get(name, 10)
    assert len(scores["psnr_by_clip"].split()) == 6 and len(scores["psnr_by_frame"]) == 3
    assert scores["motion_distance_half_width"] > 0
    assert ("reduced_loss" in scores) == (name in ("collisions", "collisions-regression"))


def test_one_model_is_scored_in_many_ways(autoencoder):
    """Passes, noise, frames between training frames, longer clips and other parts: beside the scores, with their names."""
    ways = ("sampled", "latents", "cubic", "pixels")
    variants = (
        VideoVariant(name="same"),
        VideoVariant(name="four", passes=4),
        VideoVariant(name="quiet", diffusion=0.0),
        VideoVariant(name="long", length=9),
        VideoVariant(name="choice", part="validation"),
        *(VideoVariant(name=way, rate=2, between=way, diffusion=0.0) for way in ways),
    )
    recipe = RECIPES["collisions"]()
    model = replace(recipe.model, net=UVIT, history=3)
    setting = task(autoencoder[0], variants=variants)
    scores = run(Experiment(name="collisions", task=setting, model=model, train=SHORT)).results
    passes = {name: scores[f"{name}: passes_per_frame"] for name in ("four", "quiet", "long", "choice", *ways)}
    assert passes == {
        "four": 4,
        "quiet": 1,
        "long": 1,
        "choice": 1,
        "sampled": 2,
        "latents": 1,
        "cubic": 1,
        "pixels": 1,
    }
    assert len(scores["long: psnr_by_frame"]) == 6 and "long: copy: psnr" in scores
    assert scores["four: psnr_by_clip"] != scores["psnr_by_clip"] and "choice: psnr_by_clip" not in scores
    assert scores["same: psnr"] == pytest.approx(scores["psnr"], abs=1e-3)  # the same noise, though fewer futures
    assert scores["quiet: psnr"] != scores["psnr"] != scores["choice: psnr"]
    assert len({scores[f"{way}: psnr"] for way in ways}) == 4


def test_the_true_frames_between_are_those_that_are_scored(autoencoder, monkeypatch):
    """A model that draws the truth at any time scores as well as the decoder does."""
    from neuralsde.models.build import build

    setting = task(autoencoder[0])
    config = NeuralSDEConfig(net=MLPConfig(width=8, depth=1), history=3, law=Deterministic(), denoiser=None, noise=0.0)
    model = build(config, video.VideoTask(setting).data().transitions(history=3))
    truth = video._truth(CLIPS, "test", 6, 3, 2, setting.autoencoder)
    fine = replace(CLIPS, length=11, collisions=replace(CLIPS.collisions, fps=10.24))
    frames, _ = clips.read_clips(fine, "test", 6)
    assert torch.equal(frames[:, ::2], clips.read_clips(CLIPS, "test", 6)[0])
    z = encode_clips(truth.autoencoder, frames[:, 4:])

    def draw(given, at, **_):
        return Draw(z[:, None] if at.shape[1] == 7 else z[:, None, ::2][:, :, [*range(4), 3]], {"flow": 4})

    model.draw = draw
    sampled = video._scores_between(model, truth, VideoVariant(name="x", rate=2), model.sampler, 0)
    drawn = truth.decode(z[:, 1::2])
    expected = quality(drawn, as_values(frames[:, 5::2]))[0]
    assert sampled["psnr"] == pytest.approx(expected["psnr"])
    faded = video._scores_between(model, truth, VideoVariant(name="x", rate=2, between="pixels"), model.sampler, 0)
    ends = torch.cat([truth.known[:, None], truth.decode(z[:, 2::2])], dim=1)
    expected = quality((ends[:, 1:] + ends[:, :-1]) / 2, as_values(frames[:, 5::2]))[0]
    assert faded["ssim"] == pytest.approx(expected["ssim"])


def test_cubics_follow_cubics_and_lines_follow_lines():
    t = torch.arange(-1.0, 7.0, dtype=torch.float64)[None, :, None]
    fine = torch.arange(20, dtype=torch.float64)[None, :, None] / 4
    between = [k for k in range(20) if k % 4]
    line, parabola = (lambda x: 2 * x - 1), (lambda x: x**2 - 3 * x)
    torch.testing.assert_close(straight(line(t)[:, 1:7], 4), line(fine[:, between]))
    torch.testing.assert_close(cubic(*_ends(parabola(t)), 4), parabola(fine[:, between]))


def _ends(x):
    return x[:, 0], x[:, 1:7], x[:, 7]


def test_what_was_made_is_kept_for_other_processes(autoencoder, tmp_path, monkeypatch):
    plain = clips.read_clips(CLIPS, "test", 3)[0]
    monkeypatch.setenv(clips.CACHE, str(tmp_path / "cache"))
    first, again = (clips.read_clips(CLIPS, "test", 3)[0] for _ in range(2))
    assert torch.equal(first, plain) and torch.equal(again, plain)
    other = clips.read_clips(replace(CLIPS, collisions=replace(CLIPS.collisions, fps=10.24)), "test", 3)[0]
    assert not torch.equal(other, plain)
    data = video.VideoTask(task(autoencoder[0])).data()
    for file in (tmp_path / "cache").glob("collisions-*"):
        file.unlink()
    again = video.VideoTask(task(autoencoder[0])).data()
    assert torch.equal(again.states, data.states) and len(list((tmp_path / "cache").glob("latents-*"))) == 1
    assert not list((tmp_path / "cache").glob("collisions-*"))


def test_rows_of_video_name_the_weights_that_they_stand_on(autoencoder):
    sums = video.VideoTask(task(autoencoder[0])).checksums()
    weights = next(Path(autoencoder[0]).rglob("model.safetensors")).read_bytes()
    assert sums == {"autoencoder_sha256": hashlib.sha256(weights).hexdigest()}


def test_latents_keep_the_true_times(autoencoder):
    data = video.VideoTask(task(autoencoder[0])).data()
    assert len(data) == 24 and data.shape == (4, 4, 4)
    np.testing.assert_allclose(data[3][1], np.arange(6) / 5.12)


def test_a_future_begins_at_the_last_known_frame(autoencoder):
    """A flow of 0 and no noise: every predicted frame is the last known one, whatever the decoder blurs."""
    setting = task(autoencoder[0])
    config = NeuralSDEConfig(net=MLPConfig(width=8, depth=1), history=3, law=Deterministic(), denoiser=None, noise=0.0)
    from neuralsde.models.build import build

    model = build(config, video.VideoTask(setting).data().transitions(history=3))  # nets give 0 at first
    frames, times = clips.read_clips(CLIPS, "test", 4)
    images, _ = predict(model, load(autoencoder[0]), frames, times, context=3, num_paths=2)
    assert images.shape == (4, 2, 3, 3, 16, 16)
    known = as_values(frames[:, 2])[:, None, None].expand_as(images)
    torch.testing.assert_close(images, known, atol=1e-5, rtol=0)


def test_smooth_futures_go_through_those_of_the_training_rate(autoencoder):
    """At the frames of the training they are what is drawn there; between, they are on cubics, the same for every rate."""
    from neuralsde.models.build import build

    model = build(
        NeuralSDEConfig(net=MLPConfig(width=8, depth=1), history=3, tau="start", denoiser=None, noise=0.0),
        video.VideoTask(task(autoencoder[0])).data().transitions(history=3),
    )
    net = load(autoencoder[0])
    frames, times = clips.read_clips(CLIPS, "test", 4)
    draw = partial(predict, model, net, frames, context=3, num_paths=2, seed=1)
    images, drawn = draw(times)
    latents = drawn.paths[:, :, 1:]
    assert float((latents[:, 0] - latents[:, 1]).std()) > 0.1  # g is not 0

    def at(*steps: float) -> torch.Tensor:
        after = times[:, 2:3] + torch.tensor(steps) / 5.12
        return torch.cat([times[:, :3], after], dim=1)

    same, below = draw(at(1, 2, 3), smooth=True)
    torch.testing.assert_close(same, images, atol=1e-4, rtol=0)
    torch.testing.assert_close(below.paths[:, :, 1:4], latents, atol=1e-4, rtol=0)
    finer = draw(at(0.5, 1, 1.5, 2, 2.5), smooth=True)[0]
    torch.testing.assert_close(finer[:, :, 1::2], images[:, :, :2], atol=1e-4, rtol=0)
    a, b, c = (latents[:, :, k] for k in range(3))
    start = encode_clips(net, frames[:, 2:3]).expand_as(a)
    decode = ClipBatch.of(net, frames, times, 3).decode
    between, halfway = (decode(z[:, :, None]) for z in ((9 * (a + b) - start - c) / 16, (a + b) / 2))
    torch.testing.assert_close(finer[:, :, 2:3], between, atol=1e-4, rtol=0)
    assert float((halfway - between).abs().max()) > 1e-2  # frames tell a cubic from a straight line


def test_parts_share_no_clip_and_settings_are_chosen_apart(autoencoder):
    parts = {part: clips.read_clips(CLIPS, part, 8)[0] for part in ("train", "validation", "test")}
    for a, b in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not any(torch.equal(x, y) for x in parts[a] for y in parts[b])


def test_bad_settings(autoencoder, tmp_path):
    with pytest.raises(ValueError, match="must leave frames to predict"):
        VideoConfig(clips=CLIPS).check_given(6)
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        video.VideoTask(task(tmp_path)).data()
    with pytest.raises(ValueError, match=r"nowhere is not there.*nsde train collisions-autoencoder"):
        video.VideoTask(task(tmp_path / "nowhere")).data()
    with pytest.raises(ValueError, match="frames between are known"):
        VideoConfig(clips=replace(CLIPS, source="films"), variants=(VideoVariant(name="x", rate=2),))
    with pytest.raises(ValueError, match="must exceed the 3 frames that are given"):
        VideoConfig(clips=CLIPS, variants=(VideoVariant(name="x", length=3),)).check_given(3)
    with pytest.raises(ValueError, match="variants of their own"):
        VideoVariant(name="x", rate=2, length=9)
    with pytest.raises(ValueError, match="at least 2 frames"):
        ClipsConfig(length=1)
    recipe = RECIPES["collisions"]()
    with pytest.raises(ValueError, match=r"must leave frames to predict. Got 6 of 6"):
        replace(recipe, task=task(tmp_path), model=replace(recipe.model, history=6))
    recipe = RECIPES["branching"]()
    with pytest.raises(ValueError, match="starts from one state"):
        run(replace(recipe, model=replace(recipe.model, history=2)))


def test_a_run_on_videos_of_ones_own_draws_futures_of_a_clip(tmp_path):
    """Few and short: too few clips for a distance, and what could not be scored at all is refused before the training."""
    pytest.importorskip("av", reason="PyAV is not installed")
    from video_files import lossless, pictures

    from neuralsde.data.videos.decode import FrameSettings
    from neuralsde.data.videos.folders import folder_clips
    from neuralsde.data.videos.sharding import write_shards
    from neuralsde.video.model import load_video_model

    for k in range(4):
        film = lossless(tmp_path / "films" / f"{k}.mkv", pictures(8, seed=k), rate=10)
    made = FrameSettings(size=(16, 16), fit="stretch")
    write_shards(folder_clips(tmp_path / "films"), tmp_path / "shards", made, num_workers=0)
    source = ClipsConfig(source=str(tmp_path / "shards"), length=6)
    brief, small = replace(SHORT, steps=2), ConvConfig(down=4, width=8)
    frames, latents = RECIPES["collisions-autoencoder"](), RECIPES["collisions"]()
    first = replace(frames, task=FramesConfig(clips=source), model=replace(frames.model, net=small), train=brief)
    run(first, tmp_path / "autoencoder")
    config = VideoConfig(clips=source, autoencoder=str(tmp_path / "autoencoder"))  # the folder of the run
    second = replace(latents, task=config, model=replace(latents.model, net=UVIT, history=3), train=brief)
    scores = run(second, tmp_path / "run").results
    assert scores["num_clips"] == 1 and np.isfinite(scores["psnr"]) and not {"motion_distance", "spread"} & set(scores)
    assert scores["note"].startswith("1 clip(s) are too few") and "--task.clips.stride 1" in scores["note"]

    whole = load_video_model(tmp_path / "run")
    assert whole.settings == made and whole.fps == pytest.approx(10)
    assert whole.futures(whole.read(film), num_frames=2, num_paths=1).frames.shape == (1, 2, 3, 16, 16)

    long = replace(source, length=9)
    for each in (replace(first, task=FramesConfig(clips=long)), replace(second, task=replace(config, clips=long))):
        with pytest.raises(
            ValueError, match=r"no clips of 9 frames to score, of the part `test`.*--task\.clips\.length"
        ):
            run(each, tmp_path / f"refused-{each.name}")
        assert not (tmp_path / f"refused-{each.name}" / "checkpoints").exists()


def test_clips_of_a_folder_of_videos(tmp_path):
    """Shards give the same windows, with the stamps of the files, spread over the part when fewer are asked for."""
    pytest.importorskip("av", reason="PyAV is not installed")
    from video_files import lossless, pictures

    from neuralsde.data.videos.decode import FrameSettings
    from neuralsde.data.videos.folders import folder_clips
    from neuralsde.data.videos.sharding import write_shards
    from neuralsde.data.videos.shards import VideoShards

    (tmp_path / "films").mkdir()
    for k in range(4):
        lossless(tmp_path / "films" / f"{k}.mkv", pictures(10, seed=k))
    write_shards(folder_clips(tmp_path / "films"), tmp_path / "shards", FrameSettings(size=(16, 16)), num_workers=0)
    source = ClipsConfig(source=str(tmp_path / "shards"), length=4, stride=3)
    windows = VideoShards.open(tmp_path / "shards").select("train").windows(4, 3)
    frames, times = clips.read_clips(source, "train")
    assert len(frames) == len(windows) == 6 and frames.dtype == torch.uint8
    np.testing.assert_array_equal(frames[4], windows.clip(4)[0])
    np.testing.assert_allclose(times[4], windows.clip(4)[1])
    few, _ = clips.read_clips(source, "train", 3)
    assert torch.equal(few, frames[::2])
    both = replace(source, source=f"{tmp_path / 'shards'}, {tmp_path / 'shards'}")
    twice, _ = clips.read_clips(both, "train")  # several folders, one after the other
    assert torch.equal(twice, torch.cat([frames, frames]))
    one = VideoShards.open(tmp_path / "shards").fingerprint
    assert clips.checksums(both) == {"clips_fingerprint": f"{one}, {one}"} and clips.checksums(CLIPS) == {}
    groups = clips.read_groups(source, "train")
    assert groups.tolist() == [0, 0, 0, 1, 1, 1] and clips.read_groups(CLIPS, "train") is None
    assert clips.has_part(source, "test") and clips.has_part(CLIPS, "validation")
    assert torch.equal(clips.read_times(source, "train", 3), clips.read_clips(source, "train", 3)[1])

    # Copies follow the clips that are learned from, at the same times; those that are scored have none
    copied = replace(source, copies=2)
    more, stamps = clips.read_clips(copied, "train")
    assert (
        more.shape == (18, *frames.shape[1:]) and torch.equal(more[:6], frames) and not torch.equal(more[6:12], frames)
    )
    assert torch.equal(stamps, times.repeat(3, 1)) and torch.equal(clips.read_times(copied, "train"), stamps)
    assert torch.equal(clips.read_clips(copied, "test")[0], clips.read_clips(source, "test")[0])
    assert clips.content(copied) != clips.content(source)
    with pytest.raises(ValueError, match="`copies` must be 0 or more"):
        replace(source, copies=-1)

    # What is kept of them belongs to the frames and to the split, not to the name of the folder
    before = clips.content(source)
    for k, change in enumerate(({"seed": 1, "test": 0.3}, {})):
        if k:
            lossless(tmp_path / "films" / "0.mkv", pictures(10, seed=9))
            shutil.rmtree(tmp_path / "shards")
        found = folder_clips(tmp_path / "films", **change)
        write_shards(found, tmp_path / "shards", FrameSettings(size=(16, 16)), num_workers=0)
        assert clips.content(source) != before
