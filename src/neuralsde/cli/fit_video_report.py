"""The report of a model that was fitted on videos: what was read, how good predictions are on what was held out, pictures."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuralsde.cli.fit_video import VideoPlan
from neuralsde.cli.video_films import Film, Films, Window, longest, windows
from neuralsde.data.videos.shards import VideoShards
from neuralsde.loss_table import losses
from neuralsde.metrics.forecast import mean_ci
from neuralsde.records import RunError
from neuralsde.tasks.clips import quality, shown
from neuralsde.tasks.video import encode_clips, predict
from neuralsde.video_model import Futures, VideoModel
from neuralsde.video_pictures import film_in_true_time, save_picture, strip_over_time
from neuralsde.videos import FASTEST, write_video

NUM_CLIPS, FUTURE = 64, 12
"""Clips that are scored at most, and frames of each that are predicted at most."""
AT_ONCE = 16
NUM_PATHS = 2
"""Futures that are drawn of each clip; the first is scored."""
NUM_SHOWN = 3
"""Clips in the pictures."""
NAMES = {"": "model", "copy: ": "copy of the last frame", "decoder: ": "decoder, at best"}


@dataclass(frozen=True)
class Scored:
    """Scores as plain numbers, and the clips they are of."""

    values: dict[str, Any]
    clips: list[Window]
    futures: Tensor | None
    """(clips, paths, frames, C, H, W) bytes; only of those that are shown."""
    why_not: str = ""

    def lines(self) -> list[str]:
        """A table."""
        if self.why_not:
            return [self.why_not]
        rows = ["| predicted by | PSNR, dB | SSIM |", "|---|---|---|"]
        for prefix, name in NAMES.items():
            rows.append(f"| {name} | {self._shown(f'{prefix}psnr', 2)} | {self._shown(f'{prefix}ssim', 4)} |")
        v = self.values
        rows += [
            "",
            f"{v['num_clips']} clips of {v['num_videos']} video(s): {v['context']} frames given, {v['future']} predicted; means "
            f"over frames and clips, ± half the 95 % interval over videos. {v['network_passes']} network passes per future.",
        ]
        if v["psnr"] < v["copy: psnr"]:
            rows.append(
                "A copy of the last frame is nearer to the truth: learn from more videos, or longer if the losses still fall."
            )
        return rows

    def _shown(self, key: str, digits: int) -> str:
        half = self.values[f"{key}_half_width"]
        return f"{self.values[key]:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def score(video: VideoModel, films: list[Film]) -> Scored:
    """PSNR and SSIM of predicted frames beside a copy of the last given frame and what the decoder draws of the truth."""
    if not films:
        return Scored({}, [], None, "Nothing was held out: how good the model is was not measured.")
    context = video.context
    length = min(context + FUTURE, longest(films, video.step))
    if length <= context:
        return Scored({}, [], None, f"No held-out video has {context} + 1 frames in a row: nothing was scored.")
    clips = windows(films, video.step, length, NUM_CLIPS)
    found: dict[str, list[Tensor]] = {}
    images = []
    for first in range(0, len(clips), AT_ONCE):
        some = clips[first : first + AT_ONCE]
        frames = torch.stack([clip.frames for clip in some])
        times = torch.from_numpy(np.stack([clip.times for clip in some]))
        more: dict[str, Any] = {"context": context, "num_paths": NUM_PATHS, "seed": first}
        try:
            drawn, _ = predict(video.model, video.autoencoder, frames, times, **more)
        except RunError as error:  # the model is trained and saved: the report says what it cannot do
            return Scored({}, [], None, f"Nothing was scored: {error}")
        images.append((255 * drawn).round().byte().cpu())
        for prefix, future in _rivals(video, frames, drawn[:, 0]).items():
            for name, values in quality(future, shown(frames[:, context:]).to(future.device))[1].items():
                found.setdefault(f"{prefix}{name}", []).append(values.mean(1))
    groups = torch.tensor([clip.film for clip in clips])
    scores: dict[str, Any] = {"num_clips": len(clips), "num_videos": len(groups.unique())}
    scores |= {"context": context, "future": length - context, "network_passes": sum(video.model.nfe.values())}
    for name, parts in found.items():
        mean = mean_ci(torch.cat(parts), groups)
        scores |= {name: mean["mean"], f"{name}_half_width": mean["ci95"]}
    few = sorted({k * len(clips) // NUM_SHOWN for k in range(NUM_SHOWN)})
    return Scored(scores, [clips[k] for k in few], torch.cat(images)[few])


def _rivals(video: VideoModel, frames: Tensor, images: Tensor) -> dict[str, Tensor]:
    """The futures that are scored."""
    context, num = video.context, frames.shape[1] - video.context
    known = shown(frames[:, context - 1]).to(images.device)
    latents = encode_clips(video.autoencoder, frames[:, context - 1 :])
    copy = known[:, None].expand(-1, num, *known.shape[1:])
    return {
        "": images,
        "copy: ": copy,
        "decoder: ": video.autoencoder.decode_after(latents[:, 1:], known, latents[:, 0]),
    }


def draw(scored: Scored, video: VideoModel, folder: Path) -> list[str]:
    """A strip and a film of the first clips: truth and futures; the names of the files."""
    if scored.futures is None:
        return []
    times = video.step * (np.arange(len(scored.clips[0].frames)) - video.context + 1)
    clips: dict[str, np.ndarray] = {}
    for k, (clip, futures) in enumerate(zip(scored.clips, scored.futures), start=1):
        given, truth = clip.frames.tensor_split([video.context])
        shown_clips = Futures(given, times[: video.context], futures, times[video.context :]).clips(truth)
        clips |= {f"clip {k}: {name}": frames for name, frames in shown_clips.items()}
    save_picture(strip_over_time(clips, times, video.context), folder / "predictions.png")
    pages = film_in_true_time(clips, times, video.context, video.fps, per_row=1 + NUM_PATHS)
    write_video(pages, folder / "predictions.mp4", fps=min(max(video.fps, 0.1), FASTEST))
    return ["predictions.png", "predictions.mp4"]


def write_report(
    folder: Path,
    shards: VideoShards,
    films: Films,
    plan: VideoPlan,
    video: VideoModel,
    scored: Scored,
    figures: list[str],
) -> None:
    """Write `report.md` into the run folder, beside its metrics.jsonl."""
    source = shards.report.source
    settings, latents = shards.settings, tuple(video.autoencoder.latent_shape)
    num = {name: sum(len(f.times) for f in part) for name, part in (("train", films.train), ("held", films.held_out))}
    lines = [f"# A Neural SDE of the videos in {Path(source).name}", "", "## What was read", ""]
    lines += [f"- {line.strip().removeprefix('- ')}" for line in str(shards.report).splitlines()]
    lines += [f"- {note}" for note in films.notes]
    lines += [f"- learned from: {len(films.train)} video(s), {num['train']:,} frames"]
    lines += [f"- held out: {films.words}, {num['held']:,} frames"] if films.held_out else []
    lines += ["", "## The model", ""]
    size = "×".join(map(str, settings.shape))
    lines += [f"- frames: {size} ({settings.fit}), {video.fps:.4g} per second; {video.context} are given"]
    own = f"that of {plan.autoencoder}" if plan.autoencoder else f"trained here, {plan.autoencoder_train.steps:,} steps"
    lines += [f"- autoencoder: {_weights(video.autoencoder)} weights, {own}; latents {'×'.join(map(str, latents))}"]
    noise = getattr(video.model.config, "noise", 0.0)
    lines += [
        f"- SDE: {_weights(video.model)} weights, {plan.train.steps:,} steps of {plan.train.batch_size}; noise {noise:g}"
    ]
    lines += ["", "## Training", "", *losses(folder / "metrics.jsonl")]
    lines += ["", "## On what was held out", "", *scored.lines(), ""]
    lines += [f"![{name}]({name})" if name.endswith(".png") else f"[{name}]({name})" for name in figures]
    lines += ["", "Orange: frames that were given.", ""] if figures else []
    run = shlex.quote(str(folder))
    lines += ["## Go on", "", "```", f"nsde sample {run} CLIP.mp4 --num-paths 4 --fps 2x --output futures.mp4"]
    net: Any = plan.model.net
    same = f"--num-context {video.context} --fps {video.fps:.6g} --width {net.width} --autoencoder {run}"
    lines += [
        f"nsde fit {shlex.quote(str(shards.folder))} {same} --steps {4 * plan.train.steps} --output {run}-longer",
        "```",
        "",
    ]
    (folder / "report.md").write_text("\n".join(lines), encoding="utf-8")


def _weights(model: torch.nn.Module) -> str:
    return f"{sum(p.numel() for p in model.parameters()):,}"
