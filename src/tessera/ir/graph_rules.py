"""Verification rules of Graph IR, one function per family of operations: elementwise ones, reductions and rows.

Products, attention and windows have theirs in `graph_product_rules.py`, layouts in `graph_layout_rules.py`; all are
written with `graph_checks.py`.
"""

from __future__ import annotations

from typing import cast

from xdsl.ir import Operation

from tessera.ir.attributes import BOOLEAN, INT64, to_value
from tessera.ir.graph_checks import (
    compatible,
    expect_axes,
    expect_broadcast,
    expect_element,
    expect_one_element,
    expect_shape,
    fail,
    flag,
    integers,
    is_float,
    operand_types,
    reduced_shape,
    result_type,
)


def checked_by_record(op: Operation) -> None:
    """Whatever the operator's record has let pass."""


def arithmetic(op: Operation) -> None:
    """Operands of one element type, broadcast together; the result has the same type."""
    expect_broadcast(op)
    expect_element(op, expect_one_element(op))


def floating(op: Operation) -> None:
    """As `arithmetic`, over floating-point elements only."""
    arithmetic(op)
    if not is_float(result_type(op).element_type):
        fail(op, "defined on floating-point elements only; insert a cast")


def comparison(op: Operation) -> None:
    """Operands of one element type, broadcast together; the result is i1."""
    expect_broadcast(op)
    expect_one_element(op)
    expect_element(op, BOOLEAN)


def logical(op: Operation) -> None:
    """i1 operands, broadcast together, to i1."""
    arithmetic(op)
    expect_element(op, BOOLEAN)


def where(op: Operation) -> None:
    """An i1 condition and two operands of one element type, all broadcast together."""
    expect_broadcast(op)
    condition, first, second = operand_types(op)
    if condition.element_type != BOOLEAN:
        fail(op, f"the condition should be {BOOLEAN}")
    if first.element_type != second.element_type:
        fail(op, "element types of the two branches differ; insert a cast")
    expect_element(op, first.element_type)


def cast_elements(op: Operation) -> None:
    """Any element type to any other; the shape stays."""
    expect_shape(op, operand_types(op)[0].get_shape())


def _expect_reduction(op: Operation) -> None:
    shape = operand_types(op)[0].get_shape()
    axes = integers(op, "axes")
    expect_axes(op, axes, len(shape))
    expect_shape(op, reduced_shape(shape, axes, flag(op, "keepdims")))


def reduction(op: Operation) -> None:
    """Reduces `axes` within one element type."""
    _expect_reduction(op)
    expect_element(op, expect_one_element(op))


def accumulation(op: Operation) -> None:
    """Reduces `axes` by `sum` or `prod`: integers and booleans to i64, floating-point elements to their own type."""
    _expect_reduction(op)
    element = expect_one_element(op)
    expect_element(op, element if is_float(element) else INT64)


def mean(op: Operation) -> None:
    """Reduces `axes` of floating-point elements."""
    reduction(op)
    if not is_float(result_type(op).element_type):
        fail(op, "defined on floating-point elements only; insert a cast")


def argument(op: Operation) -> None:
    """Reduces one axis, or all axes (counted in row-major order), to the i64 position of the extreme element."""
    _expect_reduction(op)
    expect_element(op, INT64)
    if len(integers(op, "axes")) not in (1, len(operand_types(op)[0].get_shape())):
        fail(op, "reduces one axis or all axes")


def softmax(op: Operation) -> None:
    """Normalizes along `axis`; shape and floating-point element type stay."""
    floating(op)
    axis = cast(int, to_value(op.attributes["axis"]))
    expect_axes(op, [axis], len(result_type(op).get_shape()))


def normalization(op: Operation) -> None:
    """Normalizes the last dimension of the first operand; the others scale and shift it, and broadcast to it."""
    data, *parameters = operand_types(op)
    if not data.get_shape():
        fail(op, "normalizes the last dimension, and there is none")
    if not all(is_float(tensor.element_type) for tensor in operand_types(op)):
        fail(op, "defined on floating-point elements only; insert a cast")
    for parameter in parameters:
        shape = parameter.get_shape()
        if len(shape) != 1 or not compatible(shape[0], data.get_shape()[-1]):
            fail(op, "weight and bias have the last dimension's extent")
    expect_shape(op, data.get_shape())
    expect_element(op, data.element_type)


def library(op: Operation) -> None:
    """A call of a library, which the record of the operator `callee` describes; its extents are the plan's to know."""
