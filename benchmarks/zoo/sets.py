"""The sets of the zoo. All are generated; they were fixed before anything was tuned on them.

A set is training paths and test paths of one law. Rough ones are simulated in 20 steps per observation (10 where they are long).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from shapes import drawn

Drift = Callable[[np.ndarray, float], np.ndarray]
Paths = list[np.ndarray]


@dataclass(frozen=True)
class Set:
    """Paths to learn from and paths to forecast."""

    train: Paths
    test: Paths
    train_times: Paths | None = None  # None: one time unit apart, times `dt`
    test_times: Paths | None = None
    dt: float = 1.0
    nonlinear: bool = False  # and enough data to see it: VAR should lose
    stationary: bool = True  # or else paths go somewhere
    from_start: bool = False  # forecasts begin at the start of the path only
    kind: str = ""  # the trait that a diagnosis should name
    missing: bool = False


def simulate(
    rng: np.random.Generator, start: np.ndarray, num: int, dt: float, drift: Drift, noise: Drift, fine: int = 20
) -> np.ndarray:
    """Euler-Maruyama from states (P, d): (P, num, d), the first included."""
    x, out, h = start.copy(), [start.copy()], dt / fine
    for k in range((num - 1) * fine):
        t = k * h
        kick = noise(x, t)
        z = rng.standard_normal(x.shape)
        x = x + drift(x, t) * h + (kick * z if kick.ndim == 2 else np.einsum("pij,pj->pi", kick, z)) * np.sqrt(h)
        if (k + 1) % fine == 0:
            out.append(x.copy())
    return np.stack(out, 1)


def constant(value: float) -> Drift:
    return lambda x, t: np.full_like(x, value)


def many(
    rng: np.random.Generator,
    num: int,
    length: int,
    dt: float,
    start: Callable[[np.random.Generator, int], np.ndarray],
    drift: Drift,
    noise: Drift,
    fine: int = 20,
    test: int = 24,
    **more: Any,
) -> Set:
    paths = simulate(rng, start(rng, num + test), length, dt, drift, noise, fine)
    return Set(list(paths[:num]), list(paths[num:]), dt=dt, **more)


def seen(made: Set, change: Callable[[np.ndarray], np.ndarray]) -> Set:
    """The same with every path changed."""
    return replace(made, train=[change(p) for p in made.train], test=[change(p) for p in made.test])


def gauss(scale: float, d: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, n: scale * rng.standard_normal((n, d))


def ou(rng: np.random.Generator) -> Set:
    return many(rng, 60, 100, 0.1, gauss(1, 1), lambda x, t: -x, constant(np.sqrt(2.0)), kind="rough")


def double_well(rng: np.random.Generator) -> Set:
    well = lambda x, t: x - x**3  # noqa: E731
    return many(rng, 80, 150, 0.2, gauss(1, 1), well, constant(0.5), nonlinear=True, kind="rough")


def cir(rng: np.random.Generator) -> Set:
    root = lambda x, t: 0.6 * np.sqrt(np.maximum(x, 0))  # noqa: E731
    start = lambda g, n: g.gamma(2 * 1.0 / 0.36, 0.36 / 2, (n, 1))  # noqa: E731
    made = many(rng, 60, 120, 0.1, start, lambda x, t: 1.0 - x, root, kind="positive")
    return seen(made, lambda p: np.maximum(p, 1e-4))


def growth(rng: np.random.Generator) -> Set:
    start = lambda g, n: np.exp(g.standard_normal((n, 1)))  # noqa: E731
    own = lambda x, t: 0.3 * x  # noqa: E731
    return many(rng, 60, 60, 0.1, start, lambda x, t: 0.05 * x, own, stationary=False, kind="positive")


def van_der_pol(rng: np.random.Generator) -> Set:
    def drift(x: np.ndarray, t: float) -> np.ndarray:
        return np.stack([x[:, 1], 2 * (1 - x[:, 0] ** 2) * x[:, 1] - x[:, 0]], 1)

    return many(rng, 40, 200, 0.1, gauss(1.5, 2), drift, constant(0.3), nonlinear=True, kind="smooth")


def first_feature(path: np.ndarray) -> np.ndarray:
    return path[:, :1]


def oscillator(rng: np.random.Generator) -> Set:
    def drift(x: np.ndarray, t: float) -> np.ndarray:
        return np.stack([x[:, 1], -4 * x[:, 0] - 0.4 * x[:, 1]], 1)

    kick = lambda x, t: np.stack([np.zeros(len(x)), np.ones(len(x))], 1)  # noqa: E731
    made = many(rng, 40, 200, 0.05, gauss(0.6, 2), drift, kick, kind="second order")
    return seen(made, first_feature)


def pendulum(rng: np.random.Generator) -> Set:
    def drift(x: np.ndarray, t: float) -> np.ndarray:
        return np.stack([x[:, 1], -9 * np.sin(x[:, 0]) - 0.3 * x[:, 1]], 1)

    kick = lambda x, t: np.stack([np.zeros(len(x)), np.ones(len(x))], 1)  # noqa: E731
    start = lambda g, n: g.uniform([-2.2, -1], [2.2, 1], (n, 2))  # noqa: E731
    made = many(rng, 60, 150, 0.05, start, drift, kick, nonlinear=True, kind="second order")
    return seen(made, first_feature)


def _fork(rng: np.random.Generator, angles: list[float], density: int, num: int) -> np.ndarray:
    steps, u = 100 * density, 0.1 / density
    paths = []
    for k in range(num):
        angle = np.deg2rad(angles[k % len(angles)])
        along = np.minimum(np.arange(steps + 1), steps // 2) * u
        after = np.maximum(np.arange(steps + 1) - steps // 2, 0) * u
        paths.append(np.stack([along + after * np.cos(angle), after * np.sin(angle)], 1))
    return np.stack(paths)


def fork(rng: np.random.Generator) -> Set:
    paths, test = _fork(rng, [30, -30], 1, 60), _fork(rng, [30, -30], 1, 12)
    return Set(list(paths), list(test), stationary=False, from_start=True, nonlinear=True, kind="smooth")


def three_way(rng: np.random.Generator) -> Set:
    paths, test = _fork(rng, [40, 0, -40], 5, 60), _fork(rng, [40, 0, -40], 5, 12)
    return Set(list(paths), list(test), dt=0.2, stationary=False, from_start=True, nonlinear=True, kind="dense")


def correlated(rng: np.random.Generator) -> Set:
    root = np.linalg.cholesky(np.array([[1, 0.9, 0.5], [0.9, 1, 0.6], [0.5, 0.6, 1]]))
    kick = lambda x, t: np.broadcast_to(root, (len(x), 3, 3))  # noqa: E731
    return many(rng, 50, 100, 0.1, gauss(0.7, 3), lambda x, t: -x, kick, kind="correlated noise")


def cointegrated(rng: np.random.Generator) -> Set:
    """Two walks whose difference reverts."""

    def drift(x: np.ndarray, t: float) -> np.ndarray:
        gap = x[:, :1] - x[:, 1:]
        return np.concatenate([-gap, gap], 1)

    kick = lambda x, t: np.broadcast_to(np.array([[1.0, 0.1], [1.0, -0.1]]), (len(x), 2, 2))  # noqa: E731
    return many(rng, 30, 200, 0.2, gauss(0.1, 2), drift, kick, stationary=False, kind="fast directions")


def seasonal(rng: np.random.Generator) -> Set:
    drift = lambda x, t: 2 * np.sin(2 * np.pi * t / 50) - 0.5 * x  # noqa: E731
    path = simulate(rng, np.zeros((1, 1)), 2_400, 1.0, drift, constant(0.4), 10)[0]
    times = np.arange(2_400.0)
    ends = range(2_000, 2_400, 100)
    return Set(
        [path[:2_000]],
        [path[k : k + 100] for k in ends],
        [times[:2_000]],
        [times[k : k + 100] for k in ends],
        kind="season",
    )


def heavy(rng: np.random.Generator) -> Set:
    def walk(num: int) -> Paths:
        x, out = np.zeros(num), []
        for _ in range(150):
            out.append(x)
            x = 0.9 * x + 0.3 * rng.standard_t(2.5, num)
        return list(np.stack(out, 1)[..., None])

    return Set(walk(50), walk(24), kind="heavy tails")


def jumps(rng: np.random.Generator) -> Set:
    def walk(num: int) -> Paths:
        x, out = np.zeros(num), []
        for _ in range(150):
            out.append(x)
            x = 0.95 * x + 0.1 * rng.standard_normal(num) + (rng.random(num) < 0.03) * 2.0
        return list(np.stack(out, 1)[..., None])

    return Set(walk(50), walk(24), kind="heavy tails")


def measured(rng: np.random.Generator) -> Set:
    made = many(rng, 60, 150, 0.05, gauss(1, 1), lambda x, t: -x, constant(np.sqrt(2.0)), kind="measurement noise")
    return seen(made, lambda p: p + 0.4 * rng.standard_normal(p.shape))


def _thinned(rng: np.random.Generator, paths: Paths, dt: float, keep: float) -> tuple[Paths, Paths]:
    rows = [np.flatnonzero(np.r_[True, rng.random(len(p) - 1) < keep]) for p in paths]
    return [p[k] for p, k in zip(paths, rows)], [dt * k for k in rows]


def irregular(rng: np.random.Generator) -> Set:
    def drift(x: np.ndarray, t: float) -> np.ndarray:
        return np.stack([2 * (x[:, 0] - x[:, 0] ** 3) - x[:, 1], -x[:, 1] + 0.5 * x[:, 0]], 1)

    own = lambda x, t: 0.3 + 0.2 * np.tanh(x)  # noqa: E731
    made = many(rng, 60, 300, 0.05, gauss(1, 2), drift, own)
    train, train_times = _thinned(rng, made.train, 0.05, 0.4)
    test, test_times = _thinned(rng, made.test, 0.05, 0.4)
    return Set(train, test, train_times, test_times, dt=0.05, nonlinear=True, kind="irregular")


def missing(rng: np.random.Generator) -> Set:
    turn = np.array([[-0.3, 1.0], [-1.0, -0.3]])
    made = many(rng, 50, 120, 0.1, gauss(0.6, 2), lambda x, t: x @ turn.T, constant(0.5))
    holes = [np.where(rng.random(p.shape) < 0.2, np.nan, p) for p in made.train]
    for p, whole in zip(holes, made.train):
        p[0] = whole[0]
    return Set(holes, made.test, dt=0.1, missing=True, kind="rough")


def spiral(rng: np.random.Generator) -> Set:
    turn = np.array([[-0.25, 1.0], [-1.0, -0.25]])

    def some(num: int) -> Paths:
        angle = rng.uniform(0, 0.8, num)
        start = 1.5 * np.stack([np.cos(angle), np.sin(angle)], 1)
        return list(simulate(rng, start, 160, 0.08, lambda x, t: x @ turn.T, constant(0.0)))

    return Set(some(6), some(8), dt=0.08, from_start=True, stationary=False, kind="few paths")


def lorenz(rng: np.random.Generator) -> Set:
    def drift(x: np.ndarray, t: float) -> np.ndarray:
        a, b, c = x.T
        return np.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c], 1)

    path = simulate(rng, np.array([[1.0, 2.0, 20.0]]), 4_900, 0.05, drift, constant(1.0))[0, 100:]
    return Set(
        [path[:3_600]], [path[k : k + 150] for k in range(3_600, 4_800, 150)], dt=0.05, nonlinear=True, kind="one path"
    )


def hundred(rng: np.random.Generator) -> Set:
    """Three rotating directions seen by 100 sensors."""
    turn = np.array([[-0.1, 1.0, 0], [-1.0, -0.1, 0], [0, 0, -0.3]])
    mix = rng.standard_normal((3, 100))
    own = {"test": 16, "kind": "few directions"}
    made = many(rng, 40, 100, 0.1, gauss(1, 3), lambda x, t: x @ turn.T, constant(0.4), **own)
    return seen(made, lambda p: p @ mix + 0.02 * rng.standard_normal((len(p), 100)))


def constants(rng: np.random.Generator) -> Set:
    made = many(rng, 40, 100, 0.1, gauss(0.7, 2), lambda x, t: -x, constant(1.0), kind="constant")
    wider = lambda p: np.concatenate([1e4 * p[:, :1], 1e-3 * p[:, 1:], np.full((len(p), 2), [7.0, 0.0])], 1)  # noqa: E731
    return seen(made, wider)


def predators(rng: np.random.Generator) -> Set:
    """Prey in thousands, predators in tenths."""

    def drift(x: np.ndarray, t: float) -> np.ndarray:
        a, b = np.exp(x.T)
        return np.stack([1.0 - b - 0.02, -1.0 + a - 0.02], 1)

    made = many(rng, 40, 150, 0.1, gauss(0.4, 2), drift, constant(0.15), nonlinear=True, kind="positive")
    return seen(made, lambda p: np.exp(p) * [1_000, 0.1])


def response(rng: np.random.Generator) -> Set:
    """A dose at a set time after the start of each path."""
    drift = lambda x, t: -0.5 * x + 4 * np.exp(-(((t - 4) / 0.7) ** 2)) * np.ones_like(x)  # noqa: E731
    return many(rng, 60, 100, 0.1, gauss(0.3, 1), drift, constant(0.3), stationary=False, kind="time since start")


def coarse(rng: np.random.Generator) -> Set:
    well = lambda x, t: 2 * (x - x**3)  # noqa: E731
    return many(rng, 150, 60, 1.0, gauss(1, 1), well, constant(0.8), nonlinear=True, kind="rough")


def bounded(rng: np.random.Generator) -> Set:
    inside = lambda x: np.clip(x, 0, 1) * (1 - np.clip(x, 0, 1))  # noqa: E731
    start = lambda g, n: g.uniform(0.02, 0.3, (n, 1))  # noqa: E731
    drift, noise = lambda x, t: 1.2 * inside(x), lambda x, t: 0.3 * np.sqrt(inside(x))
    made = many(rng, 50, 80, 0.1, start, drift, noise, stationary=False, kind="between 0 and 1")
    return seen(made, lambda p: np.clip(p, 1e-4, 1 - 1e-4))


def _letters(rng: np.random.Generator, name: str) -> Set:
    paths = drawn(name, 13, rng)
    return Set(paths[:7], paths[7:], dt=0.02, stationary=False, from_start=True, kind="few paths")


SETS: dict[str, Callable[[np.random.Generator], Set]] = {
    make.__name__: make
    for make in (
        *(ou, double_well, cir, growth, van_der_pol, oscillator, pendulum, fork, three_way, correlated, cointegrated),
        *(seasonal, heavy, jumps, measured, irregular, missing, spiral, lorenz, hundred, constants, predators),
        *(response, coarse, bounded),
    )
}
for _name in ("s", "loop", "hook"):
    SETS[f"drawn {_name}"] = lambda rng, name=_name: _letters(rng, name)  # type: ignore[misc]
