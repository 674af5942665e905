"""Entries of the tuning database: one winner with its identity, provenance and times, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tessera.errors import CacheFormatError
from tessera.scheduling.schedule import Schedule
from tessera.tuning.identity import Identity, Provenance

FORMAT = "tessera-autotune"
VERSION = 1

Origin: TypeAlias = Literal["measured", "model"]


@dataclass(frozen=True)
class Entry:
    """A winner. Times are seconds per call; `measured_s` is None exactly when `origin` is "model"."""

    identity: Identity
    schedule: Schedule
    origin: Origin
    provenance: Provenance
    predicted_s: float | None = None
    measured_s: float | None = None
    trials: int = 0

    def to_json(self) -> dict[str, Any]:
        """The JSON object of an entry file; the schedule stands there twice, once for people."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "identity": self.identity.to_json(),
            "best": str(self.schedule),
            "schedule": self.schedule.to_json(),
            "origin": self.origin,
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "trials": self.trials,
            "provenance": self.provenance.to_json(),
        }

    def beats(self, other: Entry) -> bool:
        """Whether merging prefers this entry: measured over guessed, then the shorter measured time."""
        if self.measured_s is None or other.measured_s is None:
            return self.measured_s is not None
        return self.measured_s < other.measured_s


def dump(record: Mapping[str, Any]) -> bytes:
    """The bytes of a JSON file: stable order, one field a line, so that files can be compared with diff."""
    return (json.dumps(record, indent=1, allow_nan=False) + "\n").encode()


def parse(data: bytes, name: str) -> Entry:
    """The entry in the file `name`; E_CACHE_FORMAT when it is damaged or of another version."""
    try:
        record = json.loads(data)
    except ValueError as error:
        raise CacheFormatError(f"{name} is damaged: {error}") from error
    return from_record(record, name)


def from_record(record: object, name: str) -> Entry:
    """The entry of a decoded JSON object; E_CACHE_FORMAT as `parse`."""
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise CacheFormatError(f"{name} is no entry of a tuning cache")
    if record.get("version") != VERSION:
        raise CacheFormatError(
            f"{name} has format version {record.get('version')}, this Tessera reads {VERSION}",
            hints=["it is left as it is; tune again with this version, or use the version that wrote it"],
        )
    try:
        measured = _seconds(record["measured_s"])
        origin = record["origin"]
        if origin not in ("measured", "model") or (origin == "measured") != (measured is not None):
            raise ValueError(f"origin {origin!r} with measured_s {measured!r}")
        return Entry(
            Identity.from_json(record["identity"]),
            Schedule.from_json(record["schedule"]),
            origin,
            Provenance.from_json(record["provenance"]),
            _seconds(record.get("predicted_s")),
            measured,
            int(record.get("trials", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CacheFormatError(f"{name} is damaged: {type(error).__name__} {error}") from error


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{value!r} is no time in seconds")
    return float(value)
