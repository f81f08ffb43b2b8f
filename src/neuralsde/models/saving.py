"""A saved model: `config.json` and `model.safetensors` in one folder. Nothing that is read is ever executed.

The tensors carry a copy of config.json and of the JSON files beside it, and are replaced in one move: a save that is killed
leaves the old model or the new one (see `neuralsde.core.files`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from neuralsde.core.files import TENSORS, pack, read_document, replacing, writable_folder, write_documents
from neuralsde.core.formats import ADDED, FORMAT, NEW, RENAMED, current
from neuralsde.core.records import check, from_dict, in_short, to_dict
from neuralsde.core.tensors import not_finite, read_with_header
from neuralsde.models.config import ModelConfig, Precision

SETTINGS = ("neuralsde.sde.config", "neuralsde.baselines.config", "neuralsde.video.config")
"""Where the kinds of models of this library are; they are imported when a saved one is read."""
RECORD = "config.json"
NEEDED = ("config", "state_shape", "context_size", "lag")
FIELDS: dict[str, Any] = {
    "state_shape": tuple[int, ...],
    "context_size": int,
    "dt_ref": float,
    "lag": float | tuple[float | None, ...] | None,
    "precision": Precision,
    "own_nets": bool,
    "nets": tuple[str, ...],
}
"""What config.json holds besides the settings."""
MAX_TABLES = 2**28  # numbers in tensors of a model that are not saved: masks, frequencies


@dataclass(frozen=True)
class SavedModel:
    """What a folder holds."""

    folder: Path
    config: ModelConfig
    shape: tuple[int, ...]
    context_size: int
    lag: Any
    precision: str
    own_nets: tuple[str, ...]  # names of the caller's own nets
    report: dict[str, Any] | None  # how the model was chosen
    learned_from: dict[str, int] | None  # paths and transitions
    tensors: dict[str, Tensor]

    def check_sizes(self, build: Callable[[], nn.Module]) -> None:
        """Refuse settings that are not those of the tensors, before memory is taken for them."""
        bound = _Bounded(20_000 + 200 * len(self.tensors))
        try:
            with torch.device("meta"), bound:
                model = build()
        except _TooLarge:
            wrong = f"it asks for far more than the {len(self.tensors)} tensors there"
            raise ValueError(f"{self.folder / RECORD} does not fit {TENSORS}: {wrong}. Save again.") from None
        except (ValueError, RuntimeError, TypeError, ArithmeticError, MemoryError, AssertionError) as error:
            if "meta" in str(error):  # a class of the caller's own that cannot be built without numbers
                return
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{self.folder / RECORD} describes no model ({why}). Save the model again.") from None
        self.tensors_for(model.state_dict())
        more = sum(b.numel() for b in model.buffers()) - sum(t.numel() for t in self.tensors.values())
        check(more <= MAX_TABLES, f"{self.folder / RECORD} asks for {more:,} numbers beside its weights. Save again.")

    def tensors_for(self, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors, if they are those of a model with the tensors `wanted`."""
        tensors = {name: wanted[name] for name in NEW if name in wanted} | self.tensors
        wrong = _mismatch(wanted, tensors)
        if wrong:
            file = self.folder / TENSORS
            raise ValueError(f"{file} does not fit its config.json: {wrong}. Save again, or give the same nets.")
        return tensors


class _TooLarge(Exception):
    """A model has more layers than its tensors could be of."""


class _Bounded(TorchFunctionMode):
    """At most so many calls of torch, within a `with`."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self.left = num

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left < 0:
            raise _TooLarge
        return func(*args, **(kwargs or {}))


def write_model(
    path: str | os.PathLike[str],
    record: dict[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    half: Collection[str] = (),
    beside: Mapping[str, Any] | None = None,
) -> Path:
    """Write tensors, record and the JSON files `beside` as one save; the tensors named in `half` in 16 bits.

    A save that fails or is killed leaves the old model or the new one.
    """
    wrong = not_finite(tensors)
    check(not wrong, f"A model whose numbers are not finite is not saved: {wrong}. Train it again with a lower `lr`.")
    kept = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}  # clone: tied weights
    for name in half:
        if float(kept[name].abs().max()) > torch.finfo(torch.float16).max:
            raise ValueError(f"The weight {name} does not fit into 16 bits. Save with half=False.")
        kept[name] = kept[name].half()
    folder = writable_folder(path)
    whole = {"format": FORMAT, **record, "config": to_dict(record["config"])}
    documents = {**(beside or {}), RECORD: whole}
    with replacing(folder / TENSORS) as new:
        new.write_bytes(save(kept, metadata=pack(documents)))
    write_documents(folder, documents)
    return folder


def model_folder(path: str | os.PathLike[str]) -> Path:
    """Where the model is: in this folder, or in `model` inside, as in the folder of a run."""
    places = [Path(path), Path(path) / "model"]
    return next((p for p in places if any((p / name).exists() for name in (RECORD, TENSORS))), places[0])


def read_model(path: str | os.PathLike[str]) -> SavedModel:
    """What a folder written by `write_model` holds, or the run folder around it."""
    folder = model_folder(path)
    if folder.is_file():
        raise ValueError(
            f"{folder} is a file. A saved model is a folder with config.json and model.safetensors; pickles are never loaded."
        )
    if not (folder / RECORD).exists() and not (folder / TENSORS).exists():
        raise ValueError(f"{folder} holds no config.json. Pass a folder written by save_pretrained.")
    tensors, header = read_with_header(folder / TENSORS)
    wrong = not_finite(tensors)
    check(not wrong, f"{folder / TENSORS} holds numbers that are not finite: {wrong}. Save a model that is whole.")
    record = _checked(read_document(folder, RECORD, header), folder / RECORD)
    try:
        values = {name: from_dict(FIELDS[name], record[name], name) for name in FIELDS if name in record}
        check(all(n >= 1 for n in values["state_shape"]), "`state_shape` must hold sizes from 1 on.")
        check(values["context_size"] >= 0, "`context_size` must not be negative.")
        lags = values["lag"] if isinstance(values["lag"], tuple) else (values["lag"],)
        check(all(lag is None or lag > 0 for lag in lags), f"`lag` must be positive. Got {in_short(values['lag'])}.")
        config = from_dict(ModelConfig, record["config"])
        added = {name: torch.tensor(value, dtype=torch.float64) for name, value in ADDED.items()}
        tensors = added | {RENAMED.get(name, name): tensor for name, tensor in tensors.items()}
        _check_units(tensors, values.get("dt_ref"))
    except ValueError as error:
        raise ValueError(f"{folder / RECORD} cannot be used: {error} Save the model again.") from None
    return SavedModel(
        folder=folder,
        config=config,
        shape=values["state_shape"],
        context_size=values["context_size"],
        lag=values["lag"],
        precision=values.get("precision", "no"),
        own_nets=values.get("nets", ()) if values.get("own_nets") else (),
        report=record["report"] if isinstance(record.get("report"), dict) else None,
        learned_from=_counts(record.get("learned_from")),
        tensors=tensors,
    )


def _counts(record: Any) -> dict[str, int] | None:
    """Numbers of paths and transitions, if the record holds such."""
    if not isinstance(record, dict):
        return None
    return {str(k)[:40]: v for k, v in record.items() if type(v) is int}


def _checked(record: Any, file: Path) -> dict[str, Any]:
    """The record, in today's form, if it is of a kind that is known."""
    if record is None:
        raise ValueError(f"{file.parent} holds no config.json. Pass a folder written by save_pretrained.")
    if not isinstance(record, dict) or not isinstance(record.get("config", {}), dict):
        raise ValueError(f"{file} is not from this library. Pass a folder written by save_pretrained.")
    lacking = [k for k in NEEDED if k not in record]
    if lacking:
        raise ValueError(f"{file} lacks {', '.join(lacking)}. Save the model again.")
    if record.get("format") in range(1, FORMAT):
        try:
            record = record | {"config": current(record["config"])}
        except ValueError as error:
            raise ValueError(f"{file} cannot be used: {error}") from None
    elif record.get("format") != FORMAT:
        found = in_short(record.get("format"))
        raise ValueError(f"{file} has format {found}, this version reads {FORMAT}. Install a newer neuralsde.")
    for module in SETTINGS:
        import_module(module)
    kinds = ModelConfig.kinds()
    kind = record["config"].get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(
            f"{file} holds a model of the unknown kind {in_short(kind)}. Import the module that defines it first. "
            f"Known: {', '.join(sorted(k for k, c in kinds.items() if getattr(c, 'builds', '')))}."
        )
    return record


def _check_units(tensors: Mapping[str, Tensor], dt_ref: float | None) -> None:
    """Refuse units in which nothing can be measured."""
    for name in ("std", "context_std", "dt_ref"):
        unit = tensors.get(f"scale.{name}")
        if unit is not None and not bool((unit > 0).all()):
            raise ValueError(f"`scale.{name}` must be positive. Got {float(unit.min()):g} in {TENSORS}.")
    low, high = (tensors.get(f"scale.{name}") for name in ("low", "high"))
    if low is not None and high is not None and low.shape == high.shape and not bool((low <= high).all()):
        raise ValueError(f"`scale.low` must not exceed `scale.high`. Got {TENSORS} where it does.")
    step = tensors.get("scale.dt_ref")
    if dt_ref is not None and step is not None and step.numel() == 1:
        same = math.isclose(dt_ref, float(step), rel_tol=1e-6)
        check(same, f"`dt_ref` must be that of {TENSORS}, {float(step):g}. Got {dt_ref:g}.")


def _mismatch(wanted: Mapping[str, Tensor], got: Mapping[str, Tensor]) -> str:
    for name in sorted(wanted.keys() | got.keys()):
        if name not in got:
            return f"{name} is missing"
        if name not in wanted:
            return f"{name} is unknown"
        if wanted[name].shape != got[name].shape:
            return f"{name} has shape {tuple(got[name].shape)}, not {tuple(wanted[name].shape)}"
        if wanted[name].is_floating_point() != got[name].is_floating_point():
            return f"{name} is of type {got[name].dtype}, not {wanted[name].dtype}"
    return ""
