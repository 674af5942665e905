"""Kernels as Schedule IR: a specification under a schedule becomes a `tessera.schedule.kernel` over buffers.

MapReduceSpec(                            "tessera.schedule.kernel"() ({
  name="relu_0",                          ^bb0(%0: memref<...>, %1: memref<...>):
  arguments=(x, y),                         %2 = "tessera.schedule.load"(%0) : (memref<...>) -> f32
  outer=("o0",), lanes="c",          ->     %3 = "tessera.schedule.constant"() {value = 0.0 : f64} : () -> f32
  outputs=(Output(1, maximum(x, 0)),))      %4 = "tessera.schedule.maximum"(%2, %3) : (f32, f32) -> f32
Schedule(tile=(1, 64), ...)                 "tessera.schedule.store"(%4, %1) : (f32, memref<...>) -> ()
                                          }) {sym_name = "relu_0", family = "map-reduce", arguments = [...],
                                              outer = ["o0"], lanes = "c", knobs = {tile = [1, 64], ...}}

What of a specification is an expression stands in the region; all else is attributes, by the names of its fields. The
operands of a specification stand in `tessera.schedule.accumulate`, which gives its `accumulator`. Nothing is lost:
`schedule_reader.py` is the inverse. Functions of scores have no text yet (`unwritable`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from xdsl.dialects.builtin import ArrayAttr, BoolAttr, DictionaryAttr, StringAttr
from xdsl.ir import Attribute, Block, Region, SSAValue

from tessera.ir.attributes import to_attribute
from tessera.ir.schedule import operations as schedule_ir
from tessera.ir.schedule import region
from tessera.scheduling.language.expression import APPROXIMATE, WALK, Value, post_order
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.attributes import element_type
from tessera.scheduling.lowering.fields import write_record
from tessera.scheduling.lowering.spec import Argument

ACCUMULATOR: Final = "accumulator"
"""The field of a specification, or of a part of one, that its other expressions are operands of."""
APART: Final = ("name", "arguments", "outputs")
"""The fields that every specification has, and which have places of their own."""


class Accumulation(NamedTuple):
    """What a family makes of operands: the field of the specification that it is a part of ("" for itself), operands by
    name, result.
    """

    of: str
    operands: Mapping[str, Value]
    result: Value


def accumulations(spec: Any) -> Iterator[Accumulation]:
    """What a specification accumulates: of its own fields that are expressions, and of those of its parts."""
    parts = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    for of, part in ("", spec), *parts.items():
        if hasattr(part, ACCUMULATOR):
            fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
            result = fields.pop(ACCUMULATOR)
            operands = {name: value for name, value in fields.items() if isinstance(value, Value)}
            yield Accumulation(of, operands, result)


def plain_fields(spec: Any) -> dict[str, Any]:
    """The fields of a specification that are written as attributes of their names: neither expressions nor parts."""
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec) if field.name not in APART}
    return {
        name: value
        for name, value in fields.items()
        if not isinstance(value, Value) and not hasattr(value, ACCUMULATOR)
    }


def unwritable(spec: Any) -> str | None:
    """The first field of a specification that no operation of a region stands for: functions of scores, what comes of
    them; None where all can be written.
    """
    for name, value in plain_fields(spec).items():
        each = value[0] if isinstance(value, tuple) and value else value
        if dataclasses.is_dataclass(each) and any(
            isinstance(getattr(each, field.name), Value) for field in dataclasses.fields(each)
        ):
            return name
    return None


def default_axes(operands: tuple[Value, ...], argument: Argument | None) -> frozenset[str]:
    """The axes that a value varies along where nothing else is said: those of its operands or argument."""
    return frozenset[str](() if argument is None else argument.axes).union(*(operand.axes for operand in operands))


def kernel_of(
    spec: Any, family: str, schedule: Schedule, extents: Mapping[str, int] | None = None
) -> schedule_ir.ScheduleKernelOp:
    """The kernel of a specification under a schedule; `extents` are those that the schedule was chosen for."""
    writer = _RegionWriter(spec.arguments)
    for accumulation in accumulations(spec):
        writer.accumulate(accumulation)
    for output in spec.outputs:
        writer.store(output.value, output.argument)
    attributes: dict[str, Attribute] = {
        "sym_name": StringAttr(spec.name),
        "family": StringAttr(family),
        "arguments": ArrayAttr([_described(argument) for argument in spec.arguments]),
        **write_record(plain_fields(spec)).data,
        "knobs": DictionaryAttr({knob: to_attribute(value) for knob, value in schedule.items()}),
    }
    if extents is not None:
        attributes["extents"] = DictionaryAttr({axis: to_attribute(extent) for axis, extent in extents.items()})
    return schedule_ir.ScheduleKernelOp.create(attributes=attributes, regions=[Region(writer.block)])


def _described(argument: Argument) -> DictionaryAttr:
    """What the type of an argument does not say."""
    return write_record({"axes": argument.axes or None, "panels": argument.panels, "counted": argument.counted})


def _names(axes: Sequence[str]) -> Attribute:
    return ArrayAttr([StringAttr(axis) for axis in axes])


class _RegionWriter:
    """Writes values into the block of a kernel, each once."""

    def __init__(self, arguments: tuple[Argument, ...]) -> None:
        self.arguments = arguments
        self.block = Block(arg_types=[argument.type for argument in arguments])
        self.written: dict[Value, SSAValue] = {}

    def value(self, root: Value) -> SSAValue:
        """What stands for a value, written after all below it if need be."""
        for value in post_order([root]):
            if value not in self.written:
                self.written[value] = self._write(value)
        return self.written[root]

    def accumulate(self, accumulation: Accumulation) -> None:
        """Writes operands, and what is made of them."""
        result = accumulation.result
        operation = region.AccumulateOp.create(
            operands=[self.value(operand) for operand in accumulation.operands.values()],
            result_types=[element_type(result.dtype)],
            attributes={
                "roles": _names(tuple(accumulation.operands)),
                **({"of": StringAttr(accumulation.of)} if accumulation.of else {}),
                "axes": _names(sorted(result.axes)),
            },
        )
        self.block.add_op(operation)
        self.written[result] = operation.result

    def store(self, value: Value, argument: int) -> None:
        """Writes a result of the kernel."""
        self.block.add_op(region.ScheduleStoreOp.create(operands=[self.value(value), self.block.args[argument]]))

    def _write(self, value: Value) -> SSAValue:
        if value.operation == "scalar":
            return self.block.args[value.argument]
        kind, operands, attributes = self._parts(value)
        argument = self.arguments[value.argument] if value.operation == "load" else None
        tells = value.operation in ("count", "position", "reduce")
        if not tells and value.axes != default_axes(value.arguments, argument):
            attributes["axes"] = _names(sorted(value.axes))
        operation = kind.create(operands=operands, result_types=[element_type(value.dtype)], attributes=attributes)
        self.block.add_op(operation)
        return operation.results[0]

    def _parts(self, value: Value) -> tuple[type[region.ScheduleValueOp], list[SSAValue], dict[str, Attribute]]:
        """The class of the operation, operands and attributes."""
        match value.operation:
            case "load":
                return region.ScheduleLoadOp, [self.block.args[value.argument]], {}
            case "count":
                along = _names(list(map(str, value.attributes[1:])))
                return region.CountOp, [self.block.args[value.argument]], {"along": along}
            case "constant":
                return region.ConstantOp, [], {"value": to_attribute(value.number)}
            case "position":
                (axis,) = value.axes
                return region.PositionOp, [], {"axis": StringAttr(axis)}
            case "extent":
                return region.ExtentOp, [], {}
            case "reduce":
                (operand,) = value.arguments
                gone = _names(sorted(operand.axes - value.axes))
                attributes = {"kind": StringAttr(value.kind), "along" if WALK in value.axes else "taps": gone}
                return region.ScheduleReduceOp, [self.written[operand]], attributes
        attributes = {}
        if value.operation == "compare":
            attributes["kind"] = StringAttr(value.kind)
        elif value.attributes == APPROXIMATE:
            attributes["approximate"] = BoolAttr.from_bool(True)
        operands = [self.written[operand] for operand in value.arguments]
        return region.MAP_OPERATIONS[value.operation], operands, attributes
