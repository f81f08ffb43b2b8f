"""What is exported of a model: its step and its plan, each with names and meanings of what goes in and comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from neuralsde.export.draws import DISTRIBUTIONS, Draws
from neuralsde.export.policy import PlanGraph
from neuralsde.export.rollout import Rollout, copy_for_export
from neuralsde.models.sequence import SequenceModel
from neuralsde.policy.controller import SDEPolicy

ULPS = 4  # roundings of float32 that a raw value may be off by itself


@dataclass(frozen=True)
class Port:
    """An input or an output."""

    name: str
    shape: tuple[int, ...]
    """Without the batch."""
    meaning: str
    dtype: str = "float32"

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": ["batch", *self.shape],
            "meaning": self.meaning,
        }


@dataclass(frozen=True)
class Graph:
    """A module that is to be exported, and what it has to agree with."""

    module: nn.Module
    check: Callable[..., Tensor]
    """The same result by the eager model."""
    random: Callable[[int, torch.Generator], list[Tensor]]
    """Inputs of the size of the data."""
    inputs: tuple[Port, ...]
    output: Port
    draws: tuple[Draws, ...]
    unit: Tensor
    """Size of the data, which errors are measured in; it broadcasts against the output."""
    relative: bool
    """Whether that is a share of the values, as for logarithms."""
    record: dict[str, Any]
    """More of the contract."""

    @property
    def ports(self) -> tuple[Port, ...]:
        """All inputs, those of the noise last."""
        return (*self.inputs, *(noise_port(d) for d in self.draws))

    def error(self, found: Tensor, wanted: Tensor) -> tuple[float, float]:
        """Largest difference in units of the data's scale, and what of it is beyond the rounding of the raw values."""
        unit = self.unit.double() * (wanted.double().abs() if self.relative else 1.0)
        off = (found.double() - wanted.double()).abs()
        rounding = ULPS * torch.finfo(torch.float32).eps * wanted.double().abs()
        return float((off / unit).max()), float(((off - rounding).clamp(min=0) / unit).max())


def noise_port(draws: Draws) -> Port:
    """The input of one kind of draw."""
    meaning = f"{DISTRIBUTIONS[draws.kind]}, independent; row m is that of solver step m"
    return Port(draws.name, (draws.num_steps, *draws.shape), meaning)


def model_graphs(
    model: SequenceModel, sampler: Any, num_steps: int, names: Sequence[str] = (), time_unit: str = ""
) -> dict[str, Graph]:
    """One step of the data, and a plan of `num_steps` of them."""
    own, step = copy_for_export(model), model.scale.step
    sampler = replace(model.own_sampler(sampler), box=None)
    plan = [step * k for k in range(num_steps + 1)]
    return {
        "step": rollout_graph(Rollout(own, plan[:2], sampler), names, time_unit, one=True),
        "plan": rollout_graph(Rollout(own, plan, sampler), names, time_unit),
    }


class _Newest(nn.Module):
    """The one state of a roll-out of one step."""

    def __init__(self, rollout: Rollout) -> None:
        super().__init__()
        self.rollout = rollout

    def forward(self, *inputs: Tensor) -> Tensor:
        """(B, *S)."""
        return self.rollout(*inputs)[:, 0]


def rollout_graph(rollout: Rollout, names: Sequence[str], time_unit: str, *, one: bool = False) -> Graph:
    """The graph of a roll-out; `one` gives a context (B, C) and a state (B, *S), without an axis of time."""
    rollout.listen()
    model, scale = rollout.model, rollout.model.scale
    slots, shape, num = model.config.history, scale.shape, len(rollout.times) - 1
    features = f" ({', '.join(names)})" if names else ""
    spaced = f", one step ({scale.step:g}) apart, oldest first" if slots > 1 else ""
    inputs = [Port("history", (slots, *shape), f"the last {slots} state(s){features} in raw units{spaced}")]
    if rollout.takes_time:
        told = "time of the newest state since the start of its path"
        inputs.append(Port("time", (), f"{told}{time_unit and ', in ' + time_unit}", "float64"))
    if scale.context_size:
        size = (scale.context_size,) if one else (num, scale.context_size)
        holds = "that holds over the step" if one else "that holds from each time to the next; the first is that of now"
        inputs.append(Port("context", size, f"the context {holds}, in raw units"))
    output = Port("next" if one else "plan", shape if one else (num, *shape), f"states{features} in raw units")

    def random(batch: int, rng: torch.Generator) -> list[Tensor]:
        steps = 0.1 * torch.randn(batch, slots, *shape, generator=rng)
        first = 0.5 * torch.randn(batch, 1, *shape, generator=rng)
        made = [scale.raw(first + steps.cumsum(1))]
        if rollout.takes_time:
            spread = torch.rand(batch, generator=rng, dtype=torch.float64)
            made.append(scale.step * (scale.time_mean + scale.time_std * spread).clamp(min=0))
        if scale.context_size:
            size = (batch, scale.context_size) if one else (batch, num, scale.context_size)
            made.append(scale.context_mean + scale.context_std * torch.randn(size, generator=rng))
        return [*made, *(d.random(batch, rng) for d in rollout.draws)]

    def check(*values: Tensor) -> Tensor:
        made = rollout.check(*values)
        return made[:, 0] if one else made

    module = _Newest(rollout) if one else rollout
    relative = scale.transforms != ("none",)
    unit = scale.std.clamp(max=1.0) if relative else scale.std
    record = {"times": [t - rollout.times[0] for t in rollout.times[1:]], "solver_steps": len(rollout.lengths)}
    return Graph(module, check, random, tuple(inputs), output, rollout.draws, unit, relative, record)


def policy_graphs(policy: SDEPolicy) -> dict[str, Graph]:
    """One step of the action path, and a whole plan from observations."""
    module = PlanGraph(policy)
    module.rollout.listen()
    config, scale, num = policy.config, module.rollout.model.scale, policy.num_actions
    slots = f"the last {config.history} observation(s), {policy.dt:g} apart, oldest first"
    first = f"entries {list(config.first_action)} of the observation" if config.first_action else "`default_action`"
    inputs = (
        Port(
            "observations", (config.history, policy.num_features), f"{slots}; the first one stands for those before it"
        ),
        Port("previous_action", (num,), f"the action before the plan; before the first one: {first}"),
    )
    output = Port("plan", (len(module.plan_times), num), "the next actions, within their limits")
    record = {"times": module.plan_times, "solver_steps": len(module.rollout.lengths)}
    unit = (scale.std[0] if config.form == "chunk" else scale.std)[-num:]
    plan = Graph(module, module.check, module.random_inputs, inputs, output, module.draws, unit, False, record)
    sampler = replace(module.rollout.sampler, box=None)
    step = Rollout(module.rollout.model, [0.0, scale.step], sampler)
    return {"step": rollout_graph(step, (), "", one=True), "plan": plan}
