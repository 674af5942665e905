"""What a local program takes, predicted: its schedule is gone through with what a device does in a second and what its
links carry meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from tessera.lazy.layouts import MeshShape
from tessera.sharding.partitioning.chunking import chunked
from tessera.sharding.partitioning.program import LocalProgram, ShardMove, shard_bytes
from tessera.sharding.partitioning.redistribution import MeshStepKind
from tessera.sharding.partitioning.schedule import Evaluate, OverlapLimits, Start, Wait, schedule_of, work_of
from tessera.sharding.planner.calibration import EFFICIENCIES
from tessera.sharding.planner.communication import Collective, seconds
from tessera.sharding.planner.rates import device_rates
from tessera.target.topology import Topology, topology

_COLLECTIVES: Final[Mapping[MeshStepKind, Collective]] = {
    "AllReduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
    "AllGather": "all_gather",
    "AllToAll": "all_to_all",
    "Permute": "permute",
    "Broadcast": "broadcast",
}
_HOST: Final = "loopback"


@dataclass(frozen=True)
class ProgramRates:
    """What a device does in a second, operations and bytes through its memory, and how devices are joined."""

    flop_per_s: float
    byte_per_s: float
    topology: Topology


@dataclass(frozen=True)
class ProgramTime:
    """Predicted seconds of a program on each device: all of it, and by what it waits for. `communication` is of links,
    of which `exposed` runs beside nothing.
    """

    seconds: float
    compute: float
    memory: float
    communication: float
    exposed: float

    @property
    def bound(self) -> Literal["compute", "memory", "communication"]:
        """The resource that is busy longest."""
        if self.communication > max(self.compute, self.memory):
            return "communication"
        return "compute" if self.compute >= self.memory else "memory"

    def __str__(self) -> str:
        parts = [f"{name} {1e6 * getattr(self, name):,.4g} us" for name in ("compute", "memory", "communication")]
        exposed = f"of which {1e6 * self.exposed:,.4g} us beside nothing"
        return f"predicted: {1e6 * self.seconds:,.4g} us: {', '.join(parts)}, {exposed}; bound by {self.bound}"


def rates_of(name: str | None) -> ProgramRates:
    """Those of a topology's devices computing in 16 bits; without one, of the cores of one host as layouts are chosen
    for: 100 GFLOP/s and 10 GB/s each, assumed. They are the same on every rank.

    Raises ArgumentError for a topology that there is not.
    """
    found = topology(name or _HOST)
    if found.device is None or found.device not in EFFICIENCIES:
        return ProgramRates(1e11, 1e10, found)
    efficiency = EFFICIENCIES[found.device]
    rates = device_rates(found, "bf16", efficiency)
    return ProgramRates(rates.wide * efficiency.products, rates.memory_rate * efficiency.memory, found)


def predicted(program: LocalProgram, limits: OverlapLimits, chunk: int, rates: ProgramRates) -> ProgramTime:
    """What a program takes with products in `chunk` pieces. One exchange travels at a time."""
    program = chunked(program, chunk)
    now = free = compute = memory = communication = exposed = 0.0
    ends: dict[tuple[int, ...], float] = {}
    for step in schedule_of(program, limits):
        if isinstance(step, Evaluate):
            by_work = sum([work_of(program, number) for number in step.members]) / rates.flop_per_s
            moved = sum([shard_bytes(program.values[number]) for number in (*step.used, *step.wanted)])
            by_bytes = moved / rates.byte_per_s
            compute, memory = (compute + by_work, memory) if by_work >= by_bytes else (compute, memory + by_bytes)
            now += max(by_work, by_bytes)
        elif isinstance(step, Start):
            taken = _exchange_s(program, step.bucket, rates)
            communication += taken
            free = ends[step.bucket] = max(now, free) + taken
        elif isinstance(step, Wait):
            end = ends.pop(step.bucket)
            exposed += max(0.0, end - now)
            now = max(now, end)
    return ProgramTime(now, compute, memory, communication, exposed)


def _exchange_s(program: LocalProgram, bucket: Sequence[int], rates: ProgramRates) -> float:
    """Seconds of what travels as one."""
    moves = [each for each in (program.instructions[number] for number in bucket) if isinstance(each, ShardMove)]
    step = moves[0].step
    # The whole tensor of a group: what is gathered, or what is reduced or sent.
    held = bucket if step.kind == "AllGather" else [move.operand for move in moves]
    nbytes = sum([shard_bytes(program.values[number]) for number in held])
    size, stride = np.array([step.source.mesh.size(step.axis)]), np.array([_stride(program.mesh, step.axis)])
    return float(seconds(rates.topology, _COLLECTIVES[step.kind], np.array([float(nbytes)]), size, stride)[0])


def _stride(mesh: MeshShape, axis: str) -> int:
    """How far apart the devices along an axis are; those along the last one are neighbours."""
    names = [name for name, _ in mesh.axes]
    found = 1
    for _, size in mesh.axes[names.index(axis) + 1 :]:
        found *= size
    return found
