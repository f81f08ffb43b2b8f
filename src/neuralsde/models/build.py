"""From settings to models, and models from files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from neuralsde.core.doors import door
from neuralsde.core.records import built_by
from neuralsde.data.streams.stream import StreamTransitions
from neuralsde.data.trajectories import Transitions
from neuralsde.data.transition import Transition
from neuralsde.models.config import ModelConfig
from neuralsde.models.sequence import SequenceModel


def build(config: ModelConfig, data: Transitions | StreamTransitions, *, nets: Any = None, seed: int = 0) -> Any:
    """A model for `data`: units and bounds from it, or from its sample in memory; nets from the config or the caller's own.

    Weights depend on `seed` alone.
    """
    data = data.in_memory
    model = built_by(config).assemble(config, data.data.shape, data.data.context_size, nets=nets, seed=seed)
    if model.own_nets:
        model.check_nets()
    model.to(data.start.device)
    _warn_of_history(model, model.measure(data))
    return model


@door
def load(path: str | os.PathLike[str], *, nets: Mapping[str, nn.Module] | None = None) -> Any:
    """The model in a folder written by `save_pretrained`, whatever its kind. Nothing in it is executed."""
    return SequenceModel.from_pretrained(path, nets=nets)


def _warn_of_history(model: SequenceModel, pairs: Transition) -> None:
    """Slots carry the velocity in their differences: noise or uneven gaps can drown it."""
    if model.config.history == 1:
        return
    slots = model.scale.states(pairs.history)
    size = float(slots.diff(dim=1).square().mean().sqrt())
    noise = float(model.input_noise.max())
    share = 0.6 if slots.ndim > 4 else 0.25  # of pictures, neighbours show the same motion
    if noise > share * size:
        warnings.warn(
            f"noise={noise:g} hides the differences between slots (rms {size:.2g}). Use a smaller `noise` or a `lag`.",
            stacklevel=3,
        )
    if model.lag is None and float(pairs.dt.std(correction=0)) > 0.1 * float(pairs.dt.mean()):
        warnings.warn("`history` on irregular stamps has slots at uneven gaps. Give a `lag`.", stacklevel=3)
