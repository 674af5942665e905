"""The loops of a CPU's kernel around its register tiles, and access to its arguments from inside them.

    with nest.shares(extents, steps, split) as share:             what one worker computes
        with nest.over(batch, share):                             loops over single elements
            for start, length in nest.blocks(share["n"], size):   blocks, which are packed (`microkernel/panels.py`)
                for tile in nest.tiles(span, (size, 1)):          register tiles (`microkernel/`), and what is left
                    nest.store(outputs, sums, sizes, at)          epilogues

A `for` over blocks, parts or tiles has one turn for each loop that it writes, and must not be left early: what is
written meanwhile stands inside that loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeAlias

from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.attributes import buffer_type, row_major
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.microkernel.protocol import Place
from tessera.scheduling.lowering.ranges import Range, whole_steps
from tessera.scheduling.lowering.spec import Output
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter, extent_of

Bounded: TypeAlias = Mapping[str, bool]
"""Whether a tile lies inside along an axis; along an axis that is not told, it may not."""


class AxisTile(NamedTuple):
    """A part of a range: where it begins, how long it is, and whether it certainly lies inside."""

    start: SSAValue
    size: int
    inside: bool


class LoopNest:
    """Loops and access to arguments; `at` holds the position along each axis whose loop is open.

    Extents are read from the first of the arguments that has the axis, those `measured` first.
    """

    def __init__(
        self,
        builder: TileBuilder,
        arguments: Mapping[int, ArgumentTile],
        measured: Sequence[ArgumentTile] = (),
    ) -> None:
        self.builder, self.arguments = builder, arguments
        self._measured = measured
        self.at: dict[str, SSAValue] = {}

    def extent(self, axis: str) -> SSAValue:
        """The run-time extent of an axis. KeyError where no argument has it."""
        return extent_of(self.builder, (*self._measured, *self.arguments.values()), axis)

    # -- loops ----------------------------------------------------------------------------------------------------

    @contextmanager
    def shares(
        self, extents: Mapping[str, SSAValue], steps: Mapping[str, int], split: int
    ) -> Iterator[Mapping[str, Range]]:
        """One worker's share of a grid of axes, of which it takes whole `steps` (1 where none is said): a range of
        each. Dimension `split` is what workers share.
        """
        sizes = [steps.get(axis, 1) for axis in extents]
        with self.builder.parallel(list(extents.values()), sizes, split) as bounds:
            yield dict(zip(extents, bounds, strict=True))

    @contextmanager
    def over(
        self,
        axes: Sequence[str],
        share: Mapping[str, Range],
        writer: TileWriter | None = None,
        macro_tile: bool = False,
    ) -> Iterator[None]:
        """Loops over axes, one inside the other, element by element; turns of the innermost one may be macro tiles. A
        `writer` has a scope for each.
        """
        with ExitStack() as stack:
            for place, axis in enumerate(axes):
                is_tile = macro_tile and place == len(axes) - 1
                self.at[axis] = stack.enter_context(self.builder.loop(*share[axis], 1, macro_tile=is_tile)).index
                if writer is not None:
                    stack.enter_context(writer.inside({axis: self.at[axis]}, {}))
            yield

    def blocks(self, span: Range, size: int, macro_tile: bool = False) -> Iterator[tuple[SSAValue, SSAValue]]:
        """A loop over blocks: where each begins, and how long it is, the last one maybe shorter."""
        builder = self.builder
        with builder.loop(*span, size, macro_tile=macro_tile) as loop:
            yield loop.index, builder.minimum(builder.index(size), builder.sub(span[1], loop.index))

    def parts(self, span: Range, size: int, macro_tile: bool = False) -> Iterator[Range]:
        """The same, as ranges."""
        builder = self.builder
        with builder.loop(*span, size, macro_tile=macro_tile) as loop:
            yield loop.index, builder.minimum(builder.add(loop.index, builder.index(size)), span[1])

    def tiles(self, span: Range, sizes: Sequence[int], macro_tile: bool = False) -> Iterator[AxisTile]:
        """Tiles one behind the other: as many of the first size as fit, then of the next, and of the last one for all
        that is left, which may reach over the end.
        """
        lower, upper = span
        for place, size in enumerate(sizes):
            is_last = place == len(sizes) - 1
            end = upper if is_last else whole_steps(self.builder, (lower, upper), size)
            with self.builder.loop(lower, end, size, macro_tile=macro_tile) as loop:
                yield AxisTile(loop.index, size, not is_last or size == 1)
            lower = end

    def scratch(self, dtype: DType, shape: Sequence[int], level: str) -> SSAValue:
        """Scratch memory of one worker, in row-major order."""
        return self.builder.alloc(buffer_type(dtype, row_major(shape), shape), level)

    # -- arguments ------------------------------------------------------------------------------------------------

    def writer(self, sizes: Mapping[str, int], at: Mapping[str, SSAValue], inside: Bounded | None = None) -> TileWriter:
        """A writer of expressions over axes of the given sizes at a position."""
        writer = TileWriter(self.builder, self.arguments, sizes, Scope(frozenset(), 0))
        writer.enter({**self.at, **at}, {axis: (inside or {}).get(axis, False) for axis in sizes})
        return writer

    def write(
        self, value: Value, sizes: Mapping[str, int], at: Mapping[str, SSAValue], inside: Bounded | None = None
    ) -> SSAValue:
        """The tile of an expression. Elements outside an operand are 0."""
        return self.writer(sizes, at, inside).write(value, tuple(sizes.values()))

    def place(
        self, argument: int, axes: Sequence[str], at: Mapping[str, SSAValue], inside: Bounded | None = None
    ) -> Place:
        """Where a tile over some axes lies in an argument."""
        own, where = self.arguments[argument].axes, {**self.at, **at}
        return Place(
            self.arguments[argument].value,
            tuple([where[axis] for axis in own]),
            tuple([own.index(axis) if axis in own else -1 for axis in axes]),
            tuple([(inside or {}).get(axis, False) for axis in axes]),
        )

    def store(
        self,
        outputs: Sequence[Output],
        known: Mapping[Value, SSAValue],
        sizes: Mapping[str, int],
        at: Mapping[str, SSAValue],
        inside: Bounded | None = None,
    ) -> None:
        """Stores a tile of each output, given what is `known` of the values that they are made of."""
        writer = self.writer(sizes, at, inside)
        for value, tile in known.items():
            writer.define(value, tile)
        for output in outputs:
            tile = writer.write(output.value, tuple(sizes.values()))
            self.place(output.argument, tuple(sizes), at, inside).store(self.builder, tile)
