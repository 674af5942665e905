"""Entries of the tuning database: one winner with its identity, provenance and times, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from tessera.errors import CacheFormatError
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.tuning.store.identity import Identity, Provenance
from tessera.tuning.store.untrusted import decode, printable, whole

FORMAT = "tessera-autotune"
VERSION = 1
_MOST_KNOBS = 64
_LONGEST_S = 1e9

Origin: TypeAlias = Literal["measured", "model"]


class OtherVersionError(CacheFormatError):
    """A cache file of another version of the format: nothing is wrong with it, and it is left as it is."""


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

    def known_as(self, arch: str) -> Entry:
        """This entry for the same processor under another name."""
        return self if self.identity.arch == arch else replace(self, identity=replace(self.identity, arch=arch))


def dump(record: Mapping[str, Any]) -> bytes:
    """The bytes of a JSON file: stable order, one field a line, so that files can be compared with diff."""
    return (json.dumps(record, indent=1, allow_nan=False) + "\n").encode()


def parse(data: bytes, name: str) -> Entry:
    """The entry in the file `name`; E_CACHE_FORMAT when it is damaged or of another version."""
    return from_record(decode(data, name), name)


def from_record(record: object, name: str) -> Entry:
    """The entry of a decoded JSON object; E_CACHE_FORMAT as `parse`."""
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise CacheFormatError(f"{name} is no entry of a tuning cache")
    check_version(record, name)
    try:
        identity, provenance = Identity.from_json(record["identity"]), Provenance.from_json(record["provenance"])
        return winner(record, identity, provenance)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CacheFormatError(f"{name} is damaged: {type(error).__name__} {error}") from error


def check_version(record: Mapping[str, Any], name: str) -> None:
    """Raises OtherVersionError for a decoded JSON object of another format version than this one reads."""
    version = record.get("version")
    if type(version) is not int or version != VERSION:
        raise OtherVersionError(
            f"{name} has format version {str(version)[:20]}, this Tessera reads {VERSION}",
            hints=["it is left as it is; tune again with this version, or use the version that wrote it"],
        )


def winner(record: Mapping[str, Any], identity: Identity, provenance: Provenance) -> Entry:
    """The entry whose schedule and times stand in `record`; ValueError, TypeError or KeyError where they do not."""
    measured, origin = seconds_of(record["measured_s"]), record["origin"]
    if origin not in ("measured", "model") or (origin == "measured") != (measured is not None):
        raise ValueError(f"origin {str(origin)[:20]!r} with measured_s {measured!r}")
    trials = whole(record.get("trials", 0))
    predicted = seconds_of(record.get("predicted_s"))
    return Entry(identity, schedule_of(record["schedule"]), origin, provenance, predicted, measured, trials)


def schedule_of(values: object) -> Schedule:
    """The schedule in a decoded JSON object; ValueError where a name or a value is none that a knob may have."""
    if not isinstance(values, dict) or len(values) > _MOST_KNOBS:
        raise ValueError(f"{str(values)[:40]!r} is no schedule")
    return Schedule({printable(knob): _knob_value(value) for knob, value in values.items()})


def seconds_of(value: object) -> float | None:
    """A time in a decoded JSON object, or None where that has none; ValueError for what is neither."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _LONGEST_S:
        raise ValueError(f"{str(value)[:40]!r} is no time in seconds")
    return float(value)


def _knob_value(value: object) -> KnobValue:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list) and len(value) <= _MOST_KNOBS:
        return tuple(map(_number, value))
    return _number(value)


def _number(value: object) -> int:
    if type(value) is not int or abs(value) >= 1 << 63:
        raise ValueError(f"{str(value)[:40]!r} is no value of a knob")
    return value
