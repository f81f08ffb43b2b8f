"""How a model of action paths is run as a controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from neuralsde.core.doors import Count, check_fields
from neuralsde.core.records import check


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """What a policy sees, how far it plans, and how much of a plan it carries out."""

    form: Literal["path", "chunk", "state"] = "path"
    """What the state of the model is: an action, and it moves from one to the next; a whole plan, drawn at once; or what is
    seen together with the action (the paper), and it moves blindly from there."""
    history: Count = 2
    """Observations it sees, one data step apart."""
    horizon: Count = 16
    """Actions of a plan in training."""
    chunk: Count = 8
    """Actions carried out before it plans anew."""
    first_action: tuple[int, ...] = ()
    """Entries of the observation that stand for the action before the first; empty: none of them, the mean of the
    episodes' first actions."""
    discrete: tuple[int, ...] = ()
    """Entries of the action that take few values (a gripper): they are put to the nearest one seen in the data."""

    def __post_init__(self) -> None:
        check_fields(self)
        check(
            self.chunk <= self.horizon,
            f"`chunk` must not exceed `horizon`: it is part of the plan. Got {self.chunk=}, {self.horizon=}.",
        )
        blind = self.form != "state" or self.history == 1
        check(blind, f"form='state' sees one observation: the state itself. Got {self.history=}. Set `history=1`.")
