"""What every registered model owes, whatever its kind: the models of `same.py`, which hold each kind at least once."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

import neuralsde as nsde
import same
from neuralsde import Sampler, SequenceModel
from neuralsde.models.build import build
from neuralsde.models.config import ModelConfig
from neuralsde.solvers.noise import Noise

CASES = same.models()
PATHS = [name for name, case in CASES.items() if case["kind"] != "Autoencoder"]
pytestmark = pytest.mark.filterwarnings("ignore")
# Of the module: tests of one model follow each other, so that one worker makes it once
each_model = pytest.mark.parametrize("name", CASES, scope="module")
each_model_of_paths = pytest.mark.parametrize("name", PATHS, scope="module")


@lru_cache
def made(name):
    """A model after two steps of training, its transitions, and three of them."""
    case = CASES[name]
    lag = tuple(case["lag"]) if isinstance(case["lag"], list) else case["lag"]
    config = same.settings_of(case)
    pairs = same.data_named(case["data"]).transitions(lag=lag, history=config.history)
    model = build(config, pairs, seed=0)
    nsde.fit(model, pairs, steps=2, batch_size=16, lr=1e-2, ema=0.0, progress=False, cpu=True)
    return model, pairs, pairs[torch.tensor([0, 5, 13])]


def drawn(model, batch, **settings):
    times = model.scale.step * np.array([0.0, 1.0, 2.0])
    return model.draw(batch.history, times, context=batch.context, **{"num_paths": 2, "rng": 1, **settings})


def test_every_registered_kind_is_here():
    for name in CASES:
        same.settings_of(CASES[name])  # imports all settings
    registered = {
        kind for kind, cls in ModelConfig.kinds().items() if cls.builds and cls.__module__.startswith("neuralsde")
    }
    assert {CASES[name]["config"]["kind"] for name in CASES} == registered


@each_model
def test_losses_are_finite_and_gradients_belong_to_groups(name):
    model, pairs, _ = made(name)
    noise = Noise.for_step(0, 0, torch.arange(8))
    model.zero_grad(set_to_none=True)
    losses = model.train()(pairs.batch(noise), noise)
    model.eval()
    assert losses and all(v.ndim == 0 and torch.isfinite(v) for v in losses.values())
    sum(losses.values()).backward()
    grouped = [id(p) for group in model.parameter_groups().values() for p in group]
    assert sorted(grouped) == sorted(map(id, model.parameters()))
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@each_model_of_paths
def test_a_call_writes_nothing_to_the_model(name):
    """Neither its mode, nor its sampler, nor any attribute; the same call gives the same paths, in training too."""
    model, _, batch = made(name)
    model.eval()
    before = {n: dict(m.__dict__) for n, m in model.named_modules()}
    first = drawn(model, batch)
    assert all(torch.equal(drawn(model, batch).paths, first.paths) for _ in range(2))
    model.train()
    assert torch.equal(drawn(model, batch).paths, first.paths)
    assert all(m.training for m in model.modules())
    model.eval()
    for n, m in model.named_modules():
        assert m.__dict__.keys() == before[n].keys()
        assert all(m.__dict__[k] is before[n][k] for k in before[n] if k != "training"), n


@each_model
def test_saved_and_loaded_it_is_the_same(name, tmp_path):
    model, _, batch = made(name)
    model.save_pretrained(tmp_path / "model")
    for load in (nsde.load, SequenceModel.from_pretrained, type(model).from_pretrained):
        again = load(tmp_path / "model")
        assert type(again) is type(model) and again.config == model.config and again.lag == model.lag
        weights = again.state_dict()
        assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())
    if name in PATHS:
        assert torch.equal(drawn(again, batch).paths, drawn(model, batch).paths)


def test_four_samplers_from_eight_threads_give_what_they_give_one_by_one():
    """A thousand calls; with a sampler that is set and put back, most of them differ."""
    model, _, batch = made("start")
    samplers = [Sampler(), Sampler(substeps=3), Sampler(pull=2.0, diffusion=0.5), Sampler(diffusion=0.0)]
    alone = [drawn(model, batch, sampler=sampler) for sampler in samplers]
    assert all(not torch.equal(a.paths, b.paths) for a, b in itertools.combinations(alone, 2))
    with ThreadPoolExecutor(8) as pool:
        calls = [k % 4 for k in range(1_000)]
        together = pool.map(lambda k: (drawn(model, batch, sampler=samplers[k]), model.log_prob(batch)), calls)
        density = model.log_prob(batch)
        for k, (found, log_prob) in zip(calls, together):
            assert torch.equal(found.paths, alone[k].paths) and found.nfe == alone[k].nfe
            assert torch.equal(log_prob, density)
    assert model.sampler == model.config.sampler


@pytest.mark.parametrize("name", ["DDIM", "context-encoded", "BET"])
def test_threads_with_their_own_starts_do_not_mix(name):
    model, _, batch = made(name)
    starts = [replace(batch, history=batch.history + k, context=batch.context) for k in range(4)]
    if batch.context is not None:
        starts = [replace(start, context=batch.context * (1 + k)) for k, start in enumerate(starts)]
    alone = [drawn(model, start).paths for start in starts]
    with ThreadPoolExecutor(8) as pool:
        together = pool.map(lambda k: drawn(model, starts[k]).paths, [k % 4 for k in range(80)])
        assert all(torch.equal(found, alone[k % 4]) for k, found in enumerate(together))
