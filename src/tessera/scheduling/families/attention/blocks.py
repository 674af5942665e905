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

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tessera.scheduling.families.attention.online_softmax import KeyRange, OnlineSoftmax
from tessera.scheduling.families.attention.packing import SQUARE, PackedAttention
from tessera.scheduling.families.attention.panel import QueryPanel
from tessera.scheduling.families.attention.visibility import is_placed


class BlockedAttention(PackedAttention):
    """The kernel with queries along lanes."""

    def block(self) -> None:
        """Writes the code of one block of queries."""
        builder, q = self.builder, self.at["q"]
        count = builder.minimum(builder.index(self.bm), builder.sub(self.extents["q"], q))
        scale = self.write(self.spec.scale, {"": 1, "q": self.nr}, {})
        self.factor = self.softmax.scale_factor(scale, self.spec.scoring is not None)
        if self.pairs and not self.scales_scores:
            self.softmax.factor = self.factor
        self.queries = self.pack_queries(count)
        with builder.loop(builder.index(0), count, self.nr) as loop:
            self._clear(self.panel_number(loop.index))
        keys = KeyRange.of(builder, q, self.bm, self.extents["q"], self.extents["k"], self.spec.causal)
        with builder.loop(builder.index(0), keys.end, self.bn) as loop:
            self._keys(loop.index, keys.end, count)
        with builder.loop(builder.index(0), count, self.nr) as loop:
            self._finish(loop.index)

    def _keys(self, key: SSAValue, end: SSAValue, count: SSAValue) -> None:
        """A block of keys, which is packed where a query of the block may see one of them."""
        builder = self.builder
        width = builder.minimum(builder.index(self.bn), builder.sub(end, key))

        def seen() -> tuple[SSAValue, ...]:
            packed = self.pack_keys(key, width), self.pack_values(key, width)
            with builder.loop(builder.index(0), count, self.nr) as panel:
                self.panel(panel.index, key, width, *packed).write()
            return ()

        if not (self.skips and is_placed(self.spec.mask)):
            seen()
            return
        sizes = {"q": self.bm, "k": self.bn}
        _, possible = self.visibility(self.at["q"], key, sizes, end, reads=False)
        builder.branch(possible, seen)

    def panel(self, first: SSAValue, key: SSAValue, width: SSAValue, k: SSAValue, v: SSAValue) -> QueryPanel:
        """The panel of queries from `first` on, and the block of `width` keys from `key` on that was packed."""
        return QueryPanel(self, first, key, width, k, v)

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
            largest = get(self.largest, [panel, column.index], 1)
            query = builder.add(builder.add(self.at["q"], first), column.index)
            saved = {"v": builder.index(0), "q": query}
            self.write_saved(lambda: softmax.logarithm(largest, total), {"v": 1, "q": side}, saved)
            with builder.loop(builder.index(0), self.extents["v"], SQUARE) as v:
                sums = get(self.sums, [panel, v.index, column.index], SQUARE)
                at = {"v": v.index, "q": query}
                self.write_result(softmax.mean(sums, total), {"v": SQUARE, "q": side}, at)
