"""The second operand of a product as panels of a constant, which were packed before the kernel was called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.ir import SSAValue

from tessera.dtypes import DType
from tessera.scheduling.builder import TileBuilder
from tessera.scheduling.spec import Argument, ContractionSpec, Panels, exact_load
from tessera.scheduling.writer import ArgumentTile


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


def packed_operand(spec: ContractionSpec, arguments: Mapping[int, ArgumentTile], ahead: int) -> PackedOperand | None:
    """The second operand where it is packed."""
    constant = exact_load(spec.b)
    if constant is None:
        return None
    argument = spec.arguments[constant.argument]
    if argument.panels is None:
        return None
    return PackedOperand(arguments[constant.argument].value, argument, argument.panels, ahead)
