"""Polynomial flows: found by least squares, with few terms, by the law of a step."""

import math
import re
import warnings

import numpy as np
import pytest
import torch
from tests.support.problems import DoubleWell, OrnsteinUhlenbeck

import neuralsde as nsde
from neuralsde.nets.backbone import Form
from neuralsde.nets.config import PolynomialConfig
from neuralsde.nets.polynomial import PolynomialNet
from neuralsde.selection.stack import fit_together

NET = PolynomialConfig(width=16, depth=1)
EXACT = {"net": NET, "noise": 0.0, "denoiser": None}


def solved(x, y, **more):
    net = PolynomialNet(NET, Form((x.shape[1],)))
    net.solve(x[:, None], None, y, **more)
    return net.eval()


def lotka(x):
    """Predators and prey: two terms each."""
    return torch.stack([x[:, 0] - x[:, 0] * x[:, 1], 0.5 * x[:, 0] * x[:, 1] - x[:, 1]], 1)


def test_a_polynomial_is_found_with_its_terms():
    x = 1.3 + 0.4 * torch.randn(4_000, 2, generator=torch.Generator().manual_seed(0))
    y = lotka(x) + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    around_mean, raw = solved(x - 1, y), solved(x - 1, y, zero=torch.full((2,), -1.0))
    assert raw.num_terms == 4 < around_mean.num_terms
    torch.testing.assert_close(raw(x[:, None] - 1), lotka(x), atol=0.02, rtol=0.05)


def test_what_is_left_gives_what_all_terms_give():
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    net = solved(x, x @ torch.ones(3, 3))
    torch.testing.assert_close(net(x[:, None]), net.train()(x[:, None]))


def test_of_noise_nothing_is_left():
    x, y = (torch.randn(5_000, 2, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
    assert solved(x, y).num_terms <= 1


def test_of_random_walks_few_terms_are_left():
    """Levels that wander go with their steps by chance, more often than the tests of single terms say."""
    left = []
    for seed in range(5):
        x = torch.randn(1_500, 4, generator=torch.Generator().manual_seed(seed)).cumsum(0)
        left.append(solved(x[:-1] / x.std(0), x.diff(dim=0)).num_terms)
    assert sum(left) / 5 < 6, left


def test_it_weighs_rows_by_their_variance():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20_000, 1, generator=generator)
    std = torch.where(x < 0.5, 0.01, 10.0)
    y = 2 * x + std * torch.randn(x.shape, generator=generator)
    plain, weighted = solved(x, y), solved(x, y, weight=std**-2)
    at = torch.tensor([[[0.3]]])
    assert abs(float(weighted(at)) - 0.6) < 0.01
    assert abs(float(plain(at)) - 0.6) > 0.01


def test_beyond_the_data_it_goes_on_along_its_tangent_but_not_for_long():
    x = torch.linspace(-1, 1, 400)[:, None]
    net = solved(x, x**3, zero=torch.zeros(1))
    far = net(torch.tensor([[[1.0]], [[1.1]], [[3.0]]]))[:, 0]
    torch.testing.assert_close(far, torch.tensor([1.0, 1.3, 1.5]), atol=1e-3, rtol=0)


def test_inputs_that_are_constant_or_alike_do_no_harm():
    x = torch.randn(2_000, 1, generator=torch.Generator().manual_seed(0))
    both = torch.cat([x, x, torch.zeros_like(x)], 1)
    net = solved(both, both)
    torch.testing.assert_close(net(both[:, None]), both, atol=1e-3, rtol=1e-3)


def test_many_inputs_have_fewer_powers():
    assert PolynomialNet(NET, Form((6,))).factors.shape == (84, 3)
    assert PolynomialNet(NET, Form((12,))).factors.shape == (91, 2)
    assert PolynomialNet(NET, Form((120,))).factors.shape == (121, 1)
    with pytest.raises(ValueError, match=r"A polynomial takes up to 128 inputs, .* Got 400\. Use MLPConfig"):
        PolynomialNet(NET, Form((400,)))


@pytest.fixture(scope="module", params=["even", "wide"])
def well(request):
    """A model of a double well, by the moments of its gaps: 0.1 everywhere, or up to 0.8."""
    problem = DoubleWell(dt=0.1)
    paths = problem.paths(np.random.default_rng(0), 400, 200)
    if request.param == "wide":  # what was seen in between is left out
        rng = np.random.default_rng(1)
        seen = [np.concatenate([[0], rng.choice([1, 1, 2, 8], 40).cumsum()]) for _ in paths]
        data = nsde.Trajectories.from_arrays(
            [p[k[k < 200]] for p, k in zip(paths, seen)], [0.1 * k[k < 200] for k in seen]
        )
    else:
        data = nsde.Trajectories.from_arrays(paths, dt=0.1)
    model = nsde.NeuralSDE.for_data(data, law=nsde.Moments(), **EXACT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nsde.fit(model, data, steps=150, batch_size=512, lr=5e-3, progress=False)
    return model


def test_the_drift_is_that_of_continuous_time(well):
    """By the mean of each gap: Euler's regression reads the slope at the wells as (1 - e^-2Δt) / Δt, a tenth less at 0.1."""
    x = np.linspace(-1.4, 1.4, 29)[:, None]
    f, g = (v.numpy() for v in well.fields(x))
    truth = x - x**3
    error = math.sqrt(float(((f - truth) ** 2).mean() / (truth**2).mean()))
    assert error < 0.08
    assert well.nets["flow"].num_terms <= 3
    np.testing.assert_allclose(g[5:-5], 0.5, rtol=0.06)


def test_euler_reads_another_drift():
    data = nsde.Trajectories.from_arrays(DoubleWell(dt=0.4).paths(np.random.default_rng(0), 400, 100), dt=0.4)
    by_law = [nsde.NeuralSDE.for_data(data, law=law, **EXACT) for law in (nsde.Euler(), nsde.Moments())]
    slopes = [float(m.fields([[1.1]])[0] - m.fields([[0.9]])[0]) / 0.2 for m in by_law]
    assert slopes[0] > -1.6 and abs(slopes[1] + 2.03) < 0.2


def test_it_is_saved_and_loaded(well, tmp_path):
    well.save_pretrained(tmp_path / "m")
    again = nsde.load(tmp_path / "m")
    x = np.linspace(-2, 2, 9)[:, None]
    assert torch.equal(again.fields(x)[0], well.fields(x)[0])
    paths = [m.sample(x, [0.0, 0.5, 1.0], num_paths=3, rng=0) for m in (well, again)]
    assert torch.equal(*paths)


def test_a_stopped_training_goes_on_to_the_same_numbers(tmp_path):
    data = nsde.Trajectories.from_arrays(OrnsteinUhlenbeck(dt=0.3).paths(np.random.default_rng(0), 50, 50), dt=0.3)

    def run(folder, **more):
        model = nsde.NeuralSDE.for_data(data, law=nsde.Moments(), **EXACT)
        return nsde.fit(
            model, data, steps=40, batch_size=64, progress=False, checkpoint_every=10, run_dir=folder, **more
        )

    whole = run(tmp_path / "whole")
    run(tmp_path / "half")
    last = sorted((tmp_path / "half").rglob("*40*"))
    for path in last:  # as if it had been killed after step 30
        if path.is_dir():
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        elif path.exists():
            path.unlink()
    resumed = run(tmp_path / "half", resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_models_side_by_side_keep_their_own_terms():
    """In one batch of models too: flows are solved before it, and what is beside them is trained."""
    rng, models, pairs = np.random.default_rng(0), [], []
    for rate in (0.1, 0.5):
        x = [rng.standard_normal((100, 2))]
        for _ in range(60):
            x.append((1 - rate) * x[-1] + 0.3 * rng.standard_normal((100, 2)))
        data = nsde.Trajectories.from_arrays(np.stack(x, 1), dt=1.0)
        models.append(nsde.NeuralSDE.for_data(data, **EXACT))
        pairs.append(data.transitions())
    fit_together(models, pairs, nsde.TrainConfig(steps=30, batch_size=64, lr=5e-3))
    for model, rate in zip(models, (0.1, 0.5)):
        f, g = model.fields([[1.0, -1.0]])
        torch.testing.assert_close(f, torch.tensor([[-rate, rate]]), atol=0.04, rtol=0)
        torch.testing.assert_close(g, torch.full_like(g, 0.3), atol=0.06, rtol=0)


@pytest.mark.parametrize(
    "how",
    [{"tau": "uniform"}, {"shared": True}, {"law": nsde.Deterministic()}, {"law": nsde.Moments(measurement=True)}],
)
def test_what_it_cannot_go_with_is_refused(how):
    with pytest.raises(ValueError, match="A polynomial flow is found by least squares"):
        nsde.NeuralSDEConfig(net=NET, **how)


def test_other_models_refuse_it():
    from neuralsde.baselines.config import GaussianConfig
    from neuralsde.models.build import build

    data = nsde.Trajectories.from_arrays(np.random.default_rng(0).standard_normal((4, 20, 1)), dt=1.0)
    with pytest.raises(ValueError, match="PolynomialConfig is for nets of a NeuralSDE"):
        build(GaussianConfig(net=NET), data.transitions())


def test_the_drift_is_written_down():
    rng = np.random.default_rng(0)
    x = 2.0 + 0.5 * rng.standard_normal((400, 2))
    drift = np.stack([3 * x[:, 1] - x[:, 0] * x[:, 1], -0.5 * x[:, 0] ** 2], 1)
    paths = np.stack([x, x + 0.01 * drift + 0.001 * rng.standard_normal(x.shape)], 1)
    model = nsde.NeuralSDE.for_data(nsde.Trajectories.from_arrays(paths, dt=0.01), **EXACT)
    first, second = model.equations(["a", "b"])
    numbers = [float(text) for text in re.findall(r"(?<![\w^])\d+\.?\d*", first)]
    assert re.fullmatch(r"da = \([\d.]+ b - [\d.]+ a b\) dt", first), first
    np.testing.assert_allclose(numbers, [3, 1], rtol=0.05)
    assert re.fullmatch(r"db = \(-0\.5\d* a\^2\) dt", second.replace("0.49", "0.50")), second


def test_a_net_has_no_formula(np_rng):
    data = nsde.Trajectories.from_arrays(np_rng.standard_normal((4, 20, 1)), dt=1.0)
    with pytest.raises(ValueError, match="The drift is a net, which has no formula"):
        nsde.NeuralSDE.for_data(data).equations()


def test_older_slots_and_other_origins_have_names(np_rng):
    """An oscillator seen by its position: its step follows from the last two."""
    t = 0.1 * np.arange(200)
    x = 5 + np.sin(t[None] + np_rng.uniform(0, 6, (20, 1)))
    data = nsde.Trajectories.from_arrays(x[..., None], dt=0.1)
    model = nsde.NeuralSDE.for_data(data, **EXACT, history=2)
    (line,) = model.equations()
    assert re.fullmatch(r"dx = \(.*- [\d.]+ \(x\[-1\] - [\d.]+\) \+ [\d.]+ \(x - [\d.]+\)\) dt", line), line


def test_inputs_that_move_together_are_not_told_by_products_of_them():
    """A season that a state follows: its phase and the state are nearly one curve, and cubics of both fit it as well."""
    rng, times = np.random.default_rng(3), np.arange(2_000.0)
    x = np.zeros(len(times))
    for k in range(1, len(times)):
        x[k] = 0.6 * x[k - 1] + 1.6 * np.sin(2 * np.pi * times[k - 1] / 50) + 0.35 * rng.standard_normal()
    model = nsde.NeuralSDE.for_data(nsde.Trajectories.from_arrays([x[:, None]], [times]), **EXACT, time_input=50.0)
    assert model.nets["flow"].num_terms <= 4
    (line,) = model.equations()
    assert not re.search(r"\^|x u|u0 u1", line), line
