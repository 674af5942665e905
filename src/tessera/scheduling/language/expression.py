"""Expressions: the arithmetic of one kernel as a small shared graph, between Graph IR and Tile IR.

Operator bodies (`ops/`) are run against a `Recorder`, which builds hash-consed `Value`s (common subexpressions
are one value by construction). A value knows the iteration axes that it varies along and its stage: how many
reductions lie below it. Lowerings decide loops from axes and stages, then write values with `TileWriter`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tessera.dtypes import DType, bool_, fp32, int64

Attribute: TypeAlias = bool | int | float | str | DType

TRANSCENDENTAL = frozenset(
    {"exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf", "pow", "rsqrt", "sqrt", "div"}
)
"""Operations dear enough that keeping their result in memory may beat computing it twice."""

APPROXIMATE: Final = ("approximate",)
"""The attributes of a function that may err by a few ulp."""

WALK: Final = "walk"
"""A pseudo-axis of everything that depends on a reduction: known only where a worker has walked its row."""


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One value of an expression. Identity is equality: the recorder makes equal values once."""

    operation: str
    arguments: tuple[Value, ...]
    attributes: tuple[Attribute, ...]
    dtype: DType
    axes: frozenset[str]
    stage: int

    @property
    def is_reduction(self) -> bool:
        return self.operation == "reduce"

    @property
    def argument(self) -> int:
        """The kernel argument that a load or a scalar reads."""
        index = self.attributes[0]
        assert isinstance(index, int)
        return index

    @property
    def number(self) -> bool | int | float:
        """The value of a constant."""
        number = self.attributes[0]
        assert isinstance(number, bool | int | float)
        return number

    @property
    def kind(self) -> str:
        """The kind of a reduction or comparison."""
        return str(self.attributes[0])


class Recorder:
    """The `Emitter` that operator bodies are run against when a kernel is lowered.

    `reduced` names the axis that `reduce` and `extent` speak of; None where the kernel has none.
    """

    def __init__(self, reduced: str | None) -> None:
        self.reduced = reduced
        self._values: dict[tuple[object, ...], Value] = {}

    def make(
        self,
        operation: str,
        arguments: Sequence[Value] = (),
        attributes: Sequence[Attribute] = (),
        dtype: DType | None = None,
        axes: Iterable[str] | None = None,
        stage: int | None = None,
    ) -> Value:
        """The value of an operation; the same object for the same operation on the same arguments."""
        arguments = tuple(arguments)
        dtype = dtype or arguments[0].dtype
        key = (operation, arguments, tuple((type(a), a) for a in attributes), dtype)
        value = self._values.get(key)
        if value is None:
            reach = frozenset(axes) if axes is not None else frozenset().union(*(a.axes for a in arguments))
            level = stage if stage is not None else max((a.stage for a in arguments), default=0)
            value = Value(operation, arguments, tuple(attributes), dtype, reach, level)
            self._values[key] = value
        return value

    # -- leaves ---------------------------------------------------------------------------------------------------

    def load(self, argument: int, dtype: DType, axes: Iterable[str]) -> Value:
        """Element of kernel argument `argument`, which varies along `axes`."""
        return self.make("load", (), (argument,), dtype, axes)

    def scalar(self, argument: int, dtype: DType) -> Value:
        """A scalar kernel argument."""
        return self.make("scalar", (), (argument,), dtype, ())

    def count(self, argument: int, axes: Sequence[str]) -> Value:
        """The row-major number (int64) of the element of a counted argument: over the positions along `axes`."""
        return self.make("count", (), (argument, *axes), int64, axes)

    def constant(self, value: float | int | bool, like: Value | DType) -> Value:
        """A literal of the dtype of `like`."""
        dtype = like if isinstance(like, DType) else like.dtype
        return self.make("constant", (), (value,), dtype, ())

    def position(self) -> Value:
        """The index along the reduced axis, int64."""
        assert self.reduced is not None
        return self.make("position", (), (), int64, (self.reduced,))

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def add(self, a: Value, b: Value) -> Value:
        return self.make("add", (a, b))

    def sub(self, a: Value, b: Value) -> Value:
        return self.make("sub", (a, b))

    def mul(self, a: Value, b: Value) -> Value:
        return self.make("mul", (a, b))

    def div(self, a: Value, b: Value) -> Value:
        return self.make("div", (a, b))

    def pow(self, a: Value, b: Value) -> Value:
        return self.make("pow", (a, b))

    def maximum(self, a: Value, b: Value) -> Value:
        return self.make("maximum", (a, b))

    def minimum(self, a: Value, b: Value) -> Value:
        return self.make("minimum", (a, b))

    def neg(self, a: Value) -> Value:
        return self.make("neg", (a,))

    def abs(self, a: Value) -> Value:
        return self.make("abs", (a,))

    def exp(self, a: Value, *, approximate: bool = False) -> Value:
        return self.make("exp", (a,), APPROXIMATE if approximate else ())

    def log(self, a: Value) -> Value:
        return self.make("log", (a,))

    def sqrt(self, a: Value) -> Value:
        return self.make("sqrt", (a,))

    def rsqrt(self, a: Value) -> Value:
        return self.make("rsqrt", (a,))

    def tanh(self, a: Value, *, approximate: bool = False) -> Value:
        return self.make("tanh", (a,), APPROXIMATE if approximate else ())

    def erf(self, a: Value, *, approximate: bool = False) -> Value:
        return self.make("erf", (a,), APPROXIMATE if approximate else ())

    def expm1(self, a: Value) -> Value:
        return self.make("expm1", (a,))

    def log1p(self, a: Value) -> Value:
        return self.make("log1p", (a,))

    def sin(self, a: Value) -> Value:
        return self.make("sin", (a,))

    def cos(self, a: Value) -> Value:
        return self.make("cos", (a,))

    def floor(self, a: Value) -> Value:
        return self.make("floor", (a,))

    def ceil(self, a: Value) -> Value:
        return self.make("ceil", (a,))

    def round(self, a: Value) -> Value:
        return self.make("round", (a,))

    # -- comparisons, logic, casts --------------------------------------------------------------------------------

    def compare(self, kind: str, a: Value, b: Value) -> Value:
        """`kind` is one of eq ne lt le gt ge; unordered comparisons are false, except ne."""
        return self.make("compare", (a, b), (kind,), bool_)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.make("select", (condition, a, b), (), a.dtype)

    def logical_and(self, a: Value, b: Value) -> Value:
        return self.make("and", (a, b))

    def logical_or(self, a: Value, b: Value) -> Value:
        return self.make("or", (a, b))

    def logical_not(self, a: Value) -> Value:
        return self.make("not", (a,))

    def bitwise_and(self, a: Value, b: Value) -> Value:
        return self.make("and", (a, b))

    def bitwise_xor(self, a: Value, b: Value) -> Value:
        return self.make("xor", (a, b))

    def shift_right(self, a: Value, b: Value) -> Value:
        return self.make("shift_right", (a, b))

    def cast(self, a: Value, dtype: DType) -> Value:
        return a if a.dtype == dtype else self.make("cast", (a,), (), dtype)

    # -- reductions -----------------------------------------------------------------------------------------------

    def reduce(self, kind: str, a: Value) -> Value:
        """Reduces `a` along the reduced axis by add, mul, max or min (max and min propagate NaN)."""
        assert self.reduced is not None
        return self.make("reduce", (a,), (kind,), a.dtype, (a.axes - {self.reduced}) | {WALK}, a.stage + 1)

    def extent(self, a: Value) -> Value:
        """The number of elements along the reduced axis, as a value of `a`'s dtype."""
        return self.make("extent", (), (), a.dtype if a.dtype.kind == "float" else fp32, ())


def post_order(roots: Iterable[Value]) -> list[Value]:
    """All values below `roots`, arguments before uses, each once."""
    ordered: list[Value] = []
    seen: set[Value] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        value, expanded = stack.pop()
        if expanded:
            ordered.append(value)
        elif value not in seen:
            seen.add(value)
            stack.append((value, True))
            stack.extend((argument, False) for argument in reversed(value.arguments) if argument not in seen)
    return ordered
