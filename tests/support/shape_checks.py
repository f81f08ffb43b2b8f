"""Shapes of tensors are checked at run time, in tests only and in all of `neuralsde`; kinds of other arguments are the door's."""

import re

from beartype import beartype

SHAPED = re.compile(r"\b(Float|Int|Bool|UInt8|Shaped)\[")


def checked(function):
    """`function` with its annotations of shapes checked."""
    hints = getattr(function, "__annotations__", {})
    shaped = {
        name: hint for name, hint in hints.items() if SHAPED.search(hint if isinstance(hint, str) else repr(hint))
    }
    if not shaped:
        return function
    function.__annotations__ = shaped
    try:
        return beartype(function)
    finally:
        function.__annotations__ = hints
