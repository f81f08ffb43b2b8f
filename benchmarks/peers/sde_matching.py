"""SDE Matching (Bartosh et al., 2025), run from a checkout of its repository that the user names.

The repository has no licence, so nothing of it is kept here: the classes of its notebook are read from the checkout and
executed when a run asks for them. Its objective, encoder and posterior are used as they are; the prior SDE is the one that
all rivals share, and the decoder is the identity.
"""

from __future__ import annotations

import abc
import ast
import collections.abc
import hashlib
import json
import typing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributions, nn

from neuralsde.sde.model import NeuralSDE
from peers.prior import LatentModel

NOTEBOOK = "sde_matching_from_scratch.ipynb"
NAMES = (
    "jvp",
    "t_dir",
    "grad",
    "SDE",
    "PriorInitDistribution",
    "PosteriorEncoder",
    "PosteriorAffine",
    "MatchingSDE",
)
"""What is executed of the notebook."""


def load_notebook(checkout: Path) -> dict[str, Any]:
    """The definitions `NAMES` of the notebook; nothing else of it is run."""
    file = checkout / NOTEBOOK
    if not file.is_file():
        raise ValueError(f"{checkout} holds no {NOTEBOOK}. Pass a checkout of the SDE Matching repository.")
    cells = [c for c in json.loads(file.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    nodes = [node for cell in cells for node in ast.parse("".join(cell["source"])).body]
    found = {n.name: n for n in nodes if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name in NAMES}
    missing = [name for name in NAMES if name not in found]
    if missing:
        raise ValueError(f"{file} defines no {', '.join(missing)}. Use the version of June 2025.")
    scope: dict[str, Any] = {"torch": torch, "nn": nn, "Tensor": Tensor, "D": distributions}
    scope |= {"Any": Any, "Sequence": typing.Sequence, "Callable": collections.abc.Callable}
    scope |= {"ABC": abc.ABC, "abstractmethod": abc.abstractmethod}
    exec(compile(ast.Module([found[name] for name in NAMES], []), str(file), "exec"), scope)
    return {name: scope[name] for name in NAMES}


def fingerprint(checkout: Path) -> str:
    """Of the notebook that was run."""
    return hashlib.sha256((checkout / NOTEBOOK).read_bytes()).hexdigest()[:16]


class Matching(LatentModel):
    """Their objective around the shared prior; they count time from 0 to 1 over a window."""

    def __init__(
        self, prior: NeuralSDE, theirs: dict[str, Any], memory: int, length: int, *, noise: float | None, whole: bool
    ) -> None:
        super().__init__(prior, noise)
        size = prior.scale.shape[0]
        self.length = length
        self.weight = length + 1 if whole else 1
        """Of the one observation that stands for all of them: the notebook counts it once."""
        parts = (theirs["PriorInitDistribution"](size), _Drift(self), _Observation(self))
        posterior = (theirs["PosteriorEncoder"](size, memory), theirs["PosteriorAffine"](size, memory))
        self.matching = theirs["MatchingSDE"](*parts, *posterior)

    def loss(self, x: Tensor, weight: float) -> Tensor:
        times = torch.linspace(0, 1, self.length + 1).reshape(1, -1, 1).expand(len(x), -1, 1)
        return self.matching(x, times).mean() / x[0].numel()


class _Drift(nn.Module):
    """The prior in the time of a window."""

    def __init__(self, model: Matching) -> None:
        super().__init__()
        self.model = [model]  # in a list: a module must not contain its owner

    def drift(self, z: Tensor, t: Tensor) -> Tensor:
        return self.model[0].length * self.model[0].drift(z)

    def vol(self, z: Tensor, t: Tensor) -> Tensor:
        return self.model[0].length ** 0.5 * self.model[0].diffusion(z)


class _Observation(nn.Module):
    """Identity decoder with Gaussian noise."""

    def __init__(self, model: Matching) -> None:
        super().__init__()
        self.model = [model]

    def forward(self, z: Tensor) -> _Observation:
        self.mean = z
        return self

    def log_prob(self, x: Tensor) -> Tensor:
        """Of one observation, counted for all."""
        model = self.model[0]
        return model.weight * distributions.Normal(self.mean, model.log_error.exp()).log_prob(x).sum(1)
