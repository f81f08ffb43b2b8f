"""A policy's plan as one module: observations, the previous action and noise in, the next actions out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from neuralsde.export.draws import Draws, GivenNoise
from neuralsde.export.rollout import Rollout, copy_for_export
from neuralsde.policy.controller import SDEPolicy, Still
from neuralsde.solvers.noise import Noise


class PlanGraph(nn.Module):
    """Actions (B, n, A) from observations (B, H, C), one data step apart and oldest first, and the action before (B, A)."""

    def __init__(self, policy: SDEPolicy) -> None:
        super().__init__()
        model = copy_for_export(policy.model)
        sampler = model.own_sampler(policy.sampler)
        self.config = policy.config
        self.policy = SDEPolicy(
            model,
            policy.config,
            limits=policy.limits,
            default_action=policy.default_action,
            levels=policy.levels,
            observation=policy.observation,
            control_dt=policy.control_dt,
            sampler=sampler,
        )
        self.plan_times: list[float] = self.policy.plan_times
        chunk = self.config.form == "chunk"
        first = 0.0 if chunk else self.policy.plan_start
        times = [first, self.policy.dt] if chunk else [first, *self.plan_times]
        self.rollout = Rollout(model, times, sampler, fixed_start=True)
        self.low, self.high = (torch.from_numpy(v.copy()) for v in policy.limits)
        self.levels = {k: torch.from_numpy(v.copy()) for k, v in policy.levels.items()}

    @property
    def draws(self) -> tuple[Draws, ...]:
        return self.rollout.draws

    def forward(self, observations: Tensor, previous: Tensor, *noise: Tensor) -> Tensor:
        """The plan, within the limits of the actions."""
        form, num = self.config.form, previous.shape[1]
        given: Noise = GivenNoise.of(self.draws, noise)
        if self.levels:
            given = Still(given, [k - num for k in self.levels])
        context = None if form == "state" else observations.flatten(1)
        start = {"path": previous, "state": torch.cat([observations[:, -1], previous], 1)}.get(form)
        if start is None:
            start = previous[:, None].expand(-1, self.config.horizon, -1)
        states = self.rollout.roll(start[:, None], None, context, given)
        plan = states[..., -num:] if form != "chunk" else self._read(previous, states[:, 0])
        plan = torch.minimum(torch.maximum(plan, self.low), self.high)
        if not self.levels:
            return plan
        entries = list(plan.unbind(-1))
        for k, values in self.levels.items():
            entries[k] = values[(entries[k][..., None] - values).abs().argmin(-1)]
        return torch.stack(entries, dim=-1)

    def _read(self, previous: Tensor, chunk: Tensor) -> Tensor:
        """Actions of a whole plan at the rate of control, linearly."""
        every = torch.cat([previous[:, None], chunk], dim=1)
        found = []
        for time in self.plan_times:
            place = min(max(time / self.policy.dt, 0.0), every.shape[1] - 1.0)
            low = int(place)
            found.append(
                torch.lerp(every[:, low], every[:, min(low + 1, every.shape[1] - 1)], float(np.float32(place - low)))
            )
        return torch.stack(found, dim=1)

    def check(self, observations: Tensor, previous: Tensor, *noise: Tensor) -> Tensor:
        """The same by the policy."""
        seen = observations.flatten(1).numpy()
        plan, _ = self.policy.plan_from(previous.numpy(), seen, GivenNoise.of(self.draws, noise))
        return torch.from_numpy(plan)

    def random_inputs(self, batch: int, rng: torch.Generator) -> list[Tensor]:
        """Observations and actions of the size of the data."""
        scale, config = self.rollout.model.scale, self.config
        num, size = self.policy.num_actions, self.policy.num_features
        state = scale.raw(torch.randn(batch, *scale.shape, generator=rng))
        if config.form == "state":
            seen = state[:, None, :size]
        else:
            spread = torch.randn(batch, scale.context_size, generator=rng)
            seen = (scale.context_mean + scale.context_std * spread).reshape(batch, config.history, size)
        previous = (state[:, 0] if config.form == "chunk" else state)[:, -num:]
        return [seen, previous, *(d.random(batch, rng) for d in self.draws)]
