"""Backbones map a state (B, H, *S) and an optional condition (B, K) to one field (B, *S), or to several, and do not know which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Union

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from neuralsde.core.records import built_by
from neuralsde.nets.config import ImageConfig, NetConfig, PolynomialConfig

Condition = Union[Float[Tensor, "B K"], None]
"""What steers a net beside the state."""


@dataclass(frozen=True)
class Form:
    """What goes into a net, and what comes out."""

    shape: tuple[int, ...]  # of a state
    history: int = 1  # slots of the state
    condition_size: int = 0
    num_fields: int = 1
    readers: tuple[int, ...] = ()  # the fields, of several, that read the features without training them
    late: int = 0
    """Last entries of the condition, which change along a path: nets that keep what they made of the others need to know."""


def is_plain(module: nn.Module) -> bool:
    """Whether it is evaluated, and does what its `forward` says: no hooks, and weights that are its own."""
    return not (
        module.training
        or module._forward_hooks
        or module._forward_pre_hooks
        or "parametrizations" in module._modules  # of `torch.nn.utils.parametrize`
    )


class Backbone(nn.Module):
    """Base of the nets that settings can name."""

    takes_target: ClassVar[bool] = False
    """Whether a state that is being generated is one more slot to it, the newest, not a part of the condition."""
    takes_lower: ClassVar[bool] = False
    """Whether it takes what it is given to the precision of its weights, and may so be drawn from with lower ones."""
    solves: ClassVar[bool] = False
    """Whether a part of it is found by least squares, before training."""
    refines: ClassVar[bool] = False
    """Whether that is found again at set points of a training, from all of the data and with what the law says of them."""
    outward: nn.Linear

    def __init__(self, config: Any, form: Form) -> None:
        super().__init__()
        self.form = form

    def measure(self, slots: Float[Tensor, "B H *S"], noise: Float[Tensor, "..."]) -> None:
        """Set units of its own from the data; `noise` is what training adds to its inputs."""

    def prepared(self, context: Float[Tensor, "B C"]) -> nn.Module:
        """The same net for paths along which these contexts, the first entries of the condition, do not change."""
        return self

    def solve(
        self,
        state: Float[Tensor, "B H *S"],
        condition: Condition,
        target: Float[Tensor, "B *S"],
        weight: Float[Tensor, "B *S"] | None = None,
        zero: Float[Tensor, "*S"] | None = None,
    ) -> None:
        """Find that part, for what it is to give at some states.

        `weight` is one over the variance of the target, `zero` the state that is 0 in the units of the data, where there is one.
        """

    def read_out(self, features: Tensor, arrange: Callable[[Tensor], Tensor]) -> Tensor:
        """What `outward` makes of features, arranged as (B, *S) or (B, F, *S); the `readers` do not train them."""
        y, readers = arrange(linear(self.outward, features)), self.form.readers
        if not readers or not (self.training and torch.is_grad_enabled()):
            return y
        apart = arrange(linear(self.outward, features.detach()))
        return torch.stack([(apart if k in readers else y)[:, k] for k in range(y.shape[1])], dim=1)


def backbone_of(config: Any, *, of_sde: bool = False) -> type[Backbone]:
    """The class of the net that settings ask for; a Neural SDE gives it the images of a context, and solves its flow."""
    if isinstance(config, (ImageConfig, PolynomialConfig)) and not of_sde:
        raise ValueError(f"{type(config).__name__} is for nets of a NeuralSDE. Got it in another model.")
    if not isinstance(config, NetConfig) or not config.builds:
        raise ValueError(
            f"`net` must be a config such as MLPConfig(width=64). Got a {type(config).__name__}. "
            "Modules of your own go into `nets`."
        )
    return built_by(config)


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
