"""Video prediction: a model of the latents of clips, scored on the frames that it draws (the paper's Section 4.3).

Latents are encoded once. The state of the model is the last frames; it moves the newest one. A predicted frame is the last
known one plus what changed in the decoded latents. A model is trained once and scored as it is and as its variants say.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from neuralsde.autoencoder import Autoencoder
from neuralsde.config.collisions import Split
from neuralsde.config.video import ClipsConfig, VideoConfig, VideoVariant
from neuralsde.data.trajectories import Trajectories
from neuralsde.data.videos.decode import FrameSettings
from neuralsde.metrics.frechet import frechet_distance, frechet_floor, motion_features
from neuralsde.models.build import load
from neuralsde.models.evaluation import evaluated
from neuralsde.models.sequence import SequenceModel
from neuralsde.sde.config import Sampler
from neuralsde.sde.model import NeuralSDE
from neuralsde.solvers.integrate import Diverged
from neuralsde.solvers.noise import Noise
from neuralsde.tasks.between import cubic, cubic_at, straight
from neuralsde.tasks.clips import (
    check_part,
    content,
    device,
    frame_settings,
    has_part,
    kept,
    quality,
    read_clips,
    read_groups,
    read_times,
    shown,
)
from neuralsde.tasks.frames import autoencoder_folder

STARTS_FROM_HISTORY = True
"""The model's `history` is the context."""
DISTANCE = "Fréchet distance on latent motion"
FEWEST = 4
"""Clips below which there is no distance, whose floor halves them, and no spread by quarters."""
NUM_RESAMPLES = 40
"""Of the clips, for the interval of a distance."""
VALIDATION_SIZE = 8_192
"""Transitions of the validation losses."""


@lru_cache(maxsize=4)
def _autoencoder(folder: str) -> Autoencoder:
    place = autoencoder_folder(folder)
    if not place.is_dir():
        raise ValueError(
            f"{folder} is not there: video is learned in the latents of an autoencoder. Train one (nsde train "
            "collisions-autoencoder), or name yours: --task.autoencoder FOLDER."
        )
    found = load(place)
    if not isinstance(found, Autoencoder):
        raise ValueError(
            f"{folder} holds a {found.kind}, not an Autoencoder. Train one: nsde train collisions-autoencoder."
        )
    return found.to(device()).eval()


def encode_clips(autoencoder: Autoencoder, frames: Tensor) -> Float[Tensor, "N T K h w"]:
    """Latents of clips of bytes, a few clips at a time."""
    place, parts = autoencoder.shift.device, frames.split(256)
    return torch.cat([autoencoder.encode(shown(x.flatten(0, 1).to(place))).unflatten(0, x.shape[:2]) for x in parts])


def frames_by(config: VideoConfig) -> tuple[Autoencoder, FrameSettings | None]:
    """What a model of latents needs to draw futures of any clip: frames to latents and back, and pictures to frames."""
    return _autoencoder(config.autoencoder), frame_settings(config.clips)


def data(config: VideoConfig, seed: int = 0) -> Trajectories:
    """The latents of the training clips, at their true times."""
    for variant in (VideoVariant(name=""), *config.variants):
        check_part(replace(config.clips, length=variant.length or config.clips.length), variant.part or config.part)
    return _paths(config, "train")


def _paths(config: VideoConfig, part: Split) -> Trajectories:
    autoencoder = _autoencoder(config.autoencoder)
    weights = hashlib.sha256((autoencoder_folder(config.autoencoder) / "model.safetensors").read_bytes()).hexdigest()
    key = (weights, content(config.clips), part)
    latents = kept("latents", key, lambda: encode_clips(autoencoder, read_clips(config.clips, part)[0])).to(device())
    num, length = latents.shape[:2]
    times = read_times(config.clips, part).flatten().to(latents.device)
    return Trajectories(latents.flatten(0, 1), times, torch.full((num,), length, device=latents.device))


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
    smooth: bool = False,
) -> tuple[Float[Tensor, "N P F C H W"], Float[Tensor, "N P F K h w"]]:
    """Futures of clips after `context` frames, drawn at `times` (N, T): frames, and their latents.

    `smooth`: drawn at the frame rate of the training and read at `times`, the same for all clips, from cubics through the
    latents. It serves models that know no states between the frames of the training.
    """
    given = encode_clips(autoencoder, frames[:, :context])
    since = (times - times[:, :1])[:, context - 1 :]
    draw = partial(_draw, model, given, num_paths=num_paths, sampler=sampler, seed=seed)
    if smooth:
        places = (since[0] - since[0, 0])[1:] / model.scale.step
        grid = since[:, :1] + model.scale.step * torch.arange(math.ceil(float(places[-1]) - 1e-6) + 2)
        path = draw(grid).flatten(0, 1)
        around = torch.cat([_before(given.repeat_interleave(num_paths, 0), path)[:, None], path], dim=1)
        drawn = cubic_at(around, places).unflatten(0, (-1, num_paths))
    else:
        drawn = draw(since)[:, :, 1:]
    return autoencoder.decode_after(drawn, shown(frames[:, context - 1]), given[:, -1]), drawn


def _before(given: Float[Tensor, "N M *S"], path: Float[Tensor, "N T *S"]) -> Float[Tensor, "N *S"]:
    """The place before a path: the last but one that is given, or in its stead the path drawn on backwards."""
    return given[:, -2] if given.shape[1] > 1 else 2 * path[:, 0] - path[:, 1]


def _draw(
    model: SequenceModel,
    given: Float[Tensor, "N M K h w"],
    times: Float[Tensor, "N T"],
    *,
    num_paths: int = 1,
    sampler: Sampler | None = None,
    seed: int,
) -> Float[Tensor, "N P T K h w"]:
    """Futures of latents, the last given one before them. The noise of a future is the same however many there are."""
    clips = Noise.draw(torch.Generator().manual_seed(seed), len(given), model.scale.mean.device)
    keys = torch.stack([clips.child(k).keys for k in range(num_paths)], dim=1).flatten()
    return model.sample(given, times, num_paths=num_paths, sampler=sampler, rng=Noise(keys))


# Scores


def assess(model: SequenceModel, config: VideoConfig, *, seed: int = 0) -> tuple[dict[str, Any], None]:
    """PSNR, SSIM and a Fréchet distance on latent motion, beside those of a copy of the last frame and of the decoder.

    Variants stand beside them with their name before the score, or `failed` where paths left the data. `spread` is the
    standard deviation of the futures of a clip, `error` the distance of their mean from the truth, means over pixels; the
    correlation over clips tells whether futures differ where the future is uncertain.
    """
    model.to(device())
    scores: dict[str, Any] = {"num_clips": 0, "parameters": sum(p.numel() for p in model.parameters())}
    scores |= validation_losses(model, config, seed=seed)
    for variant in (VideoVariant(name="", keep=True), *config.variants):
        try:
            with _run_as(model, variant):
                found = _scores(model, config, variant, seed)
        except Diverged as error:  # of this way to draw: the others stand
            found = {"failed": str(error)}
        scores |= {f"{variant.name}: {key}" if variant.name else key: value for key, value in found.items()}
    return scores, None


def validation_losses(model: SequenceModel, config: VideoConfig, *, seed: int = 0) -> dict[str, float]:
    """The losses of the training on validation clips, and the paper's reduced loss, mean log((r² + δ) / δ)."""
    if not has_part(config.clips, "validation"):
        return {}
    pairs = _paths(config, "validation").transitions(lag=config.lag, history=model.config.history)
    batch = pairs.spread(VALIDATION_SIZE)
    noise = Noise.for_step(seed + 1, 0, torch.arange(len(batch), device=batch.next.device))

    with torch.no_grad():
        losses = evaluated(model).loss(batch, noise)
    found = {f"validation_{name}": float(value) for name, value in losses.items()}
    if isinstance(model, NeuralSDE):
        found["reduced_loss"] = model.reduced_loss(batch, noise)
    return found


@contextmanager
def _run_as(model: SequenceModel, variant: VideoVariant) -> Iterator[None]:
    """The model with the sampler of a variant, for a while."""
    config, sampler = model.config, model.sampler
    changes: dict[str, Any] = {
        name: value
        for name in ("diffusion", "pull", "refine", "refine_noise")
        if (value := getattr(variant, name)) is not None
    }
    if variant.passes is not None and hasattr(config, "num_steps"):
        model.config = replace(config, num_steps=variant.passes)  # type: ignore[call-arg]
    elif variant.passes is not None:
        changes["substeps"] = variant.passes
    model.sampler = replace(sampler, **changes)
    try:
        yield
    finally:
        model.config, model.sampler = config, sampler


@dataclass(frozen=True, eq=False)
class _Truth:
    """N clips: what a model is given and what it is to draw."""

    given: Float[Tensor, "N M K h w"]
    known: Float[Tensor, "N C H W"]
    """The last known frame."""
    times: Float[Tensor, "N T"]
    """Since the start of the clip, from the last known frame on; (T - 1) frames are to be drawn."""
    bytes: UInt8[Tensor, "N T C H W"]
    """From the last known frame on."""
    groups: Int[Tensor, " N"] | None
    autoencoder: Autoencoder

    @property
    def future(self) -> Float[Tensor, "N F C H W"]:
        """The frames that are to be drawn."""
        return shown(self.bytes[:, 1:])

    @cached_property
    def latents(self) -> Float[Tensor, "N F K h w"]:
        """Of these frames."""
        return encode_clips(self.autoencoder, self.bytes[:, 1:])

    def decode(self, latents: Tensor) -> Tensor:
        """Frames of latents (N, ..., K, h, w) that follow the known one."""
        return self.autoencoder.decode_after(latents, self.known, self.given[:, -1])


@lru_cache(maxsize=8)
def _truth(clips: ClipsConfig, part: Split, num: int, context: int, rate: int, autoencoder: str) -> _Truth:
    """Clips at `rate` times the frames of training."""
    scenes = replace(clips.collisions, fps=clips.collisions.fps * rate)
    finer = clips if rate == 1 else replace(clips, collisions=scenes, length=(clips.length - 1) * rate + 1)
    frames, times = read_clips(finer, part, num)
    net, start = _autoencoder(autoencoder), (context - 1) * rate
    given = encode_clips(net, frames[:, : start + 1 : rate])
    rest, times = frames[:, start:].to(given.device), (times - times[:, :1])[:, start:]
    return _Truth(given, shown(rest[:, 0]), times, rest, read_groups(clips, part, num), net)


def _scores(model: SequenceModel, config: VideoConfig, variant: VideoVariant, seed: int) -> dict[str, Any]:
    clips = config.clips if variant.length is None else replace(config.clips, length=variant.length)
    part = variant.part or config.part
    truth = _truth(clips, part, config.num_clips, config.context, variant.rate, config.autoencoder)
    if variant.rate > 1:
        return _scores_between(model, truth, variant, seed)
    num_paths = 1 if variant.name else config.num_paths
    paths = _draw(model, truth.given, truth.times, num_paths=num_paths, seed=seed)[:, :, 1:]
    passes = sum(model.nfe.values()) / paths.shape[2]
    images = truth.decode(paths)
    found: dict[str, Any] = {} if variant.name else {"num_clips": len(images)}
    means, frames = quality(images[:, 0], truth.future, truth.groups)
    found |= {"passes_per_frame": passes, **means, **_distance(paths[:, 0], truth)}
    if not variant.name or variant.length is not None:
        found |= {f"{name}_by_frame": [round(v, 4) for v in values.mean(0).tolist()] for name, values in frames.items()}
        found |= _references(truth)
    if variant.keep:
        found |= _by_clip(frames, truth)
    if num_paths > 1 and len(images) >= FEWEST:
        found |= _spread(images, truth.future)
    return found


def _scores_between(model: SequenceModel, truth: _Truth, variant: VideoVariant, seed: int) -> dict[str, Any]:
    """Of the frames between those of the training's rate."""
    rate, coarse = variant.rate, truth.times[:, :: variant.rate]
    if variant.between == "sampled":
        path = _draw(model, truth.given, truth.times, seed=seed)[:, 0]
        images = truth.decode(path[:, _between(rate, path.shape[1])])
    else:
        beyond = 2 * coarse[:, -1:] - coarse[:, -2:-1]
        path = _draw(model, truth.given, torch.cat([coarse, beyond], dim=1), seed=seed)[:, 0]
        path, after = path[:, :-1], path[:, -1]
        if variant.between == "pixels":
            images = straight(torch.cat([truth.known[:, None], truth.decode(path[:, 1:])], dim=1), rate)
        elif variant.between == "cubic":
            images = truth.decode(cubic(_before(truth.given, path), path, after, rate))
        else:
            images = truth.decode(straight(path, rate))
    passes = sum(model.nfe.values()) / (coarse.shape[1] - (variant.between == "sampled"))
    means, frames = quality(images, shown(truth.bytes[:, _between(rate, truth.bytes.shape[1])]), truth.groups)
    return {"passes_per_frame": passes, **means, **(_by_clip(frames, truth) if variant.keep else {})}


def _between(rate: int, num: int) -> list[int]:
    """Places of the frames that are none of the training's rate."""
    return [k for k in range(num) if k % rate]


def _distance(drawn: Float[Tensor, "N F K h w"], truth: _Truth) -> dict[str, Any]:
    """Between the motion of drawn and true latents, with half the width of its interval; of too few clips none."""
    if len(drawn) < FEWEST:
        return {}
    sets = (motion_features(x, context="out") for x in (drawn, truth.latents))
    one, two = (replace(x, values=x.values.cpu()) for x in sets)
    rng = torch.Generator().manual_seed(0)
    some: dict[str, Any] = {"min_samples": 2, "num_resamples": NUM_RESAMPLES, "paired": True, "groups": truth.groups}
    found = frechet_distance(one, two, name=DISTANCE, rng=rng, **some)
    low, high = found.interval or (math.nan, math.nan)
    return {"motion_distance": found.value, "motion_distance_half_width": (high - low) / 2}


def _references(truth: _Truth) -> dict[str, Any]:
    """Scores of a copy of the last known frame, of the decoder on true latents, and of true motion against true motion."""
    future, still = truth.future, truth.given[:, -1:].expand_as(truth.latents)
    copy = quality(truth.known[:, None].expand_as(future), future, truth.groups)[0] | _distance(still, truth)
    ceiling = quality(truth.decode(truth.latents), future, truth.groups)[0]
    named = {f"copy: {k}": v for k, v in copy.items()} | {f"decoder: {k}": v for k, v in ceiling.items()}
    if len(future) < FEWEST:
        few = f"{len(future)} clip(s) are too few for distances and spreads, which need {FEWEST}: --task.clips.stride 1 gives more."
        return named | {"note": few}
    features = motion_features(truth.latents, context="out")
    rng = torch.Generator().manual_seed(0)
    floor = frechet_floor(replace(features, values=features.values.cpu()), name=DISTANCE, rng=rng, min_samples=2)
    return named | {"motion_distance_floor": floor.value}


def _spread(images: Float[Tensor, "N P F C H W"], truth: Tensor) -> dict[str, Any]:
    """How far the futures of a clip differ, how far their mean is off, and whether the two go together."""
    spread = images.std(1).flatten(1).mean(1).cpu()
    error = (images.mean(1) - truth).abs().flatten(1).mean(1).cpu()
    related = float(torch.corrcoef(torch.stack([spread, error]))[0, 1])
    order = spread.argsort().tensor_split(4)
    return {
        "spread": float(spread.mean()),
        "error": float(error.mean()),
        "spread_error_correlation": related,
        "spread_error_correlation_half_width": 1.96 * (1 - related**2) / math.sqrt(max(1, len(spread) - 3)),
        "spread_by_quarter": [float(spread[k].mean()) for k in order],
        "error_by_quarter": [float(error[k].mean()) for k in order],
    }


def _by_clip(frames: dict[str, Float[Tensor, "N F"]], truth: _Truth) -> dict[str, str]:
    """Scores of every clip and the recordings that they are from: as text, which means over seeds skip."""
    found = {f"{name}_by_clip": [f"{v:.4g}" for v in values.mean(1).tolist()] for name, values in frames.items()}
    if truth.groups is not None:
        found["recording_by_clip"] = [str(v) for v in truth.groups.tolist()]
    return {name: " ".join(texts) for name, texts in found.items()}
