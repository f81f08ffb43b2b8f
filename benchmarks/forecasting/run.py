"""Forecasts of public tables by `nsde.fit_series`, without settings, beside statsforecast and DeepAR.

    python benchmarks/forecasting/run.py --from FOLDER --output results/forecasting.json

`sets.py` says where the files come from. Every method sees the same training part, and at each origin the past of the series
(the last 1,500 steps for statsforecast, which is fitted anew at each origin; ours and DeepAR are trained once, before the
first origin). CRPS by 19 quantiles, the same for all, in percent of the mean size of the series before the origin; coverage is
that of the 80 % band. Rivals are fitted as their authors' defaults say, with the season told; AutoARIMA is left out where the
season is longer than 12 steps: a fit takes minutes there.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pandas as pd
from sets import SETS, Set

QUANTILES = np.round(np.arange(0.05, 0.96, 0.05), 2)
LEVELS = sorted({round(abs(200 * q - 100)) for q in QUANTILES} - {0})
CONTEXT = 1_500  # steps that statsforecast sees
MOST_ARIMA = 12
DEEPAR_STEPS = 300


def crps(truth: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Twice the mean pinball loss; `quantiles` (Q, ...)."""
    p = QUANTILES.reshape(-1, *[1] * truth.ndim)
    off = truth - quantiles
    return 2 * np.maximum(p * off, (p - 1) * off).mean(0)


def windows(own: Set) -> list[tuple[str, int]]:
    """Series and rows that are known, of each forecast."""
    return [(k, len(g) - n) for k, g in own.series().items() for n in own.origins if len(g) - n >= 10]


def truth_of(own: Set) -> np.ndarray:
    """(B, horizon, d)"""
    series = own.series()
    return np.stack([series[k][own.columns].to_numpy(float)[n : n + own.horizon] for k, n in windows(own)])


def by_nsde(own: Set, seed: int, budget: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Quantiles (Q, B, horizon, d) of `nsde.fit_series`."""
    import torch

    import neuralsde as nsde

    torch.set_num_threads(1)
    series = own.series()
    known = pd.concat([g.iloc[: len(g) - own.origins[0]] for g in series.values()])
    reading = {"id": "unique_id", "time": "ds", "columns": own.columns}
    model = nsde.fit_series(known, horizon=own.horizon, seed=seed, budget=budget, progress=False, **reading)
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
            y = series[k][column].iloc[:n].interpolate(limit_direction="both").to_numpy(float)[-CONTEXT:]
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


def by_deepar(own: Set, seed: int) -> np.ndarray:
    """Quantiles of DeepAR (neuralforecast), trained once; columns are series of their own."""
    from neuralforecast import NeuralForecast
    from neuralforecast.losses.pytorch import DistributionLoss
    from neuralforecast.models import DeepAR

    series = own.series()

    def long(rows: list[tuple[str, str, int]]) -> pd.DataFrame:
        parts = []
        for name, k, n in rows:
            for j, column in enumerate(own.columns):
                y = series[k][column].iloc[:n].interpolate(limit_direction="both").to_numpy(float)[-CONTEXT:]
                parts.append(pd.DataFrame({"unique_id": f"{name} {j:03d}", "ds": np.arange(len(y)), "y": y}))
        return pd.concat(parts)

    loss = DistributionLoss("StudentT", quantiles=list(QUANTILES))
    size = min(2 * own.season if own.season > 1 else 24, 96)
    more = {"enable_progress_bar": False, "logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    model = DeepAR(
        h=own.horizon,
        input_size=max(size, 16),
        loss=loss,
        max_steps=DEEPAR_STEPS,
        scaler_type="robust",
        random_seed=seed,
        **more,
    )
    trained = NeuralForecast(models=[model], freq=1)
    trained.fit(df=long([(k, k, len(g) - own.origins[0]) for k, g in series.items()]))
    made = trained.predict(df=long([(f"{b:05d}", k, n) for b, (k, n) in enumerate(windows(own))]))
    made = made.sort_values(["unique_id", "ds"])
    shape = (len(windows(own)), len(own.columns), own.horizon)
    names = [c for c in made.columns if c.startswith("DeepAR-ql") or c.startswith("DeepAR_ql")]
    assert len(names) == len(QUANTILES), list(made.columns)
    return np.sort(np.stack([made[c].to_numpy(float).reshape(shape).swapaxes(1, 2) for c in names]), axis=0)


def row(name: str, method: str, seed: int, own: Set, quantiles: np.ndarray, **more: Any) -> dict[str, Any]:
    """Scores of one method on one set."""
    truth = truth_of(own)
    seen = np.isfinite(truth)
    series = own.series()
    size = np.stack([np.nanmean(np.abs(series[k][own.columns].to_numpy(float)[:n]), axis=0) for k, n in windows(own)])[
        :, None
    ]
    score = np.where(seen, crps(np.nan_to_num(truth), quantiles) / size, np.nan)
    low, high = quantiles[QUANTILES == 0.1][0], quantiles[QUANTILES == 0.9][0]
    inside = ((truth >= low) & (truth <= high))[seen]
    each = np.nanmean(score.reshape(len(score), -1), axis=1)
    return {
        "set": name,
        "method": method,
        "seed": seed,
        "crps": 100 * float(each.mean()),
        "coverage": float(inside.mean()),
        "num_windows": int(truth.shape[0] * truth.shape[2]),
        "horizon": own.horizon,
        **more,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="folder", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(SETS))
    parser.add_argument("--methods", nargs="*", default=["nsde", "statsforecast", "deepar"])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--budget", default="1 min")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    from neuralsde.training.run_folder import provenance, write_results

    rows: list[dict[str, Any]] = []
    said = " ".join("FOLDER" if a == str(args.folder) else f'"{a}"' if " " in a else a for a in sys.argv[1:])

    def add(found: dict[str, Any]) -> None:
        rows.append(found)
        print({k: v for k, v in found.items() if k != "choice"}, flush=True)
        record = {"command": f"python benchmarks/forecasting/run.py {said}", "budget": args.budget}
        write_results(args.output, {**record, "rows": rows, **provenance()})

    for name in args.only:
        own = SETS[name](args.folder)
        if "statsforecast" in args.methods:
            began = time.perf_counter()
            for method, quantiles in by_statsforecast(own).items():
                add(row(name, method, 0, own, quantiles, seconds=time.perf_counter() - began))
        for seed in args.seeds:
            if "nsde" in args.methods:
                began = time.perf_counter()
                quantiles, more = by_nsde(own, seed, args.budget)
                add(row(name, "nsde.fit_series", seed, own, quantiles, seconds=time.perf_counter() - began, **more))
            if "deepar" in args.methods:
                began = time.perf_counter()
                add(row(name, "DeepAR", seed, own, by_deepar(own, seed), seconds=time.perf_counter() - began))


if __name__ == "__main__":
    main()
