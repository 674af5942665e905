"""The databases of a process: that of the cache folders that the settings name, and caches that have a name of their
own.

A named cache is a folder like a user's: its winners are found before the user's once it was asked for, and what is put
into it stays out of the user's.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tessera import settings
from tessera.errors import ArgumentError
from tessera.system import forks
from tessera.tuning.store.database import SHIPPED, TuningDatabase, Unwritten

NAMED = "caches"
"""The folder, in that of the tuning cache, of the caches that have a name."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Databases:
    """Opens databases when they are first asked for, and keeps them open. For several threads."""

    def __init__(self) -> None:
        self._open: dict[tuple[Path, ...], TuningDatabase] = {}
        self._unwritten: dict[Path, Unwritten] = {}
        self._mounted: tuple[str, ...] = ()
        self._current: tuple[settings.Settings | None, TuningDatabase | None] = None, None
        self._lock = forks.recursive_lock()

    @property
    def current(self) -> TuningDatabase:
        """The database of the cache folders that the settings in force name, and of all named caches so far."""
        wanted = settings.current()
        known_for, known = self._current  # on the path of binding
        if known is not None and known_for is wanted:
            return known
        with self._lock:
            site = (wanted.tune_site_dir,) if wanted.tune_site_dir is not None else ()
            mounted = [folder_of(cache) for cache in self._mounted]
            shipped = SHIPPED if wanted.tune_shipped else None
            key = (wanted.autotune_dir, *mounted, *site, *([shipped] if shipped else []))
            if key not in self._open:
                # What could not be written is not forgotten because another cache is asked for.
                memory = self._unwritten.setdefault(wanted.autotune_dir, {})
                self._open[key] = TuningDatabase(wanted.autotune_dir, site, shipped, mounted, memory)
            self._current = wanted, self._open[key]
            return self._open[key]

    def named(self, cache: str) -> TuningDatabase:
        """The database of a cache by its name, or by a path to its folder; `current` looks there first from now on.

        Raises ArgumentError for what is neither.
        """
        folder = folder_of(cache)
        with self._lock:
            if cache not in self._mounted:
                self._mounted = (*self._mounted, cache)
                self._current = None, None
            key = (folder,)
            if key not in self._open:
                self._open[key] = TuningDatabase(folder, (), None)
            return self._open[key]


def folder_of(cache: object) -> Path:
    """The folder of a named cache: below the tuning cache, or where a path leads. Raises ArgumentError for a name that
    is none.
    """
    if not isinstance(cache, str) or not cache:
        raise ArgumentError(f"{cache!r} is no name of a cache", hints=['for example cache="h100_configs"'])
    if os.sep in cache or cache in (".", ".."):
        return Path(cache).expanduser().absolute()
    if cache.endswith(".json") or not _NAME.fullmatch(cache):
        raise ArgumentError(
            f"{cache!r} is no name of a cache",
            hints=[
                "a name has letters, digits, '_', '-' and '.'; a path to a folder has a separator",
                "autotune.load_cache(path) reads a file that autotune.save_cache(path) wrote",
            ],
        )
    return settings.current().autotune_dir / NAMED / cache
