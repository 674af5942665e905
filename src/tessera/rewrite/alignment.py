"""How the values of a kernel lie over the dimensions that it iterates over."""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType

from tessera.errors import CompileError
from tessera.ir.graph import GraphOperation
from tessera.ops.record import family_of
from tessera.rewrite.engine import dims_of

Mapping_ = tuple[int | None, ...]
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


def operand_alignment(operation: GraphOperation, index: int, result: Mapping_, rank: int) -> Mapping_:
    """How a map, a reduction or a row operator over a domain of `rank` dimensions reads an operand."""
    kind = operation.inputs[index].type
    assert isinstance(kind, TensorType)
    own = kind.get_num_dims()
    family = family_of(operation.operator)
    if family == "reduction":
        return tuple(range(rank))
    return result[len(result) - own :]


def reduced_mapping(operation: GraphOperation, rank: int, reduced: tuple[int, int]) -> Mapping_:
    """How the result of a reduction or of a row operator lies over a domain of `rank` dimensions."""
    if family_of(operation.operator) == "row":
        return tuple(range(rank))
    first, last = reduced
    if operation.attribute("keepdims", False):
        return tuple(None if first <= axis < last else axis for axis in range(rank))
    return tuple(axis for axis in range(rank) if not first <= axis < last)
