"""Exponential smoothing of many series in many ways at once: linear in the values, hence blocks of rows are matrix products.

s = (l, b, u),    e_t = x_t - (1, φ, κ) s,    s ← (l + φ b, φ b, κ u) + (α, β, θ) e_t
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

BLOCK = 32  # rows


@dataclass(frozen=True)
class Block:
    """Some rows: what each way leaves of each column (K, R, B), and of some states at the beginning (K, R, P)."""

    rows: slice
    e: np.ndarray
    unit: np.ndarray


@dataclass(frozen=True)
class Recursion:
    """That of some ways (K, 5): φ, α, β, κ, θ."""

    ways: np.ndarray

    @cached_property
    def _told(self) -> np.ndarray:
        """What a state says of the next value (K, 3)."""
        return np.stack([np.ones(len(self.ways)), self.ways[:, 0], self.ways[:, 3]], axis=1)

    @cached_property
    def _alone(self) -> np.ndarray:
        """What becomes of a state where nothing is seen (K, 3, 3)."""
        phi, kappa = self.ways[:, 0], self.ways[:, 3]
        none, one = np.zeros_like(phi), np.ones_like(phi)
        return np.moveaxis(np.array([[one, phi, none], [none, phi, none], [none, none, kappa]]), -1, 0)

    @cached_property
    def _gains(self) -> np.ndarray:
        return self.ways[:, [1, 2, 4]]

    @cached_property
    def _change(self) -> np.ndarray:
        """What becomes of a state where 0 is seen (K, 3, 3)."""
        return self._alone - self._gains[:, :, None] * self._told[:, None]

    @cached_property
    def _powers(self) -> np.ndarray:
        """What becomes of a state after so many rows (K, R + 1, 3, 3)."""
        out = [np.broadcast_to(np.eye(3), self._change.shape)]
        for _ in range(BLOCK):
            out.append(self._change @ out[-1])
        return np.stack(out, axis=1)

    @cached_property
    def _gathered(self) -> np.ndarray:
        """The state after so many rows, of the values in them (K, R + 1, 3, R)."""
        out = np.zeros((len(self.ways), BLOCK + 1, 3, BLOCK))
        for r in range(BLOCK):
            out[:, r + 1] = self._change @ out[:, r]
            out[:, r + 1, :, r] = self._gains
        return out

    @cached_property
    def _left_of_state(self) -> np.ndarray:
        """e of a state before the block (K, R, 3)."""
        return -np.einsum("ki,krij->krj", self._told, self._powers[:, :BLOCK])

    @cached_property
    def _left_of_values(self) -> np.ndarray:
        """e of the values in the block (K, R, R)."""
        return np.eye(BLOCK) - np.einsum("ki,krij->krj", self._told, self._gathered[:, :BLOCK])

    def blocks(self, x: np.ndarray, state: np.ndarray, unit: np.ndarray) -> Iterator[Block]:
        """Of values (n, B) after states (K, 3, B), and after others (K, 3, P) where nothing but 0 is seen."""
        of_values = self._left_of_values.reshape(-1, BLOCK)
        for begin, own, now, units in self._states(x, state, unit):
            e = (of_values @ own).reshape(len(self.ways), BLOCK, -1) + self._left_of_state @ now
            num = min(BLOCK, len(x) - begin)
            yield Block(slice(begin, begin + num), e[:, :num], (self._left_of_state @ units)[:, :num])

    def ends(
        self, x: np.ndarray, state: np.ndarray, unit: np.ndarray, num: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The states (K, 3, B) after the first `num` (B,) rows, and what became of the others (K, 3, P, B)."""
        out, units = state.copy(), np.repeat(unit[..., None], x.shape[1], axis=-1)
        for begin, own, now, before in self._states(x, state, unit):
            here = (num > begin) & (num <= begin + BLOCK)
            for r in np.unique(num[here] - begin):
                some = here & (num == begin + r)
                out[:, :, some] = self._after(own[:, some], now[:, :, some], r)
                units[..., some] = (self._powers[:, r] @ before)[..., None]
        return out, units

    def _states(
        self, x: np.ndarray, state: np.ndarray, unit: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """Where each block begins, its rows, and both states before it."""
        for begin in range(0, len(x), BLOCK):
            own = _padded(x[begin : begin + BLOCK])
            yield begin, own, state, unit
            state, unit = self._after(own, state, BLOCK), self._powers[:, BLOCK] @ unit

    def _after(self, own: np.ndarray, state: np.ndarray, num: int) -> np.ndarray:
        """The state after so many rows of a block."""
        return self._powers[:, num] @ state + self._gathered[:, num] @ own

    def unseen(self, state: np.ndarray, num: np.ndarray) -> np.ndarray:
        """The state (K, 3, B) after `num` (B,) rows in which nothing was seen."""
        for t in range(int(num.max(initial=0))):
            state = np.where(num > t, self._alone @ state, state)
        return state


def _padded(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows, np.zeros((BLOCK - len(rows), rows.shape[1]))]) if len(rows) < BLOCK else rows
