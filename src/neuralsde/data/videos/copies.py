"""Copies of clips as they might have been filmed as well: from a little nearer, in another light, in a mirror.

Few films show few people and places; a net learns them by heart. All frames of a clip are changed alike, so that motion stays
motion. Only what lies within the picture is shown: nothing is made up at its edges.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

SMALLEST = 0.8  # share of the height and width that is at least shown
CONTRAST, BRIGHTNESS = 1.2, 0.05
"""At most: the factor on what differs from the mean, and what is added (of the range from black to white)."""


def changed(frames: UInt8[Tensor, "N T C H W"], rng: torch.Generator) -> UInt8[Tensor, "N T C H W"]:
    """A copy of every clip: a part of the picture shown at its full size, every other one mirrored, lit otherwise."""
    num, place = len(frames), frames.device

    def uniform(low: float, high: float) -> Float[Tensor, " N"]:
        return low + (high - low) * torch.rand(num, generator=rng)

    share, side = uniform(SMALLEST, 1), uniform(-1, 1).sign()
    room = 1 - share
    view = torch.zeros(num, 2, 3)
    view[:, 0, 0], view[:, 0, 2] = share * side, room * uniform(-1, 1)
    view[:, 1, 1], view[:, 1, 2] = share, room * uniform(-1, 1)
    contrast, brightness = CONTRAST ** uniform(-1, 1), BRIGHTNESS * uniform(-1, 1)

    images = frames.flatten(1, 2).float() / 255
    grid = affine_grid(view.to(place), list(images.shape), align_corners=False)
    images = grid_sample(images, grid, mode="bicubic", padding_mode="border", align_corners=False)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    contrast, brightness = (value.to(place)[:, None, None, None] for value in (contrast, brightness))
    images = mean + contrast * (images - mean) + brightness
    return (255 * images.clamp(0, 1)).round().byte().unflatten(1, frames.shape[1:3])
