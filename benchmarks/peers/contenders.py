"""Who competes: each method as something that is built for data, trained for some seconds, and read as a sequence model."""

from __future__ import annotations

import bisect
import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralsde.baselines.config import GaussianConfig
from neuralsde.data.trajectories import Trajectories
from neuralsde.models.build import build
from neuralsde.models.config import ModelConfig
from neuralsde.models.sequence import SequenceModel
from neuralsde.nets.config import MLPConfig
from neuralsde.sde.config import Denoiser, Moments, NeuralSDEConfig
from neuralsde.solvers.noise import Noise
from neuralsde.training.config import RunOptions, TrainConfig
from neuralsde.training.fit import fit
from peers.prior import READING, Clock, LatentModel, Windows, build_prior, train

NET = MLPConfig(width=64, depth=2)
"""Of our two nets. Every other method gets as many parameters in all."""
LAGS = (1, 2, 4, 8)
"""Observation gaps over which a model with measurement noise learns."""
CALIBRATION = (10, 40)
"""Steps of short fits that tell how many steps fill a time."""
TRAIN = TrainConfig()
QUIET = RunOptions(progress=False, cpu=True)


def timed(learn: Callable[[], int]) -> dict[str, float]:
    """Steps, and how long they took."""
    wall, cpu = time.perf_counter(), time.process_time()
    steps = learn()
    return {"steps": steps, "seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


class Contender(ABC):
    """A model of the data and how it is trained."""

    model: SequenceModel
    """What is scored."""
    trained: nn.Module
    """What is trained: the model, and what infers its state."""

    @property
    def num_parameters(self) -> int:
        """All that is trained."""
        return sum(p.numel() for p in self.trained.parameters() if p.requires_grad)

    @abstractmethod
    def train(self, seconds: float, lr: float, clock: Clock) -> dict[str, float]:
        """Train for about so long; steps and seconds. A few steps to warm up are not counted."""

    @abstractmethod
    def loss(self) -> Tensor:
        """Of one training step."""


class Pairs(Contender):
    """A model of this library, trained by `fit`."""

    def __init__(self, config: ModelConfig, data: Trajectories, lag: Any = None, *, seed: int, batch: int = 0) -> None:
        self.pairs = data.transitions(lag=lag)
        self.model = self.trained = build(config, self.pairs, seed=seed)
        self.settings = replace(TRAIN, seed=seed, batch_size=batch or TRAIN.batch_size)

    def train(self, seconds: float, lr: float, clock: Clock) -> dict[str, float]:
        config = replace(self.settings, lr=lr, steps=self.steps_within(seconds, clock))

        def learn() -> int:
            fit(self.model, self.pairs, config=config, options=QUIET)
            return config.steps

        return timed(learn)

    def steps_within(self, seconds: float, clock: Clock) -> int:
        """`fit` counts steps: short ones on copies tell what a step and the rest cost."""

        def spent(steps: int) -> float:
            twin, began = copy.deepcopy(self.model), clock()
            fit(twin, self.pairs, config=replace(self.settings, steps=steps), options=QUIET)
            return clock() - began

        few, more = CALIBRATION
        spent(1)  # warms up
        rest = spent(few)
        each = (spent(more) - rest) / (more - few)
        longer = round(0.1 * seconds / each)
        if longer > more:
            each = (spent(longer) - rest) / (longer - few)
        return max(1, round((seconds - rest) / each) + few)

    def loss(self) -> Tensor:
        noise = Noise.for_step(0, 0, torch.arange(self.settings.batch_size))
        return torch.stack(list(self.model.train().loss(self.pairs.batch(noise), noise).values())).sum()


class Latent(Contender):
    """A latent SDE, trained on windows of the paths."""

    def __init__(
        self, model: LatentModel, data: Trajectories, *, length: int, batch: int, anneal: float, seed: int
    ) -> None:
        self.trained, self.model = model, model.prior
        self.windows, self.batch, self.anneal = Windows(data, model.prior, length), batch, anneal
        self.rng = torch.Generator().manual_seed(seed)

    def train(self, seconds: float, lr: float, clock: Clock) -> dict[str, float]:
        model = self.trained
        assert isinstance(model, LatentModel)
        self.loss().backward()  # type: ignore[no-untyped-call]
        return timed(lambda: train(model, self._draw, seconds, lr, anneal=self.anneal, clock=clock))

    def loss(self) -> Tensor:
        assert isinstance(self.trained, LatentModel)
        return self.trained.train().loss(self._draw(), 1.0)

    def _draw(self) -> Tensor:
        return self.windows.draw(self.batch, self.rng)


@dataclass(frozen=True)
class Shape:
    """What a method is built with beside the data."""

    width: int
    memory: int
    """Features of the recurrent net of those that have one."""
    seed: int = 0
    length: int | None = None
    """Gaps of a window; None is the method's own."""
    batch: int | None = None
    """Sequences, or transitions, of one step; None is the method's own."""
    checkout: Path | None = None
    """Of SDE Matching."""


Build = Callable[[Trajectories, Shape], Contender]


def neural_sde(data: Trajectories, shape: Shape) -> Contender:
    """Ours: the likelihood of the whole step from its start."""
    net = replace(NET, width=shape.width)
    config = NeuralSDEConfig(tau="start", noise=0.0, denoiser=None, net=net, **READING)
    return Pairs(config, data, seed=shape.seed, batch=shape.batch or 0)


def neural_sde_measured(data: Trajectories, shape: Shape) -> Contender:
    """Ours, with a measurement noise that is learned from several lags."""
    config = NeuralSDEConfig(
        tau="start",
        noise=0.05,
        denoiser=Denoiser(antithetic=True),
        net=replace(NET, width=shape.width),
        **READING | {"law": Moments(measurement=True)},
    )
    gap = float(data.times[1] - data.times[0])
    return Pairs(config, data, tuple(k * gap for k in LAGS), seed=shape.seed, batch=shape.batch or 0)


def gaussian_mlp(data: Trajectories, shape: Shape) -> Contender:
    """A Gaussian law of the next state."""
    config = GaussianConfig(net=replace(NET, width=shape.width))
    return Pairs(config, data, seed=shape.seed, batch=shape.batch or 0)


def torchsde(solver: str, *, substeps: int, noise: float | None = None) -> Build:
    """A latent SDE by torchsde; its Lorenz example has 2 solver steps per gap and a fixed noise of 0.01."""

    def build_it(data: Trajectories, shape: Shape) -> Contender:
        from peers.latent_sde import LatentSDE

        torch.manual_seed(shape.seed)
        prior = build_prior(data, replace(NET, width=shape.width))
        model = LatentSDE(prior, shape.memory, solver=solver, substeps=substeps, noise=noise)
        own = {"length": shape.length or 20, "batch": shape.batch or 64}
        return Latent(model, data, **own, anneal=0.2, seed=shape.seed)

    return build_it


def sde_matching(*, noise: float | None = None, whole: bool = True) -> Build:
    """SDE Matching; its notebook has a fixed noise of 0.01 and counts one observation for the whole window."""

    def build_it(data: Trajectories, shape: Shape) -> Contender:
        from peers.sde_matching import Matching, load_notebook

        if shape.checkout is None:
            raise ValueError("SDE Matching is run from a checkout: pass --sde-matching PATH.")
        torch.manual_seed(shape.seed)
        prior, length = build_prior(data, replace(NET, width=shape.width)), shape.length or 40
        model = Matching(prior, load_notebook(shape.checkout), shape.memory, length, noise=noise, whole=whole)
        return Latent(model, data, length=length, batch=shape.batch or 64, anneal=0.0, seed=shape.seed)

    return build_it


@dataclass(frozen=True)
class Method:
    """A row of the tables."""

    build: Build
    lr: float
    """One of `LEARNING_RATES`, picked in short runs by the error of the drift; `--tune` records such runs."""
    own: bool = False
    """Of this library: read at more times, and trained by `fit`."""
    recurrent: bool = False
    """Has a recurrent net, whose memory is fitted to the number of parameters too."""


LEARNING_RATES = (1e-3, 3e-3, 1e-2)
METHODS: dict[str, Method] = {
    "neuralsde": Method(neural_sde, 1e-2, own=True),
    "neuralsde_measured": Method(neural_sde_measured, 1e-2, own=True),
    "gaussian_mlp": Method(gaussian_mlp, 3e-3, own=True),
    "sde_matching": Method(sde_matching(), 3e-3, recurrent=True),
    "torchsde_bptt": Method(torchsde("euler", substeps=4), 1e-2, recurrent=True),
    "torchsde_adjoint": Method(torchsde("euler_adjoint", substeps=4), 3e-3, recurrent=True),
    "torchsde_reversible": Method(torchsde("reversible_heun", substeps=4), 1e-2, recurrent=True),
    # With the settings of their examples
    "sde_matching_notebook": Method(sde_matching(noise=0.01, whole=False), 1e-3, recurrent=True),
    "torchsde_bptt_example": Method(torchsde("euler", substeps=2, noise=0.01), 1e-2, recurrent=True),
}


def matched(name: str, data: Trajectories, shape: Shape) -> Shape:
    """`shape` with the sizes that give the method as many parameters as ours has."""
    few = data.select(range(2))
    method = METHODS[name]

    def count(width: int, memory: int) -> int:
        return method.build(few, replace(shape, width=width, memory=memory)).num_parameters

    target = METHODS["neuralsde"].build(few, replace(shape, width=NET.width)).num_parameters
    width = _nearest(lambda w: count(w, w), target)
    memory = _nearest(lambda m: count(width, m), target) if method.recurrent else width
    return replace(shape, width=width, memory=memory)


def _nearest(count: Callable[[int], int], target: int) -> int:
    """The size whose count, which grows with it, is nearest to the target."""
    size = max(2, bisect.bisect_left(range(256), target, key=count))
    return min(size - 1, size, key=lambda s: abs(count(s) - target))
