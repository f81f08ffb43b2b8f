"""Power laws, y = c x^b: a straight line in the logarithms, and how straight it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PowerLaw:
    """y = c x^exponent."""

    exponent: float
    factor: float
    pearson: float
    """Correlation of the logarithms: -1 or 1 where all points lie on the line."""

    def __call__(self, x: float) -> float:
        return self.factor * x**self.exponent


def fit_power_law(x: Sequence[int | float], y: Sequence[int | float]) -> PowerLaw:
    """Least squares on the logarithms."""
    if len(x) != len(y) or len(set(x)) < 3 or min(*x, *y) <= 0:
        raise ValueError(f"A power law needs positive numbers at three or more different x. Got {x=}, {y=}.")
    u, v = [math.log(a) for a in x], [math.log(b) for b in y]
    line = statistics.linear_regression(u, v)
    return PowerLaw(line.slope, math.exp(line.intercept), statistics.correlation(u, v))
