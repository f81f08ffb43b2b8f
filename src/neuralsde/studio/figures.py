"""Ready figures for the Draw tab, and strokes made even: paths in the plane, in the square from -1 to 1.

A hand moves unevenly. A stroke is therefore walked at one speed, `SPEED`, and looked at every `DT`: what a model learns is
where the path goes, not how fast the hand was. The ready figures are made the same way; the noisy loop alone keeps its own
rough steps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from neuralsde.core.records import check

SPEED, DT = 1.0, 0.02  # lengths per unit of time, and the time between two observations
REACH = 4.0  # how far from the middle a point may lie
SHORTEST = 0.15  # length of a stroke that can be learned from
LONGEST = 40.0
WOBBLE = 0.02  # of the copies of a ready figure: no hand draws the same line twice

Path = Float[np.ndarray, "T 2"]


def even(stroke: Path) -> Path:
    """The stroke at one speed: points `SPEED * DT` apart along it."""
    steps = np.linalg.norm(np.diff(stroke, axis=0), axis=1)
    along = np.concatenate([[0.0], steps.cumsum()])
    length = float(along[-1])
    check(length >= SHORTEST, "A stroke is too short to learn from. Draw a longer one.")
    check(length <= LONGEST, "A stroke is too long. Draw a shorter one.")
    at = np.arange(0.0, length + 1e-9, SPEED * DT)
    keep = np.concatenate([[True], steps > 0])
    return np.stack([np.interp(at, along[keep], stroke[keep, k]) for k in range(2)], axis=1)


def _line(*points: tuple[float, float], smooth: int = 9) -> Path:
    """A line through these points, its corners rounded."""
    path = even(np.array(points, dtype=float))
    pad = np.pad(path, ((smooth, smooth), (0, 0)), mode="edge")
    kernel = np.ones(2 * smooth + 1) / (2 * smooth + 1)
    inner = np.stack([np.convolve(pad[:, k], kernel, mode="valid") for k in range(2)], axis=1)
    inner[0], inner[-1] = path[0], path[-1]
    return even(inner)


def _curve(x: Callable[[np.ndarray], np.ndarray], y: Callable[[np.ndarray], np.ndarray], turns: float = 1.0) -> Path:
    t = np.linspace(0, 2 * np.pi * turns, 2_000)
    return even(np.stack([x(t), y(t)], axis=1))


def _copies(path: Path, num: int, rng: np.random.Generator) -> list[Path]:
    """The same line as a hand would draw it again: shifted and bent a little."""
    made = []
    for _ in range(num):
        share = np.linspace(0, 1, len(path))[:, None]
        ends = rng.normal(0, WOBBLE, (2, 2))
        bend = rng.normal(0, WOBBLE, (1, 2)) * np.sin(np.pi * share)
        made.append(even(path + ends[0] * (1 - share) + ends[1] * share + bend))
    return made


def _fork(rng: np.random.Generator, heights: tuple[float, ...], num: int) -> list[Path]:
    lines = [_line((-0.9, 0.0), (-0.1, 0.0), (0.85, y)) for y in heights]
    return [copy for line in lines for copy in _copies(line, num, rng)]


def fork(rng: np.random.Generator) -> list[Path]:
    """A stem with two branches."""
    return _fork(rng, (0.7, -0.7), 4)


def three_way(rng: np.random.Generator) -> list[Path]:
    """A stem with three branches."""
    return _fork(rng, (0.8, 0.0, -0.8), 4)


def spiral(rng: np.random.Generator) -> list[Path]:
    """Three turns outwards."""
    path = _curve(lambda t: (0.12 + 0.042 * t) * np.cos(t), lambda t: (0.12 + 0.042 * t) * np.sin(t), 3.0)
    return _copies(path, 3, rng)


def crossing(rng: np.random.Generator) -> list[Path]:
    """Two lines that cross: only the direction tells where a path came from."""
    lines = [_line((-0.85, -0.6), (0.85, 0.6)), _line((-0.85, 0.6), (0.85, -0.6))]
    return [copy for line in lines for copy in _copies(line, 4, rng)]


def figure_eight(rng: np.random.Generator) -> list[Path]:
    """An eight on its side, twice around."""
    return _copies(_curve(lambda t: 0.85 * np.sin(t), lambda t: 0.5 * np.sin(2 * t), 2.0), 3, rng)


def noisy_loop(rng: np.random.Generator) -> list[Path]:
    """A circle that is walked with noise: a known SDE, d(angle) = dt + noise, with a radius that returns to 0.6."""
    num, steps, dt = 8, 320, DT
    angle = rng.uniform(0, 2 * np.pi, num)
    radius = np.full(num, 0.6)
    made = []
    for _ in range(steps):
        made.append(np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1))
        shock = rng.standard_normal((2, num)) * np.sqrt(dt)
        angle = angle + 1.6 * dt + 0.25 * shock[0]
        radius = radius + 2.0 * (0.6 - radius) * dt + 0.12 * shock[1]
    return list(np.stack(made, axis=1))


def letter_s(rng: np.random.Generator) -> list[Path]:
    """The letter S."""
    t = np.linspace(0, 1, 600)
    turn = np.pi * (0.15 + 1.35 * t)
    top = np.stack([0.42 * np.cos(turn), 0.42 + 0.42 * np.sin(turn)], axis=1)
    bottom = -top[::-1]
    return _copies(even(np.concatenate([top, bottom])), 4, rng)


def letter_c(rng: np.random.Generator) -> list[Path]:
    """The letter C."""
    t = np.linspace(0.2 * np.pi, 1.8 * np.pi, 600)
    return _copies(even(np.stack([0.7 * np.cos(t), 0.8 * np.sin(t)], axis=1)), 4, rng)


def letter_m(rng: np.random.Generator) -> list[Path]:
    """The letter M."""
    return _copies(_line((-0.8, -0.75), (-0.6, 0.75), (0.0, -0.35), (0.6, 0.75), (0.8, -0.75)), 4, rng)


FIGURES: dict[str, tuple[str, Callable[[np.random.Generator], list[Path]]]] = {
    "y": ("Y", fork),
    "three": ("Three-way", three_way),
    "spiral": ("Spiral", spiral),
    "crossing": ("Crossing", crossing),
    "eight": ("Figure eight", figure_eight),
    "loop": ("Noisy loop", noisy_loop),
    "s": ("Letter S", letter_s),
    "c": ("Letter C", letter_c),
    "m": ("Letter M", letter_m),
}
"""By name: what the page calls it, and what makes it."""


def figure(name: str, seed: int = 0) -> list[Path]:
    """The paths of a ready figure."""
    check(name in FIGURES, f"There is no figure {name!r}. Figures: {', '.join(FIGURES)}.")
    return FIGURES[name][1](np.random.default_rng(seed))
