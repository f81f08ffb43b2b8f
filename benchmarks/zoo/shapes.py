"""Drawn motions of our own making: a skeleton of points, varied as a hand varies it, and the speed of a hand.

Every demonstration of a shape starts near its first point and ends at rest at one goal, the origin.
"""

from __future__ import annotations

import numpy as np

SHAPES: dict[str, list[tuple[float, float]]] = {
    "line": [(-4, 1), (-2, 0.6), (0, 0)],
    "arc": [(-4, 0), (-3.2, 2), (-1.5, 2.4), (0, 0)],
    "s": [(-2, 4), (-4, 3), (-2.5, 2), (-1, 1), (-2.2, -0.5), (0, 0)],
    "z": [(-3, 3), (0.5, 3), (-3, 0.2), (0, 0)],
    "loop": [(-4, 0), (-1, 0.5), (-0.8, 2.4), (-2.6, 2.2), (-2.2, 0.2), (0, 0)],
    "hook": [(-1, 4), (-1, 1), (-0.8, -1.2), (0.6, -1.2), (0, 0)],
    "wave": [(-5, 0), (-4, 1.2), (-3, -1), (-2, 1.2), (-1, -1), (0, 0)],
    "spiral": [(-3, 0), (0, 3), (3, 0), (0, -2), (-1.6, 0), (0, 1.2), (0.6, 0.3), (0, 0)],
    "c": [(0, 3), (-2.4, 2.6), (-3, 1), (-2.2, -0.6), (0, 0)],
    "g": [(1, 3), (-1.5, 3.2), (-2.5, 1), (-1, -0.8), (1, 0.2), (0, 0)],
    "n": [(-3, 0), (-3, 3), (-1.6, 1.2), (0, 3.2), (0, 0)],
    "w": [(-4, 3), (-3, 0), (-2, 2), (-1, -0.4), (0, 0)],
    "u": [(-3, 3), (-2.8, 0), (-1.4, -1), (0, 0)],
    "angle": [(-3, 3), (-3, 0), (-1.5, 0), (0, 0)],
    "double bend": [(-4, -2), (-4, 1), (-2, 1), (-2, -1), (0, -1), (0, 0)],
    "leaf": [(0.4, 0.4), (-2, 2), (-4, 0.5), (-2, -1), (0, 0)],
    "heart": [(0.2, 2), (-1.5, 3.4), (-3, 1.8), (-1.5, -0.4), (0, 0)],
    "j": [(-1, 4), (-1, 0.5), (-2, -0.8), (-3, 0.2), (-1.5, 0.4), (0, 0)],
    "saw": [(-5, 0), (-4, 2), (-3.6, 0), (-2.4, 2), (-2, 0), (-0.8, 2), (0, 0)],
    "p": [(-2, -2), (-2, 3), (0.4, 2.8), (0.2, 1.2), (-1.6, 1), (0, 0)],
    "big c": [(2, 4), (-3, 4), (-5, 1), (-3, -2), (0, 0)],
    "zigzag": [(-4, 4), (-1, 3.5), (-3.5, 2), (-0.6, 1.4), (-2, 0.2), (0, 0)],
}


def drawn(name: str, num: int, rng: np.random.Generator, length: int = 200) -> list[np.ndarray]:
    """`num` demonstrations (length, 2) of a shape."""
    points = np.array(SHAPES[name], float)
    return [_one(points, rng, length) for _ in range(num)]


def _one(points: np.ndarray, rng: np.random.Generator, length: int) -> np.ndarray:
    size = np.ptp(points, axis=0).max()
    fade = np.linspace(1, 0, len(points))[:, None] ** 0.7
    moved = (
        points + 0.05 * size * fade * rng.standard_normal(points.shape) + 0.04 * size * fade * rng.standard_normal(2)
    )
    curve = _rounded(moved)
    # The speed of a hand: slow at both ends and in bends, and its own in every demonstration
    s = np.r_[0, np.linalg.norm(np.diff(curve, axis=0), axis=1).cumsum()]
    t = np.linspace(0, 1, length)
    warp = np.cumsum(np.exp(0.15 * np.interp(t, np.linspace(0, 1, 5), rng.standard_normal(5))))
    t = (warp - warp[0]) / (warp[-1] - warp[0])
    progress = t**3 * (10 - 15 * t + 6 * t**2)
    place = s[-1] * (0.85 * progress + 0.15 * t**1.0 * (2 - t))
    path = np.stack([np.interp(place, s, curve[:, k]) for k in range(2)], 1)
    kernel = np.hanning(9) / np.hanning(9).sum()
    wide = np.pad(path, ((4, 4), (0, 0)), mode="edge")
    return np.stack([np.convolve(wide[:, k], kernel, mode="valid") for k in range(2)], 1)


def _rounded(points: np.ndarray, num: int = 600) -> np.ndarray:
    """A curve through points, with corners as a hand rounds them: Catmull-Rom."""
    p = np.concatenate([2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]])
    out = []
    for k in range(len(points) - 1):
        u = np.linspace(0, 1, num // (len(points) - 1), endpoint=False)[:, None]
        a, b, c, d = p[k : k + 4]
        out.append(0.5 * (2 * b + (c - a) * u + (2 * a - 5 * b + 4 * c - d) * u**2 + (3 * b - a - 3 * c + d) * u**3))
    return np.concatenate([*out, points[-1:]])
