"""Shapes of tensors are checked at run time, in tests only and in all of `neuralsde`; kinds of other arguments are the door's."""

import functools
import importlib.abc
import importlib.machinery
import inspect
import re
import sys

from beartype import beartype
from jaxtyping import jaxtyped

SHAPED = re.compile(r"\b(Float|Int|Bool|UInt8|Shaped)\[")


def checked(function):
    """`function` with its annotations of shapes checked; itself when it has none."""
    hints = getattr(function, "__annotations__", {})
    shaped = {
        name: hint for name, hint in hints.items() if SHAPED.search(hint if isinstance(hint, str) else repr(hint))
    }
    if not shaped:
        return function
    function.__annotations__ = shaped
    try:
        inner = beartype(function)
    finally:
        function.__annotations__ = hints

    @functools.wraps(function)
    def outer(*args, **kwargs):
        with jaxtyped("context"):  # names of axes hold within one call
            return inner(*args, **kwargs)

    return outer


def check_all(module):
    """Check every function and method that `module` defines."""
    for name, thing in list(vars(module).items()):
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(thing):
            setattr(module, name, checked(thing))
        elif inspect.isclass(thing):
            _check_class(thing)


def _check_class(cls):
    for name, thing in list(vars(cls).items()):
        if isinstance(thing, (staticmethod, classmethod)):
            setattr(cls, name, type(thing)(checked(thing.__func__)))
        elif isinstance(thing, property):
            setattr(cls, name, property(checked(thing.fget), thing.fset, thing.fdel, thing.__doc__))
        elif inspect.isfunction(thing):
            setattr(cls, name, checked(thing))


class _Loader(importlib.abc.Loader):
    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        check_all(module)

    def __getattr__(self, name):
        return getattr(self.loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] != "neuralsde":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install():
    """Check all of `neuralsde` from its import on."""
    if "neuralsde" in sys.modules:
        raise RuntimeError("`neuralsde` was imported before its shapes could be checked.")
    sys.meta_path.insert(0, _Finder())
