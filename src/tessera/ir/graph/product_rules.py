"""Verification rules of matrix products, attention, convolutions and reductions over windows."""

from __future__ import annotations

from xdsl.ir import Operation

from tessera.ir.graph.checks import (
    expect_element,
    fail,
    is_float,
    operand_types,
    result_type,
)


def contraction(op: Operation) -> None:
    """A product of floating-point matrices, or of integer ones."""
    if len({is_float(tensor.element_type) for tensor in (*operand_types(op), result_type(op))}) != 1:
        fail(op, "floating-point and integer elements do not mix; insert a cast")


def attention(op: Operation) -> None:
    """`softmax(scale Q K^T + mask) V` of Q, K, V, a scale without dimensions and maybe a mask of booleans or floats."""
    q, k, v, *_ = operand_types(op)
    if not is_float(q.element_type) or {k.element_type, v.element_type} != {q.element_type}:
        fail(op, "Q, K and V have one floating-point element type; insert a cast")
    expect_element(op, q.element_type)


def attention_sums(op: Operation) -> None:
    """What is summed up beside attention or of its gradient, of operands as attention has them: in floats."""
    q, k, v, *_ = operand_types(op)
    if not is_float(q.element_type) or {k.element_type, v.element_type} != {q.element_type}:
        fail(op, "Q, K and V have one floating-point element type; insert a cast")
    if not is_float(result_type(op).element_type):
        fail(op, "sums are floating-point elements")


def window(op: Operation) -> None:
    """Images, and what a window multiplies them by or reduces them with, all of one floating-point element type."""
    if len({tensor.element_type for tensor in (*operand_types(op), result_type(op))}) != 1:
        fail(op, "element types differ; insert a cast")
    if not is_float(result_type(op).element_type):
        fail(op, "defined on floating-point elements only; insert a cast")
