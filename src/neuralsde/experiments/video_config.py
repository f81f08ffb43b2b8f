"""Clips of video: where they come from, what is predicted, and the autoencoder of their frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from neuralsde.core.doors import check_fields
from neuralsde.core.records import check
from neuralsde.experiments.collisions.config import CollisionsConfig
from neuralsde.experiments.task import TaskConfig


@dataclass(frozen=True, kw_only=True)
class ClipsConfig:
    """Clips of one length."""

    source: str = "collisions"
    """Made on the spot ("collisions"), or folders of shards as `nsde data` leaves them, with commas between."""
    collisions: CollisionsConfig = field(default_factory=CollisionsConfig)
    """How they are made: size, rate and number; their length is told here."""
    stride: int = 4
    """Of a folder: frames from the start of one clip to that of the next."""
    length: int = 16
    """Frames of a clip."""
    copies: int = 0
    """Of each training clip, beside itself: shown a little nearer, in another light, every other one mirrored."""

    def __post_init__(self) -> None:
        check_fields(self)
        check(self.stride >= 1, f"`stride` must be at least 1. Got {self.stride=}.")
        check(self.length >= 2, f"A clip needs at least 2 frames. Got {self.length=}.")
        check(self.copies >= 0, f"`copies` must be 0 or more. Got {self.copies=}.")


@dataclass(frozen=True, kw_only=True)
class FramesConfig(TaskConfig):
    """Single frames of clips, for an autoencoder."""

    builds: ClassVar[str] = "neuralsde.experiments.tasks.frames:FramesTask"

    clips: ClipsConfig = field(default_factory=ClipsConfig)
    """Where they come from."""
    num_frames: int = 100_000
    """Frames to learn from, at most."""
    num_test: int = 1_024
    """Frames of the test part that are scored."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("num_frames", "num_test"):
            check(getattr(self, name) >= 2, f"`{name}` must be at least 2. Got {name}={getattr(self, name)}.")


Part = Literal["validation", "test"]


@dataclass(frozen=True, kw_only=True)
class VideoVariant:
    """Another way to draw from a trained model, or other frames to draw."""

    name: str
    """In the results."""
    passes: int | None = None
    """Network passes per frame, if not the model's own: steps of a generative model; of a Neural SDE with the law Transport the
    Gaussian and those after it, else substeps."""
    temperatures: tuple[float, ...] = ()
    """Factors on the noise, of which one is chosen on validation clips: that of the smallest distance of motion among those
    with a PSNR no lower than at 1. Test clips are drawn with it alone."""
    diffusion: float | None = None
    """Factor on the learned noise, if not the sampler's."""
    pull: float | None = None
    """Pull of the sampler, if not its own."""
    rate: int = 1
    """Frames per training frame. Above 1, those between training frames are scored, and no others."""
    between: Literal["sampled", "latents", "cubic", "pixels"] = "sampled"
    """How they are made: drawn by the model, or from its own frames on straight lines between latents, on cubics through them
    (with the mean velocity of both sides at each), or by fading one image into the next."""
    length: int | None = None
    """Frames of the clips, if not as many as in training: long roll-outs."""
    part: Part = "test"
    """Of the clips: settings are chosen on validation clips. Of test clips, the scores of every one are kept: differences
    between models are taken on the same clips."""

    def __post_init__(self) -> None:
        check_fields(self)
        check(self.rate >= 1, f"`rate` must be at least 1. Got {self.rate=}.")
        check(self.rate == 1 or self.length is None, "`rate` and `length` are for variants of their own.")
        check(self.passes is None or self.passes >= 1, f"`passes` must be at least 1. Got {self.passes=}.")
        fair = not self.temperatures or (1.0 in self.temperatures and self.part == "test" and self.rate == 1)
        check(fair, f"`temperatures` must hold 1, for test clips at their own rate. Got {self.temperatures=}.")


@dataclass(frozen=True, kw_only=True)
class VideoConfig(TaskConfig):
    """The next frames of clips, learned in the latents of a frozen autoencoder (the paper's Section 4.3)."""

    builds: ClassVar[str] = "neuralsde.experiments.tasks.video:VideoTask"

    clips: ClipsConfig = field(default_factory=ClipsConfig)
    """What is learned and scored: as many frames as the history of the model are given, the others are predicted."""
    autoencoder: str = "runs/collisions-autoencoder/model"
    """Folder of the trained autoencoder."""
    num_clips: int = 256
    """Clips that are scored."""
    num_paths: int = 4
    """Futures drawn of each."""
    variants: tuple[VideoVariant, ...] = ()
    """Scored too, with the same weights."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("num_clips", "num_paths"):
            check(getattr(self, name) >= 1, f"`{name}` must be at least 1. Got {name}={getattr(self, name)}.")
        for variant in self.variants:
            made = variant.rate == 1 or self.clips.source == "collisions"
            check(made, f"Only of made clips the frames between are known. Got {variant.rate=} of {self.clips.source}.")

    def check_given(self, num: int) -> None:
        """Refuse clips without frames to predict after the `num` that are given."""
        room = num < self.clips.length
        check(room, f"`model.history` must leave frames to predict. Got {num} of {self.clips.length}.")
        for variant in self.variants:
            longer = variant.length is None or variant.length > num
            check(longer, f"`length` must exceed the {num} frames that are given. Got {variant.length=}.")
