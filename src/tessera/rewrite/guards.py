"""What a rewrite needs of extents that a form does not know: noted on the function, checked where a plan is bound."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr
from xdsl.dialects.func import FuncOp

from tessera.ir.attributes import names_of, to_attribute
from tessera.ir.graph.operations import GraphOperation

GUARDS = "guards"
Guard = tuple[tuple[str, ...], tuple[str, ...]]
"""Names of extents on either side, whose products must be equal."""


def require(operation: GraphOperation, guards: Sequence[Guard]) -> None:
    """Notes on the function of an operation what its program needs of extents."""
    block = operation.parent
    function = None if block is None else block.parent_op()
    assert isinstance(function, FuncOp)
    known = dict.fromkeys(guards_of(function))
    known.update(dict.fromkeys((a, b) for a, b in guards if a != b))
    function.attributes[GUARDS] = to_attribute(tuple(known))


def guards_of(function: FuncOp) -> list[Guard]:
    """What was noted by `require`."""
    noted = function.attributes.get(GUARDS)
    if noted is None:
        return []
    assert isinstance(noted, ArrayAttr)
    return [(names_of(guard.data[0]), names_of(guard.data[1])) for guard in noted.data]
