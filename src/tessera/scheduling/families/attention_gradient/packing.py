"""What the gradient of attention on CPUs keeps in scratch memory: packed operands, weights, cotangents, and sums."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import SSAValue

from tessera.scheduling.families.attention_gradient.space import apart_axes, needs_scores
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import LoopNest
from tessera.scheduling.lowering.microkernel.panels import PanelReader, packed_panels, packed_rows
from tessera.scheduling.lowering.microkernel.protocol import Sums
from tessera.scheduling.lowering.microkernel.summation import summed
from tessera.scheduling.lowering.microkernel.vector import VectorKernel
from tessera.scheduling.lowering.ranges import Range, rounded_up
from tessera.scheduling.lowering.spec import AttentionGradientSpec, unit_axis
from tessera.scheduling.lowering.writer import ArgumentTile

PADDING = 16
"""Elements between one row of scratch memory and the next, so that rows do not fall into the same cache set."""
SQUARE = 16
"""Side of the squares that are transposed in registers."""
UNROLL = 4


class PackedGradient(LoopNest):
    """The nest with its operands packed; `at` has the first key and the first query of the blocks that are written,
    `width` and `count` how many there are.
    """

    width: SSAValue
    count: SSAValue
    panels: dict[str, PanelReader]
    rows: dict[str, SSAValue]
    keys: SSAValue

    def __init__(
        self,
        spec: AttentionGradientSpec,
        schedule: Schedule,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        super().__init__(builder, arguments)
        self.spec, self.dtype = spec, spec.accumulator.dtype
        self.bm, self.bn = schedule.integers("tile")
        self.mr, self.nr = schedule.integers("micro")
        self.sizes = dict(zip("dv", schedule.integers("head"), strict=True))
        self.apart = apart_axes(spec)
        self.shared = tuple(axis for axis in spec.batch if axis not in self.apart)
        self.split = min({"batch": 0, "heads": 1}[str(schedule["parallel"])], max(len(self.shared) - 1, 0))
        self.extents = {axis: self.extent(axis) for axis in (*spec.batch, "q", "k", "d", "v")}
        self.shift = builder.sub(self.extents["k"], self.extents["q"])
        self.kernel = VectorKernel(builder, self.mr, self.nr, 1, self.dtype, self.dtype)
        self.stored = {output.value: output for output in spec.outputs}
        self.needs_products = spec.accumulator in self.stored or spec.keys is not None
        self.needs_scores = needs_scores(spec)
        rows = self.bm, self.bn + PADDING
        self.weights, self.d_scores = (self.scratch(self.dtype, rows, "L2") for _ in range(2))
        self.sums = {
            axis: self.scratch(self.dtype, (self.bn, self._row(axis)), "L2")
            for axis, part in (("d", spec.keys), ("v", spec.values))
            if part is not None
        }

    def _row(self, axis: str) -> int:
        """The elements of a row of scratch memory along a head: whole register tiles."""
        return -(-self.sizes[axis] // self.nr) * self.nr + PADDING

    # -- packing --------------------------------------------------------------------------------------------------

    def pack_panels(self, value: Value, axis: str) -> PanelReader:
        """Rows of keys or values, transposed, in panels of NR keys."""
        builder, most = self.builder, (-(-self.sizes[axis] // SQUARE) * SQUARE, self.bn)
        with packed_panels(builder, (self.extents[axis], self.width), most, self.nr, self.dtype, "L2", 1) as stage:
            at = {axis: stage.row, "k": builder.add(self.at["k"], stage.column)}
            stage.tile = self.write(value, {axis: SQUARE, "k": self.nr}, at)
        return PanelReader(builder, stage.buffer)

    def pack_rows(self, value: Value, rows: str, axis: str, count: SSAValue, most: int) -> SSAValue:
        """Rows of keys, queries or cotangents, up to whole register tiles."""
        builder, row = self.builder, self._row(axis) - PADDING
        turned = unit_axis(value, self.spec.arguments, axis) == rows
        sizes = (SQUARE, SQUARE) if turned else (1, SQUARE)
        shape = most, -(-row // SQUARE) * SQUARE
        extents = rounded_up(builder, count, self.mr), self.extents[axis]
        with packed_rows(builder, extents, shape, self._row(axis) - shape[1], self.dtype) as stage:
            at = {rows: builder.add(self.at[rows], stage.row), axis: stage.column}
            stage.tile = self.write(value, dict(zip((rows, axis), sizes, strict=True)), at)
        return stage.buffer

    # -- products ----------------------------------------------------------------------------------------------------

    def products(self, axis: str, row: SSAValue, column: SSAValue) -> SSAValue:
        """Queries times keys (along d), or cotangents times values (along v)."""
        builder, rows, panels = self.builder, self.rows[axis], self.panels[axis]
        panel = [builder.floor_div(column, builder.index(self.nr))]

        def step(place: SSAValue, sums: Sums, whole: bool) -> Sums:
            return self.kernel.step(
                lambda _: builder.load(rows, [row, place], [0, 1], (self.mr, 1), [True, True]),
                lambda _: panels.rows(panel, place, (1, self.nr)),
                sums,
            )

        span = builder.index(0), self.extents[axis]
        (found,) = self.kernel.finish(summed(builder, span, 1, self.kernel.zeros(), step, UNROLL))
        return found

    def summed(
        self,
        span: Range,
        left: Callable[[SSAValue], SSAValue],
        right: Callable[[SSAValue], SSAValue],
        initial: SSAValue,
    ) -> SSAValue:
        def step(place: SSAValue, sums: Sums, whole: bool) -> Sums:
            return self.kernel.step(lambda _: left(place), lambda _: right(place), sums)

        (found,) = self.kernel.finish(summed(self.builder, span, 1, [initial], step, UNROLL))
        return found
