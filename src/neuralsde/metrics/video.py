"""Videos against the truth, frame by frame: PSNR, SSIM, the difference of two models on the same clips.

Videos are (B, T, C, H, W) with values in [0, 1]. A score has a value per frame; that of a clip is the mean over its
frames (of the decibels, not of the squared errors), and a reported number is the mean over clips. SSIM has a Gaussian
window of 11 pixels with σ = 1.5, edges reflected, and averages over channels and pixels (Wang et al., IEEE TIP 2004).

A number says nothing without its protocol, so it is never returned without: `Measured`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralsde.metrics.forecast import mean_ci

MAX_PSNR = 100.0  # PSNR of a frame that equals the truth, dB: instead of infinity, which no mean survives
MAX_VALUES = 2**22
"""Values of a video that are scored at once (SSIM holds some ten copies in double precision: 320 MiB)."""
WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2


@dataclass(frozen=True, kw_only=True)
class VideoProtocol:
    """How a number was made. None was not stated."""

    frames: int | None = None
    """Frames of a clip that were scored."""
    context: str | None = None
    """Whether the frames that the model was given are among them: "in" or "out"."""
    resolution: tuple[int, int] | None = None
    """Height and width as given, before any resizing."""
    features: str | None = None
    """What is compared if not pixels: net and layer, and what was done to its input."""
    weights: str | None = None
    """SHA-256 of the net's weights."""
    settings: str = ""
    """What else the number depends on."""

    def __post_init__(self) -> None:
        if self.context not in ("in", "out", None):
            raise ValueError(f"`context` must be 'in' or 'out': are given frames scored too? Got {self.context!r}.")

    @classmethod
    def of(cls, videos: Float[Tensor, "B T C H W"], context: str, **rest: Any) -> VideoProtocol:
        """The protocol of clips as they are given."""
        height, width = videos.shape[-2:]
        return cls(frames=videos.shape[1], context=context, resolution=(height, width), **rest)

    def __str__(self) -> str:
        size = None if self.resolution is None else "×".join(map(str, self.resolution))
        parts = [
            f"frames {'not stated' if self.frames is None else self.frames}",
            f"context {self.context or 'not stated'}",
            f"resolution {size or 'not stated'}",
        ]
        parts += [f"features {self.features}"] if self.features else []
        parts += [f"weights sha256 {self.weights}"] if self.weights else []
        return ", ".join([*parts, self.settings] if self.settings else parts)


@dataclass(frozen=True)
class Measured:
    """A number, how it was made and how well it is known."""

    name: str
    value: float
    protocol: VideoProtocol
    n: int
    """Clips; of two sets the smaller."""
    interval: tuple[float, float] | None = None
    """95 %."""

    def record(self) -> dict[str, Any]:
        """Plain values, for a results file."""
        return dataclasses.asdict(self) | {"digest": self.digest}

    @property
    def digest(self) -> str:
        """Short name of score, protocol and n: only numbers with the same one may be compared."""
        text = json.dumps([self.name, dataclasses.asdict(self.protocol), self.n])
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def __str__(self) -> str:
        within = "" if self.interval is None else " [{:.4g}, {:.4g}]".format(*self.interval)
        return f"{self.name} {self.value:.4g}{within} (n {self.n}, {self.protocol}; protocol {self.digest})"


@dataclass(frozen=True)
class Features:
    """One vector per clip, and where it comes from."""

    values: Float[Tensor, "N D"]
    protocol: VideoProtocol = VideoProtocol()

    def __len__(self) -> int:
        return len(self.values)


# The doors


def check_clips(videos: Tensor, name: str = "videos") -> None:
    """Clips (B, T, C, H, W) of finite values, frames or latents."""
    if videos.ndim != 5 or 0 in videos.shape or not videos.is_floating_point():
        raise ValueError(f"`{name}` must be floats (B, T, C, H, W), none 0. Got {tuple(videos.shape)} {videos.dtype}.")
    if not bool(torch.isfinite(videos).all()):
        raise ValueError(f"`{name}` must be finite. Got NaN or infinity. Drop the clips that failed and say how many.")


def check_frames(videos: Tensor, name: str = "videos") -> None:
    """Clips whose pixels lie in [0, 1]."""
    check_clips(videos, name)
    low, high = (float(v) for v in videos.aminmax())
    if low < -1e-6 or high > 1 + 1e-6:
        raise ValueError(f"`{name}` must have values in [0, 1]. Got [{low:.4g}, {high:.4g}]. Scale or clamp them.")


def check_pair(video: Tensor, truth: Tensor) -> None:
    """A video and its truth."""
    if video.shape != truth.shape:
        raise ValueError(f"`video` and `truth` must have one shape. Got {tuple(video.shape)} and {tuple(truth.shape)}.")
    check_frames(video, "video")
    check_frames(truth, "truth")


def in_chunks(score: Callable[..., Tensor], *videos: Float[Tensor, "B T C H W"]) -> Tensor:
    """`score` of a few clips at a time, joined."""
    rows = max(1, MAX_VALUES // videos[0][0].numel())
    return torch.cat([score(*parts) for parts in zip(*(v.split(rows) for v in videos))])


@contextmanager
def full_precision() -> Iterator[None]:
    """Convolutions of a GPU without TF32, its default: a score must not depend on where it is computed."""
    cudnn = torch.backends.cudnn
    with torch.no_grad(), cudnn.flags(enabled=cudnn.enabled, deterministic=True, allow_tf32=False):
        yield


# Scores per frame


def psnr(
    video: Float[Tensor, "B T C H W"], truth: Float[Tensor, "B T C H W"], *, most: float = MAX_PSNR
) -> Float[Tensor, "B T"]:
    """Peak signal-to-noise ratio of each frame over its channels and pixels, dB, at most `most`."""
    check_pair(video, truth)
    error = in_chunks(lambda a, b: (a.double() - b.double()).square().mean((-3, -2, -1)), video, truth)
    return -10 * error.clamp(min=10 ** (-most / 10)).log10()


def _blur(size: int, device: torch.device) -> Float[Tensor, "size size"]:
    """The window as a matrix, edges reflected: two products are much faster than a convolution."""
    reach = WINDOW // 2
    offset = torch.arange(-reach, reach + 1)
    weight = torch.exp(-0.5 * (offset.double() / SIGMA) ** 2)
    source = (torch.arange(size)[:, None] + offset).abs()
    source = (size - 1) - ((size - 1) - source).abs()
    rows = torch.zeros(size, size, dtype=torch.float64)
    return rows.scatter_add_(1, source, (weight / weight.sum()).expand(size, -1)).to(device)


def ssim(video: Float[Tensor, "B T C H W"], truth: Float[Tensor, "B T C H W"]) -> Float[Tensor, "B T"]:
    """Structural similarity of each frame: 1 for the truth itself."""
    check_pair(video, truth)
    height, width = video.shape[-2:]
    if min(height, width) <= WINDOW // 2:
        raise ValueError(f"SSIM needs frames of at least {WINDOW // 2 + 1} pixels. Got {height}×{width}.")
    left, right = _blur(height, video.device), _blur(width, video.device).T

    def frames(a: Tensor, b: Tensor) -> Tensor:
        # float64: variances are differences of second moments
        x, y = a.double(), b.double()
        mx, my, xx, yy, xy = (left @ v @ right for v in (x, y, x * x, y * y, x * y))
        vx, vy, cov = (xx - mx**2).clamp(min=0), (yy - my**2).clamp(min=0), xy - mx * my
        likeness = (2 * mx * my + C1) * (2 * cov + C2) / ((mx**2 + my**2 + C1) * (vx + vy + C2))
        return likeness.mean((-3, -2, -1))

    return in_chunks(frames, video, truth)


# Numbers with intervals


def quality(
    video: Float[Tensor, "N T C H W"], truth: Float[Tensor, "N T C H W"], groups: Int[Tensor, " N"] | None = None
) -> tuple[dict[str, float | None], dict[str, Float[Tensor, "N T"]]]:
    """PSNR and SSIM: the mean over clips with half the width of its 95 % interval, and the scores of all frames."""
    frames = {"psnr": psnr(video, truth).cpu(), "ssim": ssim(video, truth).cpu()}
    means: dict[str, float | None] = {}
    for name, values in frames.items():
        found = mean_ci(values.mean(1), groups)
        means |= {name: found["mean"], f"{name}_half_width": found["ci95"]}
    return means, frames


def resample(n: int, rng: torch.Generator, groups: Int[Tensor, " n"] | None = None) -> Int[Tensor, " m"]:
    """Clips of one bootstrap draw; clips of a group (one source video, say) come together."""
    if groups is None:
        return torch.randint(n, (n,), generator=rng, device=rng.device).cpu()
    if groups.shape != (n,):
        raise ValueError(f"`groups` must name the group of each of the {n} clips. Got shape {tuple(groups.shape)}.")
    names = groups.cpu().unique()
    drawn = names[torch.randint(len(names), (len(names),), generator=rng, device=rng.device).cpu()]
    return torch.cat([(groups.cpu() == name).nonzero()[:, 0] for name in drawn])


def spread_interval(value: float, replicates: list[float]) -> tuple[float, float]:
    """95 % of bootstrap replicates, moved so that their mean is the value.

    Clips drawn twice push a distance between samples up, all replicates alike; what they tell is the spread.
    """
    around = torch.tensor(replicates, dtype=torch.float64)
    low, high = torch.quantile(around - around.mean(), torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return value + low, value + high


def mean_measured(
    name: str,
    values: Float[Tensor, "B *T"],
    protocol: VideoProtocol,
    *,
    groups: Int[Tensor, " B"] | None = None,
    rng: torch.Generator | None = None,
    num_resamples: int = 1_000,
) -> Measured:
    """Mean over clips with its 95 % interval: Student's t over clips or `groups`, or a bootstrap by `rng` if given."""
    clips = values.double().flatten(1).mean(1) if values.ndim > 1 else values.double()
    if not bool(torch.isfinite(clips).all()):
        raise ValueError(f"Each clip must have a finite {name}. Got {int((~clips.isfinite()).sum())} that have not.")
    out = mean_ci(clips, groups)
    value, half = out["mean"], out["ci95"]
    if rng is not None:
        cpu = clips.cpu()
        draws = [float(cpu[resample(len(cpu), rng, groups)].mean()) for _ in range(num_resamples)]
        return Measured(name, value, protocol, len(clips), spread_interval(value, draws))
    return Measured(name, value, protocol, len(clips), None if half is None else (value - half, value + half))


def measure_psnr(
    video: Float[Tensor, "B T C H W"], truth: Float[Tensor, "B T C H W"], *, context: str, **interval: Any
) -> Measured:
    """PSNR with its protocol; `interval` as `mean_measured` takes it."""
    protocol = VideoProtocol.of(video, context, settings=f"dB, mean over frames, each at most {MAX_PSNR:g}")
    return mean_measured("PSNR", psnr(video, truth), protocol, **interval)


def measure_ssim(
    video: Float[Tensor, "B T C H W"], truth: Float[Tensor, "B T C H W"], *, context: str, **interval: Any
) -> Measured:
    """SSIM with its protocol; `interval` as `mean_measured` takes it."""
    protocol = VideoProtocol.of(video, context, settings=f"window {WINDOW}, σ {SIGMA:g}, edges reflected")
    return mean_measured("SSIM", ssim(video, truth), protocol, **interval)


def paired_difference(
    a: Float[Tensor, "..."],
    b: Float[Tensor, "..."],
    *,
    name: str = "difference",
    protocol: VideoProtocol = VideoProtocol(),  # noqa: B008 (frozen)
    groups: Int[Tensor, "..."] | None = None,
    rng: torch.Generator | None = None,
) -> Measured:
    """Mean of a - b over the same clips, scores per clip or per frame: what clips have in common cancels."""
    if a.shape != b.shape or a.ndim == 0 or math.prod(a.shape) == 0:
        raise ValueError(f"Both must score the same clips. Got shapes {tuple(a.shape)} and {tuple(b.shape)}.")
    return mean_measured(name, a.double() - b.double(), protocol, groups=groups, rng=rng)
