"""Values that an object computes once, without locks.

Python 3.11's `functools.cached_property` holds one lock for all objects of a class while it computes: in a fork of the
program, made while another thread does, that is held for ever. Python 3.12 has no such lock any more, as here: threads
that ask at once may both compute, and all get the value that was stored first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 - it is used as Python's is
    """A property that is computed at its first use and then kept in the object's `__dict__`. Assigning to it, or
    deleting it, changes what is kept.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        self._name = function.__name__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        kept: T = instance.__dict__.setdefault(self._name, self.function(instance))
        return kept
