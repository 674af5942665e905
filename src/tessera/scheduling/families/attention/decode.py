"""Attention for few queries, as when tokens are generated one by one: elements of a head along the lanes of vectors.

Such a kernel reads keys and values once and does little with them, so that it reads them in place, and each of them
once for all the queries of a block, which may be the heads that share them. (Pope et al., "Efficiently Scaling
Transformer Inference", 2022, on what bounds it; Shazeer, "Fast Transformer Decoding", 2019, on sharing.)

    for each block of queries:   Q multiplied by scale * log2(e); sums = 0
        for each block of keys, with (m, l):
            scores = <q, k>, a few keys against all queries of the block at a time; hidden ones -inf; their maximum
            scores -> weights = 2^(score - m), their sum
            sums   = sums * 2^(old m - m) + weights V
        out = sums / l
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tessera.dtypes import bool_
from tessera.scheduling.families.attention.nest import AttentionNest
from tessera.scheduling.families.attention.online_softmax import KeyRange, OnlineSoftmax, State, additive, scored
from tessera.scheduling.families.attention.visibility import is_sparse
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import AxisTile
from tessera.scheduling.lowering.microkernel.dot_product import DotProductKernel
from tessera.scheduling.lowering.microkernel.protocol import Sums
from tessera.scheduling.lowering.microkernel.summation import summed
from tessera.scheduling.lowering.microkernel.vector import VectorKernel
from tessera.scheduling.lowering.ranges import Range, rounded_down
from tessera.scheduling.lowering.spec import AttentionSpec, loaded_arguments
from tessera.scheduling.lowering.writer import ArgumentTile

SCORES_VECTORS = 2
"""Vectors of scores of one query that the softmax takes at a time."""
SUMS_VECTORS = 20
"""Vectors of sums that registers hold."""
WIDEST = 8
"""Vectors of values that are read at a time."""
UNROLL = 2
AHEAD = 16
"""Keys that are fetched ahead: what is read while a line comes from memory."""
LINE_BYTES = 64


class DecodingAttention(AttentionNest):
    """The kernel with elements of a head along lanes. `lanes` is the number of accumulators in a vector."""

    def __init__(
        self,
        spec: AttentionSpec,
        schedule: Schedule,
        lanes: int,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        super().__init__(spec, schedule, builder, arguments)
        self.kt, self.bm = schedule.integers("micro")
        self.lanes, self.chunk = lanes, SCORES_VECTORS * lanes
        self.bn = -(-schedule.integers("tile")[1] // self.chunk) * self.chunk
        head, value_head = schedule.integers("head")
        vectors = max(1, min(WIDEST, SUMS_VECTORS // self.bm, value_head // lanes))
        self.columns = vectors * lanes
        self.softmax = OnlineSoftmax(builder, self.dtype, self.bm, axis=1)
        columns = -(-head // lanes) * lanes, self.bn, -(-value_head // self.columns) * self.columns
        # A row for each query of a block.
        self.queries, self.scores, self.sums = (self.scratch(self.dtype, [self.bm, each], "L1") for each in columns)

    def _get(self, memory: SSAValue, column: SSAValue, columns: int, row: int | None = None) -> SSAValue:
        """Columns of all rows, or of one."""
        at = [self.builder.index(row or 0), column]
        rows = self.bm if row is None else 1
        return self.builder.load(memory, at, [0, 1], (rows, columns), [True, True])

    def _put(self, value: SSAValue, memory: SSAValue, column: SSAValue, row: int = 0) -> None:
        self.builder.store(value, memory, [self.builder.index(row), column], [0, 1], [True, True])

    # -- a block of queries ---------------------------------------------------------------------------------------

    def block(self) -> None:
        builder, softmax, zero = self.builder, self.softmax, self.builder.index(0)
        scale = self.write(self.spec.scale, {"q": self.bm, "": 1}, {})
        factor = softmax.scale_factor(scale, self.spec.scoring is not None)
        with builder.loop(zero, self.extents["d"], self.lanes) as d:
            queries = self.write(self.spec.q, {"q": self.bm, "d": self.lanes}, {"d": d.index})
            self._put(builder.append(arith.MulfOp(queries, softmax.spread(factor, queries))), self.queries, d.index)
        with builder.loop(zero, self.extents["v"], self.columns) as v:
            self._put(builder.splat(0.0, self.dtype, (self.bm, self.columns)), self.sums, v.index)
        keys = self.key_range()
        first, end = self._part(keys)
        with builder.loop(first, end, self.bn, softmax.initial()) as loop:
            loop.yielded = self._where_seen(loop.index, end, keys, loop.carried)
        m, total = loop.results
        if self.spec.logarithms is not None:
            self._store_logarithms(self.spec.logarithms, m, total)
        self.write_saved(lambda: softmax.logarithm(m, total), {"q": self.bm, "v": 1}, {"v": zero})
        with builder.loop(zero, self.extents["v"], self.columns) as v:
            mean = softmax.mean(self._get(self.sums, v.index, self.columns), total)
            self.write_result(mean, {"q": self.bm, "v": self.columns}, {"v": v.index})

    def key_range(self) -> KeyRange:
        """The keys that the queries of the block see."""
        extents = self.extents
        return KeyRange.of(self.builder, self.at["q"], self.bm, extents["q"], extents["k"], self.spec.causal)

    def _part(self, keys: KeyRange) -> tuple[SSAValue, SSAValue]:
        """The keys of this part: all that are seen where there are no parts."""
        builder = self.builder
        begin = builder.index(0) if keys.first is None else keys.first
        if self.spec.logarithms is None:
            return begin, keys.end
        axis = self.spec.batch[0]
        number, parts = self.at[axis], self.extents[axis]
        after, count = builder.add(number, builder.index(1)), builder.sub(keys.end, begin)
        first, last = (
            builder.add(begin, builder.floor_div(builder.mul(count, bound), parts)) for bound in (number, after)
        )
        return first, last

    def _store_logarithms(self, argument: int, m: SSAValue, total: SSAValue) -> None:
        """The logarithm of each query's sum."""
        axes = self.spec.arguments[argument].axes
        place = [self.at[axis] for axis in axes]
        logarithm, target = self.softmax.logarithm(m, total), self.arguments[argument].value
        self.builder.store(logarithm, target, place, [axes.index("q"), -1], [False, True])

    # -- a block of keys ------------------------------------------------------------------------------------------

    def _where_seen(self, key: SSAValue, end: SSAValue, keys: KeyRange, state: State) -> State:
        """(m, l) after a block of keys: as before, where the mask shows none of them."""
        if not is_sparse(self.spec.mask):
            return tuple(self._keys(key, end, keys, state))
        sizes = {"q": self.bm, "k": self.bn}
        _, possible = self.visibility(self.at["q"], key, sizes, end)
        return self.builder.branch(possible, lambda: self._keys(key, end, keys, state), lambda: state)

    def _keys(self, key: SSAValue, end: SSAValue, keys: KeyRange, state: State) -> Sequence[SSAValue]:
        """(m, l) after a block of keys, which all lie before `end`."""
        builder, softmax = self.builder, self.softmax
        m, total = state
        width = builder.minimum(builder.index(self.bn), builder.sub(end, key))
        for base, span in self.runs(key, width):
            for row in self.tiles(span, (self.kt, 1)):
                self._products(base, row)
        m_next = softmax.raised(m, self._masked(key, width, keys))
        base = softmax.base(m_next)
        decay = softmax.decay(m, base)
        added = self._weights(width, base)
        with builder.loop(builder.index(0), self.extents["v"], self.columns) as v:
            self._values(key, width, v.index, decay)
        return m_next, softmax.total(total, decay, added)

    def runs(self, key: SSAValue, width: SSAValue) -> Iterator[tuple[SSAValue, Range]]:
        """The keys of a block that lie side by side: where the block would begin, and the range of it that does. One
        turn, around which there may be a loop.
        """
        yield key, (self.builder.index(0), width)

    def summed_runs(
        self, key: SSAValue, width: SSAValue, sums: Sums, add: Callable[[SSAValue, Range, Sums], Sums]
    ) -> Sums:
        """The sums after all runs of a block, each added by `add(base, range, sums)`."""
        return add(key, (self.builder.index(0), width), sums)

    def _products(self, key: SSAValue, row: AxisTile) -> None:
        """The scores of a few keys, each a sum across lanes."""
        builder, zero, size = self.builder, self.builder.index(0), self.extents["d"]
        kernel = DotProductKernel(builder, self.bm, row.size, self.lanes, self.dtype, fused=True)
        at = builder.add(key, row.start)

        def step(d: SSAValue, sums: Sums, whole: bool) -> Sums:
            position = {"k": at, "d": d}
            keys = self.write(self.spec.k, {"k": row.size, "d": self.lanes}, position, {"k": True, "d": whole})
            for number in range(row.size):
                self._fetch_ahead(self.spec.k, {**position, "k": builder.add(at, builder.index(number))}, "d", 1)
            queries = [self._get(self.queries, d, self.lanes, query) for query in range(self.bm)]
            return kernel.step(queries.__getitem__, lambda _: keys, sums)

        middle = rounded_down(builder, size, self.lanes)
        sums = summed(builder, (zero, middle), self.lanes, kernel.zeros(), step, UNROLL)
        sums = summed(builder, (middle, size), self.lanes, sums, lambda d, sums, _: step(d, sums, False))
        for query, total in enumerate(kernel.finish(sums)):
            builder.store(total, self.scores, [builder.index(query), row.start], [1, 0], [True, True])

    def _masked(self, key: SSAValue, width: SSAValue, keys: KeyRange) -> SSAValue:
        """Hides scores; gives the largest of each query."""
        builder, softmax, shape = self.builder, self.softmax, (self.bm, self.chunk)
        lowest = builder.splat(float("-inf"), self.dtype, shape)
        with builder.loop(builder.index(0), width, self.chunk, [lowest]) as loop:
            scores, at = self._get(self.scores, loop.index, self.chunk), builder.add(key, loop.index)
            scores = scored(self.writer({"q": self.bm, "k": self.chunk}, {"k": at}), self.spec.scoring, scores)
            if self.spec.mask is not None:
                mask = self.write(self.spec.mask, {"q": self.bm, "k": self.chunk}, {"k": at})
                if self.spec.mask.dtype is bool_:
                    scores = softmax.hide(scores, mask)
                else:
                    scores = additive(builder, scores, mask, self.dtype)
            if self.spec.causal:
                seen = softmax.below_diagonal(self.at["q"], at, keys.shift, shape)
                scores = softmax.hide(scores, seen)
            scores = self.windowed(scores, at, keys)
            scores = softmax.hide(scores, builder.mask(loop.index, width, shape, 1))
            self._put(scores, self.scores, loop.index)
            loop.yielded = (softmax.raised(loop.carried[0], scores),)
        return softmax.largest(loop.results[0])

    def windowed(self, scores: SSAValue, key: SSAValue, keys: KeyRange) -> SSAValue:
        """The scores of the keys from `key` on, -inf where a window has gone past a key."""
        return scores

    def _weights(self, width: SSAValue, base: SSAValue) -> SSAValue:
        """Turns scores into weights; gives the sum of each query's."""
        builder, shape = self.builder, (self.bm, self.chunk)
        zero = builder.splat(0.0, self.dtype, shape)
        with builder.loop(builder.index(0), width, self.chunk, [zero]) as loop:
            weights = self.softmax.weights(self._get(self.scores, loop.index, self.chunk), base)
            self._put(weights, self.scores, loop.index)
            loop.yielded = (builder.append(arith.AddfOp(loop.carried[0], weights)),)
        return builder.reduce(loop.results[0], "add", 1)

    def _values(self, key: SSAValue, width: SSAValue, v: SSAValue, decay: SSAValue) -> None:
        """A register tile of the weighted sums of values."""
        kernel = VectorKernel(self.builder, self.bm, self.columns, 1, self.dtype, self.dtype)

        def step(base: SSAValue, row: SSAValue, sums: Sums, whole: bool) -> Sums:
            at = {"k": self.builder.add(base, row), "v": v}
            values = self.write(self.spec.v, {"k": 1, "v": self.columns}, at, {"k": True})
            self._fetch_ahead(self.spec.v, at, "v", self.columns)
            return kernel.step(lambda _: self._get(self.scores, row, 1), lambda _: values, sums)

        def add(base: SSAValue, span: Range, sums: Sums) -> Sums:
            return summed(self.builder, span, 1, sums, partial(step, base), UNROLL)

        sums = [self.softmax.shrunk(self._get(self.sums, v, self.columns), decay)]
        (total,) = kernel.finish(self.summed_runs(key, width, sums, add))
        self._put(total, self.sums, v)

    def ahead(self, key: SSAValue) -> Mapping[str, SSAValue]:
        """Where the key lies that is `AHEAD` keys later."""
        return {"k": self.builder.add(key, self.builder.index(AHEAD))}

    def _fetch_ahead(self, value: Value, at: Mapping[str, SSAValue], axis: str, count: int) -> None:
        """Asks for `count` elements along `axis` of a later key: no two rows need lie side by side, and hardware does
        not look past a page.
        """
        builder = self.builder
        (number,) = loaded_arguments(value)
        argument = self.spec.arguments[number]
        if argument.stride(axis) != 1:
            return
        line = LINE_BYTES // argument.dtype.itemsize
        where = {**self.at, **at, **self.ahead(at["k"])}
        for first in range(0, count, line):
            column = {axis: builder.add(at[axis], builder.index(first))}
            indices = [{**where, **column}[name] for name in argument.axes]
            builder.prefetch(self.arguments[number].value, indices, 1, 1, write=False)
