"""`nsde fit` on videos: decode once, learn an autoencoder of frames, then the SDE of latents; a model and a report."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from neuralsde.nets.config import ConvConfig, UViTConfig
from neuralsde.records import check, load_yaml, save_yaml, to_dict
from neuralsde.sde.config import NeuralSDEConfig
from neuralsde.training.config import TrainConfig
from neuralsde.video.autoencoder_config import AutoencoderConfig

if TYPE_CHECKING:
    from neuralsde.autoencoder import Autoencoder
    from neuralsde.cli.fit import Fit
    from neuralsde.cli.video_films import Films
    from neuralsde.data.trajectories import Trajectories
    from neuralsde.data.transitions import Transitions
    from neuralsde.data.videos.decode import FrameSettings
    from neuralsde.data.videos.shards import VideoShards

FREE = {"seed", "cpu", "progress", "log_every", "checkpoint_every", "keep", "trackers", "val_every", "graph"}
"""Options of `--train` that videos take; the others are chosen here."""
PASSES, MIN_STEPS = 100, 300
"""How often each frame is seen where it was not said how long to train, and the fewest steps."""
NUM_VALIDATION = 512
"""Transitions of the validation loss."""
TAEF2 = "taef2:"


@dataclass(frozen=True, kw_only=True)
class VideoFit:
    """Videos: a folder, a zip or a file of them (mp4, avi, mov, mkv, webm, gif, HDF5 of RIVER), or the shards of `nsde data`."""

    dataset: Literal["kth", "clevrer", "weizmann"] | None = None
    """The folder holds this public data set: its names, lists, split, size and frame rate are known."""
    size: int | None = None
    """Height and width of frames in pixels; absent: 64, CLEVRER 128."""
    fit: Literal["crop", "stretch"] | None = None
    """Cut a square out of the middle, or squeeze all into it; absent: crop, public data sets stretch."""
    colour: bool | None = None
    """Three channels or one; absent: colour, KTH and Weizmann grey."""
    fps: float | None = None
    """Frames per second of the model's steps; times stay those of the files. Absent: as in the files."""
    way: str | None = None
    """The way of splitting, where the data has several; absent: the usual one."""
    num_context: int = 4
    """Frames that are given to predict the next."""
    width: int | None = None
    """Size of the net; absent: on a GPU that of the recipe `people`, else 128 (1 million parameters)."""
    batch_size: int | None = None
    """Frames per step; absent: on a GPU those of the recipe `people`, else 32."""
    autoencoder: str | None = None
    """Folder of a trained autoencoder of frames of this size, to use instead of a new one; or taef2:FOLDER, with the published
    weights of that tiny autoencoder."""
    autoencoder_steps: int | None = None
    """Optimiser steps of the autoencoder; absent: by the number of frames, at most those of its recipe on a GPU, else 1,000."""
    refine: bool = False
    """Learn a refiner too: frames then take two passes, in which what may happen is decided. It needs an even frame rate."""
    copies: int = 0
    """Learn from so many copies of each video too, seen a little nearer, in another light, every other one mirrored: for a long
    training on few videos."""
    num_workers: int | None = None
    """Processes that decode; 0: none but this; absent: one for each processor."""
    on_bad: Literal["skip", "raise"] = "skip"
    """Leave out files that cannot be used and name them in the report, or stop at the first."""


@dataclass(frozen=True, kw_only=True)
class VideoPlan:
    """What a run does: recorded in config.yaml, and the same again when it is resumed."""

    data: str
    gpu: bool
    """Whether sizes and steps are those for a GPU."""
    step: float
    """Seconds from frame to frame."""
    holdout: float
    copies: int = 0
    autoencoder: str | None
    autoencoder_model: AutoencoderConfig
    autoencoder_train: TrainConfig
    model: NeuralSDEConfig
    train: TrainConfig
    videos: str
    """A digest of them and of their split: latents that are kept are of these."""


def is_video(data: Path) -> bool:
    """Whether `nsde fit` takes this for videos and not for a table."""
    from neuralsde.data.videos.clips import HDF5_SUFFIXES, SUFFIXES

    return data.is_dir() or data.suffix.lower() in (*SUFFIXES, *HDF5_SUFFIXES, ".zip")


def fit_videos(command: Fit, folder: Path) -> None:
    """Decode, train both, save, score, report."""
    from neuralsde.cli.fit_video_report import draw, score, write_report
    from neuralsde.cli.video_films import frame_step, split, usable, with_copies
    from neuralsde.experiments.run import provenance, write_results
    from neuralsde.files import writable_folder
    from neuralsde.models.build import build
    from neuralsde.training.fit import fit
    from neuralsde.video_model import VideoModel, save_video_model

    options = command.video
    _check(command)
    writable_folder(folder)
    shards = _shards(command, folder)
    print(f"{shards.report}\n", flush=True)
    step = frame_step(shards, options.fps)
    films = usable(split(shards, options.way, command.holdout), step, options.num_context)
    plan = _plan(command, folder, shards, films, step)
    _announce(films, plan)

    learned = replace(films, train=with_copies(films.train, options.copies))
    autoencoder = _autoencoder(plan, learned, folder, command.resume)
    pairs = {
        name: data.transitions(lag=step, history=options.num_context)
        for name, data in _latents(autoencoder, learned, folder, plan, command.resume).items()
    }
    print(f"Learning the SDE of latents: {plan.train.steps:,} steps.", flush=True)
    config = replace(plan.model, noise=_noise(pairs["train"], plan.model))
    model = build(config, pairs["train"], seed=plan.train.seed)
    val = pairs["validation"].at_most(NUM_VALIDATION) if "validation" in pairs else None
    fit(model, pairs["train"], val=val, config=plan.train, run_dir=folder, resume=command.resume)

    whole = VideoModel(model, autoencoder, shards.settings)
    save_video_model(folder / "model", model, autoencoder, settings=shards.settings)
    scored = score(whole, films.held_out)
    figures = draw(scored, whole, folder)
    write_report(folder, shards, films, plan, whole, scored, figures)
    record = {"plan": to_dict(plan), "videos": shards.report.to_dict(), "notes": films.notes, **provenance()}
    write_results(folder / "results.json", {**record, "scores": scored.values})
    print("\n".join(["", *scored.lines(), ""]))
    print(f"Wrote {folder}: report.md, model/, {', '.join([*figures, 'metrics.jsonl', 'results.json'])}")


def _check(command: Fit) -> None:
    """Refuse what could only fail later."""
    options, train = command.video, command.train
    default = TrainConfig()
    other = [f.name for f in fields(train) if f.name not in FREE and getattr(train, f.name) != getattr(default, f.name)]
    if other:
        flags = ", ".join(f"--train.{name.replace('_', '-')}" for name in other)
        raise ValueError(f"{flags}: for videos this is chosen by what is there. `nsde train people` takes it.")
    size = options.size
    check(size is None or (size >= 16 and size % 8 == 0), f"`--size` must be a multiple of 8 from 16 on. Got {size}.")
    check(options.num_context >= 1, f"`--num-context` must be at least 1. Got {options.num_context}.")
    check(not options.refine or options.num_context > 1, "`--refine` needs --num-context of 2 or more. Got 1.")
    check(options.fps is None or options.fps > 0, f"`--fps` must be positive. Got {options.fps}.")
    check(options.copies >= 0, f"`--copies` must be 0 or more. Got {options.copies}.")
    for name in ("batch_size", "autoencoder_steps"):
        value = getattr(options, name)
        check(value is None or value >= 1, f"`--{name.replace('_', '-')}` must be at least 1. Got {value}.")
    if options.width is not None:
        UViTConfig(width=options.width)
    if options.autoencoder is not None:
        check(
            options.autoencoder_steps is None, "--autoencoder-steps: the autoencoder of --autoencoder is not trained."
        )


def _check_frames(options: VideoFit, settings: FrameSettings) -> None:
    """Refuse frames that no autoencoder takes, or not the one that was named."""
    down, own = _down(settings), options.autoencoder
    if any(n % down for n in settings.size):
        raise ValueError(f"Sides of frames must be multiples of {down}. Got {settings.size}. Give another --size.")
    if own is None:
        return
    if own.startswith(TAEF2):
        from neuralsde.taef2 import check_files

        check_files(own.removeprefix(TAEF2))
        check(not settings.grey, "taef2 takes frames in colour. Got grey ones. Give --colour.")
        check(settings.size[0] % 8 == settings.size[1] % 8 == 0, f"taef2 takes multiples of 8. Got {settings.size}.")
        return
    shape = tuple(_load_autoencoder(own).scale.shape)
    if shape != settings.shape:
        raise ValueError(
            f"The autoencoder in {own} takes frames of shape {shape}. Got {settings.shape}. Give --size and --colour as it was "
            "trained with."
        )


def _down(settings: FrameSettings) -> int:
    """Pixels per place of the latents along each side."""
    return 8 if min(settings.size) >= 64 else 4


# Data


def _shards(command: Fit, folder: Path) -> VideoShards:
    """Frames as they lie in a folder of shards, or decoded into the run folder."""
    from neuralsde.cli.video_data import VideoOptions, known_videos
    from neuralsde.data.videos.decode import FrameSettings
    from neuralsde.data.videos.folders import folder_clips
    from neuralsde.data.videos.sharding import write_shards
    from neuralsde.data.videos.shards import INDEX, UNFINISHED, VideoShards

    options, source = command.video, command.data
    if (source / INDEX).is_file() or (source / UNFINISHED).is_file():
        for name in ("dataset", "size", "fit", "colour"):
            if getattr(options, name) is not None:
                raise ValueError(
                    f"--{name}: {source} holds frames that are decoded already. Name the videos themselves."
                )
        shards = VideoShards.open(source)
        _check_frames(options, shards.settings)
        return shards
    if options.dataset is not None:
        clips, remarks, usual = known_videos(options.dataset, source)
    else:
        clips = folder_clips(source, seed=command.train.seed, validation=0.0, test=command.holdout, fps=options.fps)
        remarks, usual = [], FrameSettings()
    frames = VideoOptions(size=options.size, fit=options.fit, colour=options.colour, min_frames=2)
    settings = frames.settings(usual)
    _check_frames(options, settings)
    return write_shards(
        clips,
        folder / "shards",
        settings,
        on_bad=options.on_bad,
        num_workers=options.num_workers,
        source=str(source),
        remarks=remarks,
        progress=command.train.progress,
    )


# Plan


def _plan(command: Fit, folder: Path, shards: VideoShards, films: Films, step: float) -> VideoPlan:
    """Sizes and steps by what is there; a run that is resumed must be the same."""
    import torch

    record = folder / "config.yaml"
    before = load_yaml(VideoPlan, record) if command.resume and record.is_file() else None
    gpu = torch.cuda.is_available() and not command.train.cpu if before is None else before.gpu
    plan = _chosen(command, shards, films, step, gpu)
    if before is None:
        save_yaml(plan, record)
        return plan
    old, new = _flat(to_dict(before)), _flat(to_dict(plan))
    free = {f"{part}.{name}" for part in ("train", "autoencoder_train") for name in FREE - {"seed"}} | {"data"}
    for name in new:
        if name not in free and old.get(name) != new[name]:
            raise ValueError(
                f"Cannot resume {folder} with another {name}: it ran with {old.get(name)}. Got {new[name]}. Repeat the command "
                "as it was, or choose another --output."
            )
    return plan


def _chosen(command: Fit, shards: VideoShards, films: Films, step: float, gpu: bool) -> VideoPlan:
    from neuralsde.experiments.recipes.video import autoencoder, learning_rate, people, with_refiner

    if command.video.refine:
        _check_even(films, step)
    options = command.video
    num = (1 + options.copies) * sum(len(film.times) for film in films.train)
    frames, latents = autoencoder(), with_refiner(people()) if options.refine else people()
    free: dict[str, Any] = {name: getattr(command.train, name) for name in FREE}

    def training(recipe: TrainConfig, steps: int | None, most: int) -> TrainConfig:
        """As in the recipe; without a GPU at most so many steps, and smaller ones."""
        batch = options.batch_size or (recipe.batch_size if gpu else 32)
        enough = min(recipe.steps if gpu else most, max(MIN_STEPS, PASSES * num // batch))
        precision = recipe.precision if gpu else "no"
        return replace(recipe, **free, batch_size=batch, steps=steps or enough, precision=precision)

    assert isinstance(frames.model, AutoencoderConfig) and isinstance(latents.model, NeuralSDEConfig)
    assert isinstance(frames.model.net, ConvConfig) and isinstance(latents.model.net, UViTConfig)
    convolutions = frames.model.net if gpu else ConvConfig(latent=frames.model.net.latent, width=16, blocks=1)
    net = replace(latents.model.net, width=options.width or (latents.model.net.width if gpu else 128))
    train = replace(training(latents.train, command.steps, 2_000), lr=learning_rate(net.width))
    train = replace(train, val_every=min(train.val_every, max(50, train.steps // 10)))
    return VideoPlan(
        data=str(command.data),
        gpu=gpu,
        step=step,
        holdout=command.holdout,
        copies=options.copies,
        autoencoder=options.autoencoder,
        autoencoder_model=replace(frames.model, net=replace(convolutions, down=_down(shards.settings))),
        autoencoder_train=training(frames.train, options.autoencoder_steps, 1_000),
        model=replace(latents.model, net=net, history=options.num_context),
        train=train,
        videos=films.digest(shards.fingerprint),
    )


def _check_even(films: Films, step: float) -> None:
    """A refiner refuses uneven gaps when it is built: that is after the autoencoder has been trained."""
    import torch

    from neuralsde.sde.sizes import of_another_length
    from neuralsde.trajectories import Trajectories
    from neuralsde.data.trajectories import Trajectories
    from neuralsde.sizes import of_another_length

    times = [torch.tensor(film.times, dtype=torch.float64) for film in films.train]
    stamps = Trajectories(torch.zeros(sum(map(len, times)), 1), torch.cat(times), torch.tensor([len(t) for t in times]))
    gaps = stamps.transitions(lag=step).spread(1_000_000).dt
    if bool(of_another_length(gaps / step).any()):
        raise ValueError(
            f"`--refine` needs an even frame rate. Got frames {float(gaps.min()):.3g} to {float(gaps.max()):.3g} s apart. Leave it "
            "out, or choose --fps so that all are about as far apart."
        )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    parts = [_flat(v, f"{prefix}{k}.") if isinstance(v, dict) else {prefix + k: v} for k, v in values.items()]
    return {k: v for part in parts for k, v in part.items()}


def _announce(films: Films, plan: VideoPlan) -> None:
    num, held = (sum(len(film.times) for film in some) for some in (films.train, films.held_out))
    copies = f" and {plan.copies} copies of each" if plan.copies else ""
    lines = [f"Learning from {num:,} frames of {len(films.train)} video(s){copies}, {1 / plan.step:.3g} per second."]
    lines += [f"Held out: {films.words}, {held:,} frames."] if films.held_out else ["Nothing is held out."]
    print("\n".join([*lines, *(f"- {note}" for note in films.notes)]), flush=True)


# Autoencoder and latents


def _load_autoencoder(folder: str) -> Autoencoder:
    """Of a folder of `save_pretrained`, of a run, or of a model of videos."""
    from neuralsde.autoencoder import Autoencoder
    from neuralsde.models.build import load
    from neuralsde.tasks.frames import autoencoder_folder

    found = load(autoencoder_folder(folder))
    if not isinstance(found, Autoencoder):
        raise ValueError(f"{folder} holds a {found.kind}, not an Autoencoder. Leave out --autoencoder to train one.")
    return found


def _autoencoder(plan: VideoPlan, films: Films, folder: Path, resume: bool) -> Autoencoder:
    """A frozen autoencoder of the frames: that of the user, or a new one."""
    from neuralsde.autoencoder import Autoencoder
    from neuralsde.cli.video_films import frames_of
    from neuralsde.models.build import build
    from neuralsde.tasks.clips import device
    from neuralsde.tasks.frames import finish
    from neuralsde.training.fit import fit

    place = "cpu" if plan.train.cpu else device()
    if plan.autoencoder is not None:
        if plan.autoencoder.startswith(TAEF2):
            from neuralsde.taef2 import pretrained

            return pretrained(plan.autoencoder.removeprefix(TAEF2), frames_of(films.train, plan.gpu)).to(place)
        return _load_autoencoder(plan.autoencoder).to(place).eval()
    run = folder / "autoencoder"
    if resume and (run / "model" / "config.json").is_file():
        return _load_autoencoder(str(run)).to(place).eval()
    data = frames_of(films.train, plan.gpu)
    print(
        f"Learning an autoencoder of {len(data.states):,} frames: {plan.autoencoder_train.steps:,} steps.", flush=True
    )
    model = build(plan.autoencoder_model, data.transitions(), seed=plan.autoencoder_train.seed)
    fit(model, data, config=plan.autoencoder_train, run_dir=run, resume=resume)
    model = finish(model, data)
    model.save_pretrained(run / "model")
    assert isinstance(model, Autoencoder)
    return model.eval()


def _latents(
    autoencoder: Autoencoder, films: Films, folder: Path, plan: VideoPlan, resume: bool
) -> dict[str, Trajectories]:
    """Of what is learned from and, if there is any, of what is watched in training; encoded once."""
    from neuralsde.cli.video_films import latents_of, read_latents, save_latents

    file = folder / "latents.safetensors"
    if resume and file.is_file():
        return read_latents(file)
    parts = {"train": films.train, "validation": films.validation}
    made = {name: latents_of(autoencoder, some, progress=plan.train.progress) for name, some in parts.items() if some}
    save_latents(made, file)
    return made


def _noise(pairs: Transitions, config: NeuralSDEConfig) -> float:
    """Input noise of the recipe, or less where it would hide how frames differ."""
    import torch

    from neuralsde.models.build import fit_scale
    from neuralsde.models.scale import Scale

    some, units = pairs.spread(4_096), Scale(pairs.data.shape)
    fit_scale(units, some, config.normalise)
    frames = units.states(torch.cat([some.history, some.next[:, None]], dim=1))
    differences = float(frames.diff(dim=1).square().mean().sqrt())
    assert isinstance(config.noise, float)
    return min(config.noise, float(f"{0.5 * differences:.3g}"))
