"""The seam between the profiler and what measures: fields, why one cannot be read, samplers, backends.

A backend is one module of `counters/backends/` with a constant `BACKEND`, or an object given to `registry.register`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Field:
    """One quantity that a sampler reads, of `device` ("cpu", "cuda:0").

    A cumulative quantity grows (an energy, a count): its samples are its growth per second, times `scale`; those of
    any other are what was read, times `scale`. Quantities of a sampler that are a `share` grow together by what they
    are parts of, whatever clock counts it: their samples are shares of that growth, times `scale`. `bits` names the
    bits of a quantity that is a mask, such as `throttle_reason`.
    """

    name: str
    unit: str
    device: str = "cpu"
    cumulative: bool = False
    scale: float = 1.0
    bits: Mapping[int, str] = field(default_factory=dict)
    share: bool = False


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether a quantity can be read here. `reason` says why not and is None where it can; `remedy` is what to do.
    `absent`: the machine has no such device, so that there is nothing to read and nothing to do.
    """

    unit: str
    reason: str | None = None
    remedy: str = ""
    absent: bool = False

    @property
    def available(self) -> bool:
        """Whether it can be read."""
        return self.reason is None

    def __str__(self) -> str:
        if self.reason is None:
            return "available"
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason


@dataclass(frozen=True, slots=True)
class Subject:
    """The process that is looked at. Quantities of the machine are the same for all."""

    pid: int = field(default_factory=os.getpid)

    @property
    def own(self) -> bool:
        """Whether it is this process."""
        return self.pid == os.getpid()


@dataclass(frozen=True, slots=True)
class Polled:
    """A whole number that native code can read without Python: what a clock shows, in nanoseconds, or one of the
    numbers at the head of a file.

    `handle` is the number of the clock, or an open descriptor; `place` counts the file's numbers from 0. These are not
    negative, and one character stands between two of them.
    """

    handle: int
    place: int = 0
    is_clock: bool = False


class Sampler(Protocol):
    """Reads some fields again and again, from one thread.

    `fields` never change; `min_interval_ms` is how often reading makes sense or stays cheap, 0 for always. One that has
    an attribute `polled`, a `Polled` for each field, may be read by native code instead of by `read()`.
    """

    fields: Sequence[Field]
    min_interval_ms: float

    def read(self) -> Sequence[float]:
        """The values in order of `fields`; NaN for one that is missing this time. Raises OSError when what is looked at
        is gone.
        """

    def close(self) -> None:
        """Gives back files and handles. Called once."""


class CounterBackend(Protocol):
    """Something that measures: an interface of the kernel's, or a vendor's library.

    Both methods are cheap to call where the hardware is absent, import a library only when they are called, and never
    raise because of what a machine lacks or refuses: that is a capability.
    """

    name: str
    activities: frozenset[str]
    """The activities of a session ("cpu", "gpu", "power") of which any asks for this backend."""

    def capabilities(self, subject: Subject) -> Mapping[str, Capability]:
        """What it would read on every machine, by the name of the field."""

    def open(self, subject: Subject) -> Sequence[Sampler]:
        """Samplers of the fields that are available, none where nothing is."""
