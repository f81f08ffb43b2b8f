"""Entries that were not observed: filled for the nets, left out of everything that is fitted or scored."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralsde import NeuralSDE, Trajectories, fit
from neuralsde.baselines.config import DDIMConfig, GaussianConfig, RectifiedFlowConfig
from neuralsde.models.build import build
from neuralsde.nets.config import MLPConfig
from neuralsde.sde.config import Denoiser, Euler, Mixture, Moments, NeuralSDEConfig
from neuralsde.solvers.noise import Noise

NAN = np.nan
TINY = MLPConfig(width=8, depth=1)


def all_rows(pairs):
    return pairs[torch.arange(len(pairs))]


def holes(rng, shape, share=0.3):
    """A walk with a share of its entries missing."""
    x = rng.standard_normal(shape).cumsum(1)
    return np.where(rng.random(shape) < share, NAN, x)


def whole(states):
    """Whether a path has two observations with a value in them."""
    return (~np.isnan(states).all(1)).sum() >= 2


# Reading


def test_gaps_are_filled_from_the_past_and_marked():
    states = [
        np.array([[NAN, 0.0], [1.0, 10.0], [NAN, NAN], [NAN, 40.0], [4.0, NAN], [NAN, 60.0]]),
        np.array([[7.0, NAN], [8.0, NAN]]),
    ]
    times = [[0.0, 1.0, 1.5, 2.0, 4.0, 5.0], [0.0, 1.0]]
    data = Trajectories.from_arrays(states, times, context=[[[k] for k in range(6)], [[10], [11]]], missing=True)
    first, stamps = data[0]
    assert stamps.tolist() == [0, 1, 2, 4, 5]  # the observation without any entry is a wider gap
    assert first[:, 0].tolist() == [5, 1, 1, 4, 4]  # the mean of all, observed, carried, observed, carried
    assert first[:, 1].tolist() == [0, 10, 40, 40, 60]
    assert data[1][0].tolist() == [[7.0, 27.5], [8.0, 27.5]]  # never seen in this path: the mean of the others
    assert data.context[:, 0].tolist() == [0, 1, 3, 4, 5, 10, 11]
    assert repr(data) == "Trajectories(2 paths, 7 observations of shape (2,), 42.9 % missing, on cpu)"
    assert data.observed.tolist() == [
        [False, True],
        [True, True],
        [False, True],
        [True, False],
        [False, True],
        [True, False],
        [True, False],
    ]


def test_nothing_missing_needs_no_mask():
    whole = np.arange(12.0).reshape(2, 3, 2)
    data = Trajectories.from_arrays(whole, missing=True)
    assert data.observed is None and all_rows(data.transitions()).mask is None
    assert torch.equal(data.states, Trajectories.from_arrays(whole).states)
    empty = np.concatenate([whole[0], np.full((1, 2), NAN)])  # only whole observations are lacking
    assert Trajectories.from_arrays([empty], missing=True).observed is None


def test_paths_left_too_short_are_dropped_with_a_warning():
    states = [np.array([[1.0], [NAN], [NAN]]), np.array([[1.0], [2.0], [NAN]]), np.full((3, 1), NAN)]
    with pytest.warns(UserWarning, match="2 of 3 paths have fewer than two observations .* dropped"):
        data = Trajectories.from_arrays(states, missing=True)
    assert len(data) == 1 and data.states[:, 0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("states", "missing", "message"),
    [
        ([[[1.0], [NAN]]], False, r"states\[0\]\[1\]\[0\]=nan\. Drop the observation .*, or pass missing=True"),
        (
            [[[1.0], [np.inf]]],
            True,
            r"must be finite\. Got states\[0\]\[1\]\[0\]=inf\. Drop the observation or fill the gap\.",
        ),
        ([[[1.0, NAN], [2.0, NAN]]], True, r"nothing in feature 1\. Drop it"),
        ([[[NAN], [NAN]]], True, "No path has two observations"),
    ],
)
def test_what_cannot_be_filled_is_refused(states, missing, message):
    with pytest.raises(ValueError, match=message):
        Trajectories.from_arrays(states, missing=missing)


@given(st.integers(0, 10_000), st.floats(0.05, 0.7))
@settings(max_examples=40, deadline=None)
@pytest.mark.filterwarnings("ignore:.*fewer than two")
def test_filling_carries_what_was_seen_path_by_path(seed, share):
    rng = np.random.default_rng(seed)
    states = [holes(rng, (1, n, 2), share)[0] for n in (3, 9, 20)]
    states[1][:2] = 5.0  # each feature is seen somewhere
    times = [np.sort(rng.random(len(x))) for x in states]
    data = Trajectories.from_arrays(states, times, missing=True)
    path = 0
    for x in filter(whole, states):
        kept = ~np.isnan(x).all(1)
        wanted = pd.DataFrame(x[kept]).ffill().to_numpy()
        mean = np.nanmean(np.concatenate([y[~np.isnan(y).all(1)] for y in filter(whole, states)]), axis=0)
        np.testing.assert_allclose(data[path][0], np.where(np.isnan(wanted), mean, wanted), rtol=1e-5, atol=1e-6)
        path += 1
    assert path == len(data)


def test_the_likelihood_of_a_step_knows_nothing_of_later_ones(np_rng):
    x = holes(np_rng, (1, 12, 2), 0.4)[0]
    x[0], x[-1] = 0.0, 1.0
    other = x.copy()
    other[-1] = 9.0
    model = NeuralSDE.for_data(Trajectories.from_arrays([x], missing=True), net=MLPConfig(width=8, depth=1))
    one, two = (all_rows(Trajectories.from_arrays([y], missing=True).transitions()) for y in (x, other))
    assert torch.equal(one.history, two.history)
    assert torch.equal(model.log_prob(one)[:-1], model.log_prob(two)[:-1])


# The mask travels


def test_a_step_counts_where_both_of_its_ends_were_observed():
    x = np.array([[1.0, 1.0], [2.0, NAN], [NAN, 3.0], [4.0, 4.0], [5.0, 5.0]])
    data = Trajectories.from_arrays([x], missing=True)
    pairs = data.transitions()
    assert all_rows(pairs).mask.tolist() == [[True, False], [False, True], [True, True]]
    assert pairs.start.tolist() == [0, 2, 3]  # 1 -> 2 shows no feature twice
    lagged = all_rows(data.transitions(lag=(1.0, 3.0), history=2))
    assert lagged.history[:, -1, 0].tolist() == [2, 4, 2, 2]
    assert lagged.mask.tolist() == [[False, True], [True, True], [True, False], [False, True]]


def test_the_mask_goes_with_its_paths(np_rng):
    data = Trajectories.from_arrays(holes(np_rng, (6, 20, 2)), missing=True)
    assert data.observed.any() and not data.observed.all()

    def rows(part):
        return {(tuple(s.tolist()), tuple(m.tolist())) for s, m in zip(part.states, part.observed)}

    train, val = data.split(0.5)
    assert rows(train) | rows(val) == rows(data)
    assert torch.equal(
        data.select([4, 1]).observed[: data.lengths[4]], data.observed[data.lengths[:4].sum() :][: data.lengths[4]]
    )
    assert torch.equal(data.to("cpu").observed, data.observed)
    assert all_rows(data.transitions().to("cpu")).mask is not None
    early, late = data.split_in_time(0.25)
    assert rows(early) | rows(late) == rows(data) and len(early) == len(late) == 6
    for path in range(6):
        assert torch.equal(torch.cat([early[path][1], late[path][1]]), data[path][1])
        assert len(late[path][1]) == round(0.25 * len(data[path][1]))


def test_split_in_time_leaves_two_observations_on_both_sides():
    data = Trajectories.from_arrays([np.arange(5.0)[:, None], np.arange(4.0)[:, None]])
    early, late = data.split_in_time(0.1)
    assert early.lengths.tolist() == [3, 2] and late.lengths.tolist() == [2, 2]
    for fraction in (0.0, 0.9, 1.0):
        with pytest.raises(ValueError, match="two observations of every path on both sides"):
            data.split_in_time(fraction)


def test_sensors_that_never_coincide_are_refused_with_a_remedy():
    x = np.array([[k, NAN] if k % 2 else [NAN, k] for k in range(10)], dtype=float)
    data = Trajectories.from_arrays([x], missing=True)
    with pytest.raises(ValueError, match="No path is long enough, or observed at both ends of it,"):
        data.transitions()
    assert (
        len(NeuralSDE.for_data(data, lag=2.0, net=TINY).log_prob(data.select([0]).transitions(lag=2.0).spread(9))) == 8
    )
    x[:, 0] = range(10)
    with pytest.raises(
        ValueError, match=r"observed at both ends of some transition\. Got none for feature \[1\]\. Give a `lag`"
    ):
        NeuralSDE.for_data(Trajectories.from_arrays([x], missing=True))


# What is fitted and scored


CONFIGS = [
    NeuralSDEConfig(net=TINY),
    NeuralSDEConfig(net=TINY, law=Euler(flow_loss="nll"), denoiser=Denoiser(alpha=True)),
    NeuralSDEConfig(net=TINY, law=Moments()),
    DDIMConfig(net=TINY, target="increment"),
    RectifiedFlowConfig(net=TINY, target="increment"),
    GaussianConfig(net=TINY),
]
each_model = pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: f"{type(c).__name__}-{getattr(c, 'transition', '')}"
)


@each_model
def test_units_and_bounds_come_from_what_was_observed(config, np_rng):
    x = holes(np_rng, (4, 200, 2))
    data = Trajectories.from_arrays(x, missing=True)
    other = copy.copy(data)
    other.states = torch.where(data.observed, data.states, 1e6)
    one, two = (build(config, d.transitions()).state_dict() for d in (data, other))
    assert all(torch.equal(one[name], two[name]) for name in one)
    scale = build(config, data.transitions()).scale
    both = all_rows(data.transitions())
    seen = torch.cat([both.history[:, 0][both.mask[:, 0], 0], both.next[both.mask[:, 0], 0]])
    assert float(scale.mean[0]) == pytest.approx(float(seen.mean()), rel=1e-4, abs=1e-4)
    assert float(scale.std[0]) == pytest.approx(float(seen.std(correction=0)), rel=1e-4)
    assert float(scale.high[0]) == float(seen.max())


@pytest.mark.parametrize("config", [*CONFIGS, NeuralSDEConfig(net=TINY, law=Mixture(components=3))])
def test_what_was_not_observed_does_not_enter_the_losses(config, np_rng):
    data = Trajectories.from_arrays(np_rng.standard_normal((4, 50, 2)).cumsum(1))
    model = build(config, data.transitions())
    batch = all_rows(data.transitions())
    batch.mask = torch.rand(batch.next.shape, generator=torch.Generator().manual_seed(0)) > 0.3
    batch.mask[::4] = False
    keys = torch.arange(len(batch))
    losses = model.loss(batch, Noise(keys))
    # A row that was not observed at all
    other = copy.copy(batch)
    other.history, other.next = batch.history.clone(), batch.next.clone()
    other.history[::4], other.next[::4] = 3.0, -3.0
    for name, value in model.loss(other, Noise(keys)).items():
        assert torch.allclose(value, losses[name], rtol=1e-5), name
    # Leaving such rows out changes nothing either
    kept = keys % 4 != 0
    few = type(batch)(**{k: v[kept] for k, v in vars(batch).items() if v is not None})
    for name, value in model.loss(few, Noise(keys[kept])).items():
        assert torch.allclose(value, losses[name], rtol=1e-4), name
    if not isinstance(config, NeuralSDEConfig):
        return
    # The end of a step in one dimension (the nets see its start)
    other.history, other.next = batch.history, torch.where(batch.mask, batch.next, 77.0)
    for name, value in model.loss(other, Noise(keys)).items():
        assert torch.allclose(value, losses[name], rtol=1e-5), name
    assert torch.allclose(model.log_prob(other), model.log_prob(batch), rtol=1e-4, atol=1e-4)


def test_states_without_gaps_are_learned_from_where_they_are_enough(np_rng):
    x = np_rng.standard_normal((4, 50, 2)).cumsum(1)
    some, never = x.copy(), x.copy()
    some[:, ::8, 1] = NAN
    never[:, ::2, 1], never[:, 1::2, 0] = NAN, NAN  # one feature at a time
    data = Trajectories.from_arrays(some, missing=True)
    for history in (1, 3):
        pairs = data.transitions(history=history)
        chosen = pairs.to_learn_from()
        assert bool(data.observed[chosen.start[:, None] - torch.arange(history)].all())
        assert 0 < len(chosen) < len(pairs)
    pairs = Trajectories.from_arrays(never, missing=True).transitions(lag=2.0)
    assert len(pairs.to_learn_from()) == len(pairs) > 0


def test_missing_entries_hardly_change_what_is_learned(np_rng):
    """A two-dimensional Ornstein-Uhlenbeck process, dx = -A x dt + dw, whole and with 30 % of the entries missing."""
    dt, drift = 0.1, np.array([[-1.0, 0.6], [-0.6, -1.0]])
    x = np.zeros((100, 401, 2))
    x[:, 0] = 0.7 * np_rng.standard_normal((100, 2))
    for k in range(400):
        h, y = dt / 4, x[:, k]
        for _ in range(4):
            y = y + h * y @ drift.T + np.sqrt(h) * np_rng.standard_normal((100, 2))
        x[:, k + 1] = y
    gaps = np.where(np_rng.random(x.shape) < 0.3, NAN, x)
    points = torch.tensor(0.7 * np_rng.standard_normal((200, 2)), dtype=torch.float32)
    found = []
    for states in (x, gaps):
        data = Trajectories.from_arrays(states, dt=dt, missing=True)
        model = NeuralSDE.for_data(data, net=MLPConfig(width=16, depth=1))
        fit(model, data, steps=250, lr=5e-3, batch_size=512, progress=False)
        f, g = model.fields(points)
        slope = torch.linalg.lstsq(points, f).solution.T
        found.append((slope, g.mean(0)))
    (whole, g), (filled, g_filled) = found
    np.testing.assert_allclose(whole, drift, atol=0.15)
    np.testing.assert_allclose(filled, whole, atol=0.15)
    np.testing.assert_allclose(g_filled, g, atol=0.05)
