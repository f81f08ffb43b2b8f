"""The last layer of a net of several fields, one of which may read the features without training them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def zero_linear(width: int, size: int) -> nn.Linear:
    """A layer that gives 0 at the start of training."""
    layer = nn.Linear(width, size)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def read_fields(net: nn.Module, features: Tensor, arrange: Callable[[Tensor], Tensor], reader: int | None) -> Tensor:
    """What `net.outward` makes of features, arranged as (B, *S) or (B, F, *S); the field `reader` does not train them."""
    outward = net.outward
    assert isinstance(outward, nn.Linear)
    y = arrange(outward(features))
    if reader is None or not (net.training and torch.is_grad_enabled() and features.requires_grad):
        return y
    apart = arrange(outward(features.detach()))
    return torch.stack([(apart if k == reader else y)[:, k] for k in range(y.shape[1])], dim=1)
