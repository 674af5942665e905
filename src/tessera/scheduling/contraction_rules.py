"""Which schedules of a matrix product on CPUs are legal."""

from __future__ import annotations

from collections.abc import Callable

from tessera.scheduling.contraction_problem import (
    SHARED,
    ContractionProblem,
    as_run,
    dot_vectors,
    dots_fit,
)
from tessera.scheduling.knobs import Rule
from tessera.scheduling.schedule import Schedule


def _rule(name: str, reason: str, holds: Callable[[Schedule, ContractionProblem], bool]) -> Rule[ContractionProblem]:
    return Rule(name, reason, lambda schedule, problem: holds(*as_run(schedule, problem)))


def _packed_by_all(schedule: Schedule, problem: ContractionProblem) -> bool:
    return schedule["pack_b"] != SHARED


def _registers(schedule: Schedule, problem: ContractionProblem) -> bool:
    mr, nr = schedule.integers("micro")
    if schedule["order"] == "dots":
        return (mr * nr + nr + 1) * dot_vectors(problem) <= problem.target.vector_registers
    lanes = problem.target.vector_bits // (8 * problem.accumulator.itemsize)
    columns = -(-nr // lanes) * problem.products
    return (mr + problem.quads) * columns + columns + 1 <= problem.target.vector_registers


def _full_lanes(schedule: Schedule, problem: ContractionProblem) -> bool:
    return schedule["order"] == "dots" or schedule.integers("micro")[1] % (problem.target.vector_bits // 32) == 0


def _blocks(schedule: Schedule, problem: ContractionProblem) -> bool:
    mc, nc, kc = schedule.integers("tile")
    mr, nr = schedule.integers("micro")
    return mc >= mr and nc >= nr and kc % 2 == 0


def _scratch(schedule: Schedule, problem: ContractionProblem) -> bool:
    mc, nc, kc = schedule.integers("tile")
    size = problem.element_bytes
    packed = (mc * kc * size if schedule["pack_a"] else 0) + (nc * kc * size if schedule["pack_b"] else 0)
    return packed <= 16 << 20


def sums_have_a_place(schedule: Schedule, problem: ContractionProblem) -> bool:
    """Whether several blocks of K have somewhere to add up in."""
    mc, nc, kc = schedule.integers("tile")
    if schedule["sums"] == "registers":
        return kc >= problem.k or schedule["order"] == "dots"
    if schedule["sums"] == "output":
        return kc >= problem.k or (problem.out_dtype == problem.accumulator and problem.outputs == 1)
    mr = schedule.integers("micro")[0]
    return problem.m <= mc // mr * mr and mc * nc * problem.accumulator.itemsize <= 4 << 20


def _splits(schedule: Schedule, problem: ContractionProblem) -> bool:
    return schedule["parallel"] != "batch" or problem.batch > 1


def _prologue(schedule: Schedule, problem: ContractionProblem) -> bool:
    a_stays = not problem.a_mapped and not problem.quads
    b_stays = not problem.b_mapped or schedule["order"] == "dots"
    return bool((schedule["pack_a"] or a_stays) and (schedule["pack_b"] or b_stays))


def _whole_rows(schedule: Schedule, problem: ContractionProblem) -> bool:
    return not problem.a_walks or schedule.integers("tile")[2] >= problem.k


def _streams(schedule: Schedule, problem: ContractionProblem) -> bool:
    return bool(schedule["pack_b"] or problem.b_panels or problem.b_contiguous == "n" or schedule["order"] == "dots")


def _panels(schedule: Schedule, problem: ContractionProblem) -> bool:
    return not problem.b_panels or (schedule.integers("micro")[1] == problem.b_panels and not schedule["pack_b"])


def _siblings(schedule: Schedule, problem: ContractionProblem) -> bool:
    return problem.products == 1 or (schedule["sums"] == "registers" and bool(problem.b_panels))


def _dots(schedule: Schedule, problem: ContractionProblem) -> bool:
    if schedule["order"] != "dots":
        return True
    packed = schedule["pack_a"] or schedule["pack_b"] or schedule["parallel"] == "rows"
    once = not problem.b_mapped or schedule.integers("micro")[0] >= problem.m
    return not packed and once and schedule["sums"] == "registers" and dots_fit(problem)


RULES: tuple[Rule[ContractionProblem], ...] = (
    _rule(
        "vector-registers", "accumulators, one row of B and one element of A must fit the vector registers", _registers
    ),
    _rule("full-lanes", "the register tile's width is a whole number of vectors", _full_lanes),
    _rule("block-holds-tile", "cache blocks hold at least one register tile, and K blocks are even", _blocks),
    _rule("scratch-memory", "packed blocks take at most 16 MiB per worker", _scratch),
    _rule(
        "sums-have-a-place",
        "several K blocks add up in an output of the accumulator's dtype, or in scratch memory for all rows",
        sums_have_a_place,
    ),
    _rule("prologue-needs-packing", "a mapped operand is computed while it is packed", _prologue),
    _rule("whole-rows", "rows that are normalized on the way lie in one block of K", _whole_rows),
    _rule("dots-along-k", "dot products read operands that are contiguous along K where they are", _dots),
    _rule("batch-to-split", "only a batch can be cut into shares along the batch", _splits),
    _rule(
        "packed-constant", "panels of a constant are as wide as the register tile, and are not packed again", _panels
    ),
    _rule("siblings-in-registers", "two products are formed together of packed constants, over all of K", _siblings),
    _rule("strided-needs-packing", "B is read in place only where its rows are contiguous", _streams),
    _rule(
        "packed-by-all",
        "only a B that is read as it lies, and by no constant, is packed by all workers",
        _packed_by_all,
    ),
)
