"""Memos: what has been made of a kernel, each kind in a table of its own, under keys and of values of one type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
A = TypeVar("A")
T = TypeVar("T")


class Table(Generic[K, V]):
    """A kind of thing that is made of kernels, by keys. To be made once, as a constant."""

    def __init__(self, name: str) -> None:
        self.name = name


class Memo:
    """The tables of one kernel."""

    __slots__ = ("_made", "_tables")

    def __init__(self) -> None:
        self._tables: dict[Table[Any, Any], dict[Any, Any]] = {}
        self._made: dict[object, Any] = {}

    def of(self, table: Table[K, V]) -> dict[K, V]:
        """The table of a kind."""
        found = self._tables.get(table)
        if found is None:
            found = self._tables[table] = {}
        return found

    def once(self, make: Callable[[A], T], argument: A) -> T:
        """What a function makes of the kernel, made once; `argument` is the same at every call."""
        if make not in self._made:
            self._made[make] = make(argument)
        made: T = self._made[make]
        return made
