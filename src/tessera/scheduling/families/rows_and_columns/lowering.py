"""Lowering reductions of parts of columns, beside those of rows: what a row has of each column is combined with what
the rows of its part before left in the partial result, which is memory that stays in the first cache.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.scheduling.families.rows.lowering import RowsLowering, combine, identity
from tessera.scheduling.families.rows_and_columns.steps import rows_spec
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import LoopNest
from tessera.scheduling.lowering.spec import RowsAndColumnsSpec, kernel_module
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter


def lower_rows_and_columns(spec: RowsAndColumnsSpec, schedule: Schedule, lanes: int) -> ModuleOp:
    """The Tile IR module of `spec`, whose columns are reduced in parts, under `schedule` (knobs of `rows/space.py`)."""
    assert spec.part is not None, f"{spec.name} runs in two steps"
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    _RowsAndColumnsLowering(spec, spec.part, schedule, lanes, TileBuilder(block), arguments).lower()
    return module


class _RowsAndColumnsLowering(RowsLowering):
    """A kernel of rows that combines some of its results with what is there."""

    def __init__(
        self,
        spec: RowsAndColumnsSpec,
        part: str,
        schedule: Schedule,
        lanes: int,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        super().__init__(rows_spec(spec), schedule, lanes, builder, arguments)
        self.rows, self.part = spec.rows, part
        self.partial = {
            output.argument: output.value for output in spec.outputs if part in spec.arguments[output.argument].axes
        }

    def lower(self) -> None:
        """Writes the kernel."""
        builder, lanes = self.builder, self.spec.lanes
        self.extents = {axis: self.nest.extent(axis) for axis in (self.part, self.rows, lanes)}
        parts, rows = self.extents[self.part], self.extents[self.rows]
        longest = builder.floor_div(builder.sub(builder.add(rows, parts), builder.index(1)), parts)
        sizes = {"": 1, lanes: 1}
        with self.nest.shares({self.part: parts}, {}, 0) as share:
            self.writer = TileWriter(builder, self.arguments, sizes, Scope(frozenset(), 0), self._reduced_extent)
            self.writer.enter({}, {})
            with self.nest.over([self.part], share, self.writer):
                first = builder.mul(self.nest.at[self.part], longest)
                last = builder.minimum(builder.add(first, longest), rows)
                for argument, value in self.partial.items():
                    self._clear(argument, value)
                with self.nest.over([self.rows], {self.rows: (first, last)}, self.writer, macro_tile=True):
                    self.row()

    def _clear(self, argument: int, value: Value) -> None:
        """Writes what changes nothing into a partial result."""
        builder, lanes = self.builder, self.spec.lanes
        nest = LoopNest(builder, self.arguments)
        nest.at[self.part] = self.nest.at[self.part]
        start = builder.splat(identity(value.kind, value.dtype), value.dtype, (1, self.lanes))
        for tile in nest.tiles((builder.index(0), self.extents[lanes]), (self.lanes, self.lanes)):
            at, inside = {lanes: tile.start}, {"": True, lanes: tile.inside}
            nest.place(argument, ("", lanes), at, inside).store(builder, start)

    def store(self, index: int, value: Value, in_bounds: Mapping[str, bool]) -> None:
        """Stores a tile of a result of rows, or combines one with the partial result of columns."""
        if index not in self.partial:
            super().store(index, value, in_bounds)
            return
        builder, writer, lanes = self.builder, self.writer, self.spec.lanes
        shape = tuple(writer.sizes.values())
        found = writer.write(value, shape)
        at: dict[str, SSAValue] = {axis: writer.position(axis) for axis in (self.part, lanes)}
        place = self.nest.place(index, ("", lanes), at, {"": True, lanes: in_bounds.get(lanes, False)})
        before = place.load(builder, shape)
        place.store(builder, builder.append(combine(self.partial[index], before, found)))
