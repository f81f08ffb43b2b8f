"""Folders as public sets of videos have them, whole and broken."""

import numpy as np
import pytest
from video_files import lossless, pictures, write_film, write_sound

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

LIST = """
This database contains sequences of six classes of actions performed by
25 subjects in four different conditions d1-d4 (see below).

person01_walking_d1\t\tframes\t1-10, 21-30, 15-24
person13_handclapping_d3\t*missing*
person17_boxing_d4    \tframes\t1-12, 12-44
person22_boxing_d1\t\tframes\t1-92
"""


def bad_files(folder):
    """One file of each kind that cannot be used, and the reason."""
    folder.mkdir(parents=True, exist_ok=True)
    good = write_film(folder.parent / "good.mp4", pictures(30), options={"qp": "20"}).read_bytes()
    avi = write_film(folder.parent / "good.avi", pictures(30), "mpeg4").read_bytes()
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "text.mp4").write_text("not a video\n" * 50)
    (folder / "noise.avi").write_bytes(np.random.default_rng(0).bytes(20_000))
    (folder / "no_index.mp4").write_bytes(good[: len(good) * 2 // 3])
    (folder / "cut.avi").write_bytes(avi[: len(avi) * 2 // 3])
    (folder / "playlist.mp4").write_text(f"#EXTM3U\n#EXTINF:1,\n{folder.parent / 'good.mp4'}\n#EXT-X-ENDLIST\n")
    damaged = bytearray(lossless(folder / "damaged.mkv", pictures(30)).read_bytes())
    damaged[len(damaged) // 2 : len(damaged) // 2 + 20] = bytes(20)
    (folder / "damaged.mkv").write_bytes(damaged)
    write_sound(folder / "sound.mp4")
    write_sound(folder / "sound.avi", "pcm_s16le")
    write_film(folder / "none.avi", pictures(0), "mpeg4")
    write_film(folder / "one.mp4", pictures(1))
    (folder / "folder.mp4").mkdir()
    return {
        "empty.mp4": "is empty",
        "text.mp4": "is not a video",
        "noise.avi": "is not a video",
        "playlist.mp4": "is not a video",
        "no_index.mp4": "is cut short",
        "cut.avi": "is cut short",
        "damaged.mkv": r"is damaged at frame \d+ \(ffv1: slice CRC mismatch",
        "sound.mp4": "holds sound and no pictures",
        "sound.avi": "holds sound and no pictures",
        "none.avi": "holds no frame",
        "one.mp4": r"has 1 frame\(s\), 2 are asked for",
    }


def write_kth(folder):
    """Files of exactly the form of KTH: names, size, codec and list."""
    names = [f"{name}_uncomp.avi" for name in ("person01_walking_d1", "person17_boxing_d4")]
    for k, name in enumerate(names):
        write_film(folder / name, pictures(40, 120, 160, seed=k), "mpeg4")
    (folder / "00sequences.txt").write_text(LIST)
    return [folder / name for name in names]


def write_river(file, lengths, seed=0):
    """The layout of RIVER's own writer, with its empty group `videos`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(file, "w") as store:
        store.create_group("len")
        store.create_group("videos")
        for v, num in enumerate(lengths):
            store["len"].create_dataset(str(v), data=num)
            store.create_group(str(v))
            for t, frame in enumerate(pictures(num, 16, 16, seed=seed + v)):
                store[str(v)].create_dataset(str(t), data=frame, dtype="uint8", compression="lzf")
    return file
