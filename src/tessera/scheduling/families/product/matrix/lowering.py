"""Products on a CPU's matrix unit: the nest of `product/blocks.py` around tiles of 16 rows by 64 bytes.

A register tile is up to 2 x 2 of these, 32 x 32 sums. B comes packed, with neighbouring rows side by side; A is read
where it lies, or packed in rows. Epilogues read the sums from scratch memory, a few rows at a time, as all of them fit
no vector registers.

The unit multiplies faster than the L2 cache delivers both operands: where sums wait in scratch memory, a block walks K
in steps that leave the panel of one operand in the L1 cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from tessera.scheduling.families.product.blocks import BlocksLowering
from tessera.scheduling.families.product.parts import Corner, Operand, Place, contiguous
from tessera.scheduling.families.product.problem import UNIT_GROUPS
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.attributes import buffer_type
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import ContractionSpec
from tessera.scheduling.lowering.writer import ArgumentTile

L1_DEPTH = 512
"""The steps of K after which sums go to scratch memory: a panel of B takes 32 KiB then (one thread of a Xeon,
operands in L2: 1.7 TFLOP/s, of 3.2 at most; 1.3 with 1024 and more)."""
EPILOGUE_ROWS = (4, 2, 1)
"""How many rows of sums an epilogue takes at once: the first of these that divides the register tile."""


class MatrixLowering(BlocksLowering):
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
        self.k_step = self.group * UNIT_GROUPS
        self.tails = ()  # a tile of another height needs another configuration
        self.moves_bytes = False
        self.steps_along_k = spec.one_block and schedule["sums"] == "scratch"
        self.sums_in_scratch |= self.steps_along_k
        self.fetches_panels = schedule.integer("fetch_ahead") > 0 and not self.rows_outer
        self.height = min(self.mr, UNIT_GROUPS)
        self.grid = self.mr // self.height, self.width // UNIT_GROUPS
        self.along_rows = all(spec.arguments[output.argument].stride("n") == 1 for output in spec.outputs)
        alone = len(spec.outputs) == 1 and spec.outputs[0].value is spec.accumulator
        self.stores_sums = alone and self.along_rows
        if not self.stores_sums:
            shape = [self.mr, self.width]
            self.sums = builder.alloc(buffer_type(self.accumulator_dtype, contiguous(shape), shape), "L1")

    def _stage_b(self, pc: SSAValue, depth: SSAValue, jc: SSAValue, width: SSAValue) -> Operand:
        """The rows that the last tile lacks are zero."""
        builder, step = self.builder, self.builder.index(self.k_step)
        whole = builder.floor_div(builder.add(depth, builder.index(self.k_step - 1)), step)
        return super()._stage_b(pc, builder.mul(whole, step), jc, width)

    def _tiles(self, a: Operand, b: Operand, corner: Corner) -> None:
        builder, zero = self.builder, self.builder.index(0)
        if not self.steps_along_k:
            self.first = builder.compare(corner.pc, zero, "eq")
            self.last = builder.compare(builder.add(corner.pc, corner.depth), self.k_extent, "sge")
            self.span = zero, corner.depth
            super()._tiles(a, b, corner)
            return
        # An empty K runs the epilogue once.
        with builder.loop(zero, builder.maximum(corner.depth, builder.index(1)), L1_DEPTH) as steps:
            end = builder.minimum(builder.add(steps.index, builder.index(L1_DEPTH)), corner.depth)
            self.first = builder.compare(steps.index, zero, "eq")
            self.last = builder.compare(end, corner.depth, "eq")
            self.span = steps.index, end
            super()._tiles(a, b, corner)

    def _micro(self, a: Operand, b: Operand, corner: Corner, ir: SSAValue, jr: SSAValue, mr: int) -> None:
        builder = self.builder
        m, n = builder.add(corner.ic, ir), builder.add(corner.jc, jr)
        goes_on = not self.spec.one_block or self.steps_along_k
        place = self._partial(m, n, ir, jr) if goes_on else None
        if self.depth >= 2:
            builder.branch(self.last, lambda: self._fetch_output(m, n))

        def step(k: SSAValue, sums: Sequence[SSAValue], whole: bool) -> list[SSAValue]:
            if self.fetches_panels:
                self._fetch_panel(b, corner, n, jr, k, ir)
            return self._products(
                lambda at: self._load_a(a, corner, builder.add(ir, at), builder.add(m, at), k, self.height, whole),
                lambda column: self._load_groups(b, corner, n, jr, k, column),
                sums,
            )

        start, end = self.span
        upper = end
        if a.staged is None:  # what is left of K is read under masks
            steps = builder.floor_div(builder.sub(end, start), builder.index(self.k_step))
            upper = builder.add(start, builder.mul(steps, builder.index(self.k_step)))
        with builder.loop(start, upper, self.k_step, self._sums_before(place), self.unroll) as loop:
            loop.yielded = tuple(step(loop.index, loop.carried, True))
        sums: Sequence[SSAValue] = loop.results
        if a.staged is None:
            rest, whole = builder.compare(upper, end, "slt"), sums
            sums = builder.branch(rest, lambda: step(upper, whole, False), lambda: whole)
        self._leave(sums, corner, place, ir, m, n)

    def _products(
        self, left: Callable[[SSAValue], SSAValue], right: Callable[[int], SSAValue], sums: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """The sums after a step. Operands are read just before they are first multiplied: the processor has few more
        registers for tiles than the eight that have names (one thread, operands in L2: 1.56 TFLOP/s so, 1.47 with all
        of them read first).
        """
        builder = self.builder
        loaded: dict[tuple[str, int], SSAValue] = {}
        results = list(sums)
        for row in range(self.grid[0]):
            for column in range(self.grid[1]):
                if ("a", row) not in loaded:
                    loaded["a", row] = left(builder.index(UNIT_GROUPS * row))
                if ("b", column) not in loaded:
                    loaded["b", column] = right(column)
                at, sizes = row * self.grid[1] + column, (self.height, UNIT_GROUPS, self.k_step)
                operands = loaded["a", row], loaded["b", column], results[at]
                results[at] = builder.mma(*operands, *sizes, self.element, matrix_unit=True)
        return results

    def _tiles_of(self, row: SSAValue, column: SSAValue) -> list[tuple[SSAValue, SSAValue]]:
        """The positions of the unit's tiles in a register tile at (row, column)."""
        builder = self.builder
        return [
            (builder.add(row, builder.index(UNIT_GROUPS * i)), builder.add(column, builder.index(UNIT_GROUPS * j)))
            for i in range(self.grid[0])
            for j in range(self.grid[1])
        ]

    def _sums_before(self, place: Place | None) -> Sequence[SSAValue]:
        """The sums of the steps of K before."""
        builder, shape = self.builder, (self.height, UNIT_GROUPS)

        def zeros() -> list[SSAValue]:  # one for each, as registers are copied by way of memory
            return [builder.splat(0, self.accumulator_dtype, shape) for _ in range(self.grid[0] * self.grid[1])]

        if place is None:
            return zeros()

        def resume() -> list[SSAValue]:
            return [
                builder.load(place.buffer, self._at(place, *at), place.dims, shape, place.in_bounds)
                for at in self._tiles_of(place.indices[place.dims[0]], place.indices[place.dims[1]])
            ]

        return builder.branch(self.first, zeros, resume)

    @staticmethod
    def _at(place: Place, row: SSAValue, column: SSAValue) -> list[SSAValue]:
        """The indices of a tile elsewhere in the buffer of a register tile."""
        indices = list(place.indices)
        indices[place.dims[0]], indices[place.dims[1]] = row, column
        return indices

    def _store(self, sums: Sequence[SSAValue], place: Place) -> list[SSAValue]:
        positions = self._tiles_of(place.indices[place.dims[0]], place.indices[place.dims[1]])
        for tile, at in zip(sums, positions, strict=True):
            self.builder.store(tile, place.buffer, self._at(place, *at), place.dims, place.in_bounds)
        return []

    def _load_groups(self, b: Operand, corner: Corner, n: SSAValue, jr: SSAValue, k: SSAValue, column: int) -> SSAValue:
        """`k_step` rows of a tile's columns of B, each `group` of them side by side."""
        builder, zero, shape = self.builder, self.builder.index(0), (UNIT_GROUPS, UNIT_GROUPS, self.group)
        product, column = divmod(UNIT_GROUPS * column, self.nr)
        if self.packed:
            row = builder.add(corner.pc, k)
            return self.packed[product].load_groups(builder, self.batch_position, n, row, column, shape, self.element)
        assert b.staged is not None, "rule matrix-unit"
        panel, row = builder.floor_div(jr, builder.index(self.nr)), builder.floor_div(k, builder.index(self.group))
        return builder.load(b.staged, [panel, row, builder.index(column), zero], [1, 2, 3], shape, [True] * 3)

    def _leave(
        self, sums: Sequence[SSAValue], corner: Corner, place: Place | None, ir: SSAValue, m: SSAValue, n: SSAValue
    ) -> None:
        """Sums on their way out: to where the next step of K finds them, or through the epilogue."""
        builder = self.builder

        def finish() -> list[SSAValue]:
            if self.stores_sums:
                return self._store(sums, self._place(self.spec.outputs[0], m, n))
            self._through_scratch(sums, builder.minimum(builder.index(self.mr), builder.sub(corner.height, ir)), m, n)
            return []

        if place is None or (self.stores_sums and self.partials is None):  # sums so far and results are stored alike
            finish()
            return
        builder.branch(self.last, finish, lambda: self._store(sums, place))

    def _through_scratch(self, sums: Sequence[SSAValue], height: SSAValue, m: SSAValue, n: SSAValue) -> None:
        builder, zero = self.builder, self.builder.index(0)
        self._store(sums, Place(self.sums, (zero, zero), (0, 1), (True, True)))
        heights = EPILOGUE_ROWS if self.along_rows else (UNIT_GROUPS, *EPILOGUE_ROWS)  # rows are stored as columns
        rows = next(rows for rows in heights if self.mr % rows == 0)
        with builder.loop(zero, height, rows) as loop:
            some = builder.load(self.sums, [loop.index, zero], [0, 1], (rows, self.width), [True, True])
            self._epilogue(some, builder.add(m, loop.index), n, rows)

    # -- what is fetched ahead ----------------------------------------------------------------------------------------

    def _fetch_output(self, m: SSAValue, n: SSAValue) -> list[SSAValue]:
        for output in self.spec.outputs:
            to = self._place(output, m, n)
            self.builder.prefetch(to.buffer, to.indices, self.mr, self.nr, write=True)
        return []

    def _fetch_panel(self, b: Operand, corner: Corner, n: SSAValue, jr: SSAValue, k: SSAValue, ir: SSAValue) -> None:
        """Fetches a few rows of the next panel of B: each register tile down the block fetches a part of it."""
        builder, zero, start = self.builder, self.builder.index(0), self.span[0]
        tiles = self.mc // self.mr
        depth = L1_DEPTH if self.steps_along_k else self.kc
        part = builder.mul(builder.floor_div(ir, builder.index(self.mr)), builder.index(depth // tiles))
        row = builder.add(builder.add(start, part), builder.floor_div(builder.sub(k, start), builder.index(tiles)))
        elements = max(self.k_step // tiles, self.group) * self.nr
        if self.packed:
            for each in self.packed:
                each.fetch(builder, self.batch_position, builder.add(n, builder.index(self.nr)), row, elements)
            return
        assert b.staged is not None, "rule matrix-unit"
        panel = builder.floor_div(builder.add(jr, builder.index(self.nr)), builder.index(self.nr))
        at = [panel, builder.floor_div(row, builder.index(self.group)), zero, zero]
        builder.prefetch(b.staged, at, 1, elements, write=False)
