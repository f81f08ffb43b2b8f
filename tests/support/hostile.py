"""Records with one value that does not belong there."""

import copy
import math

VALUES = [
    *(None, True, -1, 0, 1, 1.5, 10**6, 10**12, 10**30, 10**400, 1e308, math.nan, math.inf),
    *("x", "", "nan", "../../x", "a\0b", [], [1], {}, {"kind": "x"}, {"kind": []}, [[[]]], "long" * 10**4),
]


def places(record, path=()):
    """Where a value may stand, as keys to follow."""
    items = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def variants(record, *, every=1, first=0):
    """(where, value, changed record) for each place and value, or for every so many-th."""
    cases = [(path, value) for path in places(record) for value in VALUES]
    for path, value in cases[first::every]:
        changed = copy.deepcopy(record)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = copy.deepcopy(value)
        yield path, value, changed
