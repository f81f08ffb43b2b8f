"""What video starts from: the nets and trainings that were measured on colliding objects and on people. The recipes vary them."""

from __future__ import annotations

from dataclasses import replace

from neuralsde.nets.config import ConvConfig, UViTConfig
from neuralsde.sde.config import Euler, NeuralSDEConfig, Sampler, Transport
from neuralsde.training.config import TrainConfig
from neuralsde.video.config import AutoencoderConfig

CONTEXT = 4
NOISE = 0.1  # of the inputs, for every method
NET = UViTConfig(width=192)  # 2.4 million parameters: weights of a few megabytes, which can be shipped
SHARE_OF_NOISE = 0.6
"""Of the learned noise, in sampling: it is white over the latents, what is unknown is not. Chosen on validation clips."""


def learning_rate(width: int) -> float:
    """The rule for every U-ViT: 6e-4 at width 256, less for wider nets."""
    return round(6e-4 * (256 / width) ** 0.5, 6)


AUTOENCODER = AutoencoderConfig(net=ConvConfig(down=8, width=32))
AUTOENCODER_TRAIN = TrainConfig(steps=8_000, batch_size=128, lr=1e-3, ema=0.998, precision="tf32")
TRAIN = TrainConfig(
    steps=6_000, batch_size=256, lr=learning_rate(NET.width), ema=0.998, weight_decay=1e-2, precision="bf16"
)
REAL_TRAIN = replace(TRAIN, steps=10_000)  # of videos that were filmed


def latent_sde() -> NeuralSDEConfig:
    """One step per frame from start states, flow and diffusion by one trunk: one pass per frame.

    States between frames are not learned, so nothing is owed to a score: a denoiser would only take from the trunk.
    """
    sampler = Sampler(diffusion=SHARE_OF_NOISE)
    model = NeuralSDEConfig(net=NET, history=CONTEXT, shared=True, tau="start", noise=NOISE, sampler=sampler)
    return replace(model, denoiser=None)


def real_sde() -> NeuralSDEConfig:
    """The same for videos that were filmed.

    Most of a picture stays as it is: the likelihood weighs errors by how little is unknown, the squared error sees few.
    """
    return replace(latent_sde(), law=Euler(flow_loss="nll"))


def with_passes(model: NeuralSDEConfig, passes: int) -> NeuralSDEConfig:
    """A model that takes so many passes per frame: the Gaussian, and those that carry it to the law of the frames.

    It draws with all of its noise, as validation clips chose for every number of passes but one.
    """
    if passes == 1:
        return model
    assert isinstance(model.law, Euler) and model.law.flow_loss != "log"
    return replace(model, law=Transport(flow_loss=model.law.flow_loss), sampler=Sampler(passes=passes - 1))
