"""Models with one net that know the next state after one step only, as long as those of their training."""

from __future__ import annotations

from torch import Tensor, nn

from neuralsde.config import ModelSettings, Sampler
from neuralsde.sequence import Scale, SequenceModel


class FixedStepModel(SequenceModel):
    """Base: a path is made of whole steps."""

    def __init__(self, nets: dict[str, nn.Module], scale: Scale, config: ModelSettings) -> None:
        super().__init__(scale, config)
        if list(nets) != ["net"]:
            raise ValueError(f"`nets` must hold ['net'] for this config. Got {sorted(nets)}.")
        self.nets = nn.ModuleDict(nets)

    def check_sampler(self, sampler: Sampler, gaps: Tensor) -> None:
        off = (gaps - gaps.round().clamp(min=1)).abs() > 1e-3
        if bool(off.any()):
            raise ValueError(
                f"{type(self).__name__} only generates at its training step {self.scale.step:g}. Got times "
                f"{float(gaps[off][0]) * self.scale.step:g} apart. Pass times on that grid; a NeuralSDE takes any times."
            )

    def max_step(self, sampler: Sampler) -> float:
        return 1.0
