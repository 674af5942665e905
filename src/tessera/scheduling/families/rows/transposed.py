"""Maps of operands that are contiguous along another axis than the result: transposed matrices, images whose channels
move to the end.

A row of such a result is read one element from each line of the operand, and at strides of a power of two these lines
share one set of a cache. So a step takes a block of rows and columns, of which every line is read as it lies and turned
in registers (`backend/llvm/tiles/transposition.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp

from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import LoopNest
from tessera.scheduling.lowering.ranges import Range
from tessera.scheduling.lowering.spec import MapReduceSpec, kernel_module
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter


def transposed_axis(spec: MapReduceSpec) -> str | None:
    """The outer axis along which an operand of a map is contiguous that is not so along the lanes: of several axes the
    one of most operands. None where there is none, or something is reduced.
    """
    results = {output.argument for output in spec.outputs}
    if spec.reduced is not None or any(spec.arguments[index].stride(spec.lanes) != 1 for index in results):
        return None
    found = [
        axis
        for number, argument in enumerate(spec.arguments)
        for axis in spec.outer
        if number not in results and spec.lanes in argument.axes and argument.stride(axis) == 1
    ]
    return max(spec.outer, key=found.count) if found else None


def lower_transposed_map(spec: MapReduceSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR module of a map with a `transposed_axis`, under a schedule whose tile has several rows."""
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    _TransposedMap(spec, schedule, TileBuilder(block), arguments).lower()
    return module


class _TransposedMap(LoopNest):
    def __init__(
        self, spec: MapReduceSpec, schedule: Schedule, builder: TileBuilder, arguments: Mapping[int, ArgumentTile]
    ) -> None:
        rows = transposed_axis(spec)
        assert rows is not None, "rule transposed-rows"
        super().__init__(builder, arguments)
        self.spec = spec
        self.rows, self.columns = rows, spec.lanes
        self.tile = dict(zip((rows, spec.lanes), schedule.integers("tile"), strict=True))
        self.outer = [axis for axis in spec.outer if axis != rows]
        self.split_lanes = schedule["parallel"] == "lanes"
        self.nontemporal = bool(schedule["nontemporal"])
        self.scopes = TileWriter(builder, arguments, self.tile, Scope(frozenset(), 0))

    def lower(self) -> None:
        """Fills the kernel."""
        extents = {axis: self.extent(axis) for axis in (*self.outer, self.rows, self.columns)}
        with self.shares(extents, self.tile, len(extents) - 1 if self.split_lanes else 0) as share:
            self.scopes.enter({}, {})
            with self.over(self.outer, share, self.scopes):
                self._blocks(share[self.rows], share[self.columns])

    def _blocks(self, rows: Range, columns: Range) -> None:
        """Blocks of rows; of each the whole blocks of columns, of which a block that lacks rows has none, then those at
        the edge.
        """
        builder, (height, width) = self.builder, self.tile.values()
        lower, upper = columns
        whole = builder.mul(builder.floor_div(builder.sub(upper, lower), builder.index(width)), builder.index(width))
        with builder.loop(*rows, height) as block:
            last = builder.add(block.index, builder.index(height - 1))
            is_whole = builder.minimum(builder.maximum(builder.sub(rows[1], last), builder.index(0)), builder.index(1))
            middle = builder.add(lower, builder.mul(whole, is_whole))
            for start, end, inside in ((lower, middle, True), (middle, upper, False)):
                with builder.loop(start, end, width, macro_tile=True) as loop:
                    position = {self.rows: block.index, self.columns: loop.index}
                    with self.scopes.inside(position, dict.fromkeys(position, inside)):
                        for output in self.spec.outputs:
                            self._store_result(output.argument, output.value, inside)

    def _store_result(self, index: int, value: Value, inside: bool) -> None:
        argument, writer = self.spec.arguments[index], self.scopes
        shape = tuple(size if axis in argument.axes else 1 for axis, size in self.tile.items())
        self.builder.store(
            writer.write(value, shape),
            self.arguments[index].value,
            [writer.position(axis) for axis in argument.axes],
            [argument.axes.index(axis) if axis in argument.axes else -1 for axis in self.tile],
            [axis not in argument.axes or inside for axis in self.tile],
            nontemporal=self.nontemporal and inside,
        )
