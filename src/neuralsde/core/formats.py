"""Records of earlier versions, read as today's.

Format 1 is that of the first release candidate; format 2 drew every law by Euler's steps; format 3 had
the law Refined. Records of models, of runs and of rows in results files all go through `current`; files are not edited. A
setting that was cut may only have had the value that is now the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMAT = 4

CUT: dict[str, dict[str, Any]] = {
    "AutoencoderConfig": {"normalise": "none", "kl": 1e-6},
    "BETConfig": {"use_history": False, "gamma": 2.0, "offset_weight": 1.0},
    "ClipsConfig": {"way": None},
    "CollisionsConfig": {"min_objects": 2, "max_objects": 5, "samples": 2},
    "ChunkTransformerConfig": {"tokens": 4, "causal": True, "use_history": False},
    "ConvConfig": {"latent": 4, "blocks": 1},
    "DDIMConfig": {"num_train_timesteps": 100, "beta_schedule": "squaredcos_cap_v2"},
    "BranchingConfig": {"paths_per_branch": 50},
    "GPTConfig": {"dropout": 0.0},
    "HistoryConfig": {"layers": 1, "heads": 4},
    "IBCConfig": {
        **{"use_history": False, "num_negatives": 256, "num_iterations": 5, "std": 0.33, "shrink": 0.5, "margin": 0.05}
    },
    "ImageConfig": {"channels": [32, 64, 128], "points": 64, "shift": 4},
    "KnownSDEConfig": {"num_forecasts": 5_000},
    "LSTMGMMConfig": {"use_history": False, "min_std": 1e-4, "tanh_mean": True, "low_noise": True, "num_modes": 5},
    "PFIConfig": {"target": "increment", "beta": "linear", "epsilon": 0.3},
    "Sampler": {"pull_noise": False, "refine": True, "refine_noise": 1.0},
    "TinyConfig": {"down": 8, "latent": 32},
    "TrainConfig": {"stages": [], "warmup": 0.05, "final_lr": 0.01, "clip": 1.0},
    "UNet1DConfig": {"kernel": 5, "groups": 8, "embedding": 256, "use_history": False},
    "UViTConfig": {"depth": None, "dropout": 0.0},
    "VideoConfig": {"part": "test"},
    "VideoVariant": {"refine": None, "refine_noise": None},
}
"""Settings that are gone, and the value that they must have had."""

DROPPED = {
    "ClipsConfig": ("num_workers",),
    "PushTConfig": ("num_workers",),
    "TrainConfig": (  # now in RunOptions
        *("progress", "cpu", "compile", "graph", "log_every", "val_every", "checkpoint_every", "keep", "trackers"),
    ),
    "VideoConfig": ("context",),  # it had to equal the history of the model
}
"""Settings that never touched the numbers, and are in no record any more."""

LAST = "neuralsde 0.1.0"  # the version that reads all of format 1
REFINED = f"The law `Refined` is gone: use Transport() and train again. {LAST} still reads this record."


def current(record: Any, kind: str = "") -> Any:
    """A record of settings, in today's form; `kind` is that of a record which does not name its own."""
    if isinstance(record, (list, tuple)):
        return [current(item, kind) for item in record]
    if not isinstance(record, Mapping):
        return record
    kind = record.get("kind", kind)
    if kind == "Refined":
        raise ValueError(REFINED)
    if not isinstance(kind, str):
        raise ValueError(f"`kind` must be the name of a class. Got {kind!r:.80}.")
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
    if name == "net":
        return {"AutoencoderConfig": "ConvConfig", "LSTMGMMConfig": "", "BETConfig": "GPTConfig"}.get(
            parent, "MLPConfig"
        )
    if name == "variants":
        return "VideoVariant" if parent == "VideoConfig" else "Variant"
    return NESTED.get(name, "")


NESTED = {
    "autoencoder_model": "AutoencoderConfig",
    "autoencoder_train": "TrainConfig",
    "clips": "ClipsConfig",
    "collisions": "CollisionsConfig",
    "denoiser": "Denoiser",
    "model": "NeuralSDEConfig",
    "sampler": "Sampler",
    "task": "BranchingConfig",
    "train": "TrainConfig",
}
"""The kinds of records by the field that they stand in."""


def _sampler(values: dict[str, Any]) -> dict[str, Any]:
    """Euler's steps were the default of every law; now a law draws as it was learned."""
    return values | ({"solver": "law"} if values.get("solver") == "euler" else {})


def _neural_sde(values: dict[str, Any]) -> dict[str, Any]:
    """Flags of what a step is and of what is learned become the law and the denoiser."""
    if "law" in values:
        return values
    old = {name: values.pop(name, default) for name, default in _FLAGS.items()}
    start = values.get("tau", "start") in ("start", 1, 1.0)
    values["law"] = _law(old, start)
    denoiser = {"weight": old["denoiser_weight"], "antithetic": old["antithetic"], "alpha": old["alpha"]}
    denoiser = current(denoiser, "Denoiser")
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
        raise ValueError(REFINED)
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


def _video_variant(values: dict[str, Any]) -> dict[str, Any]:
    """Scores of every clip are kept of test clips."""
    part = values.get("part") or "test"
    if values.pop("keep", part == "test") != (part == "test"):
        raise ValueError(f"`keep={part != 'test'}` of {part} clips is gone. {LAST} still reads this record.")
    return values | {"part": part}


def _series_record(values: dict[str, Any]) -> dict[str, Any]:
    """The logarithm of series was a flag."""
    off = dict(values.get("off") or {})
    if "log" in off:
        off["curve"] = "log" if off.pop("log") else "none"
    return values | {"off": off}


REWRITTEN = {
    "SeriesRecord": _series_record,
    "Sampler": _sampler,
    "VideoVariant": _video_variant,
    "NeuralSDEConfig": _neural_sde,
    "DDIMConfig": _generation,
    "RectifiedFlowConfig": _generation,
    "PFIConfig": _generation,
}

ADDED = {"scale.time_mean": 0.0, "scale.time_std": 1.0, "scale.time_last": 1e30}
"""Tensors that earlier models lack, and what they amount to: time was in reference steps as it is."""
NEW = ("law.steps",)
"""Tensors that models of earlier formats lack: they have what a new model begins with."""
RENAMED = {"log_error": "measurement.log_std"}  # tensors of format 1 under their new names
