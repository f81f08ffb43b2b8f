"""Tables to try before one has a file at hand: made up on the spot, always the same, and said to be so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from neuralsde.core.records import check

EXAMPLES: dict[str, tuple[str, Callable[[np.random.Generator], pd.DataFrame]]] = {}
"""Name to words for the page, and what makes the table."""


def _example(
    name: str, words: str
) -> Callable[[Callable[[np.random.Generator], pd.DataFrame]], Callable[[np.random.Generator], pd.DataFrame]]:
    def keep(make: Callable[[np.random.Generator], pd.DataFrame]) -> Callable[[np.random.Generator], pd.DataFrame]:
        EXAMPLES[name] = (words, make)
        return make

    return keep


def _around_zero(rng: np.random.Generator, num: int, stays: float) -> np.ndarray:
    """Noise of size 1 of which a share `stays` from one step to the next."""
    noise, found = rng.normal(size=num) * np.sqrt(1 - stays**2), np.zeros(num)
    for k in range(1, num):
        found[k] = stays * found[k - 1] + noise[k]
    return found


@_example("electricity", "Electricity, hourly")
def _electricity(rng: np.random.Generator) -> pd.DataFrame:
    hours = np.arange(24 * 7 * 4)
    workday = (hours // 24) % 7 < 5
    load = 52 + 11 * np.sin(2 * np.pi * (hours - 8) / 24) + 3 * np.sin(4 * np.pi * hours / 24) + 7 * workday
    dates = pd.date_range("2025-03-03", periods=len(hours), freq="h")
    return pd.DataFrame({"time": dates, "load_MW": np.round(load + 2.5 * _around_zero(rng, len(hours), 0.9), 2)})


@_example("shops", "Sales of four shops, daily")
def _shops(rng: np.random.Generator) -> pd.DataFrame:
    days = np.arange(280)
    dates = pd.date_range("2024-09-02", periods=len(days), freq="D")
    week = np.array([0.9, 0.85, 0.9, 1.0, 1.25, 1.5, 0.6])[days % 7]
    parts = []
    for name, size, growth in (("Bergen", 120, 0.3), ("Lyon", 340, 0.0), ("Porto", 60, 0.8), ("Turin", 210, -0.3)):
        level = size * (1 + growth * days / len(days)) * np.exp(0.12 * _around_zero(rng, len(days), 0.8))
        sales = np.maximum(0, np.round(level * week * np.exp(0.06 * rng.normal(size=len(days)))))
        parts.append(pd.DataFrame({"date": dates, "shop": name, "sales": sales.astype(int)}))
    return pd.concat(parts)


@_example("weather", "Weather, three columns")
def _weather(rng: np.random.Generator) -> pd.DataFrame:
    days = np.arange(3 * 365)
    front = _around_zero(rng, len(days), 0.85)
    warmth = 10 - 9 * np.cos(2 * np.pi * (days - 20) / 365.25) + 3 * _around_zero(rng, len(days), 0.75) - 1.2 * front
    values = {
        "temperature": np.round(warmth, 1),
        "pressure": np.round(1014 - 7 * front + rng.normal(size=len(days)), 1),
        "wind": np.round(3.5 * np.exp(0.35 * front + 0.3 * _around_zero(rng, len(days), 0.4)), 1),
    }
    values["wind"][rng.random(len(days)) < 0.02] = np.nan
    return pd.DataFrame({"date": pd.date_range("2022-01-01", periods=len(days), freq="D"), **values})


@_example("sensor", "A sensor at uneven times")
def _sensor(rng: np.random.Generator) -> pd.DataFrame:
    gaps = rng.exponential(40.0, size=500) + 5.0  # minutes
    level = [0.0]
    for gap in gaps[1:]:
        stays = np.exp(-gap / 240)
        level.append(stays * level[-1] + rng.normal() * np.sqrt(1 - stays**2))
    stamps = pd.Timestamp("2025-05-01") + pd.to_timedelta(np.round(gaps.cumsum() * 60), unit="s")
    return pd.DataFrame({"measured_at": stamps, "level_cm": np.round(84 + 6 * np.array(level), 2)})


def write_example(name: str, folder: Path) -> Path:
    """The table of this name as a CSV in `folder`."""
    check(name in EXAMPLES, f"There is no example {name[:40]!r}. Examples: {', '.join(EXAMPLES)}.")
    file = folder / f"{name}.csv"
    EXAMPLES[name][1](np.random.default_rng(0)).to_csv(file, index=False)
    return file
