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
from tessera.ir.tile import operations as tile
from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.microkernel.panels import PanelReader
from tessera.scheduling.lowering.spec import ContractionSpec, Panels, exact_load
from tessera.scheduling.lowering.writer import ArgumentTile


@dataclass(frozen=True)
class PackedOperand:
    """Panels in a kernel's argument, which its `reader` reads. `ahead`: how many groups of rows are fetched before they
    are used.
    """

    reader: PanelReader
    batch: tuple[str, ...]
    panels: Panels
    ahead: int

    def rows(
        self, at: Mapping[str, SSAValue], n: SSAValue, k: SSAValue, shape: tuple[int, int], element: DType
    ) -> SSAValue:
        """The rows from `k` on of the panel that starts at column `n`, a multiple of its width, as `element`."""
        builder, reader = self.reader.builder, self.reader
        group, panel = reader.group_of(k), self._panel(at, n)
        if self.ahead:
            # Panels lie one behind the other: past the end of one begins the next.
            later = builder.add(group, builder.index(self.ahead))
            reader.fetch(panel, later, self.panels.width * self.panels.group)
        return builder.cast(reader.rows(panel, group, shape), element)

    def groups(
        self,
        at: Mapping[str, SSAValue],
        n: SSAValue,
        k: SSAValue,
        column: int,
        shape: tuple[int, int, int],
        element: DType,
    ) -> SSAValue:
        """Groups as they lie, [k / group, n, group]: from row `k` on, a multiple of `group`, and some columns into the
        panel that starts at column `n`.
        """
        builder, panel, group = self.reader.builder, self._panel(at, n), self.reader.group_of(k)
        return builder.cast(self.reader.groups(panel, group, builder.index(column), shape), element)

    def fetch(self, at: Mapping[str, SSAValue], n: SSAValue, k: SSAValue, elements: int) -> None:
        """Fetches so many neighbouring elements of the panel that starts at column `n`, from row `k` on."""
        group = self.reader.group_of(k)
        self.reader.fetch(self._panel(at, n), group, elements)

    def _panel(self, at: Mapping[str, SSAValue], n: SSAValue) -> list[SSAValue]:
        builder = self.reader.builder
        return [*[at[axis] for axis in self.batch], builder.floor_div(n, builder.index(self.panels.width))]


def are_packed(spec: ContractionSpec) -> bool:
    """Whether the second operands of all products come in panels."""
    return all(_packed_argument(spec, product.b) is not None for product in spec.products)


def packed_operands(
    spec: ContractionSpec, builder: TileBuilder, arguments: Mapping[int, ArgumentTile], ahead: int
) -> tuple[PackedOperand, ...]:
    """The second operand of each product, where all are packed; else none."""
    if not are_packed(spec):
        return ()
    found = [_packed_argument(spec, product.b) for product in spec.products]
    return tuple([_packed(spec, each, builder, arguments, ahead) for each in found if each is not None])


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


def _packed_argument(spec: ContractionSpec, b: Value) -> int | None:
    """The argument that holds an operand in panels."""
    constant = exact_load(b)
    return None if constant is None or spec.arguments[constant.argument].panels is None else constant.argument


def _packed(
    spec: ContractionSpec, number: int, builder: TileBuilder, arguments: Mapping[int, ArgumentTile], ahead: int
) -> PackedOperand:
    argument = spec.arguments[number]
    assert argument.panels is not None
    reader = PanelReader(builder, arguments[number].value, argument.panels.group)
    return PackedOperand(reader, argument.axes[:-2], argument.panels, ahead)
