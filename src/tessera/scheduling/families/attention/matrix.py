"""Attention for many queries on a CPU's matrix unit: the nest of `attention/blocks.py` with products of its tiles.

The unit's first operand lies in rows, its second in pairs of neighbouring rows. Packed K and Q^T are these already, and
so are the weights; V is transposed as it is packed. Scores and sums pass from the unit to vectors by way of scratch
memory:

    scores = K Q^T            32 keys by a panel of queries, along the head in steps of 32
    sums   = sums * decay     by vectors
    sums   = sums + V^T P     32 elements of a value by a panel of queries, along the keys in steps of 32
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tessera.dtypes import bf16, bool_
from tessera.scheduling.families.attention.blocks import BlockedAttention
from tessera.scheduling.families.attention.packing import SQUARE, round_up
from tessera.scheduling.families.attention.panel import QueryPanel
from tessera.scheduling.lowering.microkernel.matrix_unit import UNIT_ROWS, MatrixUnitKernel
from tessera.scheduling.lowering.microkernel.panels import PanelReader, packed_rows
from tessera.scheduling.lowering.microkernel.protocol import Place, Sums
from tessera.scheduling.lowering.microkernel.summation import summed
from tessera.scheduling.lowering.ranges import Range, rounded_up

PAIR = 2
DEPTH = PAIR * UNIT_ROWS
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
        self.scales_scores = self.spec.scoring is not None or (mask is not None and mask.dtype is not bool_)

    def panel(self, first: SSAValue, key: SSAValue, width: SSAValue, k: SSAValue, v: SSAValue) -> QueryPanel:
        return MatrixPanel(self, first, key, width, k, v)

    def staged_head(self) -> SSAValue:
        return rounded_up(self.builder, self.extents["d"], DEPTH)

    def pack_values(self, key: SSAValue, width: SSAValue) -> SSAValue:
        """V^T, row after row, zeros up to whole tiles."""
        builder = self.builder
        most = round_up(self.value_head, self.mr), round_up(self.bn, DEPTH)
        extents = rounded_up(builder, self.extents["v"], self.mr), rounded_up(builder, width, DEPTH)
        with packed_rows(builder, extents, most, PADDING, bf16) as stage:
            at = {"v": stage.row, "k": builder.add(key, stage.column)}
            stage.tile = self.write(self._element(self.spec.v), {"v": SQUARE, "k": DEPTH}, at)
        return stage.buffer


class MatrixPanel(QueryPanel):
    """One panel of queries against one block of keys."""

    def __init__(
        self, nest: MatrixAttention, first: SSAValue, key: SSAValue, width: SSAValue, k: SSAValue, v: SSAValue
    ) -> None:
        super().__init__(nest, first, key, width, k, v)
        self.shape = ROWS, nest.nr
        rows, columns = range(0, nest.mr, UNIT_ROWS), range(0, nest.nr, UNIT_ROWS)
        self.unit = MatrixUnitKernel(nest.builder, rows, columns, UNIT_ROWS, DEPTH, bf16, nest.dtype)

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
        nest, unit, zero = self.nest, self.unit, self.builder.index(0)
        span = zero, nest.staged_head()
        sums = self._summed(span, unit.zeros(), self.k, row, nest.queries, [self.number])
        unit.store(sums, Place(nest.scores, (row, zero), (0, 1), (True, True)))

    def _weights(self, width: SSAValue, base: SSAValue) -> SSAValue:
        """Weights of keys past the last are 0, up to whole tiles."""
        return super()._weights(rounded_up(self.builder, width, DEPTH), base)

    def _values(self, v: SSAValue, width: SSAValue, decay: SSAValue) -> None:
        """A register tile's rows of the weighted sums of values."""
        builder, nest, zero = self.builder, self.nest, self.builder.index(0)
        with builder.loop(v, builder.add(v, builder.index(nest.mr)), ROWS) as rows:
            at = [self.number, rows.index]
            nest.put_rows(self.softmax.shrunk(nest.get_rows(nest.sums, at, ROWS), decay), nest.sums, at)
        place = Place(nest.sums, (self.number, v, zero), (1, 2), (True, True))
        span = zero, rounded_up(builder, width, DEPTH)
        self.unit.store(self._summed(span, self.unit.load(place), self.v, v, nest.weight_rows, []), place)

    def _summed(
        self,
        span: Range,
        before: Sums,
        memory: SSAValue,
        row: SSAValue,
        right: PanelReader,
        panel: Sequence[SSAValue],
    ) -> Sums:
        """Sums with the products of packed rows, from a row of `memory` on, and of a panel of groups."""
        builder = self.builder

        def step(k: SSAValue, sums: Sums, whole: bool) -> Sums:
            group, shape = right.group_of(k), (UNIT_ROWS, UNIT_ROWS, PAIR)

            def rows(first: int) -> SSAValue:
                at = [builder.add(row, builder.index(first)), k]
                return builder.load(memory, at, [0, 1], (UNIT_ROWS, DEPTH), [True, True])

            return self.unit.step(rows, lambda column: right.groups(panel, group, builder.index(column), shape), sums)

        return summed(builder, span, DEPTH, before, step)
