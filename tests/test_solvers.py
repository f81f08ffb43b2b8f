import functools
import itertools

import numpy as np
import pytest
import torch
import torchsde
from hypothesis import example, given, settings
from hypothesis import strategies as st
from problems import GeometricBrownianMotion
from scipy import stats

from neuralsde.models.scale import Scale
from neuralsde.solvers import integrate as solver
from neuralsde.solvers.grid import Grid, Times, grid_between, output_times
from neuralsde.solvers.integrate import Diverged
from neuralsde.solvers.noise import Noise
from neuralsde.solvers.schemes import SCHEMES, Coefficients, euler

ALPHA = 1e-5
GBM = GeometricBrownianMotion(mu=0.5, s=0.7)


def gbm(x, t, *, correction):
    return Coefficients(GBM.mu * x, GBM.s * x, GBM.s**2 * x if correction else 0 * x)


def nonlinear(x, t, *, correction):
    """g depends on the state, a on state and time."""
    g = 0.3 * (2 + torch.sin(x))
    return Coefficients(torch.cos(3 * t)[:, None] - x**3, g, g * 0.3 * torch.cos(x))


def walk(scheme, sde, x, times, dw):
    """All steps of a scheme on given Brownian increments dw (P, M, D)."""
    for m, dt in enumerate(times.diff()):
        x = scheme(sde, x, times[m].expand(len(x)), dt.expand(len(x), 1), dw[:, m])
    return x


def integrate(advance, history, grid, noise, *, box=None, first_path=0):
    """States at the output times, checked on the way as `sample` does."""
    check = functools.partial(solver.check_inside, box=box, first_path=first_path)
    return solver.at_outputs(solver.walk(advance, history, grid, noise, check=check), grid)


def advance_with(scheme, sde):
    return lambda step: scheme(sde, step.x, step.time, step.dt, step.dt.sqrt() * step.z)


# Oracles


def test_euler_is_torchsde_euler():
    times = torch.linspace(0, 1, 33, dtype=torch.float64)
    x0 = torch.randn(16, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    brownian = torchsde.BrownianInterval(0.0, 1.0, size=(16, 3), dtype=torch.float64, entropy=1)
    dw = torch.stack([brownian(a, b) for a, b in itertools.pairwise(times)], 1)

    class Same(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def f(self, t, x):
            return nonlinear(x, t.expand(len(x)), correction=False).drift

        def g(self, t, x):
            return nonlinear(x, t.expand(len(x)), correction=False).diffusion

    theirs = torchsde.sdeint(Same(), x0, times, bm=brownian, method="euler", dt=1 / 32)[-1]
    torch.testing.assert_close(walk(euler, nonlinear, x0, times, dw), theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("solver", ["euler_maruyama", "milstein"])
def test_without_noise_a_step_is_that_of_ode_euler(solver):
    def ode(x, t, *, correction):
        return Coefficients(torch.cos(3 * t)[:, None] - x, torch.zeros_like(x), torch.zeros_like(x))

    grid = Grid.between(torch.tensor([[0.0, 0.5, 2.0]], dtype=torch.float64), 0.1)
    x = torch.tensor([[0.3], [1.0]], dtype=torch.float64)
    ours = integrate(advance_with(SCHEMES[solver], ode), x[:, None], grid, Noise(torch.arange(2)))
    t = 0.0
    for _ in range(20):
        x, t = x + 0.1 * (np.cos(3 * t) - x), t + 0.1
    torch.testing.assert_close(ours[:, -1], x, rtol=1e-6, atol=1e-6)


def test_without_noise_heun_is_the_trapezoidal_rule_of_order_two():
    def ode(x, t, *, correction):
        return Coefficients(-x, torch.zeros_like(x), torch.zeros_like(x))

    one, h = torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), 0.1, dtype=torch.float64)
    step = SCHEMES["heun"](ode, one, torch.zeros(1, dtype=torch.float64), h, 0 * h)
    assert float(step) == pytest.approx(1 - 0.1 + 0.1**2 / 2, abs=1e-12)


# Order and law


@pytest.mark.parametrize(("solver", "order"), [("euler_maruyama", 0.5), ("milstein", 1.0), ("heun", 1.0)])
def test_strong_order_on_geometric_brownian_motion(solver, order):
    levels, num_paths = [3, 4, 5, 6, 7], 4000
    fine = torch.as_tensor(np.random.default_rng(0).standard_normal((num_paths, 2**7, 1))) * 2**-3.5
    exact = torch.as_tensor(GBM.exact(1.0, 1.0, fine.sum(1).numpy()))
    errors = []
    for level in levels:
        dw = fine.reshape(num_paths, 2**level, -1).sum(2, keepdim=True)
        times = torch.linspace(0, 1, 2**level + 1, dtype=torch.float64)
        end = walk(SCHEMES[solver], gbm, torch.ones(num_paths, 1, dtype=torch.float64), times, dw)
        errors.append(float((end - exact).abs().mean()))
    slope = -np.polyfit(levels, np.log2(errors), 1)[0]
    assert slope == pytest.approx(order, abs=0.3)


@pytest.mark.parametrize("solver", ["euler_maruyama", "milstein", "heun"])
def test_every_solver_reaches_the_ito_law(solver):
    num_paths = 20_000
    grid = Grid.between(torch.tensor([[0.0, 1.0]], dtype=torch.float64), 0.02)
    noise = Noise.draw(torch.Generator().manual_seed(1), num_paths)
    end = integrate(advance_with(SCHEMES[solver], gbm), torch.ones(num_paths, 1, 1), grid, noise)[:, -1, 0]
    log = np.log(end.double().numpy())
    # Heun on the Ito drift would be off by s^2 / 2 = 0.245 here, 50 standard errors.
    assert log.mean() == pytest.approx(GBM.mu - GBM.s**2 / 2, abs=5 * GBM.s / num_paths**0.5 + 0.003)
    assert log.std() == pytest.approx(GBM.s, abs=0.02)
    if solver != "euler_maruyama":  # whose weak error of order h shows at this sample size
        assert stats.kstest(log, "norm", (GBM.mu - GBM.s**2 / 2, GBM.s)).pvalue > ALPHA


# Grids

gap = st.floats(1e-3, 5.0)


@settings(deadline=None, max_examples=200)
@example(rows=[(0.0, [1.2000009111730479])], max_step=0.05)
@given(
    rows=st.integers(1, 6).flatmap(
        lambda n: st.lists(st.tuples(st.floats(-3, 3), st.lists(gap, min_size=n, max_size=n)), min_size=1, max_size=4)
    ),
    max_step=st.floats(0.05, 2.0),
)
def test_grid(rows, max_step):
    times = torch.tensor([[t0, *np.add(t0, np.cumsum(gaps))] for t0, gaps in rows], dtype=torch.float64)
    grid = Grid.between(times, max_step)
    dt = grid.time.diff(dim=1)
    assert torch.equal(grid.time.gather(1, grid.output), times)  # hit exactly
    assert bool((dt >= 0).all())
    assert float(dt.max()) <= max_step * (1 + 1e-5)
    for row in range(len(times)):
        last = int(grid.output[row, -1])
        assert bool((dt[row, :last] > 0).all())
        assert bool((dt[row, last:] == 0).all())  # shorter rows end in steps of length 0
        for k in range(times.shape[1] - 1):
            first, end = int(grid.output[row, k]), int(grid.output[row, k + 1])
            assert grid.interval[row, first:end].tolist() == [k] * (end - first)
            inner = dt[row, first:end]
            torch.testing.assert_close(inner, inner.mean().expand_as(inner), rtol=1e-9, atol=1e-12)
            steps = float(times[row, k + 1] - times[row, k]) / max_step
            assert end - first == max(1, int(np.ceil(steps * (1 - 1e-6))))  # rounding is relative


def test_grids_that_are_kept_are_those_of_their_times():
    host = torch.device("cpu")
    for times, step in (([0.0, 1.0, 3.0], 0.5), ([0.0, 1.0, 4.0], 0.5), ([0.0, 1.0, 3.0], 2.0)):
        row = torch.tensor([times], dtype=torch.float64)
        grid, wanted = grid_between(row, step, host), Grid.between(row, step)
        assert torch.equal(grid.time, wanted.time) and torch.equal(grid.output, wanted.output)
        assert grid_between(row, step, host) is grid
    both = torch.tensor([[0.0, 1.0, 3.0], [0.0, 0.1, 0.2]], dtype=torch.float64)
    grid = grid_between(both, 0.5, host)
    assert torch.equal(grid.lengths, grid.time.diff(dim=1)) and grid.waits == [False] * 2 + [True] * 4


def test_times_that_are_kept_are_those_that_were_asked_for():
    for times, unit in (([1.0, 2.0, 4.0], 0.5), ([1.0, 2.0, 5.0], 0.5), ([1.0, 2.0, 4.0], 2.0)):
        row = torch.tensor([times], dtype=torch.float64)
        found = output_times(row, unit)
        assert torch.equal(found.start, row[:, :1] / unit)
        assert torch.equal(found.since, (row - row[:, :1]) / unit)
        assert torch.equal(found.gaps, row.diff(dim=1) / unit)
        assert output_times(row, unit) is found
    both = torch.tensor([[0.0, 1.0, 3.0], [0.0, 0.1, 0.2]], dtype=torch.float64)
    assert torch.equal(output_times(both, 0.5).gaps, Times.checked(both, 0.5).gaps)


def test_rounding_of_the_time_does_not_add_a_step():
    times = torch.tensor([[0.1 * k for k in range(31)]], dtype=torch.float64) / 0.1
    assert Grid.between(times, 1.0).time.shape[1] == 31


def test_a_path_does_not_depend_on_its_neighbours():
    rng = torch.Generator().manual_seed(2)
    times = (torch.rand(8, 6, generator=rng, dtype=torch.float64) + 0.05).cumsum(1)
    x, noise = torch.randn(8, 1, 2, generator=rng), Noise.draw(rng, 8)
    advance = advance_with(euler, nonlinear)
    together = integrate(advance, x, Grid.between(times, 0.1), noise)
    assert torch.isfinite(together).all()
    for i in range(8):
        alone = integrate(advance, x[i : i + 1], Grid.between(times[i : i + 1], 0.1), noise[i : i + 1])
        torch.testing.assert_close(alone[0], together[i], rtol=1e-6, atol=1e-6)


def test_one_row_of_times_serves_all_paths():
    times, x = torch.tensor([[0.0, 0.35, 1.0]], dtype=torch.float64), torch.zeros(3, 1, 1)
    advance, noise = advance_with(euler, nonlinear), Noise(torch.arange(3))
    shared = integrate(advance, x, Grid.between(times, 0.1), noise)
    assert torch.equal(shared, integrate(advance, x, Grid.between(times.expand(3, -1), 0.1), noise))
    assert torch.equal(shared[:, 0], x[:, -1])


# History


def test_older_slots_are_the_path_one_spacing_ago():
    """A path x(t) = t^2 is stepped exactly; its record is linear between the grid points."""
    seen = []

    def advance(step):
        seen.append((float(step.time), step.older(step.time)[0, :, 0].tolist()))
        return (step.time + step.dt.flatten()).reshape(-1, 1) ** 2

    history = torch.tensor([[[4.0], [1.0], [0.0]]], dtype=torch.float64)  # t = -2, -1, 0
    grid = Grid.between(torch.tensor([[0.0, 1.6]], dtype=torch.float64), 0.4)
    integrate(advance, history, grid, Noise(torch.arange(1)))
    by_hand = [
        (0.0, [4.0, 1.0]),
        (0.4, [4 - 0.4 * 3, 1 - 0.4 * 1]),  # between the given slots
        (0.8, [4 - 0.8 * 3, 1 - 0.8 * 1]),
        (1.2, [1 - 0.2 * 1, 0.5 * 0.16]),  # half-way from t = 0 to 0.4
    ]
    for (t, slots), (t_hand, slots_hand) in zip(seen, by_hand, strict=True):
        assert t == pytest.approx(t_hand)
        assert slots == pytest.approx(slots_hand)


@pytest.mark.parametrize("num_slots", [1, 3])
def test_a_step_knows_the_state_and_the_noise(num_slots):
    x = torch.randn(2, num_slots, 3, dtype=torch.float64)
    seen = []

    def advance(step):
        state = step.state(step.x + 1, step.time)
        assert torch.equal(state, torch.cat([step.older(step.time), step.x[:, None] + 1], dim=1))
        assert state.shape == x.shape and torch.equal(step.dw, step.dt.sqrt() * step.z)
        seen.append(step.index)
        return step.x + step.dw

    grid = Grid.between(torch.tensor([[0.0, 0.3, 1.0], [0.0, 1.0, 1.1]], dtype=torch.float64), 0.4)
    integrate(advance, x, grid, Noise(torch.arange(2)))
    assert seen == list(range(4))


def test_older_slots_never_read_what_is_not_yet_written(monkeypatch):
    """Heun looks one step ahead; a step a rounding longer than the spacing must not reach into unwritten memory."""
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *s: torch.full(s, torch.nan, dtype=self.dtype))
    seen = []

    def advance(step):
        seen.append(step.older(step.time + step.dt.flatten()))
        return step.x

    grid = Grid.between(torch.tensor([[0.0, 1.0 + 5e-7, 2.0 + 1e-6]], dtype=torch.float64), 1.0)
    assert grid.time.shape[1] == 3
    integrate(advance, torch.ones(1, 2, 1), grid, Noise(torch.arange(1)))
    assert torch.equal(torch.cat(seen), torch.ones(2, 1, 1))


# Divergence


@pytest.mark.parametrize("num_steps", [3, 64, 65, 200])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 100.0])
def test_diverged_paths_raise(num_steps, bad):
    def advance(step):
        x = step.x.clone()
        if step.index == num_steps - 2:
            x[1, 0] = bad
        return x

    grid = Grid.between(torch.tensor([[0.0, float(num_steps)]], dtype=torch.float64), 1.0)
    box = (torch.tensor([-5.0, -5.0]), torch.tensor([5.0, 5.0]))
    where = rf"Path 1 left the data at time {num_steps - 1} .*component \[0\] is {bad:g}.*substeps"
    with pytest.raises(Diverged, match=where):
        integrate(advance, torch.zeros(2, 1, 2), grid, Noise(torch.arange(2)), box=box)
    if np.isfinite(bad):  # allowed where there is no box
        assert integrate(advance, torch.zeros(2, 1, 2), grid, Noise(torch.arange(2))).max() == bad


def test_a_short_excursion_is_noticed():
    def advance(step):
        return torch.full_like(step.x, 9.0 if step.index == 5 else 0.0)

    grid = Grid.between(torch.tensor([[0.0, 100.0]], dtype=torch.float64), 1.0)
    with pytest.raises(Diverged, match="time 6 "):
        integrate(
            advance, torch.zeros(1, 1, 1), grid, Noise(torch.arange(1)), box=(torch.tensor(-1.0), torch.tensor(1.0))
        )


def test_whole_steps_stay_whole_over_long_intervals():
    """A step read from float32 stamps is not quite 0.01: ninety of them must not become ninety-one."""
    step = float(torch.tensor(0.01, dtype=torch.float32)) * (1 - 1e-8)
    grid = Grid.between(torch.tensor([[0.0, 0.01, 0.1, 1.0]], dtype=torch.float64), step)
    assert grid.output.tolist() == [[0, 1, 10, 100]]


def test_the_box_follows_the_units():
    scale = Scale((2,))
    low, high = scale.box(0.5)
    assert scale.box(0.5)[0] is low and (low.tolist(), high.tolist()) == ([-2.0] * 2, [2.0] * 2)
    assert scale.box(1.0)[1].tolist() == [3.0] * 2
    scale.high.fill_(3.0)
    assert scale.box(0.5)[1].tolist() == [5.0] * 2
    assert scale.double().box(0.5)[1].dtype == torch.float64
