"""Spheres, cubes and cylinders that slide on a plane and collide: rigid bodies of pymunk, seen from above.

All stand upright, so that bodies touch where their outlines in the plane do. The plane slows a body down by Coulomb
friction, μ g whatever its speed, and its spin by the torque of the same pressure; the two do not mix. Time advances in ticks
of 1/512 s, whatever times are asked for: states between two ticks are interpolated, and a scene is a function of its seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from neuralsde.core.extras import need
from neuralsde.core.processes import worker_pool
from neuralsde.core.records import check
from neuralsde.experiments.collisions.camera import CORNERS, OUTWARD, on_ground, outside
from neuralsde.experiments.collisions.config import MOST_OBJECTS

SHAPES = ("sphere", "cube", "cylinder")
COLOURS = ("gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow")
MATERIALS = ("rubber", "metal")
MOTION = ("x", "y", "angle", "vx", "vy", "spin")
"""What changes of an object; lengths in units of the plane, angles in radians, per second."""
RADIUS = 0.4  # of spheres and cylinders, and of the circle round a cube's outline
HALF_SIDE = RADIUS / math.sqrt(2)
HEIGHTS = (2 * RADIUS, 2 * HALF_SIDE, 1.6 * RADIUS)  # of sphere, cube and cylinder
DENSITIES = (1.0, 1.5)
FRICTIONS = (0.08, 0.05)  # with the plane, of rubber and metal
RESTITUTIONS = (0.65, 0.9)  # of two bodies of rubber and two of metal; of one of each, the geometric mean
CONTACT_FRICTION = 0.2  # between bodies
GRAVITY = 9.81
TICKS = 512  # per second; frames of 5/128 s, CLEVRER's, fall on them
DURATION = 5.0  # seconds in which a scene has things to show
BEFORE = 1.0  # seconds for which a scene has been running at time 0
MARGIN = 1.0
"""Beyond the view, from where objects come: their shadows are not seen there. Half as far again, they are gone."""
_QUANTUM = 2.0**-30
_REPEAT = 0.1
_QUIET = 0.02

CONTACT = np.dtype(
    [("scene", "i8"), ("time", "f8"), ("first", "i4"), ("second", "i4"), ("x", "f4"), ("y", "f4"), ("speed", "f4")]
)
"""One collision: in which scene (a row), when, of which objects, where, and how fast they approached."""


@dataclass(frozen=True, kw_only=True)
class Thing:
    """An object and how it comes into its scene; kinds are places in SHAPES, COLOURS and MATERIALS."""

    shape: int
    colour: int = 0
    material: int = 0
    position: tuple[float, float] = (0.0, 0.0)
    angle: float = 0.0
    velocity: tuple[float, float] = (0.0, 0.0)
    spin: float = 0.0
    entry: float = 0.0  # time at which it is put there

    @property
    def mass(self) -> float:
        volume = (4 / 3 * math.pi * RADIUS**3, (2 * HALF_SIDE) ** 3, math.pi * RADIUS**2 * HEIGHTS[2])[self.shape]
        return volume * DENSITIES[self.material]

    @property
    def inertia(self) -> float:
        return self.mass * (2 / 5 * RADIUS**2, 2 / 3 * HALF_SIDE**2, RADIUS**2 / 2)[self.shape]

    @property
    def arm(self) -> float:
        """Mean distance of its foot from the axis; a sphere's foot is taken to be a quarter as wide as itself."""
        return (RADIUS / 6, 0.7652 * HALF_SIDE, 2 / 3 * RADIUS)[self.shape]


@dataclass(frozen=True)
class Scenes:
    """S scenes at T times, of at most N objects."""

    times: np.ndarray  # (T,) seconds
    states: np.ndarray  # (S, T, N, 6) float32, `MOTION`; zero where an object is not there
    kinds: np.ndarray  # (S, N, 3) int64: shape, colour, material
    mask: np.ndarray  # (S, T, N) bool: the object is there, in view or close by
    contacts: np.ndarray  # (K,) of dtype CONTACT, in order of scene and time


def draw_scene(seed: int, num_objects: tuple[int, int] = (2, 5)) -> list[Thing]:
    """The objects of scene `seed`, each of another colour: some rest in view, the others are sent there."""
    rng = np.random.default_rng([0x0C011DE, int(seed)])
    num = int(rng.integers(num_objects[0], num_objects[1] + 1))
    num_resting = int(rng.integers(1, max(1, num // 2) + 1))
    things: list[Thing] = []
    for k, colour in enumerate(rng.permutation(len(COLOURS))[:num].tolist()):
        shape, material = int(rng.integers(len(SHAPES))), int(rng.integers(len(MATERIALS)))
        thing = Thing(shape=shape, colour=colour, material=material, angle=float(rng.uniform(0, 2 * math.pi)))
        if k < num_resting:
            place = _free_place(rng, [t.position for t in things])
            things.append(replace(thing, position=place, entry=-BEFORE))
        else:
            entry = rng.uniform(-BEFORE, 0.0 if k == num_resting else 0.7 * DURATION)
            things.append(_send(replace(thing, entry=float(entry)), [t.position for t in things[:num_resting]], rng))
    return things


def _free_place(rng: np.random.Generator, taken: list[tuple[float, float]]) -> tuple[float, float]:
    """A place that is well inside the image and apart from the others."""
    while True:
        x, y = on_ground(rng.uniform((0.15, 0.25), (0.85, 0.85))).tolist()
        if all(math.dist((x, y), p) > 2.5 * RADIUS for p in taken):
            return x, y


def _send(thing: Thing, resting: list[tuple[float, float]], rng: np.random.Generator) -> Thing:
    """From beyond a side, towards an object at rest or the middle, fast enough to get there."""
    side = int(rng.choice(4, p=(0.15, 0.35, 0.15, 0.35)))
    a, b = CORNERS[side], CORNERS[(side + 1) % 4]
    start = a + rng.uniform(0.15, 0.85) * (b - a) + MARGIN * OUTWARD[side]
    if rng.random() < 0.8:
        goal = np.array(resting[rng.integers(len(resting))]) + rng.normal(0.0, 0.6 * RADIUS, 2)
    else:
        goal = on_ground(np.array([0.5, 0.5])) + rng.normal(0.0, 2 * RADIUS, 2)
    way = goal - start
    length = float(np.linalg.norm(way))
    speed = math.sqrt(rng.uniform(1.0, 3.0) ** 2 + 2 * FRICTIONS[thing.material] * GRAVITY * length)
    vx, vy = (speed / length * way).tolist()
    x, y = start.tolist()
    return replace(thing, position=(x, y), velocity=(vx, vy), spin=float(rng.normal(0.0, 1.0)))


class World:
    """One scene that runs; `gravity` 0 is a plane without friction, `margin` is where objects are gone."""

    def __init__(self, things: Sequence[Thing], *, gravity: float = GRAVITY, margin: float = 1.5 * MARGIN) -> None:
        self._pymunk = _pymunk()
        self._space = self._pymunk.Space()
        self._space.collision_slop = 1e-4
        self._space.iterations = 20
        self.things, self._gravity, self._margin = list(things), gravity, margin
        self._waiting = sorted(range(len(things)), key=lambda k: (things[k].entry, k))
        self._bodies: dict[int, Any] = {}
        self._names: dict[Any, int] = {}
        self._tick = min(0, *(math.floor(TICKS * thing.entry) for thing in things))
        self.contacts: list[tuple[float, int, int, float, float, float]] = []
        self._last: dict[tuple[int, int], float] = {}
        _on_touch(self._space, self._touch)
        self._enter()

    def _enter(self) -> None:
        """Put in place what is due; where another object stands, wait for it to go."""
        due = [k for k in self._waiting if self.things[k].entry * TICKS <= self._tick]
        for k in due:
            place = self.things[k].position
            if all(math.dist(place, b.position) > 2 * RADIUS for b in self._bodies.values()):
                self._waiting.remove(k)
                self._add(k, self.things[k])

    def _add(self, k: int, thing: Thing) -> None:
        m, ground = self._pymunk, self._space.static_body
        body = m.Body(thing.mass, thing.inertia)
        body.position, body.angle = thing.position, thing.angle
        body.velocity, body.angular_velocity = thing.velocity, thing.spin
        square, is_cube = (2 * HALF_SIDE, 2 * HALF_SIDE), SHAPES[thing.shape] == "cube"
        shape = m.Poly.create_box(body, square) if is_cube else m.Circle(body, RADIUS)
        shape.elasticity, shape.friction = math.sqrt(RESTITUTIONS[thing.material]), math.sqrt(CONTACT_FRICTION)
        # Joints to the ground that correct no position and have little force are Coulomb friction.
        slide, turn = m.PivotJoint(ground, body, (0, 0), (0, 0)), m.GearJoint(ground, body, 0.0, 1.0)
        pressure = FRICTIONS[thing.material] * thing.mass * self._gravity
        for joint, force in ((slide, pressure), (turn, pressure * thing.arm)):
            joint.max_bias, joint.max_force = 0.0, force
        self._space.add(body, shape, slide, turn)
        self._bodies[k], self._names[body] = body, k

    def _touch(self, arbiter: Any) -> None:
        """Note a collision, once, unless it is two objects that lean on each other."""
        one, two = (shape.body for shape in arbiter.shapes)
        i, j = sorted((self._names[one], self._names[two]))
        time = (self._tick + 1) / TICKS  # the step moves the bodies first
        before, self._last[i, j] = self._last.get((i, j), -math.inf), time
        points = arbiter.contact_point_set
        point = points.points[0].point_a
        away = two.velocity_at_world_point(point) - one.velocity_at_world_point(point)
        speed = -away.dot(points.normal)
        if speed >= _QUIET and time - before >= _REPEAT and time >= 0:
            self.contacts.append((time, i, j, point.x, point.y, speed))

    def step(self) -> None:
        self._space.step(1 / TICKS)
        self._tick += 1
        if self._waiting:
            self._enter()
        if self._tick % 64 == 0:
            self._leave()

    def _leave(self) -> None:
        if not self._bodies:
            return
        beyond = outside(np.array([b.position for b in self._bodies.values()])) > self._margin
        for (k, body), gone in zip(list(self._bodies.items()), beyond.tolist()):
            if gone:
                self._space.remove(body, *body.shapes, *body.constraints)
                del self._bodies[k], self._names[body]

    def state(self) -> tuple[np.ndarray, np.ndarray]:
        """(N, 6) float64 and (N,) bool: all objects, and which of them are there."""
        values, there = np.zeros((len(self.things), 6)), np.zeros(len(self.things), bool)
        for k, b in self._bodies.items():
            values[k] = (*b.position, b.angle, *b.velocity, b.angular_velocity)
            there[k] = True
        return values, there

    def run(self, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """States (T, N, 6) and who is there (T, N), at increasing times from now on."""
        states, masks = np.zeros((len(times), len(self.things), 6)), np.zeros((len(times), len(self.things)), bool)
        for t, ticks in enumerate((np.round(np.asarray(times, np.float64) / _QUANTUM) * _QUANTUM * TICKS).tolist()):
            while self._tick + 1 <= ticks:
                self.step()
            states[t], masks[t] = self.state()
            states[t, :, :3] += states[t, :, 3:] * ((ticks - self._tick) / TICKS)  # as the next tick would
        return states, masks


def simulate(
    seeds: Sequence[int] | np.ndarray,
    times: Sequence[float] | np.ndarray,
    *,
    num_objects: tuple[int, int] = (2, 5),
    num_workers: int = 1,
) -> Scenes:
    """The scenes of `seeds` at increasing `times`, in seconds from 0."""
    rows, stamps = np.asarray(seeds), np.asarray(times, np.float64)
    if rows.ndim != 1 or not len(rows) or not np.issubdtype(rows.dtype, np.integer) or rows.min() < 0:
        raise ValueError(f"`seeds` must be a row of whole numbers from 0. Got {seeds!r}. Pass range(100), or [seed].")
    ordered = stamps.ndim == 1 and np.isfinite(stamps).all() and (np.diff(stamps) > 0).all()
    if not ordered or not len(stamps) or stamps[0] < 0:
        raise ValueError(f"`times` must be a row of seconds that increase from 0 on. Got {times!r}.")
    numbers = rows.tolist()
    if not 1 <= num_objects[0] <= num_objects[1] <= MOST_OBJECTS:
        raise ValueError(f"`num_objects` must be (least, most), from 1 to {MOST_OBJECTS}. Got {num_objects}.")
    check(num_workers >= 1, f"`num_workers` must be at least 1. Got {num_workers}.")
    one = partial(_one_scene, times=stamps, num_objects=num_objects)
    if num_workers == 1 or len(numbers) < 2:
        found = [one(seed) for seed in numbers]
    else:
        _pymunk()  # if it is missing, say so here
        with worker_pool(num_workers) as pool:
            found = list(pool.map(one, numbers, chunksize=max(1, min(64, len(numbers) // (4 * num_workers)))))
    states, mask, kinds, contacts = (list(column) for column in zip(*found))
    for row, events in enumerate(contacts):
        events["scene"] = row
    return Scenes(stamps, np.stack(states), np.stack(kinds), np.stack(mask), np.concatenate(contacts))


def _one_scene(
    seed: int, times: np.ndarray, num_objects: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """States, mask, kinds and contacts, for as many objects as a scene may have."""
    world = World(draw_scene(seed, num_objects))
    num, most = len(world.things), num_objects[1]
    states, mask = np.zeros((len(times), most, 6), np.float32), np.zeros((len(times), most), bool)
    states[:, :num], mask[:, :num] = world.run(times)
    kinds = np.zeros((most, 3), np.int64)
    kinds[:num] = [(t.shape, t.colour, t.material) for t in world.things]
    return states, mask, kinds, np.array([(0, *c) for c in world.contacts], CONTACT)


def _on_touch(space: Any, handle: Callable[[Any], None]) -> None:
    """Call `handle` where two bodies begin to touch."""
    if hasattr(space, "on_collision"):  # pymunk 7
        space.on_collision(begin=lambda arbiter, *_: handle(arbiter))
        return

    def begin(arbiter: Any, *_: Any) -> bool:
        handle(arbiter)
        return True

    space.add_default_collision_handler().begin = begin


@cache
def _pymunk() -> Any:
    need("A collision", "pymunk")
    import pymunk

    return pymunk
