"""Reductions of rows and of columns of a program over merged axes, and what they compute there."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.graph.operations import GraphOperation
from tessera.ops.record import family_of
from tessera.rewrite.fusion.alignment import reduced_range
from tessera.scheduling.binding.arrays import Arrays, Copy, Limits, Pattern, ShapedArrays, V, columns_of
from tessera.scheduling.binding.axes import Axes, merge_axes
from tessera.scheduling.binding.regions import Region, read_region
from tessera.scheduling.families.rows.binding import reduction_layout
from tessera.scheduling.language.expression import WALK, Recorder, Value
from tessera.scheduling.lowering.spec import RowsAndColumnsSpec

ROWS = "o0"
"""The axis of rows; that along a row is the kernel's `lanes`."""


def lay_out(
    region: Region, domain: Sequence[int], arrays: Arrays[V], limits: Limits, copied: Copy[V]
) -> tuple[Arrays[V], ShapedArrays] | None:
    """The arrays of a kernel; None where rows, or the elements of one, are no axis, where elements of a row do not lie
    side by side or nothing is read along the rows, and on GPUs.
    """
    assert region.reduced is not None
    first, last = region.reduced
    if limits.target.kind != "cpu" or any([tensor.is_counted for tensor, _ in arrays]):  # noqa: C419 - when binding
        return None
    columns = columns_of(arrays, last)
    before, row = merge_axes(domain[:first], columns[:first]), merge_axes(domain[first:], columns[first:])
    if len(before.extents) != 1 or len(row.extents) != 1 or not all([x in (0, 1) for x in row.columns[0]]):  # noqa: C419
        return None
    if not any([stride != 0 for stride in before.columns[0][: len(region.loads)]]):  # noqa: C419 - when binding
        return None
    axes = Axes(before.extents + row.extents, before.columns + row.columns)
    return arrays, reduction_layout(axes, (ROWS, "c"), "c", arrays, len(region.loads), limits.largest_axis)


def rows_and_columns_spec(region: Region, pattern: Pattern) -> RowsAndColumnsSpec:
    """The specification of a kernel."""
    assert region.reduced is not None
    columns = (0, region.reduced[0])

    def along(operation: GraphOperation) -> str:
        reduces = family_of(operation.operator).reduces is not None and reduced_range(operation) == columns
        return ROWS if reduces else pattern.lanes

    outputs = read_region(region, pattern, _Recorder(pattern.lanes), along)
    return RowsAndColumnsSpec(region.name, pattern.arguments, ROWS, pattern.lanes, outputs)


class _Recorder(Recorder):
    """A recorder that tells reductions of columns from those of rows."""

    def reduce(self, kind: str, a: Value) -> Value:
        """Reduces `a` along the axis that the operation at hand reduces."""
        if self.reduced != ROWS:
            return super().reduce(kind, a)
        return self.make("reduce", (a,), (kind, ROWS), a.dtype, (a.axes - {ROWS}) | {WALK}, a.stage + 1)

    def extent(self, a: Value) -> Value:
        """The number of elements along that axis."""
        like = super().extent(a)
        return like if self.reduced != ROWS else self.make("extent", (), (ROWS,), like.dtype, ())
