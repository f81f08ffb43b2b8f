"""Faults of folders: killed saves, broken or hostile files, two runs in one folder."""

import json
import os

import pytest
import save_loop

from neuralsde.policy.controller import SDEPolicy


def names(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def kills(kind, folder, num):
    """Kill saves; each leaves one of both whole, and the next save leaves nothing of it. How often the JSON was behind."""
    both = [save_loop.MAKE[kind](name) for name in save_loop.NAMES]
    known, seen, left = [save_loop.content(made) for made in both], set(), 0
    for made in both:
        save_loop.save(made, folder / made.__class__.__name__)
    for _ in range(num):
        save_loop.kill_a_save(folder / "saved", both)
        left += any(name.split("/")[-1].startswith(".") for name in names(folder / "saved"))
        seen.add(known.index(save_loop.content(save_loop.load(kind, folder / "saved"))))  # else a ValueError
    save_loop.save(both[0], folder / "saved")
    expected = [n.replace("autoencoder-2", "autoencoder") for n in names(folder / type(both[0]).__name__)]
    assert [n.replace("autoencoder-2", "autoencoder") for n in names(folder / "saved")] == expected
    assert left <= num // 10  # a name for the new file exists for a moment only
    return seen


@pytest.mark.parametrize("kind", ["model", "policy", "video"])
def test_a_killed_save_leaves_the_old_or_the_new_whole(kind, tmp_path):
    kills(kind, tmp_path, 8)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("kind", ["model", "policy", "video"])
def test_a_save_may_end_before_any_of_its_moves(kind, tmp_path, monkeypatch):
    both = [save_loop.MAKE[kind](name) for name in save_loop.NAMES]
    known, move, found = [save_loop.content(made) for made in both], os.replace, []
    for num in range(10):
        save_loop.save(both[0], tmp_path)
        left = iter(range(num))

        def last_moves(old, new, left=left):
            if next(left, None) is None:
                raise Killed
            move(old, new)

        monkeypatch.setattr(os, "replace", last_moves)
        try:
            save_loop.save(both[1], tmp_path)
        except Killed:
            found.append(known.index(save_loop.content(save_loop.load(kind, tmp_path))))
        monkeypatch.setattr(os, "replace", move)
    moves = {"model": 2, "policy": 3, "video": 5}[kind]
    tensors = 2 if kind == "video" else 0  # those of the autoencoder and its record come first
    assert found == [int(k > tensors) for k in range(moves)]


def test_a_record_beside_a_model_may_be_edited_but_not_be_another_models(tmp_path):
    policy = save_loop.a_policy("a")
    file = policy.save_pretrained(tmp_path) / "policy.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"limits": [[-9, -9], [9, 9]]}))
    assert SDEPolicy.from_pretrained(tmp_path).limits[1].tolist() == [9, 9]
    policy.model.save_pretrained(tmp_path)  # without the policy
    with pytest.raises(ValueError, match=r"holds no policy\.json of its model"):
        SDEPolicy.from_pretrained(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["model", "policy", "video"])
def test_many_killed_saves(kind, tmp_path):
    assert kills(kind, tmp_path, 25) == {0, 1}
