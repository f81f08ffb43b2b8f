"""KTH human actions: 25 persons, six actions, four conditions, 599 files (one was never there) of 160×120 grey at 25 per second.

The list of the authors, `00sequences.txt`, names the frames in which something is done, mostly four ranges to a file (counted from
1, the last one included); only these are used. A few ranges of the list overlap or stand in another order: they are kept as listed.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from neuralsde.data.download import Source
from neuralsde.data.videos.clips import Clip, find_videos
from neuralsde.data.videos.decode import FrameSettings

SITE = "http://www.csc.kth.se/cvap/actions"
ACTIONS = ("boxing", "handclapping", "handwaving", "jogging", "running", "walking")
LIST = "00sequences.txt"
SOURCES = {action: Source(f"{action}.zip", f"{SITE}/{action}.zip") for action in ACTIONS}
LIST_SOURCE = Source(LIST, f"{SITE}/{LIST}")
MISSING = "person13_handclapping_d3"  # listed as missing by the authors
SETTINGS = FrameSettings(size=(64, 64), fit="stretch", grey=True)
CONTEXT, FUTURE = 4, 36

OFFICIAL = {
    "train": (11, 12, 13, 14, 15, 16, 17, 18),
    "validation": (19, 20, 21, 23, 24, 25, 1, 4),
    "test": (22, 2, 3, 5, 6, 7, 8, 9, 10),
}
"""Persons of each part, as the list has it (Schuldt, Laptev and Caputo, ICPR 2004)."""
PREDICTION = {"train": tuple(range(1, 17)), "test": tuple(range(17, 26))}
"""Persons of each part, as usual in video prediction."""
WAYS = {"prediction": PREDICTION, "official": OFFICIAL}

NAME = re.compile(r"(person(\d\d)_([a-z]+)_(d[1-4]))(?:_uncomp)?\.avi", re.IGNORECASE)
LINE = re.compile(r"(person\d\d_[a-z]+_d[1-4])\s+(?:frames\s+(\d[\d\s,-]*)|\*missing\*)\s*")


def read_sequences(file: str | os.PathLike[str]) -> dict[str, tuple[tuple[int, int], ...]]:
    """Ranges of frames by the name of a file, as (start, stop) counted from 0; none for what is listed as missing."""
    sequences: dict[str, tuple[tuple[int, int], ...]] = {}
    for number, line in enumerate(Path(file).read_text(encoding="latin-1").splitlines(), start=1):
        if not re.match(r"person\d\d_", line):
            continue
        match = LINE.fullmatch(line)
        listed = re.sub(r"\s", "", match[2] or "") if match else ""
        ranges = [part.split("-") for part in listed.split(",") if part]
        if match is None or not all(len(r) == 2 and 0 < int(r[0]) <= int(r[1]) for r in ranges):
            raise ValueError(f"{file}, line {number} is not like `person01_boxing_d1 frames 1-95, 96-185`: {line!r}.")
        sequences[match[1]] = tuple((int(first) - 1, int(last)) for first, last in ranges)
    if not sequences:
        raise ValueError(f"{file} lists no sequences. It must be the list of the authors, {SITE}/{LIST}.")
    return sequences


def kth_clips(source: str | os.PathLike[str], actions: tuple[str, ...] = ACTIONS) -> tuple[list[Clip], list[str]]:
    """The listed sequences of all files in a folder, with or without folders and zips in it, and remarks on the whole.

    Args:
        source: holds `person01_walking_d1_uncomp.avi`, …, in any folder or zip, and `00sequences.txt`.
        actions: only these.
    """
    root = Path(source)
    lists = sorted(root.rglob(LIST)) if root.is_dir() else []
    if not lists:
        raise ValueError(f"{root} must hold {LIST}, the frames of each sequence. Get it from {SITE}/{LIST}.")
    sequences = read_sequences(lists[0])
    found: dict[str, tuple[Clip, re.Match[str]]] = {}
    others = []
    for clip in find_videos(root):
        match = NAME.fullmatch(clip.name.split("/")[-1])
        if match is None or match[1].lower() not in sequences:
            others.append(clip.name)
        elif match[3].lower() in actions:
            found.setdefault(match[1].lower(), (clip, match))
    if not found:
        raise ValueError(f"{root} holds no files of KTH such as person01_walking_d1_uncomp.avi.")
    clips = []
    for name in sorted(found):
        file, match = found[name]
        person = int(match[2])
        splits = {
            way: next((part for part, persons in parts.items() if person in persons), "") for way, parts in WAYS.items()
        }
        for k, (start, stop) in enumerate(sequences[name], start=1):
            known = (match[3].lower(), f"person{person:02d}", splits)
            clips.append(Clip(f"{name}/{k}", file.file, file.member, start, stop, *known))
    return clips, _remarks(sequences, set(found), actions, others)


def _remarks(
    sequences: dict[str, tuple[tuple[int, int], ...]], found: set[str], actions: tuple[str, ...], others: list[str]
) -> list[str]:
    """How far this is the whole."""
    listed = {name for name, ranges in sequences.items() if ranges and name.split("_")[1] in actions}
    remarks = []
    if absent := sorted(listed - found):
        counts = Counter(name.split("_")[1] for name in absent)
        text = ", ".join(f"{action} {number}" for action, number in counts.items())
        remarks.append(f"{len(absent)} of the {len(listed)} files listed are not there ({text}).")
    else:
        remarks.append(f"All {len(listed)} files listed are there; {MISSING} is missing in the original.")
    if others:
        remarks.append(f"{len(others)} video(s) are not in the list and not used: {', '.join(others[:5])}.")
    return remarks
