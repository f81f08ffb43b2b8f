"""Video prediction end to end on small clips: autoencoder, latents, futures, scores."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from neuralsde.config import (
    ClipsConfig,
    ConvConfig,
    Experiment,
    FramesConfig,
    MLPConfig,
    NeuralSDEConfig,
    TrainConfig,
    UViTConfig,
    VideoConfig,
)
from neuralsde.config.collisions import CollisionsConfig
from neuralsde.experiment import run
from neuralsde.models import load
from neuralsde.recipes import RECIPES
from neuralsde.tasks import clips, video

CLIPS = ClipsConfig(
    length=6, num_workers=1, collisions=CollisionsConfig(size=16, num_train=24, num_validation=8, num_test=8, samples=1)
)
SHORT = TrainConfig(steps=60, batch_size=16, lr=3e-3, ema=0.9, progress=False)
UVIT = UViTConfig(width=32, depth=3)


@pytest.fixture(scope="module")
def autoencoder(tmp_path_factory):
    """A run of the recipe, on 16 × 16 frames."""
    recipe = RECIPES["collisions-autoencoder"]()
    task = FramesConfig(clips=CLIPS, num_frames=120, num_test=24)
    small = replace(recipe.model, net=ConvConfig(down=4, latent=4, width=8, blocks=1))
    folder = tmp_path_factory.mktemp("autoencoder")
    outcome = run(Experiment(name=recipe.name, task=task, model=small, train=replace(SHORT, steps=150)), folder)
    return folder / "model", outcome


def task(folder, **settings):
    return VideoConfig(clips=CLIPS, context=3, autoencoder=str(folder), num_clips=6, num_paths=3, **settings)


def test_an_autoencoder_is_trained_finished_and_scored(autoencoder):
    folder, outcome = autoencoder
    model = load(folder)
    assert outcome.results["psnr"] > 15 and 0 < outcome.results["ssim"] < 1 and outcome.results["num_frames"] == 24
    frames = clips.shown(clips.read_clips(CLIPS, "train")[0].flatten(0, 1))
    z = model.encode(frames)
    assert float((z.std((0, 2, 3)) - 1).abs().max()) < 0.1  # its units were set before it was saved


@pytest.mark.parametrize("name", ["collisions", "collisions-flow-matching", "collisions-pfi", "collisions-regression"])
def test_recipes_train_and_score(autoencoder, name, tmp_path):
    recipe = RECIPES[name]()
    model = replace(recipe.model, net=UVIT, history=3)
    scores = run(Experiment(name=name, task=task(autoencoder[0]), model=model, train=SHORT), tmp_path / "run").results
    assert scores["num_clips"] == 6 and np.isfinite([scores["psnr"], scores["ssim"], scores["motion_distance"]]).all()
    assert scores["decoder: psnr"] > scores["copy: psnr"] - 3
    passes = {"collisions": 3, "collisions-regression": 3}.get(name, 30)
    assert scores["network_passes"] == passes  # three frames


def test_latents_keep_the_true_times(autoencoder):
    data = video.data(task(autoencoder[0]))
    assert len(data) == 24 and data.shape == (4, 4, 4)
    np.testing.assert_allclose(data[3][1], np.arange(6) / 5.12)


def test_a_future_begins_at_the_last_known_frame(autoencoder):
    """A flow of 0 and no noise: every predicted frame is the last known one, whatever the decoder blurs."""
    setting = task(autoencoder[0])
    config = NeuralSDEConfig(net=MLPConfig(width=8, depth=1), history=3, diffusion=False, denoiser=False, noise=0.0)
    from neuralsde.models import build

    model = build(config, video.data(setting).transitions(history=3))  # nets give 0 at first
    frames, times = clips.read_clips(CLIPS, "test", 4)
    images, _ = video.predict(model, load(autoencoder[0]), frames, times, context=3, num_paths=2)
    assert images.shape == (4, 2, 3, 3, 16, 16)
    known = clips.shown(frames[:, 2])[:, None, None].expand_as(images)
    torch.testing.assert_close(images, known, atol=1e-5, rtol=0)


def test_parts_share_no_clip_and_settings_are_chosen_apart(autoencoder):
    parts = {part: clips.read_clips(CLIPS, part, 8)[0] for part in ("train", "validation", "test")}
    for a, b in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not any(torch.equal(x, y) for x in parts[a] for y in parts[b])


def test_bad_settings(autoencoder, tmp_path):
    with pytest.raises(ValueError, match="must leave frames to predict"):
        VideoConfig(clips=CLIPS, context=6)
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        video.data(task(tmp_path))
    with pytest.raises(ValueError, match="at least 2 frames"):
        ClipsConfig(length=1)
    recipe = RECIPES["branching"]()
    with pytest.raises(ValueError, match="starts from one state"):
        run(replace(recipe, model=replace(recipe.model, history=2)))


def test_clips_of_a_folder_of_videos(tmp_path):
    """Shards give the same windows, with the stamps of the files, spread over the part when fewer are asked for."""
    pytest.importorskip("av", reason="PyAV is not installed")
    from neuralsde.data.videos.decode import FrameSettings
    from neuralsde.data.videos.folders import folder_clips
    from neuralsde.data.videos.sharding import write_shards
    from neuralsde.data.videos.shards import VideoShards
    from video_files import lossless, pictures

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
