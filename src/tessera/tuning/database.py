"""The tuning database: winners on disk in layers (user, site, shipped with the package), safe for many processes.

A user's entry goes before a site's and that before a shipped one, except that a measured winner of any layer goes
before a model's guess. Only the user's layer is written. What cannot be written is kept in memory, and said once.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tessera.errors import CacheFormatError, CacheIOError
from tessera.files import append_lines, host_name, keep_aside, write_atomically
from tessera.scheduling.schedule import Schedule
from tessera.tuning.entry import Entry, Origin, dump, parse
from tessera.tuning.identity import Identity
from tessera.tuning.layer import Family, Layer
from tessera.tuning.trial import Trial

SHIPPED = Path(__file__).parent / "shipped"
NEAR = 2.0
"""Largest log distance of a shape whose winner is still worth using: four times one extent, or twice two of them."""

Families: TypeAlias = list[tuple[str, Family]]
"""By the name of their layer, in the order of look-up."""

_ORIGINS: tuple[Origin, ...] = ("measured", "model")


class CacheWarning(UserWarning):
    """A cache file could not be read or written; the text names it, the reason, and what is done instead."""


@dataclass(frozen=True)
class Found:
    """An entry and where it was: layer "memory", "user", "site" or "shipped"; `distance` is 0 for the very identity."""

    entry: Entry
    layer: str
    distance: float = 0.0


@dataclass(frozen=True)
class Miss:
    """Why an identity has no entry: the nearest entry and the fields in which it differs (value asked for, value
    there).
    """

    identity: Identity
    nearest: Entry | None
    differences: dict[str, tuple[Any, Any]]

    def __str__(self) -> str:
        if self.nearest is None:
            return f"no entry for {self.identity}: the cache is empty"
        fields = "; ".join(f"{name} is {there}, not {here}" for name, (here, there) in self.differences.items())
        return f"no entry for {self.identity}; the nearest differs: {fields}"


class TuningDatabase:
    """Look-up, nearest shape, recording and merging of winners. Methods may be called from several threads."""

    def __init__(self, user: Path, site: Sequence[Path] = (), shipped: Path | None = SHIPPED) -> None:
        self.user = Layer("user", user, self._report)
        self.layers = [self.user, *(Layer("site", root, self._report) for root in site)]
        if shipped is not None:
            self.layers.append(Layer("shipped", shipped, self._report, settled=True))
        self.problems: list[CacheIOError | CacheFormatError] = []
        self._memory: dict[tuple[Identity, Origin], Entry] = {}
        self._told: set[str] = set()
        self._lock = threading.RLock()

    def lookup(self, identity: Identity) -> Found | None:
        """The winner of exactly this identity, or None; `explain_miss` then says why."""
        with self._lock:
            return self._exact(identity, self._families(identity))

    def nearest(self, identity: Identity, within: float = NEAR) -> Found | None:
        """The measured winner that differs in shape only and is nearest, at most `within` away in log distance."""
        with self._lock:
            return self._near(identity, self._families(identity), within)

    def usable(self, identity: Identity, permits: Callable[[Schedule], bool]) -> Found | None:
        """The winner of this identity, else the nearest one, if `permits` its schedule.

        On the path of binding, where looking whether a folder has changed (5 us) counts: each is looked at once.
        """
        with self._lock:
            families = self._families(identity)
            found = self._exact(identity, families)
            if found is not None and permits(found.entry.schedule):
                return found
            near = self._near(identity, families, NEAR)
        return near if near is not None and permits(near.entry.schedule) else None

    def _families(self, identity: Identity) -> Families:
        name = identity.family()
        return [(layer.name, family) for layer in self.layers if (family := layer.family(name)) is not None]

    def _exact(self, identity: Identity, families: Families) -> Found | None:
        kept = [(layer, family.get(identity)) for layer, family in families]
        if not self._memory and not any([entries for _, entries in kept]):  # noqa: C419 - on the path of binding
            return None
        for origin in _ORIGINS:
            in_memory = self._memory.get((identity, origin))
            if in_memory is not None:
                return Found(in_memory, "memory")
            for layer, entries in kept:
                if origin in entries:
                    return Found(entries[origin], layer)
        return None

    def _near(self, identity: Identity, families: Families, within: float) -> Found | None:
        found = [
            Found(nearest[1], layer, nearest[0])
            for layer, family in families
            if (nearest := family.nearest(identity)) is not None
        ]
        found += [
            Found(entry, "memory", identity.distance(entry.identity))
            for entry in self._memory.values()
            if entry.origin == "measured" and entry.identity.family() == identity.family()
        ]
        best = min(found, key=lambda item: (item.distance, item.entry.identity.shape), default=None)
        return best if best is not None and best.distance <= within else None

    def explain_miss(self, identity: Identity) -> Miss:
        """What is nearest to an identity that has no entry, and the fields that differ. Reads all layers."""

        def strangeness(entry: Entry) -> tuple[Any, ...]:
            different = identity.differences(entry.identity)
            return ("operator" in different, len(different), identity.distance(entry.identity), str(entry.identity))

        nearest = min(self.entries(), key=strangeness, default=None)
        return Miss(identity, nearest, identity.differences(nearest.identity) if nearest is not None else {})

    def entries(self) -> Iterator[Entry]:
        """All entries that look-up can find, the preferred one of each identity and origin, once."""
        with self._lock:
            seen: dict[tuple[Identity, Origin], Entry] = dict(self._memory)
            for layer in self.layers:
                for entry in layer.entries():
                    seen.setdefault((entry.identity, entry.origin), entry)
        yield from seen.values()

    def counts(self) -> dict[str, int]:
        """Number of entries by layer; "memory" counts those that could not be written."""
        with self._lock:
            counts = {"memory": len(self._memory)}
            for layer in self.layers:
                counts[layer.name] = counts.get(layer.name, 0) + sum(1 for _ in layer.entries())
        return counts

    def put(self, entry: Entry) -> bool:
        """Records a winner in the user's layer; False when it could be kept in memory only (said once, E_CACHE_IO)."""
        path = self.user.path(entry.identity, entry.origin)
        with self._lock:
            try:
                self._save_unreadable(path)
                write_atomically(path, dump(entry.to_json()))
            except OSError as error:
                self._memory[entry.identity, entry.origin] = entry
                self._report(_unwritable(path, error))
                return False
            self._memory.pop((entry.identity, entry.origin), None)
            self.user.forget(entry.identity)
            return True

    def merge(self, entries: Iterable[Entry]) -> tuple[list[Entry], list[Entry]]:
        """Takes over entries found elsewhere where they beat what is here; those applied, and those that did not."""
        applied: list[Entry] = []
        declined: list[Entry] = []
        for entry in entries:
            found = self.lookup(entry.identity)
            if found is None or entry.beats(found.entry):
                self.put(entry)
                applied.append(entry)
            else:
                declined.append(entry)
        return applied, declined

    def log(self, identity: Identity, trials: Sequence[Trial], context: dict[str, Any]) -> bool:
        """Appends trials to the user's log of `identity`, one JSON object a line; False when it failed (said once)."""
        lines = [json.dumps({**context, **trial.to_json()}, allow_nan=False) for trial in trials]
        path = self.user.log_path(identity, host_name())
        try:
            if lines:
                append_lines(path, ("\n".join(lines) + "\n").encode())
        except OSError as error:
            self._report(_unwritable(path, error))
            return False
        return True

    def trials(self, identity: Identity) -> list[dict[str, Any]]:
        """All trials logged for `identity` on any host; lines that a full disk or a crash cut short are skipped."""
        path = self.user.log_path(identity, host_name())
        records = []
        prefix = f"{identity.shape_name()}."
        for log in sorted(path.parent.glob("*.jsonl")) if path.parent.is_dir() else []:
            if not log.name.startswith(prefix):
                continue
            for line in log.read_bytes().splitlines():
                try:
                    records.append(json.loads(line))
                except ValueError:
                    continue
        return [record for record in records if isinstance(record, dict)]

    def writable(self) -> bool:
        """Whether the user's layer can be written as far as permissions tell."""
        folder = self.user.root
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)

    def _save_unreadable(self, path: Path) -> None:
        """Before `path` is replaced: gives it a second name if it is not an entry that this version can read."""
        try:
            parse(path.read_bytes(), str(path))
        except FileNotFoundError:
            return
        except CacheFormatError as error:
            aside = keep_aside(path)
            self._report(
                CacheFormatError(f"{path} is not readable here; it is kept as {aside.name}", hints=[str(error)])
            )

    def _report(self, problem: CacheIOError | CacheFormatError) -> None:
        """Remembers a problem for `status`, and warns of it unless the same was said before."""
        # One reason makes many files unwritable; each damaged file is news of its own.
        kind = problem.code if isinstance(problem, CacheIOError) else problem.message
        if kind in self._told:
            return
        self._told.add(kind)
        self.problems.append(problem)
        warnings.warn(str(problem), CacheWarning, stacklevel=3)


def _unwritable(path: Path, error: OSError) -> CacheIOError:
    return CacheIOError(
        f"cannot write {path}: {error.strerror or error}",
        hints=[
            "tuning results stay in memory for this process",
            "set TESSERA_CACHE_DIR to a folder that can be written",
        ],
    )
