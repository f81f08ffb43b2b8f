"""Futures of clips: frames to latents, latents drawn by a model, latents to frames; and the frames between two that were drawn.

The state of the model is the last frames; it moves the newest one. A predicted frame is the last known one plus what changed in
the decoded latents. Between frames a path may be followed on straight lines or cubics: its start is at place 0, and between two of
its places `rate` - 1 new ones are evenly spread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from neuralsde.models.config import Sampling
from neuralsde.models.sequence import Draw, SequenceModel
from neuralsde.solvers.noise import Noise
from neuralsde.video.autoencoder import Autoencoder


def device() -> torch.device:
    """Where frames are drawn and encoded."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def as_values(frames: UInt8[Tensor, "... C H W"]) -> Float[Tensor, "... C H W"]:
    """Bytes as values from 0 to 1."""
    return frames.float() / 255


def encode_clips(autoencoder: Autoencoder, frames: UInt8[Tensor, "N T C H W"]) -> Float[Tensor, "N T K h w"]:
    """Latents of clips of bytes, a few clips at a time."""
    place, parts = autoencoder.shift.device, frames.split(256)
    return torch.cat(
        [autoencoder.encode(as_values(x.flatten(0, 1).to(place))).unflatten(0, x.shape[:2]) for x in parts]
    )


@dataclass(frozen=True, eq=False)
class ClipBatch:
    """N clips: what a model is given and, as far as it is known, what it is to draw."""

    given: Float[Tensor, "N M K h w"]
    known: Float[Tensor, "N C H W"]  # the last known frame
    times: Float[Tensor, "N T"]
    """Since the start of the clip, from the last known frame on; (T - 1) frames are to be drawn."""
    bytes: UInt8[Tensor, "N U C H W"]  # from the last known frame on, as far as there are any
    autoencoder: Autoencoder
    groups: Int[Tensor, " N"] | None = None  # the recording that each is from; None: each has one of its own

    @classmethod
    def of(
        cls,
        autoencoder: Autoencoder,
        frames: UInt8[Tensor, "N U C H W"],
        times: Float[Tensor, "N T"],
        context: int,
        *,
        rate: int = 1,
        groups: Int[Tensor, " N"] | None = None,
    ) -> ClipBatch:
        """Clips of which `context` frames are given, `rate` frames apart."""
        start = (context - 1) * rate
        given = encode_clips(autoencoder, frames[:, : start + 1 : rate])
        rest, since = frames[:, start:].to(given.device), (times - times[:, :1])[:, start:]
        return cls(given, as_values(rest[:, 0]), since, rest, autoencoder, groups)

    @property
    def future(self) -> Float[Tensor, "N F C H W"]:
        """The true frames of what is to be drawn."""
        return as_values(self.bytes[:, 1:])

    @cached_property
    def latents(self) -> Float[Tensor, "N F K h w"]:
        """Of these frames."""
        return encode_clips(self.autoencoder, self.bytes[:, 1:])

    @property
    def copy(self) -> Float[Tensor, "N F C H W"]:
        """The last known frame in place of each of them."""
        return self.known[:, None].expand(-1, self.bytes.shape[1] - 1, -1, -1, -1)

    def decode(self, latents: Tensor) -> Tensor:
        """Frames of latents (N, ..., K, h, w) that follow the known one."""
        return self.autoencoder.decode_after(latents, self.known, self.given[:, -1])


def predict(
    model: SequenceModel,
    autoencoder: Autoencoder,
    frames: UInt8[Tensor, "N U C H W"],
    times: Float[Tensor, "N T"],
    *,
    context: int,
    num_paths: int = 1,
    sampler: Sampling | None = None,
    seed: int = 0,
    smooth: bool = False,
) -> tuple[Float[Tensor, "N P F C H W"], Draw]:
    """Futures of clips after `context` frames, drawn at `times`: frames, and the latents as they were drawn.

    `smooth`: drawn at the frame rate of the training and read at `times`, the same for all clips, from cubics through the
    latents. It serves models that know no states between the frames of the training.
    """
    clips = ClipBatch.of(autoencoder, frames, times, context)
    since, step = clips.times, model.scale.step
    if not smooth:
        drawn = draw(model, clips.given, since, num_paths=num_paths, sampler=sampler, seed=seed)
        return clips.decode(drawn.paths[:, :, 1:]), drawn
    places = (since[0] - since[0, 0])[1:] / step
    grid = since[:, :1] + step * torch.arange(math.ceil(float(places[-1]) - 1e-6) + 2)
    drawn = draw(model, clips.given, grid, num_paths=num_paths, sampler=sampler, seed=seed)
    path = drawn.paths.flatten(0, 1)
    around = torch.cat([place_before(clips.given.repeat_interleave(num_paths, 0), path)[:, None], path], dim=1)
    return clips.decode(cubic_at(around, places).unflatten(0, (-1, num_paths))), drawn


def draw(
    model: SequenceModel,
    given: Float[Tensor, "N M K h w"],
    times: Float[Tensor, "N T"],
    *,
    num_paths: int = 1,
    sampler: Sampling | None = None,
    seed: int,
) -> Draw:
    """Futures of latents (N, P, T, K, h, w), the last given one before them.

    The noise of a future is the same however many there are.
    """
    clips = Noise.draw(torch.Generator().manual_seed(seed), len(given), model.scale.mean.device)
    keys = torch.stack([clips.child(k).keys for k in range(num_paths)], dim=1).flatten()
    return model.draw(given, times, num_paths=num_paths, sampler=sampler, rng=Noise(keys))


# Between frames


def place_before(given: Float[Tensor, "N M *S"], path: Float[Tensor, "N T *S"]) -> Float[Tensor, "N *S"]:
    """The place before a path: the last but one that is given, or in its stead the path drawn on backwards."""
    return given[:, -2] if given.shape[1] > 1 else 2 * path[:, 0] - path[:, 1]


def straight(path: Float[Tensor, "N T *S"], rate: int) -> Float[Tensor, "N U *S"]:
    """On straight lines: of latents, or of pixels, where one image fades into the next."""
    shares = torch.arange(1, rate, device=path.device, dtype=path.dtype) / rate
    return torch.lerp(path[:, :-1, None], path[:, 1:, None], shares.reshape(-1, *[1] * (path.ndim - 2))).flatten(1, 2)


def cubic(
    before: Float[Tensor, "N *S"], path: Float[Tensor, "N T *S"], after: Float[Tensor, "N *S"], rate: int
) -> Float[Tensor, "N U *S"]:
    """On cubics, see `cubic_at`."""
    around = torch.cat([before[:, None], path, after[:, None]], dim=1)
    places = torch.arange(rate * (path.shape[1] - 1)) / rate
    return cubic_at(around, places[torch.arange(len(places)) % rate > 0])


def cubic_at(around: Float[Tensor, "N T *S"], places: Float[Tensor, " U"]) -> Float[Tensor, "N U *S"]:
    """On cubics (Hermite's) whose velocity at each place is the mean of those on both sides.

    That is what a flow learned from interpolated states gives at a frame; one learned from start states gives the velocity
    of the side that follows. The path has one place more at either end of `around`: place 0 is the second there.
    """
    left = places.floor().long().clamp(0, around.shape[1] - 4).to(around.device)
    s = (places.to(around) - left).reshape(-1, *[1] * (around.ndim - 2))
    before, x0, x1, after = (around[:, left + k] for k in range(4))
    v0, v1 = (x1 - before) / 2, (after - x0) / 2
    step = 3 * s**2 - 2 * s**3
    return x0 + step * (x1 - x0) + (s - 2 * s**2 + s**3) * v0 + (s**3 - s**2) * v1
