"""Settings of the autoencoder of frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from neuralsde.models.config import ModelConfig, Normalise
from neuralsde.nets.config import ConvConfig, TinyConfig
from neuralsde.records import check


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig(ModelConfig):
    """Frames as small grids of latents, and back."""

    builds: ClassVar[str] = "neuralsde.autoencoder:Autoencoder"

    net: ConvConfig | TinyConfig = field(default_factory=ConvConfig)
    """Encoder and decoder."""
    normalise: Normalise = "none"
    """Frames have values from 0 to 1 as they are."""
    kl: float = 1e-6
    """Weight of the divergence of latents from unit Gaussians."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.normalise == "none", f"Frames have values from 0 to 1. Got {self.normalise=}. Use 'none'.")
        check(self.history == 1, f"An autoencoder sees one frame. Got {self.history=}.")
        check(self.kl >= 0, f"`kl` must not be negative. Got {self.kl=}.")
