"""Which schedules of a matrix product on CPUs are legal."""

from __future__ import annotations

from collections.abc import Callable

from tessera.scheduling.families.product.matrix.turned import stays_in_place, turned_problem, turned_schedule
from tessera.scheduling.families.product.problem import SHARED, ContractionProblem, dot_vectors, dots_fit
from tessera.scheduling.language.columns import Knobs, Number, divided, no, piecewise
from tessera.scheduling.language.knobs import Rule, batched
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX, UNIT_REGISTERS, UNIT_ROWS


def _rule(name: str, reason: str, holds: Callable[[Knobs, ContractionProblem], Number]) -> Rule[ContractionProblem]:
    """A rule about the product itself, of the operands as the kernel finds them: B packed by all, or its rows in place
    as the first operand.
    """

    def alone(schedule: Knobs, problem: ContractionProblem) -> Number:
        if not problem.turns:
            return holds(schedule, problem)
        return piecewise(
            schedule,
            stays_in_place(schedule, problem),
            lambda turned: holds(turned_schedule(turned), turned_problem(problem)),
            lambda straight: holds(straight, problem),
        )

    def as_run(schedule: Knobs, problem: ContractionProblem) -> Number:
        if not problem.shared_panels:
            return alone(schedule, problem)
        return piecewise(
            schedule,
            schedule.equals("pack_b", SHARED),
            lambda packed: holds(packed.replace(pack_b=False), problem.over_panels),
            lambda others: alone(others, problem),
        )

    return Rule(name, reason, as_run)


def _in_unit(schedule: Knobs, problem: ContractionProblem) -> Number:
    """Whether the matrix unit multiplies; only products that it can multiply have the knob."""
    return schedule.equals("unit", MATRIX) if problem.has_unit else False


def _packed_by_all(schedule: Knobs, problem: ContractionProblem) -> Number:
    return no(schedule.equals("pack_b", SHARED))


def _turned_sums(schedule: Knobs, problem: ContractionProblem) -> Number:
    return no(stays_in_place(schedule, problem)) | no(schedule.equals("sums", "output"))


def _matrix_unit(schedule: Knobs, problem: ContractionProblem) -> Number:
    mr, nr = schedule.integers("micro")
    kc = schedule.integers("tile")[2]
    rows, columns = divided(mr, UNIT_ROWS), divided(nr * problem.products, UNIT_ROWS)
    fits = (rows * columns + rows + columns <= UNIT_REGISTERS) & ((mr <= UNIT_ROWS) | (mr % UNIT_ROWS == 0))
    grouped = (schedule.flag("pack_b") & problem.pairs) | bool(problem.b_panels)  # bytes are grouped in panels only
    legal = fits & grouped & (kc % problem.unit_depth == 0) & no(schedule.equals("order", "dots"))
    return no(_in_unit(schedule, problem)) | legal


def _registers(schedule: Knobs, problem: ContractionProblem) -> Number:
    mr, nr = schedule.integers("micro")
    held = (mr * nr + nr + 1) * dot_vectors(problem)
    lanes = problem.target.vector_bits // (8 * problem.accumulator.itemsize)
    columns = divided(nr, lanes) * problem.products
    sums = (mr + problem.quads) * columns + columns + 1
    dots, most = schedule.equals("order", "dots"), problem.target.vector_registers
    return (dots & (held <= most)) | (no(dots) & (sums <= most)) | _in_unit(schedule, problem)


def _full_lanes(schedule: Knobs, problem: ContractionProblem) -> Number:
    whole = schedule.integers("micro")[1] % (problem.target.vector_bits // 32) == 0
    return schedule.equals("order", "dots") | whole


def _blocks(schedule: Knobs, problem: ContractionProblem) -> Number:
    mc, nc, kc = schedule.integers("tile")
    mr, nr = schedule.integers("micro")
    return (mc >= mr) & (nc >= nr) & (kc % 2 == 0)


def _scratch(schedule: Knobs, problem: ContractionProblem) -> Number:
    mc, nc, kc = schedule.integers("tile")
    packed = mc * kc * schedule.flag("pack_a") + nc * kc * schedule.flag("pack_b")
    return packed * problem.element_bytes <= 16 << 20


def sums_have_a_place(schedule: Knobs, problem: ContractionProblem) -> Number:
    """Whether several blocks of K have somewhere to add up in."""
    mc, nc, kc = schedule.integers("tile")
    mr = schedule.integers("micro")[0]
    one_block = kc >= problem.k
    adds = problem.out_dtype == problem.accumulator and problem.outputs == 1
    steps_along_k = one_block & _in_unit(schedule, problem)
    held = (problem.m <= mc // mr * mr) | steps_along_k
    held = held & (mc * nc * problem.accumulator.itemsize <= 4 << 20)
    return (
        (schedule.equals("sums", "registers") & (one_block | schedule.equals("order", "dots")))
        | (schedule.equals("sums", "output") & (one_block | adds))
        | (schedule.equals("sums", "scratch") & held)
    )


def _splits(schedule: Knobs, problem: ContractionProblem) -> Number:
    return no(schedule.equals("parallel", "batch")) | (problem.batch > 1)


def _prologue(schedule: Knobs, problem: ContractionProblem) -> Number:
    in_unit = _in_unit(schedule, problem)
    a_stays = (not problem.a_mapped) & ((not problem.quads) | in_unit)
    a_stays = a_stays & ((problem.a_contiguous == "k") | no(in_unit))
    b_stays = schedule.equals("order", "dots") | (not problem.b_mapped)
    return (schedule.flag("pack_a") | a_stays) & (schedule.flag("pack_b") | b_stays)


def _whole_rows(schedule: Knobs, problem: ContractionProblem) -> Number:
    return (schedule.integers("tile")[2] >= problem.k) | (not problem.a_walks)


def _streams(schedule: Knobs, problem: ContractionProblem) -> Number:
    along_n = bool(problem.b_panels) or problem.b_contiguous == "n"
    return schedule.flag("pack_b") | schedule.equals("order", "dots") | along_n


def _panels(schedule: Knobs, problem: ContractionProblem) -> Number:
    as_wide = schedule.integers("micro")[1] == problem.b_panels
    return (as_wide & no(schedule.flag("pack_b"))) | (not problem.b_panels)


def _siblings(schedule: Knobs, problem: ContractionProblem) -> Number:
    return (schedule.equals("sums", "registers") & bool(problem.b_panels)) | (problem.products == 1)


def _dots(schedule: Knobs, problem: ContractionProblem) -> Number:
    packed = schedule.flag("pack_a") | schedule.flag("pack_b") | schedule.equals("parallel", "rows")
    once = (schedule.integers("micro")[0] >= problem.m) | (not problem.b_mapped)
    legal = no(packed) & once & schedule.equals("sums", "registers") & dots_fit(problem)
    return no(schedule.equals("order", "dots")) | legal


RULES: tuple[Rule[ContractionProblem], ...] = batched(
    _rule(
        "vector-registers", "accumulators, one row of B and one element of A must fit the vector registers", _registers
    ),
    _rule(
        "matrix-unit",
        "sums and both operands fit the eight registers of the matrix unit, in whole steps of K, and B is packed, or A "
        "where B's columns are read where they lie",
        _matrix_unit,
    ),
    Rule("turned-sums", "where the unit reads columns of B in place, sums do not wait in the output", _turned_sums),
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
    _rule("packed-panels", "panels that lie there are as wide as the register tile, and are not packed again", _panels),
    _rule("siblings-in-registers", "two products are formed together of packed constants, over all of K", _siblings),
    _rule("strided-needs-packing", "B is read in place only where its rows are contiguous", _streams),
    _rule(
        "packed-by-all",
        "only a B that is read as it lies, and by no constant, is packed by all workers",
        _packed_by_all,
    ),
)
