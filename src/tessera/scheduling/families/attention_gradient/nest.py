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

from collections.abc import Iterator
from contextlib import contextmanager

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.scheduling.families.attention.visibility import ScoreBlock, visibility
from tessera.scheduling.families.attention_gradient.packing import PackedGradient
from tessera.scheduling.families.attention_gradient.scores import ROWS, ScoreRows
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import AxisTile
from tessera.scheduling.lowering.microkernel.protocol import added
from tessera.scheduling.lowering.ranges import Range, rounded_down
from tessera.scheduling.lowering.spec import AttentionGradientSpec, Output, kernel_module


def lower_gradient(spec: AttentionGradientSpec, schedule: Schedule) -> ModuleOp:
    """The Tile IR module of `spec` under `schedule` (knobs of `space.py`)."""
    module, block, arguments = kernel_module(spec.name, spec.arguments, spec.outputs)
    GradientNest(spec, schedule, TileBuilder(block), arguments).lower()
    return module


class GradientNest(PackedGradient):
    """The nest of one kernel."""

    # -- loops ----------------------------------------------------------------------------------------------------

    def lower(self) -> None:
        """Writes the kernel."""
        builder = self.builder
        extents = {axis: self.extents[axis] for axis in self.shared} or {"": builder.index(1)}
        with self.shares(extents, {}, self.split) as share, self.over(self.shared, share):
            if (queries := self.stored.get(self.spec.accumulator)) is not None:
                self._clear(queries, "qd")
            for sums in self.spec.beside or ():
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
        rows, columns = axes[:-1], axes[-1]
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
        self.panels = {"d": self.pack_panels(spec.k, "d"), "v": self.pack_panels(spec.v, "v")}
        self.keys = self.pack_rows(spec.k, "k", "d", width, self.bn)
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

    # -- a block of scores ----------------------------------------------------------------------------------------

    def _where_seen(self, width: SSAValue, count: SSAValue) -> None:
        """A block of queries, where the mask may show any of them a key of the block."""
        builder, mask = self.builder, self.spec.mask
        if mask is None:
            self._block_of_queries(count, None)
            return
        first = {"q": self.at["q"], "k": self.at["k"]}
        last = {
            axis: builder.sub(builder.add(first[axis], extent), builder.index(1))
            for axis, extent in (("q", count), ("k", width))
        }
        block = ScoreBlock(first, last, {"q": self.bm, "k": self.bn})
        certain, possible = (builder.element(each) for each in visibility(builder, self.writer, mask, block))

        def seen() -> tuple[SSAValue, ...]:
            self._block_of_queries(count, certain)
            return ()

        builder.branch(possible, seen)

    def _block_of_queries(self, count: SSAValue, certain: SSAValue | None) -> None:
        """The scores of a block, and what they add to all sums. With `certain` the mask shows all of it."""
        builder, zero = self.builder, self.builder.index(0)
        self.count = count
        self.rows = {
            axis: self.pack_rows(value, "q", axis, count, self.bm)
            for axis, value in (("d", self.spec.q), ("v", self.spec.g))
        }
        with builder.loop(zero, self.width, self.nr) as column:
            with builder.loop(zero, count, self.mr) as row:
                for axis, memory in (("d", self.weights), *((("v", self.d_scores),) if self.needs_scores else ())):
                    found = self.products(axis, row.index, column.index)
                    builder.store(found, memory, [row.index, column.index], [0, 1], [True, True])
            with builder.loop(zero, count, ROWS) as row:
                ScoreRows(self, row.index, column.index, certain).write()
        across = (zero, count)
        if self.spec.values is not None:
            self._sum_for_keys(self.weights, "v", across)
        if self.spec.keys is not None:
            self._sum_for_keys(self.d_scores, "d", across)
        if (queries := self.stored.get(self.spec.accumulator)) is not None:
            self._sum_for_queries(queries, across)

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
            found = self.summed(
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
        found = self.summed(
            (builder.index(0), self.width),
            lambda key: builder.load(self.d_scores, [row, key], [0, 1], (self.mr, 1), [True, True]),
            lambda key: builder.load(self.keys, [key, column.start], [0, 1], (1, self.nr), [True, True]),
            self.kernel.zeros()[0],
        )
        at = {"q": builder.add(self.at["q"], row), "d": column.start}
        place = self.place(output.argument, "qd", at, {"q": False, "d": column.inside})
        place.store(builder, added(builder, place.load(builder, (self.mr, self.nr)), found))

    def _write_sums(self, output: Output, axis: str) -> None:
        """Writes the sums for a block of keys."""
        builder, zero, memory = self.builder, self.builder.index(0), self.sums[axis]
        with builder.loop(zero, self.width, 1) as row:
            for column in self.tiles((zero, self.extents[axis]), (self.nr, self.nr)):
                found = builder.load(memory, [row.index, column.start], [0, 1], (1, self.nr), [True, True])
                at = {"k": builder.add(self.at["k"], row.index), axis: column.start}
                place = self.place(output.argument, ("k", axis), at, {"k": True, axis: column.inside})
                place.store(builder, found)
