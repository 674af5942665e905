"""Python numbers as operands: small literals become part of the algebra, all others are run-time arguments."""

from __future__ import annotations

from typing import Any, Final

from tessera import dtypes
from tessera.dtypes import DType
from tessera.lazy import structure as structures
from tessera.lazy.leaf import scalar_leaf
from tessera.lazy.node import Node

Number = bool | int | float

LITERALS: Final = frozenset((-2, -1, -0.5, 0, 0.5, 1, 2))
"""Numbers that rewrites know something about (`x * 1`, `x ** 2`); another number here means another structure."""

_constants: dict[tuple[Any, type, DType], Node] = {}
_argument_dtypes: dict[tuple[type, DType], DType] = {}


def scalar_node(value: Number, dtype: DType) -> Node:
    """The operand `value` beside tensors whose common dtype is `dtype`.

    A literal has the dtype of the result, as torch determines it; an argument has that dtype's accumulator (fp32 beside
    bf16), since torch too computes with the unrounded number. Raises ArgumentError for integers that do not fit.
    """
    kind = type(value)
    known = _constants.get((value, kind, dtype))
    if known is not None and (value or str(value) != "-0.0"):
        return known
    if value in LITERALS and str(value) != "-0.0":
        structure = structures.constant(value, dtypes.promote_scalar(dtype, value))
        return _constants.setdefault((value, kind, dtype), Node((structure, ())))
    argument_dtype = _argument_dtypes.get((kind, dtype))
    if argument_dtype is None:
        argument_dtype = dtypes.accumulator(dtypes.promote_scalar(dtype, value))
        _argument_dtypes[kind, dtype] = argument_dtype
    leaf = scalar_leaf(value, argument_dtype)
    return Node((leaf.structure, (leaf,)))
