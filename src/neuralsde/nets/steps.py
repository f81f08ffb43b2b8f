"""Nets that see steps and not levels: an autoregression of the steps between slots, linear or not.

What a random walk does next does not depend on where it is. Steps are in units of their own, measured on the data before
training and saved with the weights. The linear map of a flow is found by ridge regression, its penalty by generalised
cross-validation, and stays so: training adds what is not linear.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from neuralsde.nets.backbone import Backbone, Condition, Form, linear, zero_linear
from neuralsde.nets.config import StepsConfig
from neuralsde.nets.mlp import MLP

PENALTIES = tuple(10.0**k for k in range(-4, 7))  # of squared weights, of inputs of unit size
MOST = 200_000  # rows of a regression


class StepsNet(Backbone):
    """A linear map of steps and condition, and a perceptron of the same (both 0 at the start of training)."""

    solves: ClassVar[bool] = True
    step_unit: Tensor

    def __init__(self, config: StepsConfig, form: Form) -> None:
        super().__init__(config, form)
        slots = form.history - 1 + config.level
        size = math.prod(form.shape)
        self.level = config.level
        self.fields = form.shape if form.num_fields == 1 else (form.num_fields, *form.shape)
        self.register_buffer("step_unit", torch.ones(form.shape))
        inputs = slots * size + form.condition_size
        self.outward = zero_linear(max(1, inputs), math.prod(self.fields))
        alone = config.linear or not inputs
        self.bent = None if alone else MLP(config, replace(form, shape=(size,), history=slots, num_fields=1))
        if self.bent is not None:
            self.bent.outward = zero_linear(config.width, math.prod(self.fields))
            self.bent.fields = self.fields

    @torch.no_grad()
    def measure(self, slots: Float[Tensor, "B H *S"], noise: Float[Tensor, "..."]) -> None:
        """Measure the steps that training will show; `noise` is its own."""
        if slots.shape[1] > 1:
            size = slots.diff(dim=1).square().mean((0, 1))
            self.step_unit.copy_((size + 2 * noise**2).sqrt().clamp(min=1e-6))

    @torch.no_grad()
    def solve(
        self,
        state: Float[Tensor, "B H *S"],
        condition: Condition,
        target: Float[Tensor, "B *S"],
        weight: Float[Tensor, "B *S"] | None = None,
        zero: Float[Tensor, "*S"] | None = None,
    ) -> None:
        """The linear map by ridge regression; training leaves it as it is."""
        x, y = self._inputs(state, condition).double(), target.flatten(1).double()
        x, y = x[:MOST], y[:MOST]
        mean, middle = x.mean(0), y.mean(0)
        values, axes = torch.linalg.eigh((x - mean).T @ (x - mean))
        values = values.clamp(min=0)
        along = axes.T @ ((x - mean).T @ (y - middle))  # (P, d)
        total, best, weight = (y - middle).square().sum(0), torch.full_like(middle, torch.inf), along.new_zeros(0)
        for penalty in PENALTIES:
            shrunk = along / (values + penalty * len(x) / 1_000)[:, None]
            left = (total - 2 * (shrunk * along).sum(0) + (shrunk**2 * values[:, None]).sum(0)).clamp(min=0)
            free = len(x) - 1 - float((values / (values + penalty * len(x) / 1_000)).sum())
            score = left / max(free, 1e-3) ** 2
            own = axes @ shrunk
            weight = own if not len(weight) else torch.where(score < best, own, weight)
            best = torch.minimum(best, score)
        self.outward.weight.copy_(weight.T)
        self.outward.bias.copy_(middle - mean @ weight)
        self.outward.requires_grad_(False)

    def _inputs(self, state: Float[Tensor, "B H *S"], condition: Condition) -> Float[Tensor, "B I"]:
        parts = [(state.diff(dim=1) / self.step_unit).flatten(1)]
        if self.level:
            parts.append(state[:, -1].flatten(1))
        if condition is not None:
            parts.append(condition)
        x = torch.cat(parts, dim=1)
        if not x.shape[1]:  # nothing to go by: constant fields
            x = state.new_zeros(state.shape[0], 1)
        return x

    def forward(self, state: Float[Tensor, "B H *S"], condition: Condition = None) -> Float[Tensor, "B *F"]:
        x = self._inputs(state, condition)
        y = linear(self.outward, x).reshape(x.shape[0], *self.fields)
        return y if self.bent is None else y + self.bent.read(x)
