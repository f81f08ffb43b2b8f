"""Where forecasts start, what they may know, and that they are drawn at the stamps of the truth."""

import numpy as np
import pytest
import torch
from toy_models import field_model

import neuralsde as nsde
from neuralsde.forecast.futures import forecasts, futures


def still(**settings):
    """dx = 0: every sample is the present state."""
    model = field_model(flow=lambda x, c: 0 * x, dt_ref=settings.pop("dt_ref", 1.0), **settings)
    model.scale.high.fill_(1e3)
    return model


def numbered(lengths, times=None, shape=(1,)):
    """Observation k of path p is 100 p + k."""
    states = [np.add.outer(np.arange(n), np.zeros(shape)) + 100 * p for p, n in enumerate(lengths)]
    return nsde.Trajectories.from_arrays(states, times)


# Origins and truth


def test_truth_is_what_was_observed_after_the_origin():
    data = numbered([11, 4, 30], [0.5 * np.arange(n) + p for p, n in enumerate((11, 4, 30))])
    with pytest.warns(UserWarning, match=r"1 of 3 paths leave no room for horizon=2.0 and are not used"):
        made = forecasts(still(dt_ref=0.5), data, horizon=2.0, num_paths=3)
    assert made.path.tolist() == [0, 2]
    assert made.samples.shape == (2, 3, 4, 1) and made.mask.all()
    assert made.start.tolist() == [[3.0], [213.0]]  # the middle of the rows 0 … 6 and 0 … 25
    torch.testing.assert_close(made.truth[..., 0], made.start + torch.arange(1, 5))
    torch.testing.assert_close(made.lead, torch.tensor([[0.5, 1.0, 1.5, 2.0]] * 2, dtype=torch.float64))
    torch.testing.assert_close(made.times[1], 2 + 0.5 * torch.arange(14.0, 18).double())
    assert (made.samples == made.start[:, None, None]).all()


def test_origins_are_spread_over_the_room_there_is():
    made = forecasts(still(), numbered([21, 7]), horizon=5.0, num_paths=1, origins_per_path=4)
    assert made.path.tolist() == [0, 0, 0, 0, 1, 1]  # rows 0 … 15 and 0 … 1
    assert made.origin.tolist() == [2, 6, 10, 14, 0, 1]
    every = forecasts(still(), numbered([21]), horizon=5.0, num_paths=1, origins_per_path=100)
    assert every.origin.tolist() == list(range(16))


def test_few_times_are_spread_over_the_horizon_and_reach_its_end():
    made = forecasts(still(), numbered([50]), horizon=10.0, num_times=4, num_paths=1)
    assert made.lead.tolist() == [[3, 5, 8, 10]]


def test_irregular_stamps_are_kept_and_padding_is_masked(np_rng):
    times = [np.cumsum(np_rng.exponential(size=n)) for n in (30, 60, 45)]
    data = numbered([30, 60, 45], times)
    made = forecasts(still(), data, horizon=4.0, num_paths=2, origins_per_path=5)
    counts = made.mask[..., 0].sum(1)
    assert counts.min() < counts.max() == made.times.shape[1] and counts.min() >= 1
    for b in range(len(made.path)):
        row = int(made.start[b, 0] - 100 * made.path[b])
        stamps = times[made.path[b]]
        assert stamps[row] == made.origin[b] and stamps[-1] >= stamps[row] + 4.0
        wanted = stamps[row + 1 :][stamps[row + 1 :] <= stamps[row] + 4.0]
        np.testing.assert_allclose(made.times[b, : counts[b]], wanted)
        assert made.truth[b, : counts[b], 0].tolist() == [100 * made.path[b] + row + k + 1 for k in range(counts[b])]
    assert (made.times.diff(dim=1) > 0).all()


def test_observations_that_are_missing_are_masked():
    states = np.arange(24.0).reshape(1, 12, 2)
    states[0, 5, 1] = states[0, 7, 0] = np.nan
    data = nsde.Trajectories.from_arrays(states, missing=True)
    made = forecasts(field_model(shape=(2,), flow=lambda x, c: 0 * x), data, horizon=8.0, num_paths=1)
    first = int(made.origin[0])
    assert sorted((~made.mask[0]).nonzero().tolist()) == [[4 - first, 1], [6 - first, 0]]


# What a forecast may know


def test_histories_are_spaced_as_the_model_wants(monkeypatch):
    seen = {}
    model = still(history=3, dt_ref=0.4)
    model.lag = 0.4
    draw = type(model).draw
    monkeypatch.setattr(model, "draw", lambda h, t, **k: seen.update(history=h) or draw(model, h, t, **k))
    data = numbered([20], [0.1 * np.arange(20)])
    made = forecasts(model, data, horizon=0.5, num_paths=1)
    now = made.start[0, 0]
    assert seen["history"][0, :, 0].tolist() == [now - 8, now - 4, now]
    assert futures(model, data, horizon=0.5, num_paths=1).start.item() == 19
    assert seen["history"][0, :, 0].tolist() == [11, 15, 19]


@pytest.mark.parametrize("num_times", [3, 50])
def test_the_context_of_every_observation_is_held(num_times, np_rng):
    """dx = c dt with a new c at each stamp: the forecast is exact, also at every third observation."""
    states, times, contexts = [], [], []
    for n in (40, 25):
        t, c = np.cumsum(np_rng.uniform(0.5, 2, size=n)), np_rng.normal(size=(n, 1))
        states.append(np.concatenate([[0], np.cumsum(c[:-1, 0] * np.diff(t))])[:, None])
        times.append(t)
        contexts.append(c)
    data = nsde.Trajectories.from_arrays(states, times, context=contexts)
    model = field_model(flow=lambda x, c: c, context_size=1)
    made = forecasts(model, data, horizon=12.0, num_times=num_times, num_paths=2, origins_per_path=3)
    assert made.mask[..., 0].sum(1).max() <= num_times
    error = (made.samples - made.truth[:, None]).abs().where(made.mask[:, None], 0.0)
    assert error.max() < 1e-4 and made.truth.std() > 0.5
    kept = forecasts(model, data, horizon=12.0, num_times=num_times, num_paths=2, origins_per_path=3, hold_context=True)
    first = kept.path == 0
    origin = data.context[torch.searchsorted(data.times[:40], kept.origin[first])]
    wanted = kept.start[first] + origin * kept.lead[first]
    torch.testing.assert_close(kept.samples[first, 0, :, 0], wanted.float())
    last = futures(model, data, horizon=3.0, num_times=3, num_paths=1)
    held = torch.as_tensor(np.stack([c[-1] for c in contexts]))
    torch.testing.assert_close(last.samples[:, 0, :, 0], (last.start + held * last.lead).float())


def planned_walk(np_rng, num, stamps):
    """A path that ends at `stamps[0]`, and contexts that follow at the stamps after it."""
    c = np_rng.normal(size=(len(stamps), 1))
    known = nsde.Trajectories.from_arrays(
        [np_rng.normal(size=(num, 1))], [stamps[0] - np.arange(num)[::-1]], context=[np.repeat(c[:1], num, 0)]
    )
    return known, (stamps[1:], c[1:]), c[:, 0]


def follow():
    """dx = c dt"""
    return field_model(flow=lambda x, c: c, context_size=1)


def integral(stamps, c, times):
    """Of a context that holds from each stamp to the next, from the first stamp to these times."""
    edges = np.append(stamps, np.inf)
    return [(c * np.clip(np.minimum(edges[1:], t) - edges[:-1], 0, None)).sum() for t in times]


def test_a_planned_context_holds_from_each_of_its_stamps_on(np_rng):
    """Also at times that are none of its stamps, and beyond the last one."""
    stamps = np.array([0.0, 0.4, 1.0, 2.5, 2.9, 3.3])
    known, plan, c = planned_walk(np_rng, 5, stamps)
    made = futures(follow(), known, horizon=5.0, num_times=7, num_paths=2, plan=[plan])
    np.testing.assert_allclose(made.times[0], 5 * np.arange(1, 8) / 7)
    wanted = float(made.start[0, 0]) + np.array(integral(stamps, c, made.times[0].numpy()))
    np.testing.assert_allclose(made.samples[0, :, :, 0], [wanted, wanted], atol=1e-5)


def test_one_row_is_a_plan(np_rng):
    known, plan, c = planned_walk(np_rng, 5, np.array([0.0, 0.3]))
    made = futures(follow(), known, horizon=4.0, num_times=1, num_paths=1, plan=[plan])
    assert made.samples.item() == pytest.approx(float(made.start) + 0.3 * c[0] + 3.7 * c[1], abs=1e-5)
    with pytest.warns(UserWarning, match="changes no context before the horizon"):
        futures(follow(), known, horizon=4.0, num_paths=1, plan=[([40.0], [[1.0]])])


def test_rows_that_change_nothing_change_nothing():
    """Neither the samples nor the steps that lead to them; stamps up to the last observation are passed over."""
    data = nsde.Trajectories.from_arrays(np.zeros((2, 6, 1)), context=[np.full((6, 1), 0.5), np.full((6, 1), -1.0)])
    model = field_model(flow=lambda x, c: c, context_size=1, log_g=lambda x, c: 0 * x)
    draw = {"horizon": 4.0, "num_times": 4, "num_paths": 3}
    coarse = [([6.0, 7.0], [[0.5], [2.0]]), ([7.0], [[3.0]])]
    dense = np.arange(2.0, 9.0, 0.01)
    fine = [(dense, np.where(dense < 6.995, 0.5, 2.0)[:, None]), ([1.0, 5.0, 7.0], [[9.0], [8.0], [3.0]])]
    fine[0][1][dense < 5.005] = 7.0
    one, two = (futures(model, data, plan=p, **draw).samples for p in (coarse, fine))
    torch.testing.assert_close(one, two)
    assert not torch.allclose(one, futures(model, data, **draw).samples)
    with pytest.warns(UserWarning, match="changes no context"):
        same = futures(model, data, plan=[([6.0], [[0.5]]), ([6.0], [[-1.0]])], **draw).samples
    assert torch.equal(same, futures(model, data, **draw).samples)


def test_paths_may_have_plans_of_any_length(np_rng):
    """Each is drawn for its own changes alone, with noise of its own, and comes back in its place."""
    parts = [planned_walk(np_rng, 4, np.append(3, 3 + np.cumsum(np_rng.uniform(0.2, 1.1, n)))) for n in (3, 9, 3, 1)]
    data = nsde.Trajectories.from_arrays(
        [p[0][0][0] for p in parts], [p[0][0][1] for p in parts], context=[p[0].context for p in parts]
    )
    made = futures(follow(), data, horizon=6.0, num_times=5, num_paths=1, plan=[p[1] for p in parts])
    for k, (_, (stamps, _), c) in enumerate(parts):
        wanted = float(made.start[k, 0]) + np.array(integral(np.append(3, stamps), c, made.times[k].numpy()))
        np.testing.assert_allclose(made.samples[k, 0, :, 0], wanted, atol=1e-4)
    noise = field_model(flow=lambda x, c: 0 * c, context_size=1, log_g=lambda x, c: 0 * x)
    drawn = futures(noise, data, horizon=6.0, num_times=2, num_paths=400, plan=[p[1] for p in parts])
    rises = (drawn.samples[..., 0] - drawn.start[:, None]).flatten(2)[:, :, -1]
    assert (torch.corrcoef(rises) - torch.eye(4)).abs().max() < 0.2
    torch.testing.assert_close(rises.var(1), torch.full((4,), 6.0), rtol=0.3, atol=0.0)


def test_a_plan_that_does_not_fit_is_refused(np_rng):
    known, plan, _ = planned_walk(np_rng, 4, np.arange(5.0))
    for wrong, words in (
        ([], "each of the 1 path.* Got 0"),
        ([([1.0], [[1.0, 2.0]])], r"contexts \(M, 1\). Got shapes \(1,\) and \(1, 2\)"),
        ([([1.0, 2.0], [[1.0], [np.nan]])], "finite contexts"),
        ([([2.0, 1.0], [[1.0], [2.0]])], "increasing times"),
        ([([-2.0, -1.0], [[1.0], [2.0]])], "after the last observation of its path, at 0. Got -1"),
        ([([], np.zeros((0, 1)))], "Got no stamp"),
    ):
        with pytest.raises(ValueError, match=words):
            futures(follow(), known, horizon=1.0, plan=wrong)
    with pytest.raises(ValueError, match="takes no context"):
        futures(still(), numbered([4], [np.arange(4.0)]), horizon=1.0, plan=[plan])


def test_time_counts_from_the_start_of_the_path():
    """dx = t dt by Euler steps of 1, on paths whose stamps start at 7."""
    k = np.arange(20.0)
    data = nsde.Trajectories.from_arrays([(k * (k - 1) / 2)[:, None]], [k + 7])
    model = field_model(flow=lambda x, c: c, time_input=True)
    made = forecasts(model, data, horizon=5.0, num_paths=1)
    torch.testing.assert_close(made.samples[:, 0], made.truth)
    late = futures(model, data, horizon=1.0, num_times=1, num_paths=1)
    assert late.samples.item() == pytest.approx(20 * 19 / 2) and late.times.item() == 27


def test_nothing_after_the_origin_enters(rng):
    """Not even through missing entries, which the data fills from both sides."""
    states = torch.randn(1, 30, 2, generator=rng)
    states[0, 10:14, 0] = torch.nan
    model = field_model(shape=(2,), flow=lambda x, c: -x, log_g=lambda x, c: 0 * x - 1)
    draws = []
    for changed in (0.0, 50.0):
        other = states.clone()
        other[0, 14:] += changed
        data = nsde.Trajectories.from_arrays(other, missing=True)
        made = forecasts(model, data, horizon=3.0, num_paths=4, origins_per_path=100)
        early = made.origin < 14
        draws.append(made.samples[early])
        assert torch.equal(made.start[12], torch.tensor([states[0, 9, 0], states[0, 12, 1]]))
    assert torch.equal(draws[0], draws[1])


def test_a_feature_without_a_past_cannot_start_a_forecast():
    states = np.arange(20.0).reshape(1, 10, 2)
    states[0, :4, 1] = np.nan
    data = nsde.Trajectories.from_arrays(states, missing=True)
    model = field_model(shape=(2,), flow=lambda x, c: 0 * x)
    made = forecasts(model, data, horizon=2.0, num_paths=1, origins_per_path=100)
    assert made.origin.min() == 4


# Draws


def test_the_batch_changes_nothing_and_the_seed_does(np_rng):
    times = [np.cumsum(np_rng.exponential(size=30)) for _ in range(5)]
    data = numbered([30] * 5, times)
    model = field_model(flow=lambda x, c: -0.1 * x, log_g=lambda x, c: 0 * x)
    model.scale.high.fill_(1e3)
    options = {"horizon": 5.0, "num_paths": 3, "origins_per_path": 2}
    one = forecasts(model, data, **options)
    other = forecasts(model, data, batch_size=3, **options)
    torch.testing.assert_close(one.samples, other.samples)
    assert not torch.equal(one.samples, forecasts(model, data, seed=1, **options).samples)
    calm = forecasts(model, data, sampler=nsde.Sampler(diffusion=0.0), **options)
    assert (calm.samples.std(1) < 1e-6).all()


def test_futures_go_on_from_the_last_observation():
    data = numbered([5, 9], [np.arange(5.0), 10 + np.arange(9.0)])
    made = futures(still(), data, horizon=6.0, num_times=3, num_paths=2)
    assert made.path.tolist() == [0, 1] and made.start.tolist() == [[4], [108]]
    assert made.times.tolist() == [[6, 8, 10], [20, 22, 24]]
    assert made.samples.shape == (2, 2, 3, 1) and not made.mask.any() and made.truth.isnan().all()


def test_paths_too_short_for_the_history_are_left_out():
    data = numbered([2, 9])
    with pytest.warns(UserWarning, match=r"1 of 2 paths are left out, first 0: no history of 4 slot"):
        made = futures(still(history=4), data, horizon=1.0, num_paths=1)
    assert made.path.tolist() == [1]
    model = still(history=3)
    model.lag = 1.0
    late = numbered([4], [np.array([0.0, 1.0, 2.0, 3.5])])
    with pytest.raises(
        ValueError, match=r"No path can be continued: no history of 3 slot\(s\) at the last observation"
    ):
        futures(model, late, horizon=1.0)


# The door


def test_what_cannot_be_forecast_is_refused():
    data, model = numbered([10, 5]), still()
    with pytest.raises(
        ValueError, match=r"No path leaves room for `horizon=20` after 1 slot.* longest lasts 9. Use a sho"
    ):
        forecasts(model, data, horizon=20.0)
    for horizon in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="`horizon` must be positive and finite"):
            forecasts(model, data, horizon=horizon)
    with pytest.raises(ValueError, match=r"`num_times` must be at least 1. Got num_times=0"):
        futures(model, data, horizon=1.0, num_times=0)
    with pytest.raises(ValueError, match=r"`origins_per_path` must be at least 1"):
        forecasts(model, data, horizon=1.0, origins_per_path=0)
    with pytest.raises(ValueError, match=r"`num_paths` must be at least 1"):
        forecasts(model, data, horizon=1.0, num_paths=0)
    with pytest.raises(ValueError, match=r"The model takes states of shape \(1,\)"):
        forecasts(model, numbered([10], shape=(2,)), horizon=1.0)
    states = np.ones((2, 6, 2))
    states[0, :, 0] = states[1, :, 1] = np.nan
    two = field_model(shape=(2,), flow=lambda x, c: 0 * x)
    with pytest.raises(ValueError, match="in every path some feature is missing all the time"):
        forecasts(two, nsde.Trajectories.from_arrays(states, missing=True), horizon=1.0)
