"""The report of a model that was fitted on videos: what was read, how good predictions are on what was held out, pictures."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralsde.core.records import RunError
from neuralsde.data.videos.shards import VideoShards
from neuralsde.metrics.forecast import mean_ci
from neuralsde.metrics.video import quality
from neuralsde.training.run_folder import losses
from neuralsde.video.clips import Clip, Split, cut_clips, longest_clip
from neuralsde.video.config import VideoPlan
from neuralsde.video.files import FASTEST, write_video
from neuralsde.video.model import Futures, VideoModel
from neuralsde.video.pictures import film_in_true_time, save_picture, strip_over_time
from neuralsde.video.predict import ClipBatch
from neuralsde.video.predict import draw as draw_latents

NUM_CLIPS, FUTURE = 64, 12  # clips that are scored at most, and frames of each that are predicted at most
AT_ONCE = 16
NUM_PATHS = 2  # futures that are drawn of each clip; the first is scored
NUM_SHOWN = 3  # clips in the pictures
NAMES = {"": "model", "copy: ": "copy of the last frame", "decoder: ": "decoder, at best"}


@dataclass(frozen=True)
class Scored:
    """Scores as plain numbers, and the clips they are of."""

    values: dict[str, Any]
    clips: list[Clip]
    futures: Tensor | None  # (clips, paths, frames, C, H, W) bytes; only of those that are shown
    why_not: str = ""

    def lines(self) -> list[str]:
        if self.why_not:
            return [self.why_not]
        rows = ["| predicted by | PSNR, dB | SSIM |", "|---|---|---|"]
        for prefix, name in NAMES.items():
            rows.append(f"| {name} | {self._show(f'{prefix}psnr', 2)} | {self._show(f'{prefix}ssim', 4)} |")
        v = self.values
        clips = f"{v['num_clips']} clips of {v['num_videos']} video(s)"
        means = "means over frames and clips, ± half the 95 % interval over videos"
        rows += ["", f"{clips}: {v['context']} frames given, {v['future']} predicted; {means}. "]
        rows[-1] += f"{v['network_passes']} network passes per future."
        if v["psnr"] < v["copy: psnr"]:
            remedy = "learn from more videos, or longer if the losses still fall"
            rows.append(f"A copy of the last frame is nearer to the truth: {remedy}.")
        return rows

    def _show(self, key: str, digits: int) -> str:
        half = self.values[f"{key}_half_width"]
        return f"{self.values[key]:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def score(video: VideoModel, held_out: list[Clip]) -> Scored:
    """PSNR and SSIM of predicted frames beside a copy of the last given frame and what the decoder draws of the truth."""
    if not held_out:
        return Scored({}, [], None, "Nothing was held out: how good the model is was not measured.")
    context = video.context
    length = min(context + FUTURE, longest_clip(held_out, video.step))
    if length <= context:
        return Scored({}, [], None, f"No held-out video has {context} + 1 frames in a row: nothing was scored.")
    clips = cut_clips(held_out, video.step, length, NUM_CLIPS)
    found: dict[str, list[Tensor]] = {}
    images = []
    for first in range(0, len(clips), AT_ONCE):
        some = clips[first : first + AT_ONCE]
        frames, times = (torch.from_numpy(np.stack([getattr(clip, n) for clip in some])) for n in ("frames", "times"))
        truth = ClipBatch.of(video.autoencoder, frames, times, context)
        try:
            drawn_latents = draw_latents(video.model, truth.given, truth.times, num_paths=NUM_PATHS, seed=first)
        except RunError as error:  # the model is trained and saved: the report says what it cannot do
            return Scored({}, [], None, f"Nothing was scored: {error}")
        drawn = truth.decode(drawn_latents.paths[:, :, 1:])
        nfe = drawn_latents.nfe
        images.append((255 * drawn).round().byte().cpu())
        futures = {"": drawn[:, 0], "copy: ": truth.copy, "decoder: ": truth.decode(truth.latents)}
        for prefix, future in futures.items():
            for name, values in quality(future, truth.future)[1].items():
                found.setdefault(f"{prefix}{name}", []).append(values.mean(1))
    numbers = {name: k for k, name in enumerate(dict.fromkeys(clip.name for clip in clips))}
    groups = torch.tensor([numbers[clip.name] for clip in clips])
    scores: dict[str, Any] = {"num_clips": len(clips), "num_videos": len(numbers)}
    scores |= {"context": context, "future": length - context, "network_passes": sum(nfe.values())}
    for name, parts in found.items():
        mean = mean_ci(torch.cat(parts), groups)
        scores |= {name: mean["mean"], f"{name}_half_width": mean["ci95"]}
    few = sorted({k * len(clips) // NUM_SHOWN for k in range(NUM_SHOWN)})
    return Scored(scores, [clips[k] for k in few], torch.cat(images)[few])


def draw(scored: Scored, video: VideoModel, folder: Path) -> list[str]:
    """A strip and a film of the first clips: truth and futures; the names of the files."""
    if scored.futures is None:
        return []
    times = video.step * (np.arange(len(scored.clips[0].frames)) - video.context + 1)
    clips: dict[str, np.ndarray] = {}
    for k, (clip, futures) in enumerate(zip(scored.clips, scored.futures), start=1):
        given, truth = torch.from_numpy(clip.frames).tensor_split([video.context])
        both = Futures(given, times[: video.context], futures, times[video.context :], truth).clips()
        clips |= {f"clip {k}: {name}": frames for name, frames in both.items()}
    save_picture(strip_over_time(clips, times, video.context), folder / "predictions.png")
    pages = film_in_true_time(clips, times, video.context, video.fps, per_row=1 + NUM_PATHS)
    write_video(pages, folder / "predictions.mp4", fps=min(max(video.fps, 0.1), FASTEST))
    return ["predictions.png", "predictions.mp4"]


def write_report(
    folder: Path,
    shards: VideoShards,
    videos: Split,
    plan: VideoPlan,
    video: VideoModel,
    scored: Scored,
    figures: list[str],
) -> Path:
    """Write `report.md` into the run folder, beside its metrics.jsonl."""
    source = shards.report.source
    settings, latents = shards.settings, tuple(video.autoencoder.latent_shape)
    num, held = (sum(len(video.times) for video in part) for part in (videos.train, videos.held_out))
    lines = [f"# A Neural SDE of the videos in {Path(source).name}", "", "## What was read", ""]
    lines += [f"- {line.strip().removeprefix('- ')}" for line in str(shards.report).splitlines()]
    lines += [f"- {note}" for note in videos.notes]
    lines += [f"- learned from: {len(videos.train)} video(s), {num:,} frames"]
    lines += [f"- held out: {videos.words}, {held:,} frames"] if videos.held_out else []
    lines += ["", "## The model", ""]
    size = "×".join(map(str, settings.shape))
    lines += [f"- frames: {size} ({settings.fit}), {video.fps:.4g} per second; {video.context} are given"]
    own = f"that of {plan.autoencoder}" if plan.autoencoder else f"trained here, {plan.autoencoder_train.steps:,} steps"
    lines += [f"- autoencoder: {_weights(video.autoencoder)} weights, {own}; latents {'×'.join(map(str, latents))}"]
    noise = getattr(video.model.config, "noise", 0.0)
    steps = f"{plan.train.steps:,} steps of {plan.train.batch_size}"
    lines += [f"- SDE: {_weights(video.model)} weights, {steps}; noise {noise:g}"]
    lines += ["", "## Training", "", *losses(folder / "metrics.jsonl")]
    lines += ["", "## On what was held out", "", *scored.lines(), ""]
    lines += [f"![{name}]({name})" if name.endswith(".png") else f"[{name}]({name})" for name in figures]
    lines += ["", "Orange: frames that were given.", ""] if figures else []
    run = shlex.quote(str(folder))
    lines += ["## Go on", "", "```", f"nsde sample {run} CLIP.mp4 --num-paths 4 --fps 2x --output futures.mp4"]
    net: Any = plan.model.net
    same = f"--num-context {video.context} --fps {video.fps:.6g} --width {net.width} --autoencoder {run}"
    longer = f"--steps {4 * plan.train.steps} --output {run}-longer"
    lines += [f"nsde fit {shlex.quote(str(shards.folder))} {same} {longer}", "```", ""]
    (folder / "report.md").write_text("\n".join(lines), encoding="utf-8")
    return folder / "report.md"


def _weights(model: torch.nn.Module) -> str:
    return f"{sum(p.numel() for p in model.parameters()):,}"
