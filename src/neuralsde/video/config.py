"""Settings of a model that is learned from videos, and the plan that a run makes of them; they need no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from neuralsde.models.config import ModelConfig, Normalise, Transform
from neuralsde.nets.config import ConvConfig, TinyConfig, UViTConfig
from neuralsde.records import check
from neuralsde.sde.config import NeuralSDEConfig
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
    """How videos are decoded; what is absent is as is usual for the data set."""

    size: int | None = None
    """Height and width of frames in pixels; absent: 64, CLEVRER 128."""
    fit: Literal["crop", "stretch"] | None = None
    """Cut a square out of the middle, or squeeze all into it; absent: crop, public data sets stretch."""
    colour: bool | None = None
    """Three channels or one; absent: colour, KTH and Weizmann grey."""
    num_workers: int | None = None
    """Processes that decode; 0: none but this; absent: one for each processor."""
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
    """The way of splitting, where the data has several; absent: the usual one."""
    num_context: int = 4
    """Frames that are given to predict the next."""
    width: int | None = None
    """Size of the net; absent: on a GPU that of the recipe `people`, else 128 (1 million parameters)."""
    batch_size: int | None = None
    """Frames per step; absent: on a GPU those of the recipe `people`, else 32."""
    autoencoder: str | None = None
    """Folder of a trained autoencoder of frames of this size, to use instead of a new one; or taef2:FOLDER, with the published
    weights of that tiny autoencoder."""
    autoencoder_steps: int | None = None
    """Optimiser steps of the autoencoder; absent: by the number of frames, at most those of its recipe on a GPU, else 1,000."""
    refine: bool = False
    """Learn a refiner too: frames then take two passes, in which what may happen is decided. It needs an even frame rate."""
    copies: int = 0
    """Learn from so many copies of each video too, seen a little nearer, in another light, every other one mirrored: for a long
    training on few videos."""

    def __post_init__(self) -> None:
        size = self.size
        check(size is None or (size >= 16 and size % 8 == 0), f"`size` must be a multiple of 8 from 16 on. Got {size}.")
        check(self.num_context >= 1, f"`num_context` must be at least 1. Got {self.num_context}.")
        check(not self.refine or self.num_context > 1, "`refine` needs `num_context` of 2 or more. Got 1.")
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
