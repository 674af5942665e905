"""Element types of Graph IR's operations, one function per kind: elementwise ones, reductions and rows.

Products and windows have theirs in `product_rules.py`, layouts in `layout_rules.py`. Shapes follow from
anchors (`ir/anchors/rules.py`).
"""

from __future__ import annotations

from xdsl.ir import Operation

from tessera.ir.attributes import BOOLEAN, INT64
from tessera.ir.graph.checks import (
    expect_element,
    expect_one_element,
    fail,
    integers,
    is_float,
    operand_types,
    result_type,
)


def checked_by_record(op: Operation) -> None:
    """Whatever the operator's record has let pass."""


def arithmetic(op: Operation) -> None:
    """One element type, of operands and result."""
    expect_element(op, expect_one_element(op))


def floating(op: Operation) -> None:
    """One floating-point element type, of operands and result."""
    arithmetic(op)
    if not is_float(result_type(op).element_type):
        fail(op, "defined on floating-point elements only; insert a cast")


def comparison(op: Operation) -> None:
    """Operands of one element type, to i1."""
    expect_one_element(op)
    expect_element(op, BOOLEAN)


def logical(op: Operation) -> None:
    """i1 operands to i1."""
    arithmetic(op)
    expect_element(op, BOOLEAN)


def where(op: Operation) -> None:
    """An i1 condition and two operands of one element type."""
    condition, first, second = operand_types(op)
    if condition.element_type != BOOLEAN:
        fail(op, f"the condition should be {BOOLEAN}")
    if first.element_type != second.element_type:
        fail(op, "element types of the two branches differ; insert a cast")
    expect_element(op, first.element_type)


def any_element(op: Operation) -> None:
    """Any element type to any other."""


def accumulation(op: Operation) -> None:
    """Sums and products: integers and booleans to i64, floating-point elements to their own type."""
    element = expect_one_element(op)
    expect_element(op, element if is_float(element) else INT64)


def argument(op: Operation) -> None:
    """The i64 position of an extreme element along one axis, or along all axes (counted in row-major order)."""
    expect_element(op, INT64)
    if len(integers(op, "axes")) not in (1, len(operand_types(op)[0].get_shape())):
        fail(op, "reduces one axis or all axes")


def normalization(op: Operation) -> None:
    """Floating-point elements; the result has the first operand's."""
    if not all(is_float(tensor.element_type) for tensor in operand_types(op)):
        fail(op, "defined on floating-point elements only; insert a cast")
    expect_element(op, operand_types(op)[0].element_type)


def library(op: Operation) -> None:
    """A call of a library, which the record of the operator `callee` describes; its extents are the plan's to know."""
