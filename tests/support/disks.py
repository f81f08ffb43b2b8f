"""A disk that is full, for this process."""

import resource
from contextlib import contextmanager


@contextmanager
def full_disk():
    """Within it, `fill(size)` lets no file of this process grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
