"""Records of earlier versions, read as today's.

Format 1 is that of the first release candidate. Records of models, of runs and of rows in results files all go through
`current`; files are not edited. A setting that was cut may only have had the value that is now the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMAT = 2

CUT: dict[str, dict[str, Any]] = {
    "NeuralSDEConfig": {},
    "Sampler": {"pull_noise": False},
    "TrainConfig": {"stages": []},
}
"""Settings of format 1 that are gone, and the value that they must have had."""

DROPPED = {
    "TrainConfig": (  # now in RunOptions
        *("progress", "cpu", "compile", "graph", "log_every", "val_every", "checkpoint_every", "keep", "trackers"),
    ),
}
"""Settings that never touched the numbers, and are in no record any more."""

LAST = "neuralsde 0.1.0"
"""The version that reads all of format 1."""


def current(record: Any, kind: str = "") -> Any:
    """A record of settings, in today's form; `kind` is that of a record which does not name its own."""
    if isinstance(record, (list, tuple)):
        return [current(item, kind) for item in record]
    if not isinstance(record, Mapping):
        return record
    kind = record.get("kind", kind)
    values = {name: current(value, _kind_of(name, kind)) for name, value in record.items()}
    for name in DROPPED.get(kind, ()):
        values.pop(name, None)
    for name, only in CUT.get(kind, {}).items():
        if values.pop(name, only) != only:
            raise ValueError(f"`{name}={record[name]}` is gone. {LAST} still reads this record.")
    if kind in REWRITTEN:
        values = REWRITTEN[kind](values)
    if kind in NAMED and "kind" not in values:
        values = {"kind": kind, **values}
    return values


NAMED = {"NeuralSDEConfig", "MLPConfig", "BranchingConfig"}
"""Kinds that the oldest records, from before there was a choice, do not name."""


def _kind_of(name: str, parent: str) -> str:
    """The kind of a nested record that does not name it."""
    if name == "sampler":
        return "Sampler"
    if name == "net":
        return {"AutoencoderConfig": "", "LSTMGMMConfig": "", "BETConfig": "", "IBCConfig": ""}.get(parent, "MLPConfig")
    return {"train": "TrainConfig", "autoencoder_train": "TrainConfig", "model": "NeuralSDEConfig"}.get(
        name, "BranchingConfig" if name == "task" else ""
    )


def _neural_sde(values: dict[str, Any]) -> dict[str, Any]:
    """Flags of what a step is and of what is learned become the law and the denoiser."""
    if "law" in values:
        return values
    old = {name: values.pop(name, default) for name, default in _FLAGS.items()}
    start = values.get("tau", "start") in ("start", 1, 1.0)
    values["law"] = _law(old, start)
    denoiser = {"weight": old["denoiser_weight"], "antithetic": old["antithetic"], "alpha": old["alpha"]}
    values["denoiser"] = denoiser if old["denoiser"] else None
    return values


_FLAGS: dict[str, Any] = {
    "flow_loss": "mse",
    "delta": 1e-3,
    "diffusion_loss": "nll",
    "diffusion": True,
    "denoiser": True,
    "denoiser_weight": 1.0,
    "transition": "euler",
    "transition_steps": 1,
    "measurement": False,
    "antithetic": False,
    "alpha": False,
    "refiner": False,
    "refiner_weight": 0.1,
}
"""Fields of format 1, and their defaults."""


def _law(old: dict[str, Any], start: bool) -> dict[str, Any]:
    if not old["diffusion"]:
        _only(old, "flow_loss", "mse", "without a diffusion")
        return {"kind": "Deterministic"}
    if old["refiner"]:
        _only(old, "diffusion_loss", "nll", "with a refiner")
        return {"kind": "Refined", "flow_loss": old["flow_loss"], "weight": old["refiner_weight"]}
    if old["transition"] == "moments":
        if not start:
            _only(old, "flow_loss", "mse", "with moments")
        return {"kind": "Moments", "steps": old["transition_steps"], "measurement": old["measurement"]}
    return {"kind": "Euler", **{name: old[name] for name in ("flow_loss", "delta", "diffusion_loss")}}


def _only(old: dict[str, Any], name: str, value: Any, where: str) -> None:
    if old[name] != value:
        raise ValueError(f"`{name}={old[name]}` {where} is gone. {LAST} still reads this record.")


def _generation(values: dict[str, Any]) -> dict[str, Any]:
    """How many passes a generative model takes is a matter of its sampler."""
    moved = {name: values.pop(name) for name in ("num_steps", "variant") if name in values}
    return values | ({"sampler": moved} if moved else {})


REWRITTEN = {
    "NeuralSDEConfig": _neural_sde,
    "DDIMConfig": _generation,
    "RectifiedFlowConfig": _generation,
    "PFIConfig": _generation,
}

RENAMED = {"log_error": "measurement.log_std"}
"""Tensors of format 1 under their new names."""
