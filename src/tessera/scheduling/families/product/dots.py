"""Products of few rows by weights that are contiguous along K: dot products, with K along the lanes of vectors.

    for n in N by NR:  for m in M by MR:  for k in K by a vector's lanes:  sums[i, j] += A[m + i, k] * B[k, n + j]

Each sum is a vector, whose lanes are added up when K ends. B, of which there is most, is read once, in NR streams, as
it lies: packing it would read it twice. Chosen by the knob `order="dots"`; `micro` is then (MR, NR).
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import SSAValue

from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import AxisTile, LoopNest
from tessera.scheduling.lowering.microkernel.dot_product import DotProductKernel
from tessera.scheduling.lowering.microkernel.protocol import Sums
from tessera.scheduling.lowering.microkernel.summation import summed
from tessera.scheduling.lowering.spec import ContractionSpec
from tessera.scheduling.lowering.writer import ArgumentTile

LANES = 16
"""Elements of K in one step."""
BLOCK = 4096
"""Elements of K after which sums are added to the sum of the blocks before."""


class DotProducts(LoopNest):
    """The nest of one product; batch axes are loops around it."""

    def __init__(
        self,
        spec: ContractionSpec,
        schedule: Schedule,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        super().__init__(builder, arguments)
        self.spec = spec
        mr, nr = schedule.integers("micro")
        self.heights, self.widths = ((size, 1) if size > 1 else (1,) for size in (mr, nr))
        self.unroll = schedule.integer("unroll")
        self.split = 0 if schedule["parallel"] == "batch" else len(spec.batch)

    def lower(self) -> None:
        """Writes the kernel."""
        zero, batch = self.builder.index(0), self.spec.batch
        extents = {axis: self.extent(axis) for axis in (*batch, "n")}
        rows, self.depth = self.extent("m"), self.extent("k")
        with self.shares(extents, {"n": self.widths[0]}, self.split) as share, self.over(batch, share):
            for n in self.tiles(share["n"], self.widths, macro_tile=True):
                for m in self.tiles((zero, rows), self.heights):
                    self._dots(m, n)

    def _dots(self, m: AxisTile, n: AxisTile) -> None:
        """The sums of a few rows and columns."""
        builder, zero = self.builder, self.builder.index(0)
        kernel = DotProductKernel(builder, m.size, n.size, LANES, self.spec.accumulator.dtype, fused=False)

        def step(k: SSAValue, sums: Sums, whole: bool) -> Sums:
            inside = {"m": True, "n": True, "k": whole}

            def row(number: int) -> SSAValue:
                at = {"m": builder.add(m.start, builder.index(number)), "k": k}
                return self.write(self.spec.a, {"m": 1, "k": LANES}, at, inside)

            def columns(number: int) -> SSAValue:
                return self.write(self.spec.b, {"n": n.size, "k": LANES}, {"n": n.start, "k": k}, inside)

            return kernel.step(row, columns, sums)

        sums = summed(builder, (zero, self.depth), LANES, kernel.zeros(), step, self.unroll, BLOCK, has_rest=True)
        for number, total in enumerate(kernel.finish(sums)):
            at: Mapping[str, SSAValue] = {"m": builder.add(m.start, builder.index(number)), "n": n.start}
            known = {self.spec.accumulator: total}
            self.store(self.spec.outputs, known, {"n": n.size, "m": 1}, at, {"m": True, "n": True})
