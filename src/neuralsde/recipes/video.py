"""Video: colliding objects in the latents of a small autoencoder; the method, its rivals with the same net, and its ablations.

Paper, on CLEVRER (FVD, JEDi, SSIM, PSNR): 128.07, 1.172, 0.944, 33.78. Not measured here: our clips are our own, and the nets that
compute FVD and JEDi are not at hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuralsde.config import (
    AutoencoderConfig,
    ConvConfig,
    Experiment,
    FramesConfig,
    NeuralSDEConfig,
    PFIConfig,
    RectifiedFlowConfig,
    Sampler,
    TrainConfig,
    UViTConfig,
    VideoConfig,
)

CONTEXT = 4
NOISE = 0.1
"""Of the inputs, for every method."""
NET = UViTConfig(width=256)
TRAIN = TrainConfig(steps=10_000, batch_size=256, lr=3e-4, ema=0.998, weight_decay=1e-2, precision="tf32")


def autoencoder() -> Experiment:
    """Frames of colliding objects as 4 × 8 × 8 latents, and back."""
    model = AutoencoderConfig(net=ConvConfig(down=8, latent=4, width=32))
    train = TrainConfig(steps=10_000, batch_size=256, lr=1e-3, ema=0.998, precision="tf32")
    return Experiment(name="collisions-autoencoder", task=FramesConfig(), model=model, train=train)


def neural_sde() -> Experiment:
    """One step per frame from start states, one trunk for all fields: one pass per frame."""
    model = NeuralSDEConfig(net=NET, history=CONTEXT, shared=True, tau="start", noise=NOISE, sampler=Sampler())
    return Experiment(name="collisions", task=VideoConfig(context=CONTEXT), model=model, train=TRAIN)


def flow_matching() -> Experiment:
    """Flow Matching from noise to the change of the frame, same net and input noise, ten passes per frame."""
    model = RectifiedFlowConfig(net=NET, history=CONTEXT, target="increment", noise=NOISE, num_steps=10)
    return replace(neural_sde(), name="collisions-flow-matching", model=model)


def pfi() -> Experiment:
    """The Föllmer interpolant (β = s, ε = 0.3), same net and input noise, ten passes per frame."""
    model = PFIConfig(net=NET, history=CONTEXT, noise=NOISE, num_steps=10)
    return replace(neural_sde(), name="collisions-pfi", model=model)


def regression() -> Experiment:
    """The mean of the next frame: no diffusion, no denoiser."""
    run = neural_sde()
    model: Any = run.model
    model = replace(model, diffusion=False, denoiser=False, shared=False)
    return replace(run, name="collisions-regression", model=model)
