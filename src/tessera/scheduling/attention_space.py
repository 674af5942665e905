"""The knobs, rules and default schedule of attention on CPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tessera.dtypes import DType
from tessera.scheduling.expression import Value
from tessera.scheduling.knobs import Knob, Rule, Space
from tessera.scheduling.schedule import Schedule
from tessera.scheduling.spec import AttentionSpec
from tessera.target import Target

HEADS = frozenset("dv")
"""The axes along a head, of a query or key and of a value: schedules hold their extents."""


@dataclass(frozen=True)
class AttentionProblem:
    """What legality and cost depend on: extents, dtypes, machine.

    `batch` are the extents of the batch axes, heads among them; `head` is the size of a query and of a key,
    `value_head` that of a value; `operand` is the dtype of Q, K and V, `accumulator` that of scores and sums, `mask`
    that of the mask as it lies in memory.
    """

    batch: tuple[int, ...]
    queries: int
    keys: int
    head: int
    value_head: int
    causal: bool
    operand: DType
    accumulator: DType
    target: Target
    workers: int
    mask: DType | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""
        return math.prod(self.batch), self.queries, self.keys, self.head, self.value_head

    @property
    def lanes(self) -> int:
        """Scores in a vector register."""
        return max(1, self.target.vector_bits // (8 * self.accumulator.itemsize))

    @property
    def pairs(self) -> float:
        """Pairs of a query and a key that are multiplied, in all heads; about half of them with `causal`."""
        seen = self.queries * self.keys * math.prod(self.batch)
        return seen * (1 - min(self.queries, self.keys) / (2 * max(self.keys, 1))) if self.causal else seen


def attention_problem(
    spec: AttentionSpec, target: Target, extents: Mapping[str, int], workers: int = 1
) -> AttentionProblem:
    """What the rules of schedules for `spec` need to know, for the extents of its axes."""
    return AttentionProblem(
        batch=tuple([extents[axis] for axis in spec.batch]),
        queries=extents["q"],
        keys=extents["k"],
        head=extents["d"],
        value_head=extents["v"],
        causal=spec.causal,
        operand=_stored(spec.q),
        accumulator=spec.accumulator.dtype,
        target=target,
        workers=workers,
        mask=None if spec.mask is None else _stored(spec.mask),
    )


def _stored(value: Value) -> DType:
    """The dtype of an operand in memory, under the cast that widens it."""
    return (value.arguments[0] if value.operation == "cast" else value).dtype


def padded_head(extent: int) -> int:
    """The rows of scratch memory for a head size: a power of two, so that sizes share kernels."""
    return max(16, 1 << max(extent - 1, 0).bit_length())


def scratch_bytes(schedule: Schedule, problem: AttentionProblem) -> int:
    """Bytes of one worker's scratch memory: transposed queries, a block of scores, sums of values."""
    queries, keys = schedule.integers("tile")
    rows = schedule.integer("rows")
    head, value_head = schedule.integers("head")
    return queries * (head + keys + value_head + 2 * rows) * problem.accumulator.itemsize


def _heads_fit(schedule: Schedule, problem: AttentionProblem) -> bool:
    head, value_head = schedule.integers("head")
    return head >= problem.head and value_head >= problem.value_head


def _registers(schedule: Schedule, problem: AttentionProblem) -> bool:
    vectors = -(-schedule.integers("tile")[0] // problem.lanes)
    return (schedule.integer("rows") + 1) * vectors + 2 <= problem.target.vector_registers


def _cache(schedule: Schedule, problem: AttentionProblem) -> bool:
    sizes = [level.size_bytes for level in problem.target.memory if level.name == "L2" and level.size_bytes]
    least = schedule.integers("tile")[1] <= 64
    return least or scratch_bytes(schedule, problem) <= max(sizes, default=1 << 20)


def _useful(schedule: Schedule, problem: AttentionProblem) -> bool:
    queries, keys = schedule.integers("tile")
    return queries <= max(problem.lanes, 2 * problem.queries) and keys <= max(64, 2 * problem.keys)


def _something_to_cut(schedule: Schedule, problem: AttentionProblem) -> bool:
    return schedule["parallel"] == "queries" or bool(problem.batch)


RULES: tuple[Rule[AttentionProblem], ...] = (
    Rule("heads-fit", "scratch memory has a row for each element of a head", _heads_fit),
    Rule("vector-registers", "a register tile, a row and an element must not spill", _registers),
    Rule("scratch-in-cache", "queries, scores and sums of a block stay in the second cache", _cache),
    Rule("tile-within-problem", "a block is at most twice as large as the problem, or as small as blocks get", _useful),
    Rule("batch-to-cut", "only a batch dimension that is there is cut", _something_to_cut),
)


def _tiles(lanes: int) -> tuple[tuple[int, int], ...]:
    return tuple((lanes * vectors, keys) for vectors in (1, 2, 3, 4) for keys in (64, 128, 256, 512))


def space(problem: AttentionProblem) -> Space[AttentionProblem]:
    """All schedules of one attention."""
    head = (padded_head(problem.head), padded_head(problem.value_head))
    knobs = (
        Knob("tile", _tiles(problem.lanes), "queries and keys of a block of scores"),
        Knob("rows", (4, 6, 8, 12), "keys, or elements of values, of a register tile"),
        Knob("head", (head,), "rows of scratch memory for a query and for a value"),
        Knob("parallel", ("batch", "queries"), "the dimension that is cut into one share per worker"),
        Knob("fusion", (True,), "neighbouring maps inside this kernel"),
    )
    return Space(knobs, RULES, problem, default_schedule(problem))


def default_schedule(problem: AttentionProblem) -> Schedule:
    """Register tiles as products have them; heads go to workers where there are enough for even shares."""
    vectors = 1 if problem.queries <= problem.lanes else 2
    wide = problem.target.vector_registers >= 32
    keys = 64
    while keys < 256 and keys < problem.keys:
        keys *= 2
    outermost = problem.batch[0] if problem.batch else 0
    even = outermost and (outermost % problem.workers == 0 or outermost >= 8 * problem.workers)
    return Schedule(
        tile=(problem.lanes * vectors, keys),
        rows=8 if wide else 4,
        head=(padded_head(problem.head), padded_head(problem.value_head)),
        parallel="batch" if even else "queries",
        fusion=True,
    )
