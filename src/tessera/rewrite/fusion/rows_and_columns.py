"""Reductions of rows, and of columns of the same matrix, in one walk over its rows.

%0 = mul(%g, %n)             column kernel: reads g, n
%1 = sum(%0) {axes = [0]}                                 ->    one kernel: reads g and n once
%2 = sum(%g) {axes = [1]}    row kernel: reads g
%3 = sub(%g, %2)

So are the gradients of a norm: that of its input reduces rows, those of weight and bias reduce columns. What is made of
sums of columns comes after the walk, in the same kernel as long as it is not of the rows again. How it runs:
`scheduling/families/rows_and_columns`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.graph.operations import GraphOperation
from tessera.ops.families import REDUCTION
from tessera.rewrite.fusion.alignment import reduced_range
from tessera.rewrite.fusion.groups import Group, Grouping, reads_in_place


def merge_rows_and_columns(grouping: Grouping) -> None:
    """Merges each group that reduces rows with those that reduce the columns of something that both read. Together they
    may have a quarter of the room, as other siblings: longer kernels are not bound by what they read.
    """
    for rows in [group for group in grouping.groups if _reduces_rows(group)]:
        for columns in list(grouping.groups):
            if rows in grouping.groups and _fit(grouping, rows, columns):
                reduced = rows.reduced
                grouping.merge(rows, columns)
                rows.reduced, rows.has_columns = reduced, True


def _reduces_rows(group: Group) -> bool:
    return (
        group.kind is REDUCTION
        and group.reduced is not None
        and group.reduced[0] > 0
        and group.reduced[1] == len(group.domain)
    )


def _fit(grouping: Grouping, rows: Group, columns: Group) -> bool:
    """Whether `columns` reduces what is not reduced by `rows`, over one domain, and both can be one kernel."""
    assert rows.reduced is not None
    return (
        columns.kind is REDUCTION
        and columns.domain == rows.domain
        and columns.reduced == (0, rows.reduced[0])
        and not rows.after(columns)
        and len(rows.operations) + len(columns.operations) <= grouping.limit
        and rows.instructions + columns.instructions <= rows.room(grouping.depth) / 4
        and _walks_once(columns)
        and _meet(grouping, rows, columns)
        and not any(other.after(rows) and columns.after(other) for other in grouping.groups)
    )


def _walks_once(columns: Group) -> bool:
    """Whether rows can be combined with what those before left, and nothing that comes of it is of the rows again."""
    assert columns.reduced is not None
    made = set()
    for operation in columns.operations:
        is_after, reduces = any(operand in made for operand in operation.inputs), reduced_range(operation) is not None
        if reduces and (is_after or not _combines(operation)):
            return False
        if is_after or reduces:
            made.add(operation.result)
            if any(axis is not None and axis < columns.reduced[1] for axis in columns.mapping[operation.result]):
                return False
    return bool(made)


def _combines(reduction: GraphOperation) -> bool:
    """Whether elements are combined, in any order; bodies of others may reduce what they made of a reduction."""
    anchor = reduction.anchor()
    return anchor is not None and "row" not in anchor.reduced.values()


def _meet(grouping: Grouping, rows: Group, columns: Group) -> bool:
    """Whether both read one tensor along all of the domain, or one reads what the other makes there."""
    if columns.after(rows):
        return all(
            reads_in_place(operation, columns.mapping[operation.result], rows) for operation in columns.operations
        )
    own: Sequence[object] = grouping.whole_operands(rows)
    return any(operand in own for operand in grouping.whole_operands(columns))
