"""The knobs, rules and default schedule of matrix products on GPUs.

What a block takes of shared memory is what Triton 3.6 was seen to allot: the operands' tiles once for each stage on
Hopper and Blackwell, whose matrix units read shared memory while the next tiles arrive there, and once for each stage
but one on Ampere and CDNA 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.dtypes import DType
from tessera.scheduling.knobs import Knob, Rule, Space
from tessera.scheduling.schedule import Schedule
from tessera.target import Target
from tessera.target.facts import GpuLimits


@dataclass(frozen=True)
class GpuContractionProblem:
    """What legality depends on: extents, the dtype that is multiplied, that of the sums, the outputs', and the GPU."""

    m: int
    n: int
    k: int
    batch: int
    operand: DType
    accumulator: DType
    output: DType
    target: Target

    @property
    def limits(self) -> GpuLimits:
        """What bounds a block and a multiprocessor."""
        assert self.target.gpu is not None
        return self.target.gpu

    @property
    def half_of_registers(self) -> int:
        """Half of the registers that a thread can have."""
        return (self.limits.max_registers_per_thread + 1) // 2

    @property
    def reads_shared(self) -> bool:
        """Whether the matrix units read their operands from shared memory: Hopper and later, narrow operands."""
        return self.target.arch in ("sm_90", "sm_100") and self.operand.itemsize <= 2


def shared_bytes(schedule: Schedule, problem: GpuContractionProblem) -> int:
    """Bytes of shared memory of one block: the operands' tiles in flight, or the result's on its way out."""
    bm, bn, bk = schedule.integers("tile")
    stages = schedule.integer("pipeline_depth")
    buffers = stages if problem.reads_shared else max(stages - 1, 1)
    operands = (bm * bk + bk * bn) * problem.operand.itemsize * buffers
    return max(operands, bm * bn * problem.output.itemsize)


def sums_per_thread(schedule: Schedule, problem: GpuContractionProblem) -> float:
    """32-bit registers of a thread that hold sums."""
    bm, bn, _ = schedule.integers("tile")
    threads = schedule.integer("warps") * problem.limits.warp_size
    return bm * bn * problem.accumulator.itemsize / 4 / threads


def _dot(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    bm, bn, bk = schedule.integers("tile")
    return bm >= 16 and bn >= 16 and bk >= (32 if problem.operand.itemsize == 1 else 16)


def _shared(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    return shared_bytes(schedule, problem) <= problem.limits.max_shared_bytes_per_block


def _registers(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    return sums_per_thread(schedule, problem) <= problem.half_of_registers


def _operands(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    if problem.operand.itemsize <= 2:
        return True
    # Wide operands are multiplied by ordinary instructions, from registers: a block of each stands there.
    bm, bn, bk = schedule.integers("tile")
    threads = schedule.integer("warps") * problem.limits.warp_size
    words = (bm + bn) * bk * problem.operand.itemsize / 4 / threads
    return words + sums_per_thread(schedule, problem) <= problem.half_of_registers


def _block(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    return schedule.integer("warps") * problem.limits.warp_size <= 1024


def _work(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    bm, bn, _ = schedule.integers("tile")
    return bm * bn >= schedule.integer("warps") * problem.limits.warp_size


def _useful(schedule: Schedule, problem: GpuContractionProblem) -> bool:
    bm, bn, bk = schedule.integers("tile")
    return bm <= max(16, 2 * problem.m) and bn <= max(16, 2 * problem.n) and bk <= max(32, 2 * problem.k)


RULES: tuple[Rule[GpuContractionProblem], ...] = (
    Rule("matrix-unit-shape", "a tile holds at least one 16 x 16 x 16 product (32 deep for 8-bit operands)", _dot),
    Rule("shared-memory", "the tiles in flight must fit the shared memory of one block", _shared),
    Rule("sums-in-registers", "the sums of a thread take at most half of its registers", _registers),
    Rule("operands-in-registers", "wide operands and sums take at most half of a thread's registers", _operands),
    Rule("threads-per-block", "a block has at most 1024 threads", _block),
    Rule("work-per-thread", "each thread has at least one element of the result", _work),
    Rule("tile-within-problem", "a tile is at most twice as large as the problem, or as small as tiles get", _useful),
)


def knobs() -> tuple[Knob, ...]:
    """The knobs of a matrix product on a GPU."""
    tiles = tuple(
        (bm, bn, bk) for bm in (16, 32, 64, 128, 256) for bn in (16, 32, 64, 128, 256) for bk in (16, 32, 64, 128)
    )
    return (
        Knob("tile", tiles, "the block's tile (BM, BN), and how deep one step along K is (BK)"),
        Knob("warps", (1, 2, 4, 8, 16), "warps of a block"),
        Knob("pipeline_depth", (1, 2, 3, 4, 5), "stages: tiles that are on their way at a time"),
        Knob("group", (1, 4, 8, 16), "rows of blocks that run side by side, so that they share B's tiles in L2"),
    )


STARTS: tuple[tuple[tuple[int, int, int], int, int], ...] = (
    ((128, 256, 64), 3, 8),
    ((128, 128, 64), 3, 8),
    ((128, 128, 64), 2, 8),
    ((128, 128, 32), 3, 8),
    ((64, 128, 32), 3, 4),
    ((64, 64, 32), 2, 4),
    ((32, 64, 32), 2, 4),
    ((32, 32, 16), 2, 4),
    ((16, 32, 16), 2, 1),
    ((16, 16, 16), 1, 1),
    ((16, 16, 32), 1, 1),
)
"""(tile, stages, warps), the best first: the first ones are known to be good for bf16 on Hopper."""


def default_schedule(problem: GpuContractionProblem) -> Schedule:
    """The first of the known good starts that is legal and gives every multiprocessor a block; where none does, the
    last one of at least 64 rows.
    """
    legal: list[Schedule] = []
    for tile, stages, warps in STARTS:
        schedule = Schedule(tile=tile, warps=warps, pipeline_depth=stages, group=8)
        if all(rule.holds(schedule, problem) for rule in RULES):
            legal.append(schedule)
            bm, bn, _ = tile
            if -(-problem.m // bm) * -(-problem.n // bn) * problem.batch >= problem.target.cores:
                return schedule
    tall = [schedule for schedule in legal if schedule.integers("tile")[0] >= 64]
    return (tall or legal)[-1]


def space(problem: GpuContractionProblem) -> Space[GpuContractionProblem]:
    """All schedules of one matrix product."""
    return Space(knobs(), RULES, problem, default_schedule(problem))
