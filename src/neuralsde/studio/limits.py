"""How much one visitor, and all of them together, may ask of the studio."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of the studio: what goes beyond is refused in a sentence, and nothing else happens."""

    sockets: int = 32
    """Open pages, of all visitors together."""
    sockets_of_visitor: int = 4
    """Open pages of one visitor."""
    visitors: int = 24
    """Visitors whose models are kept; the one that was away longest makes room."""
    away_seconds: float = 3600.0
    """Time after which a visitor without an open page is forgotten."""
    live_seconds: float = 15.0
    """Time after which a live job, such as a simulation, ends if no page is left to watch it."""
    jobs: int = 3
    """Worker processes at work, of all visitors together; further jobs wait."""
    waiting: int = 12
    """Jobs that wait."""
    job_seconds: float = 300.0
    """Longest job."""
    live_job_seconds: float = 1800.0
    """Longest live job."""
    message_bytes: int = 2**20
    """Largest message of a page."""
    upload_bytes: int = 32 * 2**20
    """Largest file that is given to the studio."""
    uploads: int = 6
    """Files that are given at one time, by all visitors together."""
    requests: int = 24
    """Requests of one page that are under way."""
    calls: int = 4
    """Requests of all visitors that are computed at one time."""
    backlog: int = 64
    """Frames that wait to be sent to a page; older ones are dropped for newer ones."""
