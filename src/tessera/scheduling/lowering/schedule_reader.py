"""Schedule IR as lowerings take it: a `tessera.schedule.kernel` over buffers becomes a specification and a schedule.

The inverse of `schedule_writer.py`, and stricter: what a person wrote is looked at before a lowering trusts it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from xdsl.dialects.builtin import ArrayAttr, IntAttr, MemRefType, StridedLayoutAttr, StringAttr
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from tessera.dtypes import DType, dtype_of
from tessera.errors import IRError, ScheduleError
from tessera.ir.attributes import DTYPE_NAMES, names_of, to_value
from tessera.ir.refusal import RefusalError
from tessera.ir.schedule import operations as schedule_ir
from tessera.ir.schedule import region
from tessera.scheduling.language.expression import APPROXIMATE, WALK, Value
from tessera.scheduling.language.expression import Attribute as ValueAttribute
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.fields import FieldType, MalformedError, field_types, read_field, read_record
from tessera.scheduling.lowering.schedule_writer import ACCUMULATOR, APART, default_axes
from tessera.scheduling.lowering.spec import Argument, Output, Panels

_OWN: Final = frozenset({"sym_name", "family", "arguments", "knobs", "extents"})
"""Attributes of every kernel over buffers."""
_INTEGER: Final = FieldType(int, False)


class ReadKernel(NamedTuple):
    """What a kernel says: its specification, its schedule, and the extents that this was chosen for, if it says any."""

    spec: Any
    schedule: Schedule
    extents: Mapping[str, int] | None


def read_kernel(kernel: schedule_ir.ScheduleKernelOp, kind: Any) -> ReadKernel:
    """What a kernel over buffers says, whose specification is of the class `kind`. Raises RefusalError."""
    assert kernel.arguments is not None
    with _about(kernel, "arguments"):
        types = [argument.type for argument in kernel.body.block.args]
        arguments = tuple(map(_argument, types, kernel.arguments.data))
    read = _Region(kernel, arguments)
    for operation in kernel.body.block.ops:
        with _about(operation):
            read.add(operation)
    fields = field_types(kind)
    plain = {name: each for name, each in fields.items() if name not in APART and not _is_part(each.kind)}
    found: dict[str, Any] = {}
    for name in sorted(kernel.attributes.keys() - plain.keys() - _OWN):
        with _about(kernel, name):
            raise MalformedError(f"kernels of this family have {', '.join(plain)}; knobs stand in `knobs`")
    for name, wanted in plain.items():
        with _about(kernel, name):
            found[name] = read_field(kernel.attributes.get(name), wanted)
    with _about(kernel):
        found |= read.accumulated(fields)
        if not read.outputs:
            raise MalformedError("the kernel stores nothing")
    name, outputs = kernel.sym_name.data, tuple(read.outputs)
    spec = kind(name=name, arguments=arguments, outputs=outputs, **found)
    return ReadKernel(spec, _schedule(kernel), _extents(kernel))


@contextmanager
def _about(operation: Operation, attribute: str = "") -> Iterator[None]:
    """Has what is wrong be an objection to an operation, or to an attribute of it."""
    try:
        yield
    except MalformedError as error:
        said = f"{attribute}: {error}" if attribute else str(error)
        raise RefusalError(IRError(said, where=""), operation, attribute) from error


def _is_part(kind: Any) -> bool:
    """Whether a field of this type is read from the region: an expression, or a part of a kernel that has some."""
    return kind is Value or (
        isinstance(kind, type) and dataclasses.is_dataclass(kind) and ACCUMULATOR in field_types(kind)
    )


def _schedule(kernel: schedule_ir.ScheduleKernelOp) -> Schedule:
    if kernel.knobs is None:
        raise RefusalError(ScheduleError("the kernel has no `knobs`", where=""), kernel)
    return Schedule({name: _knob(kernel, name, value) for name, value in kernel.knobs.data.items()})


def _knob(kernel: schedule_ir.ScheduleKernelOp, name: str, attribute: Attribute) -> KnobValue:
    value = to_value(attribute)
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, tuple) and all(type(each) is int for each in value):
        return tuple([each for each in value if isinstance(each, int)])
    hints = ["a boolean, integer, text or integers"]
    error = ScheduleError(f"{name} = {attribute} is no knob's value", hints=hints, where="")
    raise RefusalError(error, kernel, f"knobs.{name}")


def _extents(kernel: schedule_ir.ScheduleKernelOp) -> dict[str, int] | None:
    if kernel.extents is None:
        return None
    with _about(kernel, "extents"):
        return {axis: read_field(extent, _INTEGER) for axis, extent in kernel.extents.data.items()}


# -- arguments --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Described:
    """What stands in `arguments` of one argument."""

    axes: tuple[str, ...] | None
    panels: Panels | None
    counted: tuple[str, ...] | None


def _argument(kind: Attribute, described: Attribute) -> Argument:
    """The argument of a type and a description."""
    said: _Described = read_record(described, _Described)
    if not isinstance(kind, MemRefType):
        return Argument(_dtype(kind), is_scalar=True)
    axes = said.axes or ()
    strides: tuple[int | None, ...] = (None,) * len(axes)
    if said.panels is None:
        if not isinstance(kind.layout, StridedLayoutAttr):
            raise MalformedError(f"{kind} has no strides: write strided<[?, 1]>, with ? for what is known at run time")
        strides = tuple([each.data if isinstance(each, IntAttr) else None for each in kind.layout.strides])
    if len(axes) != len(strides):
        raise MalformedError(f"{kind} walks {len(strides)} axes, not {list(axes)}")
    argument = Argument(_dtype(kind.element_type), axes, strides, False, said.panels, said.counted)
    if argument.type != kind:
        raise MalformedError(f"{kind} should be {argument.type}: extents are known at run time")
    return argument


def _dtype(kind: Attribute) -> DType:
    if kind not in DTYPE_NAMES:
        raise MalformedError(f"there are no elements of type {kind}")
    return dtype_of(DTYPE_NAMES[kind])


def _index(argument: SSAValue) -> int:
    assert isinstance(argument, BlockArgument)
    return argument.index


# -- the region -------------------------------------------------------------------------------------------------------


class _Region:
    """The values of a kernel's region, read in order."""

    def __init__(self, kernel: schedule_ir.ScheduleKernelOp, arguments: tuple[Argument, ...]) -> None:
        self.arguments = arguments
        self.axes = {axis for argument in arguments for axis in argument.axes} | {WALK}
        self.values: dict[SSAValue, Value] = {}
        self.parts: dict[str, dict[str, Value]] = {}
        self.outputs: list[Output] = []
        for argument in kernel.body.block.args:
            if arguments[argument.index].is_scalar:
                dtype = arguments[argument.index].dtype
                self.values[argument] = Value("scalar", (), (argument.index,), dtype, frozenset(), 0)

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        match operation:
            case region.ScheduleStoreOp():
                self._store(self.values[operation.value], _index(operation.buffer))
            case region.AccumulateOp():
                part = self.parts.setdefault(operation.of.data if operation.of is not None else "", {})
                operands = [self.values[operand] for operand in operation.inputs]
                part |= dict(zip(names_of(operation.roles), operands, strict=True))
                number = (len(self.parts) - 1,) if len(self.parts) > 1 else ()
                axes = frozenset() if operation.axes is None else self._axes(operation.axes)
                part[ACCUMULATOR] = Value(ACCUMULATOR, (), number, _dtype(operation.result.type), axes, 0)
                self.values[operation.result] = part[ACCUMULATOR]
            case region.ScheduleValueOp():
                self.values[operation.result] = self._value(operation)

    def _store(self, value: Value, argument: int) -> None:
        beyond = sorted(value.axes - {WALK, *self.arguments[argument].axes})
        if beyond and value.operation != ACCUMULATOR:  # of which a family says what it stores
            raise MalformedError(f"the value varies along {', '.join(beyond)}, which the argument does not walk")
        self.outputs.append(Output(argument, value))

    def accumulated(self, fields: Mapping[str, FieldType]) -> dict[str, Any]:
        """The fields of a specification that its operations say."""
        own, found = self.parts.pop("", {}), dict[str, Any]()
        for name, (kind, is_optional) in fields.items():
            if not _is_part(kind):
                continue
            if kind is Value:
                found[name] = own.pop(name, None)
            else:
                found[name] = _part(kind, self.parts.pop(name)) if name in self.parts else None
            if found[name] is None and not is_optional:
                raise MalformedError(f"no accumulate of the kernel has the role {name!r}")
        unread = [*own, *self.parts]
        if unread:
            raise MalformedError(f"kernels of this family do not accumulate {', '.join(unread)}")
        return found

    def _axes(self, said: ArrayAttr[StringAttr]) -> frozenset[str]:
        """The axes that an attribute names; the taps of a window are axes that no argument needs to have."""
        axes = frozenset(names_of(said))
        unknown = sorted(axes - self.axes - _TAPS)
        if unknown:
            raise MalformedError(f"no argument walks {', '.join(unknown)}; axes are {', '.join(sorted(self.axes))}")
        return axes

    def _value(self, operation: region.ScheduleValueOp) -> Value:
        """The value that an operation gives."""
        dtype, name = _dtype(operation.result.type), operation.name.removeprefix(region.PREFIX)
        operands = tuple([self.values[each] for each in operation.operands if each in self.values])
        stage = max((operand.stage for operand in operands), default=0)
        axes = default_axes(operands, None)
        attributes: tuple[ValueAttribute, ...] = ()
        match operation:
            case region.ScheduleLoadOp():
                attributes = (_index(operation.buffer),)
                axes = default_axes((), self.arguments[_index(operation.buffer)])
            case region.CountOp():
                attributes = (_index(operation.buffer), *names_of(operation.along))
                axes = self._axes(operation.along)
            case region.ConstantOp():
                attributes = (_number(operation.value),)
            case region.PositionOp():
                axes = self._axes(ArrayAttr([operation.axis]))
            case region.ScheduleReduceOp():
                attributes, stage = (operation.kind.data,), stage + 1
                if operation.along is not None:
                    axes = axes - self._axes(operation.along) | {WALK}
                elif operation.taps is not None:
                    axes = axes - self._axes(operation.taps)
            case region.MapOp():
                attributes = _map_attributes(operation)
        axes = axes if operation.axes is None else self._axes(operation.axes)
        return Value(name, operands, attributes, dtype, axes, stage)


_TAPS: Final = frozenset({"ky", "kx"})


def _part(kind: Any, values: Mapping[str, Value]) -> Any:
    """A part of a specification, of its operands and what is made of them."""
    names = field_types(kind).keys()
    if values.keys() != names:
        raise MalformedError(f"accumulates {', '.join(values)} where there should be {', '.join(names)}")
    return kind(**values)


def _number(attribute: Attribute) -> bool | int | float:
    value = to_value(attribute)
    if not isinstance(value, bool | int | float):
        raise MalformedError(f"{attribute} is no number")
    return value


def _map_attributes(operation: region.MapOp) -> tuple[ValueAttribute, ...]:
    if operation.kind is not None:
        return (operation.kind.data,)
    is_approximate = operation.approximate is not None and to_value(operation.approximate)
    return APPROXIMATE if is_approximate else ()
