"""The pretrained tiny autoencoder taef2 from its published files, converted once: what is kept is safetensors and JSON."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from neuralsde.core.records import check
from neuralsde.data.trajectories import Trajectories
from neuralsde.models.build import build
from neuralsde.nets.config import TinyConfig
from neuralsde.video.autoencoder import Autoencoder
from neuralsde.video.config import AutoencoderConfig

FILES = {"encoder": "taef2_encoder.pth", "decoder": "taef2_decoder.pth"}


def pretrained(folder: str | os.PathLike[str], frames: Trajectories) -> Autoencoder:
    """The autoencoder with the weights in `folder`, for frames like these (N, 3, H, W), by which its latents are normalised."""
    check_files(folder)
    model = build(AutoencoderConfig(net=TinyConfig()), frames.transitions())
    assert isinstance(model, Autoencoder)
    for name, file in FILES.items():
        tensors = _read(Path(folder) / file)
        try:
            model.nets[name].get_submodule("layers").load_state_dict(tensors)
        except RuntimeError as error:
            what = str(error).splitlines()[-1].strip()
            raise ValueError(f"{Path(folder) / file} does not hold the weights of taef2: {what}") from None
    model.fit_latents(frames.states)
    return model.eval()


def check_files(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder that does not hold them."""
    absent = [name for name in FILES.values() if not (Path(folder) / name).is_file()]
    check(not absent, f"{folder} does not hold {' and '.join(absent)}. Get them from github.com/madebyollin/taesd.")


def _read(file: Path) -> dict[str, Tensor]:
    """Tensors of a file that PyTorch wrote; nothing else in it is opened."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever is in a file
        what = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{file} is damaged, or holds more than tensors ({what}). Get it again.") from None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"{file} does not hold the weights of taef2: it has no tensors by name.")
    return {name: value.float() for name, value in found.items()}
