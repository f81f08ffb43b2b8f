"""Video prediction: a model of the latents of clips, scored on the frames that it draws (the paper's Section 4.3).

Latents are encoded once. The state of the model is the last frames; it moves the newest one. A predicted frame is the last
known one plus what changed in the decoded latents. One sampler setting serves every score.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from neuralsde.autoencoder import Autoencoder
from neuralsde.config import Sampler, VideoConfig
from neuralsde.metrics.forecast import mean_ci
from neuralsde.metrics.frechet import frechet_of_sets, motion_features
from neuralsde.metrics.video import psnr, ssim
from neuralsde.models import load
from neuralsde.sequence import SequenceModel
from neuralsde.tasks.clips import device, read_clips, shown
from neuralsde.trajectories import Trajectories

STARTS_FROM_HISTORY = True
"""The model's `history` is the context."""


@cache
def _autoencoder(folder: str) -> Autoencoder:
    found = load(folder)
    if not isinstance(found, Autoencoder):
        raise ValueError(
            f"{folder} holds a {found.kind}, not an Autoencoder. Train one: nsde train collisions-autoencoder."
        )
    return found.to(device()).eval()


def encode_clips(autoencoder: Autoencoder, frames: Tensor) -> Float[Tensor, "N T K h w"]:
    """Latents of clips of bytes, a few clips at a time."""
    parts = [autoencoder.encode(shown(part.flatten(0, 1))).unflatten(0, part.shape[:2]) for part in frames.split(256)]
    return torch.cat(parts)


def data(config: VideoConfig, seed: int = 0) -> Trajectories:
    """The latents of the training clips, at their true times."""
    frames, times = read_clips(config.clips, "train")
    latents = encode_clips(_autoencoder(config.autoencoder), frames)
    num, length = latents.shape[:2]
    lengths = torch.full((num,), length, device=latents.device)
    return Trajectories(latents.flatten(0, 1), times.flatten().to(latents.device), lengths)


def predict(
    model: SequenceModel,
    autoencoder: Autoencoder,
    frames: Tensor,
    times: Tensor,
    *,
    context: int,
    num_paths: int = 1,
    sampler: Sampler | None = None,
    seed: int = 0,
) -> tuple[Float[Tensor, "N P F C H W"], Float[Tensor, "N P F K h w"]]:
    """Futures of clips after `context` frames, drawn at `times` (N, T): frames, and their latents."""
    given = encode_clips(autoencoder, frames[:, :context])
    rng = torch.Generator().manual_seed(seed)
    since = (times - times[:, :1])[:, context - 1 :]
    drawn = model.sample(given, since, num_paths=num_paths, sampler=sampler, rng=rng)[:, :, 1:]
    return autoencoder.decode_after(drawn, shown(frames[:, context - 1]), given[:, -1]), drawn


def assess(model: SequenceModel, config: VideoConfig, *, seed: int = 0) -> tuple[dict[str, Any], None]:
    """PSNR, SSIM and a Fréchet distance on latent motion, beside those of a copy of the last frame and of the decoder.

    `spread` is the standard deviation of the futures of a clip, `error` that of their mean from the truth, in pixels; the
    correlation over clips tells whether futures differ where the future is uncertain.
    """
    autoencoder, context = _autoencoder(config.autoencoder), config.context
    frames, times = read_clips(config.clips, config.part, config.num_clips)
    model.to(device())
    images, latents = predict(model, autoencoder, frames, times, context=context, num_paths=config.num_paths, seed=seed)
    truth = shown(frames[:, context:]).to(images.device)
    true_latents = encode_clips(autoencoder, frames)
    scores: dict[str, Any] = {"num_clips": len(frames), "network_passes": sum(model.nfe.values())}
    known, last = shown(frames[:, context - 1]).to(images.device), true_latents[:, context - 1]
    num = truth.shape[1]

    def repeated(x: Tensor) -> Tensor:
        return x[:, None].expand(-1, num, *x.shape[1:])

    ceiling = autoencoder.decode_after(true_latents[:, context:], known, last)
    shown_by = {"": images[:, 0], "copy: ": repeated(known), "decoder: ": ceiling}
    for prefix, video in shown_by.items():
        for name, score in (("psnr", psnr), ("ssim", ssim)):
            value = mean_ci(score(video, truth).mean(1).cpu())
            scores |= {f"{prefix}{name}": value["mean"], f"{prefix}{name}_half_width": value["ci95"]}
    real = motion_features(true_latents[:, context:], context="out").values
    for prefix, motion in {"": latents[:, 0], "copy: ": repeated(last)}.items():
        features = motion_features(motion, context="out").values
        scores[f"{prefix}motion_distance"] = frechet_of_sets(features.cpu(), real.cpu())
    if config.num_paths > 1:
        spread = images.std(1).flatten(1).mean(1)
        error = (images.mean(1) - truth).abs().flatten(1).mean(1)
        scores["spread"], scores["error"] = float(spread.mean()), float(error.mean())
        scores["spread_error_correlation"] = float(torch.corrcoef(torch.stack([spread, error]))[0, 1])
    return scores, None
