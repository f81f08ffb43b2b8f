"""Backbones. They map a state (B, H, *S) and an optional condition (B, K) to one field (B, *S) and do not know which."""

from torch import nn

from neuralsde.config import (
    ChunkTransformerConfig,
    EncodedConfig,
    HistoryConfig,
    ImageConfig,
    MLPConfig,
    UNet1DConfig,
    UViTConfig,
)
from neuralsde.nets.chunk_transformer import ChunkTransformer
from neuralsde.nets.encoded import EncodedMLP
from neuralsde.nets.history import HistoryMLP
from neuralsde.nets.images import ImageMLP
from neuralsde.nets.mlp import MLP
from neuralsde.nets.unet1d import UNet1D
from neuralsde.nets.uvit import UViT

NETS: dict[type, type[nn.Module]] = {
    MLPConfig: MLP,
    HistoryConfig: HistoryMLP,
    EncodedConfig: EncodedMLP,
    ImageConfig: ImageMLP,
    UNet1DConfig: UNet1D,
    ChunkTransformerConfig: ChunkTransformer,
    UViTConfig: UViT,
}
"""The backbone of each config."""

__all__ = ["MLP", "NETS", "ChunkTransformer", "EncodedMLP", "HistoryMLP", "ImageMLP", "UNet1D", "UViT"]
