"""Backbones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

from neuralsde.records import Choice, check, check_choices


@dataclass(frozen=True, kw_only=True)
class MLPConfig(Choice):
    """A residual perceptron: pre-norm blocks of two linear layers."""

    width: int = 128
    """Features of the hidden layers."""
    depth: int = 3
    """Number of residual blocks."""
    dropout: float = 0.0
    """Dropout probability inside the blocks."""

    def __post_init__(self) -> None:
        check_choices(self)
        check(
            self.width > 0 and self.depth > 0,
            f"`width` and `depth` must be positive. Got {self.width=}, {self.depth=}.",
        )
        check(0 <= self.dropout < 1, f"`dropout` must be in [0, 1). Got {self.dropout=}.")


@dataclass(frozen=True, kw_only=True)
class HistoryConfig(Choice):
    """An encoder of the history slots, whose memory a residual perceptron takes beside the newest slot."""

    encoder: Literal["gru", "transformer"] = "gru"
    """Recurrent from the oldest slot to the newest, or attention with learned positions (several times slower)."""
    memory: int = 64
    """Features of the memory, and of the encoder."""
    layers: int = 1
    """Layers of the encoder."""
    heads: int = 4
    """Attention heads of the transformer; they share out the memory."""
    width: int = 128
    """Features of the perceptron's hidden layers."""
    depth: int = 3
    """Number of its residual blocks."""
    dropout: float = 0.0
    """Dropout probability inside the blocks, and in the transformer."""

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("memory", "layers", "heads"):
            check(getattr(self, name) >= 1, f"`{name}` must be at least 1. Got {name}={getattr(self, name)}.")
        shared = self.encoder == "gru" or self.memory % self.heads == 0
        check(shared, f"`memory` must be a multiple of `heads`. Got {self.memory=}, {self.heads=}.")
        assert self.mlp  # refuses what it cannot take

    @property
    def mlp(self) -> MLPConfig:
        """The perceptron."""
        return MLPConfig(width=self.width, depth=self.depth, dropout=self.dropout)


NetConfig = Union[MLPConfig, HistoryConfig]
