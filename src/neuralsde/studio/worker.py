"""A worker process of the studio: it waits for one job, does it, and ends. To cancel a job is to kill its process.

Parent and worker speak through the worker's standard input and output, one record after the other. The worker imports
torch and takes a training step before its job comes, so that a job starts at once.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from neuralsde.core.records import RunError
from neuralsde.studio.desk import Desk, read, write

Work = Callable[..., "dict[str, Any] | None"]
"""`work(desk, **given)`: what a worker does for a tab."""


def main() -> None:
    """Wait for a job, do it, say what came of it."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not mix with records
    sys.stdout = sys.stderr
    source = sys.stdin.buffer
    import torch

    from neuralsde.studio.learning import warm_up

    torch.set_num_threads(1)
    warm_up()
    write(output, ("ready", None))
    asked = read(source)
    if asked is None:
        return
    place, folder, given = asked
    desk = Desk(Path(folder), output)
    threading.Thread(target=desk.listen, args=(source,), daemon=True).start()
    module, name = place.split(":")
    try:
        work: Work = getattr(import_module(module), name)
        desk.send(("done", work(desk, **given) or {}))
    except (ValueError, RunError) as error:
        desk.send(("failed", str(error)))
    except MemoryError:
        desk.send(("failed", "There is not enough memory for this. Give less data."))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads that listen are not waited for
