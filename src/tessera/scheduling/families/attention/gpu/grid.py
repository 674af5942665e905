"""What the lowerings of attention and of its gradient on GPUs share: how expressions and operands become tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import Block, SSAValue

from tessera.dtypes import DType
from tessera.scheduling.language.expression import Value
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.gpu_grid import Grid
from tessera.scheduling.lowering.spec import AttentionGradientSpec, AttentionSpec, loaded_arguments, under_cast
from tessera.scheduling.lowering.writer import ArgumentTile, Scope, TileWriter


def name_operands(block: Block, named: Mapping[str, Value | None]) -> None:
    """Names for readers."""
    for name, value in named.items():
        if value is not None:
            for index in [value.argument] if value.operation == "scalar" else loaded_arguments(value):
                block.args[index].name_hint = name


class AttentionGrid(Grid):
    """Tiles of a program's operands, of which `at` says where they begin."""

    def __init__(
        self,
        spec: AttentionSpec | AttentionGradientSpec,
        schedule: Schedule,
        builder: TileBuilder,
        arguments: dict[int, ArgumentTile],
    ) -> None:
        super().__init__(builder, arguments)
        self.head, self.value_head = schedule.integers("head")
        self.exact = bool(schedule["exact"])
        self.dtype = spec.accumulator.dtype
        self.at: dict[str, SSAValue] = {}
        stored = under_cast(spec.q).dtype
        self.element: DType = stored if stored.itemsize <= 2 else self.dtype
        """The dtype in which operands are multiplied."""

    def longest_first(self, query: SSAValue, queries: SSAValue, count: int) -> SSAValue:
        """The blocks of `count` queries from the last one on, which sees the most keys: the short ones fill the end."""
        builder, step = self.builder, self.builder.index(count)
        blocks = builder.floor_div(builder.sub(queries, builder.index(1)), step)
        mirrored = builder.sub(builder.mul(blocks, step), query)
        first = builder.maximum(builder.index(0), mirrored)
        first.name_hint = "first"
        return first

    def write(
        self, value: Value, sizes: Mapping[str, int], at: Mapping[str, SSAValue], inside: Sequence[str] = ()
    ) -> SSAValue:
        """The tile of an expression over axes of the given sizes, of which a tile fits along those `inside`."""
        return self.writer(sizes, at, inside).write(value, tuple(sizes.values()))

    def writer(self, sizes: Mapping[str, int], at: Mapping[str, SSAValue], inside: Sequence[str]) -> TileWriter:
        """A writer of expressions over such tiles."""
        writer = TileWriter(self.builder, self.arguments, dict(sizes), Scope(frozenset(), 0))
        writer.enter({**self.at, **at}, {axis: axis in inside for axis in sizes})
        return writer

    def operand(
        self, value: Value, sizes: Mapping[str, int], at: Mapping[str, SSAValue], inside: Sequence[str] = ()
    ) -> SSAValue:
        """A tile as it is multiplied: narrow floats as they lie in memory, as their products are exact in fp32."""
        raw = under_cast(value)
        is_narrow = raw.operation == "load" and raw.dtype.itemsize <= 2
        return self.write(raw if is_narrow else value, sizes, at, (*inside, *(("d", "v") if self.exact else ())))
