"""Where keys lie in pages, and which of them there are: what kernels of CPUs and of GPUs ask alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue

from tessera.scheduling.families.attention.online_softmax import KeyRange
from tessera.scheduling.families.paged_attention.spec import PagedAttentionSpec
from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import loaded_arguments
from tessera.scheduling.lowering.writer import ArgumentTile


@dataclass(frozen=True)
class Pages:
    """The pages of a kernel: `page` is the number of keys in one, `pool` that of pages, `row` that of the table's
    columns, each at least 1; `room` is the number of keys that the table can name.
    """

    builder: TileBuilder
    spec: PagedAttentionSpec
    arguments: Mapping[int, ArgumentTile]
    page: SSAValue
    pool: SSAValue
    row: SSAValue
    room: SSAValue

    @classmethod
    def of(
        cls,
        builder: TileBuilder,
        spec: PagedAttentionSpec,
        arguments: Mapping[int, ArgumentTile],
        extent: Callable[[str], SSAValue],
    ) -> Pages:
        """Those of a kernel whose axes have run-time extents."""
        one = builder.index(1)
        some = builder.minimum(extent("p"), one)  # no key, where there is no page
        room = builder.mul(builder.mul(extent("t"), extent("k")), some)
        page, pool, row = (builder.maximum(extent(axis), one) for axis in ("k", "p", "t"))
        return cls(builder, spec, arguments, page, pool, row, room)

    def length(self, at: Mapping[str, SSAValue]) -> SSAValue:
        """The number of keys of the sequence at a place."""
        return self.builder.minimum(self._number(self.spec.lengths, at), self.room)

    def named(self, column: SSAValue, at: Mapping[str, SSAValue]) -> SSAValue:
        """The page that a column of the table names; the nearest one where there is none of that number."""
        last = self.builder.sub(self.pool, self.builder.index(1))
        return self.builder.minimum(self._number(self.spec.table, {**at, "t": column}), last)

    def after(self, column: SSAValue) -> SSAValue:
        """The next column of the table, the last one after that."""
        builder, one = self.builder, self.builder.index(1)
        return builder.minimum(builder.add(column, one), builder.sub(self.row, one))

    def key_range(self, length: SSAValue, query: SSAValue, count: int, queries: SSAValue) -> KeyRange:
        """The keys that `count` queries from `query` on see."""
        builder, spec = self.builder, self.spec
        if spec.heads_as_queries:
            shift, own = builder.sub(length, builder.index(1)), builder.index(0)
            found = KeyRange(length, length, shift)
        else:
            found, own = KeyRange.of(builder, query, count, queries, length, spec.causal), query
        if not spec.window:
            return found
        first = builder.add(own, builder.sub(found.shift, builder.index(spec.window - 1)))
        return replace(found, first=builder.maximum(builder.index(0), builder.minimum(first, found.end)))

    def _number(self, value: Value, at: Mapping[str, SSAValue]) -> SSAValue:
        """An integer in memory, 0 where it is below."""
        builder = self.builder
        (number,) = loaded_arguments(value)
        argument = self.arguments[number]
        tile = builder.load(argument.value, [at[axis] for axis in argument.axes], [-1, -1], (1, 1), [True, True])
        index = builder.append(arith.IndexCastOp(builder.element(tile), IndexType()))
        return builder.maximum(index, builder.index(0))
