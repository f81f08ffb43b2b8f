"""Weizmann actions: nine persons, ten actions, films of 180×144, split by person.

Of `run`, `skip` and `walk` the original has two films of one person (`lena_run1`, `lena_run2`): 93 files, in other copies 90.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from neuralsde.data.download import Source
from neuralsde.data.videos.clips import Clip, find_videos
from neuralsde.data.videos.decode import FrameSettings

SITE = "http://www.wisdom.weizmann.ac.il/~vision/VideoAnalysis/Demos/SpaceTimeActions/DB"
ACTIONS = ("bend", "jack", "jump", "pjump", "run", "side", "skip", "walk", "wave1", "wave2")
PERSONS = ("daria", "denis", "eli", "ido", "ira", "lena", "lyova", "moshe", "shahar")
SOURCES = {action: Source(f"{action}.zip", f"{SITE}/{action}.zip") for action in ACTIONS}
SETTINGS = FrameSettings(size=(64, 64), fit="stretch", grey=True)
CONTEXT, FUTURE = 4, 16
SPLIT = {"train": PERSONS[:6], "validation": PERSONS[6:7], "test": PERSONS[7:]}
"""Ours, by the alphabet: the authors have none."""

NAME = re.compile(
    rf"({'|'.join(PERSONS)})_(?:(wave[12])|(run|skip|walk)[12]?|({'|'.join(ACTIONS)}))\.avi", re.IGNORECASE
)


def weizmann_clips(source: str | os.PathLike[str], actions: tuple[str, ...] = ACTIONS) -> tuple[list[Clip], list[str]]:
    """All films in a folder, with or without folders and zips in it, and remarks on the whole.

    Args:
        source: holds `daria_bend.avi`, … in any folder or zip.
        actions: only these.
    """
    clips: dict[str, Clip] = {}
    others = []
    for file in find_videos(source):
        name = file.name.split("/")[-1]
        match = NAME.fullmatch(name)
        if match is None:
            others.append(file.name)
            continue
        person, action = match[1].lower(), (match[2] or match[3] or match[4]).lower()
        part = next(part for part, persons in SPLIT.items() if person in persons)
        if action in actions:
            stem = name[: -len(".avi")].lower()
            splits = {"person": part}
            clips.setdefault(stem, Clip(stem, file.file, file.member, label=action, group=person, splits=splits))
    if not clips:
        raise ValueError(f"{Path(source)} holds no films of Weizmann such as bend/daria_bend.avi.")
    films = {(clip.group, clip.label) for clip in clips.values()}
    absent = [f"{person}_{action}" for action in actions for person in PERSONS if (person, action) not in films]
    remarks = [f"All persons and actions are there, in {len(clips)} files."]
    if absent:
        some = ", ".join(absent[:5]) + (", …" if absent[5:] else "")
        remarks = [f"{len(absent)} of {len(PERSONS) * len(actions)} are not there: {some}."]
    if others:
        some = ", ".join(others[:5])
        remarks.append(f"{len(others)} video(s) are not named as those of Weizmann and not used: {some}.")
    return [clips[name] for name in sorted(clips)], remarks
