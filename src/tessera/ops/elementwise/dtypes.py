"""Dtypes of elementwise operators: those that operands are cast to, and those of results."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tessera import dtypes
from tessera.dtypes import DType
from tessera.errors import ArgumentError
from tessera.lazy.structures.promotion import common_dtype
from tessera.ops.record import Named, Typed, dtype_error

# -- operands ---------------------------------------------------------------------------------------------------------


def common(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """The dtype in which operands meet, as torch's do (`lazy.promotion`)."""
    return [common_dtype(operands)] * len(operands)


def numbers(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """The dtype in which operands meet. Raises DTypeError for bools."""
    met = common(name, operands, attributes)
    if met[0] is dtypes.bool_:
        raise dtype_error(name, operands, "not defined on bool", ["cast to int64 or fp32, or use logical operators"])
    return met


def to_float(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """The dtype in which operands meet; torch's default dtype for integers and bools."""
    met = common_dtype(operands)
    return [met if met.kind == "float" else dtypes.dtype_of(torch.get_default_dtype())] * len(operands)


def to_bool(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """Truth values."""
    return [dtypes.bool_] * len(operands)


def as_given(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """No casts."""
    return [operand.dtype for operand in operands]


def choice(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """A condition as given, and branches that meet. Raises DTypeError for a condition that is no bool."""
    condition, *branches = operands
    if condition.dtype is not dtypes.bool_:
        raise dtype_error(name, operands, "the condition must be bool", ["compare: x != 0"])
    return [dtypes.bool_, *common(name, branches, attributes)]


def within_bounds(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    """The dtype in which the operand meets the attributes `minimum` and `maximum`. Raises DTypeError for bools,
    ArgumentError for bounds that an integer dtype does not have.
    """
    (met,) = set(numbers(name, operands, attributes))
    for bound in (attributes["minimum"], attributes["maximum"]):
        if bound is not None:
            met = dtypes.promote_scalar(met, bound)
    for bound in (attributes["minimum"], attributes["maximum"]):
        if met.kind == "int" and bound is not None and dtypes.wrapped(bound, met) != bound:
            raise ArgumentError(f"{name} at {bound}, which is no number of {met}", hints=["cast to a wider dtype"])
    return [met]


# -- results ----------------------------------------------------------------------------------------------------------


def truth(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    """Of comparisons and logic: bool."""
    return dtypes.bool_


def wanted(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    """The attribute `dtype`. Raises DTypeError for one that tensors cannot be of."""
    dtype: DType = attributes["dtype"]
    if dtype not in dtypes.SUPPORTED:
        names = ", ".join(sorted(str(each) for each in dtypes.SUPPORTED))
        hint = (
            'tf32 is a math mode: op.matmul(a, b, math="tf32")' if dtype is dtypes.tf32 else f"cast to one of {names}"
        )
        raise dtype_error(name, operands, f"tensors of {dtype} are not computed with", [hint])
    return dtype
