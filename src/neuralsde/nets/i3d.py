"""The inflated Inception of FVD: every filter of Inception-v1 gets a depth in time (Carreira & Zisserman, CVPR 2017).

RGB clips (B, 3, T, 224, 224) in [-1, 1] to the logits of 400 actions, averaged over time. Padding is TensorFlow's
'SAME', which puts the odd pixel behind, and normalisation has fixed statistics: the net is for looking, not for training.

Layers are named as in the public PyTorch port of the weights, so that its state dict fits as it is: Conv3d_1a_7x7.conv3d.weight,
Mixed_3b.b1a.bn.running_mean, logits.conv3d.bias.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

I3DLayer = Literal["logits", "pooled"]
SIZE = 224
NUM_CLASSES = 400
NUM_POOLED = 1024
NORM_EPS = 1e-3
MIXED = {
    "3b": (192, 64, 96, 128, 16, 32, 32),
    "3c": (256, 128, 128, 192, 32, 96, 64),
    "4b": (480, 192, 96, 208, 16, 48, 64),
    "4c": (512, 160, 112, 224, 24, 64, 64),
    "4d": (512, 128, 128, 256, 24, 64, 64),
    "4e": (512, 112, 144, 288, 32, 64, 64),
    "4f": (528, 256, 160, 320, 32, 128, 128),
    "5b": (832, 256, 160, 320, 32, 128, 128),
    "5c": (832, 384, 192, 384, 48, 128, 128),
}
"""Channels in; of the 1×1 branch; before and in the 3×3 branch, twice; of the pooled branch."""


def same_padding(sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int]) -> list[int]:
    """TensorFlow's 'SAME' as `functional.pad` takes it, last axis first: ceil(size / stride) places, the odd one behind."""
    out = []
    for size, k, s in reversed(list(zip(sizes, kernel, stride))):
        total = max((math.ceil(size / s) - 1) * s + k - size, 0)
        out += [total // 2, total - total // 2]
    return out


class FrozenNorm(nn.Module):
    """Batch normalisation by statistics that are part of the weights, in training too."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name, start in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((channels,), start))

    def forward(self, x: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B C T H W"]:
        mean, var = self.get_buffer("running_mean"), self.get_buffer("running_var")
        return functional.batch_norm(x, mean, var, self.get_buffer("weight"), self.get_buffer("bias"), eps=NORM_EPS)


class Unit(nn.Module):
    """Convolution, normalisation, ReLU."""

    def __init__(self, channels_in: int, channels: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv3d = nn.Conv3d(channels_in, channels, kernel, stride, bias=False)
        self.bn = FrozenNorm(channels)

    def forward(self, x: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B D t h w"]:
        conv = self.conv3d
        x = functional.pad(x, same_padding(x.shape[2:], conv.kernel_size, conv.stride))
        return functional.relu(self.bn(conv(x)))


class Pool(nn.Module):
    """Maximum over windows. What is padded is 0, as small as anything after a ReLU."""

    def __init__(self, kernel: tuple[int, int, int], stride: tuple[int, int, int]) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B C t h w"]:
        padded = functional.pad(x, same_padding(x.shape[2:], self.kernel, self.stride))
        return functional.max_pool3d(padded, self.kernel, self.stride)


class Mixed(nn.Module):
    """Four branches side by side."""

    def __init__(
        self, channels_in: int, one: int, before: int, three: int, before2: int, three2: int, pool: int
    ) -> None:
        super().__init__()
        self.b0 = Unit(channels_in, one)
        self.b1a, self.b1b = Unit(channels_in, before), Unit(before, three, 3)
        self.b2a, self.b2b = Unit(channels_in, before2), Unit(before2, three2, 3)
        self.b3a, self.b3b = Pool((3, 3, 3), (1, 1, 1)), Unit(channels_in, pool)

    def forward(self, x: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B D T H W"]:
        branches = (self.b0(x), self.b1b(self.b1a(x)), self.b2b(self.b2a(x)), self.b3b(self.b3a(x)))
        return torch.cat(branches, dim=1)


class I3D(nn.Module):
    """Clips to features."""

    def __init__(self) -> None:
        super().__init__()
        mixed = {f"Mixed_{name}": Mixed(*channels) for name, channels in MIXED.items()}
        stages = {
            "Conv3d_1a_7x7": Unit(3, 64, 7, 2),
            "MaxPool3d_2a_3x3": Pool((1, 3, 3), (1, 2, 2)),
            "Conv3d_2b_1x1": Unit(64, 64),
            "Conv3d_2c_3x3": Unit(64, 192, 3),
            "MaxPool3d_3a_3x3": Pool((1, 3, 3), (1, 2, 2)),
            **{name: block for name, block in mixed.items() if name[6] == "3"},
            "MaxPool3d_4a_3x3": Pool((3, 3, 3), (2, 2, 2)),
            **{name: block for name, block in mixed.items() if name[6] == "4"},
            "MaxPool3d_5a_2x2": Pool((2, 2, 2), (2, 2, 2)),
            **{name: block for name, block in mixed.items() if name[6] == "5"},
        }
        self.names = list(stages)
        for name, stage in stages.items():
            self.add_module(name, stage)
        self.logits = nn.Sequential(OrderedDict(conv3d=nn.Conv3d(NUM_POOLED, NUM_CLASSES, 1)))
        self.sha256: str | None = None
        """Of the weights; None while there are none but random ones."""

    def stages(self, clips: Float[Tensor, "B 3 T H W"]) -> Iterator[tuple[str, Tensor]]:
        """What each stage makes of the clips, up to the last block."""
        x = clips
        for name in self.names:
            x = self.get_submodule(name)(x)
            yield name, x

    def forward(self, clips: Float[Tensor, "B 3 T H W"], layer: I3DLayer = "logits") -> Float[Tensor, "B D"]:
        """400 logits, or the 1024 features that they are linear in; both averaged over time."""
        x = clips
        for _, stage in self.stages(clips):
            x = stage
        x = functional.avg_pool3d(x, (2, 7, 7), stride=1)
        return (self.logits(x) if layer == "logits" else x).mean((2, 3, 4))
