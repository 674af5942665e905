"""The `tessera` dialect, and the context that knows it and the dialects it is written together with."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import Builtin
from xdsl.dialects.func import Func
from xdsl.dialects.math import Math
from xdsl.dialects.memref import MemRef
from xdsl.dialects.scf import Scf
from xdsl.dialects.tensor import Tensor
from xdsl.ir import Dialect

from tessera.ir.graph.operations import GRAPH_OPERATIONS
from tessera.ir.schedule.operations import SCHEDULE_OPERATIONS
from tessera.ir.tile.operations import TILE_OPERATIONS

# One dialect for the three levels: MLIR's namespace ends at the first dot of an operation's name.
Tessera = Dialect("tessera", [*GRAPH_OPERATIONS.values(), *SCHEDULE_OPERATIONS, *TILE_OPERATIONS], [])


def context() -> Context:
    """A fresh context with the `tessera` dialect and builtin, arith, math, scf, func, memref and tensor."""
    result = Context()
    for dialect in (Builtin, Arith, Math, Scf, Func, MemRef, Tensor, Tessera):
        result.load_dialect(dialect)
    return result
