"""From settings to models: nets and units for given data, and models from files."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuralsde.baselines.bet import BET
from neuralsde.baselines.ddim import DDIM
from neuralsde.baselines.gaussian import GaussianMLP
from neuralsde.baselines.ibc import IBC
from neuralsde.baselines.imitation import ImitationModel
from neuralsde.baselines.lstm_gmm import LSTMGMM
from neuralsde.baselines.next_state import EMBEDDING, NextStateModel
from neuralsde.baselines.pfi import PFI
from neuralsde.baselines.rectified_flow import RectifiedFlow
from neuralsde.config import (
    AutoencoderConfig,
    BETConfig,
    DDIMConfig,
    EncodedConfig,
    GaussianConfig,
    IBCConfig,
    ImageConfig,
    ImitationConfig,
    LSTMGMMConfig,
    ModelConfig,
    NeuralSDEConfig,
    NextStateConfig,
    Normalise,
    PFIConfig,
    RectifiedFlowConfig,
    TinyConfig,
)
from neuralsde.files import read_tensors
from neuralsde.method import NeuralSDE
from neuralsde.nets import NETS, HistoryMLP
from neuralsde.nets.convolutional import Decoder, Encoder
from neuralsde.nets.tiny import TinyDecoder, TinyEncoder
from neuralsde.records import from_dict
from neuralsde.sequence import FORMAT, Scale, SequenceModel, Transition, evaluating
from neuralsde.trajectories import Transitions
from neuralsde.video.autoencoder import Autoencoder

CLASSES: dict[str, tuple[type[SequenceModel], type]] = {
    "NeuralSDE": (NeuralSDE, NeuralSDEConfig),
    "DDIM": (DDIM, DDIMConfig),
    "RectifiedFlow": (RectifiedFlow, RectifiedFlowConfig),
    "PFI": (PFI, PFIConfig),
    "Autoencoder": (Autoencoder, AutoencoderConfig),
    "GaussianMLP": (GaussianMLP, GaussianConfig),
    "LSTMGMM": (LSTMGMM, LSTMGMMConfig),
    "IBC": (IBC, IBCConfig),
    "BET": (BET, BETConfig),
}
STATISTICS_FROM = 200_000
"""Transitions from which units and bounds are computed."""


def build(config: ModelConfig, data: Transitions, *, nets: Any = None, seed: int = 0) -> SequenceModel:
    """A model for `data`: units and bounds from it, nets from the config or the caller's own.

    Weights depend on `seed` alone.
    """
    model = _assemble(config, data.data.shape, data.data.context_size, nets, seed)
    if model.own_nets:
        _check_nets(model)
    model.to(data.start.device)
    num = min(STATISTICS_FROM, max(1_000, 20_000_000 // math.prod(data.data.shape)))
    pairs = data.spread(num, context=False)
    fit_scale(model.scale, pairs, config.normalise)
    context = data.spread(num).context
    if context is not None:
        fit_context(model.scale, context, config.net)
    if data.step is not None:
        model.scale.dt_ref.fill_(data.step)
    assert isinstance(model, (NeuralSDE, NextStateModel, GaussianMLP, ImitationModel, Autoencoder))
    model.fit_bounds(pairs)
    _fit_units(model, pairs)
    model.lag = data.lag
    _warn_of_history(model, pairs)
    return model


def _assemble(config: ModelConfig, shape: tuple[int, ...], context_size: int, nets: Any, seed: int) -> SequenceModel:
    cls = _class_of(config)
    own_nets = nets is not None
    if own_nets and not isinstance(nets, Mapping):
        raise ValueError(
            f"`nets` must hold your nets by name: {{'flow': …, 'diffusion': …}}. Got a {type(nets).__name__}."
        )
    if nets is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            nets = _nets(config, shape, context_size)
    model = cls(nets, Scale(shape, context_size), config)  # type: ignore[call-arg, arg-type]
    model.own_nets = own_nets
    return model


def _class_of(config: ModelConfig) -> type[SequenceModel]:
    return next(c for c, settings in CLASSES.values() if settings is type(config))


def _nets(config: ModelConfig, shape: tuple[int, ...], context_size: int) -> dict[str, nn.Module]:
    """The nets by name, each with the condition that its model gives it."""
    if isinstance(config, AutoencoderConfig):
        if isinstance(config.net, TinyConfig):
            return {"encoder": TinyEncoder(shape[0]), "decoder": TinyDecoder(shape[0])}
        return {"encoder": Encoder(config.net, shape[0]), "decoder": Decoder(config.net, shape[0])}
    if isinstance(config, ImitationConfig):
        policy: Any = _class_of(config)
        return {"net": policy.default_net(config, shape, context_size)}
    names, size, num_fields = ["net"], context_size + config.num_late, 1
    reader = None
    if isinstance(config, NeuralSDEConfig):
        names = config.parts
        if config.shared:
            reader = names.index("diffusion") if config.diffusion else None
            names, num_fields = ["trunk"], len(names)
    elif isinstance(config, GaussianConfig):
        size, num_fields = size + 1, 2
    else:
        size += EMBEDDING + math.prod(shape)
    if isinstance(config.net, ImageConfig) and not isinstance(config, NeuralSDEConfig):
        raise ValueError(f"An ImageConfig is a net of a NeuralSDE. Got it in a {type(config).__name__}.")
    if type(config.net) not in NETS:
        raise ValueError(
            f"`net` must be a config such as MLPConfig(width=64). Got a {type(config.net).__name__}. "
            "Modules of your own go into `nets`."
        )
    net: Any = NETS[type(config.net)]
    slots = config.history
    if isinstance(config, NextStateConfig) and getattr(net, "takes_target", False):  # as one more slot
        size, slots = size - math.prod(shape), slots + 1
    more = {"history": slots, "condition_size": size, "num_fields": num_fields}
    more |= {} if reader is None else {"reader": reader}
    more |= {"late": config.num_late} if isinstance(config.net, EncodedConfig) else {}
    return {name: net(config.net, shape, **more) for name in names}


def _fit_units(model: SequenceModel, pairs: Transition) -> None:
    """Encoders of the history measure their inputs on the data."""
    noise = getattr(model, "sigma", torch.tensor(getattr(model.config, "noise", 0.0)))
    for net in model.nets.values():
        if isinstance(net, HistoryMLP):
            net.fit_units(model.scale.states(pairs.history), noise)


def _check_nets(model: SequenceModel) -> None:
    """The caller's own nets must give one value per feature: other shapes would broadcast, and train something else."""
    if not isinstance(model, NeuralSDE):
        return
    state = torch.zeros(2, model.config.history, *model.scale.shape)
    size = model.scale.context_size + model.config.num_late
    condition = torch.zeros(2, size) if size else None
    if len(set(model.nets.values())) < len(model.nets):
        raise ValueError(
            "`nets` must hold a net of its own for each name: what they learn must not mix. Got one twice."
        )
    for name, net in model.nets.items():
        what = f"a state {tuple(state.shape)} and a condition {None if condition is None else (2, size)}"
        try:
            with torch.no_grad(), evaluating(net):
                got = tuple(net(state.to(next(net.parameters(), state).device), condition).shape)
        except (TypeError, RuntimeError) as error:
            raise ValueError(f"The net {name!r} must take {what}. It says: {error}") from error
        wanted = (2, *([len(model.config.parts)] if model.config.shared else []), *model.scale.shape)
        if got != wanted:
            raise ValueError(f"The net {name!r} must map a state {tuple(state.shape)} to {wanted}. Got {got}.")


def _warn_of_history(model: SequenceModel, pairs: Transition) -> None:
    """Slots carry the velocity in their differences: noise or uneven gaps can drown it."""
    if model.config.history == 1:
        return
    slots = model.scale.states(pairs.history)
    size = float(slots.diff(dim=1).square().mean().sqrt())
    noise = float(torch.as_tensor(getattr(model.config, "noise", 0.0)).max())
    share = 0.6 if slots.ndim > 4 else 0.25  # of pictures, neighbours show the same motion
    if noise > share * size:
        warnings.warn(
            f"noise={noise:g} hides the differences between slots (rms {size:.2g}). Use a smaller `noise` or a `lag`.",
            stacklevel=3,
        )
    if model.lag is None and float(pairs.dt.std(correction=0)) > 0.1 * float(pairs.dt.mean()):
        warnings.warn("`history` on irregular stamps has slots at uneven gaps. Give a `lag`.", stacklevel=3)


@torch.no_grad()
def fit_scale(scale: Scale, pairs: Transition, mode: Normalise) -> None:
    """Set the units from the data. A constant feature gets the scale 1."""
    states = torch.cat([pairs.history[:, -1], pairs.next]).double()
    if pairs.mask is not None:
        _check_mask(pairs.mask)
        states = states.where(pairs.mask.repeat(2, *[1] * (states.ndim - 1)), math.nan)
    per_channel = (0, *range(2, states.ndim))  # vectors: per feature; images and latents: per channel
    if states.ndim == 3:  # chunks (horizon, features): per feature
        per_channel = (0, 1)
    low = states.nan_to_num(math.inf).amin(per_channel, keepdim=True)[0]
    high = states.nan_to_num(-math.inf).amax(per_channel, keepdim=True)[0]
    if mode == "min_max":
        mean, std = (low + high) / 2, (high - low) / 2
    else:
        mean = states.nanmean(per_channel, keepdim=True)
        std = (states - mean).square().nanmean(per_channel, keepdim=True).sqrt()[0]
        mean = mean[0]
        if mode == "isotropic":
            std = std.square().mean().sqrt().expand_as(std)
    if mode == "none":
        mean, std = torch.zeros_like(mean), torch.ones_like(std)
    constant = std <= 1e-6 * torch.maximum(mean.abs(), torch.full_like(mean, 1e-30))
    std = torch.where(constant, torch.ones_like(std), std)
    for name, value in (("mean", mean), ("std", std), ("low", low), ("high", high)):
        getattr(scale, name).copy_(value.expand(scale.shape))
    scale.dt_ref.copy_(pairs.dt.double().median())


@torch.no_grad()
def fit_context(scale: Scale, context: Tensor, net: Any) -> None:
    """Set the units of the context from the data; those of pixels, which may be rare colours, are [-1, 1] whatever it is."""
    spread = context.std(0, correction=0)
    scale.context_mean.copy_(context.mean(0))
    scale.context_std.copy_(
        torch.where(spread > 1e-6 * scale.context_mean.abs().clamp(min=1e-30), spread, torch.ones_like(spread))
    )
    if isinstance(net, ImageConfig):
        num, others = net.layout(scale.context_size)
        for values in (scale.context_mean, scale.context_std):
            values.view(num, -1)[:, others:] = 127.5


def _check_mask(mask: Tensor) -> None:
    never = (~mask.any(0)).nonzero()
    if len(never):
        raise ValueError(
            f"Every feature must be observed at both ends of some transition. Got none for feature {never[0].tolist()}. "
            "Give a `lag` after which it is observed again, or drop it."
        )


def load(path: str | os.PathLike[str], *, nets: dict[str, nn.Module] | None = None) -> SequenceModel:
    """The model in a folder written by `save_pretrained`, or in the run folder around it. Nothing in it is executed."""
    folder, inner = Path(path), Path(path) / "model"
    folder = inner if (inner / "config.json").is_file() and not (folder / "config.json").is_file() else folder
    record = _read_record(folder)
    cls, settings = CLASSES[record["kind"]]
    config: ModelConfig = from_dict(settings, record["config"])
    if record.get("own_nets") and nets is None:
        names = ", ".join(f"{n!r}: …" for n in record["nets"])
        raise ValueError(
            f"{folder} was saved with nets of your own. Load it with {cls.__name__}.from_pretrained(path, nets={{{names}}})."
        )
    model = _assemble(config, tuple(record["state_shape"]), record["context_size"], nets, 0)
    tensors = read_tensors(folder / "model.safetensors")
    wrong = _mismatch(model.state_dict(), tensors)
    if wrong:
        raise ValueError(
            f"{folder / 'model.safetensors'} does not fit its config.json: {wrong}. Save again, or give the same nets."
        )
    model.load_state_dict(tensors)
    model.lag = tuple(record["lag"]) if isinstance(record["lag"], list) else record["lag"]
    return model.eval()


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
    if not isinstance(record, dict) or record.get("kind") not in CLASSES:
        kind = record.get("kind") if isinstance(record, dict) else record
        raise ValueError(f"{file} is not from this library: kind={kind!r} is none of {sorted(CLASSES)}.")
    lacking = [k for k in ("config", "state_shape", "context_size", "lag") if k not in record]
    if lacking:
        raise ValueError(f"{file} lacks {', '.join(lacking)}. Save the model again.")
    if record.get("format") != FORMAT:
        raise ValueError(
            f"{file} has format {record.get('format')!r}, this version reads {FORMAT}. Install a newer neuralsde."
        )
    return record


def _mismatch(wanted: dict[str, Tensor], got: dict[str, Tensor]) -> str:
    for name in sorted(wanted.keys() | got.keys()):
        if name not in got:
            return f"{name} is missing"
        if name not in wanted:
            return f"{name} is unknown"
        if wanted[name].shape != got[name].shape:
            return f"{name} has shape {tuple(got[name].shape)}, not {tuple(wanted[name].shape)}"
    return ""
