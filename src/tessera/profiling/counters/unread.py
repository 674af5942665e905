"""Counters of a vendor's kernels that are named, and not read: null with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tessera.profiling.counters.gpus import Vendor, refused
from tessera.profiling.counters.interfaces import Capability, Sampler, Subject

UNITS: Final = {"sm_occupancy": "", "alu_util_pct": "%", "tc_util_pct": "%", "l2_hit_rate": "", "mem_stall_pct": "%"}


@dataclass(frozen=True)
class UnreadKernelCounters:
    """Counters of a vendor's kernels that are not read here, with the reason."""

    name: str
    vendor: Vendor
    reason: str
    remedy: str = ""
    activities: frozenset[str] = frozenset({"gpu"})
    units: Mapping[str, str] = field(default_factory=lambda: dict(UNITS))

    def capabilities(self, subject: Subject) -> Mapping[str, Capability]:
        return refused(self.units, self.vendor, self.reason, self.remedy)

    def open(self, subject: Subject) -> Sequence[Sampler]:
        return ()
