"""What reports say about a launched kernel: its label, and the work that its operators' own cost rules count."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from xdsl.dialects.builtin import TensorType
from xdsl.ir import BlockArgument, SSAValue

from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch
from tessera.compiler.bind.library_calls import library_facts
from tessera.compiler.graph.program import KernelItem
from tessera.dtypes import DType, accumulator, fp32
from tessera.ir.graph import GraphOperation
from tessera.ops import OPERATORS
from tessera.ops.record import family_of
from tessera.profiling.recording.facts import StepFacts, Traffic
from tessera.rewrite.provenance import rules_of_kernel
from tessera.scheduling.binding.regions import attributes_of, dtype_of_value

Shapes: TypeAlias = tuple[tuple[int, ...], ...]
TrafficOf: TypeAlias = Callable[[Choice, Mapping[str, int]], Traffic]
"""What a choice moves for a call of these extents."""
_Kept: TypeAlias = tuple[Choice, Shapes, Mapping[str, int]]


def facts_of(launches: Sequence[AnyLaunch], traffic: TrafficOf | None = None) -> Callable[[], Sequence[StepFacts]]:
    """What reports say about the launches, counted when a report asks; `traffic` says what each moves, where anything
    does. Keeps their shapes, not the launches, which are some 25 objects each.
    """
    kept = [
        (launch.choice, tuple([view.shape for view, _ in launch.call.arguments]), launch.call.shaped.extents)
        if isinstance(launch, Launch)
        else library_facts(launch)
        for launch in launches
    ]
    return partial(_counted, kept, traffic)


def _counted(kept: Sequence[_Kept | Callable[[], StepFacts]], traffic: TrafficOf | None) -> list[StepFacts]:
    """The facts of kernels over arguments of these shapes, and of calls of libraries."""
    return [each() if callable(each) else _kernel_facts(*each, traffic) for each in kept]


def _kernel_facts(choice: Choice, shapes: Shapes, extents: Mapping[str, int], traffic: TrafficOf | None) -> StepFacts:
    dtypes = [argument.dtype for argument in choice.subject.pattern.arguments]
    facts = step_facts(choice, list(zip(shapes, dtypes, strict=True)))
    return facts if traffic is None else replace(facts, traffic=traffic(choice, extents))


def step_facts(choice: Choice, arrays: Sequence[tuple[tuple[int, ...], DType]]) -> StepFacts:
    """FLOPs by the operators' own cost rules where shapes are known, bytes as operands plus results."""
    item = choice.subject.item
    operations = [op for op in item.operation.body.block.ops if isinstance(op, GraphOperation) and not _moves_only(op)]
    # A number in every element, as padding is, or what is read, elsewhere: nothing is computed.
    names = tuple(op.operator for op in operations) or (("copy",) if item.loads else ("fill",))
    inputs, outputs = arrays[: len(item.loads)], arrays[len(item.loads) :]
    scalars = [argument.is_scalar for argument in choice.subject.pattern.arguments]
    nbytes = sum(
        math.prod(shape) * dtype.itemsize
        for (shape, dtype), is_scalar in zip(arrays, scalars, strict=True)
        if not is_scalar
    )
    elements = max(math.prod(shape) for shape, _ in arrays)
    flops = 0.0
    for op in operations:
        family = family_of(op.operator)
        if family == "contraction":
            flops += _contraction_flops(item, inputs, outputs)
        elif family in ("attention", "convolution", "window"):
            flops += _anchor_flops(item, op, inputs, outputs)
        else:
            flops += _per_element_flops(op) * elements
    dtype = _worked_in(operations, outputs[0][1])
    label = "+".join(names) if len(names) <= 4 else "+".join((*names[:3], f"{len(names) - 3} more"))
    return StepFacts(
        operator=label,
        kernel_name=item.name,
        flops=flops,
        bytes=float(nbytes),
        dtype=dtype.name,
        schedule=str(choice.schedule),
        fused=names,
        rewrites=rules_of_kernel(item.operation),
        shapes=tuple(shape for shape, _ in arrays),
    )


def _moves_only(operation: GraphOperation) -> bool:
    """Whether an operation computes nothing: a number, or the cast of a kernel that copies."""
    if operation.operator == "cast":
        return dtype_of_value(operation.inputs[0]) is dtype_of_value(operation.result)
    return operation.operator == "constant"


def _worked_in(operations: Sequence[GraphOperation], stored: DType) -> DType:
    """The dtype that a kernel's rates are judged by; `stored`: that of what it writes."""
    if not operations:
        return stored
    return dtype_of_value(operations[0].inputs[0]) if operations[0].inputs else fp32


def _contraction_flops(
    item: KernelItem,
    inputs: Sequence[tuple[tuple[int, ...], DType]],
    outputs: Sequence[tuple[tuple[int, ...], DType]],
) -> float:
    inner = len(item.domain) - 1
    for (_, alignment), (shape, _) in zip(item.loads, inputs, strict=True):
        if inner in alignment:
            return 2.0 * math.prod(outputs[0][0]) * shape[alignment.index(inner)]
    return 2.0 * math.prod(outputs[0][0])


def _anchor_flops(
    item: KernelItem,
    operation: GraphOperation,
    inputs: Sequence[tuple[tuple[int, ...], DType]],
    outputs: Sequence[tuple[tuple[int, ...], DType]],
) -> float:
    by_input = {index: _Shaped(*array) for (index, _), array in zip(item.loads, inputs, strict=True)}
    operands = [by_input[value.index] for value in operation.inputs if isinstance(value, BlockArgument)]
    operator = OPERATORS[operation.operator]
    return float(operator.flops(operands, _Shaped(*outputs[0]), attributes_of(operation)))


@dataclass(frozen=True)
class _Shaped:
    """An operand as cost rules see it."""

    shape: tuple[int, ...]
    dtype: DType
    weak: bool = False


def _unit(dtype: DType, rank: int) -> _Shaped:
    """An operand of one element, to ask a cost rule for its count per element."""
    return _Shaped((1,) * rank, dtype)


def _per_element_flops(operation: GraphOperation) -> float:
    operator = OPERATORS[operation.operator]
    units = [_unit(accumulator(dtype_of_value(value)), _rank(value)) for value in operation.inputs]
    result = _unit(dtype_of_value(operation.result), _rank(operation.result))
    return float(operator.flops(units, result, attributes_of(operation)))


def _rank(value: SSAValue) -> int:
    assert isinstance(value.type, TensorType)
    return value.type.get_num_dims()
