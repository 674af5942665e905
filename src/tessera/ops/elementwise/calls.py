"""`clamp` as users call it: bounds may be literals, which the record holds, or tensors; and what a `cast` casts to."""

from __future__ import annotations

from typing import Any

from tessera.dtypes import DType, promote_scalar
from tessera.lazy.node import Node
from tessera.lazy.structures.structure import Structure
from tessera.ops.algebra import call, call_binary
from tessera.ops.layout.views import number


def _literal(bound: Any, x: Node) -> float | int | None:
    if bound is None:
        return None
    return number(bound, "a bound") if x.dtype.kind == "float" else int(bound)


def clamp(x: Node, minimum: object, maximum: object) -> Any:
    """`minimum(maximum(x, lower), upper)`; a bound that is None does not bind."""
    bounds = [bound for bound in (minimum, maximum) if bound is not None]
    # 0.0 and -0.0 would be one attribute, so a negative zero is an operand.
    if all(type(bound) in (int, float) and str(bound) != "-0.0" for bound in bounds):
        # Attributes that are equal must mean the same: 1 and 1.0 do not beside integers.
        if any(type(bound) is float for bound in bounds) and x.dtype.kind != "float":
            x = call("cast", x, dtype=promote_scalar(x.dtype, 1.0))
        return call("clamp", x, minimum=_literal(minimum, x), maximum=_literal(maximum, x))
    raised = x if minimum is None else call_binary("maximum", x, minimum)
    return raised if maximum is None else call_binary("minimum", raised, maximum)


def cast_to(structure: Structure) -> DType | None:
    """The dtype that a structure casts its operand to; None where it is no cast."""
    if structure.operator is None or structure.operator.name != "cast":
        return None
    dtype: DType = structure.named_attributes["dtype"]
    return dtype
