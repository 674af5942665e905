"""Reductions over dimensions that are no neighbours, taken apart.

    sum(x, axes = 0, 2)   ->   sum(sum(x, axes = 2), axes = 0)

A kernel reduces one contiguous range of dimensions. Sums, products, extrema, log-sum-exps and means of equal parts all
compose.
"""

from __future__ import annotations

from itertools import pairwise

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, SSAValue

from tessera.dtypes import accumulator
from tessera.ir.attributes import ELEMENT_TYPES, dimension_names, tensor_type
from tessera.ir.graph.operations import GraphOperation
from tessera.ops.record import family_of
from tessera.rewrite.engine import Measure, NamedRule, Rewriter, dims_of
from tessera.rewrite.rules.algebra import dtype


def split_reduction(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    """Reduces the last run of neighbouring dimensions first, keeping them as 1, then the rest."""
    (source,) = operation.inputs
    ordered = _ordered_axes(operation)
    last_run = [ordered[-1]]
    while len(ordered) > len(last_run) and ordered[-len(last_run) - 1] == last_run[0] - 1:
        last_run.insert(0, last_run[0] - 1)
    if len(last_run) == len(ordered):
        return None
    rest = tuple(ordered[: -len(last_run)])
    keep = bool(operation.attribute("keepdims", False))
    wide = _in_accumulator(source, rewriter)
    partial = _reduced(operation.operator, wide, last_run, keep, rewriter)
    total = rewriter.create(operation.operator, [partial], {"axes": rest, "keepdims": keep})
    if wide is source:
        return total
    set_type(rewriter.made[-1], dims_of(operation.result), partial)
    return rewriter.create("cast", [total], {"dtype": dtype(operation.result).name})


def _ordered_axes(operation: GraphOperation) -> list[int]:
    rank = len(dims_of(operation.inputs[0]))
    return sorted(axis % rank for axis in operation.integers("axes"))


def _in_accumulator(source: SSAValue, rewriter: Rewriter) -> SSAValue:
    """Partial results of narrow floats stay in the accumulator's dtype."""
    wide = accumulator(dtype(source))
    if wide is dtype(source) or dtype(source).kind != "float":
        return source
    value = rewriter.create("cast", [source], {"dtype": wide.name}, like=source)
    rewriter.made[-1].results[0]._type = tensor_type(shape_of(source), ELEMENT_TYPES[wide.name])
    return value


def _reduced(operator: str, source: SSAValue, axes: list[int], keep: bool, rewriter: Rewriter) -> SSAValue:
    names, shape = list(dims_of(source)), list(shape_of(source))
    for axis in reversed(axes):
        if keep:
            names[axis], shape[axis] = "1", 1
        else:
            del names[axis], shape[axis]
    value = rewriter.create(operator, [source], {"axes": tuple(axes), "keepdims": keep}, like=source)
    made = rewriter.made[-1]
    made.attributes["dims"] = dimension_names(tuple(names))
    made.results[0]._type = tensor_type(tuple(shape), _partial_element(operator, source))
    return value


def _partial_element(operator: str, source: SSAValue) -> Attribute:
    """The element type of a partial result: integers and booleans add up and multiply in i64."""
    is_float = dtype(source).kind == "float"
    return element_of(source) if is_float or operator not in ("sum", "prod") else ELEMENT_TYPES["int64"]


def shape_of(value: SSAValue) -> tuple[int | None, ...]:
    """The static extents of a value, None where an extent is dynamic."""
    assert isinstance(value.type, TensorType)
    return tuple(None if extent < 0 else extent for extent in value.type.get_shape())


def element_of(value: SSAValue) -> Attribute:
    """The element type of a value."""
    return ELEMENT_TYPES[dtype(value).name]


def set_type(operation: GraphOperation, names: tuple[str, ...], like: SSAValue) -> None:
    """Gives an operation under construction the extents `names` and the element type of `like`."""
    shape = tuple(1 if name == "1" else None for name in names)
    operation.attributes["dims"] = dimension_names(names)
    operation.results[0]._type = tensor_type(shape, element_of(like))


def drop_empty_reduction(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    """A reduction over no dimensions: sum(x, axes = ) -> x, argmax(x, axes = ) -> 0."""
    if operation.attribute("axes") != ():
        return None
    if operation.operator == "argmax":
        return rewriter.create("constant", [], {"value": 0})
    (source,) = operation.inputs
    if source.type == operation.result.type:
        return source
    return rewriter.create("cast", [source], {"dtype": dtype(operation.result).name})


def _is_empty(operation: GraphOperation) -> bool:
    return family_of(operation.operator).reduces == "axes" and operation.attribute("axes") == ()


def _gaps(operation: GraphOperation) -> int:
    if family_of(operation.operator).reduces != "axes":
        return 0
    ordered = _ordered_axes(operation)
    return sum(after - before > 1 for before, after in pairwise(ordered))


EMPTY = Measure("reductions over no dimensions", _is_empty)
GAPS = Measure("gaps between the dimensions that are reduced", _gaps)
_SPLIT = ("sum", "mean", "max", "min", "prod", "logsumexp")

RULES = (
    NamedRule("drop-empty-reduction", (*_SPLIT, "argmax"), drop_empty_reduction, EMPTY),
    NamedRule("split-reduction", _SPLIT, split_reduction, GAPS),
)
