"""The record of an operator: everything that Tessera knows about it stands in one `Operator`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

import torch

from tessera.dtypes import DType, accumulator
from tessera.errors import ArgumentError, DTypeError, ShapeMismatchError
from tessera.ir.anchors.anchor import Anchor, AnchorError, AnchorRule
from tessera.lazy.node import Node
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Attributes, Position, Shape, Structure
from tessera.ops.applications.rule import AbstractValue, Application, Rule
from tessera.ops.families import CONSTANT, FAMILIES, FamilyName, OperatorFamily
from tessera.ops.native_calls import NativeRule, never
from tessera.system.caching import cached_property

Movement: TypeAlias = Literal[
    "permuted", "repeated", "cut", "regrouped", "parted", "paired", "joined", "padded", "counted"
]
"""What a layout operator makes of its operand, which binding does in place where strides can say it: its dimensions in
another order, elements again and again, some of them, other dimensions over all of them in order, complex elements as
pairs of real ones, pairs as complex elements; of several operands one behind the other; with others around; or the
numbers of elements, of no operand.
"""


class Typed(Protocol):
    """What rules may ask of an operand: shape, dtype, and whether it is a Python number (`weak`)."""

    @property
    def shape(self) -> Shape:
        """The extents."""

    @property
    def dtype(self) -> DType:
        """The element type."""

    @property
    def weak(self) -> bool:
        """Whether it decides a result's dtype only where its kind is the wider one."""


@dataclass(frozen=True)
class Shaped:
    """An operand of which only the shape and the dtype are known."""

    shape: Shape
    dtype: DType
    weak: bool = False


Named: TypeAlias = Mapping[str, Any]
OperandDTypes: TypeAlias = Callable[[str, Sequence[Typed], Named], Sequence[DType]]
"""(name, operands, attributes) -> the dtype that each operand is cast to first. Raises DTypeError."""

ResultRule: TypeAlias = Callable[[str, Sequence[Typed], Sequence[DType], Named], tuple[Shape, DType]]
"""(name, operands, their dtypes after casts, attributes) -> shape and dtype of the result. Raises
ShapeMismatchError.
"""

ElementRule: TypeAlias = Callable[[str, Sequence[Typed], Sequence[DType], Named], DType]
"""(name, operands, their dtypes after casts, attributes) -> the dtype of the result. Raises DTypeError, and
ArgumentError for operands that fit the anchor and still mean nothing.
"""

KnownAnchor: TypeAlias = Callable[[Sequence[Shape], Named], Anchor]
"""(shapes of the operands, attributes) -> the anchor over operands of known extents."""

Spelling: TypeAlias = Callable[..., Node]
"""(*operands, attributes as keywords) -> the same in other operators."""

Advice: TypeAlias = Callable[[Sequence[Typed], Named], Sequence[str]]
"""(operands whose shapes do not fit, attributes) -> what may be done about it."""

CostRule: TypeAlias = Callable[[Sequence[Typed], Typed, Named], int]
"""(operands, result, attributes) -> a count."""

IntegerRanges: TypeAlias = Callable[[Sequence[Shape]], Mapping[int, tuple[int, int]]]
"""(shapes of the operands) -> of some, by place, the least integer and what all are below."""

SymbolicRule: TypeAlias = Callable[[Named, Sequence[Typed], Shape], Named]
"""(attributes, operands, result shape) -> the attributes with those that hold extents set to None."""


DeviceRule: TypeAlias = Callable[[Named, str], str]
"""(attributes, device of the operands) -> that of the result."""

LibraryCall: TypeAlias = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor], Named], None]
"""(inputs, outputs, attributes): computes the outputs, which are there, from the inputs."""


def _all_attributes(attributes: Named, operands: Sequence[Typed], shape: Shape) -> Named:
    return attributes


def as_first(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    """The dtype that the first operand is cast to."""
    return cast[0]


def _where_operands_are(attributes: Named, device: str) -> str:
    return device


def _no_advice(operands: Sequence[Typed], attributes: Named) -> Sequence[str]:
    return ()


def _nothing(*operands: torch.Tensor, **attributes: Any) -> float:
    return 0.0


def _no_library(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    raise AssertionError("an operator that kernels are generated for")


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator.

    `operand_dtypes` says what operands are cast to. The result's shape follows from the anchor, its dtype from
    `element`, by default that of the first operand; an operator of which no map says the shape has a `result` that
    gives both. All refuse operands that do not fit, with all shapes in the message, and `advice` as hints. `flops` and
    `bytes_moved` count the work of a call where body and anchor do not say it. `reference` is the meaning, on torch
    tensors: floats come as float64, and attributes as keywords. `gradient(cotangent, operands, result, **attributes)`
    builds nodes: the cotangent of each operand in the operand's shape and dtype, None where there is none.
    `body(emitter, *values, **attributes)` is the tile body; see `emitter`.
    `cheap` says that computing an element costs less than moving it: such maps run while an operand of a matrix
    product is packed. Of a `positive` operator only positive operands give ordinary numbers: kernels are timed and
    checked on such. `integers` says from which range integers are drawn for that. An operator with a `summary` has a
    function of its name in `op`, where it has none by itself.

    An operator of the family "library" has no kernels: a plan calls `library` on views of its own memory, with any
    strides. Where one call gives several results, `joint` names their operators in order, and `library` gets an output
    for each. What is `kept` is computed once of a constant operand (`op.constant`) and stays with it. A call that works
    `in_place` takes memory of its first operand for its result's, where nobody needs the operand any more. A call that
    goes `by_planes` transforms each plane of its first operand, multiplies by the second and transforms back, which
    CPUs do plane by plane in their caches.
    """

    name: str
    family: FamilyName
    arity: tuple[int, int]
    operand_dtypes: OperandDTypes
    reference: Callable[..., torch.Tensor]
    gradient: Callable[..., tuple[Node | None, ...]]
    body: Callable[..., Any]
    attributes: Mapping[str, Any]
    """Names of the attributes, in order, with their defaults."""
    anchor: AnchorRule | None = None
    """How operands and result are indexed; None where the family says it (`families.py`) or no map can."""
    known_anchor: KnownAnchor | None = None
    """The anchor where extents decide it, as of reshapes, of which no map over ranks alone says what is computed."""
    spelled: Spelling | None = None
    """The operator in others, which reduce one axis at a time by one function: so it is computed where what its body
    reduces is split over devices. None where it is not.
    """
    element: ElementRule = as_first
    advice: Advice = _no_advice
    result: ResultRule | None = None
    symbolic: SymbolicRule = _all_attributes
    flops: CostRule | None = None
    """None where the tile body says it (`counting.flops_of`)."""
    bytes_moved: CostRule | None = None
    """None where each operand is read once, and the result written once."""
    cheap: bool = False
    positive: bool = False
    integers: IntegerRanges | None = None
    library: LibraryCall = _no_library
    native: NativeRule = never
    """When a routine of Tessera's own makes a call of the library on a CPU."""
    joint: tuple[str, ...] = ()
    movement: Movement | None = None
    """Of the family "layout"."""
    kept: bool = False
    by_planes: bool = False
    summary: str = ""
    title: str = ""
    """What reports show, where that is not the words of the name with capitals."""
    in_place: bool = False
    device: DeviceRule = _where_operands_are
    application: Rule | None = None
    """What the operator may be applied to; None where its family says it (`families.py`)."""
    terms: Callable[..., torch.Tensor | float] = _nothing
    """(operands, attributes as keywords) -> the size of what cancels inside the operator, whose rounding a result may
    show: |x| of gelu(x), which is x times what is left of 1 - erf. Nothing where operands alone cancel.
    """

    @property
    def kind(self) -> OperatorFamily:
        """The operator's family."""
        return FAMILIES[self.family]

    @property
    def attribute_names(self) -> tuple[str, ...]:
        """Names of the attributes in the order of `Structure.attributes`."""
        return tuple(self.attributes)

    def attribute_values(self, **given: Any) -> Attributes:
        """The tuple that stands in a structure: defaults, but for what is given."""
        assert given.keys() <= self.attributes.keys(), (
            f"{self.name} has no attributes {given.keys() - self.attributes.keys()}"
        )
        return tuple({**self.attributes, **given}.values())

    def resolve(
        self, attributes: Attributes, operands: tuple[Structure, ...]
    ) -> tuple[tuple[Structure, ...], Shape, DType]:
        """The operands, cast where the operator computes in a wider dtype, and the result's shape and dtype.

        Raises ShapeMismatchError, DTypeError or ArgumentError.
        """
        least, most = self.arity
        if not least <= len(operands) <= most:
            raise ArgumentError(f"{self.name} takes {least} to {most} operands, not {len(operands)}")
        named = dict(zip(self.attributes, attributes, strict=True))
        dtypes = self.operand_dtypes(self.name, operands, named)
        shape, dtype = self.result_of(operands, dtypes, named)
        resolved = tuple(_cast(operand, wanted) for operand, wanted in zip(operands, dtypes, strict=True))
        return resolved, shape, dtype

    def device_of(self, attributes: Attributes, device: str) -> str:
        """The device of the result over operands on a device."""
        return self.device(dict(zip(self.attributes, attributes, strict=True)), device)

    def result_of(self, operands: Sequence[Typed], dtypes: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
        """Shape and dtype of the result over operands that are cast to `dtypes`. Raises as `resolve` does."""
        if self.result is not None:
            return self.result(self.name, operands, dtypes, attributes)
        dtype = self.element(self.name, operands, dtypes, attributes)
        shapes = [operand.shape for operand in operands]
        rule = self.anchor_rule
        assert rule is not None, f"{self.name} has neither an anchor nor a rule of its own"
        try:
            shape: Any = rule(tuple(map(len, shapes)), attributes).shape(shapes)  # of extents that are all known
        except AnchorError as error:
            raise shape_error(self.name, operands, error.message, self.advice(operands, attributes)) from None
        return shape, dtype

    def replaced(
        self, attributes: Attributes, operands: tuple[Structure, ...], positions: tuple[Position, ...]
    ) -> Structure | None:
        """What the operator means on complex numbers, where that is another expression (`ops/complexes.py`).

        Raises DTypeError where it means nothing on them.
        """
        if self.kind.has_run_time_geometry:
            return None
        wanted = [value.dtype if isinstance(value, Structure) else value for value in (*operands, *attributes)]
        if not any(isinstance(dtype, DType) and dtype.kind == "complex" for dtype in wanted):
            return None
        rule = COMPLEX_RULES.get(self.name)
        if rule is None:
            raise dtype_error(self.name, operands, "not defined on complex numbers", _PARTS)
        return rule(attributes, operands, positions)

    def anchored(self, ranks: tuple[int, ...], attributes: Named) -> Anchor | None:
        """The anchor over operands of these ranks; None where no map says what is computed. Raises AnchorError."""
        rule = self.anchor_rule
        return None if rule is None else rule(ranks, attributes)

    def anchored_over(self, shapes: Sequence[Shape], attributes: Named) -> Anchor | None:
        """As `anchored`, over operands of known shapes."""
        if self.known_anchor is not None:
            return self.known_anchor(shapes, attributes)
        return self.anchored(tuple(map(len, shapes)), attributes)

    @cached_property
    def anchor_rule(self) -> AnchorRule | None:
        """The record's rule of anchors, or its family's."""
        return self.anchor or self.kind.anchors

    def apply_to(self, value: AbstractValue, chance: random.Random) -> Application | None:
        """Operands and attributes of a drawn application to a value; None where the operator takes no such value."""
        rule = self.application or self.kind.rule(self.arity[1])
        return rule(chance, value)

    def symbolic_attributes(self, attributes: Attributes, operands: tuple[Structure, ...], shape: Shape) -> Attributes:
        """The attributes as far as they decide code; see `lazy.symbolic`."""
        if self.symbolic is _all_attributes:
            return attributes
        named = dict(zip(self.attributes, attributes, strict=True))
        return tuple(self.symbolic(named, operands, shape).values())

    def __repr__(self) -> str:
        return f"<operator {self.name}>"


_PARTS = ["op.real, op.imag and op.abs give real numbers"]

ComplexRule: TypeAlias = Callable[[Attributes, tuple[Structure, ...], tuple[Position, ...]], Structure]

COMPLEX_RULES: dict[str, ComplexRule] = {}
"""What operators are on complex operands, by name; `ops/complexes.py` puts the rules here."""

_registry: dict[str, Operator] = {}

OPERATORS: Mapping[str, Operator] = MappingProxyType(_registry)
"""All operators by name; the modules of `ops` put them here."""


def family_of(name: str) -> OperatorFamily:
    """The family of the operator of this name, a user's too; of calls of libraries, which Graph IR has one operation
    for; and of literals.
    """
    record = _registry.get(name)
    if record is None:
        return FAMILIES.get(name, CONSTANT)
    return record.kind


def register(operator: Operator) -> Operator:
    """Enters an operator under its name, and gives it."""
    assert operator.name not in _registry, f"two operators called {operator.name}"
    _registry[operator.name] = operator
    return operator


def _cast(operand: Structure, dtype: DType) -> Structure:
    # A number's accumulator (fp32 beside bf16) is as exact as the number gets, so numbers of the right kind stay; those
    # beside narrow integers wrap around first, as torch's do.
    if operand.dtype is dtype or (operand.weak and dtype.kind != "int" and operand.dtype is accumulator(dtype)):
        return operand
    if operand.kind == "constant" and dtype.kind != "complex":
        return interning.constant(operand.value or 0, dtype)
    return interning.intern(_registry["cast"], (dtype,), (operand,), (0,))


def elements(shape: Shape) -> int:
    """The number of elements of a shape."""
    return math.prod(shape)


def describe(operands: Sequence[Typed]) -> str:
    """Operands for messages: `(3, 4) fp32 and (5,) bf16`."""
    return " and ".join(f"{tuple(operand.shape)} {operand.dtype}" for operand in operands)


def shape_error(name: str, operands: Sequence[Typed], reason: str, hints: Sequence[str] = ()) -> ShapeMismatchError:
    """The error for operands whose shapes do not fit."""
    return ShapeMismatchError(f"{name} of {describe(operands)}: {reason}", hints=hints)


def dtype_error(name: str, operands: Sequence[Typed], reason: str, hints: Sequence[str] = ()) -> DTypeError:
    """The error for operands of dtypes that the operator does not take."""
    return DTypeError(f"{name} of {describe(operands)}: {reason}", hints=hints)
