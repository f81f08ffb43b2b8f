"""Clips of colliding objects: CLEVRER's scenes at a glance, made without limit and with the truth at any time.

A seed is a scene: its objects, how they move and what the camera sees are functions of it alone, whatever other scenes,
frame rate, size or number of processes are asked for. Frames at a higher rate contain those at a lower one that divides it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from neuralsde.experiments.collisions.config import NUM_OBJECTS, SAMPLES, CollisionsConfig, Split
from neuralsde.experiments.collisions.physics import Scenes, simulate
from neuralsde.experiments.collisions.render import Renderer

VERSION = 1
"""To be raised with a change after which a seed gives other frames: clips and latents that were kept are then made anew."""


@dataclass(frozen=True)
class Clips:
    """B clips of T frames, of scenes with at most N objects."""

    frames: UInt8[Tensor, "B T 3 H W"]
    states: Float[Tensor, "B T N 6"]  # x, y, angle and their rates; zero where an object is not there
    kinds: Int[Tensor, "B N 3"]  # places in SHAPES, COLOURS and MATERIALS
    mask: Bool[Tensor, "B T N"]  # where an object is there, in view or close by
    times: np.ndarray  # (T,) seconds
    contacts: np.ndarray  # (K,) of dtype CONTACT: collisions up to the last frame; `scene` is the row


def clips(
    seeds: Sequence[int] | np.ndarray,
    *,
    config: CollisionsConfig | None = None,
    device: torch.device | str = "cpu",
    start: float = 0.0,
    num_workers: int = 1,
    **look: Any,
) -> Clips:
    """The scenes of `seeds`, filmed from `start` on; tensors are on `device`, `num_workers` processes simulate.

    `look` are settings of the config: size, fps, num_frames.
    """
    config = config or CollisionsConfig(**look)
    times = start + np.arange(config.num_frames) / config.fps
    scenes = simulate(seeds, times, num_objects=NUM_OBJECTS, num_workers=num_workers)
    renderer = Renderer(config.size, device=device, samples=SAMPLES)
    states, kinds, mask = (torch.from_numpy(v).to(device) for v in (scenes.states, scenes.kinds, scenes.mask))
    return Clips(film(scenes, renderer), states, kinds, mask, times, scenes.contacts)


def split_clips(config: CollisionsConfig, split: Split, *, num: int | None = None, **options: Any) -> Clips:
    """The clips of a split, or its first `num`; `options` are those of `clips`."""
    return clips(config.seeds(split)[:num], config=config, **options)


def film(scenes: Scenes, renderer: Renderer) -> UInt8[Tensor, "B T 3 H W"]:
    """Frames of scenes that have been simulated."""
    num_scenes, num_times = scenes.mask.shape[:2]
    kinds = np.repeat(scenes.kinds, num_times, axis=0)
    states, mask = (torch.from_numpy(v).flatten(0, 1) for v in (scenes.states, scenes.mask))
    return renderer(states, torch.from_numpy(kinds), mask).unflatten(0, (num_scenes, num_times))
