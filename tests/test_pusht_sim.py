import math
import os
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import TypeCheckError

pytest.importorskip("gym_pusht", reason="needs gym-pusht: pip install 'neuralsde[pusht]'")

from neuralsde.experiments.config import PushTConfig
from neuralsde.experiments.pusht import sim as pusht_sim
from neuralsde.experiments.pusht.sim import (
    GOAL,
    SIZE,
    PushT,
    coverage,
    keypoints,
    mirrored,
    observe,
    outline,
    render_states,
)
from neuralsde.experiments.task import task_for


@pytest.fixture
def env():
    env = PushT()
    env.reset(0)
    return env


def some_states(rng, num, spread=60.0):
    """States about the goal, so that coverage is anything from 0 to 1."""
    block = np.array(GOAL[:2]) + spread * rng.standard_normal((num, 2))
    return np.concatenate([rng.uniform(20, 490, (num, 2)), block, rng.uniform(0, 2 * math.pi, (num, 1))], axis=1)


def original():
    """The environment as it is installed."""
    return pusht_sim.gym_pusht().PushTEnv()


# Geometry


def test_keypoints_turn_and_move_with_the_block():
    """By hand: a quarter turn takes (x, y) to (-y, x)."""
    straight, turned = keypoints(np.array([[0, 0, 100, 200, 0], [0, 0, 100, 200, math.pi / 2]]))
    local = straight - [100, 200]
    assert set(map(tuple, local)) == {
        *((-60, 0), (60, 0), (60, 30), (-60, 30)),
        *((-15, 30), (15, 30), (15, 120), (-15, 120)),
    }
    np.testing.assert_allclose(turned - [100, 200], np.stack([-local[:, 1], local[:, 0]], axis=1), atol=1e-12)


def test_keypoints_are_those_of_the_environment(env, np_rng):
    for state in some_states(np_rng, 50):
        env.set_state(state)
        np.testing.assert_allclose(
            keypoints(state[None])[0], env._env.get_keypoints(env._env._block_shapes), rtol=0, atol=1e-12
        )


def test_the_outline_goes_round_the_t():
    corners = outline(np.array([[0, 0, 256, 256, 0.3]]))[0]
    x, y = corners.T
    assert abs(0.5 * np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y)) == pytest.approx(120 * 30 + 30 * 90)
    sides = np.linalg.norm(corners - np.roll(corners, -1, axis=0), axis=1)
    np.testing.assert_allclose(np.sort(sides), [30, 30, 30, 45, 45, 90, 90, 120])


def test_coverage_is_that_of_the_environment(env, np_rng):
    states = some_states(np_rng, 200)
    ours, theirs = coverage(states), []
    for state in states:
        env.set_state(state)
        theirs.append(env._env._get_coverage())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    assert coverage(np.array([[0.0, 0.0, *GOAL]]))[0] == pytest.approx(1)
    np.testing.assert_allclose(env._env.goal_pose, GOAL)


def test_poses_do_not_jump_at_a_full_turn(np_rng):
    states = some_states(np_rng, 5)
    pose = observe(states, "pose")
    assert pose.shape == (5, 6) and pose.dtype == np.float32
    np.testing.assert_allclose(pose[:, :4], states[:, :4], rtol=1e-6)
    np.testing.assert_allclose(np.arctan2(pose[:, 5], pose[:, 4]) % (2 * math.pi), states[:, 4], atol=1e-6)
    ends = np.array([[1, 2, 3, 4, 1e-7], [1, 2, 3, 4, 2 * math.pi - 1e-7]])
    for kind in ("pose", "keypoints", "near"):
        first, last = observe(ends, kind)
        np.testing.assert_allclose(first, last, atol=1e-4)


def test_near_the_goal_pixels_are_told_apart(np_rng):
    """0 at the goal, a twentieth per pixel near it, no more than 1 far from it; the rest is as for the corners alone."""
    x, y, angle = GOAL
    states = np.array([[9, 9, x, y, angle], [9, 9, x + 1, y - 2, angle], [9, 9, 10, 500, 0.0]])
    seen = observe(states, "near")
    assert seen.shape == (3, 34)
    np.testing.assert_array_equal(seen[:, :18], observe(states, "keypoints"))
    off = seen[:, 18:].reshape(3, 8, 2)
    np.testing.assert_allclose(off[0], 0, atol=1e-6)
    np.testing.assert_allclose(off[1], np.broadcast_to([0.05, -0.1], (8, 2)), rtol=4e-3)
    assert np.abs(off[2]).max() <= 1 and np.abs(off[2]).mean() > 0.9


def test_observed_keypoints_follow_the_agent(np_rng):
    states = some_states(np_rng, 3)
    seen = observe(states, "keypoints")
    assert seen.shape == (3, 18)
    np.testing.assert_array_equal(seen[:, 2:].reshape(3, 8, 2), keypoints(states).astype(np.float32))
    with pytest.raises((ValueError, TypeCheckError), match="pose"):
        observe(states, "pixels")
    with pytest.raises(ValueError, match=r"shape \(N, 5\)"):
        observe(states[0], "pose")


# Physics


def test_a_seed_starts_and_runs_as_in_the_environment(env, np_rng):
    """Bit for bit, block contacts included."""
    theirs = original()
    for seed in (0, 7, 100000):
        state, _ = theirs.reset(seed=seed)
        np.testing.assert_array_equal(env.reset(seed), state)
        for k in range(40):
            action = state[2:4] if k % 2 else np_rng.uniform(0, 512, 2)  # straight at the block
            state, _, _, _, info = theirs.step(action)
            np.testing.assert_array_equal(env.advance(action), state)
            assert coverage(state[None])[0] == pytest.approx(info["coverage"], abs=1e-12)


def test_a_state_that_is_set_is_the_state(env, np_rng):
    for state in some_states(np_rng, 20):
        np.testing.assert_allclose(env.set_state(state), state, rtol=0, atol=1e-12)
    touching = np.array([260.0, 270.0, 256.0, 256.0, 0.0])
    np.testing.assert_array_equal(env.set_state(touching), touching)
    with pytest.raises(ValueError, match="must be finite"):
        env.set_state(np.full(5, np.nan))


def test_setting_a_state_leaves_nothing_of_the_past(env, np_rng):
    state = np.array([200, 256, 256, 256, 1.0])
    runs = []
    for _ in range(2):
        env.set_state(state)
        runs.append([env.advance(np.array([300.0, 280.0])) for _ in range(10)])
        env.advance(np_rng.uniform(0, 512, 2))
    np.testing.assert_array_equal(*runs)


@pytest.mark.parametrize(("hz", "substeps"), [(5.0, 20), (10.0, 10), (20.0, 5)])
def test_the_physics_do_not_depend_on_the_control_rate(env, hz, substeps):
    """The same target held for 0.2 s."""
    env.reset(3)
    for _ in range(2):
        expected = env.advance(np.array([250.0, 250.0]))
    env = PushT(hz)
    assert env._substeps == substeps
    env.reset(3)
    for _ in range(round(hz / 5)):
        state = env.advance(np.array([250.0, 250.0]))
    np.testing.assert_array_equal(state, expected)
    with pytest.raises(ValueError, match="must divide 100"):
        PushT(30.0)


def test_demonstrations_replay():
    """Action k leads from state k to state k + 1, and the agent starts at rest; in 43 and 205 it starts on the block."""
    folder = os.environ.get("NEURALSDE_DATA")
    if folder is None or not (Path(folder) / "pusht" / "pusht_lowdim.npz").exists():
        pytest.skip("needs pusht/pusht_lowdim.npz in the folder NEURALSDE_DATA")
    data = np.load(Path(folder) / "pusht" / "pusht_lowdim.npz")
    states, actions, ends = data["state"].astype(float), data["action"].astype(float), data["episode_ends"]
    env = PushT()
    for episode in (0, 1, 43, 100, 205):
        start, end = (0 if episode == 0 else ends[episode - 1]), ends[episode]
        env.set_state(states[start])
        path = np.array([env.advance(action) for action in actions[start : end - 1]])
        error = path - states[start + 1 : end]
        error[:, 4] = (error[:, 4] + math.pi) % (2 * math.pi) - math.pi
        assert np.abs(error[:, :4]).max() < 1e-3
        assert np.abs(error[:, 4]).max() < 1e-5


# The mirror


def test_the_goal_is_its_own_mirror_image(np_rng):
    goal = np.array([[0.0, 0.0, *GOAL]])
    np.testing.assert_allclose(mirrored(goal)[:, 2:], goal[:, 2:])
    states = some_states(np_rng, 50)
    np.testing.assert_allclose(coverage(mirrored(states)), coverage(states), atol=1e-9)
    np.testing.assert_allclose(mirrored(mirrored(states)), states)


def test_a_pushed_block_moves_in_the_mirror_as_it_does_before_it(env, np_rng):
    """Contacts included: the agent goes straight at the block, from many sides."""
    moved = 0
    for state in some_states(np_rng, 20):
        target = np.clip(state[2:4] + np_rng.normal(0, 30, 2), 60, 450)
        ends = []
        for start, action in ((state, target), (mirrored(state[None])[0], SIZE - target[::-1])):
            env.set_state(start)
            ends.append([env.advance(action) for _ in range(4)][-1])
        moved += np.abs(ends[0][2:4] - state[2:4]).max() > 1
        difference = mirrored(ends[0][None])[0] - ends[1]
        assert np.abs(difference[:4]).max() < 1.0
        assert abs((difference[4] + math.pi) % (2 * math.pi) - math.pi) < 0.01
    assert moved >= 5


def test_pictures_of_mirrored_states_are_mirrored_pictures(np_rng):
    states = some_states(np_rng, 4)
    straight, other = (render_states(s, 96).astype(int) for s in (states, mirrored(states)))
    turned = straight[:, ::-1, ::-1].swapaxes(1, 2)
    assert np.abs(turned - other).mean() < 0.25 * np.abs(straight - other).mean()


# Disturbances


def test_a_push_moves_and_turns_about_the_centre_of_gravity(env):
    before = env.set_state(np.array([50, 50, 256, 256, 0.5]))
    centre = np.array(env._env.block.local_to_world(env._env.block.center_of_gravity))
    assert env.has_room(np.array([30.0, -20.0]), 0.4)
    after = env.push(np.array([30.0, -20.0]), 0.4)
    np.testing.assert_allclose(
        env._env.block.local_to_world(env._env.block.center_of_gravity), centre + np.array([30, -20])
    )
    assert after[4] == pytest.approx(0.9)
    np.testing.assert_array_equal(after[:2], before[:2])
    still = env.advance(after[:2])
    np.testing.assert_allclose(still, after, atol=1e-6)


def test_walls_stop_a_push(env):
    env.set_state(np.array([256, 400, 256, 256, 0.0]))
    assert not env.has_room(np.array([900.0, 0.0]))
    state = env.push(np.array([900.0, 0.0]), 1.0)
    assert outline(state[None])[0].max(0)[0] == pytest.approx(504)
    np.testing.assert_allclose(env.advance(state[:2])[2:], state[2:], atol=1e-2)


def test_a_block_beyond_a_wall_is_not_brought_back(env):
    env.set_state(np.array([256, 400, -50, 256, 0.0]))
    assert env.push(np.array([-30.0, 20.0]))[2:4] == pytest.approx([-50, 276])
    assert env.push(np.array([30.0, 0.0]))[2:4] == pytest.approx([-20, 276])


def test_a_push_does_not_go_into_the_agent(env):
    state = env.set_state(np.array([256, 200, 256, 256, 0.0]))  # the agent is above the bar, 41 px from touching it
    assert not env.has_room(np.array([0.0, -60.0]))
    after = env.push(np.array([0.0, -60.0]))
    assert after[3] == pytest.approx(256 - 36)  # six tenths: at seven it would overlap
    np.testing.assert_allclose(env.advance(state[:2])[2:], after[2:], atol=1e-6)


def test_a_hand_shifts_the_block_by_its_middle_and_turns_it_by_its_end(env):
    env.set_state(np.array([50, 50, 256, 200, 0.5]))
    block = env._env.block
    middle = np.array(block.local_to_world((0, 45)))
    after = env.pull(np.array([0.0, 45.0]), middle + np.array([40.0, -25.0]))
    np.testing.assert_allclose(after[2:], [296, 175, 0.5])
    centre, foot = (np.array(block.local_to_world(point)) for point in ((0, 45), (0, 120)))
    place = centre + 1.4 * (foot - centre)[::-1] * [-1, 1]  # a quarter turn about the middle, and further out
    after = env.pull(np.array([0.0, 120.0]), place)
    np.testing.assert_allclose(block.local_to_world((0, 120)), place)
    assert after[4] == pytest.approx(0.5 + math.pi / 2)
    assert outline(env.pull(np.array([0.0, 45.0]), np.array([900.0, 200.0]))[None])[0].max() == pytest.approx(504)


def test_an_agent_is_put_down_within_the_walls_and_never_on_the_block(env):
    env.set_state(np.array([256, 200, 256, 256, 0.0]))
    np.testing.assert_allclose(env.place_agent(np.array([100.0, 90.0])), [100, 90, 256, 256, 0])
    np.testing.assert_allclose(env.place_agent(np.array([-80.0, 700.0]))[:2], [22, 489])
    np.testing.assert_allclose(env.place_agent(np.array([256.0, 243.0]))[:2], [22, 489])  # 13 px above the bar


# Images


def test_images_show_the_state(env):
    state = np.array([100.0, 400.0, 400.0, 100.0, 0.0])
    (image,) = render_states(state[None], 96)
    assert image.shape == (96, 96, 3) and image.dtype == np.uint8
    env.set_state(state)
    np.testing.assert_array_equal(image, env.image())

    def colour(x, y):
        return image[round(y * 96 / 512), round(x * 96 / 512)].astype(int)

    assert colour(100, 400)[2] > colour(100, 400)[0] + 50  # the agent is blue
    assert np.ptp(colour(400, 115)) < 50 and colour(400, 115).max() < 200  # the bar is grey
    assert colour(256, 270)[1] > colour(256, 270)[0] + 50  # the goal is green
    assert (colour(480, 480) == 255).all()


def test_without_the_package_the_remedy_is_told(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "gym_pusht.envs", None)
    pusht_sim.gym_pusht.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"pip install 'neuralsde\[pusht\]'"):
            PushT()
        with pytest.raises(ValueError, match="gym-pusht"):  # before a training, not after it
            task_for(PushTConfig(data="nowhere.npz")).data()
    finally:
        pusht_sim.gym_pusht.cache_clear()
