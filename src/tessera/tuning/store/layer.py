"""One layer of the tuning database: a folder of entry files, read by family and remembered until the folder changes.

| file below the folder | content |
| --- | --- |
| `v1/FAMILY/SHAPE.json` | the measured winner of one identity |
| `v1/FAMILY/SHAPE.model.json` | the model's choice, in a file of its own so that it never replaces a measurement |
| `v1/FAMILY/pack.json` | winners of many shapes in one file (`packs.py`); the files above go before it |
| `v1/FAMILY/SHAPE.HOST.jsonl` | every trial made on HOST, one a line |
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from tessera.errors import CacheFormatError, CacheIOError
from tessera.tuning.store.entry import VERSION, Entry, Origin, OtherVersionError
from tessera.tuning.store.identity import Identity
from tessera.tuning.store.shape_family import Report, ShapeFamily, file_name, stamp_of

LOG_SUFFIX = ".jsonl"

_VERSION = re.compile(r"v[0-9]+")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
"""What this package calls files and folders; there may be others beside them, with any characters in their names."""

RECHECK_S = 2.0
"""Coarsest time stamp of a file system (FAT's): a folder may change again within that time and look the same."""


class Layer:
    """The entries below one folder. Reading never changes a file; what cannot be read is told to `report` and
    skipped. Where it is `settled`, its files do not change while the process runs, and are looked at once.
    """

    def __init__(self, name: str, root: Path, report: Report, settled: bool = False) -> None:
        self.name = name
        self._settled = settled
        self.root = root
        self.folder = root / f"v{VERSION}"
        self._prefix = f"{self.folder}{os.sep}"
        self._report = report
        self._families: dict[str, ShapeFamily | None] = {}
        # By monotonic time, so that no clock of a file server or of a user counts.
        self._recheck_s: dict[str, float] = {}

    def path(self, identity: Identity, origin: Origin) -> Path:
        """The file of an entry."""
        return self.folder / identity.family() / file_name(identity, origin)

    def log_path(self, identity: Identity, host: str) -> Path:
        """The file that collects the trials made for `identity` on `host`."""
        return self.folder / identity.family() / f"{identity.shape_name()}.{host}{LOG_SUFFIX}"

    def logs(self, identity: Identity | None = None) -> Iterator[Path]:
        """The logs of trials of one identity, or of all, in order."""
        prefix = "" if identity is None else f"{identity.shape_name()}."
        for family in self.names() if identity is None else [identity.family()]:
            folder = self.folder / family
            for name in self._list(folder):
                if name.endswith(LOG_SUFFIX) and name.startswith(prefix):
                    yield folder / name

    def entries(self) -> Iterator[Entry]:
        """All readable entries, in the order of their file names."""
        for family in self.families():
            yield from family.entries()

    def families(self) -> Iterator[ShapeFamily]:
        """All families that there are, in the order of their names."""
        for name in self.names():
            family = self.family(name)
            if family is not None:
                yield family

    def names(self) -> list[str]:
        """The names of all families, in order."""
        return self._list(self.folder)

    def count(self) -> int:
        """Number of entries by the names of their files; none is read for it."""
        return sum(family.count() for family in self.families())

    def has_entries(self) -> bool:
        """Whether there is any entry; looks no further than to the first. Says where there are only ones of another
        format version.
        """
        found = any(family.has_entries() for family in self.families())
        names = [] if found else self._list(self.root)
        others = [name for name in names if _VERSION.fullmatch(name) and name != self.folder.name]
        if others:
            self._report(
                OtherVersionError(f"{self.root} has winners in {', '.join(others)}, this Tessera reads v{VERSION} only")
            )
        return found

    def forget(self, identity: Identity) -> None:
        """Makes the next look-up read the folder of `identity` again, which this process has just written."""
        self._families.pop(identity.family(), None)

    def family(self, name: str) -> ShapeFamily | None:
        """The entries of one `Identity.family()`; None where there are none. Looks whether the folder has changed."""
        known = self._families.get(name)
        if self._settled and name in self._families:
            return known
        try:
            # On the path of binding, so without making a Path.
            status = os.lstat(self._prefix + name)
        except (FileNotFoundError, NotADirectoryError):
            if self._settled:
                self._families[name] = None
            return None
        except OSError as error:
            self._report(CacheIOError(f"cannot read {self.folder / name}: {error.strerror or error}"))
            return None
        stamp = stamp_of(status)
        if known is not None and known.stamp == stamp and time.monotonic() < self._recheck_s[name]:
            return known
        return self._looked(name, status, known)

    def _looked(self, name: str, status: os.stat_result, known: ShapeFamily | None) -> ShapeFamily | None:
        """The family of a folder that is new, has changed, or may have changed within the same time stamp."""
        stamp = stamp_of(status)
        if not stat.S_ISDIR(status.st_mode):
            if stat.S_ISLNK(status.st_mode):
                self._report(CacheFormatError(f"{self.folder / name} is a link, which is not followed"))
            return None
        sure = known is not None and known.stamp == stamp
        self._recheck_s[name] = float("inf") if sure else time.monotonic() + RECHECK_S
        family = self._families[name] = ShapeFamily(self._prefix + name, stamp, self._report)
        return family

    def _list(self, folder: Path) -> list[str]:
        try:
            return sorted(filter(_NAME.fullmatch, os.listdir(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._report(CacheIOError(f"cannot list {folder}: {error.strerror or error}"))
            return []
