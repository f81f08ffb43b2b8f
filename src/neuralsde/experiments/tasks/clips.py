"""Clips of video as bytes with their true times, made on the spot or from a folder of shards.

What is slow to make, clips and their latents, is kept in the folder that NEURALSDE_CACHE names, if it does.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from neuralsde.core.files import replacing, writable_folder
from neuralsde.core.records import check
from neuralsde.data.videos.copies import changed
from neuralsde.data.videos.decode import FrameSettings
from neuralsde.data.videos.shards import VideoShards, Windows
from neuralsde.experiments.collisions.clips import VERSION, split_clips
from neuralsde.experiments.collisions.config import Split
from neuralsde.experiments.video_config import ClipsConfig
from neuralsde.video.predict import device

CACHE = "NEURALSDE_CACHE"
NUM_WORKERS = 2  # processes that simulate
FEW = 100  # scenes that are simulated sooner than processes begin


def cached(name: str, key: object, make: Callable[[], Tensor]) -> Tensor:
    """What `make` gives for a key; where there is a cache, it is mapped from there the next time, by any process."""
    folder = os.environ.get(CACHE)
    if not folder:
        return make()
    file = Path(folder) / f"{name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.npy"
    if not file.exists():
        writable_folder(folder)
        with replacing(file) as place, place.open("wb") as new:
            np.save(new, make().cpu().numpy())
    return torch.from_numpy(np.load(file, mmap_mode="c"))


def read_clips(
    config: ClipsConfig, part: Split, num: int | None = None
) -> tuple[UInt8[Tensor, "N T C H W"], Float[Tensor, "N T"]]:
    """Frames and times (seconds) of the clips of a part, or of `num` of them: the first of those that are made on the spot,
    else spread evenly over it. Training clips are followed by their copies."""
    frames, times = _read(config, part, num), read_times(config, part, num)
    if part != "train" or not config.copies:
        return frames, times
    rng = torch.Generator().manual_seed(0)
    parts = frames.split(64) * config.copies
    return torch.cat([frames, *(changed(some.to(device()), rng).to(frames.device) for some in parts)]), times


def _read(config: ClipsConfig, part: Split, num: int | None) -> UInt8[Tensor, "N T C H W"]:
    if config.source != "collisions":
        return torch.from_numpy(np.stack([windows.clip(k)[0] for windows, k in _places(config, part, num)]))
    scenes, total = replace(config.collisions, num_frames=config.length), len(config.collisions.seeds(part)[:num])
    look = replace(scenes, num_train=1, num_validation=1, num_test=1)

    def make() -> Tensor:
        workers = NUM_WORKERS if total > FEW else 1
        return split_clips(scenes, part, num=total, device=device(), num_workers=workers).frames

    return cached("collisions", (VERSION, look, part, total), make)


def read_times(config: ClipsConfig, part: Split, num: int | None = None) -> Float[Tensor, "N T"]:
    """The times alone, of the same clips."""
    if config.source == "collisions":
        total = len(config.collisions.seeds(part)[:num])
        times = (torch.arange(config.length, dtype=torch.float64) / config.collisions.fps)[None].expand(total, -1)
    else:
        rows = [windows.clip(k)[1] for windows, k in _places(config, part, num)]
        times = torch.from_numpy(np.stack(rows)).double()
    return times.repeat(1 + config.copies, 1) if part == "train" else times


def read_groups(config: ClipsConfig, part: Split, num: int | None = None) -> Int[Tensor, " N"] | None:
    """The recording that each of these clips is from; None where each has one of its own."""
    if config.source == "collisions":
        return None
    names = [(windows.shards.folder, windows.videos[k]) for windows, k in _places(config, part, num)]
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([numbers[name] for name in names])


def content(config: ClipsConfig) -> object:
    """What tells clips from others, as the key of what is kept of them: a folder may be written anew, or split otherwise."""
    if config.source == "collisions":
        return VERSION, config
    folders = [(shards.fingerprint, shards.parts()) for shards in _folders(config)]
    return folders, config.length, config.stride, config.copies


def checksums(config: ClipsConfig) -> dict[str, str]:
    """Of the folders that clips are read from."""
    if config.source == "collisions":
        return {}
    return {"clips_fingerprint": ", ".join(shards.fingerprint for shards in _folders(config))}


def has_part(config: ClipsConfig, part: Split) -> bool:
    """Whether there are clips of a part; a folder may have been split in two."""
    return config.source == "collisions" or any(part in shards.parts() for shards in _folders(config))


def check_part(config: ClipsConfig, part: Split) -> None:
    """Refuse clips without this part: what is to be scored must be there before the training."""
    if config.source == "collisions":
        return
    try:
        _places(config, part, 1)
    except ValueError as error:
        wanted = f"clips of {config.length} frames to score, of the part `{part}` of {config.source}"
        remedy = "--task.clips.length shortens clips; `nsde data videos` splits a folder of at least three videos."
        raise ValueError(f"There are no {wanted}: {error} {remedy}") from None


def frame_settings(config: ClipsConfig) -> FrameSettings | None:
    """How frames were made from pictures; None where there were no pictures."""
    return None if config.source == "collisions" else _folders(config)[0].settings


def _folders(config: ClipsConfig) -> list[VideoShards]:
    return [VideoShards.open(folder.strip()) for folder in config.source.split(",")]


def _places(config: ClipsConfig, part: Split, num: int | None) -> list[tuple[Windows, int]]:
    """All clips of a part, one folder after the other, or `num` of them."""
    found: list[tuple[Windows, int]] = []
    folders = _folders(config)
    for shards in folders:
        if part in shards.parts() or len(folders) == 1:  # a single one says itself what it lacks
            windows = shards.select(part).windows(config.length, config.stride)
            found += [(windows, k) for k in range(len(windows))]
    check(bool(found), f"None of {config.source} has clips for {part}.")
    return found if num is None or num >= len(found) else [found[k * len(found) // num] for k in range(num)]
