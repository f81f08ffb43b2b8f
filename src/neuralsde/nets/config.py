"""Backbones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from neuralsde.core.doors import Count, Depth, Width, check_fields
from neuralsde.core.records import Choice, check

HISTORY_HEADS = 4  # attention heads of a transformer of the history; they share out the memory
IMAGE_CHANNELS = (32, 64, 128)  # of the convolutions of images; each of them halves the image
UNET_GROUPS = 8  # groups of channels of a U-Net that are normalised together


@dataclass(frozen=True, kw_only=True)
class NetConfig(Choice):
    """Base of the backbones' settings; `builds` names the net's class."""

    solved: ClassVar[bool] = False
    """Whether the flow is found by least squares alone, and not trained."""

    @property
    def beside(self) -> NetConfig:
        """The nets of fields beside the flow."""
        return self

    def pixels(self, context_size: int) -> list[slice]:
        """Entries of the context that are pixels, from 0 to 255."""
        return []


@dataclass(frozen=True, kw_only=True)
class MLPConfig(NetConfig):
    """A residual perceptron: pre-norm blocks of two linear layers."""

    builds: ClassVar[str] = "neuralsde.nets.mlp:MLP"

    width: Width = 128
    """Features of the hidden layers."""
    depth: Depth = 3
    """Number of residual blocks."""
    dropout: float = 0.0
    """Dropout probability inside the blocks."""

    def __post_init__(self) -> None:
        check_fields(self)
        check(
            self.width > 0 and self.depth > 0,
            f"`width` and `depth` must be positive. Got {self.width=}, {self.depth=}.",
        )
        check(0 <= self.dropout < 1, f"`dropout` must be in [0, 1). Got {self.dropout=}.")


@dataclass(frozen=True, kw_only=True)
class HistoryConfig(MLPConfig):
    """A residual perceptron that takes, beside the newest slot, the memory of an encoder of the history slots."""

    builds: ClassVar[str] = "neuralsde.nets.history:HistoryMLP"

    encoder: Literal["gru", "transformer"] = "gru"
    """Recurrent from the oldest slot to the newest, or attention with learned positions (several times slower)."""
    memory: Count = 64
    """Features of the memory, and of the encoder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shared = self.encoder == "gru" or self.memory % HISTORY_HEADS == 0
        check(shared, f"`memory` must be a multiple of {HISTORY_HEADS}, the heads share it out. Got {self.memory=}.")


@dataclass(frozen=True, kw_only=True)
class StepsConfig(MLPConfig):
    """A linear map of the steps between slots, and a perceptron beside it: trends and momentum, wherever the level is."""

    builds: ClassVar[str] = "neuralsde.nets.steps:StepsNet"

    width: Width = 64
    """Features of the perceptron's hidden layers."""
    depth: Depth = 2
    """Its residual blocks."""
    linear: bool = False
    """The linear map alone: for few data."""
    level: bool = False
    """Give it the newest slot too: paths that find back to a level. Without, they are the same wherever they are."""


@dataclass(frozen=True, kw_only=True)
class PolynomialConfig(MLPConfig):
    """A flow that is a polynomial with few terms, found by least squares; perceptrons for what is beside it."""

    builds: ClassVar[str] = "neuralsde.nets.polynomial:PolynomialNet"
    solved: ClassVar[bool] = True

    width: Width = 32
    """Features of the perceptrons' hidden layers."""
    depth: Depth = 2
    """Their residual blocks."""

    @property
    def beside(self) -> MLPConfig:
        return MLPConfig(width=self.width, depth=self.depth, dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class EncodedConfig(MLPConfig):
    """A perceptron that encodes the context of a path once, and a smaller one that moves the state along it."""

    builds: ClassVar[str] = "neuralsde.nets.encoded:EncodedMLP"

    width: Width = 512
    """Features of the encoder's hidden layers."""
    memory: Count = 256
    """Features of the encoded context."""
    step_width: Width = 256
    """Features of the hidden layers of the part that moves."""
    step_depth: Depth = 2
    """Its residual blocks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.step  # refuses what it cannot take

    @property
    def step(self) -> MLPConfig:
        """The part that moves."""
        return MLPConfig(width=self.step_width, depth=self.step_depth, dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class ImageConfig(EncodedConfig):
    """A convolutional net of the images in a context, before the perceptron that encodes it.

    A context is one observation or several, end to end; each ends in `size` x `size` pixels of three colours, row by row,
    from 0 to 255.
    """

    builds: ClassVar[str] = "neuralsde.nets.images:ImageMLP"

    depth: Depth = 1
    """Residual blocks of the encoder, after the convolutions."""
    size: int = 96
    """Pixels of a side."""

    def __post_init__(self) -> None:
        super().__post_init__()
        halves = 2 ** len(IMAGE_CHANNELS)
        check(
            self.size > 0 and self.size % halves == 0,
            f"`size` must be a multiple of {halves}: each convolution halves. Got {self.size=}.",
        )

    def layout(self, context_size: int) -> tuple[int, int]:
        """Observations in a context, and the entries of each before its pixels."""
        pixels = 3 * self.size**2
        num = context_size // pixels
        check(
            num > 0 and context_size % num == 0,
            f"An ImageConfig takes observations that end in 3 * {self.size}^2 = {pixels} pixels. Got a context of "
            f"{context_size}. Set `size`, or use an EncodedConfig.",
        )
        return num, context_size // num - pixels

    def pixels(self, context_size: int) -> list[slice]:
        num, others = self.layout(context_size)
        size = context_size // num
        return [slice(k * size + others, (k + 1) * size) for k in range(num)]


@dataclass(frozen=True, kw_only=True)
class UNet1DConfig(NetConfig):
    """A convolutional U-Net along the horizon of states (horizon, features): chunks of actions."""

    builds: ClassVar[str] = "neuralsde.nets.unet1d:UNet1D"

    widths: tuple[int, ...] = (256, 512, 1024)
    """Channels of the levels; the horizon is halved from each to the next."""

    def __post_init__(self) -> None:
        check_fields(self)
        check(len(self.widths) > 0, "`widths` must name at least one level. Got none.")
        shared = all(w > 0 and w % UNET_GROUPS == 0 for w in self.widths)
        check(shared, f"`widths` must be multiples of {UNET_GROUPS}. Got {self.widths=}.")


@dataclass(frozen=True, kw_only=True)
class ChunkTransformerConfig(NetConfig):
    """A transformer over the steps of states (horizon, features) that attends to the condition."""

    builds: ClassVar[str] = "neuralsde.nets.chunk_transformer:ChunkTransformer"

    layers: Depth = 8
    """Layers, each with attention to the chunk and to the condition."""
    heads: Depth = 4
    """Attention heads; they share out the width."""
    width: Width = 256
    """Features of a token."""
    dropout: float = 0.1
    """Dropout probability in attention and perceptrons."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_transformer(self.layers, self.heads, self.width)
        check(0 <= self.dropout < 1, f"`dropout` must be in [0, 1). Got {self.dropout=}.")


@dataclass(frozen=True, kw_only=True)
class UViTConfig(NetConfig):
    """A transformer over the places of an image or latent, with long skips. One number, the width, sets its size."""

    builds: ClassVar[str] = "neuralsde.nets.uvit:UViT"

    width: Width = 256
    """Features of a token: 64 gives about 0.2 million parameters, 256 six, 512 forty, 768 a hundred and ten."""
    patch: Count = 1
    """Side of the square of places that is one token."""

    def __post_init__(self) -> None:
        check_fields(self)
        check(self.width > 0 and self.width % 32 == 0, f"`width` must be a multiple of 32. Got {self.width=}.")

    @property
    def layers(self) -> int:
        """Layers of the net: odd, one of them in the middle; 3 at width 64 to 15 at width 768."""
        return max(3, 3 + 2 * round(6 * (self.width - 64) / 704))

    @property
    def heads(self) -> int:
        """Attention heads, of 32 features each."""
        return self.width // 32


@dataclass(frozen=True, kw_only=True)
class ConvConfig:
    """A convolutional encoder of images into a small grid, and its decoder."""

    latent: ClassVar[int] = 4
    """Channels of a place."""
    down: int = 8
    """Pixels of the image per place of the grid, along each side: 2, 4, 8 or 16."""
    width: Width = 32
    """Channels at the image's resolution; they double with each halving, up to four times."""

    def __post_init__(self) -> None:
        check_fields(self)
        check(self.down in (2, 4, 8, 16), f"`down` must be 2, 4, 8 or 16. Got {self.down=}.")
        check(self.width > 0 and self.width % 8 == 0, f"`width` must be a multiple of 8. Got {self.width=}.")


@dataclass(frozen=True, kw_only=True)
class TinyConfig(Choice):
    """The nets of the pretrained tiny autoencoder taef2, for frames in colour. They have one size, and are read, not trained."""

    down: ClassVar[int] = 8
    """Pixels of the image per place of the grid, along each side."""
    latent: ClassVar[int] = 32
    """Channels of a place."""


def check_transformer(layers: int, heads: int, width: int) -> None:
    """Refuse sizes that no transformer can have."""
    check(layers >= 1 and heads >= 1, f"`layers` and `heads` must be at least 1. Got {layers=}, {heads=}.")
    check(width >= 1 and width % heads == 0, f"`width` must be a multiple of `heads`. Got {width=}, {heads=}.")


@dataclass(frozen=True, kw_only=True)
class LSTMConfig:
    """A recurrent net of the last observations."""

    width: Count = 400
    """Features of each layer."""
    layers: Count = 2
    """Layers, one upon the other."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """A causal transformer of the last observations."""

    layers: Depth = 6
    """Layers."""
    heads: Depth = 6
    """Attention heads; they share out the width."""
    width: Width = 120
    """Features of a token."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_transformer(self.layers, self.heads, self.width)
