"""Public data sets, fetched from where their authors keep them: what was begun is resumed, what arrived is checked."""

from __future__ import annotations

import http.client
import os
import re
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from neuralsde.core.files import sha256_of_file, writable_folder
from neuralsde.core.records import RunError

BLOCK = 2**18  # bytes at a time
TIMEOUT = 30  # seconds of silence after which a server is given up


@dataclass(frozen=True)
class Source:
    """A file on the web."""

    name: str
    """Of the file here."""
    url: str
    sha256: str | None = None
    """None: not known to us; whoever reads the file checks its content instead."""
    size: int | None = None
    """In bytes, where it is known."""


SOURCES = {"pusht": Source("pusht.zip", "https://diffusion-policy.cs.columbia.edu/data/training/pusht.zip")}
"""By the name of the data set."""


def fetch(source: Source, folder: str | os.PathLike[str], progress: bool = True) -> Path:
    """The file in `folder`: as it is where it is there already, else downloaded, going on where an earlier try stopped."""
    file = writable_folder(folder) / source.name
    if file.exists():
        if wrong := _difference(file, source):
            raise RunError(f"{file} is there, but {wrong}. Delete it and run again, or pass a good copy by --from.")
        return file
    part = file.with_name(f"{source.name}.part")
    try:
        _download(source, part, progress)
    except urllib.error.HTTPError as error:
        raise RunError(f"{source.url} answers {error.code} ({error.reason}). {_elsewhere(source)}") from None
    except urllib.error.URLError as error:
        raise RunError(f"{source.url} cannot be reached ({error.reason}). {_elsewhere(source)}") from None
    except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
        have = part.stat().st_size if part.exists() else 0
        why = f"broke off after {have:,} bytes ({error or type(error).__name__})"
        raise RunError(
            f"The download of {source.url} {why}. Run the same command again: it goes on from there."
        ) from None
    if wrong := _difference(part, source):
        _forget(part)
        raise RunError(f"{source.url} arrived damaged or was changed: {wrong}. It was removed; run again.")
    os.replace(part, file)
    _forget(part)
    return file


def _elsewhere(source: Source) -> str:
    return f"Download {source.name} elsewhere and pass it by --from DIR."


def _download(source: Source, part: Path, progress: bool) -> None:
    """Fill `part` to its end."""
    from tqdm import tqdm

    have = part.stat().st_size if part.exists() else 0
    tag = _tag_file(part).read_text(encoding="utf-8") if have and _tag_file(part).exists() else ""
    request = urllib.request.Request(source.url, headers={"User-Agent": "neuralsde"})
    if have and tag:  # without a tag nobody knows whether the file is still the same
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", tag)
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return  # only the renaming was missing
        _forget(part)
        request.remove_header("Range")
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    with answer:
        start = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
        resumed = answer.status == 206 and start is not None and int(start[1]) == have
        if answer.status == 206 and not resumed:
            raise http.client.HTTPException(f"asked from byte {have} on, got {answer.headers.get('Content-Range')}")
        have = have if resumed else 0
        _tag_file(part).write_text(_tag(answer.headers), encoding="utf-8")
        rest = answer.headers.get("Content-Length")
        total = have + int(rest) if rest else None
        bar = tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=source.name, disable=not progress)
        with bar, part.open("ab" if resumed else "wb") as out:
            while block := answer.read(BLOCK):
                out.write(block)
                bar.update(len(block))
    if total is not None and part.stat().st_size < total:
        raise ConnectionError(f"{total:,} were announced")


def _tag(headers: http.client.HTTPMessage) -> str:
    """What the server knows this version of the file by; weak tags do not vouch for every byte."""
    tag = headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")


def _tag_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _tag_file(part).unlink(missing_ok=True)


def _difference(file: Path, source: Source) -> str | None:
    """How the file is not the one announced; None where it is, as far as that is known."""
    size = file.stat().st_size
    if source.size is not None and size != source.size:
        return f"it has {size:,} bytes instead of {source.size:,}"
    if source.sha256 is None:
        return None
    got = sha256_of_file(file)
    return None if got == source.sha256.lower() else f"its SHA-256 is {got} instead of {source.sha256.lower()}"
