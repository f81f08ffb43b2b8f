"""Results files as Markdown tables, one function per task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neuralsde.experiments import result_tables_video as video
from neuralsde.experiments.config import ROBUSTNESS
from neuralsde.experiments.recipes.pusht import comparison
from neuralsde.metrics.imitation import wilson

WORLDS = [variant.name for variant in ROBUSTNESS]


def branching(values: Mapping[str, Any]) -> str:
    """The summary of the branching task as a Markdown table."""
    lines = [
        "| model | branches taken | neither | distance | fork offset | end error | passes per path |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, row in values["summary"].items():
        if not row:
            continue
        shares = " : ".join(f"{b['mean']:.2f}" for b in row["branch_fraction"])
        first = row["branch_fraction"][0]
        spread = f" ({first['min']:.2f}–{first['max']:.2f})" if row["num_seeds"] > 1 else ""
        lines.append(
            f"| {label} | {shares}{spread} | {100 * row['neither']['mean']:.1f} % "
            f"| {_show(row['distance'])} | {_show(row['fork_offset'], sign=True)} | {_show(row['end_error'])} "
            f"| {row['network_passes']['mean']:,.0f} |"
        )
    return "\n".join(lines)


def _show(value: Mapping[str, float | None], *, sign: bool = False) -> str:
    mean, half = value["mean"], value.get("ci95")
    if mean is None:
        return "–"
    digits = 4 if abs(mean) < 0.1 and not sign else 3 if abs(mean) < 0.1 else 2
    return f"{mean:{'+' if sign else ''}.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def known_sdes(values: Mapping[str, Any]) -> str:
    """The summary of the known SDEs: errors in percent, excess likelihood in millinats, coverage in percent."""
    lines = [
        "| system, training | seeds | drift error % | true family % | diffusion error % | excess NLL, mnat | 80 % band | 95 % band "
        "| 10-step law (floor) | 100-step law (floor) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for label, row in values["summary"].items():
        if not row:
            continue
        cells = [
            str(row["num_seeds"]),
            _scaled(row.get("drift_error"), 100),
            _scaled(row.get("parametric_drift_error"), 100),
            _scaled(row.get("diffusion_error"), 100, 2),
            _scaled(row.get("excess_nll"), 1000),
            _scaled(row.get("coverage_80"), 100),
            _scaled(row.get("coverage_95"), 100),
            *(
                f"{_scaled(row.get(f'energy_{k}_steps'), 1000)} ({_scaled(row.get(f'energy_{k}_steps_floor'), 1000, half=False)})"
                for k in (10, 100)
            ),
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _scaled(value: Mapping[str, float | None] | None, factor: float, digits: int = 1, *, half: bool = True) -> str:
    if value is None or value["mean"] is None:
        return "–"
    spread = value.get("ci95") if half else None
    return f"{factor * value['mean']:.{digits}f}" + ("" if spread is None else f" ± {factor * spread:.{digits}f}")


# Push-T

ABSENT = "not measured"
SCORE_WORDS = (
    "The score is the mean over episodes of the best reward, coverage / 0.95 up to 1; success is the share of episodes whose "
    "coverage exceeded 0.95."
)


def policy_scores(found: Mapping[str, Any]) -> str:
    """Both figures of a policy (`metrics.imitation.summary`) with their intervals, and what tells them apart."""
    lines = []
    for name in ("score", "success"):
        value = found[name]
        ends = "" if value["low"] is None else f"  (95 %: {max(value['low'], 0):.3f} to {min(value['high'], 1):.3f})"
        lines.append(f"{name:8} {value['mean']:.3f}{ends}")
    return "\n".join([*lines, f"{found['score']['n']} episode(s), seeds {found['seeds']}", SCORE_WORDS])


def lost_episodes(failures: list[dict[str, str]]) -> list[str]:
    """One line for each worker that was lost with its episodes."""
    return [f"! Lost: the episodes of seeds {f['seeds']}. {f['message']}" for f in failures]


def pusht(values: Mapping[str, Any]) -> str:
    """Methods; robustness; ablations. `values["latency"]`, if there, is the file of benchmarks/pusht_latency.py."""
    return "\n\n".join([pusht_methods(values), pusht_robustness(values), pusht_ablations(values)])


def _pusht_rows(values: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The summaries of all rows, by label; each variant of a policy that is no harder world is a row of its own."""
    planned = {label: [v.name for v in row.task.variants] for label, row in comparison().items()}
    rows = {}
    for label in dict.fromkeys([*planned, *values["summary"]]):
        row = values["summary"].get(label) or {}
        rows[label] = row
        measured = [key.removesuffix(": score") for key in row if key.endswith(": score")]
        for name in dict.fromkeys([*planned.get(label, []), *measured]):
            if name not in WORLDS:
                rows[f"{label}, {name}"] = _variant(row, name)
    return rows


def _variant(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The summary of a variant: its own scores, and what it shares with the policy as trained."""
    if f"{name}: score" not in row:
        return {}
    shared = {k: row[k] for k in ("num_episodes", "parameters", "train_seconds") if k in row}
    shared["num_seeds"] = row[f"{name}: score"].get("n", row["num_seeds"])  # not every training need have it
    return shared | {k.removeprefix(f"{name}: "): v for k, v in row.items() if k.startswith(f"{name}: ")}


def _is_ablation(label: str) -> bool:
    return label.startswith("NSDE") and label != "NSDE" and "demonstrations" not in label and "CPU" not in label


def pusht_methods(values: Mapping[str, Any]) -> str:
    """Every method with what it costs; the latency is that of a plan, or of one action where a method plans no more."""
    lines = [
        "| method | score | success | parameters | passes per plan | ms per plan, CPU core | ms per plan, GPU | training, s "
        "| seeds × episodes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    latency = (values.get("latency") or {}).get("rows", {})
    for label, row in _pusht_rows(values).items():
        if _is_ablation(label):
            continue
        timed = latency.get(label, {})
        passes = (row.get("network_passes") or {}).get("mean", timed.get("network_passes"))
        parameters = row.get("parameters", timed.get("parameters"))
        cells = [
            *_figures(row),
            "–" if parameters is None else f"{parameters / 1e6:.2f} M",
            "–" if passes is None else f"{passes:g}",
            *(_milliseconds(timed, device) for device in ("cpu", "gpu")),
            f"{row['train_seconds']['mean']:,.0f}" if "train_seconds" in row else "–",
            _sizes(row),
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pusht_robustness(values: Mapping[str, Any]) -> str:
    """Harder worlds: the methods that were run in them side by side, without any retraining."""
    planned = [label for label, row in comparison().items() if any(v.name in WORLDS for v in row.task.variants)]
    measured = [k for k, row in values["summary"].items() if any(f"{world}: score" in row for world in WORLDS)]
    rows = {label: values["summary"].get(label) or {} for label in dict.fromkeys([*planned, *measured])}
    head = [f"{label}: {figure}" for label in rows for figure in ("score", "success")]
    lines = [f"| world | {' | '.join(head)} |", "|---" * (1 + len(head)) + "|"]
    for world in ["as in training", *WORLDS]:
        found = [row if world not in WORLDS else _variant(row, world) for row in rows.values()]
        lines.append(f"| {world} | {' | '.join(cell for row in found for cell in _figures(row))} |")
    return "\n".join(lines)


def pusht_ablations(values: Mapping[str, Any]) -> str:
    """The method and what each of its parts is worth."""
    lines = ["| method | score | success | seeds × episodes |", "|---|---|---|---|"]
    for label, row in _pusht_rows(values).items():
        if label == "NSDE" or _is_ablation(label):
            lines.append(f"| {label} | {' | '.join([*_figures(row), _sizes(row)])} |")
    return "\n".join(lines)


def _figures(row: Mapping[str, Any]) -> list[str]:
    """Score and success: mean over training seeds ± half of its 95 % interval; of one or two, of that over episodes."""
    if not row:
        return [ABSENT, "–"]
    score, success = (dict(row[name]) for name in ("score", "success"))
    if "num_episodes" in row:
        low, high = wilson(round(success["mean"] * row["num_episodes"]), row["num_episodes"])
        within = (row.get("score_half_width") or {}).get("mean")
        score["ci95"] = video.half_width(score, row["num_seeds"], within)
        success["ci95"] = video.half_width(success, row["num_seeds"], (high - low) / 2)
    return [_scaled(value, 1, 3) for value in (score, success)]


def _sizes(row: Mapping[str, Any]) -> str:
    return f"{row['num_seeds']} × {row['num_episodes']}" if row else "–"


def _milliseconds(timed: Mapping[str, Any], device: str) -> str:
    if device not in timed:
        return "–"
    unit = "" if timed["num_actions"] > 1 else " per action"
    value, alone = timed[device]["p50_ms"], timed[device].get("alone_ms")
    text = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") + unit
    return text if alone is None else f"{text} ({alone:.3g} alone)"


TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "branching": branching,
    "known-sdes": known_sdes,
    "pusht": pusht,
    "video-collisions": video.collisions,
    "video-collisions-128": video.large,
    "video-scaling": video.scaling,
    "video-people": video.people,
}
