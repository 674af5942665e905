"""Attention for many queries on a CPU's matrix unit: the nest of `attention/blocks.py` with products of its tiles.

The unit's first operand lies in rows, its second in pairs of neighbouring rows. Packed K and Q^T are these already, and
so are the weights; V is transposed as it is packed. Scores and sums pass from the unit to vectors by way of scratch
memory:

    scores = K Q^T            32 keys by a panel of queries, along the head in steps of 32
    sums   = sums * decay     by vectors
    sums   = sums + V^T P     32 elements of a value by a panel of queries, along the keys in steps of 32
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from tessera.dtypes import bf16, bool_
from tessera.scheduling.families.attention.blocks import SQUARE, BlockedAttention, Panel, round_up
from tessera.scheduling.families.product.problem import UNIT_GROUPS
from tessera.scheduling.lowering.attributes import buffer_type

PAIR = 2
DEPTH = PAIR * UNIT_GROUPS
"""Elements of a head, or keys, that the unit multiplies at once."""
ROWS = 8
"""Rows of scores or sums that vectors take at once."""
PADDING = 32
"""Elements added to a row of V^T: rows stay whole cache lines, and do not all fall into the same set."""


class MatrixAttention(BlockedAttention):
    """The kernel with products on the unit. The rule `matrix-unit` says which schedules it takes."""

    def _reserve(self) -> None:
        super()._reserve()
        mask = self.spec.mask
        self.scales_scores = mask is not None and mask.dtype is not bool_

    def panel(self, first: SSAValue, key: SSAValue, width: SSAValue, k: SSAValue, v: SSAValue) -> Panel:
        return MatrixPanel(self, first, key, width, k, v)

    def staged_head(self) -> SSAValue:
        return self.rounded(self.extents["d"], DEPTH)

    def _stage_values(self, key: SSAValue, width: SSAValue) -> SSAValue:
        """V^T, row after row, zeros up to whole tiles."""
        builder = self.builder
        shape = [round_up(self.value_head, self.mr), round_up(self.bn, DEPTH)]
        stride = shape[1] + PADDING
        kind = buffer_type(bf16, [stride, 1], [shape[0], stride])
        extents = self.rounded(self.extents["v"], self.mr), self.rounded(width, DEPTH)
        with builder.stage(extents, "rows", "L2", (shape[0], shape[1]), kind) as stage:
            at = {"v": stage.row, "k": builder.add(key, stage.column)}
            stage.tile = self.write(self._element(self.spec.v), {"v": SQUARE, "k": DEPTH}, at)
        return stage.buffer


class MatrixPanel(Panel):
    """One panel of queries against one block of keys."""

    def __init__(
        self, nest: MatrixAttention, first: SSAValue, key: SSAValue, width: SSAValue, k: SSAValue, v: SSAValue
    ) -> None:
        super().__init__(nest, first, key, width, k, v)
        self.shape = ROWS, nest.nr
        self.corners = [(i, j) for i in range(0, nest.mr, UNIT_GROUPS) for j in range(0, nest.nr, UNIT_GROUPS)]

    def _scores(self, width: SSAValue, whole: SSAValue) -> SSAValue:
        """Computes the scores of the block, up to whole tiles; gives the largest of each query."""
        builder, nest, softmax = self.builder, self.nest, self.softmax
        found = softmax.initial()[0]
        for lower, upper, at_edge in ((builder.index(0), whole, False), (whole, width, True)):
            with builder.loop(lower, upper, nest.mr, [found]) as tiles:
                self._multiply_keys(tiles.index)
                end = builder.add(tiles.index, builder.index(nest.mr))
                with builder.loop(tiles.index, end, ROWS, [tiles.carried[0]]) as loop:
                    products = nest.get_rows(nest.scores, [loop.index], ROWS)
                    scores = self._masked(products, loop.index, width, at_edge)
                    if scores is not products:
                        nest.put_rows(scores, nest.scores, [loop.index])
                    loop.yielded = (softmax.raised(loop.carried[0], softmax.largest(scores)),)
                tiles.yielded = loop.results
            (found,) = tiles.results
        return found

    def _multiply_keys(self, row: SSAValue) -> None:
        """K Q^T for a register tile's keys from `row` on."""
        builder, nest, zero = self.builder, self.nest, self.builder.index(0)
        sums = [builder.splat(0.0, nest.dtype, (UNIT_GROUPS, UNIT_GROUPS)) for _ in self.corners]
        with builder.loop(zero, nest.staged_head(), DEPTH, sums) as loop:
            pair = builder.floor_div(loop.index, builder.index(PAIR))
            loop.yielded = self._summed(
                loop.carried,
                lambda i: self._rows(self.k, builder.add(row, builder.index(i)), loop.index),
                lambda j: self._pairs(nest.queries, [self.number, pair, builder.index(j), zero]),
            )
        self._store(loop.results, nest.scores, [], row)

    def _weights(self, width: SSAValue, base: SSAValue) -> SSAValue:
        """Weights of keys past the last are 0, up to whole tiles."""
        return super()._weights(self.nest.rounded(width, DEPTH), base)

    def _values(self, v: SSAValue, width: SSAValue, decay: SSAValue) -> None:
        """A register tile's rows of the weighted sums of values."""
        builder, nest, zero = self.builder, self.nest, self.builder.index(0)
        with builder.loop(v, builder.add(v, builder.index(nest.mr)), ROWS) as rows:
            at = [self.number, rows.index]
            nest.put_rows(self.softmax.shrunk(nest.get_rows(nest.sums, at, ROWS), decay), nest.sums, at)
        before = [
            builder.load(nest.sums, at, [1, 2], (UNIT_GROUPS, UNIT_GROUPS), [True, True])
            for at in self._places([self.number], v)
        ]
        with builder.loop(zero, nest.rounded(width, DEPTH), DEPTH, before) as loop:
            pair = builder.floor_div(loop.index, builder.index(PAIR))
            loop.yielded = self._summed(
                loop.carried,
                lambda i: self._rows(self.v, builder.add(v, builder.index(i)), loop.index),
                lambda j: self._pairs(nest.weights, [pair, builder.index(j), zero]),
            )
        self._store(loop.results, nest.sums, [self.number], v)

    # -- tiles of the unit ----------------------------------------------------------------------------------------

    def _summed(
        self, sums: Sequence[SSAValue], left: Callable[[int], SSAValue], right: Callable[[int], SSAValue]
    ) -> tuple[SSAValue, ...]:
        """The sums after a step; `left` and `right` read the operands for a tile's first row and column."""
        rows: dict[int, SSAValue] = {}
        columns: dict[int, SSAValue] = {}
        results = []
        for (i, j), before in zip(self.corners, sums, strict=True):  # operands are read when they are first multiplied
            if i not in rows:
                rows[i] = left(i)
            if j not in columns:
                columns[j] = right(j)
            sizes = UNIT_GROUPS, UNIT_GROUPS, DEPTH
            results.append(self.builder.mma(rows[i], columns[j], before, *sizes, bf16, matrix_unit=True))
        return tuple(results)

    def _rows(self, memory: SSAValue, row: SSAValue, column: SSAValue) -> SSAValue:
        return self.builder.load(memory, [row, column], [0, 1], (UNIT_GROUPS, DEPTH), [True, True])

    def _pairs(self, memory: SSAValue, at: Sequence[SSAValue]) -> SSAValue:
        rank, shape = len(at), (UNIT_GROUPS, UNIT_GROUPS, PAIR)
        return self.builder.load(memory, at, [rank - 3, rank - 2, rank - 1], shape, [True] * 3)

    def _places(self, at: Sequence[SSAValue], row: SSAValue) -> list[list[SSAValue]]:
        """The positions of the tiles whose first row is given."""
        builder = self.builder
        return [[*at, builder.add(row, builder.index(i)), builder.index(j)] for i, j in self.corners]

    def _store(self, sums: Sequence[SSAValue], memory: SSAValue, at: Sequence[SSAValue], row: SSAValue) -> None:
        for value, place in zip(sums, self._places(at, row), strict=True):
            self.builder.store(value, memory, place, [len(at), len(at) + 1], [True, True])
