"""Helpers of Graph IR's verification rules: types, shapes that are known in part, and what they expect of an operation.

Shapes use xDSL's `DYNAMIC_INDEX` for extents known only at run time. Such an extent never broadcasts: a dimension that
does is a static 1 in the type, which is what lets one program serve every size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeAlias, cast

from xdsl.dialects.builtin import DYNAMIC_INDEX, AnyFloat, TensorType
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from tessera.ir.anchors.anchor import Anchor, AnchorError, AnchorRule
from tessera.ir.anchors.rules import with_result
from tessera.ir.attributes import shape_text, to_value

Rule: TypeAlias = Callable[[Operation], None]
"""Raises `VerifyException`, with the types of all operands, for an operation that is none."""
Shape: TypeAlias = tuple[int, ...]


def operand_types(op: Operation) -> list[TensorType[Attribute]]:
    """The tensor types of an operation's operands."""
    return [cast(TensorType[Attribute], operand.type) for operand in op.operands]


def result_type(op: Operation) -> TensorType[Attribute]:
    """The tensor type of an operation's only result."""
    return cast(TensorType[Attribute], op.results[0].type)


def anchor_of(op: Operation, rule: AnchorRule) -> Anchor:
    """The anchor of an operation, by its ranks and attributes. Raises AnchorError for ranks that it does not take."""
    attributes = {name: to_value(attribute) for name, attribute in op.attributes.items()}
    ranks = tuple([tensor.get_num_dims() for tensor in operand_types(op)])
    return rule(ranks, with_result(attributes, _extents(result_type(op))))


def expect_anchor(op: Operation, rule: AnchorRule) -> None:
    """Fails unless operands and result have the shapes that the anchor says."""
    try:
        anchor = anchor_of(op, rule)
        expected = anchor.shape([_extents(tensor) for tensor in operand_types(op)])
    except AnchorError as error:
        fail(op, error.message)
    if not anchor.may_be(expected, _extents(result_type(op))):
        shape = [DYNAMIC_INDEX if extent is None else extent for extent in expected]
        fail(op, f"the result's shape should be {shape_text(shape)}")


def _extents(tensor: TensorType[Attribute]) -> tuple[int | None, ...]:
    return tuple([None if extent == DYNAMIC_INDEX else extent for extent in tensor.get_shape()])


def fail(op: Operation, reason: str) -> NoReturn:
    """Raises the verifier's error: the operator, what is wrong, and every operand's and the result's shape."""
    kind = op.name.rsplit(".", 1)[-1]
    operands = " and ".join(_describe(operand) for operand in operand_types(op)) or "no operand"
    raise VerifyException(f"{kind} of {operands} to {_describe(result_type(op))}: {reason}")


def _describe(tensor: TensorType[Attribute]) -> str:
    return f"{shape_text(tensor.get_shape())} {tensor.element_type}"


def expect_element(op: Operation, expected: Attribute) -> None:
    """Fails unless the result has the expected element type."""
    if result_type(op).element_type != expected:
        fail(op, f"the result's element type should be {expected}")


def is_float(element: Attribute) -> bool:
    """Whether an element type is a floating-point one."""
    return isinstance(element, AnyFloat)


def expect_one_element(op: Operation) -> Attribute:
    """The one element type of all operands; fails where they differ."""
    elements = {tensor.element_type for tensor in operand_types(op)}
    if len(elements) != 1:
        fail(op, "element types differ; insert a cast")
    return elements.pop()


def integers(op: Operation, name: str) -> tuple[int, ...]:
    """The integers of an attribute."""
    return cast(tuple[int, ...], to_value(op.attributes[name]))
