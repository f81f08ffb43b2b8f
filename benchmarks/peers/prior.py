"""What the rivals share: the SDE they learn, the windows they learn it from, and the training loop.

The prior of every latent SDE is a `NeuralSDE` object in data space (latent = state, the decoder is the identity), so that
its drift, diffusion, density and paths are read by the same code as ours. Only the objective that trains it differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from neuralsde.data.trajectories import Trajectories
from neuralsde.models.build import build
from neuralsde.nets.backbone import Form
from neuralsde.nets.config import MLPConfig
from neuralsde.nets.mlp import MLP
from neuralsde.sde.config import Moments, NeuralSDEConfig, Sampler
from neuralsde.sde.model import NeuralSDE
from neuralsde.training.config import TrainConfig
from neuralsde.training.fit import CLIP, Average, learning_rate

READING: dict[str, Any] = {
    "law": Moments(),
    "sampler": Sampler(solver="heun", substeps=2),
}
"""How the density and the paths of a learned SDE are computed, for every method."""
START_SHARE = 0.5
"""Observation noise at the start of training, over the typical step of the data."""

Clock = Callable[[], float]


class Elementwise(nn.Module):
    """One net per dimension: the rivals' formulas need g_i to depend on x_i alone."""

    def __init__(self, config: MLPConfig, size: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(MLP(config, Form((1,))) for _ in range(size))

    def forward(self, state: Tensor, condition: Tensor | None = None) -> Tensor:
        parts = [net(part, condition) for net, part in zip(self.nets, state.split(1, dim=-1))]
        return torch.cat(parts, dim=-1)


def build_prior(data: Trajectories, net: MLPConfig) -> NeuralSDE:
    """The SDE in data space, and how its density and its paths are read."""
    config = NeuralSDEConfig(tau="start", noise=0.0, denoiser=None, net=net, **READING)
    small = MLPConfig(width=max(4, net.width // 2), depth=1)
    nets = {"flow": MLP(net, Form(data.shape)), "diffusion": Elementwise(small, data.shape[0])}
    return build(config, data.transitions(), nets=nets)  # type: ignore[return-value]


class LatentModel(nn.Module):
    """A prior SDE, an observation noise, and whatever infers the state; a rival says what its loss is."""

    def __init__(self, prior: NeuralSDE, noise: float | None) -> None:
        super().__init__()
        self.prior = prior
        start = prior.sizes.typical + math.log(START_SHARE) if noise is None else torch.tensor(noise).log()
        self.log_error = nn.Parameter(start.expand(prior.scale.shape).clone(), requires_grad=noise is None)

    def drift(self, z: Tensor) -> Tensor:
        """Of the prior, per observation gap."""
        return self.prior._fields().flow(z[:, None], None)

    def diffusion(self, z: Tensor) -> Tensor:
        """Of the prior, per square root of an observation gap."""
        return torch.exp(self.prior._fields().log_diffusion(z[:, None], None))

    def loss(self, x: Tensor, weight: float) -> Tensor:
        """Negative evidence bound per observed value of sequences (B, T, d), with this weight on the divergence."""
        raise NotImplementedError


class Windows:
    """Random pieces of the training paths, in units of the scale."""

    def __init__(self, data: Trajectories, prior: NeuralSDE, length: int) -> None:
        steps = int(data.lengths[0])
        assert bool((data.lengths == steps).all()), "paths must be of one length"
        self.paths = prior.scale.states(data.states).reshape(len(data), steps, -1)
        self.length = length + 1

    def draw(self, num: int, rng: torch.Generator) -> Tensor:
        """Pieces (num, length + 1, d)."""
        path = torch.randint(len(self.paths), (num, 1), generator=rng)
        first = torch.randint(self.paths.shape[1] - self.length + 1, (num, 1), generator=rng)
        return self.paths[path, first + torch.arange(self.length)]


def train(
    model: LatentModel, draw: Callable[[], Tensor], seconds: float, lr: float, *, anneal: float, clock: Clock
) -> int:
    """Adam with our schedule, clipping and averaging, by the clock; the number of steps.

    The divergence comes in over the share `anneal` of the time.
    """
    schedule = TrainConfig(lr=lr, steps=10_000)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=lr, fused=True)
    average = Average(model, schedule.ema)
    steps, share, began = 0, 0.0, clock()
    while share < 1:
        loss = model.loss(draw(), min(1.0, share / anneal) if anneal else 1.0)
        if not bool(torch.isfinite(loss)):
            raise FloatingPointError(f"The loss is not finite at step {steps + 1}.")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, CLIP)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(schedule, int(share * schedule.steps))
        optimiser.step()
        average.update(steps)
        steps += 1
        share = (clock() - began) / seconds
    average.apply()
    model.eval()
    return steps
