"""Two models, policies or models of videos that are saved over each other by a process that is killed."""

import multiprocessing
import random
import time
from itertools import cycle

import numpy as np
import torch

import neuralsde
from neuralsde.data.videos.decode import FrameSettings
from neuralsde.models.build import build
from neuralsde.models.sequence import SequenceModel
from neuralsde.nets.config import ConvConfig, MLPConfig
from neuralsde.policy.config import PolicyConfig
from neuralsde.policy.controller import SDEPolicy
from neuralsde.sde.config import NeuralSDEConfig
from neuralsde.video.autoencoder import Autoencoder
from neuralsde.video.config import AutoencoderConfig
from neuralsde.video.model import VideoModel, load_video_model, save_video_model

NAMES = ("a", "b")


def a_model(name, states=2, context=0):
    """Its weights and its settings tell its name."""
    rng = np.random.default_rng(0)
    paths = [rng.standard_normal((9, states)).cumsum(0) for _ in range(4)]
    given = [rng.standard_normal((9, context)) for _ in paths] if context else None
    data = neuralsde.Trajectories.from_arrays(paths, dt=0.1, context=given)
    width, noise = (16, 0.1) if name == "a" else (8, 0.2)
    model = neuralsde.NeuralSDE.for_data(data, net=MLPConfig(width=width, depth=1), noise=noise)
    return marked(model, name)


def marked(model, name):
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.01 if name == "a" else 0.02)
    return model.eval()


def a_policy(name):
    size = NAMES.index(name) + 1
    config = PolicyConfig(history=1, horizon=4, chunk=size)
    return SDEPolicy(a_model(name, context=3), config, limits=([-size] * 2, [size] * 2), default_action=[0.0, 0.0])


def a_video(name):
    rng = torch.Generator().manual_seed(0)
    frames = neuralsde.Trajectories.from_arrays([torch.rand(8, 1, 8, 8, generator=rng).numpy()], dt=0.1)
    width = 8 if name == "a" else 16
    autoencoder = build(AutoencoderConfig(net=ConvConfig(down=4, width=width)), frames.transitions())
    assert isinstance(autoencoder, Autoencoder)
    latents = neuralsde.Trajectories.from_arrays([torch.rand(8, 4, 2, 2, generator=rng).numpy()], dt=0.1)
    model = build(NeuralSDEConfig(net=MLPConfig(width=width, depth=1)), latents.transitions())
    fit = "crop" if name == "a" else "stretch"
    return VideoModel(marked(model, name), marked(autoencoder, name), FrameSettings(size=(8, 8), grey=True, fit=fit))


MAKE = {"model": a_model, "policy": a_policy, "video": a_video}


def save(made, folder):
    if isinstance(made, VideoModel):
        save_video_model(folder, made.model, made.autoencoder, settings=made.settings)
    else:
        made.save_pretrained(folder)


def load(kind, folder):
    if kind == "model":
        return neuralsde.load(folder)
    return SDEPolicy.from_pretrained(folder) if kind == "policy" else load_video_model(folder)


def content(made):
    """All that tells one from another."""
    if isinstance(made, SequenceModel):
        return {"config": made.config, **{name: value.tolist() for name, value in made.state_dict().items()}}
    if isinstance(made, SDEPolicy):
        return {"model": content(made.model), "policy": made.config, "limits": [v.tolist() for v in made.limits]}
    return {"model": content(made.model), "autoencoder": content(made.autoencoder), "settings": made.settings}


def save_until_killed(folder, both, started):
    save(both[0], folder)
    started.set()
    for made in cycle(both[::-1]):
        save(made, folder)


def kill_a_save(folder, both, longest=0.3):
    """Save both over each other in a process of its own, and kill it at some moment."""
    processes = multiprocessing.get_context("fork")
    started = processes.Event()
    process = processes.Process(target=save_until_killed, args=(folder, both, started))
    process.start()
    assert started.wait(60)
    time.sleep(random.uniform(0, longest))
    process.kill()
    process.join()
