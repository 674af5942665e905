"""The problem that each walk of attention's gradient is on a GPU, and the rules of its schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tessera.dtypes import DType
from tessera.scheduling.families.attention.gpu.rules import is_amd, reads_shared
from tessera.scheduling.families.attention_gradient.gpu.walks import sums_of, walks_of
from tessera.scheduling.families.attention_gradient.space import apart_axes
from tessera.scheduling.language.expression import post_order
from tessera.scheduling.language.knobs import Rule
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import AttentionGradientSpec, under_cast
from tessera.target import Target
from tessera.target.facts import GpuLimits

SMALLEST = 16
"""Queries and keys of the smallest block, which is permitted whatever spills."""


@dataclass(frozen=True)
class GpuGradientProblem:
    """What legality and cost depend on: extents, dtypes, machine.

    `shared` is the number of heads of keys, `group` that of queries' heads that share one. With `by_keys` programs hold
    keys and sum for them, else queries; `sums` are the axes of a head along which they do. `scored` says whether steps
    change the scores, `pair_bytes` what is read for each pair of a query and a key, as of a mask.
    """

    shared: int
    group: int
    queries: int
    keys: int
    head: int
    value_head: int
    causal: bool
    by_keys: bool
    sums: tuple[str, ...]
    operand: DType
    accumulator: DType
    scored: bool
    pair_bytes: int
    target: Target

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""
        return self.shared, self.group, self.queries, self.keys, self.head, self.value_head

    @property
    def workers(self) -> int:
        """One, the device."""
        return 1

    @property
    def limits(self) -> GpuLimits:
        """What bounds a block and a multiprocessor."""
        assert self.target.gpu is not None
        return self.target.gpu

    @property
    def is_narrow(self) -> bool:
        """Whether operands are of at most 16 bits, which matrix units multiply."""
        return self.operand.itemsize <= 2


def gradient_gpu_problem(spec: AttentionGradientSpec, target: Target, extents: Mapping[str, int]) -> GpuGradientProblem:
    """What the rules of schedules for `spec` need to know, for the extents of its axes. What asks for both walks, which
    no kernel does, is posed as that of keys.
    """
    by_keys, apart = "k" in walks_of(spec), apart_axes(spec)
    changed = None if spec.scoring is None else spec.scoring.changed
    expressions = post_order([each for each in (spec.mask, changed) if each is not None])
    read = [each for each in expressions if each.operation == "load" and {"q", "k"} <= each.axes]
    return GpuGradientProblem(
        shared=math.prod([extents[axis] for axis in spec.batch if axis not in apart]),
        group=math.prod([extents[axis] for axis in apart]),
        queries=extents["q"],
        keys=extents["k"],
        head=extents["d"],
        value_head=extents["v"],
        causal=spec.causal,
        by_keys=by_keys,
        sums=tuple(part.axis for part in sums_of(spec) if (part.held == "k") is by_keys),
        operand=under_cast(spec.q).dtype,
        accumulator=spec.accumulator.dtype,
        scored=spec.scoring is not None,
        pair_bytes=sum(each.dtype.itemsize for each in read),
        target=target,
    )


def sides(schedule: Schedule, problem: GpuGradientProblem) -> tuple[int, int]:
    """What a program holds of its side, and what it walks at a time of the other one."""
    queries, keys = schedule.integers("tile")
    return (keys, queries) if problem.by_keys else (queries, keys)


def _reads_shared(schedule: Schedule, problem: GpuGradientProblem) -> bool:
    held = sides(schedule, problem)[0]
    return reads_shared(held, schedule.integer("warps"), problem.operand, problem.target)


def shared_bytes(schedule: Schedule, problem: GpuGradientProblem) -> int:
    """Bytes of shared memory that one block takes at most, as Triton 3.6 was seen to allot them: what is held, what is
    walked, as often as it is in flight, logarithms and means, and weights on their way from the layout of a result to
    that of an operand, which Hopper's matrix units read from registers.
    """
    rows, columns = sides(schedule, problem)
    head, value_head = schedule.integers("head")
    stages, size = schedule.integer("pipeline_depth"), problem.operand.itemsize
    flying, held, weights = columns * (head + value_head), rows * (head + value_head), rows * columns
    if is_amd(problem.target):
        elements = flying * stages
    elif _reads_shared(schedule, problem):
        elements = held + flying * stages
        if problem.target.arch == "sm_100":
            elements += len(problem.sums) * max(weights, flying // 2)
    else:
        elements = flying * max(stages - 1, 1) + max(held, 2 * weights) + len(problem.sums) * weights
    mask = weights * problem.pair_bytes * max(stages - 1, 1)
    beside = 2 * columns * problem.accumulator.itemsize * stages if problem.by_keys else 0
    return max(elements * size + mask + beside, rows * max(head, value_head) * problem.accumulator.itemsize)


def values_per_thread(schedule: Schedule, problem: GpuGradientProblem) -> float:
    """32-bit registers of a thread that hold sums, scores and their cotangents, and operands where they are multiplied
    from registers.
    """
    rows, columns = sides(schedule, problem)
    widths = dict(zip("dv", schedule.integers("head"), strict=True))
    wide, size = problem.accumulator.itemsize / 4, problem.operand.itemsize
    words = rows * (sum(widths[axis] for axis in problem.sums) + 2 * columns) * wide
    held, flying = (side * sum(widths.values()) * size / 4 for side in (rows, columns))
    if size > 2:
        words += held + flying
    elif not is_amd(problem.target):
        words += flying / 2 + (0 if _reads_shared(schedule, problem) else held)
    words += rows * columns * (problem.scored * wide + max(problem.pair_bytes, 2 if problem.pair_bytes else 0) / 4)
    return words / (schedule.integer("warps") * problem.limits.warp_size)


def registers_for_values(schedule: Schedule, problem: GpuGradientProblem) -> float:
    """How many of a thread's registers `values_per_thread` may take so that none was seen to spill."""
    limits = problem.limits
    threads = schedule.integer("warps") * limits.warp_size
    registers = min(limits.max_registers_per_thread + 1, limits.registers // threads)
    if is_amd(problem.target):
        return 0.2 * registers
    if not problem.is_narrow:
        return 0.45 * registers
    if _reads_shared(schedule, problem):
        return (0.78 if problem.by_keys else 0.88) * registers
    return (0.66 if problem.by_keys else 0.78) * registers


def _is_smallest(schedule: Schedule) -> bool:
    return schedule.integers("tile") == (SMALLEST, SMALLEST)


# -- rules ------------------------------------------------------------------------------------------------------------


def _heads(schedule: Schedule, problem: GpuGradientProblem) -> bool:
    head, value_head = schedule.integers("head")
    if schedule["exact"]:
        return (head, value_head) == (problem.head, problem.value_head)
    return head >= problem.head and value_head >= problem.value_head


def _dot(schedule: Schedule, problem: GpuGradientProblem) -> bool:
    least = 32 if problem.operand.itemsize == 1 else 16
    sizes = (*schedule.integers("tile"), *schedule.integers("head"))
    return all(size >= least and not size & (size - 1) for size in sizes)


def _rows(schedule: Schedule, problem: GpuGradientProblem) -> bool:
    rows = sides(schedule, problem)[0]
    shared = rows >= 32 and not (_reads_shared(schedule, problem) or is_amd(problem.target))
    fits = rows >= (8 if shared else 16) * schedule.integer("warps")
    return fits or not problem.is_narrow or _is_smallest(schedule)


def _shared(schedule: Schedule, problem: GpuGradientProblem) -> bool:
    return shared_bytes(schedule, problem) <= problem.limits.max_shared_bytes_per_block


def _registers(schedule: Schedule, problem: GpuGradientProblem) -> bool:
    fits = values_per_thread(schedule, problem) <= registers_for_values(schedule, problem)
    return fits or _is_smallest(schedule)


def _block(schedule: Schedule, problem: GpuGradientProblem) -> bool:
    return schedule.integer("warps") * problem.limits.warp_size <= 1024


def _stages(schedule: Schedule, problem: GpuGradientProblem) -> bool:
    return not problem.pair_bytes or not is_amd(problem.target) or schedule.integer("pipeline_depth") <= 3


def _useful(schedule: Schedule, problem: GpuGradientProblem) -> bool:
    queries, keys = schedule.integers("tile")
    return queries <= max(32, 2 * problem.queries) and keys <= max(32, 2 * problem.keys)


RULES: tuple[Rule[GpuGradientProblem], ...] = (
    Rule("heads-fit", "tiles are as wide as heads; exact ones promise that nothing is masked", _heads),
    Rule("matrix-unit-shape", "a tile holds at least one 16 x 16 x 16 product, extents are powers of two", _dot),
    Rule(
        "rows-per-warp",
        "each warp has 16 rows of scores, as matrix units have; 8 where two warps may share one (Ampere)",
        _rows,
    ),
    Rule("shared-memory", "what is held and what is in flight must fit the shared memory of one block", _shared),
    Rule(
        "values-in-registers",
        "sums, scores and operands in registers leave room for what else a thread holds, if there are smaller tiles",
        _registers,
    ),
    Rule("threads-per-block", "a block has at most 1024 threads", _block),
    Rule("stages-beside-mask", "Triton 3.6 for AMD was seen to fail at four stages where a mask is read", _stages),
    Rule("tile-within-problem", "a tile is at most twice as large as the problem, or as small as tiles get", _useful),
)
