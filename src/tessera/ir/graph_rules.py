"""Verification rules of Graph IR, one function per family of operations.

A rule takes an operation and raises `VerifyException` with the types of all operands. Shapes use xDSL's
`DYNAMIC_INDEX` for extents known only at run time. Such an extent never broadcasts: a dimension that does
is a static 1 in the type, which is what lets one program serve every size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, cast

from xdsl.dialects.builtin import DYNAMIC_INDEX, AnyFloat, ComplexType, FloatAttr, IntegerAttr, IntegerType, TensorType
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import BOOLEAN, INT64, shape_text, to_value

Rule = Callable[[Operation], None]
Shape = tuple[int, ...]


def operand_types(op: Operation) -> list[TensorType[Attribute]]:
    """The tensor types of an operation's operands."""
    return [cast(TensorType[Attribute], operand.type) for operand in op.operands]


def result_type(op: Operation) -> TensorType[Attribute]:
    """The tensor type of an operation's only result."""
    return cast(TensorType[Attribute], op.results[0].type)


def fail(op: Operation, reason: str) -> NoReturn:
    """Raises the verifier's error: the operator, what is wrong, and every operand's and the result's shape."""
    kind = op.name.rsplit(".", 1)[-1]
    operands = " and ".join(_describe(operand) for operand in operand_types(op)) or "no operand"
    raise VerifyException(f"{kind} of {operands} to {_describe(result_type(op))}: {reason}")


def _describe(tensor: TensorType[Attribute]) -> str:
    return f"{shape_text(tensor.get_shape())} {tensor.element_type}"


def compatible(first: int, second: int) -> bool:
    """Whether two extents may be equal at run time."""
    return first == second or DYNAMIC_INDEX in (first, second)


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape | None:
    """The shape that `shapes` broadcast to, aligned at the right, or None when they do not."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result: list[int] = []
    for extents in zip(*padded, strict=True):
        wide = {extent for extent in extents if extent != 1}
        static = wide - {DYNAMIC_INDEX}
        if len(static) > 1:
            return None
        result.append(next(iter(static or wide), 1))
    return tuple(result)


def _same_shape(expected: Shape, actual: Shape) -> bool:
    """Whether `actual` may stand for `expected`; a static 1 promises broadcasting, so it must agree exactly."""
    return len(expected) == len(actual) and all(
        compatible(a, b) and (a == 1) == (b == 1) for a, b in zip(expected, actual, strict=True)
    )


def _expect_shape(op: Operation, expected: Shape) -> None:
    if not _same_shape(expected, result_type(op).get_shape()):
        fail(op, f"the result's shape should be {shape_text(expected)}")


def _expect_element(op: Operation, expected: Attribute) -> None:
    if result_type(op).element_type != expected:
        fail(op, f"the result's element type should be {expected}")


def is_float(element: Attribute) -> bool:
    """Whether an element type is a floating-point one."""
    return isinstance(element, AnyFloat)


def _expect_one_element(op: Operation) -> Attribute:
    elements = {tensor.element_type for tensor in operand_types(op)}
    if len(elements) != 1:
        fail(op, "element types differ; insert a cast")
    return elements.pop()


def _expect_broadcast(op: Operation) -> None:
    shape = broadcast_shapes([tensor.get_shape() for tensor in operand_types(op)])
    if shape is None:
        fail(op, "the shapes do not broadcast")
    _expect_shape(op, shape)


def _integers(op: Operation, name: str) -> tuple[int, ...]:
    return cast(tuple[int, ...], to_value(op.attributes[name]))


def _flag(op: Operation, name: str) -> bool:
    return name in op.attributes and bool(to_value(op.attributes[name]))


def _expect_axes(op: Operation, axes: Sequence[int], rank: int) -> None:
    if any(not 0 <= axis < rank for axis in axes) or len(set(axes)) != len(axes):
        fail(op, f"axes {list(axes)} are not distinct dimensions in 0..{rank - 1}")


def checked_by_record(op: Operation) -> None:
    """Whatever the operator's record has let pass."""


def arithmetic(op: Operation) -> None:
    """Operands of one element type, broadcast together; the result has the same type."""
    _expect_broadcast(op)
    _expect_element(op, _expect_one_element(op))


def floating(op: Operation) -> None:
    """As `arithmetic`, over floating-point elements only."""
    arithmetic(op)
    if not is_float(result_type(op).element_type):
        fail(op, "defined on floating-point elements only; insert a cast")


def comparison(op: Operation) -> None:
    """Operands of one element type, broadcast together; the result is i1."""
    _expect_broadcast(op)
    _expect_one_element(op)
    _expect_element(op, BOOLEAN)


def logical(op: Operation) -> None:
    """i1 operands, broadcast together, to i1."""
    arithmetic(op)
    _expect_element(op, BOOLEAN)


def where(op: Operation) -> None:
    """An i1 condition and two operands of one element type, all broadcast together."""
    _expect_broadcast(op)
    condition, first, second = operand_types(op)
    if condition.element_type != BOOLEAN:
        fail(op, f"the condition should be {BOOLEAN}")
    if first.element_type != second.element_type:
        fail(op, "element types of the two branches differ; insert a cast")
    _expect_element(op, first.element_type)


def cast_elements(op: Operation) -> None:
    """Any element type to any other; the shape stays."""
    _expect_shape(op, operand_types(op)[0].get_shape())


def contraction(op: Operation) -> None:
    """`[..., M, K] @ [..., K, N] -> [..., M, N]`; the flags `transpose_a`, `transpose_b` swap an operand's last two.

    As in torch, an operand of one dimension is a row (first) or a column (second) whose dimension of 1 is then dropped.
    """
    a, b = (tensor.get_shape() for tensor in operand_types(op)[:2])
    if not a or not b:
        fail(op, "operands need at least one dimension")
    *batch_a, m, k = _swapped(a, _flag(op, "transpose_a")) if len(a) > 1 else (1, *a)
    *batch_b, k_b, n = _swapped(b, _flag(op, "transpose_b")) if len(b) > 1 else (*b, 1)
    if not compatible(k, k_b):
        fail(op, f"contracted extents {k} and {k_b} differ")
    batch = broadcast_shapes([tuple(batch_a), tuple(batch_b)])
    if batch is None:
        fail(op, "the batch dimensions do not broadcast")
    matrix = ((m,) if len(a) > 1 else ()) + ((n,) if len(b) > 1 else ())
    _expect_extents(op, (*batch, *matrix))
    if len({is_float(tensor.element_type) for tensor in (*operand_types(op), result_type(op))}) != 1:
        fail(op, "floating-point and integer elements do not mix; insert a cast")


def _swapped(shape: Shape, swap: bool) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if swap else shape


def _expect_extents(op: Operation, expected: Shape) -> None:
    # These dimensions do not broadcast, so an extent of 1 there may or may not be known in the type.
    actual = result_type(op).get_shape()
    fits = len(actual) == len(expected) and all(compatible(a, b) for a, b in zip(expected, actual, strict=True))
    if not fits:
        fail(op, f"the result's shape should be {shape_text(expected)}")


def gemm(op: Operation) -> None:
    """`alpha * A @ B + beta * C` with an optional C that broadcasts to the result."""
    contraction(op)
    if len(op.operands) == 3:
        shape = result_type(op).get_shape()
        addend = operand_types(op)[2].get_shape()
        if len(addend) > len(shape) or broadcast_shapes([shape, addend]) is None:
            fail(op, "C does not broadcast to the product's shape")


def attention(op: Operation) -> None:
    """`softmax(scale Q K^T + mask) V` of Q, K, V, a scale without dimensions and maybe a mask of booleans or floats.

    `[..., heads, queries, d]`, `[..., heads_kv, keys, d]`, `[..., heads_kv, keys, d_v] -> [..., heads, queries, d_v]`.
    """
    q, k, v, scale, *mask = operand_types(op)
    shapes = [tensor.get_shape() for tensor in (q, k, v)]
    if any(len(shape) < 2 for shape in shapes) or scale.get_shape():
        fail(op, "Q, K and V need two dimensions, the scale has none")
    if not compatible(shapes[0][-1], shapes[1][-1]) or not compatible(shapes[1][-2], shapes[2][-2]):
        fail(op, "head sizes of Q and K, or keys and values, differ in number")
    batch = broadcast_shapes([shape[:-3] for shape in shapes])
    if batch is None:
        fail(op, "the batch dimensions do not broadcast")
    heads = [shape[-3] for shape in shapes if len(shape) > 2]
    lead = (*batch, shapes[0][-3] if len(shapes[0]) > 2 else 1) if heads else ()
    _expect_extents(op, (*lead, shapes[0][-2], shapes[2][-1]))
    if mask and broadcast_shapes([(*lead, shapes[0][-2], shapes[1][-2]), mask[0].get_shape()]) is None:
        fail(op, "the mask does not broadcast to the scores")
    if not is_float(q.element_type) or {k.element_type, v.element_type} != {q.element_type}:
        fail(op, "Q, K and V have one floating-point element type; insert a cast")
    _expect_element(op, q.element_type)


def convolution(op: Operation) -> None:
    """`[N, H, W, groups C]`, `[groups O, C, KH, KW] -> [N, OH, OW, groups O]`; `stride` and `dilation` are for rows and
    columns, `padding` is top, left, bottom, right.
    """
    image, weights = (tensor.get_shape() for tensor in operand_types(op))
    if len(image) != 4 or len(weights) != 4:
        fail(op, "image and weights have four dimensions")
    stride, padding, dilation = (_integers(op, name) for name in ("stride", "padding", "dilation"))
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
    _expect_extents(op, (image[0], *extents, weights[0]))
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
    kernel = _integers(op, "kernel")
    for tensor in taps:
        shape = tensor.get_shape()
        if not compatible(shape[0], after[channel]) or not all(map(compatible, shape[1:], kernel)):
            fail(op, "operands beside the image are [channels, rows, columns] of the window")
    if not is_float(image.element_type):
        fail(op, "defined on floating-point elements only; insert a cast")
    _expect_element(op, _expect_one_element(op))


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """The shape left by reducing `axes`: dropped, or 1 with `keepdims`."""
    if keepdims:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def _expect_reduction(op: Operation) -> None:
    shape = operand_types(op)[0].get_shape()
    axes = _integers(op, "axes")
    _expect_axes(op, axes, len(shape))
    _expect_shape(op, reduced_shape(shape, axes, _flag(op, "keepdims")))


def reduction(op: Operation) -> None:
    """Reduces `axes` within one element type."""
    _expect_reduction(op)
    _expect_element(op, _expect_one_element(op))


def accumulation(op: Operation) -> None:
    """Reduces `axes` by `sum` or `prod`: integers and booleans to i64, floating-point elements to their own type."""
    _expect_reduction(op)
    element = _expect_one_element(op)
    _expect_element(op, element if is_float(element) else INT64)


def mean(op: Operation) -> None:
    """Reduces `axes` of floating-point elements."""
    reduction(op)
    if not is_float(result_type(op).element_type):
        fail(op, "defined on floating-point elements only; insert a cast")


def argument(op: Operation) -> None:
    """Reduces one axis, or all axes (counted in row-major order), to the i64 position of the extreme element."""
    _expect_reduction(op)
    _expect_element(op, INT64)
    if len(_integers(op, "axes")) not in (1, len(operand_types(op)[0].get_shape())):
        fail(op, "reduces one axis or all axes")


def softmax(op: Operation) -> None:
    """Normalizes along `axis`; shape and floating-point element type stay."""
    floating(op)
    axis = cast(int, to_value(op.attributes["axis"]))
    _expect_axes(op, [axis], len(result_type(op).get_shape()))


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
    _expect_shape(op, data.get_shape())
    _expect_element(op, data.element_type)


def reshape(op: Operation) -> None:
    """Same elements in row-major order; the number of elements stays."""
    before, after = operand_types(op)[0], result_type(op)
    _expect_element(op, before.element_type)
    if before.has_static_shape() and after.has_static_shape() and before.element_count() != after.element_count():
        fail(op, f"{before.element_count()} elements do not fill {after.element_count()}")


def transpose(op: Operation) -> None:
    """Result dimension `d` is operand dimension `permutation[d]`."""
    before = operand_types(op)[0]
    permutation = _integers(op, "permutation")
    if sorted(permutation) != list(range(before.get_num_dims())):
        fail(op, f"{list(permutation)} is no permutation of the {before.get_num_dims()} dimensions")
    _expect_shape(op, tuple(before.get_shape()[dim] for dim in permutation))
    _expect_element(op, before.element_type)


def broadcast_to(op: Operation) -> None:
    """Repeats size-1 dimensions, and puts new ones in front."""
    before, after = operand_types(op)[0], result_type(op)
    _expect_element(op, before.element_type)
    joined = broadcast_shapes([before.get_shape(), after.get_shape()])
    if joined is None or not _same_shape(joined, after.get_shape()):
        fail(op, "the operand does not broadcast to the result")


def concat(op: Operation) -> None:
    """Joins operands along `axis`; every other extent agrees."""
    shapes = [tensor.get_shape() for tensor in operand_types(op)]
    axis = cast(int, to_value(op.attributes["axis"]))
    _expect_axes(op, [axis], len(shapes[0]))
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
    _expect_extents(op, tuple(expected))
    _expect_element(op, _expect_one_element(op))


def slice_(op: Operation) -> None:
    """Elements `starts[d] + i * steps[d]` along each dimension; the result's extents say how many.

    Without `starts` and `steps` both are run-time values that the plan knows.
    """
    before = operand_types(op)[0]
    after = result_type(op).get_shape()
    rank = before.get_num_dims()
    _expect_element(op, before.element_type)
    starts = _integers(op, "starts") if "starts" in op.attributes else None
    steps = _integers(op, "steps") if "steps" in op.attributes else None
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
    _expect_extents(op, (*before.get_shape(), 2))


def view_as_complex(op: Operation) -> None:
    """Pairs along the last dimension as complex elements: the inverse of `view_as_real`."""
    before, after = operand_types(op)[0], result_type(op)
    element = after.element_type
    if not isinstance(element, ComplexType) or element.element_type != before.element_type:
        fail(op, "the element type of the parts differs from the operand's")
    *lead, last = before.get_shape() or (1,)
    if not compatible(last, 2):
        fail(op, "the last dimension holds two parts")
    _expect_extents(op, tuple(lead))


def pad(op: Operation) -> None:
    """Elements around those of the first operand: copies of them, or the second operand, a number ("constant")."""
    mode, (data, *value) = to_value(op.attributes["mode"]), operand_types(op)
    if mode not in ("constant", "reflect", "replicate", "circular"):
        fail(op, f"no mode is called {mode}")
    if len(value) != (mode == "constant") or any(each.get_shape() for each in value):
        fail(op, "mode constant takes one number, the others none")
    if data.get_num_dims() != result_type(op).get_num_dims():
        fail(op, "ranks differ")
    _expect_element(op, _expect_one_element(op))


def library(op: Operation) -> None:
    """A call of a library, which the record of the operator `callee` describes; its extents are the plan's to know."""


def iota(op: Operation) -> None:
    """The row-major numbers of the result's elements, in i64."""
    _expect_element(op, INT64)


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
