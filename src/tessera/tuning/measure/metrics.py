"""What a measured time says of the device: throughput, bandwidth, and the share of the device's best that was reached.

What cannot be had is None, and `missing` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.tuning.measure.conditions import Cache

_NO_WORK = "the problem does not say how much work a call is"
_NO_COUNTERS = "achieved occupancy takes the device's performance counters, which are not read"
_NO_OCCUPANCY = "a core of a CPU runs one worker at a time"


@dataclass(frozen=True)
class Roof:
    """The most that a memory level can deliver to all workers together, in byte/s; `source` says how it is known."""

    level: str
    byte_per_s: float
    source: str = "measured"


@dataclass(frozen=True)
class CallWork:
    """What one call does: `flops`, and `bytes`, each operand and result counted once.

    `roofs` has the memory level that the bytes come from, for warm and for cold caches; where one is missing,
    `no_roof` says why. `is_gpu`: whether occupancy means anything.
    """

    flops: float
    bytes: float
    roofs: Mapping[Cache, Roof] = field(default_factory=dict)
    no_roof: str = "this device's bandwidth has not been measured"
    is_gpu: bool = False


@dataclass(frozen=True)
class Metrics:
    """`flop_per_s` and `byte_per_s` reached; `bandwidth_share` of what memory level `memory` can deliver (1.0 is all of
    it). `occupancy` is what was achieved, `occupancy_limit` the most that registers and shared memory permit, as
    fractions of the warps that a multiprocessor can hold. `missing`: name of a field that is None -> the reason.
    """

    flop_per_s: float | None = None
    byte_per_s: float | None = None
    bandwidth_share: float | None = None
    memory: str | None = None
    occupancy: float | None = None
    occupancy_limit: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        """The object `metrics` of a trial's record."""
        return {
            "flop_per_s": self.flop_per_s,
            "byte_per_s": self.byte_per_s,
            "bandwidth_share": self.bandwidth_share,
            "memory": self.memory,
            "occupancy": self.occupancy,
            "occupancy_limit": self.occupancy_limit,
            "missing": dict(self.missing),
        }


def metrics_of(
    seconds: float, work: CallWork | None, cache: Cache = "warm", occupancy_limit: float | None = None
) -> Metrics:
    """The metrics of a call of `seconds`. `occupancy_limit` is the candidate's, where its compiler told it."""
    missing: dict[str, str] = {}
    is_gpu = work is not None and work.is_gpu
    missing["occupancy"] = _NO_COUNTERS if is_gpu else _NO_OCCUPANCY
    if occupancy_limit is None:
        missing["occupancy_limit"] = "the compiler tells no registers of this candidate" if is_gpu else _NO_OCCUPANCY
    if work is None or seconds <= 0:
        why = _NO_WORK if work is None else "the clock did not advance"
        missing |= dict.fromkeys(("flop_per_s", "byte_per_s", "bandwidth_share", "memory"), why)
        return Metrics(occupancy_limit=occupancy_limit, missing=missing)
    roof = work.roofs.get(cache)
    rate = work.bytes / seconds
    if roof is None:
        missing |= dict.fromkeys(("bandwidth_share", "memory"), work.no_roof)
    return Metrics(
        flop_per_s=work.flops / seconds,
        byte_per_s=rate,
        bandwidth_share=None if roof is None else rate / roof.byte_per_s,
        memory=None if roof is None else f"{roof.level} ({roof.source})",
        occupancy_limit=occupancy_limit,
        missing=missing,
    )
