"""Verification rules of operations that move elements, and of those that make tensors out of nothing."""

from __future__ import annotations

from xdsl.dialects.builtin import ComplexType, FloatAttr, IntegerAttr, IntegerType
from xdsl.ir import Operation

from tessera.ir.attributes import BOOLEAN, INT64, to_value
from tessera.ir.graph.checks import expect_element, expect_one_element, fail, is_float, operand_types, result_type


def reshape(op: Operation) -> None:
    """Same elements in row-major order; the number of elements stays."""
    before, after = operand_types(op)[0], result_type(op)
    expect_element(op, before.element_type)
    if before.has_static_shape() and after.has_static_shape() and before.element_count() != after.element_count():
        fail(op, f"{before.element_count()} elements do not fill {after.element_count()}")


def moving(op: Operation) -> None:
    """Elements as they are, of one type."""
    expect_element(op, expect_one_element(op))


def view_as_real(op: Operation) -> None:
    """Complex elements as pairs of real ones, along a new last dimension of two."""
    before, after = operand_types(op)[0], result_type(op)
    element = before.element_type
    if not isinstance(element, ComplexType) or element.element_type != after.element_type:
        fail(op, "the element type of the parts differs from the result's")


def view_as_complex(op: Operation) -> None:
    """Pairs along the last dimension as complex elements: the inverse of `view_as_real`."""
    before, after = operand_types(op)[0], result_type(op)
    element = after.element_type
    if not isinstance(element, ComplexType) or element.element_type != before.element_type:
        fail(op, "the element type of the parts differs from the operand's")


def pad(op: Operation) -> None:
    """Elements around those of the first operand: copies of them, or the second operand, a number ("constant")."""
    mode = to_value(op.attributes["mode"])
    if mode not in ("constant", "reflect", "replicate", "circular"):
        fail(op, f"no mode is called {mode}")
    if len(op.operands) != 1 + (mode == "constant"):
        fail(op, "mode constant takes one number, the others none")
    moving(op)


def iota(op: Operation) -> None:
    """The row-major numbers of the result's elements, in i64."""
    expect_element(op, INT64)


def constant(op: Operation) -> None:
    """A literal `value` spread over the result's shape: a number of the element's kind, or a dense literal."""
    value, element = op.attributes["value"], result_type(op).element_type
    match value:
        case FloatAttr():
            fits = is_float(element)
        case IntegerAttr():
            fits = isinstance(element, IntegerType) and (value.type == BOOLEAN) == (element == BOOLEAN)
        case _:
            fits = getattr(value, "type", None) == result_type(op)
    if not fits:
        fail(op, f"the value {value} is no {element}")
