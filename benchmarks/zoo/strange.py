"""A second list of sets: kinds of data that a stranger may bring. All are generated.

The first 24 were looked at with other seeds while defaults were mended; `UNSEEN` were written afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from sets import Paths, Set, constant, first_feature, gauss, many, seen

Rng = np.random.Generator


def _columns(states: Iterator[np.ndarray]) -> Paths:
    """Paths of one feature from the states (P,) of all of them, one time after the other."""
    return list(np.stack(list(states), 1).astype(float)[..., None])


def _ends(x: np.ndarray, known: int, length: int, times: np.ndarray | None = None, **more: object) -> Set:
    """One long path, and what follows it in pieces."""
    begins = range(known, len(x), length)
    stamps = () if times is None else ([times[:known]], [times[k : k + length] for k in begins])
    return Set([x[:known]], [x[k : k + length] for k in begins], *stamps, **more)  # type: ignore[arg-type]


def neuron(rng: Rng) -> Set:
    def drift(x: np.ndarray, t: float) -> np.ndarray:
        v, w = x.T
        return np.stack([3 * (v - v**3 / 3 - w), (v + 0.7 - 0.8 * w) / 3], 1)

    kick = lambda x, t: np.stack([np.full(len(x), 0.3), np.zeros(len(x))], 1)  # noqa: E731
    return seen(many(rng, 40, 200, 0.2, gauss(0.8, 2), drift, kick, nonlinear=True), first_feature)


def limit_cycle(rng: Rng) -> Set:
    def drift(x: np.ndarray, t: float) -> np.ndarray:
        return x * (1 - (x**2).sum(1, keepdims=True)) + 2 * np.stack([-x[:, 1], x[:, 0]], 1)

    return many(rng, 30, 120, 0.4, gauss(1, 2), drift, constant(0.25), nonlinear=True)


def double_pendulum(rng: Rng) -> Set:
    def drift(x: np.ndarray, t: float) -> np.ndarray:
        a, b, u, v = x.T
        d, g = a - b, 9.8
        size = 2 - np.cos(d) ** 2
        pull = -2 * g * np.sin(a) + g * np.sin(b) * np.cos(d)
        first = (-np.sin(d) * (u**2 * np.cos(d) + v**2) + pull) / size
        second = (np.sin(d) * (2 * u**2 + v**2 * np.cos(d)) + 2 * g * np.sin(a) * np.cos(d) - 2 * g * np.sin(b)) / size
        return np.stack([u, v, first - 0.1 * u, second - 0.1 * v], 1)

    kick = lambda x, t: np.concatenate([0 * x[:, :2], 0 * x[:, 2:] + 0.05], 1)  # noqa: E731
    box = np.array([0.9, 0.9, 0.5, 0.5])
    start = lambda g, n: g.uniform(-box, box, (n, 4))  # noqa: E731
    return many(rng, 40, 200, 0.02, start, drift, kick, nonlinear=True)


def bouncing(rng: Rng) -> Set:
    def states(num: int) -> Iterator[np.ndarray]:
        height, speed = rng.uniform(1, 2, num), np.zeros(num)
        for _ in range(150):
            yield height
            for _ in range(10):
                speed = speed - 9.8 * 0.002
                height = height + speed * 0.002
                below = height < 0
                kept = rng.uniform(0.8, 0.95, num)
                height, speed = np.where(below, -height, height), np.where(below, -speed * kept, speed)

    return Set(_columns(states(30)), _columns(states(16)), dt=0.02, nonlinear=True, stationary=False)


def regimes(rng: Rng) -> Set:
    def states(num: int) -> Iterator[np.ndarray]:
        up, x = rng.random(num) < 0.5, np.zeros(num)
        for _ in range(150):
            yield x
            up = np.where(rng.random(num) < 0.03, ~up, up)
            x = x + 0.3 * (np.where(up, 2.0, -2.0) - x) + np.where(up, 0.2, 0.5) * rng.standard_normal(num)

    return Set(_columns(states(50)), _columns(states(24)), nonlinear=True)


def tracks(rng: Rng) -> Set:
    def some(num: int) -> Paths:
        made = []
        for _ in range(num):
            speed = [5 * rng.standard_normal(2)]
            for _ in range(int(rng.integers(60, 200)) - 1):
                speed.append(0.97 * speed[-1] + 1.2 * rng.standard_normal(2))
            where = np.cumsum(speed, 0) + rng.uniform(-500, 500, 2)
            made.append(where + 3 * rng.standard_normal(where.shape))
        return made

    return Set(some(40), some(20), stationary=False)


def epidemic(rng: Rng) -> Set:
    def some(num: int) -> Paths:
        spread, end = rng.uniform(0.3, 0.6, num), rng.uniform(0.1, 0.2, num)
        well, ill, out = np.full(num, 0.99), np.full(num, 0.01), []
        for _ in range(60):
            out.append(np.stack([well, ill, 1 - well - ill], 1))
            for _ in range(5):
                new = 0.2 * spread * well * ill * (1 + 0.1 * rng.standard_normal(num))
                well, ill = well - new, ill + new - 0.2 * end * ill
        return list(np.stack(out, 1))

    return Set(some(30), some(16), nonlinear=True, stationary=False)


def counts(rng: Rng) -> Set:
    def states(num: int) -> Iterator[np.ndarray]:
        rate = np.exp(0.3 * rng.standard_normal(num))
        for _ in range(150):
            x = rng.poisson(rate)
            yield x
            rate = 0.3 + 0.6 * rate + 0.25 * x * (x < 8)

    return Set(_columns(states(50)), _columns(states(24)))


def quantised(rng: Rng) -> Set:
    made = many(rng, 40, 150, 0.05, gauss(1, 1), lambda x, t: -x, constant(np.sqrt(2.0)))
    return seen(made, lambda p: np.round(4 * p) / 4)


def wrapped(rng: Rng) -> Set:
    start = lambda g, n: g.uniform(-3, 3, (n, 1))  # noqa: E731
    made = many(rng, 40, 150, 0.1, start, lambda x, t: 1.5 + np.sin(x), constant(0.5), nonlinear=True)
    return seen(made, lambda p: (p + np.pi) % (2 * np.pi) - np.pi)


def sphere(rng: Rng) -> Set:
    def some(num: int) -> Paths:
        x, up, out = rng.standard_normal((num, 3)), np.array([0, 0, 1.0]), []
        for _ in range(150):
            x = x / np.linalg.norm(x, axis=1, keepdims=True)
            out.append(x)
            for _ in range(10):
                x = x + 0.02 * np.cross(up, x) + 0.01 * up * (1 - x[:, 2:] ** 2) + 0.03 * rng.standard_normal((num, 3))
                x = x / np.linalg.norm(x, axis=1, keepdims=True)
        return list(np.stack(out, 1))

    return Set(some(40), some(16), dt=0.1, nonlinear=True)


def hourly(rng: Rng) -> Set:
    hours = np.arange(2_400.0)
    rest = np.zeros(len(hours))
    for k in range(1, len(hours)):
        rest[k] = 0.9 * rest[k - 1] + rng.standard_normal()
    week = np.maximum(0, np.sin(2 * np.pi * hours / 168))
    x = 20 + 5 * np.sin(2 * np.pi * hours / 24) + 3 * week + 0.8 * rest
    return _ends(x[:, None], 2_016, 48, 1.6e9 + 3_600 * hours, dt=3_600.0)


def prices(rng: Rng) -> Set:
    num, root = 1_800, np.linalg.cholesky(0.5 * np.eye(4) + 0.5)
    log, size = np.zeros((num, 4)), 0.0
    for k in range(1, num):
        size = 0.97 * size + 0.15 * rng.standard_normal()
        log[k] = log[k - 1] + 0.0003 + 0.01 * np.exp(size) * (root @ rng.standard_normal(4))
    return _ends(np.exp(log) * [20, 150, 3_000, 0.5], 1_500, 30, stationary=False)


def gait(rng: Rng) -> Set:
    size, phase = rng.standard_normal((3, 12)), rng.uniform(0, 6, (3, 12))

    def one() -> np.ndarray:
        rate = rng.uniform(0.9, 1.1) * 2 * np.pi / 40
        turn = rng.uniform(0, 6) + np.cumsum(rate + 0.01 * rng.standard_normal(160))
        waves = [10 * size[k] * np.sin((k + 1) * turn[:, None] + phase[k]) / (k + 1) for k in range(3)]
        return np.sum(waves, axis=0) + rng.standard_normal((160, 12))

    return Set([one() for _ in range(8)], [one() for _ in range(6)], dt=1 / 30, nonlinear=True)


def short(rng: Rng) -> Set:
    drift = lambda x, t: np.stack([x[:, 0] - x[:, 0] ** 3, x[:, 0] - x[:, 1]], 1)  # noqa: E731
    return many(rng, 2_000, 3, 0.3, gauss(1.2, 2), drift, constant(0.4), test=60, nonlinear=True)


def outliers(rng: Rng) -> Set:
    made = many(rng, 50, 150, 0.1, gauss(1, 1), lambda x, t: -x, constant(1.4))
    faulty = [np.where(rng.random(p.shape) < 0.01, p + 20 * rng.standard_normal(p.shape), p) for p in made.train]
    return replace(made, train=faulty)


def stuck(rng: Rng) -> Set:
    made = many(rng, 50, 150, 0.1, gauss(1, 2), lambda x, t: -x, constant(1.4))

    def held(path: np.ndarray) -> np.ndarray:
        moves = rng.random(len(path)) >= 0.3
        return path[np.maximum.accumulate(np.where(moves, np.arange(len(path)), 0))]

    return seen(made, held)


def slopes(rng: Rng) -> Set:
    def one() -> np.ndarray:
        walk = 0.02 * np.cumsum(rng.standard_normal(60))
        return (rng.standard_normal() + 0.1 * rng.standard_normal() * np.arange(60) + walk)[:, None]

    return Set([one() for _ in range(40)], [one() for _ in range(20)], dt=0.1, stationary=False)


def delay(rng: Rng) -> Set:
    x = 1.2 + 0.1 * rng.standard_normal(24_300)
    for k in range(170, len(x) - 1):
        x[k + 1] = x[k] + 0.1 * (0.2 * x[k - 170] / (1 + x[k - 170] ** 10) - 0.1 * x[k])
    return _ends(x[300::10][:2_400, None], 1_900, 100, nonlinear=True)


def arm(rng: Rng) -> Set:
    part = np.linspace(0, 1, 80)
    moved = (10 * part**3 - 15 * part**4 + 6 * part**5)[:, None]

    def one() -> np.ndarray:
        start = rng.uniform(-0.3, 0.3, 7)
        way = rng.choice([-1.0, 1.0], 7) * [0.8, 0.5, 0.3, 0.6, 0.2, 0.2, 0.1] * rng.choice([-1.0, 1.0])
        joints = start + way * moved + 0.003 * np.cumsum(rng.standard_normal((80, 7)), 0)
        return np.c_[joints, 0.04 * (part > 0.75)]

    return Set([one() for _ in range(25)], [one() for _ in range(10)], dt=0.05, stationary=False)


def spikes(rng: Rng) -> Set:
    def states(num: int) -> Iterator[np.ndarray]:
        x = np.ones(num)
        for _ in range(150):
            yield x
            x = 0.9 * x + (rng.random(num) < 0.1) * rng.exponential(2, num)

    return Set(_columns(states(50)), _columns(states(24)))


def rain(rng: Rng) -> Set:
    def states(num: int) -> Iterator[np.ndarray]:
        wet = rng.random(num) < 0.3
        for _ in range(200):
            yield np.where(wet, rng.gamma(0.7, 6, num), 0.0)
            wet = rng.random(num) < np.where(wet, 0.7, 0.15)

    return Set(_columns(states(40)), _columns(states(20)))


def arma(rng: Rng) -> Set:
    def some(num: int) -> Paths:
        noise, x = rng.standard_normal((num, 202)), np.zeros((num, 202))
        for k in range(2, 202):
            x[:, k] = 0.5 * x[:, k - 1] + 0.3 * x[:, k - 2] + noise[:, k] - 0.6 * noise[:, k - 1]
        return list(x[:, 20:, None])

    return Set(some(40), some(20))


def coupled(rng: Rng) -> Set:
    weights = 0.9 * rng.standard_normal((10, 10)) / np.sqrt(10)
    drift = lambda x, t: 1.5 * np.tanh(x @ weights.T) - x  # noqa: E731
    return many(rng, 40, 150, 0.2, gauss(1, 10), drift, constant(0.3), nonlinear=True)


def queue(rng: Rng) -> Set:
    def states(num: int) -> Iterator[np.ndarray]:
        x = rng.poisson(3, num)
        for k in range(200):
            yield x
            busy = 0.8 + 0.5 * np.sin(2 * np.pi * k / 50)
            x = np.maximum(x + rng.poisson(busy, num) - rng.poisson(1.0, num), 0)

    return Set(_columns(states(40)), _columns(states(20)), nonlinear=True)


def heartbeat(rng: Rng) -> Set:
    waves = [(-1.2, 0.25, 0.15), (-0.25, 0.1, -0.1), (0.0, 0.1, 1.0), (0.25, 0.1, -0.25), (1.5, 0.4, 0.35)]

    def one() -> np.ndarray:
        turn = rng.uniform(-np.pi, np.pi) + np.cumsum(2 * np.pi / 60 * (1 + 0.15 * rng.standard_normal(300)))
        turn = (turn + np.pi) % (2 * np.pi) - np.pi
        beat = sum(size * np.exp(-((turn - where) ** 2) / (2 * wide**2)) for where, wide, size in waves)
        return (beat + 0.02 * rng.standard_normal(300))[:, None]

    return Set([one() for _ in range(10)], [one() for _ in range(8)], dt=1 / 60, nonlinear=True)


def stochastic_volatility(rng: Rng) -> Set:
    def drift(x: np.ndarray, t: float) -> np.ndarray:
        return np.stack([0 * x[:, 0], 2 * (0.5 - x[:, 1])], 1)

    def kick(x: np.ndarray, t: float) -> np.ndarray:
        size = np.sqrt(np.maximum(x[:, 1], 0))
        return np.stack([np.stack([size, 0 * size], 1), np.stack([-0.35 * size, 0.35 * size], 1)], 1)

    start = lambda g, n: np.stack([np.zeros(n), g.gamma(4, 0.125, n)], 1)  # noqa: E731
    return many(rng, 60, 120, 0.05, start, drift, kick, stationary=False)


def chirp(rng: Rng) -> Set:
    def one() -> np.ndarray:
        rate = rng.uniform(0.08, 0.12) * (1 + np.arange(150) / 100)
        turn = rng.uniform(0, 2 * np.pi) + np.cumsum(rate + 0.02 * rng.standard_normal(150))
        return (np.sin(turn) + 0.03 * rng.standard_normal(150))[:, None]

    return Set([one() for _ in range(30)], [one() for _ in range(16)], dt=0.1, nonlinear=True)


def two_rates(rng: Rng) -> Set:
    def drift(x: np.ndarray, t: float) -> np.ndarray:
        slow, fast = x.T
        return np.stack([fast - 0.3 * slow**3, -20 * (fast - slow)], 1)

    return many(rng, 40, 200, 0.1, gauss(1, 2), drift, constant(0.5), nonlinear=True)


def switches(rng: Rng) -> Set:
    chances = np.array([[0.9, 0.08, 0.02], [0.05, 0.85, 0.1], [0.2, 0.0, 0.8]]).cumsum(1)

    def some(num: int) -> Paths:
        place, out = rng.integers(0, 3, num), []
        for _ in range(150):
            out.append(np.eye(3)[place])
            place = (rng.random((num, 1)) > chances[place]).sum(1)
        return list(np.stack(out, 1))

    return Set(some(40), some(20), nonlinear=True)


UNSEEN = (queue, heartbeat, stochastic_volatility, chirp, two_rates, switches)
_SEEN = (
    *(neuron, limit_cycle, double_pendulum, bouncing, regimes, tracks, epidemic, counts, quantised, wrapped, sphere),
    *(hourly, prices, gait, short, outliers, stuck, slopes, delay, arm, spikes, rain, arma, coupled),
)
STRANGE: dict[str, Callable[[Rng], Set]] = {make.__name__.replace("_", " "): make for make in (*_SEEN, *UNSEEN)}
