# mypy: ignore-errors
"""The kernels of `fused`, in Triton. A row of `table` holds, for one net, where its outputs begin, how many they are, and the
addresses of its weights in the order of its layers."""

import triton
import triton.language as tl


@triton.jit
def vector(table, entry, index, mask) -> tl.tensor:
    """Numbers behind an address."""
    values = tl.load(table + entry).to(tl.pointer_type(tl.float32))
    return tl.load(values + index, mask=mask, other=0.0)


@triton.jit
def linear(table, entry, x, ins, outs, num_in, num_out, PRECISION: tl.constexpr) -> tl.tensor:
    """A layer: weight and bias are at `entry` and after it."""
    weight = tl.load(table + entry).to(tl.pointer_type(tl.float32))
    mask = (ins[:, None] < num_in) & (outs[None, :] < num_out)
    w = tl.load(weight + outs[None, :] * num_in + ins[:, None], mask=mask, other=0.0)
    return tl.dot(x, w, input_precision=PRECISION) + vector(table, entry + 1, outs, outs < num_out)[None, :]


@triton.jit
def halves(x) -> tuple:
    """Numbers as sums of two in half precision: 22 bits of their mantissa."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def inner_linear(table, entry, x, index, W: tl.constexpr, PRECISION: tl.constexpr) -> tl.tensor:
    """A layer from a tile's width to its width. Its inputs are those that a norm or an activation leaves: of ordinary size."""
    if PRECISION == "halves":
        weight = tl.load(table + entry).to(tl.pointer_type(tl.float32))
        high, low = halves(tl.load(weight + index[None, :] * W + index[:, None]))
        x_high, x_low = halves(x)
        y = tl.dot(x_high, high, tl.dot(x_high, low, tl.dot(x_low, high)))
        y += vector(table, entry + 1, index, index < W)[None, :]
    else:
        y = linear(table, entry, x, index, index, W, W, PRECISION)
    return y


@triton.jit
def norm(table, entry, x, index, eps, W: tl.constexpr) -> tl.tensor:
    """Layer normalisation of rows."""
    x = x - (tl.sum(x, 1) / W)[:, None]
    x = x * tl.rsqrt(tl.sum(x * x, 1) / W + eps)[:, None]
    whole = index < W
    return x * vector(table, entry, index, whole)[None, :] + vector(table, entry + 1, index, whole)[None, :]


@triton.jit
def perceptrons(
    x,
    table,
    out,
    rows,
    num_in,
    eps,
    ENTRIES: tl.constexpr,
    INS: tl.constexpr,
    W: tl.constexpr,
    DEPTH: tl.constexpr,
    OUTS: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
    INNER: tl.constexpr,
) -> None:
    """A tile of rows of one net: program (tile, net)."""
    table += tl.program_id(1) * ENTRIES
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    ins, inner, outs = tl.arange(0, INS), tl.arange(0, W), tl.arange(0, OUTS)
    begin, num_out = tl.load(table), tl.load(table + 1).to(tl.int32)
    mask = (row[:, None] < rows) & (ins[None, :] < num_in)
    given = tl.load(x + row[:, None] * num_in + ins[None, :], mask=mask, other=0.0)
    y = linear(table, 2, given, ins, inner, num_in, W, PRECISION)
    for block in range(DEPTH):
        first = 4 + 6 * block
        h = norm(table, first, y, inner, eps, W)
        h = inner_linear(table, first + 2, h, inner, W, INNER)
        y += inner_linear(table, first + 4, h * tl.sigmoid(h), inner, W, INNER)
    y = norm(table, 4 + 6 * DEPTH, y, inner, eps, W)
    y = linear(table, 6 + 6 * DEPTH, y, inner, outs, W, num_out, PRECISION)
    mask = (row[:, None] < rows) & (outs[None, :] < num_out)
    tl.store(out + begin * rows + row[:, None] * num_out + outs[None, :], y, mask=mask)


@triton.jit
def layer(
    x,
    norm_weight,
    norm_bias,
    weight,
    bias,
    residual,
    out,
    num_in,
    num_out,
    eps,
    NORM: tl.constexpr,
    ACTIVE: tl.constexpr,
    ADD: tl.constexpr,
    INS: tl.constexpr,
    OUTS: tl.constexpr,
) -> None:
    """Some outputs of one row: program (outputs, row). Its inputs are normalised first, a residual is added last."""
    outs, ins = tl.program_id(0) * OUTS + tl.arange(0, OUTS), tl.arange(0, INS)
    row, whole, some = tl.program_id(1), ins < num_in, outs < num_out
    w = tl.load(weight + outs[:, None] * num_in + ins[None, :], mask=some[:, None] & whole[None, :], other=0.0)
    h = tl.load(x + row * num_in + ins, mask=whole, other=0.0)
    if NORM:
        h = tl.where(whole, h - tl.sum(h, 0) / num_in, 0.0)
        h = h * tl.rsqrt(tl.sum(h * h, 0) / num_in + eps)
        h = h * tl.load(norm_weight + ins, mask=whole, other=0.0) + tl.load(norm_bias + ins, mask=whole, other=0.0)
    y = tl.sum(w * h[None, :], 1) + tl.load(bias + outs, mask=some)
    if ACTIVE:
        y = y * tl.sigmoid(y)
    if ADD:
        y += tl.load(residual + row * num_out + outs, mask=some)
    tl.store(out + row * num_out + outs, y, mask=some)
