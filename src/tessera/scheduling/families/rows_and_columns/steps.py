"""The two kernels of a reduction of rows and columns: one walk over the rows, in parts, and what joins the parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tessera.lazy.structures.structure import contiguous_strides
from tessera.rewrite.fusion.kernels import Bounds
from tessera.scheduling.families.decomposition import (
    Array,
    DecomposableCall,
    Decomposition,
    Fused,
    KernelStep,
    Steps,
    Workspace,
)
from tessera.scheduling.families.rows.joining import joining_spec, nearest_reductions
from tessera.scheduling.lowering.spec import Argument, MapReduceSpec, Output, RowsAndColumnsSpec
from tessera.scheduling.model.shares import second_bytes

APART: Final = Bounds(crossed=False)
PART: Final = "part"
"""The axis of partial results."""
ENOUGH_PARTS: Final = 64
ROWS_OF_PART: Final = 32
"""The least rows of a part: its partial results are then a small share of what it reads."""
MOST_ROWS_OF_PART: Final = 256
"""The most, as they are added one after another: what that rounds off grows with their number."""
SMALL: Final = 1 << 16
"""Elements that one worker may as well walk alone."""


def rows_spec(spec: RowsAndColumnsSpec) -> MapReduceSpec:
    """A kernel of rows alone, that gives for partial results of columns what each row has of them."""
    outputs = tuple(
        Output(each.argument, each.value.arguments[0]) if spec.part in spec.arguments[each.argument].axes else each
        for each in spec.outputs
    )
    return MapReduceSpec(spec.name, spec.arguments, (spec.rows,), spec.lanes, spec.lanes, outputs)


@dataclass(frozen=True)
class WalkAndJoin:
    """`first` takes the inputs of the whole, then its results of rows (whose numbers are `rows`) and partial results.
    `second` takes those, the inputs whose numbers are `inputs`, and then the results of columns (`columns`).
    """

    first: RowsAndColumnsSpec
    second: MapReduceSpec
    rows: tuple[int, ...]
    inputs: tuple[int, ...]
    columns: tuple[int, ...]


def walk_and_join(spec: RowsAndColumnsSpec) -> WalkAndJoin:
    """The kernels that compute what `spec` does."""
    count = min(output.argument for output in spec.outputs)
    rows = tuple(output for output in spec.outputs if spec.rows in spec.arguments[output.argument].axes)
    columns = tuple(output for output in spec.outputs if output not in rows)
    whole = MapReduceSpec(spec.name, spec.arguments, (), spec.rows, spec.lanes, columns)
    reductions = nearest_reductions(whole)
    partial = [Argument(value.dtype, (PART, spec.lanes), (None, 1)) for value in reductions]
    outputs = (
        *(Output(count + place, output.value) for place, output in enumerate(rows)),
        *(Output(count + len(rows) + place, value) for place, value in enumerate(reductions)),
    )
    results = [spec.arguments[output.argument] for output in rows]
    arguments = (*spec.arguments[:count], *results, *partial)
    first = replace(spec, name=f"{spec.name}_parts", arguments=arguments, outputs=outputs, part=PART)
    second, inputs = joining_spec(whole, PART, reductions, partial, count)
    return WalkAndJoin(
        first, second, tuple(each.argument for each in rows), inputs, tuple(each.argument for each in columns)
    )


def _steps(case: DecomposableCall) -> Steps:
    spec: RowsAndColumnsSpec = case.spec
    made = case.once(walk_and_join)
    count = min(output.argument for output in spec.outputs)
    extents = {**case.extents, PART: _parts(case.extents[spec.rows])}
    arguments = [
        Array(index, words[: len(words) // 2], words[len(words) // 2 :])
        for index, (_, words) in enumerate(case.arguments)
    ]
    shape = extents[PART], extents[spec.lanes]
    kinds = made.first.arguments[count + len(made.rows) :]
    workspaces = {f"parts{number}": Workspace(kind.dtype, shape) for number, kind in enumerate(kinds)}
    partial = [Array(name, shape, contiguous_strides(shape)) for name in workspaces]
    joined = (*partial, *(arguments[index] for index in (*made.inputs, *made.columns)))
    walked = (*arguments[:count], *(arguments[index] for index in made.rows), *partial)
    return Steps((KernelStep(made.first, walked, extents), KernelStep(made.second, joined, extents)), workspaces)


def _parts(rows: int) -> int:
    few = min(max(rows // ROWS_OF_PART, 1), ENOUGH_PARTS)
    return max(few, -(-rows // MOST_ROWS_OF_PART))


def _apart(case: DecomposableCall) -> Steps:
    return Steps((Fused(APART, case.asked),))


def _pays_not(case: DecomposableCall) -> bool:
    rows, lanes = case.extents[case.spec.rows], case.extents[case.spec.lanes]
    if rows < 2 * ROWS_OF_PART and rows * lanes > SMALL:
        return True
    partial = sum(kind.dtype.itemsize for kind in case.once(walk_and_join).first.arguments if PART in kind.axes)
    return lanes * partial > second_bytes(case.target) // 2


NOT_ROWS = Decomposition(
    name="rows-apart-from-columns",
    why="rows do not lie one after another, or a GPU computes: one kernel reduces rows and another one columns",
    when="layout",
    applies=lambda case: True,
    steps=_apart,
)
FEW_ROWS = Decomposition(
    name="few-rows-apart",
    why="rows are too few to be shared, or too long for sums of columns to stay in the second cache, or somebody asks "
    "for a schedule, which is of rows or of columns: one kernel reduces rows and another one columns",
    when="call",
    applies=lambda case: case.is_given or bool(case.pins) or _pays_not(case),
    steps=_apart,
)
IN_PARTS = Decomposition(
    name="parts-of-columns",
    why="each worker reduces the columns of its rows, so that rows are read once",
    when="call",
    applies=lambda case: True,
    steps=_steps,
)
