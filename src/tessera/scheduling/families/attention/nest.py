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
from collections.abc import Mapping
from contextlib import ExitStack

from xdsl.ir import SSAValue

from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import AttentionSpec
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter, extent_of


class AttentionNest(ABC):
    """The nest over batch axes and blocks of `bm` queries, and access to operands from inside it.

    `at` holds the position along each batch axis and along q.
    """

    bm: int

    def __init__(
        self, spec: AttentionSpec, schedule: Schedule, builder: TileBuilder, arguments: dict[int, ArgumentTile]
    ) -> None:
        self.spec, self.builder, self.arguments = spec, builder, arguments
        self.dtype = spec.accumulator.dtype
        self.split = {"batch": 0, "heads": 1, "queries": len(spec.batch)}[str(schedule["parallel"])]
        self.extents = {axis: self._extent(axis) for axis in (*spec.batch, "q", "k", "d", "v")}
        self.at: dict[str, SSAValue] = {}

    def _extent(self, axis: str) -> SSAValue:
        return extent_of(self.builder, self.arguments.values(), axis)

    @abstractmethod
    def block(self) -> None:
        """Writes the code of one block of queries, whose first stands at `at["q"]`."""

    def lower(self) -> None:
        """Writes the kernel."""
        builder, batch = self.builder, self.spec.batch
        blocks = builder.floor_div(self.rounded(self.extents["q"], self.bm), builder.index(self.bm))
        with ExitStack() as nest:
            extents = [*(self.extents[axis] for axis in batch), blocks]
            bounds = nest.enter_context(builder.parallel(extents, [1] * len(extents), self.split))
            for axis, (lower, upper) in zip(batch, bounds, strict=False):
                self.at[axis] = nest.enter_context(builder.loop(lower, upper, 1)).index
            turn = nest.enter_context(builder.loop(*bounds[-1], 1, macro_tile=True)).index
            self.at["q"] = builder.mul(self._visited(turn, blocks), builder.index(self.bm))
            self.block()

    def _visited(self, turn: SSAValue, blocks: SSAValue) -> SSAValue:
        """The block of a turn: the turn itself, or with `causal` the last block, the first, the last but one, ..."""
        if not self.spec.causal:
            return turn
        builder, two = self.builder, self.builder.index(2)
        half = builder.floor_div(turn, two)
        odd = builder.sub(turn, builder.mul(half, two))
        late = builder.sub(builder.sub(blocks, builder.index(1)), half)
        block = builder.add(late, builder.mul(odd, builder.sub(half, late)))
        return self.at_least_zero(block)

    # -- index arithmetic -----------------------------------------------------------------------------------------

    def at_least_zero(self, value: SSAValue) -> SSAValue:
        """The larger of an index and 0."""
        return self.builder.maximum(value, self.builder.index(0))

    def rounded(self, extent: SSAValue, step: int) -> SSAValue:
        """An extent, rounded up to whole steps."""
        whole = self.builder.add(extent, self.builder.index(step - 1))
        return self.rounded_down(whole, step)

    def rounded_down(self, extent: SSAValue, step: int) -> SSAValue:
        """An extent, rounded down to whole steps."""
        return self.builder.mul(self.builder.floor_div(extent, self.builder.index(step)), self.builder.index(step))

    # -- access ---------------------------------------------------------------------------------------------------

    def writer(
        self, sizes: Mapping[str, int], at: Mapping[str, SSAValue], inside: Mapping[str, bool] | None = None
    ) -> TileWriter:
        """A writer of expressions over axes of the given sizes; `inside` are those along which whole tiles fit."""
        writer = TileWriter(self.builder, self.arguments, dict(sizes), Scope(frozenset(), 0))
        writer.enter({**self.at, **at}, {axis: (inside or {}).get(axis, False) for axis in sizes})
        return writer

    def write(
        self,
        value: Value,
        sizes: Mapping[str, int],
        at: Mapping[str, SSAValue],
        inside: Mapping[str, bool] | None = None,
    ) -> SSAValue:
        """The tile of an expression. Elements outside an operand are 0."""
        return self.writer(sizes, at, inside).write(value, tuple(sizes.values()))

    def write_result(self, mean: SSAValue, sizes: Mapping[str, int], at: Mapping[str, SSAValue]) -> None:
        """Stores the outputs, given a tile of weighted means."""
        writer = self.writer(sizes, at)
        writer.define(self.spec.accumulator, mean)
        where = {**self.at, **at}
        for output in self.spec.outputs:
            if output.argument == self.spec.logarithms:
                continue
            axes = self.spec.arguments[output.argument].axes
            self.builder.store(
                writer.write(output.value, tuple(sizes.values())),
                self.arguments[output.argument].value,
                [where[axis] for axis in axes],
                [axes.index(axis) for axis in sizes],
                [False] * len(sizes),
            )
