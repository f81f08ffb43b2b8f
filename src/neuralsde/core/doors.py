"""The door of a public function: its annotations say what it takes, and each argument is checked once, before any work.

`@door` reads the annotations of a function, `check_fields` those of a dataclass. A number may come as one of numpy or torch and
is a plain one inside. What is annotated `Any` is checked by its reader: arrays by `data.arrays`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import operator
import os
import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

F = TypeVar("F", bound=Callable[..., Any])
UNFIT: Any = object()
"""What a kind gives for values that are not of it."""


class Range(NamedTuple):
    """Numbers that are taken; with the kind of number it stands in `Annotated`."""

    words: str
    holds: Callable[[Any], bool]


FINITE = Range("finite", lambda v: True)  # what every number must be
Count = Annotated[int, Range("at least 1", lambda v: v >= 1)]
Width = Annotated[int, Range("at most 8,192", lambda v: v <= 8_192)]
Depth = Annotated[int, Range("at most 1,000", lambda v: v <= 1_000)]
"""Sizes of nets: what is larger is a slip, and would take all memory."""
Positive = Annotated[float, Range("positive and finite", lambda v: v > 0)]
Share = Annotated[float, Range("within [0, 1)", lambda v: 0 <= v < 1)]
Seed = Annotated[int, Range("from -2^63 to 2^63 - 1", lambda v: -(2**63) <= v < 2**63)]
Files = Union[str, "os.PathLike[str]"]
"""The place of a file or folder."""


class Kind(NamedTuple):
    """One of the things that an argument may be."""

    words: str
    read: Callable[[str, Any], Any]
    """By name and value: the value as it is taken, or UNFIT. Out of range, it raises."""
    remedy: str = ""


def door(function: F) -> F:
    """`function`, whose arguments are checked by its annotations; those that it does not annotate go through."""
    known: list[dict[str, Kind]] = []  # made at the first call: annotations may name what is defined later
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        if not known:
            known.append(_kinds(function))
        kinds = known[0]
        given = [_read(kinds[n], n, v) if n in kinds else v for n, v in zip(names, args)]
        for name, value in named.items():
            if name in kinds:
                named[name] = _read(kinds[name], name, value)
        return function(*given, *args[len(given) :], **named)

    return checked  # type: ignore[return-value]


def check_fields(record: Any) -> None:
    """Check the fields of a dataclass by their annotations, and make plain numbers of those that are not."""
    for name, kind in _kinds(type(record)).items():  # type: ignore[arg-type]
        before = getattr(record, name)
        value = _read(kind, name, before)
        if value is not before:
            object.__setattr__(record, name, value)  # the dataclass may be frozen


@functools.cache
def _kinds(thing: Any) -> dict[str, Kind]:
    """The kind of each argument, or field, that has one."""
    hints = typing.get_type_hints(thing, include_extras=True)
    if dataclasses.is_dataclass(thing):
        hints = {f.name: hints[f.name] for f in dataclasses.fields(thing)}
    else:
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        plain = [p.name for p in inspect.signature(thing).parameters.values() if p.kind not in variadic]
        hints = {name: hints[name] for name in plain if name in hints}
    kinds = {name: _kind(hint) for name, hint in hints.items()}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _read(kind: Kind, name: str, value: Any) -> Any:
    taken = kind.read(name, value)
    if taken is UNFIT:
        raise ValueError(f"`{name}` must be {kind.words}. Got {show(value)}.{kind.remedy and ' ' + kind.remedy}")
    return taken


def show(value: Any) -> str:
    """A value in a message: short and in one line."""
    plain = value is None or type(value) in (str, int, float, bool, bytes, list, tuple, dict, complex)
    text = repr(value) if plain else ""
    return text if plain and len(text) <= 80 and "\n" not in text else f"a {type(value).__name__}"


# From a hint to a kind


def _kind(hint: Any) -> Kind | None:
    """None: anything goes."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(args[0], args[1:])
    if origin in (Union, types.UnionType):
        places = any(get_origin(each) is os.PathLike for each in args)  # text is a place then
        return _one_of([_kind(each) for each in args if not (places and each is str)])
    if origin is Literal:
        return Kind(f"one of {list(args)}", lambda name, v: v if isinstance(v, str) and v in args else UNFIT)
    if origin is tuple and len(args) == 2 and args[1] is ...:
        return _several(args[0], tuple, "a tuple")
    if origin in (list, collections.abc.Sequence, collections.abc.Iterable):
        return _several(args[0], None, "a list")
    if getattr(hint, "array_type", None) is not None:  # of jaxtyping; shapes are the function's to check
        return _tensor(hint)
    kind = origin or hint
    if kind in PLAIN:
        return PLAIN[kind]
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return None
    words = getattr(kind, "__name__", str(kind))
    return Kind(f"{'an' if words[0] in 'AEIOU' else 'a'} {words}", lambda name, v: v if isinstance(v, kind) else UNFIT)


def _annotated(hint: Any, marks: tuple[Any, ...]) -> Kind | None:
    """A kind with a range, with a sentence that says what to do, or a reader of its own, which refuses."""
    kind = NUMBER if hint is float else _kind(hint)
    for mark in marks:
        if kind is not None and isinstance(mark, str):
            kind = kind._replace(remedy=mark)
        elif kind is not None and isinstance(mark, Range):
            kind = _within(kind, mark)
        elif callable(mark):
            kind = Kind("", mark)
    return kind


def _within(kind: Kind, span: Range) -> Kind:
    def read(name: str, value: Any) -> Any:
        taken = kind.read(name, value)
        if taken is not UNFIT and not (_finite(taken) and span.holds(taken)):
            raise ValueError(f"`{name}` must be {span.words}. Got {name}={show(taken)}.")
        return taken

    return Kind(f"{kind.words}, {span.words}" if span.words != FINITE.words else kind.words, read, kind.remedy)


def _finite(value: Any) -> bool:
    return not isinstance(value, (int, float)) or abs(value) <= sys.float_info.max  # NaN is not


def _one_of(kinds: list[Kind | None]) -> Kind | None:
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None

    def read(name: str, value: Any) -> Any:
        for kind in known:
            taken = kind.read(name, value)
            if taken is not UNFIT:
                return taken
        return UNFIT

    words = " or ".join(dict.fromkeys(kind.words for kind in known))
    return Kind(words, read, next((kind.remedy for kind in known if kind.remedy), ""))


def _several(hint: Any, make: Callable[[Any], Any] | None, words: str) -> Kind:
    each = _kind(hint)

    def read(name: str, value: Any) -> Any:
        value = value.tolist() if getattr(value, "ndim", 0) == 1 else value  # a row of numpy, torch or pandas
        if isinstance(value, (str, bytes)) or not isinstance(value, collections.abc.Sequence):
            return UNFIT
        taken = value if each is None else [each.read(name, v) for v in value]
        if any(v is UNFIT for v in taken):
            return UNFIT
        return tuple(taken) if make is tuple else value if all(a is b for a, b in zip(taken, value)) else taken

    return Kind(words if each is None else f"{words}, each {each.words}", read)


def _tensor(hint: Any) -> Kind:
    known = {str(dtype) for dtype in hint.dtypes} if isinstance(hint.dtypes, (list, tuple)) else None

    def read(name: str, value: Any) -> Any:
        if (
            not isinstance(value, hint.array_type)
            or getattr(value, "is_sparse", False)
            or getattr(value, "is_meta", False)
        ):
            return UNFIT
        return value if known is None or str(value.dtype).removeprefix("torch.") in known else UNFIT

    return Kind(f"a {hint.array_type.__name__} of {hint.__name__.partition('[')[0]} values", read)


def _whole(name: str, value: Any) -> Any:
    if type(value) is int:
        return value
    try:
        return UNFIT if type(value).__name__ == "bool" else operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        return UNFIT


def _number(name: str, value: Any) -> Any:
    plain = type(value) is float or (type(value) is int and abs(value) < 2**53)
    if not plain and (isinstance(value, (str, bytes)) or type(value).__name__ == "bool"):
        return UNFIT
    try:
        return value if plain else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return UNFIT


def _place(name: str, value: Any) -> Any:
    try:
        text = os.fspath(value)
    except TypeError:
        return UNFIT
    return value if isinstance(text, str) and text and "\0" not in text else UNFIT


def _truth(name: str, value: Any) -> Any:
    """True or False, also that of numpy; 1 and "yes" are something else."""
    return value if isinstance(value, bool) else bool(value) if type(value).__name__ == "bool" else UNFIT


NUMBER = Kind("a number", _number)
PLAIN: dict[Any, Kind] = {
    type(None): Kind("None", lambda name, v: None if v is None else UNFIT),
    bool: Kind("True or False", _truth),
    int: Kind("a whole number", _whole),
    float: _within(NUMBER, FINITE),
    str: Kind("text", lambda name, v: v if isinstance(v, str) else UNFIT),
    os.PathLike: Kind("a path", _place),
}
