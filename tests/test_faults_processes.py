"""Faults of processes, signals, terminals and disks: each ends with a word, and with nothing left that computes."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import stops

import kills
from neuralsde.cli import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc")
SECONDS = 60.0  # until something that was started must have begun


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """Of a process that imports what this one does, with the mark by which its workers are found."""
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", kills.MARK: str(tmp_path)} | more


def begun(file: Path, process: subprocess.Popen) -> None:
    limit = time.monotonic() + SECONDS
    while not file.exists():
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.01)


def nsde(*words: object, **more) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "neuralsde.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, **more)


# Workers

SLOW = """
import time
from functools import partial
from pathlib import Path

def wait(*_):
    Path("begun").touch()
    time.sleep(300)
"""
PARENTS = {
    "pool": "from neuralsde.core.processes import worker_pool\n    with worker_pool(2) as pool: list(pool.map(wait, [1, 2]))",
    "roll-out": "from neuralsde.experiments.pusht.rollout import roll_out\n"
    "    roll_out(wait, range(40), observe_kind='pose', num_workers=2)",
    "decoder": "from neuralsde.data.videos.folders import folder_clips\n"
    "    from neuralsde.data.videos.sharding import write_shards\n"
    "    write_shards(folder_clips('films'), 'shards', num_workers=2)",
}
SLOW_FRAMES = """
import os
if os.path.exists("films"):
    import slow
    from neuralsde.data.videos.decode import FrameSettings
    FrameSettings.frame = slow.wait
"""


@pytest.fixture
def slow(tmp_path):
    """A folder in which workers of each kind wait for ever."""
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def films(tmp_path: Path, num_frames: int = 4) -> None:
    from neuralsde.video.files import write_video

    for k in range(2):
        write_video(np.zeros((num_frames, 32, 32, 3), np.uint8), tmp_path / "films" / f"{k}.mp4", fps=10)
    (tmp_path / "sitecustomize.py").write_text(SLOW_FRAMES)


@pytest.mark.parametrize("kind", PARENTS)
def test_workers_end_with_a_parent_that_is_killed(kind, slow):
    if kind == "roll-out":
        pytest.importorskip("gym_pusht", reason="needs gym-pusht: pip install 'neuralsde[pusht]'")
    if kind == "decoder":
        films(slow)
    (slow / "parent.py").write_text(f"from slow import wait\nif __name__ == '__main__':\n    {PARENTS[kind]}\n")
    parent = subprocess.Popen([sys.executable, "parent.py"], cwd=slow, env=environment(slow), stderr=subprocess.DEVNULL)
    begun(slow / "begun", parent)
    assert len(list(kills.workers_of(slow))) >= 2
    parent.kill()
    parent.wait()
    seconds, left = kills.orphans_after(slow)
    assert not left, f"still there {seconds:.1f} s after their parent"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_command_and_its_workers(number, slow):
    films(slow)
    command = [sys.executable, "-m", "neuralsde.cli", "data", "videos", "--from", "films", "--output", "shards"]
    heeds = partial(signal.signal, number, signal.SIG_DFL)  # a job in the background of a shell does not heed SIGINT
    how = {"cwd": slow, "env": environment(slow), "stderr": subprocess.PIPE, "text": True, "preexec_fn": heeds}
    process = subprocess.Popen(command, **how)
    begun(slow / "begun", process)
    process.send_signal(number)
    words = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number
    assert "Traceback" not in words and words.splitlines()[-1] == "nsde: Stopped."
    assert not kills.orphans_after(slow)[1]


def test_sigterm_ends_a_training_with_its_farewell(tmp_path, monkeypatch, capsys):
    size = ["--train.batch-size", "8", "--model.net.width", "8", "--no-progress", "--log-every", "1"]
    command = ["train", "branching", "--output", tmp_path / "run", "--train.steps", "100000", "--cpu", *size]
    words = stops(monkeypatch, capsys, signal.SIGTERM, *command)
    assert re.search(r"nsde: Stopped at step \d+ of 100000 and saved", words)


def test_a_pool_that_is_left_by_an_error_does_not_wait():
    from neuralsde.core.processes import worker_pool

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError), worker_pool(1) as pool:
        pool.submit(int).result()
        pool.submit(time.sleep, 40)
        time.sleep(0.5)
        raise ZeroDivisionError
    assert time.monotonic() - began < 20


# Terminals


def said(*_) -> str:
    return warnings.formatwarning("Paths are few.", UserWarning, "file.py", 7)


def test_a_command_and_its_workers_warn_without_a_line_of_code():
    from neuralsde.core.processes import plain_warnings, worker_pool

    with plain_warnings(), worker_pool(1) as pool:
        assert said() == pool.submit(said).result() == "Warning: Paths are few.\n"
    assert said().startswith("file.py:7: UserWarning")


@pytest.mark.parametrize("words", [["--help"], ["list"], ["fit", "--help"], ["train", "branching", "--dry-run"]])
def test_a_closed_pipe_is_quiet(words, tmp_path):
    command = [sys.executable, "-m", "neuralsde.cli", *words]
    env = environment(tmp_path)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == 141


def test_a_full_output_is_one_line(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "neuralsde.cli", "--help"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2 and done.stderr == "nsde: Cannot write the output: No space left on device.\n"


ASCII = """
import sys
from neuralsde.cli import main
from neuralsde.cli.commands import COMMANDS
assert sys.stdout.encoding.lower() in ("ascii", "ansi_x3.4-1968", "us-ascii")
for words in [["--help"], *([name, "--help"] for name in COMMANDS), ["fit", "--help-all"], ["train", "branching", "--help"]]:
    try:
        main(words)
    except SystemExit as end:
        assert not end.code, words
if sys.argv[1:]:
    size = ["--steps", "2", "--net.width", "8", "--net.depth", "1", "--no-progress", "--cpu", "--holdout", "0"]
    main(["fit", "table.csv", "--output", "run", *size])
else:
    print("Gr\\u00f6\\u00dfe")
print("\\u03c3 \\u00d7 \\udcff", file=sys.stderr)
"""


@pytest.mark.parametrize("more", [{"PYTHONIOENCODING": "ascii"}, {}])
def test_ascii_terminals(more, tmp_path):
    """What they cannot show is a question mark, and files are in UTF-8 all the same (which the locale alone decides)."""
    fits = ["fit"] if not more else []
    rows = "\n".join(f"{k},{k % 7}" for k in range(60))
    (tmp_path / "table.csv").write_text(f"Größe,σ\n{rows}\n", encoding="utf-8")
    (tmp_path / "script.py").write_text(ASCII, encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **more}
    env = environment(tmp_path, **plain)
    command = [sys.executable, "script.py", *fits]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Gr??e" in done.stdout and done.stderr.endswith(b"? ? ?\n")
    assert not fits or "Größe" in (tmp_path / "run" / "report.md").read_text(encoding="utf-8")


# Disks


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_full_disk_in_data_is_one_message(num_workers, tmp_path):
    """What is still in a buffer fails once more when its file is closed."""
    films(tmp_path, num_frames=30)
    (tmp_path / "sitecustomize.py").unlink()
    limit = 2_048  # bytes of any file
    options = ["--from", "films", "--output", "shards", "--size", "16", "--num-workers", num_workers]
    env = environment(tmp_path, PYTHONDONTWRITEBYTECODE="1")
    small = {
        "cwd": tmp_path,
        "env": env,
        "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    }
    done = nsde("data", "videos", *options, **small)
    words = [line for line in re.split(r"[\r\n]", done.stderr) if line and not line.startswith("decode:")]
    assert done.returncode == 2 and len(words) == 1, done.stderr
    assert re.match(
        r"nsde: Cannot write to .*shards \(File too large\)\. Make room and run the command again", words[0]
    )
    done = nsde("data", "videos", *options, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    left = {file.name for file in (tmp_path / "shards").iterdir()}
    assert left == {".lock", "frames-00000.npy", "times.npy", "videos.json"}


# Extras


@pytest.mark.parametrize(
    ("module", "extra", "words"),
    [
        ("matplotlib", "plots", ["demo", "--steps", "1"]),
        ("diffusers", "baselines", ["demo", "--steps", "1"]),
        ("matplotlib", "plots", ["demo", "pusht"]),
        ("PIL", "video", ["demo", "video"]),
        ("pymunk", "video", ["demo", "video"]),
        ("diffusers", "baselines", ["train", "branching-ddim", "--train.steps", "1"]),
        ("diffusers", "baselines", ["compare", "branching", "--output", "out/results.json"]),
        ("gym_pusht", "pusht", ["train", "pusht"]),
        ("gym_pusht", "pusht", ["compare", "pusht", "--output", "out/results.json"]),
        ("matplotlib", "plots", ["plot", "run"]),
        ("matplotlib", "plots", ["forecast", "run", "--data", "table.csv", "--plot", "fan.png"]),
        ("zarr", "data", ["data", "pusht"]),
        ("av", "video", ["data", "kth"]),
        ("wandb", "trackers", ["train", "branching", "--trackers", "wandb", "--train.steps", "1", "--no-progress"]),
    ],
)
def test_a_missing_extra_is_named_before_any_work(module, extra, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit) as end:
        main(words)
    shown = capsys.readouterr()
    assert end.value.code == 2 and f"pip install 'neuralsde[{extra}]'" in shown.err and shown.out == ""
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "config.yaml"]


# Kills


def run_kills(*words: str, tmp_path: Path) -> None:
    script = Path(kills.__file__)
    done = subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, env=environment(tmp_path), timeout=1_500
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"


def test_a_few_kills_lose_nothing(tmp_path):
    run_kills("--kills", "4", "--only", "train", "data", tmp_path=tmp_path)


@pytest.mark.slow
def test_kills_lose_nothing(tmp_path):
    run_kills("--kills", "40", "--seed", "1", tmp_path=tmp_path)
