"""Clips of video as bytes with their true times, made on the spot or from a folder of shards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from neuralsde.config.collisions import Split
from neuralsde.config.video import ClipsConfig
from neuralsde.data.videos.shards import VideoShards
from neuralsde.tasks.collisions import split_clips


def device() -> torch.device:
    """Where frames are drawn and encoded."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def read_clips(
    config: ClipsConfig, part: Split, num: int | None = None
) -> tuple[UInt8[Tensor, "N T C H W"], Float[Tensor, "N T"]]:
    """Frames and times (seconds) of the clips of a part, or of `num` of them, spread evenly over it."""
    if config.source == "collisions":
        made = split_clips(
            replace(config.collisions, num_frames=config.length),
            part,
            num=num,
            device=device(),
            num_workers=config.num_workers,
        )
        return made.frames, torch.from_numpy(made.times)[None].expand(len(made.frames), -1)
    shards = VideoShards.open(config.source).select(part, way=config.way)
    windows = shards.windows(config.length, config.stride)
    total = len(windows)
    places = np.arange(total) if num is None or num >= total else np.arange(num) * total // num
    frames, times = windows.batch(places)
    return torch.from_numpy(frames), torch.from_numpy(times).double()


def shown(frames: UInt8[Tensor, "... C H W"]) -> Float[Tensor, "... C H W"]:
    """Bytes as values from 0 to 1."""
    return frames.float() / 255
