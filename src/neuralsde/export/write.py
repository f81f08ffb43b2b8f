"""From a model to files that run without it: graphs of its step and its plan, and a contract that says what they take.

A folder appears whole or not at all, and only after the graphs have been run in their own runtime and agree with the eager
model on random inputs.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from neuralsde.core.doors import Count, door
from neuralsde.core.extras import need
from neuralsde.core.files import writable_folder, write_json
from neuralsde.core.records import RunError, check, to_dict
from neuralsde.core.version import __version__
from neuralsde.export.formats import RUNNERS, WRITERS, largest_error, trace
from neuralsde.export.graphs import Graph, model_graphs, policy_graphs
from neuralsde.export.series import series_graphs
from neuralsde.forecast.series import SeriesModel
from neuralsde.forecast.tables import TableModel
from neuralsde.models.config import Drawing
from neuralsde.models.hub import local_folder
from neuralsde.models.sequence import SequenceModel
from neuralsde.policy.controller import RECORD as POLICY
from neuralsde.policy.controller import SDEPolicy
from neuralsde.policy.shipped import shipped
from neuralsde.video.model import video_folder

Format = Literal["onnx", "pt2"]
CONTRACT = "contract.json"
FORMAT = 1  # of the contract
TOLERANCE = 1e-5  # in units of the data's scale
BATCHES = (1, 2, 7)  # rows of the random inputs
SHIPPED = "pusht"
USUAL_STEPS = 20  # of a plan whose length was not said
MOST_STEPS = 1_000
NEEDS = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "pt2": ()}


@dataclass(frozen=True)
class Export:
    """Files that were written; `print` it."""

    folder: Path
    contract: dict[str, Any]

    def __str__(self) -> str:
        lines = [f"Wrote {self.folder / CONTRACT}"]
        for name, graph in self.contract["graphs"].items():
            takes = ", ".join(f"{p['name']} {_shape(p)}" for p in graph["inputs"])
            gives = f"{graph['output']['name']} {_shape(graph['output'])}"
            lines.append(f"Wrote {self.folder / graph['file']}: {name} from {takes} to {gives}")
        worst = max(graph["parity"]["max_error"] for graph in self.contract["graphs"].values())
        lines.append(f"Largest difference from the eager model: {worst:.1e} in units of the data's scale.")
        return "\n".join(lines)


def _shape(port: dict[str, Any]) -> str:
    return "×".join(map(str, port["shape"]))


@door
def export_model(
    model: Any,
    path: str | os.PathLike[str],
    *,
    format: Format = "onnx",
    steps: Count | None = None,
    sampler: Drawing = None,
) -> Export:
    """Write the step and the plan of a model into the new folder `path`: raw data and noise in, raw data out.

    Args:
        model: a model, a policy or a table model, or its folder; "pusht" is the policy that comes with the library.
        path: of a folder that does not exist yet, or is empty.
        format: ONNX, or the format of `torch.export`.
        steps: of a plan, in training steps; None: those of the backtest, or 20. A policy plans as its config says.
        sampler: how paths are drawn, if not as the model's sampler says.
    """
    need(f"Export to {format}", *NEEDS[format])
    source = open_model(model)
    target = _new_folder(path)
    graphs, about = _graphs(source, steps, sampler)
    check(not _too_long(graphs), f"`steps` must give at most {MOST_STEPS:,} solver steps. Got more. Use fewer.")
    made = {name: _encode(name, graph, format) for name, graph in graphs.items()}
    contract = {
        "format": FORMAT,
        **about,
        "batch": "the first axis of every input and output, of any size",
        "graphs": {name: record for name, (record, _) in made.items()},
        "versions": _versions(format),
    }
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        folder = Path(scratch) / target.name
        folder.mkdir()
        for record, data in made.values():
            (folder / record["file"]).write_bytes(data)
        write_json(folder / CONTRACT, contract)
        os.replace(folder, target)
    return Export(target, contract)


def open_model(source: Any) -> SequenceModel | SDEPolicy | TableModel:
    """What a folder holds, or what is in memory already."""
    if isinstance(source, (SequenceModel, SDEPolicy, TableModel)):
        return source
    if not isinstance(source, (str, os.PathLike)):
        kinds = "a model, a policy, a table model or a folder"
        raise ValueError(f"`model` must be {kinds}. Got a {type(source).__name__}.")
    folder = Path(source)
    if str(source) == SHIPPED and not folder.exists():
        return SDEPolicy.from_pretrained(shipped())
    folder = local_folder(source)
    for place in (folder, folder / "model"):
        if (place / POLICY).is_file():
            return SDEPolicy.from_pretrained(place)
    if video_folder(folder) is not None:
        raise ValueError(f"{source} holds a model of videos, which has no export yet. Draw from it with `nsde sample`.")
    return TableModel.load(folder)


def _new_folder(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists and is not an empty folder. Name another, or remove it.")
    writable_folder(target.parent)
    return target


def _graphs(source: Any, steps: int | None, sampler: Any) -> tuple[dict[str, Graph], dict[str, Any]]:
    """What is exported, and what the contract says of the model."""
    if isinstance(source, SDEPolicy):
        check(steps is None, "`steps` is for models: a policy plans as its config says. Leave it out.")
        check(sampler is None, "`sampler` of a policy is its own: load it with SDEPolicy.from_pretrained(sampler=…).")
        about = {"kind": "policy", "model": _about(source.model), "policy": _policy(source)}
        return policy_graphs(source), about
    table = source if isinstance(source, TableModel) else TableModel(source)
    model = table.model
    names = () if table.series is None else table.series.columns
    about = {"kind": "model", "model": _about(model)}
    if table.series is not None:
        about["table"] = {
            "columns": list(names),
            "context": list(table.series.context),
            "time_unit": table.series.time_unit,
        }
    if isinstance(table, SeriesModel):
        num = steps or table.record.horizon
        about |= {
            "kind": "series",
            "decomposition": to_dict(table.record.off),
            "frequency": table.record.frequency.words,
        }
        return series_graphs(table, sampler or model.forecast_sampler, num), about
    unit = "" if table.series is None else table.series.time_unit
    return model_graphs(model, sampler or model.forecast_sampler, steps or USUAL_STEPS, names, unit), about


def _too_long(graphs: dict[str, Graph]) -> bool:
    return any(graph.record["solver_steps"] > MOST_STEPS for graph in graphs.values())


def _about(model: SequenceModel) -> dict[str, Any]:
    scale = model.scale
    units = {name: getattr(scale, name).flatten().tolist() for name in ("mean", "std")}
    return {
        "class": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "state_shape": list(scale.shape),
        "history": model.config.history,
        "context_size": scale.context_size,
        "step": scale.step,
        "units": {"inside": "raw data in, raw data out", "transform": list(scale.transforms), **units},
    }


def _policy(policy: SDEPolicy) -> dict[str, Any]:
    limits = [[v if abs(v) < float("inf") else None for v in side.tolist()] for side in policy.limits]
    return {
        "config": to_dict(policy.config),
        "control_dt": policy.control_dt,
        "limits": limits,
        "default_action": policy.default_action.tolist(),
        "observation": policy.observation,
    }


def _encode(name: str, graph: Graph, format: str) -> tuple[dict[str, Any], bytes]:
    """The record of a graph, and its bytes once they agree with the model."""
    try:
        data = WRITERS[format](graph, trace(graph))
    except ValueError:
        raise
    except Exception as error:  # the exporters raise whatever their parts do
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"The {name} of this model cannot be exported to {format}: {why}") from error
    worst, beyond = largest_error(graph, RUNNERS[format](data), BATCHES, seed=1)
    if not beyond <= TOLERANCE:
        found = f"The exported {name} is off the eager model by {worst:.2g} in units of the data's scale"
        raise RunError(f"{found} (at most {TOLERANCE:g}). Nothing was written. Try fewer `steps`.")
    record = {
        "file": f"{name}.{format}",
        "sha256": hashlib.sha256(data).hexdigest(),
        "inputs": [port.record() for port in graph.ports],
        "noise": [draws.name for draws in graph.draws],
        "output": graph.output.record(),
        **graph.record,
        "parity": {"max_error": worst, "tolerance": TOLERANCE, "unit": "the data's scale", "rows": sum(BATCHES)},
    }
    return record, data


def _versions(format: str) -> dict[str, str]:
    return {"neuralsde": __version__, "torch": torch.__version__} | {name: version(name) for name in NEEDS[format]}
