"""Kernels of Graph IR as expressions: the tile bodies of their operations, run against a recorder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import BlockArgument, SSAValue

from tessera.dtypes import DType, accumulator, dtype_of
from tessera.ir.attributes import DTYPE_NAMES
from tessera.ir.graph.operations import GraphOperation
from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.ops import OPERATORS
from tessera.ops.record import family_of
from tessera.rewrite.fusion.alignment import Alignment, align_region
from tessera.scheduling.binding.arrays import Pattern
from tessera.scheduling.language.expression import Recorder, Value
from tessera.scheduling.lowering.spec import Output

A = TypeVar("A")
T = TypeVar("T")


class KernelMemo(Protocol):
    """What has been made of a kernel."""

    def once(self, make: Callable[[A], T], argument: A) -> T:
        """What a function makes of the kernel, made once."""


class Region(Protocol):
    """A kernel of a program, before it is known how its operands lie."""

    @property
    def operation(self) -> ScheduleKernelOp:
        """The kernel, whose region holds what is computed."""

    @property
    def name(self) -> str:
        """What the kernel is called."""

    @property
    def loads(self) -> Sequence[tuple[int, Alignment]]:
        """The arrays that it reads: the number of the input, and how it lies over the domain."""

    @property
    def memo(self) -> KernelMemo:
        """What has been made of the kernel: binding reads its operations once."""

    @property
    def reduced(self) -> tuple[int, int] | None:
        """The range of dimensions that maps and reductions reduce."""


def operation_of(region: Region, family: str) -> GraphOperation:
    """The first operation of a kernel whose operator is of a family."""
    inside = (op for op in region.operation.body.block.ops if isinstance(op, GraphOperation))
    return next(op for op in inside if family_of(op.operator).name == family)


def read_region(
    region: Region, pattern: Pattern, recorder: Recorder, along: Callable[[GraphOperation], str] | None = None
) -> tuple[Output, ...]:
    """Records what a kernel computes; gives its results, cast to the dtypes that they are stored in.

    `along` says which axis an operation reduces, where that is not the same for all.
    """
    reader = _RegionReader(region, pattern, recorder)
    for operation in _graph_operations(region):
        if along is not None:
            recorder.reduced = along(operation)
        reader.run(operation)
    return reader.outputs()


def dtype_of_value(value: SSAValue) -> DType:
    """The dtype of a Graph IR value."""
    assert isinstance(value.type, TensorType)
    return dtype_of(DTYPE_NAMES[value.type.element_type])


class _RegionReader:
    """Runs the tile bodies of a kernel's operations against a recorder."""

    def __init__(self, region: Region, pattern: Pattern, recorder: Recorder) -> None:
        self.region, self.pattern, self.recorder = region, pattern, recorder
        self.alignments = align_region(region.operation)
        self.arguments = {load: index for index, load in enumerate(region.loads)}
        self.values: dict[SSAValue, Value] = {}

    def operand(self, operation: GraphOperation, index: int) -> Value:
        """The value of an operand, in the dtype that arithmetic on it is done in."""
        value = operation.inputs[index]
        if isinstance(value, BlockArgument):
            alignment = self.alignments.operands[operation, index]
            raw = self._load(value, alignment)
        else:
            raw = self.values[value]
            if index < 2 and family_of(operation.operator).multiplies:
                raw = self.recorder.cast(raw, dtype_of_value(value))
        return self.recorder.cast(raw, accumulator(raw.dtype))

    def _load(self, value: BlockArgument, alignment: Alignment) -> Value:
        position = self.arguments[value.index, alignment]
        argument = self.pattern.arguments[position]
        if argument.is_scalar:
            return self.recorder.scalar(position, argument.dtype)
        if argument.counted is not None:
            return self.recorder.count(position, argument.counted)
        return self.recorder.load(position, argument.dtype, argument.axes)

    def run(self, operation: GraphOperation) -> None:
        """Records one operation."""
        if operation.operator == "constant":
            dtype = accumulator(dtype_of_value(operation.result))
            number = operation.attribute("value")
            assert isinstance(number, bool | int | float)
            self.values[operation.result] = self.recorder.constant(number, dtype)
            return
        operator = OPERATORS[operation.operator]
        attributes = attributes_of(operation)
        operands = [self.operand(operation, index) for index in range(len(operation.inputs))]
        self.values[operation.result] = self._wrapped(operator.body(self.recorder, *operands, **attributes), operation)

    def _wrapped(self, value: Value, operation: GraphOperation) -> Value:
        """Integers as they would be stored: int8 is computed in int32 and wraps around after each operator, so that a
        result does not depend on what is fused. Floats keep the digits that storing them would round.
        """
        dtype = dtype_of_value(operation.result)
        return self.recorder.cast(value, dtype) if dtype.kind == "int" else value

    def outputs(self) -> tuple[Output, ...]:
        """The kernel's results, cast to the dtypes that they are stored in."""
        last = self.region.operation.body.block.last_op
        assert last is not None
        first = len(self.region.loads)
        return tuple(
            Output(first + index, self.recorder.cast(self.values[value], dtype_of_value(value)))
            for index, value in enumerate(last.operands)
        )


def attributes_of(operation: GraphOperation) -> dict[str, object]:
    """The attributes of an operation as its record takes them."""
    defaults = OPERATORS[operation.operator].attributes
    return {name: _attribute(name, operation.attribute(name, default)) for name, default in defaults.items()}


def _attribute(name: str, value: object) -> object:
    return dtype_of(value) if name == "dtype" and isinstance(value, str) else value


def _graph_operations(region: Region) -> list[GraphOperation]:
    """The region's operations; what feeds the matrix product comes first, whatever the order of fusion was."""
    operations = [op for op in region.operation.body.block.ops if isinstance(op, GraphOperation)]
    ready: set[SSAValue] = set()
    ordered: list[GraphOperation] = []
    while operations:
        now = [op for op in operations if all(isinstance(v, BlockArgument) or v in ready for v in op.inputs)]
        ordered += now
        ready.update(op.result for op in now)
        operations = [op for op in operations if op not in now]
    return ordered
