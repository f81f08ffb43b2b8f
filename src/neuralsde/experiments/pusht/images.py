"""Pictures of the demonstrations: the recordings hold states, so they are rendered once and kept beside the data."""

from __future__ import annotations

import os
import warnings
import zipfile
from pathlib import Path

import numpy as np
from tqdm import tqdm

from neuralsde.experiments.pusht.sim import IMAGE_SIZE, render_states
from neuralsde.files import replacing

_AT_ONCE = 50


def demonstration_images(data: str | os.PathLike[str], states: np.ndarray) -> np.ndarray:
    """(L, 96, 96, 3) uint8: pictures of the states (L, 5) in a data file; minutes the first time, for the whole of Push-T."""
    kept = Path(data).with_name(f"{Path(data).stem}_images.npz")
    images = _read(kept, states)
    if images is None:
        images = np.empty((len(states), IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
        with tqdm(total=len(states), unit="image", desc=f"rendering {kept.name}", disable=None) as bar:
            for first in range(0, len(states), _AT_ONCE):
                part = states[first : first + _AT_ONCE]
                images[first : first + _AT_ONCE] = render_states(part, IMAGE_SIZE)
                bar.update(len(part))
        _write(kept, states, images)
    return images


def _read(file: Path, states: np.ndarray) -> np.ndarray | None:
    """What is kept, if it is whole and of these states."""
    try:
        with np.load(file, allow_pickle=False) as found:
            return found["images"] if np.array_equal(found["states"], states) else None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _write(file: Path, states: np.ndarray, images: np.ndarray) -> None:
    try:
        with replacing(file) as new:
            np.savez_compressed(new, states=states, images=images)
    except OSError as error:
        warnings.warn(
            f"The images cannot be kept beside the data ({error}): they are rendered each time.", stacklevel=3
        )
