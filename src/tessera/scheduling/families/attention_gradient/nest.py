"""The gradient of attention on CPUs: blocks of keys, and for each the blocks of queries that see any of them.

    for each head of keys:           dQ = 0, of all its queries
        for each block of keys:      K^T and V^T packed in panels of NR keys, K in rows; dK = dV = 0
            for each block of queries that sees any of them, of every head that shares the keys:
                                     Q and g packed in rows
                P  = exp(scores(scale Q K^T) - logarithms)         an MR x NR register tile after another
                dS = P (g V^T - mean),   through the derivative of the scores
                dV += P^T g,   dK += dS^T Q,   dQ += dS K,   and what is summed for operands beside the scores
            the sums for keys and values are written

Each score is formed once: five products, as in Dao, "FlashAttention-2" (2023), algorithm 2. Sums for keys and values
stay in scratch memory, those for queries in the result's. Workers share heads of keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.ops.attention.trained import LARGE_LOGARITHM
from tessera.scheduling.families.attention.online_softmax import LOG2_E, OnlineSoftmax, scored
from tessera.scheduling.families.attention.visibility import ScoreBlock, visibility
from tessera.scheduling.families.attention_gradient.space import apart_axes, needs_scores
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import AxisTile, LoopNest
from tessera.scheduling.lowering.microkernel.panels import PanelReader, packed_panels, packed_rows
from tessera.scheduling.lowering.microkernel.protocol import Sums, added
from tessera.scheduling.lowering.microkernel.summation import summed
from tessera.scheduling.lowering.microkernel.vector import VectorKernel
from tessera.scheduling.lowering.ranges import Range, rounded_down, rounded_up
from tessera.scheduling.lowering.spec import AttentionGradientSpec, Output, SumsBeside, kernel_module, unit_axis
from tessera.scheduling.lowering.writer import ArgumentTile

PADDING = 16
"""Elements between one row of scratch memory and the next, so that rows do not fall into the same cache set."""
SQUARE = 16
"""Side of the squares that are transposed in registers."""
UNROLL = 4


def lower_gradient(spec: AttentionGradientSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR module of `spec` under `schedule` (knobs of `space.py`)."""
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    GradientNest(spec, schedule, TileBuilder(block), arguments).lower()
    return module


class GradientNest(LoopNest):
    """The nest of one kernel; `at` has the first key and the first query of the blocks that are written."""

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
        self.softmax = OnlineSoftmax(builder, self.dtype, self.mr, axis=1)
        self.stored = {output.value: output for output in spec.outputs}
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

    # -- loops ----------------------------------------------------------------------------------------------------

    def lower(self) -> None:
        """Writes the kernel."""
        builder = self.builder
        extents = {axis: self.extents[axis] for axis in self.shared} or {"": builder.index(1)}
        with self.shares(extents, {}, self.split) as share, self.over(self.shared, share):
            scale = self.write(self.spec.scale, {"q": self.mr, "k": 1}, {})
            self.factor = self.softmax.scale_factor(scale, self.spec.scoring is not None)
            if (queries := self.stored.get(self.spec.accumulator)) is not None:
                self._clear(queries, "qd")
            for sums in self.spec.beside:
                self._clear(self.stored[sums.accumulator], sums.along)
            for key, width in self.blocks((builder.index(0), self.extents["k"]), self.bn):
                self.at["k"] = key
                self._block_of_keys(width)

    @contextmanager
    def _heads(self) -> Iterator[None]:
        """Loops over the heads that share keys."""
        with self.over(self.apart, {axis: (self.builder.index(0), self.extents[axis]) for axis in self.apart}):
            yield

    def _clear(self, output: Output, axes: str) -> None:
        """Zeros in a result along an axis or two."""
        builder, zero = self.builder, self.builder.index(0)
        *rows, columns = axes
        nothing = builder.splat(0.0, self.dtype, (1, self.nr))
        with self._heads(), self.over(rows, {axis: (zero, self.extents[axis]) for axis in rows}):
            for tile in self.tiles((zero, self.extents[columns]), (self.nr, self.nr)):
                inside = {"row": True, columns: tile.inside}
                at = {"row": self.at[rows[0]] if rows else zero, columns: tile.start}
                place = self.place(output.argument, ("row", columns), at, inside)
                place.store(builder, nothing)

    def _block_of_keys(self, width: SSAValue) -> None:
        builder, spec = self.builder, self.spec
        self.width = width
        self.panels = {"d": self._panels(spec.k, "d"), "v": self._panels(spec.v, "v")}
        self.keys = self._rows(spec.k, "k", "d", width, self.bn)
        for axis, memory in self.sums.items():
            nothing = builder.splat(0.0, self.dtype, (1, self.nr))
            with (
                builder.loop(builder.index(0), builder.index(self.bn), 1) as row,
                builder.loop(builder.index(0), self.extents[axis], self.nr) as column,
            ):
                builder.store(nothing, memory, [row.index, column.index], [0, 1], [True, True])
        with self._heads():
            for query, count in self.blocks((self._first_query(), self.extents["q"]), self.bm):
                self.at["q"] = query
                self._where_seen(width, count)
        for part in (spec.keys, spec.values):
            if part is not None:
                self._write_sums(self.stored[part.accumulator], "d" if part is spec.keys else "v")

    def _first_query(self) -> SSAValue:
        """The first query of the first block that sees a key of the block."""
        builder, zero = self.builder, self.builder.index(0)
        if not self.spec.causal:
            return zero
        return rounded_down(builder, builder.maximum(zero, builder.sub(self.at["k"], self.shift)), self.bm)

    # -- packing --------------------------------------------------------------------------------------------------

    def _panels(self, value: Value, axis: str) -> PanelReader:
        """Rows of keys or values, transposed, in panels of NR keys."""
        builder, most = self.builder, (-(-self.sizes[axis] // SQUARE) * SQUARE, self.bn)
        with packed_panels(builder, (self.extents[axis], self.width), most, self.nr, self.dtype, "L2", 1) as stage:
            at = {axis: stage.row, "k": builder.add(self.at["k"], stage.column)}
            stage.tile = self.write(value, {axis: SQUARE, "k": self.nr}, at)
        return PanelReader(builder, stage.buffer)

    def _rows(self, value: Value, rows: str, axis: str, count: SSAValue, most: int) -> SSAValue:
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

    # -- a block of scores ----------------------------------------------------------------------------------------

    def _where_seen(self, width: SSAValue, count: SSAValue) -> None:
        """A block of queries, where the mask may show any of them a key of the block."""
        builder, mask = self.builder, self.spec.mask
        self.certain: SSAValue | None = None
        if mask is None:
            self._block_of_queries(count)
            return
        first = {"q": self.at["q"], "k": self.at["k"]}
        last = {
            axis: builder.sub(builder.add(first[axis], extent), builder.index(1))
            for axis, extent in (("q", count), ("k", width))
        }
        block = ScoreBlock(first, last, {"q": self.bm, "k": self.bn})
        certain, possible = (builder.element(each) for each in visibility(builder, self.writer, mask, block))

        def seen() -> tuple[SSAValue, ...]:
            self.certain = certain
            self._block_of_queries(count)
            return ()

        builder.branch(possible, seen)

    def _block_of_queries(self, count: SSAValue) -> None:
        builder, zero = self.builder, self.builder.index(0)
        self.count = count
        self.rows = {
            axis: self._rows(value, "q", axis, count, self.bm)
            for axis, value in (("d", self.spec.q), ("v", self.spec.g))
        }
        with builder.loop(zero, self.width, self.nr) as column, builder.loop(zero, count, self.mr) as row:
            self._scores(row.index, column.index)
        across = (zero, count)
        if self.spec.values is not None:
            self._sum_for_keys(self.weights, "v", across)
        if self.spec.keys is not None:
            self._sum_for_keys(self.d_scores, "d", across)
        if (queries := self.stored.get(self.spec.accumulator)) is not None:
            self._sum_for_queries(queries, across)

    def _scores(self, row: SSAValue, column: SSAValue) -> None:
        """A register tile of weights, and of cotangents of scores."""
        builder, softmax, spec = self.builder, self.softmax, self.spec
        at = {"q": builder.add(self.at["q"], row), "k": builder.add(self.at["k"], column)}
        writer = self.writer({"q": self.mr, "k": self.nr}, at)
        scores = self._products("d", row, column)
        scores = builder.append(arith.MulfOp(scores, softmax.spread(self.factor, scores)))
        scores = scored(writer, spec.scoring, scores)
        logarithms = self.write(spec.logarithms, {"q": self.mr, "k": 1}, {"q": at["q"]})
        weights = self._seen(at, self._weights(scores, logarithms))
        place = [row, column]
        builder.store(weights, self.weights, place, [0, 1], [True, True])
        if not self.needs_scores:
            return
        products = self._products("v", row, column)
        mean = self.write(spec.mean, {"q": self.mr, "k": 1}, {"q": at["q"]})
        less = builder.append(arith.SubfOp(products, softmax.spread(mean, products)))
        kept = builder.load(self.weights, place, [0, 1], (self.mr, self.nr), [True, True])
        assert spec.pulled is not None
        writer.define(spec.pulled.changed, builder.append(arith.MulfOp(kept, less)))
        if spec.pulled.derived is not None and (spec.accumulator in self.stored or spec.keys is not None):
            found = writer.write(spec.pulled.derived, (self.mr, self.nr))
            builder.store(found, self.d_scores, place, [0, 1], [True, True])
        for sums in spec.beside:
            self._add_beside(sums, writer.write(sums.derived, (self.mr, self.nr)), row, column, at)

    def _weights(self, scores: SSAValue, logarithms: SSAValue) -> SSAValue:
        """The softmax's weights of scores in powers of two."""
        builder, softmax = self.builder, self.softmax
        blind = softmax.equals(logarithms, -math.inf)
        scaled = builder.append(arith.MulfOp(logarithms, softmax.splat(LOG2_E)))
        base = softmax.select(blind, softmax.splat(math.inf), scaled)
        scores = builder.append(arith.SubfOp(scores, softmax.spread(base, scores)))
        # Not the minimum, which takes several instructions to keep NaN as this does in one.
        square = builder.append(arith.MulfOp(logarithms, logarithms))
        is_large = softmax.exceeds(square, softmax.splat(LARGE_LOGARITHM**2))
        most = softmax.spread(softmax.select(is_large, softmax.splat(0.0), softmax.splat(math.inf)), scores)
        scores = softmax.select(softmax.exceeds(scores, most), most, scores)
        return builder.append(math_dialect.Exp2Op(scores))

    def _seen(self, at: dict[str, SSAValue], weights: SSAValue) -> SSAValue:
        """The weights, 0 of keys that are not seen; the mask is not looked at where all of a block are."""
        nothing = self.builder.splat(0.0, self.dtype, (self.mr, self.nr))
        mask = self.spec.mask
        if mask is not None:
            assert self.certain is not None
            sizes, own = {"q": self.mr, "k": self.nr}, weights

            def hidden() -> list[SSAValue]:
                return [self.softmax.select(self.write(mask, sizes, at), own, nothing)]

            (weights,) = self.builder.branch(self.certain, lambda: [own], hidden)
        return self._before_diagonal(at, weights, nothing) if self.spec.causal else weights

    def _add_beside(
        self, sums: SumsBeside, tile: SSAValue, row: SSAValue, column: SSAValue, at: dict[str, SSAValue]
    ) -> None:
        """Adds a register tile to the sums for an operand beside the scores."""
        builder, shape = self.builder, (self.mr, self.nr)
        nothing = builder.splat(0.0, self.dtype, shape)
        for place, (axis, first, end) in enumerate((("q", row, self.count), ("k", column, self.width))):
            if axis not in sums.along:
                tile = self.softmax.select(builder.mask(first, end, shape, place), tile, nothing)
                tile = builder.reduce(tile, "add", place)
                shape = tuple([1 if other == place else extent for other, extent in enumerate(shape)])
                nothing = builder.splat(0.0, self.dtype, shape)
        where = self.place(
            self.stored[sums.accumulator].argument, "qk", at, {axis: axis not in sums.along for axis in "qk"}
        )
        where.store(builder, added(builder, where.load(builder, shape), tile))

    def _before_diagonal(self, at: dict[str, SSAValue], weights: SSAValue, nothing: SSAValue) -> SSAValue:
        """The weights of keys that are seen; the mask is not formed where all of a tile are."""
        builder, shape = self.builder, (self.mr, self.nr)
        last = builder.add(at["k"], builder.index(self.nr - 1))
        whole = builder.compare(last, builder.add(at["q"], self.shift), "sle")

        def hidden() -> list[SSAValue]:
            visible = self.softmax.below_diagonal(at["q"], at["k"], self.shift, shape)
            return [self.softmax.select(visible, weights, nothing)]

        (found,) = builder.branch(whole, lambda: [weights], hidden)
        return found

    def _products(self, axis: str, row: SSAValue, column: SSAValue) -> SSAValue:
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

    # -- sums over a block ----------------------------------------------------------------------------------------

    def _sum_for_keys(self, scores: SSAValue, axis: str, queries: Range) -> None:
        """Adds scores^T rows to the sums for keys."""
        builder, zero, memory, rows = self.builder, self.builder.index(0), self.sums[axis], self.rows[axis]
        with (
            builder.loop(zero, self.extents[axis], self.nr) as column,
            builder.loop(zero, self.width, self.mr) as key,
        ):
            place = [key.index, column.index]
            total = builder.load(memory, place, [0, 1], (self.mr, self.nr), [True, True])
            found = self._summed(
                queries,
                lambda query: builder.load(scores, [query, key.index], [1, 0], (self.mr, 1), [True, True]),
                lambda query: builder.load(rows, [query, column.index], [0, 1], (1, self.nr), [True, True]),
                total,
            )
            builder.store(found, memory, place, [0, 1], [True, True])

    def _sum_for_queries(self, output: Output, queries: Range) -> None:
        """Adds scores K to the result."""
        builder, zero = self.builder, self.builder.index(0)
        for column in self.tiles((zero, self.extents["d"]), (self.nr, self.nr)):
            with builder.loop(zero, queries[1], self.mr) as row:
                self._sum_for_rows(output, row.index, column)

    def _sum_for_rows(self, output: Output, row: SSAValue, column: AxisTile) -> None:
        """A register tile of that."""
        builder = self.builder
        found = self._summed(
            (builder.index(0), self.width),
            lambda key: builder.load(self.d_scores, [row, key], [0, 1], (self.mr, 1), [True, True]),
            lambda key: builder.load(self.keys, [key, column.start], [0, 1], (1, self.nr), [True, True]),
            self.kernel.zeros()[0],
        )
        at = {"q": builder.add(self.at["q"], row), "d": column.start}
        place = self.place(output.argument, "qd", at, {"q": False, "d": column.inside})
        place.store(builder, added(builder, place.load(builder, (self.mr, self.nr)), found))

    def _summed(
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

    def _write_sums(self, output: Output, axis: str) -> None:
        """Writes the sums for a block of keys."""
        builder, zero, memory = self.builder, self.builder.index(0), self.sums[axis]
        with builder.loop(zero, self.width, 1) as row:
            for column in self.tiles((zero, self.extents[axis]), (self.nr, self.nr)):
                found = builder.load(memory, [row.index, column.start], [0, 1], (1, self.nr), [True, True])
                at = {"k": builder.add(self.at["k"], row.index), axis: column.start}
                place = self.place(output.argument, ("k", axis), at, {"k": True, axis: column.inside})
                place.store(builder, found)
