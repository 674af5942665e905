"""The second operands of products as panels of constants, which were packed before the kernel was called.

Two products of one A stand in one register tile: their panels are half as wide, and their rows are read side by side.
The loop over K is that of one product; in the end each half of the sums is those of one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, VectorType, i64
from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.ir import tile
from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.spec import Argument, ContractionSpec, Panels, exact_load
from tessera.scheduling.lowering.writer import ArgumentTile


@dataclass(frozen=True)
class PackedOperand:
    """Panels in a kernel's argument. `ahead`: how many groups of rows are fetched before they are used."""

    buffer: SSAValue
    argument: Argument
    panels: Panels
    ahead: int

    def load(
        self,
        builder: TileBuilder,
        batch: Mapping[str, SSAValue],
        n: SSAValue,
        k: SSAValue,
        shape: tuple[int, int],
        element: DType,
    ) -> SSAValue:
        """The rows from `k` on of the panel that starts at column `n`, a multiple of its width, as `element`."""
        zero, width, depth = builder.index(0), self.panels.width, self.panels.group
        group = builder.floor_div(k, builder.index(depth)) if depth > 1 else k
        inner = [zero, zero] if depth > 1 else [zero]
        panel = [*[batch[axis] for axis in self.argument.axes[:-2]], builder.floor_div(n, builder.index(width))]
        if self.ahead:
            # Panels lie one behind the other: past the end of one begins the next.
            place = [*panel, builder.add(group, builder.index(self.ahead)), *inner]
            builder.prefetch(self.buffer, place, 1, width * depth, write=False)
        columns = len(panel) + 1
        dims = [columns + 1, columns] if depth > 1 else [columns - 1, columns]
        return builder.cast(builder.load(self.buffer, [*panel, group, *inner], dims, shape, [True, True]), element)

    def load_groups(
        self,
        builder: TileBuilder,
        batch: Mapping[str, SSAValue],
        n: SSAValue,
        k: SSAValue,
        column: int,
        shape: tuple[int, int, int],
        element: DType,
    ) -> SSAValue:
        """Groups as they lie, [k / group, n, group]: from row `k` on, a multiple of `group`, and some columns into the
        panel that starts at column `n`.
        """
        width, depth = builder.index(self.panels.width), builder.index(self.panels.group)
        place = [*[batch[axis] for axis in self.argument.axes[:-2]], builder.floor_div(n, width)]
        place += [builder.floor_div(k, depth), builder.index(column), builder.index(0)]
        rank = len(place)
        dims = [rank - 3, rank - 2, rank - 1]
        return builder.cast(builder.load(self.buffer, place, dims, shape, [True] * 3), element)

    def fetch(
        self, builder: TileBuilder, batch: Mapping[str, SSAValue], n: SSAValue, k: SSAValue, elements: int
    ) -> None:
        """Fetches so many neighbouring elements of the panel that starts at column `n`, from row `k` on."""
        zero, group = builder.index(0), builder.floor_div(k, builder.index(self.panels.group))
        panel = builder.floor_div(n, builder.index(self.panels.width))
        inner = [zero, zero] if self.panels.group > 1 else [zero]
        place = [*[batch[axis] for axis in self.argument.axes[:-2]], panel, group, *inner]
        builder.prefetch(self.buffer, place, 1, elements, write=False)


def packed_operands(
    spec: ContractionSpec, arguments: Mapping[int, ArgumentTile], ahead: int
) -> tuple[PackedOperand, ...]:
    """The second operand of each product, where all are packed; else none."""
    found = [_packed(spec, product.b, arguments, ahead) for product in spec.products]
    packed = tuple([operand for operand in found if operand is not None])
    return packed if len(packed) == len(found) else ()


def side_by_side(builder: TileBuilder, tiles: Sequence[SSAValue]) -> SSAValue:
    """Tiles of one shape as one, along their columns."""
    if len(tiles) == 1:
        return tiles[0]
    kind = tiles[0].type
    assert isinstance(kind, VectorType)
    rows, columns = kind.get_shape()
    whole = VectorType(kind.element_type, [rows, columns * len(tiles)])
    return builder.append(
        tile.JoinOp.create(operands=tiles, result_types=[whole], attributes={"axis": IntegerAttr(1, i64)})
    )


def _packed(spec: ContractionSpec, b: Value, arguments: Mapping[int, ArgumentTile], ahead: int) -> PackedOperand | None:
    constant = exact_load(b)
    if constant is None:
        return None
    argument = spec.arguments[constant.argument]
    if argument.panels is None:
        return None
    return PackedOperand(arguments[constant.argument].value, argument, argument.panels, ahead)
