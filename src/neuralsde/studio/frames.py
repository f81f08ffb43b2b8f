"""What travels over the socket: JSON, and binary frames where a message holds arrays.

A binary frame is the length of its header (four bytes, little endian), the header (JSON, padded with blanks to a multiple of
eight), and the arrays end to end, each padded likewise. The header is the message; its key `arrays` lists name, kind ("float32"
or "uint8") and shape of each array in order. The page puts each back under its name as `{data, shape}`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from neuralsde.core.records import check

ALIGNMENT = 8
DEEPEST = 8  # lists within lists in a message of a page


def encode(message: Mapping[str, Any]) -> str | bytes:
    """A message as it is sent: text, or bytes where a value is an array."""
    arrays = {name: value for name, value in message.items() if isinstance(value, np.ndarray)}
    plain = {name: _finite(value) for name, value in message.items() if name not in arrays}
    if not arrays:
        return json.dumps(plain, separators=(",", ":"))
    listed, parts = [], []
    for name, value in arrays.items():
        kind = "uint8" if value.dtype == np.uint8 else "float32"
        data = np.ascontiguousarray(value, dtype=np.uint8 if kind == "uint8" else "<f4")
        listed.append([name, kind, list(value.shape)])
        parts.append(_padded(data.tobytes(), b"\0"))
    text = json.dumps({**plain, "arrays": listed}, separators=(",", ":")).encode()
    header = text + b" " * (-(len(text) + 4) % ALIGNMENT)
    return b"".join([struct.pack("<I", len(header)), header, *parts])


def _padded(data: bytes, fill: bytes) -> bytes:
    return data + fill * (-len(data) % ALIGNMENT)


def _finite(value: Any) -> Any:
    """JSON has no NaN: null in its place."""
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value


def decode(text: str) -> dict[str, Any]:
    """A message of a page; what is no object of JSON, is nested too deep or holds NaN is refused."""
    try:
        message = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ValueError("A message must be an object in JSON.") from None
    check(isinstance(message, dict), "A message must be an object in JSON.")
    check(_depth(message) <= DEEPEST, f"A message may be nested {DEEPEST} deep.")
    return message


def _refuse(name: str) -> None:
    raise ValueError(name)


def _depth(value: Any, limit: int = DEEPEST + 1) -> int:
    if limit == 0 or not isinstance(value, (dict, list)):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max((_depth(each, limit - 1) for each in inner), default=0)
