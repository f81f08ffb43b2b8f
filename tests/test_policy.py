"""A sequence model as a controller: what it learns from, when it plans, and that plans join."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralsde import fit
from neuralsde.data.robots.demonstrations import Demonstrations
from neuralsde.data.trajectories import Trajectories
from neuralsde.models import sequence
from neuralsde.models.build import build
from neuralsde.nets.config import EncodedConfig, MLPConfig
from neuralsde.nets.encoded import EncodedMLP
from neuralsde.policy.config import PolicyConfig
from neuralsde.policy.controller import SDEPolicy, Still, action_paths
from neuralsde.sde.config import Deterministic, Moments, NeuralSDEConfig, Sampler
from neuralsde.sde.model import NeuralSDE
from neuralsde.solvers.noise import Noise
from neuralsde.solvers.replay import Traced

QUIET = {"progress": False, "batch_size": 256}
SDE = NeuralSDEConfig(net=MLPConfig(width=32, depth=2), normalise="min_max", time_input=True, noise=0.1)
PULLED = Sampler(pull=10.0)


def demonstrations(lengths=(9, 5, 12), seed=0, num_actions=2):
    """Positions that move at random; the action is where they will be."""
    rng = np.random.default_rng(seed)
    seen = np.concatenate([rng.normal(size=(n, 3)).cumsum(0) for n in lengths])
    actions = seen[:, :num_actions] + 0.1 * rng.normal(size=(len(seen), num_actions))
    return Demonstrations.from_arrays({"state": seen}, actions, lengths, dt=0.1)


def policy(config=None, model=None, demos=None):
    demos = demos or demonstrations()
    config = config or PolicyConfig(horizon=4, chunk=2, first_action=(0, 1))
    data = action_paths(demos, demos.observations["state"], config)
    made = build(model or replace(SDE, sampler=PULLED), data.transitions(), seed=0)
    return SDEPolicy.for_demonstrations(made, config, demos)


# What it learns from


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4).filter(lambda n: max(n) > 1),
    history=st.integers(1, 3),
    horizon=st.integers(1, 5),
)
def test_paths_of_actions_by_hand(lengths, history, horizon):
    demos = demonstrations(tuple(lengths))
    seen, config = demos.observations["state"], PolicyConfig(history=history, horizon=horizon, chunk=1)
    data = action_paths(demos, seen, config)
    assert len(data) == sum(lengths) and data.context_size == 3 * history
    starts = np.repeat(demos.starts, demos.lengths)
    ends = starts + np.repeat(demos.lengths, demos.lengths) - 1
    context = data.context_at(torch.arange(len(data.states))).reshape(len(data), horizon + 1, -1)
    for k in range(len(data)):
        states, times = data[k]
        before = demos.actions[k - 1] if k > starts[k] else demos.actions[demos.starts].mean(0)
        plan = [demos.actions[min(k + j, ends[k])] for j in range(horizon)]
        np.testing.assert_allclose(states, np.stack([before, *plan]), atol=1e-6)
        np.testing.assert_allclose(times, 0.1 * np.arange(horizon + 1))
        rows = [max(k - j, starts[k]) for j in range(history - 1, -1, -1)]
        np.testing.assert_allclose(context[k, 0], seen[rows].flatten(), atol=1e-6)
        assert bool((context[k] == context[k, :1]).all())


def test_plans_at_once_hold_the_same_actions():
    demos = demonstrations()
    path = action_paths(demos, demos.observations["state"], PolicyConfig(horizon=4, chunk=2, first_action=(0, 1)))
    chunk = action_paths(
        demos, demos.observations["state"], PolicyConfig(form="chunk", horizon=4, chunk=2, first_action=(0, 1))
    )
    assert chunk.shape == (4, 2) and len(chunk) == len(path)
    for k in (0, 5, 25):
        torch.testing.assert_close(chunk[k][0][1], path[k][0][1:])
        torch.testing.assert_close(chunk[k][0][0], path[k][0][:1].expand(4, -1))
    assert bool((path[0][0][0] == torch.from_numpy(demos.observations["state"][0, :2])).all())  # the agent's own place


def test_the_papers_state_is_what_is_seen_and_the_action_before():
    demos = demonstrations((4, 3))
    config = PolicyConfig(form="state", history=1, horizon=2, chunk=2, first_action=(0, 1))
    data = action_paths(demos, demos.observations["state"], config)
    assert len(data) == 2 and data.shape == (5,) and data.context is None
    np.testing.assert_allclose(data.states[:, :3], demos.observations["state"])
    np.testing.assert_allclose(data.states[1:4, 3:], demos.actions[:3])
    made = policy(config, NeuralSDEConfig(net=MLPConfig(width=8, depth=1)), demos)
    made.reset([1, 2])
    assert made.select_action(np.zeros((2, 3))).shape == (2, 2)


def test_observations_are_kept_once_whatever_the_horizon():
    demos = demonstrations((50,))
    data = action_paths(demos, demos.observations["state"], PolicyConfig(horizon=32, chunk=2))
    assert data.context.shape == (50, 3) and len(data.states) == 50 * 33
    half = data.select(range(10))
    assert half.context.shape == (50, 3) and torch.equal(
        half.context_at(torch.tensor([0])), data.context_at(torch.tensor([0]))
    )


def test_even_times_are_kept_to_the_bit():
    """As Push-T is recorded: what was learned from it is learned again."""
    demos = Demonstrations.from_arrays({"state": np.zeros((700, 1))}, np.zeros((700, 2)), [300, 1, 399], dt=0.1)
    data = action_paths(demos, demos.observations["state"], PolicyConfig(horizon=16))
    assert torch.equal(data.times, (torch.arange(17, dtype=torch.float64) * demos.step).repeat(700))


def test_uneven_times_are_those_recorded():
    times = np.array([0.0, 0.1, 0.3, 0.4, 0.5, 7.0, 7.1])  # two episodes; their clock runs on
    seen = np.zeros((7, 1))
    demos = Demonstrations.from_arrays({"state": seen}, np.zeros((7, 2)), [5, 2], times=times)
    data = action_paths(demos, seen, PolicyConfig(horizon=2, chunk=1))
    wanted = [[0, 0.1, 0.2], [0, 0.1, 0.3], [0, 0.2, 0.3], *[[0, 0.1, 0.2]] * 4]  # beyond an episode: at its pace
    np.testing.assert_allclose(data.times.reshape(7, 3), wanted, atol=1e-6)
    with pytest.raises(ValueError, match=r"evenly spaced\. Got gaps up to 100 % off the usual 0\.1\. Use form='path'"):
        action_paths(demos, seen, PolicyConfig(form="chunk", horizon=2, chunk=1))


# How it acts


def test_it_plans_every_chunk_and_each_plan_starts_at_the_action_before():
    made, starts = policy(), []
    draw = made.model.draw
    made.model.draw = lambda history, *a, **k: (starts.append(np.array(history)), draw(history, *a, **k))[1]
    made.reset([3])
    actions = [made.select_action(np.full(3, 0.1 * t)) for t in range(7)]
    assert len(starts) == 4
    np.testing.assert_allclose(starts[0][0], [0.0, 0.0])  # what is seen at first
    for k in (1, 2, 3):
        np.testing.assert_allclose(starts[k][0], actions[2 * k - 1])


def test_plan_tells_when_it_planned():
    made = policy()
    made.reset([3])
    planned = []
    for _ in range(4):
        made.select_action(np.zeros(3))
        planned.append(made.plan is not None)
    assert planned == [True, False, True, False]


def test_what_callers_do_to_their_arrays_changes_nothing():
    made, rng = policy(PolicyConfig(history=2, horizon=4, chunk=2)), np.random.default_rng(0)
    seen, buffer = rng.normal(size=(6, 3)).astype(np.float32), np.empty(3, np.float32)
    made.reset(0)
    wanted = [made.select_action(each) for each in seen]
    made.reset(0)
    for each, action in zip(seen, wanted):
        buffer[:] = each
        got = made.select_action(buffer)
        np.testing.assert_array_equal(got, action)
        got[:] = 99.0


@pytest.mark.parametrize("seeds", [np.arange(2), torch.arange(2), range(2), [np.int64(0), 1]])
def test_seeds_are_whole_numbers_of_any_kind(seeds):
    made = policy()
    made.reset([0, 1])
    wanted = made.select_action(np.zeros((2, 3)))
    made.reset(seeds)
    np.testing.assert_array_equal(made.select_action(np.zeros((2, 3))), wanted)
    made.reset(np.int64(1))
    np.testing.assert_allclose(made.select_action(np.zeros(3)), wanted[1], atol=1e-6)


def test_an_episode_does_not_depend_on_its_neighbours():
    made, rng = policy(), np.random.default_rng(0)
    seen = rng.normal(size=(5, 6, 3)).astype(np.float32)

    def act(rows, seeds):
        made.reset(seeds)
        return np.stack([made.select_action(seen[rows, t]) for t in range(6)], 1)

    together = act([0, 1, 2, 3, 4], [10, 11, 12, 13, 14])
    np.testing.assert_allclose(act([3, 1], [13, 11]), together[[3, 1]], atol=1e-5)
    np.testing.assert_array_equal(act([0, 1, 2, 3, 4], [10, 11, 12, 13, 14]), together)
    assert np.abs(act([0], [99]) - together[:1]).max() > 1e-3


def test_it_sees_the_last_observations_one_data_step_apart_at_any_rate():
    demos, config = demonstrations(), PolicyConfig(history=3, horizon=4, chunk=4)
    for hz, wanted in ((10, [3.0, 4.0, 5.0]), (20, [2.0, 3.0, 4.0]), (5, [4.0, 4.5, 5.0])):
        made = policy(config, demos=demos)
        made.control_dt = 1 / hz
        made.reset([0])
        steps = {10: 6, 20: 9, 5: 6}[hz]
        for t in range(steps):
            made.seen = [*made.seen, np.full((1, 3), {10: 1.0, 20: 0.5, 5: 1.0}[hz] * t)]
        np.testing.assert_allclose(made._context().reshape(3, 3)[:, 0], wanted)


@pytest.mark.parametrize(("hz", "num"), [(10, 4), (20, 8), (5, 2)])
def test_a_plan_lasts_as_long_at_any_rate(hz, num):
    made = policy(PolicyConfig(horizon=8, chunk=4, first_action=(0, 1)))
    made.control_dt = 1 / hz
    made.reset([0])
    made.select_action(np.zeros(3))
    assert made.plan.shape == (1, num, 2)


def test_another_rate_follows_the_same_path():
    """A flow without noise: at twice the rate every second action is nearly the same."""
    demos = demonstrations((40,) * 8)
    config = PolicyConfig(horizon=8, chunk=8, first_action=(0, 1))
    model = replace(SDE, noise=0.0, law=Deterministic(), denoiser=None)
    data = action_paths(demos, demos.observations["state"], config)
    made = build(model, data.transitions(), seed=0)
    fit(made, data, steps=200, **QUIET)
    plans = {}
    for hz in (10, 20, 5):
        acting = SDEPolicy.for_demonstrations(made, config, demos, limits=([-99, -99], [99, 99]))
        acting.control_dt = 1 / hz
        acting.model.sampler = Sampler(substeps=16)
        acting.reset([0])
        acting.previous = np.array([[0.5, -0.5]], np.float32)
        acting.select_action(np.ones(3))
        plans[hz] = acting.plan[0]
    np.testing.assert_allclose(plans[10][::2], plans[5], atol=0.02)
    step = np.abs(np.diff(plans[10], axis=0)).mean()
    assert np.abs(plans[20][::2] - plans[10]).mean() < 2 * step  # it starts half a step later


def test_actions_stay_within_limits_and_discrete_ones_on_their_levels():
    """A gripper that closes when the first entry of the state is positive: the SDE moves it, the policy snaps it."""
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(40 * 30, 2)).astype(np.float32)
    for e in range(40):
        seen[30 * e : 30 * (e + 1)] = seen[30 * e]
    actions = np.stack([0.5 * seen[:, 1], (seen[:, 0] > 0).astype(np.float32)], 1)
    demos = Demonstrations.from_arrays({"state": seen}, actions, [30] * 40, dt=0.1)
    config = PolicyConfig(history=1, horizon=4, chunk=2, discrete=(1,))
    data = action_paths(demos, seen, config)
    model = build(replace(SDE, sampler=PULLED), data.transitions(), seed=0)
    fit(model, data, steps=200, lr=3e-3, **QUIET)
    acting = SDEPolicy.for_demonstrations(model, config, demos, limits=([-0.5, 0.0], [0.5, 1.0]))
    now = rng.normal(size=(200, 2)).astype(np.float32)
    now = now[np.abs(now[:, 0]) > 0.3]
    acting.reset(range(len(now)))
    for _ in range(6):
        done = acting.select_action(now)
        assert set(np.unique(done[:, 1])) <= {0.0, 1.0} and np.abs(done[:, 0]).max() <= 0.5
    assert np.mean(done[:, 1] == (now[:, 0] > 0)) > 0.9


def test_discrete_entries_follow_the_flow_without_its_noise():
    demos = demonstrations()
    demos.actions[:, 1] = demos.actions[:, 1] > 0
    config = PolicyConfig(horizon=4, chunk=2, discrete=(1,))
    for form in (config, replace(config, form="state", history=1)):
        made, ends = policy(form, demos=demos), []
        draw = made.model.draw
        made.model.draw = lambda *a, kept=ends, draw=draw, **k: (
            kept.append(draw(*a, **k).paths[:, 0, 1]),
            draw(*a, **k),
        )[1]
        made.reset(range(50))
        made.select_action(np.zeros((50, 3)))
        assert float(ends[0][:, -1].std()) < 1e-4 < 1e-2 < float(ends[0][:, -2].std())  # after the first step


def test_plans_with_discrete_entries_are_traced_too(monkeypatch):
    monkeypatch.setattr(Traced, "after", 1)
    demos = demonstrations()
    demos.actions[:, 1] = demos.actions[:, 1] > 0
    made = policy(PolicyConfig(horizon=4, chunk=4, discrete=(1,)), demos=demos)

    def plans():
        made.reset([3])
        return [made.select_action(np.full(3, 0.1 * k)).copy() for k in range(24)]

    found = plans()
    assert [trace.call for trace in made.model.recordings._kept.values()] == [None]
    monkeypatch.setattr(sequence, "SHORT", 0)
    assert np.array_equal(found, plans())
    still, other = Still(Noise.draw(0, 1), [-1]), Still(Noise.draw(0, 1), [-2])
    assert still.kind != other.kind and Noise.draw(0, 1).kind not in (still.kind, None)


def test_it_learns_to_follow():
    """Actions are a known function of what is seen: after training the policy computes it."""
    rng = np.random.default_rng(1)
    seen = rng.uniform(-1, 1, size=(60, 20, 2)).astype(np.float32).cumsum(1) * 0.1
    actions = np.stack([seen[..., 0] - seen[..., 1], 2 * seen[..., 1]], -1)
    demos = Demonstrations.from_arrays({"s": seen.reshape(-1, 2)}, actions.reshape(-1, 2), [20] * 60, dt=0.1)
    config = PolicyConfig(history=2, horizon=2, chunk=1)
    data = action_paths(demos, demos.observations["s"], config)
    model = build(
        replace(SDE, shared=True, sampler=PULLED, net=EncodedConfig(width=32, depth=2, step_width=32)),
        data.transitions(),
        seed=0,
    )
    fit(model, data, steps=400, lr=3e-3, **QUIET)
    acting = SDEPolicy.for_demonstrations(model, config, demos)
    acting.reset(range(60))
    done = np.stack([acting.select_action(seen[:, t]) for t in range(20)], 1)
    error = np.abs(done - actions)[:, 1:].mean() / np.abs(actions - actions.mean((0, 1))).mean()
    assert error < 0.35  # the noise of training blurs it


# Files and errors


def test_a_policy_travels(tmp_path):
    made = policy(PolicyConfig(horizon=4, chunk=2, first_action=(0, 1), discrete=()))
    made.observation = "pose"
    again = SDEPolicy.from_pretrained(made.save_pretrained(tmp_path / "p"))
    for each in (made, again):
        each.reset([5, 6])
    seen = np.random.default_rng(0).normal(size=(3, 2, 3))
    for t in range(3):
        np.testing.assert_array_equal(made.select_action(seen[t]), again.select_action(seen[t]))
    assert again.observation == "pose" and SDEPolicy.from_pretrained(tmp_path / "p", chunk=4).config.chunk == 4
    assert json.loads((tmp_path / "p" / "policy.json").read_text())["config"]["chunk"] == 2


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (np.zeros(4), r"shape \(1, 3\).*Got \(1, 4\)"),
        (np.zeros((2, 3)), r"1 episode.*Got \(2, 3\)"),
        (np.array([0.0, np.nan, 0.0]), r"finite. Got \[0, 1\]=nan"),
        ({"state": np.zeros(3)}, "must be an array. Got arrays by name: state. Join them"),
    ],
)
def test_bad_observations(seen, words):
    made = policy()
    made.reset([0])
    with pytest.raises(ValueError, match=words):
        made.select_action(seen)


def test_bad_settings(tmp_path):
    with pytest.raises(ValueError, match="chunk` must not exceed `horizon"):
        PolicyConfig(horizon=4, chunk=5)
    with pytest.raises(ValueError, match=r"one row \(C,\) per instant, 26"):
        action_paths(demonstrations(), np.zeros((3, 2)), PolicyConfig())
    with pytest.raises(ValueError, match="first_action` must name one entry"):
        action_paths(demonstrations(), np.zeros((26, 2)), PolicyConfig(first_action=(0, 7)))
    for discrete, words in (((0,), "which takes 26 values"), ((5,), "some of the 2 entries.*Got 5"), ((-1,), "Got -1")):
        with pytest.raises(ValueError, match=words):
            action_paths(demonstrations(), np.zeros((26, 2)), PolicyConfig(discrete=discrete))  # before it is trained
    with pytest.raises(ValueError, match=r"must be one array \(L, C\). Got arrays by name: state. Pass one"):
        action_paths(demonstrations(), demonstrations().observations, PolicyConfig())
    with pytest.raises(ValueError, match=r"Got no observation since `reset`\. Call `select_action`"):
        policy().draw_plan()
    with pytest.raises(ValueError, match=r"holds no policy\.json"):
        SDEPolicy.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="at least one"):
        policy().reset([])
    with pytest.raises(ValueError, match=r"sees one observation: the state itself. Got history=2\."):
        PolicyConfig(form="state", history=2)
    with pytest.raises(ValueError, match=r"Got chunk=8, horizon=4\."):
        PolicyConfig(horizon=4)


@pytest.mark.parametrize("other", [{"history": 4}, {"form": "chunk"}, {"form": "state", "history": 1}])
def test_a_model_of_another_form_is_refused_before_it_acts(other, tmp_path):
    made, demos = policy(), demonstrations()
    with pytest.raises(
        ValueError, match=r"with form=.*Got states of shape \(2,\) and 6 numbers as context. Pass the config"
    ):
        SDEPolicy.for_demonstrations(made.model, replace(made.config, **other), demos)
    with pytest.raises(ValueError, match="Pass the config of its training"):
        SDEPolicy.from_pretrained(made.save_pretrained(tmp_path), **other)
    bare = build(SDE, Trajectories.from_arrays(np.zeros((2, 5, 2))).transitions(), seed=0)
    with pytest.raises(ValueError, match="and 0 numbers as context"):
        SDEPolicy.for_demonstrations(bare, made.config, demos)


# One trunk for all fields


def shared_model(**settings):
    demos = demonstrations()
    data = action_paths(demos, demos.observations["state"], PolicyConfig(horizon=4, chunk=2))
    return build(replace(SDE, shared=True, **settings), data.transitions(), seed=0), data


def test_a_shared_trunk_takes_one_pass_per_step():
    made = policy(model=replace(SDE, shared=True, sampler=PULLED))
    made.reset([0])
    made.select_action(np.zeros(3))
    assert made.nfe == {"trunk": 2}
    apart = policy()
    apart.reset([0])
    apart.select_action(np.zeros(3))
    assert apart.nfe == {"flow": 2, "diffusion": 2, "denoiser": 2}


def test_the_diffusion_reads_the_features_and_does_not_train_them():
    from neuralsde.solvers.noise import Noise

    model, data = shared_model()
    with torch.no_grad():
        model.nets["trunk"].outward.weight.normal_(generator=torch.Generator().manual_seed(0))
    batch = data.transitions()[torch.arange(20)]
    losses = model.train().loss(batch, Noise.for_step(0, 0, torch.arange(20)))
    first = model.nets["trunk"].inward.weight
    grads = {k: torch.autograd.grad(v, first, retain_graph=True, allow_unused=True)[0] for k, v in losses.items()}
    assert grads["diffusion"] is None or not bool(grads["diffusion"].any())
    assert bool(grads["flow"].any()) and bool(grads["denoiser"].any())
    head = torch.autograd.grad(losses["diffusion"], model.nets["trunk"].outward.weight)[0]
    rows = head.reshape(3, 2, -1).abs().sum((1, 2))
    assert float(rows[1]) > 0 and float(rows[0]) == float(rows[2]) == 0


def test_a_shared_trunk_learns_drift_and_diffusion():
    """Ornstein-Uhlenbeck, dx = -x dt + 0.5 dw: the diffusion is found though it trains no features."""
    rng = np.random.default_rng(0)
    x = np.zeros((50, 400))
    x[:, 0] = 0.35 * rng.normal(size=50)
    for k in range(399):
        x[:, k + 1] = x[:, k] - 0.05 * x[:, k] + 0.5 * np.sqrt(0.05) * rng.normal(size=50)
    data = Trajectories.from_arrays(list(x[..., None]), dt=0.05)
    config = NeuralSDEConfig(net=MLPConfig(width=32, depth=1), shared=True, noise=0.05)
    model = build(config, data.transitions(), seed=0)
    fit(model, data, steps=400, batch_size=512, lr=3e-3, ema=0.99, progress=False)
    at = np.linspace(-0.7, 0.7, 15)[:, None]
    drift, diffusion = model.fields(at)
    slope = np.polyfit(at[:, 0], drift[:, 0].numpy(), 1)[0]
    assert abs(slope + 1) < 0.25 and abs(float(diffusion.mean()) - 0.5) < 0.02


def test_a_shared_trunk_alone_is_refused():
    with pytest.raises(ValueError, match="`shared` takes flow with diffusion or denoiser"):
        NeuralSDEConfig(shared=True, law=Deterministic(), denoiser=None)


def test_a_context_that_holds_is_encoded_once_for_a_whole_roll_out():
    model, _ = shared_model(net=EncodedConfig(width=16, depth=1, memory=8, step_width=16, step_depth=1))
    net, calls = model.eval().nets["trunk"], []
    torch.nn.init.normal_(net.outward.weight, std=0.1)
    net.encoder.register_forward_hook(lambda *_: calls.append(1))
    state, context = torch.zeros(2, 2), torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    times = [0.1 * k for k in range(6)]

    def draw(context):
        return model.sample(state, times, context=context, rng=0)

    one = draw(context)
    assert len(calls) == 1
    changing = context[:, None].expand(-1, len(times), -1)  # the same, but as one that may change
    torch.testing.assert_close(draw(changing), one)
    assert len(calls) == 1 + 5
    assert not torch.equal(draw(context + 1), one)
    with torch.no_grad():
        net.encoder[0].weight.mul_(2)
    assert not torch.equal(draw(context), one)


def test_a_law_that_groups_paths_sees_the_context_of_each():
    rng = np.random.default_rng(0)
    contexts = [np.repeat(c[None], 30, 0) for c in rng.standard_normal((6, 3))]
    data = Trajectories.from_arrays(list(rng.standard_normal((6, 30, 1)).cumsum(1)), context=contexts)
    net = EncodedConfig(width=16, depth=1, memory=8, step_width=16, step_depth=1)
    model = NeuralSDE.for_data(data, law=Moments(), net=net).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for each in model.nets.values():
            torch.nn.init.normal_(each.outward.weight, std=0.3)
        model.law.steps[:8], model.law.steps[8:] = 1, 2
    context = 2 * torch.randn(4, 3)
    times = np.array([[0, 0.25], [0, 0.25], [0, 1], [0, 1]])  # two groups, each of half of the paths
    given = (context, context[:, None].expand(4, 2, 3))
    found = [model.sample(np.zeros((4, 1)), times, context=c, rng=0, sampler=Sampler(substeps=1)) for c in given]
    torch.testing.assert_close(*found)


def test_hooks_on_an_encoded_net_are_called():
    model, _ = shared_model(net=EncodedConfig(width=16, depth=1, memory=8, step_width=16, step_depth=1))
    calls = []
    model.eval().nets["trunk"].register_forward_hook(lambda *_: calls.append(1))
    model.sample(torch.zeros(2, 2), [0.0, 0.1, 0.2], context=torch.zeros(2, 6), rng=0)
    assert len(calls) == 2


def test_an_encoded_net_that_is_written_anew_does_what_it_says():
    class Doubled(EncodedMLP):
        def forward(self, state, condition=None):
            return 2 * super().forward(state, condition)

    model, _ = shared_model(net=EncodedConfig(width=16, depth=1, memory=8, step_width=16, step_depth=1))
    torch.nn.init.normal_(model.eval().nets["trunk"].outward.weight, std=0.1)

    def paths():
        return model.sample(torch.zeros(2, 2), [0.0, 0.1, 0.2], context=torch.ones(2, 6), rng=0)

    before = paths()
    model.nets["trunk"].__class__ = Doubled
    assert not torch.equal(paths(), before)


def test_a_parametrised_encoder_goes_on_after_many_plans(monkeypatch):
    monkeypatch.setattr(Traced, "after", 1)
    model, _ = shared_model(net=EncodedConfig(width=16, depth=1, memory=8, step_width=16, step_depth=1))
    torch.nn.utils.parametrizations.weight_norm(model.eval().nets["trunk"].encoder[0])
    found = [model.sample(torch.zeros(2, 2), [0.0, 0.1], context=torch.ones(2, 6), rng=0) for _ in range(4)]
    assert all(torch.equal(x, found[0]) for x in found)


def test_a_model_that_has_planned_can_be_trained_on():
    made, demos = policy(), demonstrations()
    made.reset([0])
    made.select_action(np.zeros(made.num_features))
    fit(made.model, action_paths(demos, demos.observations["state"], made.config), steps=2, **QUIET)


def test_keys_of_seeds_and_their_children_differ():
    from neuralsde.solvers.noise import Noise

    keys = Noise.for_seeds(range(1000))
    many = torch.cat([keys.keys, *(keys.child(k).keys for k in range(5))])
    assert len(torch.unique(many)) == len(many)
    assert abs(float(keys.child(3).normal(0, (50,)).mean())) < 0.02
    x, y = (keys.child(k).normal(0).double() for k in (0, 1))
    assert abs(float((x * y).mean())) < 0.1
    assert torch.equal(Noise.for_seeds([7]).keys, Noise.for_seeds([5, 7]).keys[1:])


def test_keys_must_be_one_per_path():
    from neuralsde.solvers.noise import Noise

    made = policy()
    with pytest.raises(ValueError, match=r"one key per path, 2\. Got 3"):
        made.model.sample(np.zeros((2, 2)), [0.0, 0.1], context=np.zeros((2, 6)), rng=Noise.for_seeds([1, 2, 3]))
