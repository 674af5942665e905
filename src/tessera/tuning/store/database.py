"""The tuning database: winners on disk in layers (user, site, shipped with the package), safe for many processes.

A user's entry goes before a site's and that before a shipped one, except that a measured winner of any layer goes
before a model's guess. Only the user's layer is written. What cannot be written is kept in memory, and said once.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tessera.errors import CacheFormatError, CacheIOError
from tessera.system import forks
from tessera.system.files import append_lines, host_name, keep_aside, read_regular, write_atomically
from tessera.tuning.measure.trial import Trial
from tessera.tuning.store.entry import Entry, Origin, dump, parse
from tessera.tuning.store.identity import Identity
from tessera.tuning.store.layer import Layer
from tessera.tuning.store.logs import read_lines
from tessera.tuning.store.processors import names_of
from tessera.tuning.store.shape_family import ShapeFamily, closest
from tessera.tuning.store.untrusted import ENTRY_BYTES

SHIPPED = Path(__file__).parents[1] / "shipped"
NEAR = 2.0
"""Largest log distance of a shape whose winner is still worth using: four times one extent, or twice two of them."""

Unwritten: TypeAlias = dict[tuple[Identity, Origin], Entry]
"""Winners whose folder cannot be written."""


class CacheWarning(UserWarning):
    """A cache file could not be read or written; the text names it, the reason, and what is done instead."""


class Found(NamedTuple):
    """An entry and where it was: layer "memory", "user", "site" or "shipped"; `distance` is 0 for the very identity."""

    entry: Entry
    layer: str
    distance: float = 0.0


class Kept(NamedTuple):
    """Entries of one layer that differ in shape only, and the identity that was asked for as they have it."""

    layer: str
    identity: Identity
    entries: ShapeFamily


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

    def __init__(
        self,
        user: Path,
        site: Sequence[Path] = (),
        shipped: Path | None = SHIPPED,
        first: Sequence[Path] = (),
        memory: Unwritten | None = None,
    ) -> None:
        """`first` are folders that are looked at before the user's: caches that a program asked for by name. `memory`
        keeps what cannot be written; databases of one user's folder may share it.
        """
        self.user = Layer("user", user, self._report)
        self.layers = [Layer(root.name, root, self._report) for root in first]
        self.layers += [self.user, *(Layer("site", root, self._report) for root in site)]
        if shipped is not None:
            self.layers.append(Layer("shipped", shipped, self._report, settled=True))
        self.problems: list[CacheIOError | CacheFormatError] = []
        self._memory: Unwritten = {} if memory is None else memory
        self._told: set[str] = set()
        self._stored: Counter[str] = Counter()
        self._lock = forks.recursive_lock()

    def lookup(self, identity: Identity) -> Found | None:
        """The winner of exactly this identity, or None; `explain_miss` then says why.

        On the path of binding: each layer's folder is looked at once, and none behind the first measured winner.
        """
        with self._lock:
            found = self._remembered(identity, "measured")
            if found is not None:
                return found
            guess = None
            for layer, there, family in self._families(identity):
                entries = family.get(there)
                if "measured" in entries:
                    return Found(entries["measured"].known_as(identity.arch), layer)
                if guess is None and "model" in entries:
                    guess = Found(entries["model"].known_as(identity.arch), layer)
            return self._remembered(identity, "model") or guess

    def nearest(self, identity: Identity, within: float = NEAR) -> Found | None:
        """The measured winner that differs in shape only and is nearest, at most `within` away in log distance."""
        return next(iter(self.neighbours(identity, 1, within)), None)

    def neighbours(self, identity: Identity, count: int, within: float = NEAR) -> list[Found]:
        """At most `count` measured winners that differ in shape only, nearest first; one of each shape."""
        with self._lock:
            return self._near(identity, within, count)

    def shapes(self, identity: Identity) -> list[tuple[int, ...]]:
        """The shapes for which there is a winner, measured or a model's, of this identity but for its shape, in
        order.
        """
        with self._lock:
            name = identity.family()
            found = {shape for *_, family in self._families(identity) for shape in family.shapes()}
            found.update(known.shape for known, _ in self._memory if known.family() == name)
        return sorted(found)

    def _remembered(self, identity: Identity, origin: Origin) -> Found | None:
        """What could not be written."""
        entry = self._memory.get((identity, origin)) if self._memory else None
        return None if entry is None else Found(entry, "memory")

    def _families(self, identity: Identity) -> Iterator[Kept]:
        """The families of an identity, layer by layer, under all names of its processor: looked for as they are
        asked for.
        """
        names = [(there, there.family()) for there in _under_all_names(identity)]
        for layer in self.layers:
            for there, name in names:
                family = layer.family(name)
                if family is not None:
                    yield Kept(layer.name, there, family)

    def _near(self, identity: Identity, within: float, count: int) -> list[Found]:
        near = [
            Found(entry.known_as(identity.arch), layer, distance)
            for layer, there, family in self._families(identity)
            for distance, entry in family.nearest(there, within, count)
        ]
        near += [
            Found(entry, "memory", identity.distance(entry.identity))
            for entry in list(self._memory.values())
            if entry.origin == "measured" and entry.identity.family() == identity.family()
        ]
        first: dict[tuple[int, ...], Found] = {}
        # Sorting is stable: of one shape in several layers the one that look-up prefers stays.
        for found in sorted(near, key=lambda found: (found.distance, found.entry.identity.shape)):
            if found.distance <= within:
                first.setdefault(found.entry.identity.shape, found)
        return list(first.values())[:count]

    def explain_miss(self, identity: Identity) -> Miss:
        """What is nearest to an identity that has no entry, and the fields that differ.

        Reads one entry of every family there is, and a few more of those that differ least.
        """

        with self._lock:
            families = [family for layer in self.layers for family in layer.families()]
            nearest = closest(identity, families, list(self._memory.values()))
        return Miss(identity, nearest, identity.differences(nearest.identity) if nearest is not None else {})

    def entries(self) -> Iterator[Entry]:
        """All entries that look-up can find, the preferred one of each identity and origin, once."""
        return (found.entry for found in self.located())

    def located(self) -> Iterator[Found]:
        """`entries`, each with the layer where it is."""
        with self._lock:
            seen = {key: Found(entry, "memory") for key, entry in list(self._memory.items())}
            for layer in self.layers:
                for entry in layer.entries():
                    seen.setdefault((entry.identity, entry.origin), Found(entry, layer.name))
        yield from seen.values()

    def counts(self) -> dict[str, int]:
        """Number of entries by layer, which none is read for; "memory" counts those that could not be written."""
        with self._lock:
            counts = {"memory": len(self._memory)}
            for layer in self.layers:
                counts[layer.name] = counts.get(layer.name, 0) + layer.count()
            return counts

    def has_entries(self) -> bool:
        """Whether there is any entry; looks no further than to the first."""
        with self._lock:
            return bool(self._memory) or any(layer.has_entries() for layer in self.layers)

    def put(self, entry: Entry, durable: bool = True) -> bool:
        """Records a winner in the user's layer; False when it could be kept in memory only (said once, E_CACHE_IO).

        One that can be had again, from the file that it is imported from, need not be `durable`, that is survive a
        loss of power.
        """
        path = self.user.path(entry.identity, entry.origin)
        with self._lock:
            self._stored[entry.identity.family()] += entry.origin == "measured"
            try:
                _check_folder(path.parent)
                self._save_unreadable(path)
                write_atomically(path, dump(entry.to_json()), durable)
            except OSError as error:
                self._memory[entry.identity, entry.origin] = entry
                self._report(_unwritable(path, error))
                return False
            self._memory.pop((entry.identity, entry.origin), None)
            self.user.forget(entry.identity)
            return True

    def stored(self, family: str) -> int:
        """How many measured winners of an `Identity.family()` were put here so far: another number tells of news."""
        return self._stored[family]

    def merge(self, entries: Iterable[Entry]) -> tuple[list[Entry], list[Entry]]:
        """Takes over entries found elsewhere where they beat what is here; those applied, and those that did not."""
        applied: list[Entry] = []
        declined: list[Entry] = []
        for entry in entries:
            found = self.lookup(entry.identity)
            if found is None or entry.beats(found.entry):
                self.put(entry, durable=False)
                applied.append(entry)
            else:
                declined.append(entry)
        return applied, declined

    def log(self, identity: Identity, trials: Sequence[Trial], context: dict[str, Any]) -> bool:
        """Appends trials to the user's log of `identity`, one JSON object a line; False when it failed (said once).

        Each line says all that is known of its trial, so that logs may be copied, joined and cut.
        """
        context = {**context, "identity": identity.to_json()}
        lines = [json.dumps({**context, **trial.to_json()}, allow_nan=False) for trial in trials]
        path = self.user.log_path(identity, host_name())
        try:
            if lines:
                _check_folder(path.parent)
                append_lines(path, ("\n".join(lines) + "\n").encode())
        except OSError as error:
            self._report(_unwritable(path, error))
            return False
        return True

    def trials(self, identity: Identity) -> list[dict[str, Any]]:
        """All trials logged for `identity` on any host, under any name of its processor; lines that a full disk or a
        crash cut short are skipped.
        """
        logs = (path for there in _under_all_names(identity) for path in self.user.logs(there))
        return [record for path in logs for record in self.log_lines(path)]

    def log_lines(self, path: Path) -> Iterator[dict[str, Any]]:
        """The readable lines of a log; what keeps it from being read is said."""
        try:
            yield from read_lines(path)
        except OSError as error:
            self._report(CacheIOError(f"cannot read {path}: {error.strerror or error}"))
        except CacheFormatError as error:
            self._report(error)

    def writable(self) -> bool:
        """Whether the user's layer can be written as far as permissions tell."""
        folder = self.user.root
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)

    def _save_unreadable(self, path: Path) -> None:
        """Before `path` is replaced: gives it a second name if it is not an entry that this version can read."""
        try:
            parse(read_regular(path, ENTRY_BYTES), str(path))
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


def _under_all_names(identity: Identity) -> list[Identity]:
    """An identity under the names that winners of its processor may be kept under, its own first."""
    return [identity, *(replace(identity, arch=name) for name in names_of(identity.arch)[1:])]


def _check_folder(folder: Path) -> None:
    """Raises OSError where the folder of a family is a link: nothing is written outside of the layer."""
    if folder.is_symlink() or folder.parent.is_symlink():
        raise OSError(errno.ELOOP, "its folder is a link, which is not followed")


def _unwritable(path: Path, error: OSError) -> CacheIOError:
    return CacheIOError(
        f"cannot write {path}: {error.strerror or error}",
        hints=[
            "tuning results stay in memory for this process",
            "set TESSERA_CACHE_DIR to a folder that can be written",
        ],
    )
