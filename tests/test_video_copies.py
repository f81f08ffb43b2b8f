"""Copies of clips: what is drawn for one holds for all of its frames and shows nothing that was not there; no two are alike."""

import numpy as np
import pytest
import torch

from neuralsde.data.videos import copies
from neuralsde.data.videos.copies import changed
from neuralsde.video import clips
from neuralsde.video.clips import Clip, with_copies

SIZE = 24


def smooth(num=6, length=4, channels=1):
    """Clips of a bright spot that moves to the right."""
    place = torch.arange(SIZE, dtype=torch.float32)
    at = 6 + 2 * torch.arange(length)[None, :, None, None, None] + torch.arange(num)[:, None, None, None, None] % 3
    spot = torch.exp(-((place[None, :] - at) ** 2 + (place[:, None] - 12) ** 2) / 20)
    return (40 + 160 * spot).round().byte().expand(num, length, channels, SIZE, SIZE).contiguous()


def centre(frames):
    weight = frames[:, :, 0].float() - frames[:, :, 0].float().amin(dim=(2, 3), keepdim=True)
    columns = (weight.sum(2) * torch.arange(SIZE)).sum(2)
    return columns / weight.sum(dim=(2, 3))


def test_with_nothing_to_change_a_copy_is_the_clip_or_its_mirror_image(monkeypatch):
    monkeypatch.setattr(copies, "SMALLEST", 1.0)
    monkeypatch.setattr(copies, "CONTRAST", 1.0)
    monkeypatch.setattr(copies, "BRIGHTNESS", 0.0)
    frames = smooth(32)
    made = changed(frames, torch.Generator().manual_seed(0))
    same = (made == frames).flatten(1).all(1)
    mirrored = (made == frames.flip(-1)).flatten(1).all(1)
    assert bool((same ^ mirrored).all()) and 8 <= int(mirrored.sum()) <= 24


def test_light_changes_all_frames_alike(monkeypatch):
    """y = a x + b, with one a and one b for all frames of a clip, within their bounds."""
    monkeypatch.setattr(copies, "SMALLEST", 1.0)
    frames = smooth(16, channels=3)
    made = changed(frames, torch.Generator().manual_seed(1))
    mirrored = ((made.float() - made.float().flip(-1)) * (frames.float() - frames.float().flip(-1))).sum(
        (1, 2, 3, 4)
    ) < 0
    upright = torch.where(mirrored[:, None, None, None, None], made.flip(-1), made).double().flatten(1)
    slopes = []
    for x, y in zip(frames.double().flatten(1), upright):
        a, b = np.polyfit(x.numpy(), y.numpy(), 1)
        slopes.append(a)
        assert np.abs(a * x.numpy() + b - y.numpy()).max() < 1.0  # bytes are rounded
        assert 1 / copies.CONTRAST - 0.01 < a < copies.CONTRAST + 0.01
        assert abs(y.mean() - x.mean()) < 255 * copies.BRIGHTNESS + 1
    assert np.std(slopes) > 0.03


def test_a_nearer_view_moves_farther_and_shows_only_what_is_there(monkeypatch):
    monkeypatch.setattr(copies, "CONTRAST", 1.0)
    monkeypatch.setattr(copies, "BRIGHTNESS", 0.0)
    frames = smooth(64)
    made = changed(frames, torch.Generator().manual_seed(2))
    assert made.shape == frames.shape and made.dtype == torch.uint8
    assert int(made.amin()) >= int(frames.amin()) - 3 and int(made.amax()) <= int(frames.amax()) + 3
    speed = centre(made).diff(dim=1)
    known = centre(frames).diff(dim=1)
    ratio = (speed / known).mean(1).abs()  # one view for all frames: the spot moves evenly, by more than it did
    assert bool((speed.sign() == speed[:, :1].sign()).all())
    assert float(ratio.min()) > 0.9 and float(ratio.max()) < 1 / copies.SMALLEST + 0.1 and float(ratio.std()) > 0.02


def test_copies_repeat_by_seed_and_differ_from_each_other():
    frames = smooth(2).repeat(2, 1, 1, 1, 1)
    one, again, other = (changed(frames, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert not torch.equal(one[:2], one[2:])  # equal clips have copies that differ


def test_films_keep_their_times_in_pieces(monkeypatch):
    monkeypatch.setattr(clips, "PIECE", 5)
    frames = smooth(1, length=12)[0].numpy()
    films = [Clip("a", frames, np.arange(12) / 10), Clip("b", frames[:4], np.arange(4) / 25)]
    found = with_copies(films, 2)
    assert found[:2] == films and with_copies(films, 0) == films
    assert [len(film.times) for film in found[2:]] == [4, 4, 4, 4] * 2
    for film in found[2:]:
        assert film.frames.shape == (len(film.times), *frames.shape[1:]) and film.frames.dtype == np.uint8
    joined = np.concatenate([film.times for film in found[2:5]])
    assert np.array_equal(joined, films[0].times)
    assert not np.array_equal(found[2].frames, found[6].frames)


def test_copies_that_memory_would_not_hold_are_refused(monkeypatch):
    frames = smooth(1, length=12)[0].numpy()
    monkeypatch.setattr(clips, "MOST_COPIED", 3 * frames.size)
    films = [Clip("a", frames, np.arange(12) / 10)]
    assert len(with_copies(films, 3)) == 4
    with pytest.raises(ValueError, match=r"`copies` must fit into .* Got 4 of .* Give at most 3"):
        with_copies(films, 4)
