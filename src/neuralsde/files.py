"""Folders and tensor files. Nothing that is read here is ever executed."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor


def writable_folder(path: str | os.PathLike[str]) -> Path:
    """Create the folder `path` and make sure that it takes files, before any work is done for it."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"Cannot write to the folder {folder}: {error.strerror}. Choose another folder.") from None
    return folder


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Where to write what becomes `file` once it is complete: all or nothing, for other processes too."""
    new = file.with_name(f".{os.getpid()}-{file.name}")
    try:
        yield new
        os.replace(new, file)
    finally:
        new.unlink(missing_ok=True)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, or one clear error."""
    try:
        return load_file(file)
    except FileNotFoundError:
        raise ValueError(f"{file} is missing. Copy the whole folder.") from None
    except SafetensorError as error:
        head = file.read_bytes()[:4]
        if head[:2] in (b"\x80\x02", b"\x80\x04", b"\x80\x05", b"PK"):
            raise ValueError(
                f"{file} is a pickle or a zip of one. It is never loaded: pickles can run code. Save with save_pretrained."
            ) from None
        raise ValueError(f"{file} is truncated or not a safetensors file ({error}). Copy or save it again.") from None


def sha256_of_file(file: str | os.PathLike[str]) -> str:
    """Of its bytes, a block at a time."""
    digest = hashlib.sha256()
    with open(file, "rb") as data:
        while block := data.read(2**20):
            digest.update(block)
    return digest.hexdigest()
