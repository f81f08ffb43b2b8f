"""Checkpoints of a training run: complete, atomic, and never a pickle.

A checkpoint is a folder named after its step. It is filled under another name, flushed to disk and then renamed, so a
folder with a step's name is always whole; a crash or a full disk leaves the one before it untouched. Tensors are in
safetensors, the rest in JSON. The data order and all injected noise are functions of the seed and the step number, so
the step is all the random state there is.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from neuralsde.core.files import read_json
from neuralsde.core.records import RunError
from neuralsde.core.tensors import read_tensors

RECORD = {"step", "train", "model", "data"}  # what state.json must hold


@dataclass
class Checkpoint:
    """The state of a run after `step` optimiser steps."""

    step: int
    weights: dict[str, Tensor]  # parameters and buffers of the model
    average: dict[str, Tensor]  # the moving average of the parameters
    optimiser: dict[str, Tensor]  # moments and counts, as 'parameter/moment'
    record: dict[str, Any]
    """The settings and a fingerprint of the data, to refuse a resume that would not be the same run."""


class CheckpointError(RunError):
    """A checkpoint could not be written or read."""


class Checkpoints:
    """The checkpoints of one run folder, newest last."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def list(self) -> list[Path]:
        """Whole checkpoints."""
        if not self.folder.is_dir():
            return []
        return sorted(p for p in self.folder.iterdir() if p.is_dir() and p.name.isdigit())

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write one, then drop the oldest beyond `keep` and what a crash left half-written."""
        target = self.folder / f"{checkpoint.step:08d}"
        if target.exists():
            return target
        new = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            new = Path(tempfile.mkdtemp(prefix=".writing-", dir=self.folder))
            for name in ("weights", "average", "optimiser"):
                # Copies: nets may share a tensor between layers, and safetensors refuses shared memory.
                tensors = {k: v.detach().cpu().clone() for k, v in getattr(checkpoint, name).items()}
                save_file(tensors, new / f"{name}.safetensors")
            text = json.dumps({"step": checkpoint.step, **checkpoint.record}, indent=2) + "\n"
            (new / "state.json").write_text(text, encoding="utf-8")
            for file in new.iterdir():
                with open(file, "rb") as f:
                    os.fsync(f.fileno())
            os.chmod(new, 0o755)
            os.rename(new, target)
        except (OSError, SafetensorError) as error:
            if new is not None:
                shutil.rmtree(new, ignore_errors=True)
            last = self.list()
            kept = f"The last good one is {last[-1]}" if last else "There is none before it"
            raise CheckpointError(
                f"Cannot write the checkpoint of step {checkpoint.step}: {error}. {kept}. Make room, then resume."
            ) from None
        for old in [*self.list()[: -self.keep], *self.folder.glob(".writing-*")]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def load(self, folder: Path) -> Checkpoint:
        """Read one."""
        try:
            record = read_json(folder / "state.json")
            if not isinstance(record, dict) or not record.keys() >= RECORD:
                raise ValueError("state.json is not of this version.")
            tensors = {n: read_tensors(folder / f"{n}.safetensors") for n in ("weights", "average", "optimiser")}
            return Checkpoint(step=record.pop("step"), record=record, **tensors)
        except (OSError, ValueError) as error:
            raise damaged(folder, str(error)) from None


def damaged(folder: Path, why: str) -> CheckpointError:
    """What to raise for a checkpoint that cannot be used."""
    return CheckpointError(f"{folder} is damaged: {why} Delete it to resume from the one before.")
