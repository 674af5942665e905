"""What a device can do at most: arithmetic by dtype and bandwidth by memory level."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from tessera.errors import CacheFormatError
from tessera.system.files import read_regular

_FORMAT = 1
"""Version of the JSON form; a file of another version is refused."""
_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class ComputeCeiling:
    """Most FLOP/s in one dtype (a fused multiply-add is two) on `workers` threads (CPU) or multiprocessors (GPU)."""

    dtype: str
    workers: int
    flop_per_s: float


@dataclass(frozen=True)
class MemoryCeiling:
    """Most traffic of one memory level, in byte/s, of `workers` together.

    `level` is "L1", "L2", "L3", "DRAM" (GPU: "L2", "HBM"); `access` is "read", "write", "write_nt" (non-temporal) or
    "copy" (bytes read plus bytes written).
    """

    level: str
    workers: int
    byte_per_s: float
    access: str = "read"


_Row = TypeVar("_Row", ComputeCeiling, MemoryCeiling)


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of one device, `arch` and `name` as in `Target`.

    `source` says where they come from ("measured" or the name of a data sheet), `date` when (UTC, ISO 8601; "" for data
    sheets). `in_doubt` names what may be too low, as other programs kept the device busy while it was measured.
    """

    arch: str
    name: str
    source: str
    compute: tuple[ComputeCeiling, ...]
    memory: tuple[MemoryCeiling, ...]
    date: str = ""
    in_doubt: tuple[str, ...] = ()

    def flop_per_s(self, dtype: str, workers: int) -> float | None:
        """Peak arithmetic of `dtype` on `workers`, in FLOP/s; None when it was not measured for just that many."""
        found = (row.flop_per_s for row in self.compute if (row.dtype, row.workers) == (dtype, workers))
        return next(found, None)

    def byte_per_s(self, level: str, workers: int, access: str = "read") -> float | None:
        """Peak bandwidth of a level for `workers`, in byte/s; None when it was not measured for just that many."""
        key = (level, workers, access)
        return next((row.byte_per_s for row in self.memory if (row.level, row.workers, row.access) == key), None)

    def worker_counts(self) -> tuple[int, ...]:
        """The numbers of workers that the ceilings know, ascending."""
        return tuple(sorted({row.workers for row in self.compute} | {row.workers for row in self.memory}))

    def raised_to(self, other: Ceilings) -> Ceilings:
        """These, each figure raised to that of `other` where that is greater; in doubt is what is so in both."""
        compute = [
            replace(row, flop_per_s=max(row.flop_per_s, other.flop_per_s(row.dtype, row.workers) or 0.0))
            for row in self.compute
        ]
        memory = [
            replace(row, byte_per_s=max(row.byte_per_s, other.byte_per_s(row.level, row.workers, row.access) or 0.0))
            for row in self.memory
        ]
        doubts = tuple(name for name in self.in_doubt if name in other.in_doubt)
        date = max(self.date, other.date)
        return replace(self, compute=tuple(compute), memory=tuple(memory), date=date, in_doubt=doubts)

    def to_json(self) -> str:
        """A JSON text; `from_json` is the inverse."""
        return json.dumps({"version": _FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Ceilings:
        """The ceilings that `to_json` wrote. Raises CacheFormatError for any other text, and for another version of the
        format.
        """
        try:
            record = json.loads(text)
            if record["version"] != _FORMAT:
                raise CacheFormatError(f"ceilings of format {record['version']!r}, this Tessera reads {_FORMAT}")
            texts = {key: _text(record[key]) for key in ("arch", "name", "source", "date")}
            return cls(
                **texts,
                compute=_rows(ComputeCeiling, record["compute"]),
                memory=_rows(MemoryCeiling, record["memory"]),
                in_doubt=tuple(_text(name) for name in record.get("in_doubt", ())),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, CacheFormatError):
                raise
            raise CacheFormatError(f"no text of ceilings: {type(error).__name__} {error}") from error


def read_ceilings(path: Path) -> Ceilings | None:
    """The ceilings in a file of the cache; None where it is missing, none that can be read, or no regular file."""
    try:
        return Ceilings.from_json(read_regular(path, _FILE_BYTES))
    except (OSError, CacheFormatError):
        return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _rows(kind: type[_Row], records: Iterable[dict[str, Any]]) -> tuple[_Row, ...]:
    rows = tuple(kind(**record) for record in records)
    for row in rows:
        for field in fields(row):
            value = getattr(row, field.name)
            # Annotations are texts here, as the module postpones their evaluation.
            fits = isinstance(value, str) if field.type == "str" else _is_positive(value)
            if not fits:
                raise ValueError(f"{row} is no ceiling: {field.name}")
    return rows


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
