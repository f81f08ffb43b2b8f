"""The filter and its smoother against exact ones, particles, and the model's own likelihood and draws."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from filter_references import (
    NOISE,
    WELL,
    A,
    exact_filter,
    linear_gap,
    linear_paths,
    particle_filter,
    true_model,
    well_drift,
    well_paths,
)

import neuralsde as nsde
from neuralsde.core.records import RunError
from neuralsde.solvers.noise import Noise

TINY = nsde.MLPConfig(width=8, depth=1)


def linear(state):
    return state[:, -1] @ torch.from_numpy(A).T


@pytest.mark.parametrize("missing", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("diagonal", [True, False], ids=["diagonal", "full"])
def test_linear_fields_give_the_exact_kalman_filter_and_smoother(missing, diagonal, np_rng):
    cov = np.diag(np.diag(NOISE)) if diagonal else NOISE
    states, times = linear_paths(np_rng, 3, 30, missing=missing, noise=0.3, cov=cov)
    data = nsde.Trajectories.from_arrays(states, times, missing=True)
    settings = {} if diagonal else {"correlation": cov, "covariance": nsde.Full()}
    model = true_model(data, linear, np.sqrt(np.diag(cov)), law=nsde.Moments(steps=4), **settings)
    found, back = (run(data, measurement_std=[0.3, 0.2]) for run in (model.filter, model.smooth))
    for k, (y, t) in enumerate(zip(states, times)):
        after, smooth, density = exact_filter(
            y, np.diff(t), np.zeros(2), np.eye(2), [0.09, 0.04], lambda dt: linear_gap(A, cov, dt)
        )
        entries = (~np.isnan(y[1:])).sum()
        assert abs(float(found.log_likelihood[k]) - density[1:].sum()) < 1e-6 * entries
        for posterior, exact in ((found, after), (back, smooth)):
            means, stds = posterior[k]
            np.testing.assert_allclose(means, [m for m, _ in exact], atol=2e-6)
            np.testing.assert_allclose(stds, [np.sqrt(np.diag(c)) for _, c in exact], atol=2e-6)


def walks(rng, num=3, length=12, features=2):
    return rng.normal(size=(num, length, features)).cumsum(1) + 30.0


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"law": nsde.Moments()},
        {"law": nsde.Moments(), "covariance": nsde.LowRank(rank=1)},
        {"covariance": nsde.Full(), "history": 2},
        {"law": nsde.Moments(steps=2), "history": 2, "time_input": True},
        {"law": nsde.Moments(), "transform": "log", "normalise": "isotropic"},
        {"normalise": "whiten", "history": 3, "pad_history": False},
        {"tau": "uniform", "noise": 0.1},
    ],
    ids=lambda s: "-".join(s) or "euler",
)
def test_without_noise_and_gaps_the_likelihood_is_that_of_the_steps(settings, np_rng):
    context = np_rng.normal(size=(3, 12, 1))
    data = nsde.Trajectories.from_arrays(walks(np_rng), dt=0.1, context=context)
    model = nsde.NeuralSDE.for_data(data, net=TINY, **settings)
    for p in model.nets.parameters():
        torch.nn.init.normal_(p, std=0.3, generator=torch.Generator().manual_seed(p.numel()))
    found = model.filter(data)
    torch.testing.assert_close(found.log_likelihood.float(), model.log_prob(data), rtol=2e-4, atol=2e-3)
    torch.testing.assert_close(found.means, data.states, rtol=1e-5, atol=1e-4)
    assert float(found.stds.max()) < 1e-3


def test_history_gives_the_exact_filter_of_the_augmented_system(np_rng):
    """A particle on a spring, observed in position only: x'' = -x - x'/2 + noise, its velocity by two slots."""
    h, g, length = 0.2, 0.3, 40
    to = np.array([[0.0, 1.0], [-(1 - 0.5 * h), 2 - 0.5 * h - h * h]])  # slots (older, newest) after a step
    noise = np.diag([0.0, g * g])
    z, rows = np.zeros(2), []
    for _ in range(length):
        z = to @ z + [0.0, g * np_rng.normal()]
        rows.append(z[1])
    y = np.array(rows)[:, None] + 0.4 * np_rng.normal(size=(length, 1))
    times, kept = h * np.arange(length), np_rng.uniform(size=length) > 0.3
    y, times = y[kept].astype(np.float32).astype(np.float64), times[kept]
    data = nsde.Trajectories.from_arrays([y], [times])
    drift = lambda s: (1 - 0.5 * h) * (s[:, 1] - s[:, 0]) - h * h * s[:, 1]  # noqa: E731
    whole = nsde.Trajectories.from_arrays([np.array(rows)[:, None]], dt=h)
    model = true_model(whole, drift, [g], step=h, history=2)

    def decay_of(gap):
        decay, grown = np.eye(2), np.zeros((2, 2))
        for _ in range(round(gap / h)):
            decay, grown = to @ decay, to @ grown @ to.T + noise
        return decay, grown

    start = np.array([[1 + g * g, 1.0], [1.0, 1.0]])  # the older slot is behind by a step of the data's size
    reads = np.array([[0.0, 1.0]])
    after, smooth, density = exact_filter(y, np.diff(times), np.zeros(2), start, [0.16], decay_of, reads)
    found, back = (run(data, measurement_std=0.4) for run in (model.filter, model.smooth))
    assert float(found.log_likelihood) == pytest.approx(density[2:].sum(), abs=1e-6 * length)
    for posterior, exact in ((found, after), (back, smooth)):
        means, stds = posterior[0]
        np.testing.assert_allclose(means[:, 0], [m[1] for m, _ in exact], atol=2e-6)
        np.testing.assert_allclose(stds[:, 0], [np.sqrt(c[1, 1]) for _, c in exact], atol=2e-6)


@pytest.mark.parametrize("law", [nsde.Euler(), nsde.Moments()], ids=["euler", "moments"])
def test_what_is_not_observed_is_known_as_draws_are_spread(law, np_rng):
    """History 2, three steps without an observation: mean and spread are those of the model's own paths."""
    paths = 0.1 * walks(np_rng, num=8, length=30)
    paths[:, :, 1] += np.sin(0.5 * np.arange(30))
    data = nsde.Trajectories.from_arrays(list(paths), dt=0.5)
    model = nsde.NeuralSDE.for_data(data, net=TINY, law=law, history=2, noise=0.0, denoiser=None)
    nsde.fit(model, data, steps=40, lr=1e-2, batch_size=64, progress=False)
    drawn = model.sample(data.states[None, :2], [0.5, 1.0, 1.5, 2.0], num_paths=10_000, rng=1)[0, :, -1].double()
    own, wide = model._filter(nsde.Trajectories.from_arrays([paths[0, :3]], [[0.0, 0.5, 2.0]]), None)
    with torch.no_grad():
        before = own.run(wide).before
    mean = model.scale.raw(before.mean[2, -2:])
    cov = model.scale.raw_covariance(mean[None], before.cov[2:, -2:, -2:])[0]
    std = drawn.std(0)
    assert float(((drawn.mean(0) - mean) / std).abs().max()) < 0.06
    assert float(((torch.cov(drawn.T) - cov) / (std[:, None] * std)).abs().max()) < 0.08


def test_a_double_well_is_filtered_as_by_particles():
    """Gaps and noise at which the posterior has one mode."""
    y, times = well_paths(np.random.default_rng(3), 4, 50, noise=0.3, gaps=(0.05, 0.3))
    data = nsde.Trajectories.from_arrays(list(y), [times] * 4)
    model = true_model(data, lambda s: well_drift(s[:, -1]), [WELL], law=nsde.Moments())
    found, rng = model.filter(data, measurement_std=0.3).log_likelihood.sum(), np.random.default_rng(4)
    exact = sum(particle_filter(path[:, 0], np.diff(times), 0.09, rng, num=4_000)[1:].sum() for path in y)
    assert abs(float(found) - exact) / y[:, 1:].size < 0.02


def test_irregular_times_of_a_learned_law_take_steps_of_its_length(np_rng):
    """Euler over two and a half training steps: three steps, as draws take them."""
    data = nsde.Trajectories.from_arrays([np_rng.normal(size=(30, 1))], dt=0.2)
    model = true_model(data, lambda s: -0.3 * s[:, -1], [0.4], step=0.2)
    wide = nsde.Trajectories.from_arrays([[[1.0], [0.5]]], [[0.0, 0.5]])
    own, wide = model._filter(wide, None)
    with torch.no_grad():
        before = own.run(wide).before
    h = 2.5 / 3
    decay = 1 - 0.3 * h
    assert float(before.mean[1]) == pytest.approx(decay**3, abs=1e-6)
    assert float(before.cov[1]) == pytest.approx(0.16 * h * (1 + decay**2 + decay**4), abs=1e-6)


def test_log_prob_of_partial_paths_is_the_filters(np_rng):
    states, times = linear_paths(np_rng, 3, 20, missing=0.4, noise=0.0)
    data = nsde.Trajectories.from_arrays(states, times, missing=True)
    model = nsde.NeuralSDE.for_data(data, net=TINY, law=nsde.Moments())
    assert torch.equal(model.log_prob(data), model.filter(data).log_likelihood.float())
    other = nsde.NeuralSDE.for_data(data, net=TINY)
    assert torch.isfinite(other.log_prob(data)).all()  # Euler's too


def test_a_path_is_filtered_alike_alone_and_beside_others(np_rng):
    states, times = linear_paths(np_rng, 4, 15, missing=0.3, noise=0.2)
    data = nsde.Trajectories.from_arrays(states, times, missing=True)
    model = nsde.NeuralSDE.for_data(data, net=TINY, law=nsde.Moments())
    both, alone = model.smooth(data, measurement_std=0.2), model.smooth(data.select([2]), measurement_std=0.2)
    torch.testing.assert_close(both[2][0], alone.means, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(both[2][1], alone.stds, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(both.log_likelihood[2:3], alone.log_likelihood, rtol=1e-5, atol=1e-4)
    assert len(both) == 4 and float(both.stds.min()) > 0


def measured(np_rng, std=0.5):
    """A model with true fields of stationary Ornstein-Uhlenbeck and learned measurement noise."""
    data = nsde.Trajectories.from_arrays([np_rng.normal(size=(200, 1))], dt=0.5)
    model = true_model(
        data, lambda s: -0.5 * s[:, -1], [1.0], step=0.5, lag=(0.5, 1.0), law=nsde.Moments(steps=4, measurement=True)
    )
    with torch.no_grad():
        model.measurement.log_std.fill_(np.log(std))
    return model


def test_measured_pairs_of_a_gaussian_process_have_their_exact_density(np_rng):
    """The law of measured states is N(0, 1): of true ones 1 - R, which OU here keeps up to its own variance 1."""
    model, y, after = measured(np_rng), 0.8, -0.4
    pair = nsde.Transition(torch.tensor([[[y]]]), torch.tensor([[after]]), torch.tensor([0.5]), torch.tensor([0.0]))
    decay, grown = np.exp(-0.5), 1 - np.exp(-1.0)
    variance = 0.75 * 0.25 / (0.75 + 0.25)
    mean, total = decay * 0.75 * y, decay**2 * variance + grown + 0.25
    exact = -0.5 * ((after - mean) ** 2 / total + np.log(2 * np.pi * total))
    assert float(model.log_prob(pair)) == pytest.approx(exact, abs=1e-5)


def test_forecasts_start_from_the_posterior(np_rng):
    """From a path of measurements: mean and spread of draws are those of the exact filter, carried ahead."""
    model = measured(np_rng)
    y = np_rng.normal(size=(12, 1)).astype(np.float32)
    data = nsde.Trajectories.from_arrays([y], dt=0.5)
    sampler = nsde.Sampler(measured=True)
    drawn = model.sample(data, [5.5, 6.0], num_paths=20_000, rng=0, sampler=sampler)[0, :, 1, 0]
    decay, grown = np.array([[np.exp(-0.5)]]), np.array([[1 - np.exp(-1.0)]])
    after = exact_filter(
        y.astype(float), np.full(11, 0.5), np.zeros(1), np.array([[0.75]]), [0.25], lambda dt: (decay, grown)
    )[0][-1]
    mean, total = decay[0, 0] * after[0][0], decay[0, 0] ** 2 * after[1][0, 0] + grown[0, 0] + 0.25
    assert float(drawn.mean()) == pytest.approx(mean, abs=0.03)
    assert float(drawn.var()) == pytest.approx(total, rel=0.04)
    made = nsde.futures(model, data, horizon=0.5, num_times=1, num_paths=20_000)
    assert float(made.samples.mean()) == pytest.approx(mean, abs=0.03)
    assert float(made.samples.var()) == pytest.approx(total, rel=0.04)
    # One measurement alone
    alone = model.sample([[0.8]], [0.0, 0.5], num_paths=20_000, rng=0, sampler=sampler)[0, :, 1, 0]
    assert float(alone.mean()) == pytest.approx(decay[0, 0] * 0.6, abs=0.03)


def test_a_missing_entry_is_not_taken_for_known_in_forecasts(np_rng):
    """The second feature was last seen long ago: draws start from what is known of it, not from that value."""
    walk = np_rng.normal(size=(40, 2)).cumsum(0)
    walk[-10:, 1] = np.nan
    data = nsde.Trajectories.from_arrays([walk], missing=True)
    model = true_model(data, lambda s: 0 * s[:, -1], [1.0, 1.0])
    drawn = model.sample(data, [39.0, 40.0], num_paths=5_000, rng=0)[0]
    np.testing.assert_allclose(drawn[:, 0].std(0), [0.0, np.sqrt(10)], atol=0.1)
    np.testing.assert_allclose(drawn[:, 1].std(0), [1.0, np.sqrt(11)], rtol=0.05)
    made = nsde.forecasts(model, data, horizon=1.0, num_times=1, num_paths=2_000, origins_per_path=30)
    late = made.origin >= 35
    assert float(made.samples[late][..., 1].std(1).min()) > 2 and float(made.samples[~late][..., 1].std(1).min()) < 1.1


def test_windows_follow_the_lag_within_their_path():
    data = nsde.Trajectories.from_arrays([np.arange(10.0)[:, None], np.arange(4.0)[:, None] + 100], dt=0.5)
    dense = data.windows(torch.tensor([0, 7, 11]), 4)
    assert dense.lengths.tolist() == [4, 3, 3]
    assert dense.states[:, 0].tolist() == [0, 1, 2, 3, 7, 8, 9, 101, 102, 103]
    apart = data.windows(torch.tensor([1, 10]), 3, lag=(1.0, 2.0))
    assert apart.states[:, 0].tolist() == [1, 3, 5, 100, 102, 103] and apart.begin.tolist() == [0.0, 0.0]


def test_measurement_noise_starts_where_the_growth_of_steps_says(np_rng):
    """E Δx² = 2R + q Δt over uneven gaps; over even ones a share of the steps."""
    times = np_rng.uniform(0.1, 1.0, (20, 400)).cumsum(1)
    walk = (np_rng.normal(size=times.shape) * np.sqrt(np.diff(times, prepend=0.0))).cumsum(1)
    noisy = (walk + 0.5 * np_rng.normal(size=walk.shape))[..., None]
    settings = {"net": TINY, "law": nsde.Moments(measurement=True)}
    uneven = nsde.NeuralSDE.for_data(nsde.Trajectories.from_arrays(list(noisy), list(times)), **settings)
    assert float(uneven.measurement_std) == pytest.approx(0.5, rel=0.1)
    even = nsde.NeuralSDE.for_data(nsde.Trajectories.from_arrays(list(noisy)), **settings)
    assert float(even.measurement_std) == pytest.approx(np.diff(noisy, axis=1).std() / np.sqrt(32), rel=0.05)


def test_training_with_measurement_noise_ends_with_windows(np_rng, tmp_path):
    data = nsde.Trajectories.from_arrays(list(np_rng.normal(size=(4, 30, 1))), dt=0.5)
    model = nsde.NeuralSDE.for_data(data, net=TINY, law=nsde.Moments(measurement=True), lag=(0.5, 1.0))
    before = model.measurement_std.clone()
    nsde.fit(model, data, steps=10, batch_size=16, log_every=1, run_dir=tmp_path, progress=False)
    assert not torch.equal(before, model.measurement_std)
    # The loss of windows is the filter's likelihood per entry
    windows = data.transitions().windows(Noise.draw(0, 5), 8)
    with torch.no_grad():
        losses = model.window_losses({"likelihood": torch.zeros(()), "denoiser": torch.ones(())}, windows)
    entries = int((windows.lengths - 1).sum())
    assert float(losses["likelihood"]) == pytest.approx(
        -float(model.filter(windows).log_likelihood.sum()) / entries, rel=1e-4
    )
    assert set(losses) == {"likelihood", "denoiser"}


def with_gaps(rng, **settings):
    """Two features, of which the second is missing half of the time."""
    walk = rng.normal(size=(4, 60, 2)).cumsum(1)
    walk[:, np.arange(60) % 4 < 2, 1] = np.nan
    return nsde.Trajectories.from_arrays(list(walk), missing=True, **settings)


def test_training_on_missing_entries_ends_with_windows(np_rng, tmp_path):
    data = with_gaps(np_rng)
    for name, own, late in (("gaps", data, {"likelihood", "denoiser"}), ("whole", whole_of(data), set())):
        model = nsde.NeuralSDE.for_data(own, net=TINY)
        nsde.fit(model, own, steps=10, batch_size=16, log_every=1, run_dir=tmp_path / name, progress=False)
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        parts = [set(line) - {"step", "lr", "steps_per_second"} for line in lines]
        assert parts == [{"flow", "diffusion", "denoiser"}] * 8 + [late or {"flow", "diffusion", "denoiser"}] * 2


def whole_of(data):
    """The same with nothing missing."""
    return nsde.Trajectories(data.states, data.times, data.lengths)


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ({}, 8),
        ({"law": nsde.Moments()}, 8),
        ({"law": nsde.Euler(flow_loss="nll"), "history": 4}, 8),
        ({"history": 5}, 0),  # more numbers in a state than windows are worth
        ({"law": nsde.Euler(flow_loss="log")}, 0),
        ({"law": nsde.Euler(diffusion_loss="match")}, 0),
        ({"law": nsde.Transport()}, 0),
        ({"tau": "uniform"}, 0),
        ({"denoiser": nsde.Denoiser(alpha=True)}, 0),
        ({"net": nsde.PolynomialConfig()}, 0),
    ],
)
def test_missing_entries_are_learned_from_where_the_filter_can_tell_more(np_rng, settings, length):
    data, history = with_gaps(np_rng), settings.get("history", 1)
    model = nsde.NeuralSDE.for_data(data, **{"net": TINY, **settings})
    pairs = data.transitions(history=history)
    assert model.window_for(pairs) == length and model.window_for(None) == 0
    assert model.window_for(whole_of(data).transitions(history=history)) == 0


def test_few_missing_entries_are_left_to_pairs(np_rng):
    data = with_gaps(np_rng)
    data.observed[:, 1] |= torch.arange(len(data.states)) % 8 > 0
    assert nsde.NeuralSDE.for_data(data, net=TINY).window_for(data.transitions()) == 0


def test_gaps_that_take_many_steps_are_left_to_pairs(np_rng):
    """Euler's steps are as long as those of the training; Moments takes a gap as a whole."""
    times = np.arange(60.0)
    times[30:] += 100
    data = with_gaps(np_rng, times=times)
    assert data.longest_gap == 101 and whole_of(data).select([0]).longest_gap == 101
    for law, length in ((nsde.Euler(), 0), (nsde.Moments(), 8)):
        assert nsde.NeuralSDE.for_data(data, net=TINY, law=law).window_for(data.transitions()) == length
    ends = nsde.Trajectories.from_arrays([np.zeros((2, 1)), np.ones((3, 1))], [[0.0, 1.0], [50.0, 52.0, 55.0]])
    assert ends.longest_gap == 3


def test_the_likelihood_of_windows_has_its_gradient(np_rng):
    """By finite differences in the measurement noise."""
    model = measured(np_rng)
    windows = nsde.Trajectories.from_arrays([np_rng.normal(size=(6, 1))], dt=0.5)

    def value(shift):
        model.measurement.log_std.data.fill_(np.log(0.5) + shift)
        return model.window_losses({}, windows)["likelihood"]

    (slope,) = torch.autograd.grad(value(0.0), model.measurement.log_std)
    assert float(slope) == pytest.approx(float(value(1e-3) - value(-1e-3)) / 2e-3, rel=2e-2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"law": nsde.Mixture()},
            r"takes laws whose steps are Gaussian. Got Mixture\(.*Train with Moments\(\) or Euler",
        ),
        ({"law": nsde.Deterministic()}, "takes laws whose steps are Gaussian"),
        ({"history": 17}, r"up to 32 numbers in a state. Got 17 slot\(s\) of 2. Use a shorter `history`"),
        ({"tau": "uniform", "denoiser": None}, "needs a score"),
    ],
)
def test_what_cannot_be_filtered_is_refused(settings, message, np_rng):
    data = nsde.Trajectories.from_arrays(list(walks(np_rng, length=30)))
    model = nsde.NeuralSDE.for_data(data, net=TINY, **{"noise": 0.05, **settings})
    with pytest.raises(ValueError, match=message):
        model.filter(data)


def test_what_is_said_of_noise_and_gaps(np_rng):
    data = nsde.Trajectories.from_arrays(list(walks(np_rng)))
    model = nsde.NeuralSDE.for_data(data, net=TINY)
    with pytest.raises(ValueError, match=r"one number or one per feature \(2\). Got 3"):
        model.filter(data, measurement_std=[1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="`measurement_std` must be positive"):
        model.filter(data, measurement_std=-1.0)
    with pytest.raises(ValueError, match="Build the model with for_data on this data"):
        model.filter(nsde.Trajectories.from_arrays(list(walks(np_rng, features=3))))
    with pytest.raises(ValueError, match=r"at most 10,000 training steps. Got a gap of 90,000. Use Moments\(\)"):
        model.filter(nsde.Trajectories.from_arrays([[[30.0, 30.0], [31.0, 31.0]]], [[0.0, 90_000.0]]))
    with pytest.raises(ValueError, match="The model learned its measurement noise"):
        measured(np_rng).filter(nsde.Trajectories.from_arrays([[[0.0], [1.0]]]), measurement_std=0.1)
    with pytest.raises(RunError, match="The filter lost its state at time 1"):
        lost = true_model(data, lambda s: s[:, -1] * float("nan"), [1.0, 1.0])
        lost.filter(data)
