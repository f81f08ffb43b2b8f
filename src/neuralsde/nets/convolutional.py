"""A convolutional encoder of images into a small grid of latents, and its decoder."""

from __future__ import annotations

import itertools
import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.nets.config import ConvConfig


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(8, width), width)


class ResBlock(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x)))))), with a projection where the width changes."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.first = nn.Sequential(_norm(width), nn.SiLU(), nn.Conv2d(width, out, 3, padding=1))
        self.second = nn.Sequential(_norm(out), nn.SiLU(), nn.Conv2d(out, out, 3, padding=1))
        self.skip = nn.Identity() if width == out else nn.Conv2d(width, out, 1)

    def forward(self, x: Float[Tensor, "B W h w"]) -> Float[Tensor, "B V h w"]:
        return self.skip(x) + self.second(self.first(x))


def _widths(config: ConvConfig) -> list[int]:
    """Of the image's resolution and of each halving."""
    return [config.width * min(2**k, 4) for k in range(round(math.log2(config.down)) + 1)]


class Encoder(nn.Module):
    """Images (B, C, H, W) to mean and log variance of latents, (B, 2 K, H / down, W / down)."""

    def __init__(self, config: ConvConfig, channels: int) -> None:
        super().__init__()
        widths = _widths(config)
        layers: list[nn.Module] = [nn.Conv2d(channels, widths[0], 3, padding=1)]
        for before, after in itertools.pairwise(widths):
            layers.append(ResBlock(before, before))
            layers += [nn.Conv2d(before, after, 4, stride=2, padding=1)]
        layers.append(ResBlock(widths[-1], widths[-1]))
        layers += [_norm(widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], 2 * config.latent, 3, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K h w"]:
        return self.layers(x)


class Decoder(nn.Module):
    """Latents (B, K, h, w) to images (B, C, h down, w down)."""

    def __init__(self, config: ConvConfig, channels: int) -> None:
        super().__init__()
        widths = _widths(config)[::-1]
        layers: list[nn.Module] = [nn.Conv2d(config.latent, widths[0], 3, padding=1)]
        layers.append(ResBlock(widths[0], widths[0]))
        for before, after in itertools.pairwise(widths):
            layers += [nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(before, after, 3, padding=1)]
            layers.append(ResBlock(after, after))
        layers += [_norm(widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], channels, 3, padding=1)]
        self.layers = nn.Sequential(*layers)

    def forward(self, z: Float[Tensor, "B K h w"]) -> Float[Tensor, "B C H W"]:
        return self.layers(z)


def sampled(moments: Float[Tensor, "B K h w"], z: Tensor) -> tuple[Tensor, Tensor]:
    """A latent drawn with the unit noise z, and the divergence of its law from a unit Gaussian, per image."""
    mean, log_var = moments.chunk(2, dim=1)
    log_var = log_var.clamp(-30, 20)
    divergence = 0.5 * (mean**2 + log_var.exp() - 1 - log_var).flatten(1).sum(1)
    return mean + torch.exp(0.5 * log_var) * z, divergence
