"""Clips of colliding objects: how they look and how many there are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from neuralsde.core.doors import check_fields
from neuralsde.core.records import check

Split = Literal["train", "validation", "test"]
SPLIT_SIZE = 1_000_000  # seeds of a split: training scenes from 0, validation from 1,000,000, test from 2,000,000
SIZES = (16, 512)  # least and largest side of an image
MOST_OBJECTS = 8  # as many as there are colours
NUM_OBJECTS = (2, 5)  # least and largest number of objects in a scene
SAMPLES = 2  # rays along each side of a pixel, where there are objects
LONGEST = 60.0  # seconds of a clip; after five, nothing new comes into a scene


@dataclass(frozen=True, kw_only=True)
class CollisionsConfig:
    """Spheres, cubes and cylinders that slide, collide and are filmed; CLEVRER has 25.6 frames per second."""

    size: int = 64
    """Side of an image."""
    fps: float = 5.12
    """Frames per second; every fifth of CLEVRER's."""
    num_frames: int = 26
    """Frames of a clip: a scene of five seconds."""
    num_train: int = 20_000
    """Clips to learn from."""
    num_validation: int = 512
    """Clips to choose settings by."""
    num_test: int = 1_024
    """Clips for reported numbers alone."""

    def __post_init__(self) -> None:
        check_fields(self)
        low, high = SIZES
        check(low <= self.size <= high, f"`size` must be from {low} to {high} pixels. Got {self.size=}.")
        check(
            math.isfinite(self.fps) and self.fps > 0,
            f"`fps` must be a positive number of frames per second. Got {self.fps=}. CLEVRER has 25.6.",
        )
        check(self.num_frames >= 1, f"`num_frames` must be at least 1. Got {self.num_frames=}.")
        length = (self.num_frames - 1) / self.fps
        check(
            length <= LONGEST,
            f"A clip must not last longer than {LONGEST:g} s. Got {self.num_frames=} at {self.fps=}: {length:g} s. "
            "Ask for fewer frames or more per second.",
        )
        for name in ("num_train", "num_validation", "num_test"):
            num = getattr(self, name)
            check(1 <= num <= SPLIT_SIZE, f"`{name}` must be from 1 to {SPLIT_SIZE:,} clips. Got {name}={num}.")

    def seeds(self, split: Split) -> range:
        """Of the scenes of a split; no two splits share one."""
        splits = get_args(Split)
        check(split in splits, f"`split` must be one of {', '.join(splits)}. Got {split!r}.")
        first = SPLIT_SIZE * splits.index(split)
        return range(first, first + getattr(self, f"num_{split}"))
