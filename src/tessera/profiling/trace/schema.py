"""What traces say: the portable record that users read, and why its counters may be null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tessera.profiling.recording.facts import Traffic

FORMAT_VERSION: Final = 1
"""Of a trace's columns and of the metadata beside them. Readers take their own version and older ones."""

PCT_NOTE: Final = "fields ending in _pct hold 0 to 100; other ratios hold 0 to 1"

NOT_OF_CPUS: Final = (
    "a quantity of GPUs, which CPUs do not have; for kernels of a GPU: "
    'profile.session(activities=["gpu"], sample_interval_ms=5)'
)
NOT_SINGLE: Final = (
    'CPUs do not count it kernel by kernel; activities=["cpu"] with sample_interval_ms=10 samples cycles, stalls and '
    "cache misses of the whole process, where `tessera doctor` lists them under perf"
)
NO_DRAM: Final = (
    'memory controllers are not read; activities=["cpu"] with sample_interval_ms=10 samples them where '
    "`tessera doctor` lists memory-controller, and kernels longer than that have their figures"
)
NO_SENSORS: Final = (
    'sensors are not read; activities=["power"] or sample_interval_ms=10 samples them where `tessera doctor` lists them'
)
NOT_A_COPY: Final = "the record is no copy"
NOT_COLLECTIVE: Final = "the record is no collective"
UNTOLD_ALGORITHM: Final = "torch.distributed does not tell what its backend chose"
UNTOLD_AXIS: Final = "the collective is one of all ranks, not of an axis of a mesh"
UNTOLD_ARRIVAL: Final = (
    "only ranks that share memory see when each other comes; analyze.collectives compares their traces"
)

CAPABILITIES: Final[dict[str, str]] = {
    "sm_occupancy": NOT_OF_CPUS,
    "warp_divergence_pct": NOT_OF_CPUS,
    "inst_issue_eff_pct": NOT_SINGLE,
    "mem_stall_pct": NOT_SINGLE,
    "dram_read_gbps": NO_DRAM,
    "dram_write_gbps": NO_DRAM,
    "l2_hit_rate": NOT_SINGLE,
    "smem_bank_conflicts": NOT_OF_CPUS,
    "tc_util_pct": NOT_OF_CPUS,
    "alu_util_pct": NOT_OF_CPUS,
    "cp_async_inflight": NOT_OF_CPUS,
    "memcpy_dir": NOT_A_COPY,
    "memcpy_gbps": NOT_A_COPY,
    "collective_type": NOT_COLLECTIVE,
    "collective_bytes": NOT_COLLECTIVE,
    "collective_algorithm": f"{NOT_COLLECTIVE}, or {UNTOLD_ALGORITHM}",
    "collective_axis": f"{NOT_COLLECTIVE}, or {UNTOLD_AXIS}",
    "collective_group_size": NOT_COLLECTIVE,
    "collective_transport": f"{NOT_COLLECTIVE}, or {UNTOLD_ALGORITHM}",
    "collective_wire_bytes": f"{NOT_COLLECTIVE}, or {UNTOLD_ALGORITHM}",
    "collective_wait_us": f"{NOT_COLLECTIVE}, or {UNTOLD_ARRIVAL}",
    "collective_transfer_us": f"{NOT_COLLECTIVE}, or {UNTOLD_ARRIVAL}",
    "collective_overlap_pct": NOT_COLLECTIVE,
    "power_w": NO_SENSORS,
    "temp_c": NO_SENSORS,
    "throttle_reason": NO_SENSORS,
}
"""Why each portable counter is null in a record made on a CPU."""

_NO_COPY: Final = "no copy ran while this was recorded; those of tessera.memcpy are recorded"
_NO_COLLECTIVE: Final = "no collective ran while this was recorded; those of op.all_reduce and of meshes are recorded"
_OF_TRACES: Final = {NOT_A_COPY: _NO_COPY, NOT_COLLECTIVE: _NO_COLLECTIVE}
TRACE_CAPABILITIES: Final = {name: _OF_TRACES.get(why, why) for name, why in CAPABILITIES.items()} | {
    "collective_algorithm": f"{_NO_COLLECTIVE}, or {UNTOLD_ALGORITHM}",
    "collective_axis": f"{_NO_COLLECTIVE}, or {UNTOLD_AXIS}",
    "collective_transport": f"{_NO_COLLECTIVE}, or {UNTOLD_ALGORITHM}",
    "collective_wire_bytes": f"{_NO_COLLECTIVE}, or {UNTOLD_ALGORITHM}",
    "collective_wait_us": f"{_NO_COLLECTIVE}, or {UNTOLD_ARRIVAL}",
    "collective_transfer_us": f"{_NO_COLLECTIVE}, or {UNTOLD_ARRIVAL}",
}
"""Why each is null in all records of a trace made on a CPU."""


_METADATA: Final[dict[str, type]] = {
    **dict.fromkeys(("target", "ceilings", "plans", "ranks", "thread_names", "versions", "dropped_reasons"), dict),
    **dict.fromkeys(("totals", "tiles"), list),
    **dict.fromkeys(("launched", "recorded", "dropped", "start_unix_ns", "duration_ns"), int),
}


def is_sound(metadata: Mapping[str, Any]) -> bool:
    """Whether what a file tells of its trace is of the kinds that readers take it for; what it does not tell is."""
    told = {name: metadata[name] for name in _METADATA if metadata.get(name) is not None}
    kinds = all(isinstance(value, _METADATA[name]) for name, value in told.items())
    return kinds and all(isinstance(rank, dict) for rank in told.get("ranks", {}).values())


RecordKind = Literal["kernel", "memcpy", "collective", "operator", "region", "mark", "counter", "sample"]
"""As `table.KINDS`."""


@dataclass(frozen=True, slots=True)
class Record:
    """One event of a session, in the portable schema. Times are in microseconds since the session began. `stream_id` is
    the number of the stream that ran it, 0 for what the program ran itself.

    Counters that this machine cannot give are None; `capability` then says why, by field name.
    """

    kind: RecordKind
    kernel_name: str
    stream_id: int
    start_us: float
    end_us: float
    thread_id: int = 0
    stream_name: str = ""
    region: str = ""
    operator: str = ""
    workers: int = 1
    plan_id: int = 0
    step_id: int = 0
    flops: float | None = None
    bytes: float | None = None
    dtype: str = ""
    schedule: str = ""
    schedule_source: str = ""
    fused: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()
    traffic: Traffic = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    stack: tuple[str, ...] = ()
    backend: str = ""
    device: str = "cpu"
    value: float | None = None
    unit: str = ""
    sm_occupancy: float | None = None
    warp_divergence_pct: float | None = None
    inst_issue_eff_pct: float | None = None
    mem_stall_pct: float | None = None
    dram_read_gbps: float | None = None
    dram_write_gbps: float | None = None
    l2_hit_rate: float | None = None
    smem_bank_conflicts: float | None = None
    tc_util_pct: float | None = None
    alu_util_pct: float | None = None
    cp_async_inflight: float | None = None
    memcpy_dir: str | None = None
    memcpy_gbps: float | None = None
    collective_type: str | None = None
    collective_bytes: float | None = None
    collective_algorithm: str | None = None
    collective_axis: str | None = None
    collective_group_size: int | None = None
    collective_transport: str | None = None
    collective_wire_bytes: float | None = None
    collective_wait_us: float | None = None
    collective_transfer_us: float | None = None
    collective_overlap_pct: float | None = None
    power_w: float | None = None
    temp_c: float | None = None
    throttle_reason: str | None = None
    capability: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def duration_us(self) -> float:
        """How long the event took, in microseconds; 0 for marks and counters."""
        return self.end_us - self.start_us
