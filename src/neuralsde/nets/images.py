"""Images in the context: convolutions, shared by all observations, trained together with what they steer.

An observation is a flat vector: numbers (the place of an agent, say), then the pixels of one image. Convolutions make maps
of the image, and of each map the place of its largest value is kept: where things are is what a policy asks of an image.
These points join the numbers; from there on it is an encoded context like any other, and a path of many steps sees its
images once.
"""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.nets.config import IMAGE_CHANNELS, EncodedConfig, ImageConfig
from neuralsde.nets.encoded import EncodedMLP, perceptron

IMAGE_GROUPS = 8  # groups of channels that are normalised together
POINTS = 64  # points that are found in an image; their coordinates are what is kept of it
SHIFT = 4  # pixels by which the images of a context are moved, all alike, at random in training


class RandomShift(nn.Module):
    """Moves the images of a row up to `most` pixels in training, all alike so that motion is kept; edges are repeated."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.random_in_training = most > 0

    def forward(self, images: Float[Tensor, "B K H W C"]) -> Float[Tensor, "B K H W C"]:
        if not (self.training and self.most):
            return images
        num, _, height, width, _ = images.shape
        # From the default generator, as dropout: `fit` seeds it before every step
        by = torch.randint(-self.most, self.most + 1, (2, num, 1), device=images.device, generator=None)
        sides = zip((height, width), by)
        rows, columns = ((torch.arange(n, device=images.device) + offset).clamp(0, n - 1) for n, offset in sides)
        place = (rows[:, :, None] * width + columns[:, None]).flatten(1)
        flat = images.flatten(2, 3)
        return flat.gather(2, place[:, None, :, None].expand(flat.shape)).view(images.shape)


class Points(nn.Module):
    """The mean place, in [-1, 1]², of each of C maps under its softmax: where it is largest, as a smooth function."""

    def forward(self, maps: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        weight = torch.softmax(maps.flatten(2), dim=2).unflatten(2, maps.shape[2:])
        y, x = (torch.linspace(-1, 1, side, device=maps.device) for side in maps.shape[2:])
        return torch.cat([(weight.sum(2) * x).sum(2), (weight.sum(3) * y).sum(2)], dim=1)


def _convolution(into: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(into, out, 3, stride=stride, padding=1), nn.GroupNorm(IMAGE_GROUPS, out), nn.SiLU())


class ImageEncoder(nn.Module):
    """A context to its memory."""

    def __init__(self, config: ImageConfig, context_size: int) -> None:
        super().__init__()
        self.size = config.size
        self.num, self.others = config.layout(context_size)
        self.shift = RandomShift(SHIFT)
        last = IMAGE_CHANNELS[-1]
        self.image = nn.Sequential(
            *(_convolution(a, b, 2) for a, b in itertools.pairwise((3, *IMAGE_CHANNELS))),
            _convolution(last, last, 1),
            nn.Conv2d(last, POINTS, 1),
            Points(),
        )
        """Points of one image, whichever observation it belongs to."""
        self.join = perceptron(config, self.num * (self.others + 2 * POINTS))

    def forward(self, context: Float[Tensor, "B C"]) -> Float[Tensor, "B M"]:
        seen = context.unflatten(1, (self.num, -1))
        images = self.shift(seen[:, :, self.others :].unflatten(2, (self.size, self.size, 3)))
        points = self.image(images.flatten(0, 1).permute(0, 3, 1, 2)).unflatten(0, (context.shape[0], self.num))
        return self.join(torch.cat([seen[:, :, : self.others], points], dim=2).flatten(1))


class ImageMLP(EncodedMLP):
    """State, time and the encoded observations in, fields out (0 at the start of training)."""

    @staticmethod
    def make_encoder(config: EncodedConfig, size: int) -> nn.Module:
        assert isinstance(config, ImageConfig)
        return ImageEncoder(config, size)
