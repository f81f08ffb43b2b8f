"""Files and folders: written whole or not at all, read within bounds. Nothing that is read here is ever executed.

A saved model is one unit though it lies in several files: model.safetensors carries a copy of the JSON files beside it
(`pack`). It is replaced in one move and they follow. Each of them names the save that it is of; where a killed save left
an earlier one, the copy counts. Where it names the same save it counts itself, so that people may edit it.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MAX_TEXT = 2**24
"""Bytes of a JSON file, and of the header of a tensor file, that are read."""
MAX_DEPTH, MAX_VALUES = 100, 2**20
"""Of what a JSON or YAML file holds: a few letters of YAML can stand for any number of values."""
TENSORS, COPIES = "model.safetensors", "neuralsde"
"""The file of tensors, and the key of its header under which the copies are."""
SAVE = "saved"
"""The key under which a JSON file names its save."""


def writable_folder(path: str | os.PathLike[str]) -> Path:
    """Create the folder `path` and make sure that it takes files, before any work is done for it."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"Cannot write to the folder {folder}: {why}. Choose another folder.") from None
    return folder


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Where to write what becomes `file` once it is complete: all or nothing, for other processes too.

    On Linux the new file has no name until then, so that a killed writer leaves nothing; what one could leave elsewhere, or
    between the last two calls, the next writer removes. The place has no suffix: say the format to what writes there.
    """
    for old in file.parent.glob(f".*-{glob.escape(file.name)}.new"):
        _remove_unless_held(old)
    named = file.with_name(f".{os.urandom(4).hex()}-{file.name}.new")
    try:
        held = os.open(file.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
        place = Path(f"/proc/self/fd/{held}")
    except (AttributeError, OSError):  # not of this system, or not of this disk
        held = os.open(named, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        place = named
    try:
        fcntl.flock(held, fcntl.LOCK_EX)  # a name without a lock is a dead writer's
        yield place
        os.fsync(held)
        if place != named:
            os.link(place, named, src_dir_fd=held)  # with a folder, which is not used, links are followed
        os.replace(named, file)
    finally:
        named.unlink(missing_ok=True)
        os.close(held)


def _remove_unless_held(file: Path) -> None:
    try:
        held = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.unlink(missing_ok=True)
    except OSError:
        pass
    finally:
        os.close(held)


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Have a folder, or a file that need not exist yet, to oneself: a second user is refused.

    The lock is the system's and ends with the process, however that ends. A folder is its own lock; beside a file one lies.
    """
    folder = place.is_dir()
    lock = place if folder else place.with_name(f".{place.name}.lock")
    while True:
        held = os.open(lock, os.O_RDONLY | (0 if folder else os.O_CREAT), 0o666)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            raise ValueError(f"{place} is in use by another run. Wait until it has ended, or name another.") from None
        except OSError:  # a disk without locks
            break
        if os.fstat(held).st_nlink:
            break
        os.close(held)  # its user took it away in between
    try:
        yield
    finally:
        if not folder:
            lock.unlink(missing_ok=True)
        os.close(held)


def write_json(file: Path, values: Any) -> None:
    """Write JSON, or leave the file as it was."""
    with replacing(file) as new:
        new.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def check_file(file: Path, limit: int) -> None:
    """Refuse what has no end or is too large to be what its name says."""
    try:
        found = file.stat()
    except (OSError, ValueError) as error:
        raise ValueError(f"Cannot read {file}: {getattr(error, 'strerror', None) or error}.") from None
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{file} is not a regular file. Put the file itself in its place.")
    if found.st_size > limit:
        raise ValueError(f"{file} has {found.st_size:,} bytes. At most {limit:,} are read. Is it the right file?")


def read_text(file: Path, limit: int = MAX_TEXT) -> str:
    """The text of a regular file that is not too large."""
    check_file(file, limit)
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not text in UTF-8 ({error}). Is it the right file?") from None
    except OSError as error:
        raise ValueError(f"Cannot read {file}: {error.strerror}.") from None


def read_json(file: Path) -> Any:
    """What a JSON file holds."""
    return _parse(read_text(file), file)


def _parse(text: str, file: Path) -> Any:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not valid JSON ({error}). Write or save it again.") from None
    check_size(values, file)
    return values


def check_size(values: Any, file: Path) -> None:
    """Refuse what is nested too deep, or holds too much once repeated parts are written out."""
    left, num = [(values, 0)], 0
    while left:
        value, depth = left.pop()
        num += 1
        if depth > MAX_DEPTH or num > MAX_VALUES:
            limit = f"{MAX_DEPTH} levels deep" if depth > MAX_DEPTH else f"of {MAX_VALUES:,} values"
            raise ValueError(f"{file} holds too much: at most {limit} are read. Is it the right file?")
        if isinstance(value, (dict, list)):
            left += [(v, depth + 1) for v in (value.values() if isinstance(value, dict) else value)]


# A saved model and the JSON files beside it


def pack(documents: Mapping[str, Any]) -> dict[str, str]:
    """The copies of JSON files, as the header of the tensors holds them."""
    return {COPIES: json.dumps(documents)}


def write_documents(folder: Path, documents: Mapping[str, Any]) -> None:
    """Write the JSON files of a save, after its tensors with their copies."""
    name = _save_of(pack(documents)[COPIES])
    for file, values in documents.items():
        write_json(folder / file, {**values, SAVE: name})


def read_document(folder: Path, name: str, header: Mapping[str, str] | None = None) -> Any:
    """What a JSON file of a saved model holds; None if there is none. `header` is that of its tensors, if it was read."""
    header = _header(folder / TENSORS) if header is None else header
    own = read_json(folder / name) if (folder / name).exists() else None
    save = own.pop(SAVE, None) if isinstance(own, dict) else None
    if COPIES not in header or save == _save_of(header[COPIES]):  # of an earlier version, or of this save
        return own
    copies = _parse(header[COPIES], folder / TENSORS)
    return copies.get(name) if isinstance(copies, dict) else None


def _save_of(copies: str) -> str:
    return hashlib.sha256(copies.encode()).hexdigest()[:16]


def _header(file: Path) -> Mapping[str, str]:
    """What the header of a safetensors file holds besides tensors; nothing if it is no such file: its reader will say so."""
    if not file.is_file():
        return {}
    with file.open("rb") as data:
        size = int.from_bytes(data.read(8), "little")
        text = data.read(size) if size <= MAX_TEXT else b""
    try:
        found = json.loads(text).get("__metadata__", {})
    except (ValueError, AttributeError, RecursionError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get(COPIES, ""), str) else {}


def sha256_of_file(file: str | os.PathLike[str]) -> str:
    """Of its bytes, a block at a time."""
    digest = hashlib.sha256()
    with open(file, "rb") as data:
        while block := data.read(2**20):
            digest.update(block)
    return digest.hexdigest()
