"""Where videos lie: whole files or parts of them, in folders, in zips (read in place) and in HDF5."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from neuralsde.data.videos.decode import FrameSettings

SUFFIXES = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".gif", ".m4v")  # of files that are taken for videos
HDF5_SUFFIXES = (".hdf5", ".h5")
BLOCK = 2**16


@dataclass(frozen=True)
class Clip:
    """Frames of a file that make one video, and what is known of it."""

    name: str
    file: Path
    member: str | None = None
    """In a zip the path of the video, in HDF5 its number."""
    start: int = 0
    stop: int | None = None
    """The frame after the last; None: to the end of the file."""
    label: str = ""
    """What is seen: the action."""
    group: str = ""
    """Who or where: videos of one group never belong to different parts of a split."""
    splits: Mapping[str, str] = field(default_factory=dict)
    """Part (train, validation or test) by the name of each way of splitting; the first is the usual one."""
    fps: float | None = None
    """Of files without stamps (HDF5)."""

    @property
    def place(self) -> str:
        """The file, for reports."""
        return self.file.name if self.member is None else f"{self.file.name}/{self.member}"


def holds_videos(source: Path) -> bool:
    """Whether this is taken for videos, and not for a table."""
    return source.is_dir() or source.suffix.lower() in (*SUFFIXES, *HDF5_SUFFIXES, ".zip")


def by_file(clips: list[Clip]) -> list[list[Clip]]:
    """Clips that come out of one file together, so that it is decoded once."""
    return [list(some) for _, some in groupby(clips, key=lambda clip: (clip.file, clip.member))]


def job_key(clips: list[Clip], settings: FrameSettings, cache: dict[Path, str]) -> str:
    """Changes when the file, the parts taken from it or the settings change; times and places of files do not matter."""
    first = clips[0]
    ranges = [(c.start, c.stop) for c in clips]
    text = repr((file_mark(first, cache), first.fps, ranges, sorted(settings.to_dict().items())))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def file_mark(clip: Clip, cache: dict[Path, str]) -> str:
    """Size and check sum of a member of a zip; else size and digest of the beginning, middle and end of the file."""
    if clip.member is not None and clip.file.suffix.lower() == ".zip":
        if clip.file not in cache:  # the list of a zip is long: read it once
            cache[clip.file] = ""
            with zipfile.ZipFile(clip.file) as archive:
                for info in archive.infolist():
                    cache[clip.file / info.filename] = f"{info.file_size} {info.CRC:08x}"
        return cache[clip.file / clip.member]
    if clip.file not in cache:
        cache[clip.file] = _digest(clip.file)
    return f"{cache[clip.file]} {clip.member}"


def _digest(file: Path) -> str:
    try:
        size = file.stat().st_size
        digest = hashlib.blake2b(digest_size=12)
        with file.open("rb") as data:
            for start in (0, size // 2, size - BLOCK):
                data.seek(max(0, start))
                digest.update(data.read(BLOCK))
        return f"{size} {digest.hexdigest()}"
    except OSError as error:
        return f"unreadable {error.strerror}"


def find_videos(source: str | os.PathLike[str]) -> list[Clip]:
    """Every video in a file, a folder (with all folders inside) and the zips there, ordered by name, each one clip.

    The same path unpacked and in a zip counts once.
    """
    root = Path(source)
    if not root.exists():
        raise ValueError(f"There is no file or folder {root}.")
    found: dict[str, Clip] = {}
    zips = []
    for file in _files(root):
        name = file.relative_to(root).as_posix() if root.is_dir() else file.name
        if file.suffix.lower() in SUFFIXES or (file == root and file.suffix.lower() != ".zip"):
            found[name] = Clip(name, file)
        elif file.suffix.lower() == ".zip":
            zips.append(file)
    for file in zips:
        for member in _members(file):
            found.setdefault(member, Clip(member, file, member))
    return [found[name] for name in sorted(found)]


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    seen = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith("."))


def _members(file: Path) -> list[str]:
    """Videos in a zip."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} is not a zip, or is cut short ({error}). Delete it and get it again.") from None
    shown = [name for name in names if not any(part.startswith((".", "__MACOSX")) for part in name.split("/"))]
    return [name for name in shown if name.lower().endswith(SUFFIXES)]
