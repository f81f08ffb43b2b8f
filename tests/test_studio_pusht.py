"""The Push-T tab without a browser: its match is the rollout, a hand changes it at a known frame, and its worker listens."""

import json
import time

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("gym_pusht", reason="needs gym-pusht: pip install 'neuralsde[pusht]'")
from websockets.sync.client import connect

from neuralsde.experiments.demos.pusht import shipped
from neuralsde.experiments.pusht.rollout import Conditions, play
from neuralsde.policy.controller import SDEPolicy
from neuralsde.studio import pusht as tab
from neuralsde.studio.limits import Limits
from neuralsde.studio.pushing import FRAME_HZ, FRAMES, Futures, Hold, Match
from neuralsde.studio.server import Studio
from test_studio import read_frame

SEED, AT = 4, 70  # an episode, and an action after which it has covered most of the goal
MIDDLE = np.array([0.0, 45.0])


@pytest.fixture(scope="module")
def policy():
    return SDEPolicy.from_pretrained(shipped())


def run(match, steps):
    """Coverage after each of some actions."""
    covered = []
    for _ in range(steps):
        for _ in range(FRAMES):
            match.act()
            match.advance()
        covered.append(match.covered[0])
    return np.array(covered)


def take_away(match, shift):
    """A hand at the middle of the T, for one frame."""
    x, y, angle = match.states[0, 2:]
    middle = np.array([x - 45 * np.sin(angle), y + 45 * np.cos(angle)])
    match.hold(Hold("block", middle + shift, MIDDLE))
    match.advance()
    match.release()


def test_a_match_is_the_rollout_of_its_seed(policy):
    episode = play(policy, [SEED], "keypoints", Conditions(seconds=3.0))[0]
    match = Match(policy)
    match.begin(SEED)
    states = [match.states[0].copy()]
    for _ in range(30):
        run(match, 1)
        states.append(match.states[0].copy())
    np.testing.assert_allclose(states, episode.states, atol=1e-9)
    assert match.step == 30 and match.seconds == 3.0


def test_the_policy_brings_back_what_a_hand_took_away_and_does_so_twice(policy):
    matches = []
    for _ in range(2):
        match = Match(policy)
        match.begin(SEED)
        before = run(match, AT)
        take_away(match, np.array([-110.0, 90.0]))
        dragged = match.covered[0]
        after = run(match, 130)
        matches.append((match.states.copy(), after))
    assert before[-1] > 0.7 and dragged < 0.1 and after.max() > 0.75
    np.testing.assert_array_equal(matches[0][0], matches[1][0])
    np.testing.assert_array_equal(matches[0][1], matches[1][1])


def test_a_held_pusher_follows_the_hand_and_not_the_policy(policy):
    match = Match(policy)
    match.begin(SEED)
    run(match, 5)
    hand = np.array([60.0, 450.0])
    match.hold(Hold("agent", hand, MIDDLE))
    plans = policy.num_plans
    places = [match.states[0, :2].copy()]
    for _ in range(20):
        run(match, 1)
        places.append(match.states[0, :2].copy())
    assert np.linalg.norm(match.states[0, :2] - hand) < 5 and policy.num_plans == plans
    assert np.linalg.norm(np.diff(places, axis=0), axis=1).max() < 41  # 400 px/s, however far the hand is
    match.release()
    run(match, 1)
    assert policy.num_plans == plans + 1 and policy.left.shape[1] == policy.config.chunk - 1
    # While nothing moves, it is put down there; not on the block
    match.hold(Hold("agent", np.array([450.0, 60.0]), MIDDLE))
    match.pull(paused=True)
    np.testing.assert_allclose(match.states[0, :2], [450, 60])


def test_the_own_table_begins_alike_and_follows_its_own_hand(policy):
    match = Match(policy)
    match.begin(SEED, playing=True)
    np.testing.assert_array_equal(match.states[0], match.states[1])
    match.aim = np.array([80.0, 90.0])
    alone = Match(SDEPolicy.from_pretrained(shipped()))
    alone.begin(SEED)
    run(match, 20), run(alone, 20)
    assert np.linalg.norm(match.states[1, :2] - match.aim) < 5
    np.testing.assert_array_equal(match.states[0], alone.states[0])


def test_a_solved_table_rests_until_a_hand_comes(policy):
    match = Match(policy)
    match.begin(SEED)
    run(match, 1)
    state = np.array([60.0, 60.0, 256.0, 256.0, np.pi / 4])
    match.states[0] = match.tables[0].set_state(state)
    run(match, 6)
    assert match.solved[0] == pytest.approx(0.1 + 1 / FRAME_HZ)
    rest = match.states[0].copy()
    run(match, 5)
    np.testing.assert_allclose(match.states[0], rest, atol=1.0)
    take_away(match, np.array([100.0, 0.0]))
    assert match.solved[0] is None and match.covered[0] < 0.5


def test_futures_are_other_draws_of_the_plan_and_change_nothing(policy):
    other = SDEPolicy.from_pretrained(shipped())
    futures = Futures(other, lambda *_, **__: None)
    policy.reset(SEED)
    match = Match(policy)
    match.begin(SEED)
    match.act()
    plan = policy.plan[0].copy()
    drawn = futures.draw(policy.seen, match.start, 0)
    assert drawn.shape == (12, policy.config.horizon, 2)
    assert 0.5 < np.linalg.norm(drawn[:, 0] - plan[0], axis=1).mean() < 60  # about where the plan begins
    assert drawn[:, 7].std(0).min() > 0.5  # and apart
    np.testing.assert_array_equal(drawn, futures.draw(policy.seen, match.start, 0))
    np.testing.assert_array_equal(policy.plan[0], plan)
    # One draw of them, with the plan's own seed, is the plan
    other.reset(SEED)
    other.seen, other.previous = policy.seen, match.start
    np.testing.assert_allclose(other.draw_plan()[0, : len(plan)], plan, atol=1e-3)


class Page:
    """A page at the Push-T tab, without a browser."""

    def __init__(self, studio, visitor=None):
        self.socket = connect(f"ws://127.0.0.1:{studio.port}/socket", origin=f"http://127.0.0.1:{studio.port}")
        self.socket.send(json.dumps({"visitor": visitor}))
        self.visitor = read_frame(self.socket.recv())["hello"]["visitor"]
        self.number, self.kept = 0, []

    def ask(self, action, **given):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "tab": "pusht", "do": action, "with": given}))
        return self.wait(lambda m: m.get("id") == self.number)

    def wait(self, found):
        """The next message that is found; those before it are kept, since events may come before an answer."""
        while True:
            for k, message in enumerate(self.kept):
                if found(message):
                    return self.kept.pop(k)
            self.kept.append(read_frame(self.socket.recv(timeout=60)))


def test_a_live_match_hears_what_was_said_early_and_ends_when_nobody_looks():
    with Studio(port=0, limits=Limits(live_seconds=0.5)) as studio:
        page = Page(studio)
        assert "The match has ended. Press reset." in page.ask("step")["error"]
        assert "error" not in page.ask("begin", seed=SEED)
        page.ask("control", paused=True)  # the worker does not have its work yet
        frame = page.wait(lambda m: m.get("event") == "frame" and m["paused"])
        assert frame["poses"].shape == (1, 5) and frame["step"] < 3
        page.ask("step")
        assert page.wait(lambda m: m.get("event") == "frame" and m["step"] > frame["step"])["paused"]

        # A hand while it is paused; the same at every page of the visitor
        x, y = frame["poses"][0, 2:4].tolist()
        page.ask("hold", what="block", x=x + 30, y=y, u=0.0, v=0.0, down=True)
        moved = page.wait(lambda m: m.get("event") == "frame" and m["held"])
        page.ask("hold", what="block", x=x + 30, y=y, u=0.0, v=0.0, down=False)
        page.wait(lambda m: m.get("event") == "frame" and not m["held"])
        again = Page(studio, page.visitor)
        state = again.ask("state")
        assert state["job"]["state"] == "running" and state["settings"]["paused"] and state["lacks"] == ""
        assert state["match"] == {"seed": SEED, "playing": False} and len(state["curve"]) >= 1
        assert abs(float(moved["poses"][0, 2]) - x) > 5

        for bad in ({"what": "wall"}, {"x": 1e9}, {"x": "1"}, {"u": None}):
            given = {"what": "block", "x": 1.0, "y": 1.0, "u": 0.0, "v": 0.0, "down": True, **bad}
            assert "must be" in again.ask("hold", **given)["error"]
        assert "from 0 to 48" in again.ask("control", futures=49)["error"]
        again.socket.close()
        page.socket.close()
        end = time.monotonic() + 30
        while studio.jobs.num_running and time.monotonic() < end:
            time.sleep(0.2)
        assert studio.jobs.num_running == 0


def test_without_the_simulator_the_page_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(tab, "find_spec", lambda name: None)
    state = tab.PushTTab(None, "pusht").state()
    assert state["lacks"] == "Push-T needs its simulator: pip install 'neuralsde[pusht]', then start the studio again."
