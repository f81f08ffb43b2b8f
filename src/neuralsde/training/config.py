"""The training loop: what it computes, and how it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from neuralsde.core.doors import Count, Positive, Range, Share, check_fields
from neuralsde.core.records import check
from neuralsde.models.config import Precision

SmallSeed = Annotated[int, Range("less than 2^32 in size", lambda v: abs(v) < 2**32)]
"""Of a training: with the number of a step it makes a seed of torch, which has 64 bits."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The training: what its numbers depend on."""

    steps: Count = 5_000
    """Optimiser steps."""
    batch_size: Count = 512
    """Transitions per step, over all processes together."""
    lr: Positive = 1e-3
    """Peak learning rate of AdamW."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    ema: Share = 0.995
    """Decay of the moving average of the weights that is kept as the result; 0 keeps the last weights."""
    seed: SmallSeed = 0
    """Seed of the data order and the injected noise (of the initial weights too, in a recipe)."""
    context_noise: float = 0.0
    """Noise added to the context while training, in units of its scale: against sensors noisier than those of the data."""
    precision: Precision = "no"
    """Full precision, matrix products of a GPU in TF32 (weights stay as they are), or mixed precision."""
    val_fraction: Share = 0.0
    """Share of the paths kept for the validation loss."""

    def __post_init__(self) -> None:
        check_fields(self)
        check(self.context_noise >= 0, f"`context_noise` must not be negative. Got {self.context_noise=}.")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a training runs. Its numbers do not depend on it: no record holds it, and a resumed run may change it."""

    progress: bool = True
    """Show a progress bar."""
    cpu: bool = False
    """Stay on the CPU though there is an accelerator."""
    processes: Count = 1
    """Processes on this machine that share each batch, one GPU or a part of the CPU cores each."""
    accumulate: Count = 1
    """Parts in which a process computes its batch one after another: less memory for the same step."""
    compile: bool | None = None
    """Compile the layers of the nets: a minute to begin with, then faster steps. None: on a GPU, where that pays."""
    graph: bool = True
    """Replay the training step as a CUDA graph, where there is one GPU."""
    log_every: Count = 50
    """Steps between lines of metrics.jsonl."""
    val_every: Count = 500
    """Steps between validation losses."""
    checkpoint_every: Count = 1_000
    """Steps between checkpoints, where there is a run folder."""
    keep: Count = 2
    """Checkpoints kept."""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Experiment trackers, through Accelerate."""

    def __post_init__(self) -> None:
        check_fields(self)
