"""Models of videos as folders: whole, small, moved; the frames given to them; pictures; the pretrained autoencoder."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from neuralsde.data.trajectories import Trajectories
from neuralsde.data.videos.decode import FrameSettings
from neuralsde.models.build import build, load
from neuralsde.nets.config import ConvConfig, UViTConfig
from neuralsde.nets.tiny import TinyDecoder, TinyEncoder
from neuralsde.sde.config import NeuralSDEConfig
from neuralsde.sde.model import NeuralSDE
from neuralsde.video.clips import Clip, cut_clips, longest_clip
from neuralsde.video.config import AutoencoderConfig
from neuralsde.video.model import VideoModel, load_video_model, save_video_model
from neuralsde.video.pictures import GIVEN, film, film_in_true_time, strip, strip_over_time
from neuralsde.video.taef2 import FILES, pretrained

STEP = 0.1


def parts(size=16, context=3, step=STEP, down=4):
    """An SDE of latents and an autoencoder, as they are before training: of random weights."""
    rng = torch.Generator().manual_seed(0)
    frames = torch.rand(24, 3, size, size, generator=rng)
    times = step * torch.arange(24, dtype=torch.float64)
    net = ConvConfig(down=down, width=8)
    data = Trajectories(frames, times, torch.tensor([24]))
    autoencoder = build(AutoencoderConfig(net=net), data.transitions()).eval()
    autoencoder.fit_latents(frames)
    config = NeuralSDEConfig(net=UViTConfig(width=32), history=context, shared=True)
    path = Trajectories(autoencoder.encode(frames), times, torch.tensor([24]))
    return build(config, path.transitions(lag=step, history=context)).eval(), autoencoder


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return load_video_model(save_video_model(tmp_path_factory.mktemp("model"), *parts()))


def ramp(times):
    """A clip whose pixels are its time in hundredths of a second."""
    values = np.array([round(100 * t) for t in times], dtype=np.uint8)
    return Clip("ramp.mp4", values[:, None, None, None] * np.ones((1, 3, 16, 16), np.uint8), np.array(times) + 5.0)


def shades(frames):
    return frames[:, 0, 0, 0].tolist()


# Given frames


def test_given_frames_are_one_step_apart_whatever_the_rate_of_the_clip(video):
    assert shades(video.last_frames(ramp(np.arange(12) / 10))) == [90, 100, 110]
    assert shades(video.last_frames(ramp(np.arange(36) / 30))) == [97, 107, 117]  # nearest: 97 of 96.7
    assert shades(video.last_frames(ramp(np.arange(14) / 12.5))) == [
        84,
        96,
        104,
    ]  # 84 is blended of 80 and 88, 96 is near to 94
    uneven = [0.0, 0.11, 0.13, 0.19, 0.3, 0.31, 0.4]
    assert shades(video.last_frames(ramp(uneven))) == [19, 30, 40]
    assert shades(video.last_frames(ramp(np.arange(12) / 10), at=0.52)) == [30, 40, 50]


def test_clips_that_cannot_be_used(video):
    with pytest.raises(
        ValueError, match=r"ramp.mp4 is too short: 2 frame\(s\), 0.1 s. Give a clip with at least 3 frames"
    ):
        video.last_frames(ramp([0.0, 0.1]))
    with pytest.raises(ValueError, match=r"is too short: .* up to 0.1 s"):
        video.last_frames(ramp(np.arange(12) / 10), at=0.1)
    with pytest.raises(ValueError, match=r"has 4 frames per second at 0.8 s, too few"):
        video.last_frames(ramp([0.0, 0.25, 0.5, 0.75, 1.0]))
    with pytest.raises(ValueError, match=r"lasts 1.1 s. Got at=3"):
        video.last_frames(ramp(np.arange(12) / 10), at=3.0)
    with pytest.raises(ValueError, match=r"must have the shape \(3, 16, 16\). Got \(3, 8, 8\)"):
        video.last_frames(Clip("x", np.zeros((4, 3, 8, 8), np.uint8), np.arange(4) / 10))
    with pytest.raises(ValueError, match="must be positive"):
        video.futures(ramp(np.arange(12) / 10), fps=0.0)


def test_futures_are_at_any_times_and_hold_the_coarser_ones(video):
    """Times are those asked for; a finer path goes through the frames of the coarser one."""
    clip = ramp(np.arange(12) / 10)
    drawn = video.futures(clip, num_frames=5, fps=25.0, num_paths=3)
    assert drawn.frames.shape == (3, 5, 3, 16, 16) and drawn.frames.dtype == torch.uint8
    np.testing.assert_allclose(drawn.times, np.arange(1, 6) / 25)
    np.testing.assert_allclose(drawn.all_times[:3], [-0.2, -0.1, 0.0], atol=1e-7)
    coarse, fine = (video.futures(clip, num_frames=4 * k, fps=10.0 * k, num_paths=2).frames.int() for k in (1, 4))
    assert (fine[:, 3::4] - coarse).abs().max() <= 1
    shown = drawn.clips()
    assert list(shown) == ["future 1", "future 2", "future 3"]
    assert all(np.array_equal(clip[:3], drawn.given.numpy()) and len(clip) == 8 for clip in shown.values())


# Folders


def test_a_folder_holds_everything_and_half_of_it_is_enough(video, tmp_path):
    model, autoencoder = parts()
    whole, half = save_video_model(tmp_path / "a", model, autoencoder), tmp_path / "b"
    save_video_model(half, model, autoencoder, half=True)
    sizes = [(p / "autoencoder" / "model.safetensors").stat().st_size for p in (whole, half)]
    assert sizes[1] < 0.6 * sizes[0]
    record = json.loads((whole / "video.json").read_text())
    assert (record["fps"], record["context"], record["frames"]["size"]) == (pytest.approx(10), 3, [16, 16])
    clip = ramp(np.arange(12) / 10)
    a, b = (load_video_model(p).futures(clip, num_frames=2, num_paths=1).frames.int() for p in (whole, half))
    assert (a - b).abs().max() <= 3
    assert isinstance(load(whole), NeuralSDE) and load(half).scale.step == load(whole).scale.step


def test_parts_that_do_not_belong_together(tmp_path):
    model, autoencoder = parts()
    with pytest.raises(
        ValueError, match=r"the model moves states of shape \(4, 4, 4\), the autoencoder's latents are \(4, 2, 2\)"
    ):
        save_video_model(tmp_path, model, parts(down=8)[1])
    with pytest.raises(ValueError, match=r"frames have the shape \(1, 16, 16\)"):
        save_video_model(tmp_path, model, autoencoder, settings=FrameSettings(size=(16, 16), grey=True))
    with pytest.raises(ValueError, match=r"must be an Autoencoder. Got NeuralSDE"):
        save_video_model(tmp_path, model, model)
    assert not list(tmp_path.iterdir())


def test_damaged_folders(tmp_path):
    with pytest.raises(ValueError, match="holds no model of videos"):
        load_video_model(tmp_path)
    folder = save_video_model(tmp_path / "model", *parts())
    assert isinstance(load_video_model(tmp_path), VideoModel)  # a run folder
    record = json.loads((folder / "video.json").read_text())
    for change, text in (
        ({"format": 9}, "has format 9"),
        ({"fps": 25.0}, "fps or context are others"),
        ({"context": 2}, "fps or context are others"),
        ({"frames": {"size": [16, 16], "colour": 1}}, "is damaged"),
        ({"frames": {"size": [32, 32]}}, r"frames have the shape \(3, 32, 32\)"),
        ({"fps": "fast"}, "is damaged"),
    ):
        (folder / "video.json").write_text(json.dumps(record | change))
        with pytest.raises(ValueError, match=text):
            load_video_model(folder)
    (folder / "video.json").write_text("{")
    with pytest.raises(ValueError, match="is not valid JSON"):
        load_video_model(folder)


# Clips of videos


def test_clips_follow_true_time():
    def video_at(times):
        return Clip("f", np.arange(len(times), dtype=np.uint8)[:, None, None, None], np.array(times))

    even = video_at(np.arange(38) / 25)
    found = cut_clips([even], 0.2, 3, 10)
    assert [w.frames.flatten().tolist() for w in found] == [[0, 5, 10], [15, 20, 25]]
    assert longest_clip([even], 0.2) == 8
    broken = video_at([0.0, 0.1, 0.2, 0.9, 1.0, 1.1, 1.2])  # a gap: nothing goes over it
    assert [w.frames.flatten().tolist() for w in cut_clips([broken], 0.1, 3, 10)] == [[0, 1, 2], [3, 4, 5]]
    assert longest_clip([video_at([0.0, 0.5])], 0.1) == 1


# Pictures


def test_strips_and_films_show_what_was_given():
    clip = np.full((5, 1, 8, 8), 100, np.uint8)
    page = strip({"a": list(clip), "bb": list(clip)}, ["1", "2", "3", "4", "5"], 2)
    orange = (page == GIVEN).all(-1)
    assert orange.any() and page.dtype == np.uint8 and page.shape[2] == 3
    columns = np.flatnonzero(orange.any(0))
    assert (np.diff(columns) > 1).sum() == 1  # two frames, and a gap between them
    assert (film({"a": clip}, 0) == GIVEN).all(-1).sum() == 0
    pages = film({"a": clip, "b": clip, "c": clip}, 2, per_row=2)
    assert [(p == GIVEN).all(-1).any() for p in pages] == [True, True, False, False, False]
    with pytest.raises(ValueError, match="equally long"):
        film({"a": clip, "b": clip[:3]})
    with pytest.raises(ValueError, match="a frame for each of 2 captions"):
        strip({"a": list(clip)}, ["1", "2"])


def test_films_play_given_frames_in_true_time():
    shade = np.arange(6, dtype=np.uint8)[:, None, None, None] * 10 * np.ones((1, 3, 8, 8), np.uint8)
    times = np.array([-0.2, -0.1, 0.0, 0.05, 0.1, 0.15])
    pages = film_in_true_time({"a": shade}, times, 3, 20.0)
    middle = [int(page[page.shape[0] // 2 + 10, page.shape[1] // 2, 0]) for page in pages]
    assert middle == [0, 0, 10, 10, 20, 30, 40, 50]
    assert strip_over_time({"a": shade}, times, 3, most=4).shape[2] == 3


# The pretrained autoencoder


def frames(num=12, size=16):
    rng = torch.Generator().manual_seed(0)
    return Trajectories(torch.rand(num, 3, size, size, generator=rng), torch.arange(num).double(), torch.tensor([num]))


def write_weights(folder):
    """Files of the published form, with other weights."""
    for name, net in (("encoder", TinyEncoder()), ("decoder", TinyDecoder())):
        torch.save({k: v.half() for k, v in net.layers.state_dict().items()}, folder / FILES[name])
    return folder


def test_a_pretrained_autoencoder_is_converted(tmp_path):
    torch.manual_seed(0)
    model = pretrained(write_weights(tmp_path), frames())
    z = model.encode(frames().states)
    assert z.shape == (12, 32, 2, 2) and float(z.mean((0, 2, 3)).abs().max()) < 1e-4
    again = load(model.save_pretrained(tmp_path / "model"))
    assert torch.equal(again.decode(z), model.decode(z))
    assert {p.name for p in (tmp_path / "model").iterdir()} == {"config.json", "model.safetensors"}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_files_that_are_not_its_weights(tmp_path):
    with pytest.raises(ValueError, match=r"does not hold taef2_encoder.pth and taef2_decoder.pth"):
        pretrained(tmp_path, frames())
    write_weights(tmp_path)
    grey = Trajectories(torch.rand(4, 1, 16, 16), torch.arange(4).double(), torch.tensor([4]))
    with pytest.raises(ValueError, match=r"takes frames in colour. Got 1 channel"):
        pretrained(tmp_path, grey)

    class Harmful:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "harm"),))

    file = tmp_path / FILES["encoder"]
    for content in (pickle.dumps(Harmful()), b"", b"nothing"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged, or holds more than tensors"):
            pretrained(tmp_path, frames())
    assert not (tmp_path / "harm").exists()
    torch.save({"0.weight": torch.zeros(3)}, file)
    with pytest.raises(ValueError, match="does not hold the weights of taef2"):
        pretrained(tmp_path, frames())


@pytest.mark.skipif("NEURALSDE_DATA" not in os.environ, reason="NEURALSDE_DATA names no folder with taef2 and kth")
def test_the_published_weights_draw_real_frames():
    from neuralsde.data.videos.decode import read_video
    from neuralsde.metrics.video import psnr

    place = Path(os.environ["NEURALSDE_DATA"])
    clip = read_video(place / "kth" / "person01_walking_d1_uncomp.avi", FrameSettings(size=(64, 64)), stop=64)
    states = torch.from_numpy(clip.frames[::4]).float() / 255
    model = pretrained(place / "taef2", Trajectories(states, torch.arange(16).double(), torch.tensor([16])))
    drawn = model.decode(model.encode(states))
    assert float(psnr(drawn[:, None], states[:, None]).mean()) > 31
