"""Several models of one form, trained in one batch.

Models that differ in their data, their noise or their seed have the same tensors. Stacked, they take one product of matrices
where each would take one of its own, and small nets are trained several times faster than one after the other. All members
see the same random numbers, which makes their scores easier to tell apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from neuralsde.data.trajectories import Transitions
from neuralsde.data.transition import Transition
from neuralsde.models.sequence import SequenceModel
from neuralsde.sde.config import NeuralSDEConfig
from neuralsde.solvers.noise import Noise
from neuralsde.training.config import TrainConfig
from neuralsde.training.fit import CLIP, learning_rate

SHARED = ("scale.dt_ref", "law.steps")  # tensors that members have in common


def form_of(model: Any, data: Transitions) -> Hashable:
    """What models must have in common to be stacked."""
    config: NeuralSDEConfig = model.config
    same = (config.history, config.start_probability, config.time_input, str(config.transform))
    scale = (config.normalise, config.directions)
    parts = (repr(config.law), repr(config.covariance), repr(config.denoiser), config.shared, repr(config.net))
    return (*same, *scale, *parts, config.noisy, model.scale.step, data.data.shape, data.data.context_size)


def fit_together(models: Sequence[SequenceModel], data: Sequence[Transitions], config: TrainConfig) -> None:
    """Train models of one form, each on its own data, in place."""
    first = models[0].train()
    params = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in models]).requires_grad_()
        for name, _ in first.named_parameters()
    }
    buffers = {
        name: torch.stack([dict(m.named_buffers())[name] for m in models])
        for name, _ in first.named_buffers()
        if name not in SHARED
    }
    groups = [
        [n for n, p in first.named_parameters() if any(p is q for q in ps)] for ps in first.parameter_groups().values()
    ]
    average = {name: p.detach().clone() for name, p in params.items()}
    optimiser = torch.optim.AdamW(list(params.values()), lr=config.lr, weight_decay=config.weight_decay, fused=True)
    rows = torch.arange(config.batch_size)
    sizes = torch.tensor([len(d) for d in data])

    def loss(own: dict[str, Tensor], fixed: dict[str, Tensor], batch: tuple[Any, ...], *, noise: Noise) -> Tensor:
        values = functional_call(first, {**own, **fixed}, (Transition(*batch), noise))
        return torch.stack(list(values.values())).sum()

    for step in range(config.steps):
        noise = Noise.for_step(config.seed, step, rows)
        drawn = noise.integers(2**63 - 1)
        batch = _stacked([d[drawn % int(n)] for d, n in zip(data, sizes)])
        axes = tuple(None if t is None else 0 for t in batch)
        each = vmap(partial(loss, noise=noise), in_dims=(0, 0, axes))(params, buffers, batch)
        optimiser.zero_grad(set_to_none=True)
        each.sum().backward()
        _clip(params, groups)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(config, step)
        optimiser.step()
        decay = min(config.ema, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(average.values()), [p.detach() for p in params.values()], 1 - decay)
    with torch.no_grad():
        for k, model in enumerate(models):
            for name, p in model.named_parameters():
                p.copy_(average[name][k])
            model.eval()


def _stacked(batches: list[Transition]) -> tuple[Any, ...]:
    names = ("history", "next", "dt", "time", "context", "mask")
    return tuple(
        None if getattr(batches[0], n) is None else torch.stack([getattr(b, n) for b in batches]) for n in names
    )


@torch.no_grad()
def _clip(params: dict[str, Tensor], groups: list[list[str]]) -> None:
    """Gradients of each part of each member, to the largest norm."""
    for names in groups:
        grads = [g for n in names if (g := params[n].grad) is not None]
        if not grads:
            continue
        total = torch.cat([g.flatten(1) for g in grads], dim=1).norm(dim=1)
        if bool((total > CLIP).any()):
            factor = (CLIP / (total + 1e-6)).clamp(max=1.0)
            for g in grads:
                g.mul_(factor.reshape(-1, *[1] * (g.ndim - 1)))
