"""Files of demonstrations, whole and broken."""

import zipfile

import numpy as np
import pytest
import zarr
from commands import call

LENGTHS = [5, 3, 4]


ENDS = np.cumsum(LENGTHS)


NUM = int(ENDS[-1])


def arrays():
    """Row k holds k in every array, so that a row is known by its numbers."""
    k = np.arange(NUM, dtype=np.float32)
    return {
        "action": np.stack([k, 100 + k], 1),
        "state": np.stack([k + 0.1 * i for i in range(5)], 1),
        "keypoint": np.broadcast_to(k[:, None, None], (NUM, 9, 2)).copy(),
    }


def pusht(num_episodes=206, num_rows=25_650):
    """Arrays of the shapes of Push-T."""
    rng = np.random.default_rng(0)
    ends = np.linspace(0, num_rows, num_episodes + 1).astype(int)[1:]
    values = {name: rng.uniform(1, 511, (num_rows, n)).astype(np.float32) for name, n in (("action", 2), ("state", 5))}
    return values | {"keypoint": rng.uniform(1, 511, (num_rows, 9, 2)).astype(np.float32)}, ends


def write_zarr(folder, values=None, ends=ENDS, chunk=5, zarr_format=2):
    group = zarr.open_group(str(folder), mode="w", zarr_format=zarr_format)
    for name, value in (arrays() if values is None else values).items():
        array = group.create_array(
            f"data/{name}",
            shape=value.shape,
            dtype=value.dtype,
            chunks=(chunk, *value.shape[1:]),
            config={"write_empty_chunks": True},
        )
        array[:] = value
    array = group.create_array("meta/episode_ends", shape=(len(ends),), dtype="i8", config={"write_empty_chunks": True})
    if len(ends):
        array[:] = ends
    return folder


def zip_of(folder, file, prefix=""):
    with zipfile.ZipFile(file, "w") as archive:
        for p in sorted(folder.rglob("*")):
            archive.write(p, prefix + p.relative_to(folder).as_posix())
    return file


def refused(capsys, message, *arguments):
    """The command stops with this message, and writes nothing."""
    with pytest.raises(SystemExit) as stop:
        call("data", "pusht", *arguments)
    *_, last = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code == 2 and last.startswith("nsde: ") and message in last, last
