"""The winners in one folder of a layer, which differ in shape only: each is read when it is asked for.

The name of a file says the shape of its winner, so that a look-up opens the file that it needs, and the nearest shapes
are found without opening any.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias, TypeVar

import numpy
from numpy.typing import NDArray

from tessera.errors import CacheFormatError, CacheIOError
from tessera.system.caching import cached_property
from tessera.system.files import read_regular
from tessera.tuning.store import packs
from tessera.tuning.store.entry import Entry, Origin, parse
from tessera.tuning.store.identity import Identity, log_shape
from tessera.tuning.store.packs import Pack, read_pack
from tessera.tuning.store.untrusted import ENTRY_BYTES

Report: TypeAlias = Callable[[CacheIOError | CacheFormatError], None]
Stamp: TypeAlias = tuple[int, ...]
Shape: TypeAlias = tuple[int, ...]
T = TypeVar("T")

SUFFIXES: Mapping[Origin, str] = {"measured": ".json", "model": ".model.json"}
_SHAPE = re.compile(r"[0-9]+(?:x[0-9]+)*")
_ENTRY = re.compile(r"[0-9a-z][0-9a-z.-]*\.json")
_REMEMBERED = 4096
"""Identities whose entries (or lack of them) are kept in memory: a kernel of ever new shapes makes no end of them."""

_ROUNDING = 1e-9
"""Slack of distances that are compared in float64."""


def stamp_of(status: os.stat_result) -> Stamp:
    """What differs when a file or a folder is another one, or was written to."""
    return status.st_mtime_ns, status.st_size, status.st_ino


def file_name(identity: Identity, origin: Origin) -> str:
    """The name of an entry's file in the folder of its family."""
    return identity.shape_name() + SUFFIXES[origin]


class ShapeFamily:
    """The entries of one folder, as it was when it had `stamp`. What cannot be read is told to `report` and skipped.

    What was read stays in memory, and is read again by the object that takes this one's place when the folder changes:
    the stamp of a file that is replaced twice within a moment may be the one that it had before.
    """

    def __init__(self, folder: str, stamp: Stamp, report: Report) -> None:
        self.stamp = stamp
        self._folder = folder
        self._report = report
        self._found: dict[Identity, dict[Origin, Entry]] = {}
        self._shapes: dict[int, tuple[list[Shape], NDArray[numpy.float64]]] | None = None

    @cached_property
    def _pack(self) -> Pack | None:
        return self._tried(packs.NAME, lambda path: read_pack(path, os.path.basename(self._folder)))

    @property
    def _packed(self) -> Iterable[tuple[Shape, Origin]]:
        """The shapes and origins in the pack, where there is one."""
        return () if self._pack is None else self._pack.records

    def get(self, identity: Identity) -> Mapping[Origin, Entry]:
        """The entries of exactly this identity, which is one of this family."""
        found = self._found.get(identity)
        if found is None:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            found = self._found[identity] = self._look(identity)
        return found

    def nearest(self, identity: Identity, within: float, count: int = 1) -> list[tuple[float, Entry]]:
        """At most `count` measured entries that differ in shape only, by ascending log distance, which stands first."""
        shapes, logs = self._measured().get(len(identity.shape), ([], numpy.empty((0, 0))))
        if not shapes:
            return []
        distances = numpy.abs(logs - numpy.array(log_shape(identity.shape))).sum(axis=1)
        found: list[tuple[float, Entry]] = []
        for place in _ascending(distances):
            if len(found) == count or distances[place] > within + _ROUNDING:
                break
            entry = self.get(replace(identity, shape=shapes[place])).get("measured")
            if entry is not None:
                found.append((identity.distance(entry.identity), entry))
        return found

    def shapes(self) -> set[Shape]:
        """The shapes of all entries, by the names of their files as far as these are not cut."""
        named = {self._shape(name, suffix) for suffix in SUFFIXES.values() for name in self._names_of(suffix)}
        return {shape for shape in named if shape is not None}.union(shape for shape, _ in self._packed)

    def entries(self) -> Iterator[Entry]:
        """All readable entries, in the order of their file names, those of a pack behind them."""
        return self._walk(sorted(self._list()))

    def _walk(self, names: Iterable[str]) -> Iterator[Entry]:
        seen: set[tuple[Shape, Origin]] = set()
        for name in filter(_is_entry, names):
            entry = self._entry(name)
            if entry is not None:
                seen.add((entry.identity.shape, entry.origin))
                yield entry
        for shape, origin in self._packed:
            if (shape, origin) not in seen and (entry := self._unpacked(shape, origin)) is not None:
                yield entry

    def count(self) -> int:
        """Number of entries by the names of their files, of which none is read, and of those in a pack."""
        return len(self._names()) + len(list(self._packed))

    def has_entries(self) -> bool:
        """Whether there is a file that may hold an entry."""
        return any(_ENTRY.fullmatch(name) for name in self._list())

    def some(self) -> Entry | None:
        """Any entry: it tells all of the family but its shapes."""
        return next(self._walk(self._list()), None)

    def closest(self, some: Entry, shape: Shape) -> Entry:
        """The entry of the shape nearest to one; `some` of this family where there is none of as many extents."""
        there = replace(some.identity, shape=shape)
        exact = next(iter(self.get(there).values()), None)
        near = self.nearest(there, math.inf) if exact is None else []
        return exact or (near[0][1] if near else next(self.entries(), some))

    def _look(self, identity: Identity) -> dict[Origin, Entry]:
        found: dict[Origin, Entry] = {}
        for origin in SUFFIXES:
            entry = self._entry(file_name(identity, origin)) or self._unpacked(identity.shape, origin)
            # Two long names may be cut to the same one.
            if entry is not None and entry.identity == identity:
                found[origin] = entry
        return found

    def _unpacked(self, shape: Shape, origin: Origin) -> Entry | None:
        try:
            return None if self._pack is None else self._pack.get(shape, origin)
        except CacheFormatError as error:
            self._report(error)
            return None

    def _measured(self) -> dict[int, tuple[list[Shape], NDArray[numpy.float64]]]:
        """The shapes of the measured entries by rank, ascending, and their logarithms, one row a shape."""
        if self._shapes is None:
            suffix = SUFFIXES["measured"]
            shapes = {self._shape(name, suffix) for name in self._names_of(suffix)}
            shapes |= {shape for shape, origin in self._packed if origin == "measured"}
            ranks: dict[int, list[Shape]] = {}
            for shape in sorted(shape for shape in shapes if shape is not None):
                ranks.setdefault(len(shape), []).append(shape)
            self._shapes = {
                rank: (found, numpy.log2(numpy.maximum(numpy.array(found, dtype=numpy.float64), 1.0)))
                for rank, found in ranks.items()
            }
        return self._shapes

    def _names_of(self, suffix: str) -> list[str]:
        """The names of the files of one origin."""
        model = SUFFIXES["model"]
        return [name for name in self._names() if name.endswith(model) == (suffix == model)]

    def _shape(self, name: str, suffix: str) -> Shape | None:
        """The shape that the name of a file says; a long one is cut there, and stands in the file."""
        stem = name.removesuffix(suffix)
        if _SHAPE.fullmatch(stem):
            return tuple(map(int, stem.split("x")))
        entry = self._entry(name)
        return None if entry is None else entry.identity.shape

    def _names(self) -> list[str]:
        """The names of the entries' files."""
        return list(filter(_is_entry, self._list()))

    def _list(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._report(CacheIOError(f"cannot list {self._folder}: {error.strerror or error}"))
            return []

    def _entry(self, name: str) -> Entry | None:
        return self._tried(name, self._winner)

    def _tried(self, name: str, read: Callable[[str], T]) -> T | None:
        """What stands in a file of the folder; None where there is nothing that can be read."""
        path = f"{self._folder}{os.sep}{name}"
        try:
            return read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._report(CacheIOError(f"cannot read {path}: {error.strerror or error}"))
            return None
        except CacheFormatError as error:
            self._report(error)
            return None

    def _winner(self, path: str) -> Entry:
        entry = parse(read_regular(path, ENTRY_BYTES), path)
        family, name = os.path.basename(self._folder), os.path.basename(path)
        if (entry.identity.family(), file_name(entry.identity, entry.origin)) != (family, name):
            raise CacheFormatError(f"{path} holds the winner of {entry.identity}, which belongs elsewhere")
        return entry


def closest(identity: Identity, families: Iterable[ShapeFamily], others: Iterable[Entry]) -> Entry | None:
    """The entry that differs least from an identity: in as few fields as can be, the operator's name least of all, and
    then in its shape; of those in `families` and `others`. None where there is none.
    """

    def strangeness(entry: Entry) -> tuple[bool, int, float, str]:
        different = identity.differences(entry.identity)
        return "operator" in different, len(different), identity.distance(entry.identity), str(entry.identity)

    def beside_shape(entry: Entry) -> tuple[bool, int]:
        different = identity.differences(entry.identity).keys() - {"shape"}
        return "operator" in different, len(different)

    found = [(beside_shape(some), some, family) for family in families if (some := family.some()) is not None]
    least = min((differs for differs, _, _ in found), default=(False, 0))
    # One more field may differ where the shape does not.
    most = least[0], least[1] + 1
    near = [family.closest(some, identity.shape) for differs, some, family in found if differs <= most]
    return min([*near, *others], key=strangeness, default=None)


def _is_entry(name: str) -> bool:
    return name != packs.NAME and _ENTRY.fullmatch(name) is not None


def _ascending(distances: NDArray[numpy.float64]) -> Iterator[int]:
    """The places of an array in the order of its values: the first one at once, as it is nearly always the last."""
    first = int(distances.argmin())
    yield first
    yield from (int(place) for place in distances.argsort(kind="stable") if place != first)
