"""Random numbers that belong to a path, not to a call.

Every path (or training sample) owns a 64-bit *key*. Its noise is a pure function of ``(key, step, element)``: a
counter-based generator in the sense of Salmon et al. (SC 2011), here with the SplitMix64 finaliser of Steele et al.
(OOPSLA 2014). So a path's noise is bitwise the same whatever batch, chunk, device order or number of processes it is
drawn in, a run can be resumed or continued from a step number alone, and nothing touches the global generator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # 2^64 / golden ratio, as a signed integer
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
_U_MIX_1, _U_MIX_2 = np.uint64(_MIX_1 + 2**64), np.uint64(_MIX_2 + 2**64)
_27, _30, _31 = np.uint64(27), np.uint64(30), np.uint64(31)
FEW = 4096
"""Numbers up to which numpy is faster."""


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of signed 64-bit integers (torch shifts arithmetically)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    if z.device.type == "cpu" and z.ndim > 0 and z.numel() <= FEW:
        return torch.from_numpy(_mix_few(z.numpy().view(np.uint64)).view(np.int64))
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    return z ^ _shift(z, 31)


def _mix_few(z: np.ndarray) -> np.ndarray:
    """`_mix` of few numbers: an operation of numpy takes a fraction of the time to start that one of torch does."""
    z = (z ^ (z >> _30)) * _U_MIX_1
    z = (z ^ (z >> _27)) * _U_MIX_2
    return z ^ (z >> _31)


def _signed(z: int) -> int:
    """The signed 64-bit integer with the bits of z."""
    return (z + 2**63) % 2**64 - 2**63


def _mix_number(z: int) -> int:
    """`_mix` of one integer: no tensor, so nothing is copied to a device."""
    z %= 2**64
    z = (z ^ (z >> 30)) * _MIX_1 % 2**64
    z = (z ^ (z >> 27)) * _MIX_2 % 2**64
    return z ^ (z >> 31)


class Noise:
    """Independent random streams, one per key."""

    def __init__(self, keys: Int[Tensor, " B"]) -> None:
        self.keys = keys

    @classmethod
    def draw(cls, rng: torch.Generator | None, num: int, device: torch.device | str = "cpu") -> Noise:
        """Draw `num` keys from `rng` (from the operating system's entropy when it is None)."""
        if rng is None:
            rng = torch.Generator()
            rng.seed()
        keys = torch.randint(-(2**63), 2**63 - 1, (num,), generator=rng, dtype=torch.int64, device=rng.device)
        return cls(keys.to(device))

    @classmethod
    def for_step(cls, seed: int, step: int, rows: Int[Tensor, " B"]) -> Noise:
        """The keys of the given rows of training step `step`: the same however the rows are spread over processes."""
        base = _mix_number(_mix_number(seed * _GOLDEN + 1) + step * _GOLDEN)
        return cls(_mix((rows + 1) * _GOLDEN + _signed(base)))

    @classmethod
    def for_seeds(cls, seeds: Sequence[int], device: torch.device | str = "cpu") -> Noise:
        """One key per seed."""
        keys = [_signed(_mix_number(_mix_number(seed * _GOLDEN + 2))) for seed in seeds]
        return cls(torch.tensor(keys, dtype=torch.int64, device=device))

    def child(self, number: int) -> Noise:
        """Other streams of the same owners: a new one for each number."""
        return Noise(_mix(_mix(self.keys) + _signed(_GOLDEN * (2 * number + 1))))

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: slice) -> Noise:
        return Noise(self.keys[rows])

    def _bits(self, step: int | Int[Tensor, " M"], shape: tuple[int, ...], stream: int) -> Int[Tensor, "B ..."]:
        if isinstance(step, int):
            counter = _mix(self.keys[:, None] + _signed(_GOLDEN * (4 * step + stream + 1)))  # (B, 1)
        else:
            counter = _mix(self.keys[:, None] + _GOLDEN * (4 * step.reshape(1, -1) + stream + 1))  # (B, M)
        element = torch.arange(1, math.prod(shape) + 1, dtype=torch.int64, device=self.keys.device)
        bits = _mix(counter[..., None] + _GOLDEN * element)
        return bits.reshape(len(self.keys), *(() if isinstance(step, int) else step.shape), *shape)

    def uniform(
        self, step: int | Int[Tensor, " M"], shape: tuple[int, ...] = (), *, stream: int = 0
    ) -> Float[Tensor, "B ..."]:
        """Uniform numbers in the open interval (0, 1), float64, of shape (B, *shape), or (B, M, *shape) for M steps."""
        return (_shift(self._bits(step, shape, stream), 12).double() + 0.5) * 2.0**-52  # exact: never rounds up to 1

    def normal(
        self, step: int | Int[Tensor, " M"], shape: tuple[int, ...] = (), *, stream: int = 0
    ) -> Float[Tensor, "B ..."]:
        """Standard normal numbers (float32).

        By inversion: `ndtri` is evaluated element by element, so a value does not depend on its place in the tensor,
        as vectorised logarithms and cosines may in their last bit.
        """
        return torch.special.ndtri(self.uniform(step, shape, stream=stream)).float()

    def signs(self, step: int, shape: tuple[int, ...] = (), *, stream: int = 0) -> Float[Tensor, "B ..."]:
        """Random signs, +1 or -1 (float32)."""
        return 1.0 - 2.0 * _shift(self._bits(step, shape, stream), 63).float()

    def integers(self, high: int, step: int = 0) -> Int[Tensor, " B"]:
        """One integer in [0, high) per key (the modulo bias of 64 random bits is below high / 2^63)."""
        return _shift(self._bits(step, (), 3), 1) % high
