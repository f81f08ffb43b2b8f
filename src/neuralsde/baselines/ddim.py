"""Denoising diffusion for the next state with the DDIM sampler (Song et al., ICLR 2021) of diffusers.

DDPM (Ho et al., NeurIPS 2020) is its case of eta = 1 at every noise level. With chunks of actions as states, and a U-Net
or transformer over them, this is Diffusion Policy (Chi et al., RSS 2023).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from neuralsde.baselines.next_state import Fresh, NextStateModel
from neuralsde.config import DDIMConfig
from neuralsde.noise import Noise
from neuralsde.sequence import Scale


class DDIM(NextStateModel):
    """The net predicts what the config says (noise, sample or v); targets are clipped to the range of the data."""

    kind: ClassVar[str] = "DDIM"
    config: DDIMConfig

    def __init__(self, nets: dict[str, nn.Module], scale: Scale, config: DDIMConfig) -> None:
        super().__init__(nets, scale, config)
        try:
            from diffusers import DDIMScheduler
        except ImportError:
            raise ValueError("DDIM needs diffusers: pip install 'neuralsde[baselines]'.") from None
        self.scheduler: Any = DDIMScheduler(
            num_train_timesteps=config.num_train_timesteps,
            beta_schedule=config.beta_schedule,
            prediction_type=config.prediction,
            timestep_spacing="trailing",
            clip_sample=True,
        )

    def generation_loss(self, y: Tensor, history: Tensor, condition: Tensor | None, noise: Noise) -> Tensor:
        z = noise.normal(1, tuple(y.shape[1:]))
        level = (noise.uniform(2) * self.config.num_train_timesteps).long()
        y_s = self.scheduler.add_noise(y, z, level)
        target = {"epsilon": z, "sample": y}.get(self.config.prediction)
        if target is None:
            target = self.scheduler.get_velocity(y, z, level)
        return (self.net(y_s, self._time(level), history, condition) - target) ** 2

    def _time(self, level: Tensor) -> Tensor:
        return (level.float() + 1) / self.config.num_train_timesteps

    def generate(self, z: Tensor, history: Tensor, condition: Tensor | None, fresh: Fresh) -> Tensor:
        self.scheduler.set_timesteps(self.config.num_steps)
        self.scheduler.config.clip_sample_range = float(self.limit.max())
        random = self.config.variant == "ddpm"
        y = z
        for k, level in enumerate(self.scheduler.timesteps.tolist()):
            s = self._time(torch.full((1,), level, device=y.device))
            out = self.net(y, s, history, condition)
            more = (
                {"eta": 1.0, "variance_noise": fresh(k), "use_clipped_model_output": True} if random else {"eta": 0.0}
            )
            y = self.scheduler.step(out, level, y, **more).prev_sample
        return y
