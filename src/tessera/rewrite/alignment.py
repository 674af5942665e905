"""How the values of a kernel lie over the dimensions that it iterates over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import TensorType
from xdsl.ir import BlockArgument, SSAValue

from tessera.errors import CompileError
from tessera.ir import schedule as schedule_ir
from tessera.ir.attributes import names_of
from tessera.ir.graph import GraphOperation
from tessera.ops.record import family_of
from tessera.ops.window.records import image_dimensions
from tessera.rewrite.engine import dims_of

Alignment = tuple[int | None, ...]
"""For each dimension of a value the domain dimension that it walks; None where it is 1 and the domain's is not."""


def reduced_range(operation: GraphOperation) -> tuple[int, int] | None:
    """The range `[first, last)` of dimensions that an operation reduces; None when it reduces none."""
    rank = len(dims_of(operation.inputs[0]))
    family = family_of(operation.operator)
    if family == "reduction":
        axes = sorted(operation.integers("axes"))
        if axes[-1] - axes[0] >= len(axes):
            raise CompileError(
                f"{operation.operator} reduces the dimensions {tuple(axes)}, which are no neighbours",
                hints=["reduce one range of dimensions after the other", "or transpose, so that they are neighbours"],
            )
        return axes[0], axes[-1] + 1
    if family == "row":  # along the attribute `axis`, or the last dimension
        axis = operation.attribute("axis", -1)
        assert isinstance(axis, int)
        return axis % rank, axis % rank + 1
    return None


def operand_alignment(operation: GraphOperation, index: int, result: Alignment, rank: int) -> Alignment:
    """How a map, a reduction or a row operator over a domain of `rank` dimensions reads an operand."""
    kind = operation.inputs[index].type
    assert isinstance(kind, TensorType)
    own = kind.get_num_dims()
    family = family_of(operation.operator)
    if family == "reduction":
        return tuple(range(rank))
    return result[len(result) - own :]


def reduced_mapping(operation: GraphOperation, rank: int, reduced: tuple[int, int]) -> Alignment:
    """How the result of a reduction or of a row operator lies over a domain of `rank` dimensions."""
    if family_of(operation.operator) == "row":
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


def align_region(operation: schedule_ir.KernelOp) -> Alignments:
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
    rank = len(domain)
    operand = op.inputs[index].type
    assert isinstance(operand, TensorType)
    shape = operand.get_shape()
    family = family_of(op.operator)
    if family == "contraction" and index < 2:
        batch = tuple(range(rank - len(shape), rank - 2)) if len(shape) > 2 else ()
        inner = (rank - 2, rank) if index == 0 else (rank, rank - 1)
        flip = op.attribute("transpose_a" if index == 0 else "transpose_b", False)
        full: Alignment = (*batch, *(inner[::-1] if flip else inner))
    elif family == "convolution":
        full = (0, rank, rank + 1, rank + 2) if index == 0 else (rank - 1, rank + 5, rank + 3, rank + 4)
    elif family == "window":
        channel, *sides = image_dimensions(str(op.attribute("layout")))
        placed = {0: 0, channel: rank + 4, sides[0]: rank, sides[1]: rank + 1}
        full = (channel, rank + 2, rank + 3) if index else tuple([placed[dimension] for dimension in range(rank)])
    elif family == "attention":
        full = _attention_alignment(index, len(shape), rank)
        keys = op.inputs[1].type
        assert isinstance(keys, TensorType)
        if index == 4 and shape[-1:] == (1,) != keys.get_shape()[-2:-1]:  # one column of a mask for all keys
            full = (*full[:-1], None)
    else:
        full = operand_alignment(op, index, result, rank)
        if family == "elementwise":
            full = _unrepeated(op, shape, full)
    return tuple(
        None if extent == 1 and axis is not None and _broadcasts(axis, domain) else axis
        for axis, extent in zip(full, shape, strict=True)
    )


def _unrepeated(op: GraphOperation, shape: Sequence[int], alignment: Alignment) -> Alignment:
    """The alignment of a map's operand without the dimensions along which the map repeats it: a prologue walks a
    product's k, of which the domain does not tell whether it is 1.
    """
    made = op.result.type
    assert isinstance(made, TensorType)
    wide = made.get_shape()[made.get_num_dims() - len(shape) :]
    return tuple(
        None if extent == 1 != result else axis for axis, extent, result in zip(alignment, shape, wide, strict=True)
    )


def _attention_alignment(index: int, own: int, rank: int) -> Alignment:
    """How an operand of attention, of `own` dimensions, lies over the domain; the result has `rank` dimensions."""
    queries, value, keys, size, shared = rank - 2, rank - 1, rank, rank + 1, rank + 2
    heads = (rank - 3,)
    inner: Alignment = (
        (*heads, queries, size),
        (shared, keys, size),
        (shared, keys, value),
        (),
        (*heads, queries, keys),
    )[index]
    lead = tuple(range(rank - own, rank - 3))
    return (*lead, *inner)[-own:] if own else ()


def _broadcasts(axis: int, domain: tuple[str, ...]) -> bool:
    """Whether an extent of 1 is repeated along a domain dimension (past the end there are those of operands alone)."""
    return axis < len(domain) and domain[axis] != "1"
