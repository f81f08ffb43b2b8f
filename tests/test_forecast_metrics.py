import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import cdist

from neuralsde.metrics import forecast as metrics
from neuralsde.metrics.forecast import (
    coverage_ci,
    crps,
    energy_distance,
    energy_score,
    interval_coverage,
    interval_width,
    mean_ci,
    pit,
    pit_histogram,
    quantiles,
    student_t,
    wasserstein_1d,
)

ALPHA_SIGMAS = 4.5  # two-sided alpha of 1e-5


def normal(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def gaussian_crps(y, mean=0.0, std=1.0):
    z = (y - mean) / std
    return std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))


def uniform_crps(y):
    """Of U(0, 1) at y within it: the integral of u^2 up to y and of (1 - u)^2 beyond."""
    return y**3 / 3 + (1 - y) ** 3 / 3


def near(values, wanted):
    """The mean of independent values is the wanted one, up to chance."""
    return abs(float(values.mean()) - wanted) < ALPHA_SIGMAS * float(values.std()) / math.sqrt(values.numel())


# CRPS


@pytest.mark.parametrize("y", [-2.5, -0.3, 0.0, 1.7])
def test_crps_has_the_closed_form_of_a_gaussian(y, rng):
    truth = torch.full((20_000,), y, dtype=torch.float64)
    for num in (2, 5):  # unbiased however few the samples
        assert near(crps(0.4 + 1.3 * normal(rng, num, 20_000), truth), gaussian_crps(y, 0.4, 1.3))
    many = torch.as_tensor(stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000))
    for fair in (True, False):
        assert float(crps(many, torch.tensor(y), fair=fair)) == pytest.approx(gaussian_crps(y), abs=1e-4)


def test_crps_has_the_closed_form_of_a_uniform():
    many = (torch.arange(50_000, dtype=torch.float64) + 0.5) / 50_000
    for y in (0.0, 0.2, 0.5, 1.0):
        assert float(crps(many, torch.tensor(y), fair=False)) == pytest.approx(uniform_crps(y), abs=1e-8)


def test_crps_by_hand():
    assert float(crps(torch.tensor([3.0]), torch.tensor(5.0), fair=False)) == 2  # one sample: the absolute error
    two = torch.tensor([0.0, 4.0])
    assert float(crps(two, torch.tensor(1.0), fair=False)) == 2 - 1
    assert float(crps(two, torch.tensor(1.0))) == 2 - 2


@pytest.mark.parametrize(("fair", "estimator"), [(True, "fair"), (False, "nrg")])
def test_crps_is_that_of_the_library(fair, estimator, rng):
    scoringrules = pytest.importorskip("scoringrules")
    x, y = normal(rng, 41, 6, 7) * 3 + 1, normal(rng, 6, 7)
    want = scoringrules.crps_ensemble(y.numpy(), x.numpy(), m_axis=0, estimator=estimator)
    np.testing.assert_allclose(crps(x, y, fair=fair).numpy(), want, rtol=1e-12)


def test_crps_in_double_precision_far_from_zero(rng):
    x, y = normal(rng, 100, 3), normal(rng, 3)
    np.testing.assert_allclose(crps(x + 1e6, y + 1e6).numpy(), crps(x, y).numpy(), rtol=1e-7)


def test_the_true_law_scores_best(rng):
    y = normal(rng, 20_000)
    for score in (crps, lambda x, t: energy_score(x[..., None], t[..., None])):
        best = score(normal(rng, 10, 20_000), y)
        for shift, scale in ((0, 0.7), (0, 1.4), (0.4, 1.0), (-0.4, 1.0)):
            worse = score(shift + scale * normal(rng, 10, 20_000), y) - best
            assert worse.mean() > ALPHA_SIGMAS * worse.std() / math.sqrt(len(y))


# Energy score


@pytest.mark.parametrize(("fair", "estimator"), [(True, "fair"), (False, "nrg")])
def test_energy_score_is_that_of_the_library(fair, estimator, rng, monkeypatch):
    scoringrules = pytest.importorskip("scoringrules")
    x, y = normal(rng, 23, 4, 5, 3) * 2, normal(rng, 4, 5, 3)
    want = scoringrules.es_ensemble(y.numpy(), x.numpy(), m_axis=0, v_axis=-1, estimator=estimator)
    np.testing.assert_allclose(energy_score(x, y, fair=fair).numpy(), want, rtol=1e-12)
    monkeypatch.setattr(metrics, "MAX_PAIRS", 1)  # in the smallest parts
    np.testing.assert_allclose(energy_score(x, y, fair=fair).numpy(), want, rtol=1e-12)


@pytest.mark.parametrize("fair", [True, False])
def test_energy_score_of_many_samples_takes_pairs_within_groups(fair, rng, monkeypatch):
    x, y = normal(rng, 4_001, 6, 2), normal(rng, 6, 2)
    every = energy_score(x, y, fair=fair)
    monkeypatch.setattr(metrics, "MOST_PAIRED", 500)  # the last group is one sample alone
    torch.testing.assert_close(energy_score(x, y, fair=fair), every, rtol=0, atol=0.005)


def test_energy_score_in_one_dimension_is_the_crps(rng):
    x, y = normal(rng, 30, 8), normal(rng, 8)
    for fair in (True, False):
        torch.testing.assert_close(energy_score(x[..., None], y[..., None], fair=fair), crps(x, y, fair=fair))


def test_energy_score_sees_dependence_between_features(rng):
    y = normal(rng, 4000, 1).expand(-1, 2)  # two equal features
    right = energy_score(normal(rng, 20, 4000, 1).expand(-1, -1, 2), y)
    worse = energy_score(normal(rng, 20, 4000, 2), y) - right  # right margins, wrong dependence
    assert worse.mean() > ALPHA_SIGMAS * worse.std() / math.sqrt(4000)


# Ranks

points = st.lists(st.integers(-3, 3), min_size=2, max_size=12)  # few values: many ties


def each_as_truth(values):
    """Every value once as the truth, the others as samples: (N, N + 1) and (N + 1,)."""
    v = torch.as_tensor(values, dtype=torch.float64)
    others = torch.stack([torch.cat([v[:i], v[i + 1 :]]) for i in range(len(v))], 1)
    return others, v


@settings(max_examples=50, deadline=None)
@given(points, st.floats(0.01, 0.99))
def test_exchangeable_truths_are_covered_exactly_as_often_as_stated(values, level):
    assert float(interval_coverage(*each_as_truth(values), level).mean()) == pytest.approx(level, abs=1e-12)


def test_coverage_counts_order_statistics():
    samples = torch.arange(1.0, 20)  # 19 samples: the 90 % interval is from the first to the last
    truth = torch.tensor([0.5, 1.5, 18.5, 19.5])
    wide = samples[:, None].expand(-1, 4)
    assert interval_coverage(wide, truth, 0.9).tolist() == pytest.approx([0, 1, 1, 0], abs=1e-12)
    assert interval_coverage(wide, truth, 0.95).tolist() == pytest.approx([0.5, 1, 1, 0.5])


@settings(max_examples=30, deadline=None)
@given(points)
def test_pit_of_exchangeable_truths_fills_all_gaps_alike(values):
    rng, (x, y) = torch.Generator().manual_seed(0), each_as_truth(values)
    n, repeats = len(y), 1000
    u = pit(x.repeat(1, repeats), y.repeat(repeats), rng=rng)
    assert ((u > 0) & (u < 1)).all()
    # Each truth visits its own gaps evenly, so a gap holds exactly its share up to the draws within ties.
    share = torch.histc(u, n, 0, 1) / len(u)
    assert (share - 1 / n).abs().max() < 5 * math.sqrt(1 / (n * len(u))) + 1e-9


def test_pit_is_uniform_for_the_true_law_with_few_samples(rng):
    u = pit(normal(rng, 3, 5000), normal(rng, 5000), rng=rng)
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-5
    narrow = pit(0.5 * normal(rng, 3, 5000), normal(rng, 5000), rng=rng)
    assert stats.kstest(narrow.numpy(), "uniform").pvalue < 1e-5


@pytest.mark.parametrize("p", [0.05, 0.25, 0.5, 0.9])
def test_exchangeable_truths_are_below_a_quantile_as_often_as_stated(p, rng):
    x, y = each_as_truth(normal(rng, 20).tolist())  # 19 samples: p (N + 1) is whole
    assert float((y < quantiles(x, [p])[0]).double().mean()) == pytest.approx(p)


def test_quantiles_are_those_of_numpy(rng):
    x = normal(rng, 40, 3)
    p = [0.05, 0.31, 0.5, 0.975]
    np.testing.assert_allclose(quantiles(x, p).numpy(), np.quantile(x.numpy(), p, axis=0, method="weibull"))
    width = np.quantile(x.numpy(), 0.9, axis=0, method="weibull") - np.quantile(
        x.numpy(), 0.1, axis=0, method="weibull"
    )
    np.testing.assert_allclose(interval_width(x, 0.8).numpy(), width)


# Invariance


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.floats(-50, 50), st.floats(0.1, 20))
def test_units_and_order_do_not_matter(seed, shift, scale):
    rng = torch.Generator().manual_seed(seed)
    x, y = normal(rng, 15, 4, 2), normal(rng, 4, 2)
    order = torch.randperm(15, generator=rng)
    moved = (shift + scale * x[order], shift + scale * y)
    torch.testing.assert_close(crps(*moved), scale * crps(x, y))
    torch.testing.assert_close(energy_score(*moved), scale * energy_score(x, y))
    torch.testing.assert_close(interval_coverage(*moved, 0.7), interval_coverage(x, y, 0.7))
    torch.testing.assert_close(interval_width(moved[0], 0.7), scale * interval_width(x, 0.7))
    a, b = x[:, 0, 0], y[:, 0]
    torch.testing.assert_close(
        wasserstein_1d(shift + scale * a[order], shift + scale * b), scale * wasserstein_1d(a, b)
    )


# Masks


def test_masked_entries_score_nan_and_change_nothing_else(rng):
    x, y = normal(rng, 12, 5, 3), normal(rng, 5, 3)
    mask = torch.rand(5, 3, generator=rng) > 0.4
    mask[0], mask[1] = False, torch.tensor([True, False, True])
    hidden = y.where(mask, torch.nan)
    for score in (crps, lambda a, b, mask=None: interval_coverage(a, b, 0.8, mask=mask)):
        got = score(x, hidden, mask=mask)
        assert got[~mask].isnan().all() and torch.equal(got[mask], score(x, y)[mask])
    assert pit(x, hidden, rng=rng, mask=mask).isnan().equal(~mask)
    got = energy_score(x, hidden, mask=mask)
    assert got[0].isnan()
    torch.testing.assert_close(got[1], energy_score(x[:, 1, [0, 2]], y[1, [0, 2]]))


# Means with intervals


def test_student_t():
    for dof in [*range(1, 30), 100, 10_000]:
        assert student_t(dof) == pytest.approx(stats.t.ppf(0.975, dof), rel=2e-3)


def test_mean_ci_is_the_t_interval_of_independent_values(rng):
    x = normal(rng, 25)
    got = mean_ci(x)
    low, high = stats.t.interval(0.95, 24, x.mean().item(), stats.sem(x.numpy()))
    assert got["mean"] == pytest.approx(x.mean().item()) and got["n"] == got["num_groups"] == 25
    assert 2 * got["ci95"] == pytest.approx(high - low, rel=1e-4)


def test_mean_ci_of_equal_groups_is_that_of_their_means(rng):
    x = normal(rng, 12, 7, 2)
    got, means = mean_ci(x, torch.arange(12)), mean_ci(x.mean((1, 2)))
    assert got["ci95"] == pytest.approx(means["ci95"]) and got["mean"] == pytest.approx(means["mean"])
    assert (got["n"], got["num_groups"]) == (168, 12)
    torch.testing.assert_close(mean_ci(x, torch.arange(12) // 2), mean_ci(x.reshape(6, -1), torch.arange(6)))


def test_mean_ci_holds_95_percent_where_values_depend_within_groups(rng):
    hits = [0, 0]
    for _ in range(400):
        x = normal(rng, 20, 1) + 0.5 * normal(rng, 20, 8)
        for k, got in enumerate((mean_ci(x, torch.arange(20)), mean_ci(x))):
            hits[k] += abs(got["mean"]) < got["ci95"]
    assert 0.90 < hits[0] / 400 < 0.99 and hits[1] / 400 < 0.75  # counting values as independent fails


def test_mean_ci_leaves_out_nan():
    x = torch.tensor([[1.0, torch.nan], [3.0, 5.0], [torch.nan, torch.nan]])
    got = mean_ci(x, torch.arange(3))
    assert (got["mean"], got["n"], got["num_groups"]) == (3.0, 3, 2)
    assert mean_ci(torch.full((3,), torch.nan)) == {"mean": None, "ci95": None, "n": 0, "num_groups": 0}
    assert mean_ci(torch.ones(3), torch.zeros(3, dtype=torch.long))["ci95"] is None


def test_full_coverage_of_few_truths_is_not_certain():
    got = coverage_ci(torch.ones(20), 0.95, torch.arange(20))
    assert got["mean"] == 1 and got["ci95"] == pytest.approx(1.96 * math.sqrt(0.95 * 0.05 / 20), rel=1e-3)


def test_pit_histogram_and_its_band(rng):
    u = torch.rand(500, generator=rng)
    got = pit_histogram(u, num_bins=5)
    np.testing.assert_allclose(got["fraction"], np.histogram(u.numpy(), 5, (0, 1))[0] / 500)
    n = got["n_independent"]
    assert n == pytest.approx(500, rel=0.01)
    assert [got["low"] * n, got["high"] * n] == pytest.approx(stats.binom.ppf([0.025, 0.975], n, 0.2))
    repeated = pit_histogram(u[:, None].expand(-1, 6), num_bins=5, groups=torch.arange(500))
    assert repeated["n"] == 3000 and repeated["n_independent"] == pytest.approx(500, rel=0.01)
    assert pit_histogram(u, groups=torch.zeros(500, dtype=torch.long))["low"] is None


# Distances between laws


def test_wasserstein_is_that_of_scipy(rng):
    a, b = normal(rng, 31, 3), 2 * normal(rng, 17, 3) + 1
    want = [stats.wasserstein_distance(a[:, k], b[:, k]) for k in range(3)]
    np.testing.assert_allclose(wasserstein_1d(a, b).numpy(), want, rtol=1e-12)
    assert float(wasserstein_1d(a[:, 0], a[:, 0] + 2)) == pytest.approx(2)


def test_energy_distance_is_that_of_scipy_in_one_dimension(rng, monkeypatch):
    a, b = normal(rng, 60, 1), 2 * normal(rng, 41, 1) + 1
    want = stats.energy_distance(a[:, 0], b[:, 0]) ** 2
    assert energy_distance(a, b) == pytest.approx(want, rel=1e-12)
    monkeypatch.setattr(metrics, "MAX_PAIRS", 100)  # in parts
    assert energy_distance(a, b) == pytest.approx(want, rel=1e-12)


def test_energy_distance_in_several_dimensions(rng):
    a, b = normal(rng, 30, 4), normal(rng, 20, 4) + 0.5
    ab, aa, bb = cdist(a, b).mean(), cdist(a, a), cdist(b, b)
    assert energy_distance(a, b) == pytest.approx(2 * ab - aa.mean() - bb.mean())
    assert energy_distance(a, b, unbiased=True) == pytest.approx(2 * ab - aa.sum() / (30 * 29) - bb.sum() / (20 * 19))
    assert energy_distance(a, a) == pytest.approx(0, abs=1e-12)


def test_unbiased_energy_distance_of_one_law_is_zero_on_average(rng):
    values = torch.tensor([energy_distance(normal(rng, 8, 2), normal(rng, 6, 2), unbiased=True) for _ in range(500)])
    assert near(values, 0.0)


# The door


def test_bad_input_is_refused(rng):
    x, y = normal(rng, 5, 4), normal(rng, 4)
    with pytest.raises(ValueError, match=r"must have shape \(N, \*truth\) for a truth of shape \(4,\). Got \(4, 5\)"):
        crps(x.T, y)
    with pytest.raises(ValueError, match=r"at least 2 samples. Got 1. Draw more"):
        crps(x[:1], y)
    with pytest.raises(ValueError, match=r"`mask` must have the shape of truth, \(4,\). Got \(2,\)"):
        crps(x, y, mask=torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"`truth` must be finite. Got nan at \(1,\). Mask what is missing"):
        interval_coverage(x, torch.tensor([0, torch.nan, 0, 0]), 0.5)
    with pytest.raises(ValueError, match=r"`samples` must be finite. Got -?inf"):
        pit(x / 0, y, rng=rng)
    with pytest.raises(ValueError, match=r"`level` must be between 0 and 1. Got 95. For 90 % write 0.9"):
        interval_coverage(x, y, 95.0)
    with pytest.raises(ValueError, match=r"A probability of 0.025 needs 39 samples. Got 5"):
        interval_width(x, 0.95)
    assert interval_width(normal(rng, 39), 0.95) > 0
    with pytest.raises(ValueError, match=r"`groups` must name one per row of \(5, 4\). Got \(4,\)"):
        mean_ci(x, torch.arange(4))
    with pytest.raises(ValueError, match="needs at least one value"):
        pit_histogram(torch.full((3,), torch.nan))
    with pytest.raises(ValueError, match=r"values of one shape. Got \(5, 4\) and \(5, 3\)"):
        energy_distance(x, x[:, :3])
    with pytest.raises(ValueError, match="at least 2 sample"):
        energy_distance(x, x[:1], unbiased=True)
    with pytest.raises(ValueError, match=r"Samples must be finite. Got nan"):
        wasserstein_1d(x, x * torch.nan)
