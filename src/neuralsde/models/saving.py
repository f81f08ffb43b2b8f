"""A saved model: `config.json` and `model.safetensors` in one folder. Nothing that is read is ever executed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from neuralsde.files import read_tensors, writable_folder
from neuralsde.formats import FORMAT, NEW, RENAMED, current
from neuralsde.models.config import ModelConfig
from neuralsde.records import from_dict, to_dict

SETTINGS = ("neuralsde.sde.config", "neuralsde.baselines.config", "neuralsde.video.config")
"""Where the kinds of models of this library are; they are imported when a saved one is read."""
NEEDED = ("config", "state_shape", "context_size", "lag")


@dataclass(frozen=True)
class SavedModel:
    """What a folder holds."""

    folder: Path
    config: ModelConfig
    shape: tuple[int, ...]
    context_size: int
    lag: Any
    own_nets: tuple[str, ...]  # names of the caller's own nets
    tensors: dict[str, Tensor]

    def tensors_for(self, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors, if they are those of a model with the tensors `wanted`."""
        tensors = {name: wanted[name] for name in NEW if name in wanted} | self.tensors
        wrong = _mismatch(wanted, tensors)
        if wrong:
            file = self.folder / "model.safetensors"
            raise ValueError(f"{file} does not fit its config.json: {wrong}. Save again, or give the same nets.")
        return tensors


def write_model(
    path: str | os.PathLike[str], record: dict[str, Any], tensors: Mapping[str, Tensor], *, half: Collection[str] = ()
) -> Path:
    """Write both files; the tensors named in `half` in 16 bits. A failed write leaves the old files."""
    kept = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}  # clone: tied weights
    for name in half:
        if float(kept[name].abs().max()) > torch.finfo(torch.float16).max:
            raise ValueError(f"The weight {name} does not fit into 16 bits. Save with half=False.")
        kept[name] = kept[name].half()
    folder = writable_folder(path)
    text = json.dumps({"format": FORMAT, **record, "config": to_dict(record["config"])}, indent=2) + "\n"
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as new:
        save_file(kept, Path(new) / "model.safetensors")
        (Path(new) / "config.json").write_text(text, encoding="utf-8")
        for name in ("model.safetensors", "config.json"):
            os.replace(Path(new) / name, folder / name)
    return folder


def read_model(path: str | os.PathLike[str]) -> SavedModel:
    """What a folder written by `write_model` holds, or the run folder around it."""
    folder, inner = Path(path), Path(path) / "model"
    folder = inner if (inner / "config.json").is_file() and not (folder / "config.json").is_file() else folder
    record = _read_record(folder)
    for module in SETTINGS:
        import_module(module)
    kinds = ModelConfig.kinds()
    kind = record["config"].get("kind")
    if kind not in kinds:
        raise ValueError(
            f"{folder / 'config.json'} holds a model of the unknown kind {kind!r}. Import the module that defines it first. "
            f"Known: {', '.join(sorted(k for k, c in kinds.items() if getattr(c, 'builds', '')))}."
        )
    tensors = read_tensors(folder / "model.safetensors")
    lag = record["lag"]
    return SavedModel(
        folder=folder,
        config=from_dict(ModelConfig, record["config"]),
        shape=tuple(record["state_shape"]),
        context_size=record["context_size"],
        lag=tuple(lag) if isinstance(lag, list) else lag,
        own_nets=tuple(record["nets"]) if record.get("own_nets") else (),
        tensors={RENAMED.get(name, name): tensor for name, tensor in tensors.items()},
    )


def _read_record(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if folder.is_file():
        raise ValueError(
            f"{folder} is a file. A saved model is a folder with config.json and model.safetensors; pickles are never loaded."
        )
    if not file.is_file():
        raise ValueError(f"{folder} holds no config.json. Pass a folder written by save_pretrained.")
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not valid JSON ({error}). Save the model again.") from None
    if not isinstance(record, dict) or not isinstance(record.get("config", {}), dict):
        raise ValueError(f"{file} is not from this library. Pass a folder written by save_pretrained.")
    lacking = [k for k in NEEDED if k not in record]
    if lacking:
        raise ValueError(f"{file} lacks {', '.join(lacking)}. Save the model again.")
    if record.get("format") in range(1, FORMAT):
        return record | {"config": current(record["config"])}
    if record.get("format") != FORMAT:
        raise ValueError(
            f"{file} has format {record.get('format')!r}, this version reads {FORMAT}. Install a newer neuralsde."
        )
    return record


def _mismatch(wanted: Mapping[str, Tensor], got: Mapping[str, Tensor]) -> str:
    for name in sorted(wanted.keys() | got.keys()):
        if name not in got:
            return f"{name} is missing"
        if name not in wanted:
            return f"{name} is unknown"
        if wanted[name].shape != got[name].shape:
            return f"{name} has shape {tuple(got[name].shape)}, not {tuple(wanted[name].shape)}"
    return ""
