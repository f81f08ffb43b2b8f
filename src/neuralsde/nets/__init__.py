"""Backbones. They map a state (B, H, *S) and an optional condition (B, K) to one field (B, *S) and do not know which."""

from neuralsde.config import HistoryConfig, MLPConfig
from neuralsde.nets.history import HistoryMLP
from neuralsde.nets.mlp import MLP

NETS: dict[type, type[MLP]] = {MLPConfig: MLP, HistoryConfig: HistoryMLP}
"""The backbone of each config."""

__all__ = ["MLP", "NETS", "HistoryMLP"]
