"""The region of a kernel over buffers: what one element of each result is, as arithmetic on elements of the arguments.

A value stands for one point of the kernel's iteration space, and varies along some of its axes; which follows from what
it is made of, and stands in `axes` where it does not. All operations are `tessera.schedule.*`, defined by the one table
of maps and the classes below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from xdsl.dialects.builtin import ArrayAttr, BoolAttr, IntegerType, MemRefType, StringAttr, i1, i64
from xdsl.ir import Attribute, BlockArgument, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

PREFIX: Final = "tessera.schedule."
COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
REDUCTIONS: Final = ("add", "mul", "max", "min")


def _fail(op: IRDLOperation, message: str) -> None:
    raise VerifyException(f"{op.name.removeprefix(PREFIX)}: {message}")


class ScheduleValueOp(IRDLOperation):
    """The form of all operations that give a value: `axes` are those that it varies along, where they do not follow
    from its operands.
    """

    result = result_def(Attribute)
    axes = opt_attr_def(ArrayAttr[StringAttr])
    traits = traits_def(Pure())


class MapOp(ScheduleValueOp):
    """An operation on elements: arithmetic, comparisons, conversions."""

    inputs = var_operand_def(Attribute)
    kind = opt_attr_def(StringAttr)
    approximate = opt_attr_def(BoolAttr)

    @property
    def form(self) -> MapForm:
        """What maps of this name look like."""
        return MAPS[self.name.removeprefix(PREFIX)]

    def verify_(self) -> None:
        form = self.form
        if len(self.inputs) != form.operands:
            _fail(self, f"takes {form.operands} operands, not {len(self.inputs)}")
        if (self.kind is None) == bool(form.kinds) or (self.kind is not None and self.kind.data not in form.kinds):
            said = "none" if self.kind is None else repr(self.kind.data)
            _fail(self, f"kind is one of {', '.join(form.kinds)}, not {said}" if form.kinds else "has no kind")
        if self.approximate is not None and not form.approximable:
            _fail(self, "is never approximate")
        form.check(self, [value.type for value in self.inputs])


def _same(op: MapOp, types: Sequence[Attribute]) -> None:
    if any(each != op.result.type for each in types):
        _fail(op, f"{', '.join(map(str, types))} give {types[0]}, not {op.result.type}; operands are of one type")


def _floating(op: MapOp, types: Sequence[Attribute]) -> None:
    _same(op, types)
    if isinstance(op.result.type, IntegerType):
        _fail(op, f"is of floating-point numbers, not of {op.result.type}")


def _integral(op: MapOp, types: Sequence[Attribute]) -> None:
    _same(op, types)
    if not isinstance(op.result.type, IntegerType):
        _fail(op, f"is of integers, not of {op.result.type}")


def _comparing(op: MapOp, types: Sequence[Attribute]) -> None:
    if types[0] != types[1] or op.result.type != i1:
        _fail(op, f"{types[0]} and {types[1]} give {op.result.type}; operands are of one type, the result is i1")


def _selecting(op: MapOp, types: Sequence[Attribute]) -> None:
    if types[0] != i1 or any(each != op.result.type for each in types[1:]):
        _fail(op, f"takes i1 and two of the result's type, not {', '.join(map(str, types))}")


def _converting(op: MapOp, types: Sequence[Attribute]) -> None:
    """All pairs of types convert."""


@dataclass(frozen=True, slots=True)
class MapForm:
    """What a map must look like: number of operands, rule of types, the kinds it comes in."""

    operands: int
    check: Callable[[MapOp, Sequence[Attribute]], None]
    kinds: tuple[str, ...] = ()
    approximable: bool = False


def _forms(names: str, form: MapForm) -> dict[str, MapForm]:
    return dict.fromkeys(names.split(), form)


MAPS: Final[Mapping[str, MapForm]] = {
    **_forms("add sub mul pow maximum minimum", MapForm(2, _same)),
    **_forms("div", MapForm(2, _floating)),
    **_forms("and or xor shift_right", MapForm(2, _integral)),
    **_forms("not", MapForm(1, _integral)),
    **_forms("neg abs", MapForm(1, _same)),
    **_forms("log log1p expm1 sqrt rsqrt sin cos floor ceil round", MapForm(1, _floating)),
    **_forms("exp tanh erf", MapForm(1, _floating, approximable=True)),
    "compare": MapForm(2, _comparing, COMPARISONS),
    "select": MapForm(3, _selecting),
    "cast": MapForm(1, _converting),
}
"""Every map, by the name that tile bodies have for it (docs/tile-bodies.md)."""


def _define(name: str) -> type[MapOp]:
    title = "".join(part.capitalize() for part in name.split("_"))
    members = {"name": PREFIX + name, "__module__": __name__, "__doc__": f"`{name}` of elements."}
    return irdl_op_definition(cast(type[MapOp], type(f"{title}Op", (MapOp,), members)))


MAP_OPERATIONS: Final[Mapping[str, type[MapOp]]] = {name: _define(name) for name in MAPS}
"""The operation class of each map."""


def _expect_argument(op: IRDLOperation, buffer: SSAValue) -> None:
    if not isinstance(buffer, BlockArgument):
        _fail(op, "reads and writes arguments of the kernel")


@irdl_op_definition
class ScheduleLoadOp(ScheduleValueOp):
    """The element of an argument; it varies along the argument's axes."""

    name = "tessera.schedule.load"
    buffer = operand_def(MemRefType)

    def verify_(self) -> None:
        _expect_argument(self, self.buffer)
        assert isinstance(self.buffer.type, MemRefType)
        if self.buffer.type.element_type != self.result.type:
            _fail(self, f"an element of {self.buffer.type} is no {self.result.type}")


@irdl_op_definition
class CountOp(ScheduleValueOp):
    """The row-major number of an element of an argument that is never read, over the positions along `along`."""

    name = "tessera.schedule.count"
    buffer = operand_def(MemRefType)
    along = attr_def(ArrayAttr[StringAttr])

    def verify_(self) -> None:
        _expect_argument(self, self.buffer)
        if self.result.type != i64:
            _fail(self, f"a number is i64, not {self.result.type}")


@irdl_op_definition
class ConstantOp(ScheduleValueOp):
    """A literal, of the result's type whatever its own."""

    name = "tessera.schedule.constant"
    value = attr_def(Attribute)


@irdl_op_definition
class PositionOp(ScheduleValueOp):
    """The index along an axis."""

    name = "tessera.schedule.position"
    axis = attr_def(StringAttr)

    def verify_(self) -> None:
        if self.result.type != i64:
            _fail(self, f"an index is i64, not {self.result.type}")


@irdl_op_definition
class ExtentOp(ScheduleValueOp):
    """The number of elements along the reduced axis."""

    name = "tessera.schedule.extent"


@irdl_op_definition
class ScheduleReduceOp(ScheduleValueOp):
    """A reduction by `kind`, either along an axis that a worker walks, or over the `taps` of a window, which it has
    before it all at once.
    """

    name = "tessera.schedule.reduce"
    value = operand_def(Attribute)
    kind = attr_def(StringAttr)
    along = opt_attr_def(ArrayAttr[StringAttr])
    taps = opt_attr_def(ArrayAttr[StringAttr])

    def verify_(self) -> None:
        if self.kind.data not in REDUCTIONS:
            _fail(self, f"kind is one of {', '.join(REDUCTIONS)}, not {self.kind.data!r}")
        if (self.along is None) == (self.taps is None):
            _fail(self, "goes along an axis or over taps")
        if self.value.type != self.result.type:
            _fail(self, f"{self.value.type} gives {self.value.type}, not {self.result.type}")


@irdl_op_definition
class AccumulateOp(ScheduleValueOp):
    """What a kernel's family makes of its operands: the sums of a product, the weighted means of attention. `roles` are
    the operands' names; `of` says which part of the kernel this is, where it has several.
    """

    name = "tessera.schedule.accumulate"
    inputs = var_operand_def(Attribute)
    roles = attr_def(ArrayAttr[StringAttr])
    of = opt_attr_def(StringAttr)

    def verify_(self) -> None:
        if len(self.roles) != len(self.inputs):
            _fail(self, f"{len(self.roles)} roles of {len(self.inputs)} operands")


@irdl_op_definition
class ScheduleStoreOp(IRDLOperation):
    """Writes a value to an argument: a result of the kernel."""

    name = "tessera.schedule.store"
    value = operand_def(Attribute)
    buffer = operand_def(MemRefType)

    def verify_(self) -> None:
        _expect_argument(self, self.buffer)
        assert isinstance(self.buffer.type, MemRefType)
        if self.buffer.type.element_type != self.value.type:
            _fail(self, f"{self.value.type} is no element of {self.buffer.type}")


REGION_OPERATIONS: Final[Sequence[type[IRDLOperation]]] = (
    *MAP_OPERATIONS.values(),
    ScheduleLoadOp,
    CountOp,
    ConstantOp,
    PositionOp,
    ExtentOp,
    ScheduleReduceOp,
    AccumulateOp,
    ScheduleStoreOp,
)
"""What a kernel over buffers holds."""
