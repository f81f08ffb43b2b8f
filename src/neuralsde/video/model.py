"""A model of videos as one folder, complete in itself, and what it draws: futures of a clip at any times.

    config.json, model.safetensors                the SDE of latents, as `save_pretrained` writes it
    autoencoder/config.json, model.safetensors    frames to latents and back (autoencoder-2/ after saving over a model)
    video.json                                    size, crop and colour of frames, frames per second, frames that are given

The folder can be moved and loaded anywhere; nothing in it is executed.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from neuralsde.core.doors import Count, Positive, Seed, door
from neuralsde.core.files import read_document
from neuralsde.core.records import check, from_dict, in_short
from neuralsde.data.videos.decode import FrameSettings, read_video
from neuralsde.data.videos.report import BadVideo
from neuralsde.models.build import load
from neuralsde.models.config import Drawing
from neuralsde.models.sequence import MAX_NUMBERS, SequenceModel
from neuralsde.video.autoencoder import Autoencoder
from neuralsde.video.clips import NEAR, Clip
from neuralsde.video.files import write_video
from neuralsde.video.pictures import film_in_true_time, save_picture, strip_over_time
from neuralsde.video.predict import device, predict

FORMAT = 1
RECORD = "video.json"
AUTOENCODERS = ("autoencoder", "autoencoder-2")
"""Folders of the autoencoder: a new one goes where the saved model has none, until the new model takes its place."""
WIDEST = 1.5  # time between two frames that are blended where none is near, in steps
SUFFIXES = (".mp4", ".gif", ".png", ".npz")  # of files with futures


@dataclass(frozen=True, eq=False)
class Futures:
    """What may come after a clip; times are seconds after the last frame that was given."""

    given: UInt8[Tensor, "K C H W"]
    given_times: Float[np.ndarray, " K"]
    """The last of them is 0."""
    frames: UInt8[Tensor, "P T C H W"]
    times: Float[np.ndarray, " T"]
    truth: UInt8[Tensor, "T C H W"] | None = None
    """What really followed, where it is known."""
    nfe: Mapping[str, int] = field(default_factory=dict)
    """Network passes per future, by net."""

    @property
    def all_times(self) -> Float[np.ndarray, " _"]:
        """Of given frames, then of futures."""
        return np.concatenate([self.given_times, self.times])

    def clips(self) -> dict[str, np.ndarray]:
        """What to show: the truth, if it is known, and each future, (K + T, C, H, W) with the given frames before."""
        shown = {} if self.truth is None else {"truth": self.truth}
        shown |= {f"future {k + 1}": future for k, future in enumerate(self.frames)}
        return {name: torch.cat([self.given, clip]).numpy() for name, clip in shown.items()}

    @door
    def save(self, path: str | os.PathLike[str], *, fps: Positive, speed: Positive = 1.0) -> Path:
        """Write a film (.mp4, .gif) or strip (.png) of the given frames and all futures after them, or arrays (.npz).

        `fps` are frames of the futures per second; a film plays at `speed`, 0.25 is slow motion.
        """
        output, num_given = Path(path), len(self.given)
        if output.suffix.lower() not in SUFFIXES:
            raise ValueError(f"`output` must end in {', '.join(SUFFIXES)} for videos. Got {output}.")
        if output.suffix.lower() == ".npz":
            arrays = {"frames": self.frames.numpy(), "times": self.times}
            arrays |= {"given": self.given.numpy(), "given_times": self.given_times}
            np.savez_compressed(output, **arrays)  # type: ignore[arg-type]
        elif output.suffix.lower() == ".png":
            save_picture(strip_over_time(self.clips(), self.all_times, num_given), output)
        else:
            write_video(film_in_true_time(self.clips(), self.all_times, num_given, fps), output, fps=fps * speed)
        return output


@dataclass(frozen=True)
class VideoModel:
    """The SDE of latents, the autoencoder of its frames, and how a picture becomes a frame."""

    model: SequenceModel
    autoencoder: Autoencoder
    settings: FrameSettings

    @property
    def context(self) -> int:
        """Frames that must be given."""
        return self.model.config.history

    @property
    def step(self) -> float:
        """Seconds between the frames that it learned from."""
        return self.model.scale.step

    @property
    def fps(self) -> float:
        """Frames per second that it learned from."""
        return 1.0 / self.step

    @property
    def knows_only_frames(self) -> bool:
        """Whether it learned no states between frames: those are then read from cubics through its latents."""
        return not self.model.knows_between

    @door
    def read(self, video: str | os.PathLike[str]) -> Clip:
        """The frames of a video file, made as those of the training were."""
        try:
            found = read_video(Path(video), replace(self.settings, min_frames=1, every=1))
        except BadVideo as error:
            raise ValueError(f"{error}. Give a video that plays, of {self.need}.") from None
        return Clip(Path(video).name, found.frames, found.times)

    @property
    def need(self) -> str:
        length = f"{self.fps:.3g} per second ({(self.context - 1) * self.step:.3g} s)"
        return f"at least {self.context} frames at {length}: so many are given to this model"

    @door
    def futures(
        self,
        clip: Clip,
        *,
        num_frames: Count = 16,
        fps: Positive | None = None,
        num_paths: Count = 4,
        at: float | None = None,
        sampler: Drawing = None,
        seed: Seed = 0,
    ) -> Futures:
        """Draw what may follow a clip.

        Args:
            clip: of `read`, or frames of your own.
            num_frames: frames of each future.
            fps: frames per second of the futures, any number; None: as in training. Between the frames of the training the SDE is
                drawn from, if it learned states there (`tau`), or else a smooth path through the frames that it draws.
            num_paths: futures.
            at: time in the clip of the last given frame, seconds from its beginning; None: the end of the clip. What follows it
                in the clip is the truth of the futures, where it goes on so long.
            sampler: replaces that of the model.
            seed: of the futures.
        """
        rate = self.fps if fps is None else fps
        size = num_frames * num_paths * math.prod(self.settings.shape)
        if size > MAX_NUMBERS:
            raise ValueError(
                f"At most {MAX_NUMBERS:,} pixels at once. Got {num_frames=}, {num_paths=}. Draw them in parts."
            )
        given = self.last_frames(clip, at)
        before = self.step * np.arange(1 - self.context, 1)
        after = np.arange(1, num_frames + 1) / rate
        on_grid = np.allclose(after / self.step, np.round(after / self.step), atol=1e-6)
        times = torch.from_numpy(np.concatenate([before, after]))
        smooth = self.knows_only_frames and not on_grid
        how: dict[str, Any] = {"context": self.context, "num_paths": num_paths, "sampler": sampler, "seed": seed}
        images, drawn = predict(self.model, self.autoencoder, given[None], times[None], smooth=smooth, **how)
        frames = (255 * images[0]).round().byte().cpu()
        truth = None if at is None else self._truth(clip, at, after)
        return Futures(given, before, frames, after, truth, drawn.nfe)

    def _truth(self, clip: Clip, at: float, times: Float[np.ndarray, " T"]) -> UInt8[Tensor, "T C H W"] | None:
        """Frames of the clip nearest to times after `at`; None unless it goes on so long."""
        now = clip.since[clip.nearest(at)]
        if now + times[-1] > clip.since[-1] + 0.5 * self.step:
            return None
        return torch.from_numpy(clip.frames[[clip.nearest(now + t) for t in times]])

    @door
    def last_frames(self, clip: Clip, at: float | None = None) -> UInt8[Tensor, "K C H W"]:
        """The last frames of a clip up to a time, one step of the training apart."""
        if tuple(clip.frames.shape[1:]) != self.settings.shape:
            found = f"Got {tuple(clip.frames.shape[1:])}. Read the clip with `read`, which resizes it."
            raise ValueError(f"Frames of {clip.name} must have the shape {self.settings.shape}. {found}")
        since = clip.since
        if at is not None and not 0 <= at <= since[-1] + self.step:
            raise ValueError(f"{clip.name} lasts {since[-1]:.3g} s. Got {at=}. Give a time within it.")
        last = len(since) - 1 if at is None else clip.nearest(at)
        wanted = since[last] - self.step * np.arange(self.context)[::-1]
        if wanted[0] < -NEAR * self.step:
            found = f"{last + 1} frame(s), {since[last]:.3g} s{'' if at is None else f' up to {at:g} s'}"
            raise ValueError(f"{clip.name} is too short: {found}. Give a clip with {self.need}.")
        return torch.from_numpy(np.stack([self._frame_at(clip, t) for t in wanted]))

    def _frame_at(self, clip: Clip, time: float) -> UInt8[np.ndarray, "C H W"]:
        """The frame nearest to a time, or where none is near the two around it, blended."""
        since, near = clip.since, clip.nearest(time)
        if abs(since[near] - time) <= NEAR * self.step:
            return clip.frames[near]
        right = int(np.searchsorted(since, time))
        left, gap = right - 1, since[right] - since[right - 1]
        if gap > WIDEST * self.step:
            found = f"{1 / gap:.3g} frames per second at {time:.3g} s, too few"
            raise ValueError(f"{clip.name} has {found}. Give a clip with {self.need}.")
        share = float((time - since[left]) / gap)
        before, after = clip.frames[[left, right]].astype(np.float32)
        return ((1 - share) * before + share * after).round().astype(np.uint8)


def save_video_model(
    folder: str | os.PathLike[str],
    model: SequenceModel,
    autoencoder: SequenceModel,
    *,
    settings: FrameSettings | None = None,
    half: bool = False,
) -> Path:
    """Write the whole model into a folder.

    Args:
        folder: to write into.
        model: of the latents, trained with times in seconds.
        autoencoder: frozen, of the frames.
        settings: how frames were made from pictures; None: cut from the middle to the size of the autoencoder's frames.
        half: keep weights in 16 bits, half the size; units and bounds stay as they are.
    """
    if not isinstance(autoencoder, Autoencoder):
        raise ValueError(f"`autoencoder` must be an Autoencoder. Got {type(autoencoder).__name__}.")
    channels, height, width = autoencoder.scale.shape
    whole = VideoModel(model, autoencoder, settings or FrameSettings(size=(height, width), grey=channels == 1))
    wrong = _unfit(whole)
    check(not wrong, f"These do not belong together: {wrong}.")
    place = Path(folder)
    new, old = AUTOENCODERS
    with suppress(ValueError):  # what cannot be read now is not lost either
        before = read_document(place, RECORD)
        new, old = (old, new) if before is not None and _autoencoder_of(before, place) == new else (new, old)
    autoencoder.save_pretrained(place / new, half=half)
    record = {
        "format": FORMAT,
        "frames": whole.settings.to_dict(),
        "fps": round(whole.fps, 6),
        "context": whole.context,
        "autoencoder": new,
    }
    model.save_pretrained(place, half=half, beside={RECORD: record})
    shutil.rmtree(place / old, ignore_errors=True)
    return place


@door
def load_video_model(folder: str | os.PathLike[str]) -> VideoModel:
    """The model in a folder written by `save_video_model`, or in the run folder of `nsde fit`, ready on the GPU if there is one."""
    place = video_folder(folder)
    if place is None:
        raise ValueError(f"{folder} holds no model of videos: there is no {RECORD}. Give the run folder of `nsde fit`.")
    record = _read_record(place / RECORD)
    model, autoencoder = load(place), load_autoencoder(place / _autoencoder_of(record, place))
    try:
        settings = from_dict(FrameSettings, record["frames"], "frames")
        whole = VideoModel(model.to(device()).eval(), autoencoder.to(device()), settings)
        differs = not abs(record["fps"] * whole.step - 1) <= 1e-3 or record["context"] != whole.context
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"{place / RECORD} is damaged ({error}). Save the model again.") from None
    wrong = _unfit(whole) or ("fps or context are others than the model's" if differs else "")
    check(not wrong, f"{place / RECORD} does not fit its models: {wrong}. Save the model again.")
    return whole


def load_autoencoder(folder: str | os.PathLike[str]) -> Autoencoder:
    """The frozen autoencoder in a folder of `save_pretrained`, of a run, or of a model of videos."""
    found = load(autoencoder_folder(folder))
    if not isinstance(found, Autoencoder):
        raise ValueError(f"{folder} holds a {found.kind}, not an Autoencoder. Train one, or name another folder.")
    return found.eval()


def autoencoder_folder(folder: str | os.PathLike[str]) -> Path:
    """Where the autoencoder lies in such a folder."""
    place, whole = Path(folder), video_folder(folder)
    if whole is not None:
        return whole / _autoencoder_of(read_document(whole, RECORD), whole)
    inner = [place / "autoencoder" / "model", place / "autoencoder", place / "model"]
    return next((where for where in inner if (where / "config.json").is_file()), place)


def video_folder(folder: str | os.PathLike[str]) -> Path | None:
    """Where the model of videos lies: in this folder, or in `model` inside; None if there is none."""
    return next((place for place in (Path(folder), Path(folder) / "model") if (place / RECORD).is_file()), None)


def _read_record(file: Path) -> dict[str, Any]:
    record = read_document(file.parent, file.name)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        form = in_short(record.get("format") if isinstance(record, dict) else record)
        raise ValueError(f"{file} has format {form}, this version reads {FORMAT}. Install a newer neuralsde.")
    return record


def _autoencoder_of(record: Any, folder: Path) -> str:
    """The folder of the autoencoder, which no record places elsewhere."""
    name = record.get("autoencoder", AUTOENCODERS[0]) if isinstance(record, dict) else AUTOENCODERS[0]
    check(
        name in AUTOENCODERS, f"`autoencoder` in {folder / RECORD} must be one of {AUTOENCODERS}. Got {in_short(name)}."
    )
    return str(name)


def _unfit(video: VideoModel) -> str:
    """Why the parts do not fit each other, or nothing."""
    frames, latents = tuple(video.autoencoder.scale.shape), tuple(video.autoencoder.latent_shape)
    if frames != video.settings.shape:
        return f"frames have the shape {video.settings.shape}, the autoencoder takes {frames}"
    if tuple(video.model.scale.shape) != latents:
        states = tuple(video.model.scale.shape)
        return f"the model moves states of shape {states}, the autoencoder's latents are {latents}"
    return ""
