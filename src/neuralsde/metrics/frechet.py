"""Distances between two sets of videos by features: Fréchet (FVD) and maximum mean discrepancy (JEDi).

The Fréchet distance of two Gaussians is |m - m'|² + tr A + tr B - 2 tr (A^½ B A^½)^½. The last trace is the sum of the
singular values of R Sᵀ for any R, S with RᵀR = A and SᵀS = B. We take R and S from the centred features themselves: no
root of a product of matrices is formed, nothing becomes complex, and fewer clips than dimensions are no special case.
They are a statistical one: the distance of two samples of *one* law is then far from 0. Hence a least number, and
`frechet_floor`, half against half.

FVD is this distance between logits of I3D (Unterthiner et al., 2018), JEDi a discrepancy between features of V-JEPA (Luo et
al., 2024). Both need weights that only a user can bring; a distance between other features bears another name.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Union

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from neuralsde.core.tensors import read_tensors
from neuralsde.metrics.perceptual import Weights, filled, images_of, read_weights, stated
from neuralsde.metrics.video import (
    MAX_VALUES,
    Features,
    Measured,
    VideoProtocol,
    check_clips,
    check_frames,
    full_precision,
    in_chunks,
    resample,
    spread_interval,
)
from neuralsde.nets.i3d import I3D, NUM_CLASSES, NUM_POOLED, SIZE, I3DLayer

MIN_FRAMES = 10  # what FVD asks of a clip
I3D_LAYOUT = (
    "the names of the public PyTorch port of I3D (RGB, 400 classes): Conv3d_1a_7x7.conv3d.weight (64, 3, 7, 7, 7), "
    "Conv3d_1a_7x7.bn.running_mean (64), … Mixed_3b.b0.conv3d.weight … Mixed_5c.b3b.bn.bias, "
    "logits.conv3d.weight (400, 1024, 1, 1, 1), logits.conv3d.bias"
)
RESERVED = {"fvd": "I3D", "jedi": "V-JEPA"}  # names that belong to features of one net

FeatureSet = Union[Features, Float[Tensor, "_ _"]]
"""One row per clip; a bare tensor has no protocol."""


# Fréchet distance


def _root(values: Float[Tensor, "N D"]) -> Float[Tensor, "K D"]:
    """R with RᵀR the covariance; K is the lesser of N and D."""
    centred = (values - values.mean(0)) / (len(values) - 1) ** 0.5
    return torch.linalg.qr(centred, mode="r").R if len(values) > values.shape[1] else centred


def frechet_of_sets(a: Float[Tensor, "N D"], b: Float[Tensor, "M D"]) -> float:
    """Squared Fréchet distance of the Gaussians with the moments of two sets; no guard."""
    x, y = a.double(), b.double()
    gap, r, s = x.mean(0) - y.mean(0), _root(x), _root(y)
    total = gap.square().sum() + r.square().sum() + s.square().sum()
    return max(float(total - 2 * torch.linalg.svdvals(r @ s.T).sum()), 0.0)  # rounding may go below


def _named(a: FeatureSet, b: FeatureSet, name: str) -> tuple[Tensor, Tensor, VideoProtocol]:
    """The door: two sets of one protocol, and a name that they may bear."""
    x, y = (v if isinstance(v, Features) else Features(v, VideoProtocol(features=name)) for v in (a, b))
    if x.values.shape[1:] != y.values.shape[1:]:
        raise ValueError(f"Both sets must have one dimension. Got {tuple(x.values.shape)} and {tuple(y.values.shape)}.")
    for values in (x.values, y.values):
        if not bool(torch.isfinite(values).all()):
            raise ValueError("Features must be finite. Got NaN or infinity. Drop clips that failed and say how many.")
    if x.protocol != y.protocol:
        raise ValueError(f"Two protocols cannot be compared. Got ({x.protocol}) and ({y.protocol}). Treat both alike.")
    for word, net in RESERVED.items():
        real = (x.protocol.features or "").startswith(net) and x.protocol.weights
        if word in name.lower() and not real:
            raise ValueError(
                f"A number may be called {name!r} only if {net} with known weights computed its features. "
                f"Got features {x.protocol.features!r}, weights {x.protocol.weights}. Name the distance after its features."
            )
    return x.values.double(), y.values.double(), x.protocol


def _check_number(n: int, size: int, least: int | None) -> None:
    need = max(size + 1 if least is None else least, 2)
    if n < 2:
        raise ValueError(
            f"A Fréchet distance needs {need} clips of each set: one has no covariance. Got {n}. Score more."
        )
    if n < need:
        raise ValueError(
            f"A Fréchet distance between features of {size} dimensions needs {need} clips of each set (more than dimensions: "
            f"below, covariances are singular and the bias is large). Got {n}. Score more clips, take fewer features, or accept "
            f"it with `min_samples={n}` and report `frechet_floor` beside it."
        )


def with_interval(
    name: str,
    x: Tensor,
    y: Tensor,
    protocol: VideoProtocol,
    distance: Callable[[Tensor, Tensor], float],
    *,
    rng: torch.Generator | None = None,
    num_resamples: int = 200,
    paired: bool = False,
    groups: Int[Tensor, " N"] | None = None,
) -> Measured:
    """With a bootstrap interval over clips if `rng` is given.

    `paired` draws clip i of both sets together (a truth and its prediction), whole `groups` of them if given.
    """
    value = distance(x, y)
    if len(x) != len(y):
        protocol = _noting(protocol, f"sets of {len(x)} and {len(y)} clips")
    if rng is None:
        return Measured(name, value, protocol, min(len(x), len(y)))
    if paired and len(x) != len(y):
        raise ValueError(f"`paired` sets must have equally many clips. Got {len(x)} and {len(y)}.")
    if groups is not None and not paired:
        raise ValueError("`groups` are those of pairs of clips. Give `paired=True` too.")
    draws = []
    for _ in range(num_resamples):
        first = resample(len(x), rng, groups).to(x.device)
        draws.append(distance(x[first], y[first if paired else resample(len(y), rng).to(y.device)]))
    return Measured(name, value, protocol, min(len(x), len(y)), spread_interval(value, draws))


def _noting(protocol: VideoProtocol, note: str) -> VideoProtocol:
    return dataclasses.replace(protocol, settings=f"{protocol.settings}, {note}" if protocol.settings else note)


def frechet_distance(
    a: FeatureSet, b: FeatureSet, *, name: str, min_samples: int | None = None, **interval: Any
) -> Measured:
    """Squared Fréchet distance of two sets of features; `interval` as `with_interval` takes it.

    The least number of clips is one more than dimensions unless `min_samples` says otherwise.
    """
    x, y, protocol = _named(a, b, name)
    n, size = min(len(x), len(y)), x.shape[1]
    _check_number(n, size, min_samples)
    if n <= size:
        protocol = _noting(protocol, f"fewer clips than {size} dimensions: biased")
    return with_interval(name, x, y, protocol, frechet_of_sets, **interval)


def frechet_floor(
    features: FeatureSet, *, name: str, rng: torch.Generator, num_splits: int = 10, min_samples: int | None = None
) -> Measured:
    """Mean distance of random halves of one set: what a perfect model of so many clips (half of them) would get."""
    x, _, protocol = _named(features, features, name)
    half = len(x) // 2
    _check_number(half, x.shape[1], min_samples)
    values = []
    for _ in range(num_splits):
        order = torch.randperm(len(x), generator=rng, device=rng.device).to(x.device)
        values.append(frechet_of_sets(x[order[:half]], x[order[half : 2 * half]]))
    return Measured(f"{name}, floor", sum(values) / num_splits, _noting(protocol, f"mean of {num_splits} splits"), half)


# FVD


def load_i3d(weights: Weights) -> I3D:
    """I3D with a user's weights: a safetensors file or a state dict."""
    tensors, sha256 = read_weights(weights)
    net = filled(I3D(), tensors, I3D_LAYOUT)
    net.sha256 = sha256
    return net


def i3d_input(videos: Float[Tensor, "B T C H W"], device: torch.device) -> Float[Tensor, "B 3 T 224 224"]:
    """Frames in [-1, 1] at I3D's size: bilinear, half-pixel centres, no antialiasing, sides scaled apart."""
    frames = functional.interpolate(images_of(videos, device), (SIZE, SIZE), mode="bilinear", align_corners=False)
    return frames.unflatten(0, videos.shape[:2]).transpose(1, 2)


def i3d_features(
    videos: Float[Tensor, "B T C H W"], net: I3D, *, context: str, layer: I3DLayer = "logits", batch: int = 16
) -> Features:
    """I3D's features of clips in [0, 1]: 400 logits as FVD takes them, or the 1024 pooled ones before."""
    check_frames(videos)
    if net.sha256 is None:
        raise ValueError("This I3D has no weights. Make it with load_i3d(weights).")
    if videos.shape[1] < MIN_FRAMES:
        raise ValueError(f"I3D needs clips of at least {MIN_FRAMES} frames. Got {videos.shape[1]}.")
    device = next(net.parameters()).device
    with full_precision():
        values = torch.cat([net(i3d_input(part, device), layer) for part in videos.split(batch)])
    size = NUM_CLASSES if layer == "logits" else NUM_POOLED
    text = f"I3D {layer} ({size}) of frames resized to {SIZE}×{SIZE} (bilinear)"
    return Features(values, VideoProtocol.of(videos, context, features=text, weights=net.sha256))


def fvd(real: Features, generated: Features, **options: Any) -> Measured:
    """Fréchet video distance of `i3d_features`; `options` as `frechet_distance` takes them.

    Between pooled features it is called so: the numbers of the two layers have nothing in common.
    """
    pooled = (real.protocol.features or "").startswith("I3D pooled")
    return frechet_distance(real, generated, name="FVD (pooled features)" if pooled else "FVD", **options)


# JEDi


def mmd(
    a: Float[Tensor, "N D"],
    b: Float[Tensor, "M D"],
    *,
    degree: int = 2,
    gamma: float | None = None,
    offset: float = 0.0,
    unbiased: bool = False,
) -> float:
    """Squared maximum mean discrepancy with the kernel (gamma x·y + offset)^degree; gamma is 1/D unless given.

    By default over all pairs: never negative, and above 0 for two samples of one law. `unbiased` leaves out the pairs
    of a value with itself.
    """
    if min(len(a), len(b)) < 1 + unbiased or a.shape[1:] != b.shape[1:]:
        raise ValueError(f"Two sets of one dimension, {1 + unbiased} values each, are needed. Got {len(a)}, {len(b)}.")
    x, y = a.double(), b.double()
    scale = 1 / x.shape[1] if gamma is None else gamma

    def total(u: Tensor, v: Tensor) -> float:
        rows = max(1, MAX_VALUES // len(v))
        return sum(float((scale * part @ v.T + offset).pow(degree).sum()) for part in u.split(rows))

    def within(u: Tensor) -> float:
        own = float((scale * u.square().sum(1) + offset).pow(degree).sum()) if unbiased else 0.0
        return (total(u, u) - own) / (len(u) * (len(u) - unbiased))

    value = within(x) + within(y) - 2 * total(x, y) / (len(x) * len(y))
    return value if unbiased else max(value, 0.0)


def jedi(real: Features, generated: Features, *, unbiased: bool = False, **interval: Any) -> Measured:
    """JEDi of V-JEPA features: 100 times the discrepancy with kernel (x·y / D)², as its authors report it.

    `interval` as `with_interval` takes it.
    """
    x, y, protocol = _named(real, generated, "JEDi")
    protocol = _noting(protocol, f"100 × MMD² ({'unbiased' if unbiased else 'biased'}), kernel (x·y / {x.shape[1]})²")

    def distance(u: Tensor, v: Tensor) -> float:
        return 100 * mmd(u, v, unbiased=unbiased)

    return with_interval("JEDi", x, y, protocol, distance, **interval)


def read_features(
    file: str | os.PathLike[str],
    *,
    features: str,
    weights: str | os.PathLike[str],
    frames: int | None = None,
    context: str | None = None,
    resolution: tuple[int, int] | None = None,
) -> Features:
    """Features (N, D) computed elsewhere: a .npy of numbers, or a safetensors file with one tensor.

    `features` names net and layer ("V-JEPA …"), `weights` is their file, which is only hashed, or its SHA-256.
    """
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    if path.suffix == ".npy":
        try:
            values = torch.from_numpy(np.load(path, allow_pickle=False))
        except (OSError, EOFError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a .npy of numbers ({error}). Save it again.") from None
    else:
        tensors = read_tensors(path)
        if len(tensors) != 1:
            raise ValueError(f"{path} must hold one tensor. Got {sorted(tensors)}.")
        values = next(iter(tensors.values()))
    if values.ndim != 2 or not values.is_floating_point():
        raise ValueError(f"{path} must hold floats (clips, features). Got {tuple(values.shape)} {values.dtype}.")
    more: dict[str, Any] = {"frames": frames, "context": context, "resolution": resolution}
    return Features(values, VideoProtocol(features=features, weights=stated(weights), **more))


# Features that need no weights


def motion_features(
    videos: Float[Tensor, "B T C H W"], *, context: str, grid: int = 4, max_features: int = 128, seed: int = 0
) -> Features:
    """Where things are and how much they move, of frames or latents: for a "Fréchet distance on motion".

    Each frame is averaged over the cells of a `grid` × `grid`, and so is the absolute difference of each frame to the
    next; all of it, (2T - 1) C grid² numbers, is one vector. If that is more than `max_features` it is projected there
    by a fixed Gaussian matrix drawn from `seed`, which keeps squared distances in expectation.
    """
    check_clips(videos)
    frames, channels, height, width = videos.shape[1:]
    if frames < 2 or min(height, width) < grid:
        raise ValueError(
            f"Motion needs 2 frames of {grid}×{grid} or more. Got {frames} of {height}×{width}. Lower `grid`."
        )
    size = (2 * frames - 1) * channels * grid**2
    rng = torch.Generator().manual_seed(seed)
    matrix = torch.randn(size, max_features, generator=rng, dtype=torch.float64).to(videos.device) / max_features**0.5

    def of(part: Tensor) -> Tensor:
        x = torch.cat([part, part.diff(dim=1).abs()], dim=1).double()
        cells = functional.adaptive_avg_pool2d(x.flatten(0, 1), grid).unflatten(0, x.shape[:2]).flatten(1)
        return cells @ matrix if size > max_features else cells

    how = f", projected to {max_features} (seed {seed})" if size > max_features else ""
    text = f"motion: frames and absolute differences of {channels} channel(s) on a {grid}×{grid} grid ({size}){how}"
    return Features(in_chunks(of, videos), VideoProtocol.of(videos, context, features=text))
