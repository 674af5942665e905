"""Packed operands of micro-kernels: rows with some distance between them, and panels of a few columns.

rows       [rows, columns]                            an operand that is broadcast, or the left one of a matrix unit
panels     [columns / width, rows, width]             one that is read by vectors: a panel's rows follow each other
           [columns / width, rows / 2, width, 2]      where instructions multiply two rows at once
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.scheduling.lowering.attributes import buffer_type
from tessera.scheduling.lowering.builder import Stage, TileBuilder

Extents = tuple[SSAValue, SSAValue]


@contextmanager
def packed_rows(
    builder: TileBuilder, extents: Extents, most: tuple[int, int], padding: int, element: DType
) -> Iterator[Stage]:
    """Packs rows, at `most` so many of so many elements, with some between one and the next, so that they do not all
    fall into the same cache set.
    """
    stride = most[1] + padding
    kind = buffer_type(element, [stride, 1], [most[0], stride])
    with builder.stage(extents, "rows", "L2", most, kind) as stage:
        yield stage


@contextmanager
def packed_panels(
    builder: TileBuilder,
    extents: Extents,
    most: tuple[int, int],
    width: int,
    element: DType,
    level: str,
    group: int,
    padding: int = 0,
) -> Iterator[Stage]:
    """Packs panels of `width` columns, at `most` of so many rows and columns; `group` rows, 1 or 2, side by side, and
    `padding` columns between one and the next.
    """
    rows, columns = most
    panels, apart = -(-columns // width), group * (width + padding)
    shape, strides = [panels, rows // group, width], [rows // group * apart, apart, group]
    if group > 1:
        shape, strides = [*shape, group], [*strides, 1]
    layout = "panels" if group == 1 else "panels_vnni"
    kind = buffer_type(element, strides, shape)
    with builder.stage(extents, layout, level, (rows, panels * width), kind) as stage:
        yield stage


@dataclass(frozen=True)
class PanelReader:
    """Reads rows from panels: [..., rows / group, width, group], without the last dimension where `group` is 1.

    `panel` are the indices in front of a panel's rows; `row` counts rows, and begins a group.
    """

    builder: TileBuilder
    buffer: SSAValue
    group: int = 1

    def group_of(self, row: SSAValue) -> SSAValue:
        """The number of the group that a row begins."""
        return self.builder.floor_div(row, self.builder.index(self.group)) if self.group > 1 else row

    def rows(self, panel: Sequence[SSAValue], group: SSAValue, shape: Sequence[int]) -> SSAValue:
        """The tile [rows, columns] of a group, or where groups are rows, of several of them."""
        return self._read(panel, group, self.builder.index(0), shape, (1, 0) if self.group > 1 else (0, 1))

    def columns(self, panel: Sequence[SSAValue], group: SSAValue, column: SSAValue, shape: Sequence[int]) -> SSAValue:
        """The same transposed, [columns, rows], from a column on: a left operand."""
        return self._read(panel, group, column, shape, (0, 1) if self.group > 1 else (1, 0))

    def groups(self, panel: Sequence[SSAValue], group: SSAValue, column: SSAValue, shape: Sequence[int]) -> SSAValue:
        """Groups as they lie, [groups, columns, rows of one], from a column on: what a matrix unit takes."""
        place = [*panel, group, column, self.builder.index(0)]
        rank = len(place)
        return self.builder.load(self.buffer, place, [rank - 3, rank - 2, rank - 1], shape, [True] * 3)

    def fetch(self, panel: Sequence[SSAValue], group: SSAValue, elements: int) -> None:
        """Fetches so many neighbouring elements of a panel, from a group on."""
        zeros = [self.builder.index(0)] * (2 if self.group > 1 else 1)
        self.builder.prefetch(self.buffer, [*panel, group, *zeros], 1, elements, write=False)

    def _read(
        self,
        panel: Sequence[SSAValue],
        group: SSAValue,
        column: SSAValue,
        shape: Sequence[int],
        order: tuple[int, int],
    ) -> SSAValue:
        """A tile over the last two dimensions, in this order."""
        place = [*panel, group, column, *([self.builder.index(0)] if self.group > 1 else [])]
        dims = [len(place) - 2 + dim for dim in order]
        return self.builder.load(self.buffer, place, dims, shape, [True, True])
