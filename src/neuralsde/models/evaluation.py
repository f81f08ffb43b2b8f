"""Modules in evaluation mode (no dropout) beside the same modules in training.

Nothing is switched: a module that trains is left as it is, and a view of it that shares its weights is evaluated. So
several threads may sample from a model, also one that is being trained.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def evaluated(module: M) -> M:
    """The module itself if it is in evaluation mode, or a view of it that is."""
    return _view(module, {}) if module.training else module


def with_weights(module: M, weights: Mapping[int, Tensor]) -> M:
    """A view of the module with these in place of its weights, found by their `id`."""
    return _view(module, {}, weights)


def _view(module: M, made: dict[int, nn.Module], weights: Mapping[int, Tensor] = MappingProxyType({})) -> M:
    """With other weights, in the mode that it has; with its own, in evaluation."""
    if id(module) not in made:
        view = made[id(module)] = copy.copy(module)
        view.__dict__["_modules"] = {n: child and _view(child, made, weights) for n, child in module._modules.items()}
        view.__dict__["_compiled_call_impl"] = None  # a compiled call belongs to the mode and to the weights
        if weights:
            own = module._parameters.items()
            view.__dict__["_parameters"] = {name: weights.get(id(weight), weight) for name, weight in own}
        else:
            view.__dict__["training"] = False
    return made[id(module)]  # type: ignore[return-value]


def with_children(module: M, **children: nn.Module) -> M:
    """A view of the module, with others in place of some of its children."""
    view = copy.copy(module)
    view.__dict__["_modules"] = {**module._modules, **children}
    return view


def has_dropout(module: nn.Module) -> bool:
    """Whether the module gives other values in training than in evaluation."""
    return any(
        (isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0) or getattr(m, "random_in_training", False)
        for m in module.modules()
    )
