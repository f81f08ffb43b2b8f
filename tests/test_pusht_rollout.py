import functools
import math
import os
import signal

import numpy as np
import pytest

pytest.importorskip("gym_pusht", reason="needs gym-pusht: pip install 'neuralsde[pusht]'")

from neuralsde.experiments.pusht.pictures import frames, panel, save_episode, trajectory_picture
from neuralsde.experiments.pusht.rollout import Conditions, Controller, Episode, play, roll_out
from neuralsde.experiments.pusht.sim import GOAL, PushT, coverage, observe, outline
from neuralsde.metrics.imitation import ranges, reward, summary, wilson
from neuralsde.video.files import write_video

SHORT = Conditions(seconds=2.0)


class Wanderer:
    """Goes at the block, with noise from each episode's own generator; records what it saw."""

    def __init__(self):
        self.seen = []
        self.plan = None

    def reset(self, seeds):
        self.rngs = [np.random.default_rng([seed, 99]) for seed in seeds]

    def select_action(self, observations):
        self.seen.append(observations.copy())
        aim = observations[:, 2:4] + np.stack([rng.normal(0, 60, 2) for rng in self.rngs])
        self.plan = np.stack([aim, aim + 1], axis=1) if len(self.seen) % 4 == 1 else None
        return aim


class Fixed(Wanderer):
    """The same action in every row."""

    def __init__(self, action):
        super().__init__()
        self.action = action

    def select_action(self, observations):
        self.seen.append(observations.copy())
        return np.broadcast_to(self.action, (len(observations), np.size(self.action)))


class Still(Wanderer):
    """Stays where it is."""

    def select_action(self, observations):
        return observations[:, :2]


class Killed(Wanderer):
    """Its process is killed at seed 2, and it raises at seed 4."""

    def reset(self, seeds):
        super().reset(seeds)
        if 2 in seeds:
            os.kill(os.getpid(), signal.SIGKILL)
        if 4 in seeds:
            raise RuntimeError("no memory for this")


def same(a, b):
    return a.seed == b.seed and np.array_equal(a.states, b.states) and np.array_equal(a.actions, b.actions)


def test_the_scripts_are_controllers():
    assert isinstance(Wanderer(), Controller)


def test_an_episode_is_the_simulation():
    """Against a plain loop over the environment."""
    (episode,) = roll_out(Wanderer, [5], observe_kind="pose", conditions=SHORT).episodes
    env, script = PushT(), Wanderer()
    state = env.reset(5)
    script.reset([5])
    states, scores = [state], []
    for _ in range(20):
        state = env.advance(np.clip(script.select_action(observe(state[None], "pose"))[0], 0, 512))
        states.append(state)
        scores.append(float(coverage(state[None])[0]))
    np.testing.assert_array_equal(episode.states, states)
    assert (episode.best, episode.final, episode.steps) == (max(scores), scores[-1], 20)
    assert not episode.success and episode.pushed_at is None
    assert [step for step, _ in episode.plans] == [0, 4, 8, 12, 16]
    np.testing.assert_array_equal(np.clip(episode.plans[1][1][0], 0, 512), episode.actions[4])


def test_neither_batches_nor_processes_change_an_episode():
    """With noise and a push, so that all draws are covered."""
    hard = Conditions(seconds=2.0, noise=0.02, push=40.0, delay=1)
    seeds = [3, 11, 4, 0, 8]
    one = roll_out(Wanderer, seeds, observe_kind="pose", conditions=hard)
    assert [episode.seed for episode in one.episodes] == seeds
    for other in (
        roll_out(Wanderer, seeds, observe_kind="pose", conditions=hard, batch_size=2),
        roll_out(Wanderer, seeds, observe_kind="pose", conditions=hard, batch_size=2, num_workers=2),
        roll_out(Wanderer, seeds[::-1], observe_kind="pose", conditions=hard),
    ):
        found = {episode.seed: episode for episode in other.episodes}
        assert all(same(episode, found[episode.seed]) for episode in one.episodes)


def test_what_a_controller_keeps_stays():
    """Policies keep the observations they got: later ones must not overwrite them."""
    kept = []

    class Keeper(Still):
        def select_action(self, observations):
            kept.append(observations)
            return observations[:, :2] + 20

    (episode,) = play(Keeper(), [0], "keypoints", SHORT)
    np.testing.assert_array_equal(np.concatenate(kept), observe(episode.states[:-1], "keypoints"))


def test_an_action_acts_after_its_delay():
    """By hand: the agent holds for two steps, then does what was chosen two steps before."""
    (late,) = roll_out(Wanderer, [1], observe_kind="pose", conditions=Conditions(seconds=1.0, delay=2)).episodes
    env = PushT()
    states = [env.reset(1)]
    targets = [states[0][:2], states[0][:2], *late.actions[:-2]]
    states += [env.advance(target) for target in targets]
    np.testing.assert_array_equal(late.states, states)
    np.testing.assert_array_equal(late.states[:3, :2], late.states[[0, 0, 0], :2])


@pytest.mark.parametrize(("hz", "steps"), [(5.0, 150), (10.0, 300), (20.0, 600)])
def test_thirty_seconds_at_any_rate(hz, steps):
    (episode,) = play(Fixed(np.array([100.0, 100.0])), [0], "pose", Conditions(control_hz=hz))
    assert episode.steps == steps and episode.states.shape == (steps + 1, 5)


def test_noise_is_on_what_is_seen_only():
    """Its size in pixels and radians; mean 0 and independent draws."""
    script = Fixed(np.array([20.0, 20.0]))
    (episode,) = play(script, [0], "pose", Conditions(noise=0.01, seconds=100.0))
    (clean,) = play(Fixed(np.array([20.0, 20.0])), [0], "pose", Conditions(seconds=100.0))
    np.testing.assert_array_equal(episode.states, clean.states)
    seen = np.concatenate(script.seen)
    error = seen[:, :4] - episode.states[:-1, :4]
    turn = np.arctan2(seen[:, 5], seen[:, 4]) - episode.states[:-1, 4]
    error = np.column_stack([error, (turn + math.pi) % (2 * math.pi) - math.pi])
    size = np.array([5.12, 5.12, 5.12, 5.12, 0.01 * math.pi])
    assert (np.abs(error.std(0) / size - 1) < 5 / math.sqrt(2 * 1000)).all()
    assert (np.abs(error.mean(0) / size) < 5 / math.sqrt(1000)).all()
    assert np.abs(np.corrcoef(error.T) - np.eye(5)).max() < 5 / math.sqrt(1000)


def test_the_block_is_pushed_at_half_time():
    conditions = Conditions(push=50.0, seconds=2.0)
    episodes, plain = (play(Still(), range(12), "pose", hard) for hard in (conditions, SHORT))
    moved = []
    for episode, other in zip(episodes, plain):
        assert episode.pushed_at == 10
        np.testing.assert_array_equal(episode.states[:10], other.states[:10])
        turn = episode.states[10, 4] - other.states[10, 4]
        assert abs((turn + math.pi) % (2 * math.pi) - math.pi) == pytest.approx(0.5)
        centre = [
            s[2:4] + 45 * np.array([-math.sin(s[4]), math.cos(s[4])]) for s in (episode.states[10], other.states[10])
        ]
        moved.append(centre[0] - centre[1])
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 50)
    assert np.ptp(np.arctan2(*np.transpose(moved))) > 2  # all directions


def test_success_ends_an_episode_and_keeps_its_row(monkeypatch):
    """Seed 1 starts on the goal, seed 2 does not."""
    plain = PushT.reset

    def reset(self, seed):
        return self.set_state(np.array([20.0, 20.0, *GOAL])) if seed == 1 else plain(self, seed)

    monkeypatch.setattr(PushT, "reset", reset)
    script = Fixed(np.array([20.0, 20.0]))
    solved, other = play(script, [1, 2], "pose", SHORT)
    assert solved.success and solved.steps == 1 and solved.best == pytest.approx(1)
    assert not other.success and other.steps == 20
    assert all(len(rows) == 2 for rows in script.seen)
    assert solved.final == coverage(solved.states[-1:])[0]


def test_actions_are_checked_and_clipped():
    episode = play(Fixed(np.array([-30.0, 600.0])), [0], "pose", SHORT)[0]
    assert episode.num_clipped == 20
    np.testing.assert_array_equal(episode.actions[0], [0, 512])
    with pytest.raises(ValueError, match=r"actions of shape \(2, 2\). Got \(2, 3\)"):
        roll_out(functools.partial(Fixed, np.zeros(3)), [0, 1], observe_kind="pose")
    with pytest.raises(ValueError, match=r"must be finite. Got \[nan, 1.0\] for seed 4 at step 0"):
        roll_out(functools.partial(Fixed, np.array([np.nan, 1.0])), [4], observe_kind="pose")


def test_a_worker_that_fails_does_not_stop_the_others():
    rollout = roll_out(Killed, range(8), observe_kind="pose", conditions=SHORT, num_workers=2, batch_size=2)
    assert [episode.seed for episode in rollout.episodes] == [0, 1, 6, 7]
    killed, raised = sorted(rollout.failures, key=lambda failure: failure.seeds)
    assert killed.seeds == (2, 3) and "exit code -9 (killed" in killed.message
    assert raised.seeds == (4, 5) and "RuntimeError: no memory" in raised.message


def test_if_nothing_is_left_the_reason_is_raised():
    with pytest.raises(ValueError, match=r"No episode was finished\. The worker died with exit code -9"):
        roll_out(Killed, [2], observe_kind="pose", conditions=SHORT, num_workers=2, batch_size=1)
    with pytest.raises(ValueError, match="cannot be sent to a worker"):
        roll_out(lambda: Wanderer(), [1, 2], observe_kind="pose", num_workers=2, batch_size=1)


def test_what_is_asked_is_checked():
    for seeds in ([], [-1], [1, 1]):
        with pytest.raises(ValueError, match="`seeds` must be different integers"):
            roll_out(Wanderer, seeds, observe_kind="pose")
    with pytest.raises(ValueError, match="must be at least 1"):
        roll_out(Wanderer, [1], observe_kind="pose", num_workers=0)
    for wrong, match in (
        ({"noise": -1.0}, "`noise` must be >= 0"),
        ({"seconds": 0.0}, "`seconds` must hold a control step"),
    ):
        with pytest.raises(ValueError, match=match):
            Conditions(**wrong)


# Scores


def made(seed, best, final=0.0):
    return Episode(seed=seed, best=best, final=final, states=np.zeros((1, 5)), actions=np.zeros((0, 2)))


def test_the_summary_by_hand():
    out = summary([made(7, 0.475, 0.2), made(8, 0.95, 0.4), made(10, 0.96, 0.9)])
    assert out["score"]["mean"] == pytest.approx((0.5 + 1 + 1) / 3)
    half = 4.302653 * np.std([0.5, 1, 1], ddof=1) / math.sqrt(3)
    assert out["score"]["ci95"] == pytest.approx(half)
    assert out["score"]["high"] - out["score"]["low"] == pytest.approx(2 * half)
    assert out["success"]["mean"] == pytest.approx(1 / 3) and out["success"]["n"] == 3
    assert out["final_coverage"]["mean"] == pytest.approx(0.5)
    assert out["seeds"] == "7-8, 10" and ranges([3]) == "3"
    assert reward(0.99) == 1 and reward(0.0) == 0
    with pytest.raises(ValueError, match="at least one"):
        summary([])


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (19, 50)])
def test_wilson_is_that_of_scipy(k, n):
    from scipy.stats import binomtest

    oracle = binomtest(k, n).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson(k, n), (oracle.low, oracle.high), atol=1e-12)


# Videos and pictures


@pytest.mark.parametrize(
    ("hz", "shown"), [(5.0, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]), (10.0, range(11)), (20.0, range(0, 21, 2))]
)
def test_videos_run_at_true_speed(hz, shown):
    """A second is eleven frames, and each is the state of its instant."""
    conditions = Conditions(control_hz=hz, seconds=1.0, delay=1)
    (episode,) = play(Wanderer(), [0], "pose", conditions)
    images = frames(episode, conditions, size=96)
    assert images.shape == (11, 96, 96, 3)
    env = PushT()
    for image, step in zip(images, shown):
        env.set_state(episode.states[step])
        target = episode.actions[step - 1] if step > 0 else None
        np.testing.assert_array_equal(image[20:], env.image(96, target)[20:])  # below the words


def test_an_episode_that_ends_between_frames_shows_its_end():
    conditions = Conditions(control_hz=20.0, seconds=0.35)
    (episode,) = play(Wanderer(), [0], "pose", conditions)
    images = frames(episode, conditions, size=96)
    env = PushT()
    env.set_state(episode.states[7])
    assert len(images) == 5
    np.testing.assert_array_equal(images[-1][20:], env.image(96)[20:])


def test_a_gif_plays_what_was_written(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (episode,) = play(Wanderer(), [0], "pose", Conditions(seconds=1.0))
    with image.open(save_episode(episode, tmp_path / "new" / "episode.gif", size=96)) as film:
        durations = []
        for k in range(film.n_frames):
            film.seek(k)
            durations.append(film.info["duration"])
        assert film.size == (96, 96) and sum(durations) == 2100  # 11 frames and one second of rest


def test_an_mp4_plays_what_was_written(tmp_path):
    av = pytest.importorskip("av", reason="needs PyAV: pip install 'neuralsde[video]'")
    shades = np.linspace(0, 255, 7).astype(np.uint8)[:, None, None, None] * np.ones((1, 63, 65, 3), np.uint8)
    with av.open(str(write_video(shades, tmp_path / "film.mp4", fps=5.0))) as film:
        assert film.streams.video[0].average_rate == 5
        seen = [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]
    assert np.shape(seen) == (7, 64, 66, 3)
    np.testing.assert_allclose(np.mean(seen, axis=(1, 2, 3)), shades[:, 0, 0, 0], atol=3)


def test_videos_say_what_is_wrong(tmp_path, monkeypatch):
    black = np.zeros((2, 8, 8, 3), np.uint8)
    for args, match in (
        ((black, tmp_path / "a.avi"), "must end in .gif or .mp4"),
        ((black.astype(float), tmp_path / "a.gif"), "uint8"),
        ((black[:0], tmp_path / "a.gif"), "`frames` must have shape"),
    ):
        with pytest.raises(ValueError, match=match):
            write_video(*args)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="Cannot write"):
        write_video(black, tmp_path / "file" / "a.gif")
    (tmp_path / "old.gif").write_text("an earlier film")
    monkeypatch.setattr("PIL.Image.Image.save", lambda self, file, **_: (file.write_text("half"), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        write_video(black, tmp_path / "old.gif")
    assert (tmp_path / "old.gif").read_text() == "an earlier film" and len(list(tmp_path.iterdir())) == 2
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(ValueError, match=r"pip install 'neuralsde\[video\]'"):
        write_video(black, tmp_path / "a.mp4")


def test_the_picture_draws_the_paths():
    pytest.importorskip("matplotlib")
    one, two = (play(script, [0, 1], "pose", SHORT) for script in (Wanderer(), Fixed(np.array([20.0, 20.0]))))
    figure = trajectory_picture({"one": one, "two": two}, SHORT)
    axes = figure.axes[:4]
    for ax, episode in zip(axes, [one[0], two[0], one[1], two[1]]):
        (line,) = ax.collections
        np.testing.assert_array_equal([segment[0] for segment in line.get_segments()], episode.states[:-1, :2])
        np.testing.assert_allclose(line.get_array(), np.arange(20) / 10)
        last = ax.patches[2].get_xy()
        np.testing.assert_allclose(last[:8], outline(episode.states[-1:])[0])
        assert sum(np.shape(drawn.get_xydata()) == (2, 2) for drawn in ax.lines) == len(episode.plans)
    assert len(panel(one[0]).plans) == 5 and axes[0].get_title().startswith("one")
    with pytest.raises(ValueError, match="of the same seeds"):
        trajectory_picture({"one": one, "two": two[:1]})
