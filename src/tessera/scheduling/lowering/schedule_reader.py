"""Schedule IR as lowerings take it: a `tessera.schedule.kernel` over buffers becomes a specification and a schedule.

The inverse of `schedule_writer.py`, and stricter: what a person wrote is looked at before a lowering trusts it.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, MemRefType, StridedLayoutAttr
from xdsl.ir import Attribute, Operation, SSAValue

from tessera.dtypes import DType, dtype_of
from tessera.errors import IRError, ScheduleError
from tessera.ir import schedule as schedule_ir
from tessera.ir import schedule_region as region
from tessera.ir.attributes import DTYPE_NAMES, names_of, to_value
from tessera.ir.refusal import RefusalError
from tessera.scheduling.language.expression import APPROXIMATE, WALK, Value
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.schedule_writer import ACCUMULATOR, default_axes
from tessera.scheduling.lowering.spec import Argument, Output, Panels

_OWN = frozenset({"sym_name", "family", "arguments", "knobs", "extents"})
"""Attributes of every kernel over buffers."""


class ReadKernel(NamedTuple):
    """What a kernel says: its specification, its schedule, and the extents that this was chosen for, if it says any."""

    spec: Any
    schedule: Schedule
    extents: Mapping[str, int] | None


def read_kernel(kernel: schedule_ir.KernelOp, kind: type[Any]) -> ReadKernel:
    """What a kernel over buffers says, whose specification is of class `kind`. Raises RefusalError."""
    reader = _Reader(kernel, kind)
    spec = reader.spec()
    extents = None if kernel.extents is None else reader.mapping("extents", kernel.extents, int)
    return ReadKernel(spec, reader.schedule(), extents)


@contextmanager
def _about(operation: Operation, attribute: str = "") -> Iterator[None]:
    """Has a ValueError be an objection to an operation, or to an attribute of it."""
    try:
        yield
    except ValueError as error:
        said = f"{attribute}: {error}" if attribute else str(error)
        raise RefusalError(IRError(said, where=""), operation, attribute) from error


@cache
def _fields(kind: type[Any]) -> Mapping[str, tuple[Any, bool]]:
    """The fields of a record: the type of each, and whether it may be None."""
    hints = get_type_hints(kind)
    found: dict[str, tuple[Any, bool]] = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        (wanted,) = [option for option in options if option is not types.NoneType]
        found[field.name] = wanted, types.NoneType in options
    return found


def _is_part(kind: Any) -> bool:
    """Whether a field of this type is read from the region: an expression, or a part of a kernel that has some."""
    return kind is Value or (dataclasses.is_dataclass(kind) and any(field.name == ACCUMULATOR for field in dataclasses.fields(kind)))


def _read(attribute: Attribute | None, kind: Any, optional: bool) -> Any:
    """The value of a field of type `kind`. Raises ValueError."""
    if attribute is None:
        if not optional:
            raise ValueError("is missing")
        return None
    if dataclasses.is_dataclass(kind):
        return _record(attribute, kind)
    value = to_value(attribute)
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        fits = isinstance(value, tuple) and all(type(each) is parts[0] for each in value)
        if not fits or (parts[-1] is not Ellipsis and isinstance(value, tuple) and len(value) != len(parts)):
            count = "" if parts[-1] is Ellipsis else f"{len(parts)} "
            raise ValueError(f"{attribute} should be a list of {count}{_NAMES[parts[0]]}")
    elif type(value) is not kind:
        raise ValueError(f"{attribute} should be {_NAMES[kind].removesuffix('s')}")
    return value


_NAMES: Mapping[type, str] = {bool: "booleans", int: "integers", str: "texts"}


def _record(attribute: Attribute, kind: Any) -> Any:
    if not isinstance(attribute, DictionaryAttr):
        raise ValueError(f"{attribute} should be a dictionary")
    fields = _fields(kind)
    unknown = attribute.data.keys() - fields.keys()
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))} is none of {', '.join(fields)}")
    values = {}
    for name, (wanted, optional) in fields.items():
        try:
            values[name] = _read(attribute.data.get(name), wanted, optional)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from error
    return kind(**values)


@dataclasses.dataclass(frozen=True)
class _Described:
    """What stands in `arguments` of one argument."""

    axes: tuple[str, ...] | None
    panels: Panels | None
    counted: tuple[str, ...] | None


def _argument(kind: Attribute, described: Attribute) -> Argument:
    """The argument of a type and a description. Raises ValueError."""
    said: _Described = _record(described, _Described)
    axes = said.axes or ()
    if not isinstance(kind, MemRefType):
        return Argument(_dtype(kind), is_scalar=True)
    layout = kind.layout
    if said.panels is not None:
        strides: tuple[int | None, ...] = (None,) * len(axes)
    elif not isinstance(layout, StridedLayoutAttr):
        raise ValueError(f"{kind} has no strides: write strided<[?, 1]>, with ? for what is known at run time")
    else:
        strides = tuple(to_stride(each) for each in layout.strides)
    if len(axes) != len(strides):
        raise ValueError(f"{kind} walks {len(strides)} axes, not {list(axes)}")
    argument = Argument(_dtype(kind.element_type), axes, strides, False, said.panels, said.counted)
    if argument.type != kind:
        raise ValueError(f"an argument of type {kind} should be {argument.type}: extents are known at run time")
    return argument


def to_stride(attribute: Attribute) -> int | None:
    """A stride of a layout: None where it is known at run time only."""
    data = getattr(attribute, "data", None)
    return data if isinstance(data, int) else None


def _dtype(kind: Attribute) -> DType:
    return dtype_of(DTYPE_NAMES[kind])


class _Reader:
    def __init__(self, kernel: schedule_ir.KernelOp, kind: type[Any]) -> None:
        self.kernel, self.kind = kernel, kind
        self.values: dict[SSAValue, Value] = {}
        self.parts: dict[str, dict[str, Value]] = {}
        self.outputs: list[Output] = []
        assert kernel.arguments is not None
        with _about(kernel, "arguments"):
            types = [argument.type for argument in kernel.body.block.args]
            self.arguments = tuple(map(_argument, types, kernel.arguments.data))

    def spec(self) -> Any:
        """The specification."""
        fields, attributes = _fields(self.kind), self.kernel.attributes
        plain = {name: each for name, each in fields.items() if name not in _ELSEWHERE and not _is_part(each[0])}
        unknown = sorted(attributes.keys() - plain.keys() - _OWN)
        if unknown:
            with _about(self.kernel, unknown[0]):
                raise ValueError(f"kernels of this family have {', '.join(sorted(plain))}, and knobs in `knobs`")
        for index, argument in enumerate(self.kernel.body.block.args):
            if self.arguments[index].is_scalar:
                self.values[argument] = Value("scalar", (), (index,), _dtype(argument.type), frozenset(), 0)
        for operation in self.kernel.body.block.ops:
            self._operation(operation)
        found: dict[str, Any] = {}
        for name, (wanted, optional) in plain.items():
            with _about(self.kernel, name):
                found[name] = _read(attributes.get(name), wanted, optional)
        with _about(self.kernel):
            if not self.outputs:
                raise ValueError("the kernel stores nothing")
            found |= self._accumulated(fields)
        for name, value in ("name", self.kernel.sym_name.data), ("arguments", self.arguments), ("outputs", tuple(self.outputs)):
            if name in fields:
                found[name] = value
        return self.kind(**found)

    def _accumulated(self, fields: Mapping[str, tuple[Any, bool]]) -> dict[str, Any]:
        """The fields that are read from the region. Raises ValueError."""
        own, found = self.parts.pop("", {}), dict[str, Any]()
        for name, (wanted, optional) in fields.items():
            if not _is_part(wanted):
                continue
            if wanted is Value:
                found[name] = own.pop(name, None)
            else:
                found[name] = wanted(**self.parts.pop(name)) if name in self.parts else None
            if found[name] is None and not optional:
                raise ValueError(f"no accumulate has the role {name!r}")
        unread = [*own, *self.parts]
        if unread:
            raise ValueError(f"kernels of this family do not accumulate {', '.join(unread)}")
        return found

    def schedule(self) -> Schedule:
        """The knobs."""
        if self.kernel.knobs is None:
            raise RefusalError(ScheduleError("the kernel has no `knobs`", where=""), self.kernel)
        return Schedule({name: self._knob(name, value) for name, value in self.kernel.knobs.data.items()})

    def _knob(self, name: str, attribute: Attribute) -> KnobValue:
        value = to_value(attribute)
        if isinstance(value, tuple) and all(type(each) is int for each in value):
            return tuple(each for each in value if isinstance(each, int))
        if not isinstance(value, bool | int | str):
            hints = ["a boolean, integer, text or integers"]
            raise RefusalError(ScheduleError(f"{name} = {attribute} is no knob's value", hints=hints, where=""), self.kernel, name)
        return value

    def mapping(self, name: str, attribute: DictionaryAttr, kind: type[int]) -> dict[str, int]:
        """A dictionary of integers."""
        with _about(self.kernel, name):
            return {key: _read(value, kind, False) for key, value in attribute.data.items()}

    # -- the region -----------------------------------------------------------------------------------------------

    def _operation(self, operation: Operation) -> None:
        match operation:
            case region.StoreOp():
                self.outputs.append(Output(_index(operation.buffer), self.values[operation.value]))
            case region.AccumulateOp():
                value = self._value(operation)
                roles = names_of(operation.roles)
                part = self.parts.setdefault(operation.of.data if operation.of is not None else "", {})
                part |= dict(zip(roles, value.arguments, strict=True))
                part[ACCUMULATOR] = dataclasses.replace(value, arguments=(), stage=0)
                self.values[operation.result] = part[ACCUMULATOR]
            case region.ElementOp():
                self.values[operation.result] = self._value(operation)

    def _value(self, operation: region.ElementOp) -> Value:
        """The value that an operation gives."""
        operands = tuple([self.values[each] for each in operation.operands if each in self.values])
        stage = max((operand.stage for operand in operands), default=0)
        name, attributes, argument = operation.name.removeprefix(region.PREFIX), (), None
        axes: frozenset[str] | None = None
        match operation:
            case region.LoadOp():
                argument = self.arguments[_index(operation.buffer)]
                attributes = (_index(operation.buffer),)
            case region.CountOp():
                attributes = (_index(operation.buffer), *names_of(operation.along))
                axes = frozenset(names_of(operation.along))
            case region.ConstantOp():
                attributes = (to_value(operation.value),)
            case region.PositionOp():
                axes = frozenset({operation.axis.data})
            case region.ReduceOp():
                attributes, stage = (operation.kind.data,), stage + 1
                gone = names_of(operation.along or operation.taps)
                axes = operands[0].axes.difference(gone) | ({WALK} if operation.along is not None else set())
            case region.AccumulateOp():
                name = ACCUMULATOR
                attributes = () if operation.of is None else (len(self.parts),)
            case region.MapOp():
                attributes = (operation.kind.data,) if operation.kind is not None else attributes
                attributes = APPROXIMATE if operation.approximate is not None and to_value(operation.approximate) else attributes
        if axes is None:
            said = operation.axes
            axes = default_axes(operands, argument) if said is None else frozenset(names_of(said))
        return Value(name, operands, attributes, _dtype(operation.result.type), axes, stage)


_ELSEWHERE = frozenset({"name", "arguments", "outputs"})


def _index(argument: SSAValue) -> int:
    index = getattr(argument, "index", None)
    assert isinstance(index, int)
    return index
