"""Roll-outs that come again: which may be recorded or traced, and that paths are the same."""

import copy
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import neuralsde as nsde
from neuralsde.baselines.config import DDIMConfig, DiffusionSteps, PFIConfig, RectifiedFlowConfig
from neuralsde.core import extras
from neuralsde.core.memo import Memo, hold, holding
from neuralsde.models import sequence
from neuralsde.models.build import build
from neuralsde.models.evaluation import with_weights
from neuralsde.nets import fused
from neuralsde.nets.backbone import Form
from neuralsde.nets.config import EncodedConfig, MLPConfig, UViTConfig
from neuralsde.nets.encoded import EncodedMLP, Prepared
from neuralsde.nets.mlp import MLP
from neuralsde.policy.controller import Still
from neuralsde.sde.laws import law
from neuralsde.sde.stepping import euler_step
from neuralsde.solvers import integrate
from neuralsde.solvers.grid import grid_between
from neuralsde.solvers.integrate import Diverged, Stretches, walk
from neuralsde.solvers.noise import FRESH, Noise
from neuralsde.solvers.replay import Recordings, Traced


def walks():
    x = np.random.default_rng(0).standard_normal((6, 30, 2)).cumsum(1)
    return nsde.Trajectories.from_arrays(list(x))


def small(**settings):
    return nsde.NeuralSDE.for_data(walks(), **{"net": MLPConfig(width=8, depth=1), **settings})


@pytest.mark.parametrize(
    ("settings", "sampler", "alike"),
    [
        ({}, {}, True),
        ({"history": 3}, {"pull": 0.5}, True),
        ({"shared": True}, {}, True),
        ({"covariance": nsde.Full()}, {}, True),
        ({"covariance": nsde.LowRank(rank=1)}, {}, True),
        ({"law": nsde.Mixture()}, {}, True),
        ({"law": nsde.Moments()}, {}, False),  # a Cholesky factor waits for the device
        ({"tau": "uniform"}, {}, False),  # the balance takes derivatives
        ({"tau": "uniform"}, {"balance": 0.0}, True),
        ({}, {"solver": "heun"}, False),
    ],
)
def test_steps_are_repeated_where_they_are_alike(settings, sampler, alike):
    model = small(**settings)
    assert model.repeats(nsde.Sampler(**sampler), None) is alike
    assert not model.repeats(nsde.Sampler(**sampler), torch.zeros(1, 5, 2))  # a context that changes along the path


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")


RIVALS = {
    "Flow Matching": RectifiedFlowConfig(target="increment", net=MLPConfig(width=8, depth=1)),
    "PFI": PFIConfig(net=MLPConfig(width=8, depth=1)),  # it draws noise by the number of the step
    "DDIM": DDIMConfig(target="increment", net=MLPConfig(width=8, depth=1)),
    "DDPM": DDIMConfig(net=MLPConfig(width=8, depth=1), sampler=DiffusionSteps(num_steps=100, variant="ddpm")),
}


def made(**settings):
    if "rival" not in settings:
        return small(**settings)
    if settings["rival"].startswith("DD"):
        pytest.importorskip("diffusers")
    return build(RIVALS[settings["rival"]], walks().transitions())


def test_a_rival_that_takes_many_passes_in_a_step_says_so():
    for name in ("Flow Matching", "PFI"):
        model = made(rival=name)
        assert model.repeats(model.sampler, None) and model.passes_in_step(model.sampler) == model.sampler.num_steps
    assert small().passes_in_step(nsde.Sampler()) == 1


KINDS = [
    *({"history": h, "shared": s} for h in (1, 3) for s in (False, True)),
    {"covariance": nsde.LowRank(rank=1)},
    {"law": nsde.Mixture()},
    {"law": nsde.Mixture(), "history": 2},
    *({"rival": name} for name in RIVALS),
]


@gpu
@pytest.mark.parametrize("settings", KINDS, ids=str)
@pytest.mark.parametrize("steps", [8, 60, 200])
def test_replayed_paths_are_bitwise_those_of_single_steps(settings, steps, monkeypatch):
    model = made(**settings).cuda()
    history, times = model.config.history, np.arange(steps + 1.0)
    starts = [np.full((2, history, 2), value) for value in (0.0, 0.5, 1.0)]
    assert model.repeats(model.sampler, None)
    found = [model.draw(x, times, num_paths=5, rng=k) for k, x in enumerate(starts)]
    monkeypatch.setattr(sequence, "ENOUGH", 10**9)
    monkeypatch.setattr(sequence, "SHORT", 0)
    for k, (x, one) in enumerate(zip(starts, found, strict=True)):
        other = model.draw(x, times, num_paths=5, rng=k)
        assert torch.equal(one.paths, other.paths) and one.nfe == other.nfe


def randomised(model):
    torch.manual_seed(0)
    for net in model.nets.values():
        torch.nn.init.normal_(net.outward.weight, std=0.3)
    return model.eval()


def traces(model):
    return [kept for kept in model.recordings._kept.values() if isinstance(kept, Traced)]


@pytest.mark.parametrize(
    "settings",
    [{}, {"covariance": nsde.LowRank(rank=1)}, {"law": nsde.Mixture()}, {"history": 3}],
    ids=str,
)
def test_on_a_cpu_stretches_of_a_long_path_are_traced_with_the_same_bits(settings, monkeypatch):
    monkeypatch.setattr(Traced, "after", 1)
    model = randomised(made(**settings))
    model.sampler = replace(model.sampler, box=None)
    start, times = np.ones((2, model.config.history, 2)), np.arange(151.0)
    found = [model.draw(start, times, num_paths=3, rng=k) for k in range(2)]
    assert len(traces(model)) == (model.config.history == 1)  # an older slot is of the path, and not of the stretch
    assert all(trace.call is None for trace in traces(model))
    monkeypatch.setattr(sequence, "SHORT", 0)
    monkeypatch.setattr(sequence, "ENOUGH", 10**9)
    for k, one in enumerate(found):
        other = model.draw(start, times, num_paths=3, rng=k)
        assert torch.equal(one.paths, other.paths) and one.nfe == other.nfe


@pytest.mark.parametrize(
    "settings",
    [*KINDS, {"covariance": nsde.Full()}, {"time_input": True}, {"net": MLPConfig(width=8, dropout=0.5)}],
    ids=str,
)
def test_on_a_cpu_traced_paths_are_bitwise_those_of_single_steps(settings, monkeypatch):
    monkeypatch.setattr(Traced, "after", 1)
    model = randomised(made(**settings))
    times = [0.0, 1.0, 3.0, 4.0][: 2 if model.passes_in_step(model.sampler) == 100 else 4]
    starts = [np.full((2, model.config.history, 2), value) for value in (0.0, 0.5, 1.0, -2.0, 30.0)]
    found = [model.draw(x, times, num_paths=3, rng=k) for k, x in enumerate(starts)]
    assert [(trace.call, trace.reason) for trace in traces(model)] == [(None, "")]
    monkeypatch.setattr(sequence, "SHORT", 0)
    for k, (x, one) in enumerate(zip(starts, found, strict=True)):
        other = model.draw(x, times, num_paths=3, rng=k)
        assert torch.equal(one.paths, other.paths) and one.nfe == other.nfe


def test_a_trace_follows_the_weights_the_units_and_a_training(monkeypatch):
    monkeypatch.setattr(Traced, "after", 1)
    model, times = randomised(small()), np.arange(9.0)

    def paths():
        return model.sample(np.ones(2), times, rng=0)

    before = [paths() for _ in range(4)]
    with torch.no_grad():
        model.nets["flow"].outward.bias.add_(1.0)
    after = [paths() for _ in range(4)]
    assert all(torch.equal(x, before[0]) for x in before) and all(torch.equal(x, after[0]) for x in after)
    assert not torch.equal(before[0], after[0])
    assert len(traces(model)) == 1
    assert all(weight.requires_grad for weight in model.parameters())
    nsde.fit(model, walks(), steps=2, progress=False, cpu=True)
    trained = paths()
    assert len(traces(model)) == 1 and not torch.equal(trained, after[0]) and not model.training
    with torch.no_grad():
        model.sizes.rate.mul_(2.0)
    assert not torch.equal(paths(), trained)


def doubled(model):
    """The flow, as another module with as many weights."""

    class Doubled(MLP):
        def forward(self, state, condition=None):
            return 2 * super().forward(state, condition)

    model.nets["flow"] = copy.deepcopy(model.nets["flow"])
    model.nets["flow"].__class__ = Doubled


CHANGES = {
    "another net": doubled,
    "another form": lambda model: model.nets.__setitem__("flow", small(net=MLPConfig(width=4, depth=2)).nets["flow"]),
    "another weight": lambda model: setattr(model.nets["flow"].outward, "weight", torch.nn.Parameter(torch.ones(2, 8))),
    "a hook": lambda model: model.nets["flow"].register_forward_hook(lambda *given: given[2] + 1),
    "a part in training": lambda model: model.nets["flow"].train(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_trace_does_not_outlive_a_change_of_its_model(change, monkeypatch):
    monkeypatch.setattr(Traced, "after", 1)
    model = randomised(small())

    def paths():
        return model.sample(np.ones(2), np.arange(5.0), rng=0)

    before = [paths() for _ in range(4)]
    assert torch.equal(before[0], before[3]) and traces(model)
    CHANGES[change](model)
    after = [paths() for _ in range(4)]
    monkeypatch.setattr(sequence, "SHORT", 0)
    assert all(torch.equal(x, paths()) for x in after)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_a_replayed_path_that_leaves_the_box_is_refused_as_one_that_is_walked(device, monkeypatch):
    monkeypatch.setattr(Traced, "after", 1)
    model, starts = randomised(small().to(device)), np.zeros((3, 2))
    for _ in range(4):
        model.sample(starts, np.arange(5.0), rng=0)
    assert model.recordings._kept
    starts[1] = 1e6
    with pytest.raises(Diverged, match="Path 1 left the data at time 1 "):
        model.sample(starts, np.arange(5.0), rng=0)


def test_casts_of_a_trace_stay_in_it(monkeypatch):
    monkeypatch.setattr(Traced, "after", 1)
    model = randomised(small()).requires_grad_(False)

    def paths():
        return model.sample(np.ones(2), np.arange(5.0), rng=0)

    with torch.autocast("cpu", torch.bfloat16):
        low = [paths() for _ in range(4)]
    monkeypatch.setattr(sequence, "SHORT", 0)
    exact = paths()
    monkeypatch.undo()
    assert torch.equal(paths(), exact) and not torch.equal(low[3], exact)


def test_traces_in_threads_leave_warnings_as_they_were(monkeypatch):
    monkeypatch.setattr(Traced, "after", 1)
    before = list(warnings.filters)
    models = [randomised(small()) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda model: [model.sample(np.ones(2), np.arange(5.0), rng=0) for _ in range(4)], models))
    assert list(warnings.filters) == before and all(map(traces, models))


def test_a_call_in_which_python_looks_at_numbers_is_not_traced():
    def turned(counted):
        def call(x):
            counted["net"] += 1
            return -x if bool((x > 0).all()) else 2 * x

        return call

    def fixed(counted):
        return lambda x: x + np.float32(next(numbers))  # not an operation on tensors

    numbers, recordings = iter(range(100)), Recordings()
    for make in (turned, fixed):
        given = [torch.full((2,), float(k - 20)) for k in range(40)]
        with pytest.warns(UserWarning, match="drawn step by step, which is slower: no trace can be made of it"):
            done = [recordings.replay(make, make, (x,), torch.device("cpu")) for x in given]
        trace = recordings._kept[make]
        assert done[-1] is None and trace.reason
        assert all(each is None or torch.equal(each.result, 2 * x) for each, x in zip(done, given) if make is turned)


def test_a_trace_counts_the_passes_of_one_call():
    def make(counted):
        def call(x):
            counted["net"] += 3
            return x + 1

        return call

    recordings = Recordings()
    done = [recordings.replay("key", make, (torch.tensor([float(k)]),), torch.device("cpu")) for k in range(30)]
    assert done[0] is None and all(
        each.passes == {"net": 3} and each.result == k + 1 for k, each in enumerate(done) if each
    )


def test_threads_share_a_trace(monkeypatch):
    monkeypatch.setattr(Traced, "after", 1)
    model = randomised(small())

    def paths(k):
        return model.sample(np.full(2, k / 10), [0.0, 1.0, 2.0], rng=k)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(paths, range(40)))
    monkeypatch.setattr(sequence, "SHORT", 0)
    assert traces(model) and all(torch.equal(x, paths(k)) for k, x in enumerate(found))


@pytest.mark.parametrize("history", [1, 3])
def test_a_stretch_of_steps_draws_the_noise_of_its_numbers(history):
    noise = Noise.draw(0, 4)
    grid = grid_between(torch.arange(41.0)[None], 1.0, torch.device("cpu"))

    def advance(step):
        return 0.9 * step.state(step.x, step.time).mean(1) + noise.normal(step.index, (2,), stream=FRESH) + step.dw

    one = walk(advance, torch.zeros(4, history, 2), grid, noise)
    for length, after, padded in ((16, 2, False), (64, 0, history == 1), (7, 0, history == 1)):
        stretches = Stretches(lambda several: lambda num, *given: several(*given), length, after, padded)
        other = walk(advance, torch.zeros(4, history, 2), grid, noise, stretches=stretches)
        assert torch.equal(one, other) and one.std() > 1


def test_stretches_fill_up_the_end_of_a_roll_out_alone(monkeypatch):
    monkeypatch.setattr(integrate, "BLOCK", 40)  # noise of 20 steps at a time
    lengths = []

    def record(several):
        return lambda num, *given: lengths.append((num, len(given[-1]))) or several(*given)

    def steps(num):
        lengths.clear()
        grid = grid_between(torch.arange(num + 1.0)[None], 1.0, torch.device("cpu"))
        given = (torch.zeros(1, 1, 2), grid, Noise.draw(0, 1))
        found = walk(lambda step: step.x + step.dw, *given, stretches=Stretches(record, 8, 0, True))
        assert torch.equal(found, walk(lambda step: step.x + step.dw, *given))
        return lengths

    assert steps(37) == [(8, 8)] * 4 + [(5, 8)]
    assert steps(33) == [(8, 8)] * 4  # the last one alone
    monkeypatch.setattr(integrate, "BLOCK", 12)
    assert steps(33) == [(3, 8)]  # noise at hand is for six steps


def test_numbers_move_to_another_device_with_what_they_leave_alone():
    noise = Still(Noise.draw(0, 3), [-1])
    moved = noise.to("meta")
    assert isinstance(moved, Still) and moved.keys.device == moved.noise.keys.device == torch.device("meta")
    assert noise.to("cpu") is noise


@gpu
def test_a_recording_in_bf16_keeps_its_casts(monkeypatch):
    model = randomised(small(net=MLPConfig(width=256, depth=1)).cuda())
    model.precision, times = "bf16", np.arange(301.0)
    model.sampler = replace(model.sampler, box=None)

    def paths():
        return model.sample(np.ones((1, 2)), times, num_paths=20, rng=0)

    found = []
    for _ in range(3):
        found.append(paths())
        torch.randn(64, 2**20, device="cuda")  # takes memory that is free
    monkeypatch.setattr(sequence, "ENOUGH", 10**9)
    assert all(torch.equal(x, paths()) for x in found)


def test_a_view_with_other_weights_calls_no_layer_that_was_compiled_with_its_own():
    net = MLP(MLPConfig(width=8, depth=1), Form(shape=(2,))).eval()
    torch.nn.init.normal_(net.outward.weight)
    net.blocks[0].compile()
    view = with_weights(net, {id(weight): 2 * weight.detach() for weight in net.parameters()})
    doubled = copy.deepcopy(net)
    with torch.no_grad():
        for weight in doubled.parameters():
            weight.mul_(2.0)
        x = torch.randn(3, 1, 2)
        doubled.blocks[0]._compiled_call_impl = None
        assert torch.equal(view(x), doubled(x))


def films(**settings):
    x = np.random.default_rng(0).standard_normal((4, 12, 2, 4, 4)).cumsum(1)
    data = nsde.Trajectories.from_arrays(list(x))
    net = UViTConfig(width=32)
    return nsde.NeuralSDE.for_data(data, **{"net": net, "history": 3, "shared": True, "denoiser": None, **settings})


@gpu
def test_large_nets_draw_with_weights_in_bf16_recorded_or_not(monkeypatch):
    model = films().cuda().eval()
    torch.nn.init.normal_(model.nets["trunk"].outward.weight, std=0.1)
    model.sampler = replace(model.sampler, box=None)
    start = np.random.default_rng(1).standard_normal((2, 3, 2, 4, 4))

    def paths(steps):
        return model.sample(start, np.arange(steps + 1.0), num_paths=3, rng=0)

    exact = paths(1)
    model.precision = "bf16"
    rough = paths(1)
    apart = ((rough - exact) / model.scale.std)[:, :, 1].square().mean().sqrt()
    assert 0 < apart < 1e-2 and rough.dtype == torch.float32
    for steps in (8, 60):
        found = [paths(steps) for _ in range(3)]
        monkeypatch.setattr(sequence, "ENOUGH", 10**9)
        monkeypatch.setattr(sequence, "SHORT", 0)
        assert all(torch.equal(x, paths(steps)) for x in found)
        monkeypatch.undo()
    with torch.no_grad():
        model.nets["trunk"].outward.weight.mul_(2.0)
    assert not torch.equal(paths(8), found[0][:, :, :9])  # a recording casts the weights as they are


@gpu
@pytest.mark.parametrize("settings", [{}, {"denoiser": nsde.Denoiser(), "noise": (0.1, 0.2)}])
def test_a_step_of_frames_in_one_kernel_is_the_step_as_it_is_written(settings, monkeypatch):
    model = films(**settings).cuda().eval()
    torch.nn.init.normal_(model.nets["trunk"].outward.weight, std=0.1)
    sampler = nsde.Sampler(box=None, pull=0.5 if settings else 0.0)
    start = np.random.default_rng(1).standard_normal((2, 3, 2, 4, 4))
    made = []
    monkeypatch.setattr(law, "euler_step", lambda *given: made.append(euler_step(*given)) or made[-1])
    fast = model.sample(start, np.arange(3.0), num_paths=3, rng=0, sampler=sampler)
    assert made and all(x is not None for x in made)
    monkeypatch.setattr(law, "euler_step", lambda *given: None)
    slow = model.sample(start, np.arange(3.0), num_paths=3, rng=0, sampler=sampler)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spacing", [1.0, 0.5])
def test_slots_of_even_steps_are_those_that_are_looked_up_by_their_time(spacing, monkeypatch):
    noise = Noise.draw(0, 4)
    grid = grid_between(spacing * torch.arange(41.0, dtype=torch.float64)[None], spacing, torch.device("cpu"))
    seen = []

    def advance(step):
        seen.append(step.state(step.x, step.time))
        return 0.9 * seen[-1].mean(1) + step.dw

    one = walk(advance, torch.randn(4, 3, 2), grid, noise, spacing=spacing)
    fast, seen = seen, []
    monkeypatch.setattr(type(grid), "steps_are", lambda *given: False)
    assert len(fast) == 40 and one.std() > 0.1
    history = torch.stack([fast[0][:, k] for k in range(3)], 1)
    other = walk(advance, history, grid, noise, spacing=spacing)
    assert torch.equal(one, other) and all(map(torch.equal, fast, seen))


@gpu
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_inputs_may_be_on_another_device_than_the_model(where, monkeypatch):
    monkeypatch.setattr(Traced, "after", 1)
    model = randomised(small().to("cpu" if where == "cuda" else "cuda"))
    found = [model.sample(torch.ones(1, 2, device=where), np.arange(5.0), rng=0) for _ in range(4)]
    monkeypatch.setattr(sequence, "SHORT", 0)
    walked = model.sample(np.ones((1, 2)), np.arange(5.0), rng=0)
    assert all(torch.equal(x, walked) for x in found) and walked.device.type != where


@gpu
def test_a_recording_follows_the_weights_and_the_units():
    model, times = small().cuda(), np.arange(9.0)

    def paths():
        return model.sample(np.zeros(2), times, rng=0)

    before = [paths() for _ in range(3)]
    assert torch.equal(before[0], before[2])
    with torch.no_grad():
        model.nets["flow"].outward.bias.add_(1.0)
    after = paths()
    assert not torch.equal(after, before[0])
    with torch.no_grad():
        model.nets["flow"].outward.bias.sub_(1.0)
        model.sizes.rate.mul_(2.0)
    assert [torch.equal(paths(), before[0]) for _ in range(3)] == [True] * 3  # a flow of 0, in any unit
    with torch.no_grad():
        model.sizes.high.add_(1.0)
    noisier = [paths() for _ in range(3)]
    assert not torch.equal(noisier[0], before[0]) and torch.equal(noisier[0], noisier[2])


@gpu
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shared": True},
        {"net": MLPConfig(width=8, dropout=0.2)},
        {"covariance": nsde.Full()},
        {"law": nsde.Moments()},
    ],
    ids=str,
)
def test_a_recorded_training_has_the_bits_of_single_steps(settings):
    learned = []
    for graph in (True, False):
        model = nsde.fit(small(**settings), walks(), steps=40, graph=graph, progress=False)
        learned.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    assert torch.equal(*learned) and learned[0].is_cuda


@gpu
@pytest.mark.parametrize("width", [16, 64, 128])
def test_the_kernel_gives_what_the_nets_give_and_a_row_the_same_bits_among_any_others(width):
    nets = [
        MLP(MLPConfig(width=width, depth=2), Form(shape=(3,), history=2, condition_size=1, num_fields=k)).cuda().eval()
        for k in (1, 4)
    ]
    torch.manual_seed(0)
    for net in nets:
        torch.nn.init.normal_(net.outward.weight, std=0.3)
    state, condition = torch.randn(100, 2, 3, device="cuda"), torch.randn(100, 1, device="cuda")
    with torch.no_grad():
        assert fused.fits(nets, state)
        found, wanted = fused.read_all(nets, state, condition), [net(state, condition) for net in nets]
        part = fused.read_all(nets, state[41:60], condition[41:60])
    for one, other, rows in zip(found, wanted, part, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        assert torch.equal(one[41:60], rows)


@gpu
@pytest.mark.parametrize("rows", [1, 8])
def test_layers_of_wider_nets_give_what_the_nets_give_and_a_row_the_same_bits_beside_few(rows):
    form = Form(shape=(3,), condition_size=21, num_fields=4, late=1)
    wide, parts = (
        MLPConfig(width=300, depth=2),
        EncodedConfig(width=48, depth=1, memory=30, step_width=200, step_depth=2),
    )
    nets = [net.cuda().eval() for net in (MLP(wide, form), EncodedMLP(parts, form))]
    torch.manual_seed(0)
    for net in nets:
        torch.nn.init.normal_(net.outward.weight, std=0.3)
    state, condition = torch.randn(rows, 1, 3, device="cuda"), torch.randn(rows, 21, device="cuda")
    with torch.no_grad():
        prepared = nets[1].prepared(condition[:, :20])
        assert isinstance(prepared, Prepared)
        for net in (*nets, prepared):
            assert fused.fits([net], state) and not fused.fits([net], state.repeat(9, 1, 1))
            (found,), wanted = fused.read_all([net], state, condition), net(state, condition)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        (alone,) = fused.read_all([nets[0]], state[-1:], condition[-1:])
        assert torch.equal(alone, fused.read_all([nets[0]], state, condition)[0][-1:])


@gpu
@pytest.mark.parametrize("sampler", [{}, {"pull": 0.5}, {"diffusion": 0.5, "substeps": 2}])
@pytest.mark.parametrize("settings", [{}, {"shared": True}, {"history": 2}, {"time_input": True}])
def test_a_step_in_one_kernel_is_the_step_as_it_is_written(settings, sampler, monkeypatch):
    model = randomised(small(**{"net": MLPConfig(width=16, depth=1), **settings}).cuda())
    start, times = np.zeros((1, model.config.history, 2)), np.arange(3.0)
    made = []
    monkeypatch.setattr(law, "euler_step", lambda *given: made.append(euler_step(*given)) or made[-1])
    fast = model.sample(start, times, num_paths=300, rng=0, sampler=nsde.Sampler(**sampler))
    assert made and all(x is not None for x in made)
    monkeypatch.setattr(law, "euler_step", lambda *given: None)
    slow = model.sample(start, times, num_paths=300, rng=0, sampler=nsde.Sampler(**sampler))
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)


def test_nets_are_called_as_they_are_where_the_kernel_does_not_serve():
    nets = [MLP(MLPConfig(width=16, depth=1), Form(shape=(2,))) for _ in range(2)]
    state = torch.randn(5, 1, 2)
    assert not fused.fits(nets, state)
    for one, net in zip(fused.read_all(nets, state, None), nets, strict=True):
        assert torch.equal(one, net(state, None))


@pytest.mark.skipif(find_spec("triton") is not None, reason="Triton is installed")
def test_where_kernels_are_missing_it_is_said_once():
    extras.kernels.cache_clear()
    extras._say_without_triton.cache_clear()
    with pytest.warns(UserWarning, match="Triton is not installed") as said:
        assert extras.kernels(fused.KERNELS) is None and extras.kernels("neuralsde.sde.kernel") is None
        assert extras.kernels("none") is None
    assert len(said) == 1


def test_recordings_are_not_copied_with_their_model():
    model = small()
    model.recordings._kept["a call"] = None
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not copied.recordings._kept


def test_a_graph_keeps_what_it_was_given():
    memo, tensor = Memo(), torch.ones(1)
    with holding() as held:
        value = memo.get([tensor], lambda: tensor + 1)
    memo.get([tensor.add_(1)], lambda: tensor + 1)
    assert held[0] is value and hold(value) is value and len(held) == 1
