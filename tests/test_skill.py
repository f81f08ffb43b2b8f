"""Scores of models whose law is known, and of the references."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from toy_models import field_model
from walk_paths import DIFFUSION, DRIFT, walk_model, walks

import neuralsde as nsde
from neuralsde.baselines.config import RectifiedFlowConfig
from neuralsde.forecast import skill
from neuralsde.forecast.futures import forecasts, futures
from neuralsde.forecast.references import climatology, random_walk
from neuralsde.forecast.report import score_table
from neuralsde.forecast.skill import evaluate_forecasts, negative_log_likelihood, score_forecasts
from neuralsde.models.build import build
from neuralsde.nets.config import MLPConfig


def agrees(score, wanted, sigmas=4.5):
    return abs(score["mean"] - wanted) < sigmas * score["ci95"] / 1.96


@pytest.fixture(scope="module")
def right():
    """The scores of the true law."""
    data = walks(np.random.default_rng(0))
    return evaluate_forecasts(walk_model(), data, horizon=3.0, num_times=8, num_paths=100, origins_per_path=2), data


def test_the_true_law_is_calibrated(right):
    scores, _ = right
    for level in ("0.5", "0.8", "0.95"):
        assert agrees(scores["coverage"][level], float(level)) and scores["coverage"][level]["ci95"] < 0.05
    for point in scores["reliability"]:
        assert agrees(point, point["level"])
    pit = scores["pit"]
    assert 240 < pit["n_independent"] < pit["n"] / 2  # between the paths and all values
    assert sum(pit["low"] <= f <= pit["high"] for f in pit["fraction"]) >= 7


def test_scores_of_the_true_law_have_their_closed_forms(right):
    scores, data = right
    unit = data.states.double().std(0, correction=0)
    for at in scores["crps_by_lead"]:  # the CRPS of a Gaussian law at its own draws is std / sqrt(pi) on average
        std = DIFFUSION * math.sqrt(at["lead"])
        assert agrees(at, float((std / unit).mean()) / math.sqrt(math.pi), sigmas=5)
    assert len(scores["crps_by_lead"]) == 10 and scores["num_origins"] == 240
    longest = forecasts(walk_model(), data, horizon=3.0, num_times=8, num_paths=2, origins_per_path=2)
    lead = longest.lead[longest.mask[..., 0]]
    for k in range(2):
        assert agrees(scores["rmse_by_feature"][k], DIFFUSION * math.sqrt(lead.mean()))
        assert agrees(scores["crps_by_feature"][k], DIFFUSION * float(lead.sqrt().mean()) / math.sqrt(math.pi))
    width = 2 * stats.norm.ppf(0.9) * DIFFUSION * float(lead.sqrt().mean() * (1 / unit).mean())
    assert scores["width"]["0.8"]["mean"] == pytest.approx(width, rel=0.02)


def test_the_likelihood_is_that_of_each_observation(right):
    scores, data = right
    terms, path = [], []
    for p in range(len(data)):
        x, t = (v.double().numpy() for v in data[p])
        dt = np.diff(t)[:, None]
        law = stats.norm(x[:-1] + DRIFT * dt, DIFFUSION * np.sqrt(dt))
        terms.append(-law.logpdf(x[1:]).sum(1))
        path.append(np.full(len(dt), p))
    each = np.concatenate(terms)
    assert scores["nll"]["mean"] == pytest.approx(each.mean(), abs=1e-4)
    assert (scores["nll"]["n"], scores["nll"]["num_groups"]) == (len(each), len(data))
    sums = np.array([(t - each.mean()).sum() for t in terms])
    half = stats.t.ppf(0.975, 119) * math.sqrt(120 / 119 * (sums**2).sum()) / len(each)
    assert scores["nll"]["ci95"] == pytest.approx(half, rel=1e-3)


def test_no_likelihood_is_none(right):
    flow = field_model((2,), flow=lambda x, c: 0 * x)
    assert negative_log_likelihood(flow, right[1]) is None


def test_models_of_any_kind_are_scored(np_rng):
    """At the step of the data, the only one that the baselines know."""
    data = walks(np_rng, 10, regular=True)
    config = RectifiedFlowConfig(net=MLPConfig(width=8, depth=1), target="increment", history=2)
    model = build(config, data.transitions(history=2))
    scores = evaluate_forecasts(model, data, horizon=3.0, num_paths=40)
    assert scores["nll"] is None and scores["crps"]["n"] == 10 * 10 * 2


def test_a_random_walk_has_no_skill_over_a_random_walk(right):
    references = right[0]["references"]
    assert agrees(references["random_walk"]["skill"], 0.0) and references["random_walk"]["skill"]["ci95"] < 0.05
    assert agrees(references["random_walk"]["coverage"]["0.8"], 0.8)
    assert references["climatology"]["skill"]["mean"] > 0.3


def test_wrong_laws_score_worse(right):
    scores, data = right
    for wider, narrow in ((2.0, False), (0.5, True)):
        options = {"horizon": 3.0, "num_times": 8, "num_paths": 100, "origins_per_path": 2}
        worse = evaluate_forecasts(walk_model(wider), data, **options)
        assert worse["crps"]["mean"] > 1.03 * scores["crps"]["mean"]
        assert worse["energy_score"]["mean"] > 1.03 * scores["energy_score"]["mean"]
        assert worse["nll"]["mean"] > scores["nll"]["mean"] + 0.3
        assert worse["references"]["random_walk"]["skill"]["mean"] < -0.03
        assert (worse["coverage"]["0.8"]["mean"] < 0.6) is narrow and (
            worse["coverage"]["0.8"]["mean"] > 0.95
        ) is not narrow
        assert worse["width"]["0.8"]["mean"] == pytest.approx(wider * scores["width"]["0.8"]["mean"], rel=0.05)


def test_the_interval_of_a_root_follows_its_slope():
    assert skill._root({"mean": 4.0, "ci95": 0.04, "n": 9}) == {"mean": 2.0, "ci95": 0.01, "n": 9}  # 1.99² to 2.01²
    assert skill._root({"mean": 0.0, "ci95": 0.0, "n": 9})["mean"] == 0


def test_units_of_the_data_change_only_raw_scores(np_rng):
    data = walks(np_rng, 20, regular=True)
    model = walk_model()
    made = forecasts(model, data, horizon=3.0, num_paths=50)
    factor = torch.tensor([10.0, 0.1])
    scaled = nsde.Trajectories(data.states * factor, data.times, data.lengths)
    parts = {k: getattr(made, k) * factor for k in ("start", "samples", "truth")}
    a, b = score_forecasts(made, data), score_forecasts(type(made)(**(vars(made) | parts)), scaled)
    for key in ("crps", "energy_score", "rmse"):
        assert a[key]["mean"] == pytest.approx(b[key]["mean"], rel=1e-5)
        assert a["references"]["random_walk"][key]["mean"] == pytest.approx(
            b["references"]["random_walk"][key]["mean"], rel=1e-5
        )
    for k in range(2):
        assert b["rmse_by_feature"][k]["mean"] == pytest.approx(
            float(factor[k]) * a["rmse_by_feature"][k]["mean"], rel=1e-5
        )
    assert [x["mean"] for x in a["reliability"]] == pytest.approx([x["mean"] for x in b["reliability"]])


def test_scores_in_parts_are_the_same(np_rng, monkeypatch):
    data = walks(np_rng, 8)
    made = forecasts(walk_model(), data, horizon=3.0, num_paths=50)
    whole = score_forecasts(made, data)
    monkeypatch.setattr(skill, "MAX_ELEMENTS", 1)
    parts = score_forecasts(made, data)
    assert whole["crps"] == pytest.approx(parts["crps"]) and whole["coverage"] == parts["coverage"]


def test_scores_are_plain_numbers(right):
    again = json.loads(json.dumps(right[0], allow_nan=False))
    assert again == right[0]


def test_one_path_takes_its_origins_as_the_unit(np_rng):
    long = nsde.Trajectories.from_arrays(np_rng.standard_normal((1, 300, 2)).cumsum(1), dt=0.5)
    scores = evaluate_forecasts(walk_model(), long, horizon=5.0, num_paths=50, origins_per_path=12)
    assert scores["independent"] == "origin" and scores["crps"]["num_groups"] == scores["num_origins"] == 12
    assert scores["nll"]["ci95"] is None  # one path


def test_missing_entries_are_not_scored(np_rng):
    states = np_rng.standard_normal((12, 40, 2)).cumsum(1)
    states[np_rng.random(states.shape) < 0.3] = np.nan
    data = nsde.Trajectories.from_arrays(states, missing=True)
    made = forecasts(walk_model(), data, horizon=8.0, num_paths=50)
    scores = score_forecasts(made, data)
    assert scores["crps"]["n"] == int(made.mask.sum()) < made.mask.numel()
    assert math.isfinite(scores["energy_score"]["mean"])


def test_too_few_samples_for_the_intervals(np_rng):
    with pytest.raises(ValueError, match=r"A probability of 0.025 needs 39 samples. Got 20"):
        evaluate_forecasts(walk_model(), walks(np_rng, 3), horizon=3.0, num_paths=20)


def test_futures_cannot_be_scored(np_rng):
    data = walks(np_rng, 3)
    with pytest.raises(ValueError, match=r"without any truth cannot be scored. Make them with `forecasts`"):
        score_forecasts(futures(walk_model(), data, horizon=1.0, num_paths=50), data)


def test_padding_beyond_the_end_of_every_path_is_harmless():
    times = [np.array([0.0, 1.0, 2.0, 9.0, 10.0]), np.arange(11.0)]
    data = nsde.Trajectories.from_arrays([np.ones((5, 2)) * np.arange(5)[:, None], np.ones((11, 2))], times)
    made = forecasts(walk_model(dt_ref=5.0), data, horizon=7.0, num_paths=50, origins_per_path=9)
    assert made.lead.max() > 10
    assert score_forecasts(made, data)["horizon"] == 7.0


# References


def test_references_do_not_see_the_path_they_forecast(rng):
    states = torch.stack([torch.arange(20.0), -torch.arange(20.0), 100 + 0 * torch.arange(20.0)])[..., None]
    data = nsde.Trajectories.from_arrays(states)
    lead = torch.tensor([[1.0, 3.0]] * 3, dtype=torch.float64)
    start, path, origin = torch.zeros(3, 1), torch.arange(3), torch.zeros(3, dtype=torch.float64)
    x = random_walk(data, start, path, lead, origin=origin, num_paths=50, rng=rng)[..., 0]
    assert x.shape == (3, 50, 2)
    for p, others in enumerate(({-1.0, 0.0}, {1.0, 0.0}, {1.0, -1.0})):
        assert set(x[p, :, 0].tolist()) == others and set(x[p, :, 1].tolist()) == {3 * v for v in others}
    y = climatology(data, path, origin=origin, num_paths=200, rng=rng)[..., 0]
    assert y[0].min() < 0 and (y[0] <= 0).logical_or(y[0] == 100).all() and y[2].max() < 100


def test_references_of_one_path_come_from_before_the_origin(rng):
    steps = torch.where(torch.arange(40) < 20, 1.0, -1.0)
    data = nsde.Trajectories.from_arrays(steps.cumsum(0)[None, :, None])  # up to 20, and down again
    lead = torch.tensor([[1.0, 8.0]] * 3, dtype=torch.float64)
    origin, path = torch.tensor([4.0, 12.0, 19.0], dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    x = random_walk(data, torch.zeros(3, 1), path, lead, origin=origin, num_paths=50, rng=rng)[..., 0]
    assert x[0].isnan().all() and x[1, :, 1].isnan().all()  # too few increments of that lead so far
    assert (x[1, :, 0] == 1).all() and (x[2] == lead[2]).all()
    y = climatology(data, path, origin=origin, num_paths=300, rng=rng)[..., 0]
    assert y[0].isnan().all() and set(y[1].tolist()) == set(range(1, 14)) and set(y[2].tolist()) == set(range(1, 21))


def test_forecasts_without_a_past_count_for_the_model_alone(np_rng):
    line = nsde.Trajectories.from_arrays(np.linspace(0, 1, 60)[None, :, None] + 0.001 * np_rng.random((1, 60, 2)))
    options = {"horizon": 3.0, "num_times": 3, "num_paths": 50}
    scores = evaluate_forecasts(walk_model(), line, origins_per_path=19, **options)
    climate = scores["references"]["climatology"]
    assert 0 < climate["crps"]["n"] < scores["crps"]["n"] and climate["coverage"]["0.8"]["mean"] == 0  # all are higher
    assert climate["skill"]["n"] == climate["crps"]["n"]
    first = evaluate_forecasts(walk_model(), line, origins_per_path=1, **options | {"horizon": 55.0})
    assert first["references"] == {} and "NLL" in score_table(first)


def test_other_paths_may_serve_as_reference(np_rng):
    data = walks(np_rng, 6, regular=True)
    other = nsde.Trajectories(data.states + 1000, data.times, data.lengths)
    made = forecasts(walk_model(), data, horizon=3.0, num_paths=50)
    scores = score_forecasts(made, data, reference=other)["references"]
    assert scores["climatology"]["rmse_by_feature"][0]["mean"] == pytest.approx(1000, rel=0.05)
    assert scores["random_walk"]["rmse_by_feature"][0]["mean"] < 10


def test_leads_that_a_reference_does_not_have_are_those_of_its_steps(rng):
    data = nsde.Trajectories.from_arrays([np.array([[0.0], [2.0], [0.0], [2.0]])])
    lead = torch.tensor([[0.25, 100.0]], dtype=torch.float64)
    x = random_walk(data, torch.zeros(1, 1), None, lead, origin=lead[:, 0], num_paths=50, rng=rng)[0, ..., 0]
    assert set(x[:, 0].tolist()) == {-1.0, 1.0} and set(x[:, 1].tolist()) == {-20.0, 20.0}


def test_the_random_walk_has_the_spread_of_the_increments_at_every_lead(np_rng, rng):
    data = walks(np_rng, 200)
    lead = torch.linspace(0.05, 4, 60, dtype=torch.float64)[None].repeat(200, 1)  # more leads than are collected
    options = {"origin": lead[:, 0], "num_paths": 20, "rng": rng}
    x = random_walk(data, torch.zeros(200, 2), torch.arange(200), lead, **options).flatten(0, 1)
    for k in (0, 5, 20, 59):
        assert float(x[:, k].std(0).mean()) == pytest.approx(DIFFUSION * math.sqrt(lead[0, k]), rel=0.1)
