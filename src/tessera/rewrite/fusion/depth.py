"""How deep fusion goes: how much code one kernel may be.

A value that goes through memory between two kernels costs a store and a load, a few cycles a vector where it stays in
the second cache. A kernel of several hundred instructions per vector takes hundreds of cycles for it, so that one cut
more is not seen; while compilers take more than proportional time for longer code (300 tanh one after the other: 9 s as
one kernel on Zen 4, less than a second as a repeated kernel of 400 instructions).
"""

from __future__ import annotations

from typing import Final

from tessera.ir.graph.operations import GraphOperation
from tessera.ops.counting import vector_instructions
from tessera.ops.record import family_of

DEPTH: Final = 400
"""Vector instructions per vector of results that a kernel of maps and reductions may have; a group may have its kind's
share of them (`ops.families.GroupKind`).
"""


def instructions_of(operation: GraphOperation) -> int:
    """Vector instructions that an operation adds to a kernel; a matrix product is counted as none. Of its operands one
    is at hand, as it is in a chain; each other one may be a load.
    """
    if not family_of(operation.operator).is_counted:
        return 0
    operands = len(operation.inputs)
    return vector_instructions(operation.operator, operands) + max(operands - 1, 0)
