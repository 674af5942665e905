"""Products on a CPU's matrix unit: the nest of `product/blocks.py` around tiles of 16 rows by 64 bytes.

A register tile is up to 2 x 2 of these, 32 x 32 sums. B comes packed, with neighbouring rows side by side; A is read
where it lies, or packed in rows. Epilogues read the sums from scratch memory, a few rows at a time, as all of them fit
no vector registers.

The unit multiplies faster than the L2 cache delivers both operands: where sums wait in scratch memory, a block walks K
in steps that leave the panel of one operand in the L1 cache.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.scheduling.families.product.blocks import BlockedProduct
from tessera.scheduling.families.product.parts import ProductBlock, ProductOperand
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.microkernel.matrix_unit import UNIT_ROWS, MatrixUnitKernel
from tessera.scheduling.lowering.microkernel.protocol import Place, Sums
from tessera.scheduling.lowering.microkernel.summation import summed
from tessera.scheduling.lowering.ranges import rounded_up
from tessera.scheduling.lowering.spec import ContractionSpec
from tessera.scheduling.lowering.writer import ArgumentTile

L1_DEPTH = 512
"""The steps of K after which sums go to scratch memory: a panel of B takes 32 KiB then (one thread of a Xeon,
operands in L2: 1.7 TFLOP/s, of 3.2 at most; 1.3 with 1024 and more)."""
EPILOGUE_ROWS = (4, 2, 1)
"""How many rows of sums an epilogue takes at once: the first of these that divides the register tile."""


class MatrixProduct(BlockedProduct):
    """The nest, with register tiles of the matrix unit."""

    def __init__(
        self,
        spec: ContractionSpec,
        schedule: Schedule,
        native: tuple[bool, bool],
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        super().__init__(spec, schedule, native, builder, arguments)
        self.k_step = self.group * UNIT_ROWS
        self.tails = ()  # a tile of another height needs another configuration
        self.drops_signs = False
        self.steps_along_k = spec.one_block and schedule["sums"] == "scratch"
        self.sums_in_scratch |= self.steps_along_k
        self.fetches_panels = schedule.integer("fetch_ahead") > 0 and not self.rows_outer
        height = min(self.mr, UNIT_ROWS)
        rows, columns = range(0, self.mr, height), range(0, self.width, UNIT_ROWS)
        self.unit = MatrixUnitKernel(builder, rows, columns, height, self.k_step, self.element, self.accumulator_dtype)
        self.along_rows = all(spec.arguments[output.argument].stride("n") == 1 for output in spec.outputs)
        alone = len(spec.outputs) == 1 and spec.outputs[0].value is spec.accumulator
        self.stores_sums = alone and self.along_rows
        if not self.stores_sums:
            self.sums = self.scratch(self.accumulator_dtype, [self.mr, self.width], "L1")

    def _pack_b(self, pc: SSAValue, depth: SSAValue, jc: SSAValue, width: SSAValue) -> ProductOperand:
        """The rows that the last tile lacks are zero."""
        return super()._pack_b(pc, rounded_up(self.builder, depth, self.k_step), jc, width)

    def _tiles(self, a: ProductOperand, b: ProductOperand, block: ProductBlock) -> None:
        builder, zero = self.builder, self.builder.index(0)
        if not self.steps_along_k:
            self.first = builder.compare(block.pc, zero, "eq")
            self.last = builder.compare(builder.add(block.pc, block.depth), self.k_extent, "sge")
            self.span = zero, block.depth
            super()._tiles(a, b, block)
            return
        # An empty K runs the epilogue once.
        with builder.loop(zero, builder.maximum(block.depth, builder.index(1)), L1_DEPTH) as steps:
            end = builder.minimum(builder.add(steps.index, builder.index(L1_DEPTH)), block.depth)
            self.first = builder.compare(steps.index, zero, "eq")
            self.last = builder.compare(end, block.depth, "eq")
            self.span = steps.index, end
            super()._tiles(a, b, block)

    def _tile(
        self, a: ProductOperand, b: ProductOperand, block: ProductBlock, ir: SSAValue, jr: SSAValue, mr: int
    ) -> None:
        builder, unit = self.builder, self.unit
        m, n = builder.add(block.ic, ir), builder.add(block.jc, jr)
        goes_on = not self.spec.one_block or self.steps_along_k
        place = self._partial(m, n, ir, jr) if goes_on else None
        if self.depth >= 2:
            builder.branch(self.last, lambda: self._fetch_output(m, n))

        def step(k: SSAValue, sums: Sums, whole: bool) -> Sums:
            if self.fetches_panels:
                self._fetch_panel(b, block, n, jr, k, ir)

            def left(row: int) -> SSAValue:
                at = builder.index(row)
                return self._read_a(a, block, builder.add(ir, at), builder.add(m, at), k, unit.height, whole)

            return unit.step(left, lambda column: self._read_groups(b, block, n, jr, k, column), sums)

        before = unit.zeros() if place is None else self._sums_before(place)
        # Of A that is read in place, what is left of K is read under masks.
        sums = summed(builder, self.span, self.k_step, before, step, self.unroll, has_rest=not a.is_packed)
        self._leave(sums, block, place, ir, m, n)

    def _sums_before(self, place: Place) -> Sums:
        """The sums of the steps of K before."""
        return self.builder.branch(self.first, self.unit.zeros, lambda: self.unit.load(place))

    def _store(self, sums: Sums, place: Place) -> list[SSAValue]:
        self.unit.store(sums, place)
        return []

    def _read_groups(
        self, b: ProductOperand, block: ProductBlock, n: SSAValue, jr: SSAValue, k: SSAValue, column: int
    ) -> SSAValue:
        """`k_step` rows of a tile's columns of B, each `group` of them side by side."""
        builder, shape = self.builder, (UNIT_ROWS, UNIT_ROWS, self.group)
        product, column = divmod(column, self.nr)
        if self.packed:
            row = builder.add(block.pc, k)
            return self.packed[product].groups(self.at, n, row, column, shape, self.element)
        assert b.panels is not None, "rule matrix-unit"
        panel, group = builder.floor_div(jr, builder.index(self.nr)), b.panels.group_of(k)
        return b.panels.groups([panel], group, builder.index(column), shape)

    def _leave(
        self, sums: Sums, block: ProductBlock, place: Place | None, ir: SSAValue, m: SSAValue, n: SSAValue
    ) -> None:
        """Sums on their way out: to where the next step of K finds them, or through the epilogue."""
        builder = self.builder

        def finish() -> list[SSAValue]:
            if self.stores_sums:
                return self._store(sums, self._result(0, m, n))
            self._through_scratch(sums, builder.minimum(builder.index(self.mr), builder.sub(block.height, ir)), m, n)
            return []

        if place is None or (self.stores_sums and self.partials is None):  # sums so far and results are stored alike
            finish()
            return
        builder.branch(self.last, finish, lambda: self._store(sums, place))

    def _through_scratch(self, sums: Sums, height: SSAValue, m: SSAValue, n: SSAValue) -> None:
        builder, zero = self.builder, self.builder.index(0)
        self._store(sums, Place(self.sums, (zero, zero), (0, 1), (True, True)))
        heights = EPILOGUE_ROWS if self.along_rows else (UNIT_ROWS, *EPILOGUE_ROWS)  # rows are stored as columns
        rows = next(rows for rows in heights if self.mr % rows == 0)
        with builder.loop(zero, height, rows) as loop:
            some = builder.load(self.sums, [loop.index, zero], [0, 1], (rows, self.width), [True, True])
            self._epilogue(some, builder.add(m, loop.index), n, rows)

    # -- what is fetched ahead ----------------------------------------------------------------------------------------

    def _fetch_output(self, m: SSAValue, n: SSAValue) -> list[SSAValue]:
        for number in range(len(self.spec.outputs)):
            self._result(number, m, n).fetch(self.builder, self.mr, self.nr)
        return []

    def _fetch_panel(
        self, b: ProductOperand, block: ProductBlock, n: SSAValue, jr: SSAValue, k: SSAValue, ir: SSAValue
    ) -> None:
        """Fetches a few rows of the next panel of B: each register tile down the block fetches a part of it."""
        builder, start = self.builder, self.span[0]
        tiles = self.mc // self.mr
        depth = L1_DEPTH if self.steps_along_k else self.kc
        part = builder.mul(builder.floor_div(ir, builder.index(self.mr)), builder.index(depth // tiles))
        row = builder.add(builder.add(start, part), builder.floor_div(builder.sub(k, start), builder.index(tiles)))
        elements = max(self.k_step // tiles, self.group) * self.nr
        if self.packed:
            for each in self.packed:
                each.fetch(self.at, builder.add(n, builder.index(self.nr)), row, elements)
            return
        assert b.panels is not None, "rule matrix-unit"
        panel = builder.floor_div(builder.add(jr, builder.index(self.nr)), builder.index(self.nr))
        b.panels.fetch([panel], b.panels.group_of(row), elements)
