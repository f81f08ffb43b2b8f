"""Random numbers that belong to a path, not to a call.

Every path (or training sample) owns a 64-bit *key*. Its noise is a pure function of ``(key, step, element)``: a
counter-based generator in the sense of Salmon et al. (SC 2011), here with the SplitMix64 finaliser of Steele et al.
(OOPSLA 2014). So a path's noise is bitwise the same whatever batch, chunk, device order or number of processes it is
drawn in, a run can be resumed or continued from a step number alone, and nothing touches the global generator.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from neuralsde.core.doors import show
from neuralsde.core.extras import kernels
from neuralsde.core.memo import recording

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # 2^64 / golden ratio, as a signed integer
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
# Streams of a step, by what is drawn from them: what one model draws in one step for different ends comes from different ones.
PATH = 0  # the noise of a path; in training, that of the inputs
PROBES, TAU, CHOICE = 1, 1, 1  # signs for divergences; the place between two states; one of several outcomes
LOSS_PROBES, SHARED, COMPONENT, BRIDGE, FRESH = 2, 2, 2, 2, 2  # FRESH: of a rival's passes within one step
BRIDGE_SHARED, MEASUREMENT, ROW = 3, 3, 3
NUM_STREAMS = 4
FEW = 4096  # numbers on the host up to which numpy is faster: its operations take a fraction of the time to start
KERNELS = "neuralsde.solvers.kernel"
TILE = 256  # numbers of one program of the kernel

Integers = TypeVar("Integers", Tensor, np.ndarray)
"""Signed 64-bit integers; products wrap."""


def _shift(z: Integers, bits: int) -> Integers:
    """Logical right shift (that of signed integers is arithmetic)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Integers) -> Integers:
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    return z ^ _shift(z, 31)


def _light(z: Tensor, num: int = 1) -> Any:
    """The same integers; as an array if those to be made of them, `num` of each, are few. A recording holds tensors alone."""
    few = z.device.type == "cpu" and len(z) * num <= FEW
    return z.numpy() if few and not recording() else z


def _signed(z: int) -> int:
    """The signed 64-bit integer with the bits of z."""
    return (z + 2**63) % 2**64 - 2**63


def _mix_number(z: int) -> int:
    """`_mix` of one integer: no tensor, so nothing is copied to a device."""
    z %= 2**64
    z = (z ^ (z >> 30)) * _MIX_1 % 2**64
    z = (z ^ (z >> 27)) * _MIX_2 % 2**64
    return z ^ (z >> 31)


def _seeded(seed: Any) -> Any:
    """A generator with this seed; what is no whole number as it is."""
    try:
        number = operator.index(seed)
    except TypeError:
        return seed
    if not -(2**63) <= number < 2**64:
        raise ValueError(f"`rng` as a seed must be from -2^63 to 2^64 - 1. Got {number}. Pass rng=0, say.")
    return torch.Generator().manual_seed(number)


class Noise:
    """Independent random streams, one per key."""

    def __init__(self, keys: Int[Tensor, " B"]) -> None:
        self.keys = keys

    @classmethod
    def draw(cls, rng: Any, num: int, device: torch.device | str = "cpu") -> Noise:
        """Draw `num` keys from `rng` or from that seed (from the operating system's entropy when it is None)."""
        if rng is None:
            rng = torch.Generator()
            rng.seed()
        elif not isinstance(rng, (torch.Generator, np.ndarray, Tensor, type)):
            rng = _seeded(rng)
        if not isinstance(rng, torch.Generator):
            raise ValueError(f"`rng` must be a seed or a torch.Generator. Got {show(rng)}. Pass rng=0, say.")
        keys = torch.randint(-(2**63), 2**63 - 1, (num,), generator=rng, dtype=torch.int64, device=rng.device)
        return cls(keys.to(device))

    @classmethod
    def for_step(cls, seed: int, step: int, rows: Int[Tensor, " B"]) -> Noise:
        """The keys of the given rows of training step `step`: the same however the rows are spread over processes."""
        base = _mix_number(_mix_number(seed * _GOLDEN + 1) + step * _GOLDEN)
        return cls(torch.as_tensor(_mix((_light(rows) + 1) * _GOLDEN + _signed(base))))

    @classmethod
    def for_seeds(cls, seeds: Sequence[int]) -> Noise:
        """One key per seed."""
        keys = [_signed(_mix_number(_mix_number(seed * _GOLDEN + 2))) for seed in seeds]
        return cls(torch.tensor(keys, dtype=torch.int64))

    def to(self, device: torch.device | str) -> Noise:
        """The same streams, drawn on the device."""
        return self if self.keys.device == torch.device(device) else self.with_keys(self.keys.to(device))

    def with_keys(self, keys: Int[Tensor, " B"]) -> Noise:
        """The same kind of noise, of other keys."""
        other = copy.copy(self)
        other.keys = keys
        return other

    @property
    def kind(self) -> Hashable | None:
        """What it depends on beside keys, where it depends on nothing that is not named here; else None."""
        return () if type(self) is Noise else None

    def child(self, number: int) -> Noise:
        """Other streams of the same owners: a new one for each number."""
        keys = _mix(_mix(_light(self.keys)) + _signed(_GOLDEN * (2 * number + 1)))
        return Noise(torch.as_tensor(keys))

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: slice) -> Noise:
        return Noise(self.keys[rows])

    def _bits(self, step: int | Int[Tensor, "*M"], shape: tuple[int, ...], stream: int, shift: int) -> Any:
        """Random integers of 64 - `shift` bits, of shape (B, *shape) or (B, M, *shape): an array if they are few."""
        if not 0 <= stream < NUM_STREAMS:  # it would be a stream of another step
            raise ValueError(f"`stream` must be from 0 to {NUM_STREAMS - 1}. Got {stream=}.")
        size, steps = math.prod(shape), () if isinstance(step, int) else tuple(step.shape)
        if self.keys.is_cuda and kernels(KERNELS) is not None:
            return self._bits_of_kernel(step, size, stream, shift).reshape(len(self), *steps, *shape)
        keys = _light(self.keys, size * math.prod(steps))
        number: Any = step
        element: Any = torch.arange(1, size + 1, dtype=torch.int64, device=self.keys.device)
        if isinstance(keys, np.ndarray):
            element = element.numpy()
            number = step if isinstance(step, int) else np.atleast_1d(step.numpy())  # products of scalars would warn
        offset = _GOLDEN * (NUM_STREAMS * number + stream + 1)
        counter = _mix(keys[:, None] + (_signed(offset) if isinstance(step, int) else offset))  # (B, 1) or (B, M)
        return _shift(_mix(counter[..., None] + _GOLDEN * element).reshape(len(keys), *steps, *shape), shift)

    def _bits_of_kernel(self, step: int | Int[Tensor, "*M"], size: int, stream: int, shift: int) -> Tensor:
        """The same integers by one kernel in place of some thirty."""
        keys, several = self.keys.contiguous(), not isinstance(step, int)
        number, numbers = (step, keys) if isinstance(step, int) else (0, step.to(keys.device, torch.int64).contiguous())
        num_steps = numbers.numel() if several else 1
        out = keys.new_empty(len(keys) * num_steps * size)
        with torch.cuda.device_of(keys):
            kernels(KERNELS).bits[(-(-out.numel() // TILE),)](
                keys,
                numbers,
                out,
                out.numel(),
                num_steps,
                size,
                _signed(_GOLDEN * (NUM_STREAMS * number + stream + 1)),
                _signed(_GOLDEN * NUM_STREAMS),
                _GOLDEN,
                _MIX_1,
                _MIX_2,
                SEVERAL=several,
                SHIFT=shift,
                TILE=TILE,
            )
        return out

    def uniform(
        self, step: int | Int[Tensor, "*M"], shape: tuple[int, ...] = (), *, stream: int = PATH
    ) -> Float[Tensor, "B ..."]:
        """Uniform numbers in the open interval (0, 1), float64, of shape (B, *shape), or (B, M, *shape) for M steps."""
        bits = self._bits(step, shape, stream, 12)
        whole = bits.double() if isinstance(bits, Tensor) else bits.astype(np.float64)
        return torch.as_tensor((whole + 0.5) * 2.0**-52)  # exact: never rounds up to 1

    def normal(
        self, step: int | Int[Tensor, "*M"], shape: tuple[int, ...] = (), *, stream: int = PATH
    ) -> Float[Tensor, "B ..."]:
        """Standard normal numbers (float32).

        By inversion: `ndtri` is evaluated element by element, so a value does not depend on its place in the tensor,
        as vectorised logarithms and cosines may in their last bit.
        """
        return torch.special.ndtri(self.uniform(step, shape, stream=stream)).float()

    def signs(
        self, step: int | Int[Tensor, "*M"], shape: tuple[int, ...] = (), *, stream: int = PATH
    ) -> Float[Tensor, "B ..."]:
        """Random signs, +1 or -1 (float32)."""
        return 1.0 - 2.0 * torch.as_tensor(self._bits(step, shape, stream, 63)).float()

    def integers(self, high: int, step: int = 0) -> Int[Tensor, " B"]:
        """One integer in [0, high) per key (the modulo bias of 64 random bits is below high / 2^63)."""
        return torch.as_tensor(self._bits(step, (), ROW, 1)) % high
