"""Files of a cache folder that may go: what `tessera cache prune` removes, without the printing.

Winners, stale ones too, and logs of trials go only where they are asked for by name.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tessera.errors import CacheFormatError
from tessera.system.files import read_regular
from tessera.tuning.store import packs
from tessera.tuning.store.entry import Entry, OtherVersionError, parse
from tessera.tuning.store.layer import Layer
from tessera.tuning.store.shape_family import SUFFIXES, Stamp, stamp_of
from tessera.tuning.store.untrusted import ENTRY_BYTES

ABANDONED_S = 3600.0
"""Age after which a temporary file is one that a killed process left: writing takes milliseconds."""


@dataclass(frozen=True)
class Waste:
    """A file that may be removed, why, its size in bytes, and what tells whether it is still the same file."""

    path: Path
    reason: str
    size: int
    stamp: Stamp


def waste(layer: Layer) -> Iterator[Waste]:
    """The files of a layer that nothing needs: what killed processes left, what was kept aside when it was replaced,
    guesses beside a measured winner, and damaged entries. Files of other formats are none.
    """
    for name in layer.names():
        folder = layer.folder / name
        if not folder.is_dir() or folder.is_symlink():
            continue
        files = {path.name: path for path in sorted(folder.iterdir())}
        for path in files.values():
            if reason := _useless(path, files):
                yield from _waste(path, reason)


def winners(layer: Layer, wanted: Callable[[Entry], bool], reason: str) -> Iterator[Waste]:
    """The files of those entries of a layer that `wanted` picks; those in packs have no file of their own."""
    for entry in layer.entries():
        if wanted(entry):
            yield from _waste(layer.path(entry.identity, entry.origin), reason)


def logs(layer: Layer) -> Iterator[Waste]:
    """The logs of all trials of a layer."""
    for path in layer.logs():
        yield from _waste(path, "log of trials")


def older_than(days: float) -> Callable[[Entry], bool]:
    """Whether an entry was found more than so many days ago; one from the future, or of no date, was not."""

    def old(entry: Entry) -> bool:
        try:
            found = datetime.fromisoformat(entry.provenance.date)
        except ValueError:
            return False
        found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return (datetime.now(UTC) - found).total_seconds() > days * 86400

    return old


def remove(found: Iterable[Waste]) -> Iterator[tuple[Waste, OSError | None]]:
    """Removes files, and tells of each why that failed, or None. One that another process has replaced since stays."""
    for item in found:
        try:
            if stamp_of(os.lstat(item.path)) == item.stamp:
                item.path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            yield item, error
            continue
        yield item, None


def _useless(path: Path, beside: Mapping[str, Path]) -> str:
    """Why nothing needs a file; empty where something may."""
    name = path.name
    if name.startswith("."):
        return "left by a process that was killed" if name.endswith(".tmp") and _is_abandoned(path) else ""
    if ".json.kept-" in name:
        return "kept aside when it was replaced"
    if not name.endswith(".json") or name == packs.NAME:
        return ""
    if _is_damaged(path):
        return "damaged"
    measured = name.removesuffix(SUFFIXES["model"]) + SUFFIXES["measured"]
    if name.endswith(SUFFIXES["model"]) and measured in beside and not _is_damaged(beside[measured]):
        return "the model's choice, beside a measured winner"
    return ""


def _is_abandoned(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return time.time() - path.lstat().st_mtime > ABANDONED_S
    return False


def _is_damaged(path: Path) -> bool:
    try:
        parse(read_regular(path, ENTRY_BYTES), str(path))
    except (OSError, OtherVersionError):
        return False
    except CacheFormatError:
        return True
    return False


def _waste(path: Path, reason: str) -> Iterator[Waste]:
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        yield Waste(path, reason, status.st_size, stamp_of(status))
