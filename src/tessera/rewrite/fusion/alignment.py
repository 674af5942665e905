"""How the values of a kernel lie over the dimensions that it iterates over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from xdsl.dialects.builtin import TensorType
from xdsl.ir import BlockArgument, SSAValue

from tessera.errors import CompileError
from tessera.ir.anchors.anchor import Anchor
from tessera.ir.attributes import names_of
from tessera.ir.graph.operations import GraphOperation
from tessera.ir.schedule import operations as schedule_ir
from tessera.ops.families import FAMILIES
from tessera.ops.record import family_of
from tessera.rewrite.engine import dims_of

Alignment = tuple[int | None, ...]
"""For each dimension of a value the domain dimension that it walks; None where it is 1 and the domain's is not."""


def reduced_range(operation: GraphOperation) -> tuple[int, int] | None:
    """The range `[first, last)` of dimensions that an operation reduces; None when it reduces none."""
    rank = len(dims_of(operation.inputs[0]))
    reduces = family_of(operation.operator).reduces
    if reduces == "axes":
        axes = sorted(operation.integers("axes"))
        if axes[-1] - axes[0] >= len(axes):
            raise CompileError(
                f"{operation.operator} reduces the dimensions {tuple(axes)}, which are no neighbours",
                hints=["reduce one range of dimensions after the other", "or transpose, so that they are neighbours"],
            )
        return axes[0], axes[-1] + 1
    if reduces == "axis":  # along the attribute `axis`, or the last dimension
        axis = operation.attribute("axis", -1)
        assert isinstance(axis, int)
        return axis % rank, axis % rank + 1
    return None


@cache
def beyond(family: str, rank: int) -> Mapping[tuple[int, str], int]:
    """The dimension of a kernel's domain for each axis that operands alone have, behind the `rank` dimensions of the
    result.
    """
    return {each: rank + place for place, each in enumerate(FAMILIES[family].beyond)}


def dimension_of(anchor: Anchor, operand: int, axis: str) -> int | None:
    """The dimension of an operand that holds an axis; None where it has none, or is not there."""
    indices = anchor.operands[operand] if operand < len(anchor.operands) else ()
    return next((dimension for dimension, index in enumerate(indices) if axis in index.axes), None)


def operand_alignment(operation: GraphOperation, index: int, result: Alignment, rank: int) -> Alignment:
    """How an operation reads an operand, over a domain of `rank` dimensions and those `beyond` that its
    family has: as its anchor says. `result` is how its result lies there.
    """
    anchor = operation.anchor()
    assert anchor is not None, f"a kernel has no {operation.operator}"
    beyond = family_of(operation.operator).beyond
    own = {dimension_of(anchor, index, axis): rank + place for place, (at, axis) in enumerate(beyond) if at == index}
    placed = {each.axes: place for each, place in zip(anchor.result, result, strict=True)}
    elsewhere = _places(anchor, operation, rank)

    def walked(dimension: int, axes: tuple[str, ...]) -> int | None:
        if dimension in own:
            return own[dimension]
        # What is nowhere else is what a reduction takes away, of an operand that lies over the domain as it is.
        return placed[axes] if axes in placed else elsewhere.get(axes, dimension)

    return tuple([walked(dimension, each.axes) for dimension, each in enumerate(anchor.operands[index])])


def _places(anchor: Anchor, operation: GraphOperation, rank: int) -> dict[tuple[str, ...], int | None]:
    """Where axes lie in a domain of `rank` dimensions that is not the result's: those of the first operand at its end,
    the last one of what is summed up there, and what is `beyond`.
    """
    family = family_of(operation.operator)
    places: dict[tuple[str, ...], int | None] = {(axis,): rank + place for place, (_, axis) in enumerate(family.beyond)}
    if not family.group.joins:
        return places
    first, summed = anchor.operands[0], anchor.operands[2]
    kept = {index.axes: rank - len(first) + dimension for dimension, index in enumerate(first)}
    return {**kept, summed[-1].axes: rank - 1, **places, (): None}


def joined_mapping(operation: GraphOperation, rank: int) -> Alignment:
    """How the result of an operation, beside which a kernel has others over the same operands, lies over its domain of
    `rank` dimensions.
    """
    anchor = operation.anchor()
    assert anchor is not None, f"a kernel has no {operation.operator}"
    places = _places(anchor, operation, rank)
    return tuple([places.get(each.axes, place) for place, each in enumerate(anchor.result)])


def reduced_mapping(operation: GraphOperation, rank: int, reduced: tuple[int, int]) -> Alignment:
    """How the result of a reduction or of a row operator lies over a domain of `rank` dimensions."""
    if family_of(operation.operator).reduces == "axis":
        return tuple(range(rank))
    first, last = reduced
    if operation.attribute("keepdims", False):
        return tuple(None if first <= axis < last else axis for axis in range(rank))
    return tuple(axis for axis in range(rank) if not first <= axis < last)


@dataclass(frozen=True)
class Alignments:
    """How the values of a kernel's region lie over its domain.

    A result lies one way, an argument in as many ways as it is used, an operand as its operation uses it.
    """

    results: dict[SSAValue, Alignment]
    uses: dict[SSAValue, tuple[Alignment, ...]]
    operands: dict[tuple[GraphOperation, int], Alignment]


def align_region(operation: schedule_ir.ScheduleKernelOp) -> Alignments:
    """Alignments of all values of a kernel's region, from the `mapping` attributes that fusion left on it."""
    results: dict[SSAValue, Alignment] = {}
    uses: dict[SSAValue, list[Alignment]] = {}
    operands: dict[tuple[GraphOperation, int], Alignment] = {}
    domain = names_of(operation.attributes["domain"])
    for op in reversed(list(operation.body.block.ops)):
        if not isinstance(op, GraphOperation):
            continue
        if "mapping" in op.attributes:
            results[op.result] = tuple([None if axis < 0 else axis for axis in op.integers("mapping")])
        for index, operand in enumerate(op.inputs):
            alignment = _operand_alignment(op, index, results[op.result], domain)
            operands[op, index] = alignment
            if isinstance(operand, BlockArgument):
                known = uses.setdefault(operand, [])
                if alignment not in known:
                    known.append(alignment)
            elif operand not in results:
                # A prologue: it has no place in the result's domain, its consumer decides.
                results[operand] = alignment
    return Alignments(results, {value: tuple(found) for value, found in uses.items()}, operands)


def _operand_alignment(op: GraphOperation, index: int, result: Alignment, domain: tuple[str, ...]) -> Alignment:
    operand = op.inputs[index].type
    assert isinstance(operand, TensorType)
    alignment = operand_alignment(op, index, result, len(domain))
    repeated = _repeated(op, index)
    return tuple(
        None if extent == 1 and axis is not None and (again or _broadcasts(axis, domain)) else axis
        for axis, extent, again in zip(alignment, operand.get_shape(), repeated, strict=True)
    )


def _repeated(op: GraphOperation, index: int) -> tuple[bool, ...]:
    """For each dimension of an operand whether the operation repeats it, if it is 1: others have more along its axes. A
    prologue walks a product's k, of which the domain does not tell whether it is 1.
    """
    anchor = op.anchor()
    assert anchor is not None
    wide = set()
    for indices, value in zip((*anchor.operands, anchor.result), (*op.inputs, op.result), strict=True):
        kind = value.type
        assert isinstance(kind, TensorType)
        wide |= {each.axes for each, extent in zip(indices, kind.get_shape(), strict=True) if extent != 1}
    return tuple([each.fit != "exact" and each.axes in wide for each in anchor.operands[index]])


def _broadcasts(axis: int, domain: tuple[str, ...]) -> bool:
    """Whether an extent of 1 is repeated along a domain dimension (past the end there are those of operands alone)."""
    return axis < len(domain) and domain[axis] != "1"
