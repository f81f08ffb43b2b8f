"""Write the tables between the marks in README.md and docs/ from results/. `--check` fails where they are out of date.

A mark is `<!-- table: NAME -->` … `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from neuralsde.experiments import result_tables, result_tables_video

ROOT = Path(__file__).parent.parent


def _results(name: str) -> dict:
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


def branching() -> str:
    """All rows of the branching comparison."""
    return result_tables.branching(_results("branching.json"))


def branching_short() -> str:
    """The rows a newcomer wants to see."""
    values = _results("branching.json")
    short = {k: v for k, v in values["summary"].items() if "paper" not in k and "noisy" not in k}
    return result_tables.branching({"summary": short})


def source() -> str:
    """How the branching numbers were made."""
    values = _results("branching.json")
    run = values["runs"][0]
    commits = {c: sum(r["commit"] == c for r in values["runs"]) for c in sorted({r["commit"] for r in values["runs"]})}
    origin = ", ".join(f"`{c}` ({n} runs)" for c, n in commits.items())
    hardware = run["hardware"]
    where = hardware["gpu"] or f"{hardware['cores']} cores of {hardware['cpu']}"
    seeds = values["summary"][run["label"]]["num_seeds"]
    return (
        f"{seeds} training seeds × {run['scores']['num_paths']} paths, mean ± 95 % interval over seeds; torch "
        f"{run['versions']['torch']}, {where} (the rivals at density 10 on a GPU); commits {origin}. "
        "`make results` runs all of it anew."
    )


def history() -> str:
    """How far nets with a short and a long memory stay below the best possible likelihood."""
    summary = _results("history.json")["summary"]
    names = [name.split("; ") for name in summary]
    nets, cases = (list(dict.fromkeys(part)) for part in zip(*names))
    lines = ["| net | " + " | ".join(cases) + " |", "|---" * (1 + len(cases)) + "|"]
    for net in nets:
        cells = [summary[f"{net}; {case}"]["below_optimum"] for case in cases]
        lines.append(f"| {net} | " + " | ".join(f"{c['mean']:.3f} ± {c['ci95']:.3f}" for c in cells) + " |")
    return "\n".join(lines)


def inverse_dynamics() -> str:
    """Success of the policies that learned from states alone, and of those that had actions."""
    lines = ["| policy | reaches the goal | passes above | with a wall on one side |", "|---|---|---|---|"]
    for name, row in _results("inverse_dynamics.json")["rows"].items():
        good, walled = (
            f"{r['share']:.3f} ({r['ci95'][0]:.3f}–{r['ci95'][1]:.3f})"
            for r in (row["success"], row["success_with_a_wall"])
        )
        sides = f"{row['above']['share']:.2f} ({min(row['above_by_seed']):.2f}–{max(row['above_by_seed']):.2f})"
        lines.append(f"| {name} | {good} | {sides} | {walled} |")
    return "\n".join(lines)


def known_sdes() -> str:
    """All rows of the known SDEs."""
    return result_tables.known_sdes(_results("known_sdes.json"))


def known_sdes_short() -> str:
    """One system with a drift that is linear and one with a drift that is not, and the hard cases."""
    values = _results("known_sdes.json")
    rows = {k: v for k, v in values["summary"].items() if k.startswith(("cir", "lorenz")) or "measurement" in k}
    return result_tables.known_sdes({"summary": rows})


def known_sdes_source() -> str:
    """What the rows stand on."""
    values = _results("known_sdes.json")
    commits = ", ".join(f"`{c}`" for c in sorted({r["commit"] for r in values["runs"]}))
    small = sorted({r["label"] for r in values["runs"] if r["experiment"]["train"]["batch_size"] == 2_048})
    missing = [k for k, v in values["summary"].items() if not v]
    note = f" Not run yet: {'; '.join(missing)}." if missing else ""
    note += f" Run with batches of 2,048 where the recipe now says 8,192: {'; '.join(small)}." if small else ""
    return (
        f"Mean over training seeds ± 95 % interval where there are several; {len(values['runs'])} runs, commits {commits}.{note} "
        "`nsde compare known-sdes` runs what is missing, up to five seeds each."
    )


def peers() -> str:
    """Quality by time, time to quality and memory of the rivals on known SDEs."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from peers.report import table

    return table(_results("known_sdes_peers.json"))


def pusht() -> str:
    """Push-T: methods, robustness, ablations."""
    latency = ROOT / "results" / "pusht_latency.json"
    values = _results("pusht.json")
    return result_tables.pusht(values | ({"latency": _results(latency.name)} if latency.exists() else {}))


def _video(name: str) -> Callable[[], str]:
    """A table of video, or that there is none yet."""

    def table() -> str:
        file = ROOT / "results" / f"{name.replace('-', '_')}.json"
        return result_tables.TABLES[name](_results(file.name)) if file.exists() else "*Not measured yet.*"

    return table


def video_source() -> str:
    """What the rows stand on."""
    file = ROOT / "results" / "video_collisions.json"
    if not file.exists():
        return "*Not measured yet.*"
    runs = _results(file.name)["runs"]
    commits = ", ".join(f"`{c}`" for c in sorted({r["commit"] for r in runs}))
    seeds = sorted({r["seed"] for r in runs})
    steps = sorted({r["experiment"]["train"]["steps"] for r in runs if r["label"] != "autoencoder"})
    clips = next((r["scores"]["num_clips"] for r in runs if "num_clips" in r["scores"]), 0)
    frames = next((r["scores"] for r in runs if r["label"] == "autoencoder"), None)
    known = "" if frames is None else f" The autoencoder alone: {frames['psnr']:.2f} dB, SSIM {frames['ssim']:.4f}."
    return (
        f"{clips} test clips, training seed(s) {', '.join(map(str, seeds))}, {' or '.join(f'{n:,}' for n in steps)} steps each; "
        f"{runs[0]['hardware']['gpu'] or runs[0]['hardware']['cpu']}; commits {commits}.{known}"
    )


def _video_choice(file: str) -> Callable[[], str]:
    """What was tried on validation clips."""
    return lambda: result_tables_video.choice(_results(file))


TABLES: dict[str, Callable[[], str]] = {
    "video-people-choice": _video_choice("video_people_choice.json"),
    "video-refined-choice": _video_choice("video_refined_choice.json"),
    "video-collisions": _video("video-collisions"),
    "video-collisions-128": _video("video-collisions-128"),
    "video-scaling": _video("video-scaling"),
    "video-people": _video("video-people"),
    "video-source": video_source,
    "pusht": pusht,
    "peers": peers,
    "known-sdes": known_sdes,
    "known-sdes-short": known_sdes_short,
    "known-sdes-source": known_sdes_source,
    "branching": branching,
    "branching-short": branching_short,
    "source": source,
    "history": history,
    "inverse-dynamics": inverse_dynamics,
}


def filled(text: str) -> str:
    """`text` with all tables made anew."""

    def fill(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


def main() -> None:
    """Fill in, or check."""
    stale = []
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = file.read_text(encoding="utf-8")
        new = filled(text)
        if new != text:
            stale.append(file.name)
            if "--check" not in sys.argv:
                file.write_text(new, encoding="utf-8")
    if "--check" in sys.argv and stale:
        raise SystemExit(f"Tables out of date in {', '.join(stale)}. Run: python docs/tables.py")


if __name__ == "__main__":
    main()
