"""The nets of taef2, a tiny autoencoder that was trained on all kinds of pictures (github.com/madebyollin/taesd, MIT).

They take and give what those of `convolutional` do: pictures from -1 to 1, and mean and log variance of latents, which here
are certain.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

WIDTH, LATENT, GROUPS = 64, 32, 4
CERTAIN = -30.0  # log variance of latents


class Block(nn.Module):
    """relu(x + three convolutions of x); with `pool`, x first gets what a normalised mixture of its channels adds."""

    def __init__(self, pool: bool = False) -> None:
        super().__init__()
        layers = [nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(3)]
        self.conv = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
        self.pool: nn.Sequential | None = None
        if pool:
            wide = GROUPS * WIDTH
            mix, back = nn.Conv2d(WIDTH, wide, 1, bias=False), nn.Conv2d(wide, WIDTH, 1, bias=False)
            self.pool = nn.Sequential(mix, nn.GroupNorm(GROUPS, wide), nn.ReLU(), back)

    def forward(self, x: Float[Tensor, "B W h w"]) -> Float[Tensor, "B W h w"]:
        if self.pool is not None:
            x = x + self.pool(x)
        return torch.relu(x + self.conv(x))


class Bounded(nn.Module):
    """Keeps latents within (-3, 3)."""

    def forward(self, z: Float[Tensor, "B K h w"]) -> Float[Tensor, "B K h w"]:
        return 3 * torch.tanh(z / 3)


class TinyEncoder(nn.Module):
    """Images (B, 3, H, W) to mean and log variance of latents, (B, 64, H / 8, W / 8)."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        _check_colour(channels)
        layers: list[nn.Module] = [nn.Conv2d(3, WIDTH, 3, padding=1), Block()]
        for pool in (False, False, True):
            layers += [nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1, bias=False), *(Block(pool) for _ in range(3))]
        self.layers = nn.Sequential(*layers, nn.Conv2d(WIDTH, LATENT, 3, padding=1))

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K h w"]:
        z = self.layers(0.5 * (x + 1))
        return torch.cat([z, torch.full_like(z, CERTAIN)], dim=1)


class TinyDecoder(nn.Module):
    """Latents (B, 32, h, w) to images (B, 3, 8 h, 8 w)."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        _check_colour(channels)
        layers: list[nn.Module] = [Bounded(), nn.Conv2d(LATENT, WIDTH, 3, padding=1), nn.ReLU()]
        for pool in (True, False, False):
            layers += [*(Block(pool) for _ in range(3)), nn.Upsample(scale_factor=2)]
            layers += [nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False)]
        self.layers = nn.Sequential(*layers, Block(), nn.Conv2d(WIDTH, 3, 3, padding=1))

    def forward(self, z: Float[Tensor, "B K h w"]) -> Float[Tensor, "B C H W"]:
        return 2 * self.layers(z) - 1


def _check_colour(channels: int) -> None:
    if channels != 3:
        raise ValueError(f"taef2 takes frames in colour. Got {channels} channel(s). Give --colour.")
