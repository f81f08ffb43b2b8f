"""Modules in evaluation mode (no dropout) beside the same modules in training.

Nothing is switched: a module that trains is left as it is, and a view of it that shares its weights is evaluated. So
several threads may sample from a model, also one that is being trained.
"""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def evaluated(module: M) -> M:
    """The module itself if it is in evaluation mode, or a view of it that is."""
    return _view(module, {}) if module.training else module


def _view(module: M, made: dict[int, nn.Module]) -> M:
    if id(module) not in made:
        view = made[id(module)] = copy.copy(module)
        view.__dict__ |= {
            "training": False,
            "_compiled_call_impl": None,  # it belongs to the module, in its mode
            "_modules": {name: child and _view(child, made) for name, child in module._modules.items()},
        }
    return made[id(module)]  # type: ignore[return-value]


def has_dropout(module: nn.Module) -> bool:
    """Whether the module gives other values in training than in evaluation."""
    return any(
        (isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0) or getattr(m, "random_in_training", False)
        for m in module.modules()
    )
