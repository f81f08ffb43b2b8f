import numpy as np
import pytest
import torch
from scipy import stats

from neuralsde.solvers.noise import FEW, Noise, _shift

ALPHA = 1e-5


@pytest.fixture
def noise(rng):
    return Noise.draw(rng, 64)


def test_a_path_has_the_same_noise_in_any_batch(noise):
    whole = noise.normal(5, (3, 2))
    for rows in (slice(0, 64), slice(7, 8), slice(10, 41)):
        assert torch.equal(noise[rows].normal(5, (3, 2)), whole[rows])
    chunks = [noise[i : i + 5].normal(5, (3, 2)) for i in range(0, 64, 5)]
    assert torch.equal(torch.cat(chunks), whole)
    order = torch.randperm(64)
    assert torch.equal(Noise(noise.keys[order]).normal(5, (3, 2)), whole[order])


def test_few_numbers_and_many_are_mixed_alike(rng):
    noise = Noise.draw(rng, FEW + 1)
    assert torch.equal(noise[:3].signs(2, (5,)), noise.signs(2, (5,))[:3])
    assert torch.equal(noise[:3].child(9).keys, noise.child(9).keys[:3])
    assert torch.equal(noise[:1].normal(5, (3,)), noise.normal(5, (3,))[:1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel needs a GPU")
@pytest.mark.parametrize("step", [0, 7, 2**40, torch.tensor([0, 3, 2**40]), torch.tensor(5)], ids=str)
def test_numbers_of_a_gpu_are_those_of_a_cpu(noise, step):
    there, steps = noise.to("cuda"), step if isinstance(step, int) else step.cuda()
    for stream in range(4):
        for kind in ("normal", "uniform", "signs"):
            found, wanted = (
                getattr(there, kind)(steps, (3, 2), stream=stream),
                getattr(noise, kind)(step, (3, 2), stream=stream),
            )
            assert found.shape == wanted.shape
            torch.testing.assert_close(found.cpu(), wanted, rtol=1e-6 if kind == "normal" else 0, atol=0)
    assert torch.equal(there.integers(1000).cpu(), noise.integers(1000))


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_a_block_of_steps_equals_single_steps(noise, kind):
    draw = getattr(noise, kind)
    block = draw(torch.tensor([0, 3, 1000]), (4,), stream=2)
    assert block.shape == (64, 3, 4)
    for i, step in enumerate((0, 3, 1000)):
        assert torch.equal(block[:, i], draw(step, (4,), stream=2))


def test_more_elements_do_not_change_the_first_ones(noise):
    assert torch.equal(noise.normal(2, (9,))[:, :4], noise.normal(2, (4,)))


def test_normal_numbers_are_normal():
    noise = Noise.for_step(3, 0, torch.arange(500))
    across_steps = noise.normal(torch.arange(400)).flatten()
    across_elements = noise.normal(1000, (400,)).flatten()
    neighbours = Noise(torch.arange(200_000)).normal(0)  # keys that differ in their last bits
    for z in (across_steps, across_elements, neighbours):
        assert stats.kstest(z.double().numpy(), "norm").pvalue > ALPHA


def test_uniform_numbers_are_uniform_in_the_open_interval(monkeypatch):
    noise = Noise.for_step(0, 0, torch.arange(500))
    assert stats.kstest(noise.uniform(0, (400,)).flatten().numpy(), "uniform").pvalue > ALPHA
    for bits in (0, -1):  # the smallest and the largest 64-bit pattern
        monkeypatch.setattr(noise, "_bits", lambda *given, b=bits: _shift(torch.tensor([b]), given[3]))
        assert 0 < float(noise.uniform(0)) < 1
        assert torch.isfinite(noise.normal(0)).all()


@pytest.mark.parametrize("axis", ["keys", "steps", "streams", "elements", "rows of training steps", "training steps"])
def test_streams_are_independent(axis):
    n = 100_000
    keys = Noise(torch.arange(n))
    if axis == "keys":
        z = Noise(torch.arange(n + 1)).normal(0)
        a, b = z[:-1], z[1:]
    elif axis == "steps":
        a, b = keys.normal(0), keys.normal(1)
    elif axis == "streams":
        a, b = keys.normal(0, stream=0), keys.normal(0, stream=1)
    elif axis == "elements":
        a, b = keys.normal(0, (2,)).unbind(1)
    elif axis == "rows of training steps":
        z = Noise.for_step(0, 0, torch.arange(n + 1)).normal(0)
        a, b = z[:-1], z[1:]
    else:
        a, b = (Noise.for_step(0, s, torch.arange(n)).normal(0) for s in (0, 1))
    a, b = a.double().numpy(), b.double().numpy()
    assert stats.pearsonr(a, b).pvalue > ALPHA
    assert stats.pearsonr(a**2, b**2).pvalue > ALPHA
    # Independent quantiles: a 4 x 4 table of quartiles is flat.
    table = np.histogram2d(stats.norm.cdf(a), stats.norm.cdf(b), bins=4, range=[[0, 1]] * 2)[0]
    assert stats.chisquare(table.ravel()).pvalue > ALPHA


def test_row_of_a_batch_and_its_noise_are_independent():
    noise = Noise.for_step(0, 0, torch.arange(100_000))
    table = np.histogram2d(noise.integers(5), stats.norm.cdf(noise.normal(0)), bins=5, range=[[0, 5], [0, 1]])[0]
    assert stats.chisquare(table.ravel()).pvalue > ALPHA


def test_signs_and_integers_are_fair():
    noise = Noise.for_step(1, 0, torch.arange(100_000))
    signs = noise.signs(0)
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert stats.binomtest(int((signs > 0).sum()), len(signs)).pvalue > ALPHA
    assert stats.chisquare(torch.bincount(noise.integers(7), minlength=7).numpy()).pvalue > ALPHA


def test_a_training_step_does_not_depend_on_how_its_rows_are_split():
    whole = Noise.for_step(9, 4, torch.arange(32))
    for world in (2, 3):
        for rank in range(world):
            rows = torch.arange(rank, 32, world)
            assert torch.equal(Noise.for_step(9, 4, rows).normal(0, (2,)), whole.normal(0, (2,))[rows])


def test_seeds_steps_and_rows_give_different_keys():
    keys = torch.cat([Noise.for_step(seed, step, torch.arange(50)).keys for seed in range(20) for step in range(20)])
    assert len(torch.unique(keys)) == len(keys)


def test_draw_takes_its_keys_from_the_generator_alone():
    one, two = (Noise.draw(torch.Generator().manual_seed(3), 8) for _ in range(2))
    assert torch.equal(one.keys, two.keys)
    before = torch.get_rng_state()
    assert not torch.equal(Noise.draw(None, 8).keys, Noise.draw(None, 8).keys)
    assert torch.equal(before, torch.get_rng_state())


def test_a_seed_will_do():
    one = Noise.draw(3, 5)
    assert torch.equal(one.keys, Noise.draw(torch.Generator().manual_seed(3), 5).keys)
    assert torch.equal(one.keys, Noise.draw(np.int64(3), 5).keys)
    with pytest.raises(ValueError, match=r"`rng` must be a seed or a torch.Generator. Got a Generator"):
        Noise.draw(np.random.default_rng(0), 5)


@pytest.mark.parametrize("stream", [-1, 4])
def test_a_stream_of_another_step_is_refused(stream):
    with pytest.raises(ValueError, match="`stream` must be from 0 to 3"):
        Noise(torch.arange(2)).normal(0, (3,), stream=stream)
