"""Ranges of loops: which steps of a share are whole, and a loop over those on either side of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from xdsl.ir import SSAValue

from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.ranges import Range, rounded_down, rounded_up


class Ranges:
    """Index arithmetic on ranges, written where the builder stands."""

    def __init__(self, builder: TileBuilder) -> None:
        self.builder = builder

    def within(self, index: SSAValue, extent: SSAValue) -> SSAValue:
        """Whether an index lies in an extent."""
        builder = self.builder
        return builder.both(builder.compare(index, builder.index(0), "sge"), builder.compare(index, extent, "slt"))

    def floor_steps(self, room: SSAValue, step: int) -> SSAValue:
        """How many positions, `step` apart from 0 on, are at most `room`; 0 where it is negative."""
        builder = self.builder
        shifted = builder.maximum(builder.add(room, builder.index(step)), builder.index(0))
        return builder.floor_div(shifted, builder.index(step))

    def whole_steps(self, share: Range, step: int, first: SSAValue | None = None, end: SSAValue | None = None) -> Range:
        """The steps of a share, counted from its start, that lie in [first, end) as a whole; may be empty."""
        builder = self.builder
        lower, upper = share
        start = lower
        if first is not None:
            missing = builder.maximum(builder.sub(first, lower), builder.index(0))
            start = builder.minimum(builder.add(lower, rounded_up(builder, missing, step)), upper)
        last = upper if end is None else builder.minimum(upper, end)
        length = builder.maximum(builder.sub(last, start), builder.index(0))
        return start, builder.add(start, rounded_down(builder, length, step))

    @contextmanager
    def around(self, share: Range, inner: Range, step: int) -> Iterator[SSAValue]:
        """A loop over the steps of a share before and after its inner range, with one body for both sides."""
        builder = self.builder
        with builder.loop(builder.index(0), builder.index(2), 1) as side:
            start = builder.add(share[0], builder.mul(side.index, builder.sub(inner[1], share[0])))
            end = builder.add(inner[0], builder.mul(side.index, builder.sub(share[1], inner[0])))
            with builder.loop(start, end, step) as loop:
                yield loop.index
