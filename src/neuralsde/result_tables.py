"""Results files as Markdown tables, one function per task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


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


TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {"branching": branching, "known-sdes": known_sdes}
