"""Video prediction: a model of the latents of clips, scored on the frames that it draws (the paper's Section 4.3).

Latents are encoded once. A model is trained once and scored as it is and as its variants say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from neuralsde.baselines.config import Generation
from neuralsde.core.files import sha256_of_file
from neuralsde.core.records import with_settings
from neuralsde.data.trajectories import Trajectories
from neuralsde.experiments.collisions.config import Split
from neuralsde.experiments.task import Scores, Task
from neuralsde.experiments.tasks import clips as source
from neuralsde.experiments.tasks.clips import read_clips
from neuralsde.experiments.video_config import ClipsConfig, VideoConfig, VideoVariant
from neuralsde.metrics.frechet import frechet_distance, frechet_floor, motion_features
from neuralsde.metrics.video import Measured, quality
from neuralsde.models.config import Sampling
from neuralsde.models.evaluation import evaluated
from neuralsde.models.sequence import SequenceModel
from neuralsde.sde.config import Sampler, Transport
from neuralsde.sde.model import NeuralSDE
from neuralsde.solvers.integrate import Diverged
from neuralsde.solvers.noise import Noise
from neuralsde.video.autoencoder import Autoencoder
from neuralsde.video.model import autoencoder_folder, load_autoencoder, save_video_model
from neuralsde.video.predict import ClipBatch, as_values, cubic, device, draw, encode_clips, place_before, straight

DISTANCE = "Fréchet distance on latent motion"
FEWEST = 4  # clips below which there is no distance, whose floor halves them, and no spread by quarters
NUM_RESAMPLES = 40  # of the clips, for the interval of a distance
VALIDATION_SIZE = 8_192  # transitions of the validation losses


@lru_cache(maxsize=4)
def _autoencoder(folder: str) -> Autoencoder:
    if not Path(folder).is_dir():
        remedy = "Train one (nsde train collisions-autoencoder), or name yours: --task.autoencoder FOLDER."
        raise ValueError(f"{folder} is not there: video is learned in the latents of an autoencoder. {remedy}")
    return load_autoencoder(folder).to(device())


def _weights(config: VideoConfig) -> str:
    """The checksum of the autoencoder."""
    return sha256_of_file(autoencoder_folder(config.autoencoder) / "model.safetensors")


def _paths(config: VideoConfig, part: Split) -> Trajectories:
    autoencoder = _autoencoder(config.autoencoder)
    key = (_weights(config), source.content(config.clips), part)
    latents = source.cached("latents", key, lambda: encode_clips(autoencoder, read_clips(config.clips, part)[0])).to(
        device()
    )
    num, length = latents.shape[:2]
    times = source.read_times(config.clips, part).flatten().to(latents.device)
    return Trajectories(latents.flatten(0, 1), times, torch.full((num,), length, device=latents.device))


# Scores


def validation_losses(model: SequenceModel, config: VideoConfig, *, seed: int = 0) -> dict[str, float]:
    """The losses of the training on validation clips, and the paper's reduced loss, mean log((r² + δ) / δ)."""
    if not source.has_part(config.clips, "validation"):
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


def sampler_of(model: SequenceModel, variant: VideoVariant) -> Sampling:
    """How a variant draws from a model."""
    usual = model.sampler
    names = ["diffusion", "pull"] if isinstance(usual, Sampler) else []
    changes: dict[str, Any] = {name: value for name in names if (value := getattr(variant, name)) is not None}
    if variant.passes is not None:
        if isinstance(usual, Generation):
            changes["num_steps"] = variant.passes
        elif isinstance(model, NeuralSDE) and isinstance(model.config.law, Transport):
            changes["passes"] = variant.passes - 1
        else:
            changes["substeps"] = variant.passes
    return with_settings(usual, changes)


def at_temperature(sampler: Sampling, temperature: float) -> Sampling:
    """The same with a factor on the noise: that of the start of a generative model, or of a Neural SDE's steps."""
    name = "temperature" if isinstance(sampler, Generation) else "diffusion"
    return with_settings(sampler, {name: temperature})


def least_distance(tried: Mapping[float, tuple[float, float]]) -> float:
    """The temperature of the smallest distance, of (distance, PSNR) by temperature, with no less PSNR than at 1."""
    floor = tried[1.0][1]
    return min((t for t, (_, psnr) in tried.items() if psnr >= floor), key=lambda t: tried[t][0])


@lru_cache(maxsize=8)
def _truth(clips: ClipsConfig, part: Split, num: int, context: int, rate: int, autoencoder: str) -> ClipBatch:
    scenes = replace(clips.collisions, fps=clips.collisions.fps * rate)
    finer = clips if rate == 1 else replace(clips, collisions=scenes, length=(clips.length - 1) * rate + 1)
    frames, times = read_clips(finer, part, num)
    groups = source.read_groups(clips, part, num)
    return ClipBatch.of(_autoencoder(autoencoder), frames, times, context, rate=rate, groups=groups)


def _scores(model: SequenceModel, config: VideoConfig, variant: VideoVariant, seed: int) -> dict[str, Any]:
    sampler = sampler_of(model, variant)
    clips = config.clips if variant.length is None else replace(config.clips, length=variant.length)
    given = model.config.history
    truth = _truth(clips, variant.part, config.num_clips, given, variant.rate, config.autoencoder)
    if variant.rate > 1:
        return _scores_between(model, truth, variant, sampler, seed)
    chosen: dict[str, Any] = {}
    if variant.temperatures:
        known = _truth(clips, "validation", config.num_clips, given, 1, config.autoencoder)
        chosen = {"temperature": _chosen_temperature(model, known, variant.temperatures, sampler, seed)}
        sampler = at_temperature(sampler, chosen["temperature"])
    num_paths = 1 if variant.name else config.num_paths
    drawn = draw(model, truth.given, truth.times, num_paths=num_paths, sampler=sampler, seed=seed)
    paths = drawn.paths[:, :, 1:]
    passes = sum(drawn.nfe.values()) / paths.shape[2]
    images = truth.decode(paths)
    found: dict[str, Any] = chosen if variant.name else {"num_clips": len(images)}
    means, frames = quality(images[:, 0], truth.future, truth.groups)
    found |= {"passes_per_frame": passes, **means, **_distance(paths[:, 0], truth)}
    if not variant.name or variant.length is not None:
        found |= {f"{name}_by_frame": [round(v, 4) for v in values.mean(0).tolist()] for name, values in frames.items()}
        found |= _references(truth)
    if variant.part == "test":
        found |= _by_clip(frames, truth)
    if num_paths > 1 and len(images) >= FEWEST:
        found |= _spread(images, truth.future)
    return found


def _chosen_temperature(
    model: SequenceModel, truth: ClipBatch, temperatures: Sequence[float], sampler: Sampling, seed: int
) -> float:
    tried = {}
    for temperature in temperatures:
        way = at_temperature(sampler, temperature)
        paths = draw(model, truth.given, truth.times, sampler=way, seed=seed).paths[:, 0, 1:]
        psnr = float(quality(truth.decode(paths), truth.future, truth.groups)[1]["psnr"].mean())
        tried[temperature] = (_motion_distance(paths, truth.latents).value, psnr)
    return least_distance(tried)


def _scores_between(
    model: SequenceModel, truth: ClipBatch, variant: VideoVariant, sampler: Sampling, seed: int
) -> dict[str, Any]:
    """Of the frames between those of the training's rate."""
    rate, coarse = variant.rate, truth.times[:, :: variant.rate]
    between = [k for k in range(truth.bytes.shape[1]) if k % rate]
    if variant.between == "sampled":
        drawn = draw(model, truth.given, truth.times, sampler=sampler, seed=seed)
        path = drawn.paths[:, 0]
        images = truth.decode(path[:, between])
    else:
        beyond = 2 * coarse[:, -1:] - coarse[:, -2:-1]
        drawn = draw(model, truth.given, torch.cat([coarse, beyond], dim=1), sampler=sampler, seed=seed)
        path = drawn.paths[:, 0]
        path, after = path[:, :-1], path[:, -1]
        if variant.between == "pixels":
            images = straight(torch.cat([truth.known[:, None], truth.decode(path[:, 1:])], dim=1), rate)
        elif variant.between == "cubic":
            images = truth.decode(cubic(place_before(truth.given, path), path, after, rate))
        else:
            images = truth.decode(straight(path, rate))
    passes = sum(drawn.nfe.values()) / (coarse.shape[1] - (variant.between == "sampled"))
    means, frames = quality(images, as_values(truth.bytes[:, between]), truth.groups)
    return {"passes_per_frame": passes, **means, **(_by_clip(frames, truth) if variant.part == "test" else {})}


def _distance(drawn: Float[Tensor, "N F K h w"], truth: ClipBatch) -> dict[str, Any]:
    """Between the motion of drawn and true latents, with half the width of its interval; of too few clips none."""
    if len(drawn) < FEWEST:
        return {}
    some: dict[str, Any] = {"num_resamples": NUM_RESAMPLES, "paired": True, "groups": truth.groups}
    found = _motion_distance(drawn, truth.latents, rng=torch.Generator().manual_seed(0), **some)
    low, high = found.interval or (math.nan, math.nan)
    return {"motion_distance": found.value, "motion_distance_half_width": (high - low) / 2}


def _motion_distance(drawn: Tensor, true: Tensor, **interval: Any) -> Measured:
    one, two = (motion_features(x, context="out") for x in (drawn, true))
    sets = (replace(x, values=x.values.cpu()) for x in (one, two))
    return frechet_distance(*sets, name=DISTANCE, min_samples=2, **interval)


def _references(truth: ClipBatch) -> dict[str, Any]:
    """Scores of a copy of the last known frame, of the decoder on true latents, and of true motion against true motion."""
    future, still = truth.future, truth.given[:, -1:].expand_as(truth.latents)
    copy = quality(truth.copy, future, truth.groups)[0] | _distance(still, truth)
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


def _by_clip(frames: dict[str, Float[Tensor, "N F"]], truth: ClipBatch) -> dict[str, str]:
    """Scores of every clip and the recordings that they are from: as text, which means over seeds skip."""
    found = {f"{name}_by_clip": [f"{v:.4g}" for v in values.mean(1).tolist()] for name, values in frames.items()}
    if truth.groups is not None:
        found["recording_by_clip"] = [str(v) for v in truth.groups.tolist()]
    return {name: " ".join(texts) for name, texts in found.items()}


class VideoTask(Task[VideoConfig]):
    """The next frames of clips."""

    starts_from_history: ClassVar[bool] = True

    def data(self, seed: int = 0) -> Trajectories:
        config = self.config
        for variant in (VideoVariant(name=""), *config.variants):
            source.check_part(replace(config.clips, length=variant.length or config.clips.length), variant.part)
        return _paths(config, "train")

    def checksums(self) -> dict[str, str]:
        return {"autoencoder_sha256": _weights(self.config), **source.checksums(self.config.clips)}

    def save(self, model: SequenceModel, folder: Path) -> None:
        """With what it needs to draw futures of any clip: frames to latents and back, and pictures to frames."""
        autoencoder = _autoencoder(self.config.autoencoder)
        save_video_model(folder, model, autoencoder, settings=source.frame_settings(self.config.clips))

    def score(self, model: SequenceModel, seed: int = 0) -> Scores:
        """PSNR, SSIM and a Fréchet distance on latent motion, beside those of a copy of the last frame and of the decoder.

        Variants stand beside them with their name before the score, or `failed` where paths left the data. `spread` is the
        standard deviation of the futures of a clip, `error` the distance of their mean from the truth, means over pixels;
        the correlation over clips tells whether futures differ where the future is uncertain.
        """
        model.to(device())
        scores: dict[str, Any] = {"num_clips": 0, "parameters": sum(p.numel() for p in model.parameters())}
        scores |= validation_losses(model, self.config, seed=seed)
        for variant in (VideoVariant(name=""), *self.config.variants):
            try:
                found = _scores(model, self.config, variant, seed)
            except Diverged as error:  # of this way to draw: the others stand
                found = {"failed": str(error)}
            scores |= {f"{variant.name}: {key}" if variant.name else key: value for key, value in found.items()}
        return Scores(scores)
