"""Exporting winners to one file and importing them again, on another machine of the same kind.

An exported file is a JSON object with one entry a line, in an order that depends on nothing but the entries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tessera.errors import CacheFormatError, CacheIOError
from tessera.system.files import write_atomically
from tessera.tuning.config import Imported
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.entry import VERSION, Entry, OtherVersionError, check_version, from_record
from tessera.tuning.store.layer import Layer
from tessera.tuning.store.processors import names_of
from tessera.tuning.store.untrusted import EXPORT_BYTES, decode, read_named

EXPORT_FORMAT = "tessera-autotune-export"


@dataclass(frozen=True)
class Collection:
    """What an exported file or a cache folder holds: its entries, and what of it cannot be read, by reason."""

    entries: tuple[Entry, ...]
    refused: Mapping[str, tuple[str, ...]]


def place_of(entry: Entry) -> tuple[str, tuple[int, ...], str]:
    """Where an entry stands among others."""
    return entry.identity.family(), entry.identity.shape, entry.origin


def export(entries: Iterable[Entry], path: Path) -> int:
    """Writes entries to one JSON file; their number. Raises E_CACHE_IO, and then leaves what was there."""
    lines = [json.dumps(entry.to_json(), allow_nan=False) for entry in sorted(entries, key=place_of)]
    head = json.dumps({"format": EXPORT_FORMAT, "version": VERSION})[:-1]
    text = f'{head}, "entries": [\n' + ",\n".join(lines) + "\n]}\n"
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise CacheIOError(f"cannot write {path}: {error.strerror or error}") from error
    return len(lines)


def collect(path: Path) -> Collection:
    """The entries of an exported file, or of a folder in the layout of a cache.

    Raises E_CACHE_IO if it cannot be read, E_CACHE_FORMAT if it is neither or of another version.
    """
    return _folder(path) if path.is_dir() else _file(path)


def merge(
    database: TuningDatabase,
    path: Path,
    archs: Sequence[str],
    objection: Callable[[Entry], str | None] = lambda entry: None,
) -> Imported:
    """Takes the entries of an exported file or a folder into `database` where they are better, and says what did not
    apply: of other processors than `archs`, or with what `objection` says against them. What stands there under another
    name of one of `archs` is taken under that.

    Raises as `collect`.
    """
    found = collect(path)
    refused = {reason: list(names) for reason, names in found.refused.items()}
    here = {name: arch for arch in reversed(archs) for name in names_of(arch)}
    fitting: list[Entry] = []
    for there in found.entries:
        arch = here.get(there.identity.arch)
        entry = there if arch is None else there.known_as(arch)
        reason = f"for {there.identity.arch}, this is {', '.join(archs)}" if arch is None else objection(entry)
        if reason is None:
            fitting.append(entry)
        else:
            refused.setdefault(reason, []).append(str(there.identity))
    applied, declined = database.merge(fitting)
    return Imported(len(applied), len(declined), {reason: tuple(names) for reason, names in refused.items()})


def best_of(entries: Iterable[Entry]) -> list[Entry]:
    """Of entries of one identity the best measured one, of those with none measured the first; in the order of
    exported files.
    """
    best: dict[object, Entry] = {}
    for entry in entries:
        known = best.get(entry.identity)
        if known is None or entry.beats(known):
            best[entry.identity] = entry
    return sorted(best.values(), key=place_of)


def _folder(path: Path) -> Collection:
    if not (path / f"v{VERSION}").is_dir():
        raise CacheFormatError(
            f"{path} is no folder of a tuning cache: it has no v{VERSION}",
            hints=[f"it has {name.name}, of another version" for name in sorted(path.glob("v[0-9]*"))],
        )
    problems: list[CacheIOError | CacheFormatError] = []
    entries = tuple(Layer("folder", path, problems.append, settled=True).entries())
    refused: dict[str, list[str]] = {}
    for problem in problems:
        refused.setdefault("unreadable", []).append(problem.message)
    return Collection(entries, {reason: tuple(names) for reason, names in refused.items()})


def _file(path: Path) -> Collection:
    entries: list[Entry] = []
    refused: dict[str, list[str]] = {}
    for number, record in enumerate(_records(path)):
        try:
            entries.append(from_record(record, f"entry {number}"))
        except OtherVersionError as error:
            refused.setdefault(f"of another format than version {VERSION}", []).append(error.message)
        except CacheFormatError as error:
            refused.setdefault("unreadable", []).append(error.message)
    return Collection(tuple(entries), {reason: tuple(names) for reason, names in refused.items()})


def _records(path: Path) -> list[object]:
    content = decode(read_named(path, EXPORT_BYTES), str(path))
    if not isinstance(content, dict) or content.get("format") != EXPORT_FORMAT:
        raise CacheFormatError(
            f"{path} is no exported tuning cache", hints=["write one with autotune.save_cache(path)"]
        )
    check_version(content, str(path))
    records = content.get("entries")
    if not isinstance(records, list):
        raise CacheFormatError(f"{path} is damaged: it has no list of entries")
    return records
