"""Tables to try before one has a file at hand: made up on the spot, always the same, and said to be so."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from neuralsde.core.records import check

Columns = dict[str, np.ndarray]


def _around_zero(rng: np.random.Generator, num: int, stays: float) -> np.ndarray:
    """Noise of size 1 of which a share `stays` from one step to the next."""
    noise, found = rng.normal(size=num) * np.sqrt(1 - stays**2), np.zeros(num)
    for k in range(1, num):
        found[k] = stays * found[k - 1] + noise[k]
    return found


def _dates(first: str, num: int, unit: Literal["h", "D"]) -> np.ndarray:
    return np.datetime64(first, unit) + np.arange(num)


def _electricity(rng: np.random.Generator) -> Columns:
    hours = np.arange(24 * 7 * 4)
    workday = (hours // 24) % 7 < 5
    load = 52 + 11 * np.sin(2 * np.pi * (hours - 8) / 24) + 3 * np.sin(4 * np.pi * hours / 24) + 7 * workday
    noise = 2.5 * _around_zero(rng, len(hours), 0.9)
    stamps = _dates("2025-03-03T00", len(hours), "h").astype("M8[m]")
    return {"time": stamps, "load_MW": np.round(load + noise, 2)}


def _shops(rng: np.random.Generator) -> Columns:
    days = np.arange(280)
    week = np.array([0.9, 0.85, 0.9, 1.0, 1.25, 1.5, 0.6])[days % 7]
    shops = (("Bergen", 120, 0.3), ("Lyon", 340, 0.0), ("Porto", 60, 0.8), ("Turin", 210, -0.3))
    sales = []
    for _, size, growth in shops:
        level = size * (1 + growth * days / len(days)) * np.exp(0.12 * _around_zero(rng, len(days), 0.8))
        sales.append(np.round(level * week * np.exp(0.06 * rng.normal(size=len(days)))).astype(int))
    return {
        "date": np.tile(_dates("2024-09-02", len(days), "D"), len(shops)),
        "shop": np.repeat([name for name, _, _ in shops], len(days)),
        "sales": np.concatenate(sales),
    }


def _weather(rng: np.random.Generator) -> Columns:
    days = np.arange(3 * 365)
    front = _around_zero(rng, len(days), 0.85)
    warmth = 10 - 9 * np.cos(2 * np.pi * (days - 20) / 365.25) + 3 * _around_zero(rng, len(days), 0.75) - 1.2 * front
    wind = np.round(3.5 * np.exp(0.35 * front + 0.3 * _around_zero(rng, len(days), 0.4)), 1)
    wind[rng.random(len(days)) < 0.02] = np.nan
    return {
        "date": _dates("2022-01-01", len(days), "D"),
        "temperature": np.round(warmth, 1),
        "pressure": np.round(1014 - 7 * front + rng.normal(size=len(days)), 1),
        "wind": wind,
    }


def _sensor(rng: np.random.Generator) -> Columns:
    gaps = rng.exponential(40.0, size=500) + 5.0  # minutes
    level = np.zeros(len(gaps))
    for k in range(1, len(gaps)):
        stays = np.exp(-gaps[k] / 240)
        level[k] = stays * level[k - 1] + rng.normal() * np.sqrt(1 - stays**2)
    stamps = np.datetime64("2025-05-01", "s") + np.round(60 * gaps.cumsum()).astype(int)
    return {"measured_at": stamps, "level_cm": np.round(84 + 6 * level, 2)}


EXAMPLES: dict[str, tuple[str, Callable[[np.random.Generator], Columns]]] = {
    "electricity": ("Electricity, hourly", _electricity),
    "weather": ("Weather, daily", _weather),
    "shops": ("Four shops, daily", _shops),
    "sensor": ("Uneven times", _sensor),
}
"""Name to words for the page, and what makes the table."""


def write_example(name: str, folder: Path) -> Path:
    """The table of this name as a CSV in `folder`."""
    check(name in EXAMPLES, f"There is no example {name[:40]!r}. Examples: {', '.join(EXAMPLES)}.")
    columns = EXAMPLES[name][1](np.random.default_rng(0))
    file = folder / f"{name}.csv"
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(["" if cell == "nan" else cell for cell in map(str, row)] for row in zip(*columns.values()))
    return file
