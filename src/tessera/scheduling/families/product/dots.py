"""Products of few rows by weights that are contiguous along K: dot products, with K along the lanes of vectors.

    for n in N by NR:  for m in M by MR:  for k in K by a vector's lanes:  sums[i, j] += A[m + i, k] * B[k, n + j]

Each sum is a vector, whose lanes are added up when K ends. B, of which there is most, is read once, in NR streams, as
it lies: packing it would read it twice. Chosen by the knob `order="dots"`; `micro` is then (MR, NR).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import ContractionSpec
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter, extent_of

LANES = 16
"""Elements of K in one step."""
BLOCK = 4096
"""Elements of K after which sums are added to the sum of the blocks before: a sum of sums has smaller rounding errors
than one long sum.
"""


class DotsLowering:
    """The nest of one product; batch axes are loops around it."""

    def __init__(
        self,
        spec: ContractionSpec,
        schedule: Schedule,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        self.spec, self.builder, self.arguments = spec, builder, arguments
        self.mr, self.nr = schedule.integers("micro")
        self.unroll = schedule.integer("unroll")
        self.split = 0 if schedule["parallel"] == "batch" else len(spec.batch)
        self.at: dict[str, SSAValue] = {}

    def lower(self) -> None:
        """Writes the kernel."""
        builder, batch = self.builder, self.spec.batch
        extents = [self._extent(axis) for axis in (*batch, "n")]
        self.rows, self.depth = self._extent("m"), self._extent("k")
        with builder.parallel(extents, [1] * len(batch) + [self.nr], self.split) as bounds:
            self._batch(0, bounds)

    def _extent(self, axis: str) -> SSAValue:
        return extent_of(self.builder, self.arguments.values(), axis)

    def _batch(self, level: int, bounds: Sequence[tuple[SSAValue, SSAValue]]) -> None:
        if level == len(self.spec.batch):
            self._tiled(*bounds[-1], self.nr, self._columns, macro_tile=True)
            return
        with self.builder.loop(*bounds[level], 1) as loop:
            self.at[self.spec.batch[level]] = loop.index
            self._batch(level + 1, bounds)

    def _tiled(
        self,
        lower: SSAValue,
        upper: SSAValue,
        size: int,
        body: Callable[[SSAValue, int], None],
        macro_tile: bool = False,
    ) -> None:
        """`body(position, size)` for whole tiles, and then for single elements."""
        builder, step = self.builder, self.builder.index(size)
        count = builder.floor_div(builder.sub(upper, lower), step)
        whole = builder.add(lower, builder.mul(count, step))
        with builder.loop(lower, whole, size, macro_tile=macro_tile) as loop:
            body(loop.index, size)
        if size > 1:
            with builder.loop(whole, upper, 1, macro_tile=macro_tile) as loop:
                body(loop.index, 1)

    def _columns(self, n: SSAValue, nr: int) -> None:
        self._tiled(self.builder.index(0), self.rows, self.mr, lambda m, mr: self._dots(m, mr, n, nr))

    def _dots(self, m: SSAValue, mr: int, n: SSAValue, nr: int) -> None:
        """The sums of `mr` rows and `nr` columns."""
        builder = self.builder
        zero = builder.splat(0, self.spec.accumulator.dtype, (nr, LANES))
        lanes = builder.index(LANES)
        whole = builder.mul(builder.floor_div(self.depth, lanes), lanes)
        with builder.loop(builder.index(0), whole, BLOCK, [zero] * mr) as blocks:
            end = builder.minimum(builder.add(blocks.index, builder.index(BLOCK)), whole)
            with builder.loop(blocks.index, end, LANES, [zero] * mr, self.unroll) as loop:
                loop.yielded = tuple(self._step(loop.carried, m, n, nr, loop.index, True))
            parts = zip(blocks.carried, loop.results, strict=True)
            blocks.yielded = tuple([builder.append(arith.AddfOp(total, part)) for total, part in parts])
        sums = tuple(blocks.results)
        rest = builder.compare(whole, self.depth, "slt")
        sums = builder.branch(rest, lambda: self._step(sums, m, n, nr, whole, False), lambda: sums)
        for row, total in enumerate(sums):
            self._store(builder.reduce(total, "add", 1), builder.add(m, builder.index(row)), n, nr)

    def _step(
        self, sums: Sequence[SSAValue], m: SSAValue, n: SSAValue, nr: int, k: SSAValue, whole: bool
    ) -> list[SSAValue]:
        """The sums with one more vector of K; `whole` says that all of it lies inside."""
        builder = self.builder
        b = self._writer({"n": nr, "k": LANES}, {"n": n, "k": k}, whole).write(self.spec.b, (nr, LANES))
        result = []
        for row, total in enumerate(sums):
            at = {"m": builder.add(m, builder.index(row)), "k": k}
            a = self._writer({"m": 1, "k": LANES}, at, whole).write(self.spec.a, (1, LANES))
            product = builder.append(arith.MulfOp(b, builder.spread(a, (nr, LANES)) if nr > 1 else a))
            result.append(builder.append(arith.AddfOp(total, product)))
        return result

    def _writer(self, sizes: dict[str, int], at: dict[str, SSAValue], whole: bool) -> TileWriter:
        writer = TileWriter(self.builder, self.arguments, sizes, Scope(frozenset(), 0))
        writer.enter({**self.at, **at}, {axis: whole or axis != "k" for axis in at})
        return writer

    def _store(self, sums: SSAValue, m: SSAValue, n: SSAValue, nr: int) -> None:
        """The epilogue of one row's sums, which lie down a tile of one column."""
        writer = self._writer({"n": nr, "m": 1}, {"n": n, "m": m}, True)
        writer.define(self.spec.accumulator, sums)
        for output in self.spec.outputs:
            argument = self.spec.arguments[output.argument]
            where = {**self.at, "m": m, "n": n}
            indices = [where[axis] for axis in argument.axes]
            dims = [argument.axes.index("n"), argument.axes.index("m")]
            buffer = self.arguments[output.argument].value
            self.builder.store(writer.write(output.value, (nr, 1)), buffer, indices, dims, (True, True))
