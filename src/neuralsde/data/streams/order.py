"""In which order a stream is read: a pure function of the seed, so that no state is kept and any place can be gone to.

Blocks are dealt out to *lanes*. Place p of the training, row p mod B of step p div B, takes from lane p mod L the transition
p div L. Each lane goes through its own blocks once an epoch, in an order that is new in each, a few of them (a *pool*) at a
time, and shuffles the transitions of a pool. A process with every P-th row of a batch so reads every P-th lane alone, and
the batches are the same for any number of processes that divides L.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from neuralsde.solvers.noise import Noise

ORDER = 2  # added to the seed: keys of a training's noise have the seed itself, those of its validation the next


@dataclass(frozen=True)
class Pool:
    """Blocks whose transitions are shuffled together."""

    blocks: list[int]
    count: int
    """Of transitions."""
    key: int
    """Of their order."""
    skip: int
    """Of them in this order, those before the place that was gone to."""

    def order(self) -> Int[Tensor, " n"]:
        return shuffle(self.count, self.key)[self.skip :]


def shuffle(num: int, key: int) -> Int[Tensor, " num"]:
    """A permutation that depends on the key alone."""
    return Noise.for_step(key, 0, torch.arange(num)).keys.argsort()


class Lane:
    """One of the parts in which a stream is read."""

    def __init__(self, number: int, blocks: np.ndarray, counts: np.ndarray, pool_size: int, seed: int) -> None:
        self.number, self.blocks, self.counts, self.seed = number, blocks, counts, seed
        self.total = int(counts.sum())
        """Transitions of an epoch."""
        self.per_pool = max(1, round(pool_size * len(blocks) / self.total))
        """Blocks, so that a pool has about `pool_size` transitions."""

    def pools(self, place: int) -> Iterator[Pool]:
        """From the transition number `place` of this lane on, without end."""
        epoch, skip = divmod(place, self.total)
        while True:
            keys = Noise.for_step(self.seed + ORDER, epoch, torch.tensor([self.number]))
            order = shuffle(len(self.blocks), int(keys.keys)).numpy()
            for k, first in enumerate(range(0, len(order), self.per_pool)):
                chosen = order[first : first + self.per_pool]
                count = int(self.counts[chosen].sum())
                if count > skip:
                    yield Pool(self.blocks[chosen].tolist(), count, int(keys.child(k).keys), skip)
                skip = max(0, skip - count)
            epoch += 1


def deal(counts: np.ndarray, num_lanes: int) -> list[np.ndarray]:
    """The blocks of each lane: as many transitions in each as can be, so that epochs of lanes are as long."""
    lanes: list[list[int]] = [[] for _ in range(num_lanes)]
    sums = np.zeros(num_lanes, np.int64)
    for block in np.argsort(-counts, kind="stable"):
        lane = int(sums.argmin())
        lanes[lane].append(int(block))
        sums[lane] += counts[block]
    return [np.array(sorted(lane), np.int64) for lane in lanes]
