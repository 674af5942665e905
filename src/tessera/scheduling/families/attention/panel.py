"""One panel of queries against one block of keys."""

from __future__ import annotations

import math

from xdsl.dialects import arith
from xdsl.dialects.builtin import VectorType
from xdsl.ir import SSAValue

from tessera.dtypes import bf16, bool_
from tessera.scheduling.families.attention.online_softmax import KeyRange, additive, scored
from tessera.scheduling.families.attention.packing import PackedAttention
from tessera.scheduling.families.attention.visibility import is_read
from tessera.scheduling.lowering.microkernel.panels import PanelReader
from tessera.scheduling.lowering.microkernel.protocol import MicroKernel, Sums
from tessera.scheduling.lowering.microkernel.summation import summed
from tessera.scheduling.lowering.microkernel.vector import VectorKernel
from tessera.scheduling.lowering.ranges import rounded_down, rounded_up

UNROLL = 4
SCORED_ROWS = 2
"""Keys whose scores are changed together."""
LOOKED_AT = 64
"""Keys of a mask that are looked at together: are all of them hidden from a panel of queries?"""


class QueryPanel:
    """One panel of queries against one block of keys: the code of both products and of the softmax between them."""

    def __init__(
        self, nest: PackedAttention, first: SSAValue, key: SSAValue, width: SSAValue, k: SSAValue, v: SSAValue
    ) -> None:
        self.nest, self.builder, self.softmax = nest, nest.builder, nest.softmax
        self.number, self.key, self.width, self.k, self.v = nest.panel_number(first), key, width, k, v
        self.query = self.builder.add(nest.at["q"], first)
        self.shape = nest.mr, nest.nr
        self.kernel: MicroKernel = VectorKernel(nest.builder, nest.mr, nest.nr, nest.step, nest.element, nest.dtype)
        self.shift = self.builder.sub(nest.extents["k"], nest.extents["q"])

    def write(self) -> None:
        """Writes the code; nothing happens where no query of the panel sees a key of the block."""
        builder, nest = self.builder, self.nest
        if not nest.spec.causal:
            if nest.skips:
                self._where_seen()
            else:
                self._seen(self.width, rounded_down(builder, self.width, nest.mr))
            return
        keys = KeyRange.of(builder, self.query, nest.nr, nest.extents["q"], nest.extents["k"], causal=True)
        width = builder.minimum(self.width, builder.sub(keys.end, self.key))
        whole = builder.maximum(builder.minimum(self.width, builder.sub(keys.whole, self.key)), builder.index(0))

        def seen() -> tuple[SSAValue, ...]:
            self._seen(width, rounded_down(builder, whole, nest.mr))
            return ()

        builder.branch(builder.compare(width, builder.index(0), "sgt"), seen)

    def _where_seen(self) -> None:
        """The keys of the block, where the mask may show one to any query of the panel; the mask is not looked at where
        it shows all.
        """
        builder, nest, mask = self.builder, self.nest, self.nest.spec.mask
        assert mask is not None
        sizes = {"q": nest.nr, "k": nest.bn}
        end = builder.add(self.key, self.width)
        certain, possible = nest.visibility(self.query, self.key, sizes, end)
        all_keys, none = rounded_down(builder, self.width, nest.mr), builder.index(0)

        def visible() -> tuple[SSAValue, ...]:
            (whole,) = builder.branch(certain, lambda: [all_keys], lambda: [none])
            if is_read(mask):
                self._below_mask(whole)
            else:
                self._seen(self.width, whole)
            return ()

        builder.branch(possible, visible)

    def _below_mask(self, whole: SSAValue) -> None:
        """The keys of the block up to the last one that the mask shows to any query of the panel, if there is one.

        So a mask that hides the future, written as booleans or -inf, costs what `causal` does, and padding little.
        """
        builder, nest = self.builder, self.nest
        zero = builder.index(0)
        with builder.loop(zero, self.width, LOOKED_AT, [zero]) as loop:
            end = builder.minimum(builder.add(loop.index, builder.index(LOOKED_AT)), self.width)
            shown = builder.element(self._any_shown(builder.add(self.key, loop.index)))
            loop.yielded = tuple(builder.branch(shown, lambda: [end], lambda: [loop.carried[0]]))
        (width,) = loop.results

        def seen() -> tuple[SSAValue, ...]:
            self._seen(width, builder.minimum(whole, rounded_down(builder, width, nest.mr)))
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
        zero, found = builder.index(0), softmax.initial()[0]
        rows, end = nest.mr, width
        if is_apart := nest.spec.scoring is not None:
            # In registers a tile of products leaves no room for what is between them and their scores.
            with builder.loop(zero, width, rows) as loop:
                nest.put_rows(self._products(loop.index), nest.scores, [loop.index])
            rows, end = SCORED_ROWS, rounded_up(builder, width, rows)
        for lower, upper, at_edge in ((zero, whole, False), (whole, end, True)):
            with builder.loop(lower, upper, rows, [found]) as loop:
                products = nest.get_rows(nest.scores, [loop.index], rows) if is_apart else self._products(loop.index)
                scores = self._masked(products, loop.index, width, at_edge)
                nest.put_rows(scores, nest.scores, [loop.index])
                loop.yielded = (softmax.larger(softmax.largest(scores), loop.carried[0]),)
            (found,) = loop.results
        return found

    def _products(self, row: SSAValue) -> SSAValue:
        """A register tile of scores."""
        builder, nest, kernel = self.builder, self.nest, self.kernel

        def step(d: SSAValue, sums: Sums, whole: bool) -> Sums:
            return kernel.step(
                lambda _: builder.load(self.k, [row, d], [0, 1], (nest.mr, nest.step), [True, True]),
                lambda _: nest.queries.rows([self.number], nest.queries.group_of(d), (nest.step, nest.nr)),
                sums,
            )

        span = builder.index(0), nest.extents["d"]
        (scores,) = kernel.finish(summed(builder, span, nest.step, kernel.zeros(), step, UNROLL))
        return scores

    def _masked(self, scores: SSAValue, row: SSAValue, width: SSAValue, at_edge: bool) -> SSAValue:
        """Scores of the keys from `row` on, multiplied by their factor where weights do not; hidden ones are -inf."""
        builder, nest, softmax = self.builder, self.nest, self.softmax
        assert isinstance(scores.type, VectorType)
        shape = scores.type.get_shape()
        spec, key = nest.spec, builder.add(self.key, row)
        if nest.scales_scores:
            scores = builder.append(arith.MulfOp(scores, softmax.spread(nest.factor, scores)))
        writer = nest.writer(dict(zip("kq", shape, strict=True)), {"k": key, "q": self.query})
        scores = scored(writer, spec.scoring, scores)
        if spec.mask is not None and (at_edge or not nest.skips):
            mask = nest.write(spec.mask, dict(zip("kq", shape, strict=True)), {"k": key, "q": self.query})
            if spec.mask.dtype is bool_:
                scores = softmax.hide(scores, mask)
            else:
                scores = additive(builder, scores, mask, nest.dtype)
        if not at_edge:
            return scores
        if spec.causal:
            scores = softmax.hide(scores, softmax.below_diagonal(self.query, key, self.shift, shape))
        return softmax.hide(scores, builder.mask(row, width, shape, 0))

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
        builder, nest, kernel = self.builder, self.nest, self.kernel
        panel = [builder.index(0)] if nest.pairs else []
        values = PanelReader(builder, self.v, nest.step)

        def step(key: SSAValue, sums: Sums, whole: bool) -> Sums:
            group = values.group_of(key)

            def left(_: int) -> SSAValue:
                tile = values.columns(panel, group, v, (nest.mr, nest.step))
                if not nest.pairs:
                    # Each key's elements are on another line, for the next register tile too: 0.96 of the time.
                    builder.prefetch(self.v, [key, builder.add(v, builder.index(nest.mr))], 1, 1, write=False)
                return tile

            return kernel.step(left, lambda _: nest.weight_rows.rows([], group, (nest.step, nest.nr)), sums)

        sums = [self.softmax.shrunk(nest.get_rows(nest.sums, [self.number, v], nest.mr), decay)]
        span = builder.index(0), width
        (total,) = kernel.finish(summed(builder, span, nest.step, sums, step, UNROLL))
        nest.put_rows(total, nest.sums, [self.number, v])
