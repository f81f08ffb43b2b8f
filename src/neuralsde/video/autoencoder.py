"""Frames as small grids of latents, in which video is learned.

An `Autoencoder` trains in the one loop, on frames that are the states of `Trajectories` (values 0 to 1). Then it is frozen:
`encode` gives latents of mean 0 and variance 1 per channel, `decode` frames. What the decoder cannot draw sharply it blurs in
every frame alike; `decode_after` therefore adds only the *change* of the decoded frame to a frame that is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.data.trajectories import Transitions
from neuralsde.data.transition import Transition
from neuralsde.models.config import Sampling
from neuralsde.models.evaluation import evaluated
from neuralsde.models.scale import Scale
from neuralsde.models.sequence import Advance, Condition, SequenceModel
from neuralsde.nets.config import TinyConfig
from neuralsde.nets.convolutional import Decoder, Encoder, sampled
from neuralsde.nets.tiny import TinyDecoder, TinyEncoder
from neuralsde.solvers.integrate import Step
from neuralsde.solvers.noise import Noise
from neuralsde.video.config import AutoencoderConfig

KL = 1e-6  # weight of the divergence of latents from unit Gaussians
BATCH = 512  # frames at once in `encode` and `decode` on a GPU
CACHED = 2**16
"""Pixels at once on a CPU, 16 frames of 64 × 64: what layers pass on stays in its cache, and frames take two thirds of the time."""
UNITS_FROM = 4_096  # frames by which the units of latents are set, or up to twice as many
FADE = 0.1  # change of a pixel, of 1, from which on little is kept of what the decoder missed there before


class Autoencoder(SequenceModel):
    """Encoder and decoder, learned by the squared and the absolute error of the frame and a small pull to unit Gaussians."""

    config: AutoencoderConfig
    shift: Tensor
    spread: Tensor

    def __init__(self, nets: Mapping[str, nn.Module], scale: Scale, config: AutoencoderConfig) -> None:
        super().__init__(nets, scale, config)
        _channels, *size = scale.shape
        if any(n % config.net.down for n in size):
            wanted = f"multiples of `down`={config.net.down}"
            raise ValueError(f"Height and width must be {wanted}. Got frames of shape {scale.shape}. Resize them.")
        self.latent_shape = (config.net.latent, *(n // config.net.down for n in size))
        self.register_buffer("shift", torch.zeros(config.net.latent, 1, 1))
        self.register_buffer("spread", torch.ones(config.net.latent, 1, 1))

    @classmethod
    def net_names(cls, config: AutoencoderConfig) -> list[str]:
        return ["decoder", "encoder"]

    @classmethod
    def default_nets(cls, config: AutoencoderConfig, shape: tuple[int, ...], context_size: int) -> dict[str, nn.Module]:
        if isinstance(config.net, TinyConfig):
            return {"encoder": TinyEncoder(shape[0]), "decoder": TinyDecoder(shape[0])}
        return {"encoder": Encoder(config.net, shape[0]), "decoder": Decoder(config.net, shape[0])}

    def measure(self, data: Transitions) -> Transition:
        pairs = super().measure(data)
        low, high = float(pairs.next.min()), float(pairs.next.max())
        if low < 0 or high > 1:
            raise ValueError(f"Frames must have values from 0 to 1. Got {low:g} to {high:g}. Divide bytes by 255.")
        return pairs

    def loss(self, batch: Transition, noise: Noise) -> dict[str, Tensor]:
        frames = batch.next
        z, divergence = sampled(self.nets["encoder"](2 * frames - 1).float(), noise.normal(0, self.latent_shape))
        error = self.nets["decoder"](z).float() - (2 * frames - 1)
        return {"frames": (error**2 + 0.1 * error.abs()).mean(), "divergence": KL * divergence.mean()}

    def advance(self, step: Step, condition: Condition, noise: Noise, sampler: Sampling) -> Advance:
        raise ValueError("An Autoencoder draws no paths. Encode the frames, and learn their latents.")

    @torch.no_grad()
    def fit_latents(self, frames: Float[Tensor, "N C H W"]) -> None:
        """Set the units of latents: those of these frames have mean 0 and variance 1 per channel."""
        self.shift.zero_()
        self.spread.fill_(1.0)
        z = self.encode(frames[:: max(1, len(frames) // UNITS_FROM)]).double()
        self.shift.copy_(z.mean((0, 2, 3))[:, None, None])
        self.spread.copy_(z.std((0, 2, 3))[:, None, None].clamp(min=1e-6))

    @property
    def batch(self) -> int:
        return BATCH if self.shift.device.type != "cpu" else max(1, CACHED // math.prod(self.scale.shape[1:]))

    @torch.no_grad()
    def encode(self, frames: Float[Tensor, "N C H W"]) -> Float[Tensor, "N K h w"]:
        """Latents of frames, on the model's device."""
        if tuple(frames.shape[1:]) != self.scale.shape:
            raise ValueError(f"`frames` must have shape (N, {self.scale.shape}). Got {tuple(frames.shape)}.")
        encoder = evaluated(self.nets["encoder"])
        parts = [encoder(2 * x.to(self.shift.device) - 1).float() for x in frames.split(self.batch)]
        return (torch.cat(parts).chunk(2, dim=1)[0] - self.shift) / self.spread

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "N K h w"]) -> Float[Tensor, "N C H W"]:
        """Frames of latents, within [0, 1]."""
        return self._decode(latents).clamp(0, 1)

    @torch.no_grad()
    def decode_after(
        self, latents: Float[Tensor, "N ..."], known: Float[Tensor, "N C H W"], known_latents: Float[Tensor, "N K h w"]
    ) -> Float[Tensor, "N ..."]:
        """Frames of latents (N, ..., K, h, w) that follow known ones: what changed in the decoded frame, added to the known.

        In other words, the decoded frame and what the decoder missed in the known one; of the latter, only as much as the
        picture stays what it was: the fine marks of a thing go with it.
        """
        frames = math.prod(latents.shape[1:-3])  # of a clip
        num = max(1, BATCH // max(1, frames))  # clips at a time
        parts = zip(latents.split(num), known.split(num), known_latents.split(num))
        return torch.cat([self._after(*some) for some in parts])

    def _after(self, latents: Tensor, known: Tensor, known_latents: Tensor) -> Tensor:
        lead = latents.shape[:-3]

        def spread_out(x: Tensor) -> Tensor:
            return x.reshape(len(x), *[1] * (len(lead) - 1), *x.shape[1:])

        before, after = self._decode(known_latents), self._decode(latents.flatten(0, -4)).unflatten(0, lead)
        missed = spread_out(known.to(self.shift.device) - before)
        change = (after - spread_out(before)).abs().amax(-3, keepdim=True).flatten(0, -4)
        change = nn.functional.max_pool2d(change, 3, stride=1, padding=1).unflatten(0, lead)
        return (after + missed * torch.exp(-((change / FADE) ** 2))).clamp(0, 1)

    def _decode(self, latents: Tensor) -> Tensor:
        raw = latents.to(self.shift.device) * self.spread + self.shift
        decoder = evaluated(self.nets["decoder"])
        return torch.cat([0.5 * (decoder(z).float() + 1) for z in raw.split(self.batch)])
