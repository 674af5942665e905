"""Lowering attention for CPUs: what both of its kernels share, and the choice between them.

    lanes="queries"    attention/blocks.py: queries along the lanes of vectors, for many of them
    unit="matrix"      attention/matrix.py: the same with products on a matrix unit
    lanes="head"       attention/decode.py: elements of a head along the lanes, for one query or a few

A kernel walks the batch axes and the blocks of queries; workers share one of these dimensions. With `causal` later
queries see more keys: blocks are visited from both ends in turn, so that a share of neighbouring turns is as much work
as any other of its length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from xdsl.ir import SSAValue

from tessera.scheduling.families.attention.visibility import ScoreBlock, is_placed, is_sparse, visibility
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.loop_nest import LoopNest
from tessera.scheduling.lowering.ranges import rounded_up
from tessera.scheduling.lowering.spec import AttentionSpec
from tessera.scheduling.lowering.writer import ArgumentTile


class AttentionNest(LoopNest, ABC):
    """The nest over batch axes and blocks of `bm` queries."""

    bm: int

    def __init__(
        self, spec: AttentionSpec, schedule: Schedule, builder: TileBuilder, arguments: dict[int, ArgumentTile]
    ) -> None:
        super().__init__(builder, arguments)
        self.spec = spec
        self.dtype = spec.accumulator.dtype
        self.split = {"batch": 0, "heads": 1, "queries": len(spec.batch)}[str(schedule["parallel"])]
        self.extents = {axis: self.extent(axis) for axis in (*spec.batch, "q", "k", "d", "v")}
        self.saved = [output for output in spec.outputs if spec.saved and output.value is spec.saved.accumulator]
        if len(self.saved) == len(spec.outputs):  # no means are asked for
            self.extents["v"] = builder.index(0)

    @abstractmethod
    def block(self) -> None:
        """Writes the code of one block of queries, whose first stands at `at["q"]`."""

    def lower(self) -> None:
        """Writes the kernel."""
        builder, batch = self.builder, self.spec.batch
        blocks = builder.floor_div(rounded_up(builder, self.extents["q"], self.bm), builder.index(self.bm))
        extents = {**{axis: self.extents[axis] for axis in batch}, "q": blocks}
        with (
            self.shares(extents, {}, self.split) as share,
            self.over(batch, share),
            builder.loop(*share["q"], 1, macro_tile=True) as turn,
        ):
            self.at["q"] = builder.mul(self._visited(turn.index, blocks), builder.index(self.bm))
            self.block()

    def _visited(self, turn: SSAValue, blocks: SSAValue) -> SSAValue:
        """The block of a turn: the turn itself, or where blocks see more or fewer keys the last block, the first, the
        last but one, ...
        """
        if not (self.spec.causal or (is_sparse(self.spec.mask) and is_placed(self.spec.mask))):
            return turn
        builder, two = self.builder, self.builder.index(2)
        half = builder.floor_div(turn, two)
        odd = builder.sub(turn, builder.mul(half, two))
        late = builder.sub(builder.sub(blocks, builder.index(1)), half)
        block = builder.add(late, builder.mul(odd, builder.sub(half, late)))
        return builder.maximum(block, builder.index(0))

    def visibility(
        self, query: SSAValue, key: SSAValue, sizes: Mapping[str, int], keys: SSAValue, reads: bool = True
    ) -> tuple[SSAValue, SSAValue]:
        """Whether the mask certainly shows all of a block of scores, and whether it may show any: two conditions. The
        block ends before `keys`; with `reads` what is read along queries and keys is looked at.
        """
        builder, one = self.builder, self.builder.index(1)
        assert self.spec.mask is not None
        past = {"q": self.extents["q"], "k": keys}
        first = {"q": query, "k": key}
        last = {
            axis: builder.sub(builder.minimum(builder.add(at, builder.index(sizes[axis])), past[axis]), one)
            for axis, at in first.items()
        }
        found = visibility(builder, self.writer, self.spec.mask, ScoreBlock(first, last, sizes, reads))
        certain, possible = (builder.element(each) for each in found)
        return certain, possible

    def write_saved(
        self, logarithm: Callable[[], SSAValue], sizes: Mapping[str, int], at: Mapping[str, SSAValue]
    ) -> None:
        """Stores a tile of the logarithms of sums where they are asked for."""
        if self.spec.saved is not None:
            self.store(self.saved, {self.spec.saved.accumulator: logarithm()}, sizes, at)

    def write_result(self, mean: SSAValue, sizes: Mapping[str, int], at: Mapping[str, SSAValue]) -> None:
        """Stores the outputs, given a tile of weighted means."""
        beside = {self.spec.logarithms, *(output.argument for output in self.saved)}
        outputs = [output for output in self.spec.outputs if output.argument not in beside]
        self.store(outputs, {self.spec.accumulator: mean}, sizes, at)
