"""The systems with a known truth are what they say, and what is scored against them is scored rightly."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import CoxIngersollRoss, DoubleWell
from scipy import stats

import neuralsde as nsde
from neuralsde.experiments import compare
from neuralsde.experiments.config import KnownSDEConfig
from neuralsde.experiments.recipes import known_sdes as recipes
from neuralsde.experiments.tasks import known_sdes
from neuralsde.experiments.tasks.systems import SYSTEMS, bridge_log_prob
from neuralsde.models.build import build
from neuralsde.nets.config import MLPConfig
from neuralsde.sde.config import Sampler
from neuralsde.sde.fields import Fields

ALL = list(SYSTEMS)


@pytest.fixture
def small(monkeypatch):
    """Scores on few states."""
    for name, value in (("NUM_STATES", 2000), ("NUM_PAIRS", 1500), ("NUM_LAW", 250), ("NUM_FORECASTS", 400)):
        monkeypatch.setattr(known_sdes, name, value)


@pytest.mark.parametrize("name", ALL)
def test_the_true_coefficients_of_the_family_give_the_drift(name, np_rng):
    system = SYSTEMS[name]()
    x = system.first_states(50, np_rng)
    torch.testing.assert_close(system.basis(x) @ torch.tensor(system.coefficients, dtype=x.dtype), system.drift(x))
    assert x.shape == (50, system.dim) and system.diffusion(x).shape == (50, system.dim)


@pytest.mark.parametrize("name", ALL)
def test_short_steps_have_the_moments_of_the_fields(name, np_rng):
    system, num, dt = SYSTEMS[name](), 60_000, 1e-3
    x = system.first_states(1, np_rng)
    y = system.simulate(x.expand(num, -1), torch.tensor([[0.0, dt]]).expand(num, 2), np_rng)[:, 1]
    f, g = system.drift(x)[0], system.diffusion(x)[0]
    error = g * math.sqrt(dt / num)
    assert bool((((y - x).mean(0) - f * dt).abs() < 5 * error + 0.02 * dt * f.abs()).all())
    torch.testing.assert_close((y - x).std(0), g * math.sqrt(dt), rtol=0.03, atol=0.0)


@pytest.mark.parametrize("name", ["ou", "cir", "double_well", "ou10"])
def test_the_stationary_law_stays(name, np_rng):
    system = SYSTEMS[name]()
    x = system.first_states(4000, np_rng)
    y = system.simulate(x, torch.tensor([[0.0, 1.5]]).expand(len(x), 2), np_rng)[:, 1]
    for a, b in zip(x.T, y.T):
        assert stats.ks_2samp(a, b).pvalue > 1e-4


def test_a_path_that_overshoots_on_its_way_to_the_start_is_run_anew():
    x = SYSTEMS["van_der_pol"]().first_states(20_000, np.random.default_rng(known_sdes.HELD_OUT + 3))
    assert bool(x.isfinite().all())


def test_known_densities(np_rng):
    """Bridges against the noncentral chi-square law of CIR and the Chapman-Kolmogorov kernel of the double well."""
    for name, problem in (("cir", CoxIngersollRoss(dt=0.05)), ("double_well", DoubleWell(dt=0.1))):
        system = SYSTEMS[name]()
        x = system.first_states(300, np_rng)
        dt = torch.full((300,), problem.dt, dtype=torch.float64)
        y = system.simulate(x, torch.stack([0 * dt, dt], 1), np_rng)[:, 1]
        got = system.log_prob(x, y, dt)
        error = got - torch.from_numpy(problem.log_prob(x[:, 0].numpy(), y[:, 0].numpy()))
        assert abs(float(error.mean())) < 3e-3 and float(error.abs().median()) < 0.02


@pytest.mark.parametrize("name", ["ou", "ou10", "gbm"])
def test_exact_densities_agree_with_bridges(name, np_rng):
    system = SYSTEMS[name]()
    x = system.first_states(100, np_rng)
    dt = torch.linspace(0.01, 0.05, 100, dtype=torch.float64)
    y = system.simulate(x, torch.stack([0 * dt, dt], 1), np_rng)[:, 1]
    exact = system.log_prob(x, y, dt)
    estimate = bridge_log_prob(system.drift, system.diffusion, x, y, dt[:, None], rng=np_rng)
    assert abs(float((exact - estimate).mean())) < 0.02 * system.dim


def test_stamps_are_spread_as_asked():
    config = KnownSDEConfig(system="ou", num_transitions=20_000, gap_ratio=20.0)
    data = known_sdes.KnownSDETask(config).data()
    gaps = data.transitions().spread(20_000).dt
    assert float(gaps.mean()) == pytest.approx(0.05, rel=0.02)
    assert float(gaps.max() / gaps.min()) == pytest.approx(20.0, rel=0.02)
    assert known_sdes.KnownSDETask(replace(config, gap_ratio=1.0)).data().transitions().spread(100).dt.std() < 1e-6


def test_missing_and_noisy_observation():
    config = KnownSDEConfig(system="van_der_pol", num_transitions=4_000)
    clean = known_sdes.KnownSDETask(config).data()
    noisy = known_sdes.KnownSDETask(replace(config, measurement=2.0)).data()
    size = float((noisy.states - clean.states).std())
    assert size == pytest.approx(2.0 * 0.5 * math.sqrt(0.05), rel=0.05)
    some = known_sdes.KnownSDETask(replace(config, missing=0.3)).data()
    assert some.observed is not None
    assert 1 - float(some.observed.float().mean()) == pytest.approx(
        0.3 * 0.7 / 0.91, abs=0.03
    )  # empty rows are dropped


class TrueFields(Fields):
    """Fields that know; `model` is set from outside."""

    def coefficients(self, state, condition, sampler, signs, *, correction):
        model = self.model
        x = model.scale.raw(state[:, -1]).double()
        unit, step = model.scale.std, model.scale.step
        f = (model.system.drift(x).float() * step / unit) * model.factor[0]
        g = (model.system.diffusion(x).float() * step**0.5 / unit) * model.factor[1]
        c = super().coefficients(state, condition, sampler, signs, correction=correction)
        return replace(c, drift=f, diffusion=g)


class Truth(nsde.NeuralSDE):
    """A model that knows: what the scores give it is their floor."""

    def _fields(self):
        fields = TrueFields(*vars(super()._fields()).values())
        object.__setattr__(fields, "model", self)
        return fields


def known_model(name, factor=(1.0, 1.0), **task):
    config = KnownSDEConfig(system=name, num_transitions=4_000, **task)
    run = recipes.start(name)
    small = replace(
        run.model, net=MLPConfig(width=4, depth=1), sampler=Sampler(substeps=2)
    )  # what it gives is replaced
    model = build(small, known_sdes.KnownSDETask(config).data().transitions())
    model.__class__, model.system, model.factor = Truth, SYSTEMS[name](), factor
    return model, config


@pytest.mark.parametrize("name", ["ou", pytest.param("cir", marks=pytest.mark.slow)])
def test_the_truth_scores_best(name, small):
    model, config = known_model(name)
    scores = known_sdes.KnownSDETask(config).score(model).values
    assert scores["drift_error"] < 1e-5 and scores["diffusion_error"] < 1e-5
    assert abs(scores["excess_nll"]) < 0.008  # a Gaussian step is not the law of CIR
    assert abs(scores["coverage_80"] - 0.8) < 0.035 and abs(scores["coverage_95"] - 0.95) < 0.02
    assert scores["energy_10_steps"] < 3 * scores["energy_10_steps_floor"] + 2e-3


def test_wrong_fields_score_worse(small):
    model, config = known_model("ou", (1.3, 1.0))
    assert known_sdes.field_errors(model, config)["drift_error"] == pytest.approx(0.3, abs=1e-3)
    model, config = known_model("ou", (1.0, 0.7))
    assert known_sdes.field_errors(model, config)["diffusion_error"] == pytest.approx(0.3, abs=1e-3)
    assert known_sdes.coverage(model, config, model.sampler)["coverage_80"] < 0.72
    assert known_sdes.excess_nll(model, config)["excess_nll"] > 0.05


def test_the_true_family_is_fitted_by_maximum_likelihood(small):
    """Against the exact maximum for OU, whose transition is Gaussian with mean e^-a·dt x."""
    config = KnownSDEConfig(system="ou", num_transitions=20_000)
    data = known_sdes.KnownSDETask(config).data()
    pairs = data.transitions().spread(20_000)
    x, y = pairs.history[:, 0, 0].double(), pairs.next[:, 0].double()
    decay = float((x * y).sum() / (x * x).sum())
    rate = -math.log(decay) / 0.05
    got = known_sdes.parametric(data, config)
    assert got["parametric_drift_error"] == pytest.approx(abs(rate - 1), abs=2e-3)
    assert got["parametric_diffusion_error"] < 0.02


WAYS = ("start", "interpolated", "paper's equation", "authors' code")


def test_every_row_of_the_comparison_can_be_built():
    rows = recipes.comparison()
    assert {r.task.system for r in rows.values()} == set(ALL)
    for system in recipes.CORE:
        for kind in (*WAYS, "start, irregular", "interpolated, irregular"):
            assert f"{system}, {kind}" in rows


def test_a_failing_run_costs_no_other(monkeypatch):
    def work(label, experiment, run_dir, cpu):
        if label == "bad":
            raise FloatingPointError("not finite")
        return label, experiment, {}

    monkeypatch.setattr(compare, "work", work)
    monkeypatch.setattr(compare, "worker_pool", ThreadPoolExecutor)
    done = []
    with pytest.raises(FloatingPointError, match="not finite"):
        for label, _, _ in compare.run_all([(name, recipes.start(), None) for name in ("bad", "good", "better")], 1):
            done.append(label)
    assert sorted(done) == ["better", "good"]


@pytest.mark.slow
def test_measurement_noise_is_told_from_diffusion():
    """OU with a measurement noise as large as the noise of a step: lags tell them apart, one lag inflates g by 1.7."""
    run = recipes.measured(learned=True)
    task = replace(run.task, num_transitions=60_000)
    data = known_sdes.KnownSDETask(task).data()
    model = build(run.model, data.transitions(lag=task.lag))
    nsde.fit(model, data, steps=600, batch_size=512, lr=1e-2, progress=False)
    errors = known_sdes.field_errors(model, task)
    assert errors["diffusion_error"] < 0.1
    assert float(model.measurement_std) == pytest.approx(math.sqrt(2 * 0.05), rel=0.1)
    x = np.array([[1.0]])
    assert float(model.fields(x)[0]) == pytest.approx(-1.0, abs=0.25)
    # Forecasts of measurements from measurements are calibrated only with the noise of both
    data = known_sdes.KnownSDETask(replace(task, num_transitions=10_000)).data(seed=1)
    covered = {
        measured: nsde.evaluate_forecasts(
            model, data, horizon=0.1, origins_per_path=20, num_paths=79, sampler=Sampler(measured=measured)
        )["coverage"]["0.8"]["mean"]
        for measured in (True, False)
    }
    assert abs(covered[True] - 0.8) < 0.05 < 0.8 - covered[False]
    assert model.forecast_sampler.measured
