"""What a product needs to know of whole rows of A before it packs them: the mean and the scale of a norm.

    for each row of A's block:  walk it once for each reduction that needs an earlier one; keep what the prologue uses
    stage A:                    each element from the operand, and its row's numbers from scratch memory

So norm -> product is one kernel, and no normalized tensor goes through memory. It takes blocks that hold all of K.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from xdsl.ir import SSAValue

from tessera.ir.tile import operations as tile
from tessera.scheduling.families.rows.lowering import PART, combine, identity
from tessera.scheduling.language.expression import WALK, Value, post_order
from tessera.scheduling.lowering.attributes import buffer_type
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.ranges import rounded_down, summed_in_parts
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter

WIDE: Final = 64
"""Elements of a row that are reduced side by side."""
NARROW: Final = 16
"""The same for the rest of a row."""


def row_values(value: Value) -> list[Value]:
    """What an operand's elements along k are computed with that is the same along a row of it, and known only when the
    row has been walked; none where the operand needs no reductions.
    """
    ordered = post_order([value])
    used = dict.fromkeys(x for user in ordered if "k" in user.axes for x in user.arguments if WALK in x.axes)
    return [x for x in used if "k" not in x.axes]


class RowStatistics:
    """The row values of `value` for blocks of at most `rows` rows. To be made where the kernel begins."""

    def __init__(
        self, builder: TileBuilder, arguments: Mapping[int, ArgumentTile], value: Value, rows: int, extent: SSAValue
    ) -> None:
        self.builder, self.arguments, self.extent = builder, arguments, extent
        self.values = row_values(value)
        self.reductions = [x for x in post_order(self.values) if x.is_reduction]
        count = len(self.values)
        self.memory = builder.alloc(buffer_type(value.dtype, [rows, 1], [count, rows]), "L1") if count else None

    def write(self, first: SSAValue, count: SSAValue, batch: Mapping[str, SSAValue]) -> None:
        """Walks `count` rows from `first` on."""
        if self.memory is None:
            return
        builder, zero = self.builder, self.builder.index(0)
        with builder.loop(zero, count, 1) as loop:
            writer = TileWriter(builder, self.arguments, {"m": 1, "k": 1}, Scope(frozenset(), 0), lambda: self.extent)
            at = {**batch, "m": builder.add(first, loop.index), WALK: zero}
            writer.enter(at, {"m": True})
            for stage in range(1, max(x.stage for x in self.values) + 1):
                self._walk(writer, [x for x in self.reductions if x.stage == stage])
            writer.sizes["k"] = 1
            for place, value in enumerate(self.values):
                at_row = [builder.index(place), loop.index]
                builder.store(writer.write(value, (1, 1)), self.memory, at_row, [0, 1], [True, True])

    def define(self, writer: TileWriter, row: SSAValue) -> None:
        """Says what the row values are where `writer` packs elements from row `row` of the block on."""
        for place, value in enumerate(self.values):
            shape = writer.shape(value)
            dims = [1 if axis == "m" else -1 for axis in writer.sizes]
            assert self.memory is not None
            at = [self.builder.index(place), row]
            writer.define(value, self.builder.load(self.memory, at, dims, shape, [True, True]))

    def _walk(self, writer: TileWriter, reductions: Sequence[Value]) -> None:
        """One walk along a row, which defines these reductions: whole steps, then the masked rest."""
        builder = self.builder
        whole = rounded_down(builder, self.extent, WIDE)
        zeros = [self._neutral(value, WIDE) for value in reductions]

        def join(totals: Sequence[SSAValue], sums: Sequence[SSAValue]) -> list[SSAValue]:
            return list(map(self._combine, reductions, totals, sums))

        with summed_in_parts(builder, (builder.index(0), whole), WIDE, (WIDE * PART,), zeros, join) as parts:
            parts.yielded = self._step(writer, reductions, parts.index, parts.carried, WIDE)
        with builder.loop(whole, self.extent, NARROW, [self._neutral(value, NARROW) for value in reductions]) as loop:
            loop.yielded = self._step(writer, reductions, loop.index, loop.carried, NARROW)
        writer.sizes["k"] = 1
        for value, *both in zip(reductions, parts.results, loop.results, strict=True):
            wide, rest = (builder.reduce(each, value.kind, 1) for each in both)
            writer.define(value, self._combine(value, wide, rest))

    def _step(
        self, writer: TileWriter, reductions: Sequence[Value], k: SSAValue, sums: Sequence[SSAValue], width: int
    ) -> tuple[SSAValue, ...]:
        """Sums with the next `width` elements."""
        builder, rest = self.builder, width == NARROW
        writer.sizes["k"] = width
        made = []
        with writer.inside({"k": k}, {"k": not rest}):
            for value, total in zip(reductions, sums, strict=True):
                element = writer.write(value.arguments[0], (1, width))
                if rest:
                    inside = builder.mask(k, self.extent, (1, width), 1)
                    operands = [inside, element, self._neutral(value, width)]
                    element = builder.append(tile.SelectOp.create(operands=operands, result_types=[element.type]))
                made.append(self._combine(value, total, element))
        return tuple(made)

    def _neutral(self, value: Value, width: int) -> SSAValue:
        return self.builder.splat(identity(value.kind, value.dtype), value.dtype, (1, width))

    def _combine(self, value: Value, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.builder.append(combine(value, a, b))
