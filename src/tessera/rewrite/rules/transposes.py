"""Transposes of images go below what follows a convolution: a network written with channels first runs with channels
last, and what follows a convolution stays in its kernel.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.ir.attributes import Value
from tessera.ir.graph.operations import GraphOperation
from tessera.ops.record import family_of
from tessera.rewrite.engine import Measure, NamedRule, Rewriter, dims_of
from tessera.rewrite.rules.algebra import FORMS_READ, dtype, made_by, place_in_form

TO_FIRST = (0, 3, 1, 2)
"""[N, H, W, C] as [N, C, H, W]."""
LOOKED_AT = 32
"""Operations above a transpose among which a convolution is looked for."""


#   add(transpose(x, p), y)  ->  transpose(add(x, transpose(y, p^-1)), p)      (x a convolution, or maps of one; y not:
#                                                                               of two orders one is turned, once)
def sink_transpose(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    lead = _leading_transpose(operation)
    if lead is None or not lacks_image(operation):
        return None
    permutation, place = lead.integers("permutation"), place_in_form(lead)
    turned = [_turned(operand, permutation) for operand in operation.inputs]
    operands: list[SSAValue] = []
    for operand, back in zip(operation.inputs, turned, strict=True):
        source = made_by(operand, "transpose")
        if source is not None and source.integers("permutation") == permutation:
            operands.append(source.inputs[0])
        elif back is None:
            return None
        elif back == tuple(range(len(back))):
            operands.append(operand)
        else:
            dims = dims_of(operand)
            attributes: dict[str, Value] = {"permutation": back, **place}
            operands.append(
                rewriter.make("transpose", [operand], tuple(dims[d] for d in back), dtype(operand), attributes)
            )
    outer = dims_of(operation.result)
    inner = dict(zip(permutation, outer, strict=True))
    dims = tuple(inner[d] for d in range(len(outer)))
    kept = {name: value for name, value in operation.attributes.items() if name != "dims"}
    made = rewriter.make(operation.operator, operands, dims, dtype(operation.result), kept)
    return rewriter.create("transpose", [made], {"permutation": permutation, **place})


#   max_pool2d(transpose(x, p)) {NCHW}  ->  transpose(max_pool2d(x) {NHWC}, p)      (x an image with channels last)
def sink_through_window(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    source = made_by(operation.inputs[0], "transpose")
    if source is None or not _is_channels_first(operation) or source.integers("permutation") != TO_FIRST:
        return None
    if not _is_image(source.inputs[0]):
        return None
    count, channels, rows, columns = dims_of(operation.result)
    kept = {name: value for name, value in operation.attributes.items() if name != "dims"}
    operands = [source.inputs[0], *operation.inputs[1:]]
    dims = (count, rows, columns, channels)
    made = rewriter.make(operation.operator, operands, dims, dtype(operation.result), {**kept, "layout": "NHWC"})
    return rewriter.create("transpose", [made], {"permutation": TO_FIRST, **place_in_form(source)})


#   mean(transpose(x, p), axes)  ->  mean(x, p[axes])      (x an image; what is left has the same order, what is
#                                                            reduced lies side by side)
def sink_into_reduction(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    source = made_by(operation.inputs[0], "transpose")
    if source is None or operation.operator == "argmax" or operation.attribute("keepdims", False):
        return None
    permutation, axes = source.integers("permutation"), operation.integers("axes")
    left = [place for dimension, place in enumerate(permutation) if dimension not in axes]
    moved = tuple(sorted(permutation[axis] for axis in axes))
    if left != sorted(left) or moved[-1] - moved[0] >= len(moved) or not _is_image(source.inputs[0]):
        return None
    kept = {name: value for name, value in operation.attributes.items() if name != "dims"}
    return rewriter.create(operation.operator, [source.inputs[0]], {**kept, "axes": moved})


#   concat(transpose(x, p), transpose(y, p), axis)  ->  transpose(concat(x, y, p[axis]), p)      (x or y an image)
def sink_through_concat(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    sources = [made_by(operand, "transpose") for operand in operation.inputs]
    permutations = {None if source is None else source.integers("permutation") for source in sources}
    if len(permutations) != 1 or None in permutations or not joins_no_image(operation):
        return None
    lead, operands = sources[0], [source.inputs[0] for source in sources if source is not None]
    if lead is None or not any(map(_is_image, operands)):
        return None
    permutation, axis = lead.integers("permutation"), operation.attribute("axis")
    assert isinstance(axis, int)
    inner = dict(zip(permutation, dims_of(operation.result), strict=True))
    dims = tuple(inner[d] for d in range(len(inner)))
    kept = {name: value for name, value in operation.attributes.items() if name != "dims"}
    attributes: dict[str, Value] = {**kept, "axis": permutation[axis]}
    made = rewriter.make(operation.operator, operands, dims, dtype(operation.result), attributes)
    return rewriter.create("transpose", [made], {"permutation": permutation, **place_in_form(lead)})


def joins_no_image(operation: GraphOperation) -> bool:
    """Whether an operation joins values of which none is an image as it lies: as `lacks_image`, of concatenations."""
    return operation.operator == "concat" and not any(map(_is_image, operation.inputs))


def _leading_transpose(operation: GraphOperation) -> GraphOperation | None:
    """The transpose of an image among the operands, that has all the extents of the result."""
    for operand in operation.inputs:
        source = made_by(operand, "transpose")
        if source is not None and dims_of(operand) == dims_of(operation.result) and _is_image(source.inputs[0]):
            return source
    return None


def lacks_image(operation: GraphOperation) -> bool:
    """Whether an operation is a map that reads no image as it lies. A transpose that sinks makes one less of them: the
    map then reads the image, and those that read the map read a transpose, which is no more an image than the map was.
    """
    return family_of(operation.operator).is_map and not any(map(_is_image, operation.inputs))


def _is_channels_first(operation: GraphOperation) -> bool:
    return family_of(operation.operator).has_images and operation.attribute("layout") == "NCHW"


def _is_image(value: SSAValue) -> bool:
    """Whether a convolution made a value, or a reduction over windows, or maps of one did, or it is joined of such."""
    waiting, seen = [value], 0
    while waiting and seen < LOOKED_AT:
        owner, seen = waiting.pop().owner, seen + 1
        if not isinstance(owner, GraphOperation):
            continue
        family = family_of(owner.operator)
        if family.has_images:
            return True
        if family.is_map or owner.operator == "concat":
            waiting += owner.inputs
    return False


def _turned(operand: SSAValue, permutation: tuple[int, ...]) -> tuple[int, ...] | None:
    """The permutation that undoes `permutation` on an operand that is aligned at the right; None where it moves
    dimensions that the operand has not.
    """
    own, rank = len(dims_of(operand)), len(permutation)
    missing = rank - own
    back = tuple(permutation.index(d) for d in range(rank))
    if own == 0:
        return ()
    if back[:missing] != tuple(range(missing)):
        return None
    return tuple(d - missing for d in back[missing:])


LACKING_IMAGE = Measure("maps that read no image as it lies", lacks_image)
JOINING_NO_IMAGE = Measure("concatenations of no image as it lies", joins_no_image)
CHANNELS_FIRST = Measure("windows with channels first", _is_channels_first)

RULES = (
    NamedRule("sink-transpose", (), sink_transpose, LACKING_IMAGE, family="elementwise"),
    NamedRule("sink-transpose-through-concat", ("concat",), sink_through_concat, JOINING_NO_IMAGE),
    NamedRule("sink-transpose-into-reduction", (), sink_into_reduction, FORMS_READ, family="reduction"),
    NamedRule("sink-transpose-through-window", (), sink_through_window, CHANNELS_FIRST, family="window"),
)
