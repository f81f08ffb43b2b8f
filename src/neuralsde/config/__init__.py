"""Settings of models, nets, training and policies: frozen dataclasses, and their YAML record.

Dataclasses are the one description of a run: Python builds them, the command line is made from them, a run folder
records them as YAML and repeats from that record. This module imports no torch, so that help and dry runs are instant.
"""

from neuralsde.config.models import (
    AutoencoderConfig,
    BETConfig,
    DDIMConfig,
    GaussianConfig,
    IBCConfig,
    ImitationConfig,
    LSTMGMMConfig,
    ModelConfig,
    ModelSettings,
    NeuralSDEConfig,
    NextStateConfig,
    Normalise,
    PFIConfig,
    RectifiedFlowConfig,
    Sampler,
)
from neuralsde.config.nets import (
    ChunkTransformerConfig,
    ConvConfig,
    EncodedConfig,
    GPTConfig,
    HistoryConfig,
    ImageConfig,
    LSTMConfig,
    MLPConfig,
    NetConfig,
    TinyConfig,
    UNet1DConfig,
    UViTConfig,
)
from neuralsde.config.policy import PolicyConfig
from neuralsde.config.train import TrainConfig
from neuralsde.config.video import ClipsConfig, FramesConfig, VideoConfig, VideoVariant

__all__ = [
    "AutoencoderConfig",
    "BETConfig",
    "ChunkTransformerConfig",
    "ClipsConfig",
    "ConvConfig",
    "DDIMConfig",
    "EncodedConfig",
    "FramesConfig",
    "GPTConfig",
    "GaussianConfig",
    "HistoryConfig",
    "IBCConfig",
    "ImageConfig",
    "ImitationConfig",
    "LSTMConfig",
    "LSTMGMMConfig",
    "MLPConfig",
    "ModelConfig",
    "ModelSettings",
    "NetConfig",
    "NeuralSDEConfig",
    "NextStateConfig",
    "Normalise",
    "PFIConfig",
    "PolicyConfig",
    "RectifiedFlowConfig",
    "Sampler",
    "TinyConfig",
    "TrainConfig",
    "UNet1DConfig",
    "UViTConfig",
    "VideoConfig",
    "VideoVariant",
]
