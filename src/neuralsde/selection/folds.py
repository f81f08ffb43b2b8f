"""What is held out: whole paths, or blocks of time where there is one path only."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from neuralsde.core.records import check
from neuralsde.data.trajectories import Trajectories

FEW = 12  # paths up to which each is held out in turn
FOLDS, OF_MANY = 3, 2  # of few paths or one, and of many
SHARE = 0.25  # of many paths, held out in a fold
MOST_HELD_OUT = 64  # paths of a fold
SHORTEST = 12  # observations of an only path
OUTER = 0.15  # share that takes no part in the choice and gives the score that is reported
FEWEST_FOR_OUTER = 6  # paths from which on some are kept for it


@dataclass(frozen=True)
class Fold:
    """Paths to learn from, and paths to be scored on."""

    known: Trajectories
    held_out: Trajectories


def too_short(data: Trajectories) -> bool:
    """Whether there is one path only, of which no part can be spared."""
    return len(data) == 1 and int(data.lengths[0]) < SHORTEST


def split(
    data: Trajectories, seed: int, *, forward: bool = False
) -> tuple[Trajectories, Trajectories | None, list[Fold]]:
    """What takes part in the choice, what is kept for the reported score (None: there is too little), and the folds.

    `forward`: of one path, what is learned from comes before what is held out.
    """
    if len(data) == 1:
        length = int(data.lengths[0])
        check(
            not too_short(data),
            f"`fit(data)` holds out parts of the data: one path must have {SHORTEST} observations. Got {length}. Give more, or "
            "train a model of yours: `fit(NeuralSDE.for_data(data), data)`.",
        )
        cut = length - max(2, round(OUTER * length))
        inner = _pieces(data, [(0, cut)])
        return inner, _pieces(data, [(cut, length)]), _blocks(inner, forward)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed)).tolist()
    num = max(1, min(MOST_HELD_OUT, round(OUTER * len(data)))) if len(data) >= FEWEST_FOR_OUTER else 0
    kept, rest = sorted(order[:num]), order[num:]
    inner = data.select(sorted(rest))
    outer = data.select(kept) if kept else None
    return inner, outer, _by_path(inner, seed)


def _by_path(data: Trajectories, seed: int) -> list[Fold]:
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed + 1)).tolist()
    if len(data) <= FEW:
        parts = [order[k::FOLDS] for k in range(min(FOLDS, len(data)))]
    else:
        num = max(1, min(MOST_HELD_OUT, round(SHARE * len(data))))
        parts = [order[k * num : (k + 1) * num] for k in range(OF_MANY)]
    return [Fold(data.select(sorted(set(order) - set(part))), data.select(sorted(part))) for part in parts if part]


def _blocks(data: Trajectories, forward: bool) -> list[Fold]:
    """Three blocks of time, each a fifth of the path, the last one at its end."""
    length = int(data.lengths[0])
    size = max(2, length // 5)
    folds = []
    for end in (length, 3 * length // 5, 4 * length // 5):
        begin = end - size
        rest = [(a, b) for a, b in ((0, begin), (end, length))[: 1 if forward else 2] if b - a >= 2]
        folds.append(Fold(_pieces(data, rest), _pieces(data, [(begin, end)])))
    return folds


def _pieces(data: Trajectories, ranges: list[tuple[int, int]]) -> Trajectories:
    """Parts of the only path, each a path that began when that did."""
    first = torch.tensor([a for a, _ in ranges])
    lengths = torch.tensor([b - a for a, b in ranges])
    return data.cut(first, lengths, data.begin.expand(len(ranges)))
