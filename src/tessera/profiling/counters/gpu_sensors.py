"""What the adapters to vendors' libraries share: import on demand, readings tried once, samplers of those that work."""

from __future__ import annotations

import importlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tessera.profiling.counters.gpus import Vendor, refused
from tessera.profiling.counters.interfaces import Capability, Field, Sampler, Subject

UNREADABLE: Final[tuple[type[Exception], ...]] = (ValueError, TypeError, KeyError, AttributeError, OSError)
"""What a binding raises, apart from its own errors, where its library or driver is older than it."""
_RENEWED_MS: Final = 20.0
"""Drivers renew most of what they tell less often."""
_UNLOADABLE: Final[tuple[type[Exception], ...]] = (ImportError, RuntimeError, *UNREADABLE)


@dataclass(frozen=True)
class Reading:
    """One call of a library, and the fields that it gives, in order."""

    fields: tuple[Field, ...]
    call: Callable[[], Sequence[float]]


@dataclass
class Opened:
    """A library at work: what to read, its own kinds of errors, how to end."""

    readings: list[Reading]
    errors: tuple[type[Exception], ...]
    close: Callable[[], None]


class LibraryRefusal(Exception):  # noqa: N818 - it becomes a capability
    """The library is not there or does not start: the reason, and what to do."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.capability = reason, remedy


def load(module: str, remedy: str) -> Any:
    """A vendor's Python binding, which the command `remedy` installs. Raises LibraryRefusal, also where the binding
    fails because its library is missing, as those of AMD and Intel do on import.
    """
    try:
        # Not with stdout redirected, though amdsmi prints where it looked: that would swallow what other threads print.
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise LibraryRefusal(f"{module} does not load: {error}", remedy) from error
        raise LibraryRefusal(f"{module} is not installed", remedy) from None
    except _UNLOADABLE as error:
        raise LibraryRefusal(
            f"{module} does not load: {error}", "install the vendor's driver and its library"
        ) from error


class ReadingsSampler:
    """Calls that worked when it was opened. A call that fails later gives NaN for that time."""

    def __init__(self, opened: Opened, readings: Sequence[Reading], min_interval_ms: float) -> None:
        self.fields: Sequence[Field] = [each for reading in readings for each in reading.fields]
        self.min_interval_ms = min_interval_ms
        self._opened = opened
        self._readings = readings
        self._errors = (*UNREADABLE, *opened.errors)

    def read(self) -> Sequence[float]:
        values: list[float] = []
        for reading in self._readings:
            try:
                values.extend(reading.call())
            except self._errors:
                values.extend([math.nan] * len(reading.fields))
        return values

    def close(self) -> None:
        self._opened.close()


def working(opened: Opened) -> tuple[list[Reading], dict[str, str]]:
    """The readings that give numbers now, and the reasons of the others by field."""
    works: list[Reading] = []
    failed: dict[str, str] = {}
    errors = (*UNREADABLE, *opened.errors)
    for reading in opened.readings:
        try:
            values = reading.call()
        except errors as error:
            failed |= {each.name: str(error) or type(error).__name__ for each in reading.fields}
            continue
        if len(values) == len(reading.fields):
            works.append(reading)
    return works, failed


@dataclass(frozen=True)
class SensorBackend(ABC):
    """The GPUs of one vendor, through its library: a subclass says how this starts, and what it reads.

    `module` is the library's binding, `install` the command that installs it; `title` and `remedy` stand in refusals:
    what people call it, and what to do where it does not start. `refused` are fields that no device has.
    """

    module: str
    name: str
    vendor: Vendor
    install: str
    title: str
    remedy: str
    units: Mapping[str, str]
    refused: Mapping[str, Capability] = field(default_factory=dict)
    activities: frozenset[str] = frozenset({"gpu", "power"})

    @abstractmethod
    def errors(self, library: Any) -> type[Exception]:
        """What the library's calls raise."""

    @abstractmethod
    def start(self, library: Any) -> None:
        """Starts the library. Raises its errors."""

    @abstractmethod
    def stop(self, library: Any) -> None:
        """Ends it."""

    @abstractmethod
    def readings(self, library: Any, subject: Subject) -> list[Reading]:
        """All readings of the devices that the subject sees. Raises the library's errors, and LibraryRefusal."""

    def started(self) -> Any:
        """The library, started; end it with `stop`. Raises LibraryRefusal."""
        library = load(self.module, self.install)
        try:
            self.start(library)
        except self.errors(library) as error:
            raise self._refusal(error) from error
        return library

    def begin(self, subject: Subject) -> Opened:
        """The library at work. Raises LibraryRefusal, and has ended it then."""
        library = self.started()
        try:
            readings = self.readings(library, subject)
        except LibraryRefusal:
            self.stop(library)
            raise
        except self.errors(library) as error:
            self.stop(library)
            raise self._refusal(error) from error
        return Opened(readings, (self.errors(library),), lambda: self.stop(library))

    def _refusal(self, error: Exception) -> LibraryRefusal:
        return LibraryRefusal(f"{self.title}: {error}", self.remedy)

    def capabilities(self, subject: Subject) -> Mapping[str, Capability]:
        """Of all fields; one that any device has is available."""
        try:
            opened = self.begin(subject)
        except LibraryRefusal as refusal:
            return refused(self.units, self.vendor, *refusal.capability)
        try:
            works, failed = working(opened)
        finally:
            opened.close()
        available = {each.name for reading in works for each in reading.fields}
        reason = "the library gives none of this device"
        return {
            name: Capability(unit)
            if name in available
            else self.refused.get(name, Capability(unit, failed.get(name, reason)))
            for name, unit in self.units.items()
        }

    def open(self, subject: Subject) -> Sequence[Sampler]:
        """A sampler of all readings that work; none, and the library ended, where there is none."""
        try:
            opened = self.begin(subject)
        except LibraryRefusal:
            return []
        works, _ = working(opened)
        if not works:
            opened.close()
            return []
        return [ReadingsSampler(opened, works, _RENEWED_MS)]


def visible(setting: str | None, identifiers: Sequence[str]) -> dict[int, int]:
    """The program's number of each device, by the library's: what CUDA_VISIBLE_DEVICES or its like leave and order.

    `identifiers` are the devices' UUIDs. A number or name that fits no device hides those after it, as CUDA has it.
    """
    if setting is None:
        return {number: number for number in range(len(identifiers))}
    found: dict[int, int] = {}
    for part in filter(None, (part.strip() for part in setting.split(","))):
        if part.isdigit() and int(part) < len(identifiers):
            number = int(part)
        else:
            fits = [index for index, name in enumerate(identifiers) if not part.isdigit() and name.startswith(part)]
            if len(fits) != 1:
                break
            number = fits[0]
        found[number] = len(found)
    return found


def variable_of(subject: Subject, name: str) -> str | None:
    """An environment variable of the subject as it was when it started; None where it is not set or not readable."""
    if subject.own:
        return os.environ.get(name)
    try:
        entries = Path(f"/proc/{subject.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    values = (entry.partition(b"=")[2] for entry in entries if entry.startswith(name.encode() + b"="))
    return next((value.decode(errors="replace") for value in values), None)
