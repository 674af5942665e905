"""The rules of attention's schedules on GPUs: what a block and a thread may take, with what was seen to spill."""

from __future__ import annotations

from tessera.dtypes import DType, bf16, fp8_e4m3
from tessera.scheduling.families.attention.parts import PARTS
from tessera.scheduling.families.attention.space import AttentionProblem
from tessera.scheduling.language.knobs import Rule
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target
from tessera.target.facts import GpuLimits
from tessera.target.float8 import has_float8, rounds_float8

LEAST_PART = 128
"""Keys of a part at least."""


def weights_dtype(operand: DType, target: Target) -> DType:
    """The dtype in which weights are multiplied with values: that of these. Of 8-bit floats that is so where a GPU
    multiplies them and rounds to them by instructions, else bf16, which has them exactly; fp8_e5m2, which would be
    coarse, is always multiplied so.
    """
    if operand.itemsize > 1:
        return operand
    return operand if operand is fp8_e4m3 and rounds_float8(target) else bf16


def _limits(problem: AttentionProblem) -> GpuLimits:
    assert problem.target.gpu is not None
    return problem.target.gpu


def reads_shared(rows: int, warps: int, operand: DType, target: Target) -> bool:
    """Whether the matrix units read their operands from shared memory: those of Hopper and later, which multiply 64
    rows of narrow operands for four warps together.
    """
    return rows >= 64 and warps >= 4 and target.arch in ("sm_90", "sm_100") and operand.itemsize <= 2


def is_amd(target: Target) -> bool:
    """Whether the GPU is one of AMD's."""
    return target.arch.startswith("gfx")


def _reads_shared(schedule: Schedule, problem: AttentionProblem) -> bool:
    rows, warps = schedule.integers("tile")[0], schedule.integer("warps")
    return reads_shared(rows, warps, problem.operand, problem.target)


def shared_bytes(schedule: Schedule, problem: AttentionProblem) -> int:
    """Bytes of shared memory that one block takes at most, as Triton 3.6 was seen to allot them.

    Keys, values and the mask in flight, as for products; the queries, but on AMD; and, where the matrix units read
    registers, the weights on their way from the layout of a result to that of an operand. Values of 8 bits lie there
    once more, in bf16.
    """
    bm, bn = schedule.integers("tile")
    head, value_head = schedule.integers("head")
    stages, size = schedule.integer("pipeline_depth"), problem.operand.itemsize
    flying, queries, weights = bn * (head + value_head), bm * head, bm * bn
    if is_amd(problem.target):
        elements = flying * stages
    elif _reads_shared(schedule, problem):
        elements = queries + flying * stages
    else:
        elements = queries + flying * max(stages - 1, 1) + weights
    mask = bm * bn * problem.mask.itemsize * max(stages - 1, 1) if problem.mask is not None else 0
    converted = bn * value_head * 2 if size == 1 else 0
    return max(elements * size + mask + converted, bm * value_head * size)


def values_per_thread(schedule: Schedule, problem: AttentionProblem) -> float:
    """32-bit registers of a thread that hold sums and scores, and what else decides whether a schedule spills.

    Operands where they are multiplied from registers: the queries by matrix units as Ampere has them, all of them by
    ordinary instructions (fp32, fp64). The addresses of keys and values on their way to shared memory, 16 bytes each.
    A mask in fp32, in which it is added; half of that where NVIDIA's compiler has booleans. Values of 8 bits on their
    way to bf16.
    """
    bm, bn = schedule.integers("tile")
    head, value_head = schedule.integers("head")
    size = problem.operand.itemsize
    queries, flying = bm * head * size / 4, bn * (head + value_head) * size / 4
    words = bm * (value_head + bn) * problem.accumulator.itemsize / 4
    if size > 2:
        words += queries + flying
    elif not is_amd(problem.target):
        words += flying / 2 + (0 if _reads_shared(schedule, problem) else queries)
    if size == 1:
        words += bn * value_head / 2
    if problem.mask is not None:
        words += bm * bn / (2 if problem.mask.kind == "bool" and not is_amd(problem.target) else 1)
    return words / (schedule.integer("warps") * _limits(problem).warp_size)


def registers_for_values(schedule: Schedule, problem: AttentionProblem) -> float:
    """How many of a thread's registers `values_per_thread` may take so that none was seen to spill.

    The rest holds what is in flight between memory and shared memory (on AMD most of all), addresses and masks.
    """
    limits = _limits(problem)
    threads = schedule.integer("warps") * limits.warp_size
    registers = min(limits.max_registers_per_thread + 1, limits.registers // threads)
    if is_amd(problem.target):
        return 0.18 * registers
    if problem.operand.itemsize > 2:
        return 0.3 * registers
    if problem.operand.itemsize == 1 and has_float8(problem.target) and not _reads_shared(schedule, problem):
        return 0.6 * registers  # what converts them on the way to a warp's own matrix unit: 64 x 64 was seen to spill
    return 0.67 * registers


def _heads(schedule: Schedule, problem: AttentionProblem) -> bool:
    head, value_head = schedule.integers("head")
    if schedule["exact"]:
        return (head, value_head) == (problem.head, problem.value_head)
    return head >= problem.head and value_head >= problem.value_head


def _dot(schedule: Schedule, problem: AttentionProblem) -> bool:
    least = 32 if problem.operand.itemsize == 1 else 16
    sizes = (*schedule.integers("tile"), *schedule.integers("head"))
    powers = all(size >= 16 and not size & (size - 1) for size in sizes)
    return powers and sizes[1] >= least and sizes[2] >= least


def _rows(schedule: Schedule, problem: AttentionProblem) -> bool:
    if problem.operand.itemsize > 2:
        return True
    bm = schedule.integers("tile")[0]
    shared = bm >= 32 and not (_reads_shared(schedule, problem) or is_amd(problem.target))
    return bm >= (8 if shared else 16) * schedule.integer("warps")


def _shared(schedule: Schedule, problem: AttentionProblem) -> bool:
    return shared_bytes(schedule, problem) <= _limits(problem).max_shared_bytes_per_block


def _registers(schedule: Schedule, problem: AttentionProblem) -> bool:
    return values_per_thread(schedule, problem) <= registers_for_values(schedule, problem)


def _block(schedule: Schedule, problem: AttentionProblem) -> bool:
    return schedule.integer("warps") * _limits(problem).warp_size <= 1024


def _stages(schedule: Schedule, problem: AttentionProblem) -> bool:
    return problem.mask is None or not is_amd(problem.target) or schedule.integer("pipeline_depth") <= 3


def _cut(schedule: Schedule, problem: AttentionProblem) -> bool:
    parts = schedule.integer(PARTS) if PARTS in schedule else 1
    if parts == 1:
        return True
    least = max(LEAST_PART, schedule.integers("tile")[1])
    return not problem.is_trained and parts * least <= problem.keys


def _useful(schedule: Schedule, problem: AttentionProblem) -> bool:
    bm, bn = schedule.integers("tile")
    return bm <= max(32, 2 * problem.queries) and bn <= max(32, 2 * problem.keys)


RULES: tuple[Rule[AttentionProblem], ...] = (
    Rule("heads-fit", "tiles are as wide as heads; exact ones promise that nothing is masked", _heads),
    Rule("matrix-unit-shape", "a tile holds at least one 16 x 16 x 16 product, extents are powers of two", _dot),
    Rule(
        "rows-per-warp",
        "each warp has 16 queries, as a row of matrix units has; 8 where two warps may share one (Ampere)",
        _rows,
    ),
    Rule("shared-memory", "queries and the keys and values in flight must fit the shared memory of one block", _shared),
    Rule(
        "values-in-registers",
        "scores, sums and operands in registers leave room for what else a thread holds",
        _registers,
    ),
    Rule("threads-per-block", "a block has at most 1024 threads", _block),
    Rule("stages-beside-mask", "Triton 3.6 for AMD was seen to fail at four stages where a mask is read", _stages),
    Rule(
        "parts-of-keys",
        "parts of the keys are worth a block's while, a step long at least, and none where logarithms are saved",
        _cut,
    ),
    Rule("tile-within-problem", "a tile is at most twice as large as the problem, or as small as tiles get", _useful),
)
