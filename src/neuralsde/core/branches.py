"""What is independent, side by side: branches of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor


def side_by_side(calls: Sequence[Callable[[], Tensor]], *given: Tensor) -> list[Tensor]:
    """What each call makes of the tensors `given`.

    Small nets leave most of a GPU idle. While a CUDA graph is recorded, each call takes a stream of its own, and the graph runs
    them at the same time; so it does their gradients. Else they come one after the other: the host would be the slower part.
    """
    if len(calls) < 2 or not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return [call() for call in calls]
    here = torch.cuda.current_stream()
    aside = _streams(len(calls) - 1, here.device)
    kept = torch.is_grad_enabled()  # a gradient reads again, later; else what is given outlives the branches
    for stream in aside:
        stream.wait_stream(here)
        for value in given if kept else ():
            value.record_stream(stream)  # its memory is not another's before that stream has read it
    results = [calls[0]()]
    for call, stream in zip(calls[1:], aside):
        with torch.cuda.stream(stream):
            results.append(call())
    for result, stream in zip(results[1:], aside):
        here.wait_stream(stream)
        if kept:
            result.record_stream(here)
    return results


@lru_cache(maxsize=16)
def _streams(num: int, device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(num)]
