"""Bytes that one training step keeps for its backward pass, against the length of the sequences."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuralsde.data.trajectories import Trajectories
from peers.contenders import METHODS, Contender, Pairs, Shape, matched

LENGTHS = (100, 1_000, 10_000)
DIM, NUM_SEQUENCES = 3, 4
DEPTH, STACK = 200_000, 2**29
"""Recursion and bytes of stack: torchsde's tree of Brownian increments is walked recursively, deep for long sequences."""


def saved_bytes(contender: Contender) -> int:
    """Sum over the storages that a step saves, each once, without the parameters."""
    storages: dict[int, tuple[Any, int]] = {}
    own = {p.untyped_storage().data_ptr() for p in (*contender.trained.parameters(), *contender.trained.buffers())}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = (storage, storage.nbytes())  # kept, or its address would be used again
        return tensor

    def forward() -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return contender.loss()

    loss = deeply(forward)
    assert loss.requires_grad
    return sum(size for _, size in storages.values())


def deeply(call: Callable[[], Tensor]) -> Tensor:
    """`call()` in a thread with room for deep recursion."""
    limit, stack = sys.getrecursionlimit(), threading.stack_size(STACK)
    sys.setrecursionlimit(DEPTH)
    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(call).result()
    finally:
        threading.stack_size(stack)
        sys.setrecursionlimit(limit)


def random_walks(length: int) -> Trajectories:
    """Sequences of any law: memory does not depend on it."""
    rng = torch.Generator().manual_seed(0)
    steps = torch.randn(NUM_SEQUENCES, length + 1, DIM, generator=rng)
    return Trajectories.from_arrays(list((0.1 * steps.cumsum(1)).numpy()), dt=0.01)


def measure(name: str, length: int, checkout: Path | None) -> list[dict[str, Any]]:
    """Rows of one method: its own batch of whole sequences, and for ours also a minibatch of transitions."""
    data, method = random_walks(length), METHODS[name]
    shape = matched(name, data, Shape(0, 0, length=length, batch=NUM_SEQUENCES, checkout=checkout))
    rows = []
    batches = {"all transitions": NUM_SEQUENCES * length} if method.own else {"whole sequences": NUM_SEQUENCES}
    if method.own:
        batches["a minibatch"] = 0
    for batch, num in batches.items():
        contender = method.build(data, Shape(shape.width, shape.memory, length=length, batch=num, checkout=checkout))
        size = contender.settings.batch_size if isinstance(contender, Pairs) else num
        rows.append({"method": name, "length": length, "batch": batch, "size": size, "bytes": saved_bytes(contender)})
    return rows
