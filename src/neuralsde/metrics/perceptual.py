"""LPIPS: how far apart two images look, by the features of AlexNet (Zhang et al., CVPR 2018).

Features of five layers are brought to unit length at each pixel; their squared difference, weighted per channel by what
people said, is averaged over pixels and summed over layers. The weights are the user's: an npz of plain arrays or a
safetensors file with the names `Conv_0.weight` … `Conv_4.bias` and `lin0` … `lin4`. Nothing in a file is executed.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, Union

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from neuralsde.core.files import sha256_of_file
from neuralsde.core.tensors import read_tensors
from neuralsde.metrics.video import (
    Measured,
    VideoProtocol,
    check_pair,
    full_precision,
    in_chunks,
    mean_measured,
)

M = TypeVar("M", bound=nn.Module)
Weights = Union[str, os.PathLike[str], Mapping[str, Tensor]]
"""A file, or tensors by name."""

LEAST = 31  # pixels below which AlexNet's second pooling has nothing left
CONVS = ((3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1), (256, 256, 3, 1, 1))
"""Channels in and out, kernel, stride, padding."""
POOLED_BEFORE = (1, 2)
MEAN, STD = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
"""ImageNet's, for values in [-1, 1]."""


# Weights that a user brings


def sha256_of(weights: Weights) -> str:
    """SHA-256 of a file, or of tensors in the order of their names."""
    if not isinstance(weights, Mapping):
        return sha256_of_file(weights)
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def read_weights(weights: Weights) -> tuple[dict[str, Tensor], str]:
    """Tensors by name and their SHA-256, from tensors, an npz of plain arrays or a safetensors file."""
    if isinstance(weights, Mapping):
        return dict(weights), sha256_of(weights)
    file = Path(weights)
    if not file.is_file():
        raise ValueError(f"There is no file {file}. Weights are not part of this library: give your own.")
    if file.suffix == ".npz":
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays}, sha256_of(file)
        except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(f"{file} is not an npz of plain arrays ({error}). Copy or save it again.") from None
    if file.suffix in (".pt", ".pth", ".pkl", ".ckpt"):
        raise ValueError(
            f"{file} is a pickle and is not opened here: pickles can run code. Give its state dict instead of the file, "
            "or save that as safetensors once (docs/video_metrics.md has the lines)."
        )
    return read_tensors(file), sha256_of(file)


def filled(module: M, tensors: Mapping[str, Tensor], layout: str) -> M:
    """`module` with exactly these weights, frozen; what does not fit is named. `layout` says where fitting ones are."""
    given = {k: v for k, v in tensors.items() if not k.endswith("num_batches_tracked")}  # counts of training steps
    wanted = module.state_dict()
    wrong = [f"{k} is missing" for k in wanted if k not in given]
    wrong += [f"{k} is not known" for k in given if k not in wanted]
    wrong += [
        f"{k} is {tuple(given[k].shape)} instead of {tuple(v.shape)}"
        for k, v in wanted.items()
        if k in given and given[k].shape != v.shape
    ]
    wrong += [f"{k} is not finite" for k in wanted if k in given and not bool(torch.isfinite(given[k]).all())]
    if wrong:
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        raise ValueError(f"These weights do not fit: {'; '.join(wrong[:4])}{more}. Expected {layout}.")
    module.load_state_dict({k: v.float() for k, v in given.items()})
    return module.requires_grad_(False).eval()


def stated(weights: str | os.PathLike[str] | None) -> str | None:
    """The SHA-256 of weights used elsewhere, from their file (which is only hashed) or as given."""
    if weights is None or (isinstance(weights, str) and re.fullmatch("[0-9a-fA-F]{64}", weights)):
        return None if weights is None else str(weights).lower()
    if not Path(weights).is_file():
        raise ValueError(f"`weights` must be a file or its SHA-256 (64 hexadecimal digits). Got {str(weights)!r}.")
    return sha256_of(weights)


# LPIPS


class LPIPS(nn.Module):
    """Images (N, 3, H, W) in [-1, 1] to their distance (N)."""

    def __init__(self) -> None:
        super().__init__()
        for k, (channels_in, channels, kernel, stride, padding) in enumerate(CONVS):
            self.add_module(f"Conv_{k}", nn.Conv2d(channels_in, channels, kernel, stride, padding))
            self.register_buffer(f"lin{k}", torch.zeros(channels))
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)
        self.sha256: str | None = None

    def features(self, images: Float[Tensor, "N 3 H W"]) -> list[Float[Tensor, "N C h w"]]:
        """AlexNet's five layers after their ReLU."""
        x = (images - self.get_buffer("mean")) / self.get_buffer("std")
        out = []
        for k in range(len(CONVS)):
            x = functional.max_pool2d(x, 3, 2) if k in POOLED_BEFORE else x
            x = functional.relu(self.get_submodule(f"Conv_{k}")(x))
            out.append(x)
        return out

    def forward(self, a: Float[Tensor, "N 3 H W"], b: Float[Tensor, "N 3 H W"]) -> Float[Tensor, " N"]:
        total = a.new_zeros(len(a))
        for k, (x, y) in enumerate(zip(self.features(a), self.features(b))):
            x, y = (v / (v.square().sum(1, keepdim=True).sqrt() + 1e-10) for v in (x, y))
            weight = self.get_buffer(f"lin{k}").view(-1, 1, 1)
            total = total + (weight * (x - y).square()).sum(1).mean((1, 2))
        return total


def load_lpips(weights: Weights) -> LPIPS:
    """LPIPS with a user's weights."""
    tensors, sha256 = read_weights(weights)
    layout = "AlexNet's `Conv_0.weight` (64, 3, 11, 11) … `Conv_4.bias` and the heads `lin0` (64) … `lin4` (256)"
    net = filled(LPIPS(), tensors, layout)
    net.sha256 = sha256
    return net


def images_of(videos: Float[Tensor, "B T C H W"], device: torch.device) -> Float[Tensor, "N 3 H W"]:
    """Frames one by one, in [-1, 1]; grey becomes RGB."""
    if videos.shape[2] not in (1, 3):
        raise ValueError(f"Frames must have 1 or 3 channels. Got {videos.shape[2]}.")
    frames = 2 * videos.flatten(0, 1).to(device, torch.float32) - 1
    return frames.expand(-1, 3, -1, -1)


def lpips(video: Float[Tensor, "B T C H W"], truth: Float[Tensor, "B T C H W"], net: LPIPS) -> Float[Tensor, "B T"]:
    """LPIPS of each frame of videos in [0, 1]: 0 for the truth itself; less is better."""
    check_pair(video, truth)
    if min(video.shape[-2:]) < LEAST:
        raise ValueError(f"AlexNet needs frames of at least {LEAST} pixels. Got {video.shape[-2]}×{video.shape[-1]}.")
    device = next(net.parameters()).device

    def frames(a: Tensor, b: Tensor) -> Tensor:
        return net(images_of(a, device), images_of(b, device)).view(a.shape[:2]).to(a.device)

    with full_precision():
        return in_chunks(frames, video, truth)


def measure_lpips(
    video: Float[Tensor, "B T C H W"], truth: Float[Tensor, "B T C H W"], net: LPIPS, *, context: str, **interval: Any
) -> Measured:
    """LPIPS with its protocol; `interval` as `mean_measured` takes it."""
    protocol = VideoProtocol.of(video, context, features="AlexNet", weights=net.sha256)
    return mean_measured("LPIPS", lpips(video, truth, net), protocol, **interval)
