"""What is passed is checked once, at the door: kinds, ranges, masks, stamps, sizes; and advice fits what was found."""

import inspect
import math
import subprocess
import sys
import time
from typing import Annotated, Literal

import numpy as np
import pytest
import torch

import neuralsde as nsde
from neuralsde.core.doors import Count, Range, Seed, check_fields, door
from neuralsde.data.arrays import as_array, as_tensor
from neuralsde.solvers.grid import MAX_STEPS, Grid
from neuralsde.solvers.integrate import Diverged

SMALL = nsde.MLPConfig(width=8, depth=1)


@pytest.fixture(scope="module")
def states():
    return np.random.default_rng(0).normal(size=(4, 12, 2)).cumsum(1)


@pytest.fixture(scope="module")
def model(states):
    return nsde.NeuralSDE.for_data(nsde.Trajectories.from_arrays(states, dt=0.5), net=SMALL)


# The mechanism


@door
def call(
    x: object = None,
    /,
    *,
    num: Count = 1,
    share: Annotated[float, Range("within [0, 1)", lambda v: 0 <= v < 1)] = 0.5,
    seed: Seed = 0,
    way: Literal["a", "b"] = "a",
    many: tuple[float, ...] | None = None,
    flag: bool = False,
    path: "str | None" = None,
) -> tuple:
    """What came through."""
    return num, share, seed, way, many, flag, path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num": "ten"}, "`num` must be a whole number, at least 1. Got 'ten'."),
        ({"num": 0}, "`num` must be at least 1. Got num=0."),
        ({"num": True}, "`num` must be a whole number, at least 1. Got True."),
        ({"num": 2.0}, "`num` must be a whole number, at least 1. Got 2.0."),
        ({"share": math.nan}, "`share` must be within [0, 1). Got share=nan."),
        ({"share": 1}, "`share` must be within [0, 1). Got share=1."),
        ({"share": None}, "`share` must be a number, within [0, 1). Got None."),
        ({"seed": 2**63}, "`seed` must be from -2^63 to 2^63 - 1. Got seed=9223372036854775808."),
        ({"way": "c"}, "`way` must be one of ['a', 'b']. Got 'c'."),
        ({"way": []}, "`way` must be one of ['a', 'b']. Got []."),
        ({"many": "12"}, "`many` must be a tuple, each a number or None. Got '12'."),
        ({"many": [1.0, "x"]}, "`many` must be a tuple, each a number or None. Got [1.0, 'x']."),
        ({"flag": 1}, "`flag` must be True or False. Got 1."),
        ({"path": np.zeros((9, 9))}, "`path` must be text or None. Got a ndarray."),
    ],
)
def test_a_door_says_in_one_line_what_it_takes(given, message):
    with pytest.raises(ValueError) as error:
        call(**given)
    assert str(error.value) == message


def test_numbers_of_numpy_and_torch_become_plain_ones():
    got = call(
        num=np.int64(3), share=torch.tensor(0.25), seed=torch.tensor(7), many=[np.float32(0.5), 1], flag=np.bool_(True)
    )
    assert got == (3, 0.25, 7, "a", (0.5, 1), True, None)
    assert [type(v) for v in got[:3]] == [int, float, int] and type(got[5]) is bool


def test_a_door_keeps_what_a_function_is():
    assert (
        call.__name__ == "call" and call.__doc__ == "What came through." and "num" in inspect.signature(call).parameters
    )
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        call(nothing=1)


def test_a_door_costs_little():
    call(num=3, share=0.5, seed=1)
    began = time.process_time()
    for _ in range(2_000):
        call(None, num=3, share=0.5, seed=1, way="b", flag=True)
    assert (time.process_time() - began) / 2_000 < 20e-6


def test_every_public_function_has_a_door():
    def doors(function):
        while function is not None:
            yield function.__code__.co_filename.endswith("doors.py")
            function = getattr(function, "__wrapped__", None)

    functions = [getattr(nsde, name) for name in nsde.__all__ if inspect.isfunction(getattr(nsde, name))]
    methods = [
        nsde.Trajectories.from_arrays, nsde.Trajectories.from_dataframe, nsde.Trajectories.select, nsde.Trajectories.split,
        nsde.Trajectories.split_in_time, nsde.Trajectories.transitions, nsde.SequenceModel.draw, nsde.SequenceModel.log_prob,
        nsde.SequenceModel.save_pretrained, nsde.SequenceModel.from_pretrained, nsde.NeuralSDE.for_data, nsde.NeuralSDE.fields,
        nsde.SDEPolicy.for_demonstrations, nsde.SDEPolicy.reset, nsde.SDEPolicy.from_pretrained, nsde.VideoModel.futures,
    ]  # fmt: skip
    assert len(functions) >= 15
    lacking = [f.__qualname__ for f in [*functions, *methods] if not any(doors(getattr(f, "__func__", f)))]
    assert lacking == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nsde.Moments(steps="2"), "`steps` must be a whole number, at least 1. Got '2'"),
        (lambda: nsde.TrainConfig(lr=math.nan), "`lr` must be positive and finite. Got lr=nan"),
        (lambda: nsde.TrainConfig(seed=10**30), "`seed` must be less than 2.32 in size"),
        (lambda: nsde.TrainConfig(weight_decay=math.nan), "`weight_decay` must be finite"),
        (lambda: nsde.Sampler(pull=math.inf), "`pull` must be finite"),
        (lambda: nsde.NeuralSDEConfig(sampler="heun"), "`sampler` must be a Sampler. Got 'heun'"),
        (lambda: nsde.NeuralSDEConfig(law=nsde.Euler), "`law` must be a Law. Got a type"),
        (lambda: nsde.RunOptions(progress="no"), "`progress` must be True or False. Got 'no'"),
        (lambda: nsde.VideoFit(num_context=None), "`num_context` must be a whole number. Got None"),
        (lambda: nsde.PolicyConfig(discrete="ab"), "`discrete` must be a tuple, each a whole number. Got 'ab'"),
    ],
)
def test_settings_are_checked_by_the_same_mechanism(make, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make()


def test_settings_of_numpy_are_kept_as_plain_numbers():
    config = nsde.NeuralSDEConfig(history=np.int64(2), noise=[0.1, np.float64(0.2)])
    assert (config.history, config.noise) == (2, (0.1, 0.2)) and type(config.history) is int
    check_fields(config)


# Arrays


def test_a_masked_state_is_a_missing_value(states):
    masked = np.ma.array(states, mask=np.zeros_like(states, bool))
    masked[0, 3, 1] = np.ma.masked
    masked.data[0, 3, 1] = -9999.0
    for given in (masked, list(masked), [list(path) for path in masked]):
        data = nsde.Trajectories.from_arrays(given, missing=True)
        assert float(data.states.min()) > -100 and int((~data.observed).sum()) == 1 and not data.observed[3, 1]
        with pytest.raises(ValueError, match=r"Got states\[0\]\[3\]\[1\]=nan.*missing=True"):
            nsde.Trajectories.from_arrays(given)


def test_masks_are_refused_where_nothing_may_be_missing(states, model):
    def hide(shape):
        masked = np.ma.array(np.arange(math.prod(shape), dtype=float).reshape(shape))
        masked[(-1,) * len(shape)] = np.ma.masked
        return masked

    data = nsde.Trajectories.from_arrays(states, context=np.zeros((4, 3)))
    held = nsde.NeuralSDE.for_data(data, net=SMALL)
    for make, name in (
        (lambda: nsde.Trajectories.from_arrays(states, hide((12,))), r"times\[11\]"),
        (lambda: nsde.Trajectories.from_arrays(states, [hide((12,))] * 4), r"times\[0\]\[11\]"),
        (lambda: nsde.Trajectories.from_arrays(states, context=[hide((3,))] * 4), r"context\[0\]\[2\]"),
        (lambda: model.sample(hide((2,)), [0.0, 1.0]), r"history\[1\]"),
        (lambda: model.sample([hide((2,))], [0.0, 1.0]), r"history\[0\]\[1\]"),
        (lambda: model.sample(np.zeros(2), hide((3,))), r"times\[2\]"),
        (lambda: held.sample(np.zeros((1, 2)), [0.0, 1.0], context=hide((1, 3))), r"context\[0\]\[2\]"),
        (lambda: nsde.Demonstrations.from_arrays({"s": hide((4, 2))}, np.zeros((4, 1)), [4]), r"s\[3\]\[1\]"),
        (lambda: nsde.Demonstrations.from_arrays({"s": np.zeros((4, 2))}, hide((4, 1)), [4]), r"actions\[3\]\[0\]"),
    ):
        with pytest.raises(ValueError, match=f"must be whole. Got {name} masked. Fill or drop"):
            make()


def test_tensors_of_other_kinds_are_taken_or_refused(states, model):
    start = torch.tensor([[0.5, -0.25]])
    plain = model.sample(start, [0.0, 1.0], rng=0)
    for same in (start.bfloat16(), start.clone().requires_grad_(), start.double(), start.numpy()[:, ::-1][:, ::-1]):
        assert torch.equal(model.sample(same, [0.0, 1.0], rng=0), plain)
    data = nsde.Trajectories.from_arrays([torch.tensor(p).bfloat16().requires_grad_() for p in states])
    assert data.states.dtype == torch.float32 and not data.states.requires_grad
    for bad in (start.to_sparse(), start.to(torch.complex64), start.to("meta")):
        with pytest.raises(ValueError, match="`history` must be a dense tensor of real numbers"):
            model.sample(bad, [0.0, 1.0])
    assert as_array(start, "x").dtype == np.float32 and as_tensor([1, 2], "x", torch.float64, "cpu").tolist() == [
        1.0,
        2.0,
    ]


@pytest.mark.parametrize(
    "bad", [None, 3.0, "abc", iter([1]), {"a": 1}, {1.0}, (x for x in [1])], ids=lambda v: type(v).__name__
)
def test_what_is_no_array_is_refused(bad, model, states):
    with pytest.raises(ValueError, match=r"`states` must be an array, or a list with one entry per path\. Got"):
        nsde.Trajectories.from_arrays(bad)
    if not isinstance(bad, float):
        with pytest.raises(ValueError, match=r"`history` must be numbers\. Got"):
            model.sample(bad, [0.0, 1.0])


def test_likelihoods_need_batches(states, model):
    data = nsde.Trajectories.from_arrays(states, dt=0.5)
    for size in (-1, 0):
        with pytest.raises(ValueError, match=f"`batch_size` must be at least 1. Got batch_size={size}"):
            model.log_prob(data, batch_size=size)
    assert bool((model.log_prob(data, batch_size=1) != 0).all())


# Stamps and sizes


def test_stamps_that_nearly_repeat_are_refused(states):
    stamps = np.repeat(np.arange(6.0), 2)
    stamps[1::2] += 1e-9
    with pytest.raises(ValueError, match=r"nearly repeat. Got times\[0\]\[1\]=1e-09 after 0.0.*usual. Merge the two"):
        nsde.Trajectories.from_arrays(states, stamps)
    nsde.Trajectories.from_arrays(states, np.geomspace(1.0, 1e5, 12))  # wide gaps are not the same instant


def test_time_grids_are_refused_before_they_are_made(model):
    for times in ([0.0, 1e12], [0.0, 1e300]):
        with pytest.raises(ValueError, match=r"`times` must take at most 1,000,000 steps of a path.*sample in parts"):
            model.sample(np.zeros(2), times)
    many = nsde.Sampler(substeps=10_000)
    with pytest.raises(ValueError, match=r"Use fewer `substeps`"):
        model.sample(np.zeros(2), [0.0, 1000.0], sampler=many)
    row = torch.tensor([[0.0, 0.9 * MAX_STEPS]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"of all. Got 9e\+05 for 100 row"):
        Grid.between(row.repeat(100, 1), 1.0)


def test_more_paths_than_memory_holds_are_refused(model):
    with pytest.raises(ValueError, match=r"at most 1,073,741,824 numbers at once. Got 8,000,000,000.*Sample in parts"):
        model.sample(np.zeros((2, 2)), [0.0, 1.0], num_paths=10**9)


def test_a_history_longer_than_every_path_is_refused_at_once(states):
    data = nsde.Trajectories.from_arrays(states)
    with pytest.raises(ValueError, match=r"No path is long enough .*history=1000000000"):
        nsde.NeuralSDE.for_data(data, history=10**9)


# Advice


def test_an_outlier_is_not_told_to_subtract_an_offset():
    path = np.random.default_rng(0).normal(size=(50, 2)) * 1e-3
    path[7, 1] = 1e6
    with pytest.raises(ValueError, match=r"An outlier: states\[0\]\[7\] is 1e\+06.*Correct or drop it") as error:
        nsde.Trajectories.from_arrays([path])
    assert "offset" not in str(error.value)
    with pytest.raises(ValueError, match="Subtract an offset") as error:
        nsde.Trajectories.from_arrays([1e6 + np.random.default_rng(0).normal(size=(50, 2)).cumsum(0) * 1e-3])
    assert "outlier" not in str(error.value)


def test_a_broken_model_is_not_told_to_use_more_substeps_first(states):
    broken = nsde.NeuralSDE.for_data(nsde.Trajectories.from_arrays(states), net=SMALL)
    with torch.no_grad():
        for parameter in broken.nets["flow"].parameters():
            parameter.fill_(1e6)
    with pytest.raises(
        Diverged, match=r"Path 0 left .*\(1 of 1 paths did\)\. The model does not know the dynamics"
    ) as error:
        broken.sample(np.zeros(2), [0.0, 1.0, 2.0], rng=0)
    words = str(error.value)
    assert words.index("losses") < words.index("substeps")


def test_remedies_that_had_been_lost():
    for make, words in (
        (
            lambda: nsde.Trajectories.from_arrays([np.array([[2**24 + 1], [0]])]),
            "float32 cannot hold exactly, up to 16777217",
        ),
        (lambda: nsde.Trajectories.from_arrays([[["a"], ["b"]]]), "or encode them first"),
        (lambda: nsde.Trajectories.from_arrays([np.zeros((1, 2))]), "Drop it, or join it with its neighbours"),
        (lambda: nsde.PolicyConfig(chunk=9, horizon=8), "it is part of the plan"),
        (
            lambda: nsde.Demonstrations.from_arrays({"s": np.zeros((2, 1))}, np.zeros((2, 1)), [2], times=[1.0, 1.0]),
            "must increase within an episode. Got 0 after 0 in row 1",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_a_policy_that_sees_nan_is_told_to_stop(np_rng):
    demos = nsde.Demonstrations.from_arrays(
        {"s": np_rng.normal(size=(20, 3))}, np_rng.normal(size=(20, 2)), [20], dt=0.1
    )
    config = nsde.PolicyConfig(history=2, horizon=4, chunk=2)
    data = nsde.action_paths(demos, demos.observations["s"], config)
    policy = nsde.SDEPolicy.for_demonstrations(nsde.NeuralSDE.for_data(data, net=SMALL, time_input=True), config, demos)
    with pytest.raises(ValueError, match=r"Got \[0, 1\]=nan. Hold the last good one, or stop the robot"):
        policy.select_action(np.array([0.0, np.nan, 0.0]))
    with pytest.raises(ValueError, match=r"observations\[0\] masked"):
        policy.select_action(np.ma.array([0.0, 1.0, 2.0], mask=[True, False, False]))
    for high, message in ((math.nan, "`limits` must be finite"), (0.5, "must be the lowest and the highest action")):
        with pytest.raises(ValueError, match=message):
            nsde.SDEPolicy(policy.model, config, limits=([1.0, 1.0], [2.0, high]), default_action=[0.0, 0.0])


def test_nets_have_a_largest_size():
    for settings, message in (
        ({"width": 10**9}, "`width` must be .*at most 8,192"),
        ({"depth": 10**6}, "at most 1,000"),
    ):
        with pytest.raises(ValueError, match=message):
            nsde.MLPConfig(**settings)


def test_each_module_knows_the_names_of_its_annotations():
    """In a process of its own: what one module has evaluated serves the next."""
    lines = [
        "import torch",
        "from neuralsde.data.transition import Transition",
        "x = torch.zeros(1, 1, 1)",
        "Transition(x, x[0], x[0, 0], x[0, 0]).to('cpu')",
    ]
    code = "\n".join(lines)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
