"""Demonstrations in the forms in which others keep them: found out by what is in the file or folder, not by its name."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np

from neuralsde.core.doors import Positive, door
from neuralsde.data.robots.demonstrations import Demonstrations
from neuralsde.data.robots.lerobot import open_lerobot
from neuralsde.data.robots.recording import Recording
from neuralsde.data.robots.replay_buffers import open_npz, open_zarr, zarr_root

ACCEPTED = (
    "an npz file with `episode_ends`, a replay buffer of Diffusion Policy (zarr folder or zip with data/ and meta/episode_ends), "
    "or a LeRobot dataset of version 2 or 3 (folder with meta/info.json)"
)


@door
def read_demonstrations(
    path: str | os.PathLike[str],
    *,
    observations: Annotated[Sequence[str] | None, "Write ['name']."] = None,
    action: str = "action",
    dt: Positive | None = None,
    episodes: Sequence[int] | None = None,
) -> Demonstrations:
    """Read recorded episodes.

    Args:
        path: an npz file with `episode_ends`, a zarr replay buffer (folder or zip), or the folder of a LeRobot dataset.
        observations: names of the arrays to observe; absent, all arrays of numbers but the action and bookkeeping.
        action: name of the array of actions.
        dt: seconds between rows, in place of stamps; where there are none either, rows are 1 apart (Push-T: dt=0.1).
        episodes: only these, counted from 0, in this order.
    """
    recording = open_recording(path)
    recording.check(action, "action")
    chosen = [n for n in recording.default if n != action] if observations is None else list(observations)
    for name in chosen:
        recording.check(name, "observations")
    num = len(recording.lengths)
    kept = list(range(num)) if episodes is None else [int(e) for e in episodes]
    if not kept or not all(0 <= e < num for e in kept):
        raise ValueError(f"`episodes` must name some of the {num} episodes, from 0 to {num - 1}. Got {kept[:8]}.")

    stamps = recording.stamps if dt is None else None
    arrays = recording.read(list(dict.fromkeys([action, *chosen, *([stamps] if stamps else [])])), kept)
    actions = arrays[action].astype(np.float32) if arrays[action].dtype == np.uint8 else arrays[action]
    try:
        return Demonstrations.from_arrays(
            {name: arrays[name] for name in chosen},
            actions[:, None] if actions.ndim == 1 else actions,
            recording.lengths[kept],
            times=None if stamps is None else arrays[stamps].reshape(len(actions)),
            dt=dt,
        )
    except ValueError as error:
        hint = f" Or pass `dt` in place of {stamps!r}." if stamps and "`times`" in str(error) else ""
        raise ValueError(f"{recording.where}: {error}{hint}") from None


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """What a file or folder holds, or the one data set that lies in a folder up to two levels down."""
    place = Path(path)
    if not place.exists():
        raise ValueError(f"There is no file or folder {place}.")
    opener = _opener(place)
    if opener is not None:
        return opener(place)
    inside = []
    if place.is_dir():
        for child in sorted(chain(place.glob("*"), place.glob("*/*"))):
            if child.is_dir() or child.suffix in (".npz", ".zip"):
                opener = _opener(child, strict=False)
                inside += [(child, opener)] if opener else []
    if len(inside) > 1:
        names = ", ".join(str(child.relative_to(place)) for child, _ in inside[:5])
        raise ValueError(f"{place} holds {len(inside)} data sets: {names}. Name one of them.")
    if inside:
        child, opener = inside[0]
        return opener(child)
    raise ValueError(f"{place} holds no demonstrations that can be read{_hint(place)}. It must be {ACCEPTED}.")


def _opener(place: Path, strict: bool = True) -> Callable[[Path], Recording] | None:
    """The reader of a file or folder; unless `strict`, broken files and npz files of other things have none."""
    if place.is_dir():
        if (place / "meta" / "info.json").is_file():
            return open_lerobot
        return None if zarr_root(place) is None else open_zarr
    if not zipfile.is_zipfile(place):
        with place.open("rb") as data:
            cut = data.read(4) == b"PK\x03\x04"
        if cut and strict:
            raise ValueError(f"{place} is cut short: it begins as a zip and has no end. Copy or download it again.")
        return None
    with zipfile.ZipFile(place) as archive:
        names = archive.namelist()
    if any("/" not in name and name.endswith(".npy") for name in names):
        return open_npz if strict or "episode_ends.npy" in names else None
    return None if zarr_root(place) is None else open_zarr


def _hint(place: Path) -> str:
    """What is odd about a place that was not recognised."""
    if place.is_dir() and (place / "meta_data").is_dir():
        return ": it looks like a LeRobot dataset of version 1, to be converted with LeRobot's own scripts"
    if place.is_dir() and (place / "data").is_dir():
        return ": it has data/, but neither meta/episode_ends nor meta/info.json. Copy it whole"
    if zipfile.is_zipfile(place):
        with zipfile.ZipFile(place) as archive:
            if any(name.endswith("meta/info.json") for name in archive.namelist()):
                return ": it is a LeRobot dataset in a zip. Unzip it and name the folder"
    return ""
