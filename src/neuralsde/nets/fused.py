"""Perceptrons on a GPU with few kernels, where nothing has to be differentiated; else nets are called as they are.

A small net is a chain of small products, and a GPU spends its time between them. Products are those of float32.

- Few rows (a path, a plan of one robot): one kernel for a layer with its norm, activation and residual, spread over the whole
  chip.
- Many rows of narrow nets: one kernel for all layers, and for several nets side by side. A tile of rows stays in registers from
  the first layer to the last; products are put together from three of TF32, or in half precision. All tiles are computed
  alike, so a row has the same bits among any number of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from neuralsde.core.branches import side_by_side
from neuralsde.core.extras import kernels
from neuralsde.core.memo import hold
from neuralsde.nets.backbone import Condition, is_plain
from neuralsde.nets.mlp import MLP, Block

KERNELS = "neuralsde.nets.kernel"
WIDTHS = (16, 32, 64, 128)  # whose weights fit beside each other in the memory of a multiprocessor
MOST = 128  # inputs, and outputs
TILES = {1: (32, "tf32x3"), 2: (128, "halves")}
"""Rows of a tile, and the products of its inner layers, for one net and for several: what was fastest with 4,096 rows."""
WARPS, STAGES = 8, 1  # of a program
FEW = 8  # rows up to which a layer is one kernel: each row reads all weights
WIDEST = 1024  # inputs of such a layer
OUTS = 4  # outputs of one of its programs


def read_all(nets: Sequence[nn.Module], state: Tensor, condition: Condition) -> list[Tensor]:
    """What each net gives at a state."""
    given = (state,) if condition is None else (state, condition)
    if not fits(nets, state):
        return side_by_side([partial(net, state, condition) for net in nets], *given)
    if _few(nets, state):
        return side_by_side([partial(_read, net, state, condition) for net in nets], *given)
    return perceptrons(nets, nets[0].inputs(state, condition))  # type: ignore[operator]


def fits(nets: Sequence[nn.Module], state: Tensor) -> bool:
    """Whether kernels of this module give what the nets would."""
    return serves(state) and (_few(nets, state) or _alike(nets))


def through(layers: nn.Module, x: Tensor) -> Tensor:
    """`layers(x)`; of few rows, by layers where these are of a perceptron."""
    few = (
        isinstance(layers, nn.Sequential) and is_plain(layers) and len(x) <= FEW and serves(x) and _good_layers(layers)
    )
    return by_layers(layers, x) if few else layers(x)  # type: ignore[arg-type]


def serves(x: Tensor) -> bool:
    """Whether kernels may take the place of torch's operations on this tensor."""
    if not x.is_cuda or x.dtype != torch.float32 or kernels(KERNELS) is None:
        return False
    return not (
        torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack()
    )


def _few(nets: Sequence[nn.Module], state: Tensor) -> bool:
    """Whether their layers are to be kernels."""
    return len(state) <= FEW and all(_perceptron(net) is not None for net in nets)


def _alike(nets: Sequence[nn.Module]) -> bool:
    """Whether they are narrow nets that one kernel takes side by side."""
    forms = set()
    for net in nets:
        if type(net) is not MLP or _perceptron(net) is None:
            return False
        width, num_in = net.inward.weight.shape
        if width not in WIDTHS or max(num_in, len(net.outward.weight)) > MOST:
            return False
        forms.add((num_in, width, len(net.blocks), net.norm.eps))
    return len(forms) == 1


def _perceptron(net: nn.Module) -> MLP | None:
    """The perceptron that reads what `net.inputs` gives, and does nothing else; None where there is none that kernels take."""
    own = getattr(net, "reader", None)
    if not isinstance(own, MLP) or type(own).forward is not MLP.forward or type(own).read is not MLP.read:
        return None
    return own if is_plain(own) and is_plain(own.blocks) and _good_layers(_layers(own)) else None


def _layers(net: MLP) -> list[nn.Module]:
    return [net.inward, *net.blocks, net.norm, net.outward]


def _good_layers(layers: Iterable[nn.Module]) -> bool:
    """Whether `by_layers` takes them: linear layers, blocks and norms that are what they seem, a norm before a linear layer."""
    before: nn.Module | None = None
    for layer in layers:
        if type(layer) not in (nn.Linear, Block, nn.LayerNorm):
            return False
        if isinstance(before, nn.LayerNorm) and not isinstance(layer, nn.Linear):
            return False
        for part in layer.modules():
            if not (is_plain(part) and all(map(_good_weight, part._parameters.values()))):
                return False
        before = layer
    return isinstance(before, nn.Linear)


def _good_weight(w: Tensor | None) -> bool:
    return w is not None and w.is_cuda and w.dtype == torch.float32 and w.is_contiguous() and w.shape[-1] <= WIDEST


def _read(net: nn.Module, state: Tensor, condition: Condition) -> Tensor:
    """`net(state, condition)`, by layers."""
    x, own = net.inputs(state, condition), _perceptron(net)  # type: ignore[operator]
    assert own is not None
    return by_layers(_layers(own), x).reshape(len(x), *own.fields)


def by_layers(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
    """A few inputs (B, I) through linear layers, blocks and norms; a norm is a part of the layer after it."""
    norm: nn.LayerNorm | None = None
    for part in layers:
        if isinstance(part, nn.LayerNorm):
            norm = part
        elif isinstance(part, Block):
            h = layer(x, part.wide, norm=part.norm, active=True)
            x = layer(h, part.back, residual=x)
        else:
            x, norm = layer(x, part, norm=norm), None  # type: ignore[arg-type]
    return x


def layer(
    x: Tensor,
    linear: nn.Linear,
    *,
    norm: nn.LayerNorm | None = None,
    active: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """A layer for rows (B, I): of normalised inputs, with its activation, and with what is added to it."""
    x, (num_out, num_in) = x.contiguous(), linear.weight.shape
    out = x.new_empty(len(x), num_out)
    with torch.cuda.device_of(x):
        kernels(KERNELS).layer[(-(-num_out // OUTS), len(x))](
            x,
            x if norm is None else norm.weight,
            x if norm is None else norm.bias,
            linear.weight,
            linear.bias,
            x if residual is None else residual,
            out,
            num_in,
            num_out,
            0.0 if norm is None else norm.eps,
            NORM=norm is not None,
            ACTIVE=active,
            ADD=residual is not None,
            INS=_padded(num_in),
            OUTS=OUTS,
        )
    return out


def perceptrons(nets: Sequence[Any], x: Tensor) -> list[Tensor]:
    """The fields of each net for all inputs (B, I) end to end."""
    sizes = tuple(len(net.outward.weight) for net in nets)
    table = hold(_table(sizes, tuple(p.data_ptr() for net in nets for p in net.parameters()), x.device))
    (width, num_in), depth = nets[0].inward.weight.shape, len(nets[0].blocks)
    out = x.new_empty(len(x) * sum(sizes))
    tile, inner = TILES[min(len(nets), 2)]
    lower = torch.is_autocast_enabled("cuda") or torch.get_float32_matmul_precision() != "highest"
    with torch.cuda.device_of(x):
        kernels(KERNELS).perceptrons[(-(-len(x) // tile), len(nets))](
            x.contiguous(),
            table,
            out,
            len(x),
            num_in,
            nets[0].norm.eps,
            ENTRIES=table.shape[1],
            INS=_padded(num_in),
            W=width,
            DEPTH=depth,
            OUTS=_padded(max(sizes)),
            TILE=tile,
            PRECISION="tf32" if lower else "tf32x3",
            INNER="tf32" if lower else inner,
            num_warps=WARPS,
            num_stages=STAGES,
        )
    parts = out.split([len(x) * size for size in sizes])
    return [part.reshape(len(x), *net.fields) for net, part in zip(nets, parts)]


def _padded(size: int) -> int:
    """The power of two that holds so many, of those that the hardware can multiply."""
    return max(16, 1 << (size - 1).bit_length())


@lru_cache(maxsize=64)
def _table(sizes: tuple[int, ...], places: tuple[int, ...], device: torch.device) -> Tensor:
    """For each net: where its outputs begin, how many they are, and where its weights lie, in the order of the layers."""
    each, begin, rows = len(places) // len(sizes), 0, []
    for k, size in enumerate(sizes):
        rows.append([begin, size, *places[k * each : (k + 1) * each]])
        begin += size
    return torch.tensor(rows, dtype=torch.int64, device=device)
