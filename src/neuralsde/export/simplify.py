"""A traced graph without what it computes twice.

A roll-out that is written out reads the same context in every step. The nets then encode it anew each time, which in eager
mode they remember. Here a part that is cut out of what was just joined becomes that part again, and equal calls become one.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.fx import GraphModule, Node

SLICE, CAT = torch.ops.aten.slice.Tensor, torch.ops.aten.cat.default
CHECKS = (torch.ops.aten._assert_tensor_metadata.default,)  # of the trace; the graph's own types are fixed
END = sys.maxsize


def simplify(module: GraphModule) -> GraphModule:
    """Join equal calls of a graph, in place; it must not write to tensors."""
    graph, known = module.graph, dict[Any, Node]()
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in CHECKS:
            graph.erase_node(node)
            continue
        same = _source(node)
        if same is None and _is_pure(node.target):
            same = known.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
        if same is not None and same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    module.recompile()
    return module


def _is_pure(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return not schema.is_mutable if schema is not None else getattr(target, "__module__", "") == "_operator"


def _key(value: Any) -> Any:
    """Arguments by which calls are compared; 1 and 1.0 are two."""
    if isinstance(value, (list, tuple)):
        return tuple(_key(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in sorted(value.items()))
    return value if isinstance(value, Node) else (type(value), str(value))


def _source(node: Node) -> Node | None:
    """What a slice gives, where that is all of its argument or exactly one of the parts that were joined to it."""
    if node.target is not SLICE or len(node.args) != 4:
        return None
    whole, dim, start, stop = node.args
    if not isinstance(whole, Node) or not isinstance(start, int) or not isinstance(stop, int):
        return None
    if start == 0 and stop == END:
        return whole
    if whole.target is not CAT or (*whole.args, 0)[1] != dim:
        return None
    total, place = whole.meta["val"].shape[dim], 0
    for part in whole.args[0]:  # type: ignore[union-attr]
        size = part.meta["val"].shape[dim]  # type: ignore[union-attr]
        if not isinstance(size, int) or not isinstance(total, int):
            return None
        if start == place and min(stop, total) == place + size:
            return part  # type: ignore[return-value]
        place += size
    return None
