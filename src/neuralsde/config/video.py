"""Clips of video: where they come from, what is predicted, and the autoencoder of their frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from neuralsde.config.collisions import CollisionsConfig
from neuralsde.records import Choice, check, check_choices


@dataclass(frozen=True, kw_only=True)
class ClipsConfig:
    """Clips of one length."""

    source: str = "collisions"
    """Made on the spot, or a folder of shards as `nsde data` leaves it."""
    collisions: CollisionsConfig = field(default_factory=CollisionsConfig)
    """How they are made: size, rate and number; their length is told here."""
    way: str | None = None
    """Of a folder: the way of splitting it, where there are several."""
    stride: int = 4
    """Of a folder: frames from the start of one clip to that of the next."""
    length: int = 16
    """Frames of a clip."""
    num_workers: int = 2
    """Processes that simulate."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("stride", "num_workers"):
            check(getattr(self, name) >= 1, f"`{name}` must be at least 1. Got {name}={getattr(self, name)}.")
        check(self.length >= 2, f"A clip needs at least 2 frames. Got {self.length=}.")


@dataclass(frozen=True, kw_only=True)
class FramesConfig(Choice):
    """Single frames of clips, for an autoencoder."""

    clips: ClipsConfig = field(default_factory=ClipsConfig)
    """Where they come from."""
    num_frames: int = 100_000
    """Frames to learn from, at most."""
    num_test: int = 1_024
    """Frames of the test part that are scored."""
    lag: float | None = None
    """Frames are learned one by one."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("num_frames", "num_test"):
            check(getattr(self, name) >= 2, f"`{name}` must be at least 2. Got {name}={getattr(self, name)}.")


@dataclass(frozen=True, kw_only=True)
class VideoConfig(Choice):
    """The next frames of clips, learned in the latents of a frozen autoencoder (the paper's Section 4.3)."""

    clips: ClipsConfig = field(default_factory=ClipsConfig)
    """What is learned and scored: frames that are given, then frames that are predicted."""
    context: int = 4
    """Frames that are given; the state of the model holds as many."""
    autoencoder: str = "runs/collisions-autoencoder/model"
    """Folder of the trained autoencoder."""
    part: Literal["validation", "test"] = "test"
    """What is scored; settings are chosen on validation clips."""
    num_clips: int = 256
    """Clips that are scored."""
    num_paths: int = 4
    """Futures drawn of each."""
    lag: float | None = None
    """Transitions go from one frame to the next."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("context", "num_clips", "num_paths"):
            check(getattr(self, name) >= 1, f"`{name}` must be at least 1. Got {name}={getattr(self, name)}.")
        room = self.context < self.clips.length
        check(room, f"`context` must leave frames to predict. Got {self.context} of {self.clips.length}.")
