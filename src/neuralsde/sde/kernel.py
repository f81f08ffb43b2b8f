# mypy: ignore-errors
"""The kernel of `stepping`, in Triton."""

import triton
import triton.language as tl


# Nothing is specialised: a variant that is first needed while a CUDA graph is recorded could not be loaded
@triton.jit(do_not_specialize=list(range(23)))
def euler(
    x,
    flow,
    diffusion,
    denoiser,
    rate,
    low,
    width,
    middle,
    slope,
    sigma,
    dt,
    dw,
    out,
    num,
    size,
    flow_row,
    diffusion_row,
    denoiser_row,
    dt_row,
    dw_row,
    alike,
    share,
    pull,
    PULLED: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """A tile of the entries of all states; `*_row` says how far apart the rows of a tensor are, `alike` how many
    entries share a sigma."""
    index = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    mask = index < num * size
    row, entry = index // size, index % size
    velocity = tl.load(rate + entry, mask) * tl.load(flow + row * flow_row + entry, mask)
    if PULLED:
        back = tl.load(denoiser + row * denoiser_row + entry, mask)
        velocity += pull * tl.load(sigma + entry // alike, mask) * back
    raw = tl.load(diffusion + row * diffusion_row + entry, mask)
    place = tl.sigmoid(tl.load(middle + entry, mask) + raw * tl.load(slope + entry, mask))
    g = share * tl.exp(tl.load(low + entry, mask) + tl.load(width + entry, mask) * place)
    moved = tl.load(x + index, mask) + velocity * tl.load(dt + row * dt_row, mask)
    tl.store(out + index, moved + g * tl.load(dw + row * dw_row + entry, mask), mask)
