"""The card of a model: what it was trained on, in which units, how it draws, its scores where they are known, how to load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neuralsde.core.records import to_dict
from neuralsde.core.version import __version__
from neuralsde.models.config import ModelConfig
from neuralsde.models.scale import Scale

MOST_FEATURES = 32  # rows of the table of units
MOST_SCORES = 24


def model_card(
    name: str,
    config: ModelConfig,
    scale: Scale,
    *,
    num_parameters: int,
    loader: str,
    learned_from: Mapping[str, int] | None = None,
    report: Mapping[str, Any] | None = None,
    scores: Mapping[str, float] | None = None,
    data: str = "",
    features: Sequence[str] = (),
) -> str:
    """Markdown with the header that the Hub reads.

    Args:
        name: on the Hub.
        loader: the call that loads it, as a user writes it.
        learned_from: how many paths and transitions.
        report: how the model was chosen, where `neuralsde.fit` chose it.
        scores: numbers by name.
        data: a sentence on what it was trained on.
        features: names of the entries of a state.
    """
    settings = to_dict(config)
    facts = {
        "kind": type(config).__name__.removesuffix("Config"),
        "parameters": f"{num_parameters:,}",
        **{f"{key} of the training": f"{num:,}" for key, num in (learned_from or {}).items()},
        "state": " × ".join(map(str, scale.shape)),
        "history": f"{config.history} state(s)",
        "context": f"{scale.context_size} value(s)",
        "training step": f"{scale.step:g}",
        **{key: _in_words(value) for key, value in settings.items() if isinstance(value, dict) and key != "sampler"},
    }
    lines = [
        "---",
        "library_name: neuralsde",
        "tags:",
        "- neuralsde",
        "- sde",
        "- sequence-model",
        "---",
        "",
        f"# {name}",
    ]
    lines += ["", data or "A model of continuous sequences, learned from pairs of consecutive states.", ""]
    lines += [
        "```python",
        "import neuralsde as nsde",
        "",
        f'model = {loader}("{name}")',
        "```",
        "",
        "## What it is",
        "",
    ]
    lines += _table(("fact", "value"), facts.items())
    lines += ["", "## Units", "", "States go in and come out in the units of the data.", ""]
    lines += _table(("feature", "mean", "standard deviation", "lowest", "highest"), _units(scale, features))
    if scale.turns:
        lines += ["", "Lowest and highest are those of the uncorrelated coordinates."]
    lines += ["", "## How it draws", ""]
    lines += _table(("setting", "value"), [(k, v) for k, v in settings.get("sampler", {}).items() if k != "kind"])
    known = report or {}
    own = {key: known[key] for key in ("score", "default_score") if isinstance(known.get(key), Mapping)}
    every = {**_numbers(own), **(scores or {})}
    if isinstance(known.get("choice"), str):
        lines += ["", "## Why this model", "", f"{known['choice']}. {known.get('reason', '')}".strip()]
    lines += ["", "## Scores", ""]
    if every:
        lines += [f"{str(known['words']).capitalize()}.", ""] if own and known.get("words") else []
        lines += _table(("score", "value"), [(k, f"{v:.4g}") for k, v in list(every.items())[:MOST_SCORES]])
    else:
        lines += ["None are recorded with the model."]
    return "\n".join([*lines, "", f"Saved by neuralsde {__version__}.", ""])


def _table(header: Sequence[str], rows: Any) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines]


def _units(scale: Scale, features: Sequence[str]) -> list[tuple[str, ...]]:
    columns = [getattr(scale, part).flatten().tolist() for part in ("mean", "std", "low", "high")]
    rows = [(f"{k}", *(f"{v:.4g}" for v in row)) for k, row in enumerate(zip(*columns))]
    if len(features) == len(rows):
        rows = [(name, *row[1:]) for name, row in zip(features, rows)]
    more = [(f"… {len(rows) - MOST_FEATURES} more", "", "", "", "")] if len(rows) > MOST_FEATURES else []
    return rows[:MOST_FEATURES] + more


def _in_words(settings: Mapping[str, Any]) -> str:
    """`Euler(flow_loss=mse)` of a record."""
    given = ", ".join(f"{k}={v}" for k, v in settings.items() if k != "kind")
    return f"{settings.get('kind', '')}({given})"


def _numbers(report: Any, prefix: str = "") -> dict[str, float]:
    """The plain numbers of a nested record, by their way in it."""
    found: dict[str, float] = {}
    for key, value in (report or {}).items():
        if isinstance(value, Mapping):
            found |= _numbers(value, f"{prefix}{key}, ")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{prefix}{key}"] = float(value)
    return found
