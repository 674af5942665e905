"""Operators as methods of tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self
from typing import cast as typed

from tessera.ops.algebra import Algebra, call_unary
from tessera.ops.layout import views
from tessera.ops.layout.views import integer, several
from tessera.ops.rows import calls
from tessera.ops.rows.calls import Axis


class Methods(Algebra):
    """Reductions, layout and functions of one variable as methods; `op` documents each."""

    __slots__ = ()

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The sum along axes, all by default; integers and bools add up in int64."""
        return typed("Self", calls.reduction("sum", self, axis, keepdims))

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The mean along axes, all by default."""
        return typed("Self", calls.reduction("mean", self, axis, keepdims))

    def max(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The maximum along axes, all by default; NaN if an element is."""
        return typed("Self", calls.reduction("max", self, axis, keepdims))

    def min(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The minimum along axes, all by default; NaN if an element is."""
        return typed("Self", calls.reduction("min", self, axis, keepdims))

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The product along axes, all by default; integers and bools multiply in int64."""
        return typed("Self", calls.reduction("prod", self, axis, keepdims))

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """The position of the first maximum along an axis, or in row-major order of the whole tensor."""
        return typed("Self", calls.reduction("argmax", self, axis, keepdims))

    def softmax(self, axis: int = -1) -> Self:
        """exp(x) / sum(exp(x)) along an axis."""
        return typed("Self", calls.softmax("softmax", self, axis))

    def exp(self) -> Self:
        """e ** x."""
        return typed("Self", call_unary("exp", self))

    def log(self) -> Self:
        """The natural logarithm."""
        return typed("Self", call_unary("log", self))

    def sqrt(self) -> Self:
        """The square root."""
        return typed("Self", call_unary("sqrt", self))

    def tanh(self) -> Self:
        """The hyperbolic tangent."""
        return typed("Self", call_unary("tanh", self))

    def relu(self) -> Self:
        """max(x, 0)."""
        return typed("Self", call_unary("relu", self))

    def reshape(self, *shape: Any) -> Self:
        """The same elements under another shape, given as integers or one sequence; one extent may be -1."""
        return typed("Self", views.reshape(self, _integers(shape)))

    def transpose(self, *permutation: Any) -> Self:
        """Dimension `d` of the result is dimension `permutation[d]`; without arguments the last two are exchanged."""
        return typed("Self", views.transpose(self, _integers(permutation)) if permutation else views.swapped(self))

    def broadcast_to(self, *shape: Any) -> Self:
        """The tensor repeated to `shape`."""
        return typed("Self", views.broadcast_to(self, _integers(shape)))

    @property
    def T(self) -> Self:  # noqa: N802  (the name all array libraries use)
        """The tensor with its dimensions reversed."""
        return self.transpose(range(len(self.shape) - 1, -1, -1))

    def __getitem__(self, index: Any) -> Self:
        return typed("Self", views.indexed(self, index))


def _integers(values: tuple[Any, ...]) -> tuple[int, ...]:
    if len(values) == 1 and isinstance(values[0], Iterable):
        values = several(values[0], "extents or axes")
    return tuple(integer(value, "an extent or axis") for value in values)
