"""How deep fusion goes: how much code one kernel may be.

A value that goes through memory between two kernels costs a store and a load, a few cycles a vector where it stays in
the second cache. A kernel of several hundred instructions per vector takes hundreds of cycles for it, so that one cut
more is not seen; while compilers take more than proportional time for longer code (300 tanh one after the other: 9 s as
one kernel on Zen 4, less than a second as a repeated kernel of 400 instructions).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tessera.ir.graph.operations import GraphOperation
from tessera.ops.counting import vector_instructions
from tessera.ops.record import family_of

DEPTH: Final = 400
"""Vector instructions per vector of results that a kernel of maps and reductions may have."""

SHARES: Final[Mapping[str, float]] = MappingProxyType(
    {"map": 1.0, "reduction": 1.0, "contraction": 0.5, "convolution": 0.5, "window": 0.5}
)
"""The share of that for each kind of group: an epilogue is compiled once for every height of a register tile."""


def instructions_of(operation: GraphOperation) -> int:
    """Vector instructions that an operation adds to a kernel; a matrix product is counted as none."""
    if not family_of(operation.operator).is_counted:
        return 0
    return vector_instructions(operation.operator, len(operation.inputs))


def room_in(kind: str, depth: int) -> float:
    """The instructions that a group of some kind may have."""
    return SHARES.get(kind, 0.0) * depth
