"""Results files of video as Markdown tables.

± is the 95 % interval over training seeds where there are three or more; two would say next to nothing, so that it is then over
the clips, as for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from neuralsde.experiments.recipes import video as recipes

ABSENT = "not measured"
MANY = 3
"""Training seeds from which on intervals are over them."""
FIGURES = {"psnr": 2, "ssim": 4, "motion_distance": 2}
"""Scores of predicted frames and their digits."""
HEAD = "PSNR, dB | SSIM | distance of motion"
WAYS = {
    "sampled": "drawn at those times",
    "latents": "lines between own latents",
    "cubic": "cubics through own latents",
    "pixels": "own frames faded",
}
SETTINGS = {
    "copies": "copies",
    "noise": "input noise",
    "dropout": "dropout",
    "steps": "steps",
    "flow_loss": "flow by",
    "refiner_weight": "weight of the refiner",
    "refine_noise": "share of the noise left open",
}
"""That were chosen on validation clips."""
Row = Mapping[str, Any]


def half_width(found: Mapping[str, Any], num_seeds: int, within: float | None) -> float | None:
    """Half of the interval: over training seeds from three that have the score on, else that within them, over clips or episodes.

    A score that is the same for all seeds up to rounding, such as that of a copy, has nothing to do with training.
    """
    over_seeds: float | None = found.get("ci95")
    if within is None or over_seeds is None:
        return over_seeds if within is None else within
    return over_seeds if found.get("n", num_seeds) >= MANY and over_seeds > 0.01 * within else within


def _value(row: Row, name: str, digits: int) -> str:
    found = row.get(name)
    if found is None or found["mean"] is None:
        return "–"
    half = half_width(found, row["num_seeds"], (row.get(f"{name}_half_width") or {}).get("mean"))
    return f"{found['mean']:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def _figures(row: Row, prefix: str = "") -> list[str]:
    if not row:
        return [ABSENT] + ["–"] * (len(FIGURES) - 1)
    return [_value(row, f"{prefix}{name}", digits) for name, digits in FIGURES.items()]


def _table(head: str, rows: Iterable[list[str]]) -> str:
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def _settings(row: Row, skip: tuple[str, ...] = ("×", "validation", "36 frames")) -> list[str]:
    """Prefixes of the ways in which a model was scored on the frames of its training, fewest passes first."""
    names = [key.removesuffix(": psnr") for key in row if key.endswith(": psnr")]
    names = ["", *(n for n in names if not n.startswith((*skip, "copy", "decoder")) and ": " not in n)]
    prefixes = [f"{n}: " if n else "" for n in names]
    return sorted(prefixes, key=lambda p: (row.get(f"{p}passes_per_frame") or {"mean": 0})["mean"])


def methods(values: Mapping[str, Any], planned: Mapping[str, Any] | None = None) -> str:
    """Each method as it is and with other numbers of passes, beside a copy of the last frame and the decoder."""
    summary = values["summary"]
    labels = planned or [k for k in recipes.comparison() if not _is_ablation(k)]
    rows, ours = [], summary.get("NSDE") or {}
    for label in labels:
        row = summary.get(label) or {}
        for prefix in _settings(row):
            passes = row.get(f"{prefix}passes_per_frame")
            name = label + (f", {prefix.removesuffix(': ')}" if prefix and not prefix.startswith("passes") else "")
            rows.append([name, "–" if passes is None else f"{passes['mean']:g}", *_figures(row, prefix)])
    for name, prefix in {"copy of the last frame": "copy: ", "decoder on true latents": "decoder: "}.items():
        rows.append([name, "0", *_figures(ours, prefix)])
    floor = ours.get("motion_distance_floor")
    note = "" if floor is None else f"\n\nHalf of the true clips against the other half: {floor['mean']:.2f}."
    return _table(f"method | passes per frame | {HEAD}", rows) + note


def _is_ablation(label: str) -> bool:
    return label.startswith("NSDE") and label not in ("NSDE", recipes.REFINED, recipes.REFINED_NLL, "NSDE, uniform τ")


def ablations(values: Mapping[str, Any]) -> str:
    """What each part of the method is worth, with the learned noise and without."""
    rows = []
    for label in recipes.comparison():
        row = values["summary"].get(label) or {}
        if label == "NSDE" or _is_ablation(label):
            rows.append([label, *_figures(row), *_figures(row, "g off: ")])
    return _table(f"method | {HEAD} | g off: PSNR | SSIM | distance", rows)


def between(values: Mapping[str, Any]) -> str:
    """PSNR (SSIM) of the true frames between training frames."""
    rows = []
    for label, run in recipes.comparison().items():
        row = values["summary"].get(label) or {}
        for note in ("", ", g off", ", passes 1"):
            names = {(rate, way): f"×{rate} {way}{note}: " for rate in recipes.RATES for way in WAYS}
            if not any(variant.name in {n.removesuffix(": ") for n in names.values()} for variant in run.task.variants):
                continue
            cells = [
                f"{_value(row, f'{p}psnr', 2)} ({_value(row, f'{p}ssim', 4)})" if f"{p}psnr" in row else "–"
                for p in names.values()
            ]
            rows.append([label + note, *cells])
    head = " | ".join(f"×{rate}, {words}" for rate in recipes.RATES for words in WAYS.values())
    return _table(f"frames by | {head}", rows)


def long_clips(values: Mapping[str, Any]) -> str:
    """36 frames ahead, beside a copy of the last known one."""
    rows = []
    for label, row in values["summary"].items():
        names = [k.removesuffix("psnr") for k in row if k.startswith("36 frames") and k.count(": ") == 1]
        for prefix in (n for n in names if n.endswith(": ")):
            quiet = prefix.removeprefix("36 frames").removesuffix(": ")
            rows.append([label + quiet, *_figures(row, prefix)])
    copied = [row for row in values["summary"].values() if "36 frames: copy: psnr" in row]
    rows.append(["copy of the last frame", *_figures(copied[0] if copied else {}, "36 frames: copy: ")])
    return _table(f"36 frames ahead | {HEAD}", rows)


def uncertainty(values: Mapping[str, Any]) -> str:
    """How far futures differ and how far their mean is off, in quarters of the clips by the first."""
    rows = []
    for label, row in values["summary"].items():
        if _is_ablation(label) or not (row.get("spread", {}).get("mean") or 0) > 0:
            continue
        cells = [
            f"{s['mean']:.4f} / {e['mean']:.4f}" for s, e in zip(row["spread_by_quarter"], row["error_by_quarter"])
        ]
        rows.append([label, _value(row, "spread_error_correlation", 2), *cells])
    return _table("futures by | correlation of spread and error | spread / error: least | second | third | most", rows)


def paired(values: Mapping[str, Any], pairs: Iterable[tuple[str, str]]) -> str:
    """Differences on the same clips, first minus second; a name is a row, or a row and a setting with a colon between."""
    rows = []
    for one, two in pairs:
        cells = []
        for score, digits in (("psnr", 2), ("ssim", 4)):
            found = _difference(values["runs"], one, two, score)
            cells.append(ABSENT if found is None else f"{found[0]:+.{digits}f} ± {found[1]:.{digits}f}")
        rows.append([f"{one} − {two}", *cells])
    return _table("difference | PSNR, dB | SSIM", rows)


def _difference(runs: list[dict[str, Any]], one: str, two: str, score: str) -> tuple[float, float] | None:
    """Mean over clips (of their means over common seeds) and half its interval, over recordings where clips share one.

    None where no seed has both, or where they were scored on different numbers of clips.
    """
    import torch

    from neuralsde.metrics.forecast import mean_ci

    def by_seed(name: str, values: str) -> dict[int, list[float]]:
        label, _, setting = name.partition(": ")
        key = f"{setting}: {values}_by_clip" if setting else f"{values}_by_clip"
        found = {r["seed"]: r["scores"].get(key) for r in runs if r["label"] == label}
        return {seed: [float(v) for v in text.split()] for seed, text in found.items() if text}

    first, second, recordings = by_seed(one, score), by_seed(two, score), by_seed(one, "recording")
    common = sorted(first.keys() & second.keys())
    if len({len(found[seed]) for found in (first, second) for seed in common}) != 1:
        return None
    a, b = (torch.tensor([found[seed] for seed in common], dtype=torch.float64) for found in (first, second))
    groups = torch.tensor(recordings[common[0]]).long() if recordings else None
    out = mean_ci((a - b).mean(0), groups)
    return out["mean"], float("nan") if out["ci95"] is None else out["ci95"]


PAIRS = (
    ("NSDE", "Flow Matching: passes 1"),
    ("NSDE", "Flow Matching"),
    ("NSDE", "PFI"),
    ("NSDE", "Flow Matching, noise to next frame"),
    (recipes.REFINED, "NSDE"),
    (recipes.REFINED, "Flow Matching"),
    (recipes.REFINED, "PFI"),
    (f"{recipes.REFINED}: {recipes.MORE.name}", "Flow Matching"),
    ("NSDE: g off", "regression"),
    ("NSDE: g off", "Flow Matching: passes 1"),
    ("NSDE: 36 frames", "Flow Matching: 36 frames"),
    (f"{recipes.REFINED}: 36 frames", "Flow Matching: 36 frames"),
)


BETWEEN_PAIRS = tuple(
    (f"NSDE: ×{rate} {way}, g off", other.format(rate=rate))
    for rate in recipes.RATES
    for way in ("sampled", "cubic")
    for other in (
        "NSDE: ×{rate} latents, g off",
        "NSDE: ×{rate} pixels, g off",
        "Flow Matching: ×{rate} pixels, passes 1",
        "Flow Matching: ×{rate} pixels",
    )
)


def _among(planned: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The pairs of a comparison that has fewer rows and settings than that of the collisions."""
    names = {f"{label}: {v.name}" for label, run in planned.items() for v in run.task.variants} | set(planned)
    return [pair for pair in PAIRS if names.issuperset(pair)]


def collisions(values: Mapping[str, Any]) -> str:
    """All tables of the collisions."""
    parts = [methods(values), paired(values, PAIRS), between(values), paired(values, BETWEEN_PAIRS)]
    return "\n\n".join([*parts, long_clips(values), uncertainty(values), ablations(values)])


def large(values: Mapping[str, Any]) -> str:
    """Collisions of 128 × 128."""
    planned = recipes.large_comparison()
    return "\n\n".join([methods(values, planned), paired(values, _among(planned)), uncertainty(values)])


def people(values: Mapping[str, Any]) -> str:
    """Weizmann and KTH."""
    planned = recipes.people_comparison()
    pairs = [*_among(planned), ("NSDE", "NSDE, squared error")]
    return "\n\n".join([methods(values, planned), paired(values, pairs), long_clips(values)])


def choice(values: Mapping[str, Any]) -> str:
    """Settings that were tried on validation clips, one training each."""
    names = [name for name in SETTINGS if any(name in run for run in values["runs"])]
    losses, rows = {"mse": "squared error", "nll": "likelihood"}, []
    for run in values["runs"]:
        found = ("–" if run[name] is None else losses.get(run[name], run[name]) for name in names)
        settings = [f"{x:,}" if isinstance(x, int) else str(x) for x in found]
        rows.append([run["label"], *settings, *(f"{run[name]:.{digits}f}" for name, digits in FIGURES.items())])
    return _table(f"model | {' | '.join(SETTINGS[name] for name in names)} | {HEAD}", rows)


def scaling(values: Mapping[str, Any]) -> str:
    """Sizes and reduced losses, and the line through them."""
    from neuralsde.metrics.power_law import fit_power_law

    rows, points = [], []
    for label in recipes.scaling():
        row = values["summary"].get(label) or {}
        if "reduced_loss" not in row:
            rows.append([label, "–", ABSENT, "–"])
            continue
        points.append((row["parameters"], row["reduced_loss"]["mean"]))
        size = f"{row['parameters'] / 1e6:.2f} M"
        rows.append([label, size, _value(row, "reduced_loss", 4), f"{row['train_seconds']['mean']:,.0f}"])
    table = _table("net | parameters | reduced loss | training, s", rows)
    if len({size for size, _ in points}) < 3:
        return table
    law = fit_power_law(*zip(*points))
    return f"{table}\n\nL' ∝ N^{law.exponent:.4f}, Pearson {law.pearson:.4f} over {len(points)} sizes."
