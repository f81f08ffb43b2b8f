"""What every method of the benchmark shares: where forecasts start, what was known there, and the score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sets import Set

QUANTILES = np.round(np.arange(0.05, 0.96, 0.05), 2)
FEWEST = 10  # rows that are known at an origin


def crps(truth: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Twice the mean pinball loss; `quantiles` (Q, ...)."""
    p = QUANTILES.reshape(-1, *[1] * truth.ndim)
    off = truth - quantiles
    return 2 * np.maximum(p * off, (p - 1) * off).mean(0)


def known(own: Set) -> pd.DataFrame:
    """What comes before the first origin."""
    return pd.concat([g.iloc[: max(len(g) - own.origins[0], 0)] for g in own.series().values()])


def windows(own: Set) -> list[tuple[str, int]]:
    """Series and rows that are known, of each forecast."""
    return [(k, len(g) - n) for k, g in own.series().items() for n in own.origins if len(g) - n >= FEWEST]


def values(column: pd.Series) -> np.ndarray:
    """For methods that take no missing values."""
    return column.interpolate(limit_direction="both").to_numpy(float)


def truth_of(own: Set) -> np.ndarray:
    """(B, horizon, d)"""
    series = own.series()
    return np.stack([series[k][own.columns].to_numpy(float)[n : n + own.horizon] for k, n in windows(own)])


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
