import copy
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from disks import full_disk
from distributed_fit import problem
from safetensors.torch import load_file
from torch import nn

from neuralsde import NeuralSDE, Trajectories, fit, load
from neuralsde.core.processes import Interrupted
from neuralsde.nets.config import MLPConfig
from neuralsde.solvers.noise import Noise
from neuralsde.training.checkpoints import CheckpointError, Checkpoints
from neuralsde.training.config import TrainConfig
from neuralsde.training.fit import NonFiniteLoss, learning_rate
from neuralsde.training.graphs import compiled_layers, operations

SCRIPT = Path(__file__).parent / "support" / "distributed_fit.py"
QUIET = {"progress": False, "cpu": True, "batch_size": 32}


class Crash(Exception):
    """Stands for a lost process."""


def crash_at(model, call):
    """Make the forward pass number `call` (from 0) fail."""
    calls = iter(range(10**6))

    def count(*_):
        if next(calls) == call:
            raise Crash

    return model.register_forward_pre_hook(count)


def steps_of(run_dir):
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def assert_same_weights(a, b):
    a, b = (m if isinstance(m, dict) else m.state_dict() for m in (a, b))
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def start(settings, **kwargs):
    """The script with these settings, one thread."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), json.dumps(settings)]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, **kwargs)


def wait_for_step(process, run_dir, step):
    for _ in range(6000):
        metrics = run_dir / "metrics.jsonl"
        if process.poll() is not None or (metrics.exists() and metrics.read_text().count("\n") >= step):
            return
        time.sleep(0.01)
    raise TimeoutError


# What a step does


def test_fit_is_adamw_on_counted_noise_with_clipping_and_average(monkeypatch):
    """An independent loop, by the book."""
    monkeypatch.setattr("neuralsde.training.fit.CLIP", 0.5)
    config = TrainConfig(steps=6, lr=0.01, weight_decay=0.1, ema=0.9, seed=3)
    model, data = problem()
    mine = copy.deepcopy(model)
    fit(model, data, config=config, **QUIET)

    pairs, average = data.transitions(), [p.detach().clone() for p in mine.parameters()]
    adam = torch.optim.AdamW(mine.parameters(), weight_decay=0.1)
    for step in range(6):
        noise = Noise.for_step(3, step, torch.arange(32))
        adam.zero_grad()
        sum(mine.loss(pairs.batch(noise), noise).values()).backward()
        for net in mine.nets.values():
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        adam.param_groups[0]["lr"] = learning_rate(config, step)
        adam.step()
        decay = min(0.9, (1 + step) / (10 + step))
        average = [decay * a + (1 - decay) * p.detach() for a, p in zip(average, mine.parameters())]
    for p, a in zip(model.parameters(), average):
        torch.testing.assert_close(p.detach(), a, rtol=1e-4, atol=1e-6)


def test_learning_rate_by_hand():
    config = TrainConfig(steps=200, lr=2.0)
    wanted = {0: 2 / 11, 9: 20 / 11, 10: 2.0, 105: 2 * (0.01 + 0.99 * 0.5)}
    assert {k: learning_rate(config, k) for k in wanted} == pytest.approx(wanted)
    assert learning_rate(config, 199) == pytest.approx(0.02, abs=2e-3)


def test_training_lowers_the_losses_and_leaves_the_global_generator_alone(tmp_path):
    model, data = problem(dropout=0.1, noise=1.0)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    fit(model, data, run_dir=tmp_path, steps=120, log_every=20, lr=5e-3, **QUIET)
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    lines = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [x["step"] for x in lines] == [20, 40, 60, 80, 100, 120]
    assert lines[-1]["denoiser"] < 0.9 * lines[0]["denoiser"]
    assert lines[0]["lr"] == learning_rate(TrainConfig(steps=120, lr=5e-3), 19) and lines[0]["steps_per_second"] > 0


def test_same_seed_same_weights_other_seed_other_weights():
    a, b, c = (fit(*problem(dropout=0.2), steps=5, seed=s, **QUIET) for s in (1, 1, 2))
    assert_same_weights(a, b)
    assert not torch.equal(next(a.parameters()), next(c.parameters()))


def test_bf16_trains_and_does_not_stick_to_the_model():
    (half, data), (full, _), (twice, _) = problem(), problem(), problem()
    fit(half, data, steps=5, precision="bf16", **QUIET)
    fit(full, data, steps=5, **QUIET)
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    gap = max(float((a - b).detach().abs().max()) for a, b in zip(half.parameters(), full.parameters()))
    assert 0 < gap < 0.01
    fit(twice, data, steps=1, lr=1e-30, precision="bf16", **QUIET)  # leaves the weights as they were
    fit(twice, data, steps=5, **QUIET)
    assert_same_weights(twice, full)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_validation_loss_is_that_of_the_averaged_model_on_the_held_out_paths(tmp_path, ema):
    model, data = problem(dropout=0.3)
    fit(
        model,
        data,
        run_dir=tmp_path,
        steps=30,
        lr=0.01,
        ema=ema,
        val_fraction=0.25,
        val_every=10,
        log_every=10,
        **QUIET,
    )
    lines = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    held_out = data.split(0.25, seed=0)[1].transitions()
    rows = torch.arange(len(held_out))
    with torch.no_grad():
        wanted = model.loss(held_out[rows], Noise.for_step(1, 0, rows))
    for part in ("flow", "diffusion", "denoiser"):
        assert lines[-1][f"val_{part}"] == pytest.approx(float(wanted[part]), rel=1e-5)
    assert lines[0]["val_denoiser"] != lines[-1]["val_denoiser"]


def test_tensorboard_tracker_writes_event_files(tmp_path):
    model, data = problem()
    fit(model, data, run_dir=tmp_path, steps=4, log_every=2, trackers=("tensorboard",), **QUIET)
    (events,) = [p for p in tmp_path.rglob("*tfevents*") if b"denoiser" in p.read_bytes()]
    assert events.stat().st_size > 100


def test_tracker_without_a_run_folder_is_refused():
    with pytest.raises(ValueError, match="`trackers` need a `run_dir`"):
        fit(*problem(), steps=2, trackers=("tensorboard",), **QUIET)


def test_data_of_another_shape_is_refused():
    model, _ = problem()
    with pytest.raises(ValueError, match=r"states of shape \(2,\), history 1 .* Got data with \(3,\), 1"):
        fit(model, Trajectories.from_arrays([np.zeros((4, 3))]), steps=1, **QUIET)
    with pytest.raises(ValueError, match="`val_fraction` splits by path"):
        fit(model, problem()[1].transitions(), steps=1, val_fraction=0.5, **QUIET)


# Checkpoints and resuming


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dropout": 0.2},
        {"ema": 0.0},
        {"precision": "bf16"},
        {"val_fraction": 0.3, "val_every": 3},
    ],
    ids=str,
)
def test_resume_is_bitwise_the_uninterrupted_run(tmp_path, settings):
    dropout = settings.pop("dropout", 0.0)
    settings = {"steps": 20, "checkpoint_every": 3, "log_every": 2, **settings, **QUIET}
    whole, data = problem(dropout)
    fit(whole, data, run_dir=tmp_path / "whole", **settings)
    for call in (8, 5):
        broken, _ = problem(dropout)
        crash_at(broken, call)
        with pytest.raises(Crash):
            fit(broken, data, run_dir=tmp_path / "broken", resume=True, **settings)
    again, _ = problem(dropout)
    fit(again, data, run_dir=tmp_path / "broken", resume=True, **settings)
    assert_same_weights(again, whole)
    assert steps_of(tmp_path / "broken") == steps_of(tmp_path / "whole") == list(range(2, 21, 2))


def test_killed_at_a_random_step_and_resumed_to_bitwise_the_same_weights(tmp_path):
    """Once; several kills of one run are in kills.py."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"{seed=}")  # shown when the test fails
    step = random.Random(seed).randrange(4, 55)
    train = {"steps": 60, "checkpoint_every": 3, "log_every": 1, "ema": 0.9, **QUIET}
    job = {"run_dir": str(tmp_path / "killed"), "resume": True, "dropout": 0.1, "delay": 0.01, "train": train}
    process = start(job)
    wait_for_step(process, tmp_path / "killed", step)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    model, data = problem(dropout=0.1)
    fit(model, data, run_dir=tmp_path / "killed", resume=True, **train)
    whole, _ = problem(dropout=0.1)
    fit(whole, data, run_dir=tmp_path / "whole", **train)
    assert_same_weights(model, whole)
    assert steps_of(tmp_path / "killed") == list(range(1, 61))
    names = sorted(p.name for p in (tmp_path / "killed" / "checkpoints").iterdir())
    assert names == ["00000057", "00000060"]  # two are kept, nothing half-written stays


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_finishes_the_step_saves_and_says_how_to_go_on(tmp_path, number):
    model, data = problem()
    calls = iter(range(100))
    hook = model.register_forward_pre_hook(lambda *_: signal.raise_signal(number) if next(calls) == 4 else None)
    handler = signal.getsignal(number)
    settings = {"run_dir": tmp_path / "run", "steps": 12, **QUIET}
    with pytest.raises(
        Interrupted, match=r"Stopped at step 5 of 12 and saved\. Go on .*--resume, or fit\(.*resume=True"
    ):
        fit(model, data, **settings)
    assert signal.getsignal(number) is handler
    hook.remove()
    resumed, whole = problem()[0], problem()[0]
    fit(resumed, data, resume=True, **settings)
    assert_same_weights(resumed, fit(whole, data, steps=12, **QUIET))
    model.register_forward_pre_hook(lambda *_: signal.raise_signal(number))
    with pytest.raises(Interrupted, match="Without a run folder nothing was saved"):
        fit(model, data, steps=12, **QUIET)


def test_a_finished_run_resumes_to_itself(tmp_path):
    model, data = problem()
    fit(model, data, run_dir=tmp_path, steps=5, **QUIET)
    assert_same_weights(fit(problem()[0], data, run_dir=tmp_path, steps=5, resume=True, **QUIET), model)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    fit(*problem(), run_dir=tmp_path, steps=3, **QUIET)
    with pytest.raises(
        ValueError, match=r"already holds a run\. Give `resume=True` to go on with it, or another folder"
    ):
        fit(*problem(), run_dir=tmp_path, steps=3, **QUIET)
    with pytest.raises(ValueError, match="`resume=True` needs the folder of the run"):
        fit(*problem(), steps=3, resume=True, **QUIET)


def test_resume_refuses_another_run(tmp_path):
    model, data = problem()
    settings = {"run_dir": tmp_path, "steps": 6, "checkpoint_every": 2, **QUIET}
    fit(model, data, **settings)
    again = {**settings, "resume": True}
    with pytest.raises(ValueError, match=r"00000006 with another `lr`: it ran with 0\.001\. Got 0\.5"):
        fit(model, data, lr=0.5, **again)
    with pytest.raises(ValueError, match=r"with another `steps`: it ran with 6\. Got 7"):
        fit(model, data, **{**again, "steps": 7})
    with pytest.raises(ValueError, match=r"with another `noise`: it ran with 0\.05\. Got 0\.3"):
        fit(problem(noise=0.3)[0], data, **again)
    other = Trajectories(data.states + 1, data.times, data.lengths)  # as many transitions, other numbers
    with pytest.raises(ValueError, match="on other data"):
        fit(model, other, **again)
    with pytest.raises(ValueError, match="on other data"):
        fit(model, data.select(range(5)), **again)
    fit(model, data, keep=5, log_every=1, **again)  # what does not touch the numbers may change


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("weights.safetensors", None, r"weights\.safetensors is missing"),
        ("average.safetensors", b"", "truncated or not a safetensors file"),
        ("optimiser.safetensors", b"\x80\x04\x95pickle", "is a pickle"),
        ("state.json", b'{"step": 3', r"00000006 is damaged"),
        ("state.json", b"[]", r"00000006 is damaged"),
        ("state.json", b'{"other": 3}', r"00000006 is damaged"),
        ("state.json", b'{"step": 6}', r"00000006 is damaged"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_serves(tmp_path, file, content, message):
    model, data = problem()
    settings = {"run_dir": tmp_path, "steps": 8, "checkpoint_every": 3, **QUIET}
    crash_at(model, 7)
    with pytest.raises(Crash):
        fit(model, data, **settings)
    damaged = tmp_path / "checkpoints" / "00000006"
    (damaged / file).unlink() if content is None else (damaged / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        fit(problem()[0], data, resume=True, **settings)
    assert "Delete it to resume from the one before" in str(caught.value)
    for part in damaged.iterdir():
        part.unlink()
    damaged.rmdir()
    again = fit(problem()[0], data, resume=True, **settings)
    assert_same_weights(again, fit(problem()[0], data, steps=8, **QUIET))


def test_a_full_disk_during_a_checkpoint_leaves_the_old_one_valid(tmp_path):
    train = {"steps": 10, "checkpoint_every": 4, **QUIET}
    model, data = problem()
    calls = iter(range(100))
    with full_disk() as fill:
        model.register_forward_pre_hook(lambda *_: fill(3_000) if next(calls) == 5 else None)
        with pytest.raises(CheckpointError, match=r"Cannot write the checkpoint of step 8.*00000004"):
            fit(model, data, run_dir=tmp_path, **train)
    folder = tmp_path / "checkpoints"
    assert [p.name for p in folder.iterdir()] == ["00000004"]
    assert Checkpoints(folder, 2).load(folder / "00000004").step == 4
    model, data = problem()
    fit(model, data, run_dir=tmp_path, resume=True, **train)
    assert_same_weights(model, fit(problem()[0], data, steps=10, **QUIET))


def test_an_unwritable_run_folder_stops_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    model, data = problem()
    crash_at(model, 0)
    with pytest.raises(ValueError, match=r"Cannot write to the folder .*file/run: Not a directory\. Choose another"):
        fit(model, data, run_dir=tmp_path / "file" / "run", steps=2, **QUIET)


def test_nets_that_share_a_tensor_can_be_checkpointed(tmp_path):
    model, data = problem()
    block = model.nets["flow"].blocks[0]
    block.back = block.wide
    fit(model, data, run_dir=tmp_path, steps=2, **QUIET)
    assert len(load_file(tmp_path / "checkpoints" / "00000002" / "weights.safetensors")) == len(model.state_dict())


# Breakdown


class Breaks(nn.Module):
    """A linear net that yields NaN from call number `at` on, forwards or only in the gradient."""

    def __init__(self, at=10**9, *, backward=False):
        super().__init__()
        self.linear, self.at, self.backward, self.calls = nn.Linear(2, 2), at, backward, 0

    def forward(self, state, condition=None):
        self.calls += torch.is_grad_enabled()  # the look at its shape does not count
        y = self.linear(state[:, -1])
        if self.calls <= self.at:
            return y
        if self.backward:
            y.register_hook(lambda grad: grad * math.nan)
            return y
        return y * math.nan


def with_nets(**nets):
    _, data = problem()
    nets = {n: nets.get(n, Breaks()) for n in ("flow", "diffusion", "denoiser")}
    return NeuralSDE.for_data(data, nets=nets), data


def test_a_loss_that_is_not_finite_names_step_part_and_last_checkpoint(tmp_path):
    model, data = with_nets(denoiser=Breaks(at=7))
    with pytest.raises(NonFiniteLoss, match=r"loss of `denoiser` is not finite at step 8\. The last good .*00000006"):
        fit(model, data, run_dir=tmp_path, steps=20, checkpoint_every=3, **QUIET)
    model, data = with_nets(flow=Breaks(at=2))
    with pytest.raises(
        NonFiniteLoss, match=r"`flow` is not finite at step 3\. There is no checkpoint yet\. Try a lower"
    ):
        fit(model, data, steps=20, **QUIET)


def test_weights_that_are_not_finite_never_become_the_last_good_checkpoint(tmp_path):
    model, data = with_nets(diffusion=Breaks(at=5, backward=True))
    with pytest.raises(NonFiniteLoss, match=r"gradient of `diffusion` is not finite by step 6\. The last .*00000003"):
        fit(model, data, run_dir=tmp_path, steps=20, checkpoint_every=3, **QUIET)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["00000003"]


# Several processes


@pytest.mark.slow
def test_two_processes_train_the_same_model_as_one(tmp_path):
    """Under torchrun; `fit(processes=2)` is in tests/test_processes.py."""
    train = {"steps": 20, "lr": 2e-3, **QUIET}
    job = {"run_dir": str(tmp_path / "run"), "output": str(tmp_path / "two"), "train": train}
    launcher = [
        "-m",
        "torch.distributed.run",
        "--nproc_per_node=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
    ]
    command = [sys.executable, *launcher, str(SCRIPT), json.dumps(job)]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=240)
    record = json.loads((tmp_path / "run" / "checkpoints" / "00000020" / "state.json").read_text())
    assert record["num_processes"] == 2
    one, two = fit(*problem(), **train), load(tmp_path / "two")
    start_weights = problem()[0].state_dict()
    for name, value in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[name], value, rtol=0, atol=1e-5)
    moved = max(float((value - start_weights[n]).abs().max()) for n, value in one.state_dict().items() if value.numel())
    assert moved > 1e-2  # so that 1e-5 says something


@pytest.mark.slow
def test_wide_nets_resume_bitwise_too(tmp_path):
    _, data = problem()
    settings = {"steps": 300, "checkpoint_every": 100, "progress": False, "cpu": True, "batch_size": 512}
    wide = lambda: NeuralSDE.for_data(data, net=MLPConfig(width=256, depth=4, dropout=0.1))  # noqa: E731
    broken = wide()
    crash_at(broken, 250)
    with pytest.raises(Crash):
        fit(broken, data, run_dir=tmp_path, **settings)
    assert_same_weights(fit(wide(), data, run_dir=tmp_path, resume=True, **settings), fit(wide(), data, **settings))


def test_noise_on_the_context_flattens_what_depends_on_it():
    """Velocity 2c for a context c of unit variance: errors in c of variance v shrink the slope to 2 / (1 + v)."""
    rng = torch.Generator().manual_seed(0)
    context = torch.randn(2_000, 1, generator=rng)
    states = torch.cat([torch.zeros(2_000, 1), 2 * context], dim=1)[..., None]
    data = Trajectories.from_arrays(states, [0.0, 1.0], context=context)
    slopes = []
    for noise in (0.0, 1.0):
        model = NeuralSDE.for_data(data, tau="start", noise=0.0, denoiser=None, net=MLPConfig(width=32, depth=1))
        fit(model, data, steps=300, lr=3e-3, context_noise=noise, **QUIET)
        low, high = (float(model.fields([[0.0]], context=[[c]])[0]) for c in (-0.5, 0.5))
        slopes.append(high - low)
    assert slopes == pytest.approx([2.0, 1.0], abs=0.15)
    bare, without = problem()
    with pytest.raises(ValueError, match="this one has none"):
        fit(bare, without, steps=1, context_noise=0.1, **QUIET)
    with pytest.raises(ValueError, match="must not be negative"):
        TrainConfig(context_noise=-1.0)


def test_a_compiler_that_does_not_work_is_noticed_before_the_training():
    model, _ = problem()

    def fails():
        raise RuntimeError("no compiler\nhere")

    said = pytest.warns(UserWarning, match="cannot be compiled here .no compiler.: training goes on")
    with said, compiled_layers(model, fails):
        assert all(module._compiled_call_impl is None for module in model.modules())
    with compiled_layers(model, lambda: None):
        assert any(module._compiled_call_impl is not None for module in model.modules())
    assert all(module._compiled_call_impl is None for module in model.modules())


def test_operations_of_products_are_counted():
    x, y = torch.randn(3, 5), torch.randn(5, 7)
    assert operations(lambda: x @ y) == 2 * 3 * 5 * 7


COMPILED = """
import copy, torch
from distributed_fit import problem
from neuralsde import fit
(plain, data), (compiled, _) = problem(), problem()
settings = {"steps": 4, "progress": False, "cpu": True, "batch_size": 32}
fit(plain, data, **settings)
fit(compiled, data, compile=True, **settings)
assert torch._dynamo.utils.counters["stats"]["calls_captured"] > 0
for a, b in zip(plain.state_dict().values(), compiled.state_dict().values()):
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
copy.deepcopy(compiled)  # as it was before
assert all(module._compiled_call_impl is None for module in compiled.modules())
"""


def test_compiled_layers_learn_the_same():
    """Up to rounding. In a process of its own: the compiler does not see through the type checks of tests."""
    env = {**os.environ, "PYTHONPATH": str(SCRIPT.parent)}
    done = subprocess.run([sys.executable, "-c", COMPILED], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
