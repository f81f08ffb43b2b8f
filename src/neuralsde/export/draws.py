"""Noise as an input: what a roll-out draws is written down once, and then given from outside.

A generator cannot be exported. Every law draws from a `Noise` by kind, stream and step, so one roll-out with a `Listener`
tells which numbers it takes, and a `GivenNoise` hands over those of an array. The same array gives the same path in any runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from neuralsde.solvers.noise import PATH, Noise

DISTRIBUTIONS = {"normal": "standard normal", "uniform": "uniform on (0, 1)", "signs": "-1 or 1, equally likely"}
Key = tuple[str, int, tuple[int, ...]]
"""Kind, stream and shape of a draw."""


@dataclass(frozen=True)
class Draws:
    """One input of noise: (B, num_steps, *shape)."""

    kind: str
    stream: int
    shape: tuple[int, ...]
    num_steps: int

    @property
    def key(self) -> Key:
        return self.kind, self.stream, self.shape

    @property
    def name(self) -> str:
        """`noise` drives the path; others are named by their kind and stream."""
        return "noise" if (self.kind, self.stream) == ("normal", 0) else f"{self.kind}_{self.stream}"

    def random(self, batch: int, rng: torch.Generator) -> Float[Tensor, "B M ..."]:
        """Numbers of this distribution."""
        shape = (batch, self.num_steps, *self.shape)
        if self.kind == "normal":
            return torch.randn(shape, generator=rng)
        uniform = torch.rand(shape, generator=rng)
        return uniform if self.kind == "uniform" else 1.0 - 2.0 * (uniform < 0.5).float()


class Listener(Noise):
    """Noise that notes what is drawn."""

    def __init__(self, keys: Tensor, steps: dict[Key, int] | None = None) -> None:
        super().__init__(keys)
        self.steps: dict[Key, int] = {} if steps is None else steps

    def __getitem__(self, rows: slice) -> Listener:
        return Listener(self.keys[rows], self.steps)

    def child(self, number: int) -> Listener:
        return Listener(super().child(number).keys, self.steps)

    def _note(self, kind: str, step: Any, shape: tuple[int, ...], stream: int) -> None:
        last = step if isinstance(step, int) else int(step.max())
        key = (kind, stream, tuple(shape))
        self.steps[key] = max(self.steps.get(key, 0), last + 1)

    def normal(self, step: Any, shape: tuple[int, ...] = (), *, stream: int = PATH) -> Tensor:
        self._note("normal", step, shape, stream)
        return torch.special.ndtri(super().uniform(step, shape, stream=stream)).float()

    def uniform(self, step: Any, shape: tuple[int, ...] = (), *, stream: int = PATH) -> Tensor:
        self._note("uniform", step, shape, stream)
        return super().uniform(step, shape, stream=stream)

    def signs(self, step: Any, shape: tuple[int, ...] = (), *, stream: int = PATH) -> Tensor:
        self._note("signs", step, shape, stream)
        return super().signs(step, shape, stream=stream)

    def integers(self, high: int, step: int = 0) -> Tensor:
        raise ValueError("It draws whole numbers, which an exported graph does not take. Use it from Python.")

    @property
    def draws(self) -> tuple[Draws, ...]:
        """What was drawn, the noise of the path first."""
        every = [Draws(*key, num) for key, num in self.steps.items()]
        return tuple(sorted(every, key=lambda d: (d.name != "noise", d.name, d.shape)))


class GivenNoise(Noise):
    """Noise that is handed over, (B, M, *shape) for each kind of draw."""

    def __init__(self, values: Mapping[Key, Tensor]) -> None:
        self.values = dict(values)

    @classmethod
    def of(cls, draws: Sequence[Draws], values: Sequence[Tensor]) -> GivenNoise:
        """One tensor for each of the draws."""
        return cls({d.key: v for d, v in zip(draws, values)})

    @property
    def keys(self) -> Tensor:  # type: ignore[override]
        """One number for each path: only how many there are counts."""
        return torch.zeros(len(self), dtype=torch.int64)

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def __getitem__(self, rows: slice) -> GivenNoise:
        return GivenNoise({key: value[rows] for key, value in self.values.items()})

    def child(self, number: int) -> GivenNoise:
        return self

    def _at(self, kind: str, step: Any, shape: tuple[int, ...], stream: int) -> Tensor:
        return self.values[kind, stream, tuple(shape)][:, step]

    def normal(self, step: Any, shape: tuple[int, ...] = (), *, stream: int = PATH) -> Tensor:
        return self._at("normal", step, shape, stream)

    def uniform(self, step: Any, shape: tuple[int, ...] = (), *, stream: int = PATH) -> Tensor:
        return self._at("uniform", step, shape, stream)

    def signs(self, step: Any, shape: tuple[int, ...] = (), *, stream: int = PATH) -> Tensor:
        return self._at("signs", step, shape, stream)
