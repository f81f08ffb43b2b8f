"""Backbones. They map a state (B, H, *S) and an optional condition (B, K) to one field (B, *S) and do not know which."""

from neuralsde.nets.mlp import MLP

__all__ = ["MLP"]
