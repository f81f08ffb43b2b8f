"""Write the tables between the marks in README.md and docs/ from results/. `--check` fails where they are out of date.

A mark is `<!-- table: NAME -->` … `<!-- end -->`, or in the middle of a line `<!-- value: NAME -->` … `<!-- end -->`.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from neuralsde.experiments import result_tables
from neuralsde.experiments.compare import interval
from neuralsde.experiments.recipes import known_sdes

ROOT = Path(__file__).parent.parent


def _results(name: str) -> dict:
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


Cells = list[list[str]]
"""A table: its head, then its rows."""


def _parse(text: str) -> list[Cells]:
    """The Markdown tables in a text."""
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", text, flags=re.MULTILINE)
    tables = [[[c.strip() for c in line.strip("| ").split(" | ")] for line in b.splitlines()] for b in blocks]
    return [[head, *rows] for head, _, *rows in tables]


def _show(cells: Cells) -> str:
    head, *rows = cells
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def _pick(cells: Cells, columns: list[str] | None = None, rows: Callable[[str], bool] | None = None) -> Cells:
    """Some columns of a table, by name and in that order, and the rows whose first cell is wanted."""
    head, *body = cells
    order = [head.index(name) for name in columns or head]
    kept = [line for line in body if rows is None or rows(line[0])]
    return [[line[k] for k in order] for line in [head, *kept]]


def _named(cells: Cells, rows: dict[str, str], columns: list[str] | None = None) -> Cells:
    """Some rows in the order of `rows`, which gives each a new name."""
    found = {line[0]: line for line in cells[1:]}
    renamed = [[new, *found[old][1:]] for old, new in rows.items()]
    return _pick([cells[0], *renamed], columns)


@cache
def _tables(name: str) -> list[Cells]:
    """Every table of a results file, in full."""
    values = _results(f"{name.replace('-', '_')}.json")
    if name == "pusht":
        values |= {"latency": _results("pusht_latency.json")}
    return _parse(result_tables.TABLES[name](values))


def _begins(name: str, column: str) -> Cells:
    """The first table of a results file with such a column."""
    return next(t for t in _tables(name) if column in t[0])


def _cell(cells: Cells, row: str, column: str, where: dict[str, str] | None = None) -> str:
    where = where or {}
    head = cells[0]
    fits = (line for line in cells[1:] if line[0] == row and all(line[head.index(k)] == v for k, v in where.items()))
    return next(fits)[head.index(column)]


def _commits(runs: list[dict]) -> str:
    return ", ".join(f"`{c[:7]}`" for c in sorted({r["commit"] for r in runs}))


# Start


def rivals() -> str:
    """README: six lines, losses included; the rival is the best one by the score, on Push-T the best by success."""
    fork, motion = _tables("branching")[0], _tables("video-fronts")[0]
    push, best = _tables("pusht")[0], "DDIM (increment, predicts the sample)"
    drift = _peers()["drift"]
    unet = "Diffusion Policy, U-Net"
    lorenz = {line[1]: line for line in drift[1:] if line[0] == "Lorenz"}
    rows = [
        [
            "forking paths, density 10",
            "distance to the true paths",
            *(_cell(fork, f"{m}, density 10", "distance") for m in ("NSDE", best)),
            "DDIM",
        ],
        [
            "forking paths, density 1",
            "end error",
            *(_cell(fork, f"{m}, density 1", "end error") for m in ("NSDE", best)),
            "DDIM",
        ],
        [
            "Lorenz, known SDE",
            "drift error",
            f"{lorenz['ours'][2]} after 30 s",
            f"{lorenz['SDE Matching'][4]} after 600 s",
            "SDE Matching",
        ],
        ["Push-T", "strict success", *(_cell(push, m, "success") for m in ("NSDE", unet)), unet],
        [
            "Push-T",
            "ms per plan, one CPU core",
            *(_cell(push, m, "ms per plan, CPU core") for m in ("NSDE", unet)),
            unet,
        ],
        [
            "video, colliding objects",
            "distance of motion",
            f"{_cell(motion, 'NSDE', 'distance of motion', {'passes per frame': '2'})} in 2 passes",
            f"{_cell(motion, 'Flow Matching', 'distance of motion', {'passes per frame': '16'})} in 16 passes",
            "Flow Matching",
        ],
    ]
    larger = {"strict success"}
    for row in rows:
        ours, theirs = (float(row[k].split()[0]) for k in (2, 3))
        row.append("better" if (ours > theirs) == (row[1] in larger) else "**worse**")
    return _show([["task", "score", "ours", "rival's", "rival", "for us"], *rows])


# Branching

FORKS = {
    "NSDE": "NSDE",
    "DDIM (increment, predicts the sample)": "DDIM, predicts the sample",
    "DDIM (increment)": "DDIM",
    "Rectified Flow (increment)": "Rectified Flow",
}


def branching() -> str:
    """All rows of the branching comparison."""
    return _show(_tables("branching")[0])


def branching_short() -> str:
    """The method and the better form of each rival."""
    rows = {f"{k}, density {d}": f"{v}, density {d}" for d in (1, 10) for k, v in FORKS.items()}
    return _show(_named(_tables("branching")[0], rows))


def branching_lag() -> str:
    """Each method with our lag and without; rows that are not there say so."""
    cells = _tables("branching")[0]
    found, body = {line[0]: line for line in cells[1:]}, []
    for density in (1, 10):
        for name, label in FORKS.items():
            with_lag = f"{name[:-1]}, our lag)" if name.endswith(")") else name
            without = name if name.endswith(")") else f"{name}, without lag"
            for row, lag in ((with_lag, "3"), (without, f"{1 / density:g}")):
                line = found.get(f"{row}, density {density}", ["", result_tables.ABSENT, *["–"] * 5])
                body.append([f"{label}, density {density}", lag, line[1], *line[3:]])
    return _show([["model", "lag", "branches taken", *cells[0][3:]], *body])


def branching_hard() -> str:
    """Other forks, and the forms that fail."""
    names = ("NSDE, three branches", "NSDE, 60° fork", *(f"NSDE, paper's choices, density {d}" for d in (1, 10)))
    forms = tuple(f"{m} (next state), density {d}" for d in (1, 10) for m in ("DDIM", "Rectified Flow"))
    return _show(_named(_tables("branching")[0], {n: n for n in names + forms}))


def branching_rates() -> str:
    """Distance and end error by learning rate, on a seed that is not reported."""
    rows = _results("branching_rates.json")["rows"]
    rates = sorted({row["lr"] for row in rows})
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = {row["lr"]: row for row in rows if row["method"] == method}
        cells = [f"{own[lr]['distance']:.4f} / {own[lr]['end_error']:.4f}" for lr in rates]
        body.append([FORKS[method], *cells])
    return _show([["model, density 1", *(f"{lr:g}" for lr in rates)], *body])


def branching_source() -> str:
    """How the branching numbers were made."""
    values = _results("branching.json")
    run = values["runs"][0]
    seeds = values["summary"][run["label"]]["num_seeds"]
    return (
        f"Mean over {seeds} training seeds ± 95 % interval; {run['scores']['num_paths']} paths each. "
        f"Commits {_commits(values['runs'])}, torch {run['versions']['torch']}."
    )


# Guides


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


# Known SDEs

FIELDS = ["system, training", "drift error %", "true family %", "diffusion error %", "excess NLL, mnat", "80 % band"]
LAWS = ["system, training", "seeds", "80 % band", "95 % band", "10-step law (floor)", "100-step law (floor)"]


def known_sdes_fields() -> str:
    """Drift, diffusion and likelihood, all rows."""
    return _show(_pick(_tables("known-sdes")[0], FIELDS[:-1]))


def known_sdes_laws() -> str:
    """Coverage and laws, all rows."""
    return _show(_pick(_tables("known-sdes")[0], LAWS))


def _known(wanted: Callable[[str], bool]) -> Callable[[], str]:
    return lambda: _show(_pick(_tables("known-sdes")[0], FIELDS, wanted))


def known_sdes_paper() -> str:
    """The paper's equation and its authors' code, system by system."""
    labels = [label for label in known_sdes.comparison() if label.endswith(("paper's equation", "authors' code"))]
    found = {line[0]: line for line in _pick(_tables("known-sdes")[0], [c for c in FIELDS if c != "true family %"])[1:]}
    absent = [result_tables.ABSENT, *["–"] * 3]
    rows = [found.get(label, [label, *absent]) for label in labels]
    return _show([[c for c in FIELDS if c != "true family %"], *rows])


def known_sdes_source() -> str:
    """What the rows stand on."""
    runs = _results("known_sdes.json")["runs"]
    return f"Mean over training seeds ± 95 % interval; {len(runs)} runs. Commits {_commits(runs)}."


@cache
def _peers() -> dict[str, Cells]:
    """Quality by time, time to quality and memory of the rivals on known SDEs."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from peers.report import table

    names = ("nll", "drift", "law", "time", "steps", "noisy drift", "noisy diffusion", "memory")
    return dict(zip(names, _parse(table(_results("known_sdes_peers.json")))))


def _peer(name: str, columns: list[str] | None = None, *, without: str = "") -> Callable[[], str]:
    def table() -> str:
        cells = _peers()[name]
        kept = [c for c in cells[0] if c != without] if columns is None else columns
        return _show(_pick(cells, kept))

    return table


def peers_time() -> str:
    """How much sooner the same drift error is reached."""
    head, *rows = _peers()["time"]
    kept = [head, *(r for r in rows if r[head.index("quality")] == "drift error")]
    return _show(_pick(kept, ["system", "rival", "its best", "we reach it sooner by", "our best"]))


def peers_tuning() -> str:
    """Drift error after a short training at each learning rate; the plain net, which has no drift, by its likelihood."""
    rows = _results("known_sdes_peers.json")["tuning"]
    if not rows:
        return "The search for these learning rates was not recorded."
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from peers.report import LABELS, TASK_LABELS

    rates, body = sorted({row["lr"] for row in rows}), []
    for task, method in dict.fromkeys((row["task"], row["method"]) for row in rows):
        own = {row["lr"]: row for row in rows if (row["task"], row["method"]) == (task, method)}
        scores = {lr: row.get("drift_error", row.get("excess_nll")) for lr, row in own.items()}
        cells = [f"{scores[lr]:.2g}" if scores.get(lr) is not None else "fails" for lr in rates]
        body.append([TASK_LABELS[task], LABELS[method], *cells])
    return _show([["system", "method", *(f"{lr:g}" for lr in rates)], *body])


def peers_gaussian() -> str:
    """The plain perceptron, which is sooner."""
    head, *rows = _peers()["time"]
    kept = [head, *(r for r in rows if r[1] == "Gaussian MLP" and r[2] == "excess NLL")]
    return _show(_pick(kept, ["system", "its best", "we reach it sooner by"]))


# The peers' own benchmarks


def _mean_range(values: list[float], digits: int) -> str:
    if not values:
        return "diverges"
    middle = f"{statistics.mean(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def peers_fim() -> str:
    """MMD² on the eight systems of FIM-SDE, by the time between observations."""
    if not (ROOT / "results" / "peers_fim.json").exists():
        return f"This benchmark was {result_tables.ABSENT} yet."
    rows = _results("peers_fim.json")["rows"]
    cases = sorted({(row["noise"], row["dt"]) for row in rows})
    body = []
    for system in dict.fromkeys(row["system"] for row in rows):
        own = [row for row in rows if row["system"] == system]
        cells = []
        for case in cases:
            found = [row["mmd"] for row in own if (row["noise"], row["dt"]) == case and "mmd" in row]
            cells.append(_mean_range(found, 3))
        floor = {row["realisation"]: row["truth"] for row in own}
        body.append([system, *cells, _mean_range(list(floor.values()), 3)])
    names = [f"every {dt:g}" + (f", {100 * noise:.0f} % noise" if noise else "") for noise, dt in cases]
    return _show([["system", *names, "true SDE"], *body])


def peers_lorenz() -> str:
    """KL on the stochastic Lorenz attractor, ours beside published numbers."""
    if not (ROOT / "results" / "peers_lorenz.json").exists():
        return f"This benchmark was {result_tables.ABSENT} yet."
    data = _results("peers_lorenz.json")
    times, rows = sorted({row["time"] for row in data["rows"]}), data["rows"]
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method and "kl" in row]
        body.append([method, *(_mean_range([r["kl"] for r in own if r["time"] == t], 2) for t in times)])
    floor = {(row["seed"], row["time"]): row["truth"] for row in rows if "truth" in row}
    body.append(["true SDE", *(_mean_range([v for (_, at), v in floor.items() if at == t], 2) for t in times)])
    for method in dict.fromkeys(row["method"] for row in data["published"]):
        own = {row["time"]: row for row in data["published"] if row["method"] == method}
        body.append([f"{method}, as published", *(f"{own[t]['kl']} ± {own[t]['spread']}" for t in times)])
    return _show([["method", *(f"t = {t:g}" for t in times)], *body])


# The paper's remaining claims

CLAIMS = {"alpha": "weight of the score", "delta": "flow loss", "joint": "f and g", "ablation": "parts"}


def _claims() -> dict[tuple[str, str, str], dict[str, dict]]:
    """Claim, case and way: the interval of each score over training seeds."""
    if not (ROOT / "results" / "paper_claims.json").exists():
        return {}
    found: dict[tuple[str, str, str], list[dict]] = {}
    for row in _results("paper_claims.json")["rows"]:
        found.setdefault((row["claim"], row["case"], row["way"]), []).append(row)
    return {key: _claim_scores(rows) for key, rows in found.items()}


def _claim_scores(rows: list[dict]) -> dict[str, dict]:
    kept = [row["scores"] for row in rows if "scores" in row]
    shares = [score["branch_fraction"][0] for score in kept if "branch_fraction" in score]
    plain = {name for score in kept for name, value in score.items() if not isinstance(value, list)}
    found = {name: interval([score.get(name) for score in kept]) for name in plain}
    return found | {"share": interval(shares), "runs": {"mean": len(rows), "kept": len(kept)}}


def _spread(scores: dict[str, dict], name: str, factor: float = 1.0, digits: int = 1) -> str:
    runs, value = scores["runs"], scores.get(name, {})
    if runs["kept"] < runs["mean"]:
        return "diverges in part" if runs["kept"] else "diverges"
    if value.get("mean") is None:
        return "–"
    half = f" ± {factor * value['ci95']:.{digits}f}" if value.get("ci95") is not None else ""
    return f"{factor * value['mean']:.{digits}f}{half}"


def claims_known() -> str:
    """Drift errors in percent of every claim on known SDEs."""
    found = _claims()
    cases = list(dict.fromkeys(case for _, case, _ in found if "fork" not in case))
    if not cases:
        return f"The claims were {result_tables.ABSENT} yet."
    body = []
    for claim, way in dict.fromkeys((claim, way) for claim, case, way in found if case in cases):
        own = [found.get((claim, case, way)) for case in cases]
        cells = [_spread(scores, "drift_error", 100) if scores else result_tables.ABSENT for scores in own]
        body.append([CLAIMS[claim], way, *cells])
    order = list(CLAIMS.values())
    return _show([["what", "way", *cases], *sorted(body, key=lambda line: order.index(line[0]))])


def claims_known_all() -> str:
    """Every score of every claim on known SDEs."""
    body = []
    for (_, case, way), scores in _claims().items():
        if "fork" not in case:
            cells = [_spread(scores, name, 100) for name in ("drift_error", "diffusion_error", "coverage_80")]
            laws = [_spread(scores, f"energy_{k}_steps", 1000) for k in (10, 100)]
            body.append([f"{case}, {way}", *cells, *laws])
    if not body:
        return f"The claims were {result_tables.ABSENT} yet."
    head = ["system, way", "drift error %", "diffusion error %", "80 % band", "10-step law", "100-step law"]
    return _show([head, *body])


def _claims_fork(*claims: str) -> Callable[[], str]:
    def table() -> str:
        body = []
        for (claim, case, way), scores in _claims().items():
            if claim in claims and "fork" in case:
                share = scores["share"]
                taken = "–" if share["mean"] is None else f"{share['mean']:.2f} ({share['min']:.2f}–{share['max']:.2f})"
                cells = [_spread(scores, "neither", 100), _spread(scores, "distance", digits=4)]
                cells += [_spread(scores, name, digits=3) for name in ("fork_offset", "end_error")]
                body.append([f"{way}, {case.removeprefix('fork, ')}", taken, *cells])
        if not body:
            return f"The claims were {result_tables.ABSENT} yet."
        return _show([["way", "upper branch", "neither %", "distance", "fork offset", "end error"], *body])

    return table


FORK_CLAIMS = {
    "balance and pull": "weight of the score",
    "constant of the authors' code": "weight of the score",
    "balance": "weight of the score",
    "constant, fitted": "weight of the score",
    "learned α(x)": "weight of the score",
    "decoupled, ours": "f and g",
    "decoupled, the paper's losses": "f and g",
    "joint likelihood": "f and g",
}


def claims_fork_short() -> str:
    """Shares of the upper branch and distances, for the weights of the score and for joint training."""
    head, *rows = _parse(TABLES["claims-fork"]())[0]
    found = {line[0]: line for line in rows}
    names = ("upper branch", "distance")
    columns = [(name, density) for density in (1, 10) for name in names]
    body = [
        [what, way, *(found[f"{way}, density {density}"][head.index(name)] for name, density in columns)]
        for way, what in FORK_CLAIMS.items()
    ]
    return _show([["what", "way", *(f"{name}, density {density}" for name, density in columns)], *body])


# Push-T

PUSHT = (
    "NSDE",
    "Diffusion Policy, U-Net",
    "Diffusion Policy, transformer",
    "Rectified Flow policy",
    "behaviour cloning",
    "BET",
    "LSTM-GMM",
    "IBC",
)
PAPER_PUSHT = {"NSDE": "0.97", "Diffusion Policy": "0.95", "IBC": "0.90", "BET": "0.79", "LSTM-GMM": "0.67"}
"""The paper's table of Push-T: what it calls success rate is the score here. Rivals are those of Chi et al., from keypoints."""
PARTS = {
    "NSDE, brief training": "all parts, likelihood loss",
    "NSDE, brief training, squared error": "all parts, squared error",
    "NSDE without denoiser": "squared error, no denoiser",
    "NSDE without diffusion": "squared error, no diffusion",
    "NSDE without input noise and denoiser": "squared error, no input noise, no denoiser",
    "NSDE, uniform τ, no balance": "squared error, uniform τ, balance 0",
    "NSDE, three nets": "squared error, three nets in place of one",
    "NSDE, log loss": "log loss",
    "NSDE, the paper's state": "the paper's state, rolled out blindly",
}
SAMPLED = (
    "NSDE, brief training",
    "NSDE, equal samples",
    "NSDE",
    "Diffusion Policy, U-Net",
    "Diffusion Policy, transformer",
    "Rectified Flow policy",
    "behaviour cloning, equal samples",
    "behaviour cloning",
)
BARE = {
    "NSDE, squared error, no mirror images": "NSDE, squared error",
    "Diffusion Policy, U-Net, no mirror images": "Diffusion Policy, U-Net",
}


def pusht_short() -> str:
    """The methods, at what they cost."""
    columns = [
        "method",
        "score",
        "success",
        "parameters",
        "passes per plan",
        "ms per plan, CPU core",
        "seeds × episodes",
    ]
    return _show(_named(_tables("pusht")[0], {k: k for k in PUSHT}, columns))


def pusht_samples() -> str:
    """Scores by how many samples a training saw."""
    methods, ablations = _tables("pusht")[0], _tables("pusht")[2]
    columns = ablations[0]
    shown = {line[0]: line[1:] for line in [*_pick(methods, columns)[1:], *ablations[1:]]}
    seen = {}
    for run in _results("pusht.json")["runs"]:
        train = run["experiment"]["train"]
        seen[run["label"]] = f"{train['steps'] * train['batch_size'] / 1e6:.1f} M"
    rows = [[label, seen[label], *shown[label]] for label in SAMPLED]
    return _show([["method", "samples of the training", *columns[1:]], *rows])


def pusht_paper() -> str:
    """What the paper publishes."""
    rows = [[k, "pose and action" if k == "NSDE" else "keypoints", v] for k, v in PAPER_PUSHT.items()]
    return _show([["method", "state", "score in the paper"], *rows])


def _with_state(cells: Cells) -> Cells:
    """A table of policies with what each one sees."""
    runs = {run["label"]: run["experiment"]["task"]["observation"] for run in _results("pusht.json")["runs"]}
    head, *rows = cells
    body = []
    for label, *line in rows:
        found = next((seen for name, seen in runs.items() if label == name or label.startswith(f"{name}, ")), "–")
        body.append([label, runs.get(label, found), *line])
    return [[head[0], "state", *head[1:]], *body]


def pusht_bare() -> str:
    """From the demonstrations alone."""
    methods, ablations = _tables("pusht")[0], _tables("pusht")[2]
    columns = ablations[0]
    both = [columns, *_pick(methods, columns)[1:], *ablations[1:]]
    return _show(_named(both, BARE))


def pusht_own_worlds() -> str:
    """Harder worlds: our policy, which was trained three times."""
    _, *rows = _pick(_tables("pusht")[1], ["world", "NSDE: score", "NSDE: success"])
    return _show([["world", "score", "success"], *rows])


def pusht_worlds() -> str:
    """Harder worlds, success only after the score."""
    head, *rows = _tables("pusht")[1]
    short = {"Diffusion Policy, U-Net": "DP", "NSDE, learned from noisy observations": "NSDE, noisy training"}
    names = [head[0], *(f"{short.get(n, n)}: {f}" for n, f in (h.rsplit(": ", 1) for h in head[1:]))]
    return _show([names, *rows])


def pusht_parts() -> str:
    """What each part is worth."""
    return _show(_named(_tables("pusht")[2], PARTS))


def pusht_scores() -> str:
    """All methods: scores."""
    columns = ["method", "score", "success", "seeds × episodes", "training, s"]
    return _show(_with_state(_pick(_tables("pusht")[0], columns)))


def pusht_costs() -> str:
    """All methods: costs."""
    columns = ["method", "parameters", "passes per plan", "ms per plan, CPU core"]
    return _show(_pick(_tables("pusht")[0], columns, lambda label: label in _results("pusht_latency.json")["rows"]))


def pusht_ablations() -> str:
    """All variants of the method."""
    return _show(_with_state(_tables("pusht")[2]))


def pusht_source() -> str:
    """What the rows stand on."""
    runs = _results("pusht.json")["runs"]
    versions = " and ".join(sorted({run["versions"]["torch"] for run in runs}))
    return f"{len(runs)} trainings, torch {versions}. Commits {_commits(runs)}."


# Video


def _video(name: str, column: str) -> Callable[[], str]:
    """One table of a results file of video, in full."""
    return lambda: _show(_begins(name, column))


def _between(rate: str, *, short: bool = False) -> Callable[[], str]:
    def table() -> str:
        cells = _begins("video-collisions", "×2, drawn at those times")
        columns = [c for c in cells[0] if c.startswith(rate)]
        head, *rows = _pick(
            cells,
            ["frames by", *columns],
            lambda r: not short or r in {"NSDE", "NSDE, g off", "Flow Matching", "regression"},
        )
        rows = [[r[0], *(c.split(" (")[0] for c in r[1:])] for r in rows] if short else rows
        return _show([[head[0], *(c.removeprefix(f"{rate}, ") for c in head[1:])], *rows])

    return table


def _pairs(name: str, first: str) -> Callable[[], str]:
    """The paired differences whose first line begins so."""
    return lambda: _show(next(t for t in _tables(name) if t[0][0] == "difference" and t[1][0].startswith(first)))


def _video_choice(file: str) -> Callable[[], str]:
    """What was tried on validation clips; the settings of the training in one column."""

    def table() -> str:
        head, *rows = _parse(result_tables.choice(_results(file)))[0]
        joint = [c for c in ("copies", "input noise", "dropout", "steps") if c in head]
        if not joint:
            return _show([head, *rows])
        where = [head.index(c) for c in joint]
        lines = [
            [line[0], " / ".join(line[k] for k in where), *(c for k, c in enumerate(line) if k and k not in where)]
            for line in [head, *rows]
        ]
        return _show(lines)

    return table


def video_scaling() -> str:
    """Sizes and losses, and the line through them."""
    return result_tables.TABLES["video-scaling"](_results("video_scaling.json"))


PAPER_SCALING = {"smallest": "0.13 M", "largest": "113.44 M", "pearson": "-0.9988"}


def video_scaling_law() -> str:
    """The line through our sizes beside the paper's."""
    text = video_scaling()
    found = re.search(r"N\^(-[\d.]+), Pearson (-[\d.]+) over", text)
    assert found is not None
    sizes = [line[1] for line in _parse(text)[0][1:] if line[1] != "–"]
    paper = PAPER_SCALING
    rows = [
        ["here, made scenes", f"{sizes[0]} to {sizes[-1]}", *found.groups()],
        ["the paper, CLEVRER", f"{paper['smallest']} to {paper['largest']}", "not given", paper["pearson"]],
    ]
    return _show([["reduced loss", "parameters", "exponent", "Pearson"], *rows])


def video_source(file: str) -> Callable[[], str]:
    """What the rows stand on."""

    def line() -> str:
        runs = _results(file)["runs"]
        clips = next(r["scores"]["num_clips"] for r in runs if "num_clips" in r["scores"])
        return f"{clips} test clips; {runs[0]['hardware']['gpu']}. Commits {_commits(runs)}."

    return line


# Laws of a step

LAW_ROWS = (
    ("Moments, gap 0.5", "moments, gap 0.5", "drift_error", "≤ 0.05"),
    ("Moments, gap 1", "moments, gap 1", "drift_error", "≤ 0.05"),
    ("the same, few terms", "moments, gap 1, few terms", "drift_error", "≤ 0.05"),
    ("Moments, gap 1: inside the 80 % band", "moments, gap 1", "inside_80", "0.78 to 0.82"),
    ("one gap in ten 2 to 6 long", "some wide gaps", "drift_error", "≤ 0.05"),
    ("gaps over a factor 100", "gaps over a factor 100", "drift_error", "≤ 0.05"),
    ("gaps that depend on the state", "gaps that depend on the state", "drift_error", "≤ 0.10"),
    ("season of 2,000 steps, elapsed time", "long season, elapsed time", "drift_error", "≤ 0.05"),
    ("two features, noise correlated 0.9", "correlated noise, moments", "noise_correlation", "0.87 to 0.93"),
    ("the same, interpolated states", "correlated noise, uniform", "drift_error", "≤ 0.05"),
    ("the same, independent noise", "correlated noise, uniform, diagonal", "drift_error", "wrong on purpose"),
    ("ten dimensions, error of Σ", "correlated noise, 10 dimensions", "frobenius_error", "≤ 0.05"),
    ("Student-t steps, nats lost", "t3, Mixture", "nats_lost", "≤ 0.02"),
    ("2 % jumps, nats lost", "jumps, Mixture", "nats_lost", "≤ 0.02"),
    ("event of 0.02, drawn", "event, Mixture", "probability", "0.018 to 0.022"),
    ("near zero with log: paths below 0", "near zero, log", "below_0", "0"),
    ("near zero with log: distance of the law", "near zero, log", "wasserstein", "0.007, the floor"),
    ("near zero with log and Mixture: the same", "near zero, log, Mixture", "wasserstein", "0.007, the floor"),
    ("the training data themselves: the same", "near zero, log, Mixture", "of_data", "0.007, the floor"),
    ("small spread, whitened: slope", "small spread, whiten", "slope", "−1.1 to −0.9"),
    (
        "double well, few terms: error over the true family's",
        "double well, gaps over a factor 100, few terms",
        "ratio",
        "≤ 1.2",
    ),
    ("van der Pol, few terms: the same", "van der Pol, gaps over a factor 100, few terms", "ratio", "≤ 1.2"),
    ("double well, a net: the same", "double well, gaps over a factor 100", "ratio", "≤ 1.2"),
    ("van der Pol, a net: the same", "van der Pol, gaps over a factor 100", "ratio", "≤ 1.2"),
)


def laws() -> str:
    """What was measured of each law, with the standard error over training seeds."""
    cases = _results("laws.json")["cases"]
    body = []
    for label, case, key, goal in LAW_ROWS:
        mean, error = cases[case]["mean_and_error"][key]
        body.append([label, key.replace("_", " "), f"{mean:.3g} ± {error:.2g}", goal])
    return _show([["data", "measured", "mean ± standard error", "goal"], *body])


# Data of other kinds

METHODS = ("nsde.fit", "default", "VAR", "nearest neighbour", "recurrent net")


def zoo(file: str = "zoo.json") -> str:
    """The score of each method on each set, and what was chosen."""
    rows = _results(file)["rows"]
    known = {(row["set"], row["method"]): row for row in rows}
    body = []
    for name in dict.fromkeys(row["set"] for row in rows):
        scores = [known.get((name, method), {}).get("score") for method in METHODS]
        least = min(score for score in scores if score is not None)
        shown = ["–" if s is None else f"**{s:.3f}**" if s <= 1.005 * least else f"{s:.3f}" for s in scores]
        chosen = known.get((name, "nsde.fit"), {}).get("choice", "–")
        body.append([name.replace("_", " "), *shown, chosen])
    return _show([["set", *METHODS, "chosen"], *body])


def _beside_hindsight() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Of each set the row of `nsde.fit` and that of the best in hindsight."""
    known = {(row["set"], row["method"]): row for row in _results("zoo.json")["rows"]}
    return [(known[name, "nsde.fit"], row) for (name, method), row in known.items() if method == "best in hindsight"]


def zoo_hindsight() -> str:
    """What was chosen beside the candidate that test paths would have chosen."""
    body = []
    for own, best in _beside_hindsight():
        scores = f"{own['score']:.3f}", f"{best['score']:.3f}", f"{own['score'] / best['score']:.2f}"
        body.append([own["set"].replace("_", " "), *scores, own["choice"], best["choice"]])
    return _show([["set", "nsde.fit", "best", "ratio", "chosen", "best of all, and how it is drawn"], *body])


def zoo_within() -> str:
    """On how many sets the choice is within 15 % of the best in hindsight."""
    near = [own["score"] <= 1.15 * best["score"] for own, best in _beside_hindsight()]
    return f"{sum(near)} of {len(near)}"


def ten_minutes() -> str:
    """Forks and second-order sets with ten minutes of a core."""
    body = []
    for row in _results("zoo_ten_minutes.json")["rows"]:
        own = row.get("motion")
        shares = "–" if own is None else ", ".join(f"{s:.2f}" for s in own["shares"])
        arrive = "–" if own is None else f"{100 * own['arrives']:.0f} %"
        inside = f"{100 * row['coverage']:.0f} %" if "coverage" in row else "–"
        body.append([row["set"].replace("_", " "), f"{row['score']:.3f}", arrive, shares, inside])
    return _show([["set", "score", "arrive", "shares of the branches", "80 % band holds"], *body])


def zoo_long() -> str:
    """What becomes of paths of ten times the training length."""
    body = []
    for row in _results("zoo_long.json")["rows"]:
        truth = "–" if row.get("true_spread") is None else f"{row['true_spread']:.2f}"
        figures = [f"{row['spread']:.2f}", truth, f"{row['beyond']:.2f}"] if row["finite"] else ["not finite", "–", "–"]
        body.append([row["set"].replace("_", " "), *figures])
    return _show([["set", "spread", "of the truth", "beyond the data"], *body])


def zoo_known() -> str:
    """Fields and likelihoods of known SDEs, by `nsde.fit` without settings and by their recipes."""
    recipe, body = _results("known_sdes.json")["summary"], []
    for row in _results("zoo_known.json")["rows"]:
        own, beside, cells = row["scores"] or {}, recipe[f"{row['set']}, start"], list[str]()
        for key, times in (("drift_error", 100), ("diffusion_error", 100), ("excess_nll", 1_000)):
            cells.append(f"{times * own[key]:.1f}" if key in own else "–")
            cells.append(f"{times * beside[key]['mean']:.1f}")
        body.append([row["set"].replace("_", " "), *cells])
    head = ["drift error, %", "its recipe", "error of g, %", "its recipe", "nats lost, 1/1000", "its recipe"]
    return _show([["system", *head], *body])


def shapes() -> str:
    """Error and arrival on drawn shapes, beside the nearest demonstration."""
    rows = [row for row in _results("zoo_shapes.json")["rows"] if "motion" in row]
    body = []
    for row in rows:
        own = row["motion"]
        body.append([row["set"], f"{own['error']:.3f}", f"{own['nearest']:.3f}", f"{100 * own['arrives']:.0f} %"])
    mean = [sum(row["motion"][key] for row in rows) / len(rows) for key in ("error", "nearest", "arrives")]
    body.append(["**mean**", f"{mean[0]:.3f}", f"{mean[1]:.3f}", f"{100 * mean[2]:.0f} %"])
    return _show([["shape", "error", "nearest demonstration", "arrive"], *body])


def walking() -> str:
    """Mean squared error of forecasts of walking."""
    values = _results("walking.json")
    own = [f"{e['mean']:.1f} ± {e['interval']:.1f}" for e in values["mse"].values()]
    body = [[name, *(f"{e:.2f}" for e in both.values())] for name, both in values["published"].items()]
    body.append([f"nsde.fit, {values['budget']} of a core", *own])
    return _show([["method", "297 frames from 3", "200 frames from 100"], *body])


# Forecasts of public tables

FORECASTERS = ("nsde.fit_series", "AutoETS", "AutoARIMA", "MSTL", "seasonal naive")
NEURAL_FORECASTERS = ("nsde.fit_series", "DeepAR", "NHITS")


def forecasting(methods: tuple[str, ...] = FORECASTERS) -> str:
    """CRPS and coverage of some methods on each table on which the others were measured, means over seeds."""
    rows = _results("forecasting.json")["rows"]
    body = []
    for name in dict.fromkeys(row["set"] for row in rows):
        cells, means = [], []
        for method in methods:
            own = [row for row in rows if row["set"] == name and row["method"] == method]
            means.append(sum(r["crps"] for r in own) / len(own) if own else None)
            cells.append(sum(r["coverage"] for r in own) / len(own) if own else 0.0)
        if means[1:] == [None] * (len(methods) - 1):
            continue
        least = min(m for m in means if m is not None)
        shown = []
        for mean, inside in zip(means, cells):
            text = "–" if mean is None else f"{mean:.3g}"
            text = f"**{text}**" if mean is not None and mean <= 1.01 * least else text
            shown.append(text if mean is None else f"{text} ({100 * inside:.0f} %)")
        body.append([name, *shown])
    return _show([["table", *methods], *body])


# Speed


def speed() -> str:
    """What was timed on its own."""
    train, data, films = (_results(f"{n}.json") for n in ("training_time", "data_rate", "collisions_rate"))
    rows = [
        ["train flow, diffusion and denoiser on the forking paths", f"{train['median']:.0f} s", "2 CPU cores"],
        [
            f"share of a training step that loads data, {data['transitions']:,} transitions",
            f"{100 * data['share_of_step']:.1f} %",
            "2 CPU cores",
        ],
        *(
            [
                f"draw frames of {size} × {size}",
                f"{films['frames'][size]['frames_per_second']:,.0f} per s",
                films["renderer"],
            ]
            for size in films["frames"]
        ),
    ]
    return _show([["what", "measured", "machine"], *rows])


def streams() -> str:
    """Training from disk: memory, waiting, and what a kill changes."""
    data = _results("streaming.json")
    rows = [
        ["transitions on disk", f"{data['transitions']:,} ({data['bytes_on_disk'] / 1e9:.1f} GB)"],
        ["one epoch read without training", f"{data['epoch']['per_second'] / 1e6:.1f} million transitions per s"],
    ]
    for name, row in data["trainings"].items():
        what = f"{name}, {row['steps']:,} steps of {row['batch_size']}"
        rows += [
            [f"{what}: peak memory of the process", f"{row['peak_mib'] / 1024:.2f} GiB"],
            [f"{what}: time not spent waiting for data", f"{100 * row['busy']:.1f} %"],
        ]
    killed = data["killed"]
    same = "the same bits" if killed["same_weights"] and killed["same_losses"] else "other numbers"
    rows.append([f"weights and losses after {len(killed['after_steps'])} kills (SIGKILL) and resumes", same])
    return _show([["what", "measured"], *rows])


def processes() -> str:
    """Two processes beside one."""
    data = _results("processes.json")
    body = []
    for num, name in ((1, "one"), (2, "two")):
        rates, cpu, loads = (
            [row[k] for row in data[name]] for k in ("steps_per_second", "cpu_seconds_per_step", "load_before")
        )
        cells = [statistics.median(rates), min(rates), max(rates), statistics.median(cpu), min(loads), max(loads)]
        rate, low, high, seconds, quiet, busy = cells
        body.append([str(num), f"{rate:.2f} ({low:.2f} to {high:.2f})", f"{seconds:.2f}", f"{quiet:.1f} to {busy:.1f}"])
    ratios = [data[k] for k in ("ratio", "ratio_by_cpu_time")]
    shown = [f"{r['median']:.2f} × ({r['range'][0]:.2f} to {r['range'][1]:.2f})" for r in ratios]
    body.append(["ratio", *shown, "–"])
    return _show([["processes", "steps per s", "CPU s per step, all", "load of the machine before"], *body])


def install() -> str:
    """What the library adds to torch."""
    data = _results("install.json")
    rows = [
        [
            f"`import {name}`" if "," not in name else "import of all that trains a model",
            f"{row['seconds']:.2f} s",
            f"{row['of_torch']:.2f} ×",
        ]
        for name, row in data["import"].items()
    ]
    rows.append(["download beyond torch and numpy", f"{data['download_bytes'] / 1e6:.1f} MB", "–"])
    return _show([["what", "measured (imports: CPU time)", "import torch = 1"], *rows])


NETS = {  # name: parameters, tokens of a sample, samples of a step on one GPU
    "U-ViT, 115 million": (115e6, 256, 64),
    "U-ViT, 2.4 million": (2.4e6, 256, 64),
    "three perceptrons, 0.4 million": (0.4e6, 1, 512),
}
LEAST_STEP = 0.6e-3  # seconds: launching the kernels of a small step


def scale_out() -> str:
    """Computed, not measured: the step of one GPU, and the share of it that is left when gradients are exchanged after it."""
    body = []
    for name, (parameters, tokens, samples) in NETS.items():
        compute = max(LEAST_STEP, 6 * parameters * tokens * samples / 300e12)
        shares = []
        for num in (8, 64, 512):
            inside = 2 * 7 / 8 * 4 * parameters / 450e9 + 14 * 5e-6
            outside = 2 * 4 * parameters / 8 / 50e9 + 2 * math.log2(num / 8) * 10e-6 if num > 8 else 0.0
            shares.append(f"{100 * compute / (compute + inside + outside):.0f} %")
        body.append([name, str(samples), f"{1e3 * compute:.1f}", *shares])
    return _show([["net", "samples per GPU", "step, ms", "8 GPUs", "64", "512"], *body])


def _rolled_out(row: dict[str, Any]) -> tuple[str, str]:
    """The model of a roll-out, and its size."""
    nets = "one shared net" if row["shared"] else "three nets"
    slots = f"{row['history']} slot{'s' if row['history'] > 1 else ''}"
    return f"{nets}, {slots}", f"{row['paths']:,} × {row['steps']:,}"


def _of_others(row: dict[str, Any]) -> list[str]:
    """Times of other ways to draw, ours = 1."""
    names = ("launched_ratio", "torchsde_ratio")
    return [f"{row[name]:.1f} ×" if name in row else "–" for name in names]


def rollouts() -> str:
    """Roll-outs of perceptrons on a GPU beside the same kernels launched one by one, and beside torchsde."""
    body = []
    for row in _results("rollouts.json")["rows"]:
        if row["net"] != "perceptron":
            continue
        times = [f"{row[f'{name}_ms']:,.{1 if row[f'{name}_ms'] < 10 else 0}f}" for name in ("ours", "launched")]
        apart = f"{row['apart_one_step']:.0e}".replace("0e+00", "0")
        what, ratios = _rolled_out(row), _of_others(row)
        body.append([*what, *times, *ratios, apart])
    head = [
        "model",
        "paths × steps",
        "ours, ms",
        "kernel by kernel, ms",
        "ratio",
        "torchsde, ratio",
        "apart after a step",
    ]
    return _show([head, *body])


def _plan_of_unet(in_a_row: bool) -> Callable[[], str]:
    """How many times as long a plan of Diffusion Policy's U-Net takes on a GPU."""

    def value() -> str:
        rows = [r for r in _results("bench_plans.json")["rows"] if r["method"] == "Diffusion Policy, U-Net"]
        (row,) = (r for r in rows if (r["plans in a row"] > 1) == in_a_row)
        return f"{row['times_ours']:.1f}"

    return value


def training_rate() -> str:
    """Training steps per second of perceptrons on a GPU."""
    body = [
        [
            row["nets"],
            "recorded" if row["graph"] else "launched one by one",
            f"{row['steps_per_s']:,.0f} ({row['slowest']:,.0f} to {row['fastest']:,.0f})",
            f"{row['of_shared']:.2f}",
        ]
        for row in _results("training_rate.json")["rows"]
    ]
    return _show([["nets", "kernels of a step", "steps per s", "one shared net = 1"], *body])


def training_frames() -> str:
    """Training steps per second of U-ViTs on a GPU, and their share of the rate of one large product."""
    body = [
        [
            f"{row['millions']:.3g} million",
            row["kernels"],
            f"{row['steps_per_s']:.3g}",
            f"{row['teraflops']:.0f}",
            f"{100 * row['of_product']:.0f} %",
        ]
        for row in _results("training_rate.json")["frames"]
        if "kernels" in row
    ]
    head = ["parameters", "kernels of a step", "steps per s", "TFLOP/s", "of one large product"]
    return _show([head, *body])


def rollouts_cpu() -> str:
    """Roll-outs of perceptrons on one core of a CPU, as times of ours."""
    body = [[*_rolled_out(row), *_of_others(row)] for row in _results("rollouts_cpu.json")["rows"]]
    return _show([["model", "paths × steps", "step by step", "torchsde"], *body])


def frames() -> str:
    """Frames of a U-ViT on a GPU, in bf16 beside float32 launched kernel by kernel."""
    body = []
    for row in _results("rollouts.json")["rows"]:
        if row["net"] == "U-ViT":
            each = f"{row['ours_ms'] / row['steps']:.2f}"
            size = f"{row['millions']:.1f}" if row["millions"] < 10 else f"{row['millions']:.0f}"
            rate = f"{row['frames_per_s']:,.0f}"
            body.append([f"{size} million", str(row["paths"]), rate, each, f"{row['launched_ratio']:.1f} ×"])
    return _show([["parameters", "futures", "frames per s", "ms per frame of all", "float32, kernel by kernel"], *body])


PEAK, COPY = 787e12, 4.3e12  # of the H200, measured: bf16 operations and bytes of its memory in a second
TOKENS = 256
WIDTH, LAYERS = 128, 6  # of a perceptron; the layers between its first and its last


def floors() -> str:
    """What a step of a roll-out takes at least: operations at the peak, or the weights from memory once; and what it takes."""
    body = []
    for row in _results("rollouts.json")["rows"]:
        if (
            row["net"] == "perceptron"
            and row["history"] == 1
            and (row["paths"], row["steps"]) in ((4096, 1000), (1, 8))
        ):
            nets = 1 if row["shared"] else 2  # flow and diffusion
            weights = nets * LAYERS * WIDTH**2
            name = (
                f"{'one shared net' if row['shared'] else 'two nets'}, {row['paths']:,} path{'s' * (row['paths'] > 1)}"
            )
            slow = 2 if row["shared"] else 1  # three products: of TF32 at half the speed of bf16, or in half precision
            work, size = 3 * 2 * slow * weights * row["paths"], 4 * weights
        elif row["net"] == "U-ViT":
            weights = row["millions"] * 1e6
            name = f"U-ViT, {row['millions']:.0f} million, {row['paths']} future{'s' * (row['paths'] > 1)}"
            work, size = 2 * weights * TOKENS * row["paths"], 2 * weights
        else:
            continue
        took = 1e3 * row["ours_ms"] / row["steps"]
        least = [1e6 * work / PEAK, 1e6 * size / COPY]
        shown = [f"{v:,.{0 if v >= 100 else 1 if v >= 1 else 2}f}" if v >= 0.01 else "< 0.01" for v in (*least, took)]
        body.append([name, *shown, f"{100 * max(least) / took:.0f} %"])
    head = ["a step of", "operations, µs", "weights from memory, µs", "measured, µs", "floor / measured"]
    return _show([head, *body])


def shipped_bf16() -> str:
    """What bf16 changes in the frames of the shipped video model."""
    (row,) = (r for r in _results("rollouts.json")["rows"] if r["net"] == "shipped video model")
    body = [
        ["latents after one frame, rms, in units of the data", f"{row['rms_one_step']:.4f}"],
        ["latents after 16 frames", f"{row['rms_at_the_end']:.2f}"],
        ["PSNR in float32, dB", f"{row['psnr_float32']:.2f}"],
        ["change of PSNR, dB", f"{row['psnr_change']:+.3f} ± {row['psnr_change_error']:.3f}"],
    ]
    return _show([[f"{row['clips']} test clips", "value"], *body])


def _transport(keys: dict[str, int]) -> Cells:
    """Scores of one step and their digits, by law and passes; the mixture takes one pass."""
    rows = _results("transport.json")["rows"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    body = []
    for name in dict.fromkeys(row["system"] for row in rows):
        for passes in sorted({row["passes"] for row in rows}):
            cells = []
            for method in methods:
                asked = {0: None, 1: 0}.get(passes) if method == "Mixture" else passes
                own = [r for r in rows if (r["system"], r["method"], r["passes"]) == (name, method, asked)]
                found = {key: [row[key] for row in own] for key in keys if own}
                shown = (
                    f"{statistics.mean(v):.{keys[k]}f} ± {statistics.stdev(v):.{keys[k]}f}" for k, v in found.items()
                )
                cells.append(" / ".join(shown) or "–")
            body.append([name, str(passes), *cells])
    return [["step", "passes", *methods], *body]


def transport() -> str:
    """Distance of one step to the truth, by law and passes."""
    head, *body = _transport({"distance": 3})
    rows = _results("transport.json")["rows"]
    floors = {line[0]: statistics.mean(row["floor"] for row in rows if row["system"] == line[0]) for line in body}
    return _show([[*head, "floor"], *([*line, f"{floors[line[0]]:.3f}"] for line in body)])


def transport_moments() -> str:
    """Mean and variance of one step beside those of the truth, by law and passes."""
    return _show(_transport({"mean": 2, "variance": 2}))


def filters() -> str:
    """Nats per observed entry over the exact filter, with true and with learned fields."""
    rows, body = _results("filter.json")["rows"], []
    for case in dict.fromkeys((row["system"], row["missing"], row["noise"]) for row in rows):
        own = [row for row in rows if (row["system"], row["missing"], row["noise"]) == case]
        true = next(row["excess"] for row in own if row["fields"] == "true")
        learned = [[row["excess"] for row in own if row["fields"] == way] for way in ("learned", "learned by pairs")]
        goal = "≤ 0.02" if case[0] == "double well" else "≤ 1e-6, learned ≤ 0.01"
        spreads = [f"{statistics.mean(v):.4f} ({min(v):.4f} to {max(v):.4f})" if v else "–" for v in learned]
        body.append([case[0], f"{100 * case[1]:.0f} %", f"{case[2]:g}", f"{true:.1e}", *spreads, goal])
    return _show([["system", "missing", "noise", "true fields", "learned", "learned by pairs", "goal"], *body])


def forecasting_scale() -> str:
    """Seconds and memory of many series and of many rows."""
    body = [
        [
            row["case"],
            *(f"{row[f'{part}_seconds']:.0f} s" for part in ("fit", "forecast")),
            f"{row['peak_gib']:.1f} GiB",
        ]
        for row in _results("forecasting_scale.json")["rows"]
    ]
    return _show([["table", "fit", "forecast", "peak memory"], *body])


def latency() -> str:
    """Milliseconds for a plan of eight actions, or for one action, sorted."""
    rows = [r for r in _results("pusht_latency.json")["rows"].items() if "cpu" in r[1]]
    rows.sort(key=lambda r: r[1]["cpu"]["p50_ms"])
    body = []
    for name, row in rows:
        cpu = row["cpu"]
        times = [f"{cpu['p50_ms']:,.1f}", f"{cpu['ratio']:,.1f} ×"]
        body.append([name, str(row["num_actions"]), str(row["network_passes"]), *times])
    return _show([["method", "actions", "passes", "ms, CPU core", "time, ours = 1"], *body])


def _bench(name: str, *settings: str) -> Callable[[], str]:
    """A comparison of `nsde bench`: medians of interleaved turns, with the fastest and the slowest."""

    def table() -> str:
        body = [
            [
                *(f"{row[key]:,}" for key in settings),
                row["method"],
                f"{row['ms']:,.2f} ({row['fastest_ms']:,.2f} to {row['slowest_ms']:,.2f})",
                f"{row['times_ours']:,.1f} ×",
            ]
            for row in _results(f"bench_{name}.json")["rows"]
            if all(key in row for key in settings)
        ]
        return _show([[*settings, "method", "ms, GPU", "time, ours = 1"], *body])

    return table


def export() -> str:
    """Milliseconds for a plan of the shipped policy, eager and exported, and of the U-Net, sorted."""
    rows = sorted(_results("export.json")["rows"].items(), key=lambda r: r[1]["p50_ms"])
    body = []
    for name, row in rows:
        off = f"{row['max_pixels']:.2g}" if "max_pixels" in row else "–"
        played = row.get("episodes")
        scores = ["–", "–"]
        if played:
            parts = [played[key] for key in ("score", "success")]
            scores = [f"{part['mean']:.3f} ({part['low']:.3f} to {part['high']:.3f})" for part in parts]
        label = f"{name}, DDIM-10" if name.startswith("Diffusion") else name
        body.append([label, f"{row['p50_ms']:,.1f}", f"{row['ratio']:,.2f} ×", off, *scores])
    return _show([["plan by", "ms, CPU core", "time, eager = 1", "off eager, pixels", "score", "success"], *body])


TABLES: dict[str, Callable[[], str]] = {
    "export": export,
    "laws": laws,
    "zoo": zoo,
    "zoo-strange": lambda: zoo("zoo_strange.json"),
    "zoo-hindsight": zoo_hindsight,
    "zoo-long": zoo_long,
    "zoo-known": zoo_known,
    "shapes": shapes,
    "ten-minutes": ten_minutes,
    "walking": walking,
    "forecasting": forecasting,
    "forecasting-neural": lambda: forecasting(NEURAL_FORECASTERS),
    "rollouts": rollouts,
    "training-rate": training_rate,
    "training-frames": training_frames,
    "rollouts-cpu": rollouts_cpu,
    "forecasting-scale": forecasting_scale,
    "transport": transport,
    "transport-moments": transport_moments,
    "filter": filters,
    "frames": frames,
    "floors": floors,
    "bf16": shipped_bf16,
    "rivals": rivals,
    "branching": branching,
    "branching-short": branching_short,
    "branching-hard": branching_hard,
    "branching-lag": branching_lag,
    "branching-rates": branching_rates,
    "branching-source": branching_source,
    "history": history,
    "inverse-dynamics": inverse_dynamics,
    "known-sdes-fields": known_sdes_fields,
    "known-sdes-laws": known_sdes_laws,
    "known-sdes-start": _known(lambda r: r.endswith(", start")),
    "known-sdes-paper": known_sdes_paper,
    "known-sdes-hard": _known(lambda r: any(w in r for w in ("gaps", "measurement", "missing", "start, irregular"))),
    "known-sdes-source": known_sdes_source,
    "claims-known": claims_known,
    "claims-known-all": claims_known_all,
    "claims-fork": _claims_fork("alpha", "delta", "joint"),
    "claims-fork-short": claims_fork_short,
    "claims-ablation": _claims_fork("ablation"),
    "peers-fim": peers_fim,
    "peers-lorenz": peers_lorenz,
    "peers-nll": _peer("nll"),
    "peers-drift": _peer("drift"),
    "peers-law": _peer("law"),
    "peers-factors": _peer("time", without="seeds"),
    "peers-time": peers_time,
    "peers-gaussian": peers_gaussian,
    "peers-tuning": peers_tuning,
    "peers-noisy-drift": _peer("noisy drift"),
    "peers-noisy-diffusion": _peer("noisy diffusion"),
    "peers-memory": _peer("memory"),
    "peers-steps": _peer("steps"),
    "pusht-short": pusht_short,
    "pusht-samples": pusht_samples,
    "pusht-trials": lambda: _show(_tables("pusht-trials")[0]),
    "pusht-paper": pusht_paper,
    "pusht-bare": pusht_bare,
    "pusht-own-worlds": pusht_own_worlds,
    "pusht-worlds": pusht_worlds,
    "pusht-source": pusht_source,
    "pusht-parts": pusht_parts,
    "pusht-scores": pusht_scores,
    "pusht-costs": pusht_costs,
    "pusht-ablations": pusht_ablations,
    "video-between": _between("×2", short=True),
    "video-between-2": _between("×2"),
    "video-between-5": _between("×5"),
    "video-collisions": _video("video-collisions", "passes per frame"),
    "video-pairs": _pairs("video-collisions", "NSDE −"),
    "video-between-pairs": _pairs("video-collisions", "NSDE: ×2"),
    "video-collisions-ahead": _video("video-collisions", "36 frames ahead"),
    "video-uncertainty": _video("video-collisions", "futures by"),
    "video-ablations": _video("video-collisions", "g off: PSNR"),
    "video-people": _video("video-people", "passes per frame"),
    "video-people-pairs": _pairs("video-people", "NSDE −"),
    "video-people-choice": _video_choice("video_people_choice.json"),
    "video-scaling": video_scaling,
    "video-scaling-law": video_scaling_law,
    "video-parts": _video("video-parts", "g off: PSNR"),
    "video-parts-source": video_source("video_parts.json"),
    "video-scaling-source": video_source("video_scaling.json"),
    "video-source": video_source("video_collisions.json"),
    "video-fronts-source": video_source("video_fronts.json"),
    "video-fronts": _video("video-fronts", "temperature"),
    "video-fronts-128": _video("video-fronts-128", "temperature"),
    "video-fronts-128-source": video_source("video_fronts_128.json"),
    "video-fronts-128-ahead": lambda: _show(_tables("video-fronts-128")[1]),
    "video-fronts-people": _video("video-fronts-people", "temperature"),
    "video-fronts-people-source": video_source("video_fronts_people.json"),
    "video-fronts-people-ahead": lambda: _show(_tables("video-fronts-people")[1]),
    "video-fronts-ahead": lambda: _show(_tables("video-fronts")[1]),
    "speed": speed,
    "bench-plans": _bench("plans", "plans in a row"),
    "bench-video": _bench("video", "futures", "frames"),
    "bench-video-training": _bench("video", "batch of transitions"),
    "streams": streams,
    "processes": processes,
    "install": install,
    "scale-out": scale_out,
    "latency": latency,
}


def _mean_in(table: str, row: str, column: int) -> str:
    """The mean in a cell of a table, by the first row that begins so."""
    (cells,) = _parse(TABLES[table]())
    return next(r for r in cells if " | ".join(r).startswith(row))[column].split(" ±")[0]


def bands() -> str:
    """What the 80 % bands of known SDEs hold."""
    (cells,) = _parse(TABLES["known-sdes-start"]())
    held = sorted(float(row[-1].split(" ±")[0]) for row in cells[1:])
    return f"80 % band holds between {held[0]} and {held[-1]} %"


def _of_way(way: str, column: str) -> list[str]:
    """The means of a column over the known SDEs that were learned in a way, least first."""
    head, *rows = _parse(TABLES["known-sdes-paper"]())[0]
    found = [line[head.index(column)].split(" ±")[0] for line in rows if line[0].endswith(way)]
    return sorted(found, key=float)


def paper_drift() -> str:
    """How far the drift is off without the balance."""
    found = _of_way("paper's equation", "drift error %")
    return f"{found[0]} to {found[-1]} %"


VALUES: dict[str, Callable[[], str]] = {
    "paper-noise": lambda: _of_way("paper's equation", "diffusion error %")[-1] + " %",
    "paper-drift": paper_drift,
    "plan-cpu": lambda: f"{_results('pusht_latency.json')['rows']['NSDE']['cpu']['p50_ms']:.1f}",
    "plan-cpu-unet": lambda: f"{_results('pusht_latency.json')['rows']['Diffusion Policy, U-Net']['cpu']['ratio']:.0f}",
    "plan-gpu-alone": _plan_of_unet(False),
    "plan-gpu-row": _plan_of_unet(True),
    "hindsight": zoo_within,
    "bands": bands,
    "plan": lambda: f"{_mean_in('rivals', 'Push-T | ms per plan', 2)} ms",
    "success": lambda: _mean_in("rivals", "Push-T | strict success", 2),
    "rival-success": lambda: _mean_in("rivals", "Push-T | strict success", 3),
    "video": lambda: f"128 × 128, two passes have {_mean_in('video-fronts-128', 'NSDE | 2', 3)} dB",
    "regression": lambda: _mean_in("video-fronts-128", "regression", 3),
}


def filled(text: str) -> str:
    """`text` with all tables and values made anew."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n\n{TABLES[match[1]]()}\n\n<!-- end -->"

    def value(match: re.Match[str]) -> str:
        return f"<!-- value: {match[1]} -->{VALUES[match[1]]()}<!-- end -->"

    text = re.sub(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)
    return re.sub(r"<!-- value: ([\w-]+) -->.*?<!-- end -->", value, text)


def main() -> None:
    """Fill in, or check."""
    stale = []
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
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
