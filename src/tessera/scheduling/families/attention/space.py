"""The knobs, rules and default schedule of attention on CPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tessera.dtypes import DType, bf16
from tessera.scheduling.families.attention.parts import PARTS
from tessera.scheduling.language.columns import Knobs, Number, divided, larger, no, where
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.knobs import Knob, Rule, Space, batched
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX, VECTOR
from tessera.scheduling.lowering.spec import AttentionSpec
from tessera.scheduling.model.shares import Share, second_bytes, share_of, sharing_flops
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
    native_bf16: bool = False
    is_trained: bool = False
    """Whether logarithms of sums are saved, beside which keys are not cut into parts."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""
        return math.prod(self.batch), self.queries, self.keys, self.head, self.value_head

    @property
    def lanes(self) -> int:
        """Scores in a vector register."""
        return max(1, self.target.vector_bits // (8 * self.accumulator.itemsize))

    @property
    def pairs(self) -> bool:
        """Whether the machine multiplies bf16 pairs into fp32 here."""
        return self.native_bf16 and self.operand is bf16

    @property
    def has_unit(self) -> bool:
        """Whether the machine has a matrix unit for both products."""
        return self.pairs and self.target.has_amx_bf16

    @property
    def visible(self) -> int:
        """Pairs of a query and a key that are multiplied, in all heads; about half of them with `causal`."""
        heads = math.prod(self.batch)
        if not self.causal:
            return heads * self.queries * self.keys
        return heads * self.queries * (2 * self.keys - min(self.queries, self.keys)) // 2


def attention_problem(
    spec: AttentionSpec, target: Target, extents: Mapping[str, int], workers: int = 1
) -> AttentionProblem:
    """What the rules of schedules for `spec` need to know, for the extents of its axes."""
    return AttentionProblem(
        batch=tuple([extents[axis] for axis in spec.batch]),
        queries=extents["q"],
        keys=extents["k"] if spec.logarithms is None else -(-extents["k"] // max(extents[spec.batch[0]], 1)),
        head=extents["d"],
        value_head=extents["v"],
        causal=spec.causal,
        operand=_stored(spec.q),
        accumulator=spec.accumulator.dtype,
        target=target,
        workers=workers,
        mask=None if spec.mask is None else _stored(spec.mask),
        native_bf16=target.multiplies_bf16_pairs and _stored(spec.q) is _stored(spec.k) is _stored(spec.v),
        is_trained=spec.saved is not None,
    )


def _stored(value: Value) -> DType:
    """The dtype of an operand in memory, under the cast that widens it."""
    return (value.arguments[0] if value.operation == "cast" else value).dtype


def padded_head(extent: int) -> int:
    """The rows of scratch memory for a head size: a power of two, so that sizes share kernels."""
    return max(16, 1 << max(extent - 1, 0).bit_length())


def scratch_bytes(schedule: Knobs, problem: AttentionProblem) -> Number:
    """Bytes of one worker's scratch memory: packed queries, keys and values, a panel's scores and weights, sums; with
    heads along the lanes nothing is packed but the queries.
    """
    _, keys = schedule.integers("tile")
    rows, columns = schedule.integers("micro")
    head, value_head = schedule.integers("head")
    size = problem.accumulator.itemsize
    packed = 2 if problem.pairs else size
    scores = (keys + rows) * columns * (size + (2 if problem.pairs else 0))
    blocks = _passing_bytes(schedule, problem) + keys * (head + value_head) * packed + scores
    return where(schedule.equals("lanes", "head"), columns * (head + keys + value_head) * size, blocks)


def _passing_bytes(schedule: Knobs, problem: AttentionProblem) -> Number:
    """Of those, the bytes that are walked once for each block of keys, panel after panel: packed queries, and sums."""
    head, value_head = schedule.integers("head")
    size = problem.accumulator.itemsize
    queries = larger(schedule.integers("tile")[0], schedule.integers("micro")[1])
    nbytes = queries * (head * (2 if problem.pairs else size) + (value_head + 2) * size)
    return where(schedule.equals("lanes", "head"), 0, nbytes)


# -- rules ------------------------------------------------------------------------------------------------------------


def _heads_fit(schedule: Knobs, problem: AttentionProblem) -> Number:
    head, value_head = schedule.integers("head")
    return (head >= problem.head) & (value_head >= problem.value_head)


def in_unit(schedule: Knobs, problem: AttentionProblem) -> Number:
    """Whether the matrix unit multiplies; only attention that it can compute has the knob."""
    return schedule.equals("unit", MATRIX) if problem.has_unit else False


def _matrix_unit(schedule: Knobs, problem: AttentionProblem) -> Number:
    (rows, columns), (head, value_head) = schedule.integers("micro"), schedule.integers("head")
    tiles = (rows == UNIT_ROWS) & ((columns == UNIT_ROWS) | (2 * columns == UNIT_ROWS))
    whole = (head % UNIT_ROWS == 0) & (value_head % UNIT_ROWS == 0)
    return no(in_unit(schedule, problem)) | (tiles & whole & schedule.equals("lanes", "queries"))


def _registers(schedule: Knobs, problem: AttentionProblem) -> Number:
    rows, columns = schedule.integers("micro")
    along_queries = (rows + 1) * divided(columns, problem.lanes) + 2
    held = where(schedule.equals("lanes", "head"), (rows + 1) * (columns + 1), along_queries)
    return (held <= problem.target.vector_registers) | in_unit(schedule, problem)


def _lanes(schedule: Knobs, problem: AttentionProblem) -> Number:
    columns = schedule.integers("micro")[1]
    return where(schedule.equals("lanes", "head"), columns <= MOST_SHARED, columns % problem.lanes == 0)


def _in_cache(schedule: Knobs, problem: AttentionProblem) -> Number:
    total, cache = scratch_bytes(schedule, problem), second_bytes(problem.target)
    return (total - _passing_bytes(schedule, problem) <= cache) & (total <= 2 * cache)


def _cache(schedule: Knobs, problem: AttentionProblem) -> Number:
    least = schedule.integers("tile")[1] <= 64
    return least | _in_cache(schedule, problem)


def _useful(schedule: Knobs, problem: AttentionProblem) -> Number:
    queries, keys = schedule.integers("tile")
    columns = schedule.integers("micro")[1]
    return (queries <= larger(columns, 2 * problem.queries)) & (keys <= max(64, 2 * problem.keys))


def _something_to_cut(schedule: Knobs, problem: AttentionProblem) -> Number:
    dimensions = len(problem.batch)
    some = schedule.equals("parallel", "queries") | (schedule.equals("parallel", "batch") & (dimensions > 0))
    return some | (schedule.equals("parallel", "heads") & (dimensions > 1))


def _cut(schedule: Knobs, problem: AttentionProblem) -> Number:
    parts = schedule.integer(PARTS)
    few = schedule.equals("lanes", "head") & (parts * LEAST_PART <= problem.keys)
    return (parts == 1) | (few & (not problem.is_trained))


RULES: tuple[Rule[AttentionProblem], ...] = batched(
    Rule("heads-fit", "scratch memory has a row for each element of a head", _heads_fit),
    Rule("vector-registers", "a register tile, a row and an element must not spill", _registers),
    Rule(
        "matrix-unit",
        "the matrix unit takes 32 keys by 16 or 32 queries at once, and heads of whole tiles, with queries along lanes",
        _matrix_unit,
    ),
    Rule("whole-vectors", "queries along lanes fill vectors; those that heads along lanes share are few", _lanes),
    Rule(
        "scratch-in-cache", "keys, values and scores stay in the second cache; with queries and sums twice it", _cache
    ),
    Rule("tile-within-problem", "a block is at most twice as large as the problem, or as small as blocks get", _useful),
    Rule("parts-of-keys", "keys are cut for few queries, into parts that are worth a worker's while", _cut),
    Rule("batch-to-cut", "only a batch dimension that is there is cut", _something_to_cut),
)

# -- choices ----------------------------------------------------------------------------------------------------------

UNIT_ROWS = 32
"""Keys of a register tile of the matrix unit, which are in two registers of scores and in one of weights."""
UNIT_KEYS = 256
"""Keys of a block then: sums pass between unit and vectors once for each (one thread of a Xeon, 12 heads of 64, 512 to
1024 keys: 0.94 to 1.0 of the time of blocks of 128; blocks of 512 are as fast; 32 heads of 128: 0.94 and 0.97).
"""
MOST_SHARED = 16
"""Queries that keys are multiplied with while they are in registers, where heads lie along lanes."""
FEW_QUERIES, FEW_PAIRED_QUERIES = 16, 8
"""Queries up to which heads lie along the lanes by default: so few leave lanes empty, or lone in their panel. bf16
pairs are multiplied twice as fast with queries along lanes (Zen 4: 16 queries take 0.7 of the time so, fp32 1.15).
"""
EVEN = (9, 8)
"""By what, as a quotient, the busiest worker may have more than its share without another dimension being shared."""
LEAST_PART = 128
"""Keys of a part, at least."""
LEAST_FLOPS = 2_000_000
"""Work below which one worker is done before a second one has started and a second kernel has run."""
MOST_QUERIES = 1024
"""Queries of a block by default, each of which packs the keys (Zen 4, 2048 queries of fp32: blocks of 512 take 0.94 of
the time of blocks of 128, blocks of 1024 take 0.985 of that; heads of 128 that lie inside lengths 0.97, although
queries and sums are more than the second cache holds: packing walks a page per key).
"""
_PANELS = ((4, 1), (6, 1), (8, 1), (12, 1), (16, 1), (4, 2), (6, 2), (8, 2), (12, 2), (6, 3), (8, 3), (4, 4), (6, 4))
"""Keys, and vectors of queries, of register tiles with queries along lanes."""
_SHARED = tuple((keys, queries) for queries in (1, 2, 4, 8, 16) for keys in (1, 2, 4, 8))
"""Keys and queries of register tiles with heads along lanes."""
_BLOCKS = tuple(
    (queries, keys) for queries in (1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024) for keys in (64, 128, 256, 512)
)


def space(problem: AttentionProblem) -> Space[AttentionProblem]:
    """All schedules of one attention."""
    tiles = ((UNIT_ROWS, UNIT_ROWS), (UNIT_ROWS, UNIT_ROWS // 2)) if problem.has_unit else ()
    micro = dict.fromkeys((*((rows, problem.lanes * vectors) for rows, vectors in _PANELS), *_SHARED, *tiles))
    unit = Knob("unit", (VECTOR, MATRIX), "the instructions that multiply: vectors, or the matrix unit's tiles")
    knobs = (
        Knob("tile", _BLOCKS, "queries and keys of a block"),
        Knob("micro", tuple(micro), "keys and queries of a register tile of scores"),
        *([unit] if problem.has_unit else []),
        Knob("lanes", ("queries", "head"), "what lies along the lanes of vectors: queries, or elements of a head"),
        Knob("head", (_heads(problem),), "elements of scratch memory for a query and for a value"),
        Knob("parallel", ("batch", "heads", "queries"), "the dimension that is cut into one share per worker"),
        Knob(PARTS, (1, 2, 4, 8, 16, 32, 64), "parts of the keys, which workers share and a second kernel joins"),
        Knob("fusion", (True,), "neighbouring maps inside this kernel"),
    )
    starts = [_many_queries(problem), few_queries(problem)]
    if problem.has_unit:
        starts = [start.replace(unit=VECTOR) for start in starts]
        starts += [_matrix_schedule(problem)] if min(_heads(problem)) >= UNIT_ROWS else []
    return Space(knobs, RULES, problem, default_schedule(problem), tuple(starts))


def default_schedule(problem: AttentionProblem) -> Schedule:
    """Queries along lanes where they fill them, else heads; heads go to workers where there are enough for even
    shares.
    """
    few = FEW_PAIRED_QUERIES if problem.pairs else FEW_QUERIES
    if problem.has_unit and problem.queries > few:
        return _matrix_schedule(problem)
    schedule = few_queries(problem) if problem.queries <= few else _many_queries(problem)
    return schedule.replace(unit=VECTOR) if problem.has_unit else schedule


def _matrix_schedule(problem: AttentionProblem) -> Schedule:
    """Products on the matrix unit."""
    columns = UNIT_ROWS if problem.queries > UNIT_ROWS // 2 else UNIT_ROWS // 2
    return _blocks_of(problem, UNIT_ROWS, columns, 128 if problem.keys <= 128 else UNIT_KEYS, unit=MATRIX)


def _many_queries(problem: AttentionProblem) -> Schedule:
    """Register tiles of vectors."""
    lanes, wide = problem.lanes, problem.target.vector_registers >= 32
    columns = lanes * (1 if problem.queries <= lanes or _few_sums(problem) else 2)
    return _blocks_of(problem, 8 if wide else 4, columns, 128)


def _blocks_of(problem: AttentionProblem, rows: int, columns: int, keys: int, **unit: str) -> Schedule:
    """Blocks of many queries, since keys and values are packed for each, and of `keys` keys; of 64 where there are no
    more, or scratch memory would be too large.
    """
    parallel = _parallel(problem, -(-problem.queries // columns))
    schedule = Schedule(
        tile=(columns, 64 if problem.keys <= 64 else keys),
        micro=(rows, columns),
        **unit,
        lanes="queries",
        head=_heads(problem),
        parallel=parallel,
        parts=1,
        fusion=True,
    )
    if not _cache(schedule, problem):
        schedule = schedule.replace(tile=(columns, 64))
    queries, keys = schedule.integers("tile")
    while queries < min(_most_queries(problem, parallel), problem.queries):
        queries *= 2
        larger = schedule.replace(tile=(queries, keys))
        if not _in_cache(larger, problem):
            break
        schedule = larger
    return schedule


def _few_sums(problem: AttentionProblem) -> bool:
    """Whether eight vectors of sums hide the latency of multiply-adds: cores that start one of full width a cycle (Zen
    4: tiles of 8 x 1 vectors are 1.03 to 1.07 times as fast as those of 8 x 2; where two start they are 0.88).
    """
    whole = problem.target.vector_registers >= 32 and problem.target.fma_per_cycle == 1
    return whole and not problem.pairs and problem.accumulator.itemsize == 4


def _most_queries(problem: AttentionProblem, parallel: str) -> int:
    """Where queries are what workers share, each gets two blocks or more."""
    if parallel != "queries":
        return MOST_QUERIES
    return min(MOST_QUERIES, max(problem.lanes * 2, problem.queries // (2 * problem.workers)))


def few_queries(problem: AttentionProblem) -> Schedule:
    """Elements of a head along the lanes."""
    shared = next((count for count in (1, 2, 4, 8) if count >= problem.queries), 8)
    rows = 1 if problem.operand.itemsize >= 4 else 2  # one stream of memory where its rate is what binds
    blocks = -(-problem.queries // shared)
    return Schedule(
        tile=(shared, 64 if problem.keys <= 64 else 256),
        micro=(rows, shared),
        lanes="head",
        head=_heads(problem),
        parallel=_parallel(problem, blocks),
        parts=_parts(problem, blocks),
        fusion=True,
    )


def _parts(problem: AttentionProblem, blocks: int) -> int:
    """One part of the keys for each worker, where nothing else gives them even shares."""
    fair = Share(1, problem.workers)
    if (
        any(share.is_within(EVEN, fair) for share in _shares(problem, blocks).values())
        or problem.is_trained
        or 2 * problem.visible * (problem.head + problem.value_head) < sharing_flops(problem.target, LEAST_FLOPS)
    ):
        return 1
    parts = 1
    while parts < min(problem.workers, 64) and 2 * parts * LEAST_PART <= problem.keys:
        parts *= 2
    return parts


def _heads(problem: AttentionProblem) -> tuple[int, int]:
    """Heads as scratch memory holds them; whole tiles where the matrix unit is the default (one thread of a Xeon, 12
    heads of 16 or 4, 512 queries and keys: 0.5 and 0.94 of the time of vectors), else no more than they need: one query
    by 2000 keys, heads of 16, takes 1.05 times as long with twice the scratch memory.
    """
    least = UNIT_ROWS if problem.has_unit and problem.queries > FEW_PAIRED_QUERIES else 0
    return padded_head(max(problem.head, least)), padded_head(max(problem.value_head, least))


def _parallel(problem: AttentionProblem, blocks: int) -> str:
    """The outermost dimension of those that give the most even shares; `blocks` of queries may be shared, too."""
    shares = _shares(problem, blocks)
    return next(
        name for name, share in shares.items() if all(share.is_within(EVEN, other) for other in shares.values())
    )


def _shares(problem: AttentionProblem, blocks: int) -> dict[str, Share]:
    """The share of the busiest worker, by the dimension that is shared."""
    extents = dict(zip(("batch", "heads"), problem.batch, strict=False)) | {"queries": blocks}
    return {name: share_of(extent, problem.workers) for name, extent in extents.items()}
