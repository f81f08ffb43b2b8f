"""Videos as a model learns from them and is scored on them: split, checked, cut into clips, copied, encoded.

A video is what lies in a file; a clip is frames of it with their times, all of them or a few.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from safetensors.torch import save
from torch import Tensor

from neuralsde.core.files import replacing
from neuralsde.core.records import check
from neuralsde.core.tensors import read_tensors
from neuralsde.data.trajectories import Trajectories
from neuralsde.data.videos.copies import changed
from neuralsde.data.videos.shards import VideoShards
from neuralsde.video.autoencoder import Autoencoder
from neuralsde.video.predict import as_values, encode_clips

NEAR = 0.25  # how far a frame may be from its time, in steps: as far as in training
AT_ONCE = 512  # frames that are encoded at once
PIECE = 256  # frames that are changed alike, at most, in a copy
MOST_COPIED = 2**33  # bytes of all copies
MOST_BYTES = {False: 2**30, True: 2**32}
"""Memory for the frames that an autoencoder learns from, without and with a GPU."""


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames of a video and when they were shown."""

    name: str
    """Of the video."""
    frames: UInt8[np.ndarray, "T C H W"]
    times: Float[np.ndarray, " T"]
    """Seconds."""

    @property
    def since(self) -> Float[np.ndarray, " T"]:
        return self.times - self.times[0]

    def nearest(self, time: float) -> int:
        return int(np.abs(self.since - time).argmin())

    def part(self, rows: slice | np.ndarray) -> Clip:
        return Clip(self.name, self.frames[rows], self.times[rows])


@dataclass(frozen=True)
class Split:
    """Videos that are learned from, those that are held out, and what is said of them."""

    train: list[Clip]
    held_out: list[Clip]
    """For the scores."""
    validation: list[Clip]
    """For the losses that are watched in training: a part of its own, or what is held out where there is none."""
    words: str
    notes: list[str] = field(default_factory=list)

    def digest(self, content: str) -> str:
        """Changes when the split does, or the `content` of the videos."""
        parts = (self.train, self.held_out, self.validation)
        names = [[(video.name, len(video.times)) for video in part] for part in parts]
        return hashlib.blake2b(repr((content, names)).encode(), digest_size=8).hexdigest()


def frame_step(shards: VideoShards, fps: float | None) -> float:
    """Seconds between frames: as asked for, or as usual in the files."""
    gaps = [np.diff(shards.video(i)[1]) for i in range(len(shards)) if shards.lengths[i] > 1]
    check(bool(gaps), f"{shards.folder} holds no video of two frames: there is nothing to learn.")
    gap = float(np.median(np.concatenate(gaps)))
    if fps is None:
        return gap
    if fps > 1.25 / gap:
        remedy = "Train with what they have; `nsde sample --fps 2x` draws frames between."
        raise ValueError(
            f"`fps` {fps:g} is more than the videos have, {1 / gap:.3g}: the rest was never filmed. {remedy}"
        )
    return 1.0 / fps


def split(shards: VideoShards, way: str | None, holdout: float) -> Split:
    """By the parts of the split; where nothing is left to be scored, the end of each video is held out."""
    videos = [Clip(shards.names[i], *shards.video(i)) for i in range(len(shards))]
    parts = shards.parts(way) if way is not None or shards.ways else ("train",) * len(videos)
    some = {name: [v for v, part in zip(videos, parts) if part == name] for name in ("train", "test", "validation")}
    train = some.pop("train")
    check(bool(train), f"No video belongs to the part `train` of {shards.folder}. Split it otherwise: `way`.")
    if holdout == 0:
        return Split(train, [], [], "")
    chosen = next((name for name in some if some[name]), None)
    if chosen is not None:
        words = f"{len(some[chosen])} of {len(videos)} videos, the part `{chosen}`"
        return Split(train, some[chosen], some["validation"] or some[chosen], words)
    cuts = [round((1 - holdout) * len(video.times)) for video in train]
    early = [video.part(slice(cut)) for video, cut in zip(train, cuts)]
    late = [video.part(slice(cut, None)) for video, cut in zip(train, cuts)]
    return Split(early, late, late, f"the last {holdout:.0%} of each of {len(train)} video(s)")


def usable(videos: Split, step: float, context: int) -> Split:
    """Without videos from which no transition can be made; they are named."""
    notes = []

    def keep_usable(some: list[Clip], where: str) -> list[Clip]:
        long = [_long_enough(video, step, context) for video in some]
        good = [video for video, enough in zip(some, long) if enough]
        bad = [video.name for video, enough in zip(some, long) if not enough]
        if bad:
            names = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if bad[5:] else "")
            notes.append(f"{names}: not {where}, without {context} + 1 frames that are {step:.3g} s apart")
        return good

    train = keep_usable(videos.train, "learned from")
    if not train:
        remedy = "Give longer ones, a smaller `num_context`, or `fps`."
        raise ValueError(f"No video has {context} + 1 frames that are {step:.3g} s apart. {remedy}")
    held_out = keep_usable(videos.held_out, "scored")
    apart = videos.validation is not videos.held_out
    validation = keep_usable(videos.validation, "watched in training") if apart else held_out
    return replace(videos, train=train, held_out=held_out, validation=validation, notes=notes)


def _long_enough(video: Clip, step: float, context: int) -> bool:
    if len(video.times) <= context:
        return False
    times = torch.from_numpy(video.times.copy())
    try:
        Trajectories(times[:, None].float(), times, torch.tensor([len(times)])).transitions(lag=step, history=context)
    except ValueError:
        return False
    return True


# Clips, frames and latents


def cut_clips(videos: list[Clip], step: float, length: int, num: int) -> list[Clip]:
    """At most `num` clips of so many frames, a step apart, spread evenly over all that do not overlap."""
    places = []
    for video in videos:
        for run in _runs(video.times, step):
            places += [(video, run[i : i + length]) for i in range(0, len(run) - length + 1, length)]
    num = min(num, len(places))
    return [video.part(rows) for video, rows in (places[i * len(places) // num] for i in range(num))]


def longest_clip(videos: list[Clip], step: float) -> int:
    """Frames of the longest clip there can be."""
    return max((len(run) for video in videos for run in _runs(video.times, step)), default=0)


def _runs(times: np.ndarray, step: float) -> list[np.ndarray]:
    """Numbers of the frames nearest to every step from the first on; a gap in the video begins a new row."""
    rows: list[list[int]] = [[0]]
    while True:
        last = rows[-1][-1]
        want = times[last] + step
        right = min(int(np.searchsorted(times, want)), len(times) - 1)
        near = right if times[right] - want <= want - times[right - 1] else right - 1
        if near > last and abs(times[near] - want) <= NEAR * step:
            rows[-1].append(near)
            continue
        later = int(np.searchsorted(times, want, side="right"))
        if later == len(times):
            return [np.array(row) for row in rows]
        rows.append([later])


def with_copies(videos: list[Clip], num: int) -> list[Clip]:
    """Videos, and behind them so many changed copies of each, in pieces; copies are held in memory."""
    size = sum(video.frames.size for video in videos)
    if num * size > MOST_COPIED:
        got = f"Got {num} of {size / 2**30:.1f} GiB each. Give at most {MOST_COPIED // size}"
        raise ValueError(f"`copies` must fit into {MOST_COPIED / 2**30:g} GiB of memory. {got}: many frames need few.")
    rng, found = torch.Generator().manual_seed(0), list(videos)
    for video in videos * num:
        for rows in np.array_split(np.arange(len(video.times)), -(-len(video.times) // PIECE)):
            frames = changed(torch.from_numpy(np.array(video.frames[rows]))[None], rng)[0].numpy()
            found.append(Clip(video.name, frames, video.times[rows]))
    return found


def one_path(frames: Float[Tensor, "N C H W"]) -> Trajectories:
    """Frames as one path: each is the end of a transition, which is all that an autoencoder sees of it."""
    times = torch.arange(len(frames), dtype=torch.float64, device=frames.device)
    return Trajectories(frames, times, torch.tensor([len(frames)], device=frames.device))


def frames_of(videos: list[Clip], gpu: bool) -> Trajectories:
    """Frames spread over all videos, as many as memory should hold, as one path: for an autoencoder."""
    total = sum(len(video.times) for video in videos)
    num = min(total, max(2, MOST_BYTES[gpu] // (4 * videos[0].frames[0].size)))
    places = np.arange(num) * total // num
    ends = np.cumsum([len(video.times) for video in videos])
    parts = [
        video.frames[places[(places >= end - len(video.times)) & (places < end)] - (end - len(video.times))]
        for video, end in zip(videos, ends)
    ]
    return one_path(as_values(torch.from_numpy(np.concatenate(parts))))


def latents_of(autoencoder: Autoencoder, videos: list[Clip], *, progress: bool) -> Trajectories:
    """The latents of all videos at their true times."""
    from tqdm import tqdm

    parts = []
    with tqdm(total=sum(len(v.times) for v in videos), unit="frame", desc="encode", disable=not progress) as bar:
        for video in videos:
            for first in range(0, len(video.times), AT_ONCE):
                some = torch.from_numpy(np.array(video.frames[first : first + AT_ONCE]))
                parts.append(encode_clips(autoencoder, some[None])[0].cpu())
                bar.update(len(some))
    times = torch.from_numpy(np.concatenate([video.times for video in videos]))
    return Trajectories(torch.cat(parts), times, torch.tensor([len(video.times) for video in videos]))


def save_latents(parts: dict[str, Trajectories], file: Path) -> None:
    """Keep latents, for a run that is resumed: whole or not at all."""
    keys = [(name, key) for name in parts for key in ("states", "times", "lengths")]
    tensors = {f"{name}.{key}": getattr(parts[name], key).cpu().contiguous() for name, key in keys}
    with replacing(file) as new:
        new.write_bytes(save(tensors))


def read_latents(file: Path) -> dict[str, Trajectories]:
    """What `save_latents` wrote."""
    tensors = read_tensors(file)
    names = dict.fromkeys(key.split(".")[0] for key in tensors)
    return {n: Trajectories(tensors[f"{n}.states"], tensors[f"{n}.times"], tensors[f"{n}.lengths"]) for n in names}
