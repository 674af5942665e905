"""Verification rules of operations that move elements, and of those that make tensors out of nothing."""

from __future__ import annotations

from typing import cast

from xdsl.dialects.builtin import DYNAMIC_INDEX, ComplexType, FloatAttr, IntegerAttr, IntegerType
from xdsl.ir import Operation

from tessera.ir.attributes import BOOLEAN, INT64, to_value
from tessera.ir.graph_checks import (
    broadcast_shapes,
    compatible,
    expect_axes,
    expect_element,
    expect_extents,
    expect_one_element,
    expect_shape,
    fail,
    integers,
    is_float,
    operand_types,
    result_type,
    same_shape,
)


def reshape(op: Operation) -> None:
    """Same elements in row-major order; the number of elements stays."""
    before, after = operand_types(op)[0], result_type(op)
    expect_element(op, before.element_type)
    if before.has_static_shape() and after.has_static_shape() and before.element_count() != after.element_count():
        fail(op, f"{before.element_count()} elements do not fill {after.element_count()}")


def transpose(op: Operation) -> None:
    """Result dimension `d` is operand dimension `permutation[d]`."""
    before = operand_types(op)[0]
    permutation = integers(op, "permutation")
    if sorted(permutation) != list(range(before.get_num_dims())):
        fail(op, f"{list(permutation)} is no permutation of the {before.get_num_dims()} dimensions")
    expect_shape(op, tuple(before.get_shape()[dim] for dim in permutation))
    expect_element(op, before.element_type)


def broadcast_to(op: Operation) -> None:
    """Repeats size-1 dimensions, and puts new ones in front."""
    before, after = operand_types(op)[0], result_type(op)
    expect_element(op, before.element_type)
    joined = broadcast_shapes([before.get_shape(), after.get_shape()])
    if joined is None or not same_shape(joined, after.get_shape()):
        fail(op, "the operand does not broadcast to the result")


def concat(op: Operation) -> None:
    """Joins operands along `axis`; every other extent agrees."""
    shapes = [tensor.get_shape() for tensor in operand_types(op)]
    axis = cast(int, to_value(op.attributes["axis"]))
    expect_axes(op, [axis], len(shapes[0]))
    if len({len(shape) for shape in shapes}) != 1:
        fail(op, "ranks differ")
    expected = list(shapes[0])
    for shape in shapes[1:]:
        for dim, extent in enumerate(shape):
            if dim != axis and not compatible(extent, expected[dim]):
                fail(op, f"extents along dimension {dim} differ")
            if expected[dim] == DYNAMIC_INDEX:
                expected[dim] = extent
    along = [shape[axis] for shape in shapes]
    expected[axis] = DYNAMIC_INDEX if DYNAMIC_INDEX in along else sum(along)
    expect_extents(op, tuple(expected))
    expect_element(op, expect_one_element(op))


def slice_(op: Operation) -> None:
    """Elements `starts[d] + i * steps[d]` along each dimension; the result's extents say how many.

    Without `starts` and `steps` both are run-time values that the plan knows.
    """
    before = operand_types(op)[0]
    after = result_type(op).get_shape()
    rank = before.get_num_dims()
    expect_element(op, before.element_type)
    starts = integers(op, "starts") if "starts" in op.attributes else None
    steps = integers(op, "steps") if "steps" in op.attributes else None
    if any(values is not None and len(values) != rank for values in (after, starts, steps)):
        fail(op, f"starts, steps and the result need one entry for each of the {rank} dimensions")
    if starts is None or steps is None:
        return
    if 0 in steps:
        fail(op, "a step of 0")
    for start, step, size, extent in zip(starts, steps, after, before.get_shape(), strict=True):
        if DYNAMIC_INDEX not in (size, extent) and size and not (0 <= start < extent > start + step * (size - 1) >= 0):
            fail(op, f"{size} elements from {start} by {step} leave the extent {extent}")


def view_as_real(op: Operation) -> None:
    """Complex elements as pairs of real ones, along a new last dimension of two."""
    before, after = operand_types(op)[0], result_type(op)
    element = before.element_type
    if not isinstance(element, ComplexType) or element.element_type != after.element_type:
        fail(op, "the element type of the parts differs from the result's")
    expect_extents(op, (*before.get_shape(), 2))


def view_as_complex(op: Operation) -> None:
    """Pairs along the last dimension as complex elements: the inverse of `view_as_real`."""
    before, after = operand_types(op)[0], result_type(op)
    element = after.element_type
    if not isinstance(element, ComplexType) or element.element_type != before.element_type:
        fail(op, "the element type of the parts differs from the operand's")
    *lead, last = before.get_shape() or (1,)
    if not compatible(last, 2):
        fail(op, "the last dimension holds two parts")
    expect_extents(op, tuple(lead))


def pad(op: Operation) -> None:
    """Elements around those of the first operand: copies of them, or the second operand, a number ("constant")."""
    mode, (data, *value) = to_value(op.attributes["mode"]), operand_types(op)
    if mode not in ("constant", "reflect", "replicate", "circular"):
        fail(op, f"no mode is called {mode}")
    if len(value) != (mode == "constant") or any(each.get_shape() for each in value):
        fail(op, "mode constant takes one number, the others none")
    if data.get_num_dims() != result_type(op).get_num_dims():
        fail(op, "ranks differ")
    expect_element(op, expect_one_element(op))


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
