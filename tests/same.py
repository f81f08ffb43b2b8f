"""What a fixed set of models computes: a move of code must not change it.

The models are in `same/models.json`, as configs that the first release wrote; each tree reads them itself. For each, this
takes 20 steps of training and then samples and log-likelihoods; beside them, what the shipped models do.

    python tests/same.py --base COMMIT      run that commit's tree too, and compare bitwise (`make same BASE=COMMIT`)
    python tests/same.py --output FILE      write the numbers (`same/recorded.json` is what the fast tests compare with)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

HERE = Path(__file__).parent
STEPS = 20
MOST = 48
"""Numbers that are kept of a long result, evenly spread."""


def models():
    return json.loads((HERE / "same" / "models.json").read_text(encoding="utf-8"))


# Data


def walks(shape=(2,), num=8, length=24, seed=0):
    """Paths that oscillate and are kicked."""
    rng = np.random.default_rng(seed)
    kicks = 0.2 * rng.standard_normal((num, length, *shape)).cumsum(1)
    phase = rng.uniform(0, 6, (num, 1, *shape)) + 0.3 * np.arange(length).reshape(1, -1, *[1] * len(shape))
    return np.sin(phase) + kicks


def data_named(name):
    from neuralsde import Trajectories

    rng = np.random.default_rng(1)
    if name == "plane":
        return Trajectories.from_arrays(walks() * [1.0, 5.0] + [0.0, 3.0], dt=0.1)
    if name == "irregular":
        times = rng.uniform(0.1, 0.4, (8, 24)).cumsum(1)
        return Trajectories.from_arrays(list(walks()), list(times))
    if name == "missing":
        states = walks((3,))
        states[rng.uniform(size=states.shape) < 0.2] = np.nan
        return Trajectories.from_arrays(states, dt=0.1, missing=True)
    if name == "driven":
        return Trajectories.from_arrays(walks(), dt=0.1, context=rng.standard_normal((8, 24, 4)))
    if name == "frames":
        return Trajectories.from_arrays(walks((2, 4, 4), num=4), dt=0.1)
    if name == "chunks":
        return Trajectories.from_arrays(walks((4, 2)), dt=0.1, context=rng.standard_normal((8, 24, 3)))
    assert name == "pictures"
    return Trajectories.from_arrays(rng.uniform(size=(2, 8, 3, 8, 8)))


# Numbers


def settings_of(case):
    """The settings of a model, as this tree reads what the first release wrote."""
    from importlib import import_module

    from neuralsde.core.formats import current
    from neuralsde.core.records import from_dict
    from neuralsde.models.config import ModelConfig
    from neuralsde.models.saving import SETTINGS

    for module in SETTINGS:
        import_module(module)
    return from_dict(ModelConfig, current(case["config"]))


def few(values):
    """Some of the numbers, as they are."""
    flat = torch.as_tensor(values).detach().double().flatten()
    return flat[torch.linspace(0, len(flat) - 1, min(MOST, len(flat))).long()].tolist()


def trained(case):
    """The model after 20 steps, its data, and the losses on the way."""
    from neuralsde import fit
    from neuralsde.models.build import build

    lag = tuple(case["lag"]) if isinstance(case["lag"], list) else case["lag"]
    config = settings_of(case)
    pairs = data_named(case["data"]).transitions(lag=lag, history=config.history)
    model = build(config, pairs, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"steps": STEPS, "batch_size": 32, "lr": 1e-2, "ema": 0.9, "log_every": 1, "progress": False}
        fit(model, pairs, run_dir=folder, cpu=True, **settings)
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    losses = [[v for k, v in line.items() if k not in ("step", "lr", "steps_per_second")] for line in lines]
    return model, pairs, losses


def numbers_of(case):
    """Losses, samples and log-likelihoods of one model."""
    model, pairs, losses = trained(case)
    found = {"losses": losses}
    batch = pairs[torch.tensor([0, 5, 13])]
    if case["kind"] == "Autoencoder":
        model.fit_latents(batch.next)
        found["samples"] = few(model.decode(model.encode(batch.next)))
        return found
    step = model.scale.step
    times = step * np.array([0.0, 1.0, 2.0, 4.0])
    found["samples"] = few(model.sample(batch.history, times, context=batch.context, num_paths=2, rng=3))
    if case["kind"] == "NeuralSDE":
        finer = step * np.array([[0.0, 0.5, 2.2], [1.0, 2.0, 2.1], [0.0, 3.0, 5.0]])
        found["samples between"] = few(model.sample(batch.history, finer, context=batch.context, rng=4))
    if case["kind"] in ("NeuralSDE", "GaussianMLP", "LSTMGMM") and case["config"].get("diffusion", True):
        found["log_prob"] = few(model.log_prob(pairs[torch.arange(0, len(pairs), 9)]))
        if not isinstance(case["lag"], list):
            found["log_prob of paths"] = few(model.log_prob(data_named(case["data"])))
    if case["kind"] == "NeuralSDE":
        found["fields"] = few(torch.stack(model.fields(batch.history, context=batch.context)))
    return found


def numbers_of_policies():
    """Actions of policies of every form, and of the shipped one."""
    from neuralsde import Demonstrations, PolicyConfig, SDEPolicy, action_paths, fit
    from neuralsde.models.build import build

    rng = np.random.default_rng(2)
    seen = walks((3,), num=1, length=40)[0]
    actions = seen[:, :2] + 0.1 * rng.standard_normal((40, 2))
    demos = Demonstrations.from_arrays({"state": seen}, actions, [25, 15], dt=0.1)
    found = {}
    forms = {"path": ("context", {}), "chunk": ("DDIM-unet", {}), "state": ("min-max", {"history": 1})}
    for form, (name, more) in forms.items():
        config = PolicyConfig(form=form, horizon=4, chunk=2, first_action=(0, 1), **more)
        data = action_paths(demos, seen, config)
        model = build(settings_of(models()[name]), data.transitions(), seed=0)
        fit(model, data, steps=STEPS, batch_size=32, lr=1e-2, ema=0.9, progress=False, cpu=True)
        found[form] = few(actions_of(SDEPolicy.for_demonstrations(model, config, demos), seen))
    shipped = SDEPolicy.from_pretrained(shipped_folder("pusht"))
    found["shipped"] = few(actions_of(shipped, 256 + 60 * walks((shipped.num_features,), num=1)[0]))
    return found


def actions_of(policy, seen):
    policy.reset([5, 6])
    return torch.tensor(np.stack([policy.select_action(np.stack([row, row[::-1]])) for row in seen[:12]]))


def numbers_of_video():
    """Futures that the shipped model of videos draws."""
    from neuralsde.video.clips import Clip
    from neuralsde.video.model import load_video_model

    video = load_video_model(shipped_folder("video"))
    shape = video.settings.shape
    ramp = torch.linspace(0, 200, int(np.prod(shape))).reshape(shape)
    frames = torch.stack([ramp.roll(2 * k, -1) for k in range(8)]).round().byte()
    clip = Clip("ramp", frames.numpy(), np.arange(8) * video.step)
    drawn = {
        "frames": video.futures(clip, num_frames=3, num_paths=2, seed=1),
        "frames between": video.futures(clip, num_frames=4, num_paths=1, fps=2.5 * video.fps, seed=1),
    }
    return {name: few(futures.frames) for name, futures in drawn.items()}


def shipped_folder(name):
    import neuralsde

    return Path(neuralsde.__file__).parent / "weights" / name


def all_numbers(only=""):
    torch.set_num_threads(1)
    found = {name: numbers_of(case) for name, case in models().items() if only in name}
    if only in "policies":
        found["policies"] = numbers_of_policies()
    if only in "video":
        found["video"] = numbers_of_video()
    return found


# Two trees


def numbers_of_commit(commit, only=""):
    """What the tree of a commit computes, on this machine."""
    root = HERE.parent
    with tempfile.TemporaryDirectory() as folder:
        tree, output = Path(folder) / "tree", Path(folder) / "numbers.json"
        git = ["git", "-C", str(root), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            shutil.copy(
                HERE / "same" / "models.json", tree / "tests" / "same" / "models.json"
            )  # the same models for both
            call = [sys.executable, str(tree / "tests" / "same.py"), "--output", str(output), "--only", only]
            subprocess.run(call, check=True, env=os.environ | {"PYTHONPATH": str(tree / "src")})
            return json.loads(output.read_text(encoding="utf-8"))
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def differences(before, after):
    """Names of the results that are not the same to the last bit; the models must be the same too."""
    lost = sorted(before.keys() ^ after.keys())
    both = [(m, k) for m in before.keys() & after.keys() for k in before[m].keys() | after[m].keys()]
    return lost + sorted(f"{m}: {k}" for m, k in both if before[m].get(k) != after[m].get(k))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="commit to compare with")
    parser.add_argument("--output", type=Path, help="file for the numbers")
    parser.add_argument("--only", default="", help="only models whose name contains this")
    args = parser.parse_args()
    sys.path.insert(0, str(HERE.parent / "src"))
    now = all_numbers(args.only)
    if args.output:
        args.output.write_text(json.dumps(now, indent=0) + "\n", encoding="utf-8")
    if args.base:
        other = differences(numbers_of_commit(args.base, args.only), now)
        print("\n".join(other) or f"The same numbers as {args.base}: {len(now)} models, bit by bit.")
        sys.exit(bool(other))


if __name__ == "__main__":
    main()
