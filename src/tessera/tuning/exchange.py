"""Exporting winners to one file and importing them again, on another machine of the same kind."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tessera.errors import CacheFormatError, CacheIOError
from tessera.files import write_atomically
from tessera.tuning.config import Imported
from tessera.tuning.database import TuningDatabase
from tessera.tuning.entry import VERSION, Entry, dump, from_record

EXPORT_FORMAT = "tessera-autotune-export"


def export(entries: Iterable[Entry], path: Path) -> int:
    """Writes all entries to one JSON file; their number. Raises E_CACHE_IO, and then leaves what was there."""
    records = [entry.to_json() for entry in entries]
    try:
        write_atomically(path, dump({"format": EXPORT_FORMAT, "version": VERSION, "entries": records}))
    except OSError as error:
        raise CacheIOError(f"cannot write {path}: {error.strerror or error}") from error
    return len(records)


def merge(database: TuningDatabase, path: Path, archs: Sequence[str]) -> Imported:
    """Takes the entries of an exported file into `database` where they are better, and says what did not apply.

    Raises E_CACHE_IO if the file cannot be read, E_CACHE_FORMAT if it is none or of another version.
    """
    fitting: list[Entry] = []
    refused: dict[str, list[str]] = {}
    for number, record in enumerate(_records(path)):
        try:
            entry = from_record(record, f"entry {number}")
        except CacheFormatError as error:
            refused.setdefault("unreadable", []).append(error.message)
            continue
        if entry.identity.arch in archs:
            fitting.append(entry)
        else:
            refused.setdefault(f"for {entry.identity.arch}, this is {', '.join(archs)}", []).append(str(entry.identity))
    applied, declined = database.merge(fitting)
    return Imported(len(applied), len(declined), {reason: tuple(names) for reason, names in refused.items()})


def _records(path: Path) -> list[object]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise CacheIOError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CacheFormatError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict) or content.get("format") != EXPORT_FORMAT:
        raise CacheFormatError(
            f"{path} is no exported tuning cache", hints=["write one with autotune.save_cache(path)"]
        )
    if content.get("version") != VERSION:
        raise CacheFormatError(f"{path} has format version {content.get('version')}, this Tessera reads {VERSION}")
    records = content.get("entries")
    if not isinstance(records, list):
        raise CacheFormatError(f"{path} is damaged: it has no list of entries")
    return records
