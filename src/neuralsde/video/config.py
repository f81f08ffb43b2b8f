"""Settings of a model that is learned from videos, and the plan that a run makes of them; they need no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from neuralsde.core.doors import check_fields
from neuralsde.core.records import check
from neuralsde.models.config import ModelConfig, Normalise, Transform
from neuralsde.nets.config import ConvConfig, TinyConfig, UViTConfig
from neuralsde.sde.config import MOST_PASSES, NeuralSDEConfig
from neuralsde.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig(ModelConfig):
    """Frames as small grids of latents, and back."""

    builds: ClassVar[str] = "neuralsde.video.autoencoder:Autoencoder"

    normalise: ClassVar[Normalise] = "none"  # type: ignore[misc]
    """Frames have values from 0 to 1 as they are."""
    transform: ClassVar[Transform] = "none"  # type: ignore[misc]
    net: ConvConfig | TinyConfig = field(default_factory=ConvConfig)
    """Encoder and decoder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.history == 1, f"An autoencoder sees one frame. Got {self.history=}.")


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How videos are decoded. Defaults are those of the data set."""

    size: int | None = None
    """Height and width of frames in pixels (64, CLEVRER 128, if not given)."""
    fit: Literal["crop", "stretch"] | None = None
    """Crop a square from the middle, or stretch to one (crop, public data sets stretch, if not given)."""
    colour: bool | None = None
    """Three channels or one (colour, KTH and Weizmann grey, if not given)."""
    num_workers: int | None = None
    """Processes that decode; 0: this one alone (one per processor if not given)."""
    on_bad: Literal["skip", "raise"] = "skip"
    """Leave out files that cannot be used and name them in the report, or stop at the first."""


@dataclass(frozen=True, kw_only=True)
class VideoFit(Decoding):
    """Videos: a folder, a zip or a file of them (mp4, avi, mov, mkv, webm, gif, HDF5 of RIVER), or the shards of `nsde data`."""

    dataset: Literal["kth", "clevrer", "weizmann"] | None = None
    """The folder holds this public data set: its names, lists, split, size and frame rate are known."""
    fps: float | None = None
    """Frames per second of the model's steps; times stay those of the files. Absent: as in the files."""
    way: str | None = None
    """Which of the data set's official splits to use (the usual one if not given)."""
    num_context: int = 4
    """Frames that are given to predict the next."""
    width: int | None = None
    """Width of the net (as in the recipe `people` on a GPU, else 128, if not given)."""
    batch_size: int | None = None
    """Batch size, in frames (as in the recipe `people` on a GPU, else 32, if not given)."""
    autoencoder: str | None = None
    """Folder of a trained autoencoder of this frame size, or taef2:FOLDER with its published weights."""
    autoencoder_steps: int | None = None
    """Optimiser steps of the autoencoder (by the number of frames if not given; at most 1,000 on a CPU)."""
    passes: int = 1
    """Network passes per frame. From 2 on the law is Transport, which needs an even frame rate."""
    copies: int = 0
    """Zoomed, relit and mirrored copies of each video to train on: for long trainings on few videos."""

    def __post_init__(self) -> None:
        check_fields(self)
        size = self.size
        check(size is None or (size >= 16 and size % 8 == 0), f"`size` must be a multiple of 8 from 16 on. Got {size}.")
        check(self.num_context >= 1, f"`num_context` must be at least 1. Got {self.num_context}.")
        check(1 <= self.passes <= MOST_PASSES, f"`passes` must be from 1 to {MOST_PASSES}. Got {self.passes}.")
        check(self.fps is None or self.fps > 0, f"`fps` must be positive. Got {self.fps}.")
        check(self.copies >= 0, f"`copies` must be 0 or more. Got {self.copies}.")
        for name in ("batch_size", "autoencoder_steps"):
            value = getattr(self, name)
            check(value is None or value >= 1, f"`{name}` must be at least 1. Got {value}.")
        if self.width is not None:
            UViTConfig(width=self.width)
        trained = self.autoencoder is None or self.autoencoder_steps is None
        check(trained, "`autoencoder_steps`: the autoencoder of `autoencoder` is not trained.")


@dataclass(frozen=True, kw_only=True)
class VideoPlan:
    """What a run does: recorded in config.yaml, and the same again when it is resumed."""

    data: str
    gpu: bool
    """Whether sizes and steps are those for a GPU."""
    step: float
    """Seconds from frame to frame."""
    holdout: float
    copies: int = 0
    autoencoder: str | None
    autoencoder_model: AutoencoderConfig
    autoencoder_train: TrainConfig
    model: NeuralSDEConfig
    train: TrainConfig
    videos: str
    """A digest of them and of their split: latents that are kept are of these."""
