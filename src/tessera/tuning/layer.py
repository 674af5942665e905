"""One layer of the tuning database: a folder of entry files, read by family and remembered until the folder changes.

| file below the folder | content |
| --- | --- |
| `v1/FAMILY/SHAPE.json` | the measured winner of one identity |
| `v1/FAMILY/SHAPE.model.json` | the model's choice, in a file of its own so that it never replaces a measurement |
| `v1/FAMILY/SHAPE.HOST.jsonl` | every trial made on HOST, one a line |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tessera.errors import CacheFormatError, CacheIOError
from tessera.tuning.entry import VERSION, Entry, Origin, parse
from tessera.tuning.identity import Identity, log_distance, log_shape

Report = Callable[[CacheIOError | CacheFormatError], None]
_Stamp = tuple[int, int, int]
_Files = dict[str, tuple[_Stamp, Entry | None]]


@dataclass
class Family:
    """The entries of one folder, which differ in shape only, and what tells whether it or a file in it has changed."""

    stamp: int
    files: _Files
    measured: dict[Identity, Entry] = field(default_factory=dict)
    model: dict[Identity, Entry] = field(default_factory=dict)
    shapes: list[tuple[tuple[float, ...], Entry]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _, entry in self.files.values():
            if entry is not None:
                (self.measured if entry.origin == "measured" else self.model)[entry.identity] = entry
        self.shapes = [(log_shape(entry.identity.shape), entry) for entry in self.measured.values()]

    def get(self, identity: Identity) -> dict[Origin, Entry]:
        """The entries of exactly this identity."""
        origins: tuple[tuple[Origin, dict[Identity, Entry]], ...] = (
            ("measured", self.measured),
            ("model", self.model),
        )
        return {origin: entries[identity] for origin, entries in origins if identity in entries}

    def nearest(self, identity: Identity) -> tuple[float, Entry] | None:
        """The measured entry that differs in shape only, by the least log distance, and that distance."""
        if not self.shapes:
            return None
        here = log_shape(identity.shape)
        distance, _, entry = min(
            (log_distance(here, there), entry.identity.shape, entry) for there, entry in self.shapes
        )
        return None if distance == float("inf") else (distance, entry)


class Layer:
    """The entries below one folder. Reading never changes a file; what cannot be read is told to `report` and
    skipped. Where it is `settled`, its files do not change while the process runs, and are looked at once.
    """

    def __init__(self, name: str, root: Path, report: Report, settled: bool = False) -> None:
        self.name = name
        self._settled = settled
        self.root = root
        self._folder = root / f"v{VERSION}"
        self._prefix = f"{self._folder}{os.sep}"
        self._report = report
        self._families: dict[str, Family | None] = {}

    def path(self, identity: Identity, origin: Origin) -> Path:
        """The file of an entry."""
        suffix = ".json" if origin == "measured" else ".model.json"
        return self._folder / identity.family() / f"{identity.shape_name()}{suffix}"

    def log_path(self, identity: Identity, host: str) -> Path:
        """The file that collects the trials made for `identity` on `host`."""
        return self._folder / identity.family() / f"{identity.shape_name()}.{host}.jsonl"

    def entries(self) -> Iterator[Entry]:
        """All readable entries, in the order of their file names."""
        for name in self._names(self._folder):
            family = self.family(name)
            if family is not None:
                yield from (entry for _, entry in family.files.values() if entry is not None)

    def forget(self, identity: Identity) -> None:
        """Makes the next look-up read the folder of `identity` again, which this process has just written."""
        self._families.pop(identity.family(), None)

    def family(self, name: str) -> Family | None:
        """The entries of one `Identity.family()`; None where there are none. Looks whether the folder has changed."""
        known = self._families.get(name)
        if self._settled and name in self._families:
            return known
        try:
            # On the path of binding, so without making a Path.
            stamp = os.stat(self._prefix + name).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            if self._settled:
                self._families[name] = None
            return None
        except OSError as error:
            self._report(CacheIOError(f"cannot read {self._folder / name}: {error}"))
            return None
        if known is None or known.stamp != stamp:
            known = Family(stamp, self._read(self._folder / name, known.files if known is not None else {}))
            self._families[name] = known
        return known

    def _read(self, folder: Path, known: _Files) -> _Files:
        files: _Files = {}
        for name in self._names(folder):
            if not name.endswith(".json") or name.startswith("."):
                continue
            path = folder / name
            try:
                status = path.stat()
                stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                same = name in known and known[name][0] == stamp
                files[name] = known[name] if same else (stamp, parse(path.read_bytes(), str(path)))
            except FileNotFoundError:
                continue  # replaced or removed between listing and reading
            except OSError as error:
                self._report(CacheIOError(f"cannot read {path}: {error}"))
            except CacheFormatError as error:
                self._report(error)
                files[name] = (stamp, None)
        return files

    def _names(self, folder: Path) -> list[str]:
        try:
            return sorted(path.name for path in folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._report(CacheIOError(f"cannot list {folder}: {error}"))
            return []
