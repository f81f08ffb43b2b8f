"""The films that `nsde fit` learns from and is scored on: split, checked, cut into windows, encoded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from neuralsde.autoencoder import Autoencoder
from neuralsde.data.trajectories import Trajectories
from neuralsde.data.videos.copies import changed
from neuralsde.data.videos.shards import VideoShards
from neuralsde.files import read_tensors, replacing
from neuralsde.records import check
from neuralsde.tasks.clips import shown
from neuralsde.tasks.video import encode_clips
from neuralsde.video_model import NEAR

AT_ONCE = 512
"""Frames that are encoded at once."""
PIECE = 256
"""Frames that are changed alike, at most, in a copy."""
MOST_COPIED = 2**33
"""Bytes of all copies."""
MOST_BYTES = {False: 2**30, True: 2**32}
"""Memory for the frames that an autoencoder learns from, without and with a GPU."""


@dataclass(frozen=True)
class Film:
    """A video, or a part of it."""

    name: str
    frames: np.ndarray
    """(T, C, H, W) bytes, mapped."""
    times: np.ndarray
    """(T,) seconds."""


@dataclass(frozen=True)
class Films:
    """What is learned from, what is held out, and what is said of it."""

    train: list[Film]
    held_out: list[Film]
    """For the scores."""
    validation: list[Film]
    """For the losses that are watched in training: a part of its own, or what is held out where there is none."""
    words: str
    notes: list[str] = field(default_factory=list)

    def digest(self, content: str) -> str:
        """Changes when the split does, or the `content` of the videos."""
        names = [
            [(film.name, len(film.times)) for film in part] for part in (self.train, self.held_out, self.validation)
        ]
        return hashlib.blake2b(repr((content, names)).encode(), digest_size=8).hexdigest()


def frame_step(shards: VideoShards, fps: float | None) -> float:
    """Seconds between frames: as asked for, or as usual in the files."""
    gaps = [np.diff(shards.video(i)[1]) for i in range(len(shards)) if shards.lengths[i] > 1]
    check(bool(gaps), f"{shards.folder} holds no video of two frames: there is nothing to learn.")
    gap = float(np.median(np.concatenate(gaps)))
    if fps is None:
        return gap
    if fps > 1.25 / gap:
        raise ValueError(
            f"`--fps` {fps:g} is more than the videos have, {1 / gap:.3g}: what is between was never filmed. Train with what they "
            "have; `nsde sample --fps 2x` draws frames between."
        )
    return 1.0 / fps


def split(shards: VideoShards, way: str | None, holdout: float) -> Films:
    """By the parts of the split; where nothing is left to be scored, the end of each video is held out."""
    films = [Film(shards.names[i], *shards.video(i)) for i in range(len(shards))]
    parts = shards.parts(way) if way is not None or shards.ways else ("train",) * len(films)
    some = {name: [f for f, part in zip(films, parts) if part == name] for name in ("train", "test", "validation")}
    train = some.pop("train")
    check(bool(train), f"No video belongs to the part `train` of {shards.folder}. Split it otherwise (--way).")
    if holdout == 0:
        return Films(train, [], [], "")
    chosen = next((name for name in some if some[name]), None)
    if chosen is not None:
        words = f"{len(some[chosen])} of {len(films)} videos, the part `{chosen}`"
        return Films(train, some[chosen], some["validation"] or some[chosen], words)
    cuts = [round((1 - holdout) * len(film.times)) for film in train]
    early = [Film(film.name, film.frames[:cut], film.times[:cut]) for film, cut in zip(train, cuts)]
    late = [Film(film.name, film.frames[cut:], film.times[cut:]) for film, cut in zip(train, cuts)]
    return Films(early, late, late, f"the last {holdout:.0%} of each of {len(train)} video(s)")


def usable(films: Films, step: float, context: int) -> Films:
    """Without videos from which no transition can be made; they are named."""
    notes = []

    def kept(some: list[Film], where: str) -> list[Film]:
        long = [_long_enough(film, step, context) for film in some]
        good = [film for film, enough in zip(some, long) if enough]
        bad = [film.name for film, enough in zip(some, long) if not enough]
        if bad:
            names = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if bad[5:] else "")
            notes.append(f"{names}: not {where}, without {context} + 1 frames that are {step:.3g} s apart")
        return good

    train = kept(films.train, "learned from")
    if not train:
        raise ValueError(
            f"No video has {context} + 1 frames that are {step:.3g} s apart. Give longer ones, a smaller --num-context, or --fps."
        )
    held_out = kept(films.held_out, "scored")
    apart = films.validation is not films.held_out
    validation = kept(films.validation, "watched in training") if apart else held_out
    return replace(films, train=train, held_out=held_out, validation=validation, notes=notes)


def _long_enough(film: Film, step: float, context: int) -> bool:
    """Whether it has a transition."""
    if len(film.times) <= context:
        return False
    times = torch.from_numpy(film.times.copy())
    try:
        Trajectories(times[:, None].float(), times, torch.tensor([len(times)])).transitions(lag=step, history=context)
    except ValueError:
        return False
    return True


# Windows, frames and latents


@dataclass(frozen=True)
class Window:
    """Frames of a film, one step apart."""

    film: int
    frames: Tensor
    """(T, C, H, W) bytes."""
    times: np.ndarray
    """(T,) seconds."""


def windows(films: list[Film], step: float, length: int, num: int) -> list[Window]:
    """At most `num` windows of so many frames, spread evenly over all that do not overlap."""
    places = []
    for k, film in enumerate(films):
        for run in _runs(film.times, step):
            places += [(k, run[i : i + length]) for i in range(0, len(run) - length + 1, length)]
    num = min(num, len(places))
    found = [places[i * len(places) // num] for i in range(num)]
    return [Window(k, torch.from_numpy(films[k].frames[rows]), films[k].times[rows]) for k, rows in found]


def longest(films: list[Film], step: float) -> int:
    """Frames of the longest window there can be."""
    return max((len(run) for film in films for run in _runs(film.times, step)), default=0)


def _runs(times: np.ndarray, step: float) -> list[np.ndarray]:
    """Numbers of the frames nearest to every step from the first on; a gap in the film begins a new row."""
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


def with_copies(films: list[Film], num: int) -> list[Film]:
    """Films, and behind them so many changed copies of each, in pieces; copies are held in memory."""
    size = sum(film.frames.size for film in films)
    if num * size > MOST_COPIED:
        raise ValueError(
            f"`--copies` must fit into {MOST_COPIED / 2**30:g} GiB of memory. Got {num} of {size / 2**30:.1f} GiB each. "
            f"Give at most {MOST_COPIED // size}: so many frames need few copies, or none."
        )
    rng, found = torch.Generator().manual_seed(0), list(films)
    for film in films * num:
        for rows in np.array_split(np.arange(len(film.times)), -(-len(film.times) // PIECE)):
            frames = changed(torch.from_numpy(np.array(film.frames[rows]))[None], rng)[0].numpy()
            found.append(Film(film.name, frames, film.times[rows]))
    return found


def frames_of(films: list[Film], gpu: bool) -> Trajectories:
    """Frames spread over all films, as many as memory should hold, as one path: for an autoencoder, which sees one at a time."""
    total = sum(len(film.times) for film in films)
    num = min(total, max(2, MOST_BYTES[gpu] // (4 * films[0].frames[0].size)))
    places = np.arange(num) * total // num
    ends = np.cumsum([len(film.times) for film in films])
    parts = [
        film.frames[places[(places >= end - len(film.times)) & (places < end)] - (end - len(film.times))]
        for film, end in zip(films, ends)
    ]
    states = shown(torch.from_numpy(np.concatenate(parts)))
    return Trajectories(states, torch.arange(num, dtype=torch.float64), torch.tensor([num]))


def latents_of(autoencoder: Autoencoder, films: list[Film], *, progress: bool) -> Trajectories:
    """The latents of all films at their true times."""
    from tqdm import tqdm

    parts = []
    with tqdm(total=sum(len(f.times) for f in films), unit="frame", desc="encode", disable=not progress) as bar:
        for film in films:
            for first in range(0, len(film.times), AT_ONCE):
                some = torch.from_numpy(np.array(film.frames[first : first + AT_ONCE]))
                parts.append(encode_clips(autoencoder, some[None])[0].cpu())
                bar.update(len(some))
    times = torch.from_numpy(np.concatenate([film.times for film in films]))
    return Trajectories(torch.cat(parts), times, torch.tensor([len(film.times) for film in films]))


def save_latents(parts: dict[str, Trajectories], file: Path) -> None:
    """Keep latents, for a run that is resumed: whole or not at all."""
    tensors: dict[str, Tensor] = {}
    for name, data in parts.items():
        tensors |= {f"{name}.{key}": getattr(data, key).cpu().contiguous() for key in ("states", "times", "lengths")}
    with replacing(file) as new:
        save_file(tensors, new)


def read_latents(file: Path) -> dict[str, Trajectories]:
    """What `save_latents` wrote."""
    tensors = read_tensors(file)
    names = dict.fromkeys(key.split(".")[0] for key in tensors)
    return {n: Trajectories(tensors[f"{n}.states"], tensors[f"{n}.times"], tensors[f"{n}.lengths"]) for n in names}
