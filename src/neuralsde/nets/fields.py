"""The last layer of a net of several fields, one of which may read the features without training them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


def zero_linear(width: int, size: int) -> nn.Linear:
    """A layer that gives 0 at the start of training."""
    layer = nn.Linear(width, size)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """`layer(x)`, without the call of a module: that, and to look up weights by name, takes as long as a small product."""
    weight, bias = layer._parameters.values()
    assert weight is not None
    return functional.linear(x, weight, bias)


def read_fields(net: nn.Module, features: Tensor, arrange: Callable[[Tensor], Tensor], reader: int | None) -> Tensor:
    """What `net.outward` makes of features, arranged as (B, *S) or (B, F, *S); the field `reader` does not train them."""
    outward = net.outward
    assert isinstance(outward, nn.Linear)
    y = arrange(linear(outward, features))
    if reader is None or not (net.training and torch.is_grad_enabled() and features.requires_grad):
        return y
    apart = arrange(linear(outward, features.detach()))
    return torch.stack([(apart if k == reader else y)[:, k] for k in range(y.shape[1])], dim=1)
