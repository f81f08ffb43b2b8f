"""nsde.fit(data): what is found in the data, what is tried, how it is scored and chosen."""

import json
import sys
import warnings
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from machines import on_a_machine

import neuralsde as nsde
from neuralsde.data.diagnosis import diagnose
from neuralsde.models.build import build
from neuralsde.nets.config import MLPConfig, StepsConfig
from neuralsde.sde.config import Euler, Full, Mixture, Moments, NeuralSDEConfig
from neuralsde.selection import fit as selection_fit
from neuralsde.selection.candidates import Candidate, Move, Plan, plan
from neuralsde.selection.fit import on_ladder, seconds_of
from neuralsde.selection.folds import split
from neuralsde.selection.report import Report
from neuralsde.selection.scores import Score, Segments, gain
from neuralsde.selection.search import ALONE, LONGER, Search, drawing_time, in_words, num_units
from neuralsde.selection.stack import fit_together, form_of
from neuralsde.selection.trials import (
    Effort,
    Gaps,
    Trials,
    ends_with_windows,
    measure_gaps,
    measure_windows,
    small_products,
)
from neuralsde.training.config import TrainConfig
from neuralsde.training.fit import fit as fit_model

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "zoo"))
from sets import SETS

SMALL = MLPConfig(width=16, depth=1)
QUIET = {"progress": False, "cpu": True}
FIXED = {"net": SMALL, "law": Euler()}


def of_zoo(name):
    made = SETS[name](np.random.default_rng(zlib.crc32(name.encode())))
    dt = None if made.train_times else made.dt
    return made, nsde.Trajectories.from_arrays(made.train, made.train_times, dt=dt, missing=made.missing)


def walks(num=20, length=40, seed=0):
    rng = np.random.default_rng(seed)
    x = [0.3 * rng.standard_normal(num)]
    for _ in range(length - 1):
        x.append(0.9 * x[-1] + 0.3 * rng.standard_normal(num))
    return nsde.Trajectories.from_arrays(list(np.stack(x, 1)[..., None]))


# What is found


FAST = ("ou", "oscillator", "three_way", "correlated", "cointegrated", "seasonal", "jumps", "measured", "irregular")
KINDS = [
    pytest.param(name, marks=() if name in (*FAST, "growth", "spiral", "constants", "response") else pytest.mark.slow)
    for name in SETS
]


@pytest.mark.parametrize("name", KINDS)
def test_the_diagnosis_names_the_kind(name):
    made, data = of_zoo(name)
    found = diagnose(data)
    assert made.kind in found, str(found)
    assert all(trait.text.endswith(".") and np.isfinite(trait.value) for trait in found.traits)


def test_noise_that_is_independent_and_gaussian_is_not_called_otherwise():
    _, data = of_zoo("ou")
    found = diagnose(data)
    for name in (
        "smooth",
        "second order",
        "heavy tails",
        "season",
        "time since start",
        "measurement noise",
        "positive",
    ):
        assert name not in found


def test_noise_in_proportion_to_the_level_is_told_from_other_noise_of_positive_states():
    rng = np.random.default_rng(0)
    x, y = np.full((20, 1), 3.0), np.full((20, 1), 3.0)
    growing, roots = [x], [y]
    for _ in range(400):
        x = x * np.exp(0.1 * rng.standard_normal((20, 1)))
        y = np.maximum(y + 0.02 * (3 - y) + 0.2 * np.sqrt(y) * rng.standard_normal((20, 1)), 0.05)
        growing.append(x)
        roots.append(y)
    of_level = diagnose(nsde.Trajectories.from_arrays(np.stack(growing, 1)))
    of_root = diagnose(nsde.Trajectories.from_arrays(np.stack(roots, 1)))
    assert of_level.value("proportional") == pytest.approx(1, abs=0.1)
    assert "positive" in of_root
    assert "proportional" not in of_root
    assert plan(of_level).default.settings["transform"] == "log"
    assert "transform" not in plan(of_root).default.settings


def test_much_rough_data_in_up_to_ten_dimensions_and_a_long_budget_get_small_nets_and_moments_last():
    rng = np.random.default_rng(0)

    def of(num_steps, dimensions, long=True):
        steps = rng.standard_normal((dimensions, num_steps, dimensions)).astype(np.float32)
        made = plan(diagnose(nsde.Trajectories.from_arrays(steps.cumsum(1))), long=long)
        return made.default.config.net.width, made.exact is not None

    assert of(500, 3) == (64, True)
    assert of(500, 10) == (128, False)
    assert of(21_000, 10) == (64, True)
    assert of(21_000, 10, long=False) == (128, False)
    assert of(21_000, 11) == (128, False)


def wandering(num, length, seed, d=2):
    """Random walks, each from a place of its own."""
    rng = np.random.default_rng(seed)
    return 100 * rng.standard_normal((num, 1, d)) + rng.standard_normal((num, length, d)).cumsum(1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num", [1, 20])
def test_paths_that_wander_are_told_from_those_that_come_back(num, seed):
    found = diagnose(nsde.Trajectories.from_arrays(wandering(num, 1_500 // num, seed)))
    assert "wanders" in found
    assert "second order" not in found  # levels are new to what was learned from others, and say anything
    back = diagnose(walks(num, 1_500 // num, seed))
    assert "wanders" not in back


def test_where_paths_wander_nets_of_steps_are_tried_and_held_out_is_what_comes_later():
    data = nsde.Trajectories.from_arrays(wandering(1, 500, 0))
    tried = plan(diagnose(data))
    steps, levels = tried.default, next(c for c in tried.first if c.name == "levels")
    assert steps.name == "steps"
    assert isinstance(steps.config.net, StepsConfig)
    assert not steps.config.net.level
    assert tried.sparser(steps) is None  # a polynomial would see the level again
    assert tried.sparser(levels).config.net.solved
    assert tried.with_few_terms().default == steps
    several = plan(diagnose(nsde.Trajectories.from_arrays(wandering(20, 60, 0))))
    assert several.default.name == "default"
    assert "steps" in [c.name for c in several.first]  # other paths show what levels tell
    for fold in split(data, 0, forward=True)[2]:
        assert fold.known.times.max() < fold.held_out.times.min()
    assert len(split(data, 0)[2][1].known) == 2


def test_angles_that_go_round_are_named():
    rng = np.random.default_rng(0)
    angle = 0.2 * np.arange(300) + 0.1 * rng.standard_normal((10, 300)).cumsum(1)
    round_, gripper = (angle + np.pi) % (2 * np.pi) - np.pi, (angle % 8 > 4).astype(float)
    both = nsde.Trajectories.from_arrays(np.stack([round_, gripper], -1))
    found = diagnose(both)
    assert found.value("wraps") == 1
    assert "feature 0 jumps from one end of its range to the other" in str(found)
    assert "wraps" not in diagnose(nsde.Trajectories.from_arrays(angle[..., None]))


def test_features_of_few_values_are_named():
    rng = np.random.default_rng(0)
    walk = rng.standard_normal((10, 100)).cumsum(1)
    both = nsde.Trajectories.from_arrays(np.stack([walk, walk > 0], -1))
    found = diagnose(both)
    assert found.value("few values") == 1
    assert "feature 1 takes at most 5 values. Paths that are drawn pass between these: round them." in str(found)
    assert "few values" not in diagnose(walks())


def test_single_faulty_observations_are_named():
    paths = np.stack([p.numpy() for p in walks(20, 200).states.split(200)])
    rng = np.random.default_rng(0)
    faulty = np.where(rng.random(paths.shape) < 0.01, paths + 20 * rng.standard_normal(paths.shape), paths)
    found = diagnose(nsde.Trajectories.from_arrays(faulty))
    assert 0.002 < found.value("outliers") < 0.02
    assert "make them NaN and read the data with missing=True" in str(found)
    shocks = np.zeros(paths.shape)  # heavy tails that stay are none
    for k in range(1, 200):
        shocks[:, k] = 0.9 * shocks[:, k - 1] + rng.standard_t(2.0, (20, 1))
    assert "outliers" not in diagnose(nsde.Trajectories.from_arrays(shocks))


def test_a_season_of_smooth_paths_is_in_their_default():
    t = np.arange(1_000.0)
    wave = np.sin(2 * np.pi * t / 24) + 0.3 * np.sin(2 * np.pi * t / 24 * 3)
    slow = np.convolve(np.random.default_rng(0).standard_normal(1_020), np.hanning(21) / 10, "valid")
    found = diagnose(nsde.Trajectories.from_arrays([(wave + slow)[:, None]], [t]))
    assert "smooth" in found
    assert plan(found).default.settings["time_input"] == pytest.approx(24, rel=1e-2)


def test_a_diagnosis_does_not_depend_on_units():
    made, data = of_zoo("correlated")
    other = nsde.Trajectories.from_arrays([1e4 * p + 7 for p in made.train], dt=3600 * made.dt)
    first, second = diagnose(data), diagnose(other)
    assert [t.name for t in first.traits] == [t.name for t in second.traits]
    for a, b in zip(first.traits, second.traits):
        assert a.value == pytest.approx(b.value, rel=1e-2)


def test_describe_says_it_in_words():
    text = str(nsde.describe(walks()))
    assert "rough: Paths are rough" in text


def test_pictures_and_few_steps_are_not_looked_at():
    images = nsde.Trajectories.from_arrays(np.random.default_rng(0).standard_normal((3, 20, 1, 8, 8)))
    assert diagnose(images).traits == ()
    assert diagnose(walks(2, 5)).traits == ()


# Several in one batch


CASES = {
    "plain": {},
    "shared": {"shared": True},
    "inner": {"tau": 0.5, "shared": True},
    "history": {"history": 2, "pad_history": True, "shared": True},
    "full": {"covariance": Full(), "shared": True},
    "mixture": {"law": Mixture(components=2), "shared": True},
    "moments": {"law": Moments(), "noise": 0.0, "denoiser": None, "shared": True},
    "time": {"time_input": True},
    "directions": {"normalise": "principal", "directions": 1},
}


@pytest.mark.parametrize("case", CASES)
def test_a_stack_learns_what_each_learns_alone(case):
    rng = np.random.default_rng(0)
    sets = [nsde.Trajectories.from_arrays(rng.standard_normal((6, 30, 2)).cumsum(1)) for _ in range(2)]
    config = NeuralSDEConfig(net=SMALL, **CASES[case])
    pairs = [d.transitions(history=config.history, pad=config.pad_history) for d in sets]
    train = TrainConfig(steps=6, batch_size=32, lr=2e-3)
    alone = [fit_model(build(config, p, seed=k), p, config=train, **QUIET) for k, p in enumerate(pairs)]
    stacked = [build(config, p, seed=k) for k, p in enumerate(pairs)]
    assert form_of(stacked[0], pairs[0]) == form_of(stacked[1], pairs[1])
    fit_together(stacked, pairs, train)
    for one, other in zip(alone, stacked):
        for (name, a), b in zip(one.named_parameters(), other.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-5, msg=name)


def test_models_of_other_forms_are_told_apart():
    data = walks().transitions()
    one, other = (build(NeuralSDEConfig(net=SMALL, tau=tau), data) for tau in ("start", "uniform"))
    assert form_of(one, data) != form_of(other, data)


@pytest.mark.parametrize(
    ("data", "step", "seconds", "large"),
    [("goals", 1e-4, 600, True), ("goals", 0.2, 600, False), ("goals", 1e-4, 120, False), ("walks", 1e-4, 600, False)],
)
def test_nets_are_large_for_smooth_paths_where_trials_have_enough_steps(monkeypatch, data, step, seconds, large):
    on_a_machine(monkeypatch, step=step, draw=2e-3)
    data = {"goals": goals, "walks": walks}[data]()
    folds = selection_fit.split(data, 0)[2]
    steps, effort = selection_fit._planned(diagnose(data), {}, folds, seconds, None, {}, False)
    assert effort.large == large
    assert steps.default.config.net.width == (128 if large else 64)


# Starts


def test_padded_histories_hold_the_first_observation():
    data = nsde.Trajectories.from_arrays([np.arange(5.0)[:, None], 10 + np.arange(4.0)[:, None]])
    pairs = data.transitions(history=3, pad=True)
    assert len(pairs) == 4 + 3
    first = pairs[torch.tensor([0, 1, 4])]
    assert first.history[..., 0].tolist() == [[0, 0, 0], [0, 0, 1], [10, 10, 10]]
    assert len(data.transitions(history=3)) == 2 + 1


def test_only_the_start_of_a_path_is_padded():
    times = np.array([0.0, 1, 2, 6, 7, 8])
    data = nsde.Trajectories.from_arrays([times[:, None]], [times])
    history = data.transitions(lag=1.0, history=2, pad=True)
    rows = torch.arange(len(history))
    assert history[rows].history[..., 0].tolist() == [[0, 0], [0, 1], [6, 7]]
    later = data.split_in_time(0.5)[1]  # it began before
    assert len(later.transitions(history=2, pad=True)) == len(later.transitions(history=2))


def test_slots_of_any_observation():
    data = nsde.Trajectories.from_arrays([np.arange(5.0)[:, None], 10 + np.arange(4.0)[:, None]])
    assert data.slots(torch.tensor([0, 4, 5, 7]), history=2).tolist() == [[0, 0], [3, 4], [5, 5], [6, 7]]
    assert data.slots(torch.tensor([1, 4]), history=2, spacing=2.0).tolist() == [[0, 1], [2, 4]]


def test_a_state_alone_is_a_start_where_starts_were_learned():
    data = walks()
    model = nsde.NeuralSDE.for_data(data, history=2, pad_history=True, noise=0.01, net=SMALL)
    x = torch.tensor([[0.5], [0.1], [0.3]])
    alone = model.sample(x, [0.0, 1.0, 2.0], rng=0)
    both = model.sample(x[:, None].expand(3, 2, 1), [0.0, 1.0, 2.0], rng=0)
    assert torch.equal(alone, both)
    with pytest.raises(ValueError, match=r"must say what it is.*one history, or 2 paths"):
        model.sample(x[:2], [0.0, 1.0])
    other = nsde.NeuralSDE.for_data(data, history=2, noise=0.01, net=SMALL)
    with pytest.raises(ValueError, match=r"`history` must have shape"):
        other.sample(x, [0.0, 1.0])


# Scores


class Drawn:
    """Stands for a model that draws from the true law, or one with more noise."""

    def __init__(self, noise, rate=0.9):
        self.noise, self.rate = noise, rate

    def samples(self, segments, num=200):
        rng = np.random.default_rng(0)
        x = segments.data.states[segments.row].numpy()[:, None, 0].repeat(num, 1)
        out = []
        for _ in range(int(segments.ahead.max())):
            x = self.rate * x + self.noise * rng.standard_normal(x.shape)
            out.append(x)
        paths = np.stack(out, 2)
        return torch.tensor(np.stack([p[:, a - 1] for p, a in zip(paths, segments.ahead.numpy())])[..., None])


def test_the_true_law_has_the_best_score():
    segments = Segments.of(walks(200, 40, seed=1), walks(), most=200)
    scores = {k: segments._score(Drawn(*k).samples(segments)) for k in ((0.3, 0.9), (0.1, 0.9), (0.6, 0.9), (0.3, 0.5))}
    best = scores.pop((0.3, 0.9))
    for other in scores.values():
        saved, error = gain(best, other)
        assert saved > 2 * error
    still = segments._score(
        segments.data.states[segments.row][:, None, None].expand(-1, 5, segments.ahead.shape[1], -1)
    )
    np.testing.assert_allclose(still.parts[:, :3].mean(0), 1.0, rtol=1e-6)
    assert still.parts[:, 3].mean() == pytest.approx(1.0, rel=0.1)  # ends are as far apart as a start and an end


def goals(seed=0, num=8, length=60):
    """Smooth paths from places far apart to one goal, where they rest."""
    rng, t = np.random.default_rng(seed), np.linspace(0, 1, length)
    path = (1 - t**2 * (3 - 2 * t))[:, None] * (3 + rng.standard_normal((num, 1, 2)))
    return nsde.Trajectories.from_arrays(list(path + 0.01 * t[:, None] * rng.standard_normal((num, 1, 2))), dt=0.1)


def test_to_miss_a_common_goal_by_a_little_is_a_large_error():
    segments = Segments.of(goals(1), goals(0))
    truth, _ = segments.truth()
    right = segments._score((truth * segments.scale)[:, None].repeat(1, 4, 1, 1))
    off = truth.clone()
    off[:, -1] += 0.05  # of the spread of the states
    missed = segments._score((off * segments.scale)[:, None].repeat(1, 4, 1, 1))
    assert right.mean < 1e-6 and missed.parts[:, 3].mean() > 0.2


@pytest.mark.parametrize(("tau", "num"), [("start", 60), ("uniform", 9)])
def test_a_model_that_knows_nothing_between_is_drawn_at_all_times(tau, num, monkeypatch):
    data = goals()
    model = nsde.NeuralSDE.for_data(data, lag=0.6, tau=tau, net=nsde.MLPConfig(width=8, depth=1))
    segments, seen, sample = Segments.of(data, data, from_start=True), [], model.sample
    monkeypatch.setattr(model, "sample", lambda x, times, **more: seen.append(times) or sample(x, times, **more))
    drawn = segments.samples(model, num_paths=3)
    assert seen[0].shape == (8, num) and drawn.shape == (8, 3, 8, 2)
    known = torch.cat([torch.zeros(8, 1, dtype=torch.int64), segments.ahead], 1)
    whole = sample(data.states[segments.row], seen[0], num_paths=3, rng=0)
    wanted = whole[:, :, 1:] if num == 9 else whole[torch.arange(8)[:, None], :, known[:, 1:]].transpose(1, 2)
    assert torch.equal(drawn, wanted)


def test_segments_end_where_the_path_ends():
    data = walks(4, 30)
    segments = Segments.of(data, data)
    ends = (data.lengths.cumsum(0) - 1).tolist()
    assert set((segments.row + segments.ahead[:, -1]).tolist()) == set(ends)
    assert set(segments.unit.tolist()) == {0, 1, 2, 3}


def test_what_is_held_out_is_not_learned_from():
    many = walks(40)
    inner, outer, folds = split(many, 0)
    assert len(inner) + len(outer) == 40 and len(folds) == 2
    for fold in folds:
        assert len(fold.known) + len(fold.held_out) == len(inner)
        known = {tuple(p.flatten().tolist()) for p in fold.known.states.split(fold.known.lengths.tolist())}
        assert not any(tuple(p.flatten().tolist()) in known for p in fold.held_out.states.split(40))
    one = walks(1, 300)
    inner, outer, folds = split(one, 0)
    assert float(outer.times[0]) > float(inner.times[-1])
    for fold in folds:
        assert not set(fold.known.times.tolist()) & set(fold.held_out.times.tolist())
        assert float(fold.held_out.begin[0]) == 0.0  # the time since the start of the path goes on


# What is tried


def test_what_is_tried_follows_from_the_data():
    _, smooth = of_zoo("three_way")
    tried = plan(diagnose(smooth))
    names = [c.name for c in tried.first]
    assert tried.default.name == "lag, inner states, time"
    assert "history 2" in names and not any("moments" in n for n in names)
    _, rough = of_zoo("jumps")
    tried = plan(diagnose(rough))
    assert isinstance(tried.default.config.law, Mixture) and not tried.default.config.noisy
    assert "plain" in [c.name for c in tried.first] and not any("lag" in c.name for c in tried.first)
    _, reverting = of_zoo("ou")
    assert "moments" in [c.name for c in plan(diagnose(reverting)).first]


def test_of_a_motion_with_jitter_several_slots_are_tried():
    rng = np.random.default_rng(0)
    wave = [np.sin(np.arange(300) / 20 + 6 * rng.random())[:, None] for _ in range(8)]
    found = diagnose(nsde.Trajectories.from_arrays([w + 0.02 * rng.standard_normal(w.shape) for w in wave]))
    assert 0.58 < found.value("rough") < 0.8
    assert any(c.config.history == 3 and c.config.noisy for c in plan(found).first)


def test_where_many_features_move_in_few_directions_the_others_are_not_widened():
    _, many = of_zoo("hundred")
    found = diagnose(many)
    assert "few directions" in found and "fast directions" in found
    tried = plan(found)
    names = [*(c.name for c in tried.first), *(m.name for m in tried.moves)]
    assert "few directions" in names and "whitened" not in names and "mixture" not in names
    _, pair = of_zoo("cointegrated")
    assert "whitened" in [m.name for m in plan(diagnose(pair)).moves]


def test_one_short_path_is_too_little_to_hold_out():
    with pytest.raises(ValueError, match=r"one path must have 12 observations. Got 5. .*NeuralSDE.for_data"):
        nsde.fit([np.arange(5.0)[:, None]], budget=1)


def test_what_is_fixed_is_so_in_all_of_them():
    tried = plan(diagnose(walks()), {"history": 3, "law": Euler()})
    for candidate in (tried.default, *tried.first):
        assert candidate.config.history == 3 and isinstance(candidate.config.law, Euler)
    assert not any("law" in move.settings for move in tried.moves)


def test_what_is_fixed_may_rule_out_the_default():
    _, smooth = of_zoo("three_way")
    tried = plan(diagnose(smooth), {"law": Mixture()})  # not with states between observations
    assert isinstance(tried.default.config.law, Mixture) and tried.default.config.start_probability == 1
    with pytest.raises(ValueError, match="Mixture"):
        plan(diagnose(smooth), {"law": Mixture(), "tau": "uniform"})


@pytest.mark.parametrize(("name", "wanted"), [("pendulum", "history 2"), ("drawn s", "lag, inner states, time")])
def test_time_is_given_where_paths_go_somewhere_together(name, wanted):
    _, data = of_zoo(name)
    assert plan(diagnose(data)).default.name == wanted


def test_budgets():
    assert seconds_of("2 min") == 120 and seconds_of("90 s") == 90 and seconds_of(3) == 3
    assert [on_ladder(v) for v in (0.5, 1, 149, 161, 999)] == [1, 1, 125, 160, 800]
    for wrong in ("soon", "2 weeks", 0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="`budget` must be"):
            nsde.fit(walks(), budget=wrong)
    assert in_words({"pull": 0.5, "substeps": 4}) == "pulled (0.5), in 4 substeps"


def test_under_a_minute_less_is_tried_where_there_is_no_time(monkeypatch):
    on_a_machine(monkeypatch, step=0.005, draw=0.05)
    data = walks(12, 30)
    found, (_, _, folds) = diagnose(data), split(data, 0)
    steps = plan(found)

    def parts(*seconds):
        return [selection_fit._effort(steps, folds, s).part for s in seconds]

    assert parts(1, 59, 60, 600) == [0.0, 1.0, 1.0, 1.0] and parts(*range(1, 60)) == sorted(parts(*range(1, 60)))
    assert set(parts(*range(1, 60))) > {0.0, 1.0}
    on_a_machine(monkeypatch, step=1.0, draw=5.0)
    assert parts(59, 60) == [0.0, 1.0]  # from a minute on, nothing is left out
    fewer, one = selection_fit.some_of(steps, folds, 0.0)
    assert fewer.default is steps.default and not fewer.first and not fewer.moves and one == folds[:1]


@pytest.mark.parametrize(("seconds", "batch"), [(0, 256), (100, 1024), (10_000, 8192)])
def test_time_beyond_plenty_of_steps_goes_into_larger_batches(monkeypatch, seconds, batch):
    monkeypatch.setattr(selection_fit, "measure_step", lambda c, f, config, *_, **__: 1e-4 * config.batch_size)
    steps = plan(diagnose(walks(3_000, 40)))
    assert selection_fit._batch(steps, None, seconds, plenty=900) == (batch, 1e-4 * batch)
    few = plan(diagnose(walks(200, 40)))  # of 7,800 steps a batch is at most an eighth
    assert selection_fit._batch(few, None, seconds, plenty=900)[0] == min(batch, 512)


def test_a_plain_sde_is_trained_last_by_the_moments_of_whole_gaps():
    steps = plan(diagnose(walks()))
    last = steps.trained_last(steps.default)
    assert last.config == replace(steps.default.config, law=Moments()) and last.cost > steps.default.cost
    noisy = next(c for c in steps.first if c.name == "input noise")
    assert steps.trained_last(noisy) is noisy
    given = plan(diagnose(walks()), {"law": Euler()})
    assert given.trained_last(given.default) is given.default
    others = ("missing", "hundred", "three_way", "irregular")  # entries, many features, smooth paths, uneven gaps
    for name in others:
        other = plan(diagnose(of_zoo(name)[1]))
        assert other.exact is None and other.trained_last(other.default) is other.default


def test_a_search_takes_one_thread_and_gives_it_back():
    before = torch.get_num_threads(), torch.backends.mkldnn.set_flags(True)[0]
    torch.set_num_threads(2)
    try:
        with small_products:
            with small_products:  # of another search
                pass
            assert torch.get_num_threads() == 1 and not torch._C._get_mkldnn_enabled()
        assert torch.get_num_threads() == 2 and torch._C._get_mkldnn_enabled()
    finally:
        torch.set_num_threads(before[0])
        torch.backends.mkldnn.set_flags(before[1])


def test_the_time_of_all_draws():
    steps = plan(diagnose(walks(12, 30)))
    every = [steps.default, *steps.first]
    one = drawing_time(steps, 3, {c.name: 1.0 for c in every})
    assert drawing_time(steps, 3, {c.name: 2.0 for c in every}) == pytest.approx(2 * one)
    assert one > 2 * len(every) + 3 * 3  # each on two folds, and three of them on three
    assert drawing_time(replace(steps, first=[], moves=[]), 1, {steps.default.name: 1.0}) < one / 3


def test_of_many_rough_steps_most_of_the_time_goes_into_the_last_training(monkeypatch):
    """The choice is soon made; what remains is noise, which only more steps average out."""
    monkeypatch.setattr(selection_fit, "measure_step", lambda c, f, config, *a, **k: 1e-5 * config.batch_size)
    monkeypatch.setattr(selection_fit, "measure_draws", lambda every, *a: ({c.name: 0.01 for c, _ in every}, [1.0] * 4))
    data, found = walks(), diagnose(walks())
    _, _, folds = split(data, 0)
    seen = {}
    for num in (found.num_steps, 100_000):
        steps = plan(replace(found, num_steps=num))
        effort = selection_fit._effort(steps, folds, 600.0)
        seen[num] = effort.last * effort.batch * 1e-5 / 600
        assert effort.last >= 1_200  # steps, however large the batch; a ladder rounds down
    small, large = seen.values()
    assert small < 0.5 and 0.5 < large <= 0.9


def test_costs_of_a_step_are_measured_recorded_and_bounded(monkeypatch, tmp_path):
    """A candidate of cheap steps gets more of them in the last training, as far as its choice holds."""
    slow = {"default": 0.1, "input noise": 0.02}
    monkeypatch.setattr(selection_fit, "measure_step", lambda c, *a, **k: slow.get(c.name, 0.05))
    data = walks(12, 30)
    found, (_, _, folds) = diagnose(data), split(data, 0)
    steps, effort = selection_fit._planned(found, {}, folds, 600.0, tmp_path, {}, False)
    assert effort.costs["default"] == 1.0 and effort.costs["input noise"] == 0.2
    assert {c.name: c.cost for c in steps.every()} == effort.costs
    assert steps.trained_last(steps.default).cost == effort.costs["moments"]
    again, known = selection_fit._planned(found, {}, folds, 600.0, tmp_path, {}, True)
    assert known == effort and again == steps
    tails = replace(again, default=replace(again.default, settings={**again.default.settings, "law": Mixture()}))
    tails = replace(tails, first=[replace(again.default, name="plain")])
    costly = tails.with_costs({"default": 1.0, "plain": 0.5, "plain, moments": 1.5})
    assert costly.trained_last(costly.first[0]).cost == 1.5 and costly.trained_last(costly.default) is costly.default
    assert selection_fit._planned(found, {}, folds, 59.0, None, {}, False)[1].costs == {}  # too short to measure
    assert [selection_fit._last_steps(wanted, 100, 2) for wanted in (10, 1_300, 10**6)] == [300, 1_250, 2_400]


@pytest.mark.parametrize("num", [0, 1, 2])
def test_what_is_planned_for_is_what_a_search_does(num):
    """No finalist is counted that cannot be: time that is planned for is spent."""
    data = walks(12, 30)
    _, _, folds = split(data, 0)
    steps = plan(diagnose(data), {"net": SMALL})
    steps = replace(steps, first=steps.first[:num], moves=steps.moves[:num])
    assert len(steps.first) == num
    done: list[float] = []
    trials = Trials(folds, replace(steps.train, batch_size=16), Effort(2, 2, 4, 4), None, done.append)
    choice = Search(steps, trials, 2, lambda text: None).run()
    outer = ALONE * LONGER * (1 + (num > 0))  # the choice and the default, on paths of the outer split
    planned = num_units(steps, len(folds)) - outer * sum(c.cost for c in (steps.default, *steps.first)) / (num + 1)
    took = sum(done) / 2
    assert len(choice.tried) == 2 if num == 0 else len(choice.tried) > 2
    assert took == pytest.approx(planned) if num == 0 else 0.6 * planned <= took <= 1.4 * planned


# All of it


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chosen") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection_fit, "SHORT", 0.0)  # everything is tried, though the budget is one second
        patch.setattr(selection_fit, "FEWEST", 5)
        model = nsde.fit(walks(12, 30), budget=1, run_dir=folder, **QUIET, **FIXED)
    return model, folder


def test_a_model_is_chosen_trained_and_explained(chosen):
    model, folder = chosen
    report = Report.of(model)
    assert report.choice in {t.name for t in report.tried} and report.reason
    assert {t.round for t in report.tried} >= {"first", "final"} and len({t.name for t in report.tried}) > 1
    assert report.words == "on 2 path(s) that took no part in the choice" and report.score["score"] > 0
    assert model.sample([0.1], [0.0, 1.0, 2.0], num_paths=3).shape == (1, 3, 3, 1)
    assert (folder / "choice.md").read_text().strip() == str(report)
    assert json.loads((folder / "trials.json").read_text())
    again = nsde.load(folder)
    assert again.report == json.loads(json.dumps(model.report))
    assert str(Report.of(again)) == str(report)


def test_a_search_goes_on_to_the_same_model(chosen, tmp_path):
    """Of what was kept: the number of steps and the trials so far; those are not run again."""
    model, folder = chosen
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "search.json").write_text((folder / "search.json").read_text())
    trials = json.loads((folder / "trials.json").read_text())
    half = dict(list(trials.items())[: len(trials) // 2])
    (tmp_path / "run" / "trials.json").write_text(json.dumps(half))
    wrong = {
        "data": (walks(13, 30), {}),
        "seed": (walks(12, 30), {"seed": 1}),
        "fixed": (walks(12, 30), {"noise": 0.1}),
    }
    for name, (data, more) in wrong.items():
        with pytest.raises(ValueError, match=f"had another `{name}`"):
            nsde.fit(data, budget=1, run_dir=tmp_path / "run", resume=True, **QUIET, **{**FIXED, **more})
    with pytest.raises(ValueError, match="already holds a search"):
        nsde.fit(walks(12, 30), budget=1, run_dir=tmp_path / "run", **QUIET, **FIXED)
    again = nsde.fit(walks(12, 30), budget=1, run_dir=tmp_path / "run", resume=True, **QUIET, **FIXED)
    assert again.report["choice"] == model.report["choice"]
    for a, b in zip(model.parameters(), again.parameters()):
        torch.testing.assert_close(a, b)


def test_arrays_do_and_two_sets_do_not():
    with pytest.raises(ValueError, match=r"a model first"):
        nsde.fit(walks(), walks())
    with pytest.raises(ValueError, match=r"has no setting histroy"):
        nsde.fit(walks(), histroy=2)
    with pytest.raises(ValueError, match="Got none"):
        nsde.fit(nsde.NeuralSDE.for_data(walks(), net=SMALL))
    with pytest.raises(ValueError, match="no report"):
        Report.of(nsde.NeuralSDE.for_data(walks(), net=SMALL))


def test_what_the_last_training_warns_of_is_in_the_report_and_points_at_the_caller(monkeypatch, short_search):
    monkeypatch.setattr(nsde.NeuralSDE, "findings", lambda self, pairs: ["Its steps are odd."])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = nsde.fit(walks(), budget=1, progress=False, law=nsde.Euler(), net=SMALL)
    assert "Its steps are odd." in model.report["notes"]
    assert [str(w.message) for w in caught if w.filename == __file__] == list(model.report["notes"])
    assert "## To note\n\n- Its steps are odd." in str(Report.of(model))


def test_forecasts_that_are_no_better_than_standing_still_are_told():
    rng = np.random.default_rng(0)
    jumps = rng.standard_normal((20, 100)) * (
        rng.random((20, 100)) < 0.01
    )  # a Gaussian step of this size is always wrong
    with pytest.warns(
        UserWarning, match=r"no better than standing still \(\d\.\d+ where that has about 1\), on 3 path"
    ):
        model = nsde.fit(nsde.Trajectories.from_arrays(jumps.cumsum(1)[..., None]), budget=1, progress=False)
    assert model.report["score"]["score"] > 1
    assert "no better than standing still" in str(Report.of(model))


def test_a_gap_that_takes_several_steps_is_planned_for():
    """Moments of wide gaps of a double well: the last training will take several steps for each, and so do those of its twin."""
    rng, x = np.random.default_rng(0), []
    state = rng.standard_normal((60, 1))
    for k in range(60 * 80):
        state = state + 0.01 * (state - state**3) * 4 + 0.05 * rng.standard_normal(state.shape)
        if k % 80 == 0:
            x.append(state)
    data = nsde.Trajectories.from_arrays(np.stack(x, 1), dt=0.8)
    plain = Candidate("plain", {"noise": 0.0, "denoiser": None}, "")
    found = measure_gaps(plain.with_(Move("moments", {"law": Moments()}, "")), data)
    assert found.steps >= 2
    assert found.longer == pytest.approx(
        (3 + 4 * (found.steps - 1)) / 3
    )  # 3 points at first, 4 more in each further step
    assert found.solving > 0
    assert measure_gaps(plain, data) == Gaps()


def test_a_training_that_ends_with_windows_is_planned_for():
    rng = np.random.default_rng(0)
    walk = rng.standard_normal((6, 60, 2)).cumsum(1)
    whole = nsde.Trajectories.from_arrays(list(walk))
    walk[rng.random(walk.shape) < 0.4] = np.nan
    data = nsde.Trajectories.from_arrays(list(walk), missing=True)
    plain = Candidate("plain", {"noise": 0.0, "denoiser": None}, "")
    assert ends_with_windows(plain, data) and not ends_with_windows(plain, whole)
    assert not ends_with_windows(plain.with_(Move("mixed", {"law": nsde.Mixture()}, "")), data)
    assert measure_windows(plain, data, TrainConfig(steps=1, batch_size=64)) > 1.2


def test_waves_that_lose_their_phase_are_no_season():
    rng = np.random.default_rng(0)
    t = np.arange(1_600.0)
    jitter = rng.standard_normal(len(t))
    regular, drifting = (np.sin(turn) for turn in (2 * np.pi * t / 40, np.cumsum(2 * np.pi / 40 + 0.06 * jitter)))
    for wave, known in ((regular, True), (drifting, False)):
        found = diagnose(nsde.Trajectories.from_arrays([(wave + 0.1 * rng.standard_normal(len(t)))[:, None]], dt=1.0))
        assert ("season" in found) == known


def test_models_of_steps_are_tried_where_gaps_are_even_alone():
    made, even = of_zoo("oscillator")
    assert {"steps and level", "longer memory"} < {c.name for c in plan(diagnose(even)).first}
    rng = np.random.default_rng(0)
    times = [np.cumsum(rng.uniform(0.02, 0.08, len(p))) for p in made.train]
    tried = plan(diagnose(nsde.Trajectories.from_arrays(made.train, times)))
    assert not any(isinstance(c.config.net, StepsConfig) for c in (tried.default, *tried.first))
    one = nsde.Trajectories.from_arrays([np.concatenate(made.train)[:600]], dt=made.dt)
    assert isinstance(plan(diagnose(one)).default.config.net, StepsConfig)
    own = {"net": SMALL}
    assert not any(isinstance(c.config.net, StepsConfig) for c in plan(diagnose(one), own).first)


class Told:
    """Scores of trials that are given: by candidate and steps."""

    def __init__(self, scores):
        self.scores, self.folds = scores, range(3)

    def train(self, *what):
        pass

    forget = train

    def score(self, candidate, steps, folds, samplers):
        mean, error = self.scores[candidate.name, steps]
        each = mean + 0.01 * torch.arange(4.0).repeat(len(folds))[:, None].expand(-1, 5).double()
        return {name: Score(each, torch.arange(len(each)), error) for name in samplers}


@pytest.mark.parametrize(
    ("default", "other", "chosen", "most"),
    [
        ({1: 0.5, 6: 0.4}, {1: 0.5, 6: 0.3}, "other", None),
        ({1: 0.5, 6: 0.4}, {1: 0.2, 6: 0.3}, "other", 6),  # better after few steps
        ({1: 0.4, 6: 0.41}, {1: 0.5, 6: 0.6}, "default", 6),  # no better after more
        ({1: 0.4, 6: 15.0}, {1: 0.7, 6: 0.6}, "other", None),
    ],
)
def test_a_default_that_leaves_the_data_is_left_and_a_training_is_no_longer_than_it_helps(default, other, chosen, most):
    plain = {"net": SMALL, "noise": 0.0, "denoiser": None}
    tried = [Candidate(name, plain, "a reason") for name in ("default", "other")]
    scores = {
        (c.name, steps): (mean, "Path 1 left the data" if mean == 15 else "")
        for c, own in zip(tried, (default, other))
        for steps, mean in own.items()
    }
    search = Search(Plan(tried[0], tried[1:], [], TrainConfig()), Told(scores), 1, print)
    choice = search.run()
    assert choice.candidate.name == chosen
    assert choice.most == most
    assert ("the default left the data" in choice.reason) == (default[6] == 15)


@pytest.mark.parametrize(("twin", "exact"), [((0.4, ""), True), ((0.6, ""), False), ((15.0, "left the data"), False)])
def test_the_last_training_is_not_by_moments_that_a_trial_was_worse_with(twin, exact):
    default = Candidate("default", {"net": SMALL, "noise": 0.0, "denoiser": None}, "")
    moments = Move("moments", {"law": Moments()}, "")
    other = Candidate("moments", {**default.settings, **moments.settings}, "")
    scores = {("default", steps): (0.4, "") for steps in (1, 6)} | {("moments", steps): twin for steps in (1, 6)}
    own = Plan(default, [other], [], TrainConfig(), exact=moments)
    choice = Search(own, Told(scores), 1, print).run()
    assert choice.candidate.name == "default"
    assert choice.exact == exact
