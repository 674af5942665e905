"""What a tuned schedule is for (`Identity`) and under which circumstances it was found (`Provenance`).

An identity that differs is a miss. A provenance that differs makes an entry stale: it is still used, and tuned again
only when tuning is on.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tessera.system.distribution import VERSION
from tessera.tuning.store.untrusted import listed, printable, whole

_MAXIMUM_NAME = 80
"""Longest readable part of a file name; file systems allow 255 bytes, encrypting ones about 140."""


@dataclass(frozen=True)
class Identity:
    """All that decides whether a schedule applies. Compared field by field; the digest only names files.

    `operator` is the canonical signature of the fused kernel, `shape` its problem size (M, N, K for a contraction),
    `dtypes` and `layouts` those of its operands in order, `math` the math mode ("ieee", "tf32"), `accumulation` the
    accumulator's dtype, `determinism` the numerics policy, `arch` the processor as `processors.arch_of` names it and
    `threads` the number of workers.
    """

    operator: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    math: str
    accumulation: str
    determinism: str
    arch: str
    threads: int

    def family(self) -> str:
        """A readable file name of everything but the shape, the same for equal identities on every machine."""
        modes = (self.math, self.accumulation, self.determinism)
        return _family(self.operator, self.dtypes, (self.layouts, modes), self.arch, self.threads)

    def shape_name(self) -> str:
        """A file name of the shape: `1024x1024x64`; a long one is cut and ends in its digest."""
        name = "x".join(map(str, self.shape)) or "scalar"
        return name if len(name) <= _MAXIMUM_NAME else f"{name[:_MAXIMUM_NAME]}-{_digest(list(self.shape))}"

    def key(self) -> str:
        """Twelve hexadecimal digits that stand for this identity on a command line."""
        return _digest(self.to_json())[:12]

    def differences(self, other: Identity) -> dict[str, tuple[Any, Any]]:
        """The fields in which the two differ: name -> (value here, value there)."""
        pairs = {field.name: (getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def distance(self, other: Identity) -> float:
        """Sum of |log2| of the ratios of extents: 1.0 is one extent doubled; infinite for shapes of different rank."""
        return log_distance(log_shape(self.shape), log_shape(other.shape))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Identity:
        """The identity that `to_json` wrote; ValueError, TypeError or KeyError for anything else."""
        return cls(
            operator=printable(values["operator"]),
            shape=tuple(map(whole, listed(values["shape"]))),
            dtypes=tuple(map(printable, listed(values["dtypes"]))),
            layouts=tuple(map(printable, listed(values["layouts"]))),
            math=printable(values["math"]),
            accumulation=printable(values["accumulation"]),
            determinism=printable(values["determinism"]),
            arch=printable(values["arch"]),
            threads=whole(values["threads"], 1),
        )

    def __str__(self) -> str:
        return f"{self.operator} {self.shape} {','.join(self.dtypes)} on {self.arch}, {self.threads} thread(s)"


@dataclass(frozen=True)
class Provenance:
    """Under which versions and conditions an entry was found. `date` is UTC, ISO 8601, and never makes an entry
    stale.
    """

    generator: str
    tessera: str
    torch: str
    llvm: str
    clocks: str
    mode: str
    date: str

    @classmethod
    def current(cls, generator: str, mode: str) -> Provenance:
        """That of an entry found now: `generator` is the code generator's revision, `mode` how times were had."""
        return cls(
            generator,
            VERSION,
            _version("torch"),
            _version("llvmlite"),
            _clocks(),
            mode,
            datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def stale_fields(self, now: Provenance) -> tuple[str, ...]:
        """The fields that make an entry of this provenance stale; how it was measured and when do not."""
        names = (field.name for field in fields(self) if field.name not in ("mode", "date"))
        return tuple(name for name in names if getattr(self, name) != getattr(now, name))

    def to_json(self) -> dict[str, str]:
        """Plain JSON values; `from_json` is the inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Provenance:
        """The provenance that `to_json` wrote; a field that is missing there is unknown. ValueError for no text."""
        return cls(**{field.name: printable(values.get(field.name, "unknown")) for field in fields(cls)})


def log_shape(shape: tuple[int, ...]) -> tuple[float, ...]:
    """log2 of each extent; an empty extent counts as 1."""
    return tuple(math.log2(max(extent, 1)) for extent in shape)


def log_distance(here: tuple[float, ...], there: tuple[float, ...]) -> float:
    """Sum of the absolute differences of two log shapes; infinite when their ranks differ."""
    if len(here) != len(there):
        return math.inf
    return math.fsum(map(abs, map(operator.sub, here, there)))


@lru_cache(maxsize=1024)
def _family(
    signature: str, dtypes: tuple[str, ...], details: tuple[tuple[str, ...], ...], arch: str, threads: int
) -> str:
    readable = _readable(f"{signature}-{'-'.join(dict.fromkeys(dtypes))}-{arch}-t{threads}")
    return f"{readable}-{_digest([signature, dtypes, details, arch, threads])}"


@cache
def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"


@cache
def _clocks() -> str:
    """The frequency governor where the kernel tells; a winner found under another one may not be the best."""
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    except OSError:
        return "unknown"


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _readable(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text)[:_MAXIMUM_NAME].strip("_.-").lower()
