"""Several processes that train together."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from distributed_fit import problem
from safetensors.torch import load_file

from neuralsde import NeuralSDE, Stream, fit
from neuralsde.cli import main
from neuralsde.nets.config import MLPConfig

TRAIN = {"steps": 20, "lr": 2e-3, "progress": False, "cpu": True, "batch_size": 32}


def difference(a, b):
    a, b = (m if isinstance(m, dict) else m.state_dict() for m in (a, b))
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a if a[name].numel())


def test_a_batch_in_parts_is_the_same_step():
    start, one = problem()[0], fit(*problem(), **TRAIN)
    parts = fit(*problem(), accumulate=4, **TRAIN)
    assert difference(one, parts) < 1e-5 < 1e-2 < difference(one, start)


def test_a_batch_in_parts_logs_the_loss_of_all_of_it(tmp_path):
    lines = []
    for num in (1, 4):
        fit(*problem(), accumulate=num, run_dir=tmp_path / str(num), log_every=1, **TRAIN)
        lines.append([json.loads(line) for line in (tmp_path / str(num) / "metrics.jsonl").open()])
    for ours, theirs in zip(*lines):
        assert ours["flow"] == pytest.approx(theirs["flow"], rel=1e-4)
        assert ours["denoiser"] == pytest.approx(theirs["denoiser"], rel=1e-4)


class Crash(Exception):
    """Stands for a lost process."""


def crash(module, arguments):
    """As a hook: fail in the sixteenth step."""
    module.calls = getattr(module, "calls", 0) + 1
    if module.calls == 16:
        raise Crash


def test_two_processes_go_on_with_what_one_has_begun(tmp_path):
    """On a stream; each has two parts of its half of the batch, and half of the lanes."""
    _, data = problem()
    stream = Stream.write(data, tmp_path / "s", block_size=20)
    build = lambda: NeuralSDE.for_data(stream, net=MLPConfig(width=16, depth=1))  # noqa: E731
    one = fit(build(), stream, run_dir=tmp_path / "one", **TRAIN)
    broken = build()
    broken.register_forward_pre_hook(crash)
    with pytest.raises(Crash):
        fit(broken, stream, run_dir=tmp_path / "two", checkpoint_every=5, **TRAIN)
    assert [p.name for p in sorted((tmp_path / "two" / "checkpoints").iterdir())] == ["00000010", "00000015"]
    two = fit(build(), stream, run_dir=tmp_path / "two", resume=True, processes=2, accumulate=2, **TRAIN)
    assert difference(one, two) < 1e-5 < 1e-2 < difference(one, build())
    assert not two.training
    record = json.loads((tmp_path / "two" / "checkpoints" / "00000020" / "state.json").read_text())
    assert record["num_processes"] == 2
    ours, theirs = (json.loads((tmp_path / n / "metrics.jsonl").read_text()) for n in ("one", "two"))
    assert ours["flow"] == pytest.approx(theirs["flow"], rel=1e-4)  # of the whole batch, not of a half


def children(pid):
    """The processes that a training has started, the first one first."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"spawn_main" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except (OSError, ValueError):
            continue
    return sorted(found)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


NET = ["--model.net.width", "8", "--model.net.depth", "1", "--train.batch-size", "16"]
SIZE = [*NET, "--task.num-paths", "2", "--model.sampler.substeps", "1"]
OPTIONS = ["--no-progress", "--cpu", "--checkpoint-every", "20", "--log-every", "5", "--train.steps", "400"]


def start(run):
    command = ["train", "branching", "--output", str(run), "--processes", "2", "--resume", *SIZE, *OPTIONS]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "neuralsde.cli", *command], env=env, stderr=subprocess.PIPE, text=True
    )
    metrics = run / "metrics.jsonl"
    for _ in range(12_000):
        if process.poll() is not None or (metrics.exists() and metrics.read_text().count("\n") >= 12):
            break
        time.sleep(0.01)
    assert process.poll() is None, process.stderr.read()
    return command, process


@pytest.mark.slow
def test_a_killed_worker_ends_the_training_and_the_same_command_goes_on(tmp_path):
    command, process = start(tmp_path / "run")
    first, second = children(process.pid)
    os.kill(second, signal.SIGKILL)
    words = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert "Process 1 of 2 was ended by SIGKILL. Has the memory run out? Go on from the last checkpoint" in words
    assert not alive(first)
    kept = max(int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert 60 <= kept < 400
    main(command)
    one = tmp_path / "one"
    main(["train", "branching", "--output", str(one), *SIZE, *OPTIONS])
    ours, theirs = (load_file(r / "checkpoints" / "00000400" / "weights.safetensors") for r in (tmp_path / "run", one))
    assert difference(ours, theirs) < 1e-3
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert steps == list(range(5, 401, 5))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stopped_training_saves_and_leaves_no_process(tmp_path, number):
    _, process = start(tmp_path / "run")
    group = children(process.pid)
    assert len(group) == 2
    process.send_signal(number)
    words = process.communicate(timeout=60)[1]
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert "and saved. Go on with the same command and --resume" in words
        last = max(int(p.name) for p in (tmp_path / "run" / "checkpoints").iterdir())
        assert f"Stopped at step {last} of 400" in words
    for _ in range(100):
        if not any(map(alive, group)):
            return
        time.sleep(0.1)
    raise AssertionError("a process has outlived its parent")


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ["-m", "torch.distributed.run", "--nproc-per-node", "2"],
        ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"],
    ],
    ids=["torchrun", "accelerate"],
)
def test_other_launchers_run_the_same_command(tmp_path, launcher):
    own = ["--mixed_precision", "no", "--dynamo_backend", "no"] if "accelerate.commands.launch" in launcher else []
    command = ["train", "branching", "--output", str(tmp_path / "run"), *SIZE, *OPTIONS, "--train.steps", "20"]
    words = [sys.executable, *launcher, *own, "-m", "neuralsde.cli", *command]
    done = subprocess.run(
        words, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240
    )
    assert done.stdout.count("Wrote ") == 1
    record = json.loads((tmp_path / "run" / "checkpoints" / "00000020" / "state.json").read_text())
    assert record["num_processes"] == 2
    assert (tmp_path / "run" / "results.json").exists()


def test_what_several_processes_cannot_do_is_refused(monkeypatch):
    model, data = problem()
    with pytest.raises(
        ValueError, match=r"`accumulate` must divide the 32 rows of a process. Got options.accumulate=5"
    ):
        fit(model, data, accumulate=5, **TRAIN)
    model.register_forward_pre_hook(lambda *_: None)
    with pytest.raises(
        ValueError, match=r"`processes` hands model and data over to other processes, and this cannot be"
    ):
        fit(model, data, processes=2, **TRAIN)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"2 were started already, by torchrun or accelerate. Got options.processes=2"):
        fit(model, data, processes=2, **TRAIN)


@pytest.mark.slow
def test_weights_in_pieces_take_the_same_steps(tmp_path):
    """Torch's `fully_shard` on two gloo processes; `fit` does not offer it, and docs/guides/scale.md says so."""
    import sharded_steps  # whose import takes seconds

    script = Path(__file__).parent / "support" / "sharded_steps.py"
    launcher = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
    ]
    command = [sys.executable, *launcher, str(script), str(tmp_path / "weights.safetensors")]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=240, capture_output=True)
    model, data = problem()
    sharded_steps.train(model, data)
    assert (
        difference(model, load_file(tmp_path / "weights.safetensors")) < 1e-5 < 1e-2 < difference(model, problem()[0])
    )
