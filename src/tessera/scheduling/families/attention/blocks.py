"""Attention for many queries: blocks of queries and keys, with queries along the lanes of vectors.

Both products are of the shape that matrix products have, an operand that is broadcast element by element and one of
whole vectors, which are the queries and the weights: keys and values are packed, without being transposed, once for
all queries of a block, and the softmax goes down columns, without a sum across lanes.

    for each block of queries:   Q^T packed in panels of NR queries; sums = 0, m = -inf, l = 0
        for each block of keys that any of them sees:   K and V packed
            for each panel of NR queries:
                scores = K Q^T, an MR x NR register tile after another, hidden ones -inf; their maximum
                scores -> weights = 2^(score - m), their sum
                sums   = sums * 2^(old m - m) + V^T weights, an MR x NR register tile after another
        out = (sums / l)^T

bf16 operands are multiplied as they are where the CPU multiplies pairs of them: pairs along the head of Q and K, pairs
along the keys of the weights, which are rounded to bf16, and of V.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tessera.dtypes import bf16, bool_
from tessera.scheduling.families.attention.nest import AttentionNest
from tessera.scheduling.families.attention.online_softmax import KeyRange, OnlineSoftmax, additive
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.attributes import buffer_type
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import AttentionSpec, unit_axis
from tessera.scheduling.lowering.writer import ArgumentTile

PADDING = 16
"""Elements of 4 bytes added to a packed row, so that rows do not fall into the same cache set."""
SQUARE = 16
"""Side of the squares that are transposed in registers."""
UNROLL = 4
LOOKED_AT = 64
"""Keys of a mask that are looked at together: are all of them hidden from a panel of queries?"""


class BlockedAttention(AttentionNest):
    """The kernel with queries along lanes."""

    def __init__(
        self,
        spec: AttentionSpec,
        schedule: Schedule,
        native_bf16: bool,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        super().__init__(spec, schedule, builder, arguments)
        queries, keys = schedule.integers("tile")
        self.mr, self.nr = schedule.integers("micro")
        self.bm, self.bn = max(queries // self.nr, 1) * self.nr, round_up(keys, math.lcm(self.mr, 2))
        operands = (spec.q, spec.k, spec.v)
        self.pairs = native_bf16 and self.nr % SQUARE == 0 and self.mr % 2 == 0 and all(map(_is_bf16, operands))
        self.element, self.step = (bf16, 2) if self.pairs else (self.dtype, 1)
        self.softmax = OnlineSoftmax(builder, self.dtype, self.nr, axis=0)
        self.head, self.value_head = schedule.integers("head")
        self.scales_scores = self.pairs
        self._reserve()

    def _reserve(self) -> None:
        """Scratch memory of one worker."""
        panels, nr = self.bm // self.nr, self.nr
        rows = max(round_up(self.value_head, self.mr), round_up(self.value_head, SQUARE))
        self.scores = self._scratch([round_up(self.bn, self.mr), nr])
        self.sums = self._scratch([panels, rows, nr])
        self.largest, self.totals = self._scratch([panels, nr]), self._scratch([panels, nr])
        if self.pairs:
            kind = buffer_type(bf16, _strides([self.bn // 2, nr, 2]), [self.bn // 2, nr, 2])
            self.weights = self.builder.alloc(kind, "L1")

    def _scratch(self, shape: list[int]) -> SSAValue:
        return self.builder.alloc(buffer_type(self.dtype, _strides(shape), shape), "L2")

    # -- scratch memory -------------------------------------------------------------------------------------------

    def get_rows(self, memory: SSAValue, at: Sequence[SSAValue], rows: int) -> SSAValue:
        """Rows of NR elements: `at` is the position of the first in all dimensions but the last."""
        rank = len(at)
        position = [*at, self.builder.index(0)]
        return self.builder.load(memory, position, [rank - 1, rank], (rows, self.nr), [True, True])

    def put_rows(self, value: SSAValue, memory: SSAValue, at: Sequence[SSAValue]) -> None:
        rank = len(at)
        self.builder.store(value, memory, [*at, self.builder.index(0)], [rank - 1, rank], [True, True])

    # -- a block of queries ---------------------------------------------------------------------------------------

    def block(self) -> None:
        builder, q = self.builder, self.at["q"]
        count = builder.minimum(builder.index(self.bm), builder.sub(self.extents["q"], q))
        self.factor = self.softmax.scale_factor(self.write(self.spec.scale, {"": 1, "q": self.nr}, {}))
        if self.pairs and not self.scales_scores:
            self.softmax.factor = self.factor
        self.queries = self._stage_queries(count)
        with builder.loop(builder.index(0), count, self.nr) as loop:
            self._clear(self.panel_number(loop.index))
        keys = KeyRange.of(builder, q, self.bm, self.extents["q"], self.extents["k"], self.spec.causal)
        with builder.loop(builder.index(0), keys.end, self.bn) as loop:
            width = builder.minimum(builder.index(self.bn), builder.sub(keys.end, loop.index))
            packed = self._stage_keys(loop.index, width), self._stage_values(loop.index, width)
            with builder.loop(builder.index(0), count, self.nr) as panel:
                self.panel(panel.index, loop.index, width, *packed).write()
        with builder.loop(builder.index(0), count, self.nr) as loop:
            self._finish(loop.index)

    def panel(self, first: SSAValue, key: SSAValue, width: SSAValue, k: SSAValue, v: SSAValue) -> Panel:
        """The panel of queries from `first` on, and the block of `width` keys from `key` on that was packed."""
        return Panel(self, first, key, width, k, v)

    def panel_number(self, first: SSAValue) -> SSAValue:
        """The number of the panel that begins with query `first` of the block."""
        return self.builder.floor_div(first, self.builder.index(self.nr))

    def _clear(self, panel: SSAValue) -> None:
        builder = self.builder
        initial = self.softmax.initial()
        for memory, value in zip((self.largest, self.totals), initial, strict=True):
            self.put_rows(value, memory, [panel])
        zero = builder.splat(0.0, self.dtype, (self.mr, self.nr))
        with builder.loop(builder.index(0), self.extents["v"], self.mr) as loop:
            self.put_rows(zero, self.sums, [panel, loop.index])

    def _finish(self, first: SSAValue) -> None:
        builder, panel = self.builder, self.panel_number(first)
        side = SQUARE if self.nr % SQUARE == 0 else self.nr
        softmax = OnlineSoftmax(builder, self.dtype, side, axis=0)

        def get(memory: SSAValue, at: Sequence[SSAValue], rows: int) -> SSAValue:
            rank = len(at)
            return builder.load(memory, at, [rank - 2, rank - 1], (rows, side), [True, True])

        with builder.loop(builder.index(0), builder.index(self.nr), side) as column:
            total = get(self.totals, [panel, column.index], 1)
            with builder.loop(builder.index(0), self.extents["v"], SQUARE) as v:
                sums = get(self.sums, [panel, v.index, column.index], SQUARE)
                at = {"v": v.index, "q": builder.add(builder.add(self.at["q"], first), column.index)}
                self.write_result(softmax.mean(sums, total), {"v": SQUARE, "q": side}, at)

    # -- packing --------------------------------------------------------------------------------------------------

    def _element(self, value: Value) -> Value:
        """An operand in the dtype that is multiplied."""
        return value.arguments[0] if self.pairs else value

    def _stage_queries(self, count: SSAValue) -> SSAValue:
        """Q^T in panels, multiplied by the factor of the scores; pairs are multiplied as they are."""
        builder, panels = self.builder, self.bm // self.nr
        head = round_up(self.head, SQUARE)
        layout, shape = ("panels_vnni", [panels, head // 2, self.nr, 2]) if self.pairs else (
            "panels", [panels, head, self.nr])  # fmt: skip
        kind = buffer_type(self.element, _strides(shape), shape)
        with builder.stage((self.staged_head(), count), layout, "L2", (head, self.bm), kind) as stage:
            at = {"d": stage.row, "q": builder.add(self.at["q"], stage.column)}
            queries = self.write(self._element(self.spec.q), {"d": SQUARE, "q": self.nr}, at)
            if not self.pairs:
                queries = builder.append(arith.MulfOp(queries, self.softmax.spread(self.factor, queries)))
            stage.tile = queries
        return stage.buffer

    def staged_head(self) -> SSAValue:
        """The elements of a query or key that are packed, zeros where it has fewer."""
        return self.extents["d"]

    def _tile_of(self, value: Value) -> tuple[int, int]:
        """Keys and elements that are packed at a time: parts of a row as it lies in memory, or squares to transpose."""
        if unit_axis(value, self.spec.arguments, "d") == "k":
            return SQUARE, SQUARE
        return 1, SQUARE * self.step

    def _stage_keys(self, key: SSAValue, width: SSAValue) -> SSAValue:
        """K, row after row; rows past the last key are 0, up to a whole register tile."""
        builder = self.builder
        rows, columns = self._tile_of(self.spec.k)
        shape = [round_up(round_up(self.bn, self.mr), rows), round_up(self.head, columns)]
        stride = shape[1] + PADDING * self.step
        kind = buffer_type(self.element, [stride, 1], [shape[0], stride])
        extents = self.rounded(width, self.mr), self.staged_head()
        with builder.stage(extents, "rows", "L2", (shape[0], shape[1]), kind) as stage:
            at = {"k": builder.add(key, stage.row), "d": stage.column}
            stage.tile = self.write(self._element(self.spec.k), {"k": rows, "d": columns}, at)
        return stage.buffer

    def _stage_values(self, key: SSAValue, width: SSAValue) -> SSAValue:
        """V, row after row, or each two rows interleaved; up to whole register tiles."""
        builder = self.builder
        rows, columns = self._tile_of(self.spec.v)
        if self.pairs:
            rows, columns = max(rows, 2), SQUARE
        shape = [round_up(round_up(self.bn, 2), rows), round_up(round_up(self.value_head, self.mr), columns)]
        extents = width, self.rounded(self.extents["v"], self.mr)
        if self.pairs:
            stride = 2 * (shape[1] + PADDING)
            kind = buffer_type(bf16, [stride * shape[0] // 2, stride, 2, 1], [1, shape[0] // 2, shape[1], 2])
        else:
            kind = buffer_type(self.element, [shape[1] + PADDING, 1], shape)
        layout = "panels_vnni" if self.pairs else "rows"
        with builder.stage(extents, layout, "L2", (shape[0], shape[1]), kind) as stage:
            at = {"k": builder.add(key, stage.row), "v": stage.column}
            stage.tile = self.write(self._element(self.spec.v), {"k": rows, "v": columns}, at)
        return stage.buffer


class Panel:
    """One panel of queries against one block of keys: the code of both products and of the softmax between them."""

    def __init__(
        self, nest: BlockedAttention, first: SSAValue, key: SSAValue, width: SSAValue, k: SSAValue, v: SSAValue
    ) -> None:
        self.nest, self.builder, self.softmax = nest, nest.builder, nest.softmax
        self.number, self.key, self.width, self.k, self.v = nest.panel_number(first), key, width, k, v
        self.query = self.builder.add(nest.at["q"], first)
        self.shape = nest.mr, nest.nr
        self.shift = self.builder.sub(nest.extents["k"], nest.extents["q"])

    def write(self) -> None:
        """Writes the code; nothing happens where no query of the panel sees a key of the block."""
        builder, nest = self.builder, self.nest
        if not nest.spec.causal:
            self._below_mask()
            return
        keys = KeyRange.of(builder, self.query, nest.nr, nest.extents["q"], nest.extents["k"], causal=True)
        width = builder.minimum(self.width, builder.sub(keys.end, self.key))
        whole = nest.at_least_zero(builder.minimum(self.width, builder.sub(keys.whole, self.key)))

        def seen() -> tuple[SSAValue, ...]:
            self._seen(width, nest.rounded_down(whole, nest.mr))
            return ()

        builder.branch(builder.compare(width, builder.index(0), "sgt"), seen)

    def _below_mask(self) -> None:
        """The keys of the block up to the last one that the mask shows to any query of the panel, if there is one.

        So a mask that hides the future, written as booleans or -inf, costs what `causal` does, and padding little.
        """
        builder, nest = self.builder, self.nest
        if nest.spec.mask is None or "k" not in nest.spec.mask.axes:
            self._seen(self.width, nest.rounded_down(self.width, nest.mr))
            return
        zero = builder.index(0)
        with builder.loop(zero, self.width, LOOKED_AT, [zero]) as loop:
            end = builder.minimum(builder.add(loop.index, builder.index(LOOKED_AT)), self.width)
            shown = builder.element(self._any_shown(builder.add(self.key, loop.index)))
            loop.yielded = tuple(builder.branch(shown, lambda: [end], lambda: [loop.carried[0]]))
        (width,) = loop.results

        def seen() -> tuple[SSAValue, ...]:
            self._seen(width, nest.rounded_down(width, nest.mr))
            return ()

        builder.branch(builder.compare(width, zero, "sgt"), seen)

    def _any_shown(self, key: SSAValue) -> SSAValue:
        """Whether the mask shows one of some keys to one of the panel's queries: a tile of one boolean."""
        builder, nest, mask = self.builder, self.nest, self.nest.spec.mask
        assert mask is not None
        shape = nest.nr if "q" in mask.axes else 1, LOOKED_AT
        tile = nest.write(mask, dict(zip("qk", shape, strict=True)), {"k": key, "q": self.query})
        if mask.dtype is not bool_:
            tile = self.softmax.differs(tile, builder.splat(-math.inf, mask.dtype, shape))
        return builder.reduce(builder.reduce(tile, "max", 0), "max", 1)

    def _seen(self, width: SSAValue, whole: SSAValue) -> None:
        """The first `width` keys of the block; of these, the first `whole` are seen by all queries."""
        builder, nest, softmax = self.builder, self.nest, self.softmax
        m, total = nest.get_rows(nest.largest, [self.number], 1), nest.get_rows(nest.totals, [self.number], 1)
        m_next = softmax.raised(m, self._scores(width, whole))
        base = softmax.base(m_next)
        decay = softmax.decay(m, base)
        added = self._weights(width, base)
        nest.put_rows(m_next, nest.largest, [self.number])
        nest.put_rows(softmax.total(total, decay, added), nest.totals, [self.number])
        with builder.loop(builder.index(0), nest.extents["v"], nest.mr) as loop:
            self._values(loop.index, width, decay)

    def _scores(self, width: SSAValue, whole: SSAValue) -> SSAValue:
        """Computes the scores of the block; gives the largest of each query."""
        builder, nest, softmax = self.builder, self.nest, self.softmax
        found = softmax.initial()[0]
        for lower, upper, at_edge in ((builder.index(0), whole, False), (whole, width, True)):
            with builder.loop(lower, upper, nest.mr, [found]) as loop:
                scores = self._masked(self._products(loop.index), loop.index, width, at_edge)
                nest.put_rows(scores, nest.scores, [loop.index])
                loop.yielded = (softmax.raised(loop.carried[0], softmax.largest(scores)),)
            (found,) = loop.results
        return found

    def _products(self, row: SSAValue) -> SSAValue:
        """A register tile of scores."""
        builder, nest, zero = self.builder, self.nest, self.builder.index(0)
        sums = builder.splat(0.0, nest.dtype, self.shape)
        with builder.loop(zero, nest.extents["d"], nest.step, [sums], UNROLL) as loop:
            keys = builder.load(self.k, [row, loop.index], [0, 1], (nest.mr, nest.step), [True, True])
            if nest.pairs:
                at = [self.number, builder.floor_div(loop.index, builder.index(2)), zero, zero]
                queries = builder.load(nest.queries, at, [3, 2], (2, nest.nr), [True, True])
            else:
                queries = nest.get_rows(nest.queries, [self.number, loop.index], 1)
            loop.yielded = (builder.mma(keys, queries, loop.carried[0], *self.shape, nest.step, nest.element),)
        return loop.results[0]

    def _masked(self, scores: SSAValue, row: SSAValue, width: SSAValue, at_edge: bool) -> SSAValue:
        """Scores of `shape`, multiplied by their factor where weights do not; hidden ones are -inf."""
        builder, nest, softmax = self.builder, self.nest, self.softmax
        spec, key = nest.spec, builder.add(self.key, row)
        if nest.scales_scores:
            scores = builder.append(arith.MulfOp(scores, softmax.spread(nest.factor, scores)))
        if spec.mask is not None:
            mask = nest.write(spec.mask, dict(zip("kq", self.shape, strict=True)), {"k": key, "q": self.query})
            if spec.mask.dtype is bool_:
                scores = softmax.hide(scores, mask)
            else:
                scores = additive(builder, scores, mask, nest.dtype)
        if not at_edge:
            return scores
        if spec.causal:
            scores = softmax.hide(scores, softmax.below_diagonal(self.query, key, self.shift, self.shape))
        return softmax.hide(scores, builder.mask(row, width, self.shape, 0))

    def _weights(self, width: SSAValue, base: SSAValue) -> SSAValue:
        """Turns scores into weights; gives the sum of each query's."""
        builder, nest, softmax = self.builder, self.nest, self.softmax
        rows = self.shape[0]
        height = 2 if nest.pairs else rows
        with builder.loop(builder.index(0), width, rows, [softmax.splat(0.0)]) as loop:
            total = loop.carried[0]
            for first in range(0, rows, height):
                row = builder.add(loop.index, builder.index(first)) if first else loop.index
                weights = softmax.weights(nest.get_rows(nest.scores, [row], height), base)
                if nest.pairs:
                    pair = builder.floor_div(row, builder.index(2))
                    at = [pair, builder.index(0), builder.index(0)]
                    builder.store(builder.cast(weights, bf16), nest.weights, at, [2, 1], [True, True])
                else:
                    nest.put_rows(weights, nest.scores, [row])
                total = builder.append(arith.AddfOp(total, builder.reduce(weights, "add", 0)))
            loop.yielded = (total,)
        return loop.results[0]

    def _values(self, v: SSAValue, width: SSAValue, decay: SSAValue) -> None:
        """A register tile of the weighted sums of values."""
        builder, nest, zero = self.builder, self.nest, self.builder.index(0)
        sums = self.softmax.shrunk(nest.get_rows(nest.sums, [self.number, v], nest.mr), decay)
        with builder.loop(zero, width, nest.step, [sums], UNROLL) as loop:
            if nest.pairs:
                pair = builder.floor_div(loop.index, builder.index(2))
                values = builder.load(self.v, [zero, pair, v, zero], [2, 3], (nest.mr, 2), [True, True])
                weights = builder.load(nest.weights, [pair, zero, zero], [2, 1], (2, nest.nr), [True, True])
            else:
                values = builder.load(self.v, [loop.index, v], [1, 0], (nest.mr, 1), [True, True])
                # Each key's elements are on another line, for the next register tile too: 0.96 of the product's time.
                builder.prefetch(self.v, [loop.index, builder.add(v, builder.index(nest.mr))], 1, 1, write=False)
                weights = nest.get_rows(nest.scores, [loop.index], 1)
            loop.yielded = (builder.mma(values, weights, loop.carried[0], *self.shape, nest.step, nest.element),)
        nest.put_rows(loop.results[0], nest.sums, [self.number, v])


def _is_bf16(value: Value) -> bool:
    return value.operation == "cast" and value.arguments[0].dtype is bf16


def round_up(extent: int, step: int) -> int:
    return -(-extent // step) * step


def _strides(shape: Sequence[int]) -> list[int | None]:
    """Row-major strides."""
    return [math.prod(shape[place + 1 :]) for place in range(len(shape))]
