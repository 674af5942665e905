"""Verification rules of matrix products, attention, convolutions and reductions over windows."""

from __future__ import annotations

from typing import cast

from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import Operation

from tessera.ir.attributes import to_value
from tessera.ir.graph_checks import (
    compatible,
    expect_element,
    expect_extents,
    expect_one_element,
    fail,
    integers,
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


def convolution(op: Operation) -> None:
    """`[N, H, W, groups C]`, `[groups O, C, KH, KW] -> [N, OH, OW, groups O]`; `stride` and `dilation` are for rows and
    columns, `padding` is top, left, bottom, right.
    """
    image, weights = (tensor.get_shape() for tensor in operand_types(op))
    if len(image) != 4 or len(weights) != 4:
        fail(op, "image and weights have four dimensions")
    stride, padding, dilation = (integers(op, name) for name in ("stride", "padding", "dilation"))
    groups = cast(int, to_value(op.attributes["groups"]))
    if (len(stride), len(padding), len(dilation)) != (2, 4, 2) or min(*stride, *dilation, groups) < 1:
        fail(op, "stride and dilation are two positive numbers, padding is four, groups is positive")
    if DYNAMIC_INDEX not in (image[3], weights[1]) and image[3] != groups * weights[1]:
        fail(op, f"{image[3]} channels are not {groups} groups of {weights[1]}")
    extents = []
    for side in (0, 1):
        extent, window = image[1 + side], weights[2 + side]
        if DYNAMIC_INDEX in (extent, window):
            extents.append(DYNAMIC_INDEX)
            continue
        padded = extent + padding[side] + padding[2 + side]
        extents.append((padded - dilation[side] * (window - 1) - 1) // stride[side] + 1)
    expect_extents(op, (image[0], *extents, weights[0]))
    if len({tensor.element_type for tensor in (*operand_types(op), result_type(op))}) != 1:
        fail(op, "element types differ; insert a cast")
    if not is_float(result_type(op).element_type):
        fail(op, "defined on floating-point elements only; insert a cast")


def window(op: Operation) -> None:
    """Images of four dimensions, reduced over a window; beside them operands of the window's places."""
    image, *taps = operand_types(op)
    if image.get_num_dims() != 4 or any(tensor.get_num_dims() != 3 for tensor in taps):
        fail(op, "images have four dimensions, operands of the window's places three")
    channel = 1 if to_value(op.attributes["layout"]) == "NCHW" else 3
    before, after = image.get_shape(), result_type(op).get_shape()
    if len(after) != 4 or not compatible(before[0], after[0]):
        fail(op, "the result has the operand's images")
    kernel = integers(op, "kernel")
    for tensor in taps:
        shape = tensor.get_shape()
        if not compatible(shape[0], after[channel]) or not all(map(compatible, shape[1:], kernel)):
            fail(op, "operands beside the image are [channels, rows, columns] of the window")
    if not is_float(image.element_type):
        fail(op, "defined on floating-point elements only; insert a cast")
    expect_element(op, expect_one_element(op))
