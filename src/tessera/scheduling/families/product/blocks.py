"""Lowering a matrix product to blocks: a nest of loops around a register tile.

The loop nest is BLIS's (Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality",
2015):

    for jc in N by NC:  for pc in K by KC:  stage B;  for ic in M by MC:  stage A;
        for jr in NC by NR:  for ir in MC by MR:  accumulate an MR x NR register tile over KC

Operands may stay where they are (`pack_a`, `pack_b` off), prologues run while packing, epilogues on the register
tile after the last K block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith
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
    Corner,
    Operand,
    Place,
    contiguous,
    m_tails,
)
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.attributes import buffer_type
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import QUAD, ContractionSpec, Output, under_cast, unit_axis
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter, extent_of


class BlocksLowering:
    """The nest, with register tiles of vectors."""

    def __init__(
        self,
        spec: ContractionSpec,
        schedule: Schedule,
        native: tuple[bool, bool],
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        self.spec, self.builder, self.arguments = spec, builder, arguments
        rows, columns, self.kc = schedule.integers("tile")
        self.mr, self.nr = schedule.integers("micro")
        # Whole register tiles: a tile that overlapped the next block would be stored by both.
        self.mc, self.nc = rows // self.mr * self.mr, columns // self.nr * self.nr
        self.unroll = schedule.integer("unroll")
        self.pack_a, self.pack_b = bool(schedule["pack_a"]), bool(schedule["pack_b"])
        self.sums_in_scratch = schedule["sums"] == "scratch" and not spec.one_block
        self.sums_in_registers = schedule["sums"] == "registers"
        self.rows_outer = schedule["order"] == "rows"
        self.parallel = str(schedule["parallel"])
        self.depth = schedule.integer("pipeline_depth")
        self.accumulator_dtype = spec.accumulator.dtype
        self.sums_floats = spec.accumulator.dtype.kind == "float"
        raw = under_cast(spec.a).dtype, under_cast(spec.b).dtype
        self.packed = packed_operands(spec, arguments, schedule.integer("fetch_ahead"))
        # Of sums: a register tile holds those of all products, side by side.
        self.width = self.nr * len(spec.products)
        self.pairs = native[0] and raw == (bf16, bf16) and self.accumulator_dtype == fp32
        self.quads = native[1] and bool(self.packed) and self.packed[0].panels.group == QUAD
        self.element = bf16 if self.pairs else int8 if self.quads else self.accumulator_dtype
        self.group = 2 if self.pairs else QUAD if self.quads else 1
        self.k_step = self.group
        self.tails = m_tails(self.mr)
        self.moves_bytes = self.quads
        self.partials: SSAValue | None = None

    # -- the nest -------------------------------------------------------------------------------------------------

    def lower(self) -> None:
        builder, spec = self.builder, self.spec
        extents = [self._extent(axis) for axis in (*spec.batch, "m", "n")]
        self.k_extent = self._extent("k")
        if self.sums_in_scratch:
            stride = self.nc + SUMS_PADDING
            kind = buffer_type(self.accumulator_dtype, [stride, 1], [self.mc, stride])
            self.partials = builder.alloc(kind, "L2")
        rows = -(-self.mc // self.mr) * self.mr
        self.statistics = RowStatistics(builder, self.arguments, spec.a, rows, self.k_extent)
        steps = [1] * len(spec.batch) + [self.mr, self.nr]
        split = {"batch": 0, "rows": len(spec.batch), "columns": len(spec.batch) + 1}[self.parallel]
        with builder.parallel(extents, steps, split) as bounds:
            self._batch(0, bounds, {})

    def _extent(self, axis: str) -> SSAValue:
        plain = [self.arguments[index] for index, each in enumerate(self.spec.arguments) if each.panels is None]
        return extent_of(self.builder, plain, axis)

    def _batch(self, level: int, bounds: Sequence[tuple[SSAValue, SSAValue]], at: dict[str, SSAValue]) -> None:
        if level == len(self.spec.batch):
            self.batch_position = at
            self._columns(bounds[-2], bounds[-1])
            return
        with self.builder.loop(*bounds[level], 1) as loop:
            self._batch(level + 1, bounds, {**at, self.spec.batch[level]: loop.index})

    def _columns(self, rows: tuple[SSAValue, SSAValue], columns: tuple[SSAValue, SSAValue]) -> None:
        builder = self.builder
        with builder.loop(*columns, self.nc) as jc:
            width = builder.minimum(builder.index(self.nc), builder.sub(columns[1], jc.index))
            if self.spec.one_block:
                # No loop: an empty K must still run the epilogue once.
                self._block(rows, jc.index, width, builder.index(0), self.k_extent)
                return
            with builder.loop(builder.index(0), self.k_extent, self.kc) as pc:
                depth = builder.minimum(builder.index(self.kc), builder.sub(self.k_extent, pc.index))
                self._block(rows, jc.index, width, pc.index, depth)

    def _block(
        self, rows: tuple[SSAValue, SSAValue], jc: SSAValue, width: SSAValue, pc: SSAValue, depth: SSAValue
    ) -> None:
        builder = self.builder
        b = self._stage_b(pc, depth, jc, width) if self.pack_b else Operand(self.spec.b, self.element, None, 0)
        with builder.loop(*rows, self.mc, macro_tile=True) as ic:
            height = builder.minimum(builder.index(self.mc), builder.sub(rows[1], ic.index))
            in_place = Operand(self.spec.a, self.element, None, 0)
            a = self._stage_a(ic.index, height, pc, depth) if self.pack_a else in_place
            self._tiles(a, b, Corner(ic.index, height, jc, width, pc, depth))

    def _tiles(self, a: Operand, b: Operand, corner: Corner) -> None:
        """All register tiles of a block."""
        width, height = corner.width, corner.height
        if self.rows_outer:
            self._over_rows(
                height, lambda ir, mr: self._over_columns(width, lambda jr: self._micro(a, b, corner, ir, jr, mr))
            )
        else:
            self._over_columns(
                width, lambda jr: self._over_rows(height, lambda ir, mr: self._micro(a, b, corner, ir, jr, mr))
            )

    def _over_columns(self, width: SSAValue, body: Callable[[SSAValue], None]) -> None:
        with self.builder.loop(self.builder.index(0), width, self.nr) as jr:
            body(jr.index)

    def _over_rows(self, height: SSAValue, body: Callable[[SSAValue, int], None]) -> None:
        """Register tiles down a block: full ones, then one smaller tile for what is left."""
        builder, zero = self.builder, self.builder.index(0)
        tails = self.tails
        if not tails:
            with builder.loop(zero, height, self.mr) as ir:
                body(ir.index, self.mr)
            return
        # A full tile also takes a rest larger than the largest tail; its missing rows are masked.
        full = builder.add(builder.sub(height, builder.index(tails[0])), builder.index(self.mr - 1))
        count = builder.floor_div(full, builder.index(self.mr))
        start = builder.mul(count, builder.index(self.mr))
        with builder.loop(zero, start, self.mr) as ir:
            body(ir.index, self.mr)
        rest = builder.sub(height, start)

        def finish(heights: tuple[int, ...]) -> tuple[SSAValue, ...]:
            head, *others = heights
            floor = others[0] if others else 0

            def then() -> tuple[SSAValue, ...]:
                body(start, head)
                return ()

            more = (lambda: finish(tuple(others))) if others else None
            return builder.branch(builder.compare(rest, builder.index(floor), "sgt"), then, more)

        finish(tails)

    # -- staging --------------------------------------------------------------------------------------------------

    def _writer(self, sizes: dict[str, int], at: dict[str, SSAValue], bounded: dict[str, bool]) -> TileWriter:
        """A writer of the operand or epilogue expressions at a position."""
        kernel = Scope(frozenset(), 0)
        writer = TileWriter(self.builder, self.arguments, sizes, kernel)
        writer.enter({**self.batch_position, **at}, bounded)
        return writer

    def _element(self, value: Value) -> Value:
        """The operand in the dtype that the micro-kernel multiplies."""
        if (self.pairs or self.quads) and value.operation == "cast":
            return value.arguments[0]
        return value

    def _stage_b(self, pc: SSAValue, depth: SSAValue, jc: SSAValue, width: SSAValue) -> Operand:
        builder = self.builder
        panels = -(-self.nc // self.nr)
        transposed = unit_axis(self.spec.b, self.spec.arguments, "n") == "k"
        rows = self.group * TRANSPOSED_ROWS if transposed and self.nr % 16 == 0 else self.group
        kc = -(-self.kc // rows) * rows
        if self.pairs:
            layout, shape = "panels_vnni", [panels, kc // 2, self.nr, 2]
        else:
            layout, shape = "panels", [panels, kc, self.nr]
        kind = buffer_type(self.element, contiguous(shape), shape)
        with builder.stage((depth, width), layout, "L3", (kc, panels * self.nr), kind) as stage:
            at = {"k": builder.add(pc, stage.row), "n": builder.add(jc, stage.column)}
            writer = self._writer({"k": rows, "n": self.nr}, at, {"k": rows == 1, "n": False})
            value = self._element(self.spec.b)
            stage.tile = writer.write(value, (rows, self.nr))
        return Operand(self.spec.b, self.element, stage.buffer, self.nr)

    def _stage_a(self, ic: SSAValue, height: SSAValue, pc: SSAValue, depth: SSAValue) -> Operand:
        builder = self.builder
        value = self._element(self.spec.a)
        self.statistics.write(ic, height, self.batch_position)
        if unit_axis(self.spec.a, self.spec.arguments, "k") == "m" and not self.pairs and not self.quads:
            panels = -(-self.mc // self.mr)
            shape = [panels, self.kc, self.mr]
            kind = buffer_type(self.element, contiguous(shape), shape)
            with builder.stage((depth, height), "panels", "L2", (self.kc, panels * self.mr), kind) as stage:
                at = {"k": builder.add(pc, stage.row), "m": builder.add(ic, stage.column)}
                writer = self._writer({"k": 1, "m": self.mr}, at, {"k": True, "m": False})
                self.statistics.define(writer, stage.column)
                stage.tile = writer.write(value, (1, self.mr))
            return Operand(value, self.element, stage.buffer, self.mr)
        lanes = VECTOR_BYTES // self.element.itemsize if self.pairs or self.quads else 16
        kc = -(-self.kc // lanes) * lanes
        rows = -(-self.mc // self.mr) * self.mr
        stride = kc + A_PADDING * self.group
        kind = buffer_type(self.element, [stride, 1], [rows, stride])
        # Whole register tiles: the rows that the last one lacks read as zero.
        whole = builder.mul(
            builder.floor_div(builder.add(height, builder.index(self.mr - 1)), builder.index(self.mr)),
            builder.index(self.mr),
        )
        with builder.stage((whole, depth), "rows", "L2", (rows, kc), kind) as stage:
            at = {"m": builder.add(ic, stage.row), "k": builder.add(pc, stage.column)}
            writer = self._writer({"m": 1, "k": lanes}, at, {"m": False, "k": False})
            self.statistics.define(writer, stage.row)
            row = writer.write(value, (1, lanes))
            # By 128: the instruction takes a first factor without a sign.
            moved = arith.XOrIOp(row, builder.splat(-128, int8, (1, lanes))) if self.moves_bytes else None
            stage.tile = row if moved is None else builder.append(moved)
        return Operand(value, self.element, stage.buffer, 0)

    # -- the micro-kernel -----------------------------------------------------------------------------------------

    def _micro(self, a: Operand, b: Operand, corner: Corner, ir: SSAValue, jr: SSAValue, mr: int) -> None:
        builder = self.builder
        m, n = builder.add(corner.ic, ir), builder.add(corner.jc, jr)
        sums = None if self.spec.one_block else self._partial(m, n, ir, jr)
        if self.depth >= 2:
            place = sums or self._place(self.spec.outputs[0], m, n)
            builder.prefetch(place.buffer, place.indices, mr, self.nr, write=True)
        heights = (mr, 1) if self.quads else (mr,)
        zeros = [builder.splat(0, self.accumulator_dtype, (rows, self.width)) for rows in heights]
        a_panel = builder.floor_div(ir, builder.index(self.mr)) if a.panel else ir
        b_panel = builder.floor_div(jr, builder.index(self.nr)) if b.panel else jr

        def step(k: SSAValue, sums: Sequence[SSAValue], whole: bool) -> list[SSAValue]:
            left = self._load_a(a, corner, a_panel, m, k, mr, whole)
            right = self._load_b(b, corner, b_panel, n, k, whole)
            acc = builder.mma(left, right, sums[0], mr, self.width, self.k_step, self.element, self.quads)
            return [acc, *[self._offset(right, offset) for offset in sums[1:]]]

        # Pairs read in place, of A's columns or B's rows: a last one without a partner is a step of its own.
        lone_row = self.pairs and (a.staged is None or (b.staged is None and not self.packed))
        pairs = builder.floor_div(corner.depth, builder.index(2)) if lone_row else None
        depth = corner.depth if pairs is None else builder.mul(pairs, builder.index(2))
        acc, *offsets = self._summed(depth, zeros, lambda k, sums: step(k, sums, True))
        for offset in offsets:
            acc = builder.append(arith.SubiOp(acc, builder.spread(offset, (mr, self.width))))
        if lone_row:
            odd = builder.compare(depth, corner.depth, "slt")
            whole = acc
            (acc,) = builder.branch(odd, lambda: step(depth, [whole], False), lambda: [whole])
        if sums is None:
            self._epilogue(acc, m, n, mr)
        else:
            self._accumulate(acc, corner, sums, m, n, mr)

    def _summed(
        self, depth: SSAValue, zeros: Sequence[SSAValue], step: Callable[[SSAValue, Sequence[SSAValue]], list[SSAValue]]
    ) -> Sequence[SSAValue]:
        """The sums of all steps up to `depth`, a multiple of theirs. In registers they are made block by block: a sum
        of sums has smaller rounding errors than one long sum.
        """
        builder, start = self.builder, self.builder.index(0)

        def block(lower: SSAValue, upper: SSAValue) -> Sequence[SSAValue]:
            with builder.loop(lower, upper, self.k_step, zeros, self.unroll) as loop:
                loop.yielded = tuple(step(loop.index, loop.carried))
            return loop.results

        if not self.sums_in_registers or not self.sums_floats:
            return block(start, depth)
        with builder.loop(start, depth, REGISTER_BLOCK, zeros) as blocks:
            end = builder.minimum(builder.add(blocks.index, builder.index(REGISTER_BLOCK)), depth)
            parts = zip(blocks.carried, block(blocks.index, end), strict=True)
            blocks.yielded = tuple([self._plus(total, part) for total, part in parts])
        return blocks.results

    def _offset(self, right: SSAValue, sums: SSAValue) -> SSAValue:
        """What A moved up by 128 adds to every row of sums."""
        moved = self.builder.splat(-128, int8, (1, QUAD), 0)
        return self.builder.mma(moved, right, sums, 1, self.width, QUAD, int8, True)

    def _plus(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.builder.append(arith.AddfOp(a, b) if self.sums_floats else arith.AddiOp(a, b))

    def _partial(self, m: SSAValue, n: SSAValue, ir: SSAValue, jr: SSAValue) -> Place:
        """Where sums wait for the next K block: in the output, or in scratch memory of one block of rows."""
        if self.partials is not None:
            return Place(self.partials, (ir, jr), (0, 1), (True, True))
        return self._place(self.spec.outputs[0], m, n)

    def _place(self, output: Output, m: SSAValue, n: SSAValue) -> Place:
        argument = self.spec.arguments[output.argument]
        where = {**self.batch_position, "m": m, "n": n}
        indices = tuple(where[axis] for axis in argument.axes)
        dims = argument.axes.index("m"), argument.axes.index("n")
        return Place(self.arguments[output.argument].value, indices, dims, (False, False))

    def _load_a(
        self, a: Operand, corner: Corner, panel: SSAValue, m: SSAValue, k: SSAValue, mr: int, whole: bool
    ) -> SSAValue:
        builder, shape = self.builder, (mr, self.k_step)
        if a.staged is None:
            at = {"m": m, "k": builder.add(corner.pc, k)}
            writer = self._writer({"m": mr, "k": self.k_step}, at, {"m": False, "k": whole})
            # Rows past the end are never stored; the missing half of a last pair must be zero.
            writer.any_outside = whole
            return writer.write(self._element(a.value), shape)
        if a.panel:
            return builder.load(a.staged, [panel, k, builder.index(0)], [2, 1], shape, [True, True])
        return builder.load(a.staged, [panel, k], [0, 1], shape, [True, True])

    def _load_b(self, b: Operand, corner: Corner, panel: SSAValue, n: SSAValue, k: SSAValue, whole: bool) -> SSAValue:
        """`k_step` rows of B; `whole`, here and of A, says that all of them lie inside the extent of K."""
        builder, shape, zero = self.builder, (self.k_step, self.nr), self.builder.index(0)
        if self.packed:
            row, batch = builder.add(corner.pc, k), self.batch_position
            rows = [each.load(builder, batch, n, row, shape, self.element) for each in self.packed]
            return side_by_side(builder, rows)
        if b.staged is None:
            at = {"k": builder.add(corner.pc, k), "n": n}
            writer = self._writer({"k": self.k_step, "n": self.nr}, at, {"k": whole, "n": False})
            return writer.write(self._element(b.value), shape)
        if self.pairs:
            pair = builder.floor_div(k, builder.index(2))
            return builder.load(b.staged, [panel, pair, zero, zero], [3, 2], shape, [True, True])
        return builder.load(b.staged, [panel, k, zero], [1, 2], shape, [True, True])

    def _accumulate(self, acc: SSAValue, corner: Corner, place: Place, m: SSAValue, n: SSAValue, mr: int) -> None:
        """Adds what earlier K blocks left at `place`, and puts it back there or runs the epilogue."""
        builder = self.builder
        first = builder.compare(corner.pc, builder.index(0), "eq")
        last = builder.compare(builder.add(corner.pc, corner.depth), self.k_extent, "sge")

        def resume() -> list[SSAValue]:
            partial = builder.load(place.buffer, place.indices, place.dims, (mr, self.nr), place.in_bounds)
            return [self._plus(partial, acc)]

        (total,) = builder.branch(first, lambda: [acc], resume)
        if self.partials is None and self.spec.outputs[0].value is self.spec.accumulator:
            # The sums so far and the result are stored alike.
            builder.store(total, place.buffer, place.indices, place.dims, place.in_bounds)
            return

        def keep() -> list[SSAValue]:
            builder.store(total, place.buffer, place.indices, place.dims, place.in_bounds)
            return []

        def finish() -> list[SSAValue]:
            self._epilogue(total, m, n, mr)
            return []

        builder.branch(last, finish, keep)

    def _epilogue(self, acc: SSAValue, m: SSAValue, n: SSAValue, mr: int) -> None:
        writer = self._writer({"m": mr, "n": self.nr}, {"m": m, "n": n}, {"m": False, "n": False})
        parts = (acc,) if self.spec.sibling is None else self.builder.split(acc, 1)
        for product, sums in zip(self.spec.products, parts, strict=True):
            writer.define(product.accumulator, sums)
        for output in self.spec.outputs:
            value, place = writer.write(output.value, (mr, self.nr)), self._place(output, m, n)
            self.builder.store(value, place.buffer, place.indices, place.dims, place.in_bounds)
