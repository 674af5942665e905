"""Lowering attention for CPUs.

A block of scores is computed with queries along the lanes of vectors: the elements of keys and values are read in place
and broadcast, as those of A are in a matrix product, so that nothing but the queries is packed, and the softmax goes
down columns, without a sum across lanes.

    for each block of queries: q^T into scratch memory, multiplied by scale * log2(e); sums = 0
        for each block of keys, with (m, l):
            scores = k q^T, register tile by register tile; hidden ones -inf; their maximum
            scores -> weights = 2^(score - m), their sum
            sums   = sums * 2^(old m - m) + v^T weights, register tile by register tile
        out = (sums / l)^T
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.dtypes import bool_
from tessera.scheduling.attributes import buffer_type
from tessera.scheduling.builder import TileBuilder
from tessera.scheduling.expression import Value
from tessera.scheduling.online_softmax import KeyRange, OnlineSoftmax, State, additive
from tessera.scheduling.schedule import Schedule
from tessera.scheduling.spec import AttentionSpec, kernel_module
from tessera.scheduling.writer import ArgumentTile, Scope, TileWriter

PACKED_ROWS = 16
"""Elements of queries that are transposed at a time: as many as a vector of fp32 has lanes."""
UNROLL = 4


def lower_attention(spec: AttentionSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR module of `spec` under `schedule` (knobs of `attention_space`)."""
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    _AttentionLowering(spec, schedule, TileBuilder(block), arguments).lower()
    return module


class _AttentionLowering:
    def __init__(
        self, spec: AttentionSpec, schedule: Schedule, builder: TileBuilder, arguments: dict[int, ArgumentTile]
    ) -> None:
        self.spec, self.builder, self.arguments = spec, builder, arguments
        self.bm, self.bn = schedule.integers("tile")
        self.rows = schedule.integer("rows")
        self.split = 0 if schedule["parallel"] == "batch" else len(spec.batch)
        self.dtype = spec.accumulator.dtype
        self.softmax = OnlineSoftmax(builder, self.dtype, self.bm, axis=0)
        head, value_head = schedule.integers("head")
        self.packed = self._scratch(-(-head // PACKED_ROWS) * PACKED_ROWS)
        self.scores = self._scratch(-(-self.bn // self.rows) * self.rows)
        self.sums = self._scratch(-(-value_head // self.rows) * self.rows)
        self.extents = {axis: self._extent(axis) for axis in (*spec.batch, "q", "k", "d", "v")}

    def _scratch(self, rows: int) -> SSAValue:
        return self.builder.alloc(buffer_type(self.dtype, [self.bm, 1], [rows, self.bm]), "L2")

    def _extent(self, axis: str) -> SSAValue:
        for index, argument in enumerate(self.spec.arguments):
            if axis in argument.axes:
                return self.builder.extent(self.arguments[index].value, argument.axes.index(axis))
        raise KeyError(axis)

    def lower(self) -> None:
        axes = (*self.spec.batch, "q")
        steps = [1] * len(self.spec.batch) + [self.bm]
        with ExitStack() as nest:
            bounds = nest.enter_context(self.builder.parallel([self.extents[axis] for axis in axes], steps, self.split))
            self.at: dict[str, SSAValue] = {}
            for axis, step, (lower, upper) in zip(axes, steps, bounds, strict=True):
                self.at[axis] = nest.enter_context(self.builder.loop(lower, upper, step)).index
            self._queries()

    # -- access ---------------------------------------------------------------------------------------------------

    def _write(
        self, value: Value, sizes: Mapping[str, int], at: Mapping[str, SSAValue], any_outside: bool = False
    ) -> SSAValue:
        """The tile of an expression over axes of the given sizes."""
        writer = TileWriter(self.builder, self.arguments, dict(sizes), Scope(frozenset(), 0))
        writer.enter({**self.at, **at}, dict.fromkeys(sizes, False))
        writer.any_outside = any_outside
        return writer.write(value, tuple(sizes.values()))

    def _get(self, memory: SSAValue, row: SSAValue, rows: int) -> SSAValue:
        return self.builder.load(memory, [row, self.builder.index(0)], [0, 1], (rows, self.bm), [True, True])

    def _put(self, value: SSAValue, memory: SSAValue, row: SSAValue) -> None:
        self.builder.store(value, memory, [row, self.builder.index(0)], [0, 1], [True, True])

    @contextmanager
    def _down(self, upper: SSAValue, step: int) -> Iterator[SSAValue]:
        with self.builder.loop(self.builder.index(0), upper, step) as loop:
            yield loop.index

    # -- a block of queries ---------------------------------------------------------------------------------------

    def _queries(self) -> None:
        builder, spec, softmax = self.builder, self.spec, self.softmax
        factor = softmax.scale_factor(self._write(spec.scale, {"": 1, "q": self.bm}, {}))
        with self._down(self.extents["d"], PACKED_ROWS) as d:
            queries = self._write(spec.q, {"d": PACKED_ROWS, "q": self.bm}, {"d": d})
            self._put(builder.append(arith.MulfOp(queries, softmax.spread(factor, queries))), self.packed, d)
        with self._down(self.extents["v"], self.rows) as v:
            self._put(builder.splat(0.0, self.dtype, (self.rows, self.bm)), self.sums, v)
        keys = KeyRange.of(builder, self.at["q"], self.bm, self.extents["q"], self.extents["k"], spec.causal)
        with builder.loop(builder.index(0), keys.end, self.bn, softmax.initial()) as loop:
            loop.yielded = tuple(self._keys(loop.index, keys, loop.carried))
        with self._down(self.extents["v"], self.rows) as v:
            self._finish(v, loop.results[1])

    def _finish(self, v: SSAValue, total: SSAValue) -> None:
        mean = self.softmax.mean(self._get(self.sums, v, self.rows), total)
        writer = TileWriter(self.builder, self.arguments, {"v": self.rows, "q": self.bm}, Scope(frozenset(), 0))
        at = {**self.at, "v": v}
        writer.enter(at, {"v": False, "q": False})
        writer.define(self.spec.accumulator, mean)
        for output in self.spec.outputs:
            axes = self.spec.arguments[output.argument].axes
            self.builder.store(
                writer.write(output.value, (self.rows, self.bm)),
                self.arguments[output.argument].value,
                [at[axis] for axis in axes],
                [axes.index("v"), axes.index("q")],
                [False, False],
            )

    # -- a block of keys ------------------------------------------------------------------------------------------

    def _keys(self, key: SSAValue, keys: KeyRange, state: State) -> Sequence[SSAValue]:
        """(m, l) after a block of keys."""
        builder, softmax = self.builder, self.softmax
        m, total = state
        width = builder.minimum(builder.index(self.bn), builder.sub(keys.end, key))
        largest = self._scores(key, width, keys)
        m_next = softmax.raised(m, largest)
        base = softmax.base(m_next)
        decay = softmax.decay(m, base)
        with builder.loop(builder.index(0), width, self.rows, [softmax.splat(0.0)]) as loop:
            weights = softmax.weights(self._get(self.scores, loop.index, self.rows), base)
            self._put(weights, self.scores, loop.index)
            loop.yielded = (builder.append(arith.AddfOp(loop.carried[0], builder.reduce(weights, "add", 0))),)
        with self._down(self.extents["v"], self.rows) as v:
            self._values(key, width, v, decay)
        return m_next, softmax.total(total, decay, loop.results[0])

    def _scores(self, key: SSAValue, width: SSAValue, keys: KeyRange) -> SSAValue:
        """Computes the scores of a block; gives the largest of each query."""
        builder, softmax = self.builder, self.softmax
        lowest, end = softmax.initial()[0], builder.add(key, width)
        with builder.loop(builder.index(0), width, self.rows, [lowest]) as loop:
            first = builder.add(key, loop.index)
            scores = self._masked(self._products(first), first, end, keys)
            self._put(scores, self.scores, loop.index)
            loop.yielded = (softmax.raised(loop.carried[0], softmax.largest(scores)),)
        return loop.results[0]

    def _products(self, key: SSAValue) -> SSAValue:
        """A register tile of scores. What lies past the last key is masked later."""
        builder = self.builder
        zero = builder.splat(0.0, self.dtype, (self.rows, self.bm))
        with builder.loop(builder.index(0), self.extents["d"], 1, [zero], UNROLL) as loop:
            keys = self._write(self.spec.k, {"k": self.rows, "d": 1}, {"k": key, "d": loop.index}, any_outside=True)
            queries = self._get(self.packed, loop.index, 1)
            loop.yielded = (builder.mma(keys, queries, loop.carried[0], self.rows, self.bm, 1, self.dtype),)
        return loop.results[0]

    def _masked(self, scores: SSAValue, key: SSAValue, end: SSAValue, keys: KeyRange) -> SSAValue:
        """The scores of a register tile; those past the end of the block, or hidden otherwise, are -inf."""
        builder, softmax, shape = self.builder, self.softmax, (self.rows, self.bm)
        if self.spec.mask is not None:
            mask = self._write(self.spec.mask, {"k": self.rows, "q": self.bm}, {"k": key})
            if self.spec.mask.dtype is bool_:
                scores = softmax.hide(scores, mask)
            else:
                scores = additive(builder, scores, mask, self.dtype)
        if self.spec.causal:
            last = builder.add(key, builder.index(self.rows - 1))
            crosses = builder.compare(last, builder.add(self.at["q"], keys.shift), "sgt")
            unmasked = scores
            (scores,) = builder.branch(
                crosses,
                lambda: [softmax.hide(unmasked, softmax.below_diagonal(self.at["q"], key, keys.shift, shape))],
                lambda: [unmasked],
            )
        return softmax.hide(scores, builder.mask(key, end, shape, 0))

    def _values(self, key: SSAValue, width: SSAValue, v: SSAValue, decay: SSAValue) -> None:
        """A register tile of the weighted sums of values."""
        builder = self.builder
        sums = self.softmax.shrunk(self._get(self.sums, v, self.rows), decay)
        with builder.loop(builder.index(0), width, 1, [sums], UNROLL) as loop:
            at = {"k": builder.add(key, loop.index), "v": v}
            values = self._write(self.spec.v, {"v": self.rows, "k": 1}, at, any_outside=True)
            weights = self._get(self.scores, loop.index, 1)
            loop.yielded = (builder.mma(values, weights, loop.carried[0], self.rows, self.bm, 1, self.dtype),)
        self._put(loop.results[0], self.sums, v)
