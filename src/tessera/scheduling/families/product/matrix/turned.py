"""Weights [N, K] on a matrix unit, where they lie: the product as C^T = B^T A^T.

The unit's first operand lies in rows along K, as such weights do; then only the few rows of A are packed, in pairs.

    C [M, N] = A [M, K] @ B [K, N]      ->      C^T [N, M] = B^T [N, K] @ A^T [K, M]

Chosen by `unit="matrix"` with `pack_b=False`: rules, cost and lowering then see the product with both operands, and
both axes, exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, overload

from tessera.scheduling.families.product.problem import ContractionProblem
from tessera.scheduling.language.columns import Columns, Knobs, Number, no
from tessera.scheduling.language.expression import Value, post_order
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX
from tessera.scheduling.lowering.spec import Argument, ContractionSpec, Output

_OTHER: Final = {"m": "n", "n": "m"}
_SIDES: Final = {"rows": "columns", "columns": "rows"}


def stays_in_place(schedule: Knobs, problem: ContractionProblem) -> Number:
    """Whether the matrix unit reads weights [N, K] where they lie."""
    return schedule.equals("unit", MATRIX) & no(schedule.flag("pack_b")) if problem.turns else False


def turned_problem(problem: ContractionProblem) -> ContractionProblem:
    """The problem of C^T."""
    return replace(
        problem,
        m=problem.n,
        n=problem.m,
        a_dtype=problem.b_dtype,
        b_dtype=problem.a_dtype,
        a_contiguous=_other(problem.b_contiguous),
        b_contiguous=_other(problem.a_contiguous),
        a_mapped=problem.b_mapped,
        b_mapped=problem.a_mapped,
        shared_panels=0,
    )


@overload
def turned_schedule(schedule: Schedule) -> Schedule: ...


@overload
def turned_schedule(schedule: Columns) -> Columns: ...


def turned_schedule(schedule: Schedule | Columns) -> Schedule | Columns:
    """A schedule that leaves B in place, or many, as C^T is computed: its first operand stays, its second is packed."""
    if isinstance(schedule, Schedule):
        knobs = {knob: turn(schedule[knob]) for knob, turn in _TURNS.items()}
        return schedule.replace(**knobs, pack_a=False, pack_b=schedule["pack_a"])
    choices = dict(schedule.choices) | {
        knob: tuple([turn(value) for value in schedule.choices[knob]]) for knob, turn in _TURNS.items()
    }
    choices |= {"pack_a": schedule.choices["pack_b"], "pack_b": schedule.choices["pack_a"]}
    codes = dict(schedule.codes) | {"pack_a": schedule.codes["pack_b"], "pack_b": schedule.codes["pack_a"]}
    return Columns(choices, codes)


def turned_spec(spec: ContractionSpec) -> ContractionSpec:
    """C^T of the same buffers."""
    values: dict[Value, Value] = {}
    for value in post_order([spec.a, spec.b, spec.accumulator, *[output.value for output in spec.outputs]]):
        operands = tuple([values[operand] for operand in value.arguments])
        attributes = value.attributes
        if value.operation == "count":
            attributes = (attributes[0], *[_other(str(axis)) for axis in attributes[1:]])
        axes = frozenset(map(_other, value.axes))
        values[value] = replace(value, arguments=operands, attributes=attributes, axes=axes)
    return replace(
        spec,
        arguments=tuple(map(_turned_argument, spec.arguments)),
        a=values[spec.b],
        b=values[spec.a],
        accumulator=values[spec.accumulator],
        outputs=tuple([Output(output.argument, values[output.value]) for output in spec.outputs]),
    )


def _turned_argument(argument: Argument) -> Argument:
    counted = None if argument.counted is None else tuple(map(_other, argument.counted))
    return replace(argument, axes=tuple(map(_other, argument.axes)), counted=counted)


def _other(axis: str) -> str:
    return _OTHER.get(axis, axis)


def _sides(value: KnobValue) -> KnobValue:
    return _SIDES.get(value, value) if isinstance(value, str) else value


def _exchanged(value: KnobValue) -> KnobValue:
    assert isinstance(value, tuple)
    return value[1], value[0], *value[2:]


_TURNS: Final[Mapping[str, Callable[[KnobValue], KnobValue]]] = {
    "tile": _exchanged,
    "micro": _exchanged,
    "order": _sides,
    "parallel": _sides,
}
