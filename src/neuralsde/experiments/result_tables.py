"""Results files as Markdown tables, one function per task.

± is the 95 % interval over training seeds where there are three or more; two would say next to nothing, so that it is
then over the clips or episodes, as for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from neuralsde.experiments.config import ROBUSTNESS
from neuralsde.experiments.recipes import video as recipes
from neuralsde.experiments.recipes.pusht import RATES, comparison, trials
from neuralsde.metrics.imitation import wilson

WORLDS = [variant.name for variant in ROBUSTNESS]
ABSENT = "not measured"
MANY = 3  # training seeds from which on intervals are over them
Row = Mapping[str, Any]


def _table(head: str, rows: Iterable[list[str]]) -> str:
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


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


def branching(values: Mapping[str, Any]) -> str:
    """The summary of the branching task as a Markdown table."""
    rows = []
    for label, row in values["summary"].items():
        if not row:
            continue
        shares = " : ".join(f"{b['mean']:.2f}" for b in row["branch_fraction"])
        first = row["branch_fraction"][0]
        spread = f" ({first['min']:.2f}–{first['max']:.2f})" if row["num_seeds"] > 1 else ""
        cells = [label, shares + spread, f"{100 * row['neither']['mean']:.1f} %", _show(row["distance"])]
        cells += [_show(row["fork_offset"], sign=True), _show(row["end_error"])]
        rows.append([*cells, f"{row['network_passes']['mean']:,.0f}"])
    return _table("model | branches taken | neither | distance | fork offset | end error | passes per path", rows)


def _show(value: Mapping[str, float | None], *, sign: bool = False) -> str:
    mean, half = value["mean"], value.get("ci95")
    if mean is None:
        return "–"
    digits = 4 if abs(mean) < 0.1 and not sign else 3 if abs(mean) < 0.1 else 2
    return f"{mean:{'+' if sign else ''}.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def known_sdes(values: Mapping[str, Any]) -> str:
    """The summary of the known SDEs: errors in percent, excess likelihood in millinats, coverage in percent."""
    rows = []
    for label, row in values["summary"].items():
        if not row:
            continue
        cells = [label, str(row["num_seeds"])]
        cells += [_scaled(row.get(name), 100) for name in ("drift_error", "parametric_drift_error")]
        cells += [_scaled(row.get("diffusion_error"), 100, 2), _scaled(row.get("excess_nll"), 1000)]
        cells += [_scaled(row.get(name), 100) for name in ("coverage_80", "coverage_95")]
        for name in ("energy_10_steps", "energy_100_steps"):
            floor = _scaled(row.get(f"{name}_floor"), 1000, half=False)
            cells.append(f"{_scaled(row.get(name), 1000)} ({floor})")
        rows.append(cells)
    return _table(
        "system, training | seeds | drift error % | true family % | diffusion error % | excess NLL, mnat | 80 % band | 95 % band "
        "| 10-step law (floor) | 100-step law (floor)",
        rows,
    )


def _scaled(value: Mapping[str, float | None] | None, factor: float, digits: int = 1, *, half: bool = True) -> str:
    if value is None or value["mean"] is None:
        return "–"
    spread = value.get("ci95") if half else None
    return f"{factor * value['mean']:.{digits}f}" + ("" if spread is None else f" ± {factor * spread:.{digits}f}")


# Push-T

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
    rows, latency = [], (values.get("latency") or {}).get("rows", {})
    for label, row in _pusht_rows(values).items():
        if _is_ablation(label):
            continue
        timed = latency.get(label, {})
        passes = (row.get("network_passes") or {}).get("mean", timed.get("network_passes"))
        parameters = row.get("parameters", timed.get("parameters"))
        cells = ["–" if parameters is None else f"{parameters / 1e6:.2f} M", "–" if passes is None else f"{passes:g}"]
        cells += [_milliseconds(timed, device) for device in ("cpu", "gpu")]
        cells.append(f"{row['train_seconds']['mean']:,.0f}" if "train_seconds" in row else "–")
        rows.append([label, *_figures(row), *cells, _sizes(row)])
    costs = "parameters | passes per plan | ms per plan, CPU core | ms per plan, GPU | training, s"
    return _table(f"method | score | success | {costs} | seeds × episodes", rows)


def pusht_robustness(values: Mapping[str, Any]) -> str:
    """Harder worlds: the methods that were run in them side by side, without any retraining."""
    planned = [label for label, row in comparison().items() if any(v.name in WORLDS for v in row.task.variants)]
    measured = [k for k, row in values["summary"].items() if any(f"{world}: score" in row for world in WORLDS)]
    rows = {label: values["summary"].get(label) or {} for label in dict.fromkeys([*planned, *measured])}
    head = " | ".join(f"{label}: {figure}" for label in rows for figure in ("score", "success"))
    lines = []
    for world in ["as in training", *WORLDS]:
        found = [row if world not in WORLDS else _variant(row, world) for row in rows.values()]
        lines.append([world, *(cell for row in found for cell in _figures(row))])
    return _table(f"world | {head}", lines)


def pusht_ablations(values: Mapping[str, Any]) -> str:
    """The method and what each of its parts is worth."""
    ours = {label: row for label, row in _pusht_rows(values).items() if label == "NSDE" or _is_ablation(label)}
    rows = [[label, *_figures(row), _sizes(row)] for label, row in ours.items()]
    return _table("method | score | success | seeds × episodes", rows)


def pusht_trials(values: Mapping[str, Any]) -> str:
    """Scores of every method at its learning rates."""
    rows: dict[str, list[str]] = {}
    for label in trials():
        name = label.rsplit(", rate", 1)[0]
        found = values["summary"].get(label)
        rows.setdefault(name, []).append(_figures(found)[0] if found else ABSENT)
    columns = " | ".join(f"rate × {factor:.2g}" for factor in RATES)
    return _table(f"method, score | {columns}", [[name, *cells] for name, cells in rows.items()])


def _figures(row: Mapping[str, Any]) -> list[str]:
    """Score and success: mean over training seeds ± half of its 95 % interval; of one or two, of that over episodes."""
    if not row:
        return [ABSENT, "–"]
    score, success = (dict(row[name]) for name in ("score", "success"))
    if "num_episodes" in row:
        low, high = wilson(round(success["mean"] * row["num_episodes"]), row["num_episodes"])
        within = (row.get("score_half_width") or {}).get("mean")
        score["ci95"] = half_width(score, row["num_seeds"], within)
        success["ci95"] = half_width(success, row["num_seeds"], (high - low) / 2)
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


# Video

FIGURES = {"psnr": 2, "ssim": 4, "motion_distance": 2}  # scores of predicted frames and their digits
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
}
"""That were chosen on validation clips."""


def _frame_figures(row: Row, prefix: str = "") -> list[str]:
    if not row:
        return [ABSENT] + ["–"] * (len(FIGURES) - 1)
    return [_value(row, f"{prefix}{name}", digits) for name, digits in FIGURES.items()]


def _settings(row: Row, skip: tuple[str, ...] = ("×", "validation", "36 frames")) -> list[str]:
    """Prefixes of the ways in which a model was scored on the frames of its training, fewest passes first."""
    names = [key.removesuffix(": psnr") for key in row if key.endswith(": psnr")]
    names = ["", *(n for n in names if not n.startswith((*skip, "copy", "decoder")) and ": " not in n)]
    prefixes = [f"{n}: " if n else "" for n in names]
    return sorted(prefixes, key=lambda p: (row.get(f"{p}passes_per_frame") or {"mean": 0})["mean"])


def methods(values: Mapping[str, Any], planned: Mapping[str, Any] | None = None) -> str:
    """Each method as it is and with other numbers of passes, beside a copy of the last frame and the decoder."""
    summary = values["summary"]
    labels = planned or [k for k in recipes.comparison() if not _is_video_ablation(k)]
    rows, ours = [], summary.get("NSDE") or {}
    for label in labels:
        row = summary.get(label) or {}
        for prefix in _settings(row):
            passes = row.get(f"{prefix}passes_per_frame")
            name = label + (f", {prefix.removesuffix(': ')}" if prefix and not prefix.startswith("passes") else "")
            rows.append([name, "–" if passes is None else f"{passes['mean']:g}", *_frame_figures(row, prefix)])
    for name, prefix in {"copy of the last frame": "copy: ", "decoder on true latents": "decoder: "}.items():
        rows.append([name, "0", *_frame_figures(ours, prefix)])
    floor = ours.get("motion_distance_floor")
    note = "" if floor is None else f"\n\nHalf of the true clips against the other half: {floor['mean']:.2f}."
    return _table(f"method | passes per frame | {HEAD}", rows) + note


def _is_video_ablation(label: str) -> bool:
    return label.startswith("NSDE") and label not in ("NSDE", "NSDE, uniform τ")


def ablations(values: Mapping[str, Any]) -> str:
    """What each part of the method is worth, with the learned noise and without."""
    return _with_and_without_noise(values, [k for k in recipes.comparison() if k == "NSDE" or _is_video_ablation(k)])


def parts(values: Mapping[str, Any]) -> str:
    """What the denoiser and the noise on the inputs are worth."""
    return _with_and_without_noise(values, recipes.parts())


def _with_and_without_noise(values: Mapping[str, Any], labels: Iterable[str]) -> str:
    found = {label: values["summary"].get(label) or {} for label in labels}
    rows = [[label, *_frame_figures(row), *_frame_figures(row, "g off: ")] for label, row in found.items()]
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
            rows.append([label + quiet, *_frame_figures(row, prefix)])
    copied = [row for row in values["summary"].values() if "36 frames: copy: psnr" in row]
    rows.append(["copy of the last frame", *_frame_figures(copied[0] if copied else {}, "36 frames: copy: ")])
    return _table(f"36 frames ahead | {HEAD}", rows)


def uncertainty(values: Mapping[str, Any]) -> str:
    """How far futures differ and how far their mean is off, in quarters of the clips by the first."""
    rows = []
    for label, row in values["summary"].items():
        if _is_video_ablation(label) or not (row.get("spread", {}).get("mean") or 0) > 0:
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
    ("NSDE: g off", "regression"),
    ("NSDE: g off", "Flow Matching: passes 1"),
    ("NSDE: 36 frames", "Flow Matching: 36 frames"),
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
        seeds = f"{row['num_seeds']}"
        size = f"{row['parameters'] / 1e6:.2f} M"
        rows.append([label, size, seeds, _value(row, "reduced_loss", 4)])
    table = _table("net | parameters | trainings | reduced loss", rows)
    if len({size for size, _ in points}) < 3:
        return table
    law = fit_power_law(*zip(*points))
    return f"{table}\n\nL' ∝ N^{law.exponent:.4f}, Pearson {law.pearson:.4f} over {len(points)} sizes."


def fronts(values: Mapping[str, Any]) -> str:
    """Scores by network passes, at the temperatures that validation clips chose; then 36 frames ahead."""
    rows: dict[str, list[list[str]]] = {"": [], "36 frames, ": []}
    for ahead, lines in rows.items():
        for label, row in values["summary"].items():
            named = [f"{ahead}passes {k}: " for k in recipes.FRONT]
            plain = {"": "", "36 frames, ": "36 frames: "}[ahead]
            prefixes = [p for p in [*named, plain] if f"{p}passes_per_frame" in row]
            prefixes = [p for p in prefixes if p in named] or prefixes
            for p in prefixes:
                passes = f"{row[f'{p}passes_per_frame']['mean']:g}"
                line = [label, passes, _value(row, f"{p}temperature", 2), *_frame_figures(row, p)]
                if line not in lines:  # without noise there is one pass, however many were asked for
                    lines.append(line)
    ours = values["summary"]["NSDE"]
    for name, prefix in {"copy of the last frame": "copy: ", "decoder on true latents": "decoder: "}.items():
        rows[""].append([name, "0", "–", *_frame_figures(ours, prefix)])
    return "\n\n".join(
        _table(f"{head} | passes per frame | temperature | {HEAD}", lines)
        for head, lines in zip(("method", "method, 36 frames ahead"), rows.values())
    )


TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "branching": branching,
    "known-sdes": known_sdes,
    "pusht": pusht,
    "pusht-trials": pusht_trials,
    "video-collisions": collisions,
    "video-fronts": fronts,
    "video-fronts-128": fronts,
    "video-fronts-people": fronts,
    "video-parts": parts,
    "video-scaling": scaling,
    "video-people": people,
}
