"""Frames of video, to train and score an autoencoder: how well it draws frames that it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from neuralsde.autoencoder import Autoencoder
from neuralsde.config.video import FramesConfig
from neuralsde.models.sequence import SequenceModel
from neuralsde.config import FramesConfig
from neuralsde.data.trajectories import Trajectories
from neuralsde.sequence import SequenceModel
from neuralsde.tasks.clips import check_part, device, quality, read_clips, read_groups, shown


def autoencoder_folder(folder: str) -> Path:
    """Where the autoencoder lies: in a folder of `save_pretrained`, of a run, or of a model of videos."""
    place = Path(folder)
    inner = [place / "model" / "autoencoder", place / "autoencoder" / "model", place / "autoencoder", place / "model"]
    return next((where for where in inner if (where / "config.json").is_file()), place)


def data(config: FramesConfig, seed: int = 0) -> Trajectories:
    """All frames as one path: each is the end of a transition, which is all that an autoencoder sees of it."""
    check_part(config.clips, "test")
    clips = read_clips(config.clips, "train", -(-config.num_frames // config.clips.length))[0]
    frames = shown(clips.flatten(0, 1)[: config.num_frames].to(device()))
    times = torch.arange(len(frames), dtype=torch.float64, device=frames.device)
    return Trajectories(frames, times, torch.tensor([len(frames)], device=frames.device))


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
