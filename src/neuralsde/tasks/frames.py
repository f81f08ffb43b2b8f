"""Frames of video, to train and score an autoencoder: how well it draws frames that it has not seen."""

from __future__ import annotations

from typing import Any

import torch

from neuralsde.data.trajectories import Trajectories
from neuralsde.experiments.video_config import FramesConfig
from neuralsde.metrics.video import quality
from neuralsde.models.sequence import SequenceModel
from neuralsde.tasks.clips import check_part, read_clips, read_groups
from neuralsde.video.autoencoder import Autoencoder
from neuralsde.video.clips import one_path
from neuralsde.video.predict import device, shown


def data(config: FramesConfig, seed: int = 0) -> Trajectories:
    """Frames of the training clips."""
    check_part(config.clips, "test")
    clips = read_clips(config.clips, "train", -(-config.num_frames // config.clips.length))[0]
    return one_path(shown(clips.flatten(0, 1)[: config.num_frames].to(device())))


def finish(model: SequenceModel, data: Trajectories) -> SequenceModel:
    """Set the units of the latents: the last step before an autoencoder is frozen."""
    assert isinstance(model, Autoencoder)
    model.fit_latents(data.states)
    return model


def assess(model: SequenceModel, config: FramesConfig, *, seed: int = 0) -> tuple[dict[str, Any], None]:
    """PSNR and SSIM of frames of the test part: the ceiling of every prediction that is decoded from latents."""
    assert isinstance(model, Autoencoder)
    num_clips = -(-config.num_test // config.clips.length)
    frames = read_clips(config.clips, "test", num_clips)[0].flatten(0, 1)
    truth = shown(frames[: config.num_test]).to(model.shift.device)
    drawn = model.decode(model.encode(truth))
    sizes = {"num_frames": len(truth), "parameters": sum(p.numel() for p in model.parameters())}
    clip = torch.arange(len(truth)) // config.clips.length
    recordings = read_groups(config.clips, "test", num_clips)
    return sizes | quality(drawn[:, None], truth[:, None], clip if recordings is None else recordings[clip])[0], None
