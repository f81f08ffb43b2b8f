"""The slots of a state while its newest one moves between two observations."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def moved(state: Float[Tensor, "B H *S"], newest: Float[Tensor, "B *S"], past: Tensor) -> Float[Tensor, "B H *S"]:
    """The slots, one reference step apart, when `past` (B values) steps have passed and the newest state is `newest`.

    Older ones follow the path by straight lines between what is known of it.
    """
    last = state.shape[1] - 1
    if last == 0:
        return newest[:, None]
    past = past.reshape(-1, 1)
    place = torch.arange(last, device=past.device) + past
    low = place.clamp(max=last).floor().clamp(max=last - 1).long()
    rows, shape = torch.arange(len(state), device=state.device)[:, None], (*place.shape, *[1] * (newest.ndim - 1))
    share = (place - low).clamp(max=1.0).reshape(shape)
    beyond = ((place - last).clamp(min=0.0) / past.clamp(min=1e-12)).reshape(shape)
    older = torch.lerp(torch.lerp(state[rows, low], state[rows, low + 1], share), newest[:, None], beyond)
    return torch.cat([older, newest[:, None]], dim=1)
