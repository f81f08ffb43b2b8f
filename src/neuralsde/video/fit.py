"""A model from a folder of videos: decode once, learn an autoencoder of frames, then the SDE of latents; scores and a report."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from neuralsde.core.doors import Count, Share, door
from neuralsde.core.extras import need
from neuralsde.core.records import check, flat, load_yaml, save_yaml, to_dict
from neuralsde.data.trajectories import Trajectories, Transitions
from neuralsde.data.videos.decode import FrameSettings
from neuralsde.data.videos.folders import folder_clips
from neuralsde.data.videos.public import public_clips
from neuralsde.data.videos.sharding import write_shards
from neuralsde.data.videos.shards import INDEX, UNFINISHED, VideoShards
from neuralsde.models.build import build
from neuralsde.models.scale import Scale
from neuralsde.nets.config import ConvConfig, UViTConfig
from neuralsde.sde.config import NeuralSDEConfig
from neuralsde.sde.pairs import of_another_length
from neuralsde.training.config import RunOptions, TrainConfig
from neuralsde.training.fit import fit
from neuralsde.training.run_folder import RunFolder, check_run, open_run, provenance, write_results
from neuralsde.video import clips, defaults, taef2
from neuralsde.video.autoencoder import Autoencoder
from neuralsde.video.config import VideoFit, VideoPlan
from neuralsde.video.model import VideoModel, load_autoencoder, save_video_model
from neuralsde.video.predict import device
from neuralsde.video.report import draw, score, write_report

PASSES, MIN_STEPS = 100, 300
"""How often each frame is seen where it was not said how long to train, and the fewest steps."""
NUM_VALIDATION = 512  # transitions of the validation loss
TAEF2 = "taef2:"


@dataclass(frozen=True)
class FittedVideos:
    """What a fit leaves: the model, its scores on what was held out, and the files in the run folder."""

    model: VideoModel
    scores: dict[str, Any]
    """PSNR and SSIM of the model, of a copy of the last frame and of the decoder; empty where nothing could be scored."""
    summary: str
    """The scores as a table, or why there are none."""
    report: Path
    files: list[str]
    """What else is in the run folder to look at."""


@door
def fit_videos(
    source: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str],
    settings: VideoFit | None = None,
    steps: Count | None = None,
    holdout: Share = 0.2,
    train: TrainConfig | None = None,
    options: RunOptions | None = None,
    resume: bool = False,
    say: Callable[[str], object] = print,
) -> FittedVideos:
    """Learn a model of videos: decode, train an autoencoder and the SDE of its latents, save, score, report.

    Args:
        source: a folder, a zip or a file of videos, or a folder of shards.
        output: run folder; `load_video_model` takes it.
        settings: how videos are read, and the sizes of the model.
        steps: of the SDE's training; None: so many that each frame is seen 100 times, from 300 up to what the machine can do.
        holdout: share of the videos that is held out for the scores, or of the end of one; 0: nothing.
        train: the seed of both trainings; what else it holds is chosen by what is there.
        options: how they run.
        resume: go on with the run in the folder, as if it had not been stopped.
        say: takes each line on what is being done.
    """
    settings, train, folder = settings or VideoFit(), train or TrainConfig(), Path(output)
    options = options or RunOptions()
    check_run(folder, resume=resume, holdout=holdout, steps=steps)
    _check_train(train)
    with open_run(folder, resume=resume) as run:
        assert run is not None
        return _fit_in(run, Path(source), settings, steps, holdout, train, options, resume, say)


def _fit_in(
    run: RunFolder,
    source: Path,
    settings: VideoFit,
    steps: int | None,
    holdout: float,
    train: TrainConfig,
    options: RunOptions,
    resume: bool,
    say: Callable[[str], object],
) -> FittedVideos:
    folder = run.path
    shards = _shards(source, folder, settings, holdout, train.seed, options.progress)
    say(f"{shards.report}\n")
    step = clips.frame_step(shards, settings.fps)
    videos = clips.usable(clips.split(shards, settings.way, holdout), step, settings.num_context)
    record = folder / "config.yaml"
    before = load_yaml(VideoPlan, record) if resume and record.is_file() else None
    gpu = torch.cuda.is_available() and not options.cpu if before is None else before.gpu
    plan = _plan(source, settings, train.seed, steps, holdout, shards, videos, step, gpu)
    if before is None:
        save_yaml(plan, record)
    else:
        _check_same(before, plan, folder)
    num, held = (sum(len(video.times) for video in some) for some in (videos.train, videos.held_out))
    copies = f" and {plan.copies} copies of each" if plan.copies else ""
    lines = [f"Learning from {num:,} frames of {len(videos.train)} video(s){copies}, {1 / plan.step:.3g} per second."]
    lines += [f"Held out: {videos.words}, {held:,} frames." if videos.held_out else "Nothing is held out."]
    say("\n".join([*lines, *(f"- {note}" for note in videos.notes)]))

    learned = replace(videos, train=clips.with_copies(videos.train, settings.copies))
    autoencoder = _autoencoder(plan, learned, folder, options, resume, say)
    pairs = {
        name: data.transitions(lag=step, history=settings.num_context)
        for name, data in _latents(autoencoder, learned, folder, options.progress, resume).items()
    }
    say(f"Learning the SDE of latents: {plan.train.steps:,} steps.")
    config = replace(plan.model, noise=_noise(pairs["train"], plan.model))
    model = build(config, pairs["train"], seed=plan.train.seed)
    val = pairs["validation"].at_most(NUM_VALIDATION) if "validation" in pairs else None
    rarer = replace(options, val_every=min(options.val_every, max(50, plan.train.steps // 10)))
    fit(model, pairs["train"], val=val, config=plan.train, options=rarer, run_dir=run, resume=resume)

    whole = VideoModel(model, autoencoder, shards.settings)
    save_video_model(folder / "model", model, autoencoder, settings=shards.settings)
    scored = score(whole, videos.held_out)
    figures = draw(scored, whole, folder)
    report = write_report(folder, shards, videos, plan, whole, scored, figures)
    known = {"plan": to_dict(plan), "videos": shards.report.to_dict(), "notes": videos.notes, **provenance()}
    write_results(folder / "results.json", {**known, "scores": scored.values})
    files = ["model/", *figures, "metrics.jsonl", "results.json"]
    return FittedVideos(whole, scored.values, "\n".join(scored.lines()), report, files)


def _check_train(train: TrainConfig) -> None:
    need("A report with pictures", "PIL")
    usual = TrainConfig()
    other = [f.name for f in fields(train) if f.name != "seed" and getattr(train, f.name) != getattr(usual, f.name)]
    names = ", ".join(f"`train.{name}`" for name in other)
    check(not other, f"{names}: for videos this is chosen by what is there. `nsde train people` takes it.")


def _check_frames(own: str | None, settings: FrameSettings) -> None:
    """Refuse frames that no autoencoder takes, or not the one that was named."""
    down = _down(settings)
    if any(n % down for n in settings.size):
        raise ValueError(f"Sides of frames must be multiples of {down}. Got {settings.size}. Give another `size`.")
    if own is None:
        return
    if own.startswith(TAEF2):
        taef2.check_files(own.removeprefix(TAEF2))
        check(not settings.grey, "taef2 takes frames in colour. Got grey ones. Give `colour`.")
        check(settings.size[0] % 8 == settings.size[1] % 8 == 0, f"taef2 takes multiples of 8. Got {settings.size}.")
        return
    shape = tuple(load_autoencoder(own).scale.shape)
    if shape != settings.shape:
        remedy = "Give `size` and `colour` as it was trained with."
        raise ValueError(f"The autoencoder in {own} takes frames of shape {shape}. Got {settings.shape}. {remedy}")


def _down(settings: FrameSettings) -> int:
    """Pixels per place of the latents along each side."""
    return 8 if min(settings.size) >= 64 else 4


# Data


def _shards(source: Path, folder: Path, options: VideoFit, holdout: float, seed: int, progress: bool) -> VideoShards:
    """Frames as they lie in a folder of shards, or decoded into the run folder."""
    if (source / INDEX).is_file() or (source / UNFINISHED).is_file():
        for name in ("dataset", "size", "fit", "colour"):
            free = getattr(options, name) is None
            check(free, f"`{name}`: {source} holds frames that are decoded already. Name the videos themselves.")
        shards = VideoShards.open(source)
        _check_frames(options.autoencoder, shards.settings)
        return shards
    if options.dataset is not None:
        found, remarks, usual = public_clips(options.dataset, source)
    else:
        found = folder_clips(source, seed=seed, validation=0.0, test=holdout, fps=options.fps)
        remarks, usual = [], FrameSettings()
    settings = usual.changed(size=options.size, fit=options.fit, colour=options.colour, min_frames=2)
    _check_frames(options.autoencoder, settings)
    how: dict[str, Any] = {"on_bad": options.on_bad, "num_workers": options.num_workers, "progress": progress}
    return write_shards(found, folder / "shards", settings, source=str(source), remarks=remarks, **how)


# Plan


def _check_same(before: VideoPlan, plan: VideoPlan, folder: Path) -> None:
    old, new = flat(to_dict(before)), flat(to_dict(plan))
    for name in new:
        if name != "data" and old.get(name) != new[name]:
            found = f"it ran with {old.get(name)}. Got {new[name]}"
            remedy = "Repeat the command as it was, or choose another `output`."
            raise ValueError(f"Cannot resume {folder} with another {name}: {found}. {remedy}")


def _plan(
    source: Path,
    options: VideoFit,
    seed: int,
    steps: int | None,
    holdout: float,
    shards: VideoShards,
    videos: clips.Split,
    step: float,
    gpu: bool,
) -> VideoPlan:
    if options.passes > 1:
        _check_even(videos, step)
    num = (1 + options.copies) * sum(len(video.times) for video in videos.train)
    latents = defaults.with_passes(defaults.real_sde(), options.passes)

    def training(usual: TrainConfig, steps: int | None, most: int) -> TrainConfig:
        """As usual; without a GPU at most so many steps, and smaller ones."""
        batch = options.batch_size or (usual.batch_size if gpu else 32)
        enough = min(usual.steps if gpu else most, max(MIN_STEPS, PASSES * num // batch))
        precision = usual.precision if gpu else "no"
        return replace(usual, seed=seed, batch_size=batch, steps=steps or enough, precision=precision)

    frames = defaults.AUTOENCODER
    assert isinstance(frames.net, ConvConfig) and isinstance(latents.net, UViTConfig)
    convolutions = frames.net if gpu else ConvConfig(width=16)
    net = replace(latents.net, width=options.width or (latents.net.width if gpu else 128))
    own = replace(training(defaults.REAL_TRAIN, steps, 2_000), lr=defaults.learning_rate(net.width))
    return VideoPlan(
        data=str(source),
        gpu=gpu,
        step=step,
        holdout=holdout,
        copies=options.copies,
        autoencoder=options.autoencoder,
        autoencoder_model=replace(frames, net=replace(convolutions, down=_down(shards.settings))),
        autoencoder_train=training(defaults.AUTOENCODER_TRAIN, options.autoencoder_steps, 1_000),
        model=replace(latents, net=net, history=options.num_context),
        train=own,
        videos=videos.digest(shards.fingerprint),
    )


def _check_even(videos: clips.Split, step: float) -> None:
    """Transport refuses uneven gaps when it is built: that is after the autoencoder has been trained."""
    times = [torch.tensor(video.times, dtype=torch.float64) for video in videos.train]
    stamps = Trajectories(torch.zeros(sum(map(len, times)), 1), torch.cat(times), torch.tensor([len(t) for t in times]))
    gaps = stamps.transitions(lag=step).spread(1_000_000).dt
    if bool(of_another_length(gaps / step).any()):
        found = f"Got frames {float(gaps.min()):.3g} to {float(gaps.max()):.3g} s apart"
        remedy = "Leave it out, or choose `fps` so that all are about as far apart."
        raise ValueError(f"`passes` above 1 need an even frame rate. {found}. {remedy}")


# Autoencoder and latents


def _autoencoder(
    plan: VideoPlan,
    videos: clips.Split,
    folder: Path,
    options: RunOptions,
    resume: bool,
    say: Callable[[str], object],
) -> Autoencoder:
    """A frozen autoencoder of the frames: that of the user, or a new one."""
    place, run = "cpu" if options.cpu else device(), folder / "autoencoder"
    if plan.autoencoder is not None and plan.autoencoder.startswith(TAEF2):
        found = taef2.pretrained(plan.autoencoder.removeprefix(TAEF2), clips.frames_of(videos.train, plan.gpu))
        return found.to(place)
    if plan.autoencoder is not None:
        return load_autoencoder(plan.autoencoder).to(place)
    if resume and (run / "model" / "config.json").is_file():
        return load_autoencoder(run).to(place)
    data = clips.frames_of(videos.train, plan.gpu)
    say(f"Learning an autoencoder of {len(data.states):,} frames: {plan.autoencoder_train.steps:,} steps.")
    model = build(plan.autoencoder_model, data.transitions(), seed=plan.autoencoder_train.seed)
    assert isinstance(model, Autoencoder)
    fit(model, data, config=plan.autoencoder_train, options=options, run_dir=run, resume=resume)
    model.fit_latents(data.states)
    model.save_pretrained(run / "model")
    return model.eval()


def _latents(
    autoencoder: Autoencoder, videos: clips.Split, folder: Path, progress: bool, resume: bool
) -> dict[str, Trajectories]:
    """Of what is learned from and, if there is any, of what is watched in training; encoded once."""
    file = folder / "latents.safetensors"
    if resume and file.is_file():
        return clips.read_latents(file)
    parts = {"train": videos.train, "validation": videos.validation}
    made = {name: clips.latents_of(autoencoder, some, progress=progress) for name, some in parts.items() if some}
    clips.save_latents(made, file)
    return made


def _noise(pairs: Transitions, config: NeuralSDEConfig) -> float:
    """The usual input noise, or less where it would hide how frames differ."""
    some, units = pairs.spread(4_096), Scale(pairs.data.shape, normalise=config.normalise, transform=config.transform)
    units.measure(some)
    frames = units.states(torch.cat([some.history, some.next[:, None]], dim=1))
    differences = float(frames.diff(dim=1).square().mean().sqrt())
    assert isinstance(config.noise, float)
    return min(config.noise, float(f"{0.5 * differences:.3g}"))
