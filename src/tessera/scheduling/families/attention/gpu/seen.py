"""Which part of a walk a mask leaves anything of: from the first block that may be seen to the last one.

    a window of 100 keys, queries 1024 .. 1151:     keys 924 .. 1151, in blocks of 64: from 896 on, before 1152

A branch in each block would keep a GPU from loading the next one meanwhile. So the mask is looked at, over intervals
(`attention/visibility.py`), before the walk: of wide ranges, then of narrower ones where the first and the last seem
to lie. What is hidden between them is walked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, VectorType, i64
from xdsl.ir import SSAValue

from tessera.dtypes import int64
from tessera.ir.tile import operations as tile
from tessera.scheduling.families.attention.gpu.grid import AttentionGrid
from tessera.scheduling.families.attention.visibility import ONE, ScoreBlock, is_read, is_sparse, visibility
from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.ranges import Range

WIDTHS: Final = (16, 4, 1)
"""Blocks of the ranges that are looked at, the widest first."""


def hides_blocks(mask: Value | None) -> bool:
    """Whether a mask may hide whole blocks, and says of which it does without being read for each query and key."""
    return is_sparse(mask) and mask is not None and not is_read(mask)


@dataclass(frozen=True)
class SeenRange:
    """The walk along `axis` of what a program's block of the other one sees, in blocks of `step`. `extents` are those
    of both axes, `blocks` what a program has of each.
    """

    grid: AttentionGrid
    mask: Value
    axis: str
    extents: dict[str, SSAValue]
    blocks: dict[str, int]

    def found(self) -> Range:
        """The first block, and the end of the last one: where nothing is seen the first lies past it."""
        builder, extent = self.grid.builder, self.extents[self.axis]
        step = self.blocks[self.axis]
        widths = [step * each for each in WIDTHS]
        nothing = self._tile(builder.index(0))
        lowest, highest = self._tile(extent), nothing
        first, end = self._looked((builder.index(0), extent), widths[0], (lowest, highest))
        for before, width in pairwise(widths):
            begin, past = self._index(first), self._index(end)
            span = begin, builder.minimum(extent, builder.add(begin, builder.index(before)))
            first, _ = self._looked(span, width, (self._plus(first, before), nothing))
            last = builder.maximum(builder.index(0), builder.sub(past, builder.index(before)))
            _, end = self._looked((last, builder.minimum(extent, past)), width, (lowest, self._plus(end, -before)))
        return self._index(first), builder.minimum(extent, self._index(end))

    def _looked(self, span: Range, width: int, bounds: tuple[SSAValue, SSAValue]) -> tuple[SSAValue, SSAValue]:
        """The first place and the end of ranges of some width that may be seen, with `bounds` where none may."""
        builder = self.grid.builder
        with builder.loop(*span, width, bounds) as loop:
            loop.index.name_hint = "looked_at"
            first, end = loop.carried
            possible = self._possible(loop.index, width)
            at = self._tile(loop.index)
            past = self._plus(at, width)
            loop.yielded = (
                self._put(arith.MinSIOp, first, self._select(possible, at, first)),
                self._put(arith.MaxSIOp, end, self._select(possible, past, end)),
            )
        return loop.results[0], loop.results[1]

    def _possible(self, place: SSAValue, width: int) -> SSAValue:
        builder, one = self.grid.builder, self.grid.builder.index(1)
        sizes = {**self.blocks, self.axis: width}
        first = {**{axis: self.grid.at[axis] for axis in sizes if axis != self.axis}, self.axis: place}
        last = {
            axis: builder.sub(builder.minimum(builder.add(at, builder.index(sizes[axis])), self.extents[axis]), one)
            for axis, at in first.items()
        }
        ordered = {axis: sizes[axis] for axis in ("q", "k")}
        block = ScoreBlock(first, last, ordered)
        return visibility(builder, lambda sizes, at: self.grid.writer(sizes, at, ()), self.mask, block)[1]

    # -- tiles of one index -----------------------------------------------------------------------------------------

    def _tile(self, index: SSAValue) -> SSAValue:
        builder = self.grid.builder
        number = builder.append(arith.IndexCastOp(index, i64))
        return builder.append(tile.BroadcastOp.create(operands=[number], result_types=[VectorType(i64, list(ONE))]))

    def _index(self, value: SSAValue) -> SSAValue:
        """The index of a tile that holds none below 0."""
        builder = self.grid.builder
        index = builder.append(arith.IndexCastOp(builder.element(value), IndexType()))
        return builder.maximum(builder.index(0), index)

    def _plus(self, value: SSAValue, number: int) -> SSAValue:
        return self._put(arith.AddiOp, value, self.grid.builder.splat(number, int64, ONE))

    def _put(self, make: Callable[..., arith.SignlessIntegerBinaryOperation], *operands: SSAValue) -> SSAValue:
        return self.grid.builder.append(make(*operands))

    def _select(self, condition: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        operation = tile.SelectOp.create(operands=[condition, a, b], result_types=[a.type])
        return self.grid.builder.append(operation)
