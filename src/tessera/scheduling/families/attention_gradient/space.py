"""The knobs, rules and default schedule of the gradient of attention on CPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tessera.dtypes import DType
from tessera.scheduling.families.attention.space import padded_head
from tessera.scheduling.language.columns import Knobs, Number, divided, larger
from tessera.scheduling.language.knobs import Knob, Rule, Space, batched
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import AttentionGradientSpec, under_cast
from tessera.scheduling.model.shares import second_bytes
from tessera.target import Target


@dataclass(frozen=True)
class GradientProblem:
    """What legality and cost depend on: extents, dtypes, machine.

    `shared` are the extents of the batch axes that keys and values walk, `group` is that of those that they do not;
    `products` counts what is multiplied for each pair of a query and a key: matrices along `head` and along
    `value_head`.
    """

    shared: tuple[int, ...]
    group: int
    queries: int
    keys: int
    head: int
    value_head: int
    causal: bool
    products: tuple[int, int]
    operand: DType
    accumulator: DType
    target: Target
    workers: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""
        return math.prod(self.shared), self.group, self.queries, self.keys, self.head, self.value_head

    @property
    def lanes(self) -> int:
        """Sums in a vector register."""
        return max(1, self.target.vector_bits // (8 * self.accumulator.itemsize))

    @property
    def visible(self) -> float:
        """Pairs of a query and a key that are multiplied, in all heads; about half of them with `causal`."""
        seen = self.queries * self.keys * self.group * math.prod(self.shared)
        return seen * (1 - min(self.queries, self.keys) / (2 * max(self.keys, 1))) if self.causal else seen

    @property
    def flops(self) -> float:
        """Of the products."""
        heads, values = self.products
        return 2 * self.visible * (heads * self.head + values * self.value_head)


def gradient_problem(
    spec: AttentionGradientSpec, target: Target, extents: Mapping[str, int], workers: int = 1
) -> GradientProblem:
    """What the rules of schedules for `spec` need to know, for the extents of its axes."""
    apart = apart_axes(spec)
    asked = {output.value for output in spec.outputs}
    scores = needs_scores(spec)
    return GradientProblem(
        shared=tuple([extents[axis] for axis in spec.batch if axis not in apart]),
        group=math.prod([extents[axis] for axis in apart]),
        queries=extents["q"],
        keys=extents["k"],
        head=extents["d"],
        value_head=extents["v"],
        causal=spec.causal,
        products=(
            1 + (spec.accumulator in asked) + (spec.keys is not None),
            int(scores) + (spec.values is not None),
        ),
        operand=under_cast(spec.q).dtype,
        accumulator=spec.accumulator.dtype,
        target=target,
        workers=workers,
    )


def needs_scores(spec: AttentionGradientSpec) -> bool:
    """Whether cotangents of scores are formed, or weights alone, of which those of values are made."""
    of_queries = spec.accumulator in {output.value for output in spec.outputs}
    return of_queries or spec.keys is not None or bool(spec.beside)


def apart_axes(spec: AttentionGradientSpec) -> tuple[str, ...]:
    """The batch axes of heads that share keys and values: over those, the cotangents of these are summed."""
    sums = [part.accumulator for part in (spec.keys, spec.values) if part is not None]
    walked = [spec.arguments[output.argument].axes for output in spec.outputs if output.value in sums]
    return tuple(axis for axis in spec.batch if any(axis not in axes for axes in walked))


def scratch_bytes(schedule: Knobs, problem: GradientProblem) -> Number:
    """Bytes of one worker's scratch memory: packed keys twice and values, what is summed for them, a block of queries
    and cotangents, weights and cotangents of scores.
    """
    queries, keys = schedule.integers("tile")
    head, value_head = schedule.integers("head")
    held = keys * 3 * head + keys * 2 * value_head + queries * (head + value_head) + 2 * queries * keys
    return held * problem.accumulator.itemsize


# -- rules ------------------------------------------------------------------------------------------------------------


def _heads_fit(schedule: Knobs, problem: GradientProblem) -> Number:
    head, value_head = schedule.integers("head")
    return (head >= problem.head) & (value_head >= problem.value_head)


def _registers(schedule: Knobs, problem: GradientProblem) -> Number:
    rows, columns = schedule.integers("micro")
    return (rows + 1) * divided(columns, problem.lanes) + 2 <= problem.target.vector_registers


def _lanes(schedule: Knobs, problem: GradientProblem) -> Number:
    columns = schedule.integers("micro")[1]
    return columns % problem.lanes == 0


def _whole(schedule: Knobs, problem: GradientProblem) -> Number:
    queries, keys = schedule.integers("tile")
    rows, columns = schedule.integers("micro")
    return (queries % rows == 0) & (keys % columns == 0) & (keys % rows == 0)


def _cache(schedule: Knobs, problem: GradientProblem) -> Number:
    queries, keys = schedule.integers("tile")
    smallest = (queries <= SMALLEST) & (keys <= SMALLEST)
    return smallest | (scratch_bytes(schedule, problem) <= second_bytes(problem.target))


def _useful(schedule: Knobs, problem: GradientProblem) -> Number:
    queries, keys = schedule.integers("tile")
    most = larger(SMALLEST, 2 * problem.queries), larger(SMALLEST, 2 * problem.keys)
    return (queries <= most[0]) & (keys <= most[1])


def _something_to_cut(schedule: Knobs, problem: GradientProblem) -> Number:
    return schedule.equals("parallel", "batch") | (schedule.equals("parallel", "heads") & (len(problem.shared) > 1))


RULES: tuple[Rule[GradientProblem], ...] = batched(
    Rule("heads-fit", "scratch memory has a row for each element of a head", _heads_fit),
    Rule("vector-registers", "a register tile, a row and an element must not spill", _registers),
    Rule("whole-vectors", "columns of a register tile fill vectors", _lanes),
    Rule("whole-tiles", "register tiles divide blocks of queries and of keys", _whole),
    Rule(
        "scratch-in-cache", "what is packed and summed stays in the second cache, if there are smaller blocks", _cache
    ),
    Rule("tile-within-problem", "a block is at most twice as large as the problem, or as small as blocks get", _useful),
    Rule("batch-to-cut", "only a batch dimension that is there is cut", _something_to_cut),
)

# -- choices ----------------------------------------------------------------------------------------------------------

SMALLEST = 64
"""Queries and keys of the smallest block."""
_SIDES = (64, 128, 256)
_PANELS = ((4, 1), (8, 1), (16, 1), (4, 2), (8, 2), (4, 4))
"""Rows, and vectors, of register tiles."""


def space(problem: GradientProblem) -> Space[GradientProblem]:
    """All schedules of one gradient."""
    micro = tuple((rows, problem.lanes * vectors) for rows, vectors in _PANELS)
    knobs = (
        Knob("tile", tuple((q, k) for q in _SIDES for k in _SIDES), "queries and keys of a block"),
        Knob("micro", micro, "rows and columns of a register tile"),
        Knob("head", (_heads(problem),), "elements of scratch memory for a query and for a value"),
        Knob("parallel", ("batch", "heads"), "the dimension that is cut into one share per worker"),
        Knob("fusion", (True,), "neighbouring maps inside this kernel"),
    )
    start = default_schedule(problem)
    return Space(knobs, RULES, problem, start, (start,))


def default_schedule(problem: GradientProblem) -> Schedule:
    """Blocks of many keys, since queries are read again for each."""
    wide = problem.target.vector_registers >= 32
    shared = problem.shared
    outer = len(shared) < 2 or shared[0] % problem.workers == 0 or shared[0] >= shared[1]
    schedule = Schedule(
        tile=(SMALLEST, SMALLEST),
        micro=(8 if wide else 4, problem.lanes * 2),
        head=_heads(problem),
        parallel="batch" if outer else "heads",
        fusion=True,
    )
    for tile in ((64, 128), (128, 128)):
        larger = schedule.replace(tile=tile)
        if _cache(larger, problem) and _useful(larger, problem):
            schedule = larger
    return schedule


def _heads(problem: GradientProblem) -> tuple[int, int]:
    return padded_head(problem.head), padded_head(problem.value_head)
