"""Perceptrons on a GPU as one kernel: all layers, and several nets side by side.

A small net is a chain of small products, and a GPU spends its time between them. Here a tile of rows stays in registers from
the first layer to the last. Products are those of float32, put together from three of TF32. All tiles are computed alike, so
a row has the same bits in any batch. It is used where nothing has to be differentiated; else the nets are called as they are.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from neuralsde.core.memo import hold
from neuralsde.nets.backbone import Condition, is_plain
from neuralsde.nets.mlp import MLP

WIDTHS = (16, 32, 64, 128)  # whose weights fit beside each other in the memory of a multiprocessor
MOST = 128  # inputs, and outputs
TILE = 32  # rows of a tile
WARPS, OF_SEVERAL = 8, 4  # of a program: those of one net have a multiprocessor to themselves
STAGES = 1


@lru_cache(maxsize=1)
def _kernel() -> Any:
    """The kernel, where Triton is installed (it comes with torch for GPUs)."""
    try:
        return importlib.import_module("neuralsde.nets.kernel")
    except ImportError:
        return None


def read_all(nets: Sequence[nn.Module], state: Tensor, condition: Condition) -> list[Tensor]:
    """What each net gives at a state; in one kernel where they are perceptrons alike, on a GPU, and nothing is trained."""
    if not fits(nets, state):
        return [net(state, condition) for net in nets]
    x = state.flatten(1)
    return perceptrons(nets, x if condition is None else torch.cat([x, condition], dim=1))


def fits(nets: Sequence[nn.Module], state: Tensor) -> bool:
    """Whether the kernel gives what the nets would."""
    if not state.is_cuda or state.dtype != torch.float32 or _kernel() is None:
        return False
    busy = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack()
    return not busy and _alike(nets)


def _alike(nets: Sequence[nn.Module]) -> bool:
    forms = set()
    for net in nets:
        if type(net) is not MLP or not is_plain(net):
            return False
        width, num_in = net.inward.weight.shape
        if width not in WIDTHS or max(num_in, len(net.outward.weight)) > MOST:
            return False
        if not all(p.is_cuda and p.dtype == torch.float32 and p.is_contiguous() for p in net.parameters()):
            return False
        forms.add((num_in, width, len(net.blocks), net.norm.eps))
    return len(forms) == 1


def perceptrons(nets: Sequence[Any], x: Tensor) -> list[Tensor]:
    """The fields of each net for all inputs (B, I) end to end."""
    sizes = tuple(len(net.outward.weight) for net in nets)
    table = hold(_table(sizes, tuple(p.data_ptr() for net in nets for p in net.parameters()), x.device))
    (width, num_in), depth = nets[0].inward.weight.shape, len(nets[0].blocks)
    out = x.new_empty(len(x) * sum(sizes))
    lower = torch.is_autocast_enabled("cuda") or torch.get_float32_matmul_precision() != "highest"
    _kernel().perceptrons[(-(-len(x) // TILE), len(nets))](
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
        TILE=TILE,
        PRECISION="tf32" if lower else "tf32x3",
        num_warps=WARPS if len(nets) == 1 else OF_SEVERAL,
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
