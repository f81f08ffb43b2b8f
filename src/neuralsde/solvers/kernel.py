# mypy: ignore-errors
"""The kernel of `noise`, in Triton."""

import triton
import triton.language as tl


@triton.jit
def shift(z, bits: tl.constexpr) -> tl.tensor:
    """Logical right shift of signed integers."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


@triton.jit
def mix(z, mix_1, mix_2) -> tl.tensor:
    """The finaliser of SplitMix64."""
    z = (z ^ shift(z, 30)) * mix_1
    z = (z ^ shift(z, 27)) * mix_2
    return z ^ shift(z, 31)


# Nothing is specialised: a variant that is first needed while a CUDA graph is recorded could not be loaded
@triton.jit(do_not_specialize=list(range(11)))
def bits(
    keys,
    numbers,
    out,
    total,
    num_steps,
    size,
    offset,
    per_step,
    golden,
    mix_1,
    mix_2,
    SEVERAL: tl.constexpr,
    SHIFT: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """A tile of the integers of all (key, step, element), shifted to the right."""
    index = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = index < total
    element, place = index % size, index // size
    z = tl.load(keys + place // num_steps, mask, other=0) + offset
    if SEVERAL:
        z += per_step * tl.load(numbers + place % num_steps, mask, other=0)
    z = mix(mix(z, mix_1, mix_2) + golden * (element + 1), mix_1, mix_2)
    tl.store(out + index, shift(z, SHIFT), mask)
