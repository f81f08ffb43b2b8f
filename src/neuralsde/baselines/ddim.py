"""Denoising diffusion for the next state with the DDIM sampler (Song et al., ICLR 2021) of diffusers.

DDPM (Ho et al., NeurIPS 2020) is its case of eta = 1 at every noise level. With chunks of actions as states, and a U-Net
or transformer over them, this is Diffusion Policy (Chi et al., RSS 2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from neuralsde.baselines.config import NOISE_LEVELS, DDIMConfig, DiffusionSteps
from neuralsde.baselines.next_state import Fresh, Net, NextStateModel
from neuralsde.core.extras import need
from neuralsde.core.memo import Memo
from neuralsde.models.scale import Scale
from neuralsde.solvers.noise import Noise


@lru_cache(maxsize=16)
def scheduler(config: DDIMConfig, num_steps: int, limit: float) -> Any:
    """The scheduler of diffusers for so many steps; targets are clipped to `limit`. It is only read after this."""
    need("DDIM", "diffusers")
    from diffusers import DDIMScheduler

    made: Any = DDIMScheduler(
        num_train_timesteps=NOISE_LEVELS,
        beta_schedule="squaredcos_cap_v2",
        prediction_type=config.prediction,
        timestep_spacing="trailing",
        clip_sample=True,
        clip_sample_range=limit,
    )
    made.set_timesteps(num_steps)
    return made


class DDIM(NextStateModel):
    """The net predicts what the config says (noise, sample or v); targets are clipped to the range of the data."""

    config: DDIMConfig

    def __init__(self, nets: Mapping[str, nn.Module], scale: Scale, config: DDIMConfig) -> None:
        super().__init__(nets, scale, config)
        self.levels = scheduler(config, config.sampler.num_steps, 1.0)  # a missing diffusers is told at once
        self.farthest = Memo[float]()

    def generation_loss(self, y: Tensor, history: Tensor, condition: Tensor | None, noise: Noise) -> Tensor:
        z = noise.normal(1, tuple(y.shape[1:]))
        level = (noise.uniform(2) * NOISE_LEVELS).long()
        y_s = self.levels.add_noise(y, z, level)
        target = {"epsilon": z, "sample": y}.get(self.config.prediction)
        if target is None:
            target = self.levels.get_velocity(y, z, level)
        return (self.net(y_s, self._time(level), history, condition) - target) ** 2

    def _time(self, level: Tensor) -> Tensor:
        return (level.float() + 1) / NOISE_LEVELS

    def generate(self, z: Tensor, net: Net, fresh: Fresh, sampler: DiffusionSteps) -> Tensor:
        limit = self.farthest.get([self.limit], lambda: float(self.limit.max()))
        steps, random = scheduler(self.config, sampler.num_steps, limit), sampler.variant == "ddpm"
        y = z
        for k, level in enumerate(steps.timesteps.tolist()):
            out = net(y, self._time(torch.full((1,), level, device=y.device)))
            more = (
                {"eta": 1.0, "variance_noise": fresh(k), "use_clipped_model_output": True} if random else {"eta": 0.0}
            )
            y = steps.step(out, level, y, **more).prev_sample
        return y
