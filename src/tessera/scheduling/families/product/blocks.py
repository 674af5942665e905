"""Lowering a matrix product to blocks: a nest of loops around a register tile.

The loop nest is BLIS's (Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality",
2015):

    for jc in N by NC:  for pc in K by KC:  stage B;  for ic in M by MC:  stage A;
        for jr in NC by NR:  for ir in MC by MR:  accumulate an MR x NR register tile over KC

Operands may stay where they are (`pack_a`, `pack_b` off), prologues run while packing, epilogues on the register
tile after the last K block.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from xdsl.ir import SSAValue

from tessera.dtypes import bf16, fp32, int8
from tessera.scheduling.families.product.norms import RowStatistics
from tessera.scheduling.families.product.panels import packed_operands, side_by_side
from tessera.scheduling.families.product.parts import (
    A_PADDING,
    REGISTER_BLOCK,
    SUMS_PADDING,
    TRANSPOSED_ROWS,
    VECTOR_BYTES,
    ProductBlock,
    ProductOperand,
)
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import Loop, TileBuilder
from tessera.scheduling.lowering.loop_nest import LoopNest
from tessera.scheduling.lowering.microkernel.panels import PanelReader, packed_panels, packed_rows
from tessera.scheduling.lowering.microkernel.protocol import MicroKernel, Place, Sums, added
from tessera.scheduling.lowering.microkernel.summation import summed
from tessera.scheduling.lowering.microkernel.vector import ByteKernel, VectorKernel, without_sign
from tessera.scheduling.lowering.ranges import Range, rounded_up
from tessera.scheduling.lowering.spec import QUAD, ContractionSpec, under_cast, unit_axis
from tessera.scheduling.lowering.tails import block_tails, over_block
from tessera.scheduling.lowering.writer import ArgumentTile


class BlockedProduct(LoopNest):
    """The nest, with register tiles of vectors."""

    def __init__(
        self,
        spec: ContractionSpec,
        schedule: Schedule,
        native: tuple[bool, bool],
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        # Packed arguments have panels, not the axes that they are named by.
        plain = [arguments[index] for index, each in enumerate(spec.arguments) if each.panels is None]
        super().__init__(builder, arguments, plain)
        self.spec = spec
        rows, columns, self.kc = schedule.integers("tile")
        self.mr, self.nr = schedule.integers("micro")
        # Whole register tiles: a tile that overlapped the next block would be stored by both.
        self.mc, self.nc = rows // self.mr * self.mr, columns // self.nr * self.nr
        self.unroll = schedule.integer("unroll")
        self.pack_a, self.pack_b = bool(schedule["pack_a"]), bool(schedule["pack_b"])
        self.sums_in_scratch = schedule["sums"] == "scratch" and not spec.one_block
        self.rows_outer = schedule["order"] == "rows"
        self.parallel = str(schedule["parallel"])
        self.depth = schedule.integer("pipeline_depth")
        self.accumulator_dtype = spec.accumulator.dtype
        in_parts = schedule["sums"] == "registers" and self.accumulator_dtype.kind == "float"
        self.part = REGISTER_BLOCK if in_parts else None
        raw = under_cast(spec.a).dtype, under_cast(spec.b).dtype
        self.packed = packed_operands(spec, builder, arguments, schedule.integer("fetch_ahead"))
        # Of sums: a register tile holds those of all products, side by side.
        self.width = self.nr * len(spec.products)
        self.pairs = native[0] and raw == (bf16, bf16) and self.accumulator_dtype == fp32
        if self.packed:
            self.pairs = self.pairs and self.packed[0].panels.group == 2
        self.quads = native[1] and bool(self.packed) and self.packed[0].panels.group == QUAD
        self.element = bf16 if self.pairs else int8 if self.quads else self.accumulator_dtype
        self.group = 2 if self.pairs else QUAD if self.quads else 1
        self.k_step = self.group
        self.tails = block_tails(self.mr)
        self.drops_signs = self.quads
        self.partials: SSAValue | None = None

    # -- the nest -------------------------------------------------------------------------------------------------

    def lower(self) -> None:
        """Writes the kernel."""
        builder, batch = self.builder, self.spec.batch
        extents = {axis: self.extent(axis) for axis in (*batch, "m", "n")}
        self.k_extent = self.extent("k")
        if self.sums_in_scratch:
            self.partials = self.scratch(self.accumulator_dtype, [self.mc, self.nc + SUMS_PADDING], "L2")
        most = -(-self.mc // self.mr) * self.mr
        self.statistics = RowStatistics(builder, self.arguments, self.spec.a, most, self.k_extent)
        split = {"batch": 0, "rows": len(batch), "columns": len(batch) + 1}[self.parallel]
        with self.shares(extents, {"m": self.mr, "n": self.nr}, split) as share, self.over(batch, share):
            rows = share["m"]
            for jc, width in self.blocks(share["n"], self.nc):
                if self.spec.one_block:
                    # No loop: an empty K must still run the epilogue once.
                    self._block(rows, jc, width, builder.index(0), self.k_extent)
                else:
                    for pc, depth in self.blocks((builder.index(0), self.k_extent), self.kc):
                        self._block(rows, jc, width, pc, depth)

    def _block(self, rows: Range, jc: SSAValue, width: SSAValue, pc: SSAValue, depth: SSAValue) -> None:
        b = self._pack_b(pc, depth, jc, width) if self.pack_b else ProductOperand(self.spec.b)
        for ic, height in self.blocks(rows, self.mc, macro_tile=True):
            a = self._pack_a(ic, height, pc, depth) if self.pack_a else ProductOperand(self.spec.a)
            self._tiles(a, b, ProductBlock(ic, height, jc, width, pc, depth))

    def _tiles(self, a: ProductOperand, b: ProductOperand, block: ProductBlock) -> None:
        """All register tiles of a block."""
        builder = self.builder

        def columns() -> AbstractContextManager[Loop]:
            return builder.loop(builder.index(0), block.width, self.nr)

        def rows(body: Callable[[SSAValue, int], None]) -> None:
            over_block(builder, block.height, self.mr, self.tails, lambda tile: body(tile.start, tile.size))

        if self.rows_outer:

            def row(ir: SSAValue, mr: int) -> None:
                with columns() as jr:
                    self._tile(a, b, block, ir, jr.index, mr)

            rows(row)
        else:
            with columns() as jr:
                rows(lambda ir, mr: self._tile(a, b, block, ir, jr.index, mr))

    # -- packing --------------------------------------------------------------------------------------------------

    def _element(self, value: Value) -> Value:
        """The operand in the dtype that the micro-kernel multiplies."""
        if (self.pairs or self.quads) and value.operation == "cast":
            return value.arguments[0]
        return value

    def _pack_b(self, pc: SSAValue, depth: SSAValue, jc: SSAValue, width: SSAValue) -> ProductOperand:
        builder, b, group = self.builder, self.spec.b, 2 if self.pairs else 1
        transposed = unit_axis(b, self.spec.arguments, "n") == "k"
        rows = self.group * TRANSPOSED_ROWS if transposed and self.nr % 16 == 0 else self.group
        most = -(-self.kc // rows) * rows, self.nc
        with packed_panels(builder, (depth, width), most, self.nr, self.element, "L3", group) as stage:
            at = {"k": builder.add(pc, stage.row), "n": builder.add(jc, stage.column)}
            stage.tile = self.write(self._element(b), {"k": rows, "n": self.nr}, at, {"k": rows == 1})
        return ProductOperand(b, panels=PanelReader(builder, stage.buffer, group))

    def _pack_a(self, ic: SSAValue, height: SSAValue, pc: SSAValue, depth: SSAValue) -> ProductOperand:
        self.statistics.write(ic, height, self.at)
        if unit_axis(self.spec.a, self.spec.arguments, "k") == "m" and not self.pairs and not self.quads:
            return self._pack_columns_of_a(ic, height, pc, depth)
        builder, value = self.builder, self._element(self.spec.a)
        lanes = VECTOR_BYTES // self.element.itemsize if self.pairs or self.quads else 16
        most = -(-self.mc // self.mr) * self.mr, -(-self.kc // lanes) * lanes
        # Whole register tiles: the rows that the last one lacks read as zero.
        extents = rounded_up(builder, height, self.mr), depth
        with packed_rows(builder, extents, most, A_PADDING * self.group, self.element) as stage:
            at = {"m": builder.add(ic, stage.row), "k": builder.add(pc, stage.column)}
            writer = self.writer({"m": 1, "k": lanes}, at)
            self.statistics.define(writer, stage.row)
            row = writer.write(value, (1, lanes))
            stage.tile = without_sign(builder, row, (1, lanes)) if self.drops_signs else row
        return ProductOperand(value, rows=stage.buffer)

    def _pack_columns_of_a(self, ic: SSAValue, height: SSAValue, pc: SSAValue, depth: SSAValue) -> ProductOperand:
        """A whose columns lie side by side: a panel has the rows of a register tile."""
        builder, value = self.builder, self._element(self.spec.a)
        most = self.kc, self.mc
        with packed_panels(builder, (depth, height), most, self.mr, self.element, "L2", 1) as stage:
            at = {"k": builder.add(pc, stage.row), "m": builder.add(ic, stage.column)}
            writer = self.writer({"k": 1, "m": self.mr}, at, {"k": True})
            self.statistics.define(writer, stage.column)
            stage.tile = writer.write(value, (1, self.mr))
        return ProductOperand(value, panels=PanelReader(builder, stage.buffer))

    # -- the register tile ----------------------------------------------------------------------------------------

    def _kernel(self, mr: int) -> MicroKernel:
        if self.quads:
            return ByteKernel(self.builder, mr, self.width, self.accumulator_dtype)
        return VectorKernel(self.builder, mr, self.width, self.k_step, self.element, self.accumulator_dtype)

    def _tile(
        self, a: ProductOperand, b: ProductOperand, block: ProductBlock, ir: SSAValue, jr: SSAValue, mr: int
    ) -> None:
        """The register tile of `mr` rows at a row and a column of a block."""
        builder, kernel = self.builder, self._kernel(mr)
        m, n = builder.add(block.ic, ir), builder.add(block.jc, jr)
        place = None if self.spec.one_block else self._partial(m, n, ir, jr)
        if self.depth >= 2:
            (place or self._result(0, m, n)).fetch(builder, mr, self.nr)
        zeros = kernel.zeros()
        a_row = ir if a.panels is None else builder.floor_div(ir, builder.index(self.mr))
        b_panel = jr if b.panels is None else builder.floor_div(jr, builder.index(self.nr))

        def step(k: SSAValue, sums: Sums, whole: bool) -> Sums:
            return kernel.step(
                lambda _: self._read_a(a, block, a_row, m, k, mr, whole),
                lambda _: self._read_b(b, block, b_panel, n, k, whole),
                sums,
            )

        # Pairs read in place, of A's columns or B's rows: a last one without a partner is a step of its own.
        in_place = not a.is_packed or not (b.is_packed or self.packed)
        span = builder.index(0), block.depth
        sums = summed(builder, span, self.k_step, zeros, step, self.unroll, self.part, self.pairs and in_place)
        (acc,) = kernel.finish(sums)
        if place is None:
            self._epilogue(acc, m, n, mr)
        else:
            self._accumulate(acc, block, place, m, n, mr)

    def _partial(self, m: SSAValue, n: SSAValue, ir: SSAValue, jr: SSAValue) -> Place:
        """Where sums wait for the next K block: in the output, or in scratch memory of one block of rows."""
        if self.partials is not None:
            return Place(self.partials, (ir, jr), (0, 1), (True, True))
        return self._result(0, m, n)

    def _result(self, number: int, m: SSAValue, n: SSAValue) -> Place:
        """Where a register tile of an output lies."""
        return self.place(self.spec.outputs[number].argument, ("m", "n"), {"m": m, "n": n})

    def _read_a(
        self, a: ProductOperand, block: ProductBlock, row: SSAValue, m: SSAValue, k: SSAValue, mr: int, whole: bool
    ) -> SSAValue:
        builder, shape = self.builder, (mr, self.k_step)
        if a.panels is not None:
            return a.panels.columns([row], k, builder.index(0), shape)
        if a.rows is not None:
            return builder.load(a.rows, [row, k], [0, 1], shape, [True, True])
        at = {"m": m, "k": builder.add(block.pc, k)}
        writer = self.writer({"m": mr, "k": self.k_step}, at, {"k": whole})
        # Rows past the end are never stored; the missing half of a last pair must be zero.
        writer.any_outside = whole
        return writer.write(self._element(a.value), shape)

    def _read_b(
        self, b: ProductOperand, block: ProductBlock, panel: SSAValue, n: SSAValue, k: SSAValue, whole: bool
    ) -> SSAValue:
        """`k_step` rows of B; `whole`, here and of A, says that all of them lie inside the extent of K."""
        builder, shape = self.builder, (self.k_step, self.nr)
        if self.packed:
            row = builder.add(block.pc, k)
            return side_by_side(builder, [each.rows(self.at, n, row, shape, self.element) for each in self.packed])
        if b.panels is not None:
            return b.panels.rows([panel], b.panels.group_of(k), shape)
        at = {"k": builder.add(block.pc, k), "n": n}
        return self.write(self._element(b.value), {"k": self.k_step, "n": self.nr}, at, {"k": whole})

    # -- what becomes of sums -------------------------------------------------------------------------------------

    def _accumulate(self, acc: SSAValue, block: ProductBlock, place: Place, m: SSAValue, n: SSAValue, mr: int) -> None:
        """Adds what earlier K blocks left at `place`, and puts it back there or runs the epilogue."""
        builder = self.builder
        first = builder.compare(block.pc, builder.index(0), "eq")
        last = builder.compare(builder.add(block.pc, block.depth), self.k_extent, "sge")

        def resume() -> list[SSAValue]:
            return [added(builder, place.load(builder, (mr, self.nr)), acc)]

        (total,) = builder.branch(first, lambda: [acc], resume)
        if self.partials is None and self.spec.outputs[0].value is self.spec.accumulator:
            # The sums so far and the result are stored alike.
            place.store(builder, total)
            return

        def keep() -> list[SSAValue]:
            place.store(builder, total)
            return []

        def finish() -> list[SSAValue]:
            self._epilogue(total, m, n, mr)
            return []

        builder.branch(last, finish, keep)

    def _epilogue(self, acc: SSAValue, m: SSAValue, n: SSAValue, mr: int) -> None:
        parts = (acc,) if self.spec.sibling is None else self.builder.split(acc, 1)
        known = {product.accumulator: sums for product, sums in zip(self.spec.products, parts, strict=True)}
        self.store(self.spec.outputs, known, {"m": mr, "n": self.nr}, {"m": m, "n": n})
