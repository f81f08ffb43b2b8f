"""Every command of README, start and guides runs as it stands, in a temporary folder and in the order of its page.

Where a command would train for minutes, tiny settings are appended: they stand beside it here. An option that comes twice
counts as it comes last.
"""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from neuralsde.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "docs/index.md", *sorted((ROOT / "docs/start").glob("*.md"))]
PAGES += sorted((ROOT / "docs/guides").glob("*.md"))

FEW_STEPS = "--steps 10 --net.width 16 --no-progress --cpu"
FEW_PATHS = "--num-paths 40 --num-times 5"
SMALL_VIDEO = "--width 32 --batch-size 4 --autoencoder-steps 2 --steps 2 --num-workers 0 --no-progress --cpu"
SMALL_POLICY = "--cpu --no-progress --train.steps 2 --train.batch-size 16 --task.num-episodes 1 --model.net.width 16"

FAST = {
    "install": {"nsde --version": "", "nsde list": ""},
    "tables": {
        "nsde fit pumps.csv --id pump --time t --columns pressure flow": FEW_STEPS,
        "nsde forecast runs/pumps --data pumps.csv --horizon 300 --plot forecast.png": FEW_PATHS,
        "nsde evaluate runs/pumps --data other.csv": FEW_PATHS,
    },
    "series": {
        "nsde fit sales.csv --id shop --time day --columns amount": "--budget 1s --no-progress",
        "nsde fit shop.csv --context price heat --known-ahead price --future prices.csv": "--budget 1s --no-progress",
    },
    "covariates": {
        "nsde fit rooms.csv --id room --time t --columns temperature --context heater": FEW_STEPS,
        "nsde forecast runs/rooms --data rooms.csv --future plan.csv --horizon 2": FEW_PATHS,
    },
    "videos": {
        "nsde fit FOLDER --output runs/films": SMALL_VIDEO,
        "nsde sample runs/films clip.mp4 --num-paths 4 --output futures.mp4": "--frames 2",
    },
}
SLOW = {
    "robots": {
        "nsde data pusht --from path/to/what/you/have": "",
        "nsde demo pusht": "--num-episodes 1 --num-workers 1",
        "nsde train pusht --output runs/pusht": SMALL_POLICY,
        "nsde evaluate runs/pusht --num-episodes 500": "--num-episodes 1 --num-workers 1",
        "nsde train pusht-cpu": SMALL_POLICY,
    },
    "video demo": {"nsde demo video": "--num-paths 1"},
    "video settings": {
        "nsde fit films --output runs/films": SMALL_VIDEO,
        "nsde sample runs/films films/0.mp4 --num-paths 4 --fps 2x --output futures.mp4": "--frames 2",
        "nsde fit films --size 32 --fps 5 --num-context 3": f"{SMALL_VIDEO} --output runs/small",
        "nsde fit films --autoencoder-steps 8000 --steps 20000": f"{SMALL_VIDEO} --output runs/long",
        "nsde fit films --autoencoder runs/films --output runs/again": SMALL_VIDEO.replace(
            "--autoencoder-steps 2 ", ""
        ),
        "nsde fit films --passes 2": f"{SMALL_VIDEO} --output runs/passes",
        "nsde fit films --copies 15": f"{SMALL_VIDEO} --copies 2 --output runs/copies",
        "nsde fit films --output runs/films --resume": SMALL_VIDEO,
        "nsde data videos --from DIR --size 128 --every 2": "--size 32 --num-workers 0",
    },
    "export": {
        "nsde export pusht --output pusht-onnx": "",
        "nsde export runs/pumps --steps 12 --output pumps-onnx": "--steps 2",
        "python examples/onnx_run.py pusht-onnx pumps-onnx": "",
    },
    "processes": {
        "nsde train branching --processes 2": "--model.net.width 8 --model.net.depth 1 --train.steps 4 --train.batch-size 16 "
        "--task.num-paths 2 --model.sampler.substeps 1 --no-progress --cpu"
    },
    "bench": {
        f"nsde bench {name}": "--repeats 1 --cpu"
        for name in ("sampling", "training", "plans", "video", "loading", "import")
    },
    "inverse dynamics": {"python examples/inverse_dynamics.py --figure inverse_dynamics.png": ""},
}
NOT_RUN = {
    "torchrun --nproc-per-node 2 -m neuralsde.cli train branching": "test_processes.py runs it, in processes of its own",
    "pip install .": "changes the environment",
    "pip install '.[data,plots]'": "changes the environment",
    "pip install '.[pusht,plots]'": "changes the environment",
    "pip install '.[export]'": "changes the environment",
    "pip install '.[studio]'": "changes the environment",
    "nsde studio": "serves until it is stopped; test_studio.py and tests/browser visit it",
    "make demo": "builds an environment; test_cli.py runs `nsde demo`",
    "make test": "runs this",
    "nsde data pusht": "downloads; test_download.py has a server of its own",
    "nsde data etth1": "downloads; test_download.py has a server of its own",
    "nsde fit data/etth1.csv --horizon 24": "a file of the data set; `nsde fit sales.csv` takes such a table",
    "nsde data kth": "downloads; test_cli_video.py gives files of that form",
    "nsde data clevrer --from DIR --only validation": "files of the data set; test_cli_video.py makes such files",
    "nsde data weizmann --from DIR --output data/weizmann": "files of the data set; test_video_data.py makes such files",
    "nsde fit data/kth --output runs/kth": "files of the data set; test_cli_video.py makes such files",
}


def commands_of(page):
    """Lines of shell in a page, without comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    lines = [re.sub(r"\s+#.*", "", line).strip() for kind, block in blocks if not kind for line in block.splitlines()]
    return [line for line in lines if line.split(" ")[0] in ("nsde", "python", "pip", "make", "torchrun")]


def test_every_command_is_run_or_has_a_reason():
    found = {line for page in PAGES for line in commands_of(page)}
    known = [*NOT_RUN, *(line for story in (*FAST.values(), *SLOW.values()) for line in story)]
    assert found == set(known) and len(known) == len(set(known))


def prepare_tables():
    rng = np.random.default_rng(0)
    for name in ("pumps", "other"):
        walk = 5 + 0.1 * rng.normal(size=(5, 40, 2)).cumsum(1)
        rows = [f"{p},{10 * k},{walk[p, k, 0]:.4f},{walk[p, k, 1]:.4f}" for p in range(5) for k in range(40)]
        Path(f"{name}.csv").write_text("\n".join(["pump,t,pressure,flow", *rows]))


def prepare_series():
    days = np.datetime64("2024-01-01") + np.arange(60)
    rows = [f"{shop},{day},{10 + k % 7}" for shop in ("a", "b") for k, day in enumerate(days)]
    Path("sales.csv").write_text("\n".join(["shop,day,amount", *rows]))
    rows = [f"{day},{10 + k % 7},{k % 3},{k % 5}" for k, day in enumerate(days)]
    Path("shop.csv").write_text("\n".join(["ds,y,price,heat", *rows]))
    later = [f"{day},{k % 3}" for k, day in enumerate(days[-1] + np.arange(1, 15))]
    Path("prices.csv").write_text("\n".join(["ds,price", *later]))


def prepare_covariates():
    rng = np.random.default_rng(0)
    level = 20 + 0.1 * rng.normal(size=(5, 60)).cumsum(1)
    rows = [f"{r},{k / 4},{level[r, k]:.4f},{k % 2}" for r in range(5) for k in range(60)]
    Path("rooms.csv").write_text("\n".join(["room,t,temperature,heater", *rows]))
    Path("plan.csv").write_text("\n".join(["room,t,heater", *(f"{r},15.5,0" for r in range(5))]))


def prepare_videos():
    from neuralsde.experiments.collisions.clips import clips
    from neuralsde.video.files import write_video

    made = clips(range(4), num_frames=20, fps=10.0, size=32).frames.permute(0, 1, 3, 4, 2).numpy()
    for folder in ("films", "FOLDER", "DIR"):
        for k, film in enumerate(made):
            write_video(film, f"{folder}/{k}.mp4", fps=10)
    write_video(made[0], "clip.mp4", fps=10)


def prepare_robots():
    pytest.importorskip("gym_pusht", reason="needs gym-pusht: pip install 'neuralsde[pusht]'")
    rng = np.random.default_rng(0)
    agent = np.clip(256 + rng.normal(0, 10, (3, 30, 2)).cumsum(1), 50, 450).astype(np.float32)
    block = np.broadcast_to(np.float32([256.0, 300.0, 0.7]), (3, 30, 3))
    state = np.concatenate([agent, block], axis=2).reshape(-1, 5)
    Path("path/to/what/you").mkdir(parents=True)
    with open("path/to/what/you/have", "wb") as file:
        np.savez(file, action=agent.reshape(-1, 2), state=state, episode_ends=[30, 60, 90])


def prepare_export():
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'neuralsde[export]'")
    prepare_tables()
    line = "fit pumps.csv --id pump --time t --columns pressure flow"
    main([*line.split(), *FEW_STEPS.split()])


PREPARE = {
    "export": prepare_export,
    "tables": prepare_tables,
    "series": prepare_series,
    "covariates": prepare_covariates,
    "videos": prepare_videos,
    "video settings": prepare_videos,
    "robots": prepare_robots,
}


def run_story(name, story, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PREPARE.get(name, lambda: None)()
    for line, tiny in story.items():
        program, *words = shlex.split(line)
        if program == "nsde":
            main([*words, *shlex.split(tiny)])
        else:
            run_example(*words)


def run_example(file, *given):
    """An example of the repository: in a process of its own, or where it draws a figure with fewer steps."""
    import runpy
    import subprocess
    import sys

    if given[0] != "--figure":
        subprocess.run([sys.executable, str(ROOT / file), *given], check=True, timeout=300)
        return
    flag, figure = given
    assert flag == "--figure"
    runpy.run_path(str(ROOT / file))["main"](steps=10, num_episodes=4, figure=figure)
    assert Path(figure).stat().st_size > 1_000


@pytest.mark.parametrize("name", FAST)
def test_fast_commands(name, tmp_path, monkeypatch, short_search):
    run_story(name, FAST[name], tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_slow_commands(name, tmp_path, monkeypatch):
    run_story(name, SLOW[name], tmp_path, monkeypatch)
