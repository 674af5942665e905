"""What reports say about a launched kernel: its label, and the work of its operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from xdsl.ir import SSAValue

from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch
from tessera.compiler.bind.library_calls import library_facts
from tessera.compiler.graph.program import KernelItem
from tessera.dtypes import DType, fp32
from tessera.ir.graph.operations import GraphOperation
from tessera.ops import OPERATORS
from tessera.ops.counting import flops_of
from tessera.ops.record import Shaped
from tessera.profiling.recording.facts import StepFacts, Traffic
from tessera.rewrite.fusion.alignment import Alignment, align_region
from tessera.rewrite.fusion.siblings import products_of
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
    """FLOPs of all operators, bytes as operands plus results."""
    item = choice.subject.item
    operations = _computing(item)
    # A number in every element, as padding is, or what is read, elsewhere: nothing is computed.
    names = tuple(op.operator for op in operations) or (("copy",) if item.loads else ("fill",))
    scalars = [argument.is_scalar for argument in choice.subject.pattern.arguments]
    nbytes = sum(
        math.prod(shape) * dtype.itemsize
        for (shape, dtype), is_scalar in zip(arrays, scalars, strict=True)
        if not is_scalar
    )
    flops = kernel_flops(item, [shape for shape, _ in arrays])
    dtype = _worked_in(operations, arrays[-1][1])  # results come last
    label = "+".join(names) if len(names) <= 4 else "+".join((*names[:3], f"{len(names) - 3} more"))
    return StepFacts(
        operator=label,
        kernel_name=item.name,
        flops=flops,
        bytes=float(nbytes),
        dtype=dtype.name,
        schedule=str(choice.schedule),
        schedule_source=choice.source,
        fused=names,
        rewrites=rules_of_kernel(item.operation),
        shapes=tuple(shape for shape, _ in arrays),
    )


def _computing(item: KernelItem) -> list[GraphOperation]:
    """The operations of a kernel that compute something."""
    return [op for op in item.operation.body.block.ops if isinstance(op, GraphOperation) and not _moves_only(op)]


def _moves_only(operation: GraphOperation) -> bool:
    """Whether an operation computes nothing: a number, or the cast of a kernel that copies."""
    record = OPERATORS.get(operation.operator)
    if record is None or not operation.inputs:
        return record is None  # a literal
    source, result = (Shaped((1,), dtype_of_value(value)) for value in (operation.inputs[0], operation.result))
    if not record.kind.is_map or len(operation.inputs) > 1 or source.dtype is not result.dtype:
        return False
    return flops_of(record, [source], result, attributes_of(operation)) == 0


def _worked_in(operations: Sequence[GraphOperation], stored: DType) -> DType:
    """The dtype that a kernel's rates are judged by; `stored`: that of what it writes."""
    if not operations:
        return stored
    return dtype_of_value(operations[0].inputs[0]) if operations[0].inputs else fp32


def kernel_flops(item: KernelItem, shapes: Sequence[tuple[int, ...]]) -> float:
    """The operations of a kernel's operators for arguments of these shapes, each over the extents that its operands
    have in the kernel.
    """
    operations = _computing(item)
    extents: dict[int, int] = {}
    loads = list(zip([alignment for _, alignment in item.loads], shapes, strict=False))
    stores = list(zip(item.stores, shapes[len(loads) :], strict=False))
    # Of a product, columns may be packed into panels; of others, results may lie in parts.
    arrays = [*stores, *loads] if products_of(operations) else [*loads, *stores]
    for alignment, shape in arrays:
        if len(alignment) == len(shape):
            for axis, extent in zip(alignment, shape, strict=True):
                if axis is not None:
                    extents.setdefault(axis, extent)

    def shaped(value: SSAValue, alignment: Alignment) -> Shaped:
        shape = tuple([1 if axis is None else extents.get(axis, 1) for axis in alignment])
        return Shaped(shape, dtype_of_value(value))

    flops = 0
    alignments = align_region(item.operation)
    for operation in operations:
        operands = [
            shaped(value, alignments.operands[operation, place]) for place, value in enumerate(operation.inputs)
        ]
        result = shaped(operation.result, alignments.results[operation.result])
        # The operation's own anchor, whose operands lie as rewrites left them: turned, of some products.
        record, anchor = OPERATORS[operation.operator], operation.anchor()
        flops += flops_of(record, operands, result, attributes_of(operation), anchor)
    return float(flops)
