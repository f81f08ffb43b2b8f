"""Models with one net that know the next state after one step only, as long as those of their training."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from neuralsde.models.sequence import SequenceModel


class FixedStepModel(SequenceModel):
    """Base: a path is made of whole steps."""

    def check_sampler(self, sampler: Any, gaps: Tensor) -> None:
        off = (gaps - gaps.round().clamp(min=1)).abs() > 1e-3
        if bool(off.any()):
            raise ValueError(
                f"{type(self).__name__} only generates at its training step {self.scale.step:g}. Got times "
                f"{float(gaps[off][0]) * self.scale.step:g} apart. Pass times on that grid; a NeuralSDE takes any times."
            )
