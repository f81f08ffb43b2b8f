"""Push-T: a round agent (radius 15) pushes a T-shaped block onto a goal pose on a plane of 512 × 512 px.

The physics are `gym_pusht`'s own (100 Hz, the agent drawn to its target by a PD law), so that scores compare with
published ones; placing a state, the coverage of the goal and the control rate are done here. A state is
[agent x, agent y, block x, block y, block angle mod 2π]; an action is a target for the agent. The block's position is
the middle of the outer edge of its bar, not its centre of gravity.
"""

from __future__ import annotations

import math
import os
import warnings
import zipfile
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from neuralsde.core.files import replacing
from neuralsde.core.records import check

SIZE = 512  # side of the plane; actions are in [0, SIZE]
FREE = (7.0, 504.0)  # the plane between the inner faces of the walls
AGENT_RADIUS = 15.0
GOAL = (256.0, 256.0, math.pi / 4)  # pose of the goal
PHYSICS_HZ = 100
IMAGE_SIZE = 96  # side of an observed image
ObservationKind = Literal["pose", "keypoints", "near", "image"]
OBSERVATION_SIZE = {"pose": 6, "keypoints": 18, "near": 34, "image": 2 + 3 * IMAGE_SIZE**2}
NEAR = 20.0  # pixels off the goal within which the observation "near" tells corners apart finely

# Corners of the bar and of the stem in the frame of the block, in gym_pusht's order.
_CORNERS = np.array([(-60, 0), (60, 0), (60, 30), (-60, 30), (-15, 30), (15, 30), (15, 120), (-15, 120)], np.float64)
_AROUND = [0, 1, 2, 5, 6, 7, 4, 3]
_CENTRE_OF_GRAVITY = np.array([0.0, 45.0])
_STEADY = 20.0  # pixels from there within which a hand shifts the block without turning it


def _checked(states: Any) -> np.ndarray:
    """The door: (N, 5), double precision."""
    array = np.asarray(states, np.float64)
    if array.ndim != 2 or array.shape[1] != 5:
        wanted = "shape (N, 5): agent x, y, block x, y, angle"
        raise ValueError(f"`states` must have {wanted}. Got {array.shape}. For one, write state[None].")
    return array


def _on_block(states: np.ndarray, points: np.ndarray) -> np.ndarray:
    """(N, K, 2): where points (K, 2) in the frame of the block are on the plane."""
    cos, sin = np.cos(states[:, 4:]), np.sin(states[:, 4:])
    x, y = points.T
    return states[:, None, 2:4] + np.stack([x * cos - y * sin, x * sin + y * cos], axis=-1)


def keypoints(states: np.ndarray) -> np.ndarray:
    """(N, 8, 2): the corners of the bar and of the stem, as `gym_pusht` orders them."""
    return _on_block(_checked(states), _CORNERS)


def outline(states: np.ndarray) -> np.ndarray:
    """(N, 8, 2): the corners of the T, one after the other along its edge."""
    return keypoints(states)[:, _AROUND]


def mirrored(states: np.ndarray) -> np.ndarray:
    """(N, 5): the states seen in a mirror along the axis of the goal, under which plane, block and goal are the same."""
    x, y, block_x, block_y, angle = _checked(states).T
    return np.stack([SIZE - y, SIZE - x, SIZE - block_y, SIZE - block_x, (math.pi / 2 - angle) % (2 * math.pi)], axis=1)


def observe(states: np.ndarray, kind: ObservationKind) -> np.ndarray:
    """(N, C) float32: what a policy sees of states (N, 5), of demonstrations and of the simulation alike.

    "pose": agent x, y, block x, y, cos and sin of the angle, which do not jump at a full turn. "keypoints": agent x, y
    and the corners of the T. "near": also how far each corner is off its place in the goal, fine where that is little (the
    last percent of coverage is a matter of pixels). "image": agent x, y and the pixels, 0 to 255, row by row.
    """
    check(kind in OBSERVATION_SIZE, f"`kind` must be one of {', '.join(OBSERVATION_SIZE)}. Got {kind!r}.")
    states = _checked(states)
    if kind == "pose":
        seen = np.concatenate([states[:, :4], np.cos(states[:, 4:]), np.sin(states[:, 4:])], axis=1)
    elif kind == "image":
        return with_images(states, render_states(states, IMAGE_SIZE))
    else:
        corners = keypoints(states)
        off = [np.tanh((corners - keypoints(np.array([[0, 0, *GOAL]]))) / NEAR)] if kind == "near" else []
        seen = np.concatenate([states[:, :2], *(x.reshape(len(states), 16) for x in (corners, *off))], axis=1)
    return seen.astype(np.float32)


def with_images(states: np.ndarray, images: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    """(N, C): the observations "image" of states whose pictures (N, 96, 96, 3) are at hand."""
    seen = np.empty((len(states), OBSERVATION_SIZE["image"]), dtype)
    seen[:, :2] = states[:, :2]
    seen[:, 2:] = images.reshape(len(states), -1)
    return seen


@cache
def gym_pusht() -> Any:
    """The module of the environment; needs no window."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        from gym_pusht.envs import pusht
    except ModuleNotFoundError as error:
        raise ValueError(f"Push-T needs gym-pusht ({error}): pip install 'neuralsde[pusht]'.") from None
    except ImportError as error:  # opencv asks for the libraries of a window
        remedy = "If libGL is missing: pip install opencv-python-headless."
        raise ValueError(f"gym-pusht is installed but does not load: {error}. {remedy}") from None
    return pusht


@cache
def _goal() -> Any:
    """The goal as a shape of shapely, which comes with gym-pusht."""
    gym_pusht()
    import shapely

    goal = shapely.polygons(outline(np.array([[0.0, 0.0, *GOAL]]))[0])
    shapely.prepare(goal)
    return goal


def coverage(states: np.ndarray) -> np.ndarray:
    """(N,): the share of the goal that the block covers."""
    goal = _goal()
    import shapely

    return shapely.area(shapely.intersection(goal, shapely.polygons(outline(states)))) / goal.area


class PushT:
    """One plane with an agent and a block; `reset` or `set_state` first."""

    def __init__(self, control_hz: float = 10.0) -> None:
        self._env = gym_pusht().PushTEnv()
        self._env._handle_collision = lambda *_: None  # only counts contacts, at a third of the cost of a step
        self._substeps = round(PHYSICS_HZ / control_hz) if control_hz > 0 else 0
        divides = self._substeps >= 1 and math.isclose(self._substeps * control_hz, PHYSICS_HZ)
        check(divides, f"`control_hz` must divide {PHYSICS_HZ}, the rate of the physics. Got {control_hz:g}. Try 10.")

    @property
    def state(self) -> np.ndarray:
        """(5,) float64."""
        agent, block = self._env.agent, self._env.block
        return np.array([*agent.position, *block.position, block.angle % (2 * math.pi)])

    def reset(self, seed: int) -> np.ndarray:
        self._env.reset(seed=int(seed))
        return self.state

    def set_state(self, state: np.ndarray) -> np.ndarray:
        """Place agent and block, at rest, as the environment's reset leaves them."""
        values = _checked(np.asarray(state)[None])[0]
        if not np.isfinite(values).all():
            raise ValueError(f"`state` must be finite. Got {values}.")
        self._env._setup()  # a new plane: no contacts are left over
        self._env.agent.position = values[:2].tolist()
        self._env.space.reindex_shapes_for_body(self._env.agent)
        self._place_block(values)
        self._env.space.step(self._env.dt)  # nothing moves yet; where agent and block overlap, they begin to part
        return self.state

    def _place_block(self, state: np.ndarray) -> None:
        # Turning is about the centre of gravity and so moves the position: the angle comes first.
        block = self._env.block
        block.angle = float(state[4])
        block.position = state[2:4].tolist()
        self._env.space.reindex_shapes_for_body(block)

    def advance(self, action: np.ndarray) -> np.ndarray:
        """Draw the agent to `action` (2,) for one control step; `gym_pusht`'s step without its score."""
        env, agent, space = self._env, self._env.agent, self._env.space
        x, y, k_p, k_v, dt = float(action[0]), float(action[1]), env.k_p, env.k_v, env.dt
        for _ in range(self._substeps):
            (at_x, at_y), (v_x, v_y) = agent.position, agent.velocity
            agent.velocity = (
                v_x + (k_p * (x - at_x) + k_v * (0 - v_x)) * dt,
                v_y + (k_p * (y - at_y) + k_v * (0 - v_y)) * dt,
            )
            space.step(dt)
        return self.state

    def _displaced(self, shift: np.ndarray, turn: float) -> tuple[np.ndarray, bool, bool]:
        """The state after `push`, whether a wall was in the way, and whether the agent is."""
        import shapely

        before = self.state[None]
        after = before + np.array([0.0, 0.0, *shift, turn])
        centre = _CENTRE_OF_GRAVITY[None]
        after[:, 2:4] += (_on_block(before, centre) + shift - _on_block(after, centre))[:, 0]
        # A block that was driven through a wall, as happens, is not brought back.
        was, corners = outline(before)[0], outline(after)[0]
        low, high = np.minimum(FREE[0], was.min(0)), np.maximum(FREE[1], was.max(0))
        back = np.maximum(low - corners.min(0), 0) - np.maximum(corners.max(0) - high, 0)
        after[:, 2:4] += back
        gap = shapely.distance(shapely.points(after[0, :2]), shapely.polygons(corners + back))
        return after[0], bool(back.any()), bool(gap < AGENT_RADIUS)

    def has_room(self, shift: np.ndarray, turn: float = 0.0) -> bool:
        """Whether `push` would go all the way: neither a wall nor the agent is there."""
        _, wall, agent = self._displaced(np.asarray(shift, np.float64), turn)
        return not (wall or agent)

    def push(self, shift: np.ndarray, turn: float = 0.0) -> np.ndarray:
        """Displace the block by `shift` (2,) px and turn it by `turn` rad about its centre of gravity, at once.

        A wall stops it; where it would lie on the agent, it goes as far as it can in steps of a tenth.
        """
        for share in np.linspace(1.0, 0.1, 10):
            after, _, agent = self._displaced(share * np.asarray(shift, np.float64), share * turn)
            if not agent:
                self._place_block(after)
                break
        return self.state

    def pull(self, grip: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Draw the block by its point `grip` (2,), given in its own frame, to `place` (2,), as a hand would.

        Held near its centre of gravity it shifts, held at an end it also turns. What stops `push` stops it.
        """
        place = np.asarray(place, np.float64)
        centre, held = _on_block(self.state[None], np.stack([_CENTRE_OF_GRAVITY, np.asarray(grip, np.float64)]))[0]
        (x, y), (to_x, to_y) = held - centre, place - centre
        turns = min(math.hypot(x, y), math.hypot(to_x, to_y)) > _STEADY
        turn = math.atan2(x * to_y - y * to_x, x * to_x + y * to_y) if turns else 0.0
        cos, sin = math.cos(turn), math.sin(turn)
        return self.push(place - centre - np.array([x * cos - y * sin, x * sin + y * cos]), turn)

    def place_agent(self, place: np.ndarray) -> np.ndarray:
        """Put the agent down at `place` (2,), at rest, within the walls; where the block lies, it stays where it is."""
        import shapely

        low, high = FREE[0] + AGENT_RADIUS, FREE[1] - AGENT_RADIUS
        at = np.clip(np.asarray(place, np.float64), low, high)
        block = shapely.polygons(outline(self.state[None])[0])
        if shapely.distance(shapely.points(at), block) >= AGENT_RADIUS:
            agent = self._env.agent
            agent.position, agent.velocity = at.tolist(), (0.0, 0.0)
            self._env.space.reindex_shapes_for_body(agent)
        return self.state

    def image(self, size: int = 96, action: np.ndarray | None = None) -> np.ndarray:
        """(size, size, 3) uint8, with a cross at `action` if there is room for one (96 px)."""
        self._env._last_action = None if action is None else np.asarray(action, np.float64)
        return self._env._get_img(self._env._draw(), width=size, height=size, render_action=size >= 96)


def render_states(states: np.ndarray, size: int = 96, progress: str | None = None) -> np.ndarray:
    """(N, size, size, 3) uint8: pictures of recorded states; `progress` names what is being done."""
    env, states = PushT(), _checked(states)
    images = np.empty((len(states), size, size, 3), np.uint8)
    for k, state in enumerate(tqdm(states, unit="image", desc=progress, disable=None if progress else True)):
        env.set_state(state)
        images[k] = env.image(size)
    return images


def demonstration_images(data: str | os.PathLike[str], states: np.ndarray) -> np.ndarray:
    """(L, 96, 96, 3) uint8: pictures of the states (L, 5) in a data file, which are rendered once and kept beside it.

    That takes minutes, for the whole of Push-T.
    """
    kept = Path(data).with_name(f"{Path(data).stem}_images.npz")
    try:
        with np.load(kept, allow_pickle=False) as found:
            if np.array_equal(found["states"], states):
                return found["images"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # not there, or not whole
    images = render_states(states, IMAGE_SIZE, progress=f"rendering {kept.name}")
    try:
        with replacing(kept) as place, place.open("wb") as new:
            np.savez_compressed(new, states=states, images=images)
    except OSError as error:
        why = f"The images cannot be kept beside the data ({error}): they are rendered each time."
        warnings.warn(why, stacklevel=2)
    return images
