"""A convolutional U-Net along the horizon of a chunk, as in Diffusion Policy (Chi et al., RSS 2023).

Convolutions share weights along the horizon; the condition steers every block by a scale and a shift of its features.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.nets.backbone import Condition, Form
from neuralsde.nets.chunk import ChunkNet
from neuralsde.nets.config import UNET_GROUPS, UNet1DConfig

KERNEL = 5  # steps of the horizon that a convolution sees
EMBEDDING = 256  # features of the condition, beside its raw values, that steer the blocks


def convolution(before: int, after: int) -> nn.Sequential:
    """Convolution, normalisation, Mish; the length stays."""
    conv = nn.Conv1d(before, after, KERNEL, padding=KERNEL // 2)
    return nn.Sequential(conv, nn.GroupNorm(UNET_GROUPS, after), nn.Mish())


class Residual(nn.Module):
    """Two convolutions beside a short cut; what is given scales and shifts the features between them."""

    repeated: ClassVar[bool] = True  # many alike in a net: compiled once for all

    def __init__(self, before: int, after: int, given: int) -> None:
        super().__init__()
        self.first = convolution(before, after)
        self.second = convolution(after, after)
        self.film = nn.Linear(given, 2 * after)
        self.cut = nn.Identity() if before == after else nn.Conv1d(before, after, 1)

    def forward(self, x: Float[Tensor, "B C L"], given: Float[Tensor, "B G"]) -> Float[Tensor, "B D L"]:
        scale, shift = self.film(given)[..., None].chunk(2, dim=1)
        return self.second(self.first(x) * (1 + scale) + shift) + self.cut(x)


class Level(nn.Module):
    """Two blocks at one length."""

    def __init__(self, before: int, after: int, given: int) -> None:
        super().__init__()
        self.first, self.second = Residual(before, after, given), Residual(after, after, given)

    def forward(self, x: Float[Tensor, "B C L"], given: Float[Tensor, "B G"]) -> Float[Tensor, "B D L"]:
        return self.second(self.first(x, given), given)


class UNet1D(ChunkNet):
    """Halves the horizon from level to level and comes back, with a bridge at every level."""

    def __init__(self, config: UNet1DConfig, form: Form) -> None:
        super().__init__(config, form)
        widths, halvings = config.widths, len(config.widths) - 1
        if self.horizon % 2**halvings:
            raise ValueError(
                f"The horizon must be a multiple of {2**halvings}: {len(widths)} `widths` halve it {halvings} time(s). "
                f"Got a horizon of {self.horizon}. Use another horizon, or fewer `widths`."
            )
        size = max(1, form.condition_size)
        self.embed = nn.Sequential(nn.Linear(size, 4 * EMBEDDING), nn.Mish(), nn.Linear(4 * EMBEDDING, EMBEDDING))
        given = size + EMBEDDING
        steps = list(zip((self.num_features, *widths), widths))
        self.down = nn.ModuleList(Level(before, after, given) for before, after in steps)
        self.shorten = nn.ModuleList(nn.Conv1d(w, w, 3, stride=2, padding=1) for w in widths[:-1])
        self.middle = Level(widths[-1], widths[-1], given)
        climb = list(zip(widths[:0:-1], widths[-2::-1]))  # from the deepest level up
        self.lengthen = nn.ModuleList(nn.ConvTranspose1d(below, w, 4, stride=2, padding=1) for below, w in climb)
        self.up = nn.ModuleList(Level(2 * w, w, given) for _, w in climb)
        self.last = convolution(widths[0], widths[0])
        self.end_at_zero(widths[0])

    def forward(self, state: Float[Tensor, "B H L A"], condition: Condition = None) -> Float[Tensor, "B *F"]:
        raw = self.join_condition(state, condition)
        given = nn.functional.mish(torch.cat([raw, self.embed(raw)], dim=1))
        x = self.sequence(state).transpose(1, 2)
        bridges = []
        for depth, level in enumerate(self.down):
            x = level(x, given)
            if depth < len(self.shorten):
                bridges.append(x)
                x = self.shorten[depth](x)
        x = self.middle(x, given)
        for lengthen, level in zip(self.lengthen, self.up):
            x = level(torch.cat([lengthen(x), bridges.pop()], dim=1), given)
        return self.read_out(self.last(x).transpose(1, 2), self.fields)
