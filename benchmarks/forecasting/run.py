"""Forecasts of public tables by `nsde.fit_series`, without settings, beside statsforecast, DeepAR and NHITS.

    python benchmarks/forecasting/run.py --from FOLDER --output results/forecasting.json

`sets.py` says where the files come from. Every method sees the same training part, and at each origin the past of the series
(the last 1,500 steps for statsforecast, which is fitted anew at each origin; the others are trained once, before the first
origin). CRPS by 19 quantiles, the same for all, in percent of the mean size of the series before the origin; coverage is that
of the 80 % band. statsforecast is fitted as its authors' defaults say, with the season told; AutoARIMA is left out where the
season is longer than 12 steps: a fit takes minutes there. `neural.py` says how DeepAR and NHITS are tuned.

Rows that the output holds already are kept where they are of the same commit, or of a set and method that are not asked for: a
run may be stopped, or made in parts by `--methods` and `--only`. A row names its commit. A rival that is not installed is said to
be absent.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pandas as pd
from scores import QUANTILES, known, row, values, windows
from sets import SETS, Set

METHODS = {
    "nsde": ("nsde.fit_series",),
    "statsforecast": ("AutoETS", "AutoARIMA", "MSTL", "seasonal naive"),
    "DeepAR": ("DeepAR",),
    "NHITS": ("NHITS",),
}
LEVELS = sorted({round(abs(200 * q - 100)) for q in QUANTILES} - {0})
CONTEXT = 1_500  # steps that statsforecast sees
MOST_ARIMA = 12


def by_nsde(own: Set, seed: int, budget: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Quantiles (Q, B, horizon, d) of `nsde.fit_series`."""
    import torch

    import neuralsde as nsde

    torch.set_num_threads(1)
    series = own.series()
    reading = {"id": "unique_id", "time": "ds", "columns": own.columns}
    model = nsde.fit_series(known(own), horizon=own.horizon, seed=seed, budget=budget, progress=False, **reading)
    pasts = pd.concat([series[k].iloc[:n].assign(unique_id=f"{k} {n}") for k, n in windows(own)])
    made = model.forecast(own.horizon, table=pasts, num_paths=500, seed=seed).forecasts
    samples = made.samples.flatten(3).double().numpy()
    assert model.report is not None
    return np.quantile(samples, QUANTILES, axis=1, method="weibull"), {"choice": model.report.choice}


def by_statsforecast(own: Set) -> dict[str, np.ndarray]:
    """Quantiles of each of its models."""
    from statsforecast import StatsForecast
    from statsforecast.models import MSTL, AutoARIMA, AutoETS, SeasonalNaive

    series = own.series()
    shortest = min(n for _, n in windows(own))
    seasons = [m for m in own.seasons if 2 * m < min(shortest, CONTEXT)]
    models: list[Any] = [AutoETS(season_length=own.season if own.season <= 24 else 1, alias="AutoETS")]
    if own.season <= MOST_ARIMA:
        models.append(AutoARIMA(season_length=own.season, alias="AutoARIMA"))
    if seasons:
        models.append(MSTL(season_length=seasons, alias="MSTL"))
    models.append(SeasonalNaive(season_length=own.season, alias="seasonal naive"))
    parts = []
    for b, (k, n) in enumerate(windows(own)):
        for j, column in enumerate(own.columns):
            y = values(series[k][column].iloc[:n])[-CONTEXT:]
            parts.append(pd.DataFrame({"unique_id": f"{b:05d} {j:03d}", "ds": np.arange(len(y)), "y": y}))
    made = StatsForecast(
        models=models, freq=1, n_jobs=1, fallback_model=SeasonalNaive(season_length=own.season)
    ).forecast(df=pd.concat(parts), h=own.horizon, level=LEVELS)
    made = made.sort_values(["unique_id", "ds"])
    shape = (len(windows(own)), len(own.columns), own.horizon)
    found = {}
    for name in [m.alias for m in models]:
        ends = []
        for q in QUANTILES:
            level = round(abs(200 * q - 100))
            column = name if level == 0 else f"{name}-{'lo' if q < 0.5 else 'hi'}-{level}"
            ends.append(made[column].to_numpy(float).reshape(shape).swapaxes(1, 2))
        found[name] = np.stack(ends)
    return found


def made_by(method: str, name: str, own: Set, seeds: list[int], budget: str) -> Iterator[dict[str, Any]]:
    """Rows of a method on a set."""
    began = time.perf_counter()
    if method == "statsforecast":
        for each, quantiles in by_statsforecast(own).items():
            yield row(name, each, 0, own, quantiles, seconds=time.perf_counter() - began)
    elif method == "nsde":
        for seed in seeds:
            began = time.perf_counter()
            quantiles, more = by_nsde(own, seed, budget)
            yield row(name, "nsde.fit_series", seed, own, quantiles, seconds=time.perf_counter() - began, **more)
    else:
        from neural import by_neural

        for seed, quantiles, more in by_neural(method, own, seeds):
            yield row(name, method, seed, own, quantiles, **more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="folder", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(SETS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--budget", default="1 min")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    from neuralsde.training.run_folder import provenance, rows_before, write_results

    said = " ".join("FOLDER" if a == str(args.folder) else f'"{a}"' if " " in a else a for a in sys.argv[1:])
    record = {"command": f"python benchmarks/forecasting/run.py {said}", "budget": args.budget}
    here, order = provenance(), list(SETS)
    asked = [(own, name) for own in args.only for method in args.methods for name in METHODS[method]]
    rows = rows_before(args.output, args.budget, here["commit"], asked)
    for method in args.methods:
        for name in args.only:
            have = {r["seed"] for r in rows if r["set"] == name and r["method"] in METHODS[method]}
            seeds = [seed for seed in args.seeds if seed not in have]
            if not seeds or (have and method == "statsforecast"):
                continue
            own = SETS[name](args.folder)
            try:
                for found in made_by(method, name, own, seeds, args.budget):
                    rows.append({"commit": here["commit"], **found})
                    rows.sort(key=lambda r: order.index(r["set"]))
                    shown = {k: v for k, v in found.items() if k not in ("choice", "tried")}
                    print(shown, flush=True)
                    write_results(args.output, {**record, "rows": rows, **here})
            except ImportError as absent:
                print(f"{method} is absent: {absent}.", flush=True)
                break


if __name__ == "__main__":
    main()
