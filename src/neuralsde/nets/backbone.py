"""Backbones map a state (B, H, *S) and an optional condition (B, K) to one field (B, *S), or to several, and do not know which."""

from __future__ import annotations

from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.nets.config import ImageConfig, NetConfig
from neuralsde.records import built_by


class Backbone(nn.Module):
    """Base of the nets that settings can name."""

    takes_target: ClassVar[bool] = False
    """Whether a state that is being generated is one more slot to it, not a part of the condition."""

    def measure(self, slots: Float[Tensor, "B H *S"], noise: Float[Tensor, "..."]) -> None:
        """Set units of its own from the data; `noise` is what training adds to its inputs."""


def backbone_of(config: Any, *, images: bool = False) -> type[Backbone]:
    """The class of the net that settings ask for; `images` says whether the model gives it those of a context."""
    if isinstance(config, ImageConfig) and not images:
        raise ValueError("An ImageConfig is a net of a NeuralSDE. Got it in another model.")
    if not isinstance(config, NetConfig) or not config.builds:
        raise ValueError(
            f"`net` must be a config such as MLPConfig(width=64). Got a {type(config).__name__}. "
            "Modules of your own go into `nets`."
        )
    return built_by(config)
