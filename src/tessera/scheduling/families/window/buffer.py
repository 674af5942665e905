"""The rows of an image that a strip of results sees, in scratch memory: a ring of rows, columns of some channels.

Every element is read from memory once for a strip, padding is written where the image has none, and neighbouring pixels
lie side by side: what a window sees stays in the first cache, whatever the distance of pixels in the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.scheduling.families.window.ranges import Ranges
from tessera.scheduling.language.columns import Knobs, Number, divided
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.attributes import buffer_type
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.ranges import Range, rounded_up
from tessera.scheduling.lowering.spec import Geometry

LINE = 16
"""Elements between a row's end and the next row: rows shall not lie powers of two apart."""


class Pixels(Protocol):
    """What writes vectors of the image, as the ring holds them."""

    def read(self, pixel: Mapping[str, SSAValue], lane: SSAValue, lanes_inside: bool) -> SSAValue:
        """The vector from channel `lane` on of a pixel that lies inside the image."""

    def outside(self) -> SSAValue:
        """A vector of what lies outside the image."""


def ring_shape(schedule: Knobs, geometry: Geometry) -> tuple[Number, Number, Number]:
    """Rows, columns and channels of the ring."""
    (block, channels), step = schedule.integers("tile"), schedule.integer("columns")
    counts = schedule.integer("rows"), divided(block, step) * step
    height, width = ((count - 1) * geometry.stride[d] + geometry.reach(d) + 1 for d, count in enumerate(counts))
    return height, width, channels


class RowBuffer:
    """The scratch memory, and the code that fills and reads it, in vectors of `width` channels. `extents` are those of
    the image's axes h and w.
    """

    def __init__(
        self,
        schedule: Schedule,
        geometry: Geometry,
        width: int,
        builder: TileBuilder,
        element: DType,
        pixels: Pixels,
        extents: Mapping[str, SSAValue],
    ) -> None:
        self.geometry, self.builder, self.pixels, self.extents = geometry, builder, pixels, extents
        self.rows, self.columns = schedule.integer("rows"), schedule.integer("columns")
        self.ranges = Ranges(builder)
        self.height, longest, self.channels = ring_shape(schedule, geometry)
        self.width = width
        line = longest * self.channels + LINE
        kind = buffer_type(element, [line, self.channels, 1], [self.height, longest, self.channels])
        self.scratch = builder.alloc(kind, "L1")

    # -- filling --------------------------------------------------------------------------------------------------

    @contextmanager
    def strips(self, share: Range, columns: Range, first_lane: SSAValue, lanes_inside: bool) -> Iterator[SSAValue]:
        """A loop over strips of output rows of a block of columns and channels; inside the ring holds what a strip
        sees.
        """
        builder, reach, (below, right) = self.builder, self.geometry.reach, self.geometry.stride
        self.first_column, self.first_lane, self.lanes_inside = columns[0], first_lane, lanes_inside
        start = builder.mul(columns[0], builder.index(right))
        start = builder.add(start, builder.index(-self.geometry.padding[1]))
        steps = rounded_up(builder, builder.sub(columns[1], columns[0]), self.columns)
        count = builder.add(builder.mul(steps, builder.index(right)), builder.index(reach(1) + 1 - right))
        with builder.loop(*share, self.rows) as loop:
            # Rows of the image are counted from the padding on here. All but the first strip have seen most already.
            first = builder.mul(loop.index, builder.index(below))
            seen = builder.mul(builder.sub(loop.index, share[0]), builder.index(reach(0) + 1))
            seen = builder.minimum(seen, builder.index(max(reach(0) + 1 - below, 0)))
            with builder.loop(builder.add(first, seen), builder.add(first, builder.index(self.height)), 1) as row:
                self._row(row.index, start, count)
            self.slots = [self._slot(builder.add(first, builder.index(row))) for row in range(self.height)]
            yield loop.index

    def _slot(self, row: SSAValue) -> SSAValue:
        builder, height = self.builder, self.builder.index(self.height)
        return builder.sub(row, builder.mul(builder.floor_div(row, height), height))

    def _row(self, row: SSAValue, start: SSAValue, count: SSAValue) -> None:
        """Copies `count` columns of a row of the image, from `start` on, and what lies outside."""
        builder, zero = self.builder, self.builder.index(0)
        slot, h = self._slot(row), builder.add(row, builder.index(-self.geometry.padding[0]))
        before = builder.minimum(count, builder.maximum(zero, builder.sub(zero, start)))
        end = builder.maximum(before, builder.minimum(count, builder.sub(self.extents["w"], start)))

        def inside() -> list[SSAValue]:
            self._fill(slot, (zero, before))
            with builder.loop(before, end, 1) as column:
                self._copy({"h": h, "w": builder.add(start, column.index)}, slot, column.index)
            self._fill(slot, (end, count))
            return []

        def outside() -> list[SSAValue]:
            self._fill(slot, (zero, count))
            return []

        builder.branch(self.ranges.within(h, self.extents["h"]), inside, outside)

    def _copy(self, pixel: Mapping[str, SSAValue], slot: SSAValue, column: SSAValue) -> None:
        builder = self.builder
        lanes = [builder.index(lane) for lane in range(0, self.channels, self.width)]
        for lane in lanes:
            value = self.pixels.read(pixel, builder.add(self.first_lane, lane), self.lanes_inside)
            builder.store(value, self.scratch, [slot, column, lane], [1, 2], [True, True])

    def _fill(self, slot: SSAValue, columns: Range) -> None:
        with self.builder.loop(*columns, 1) as column:
            for lane in range(0, self.channels, self.width):
                indices = [slot, column.index, self.builder.index(lane)]
                self.builder.store(self.pixels.outside(), self.scratch, indices, [1, 2], [True, True])

    # -- reading --------------------------------------------------------------------------------------------------

    def load(self, place: tuple[int, int], x: SSAValue, lane: SSAValue) -> SSAValue:
        """The vector from channel `lane` on of a place relative to the window of column `x`."""
        builder = self.builder
        column = builder.mul(builder.sub(x, self.first_column), builder.index(self.geometry.stride[1]))
        column = builder.add(column, builder.index(place[1]))
        indices = [self.slots[place[0]], column, builder.sub(lane, self.first_lane)]
        return builder.load(self.scratch, indices, [1, 2], (1, self.width), [True, True])
