"""Nets of a state that is being generated: half-made, at a generation time from 0 to 1, for the states before it.

Nets that want it apart get it as one more slot of the state, the newest; all others in the condition.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from neuralsde.nets.backbone import Backbone, Condition, Form

EMBEDDING = 32  # features of the generation time


def embed_time(s: Float[Tensor, " B"]) -> Float[Tensor, "B E"]:
    """Sines and cosines of the generation time s in [0, 1], periods from 4 down to 1/60."""
    angle = s[:, None] * torch.exp(torch.linspace(math.log(1.5), math.log(400.0), EMBEDDING // 2, device=s.device))
    return torch.cat([angle.sin(), angle.cos()], dim=1)


def target_form(net: type[Backbone], form: Form) -> Form:
    """The form of such a net, from that of a net of the state alone."""
    more = EMBEDDING + (0 if net.takes_target else math.prod(form.shape))
    slots = form.history + 1 if net.takes_target else form.history
    return replace(form, history=slots, condition_size=form.condition_size + more)


def read_target(
    net: nn.Module,
    target: Float[Tensor, "B *S"],
    s: Float[Tensor, " T"],
    state: Float[Tensor, "B H *S"],
    condition: Condition,
) -> Tensor:
    """What the net gives at generation times s, one for all or one each."""
    given = [embed_time(s.expand(target.shape[0]))] + ([] if condition is None else [condition])
    if isinstance(net, Backbone) and net.takes_target:
        return net(torch.cat([state, target[:, None]], dim=1), torch.cat(given, dim=1)).float()
    return net(state, torch.cat([target.flatten(1), *given], dim=1)).float()
