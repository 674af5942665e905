"""What the lowering of a matrix product hands around: operands, and the current block."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.microkernel.panels import PanelReader

A_PADDING = 16
"""Elements added to a packed row of A, so that rows do not fall into the same cache set."""
SUMS_PADDING = 16
"""The same for a row of sums in scratch memory."""
REGISTER_BLOCK = 256
"""Steps of K after which sums in registers are added to the sum of the blocks before."""
VECTOR_BYTES = 64
"""What one step of packing A copies, of elements that are multiplied several at a time."""
TRANSPOSED_ROWS = 16
"""Rows of a tile that is transposed in registers while packing."""


@dataclass(frozen=True)
class ProductOperand:
    """One operand as the micro-kernel reads it: packed in rows, or in panels, or where it lies."""

    value: Value
    rows: SSAValue | None = None
    panels: PanelReader | None = None

    @property
    def is_packed(self) -> bool:
        """Whether it lies in scratch memory."""
        return self.rows is not None or self.panels is not None


@dataclass(frozen=True)
class ProductBlock:
    """Where the current block begins, and its extents."""

    ic: SSAValue
    height: SSAValue
    jc: SSAValue
    width: SSAValue
    pc: SSAValue
    depth: SSAValue
