"""What tensors do by Python's syntax beside arithmetic, and methods whose arguments are not those of a function of
`op`: shapes as separate integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self
from typing import cast as typed

from tessera.errors import ArgumentError
from tessera.lazy.leaves.conversion import NotATensorError
from tessera.ops.algebra import Algebra
from tessera.ops.elementwise import division
from tessera.ops.indexing import advanced
from tessera.ops.indexing.updates import Updates
from tessera.ops.layout import views
from tessera.ops.layout.views import integer, several


class Methods(Algebra):
    """Indexing, division with rest, and layout."""

    __slots__ = ()

    def reshape(self, *shape: Any) -> Self:
        """The same elements under another shape, given as integers or one sequence; one extent may be -1. A view where
        strides permit one.
        """
        return typed("Self", views.reshape(self, _integers(shape)))

    view = reshape

    def transpose(self, *axes: Any) -> Self:
        """Of two integers, these two dimensions exchanged, as in torch; without arguments the last two. Of one
        sequence, or of more integers, dimension `d` of the result is dimension `axes[d]`.
        """
        if not axes:
            return typed("Self", views.swapped(self))
        if len(axes) == 2:
            return typed("Self", views.swapped(self, *axes))
        return self.permute(*axes)

    def permute(self, *axes: Any) -> Self:
        """Dimension `d` of the result is dimension `axes[d]`."""
        return typed("Self", views.transpose(self, _integers(axes)))

    def broadcast_to(self, *shape: Any) -> Self:
        """The tensor repeated to `shape`."""
        return typed("Self", views.broadcast_to(self, _integers(shape)))

    def expand(self, *shape: Any) -> Self:
        """The tensor repeated to `shape`, in which -1 keeps an extent (as in torch)."""
        extents = _integers(shape)
        missing = len(extents) - len(self.shape)
        if missing < 0 or -1 in extents[:missing]:
            raise ArgumentError(
                f"expand of shape {self.shape} to {extents}", hints=["-1 keeps an extent that is there"]
            )
        kept = zip(extents[missing:], self.shape, strict=True)
        whole = (own if wanted == -1 else wanted for wanted, own in kept)
        return typed("Self", views.broadcast_to(self, (*extents[:missing], *whole)))

    @property
    def T(self) -> Self:  # noqa: N802  (the name all array libraries use)
        """The tensor with its dimensions reversed."""
        return self.permute(range(len(self.shape) - 1, -1, -1))

    @property
    def mT(self) -> Self:  # noqa: N802
        """The tensor with its last two dimensions exchanged. Raises ArgumentError for fewer dimensions."""
        if len(self.shape) < 2:
            raise ArgumentError(f"mT of a tensor of shape {self.shape}", hints=["a matrix has two dimensions"])
        return typed("Self", views.swapped(self))

    @property
    def at(self) -> Updates[Self]:
        """Elements by index, to be replaced in a new tensor: `x.at[2:5].set(0.0)`, `x.at[i].add(v)`."""
        return Updates(self)

    def __getitem__(self, index: Any) -> Self:
        return typed("Self", advanced.indexed(self, index))

    def __floordiv__(self, other: object) -> Any:
        return _divided(division.floor_divide, self, other)

    def __rfloordiv__(self, other: object) -> Any:
        return _divided(division.floor_divide, other, self)

    def __mod__(self, other: object) -> Any:
        return _divided(division.remainder, self, other)

    def __rmod__(self, other: object) -> Any:
        return _divided(division.remainder, other, self)

    def __divmod__(self, other: object) -> tuple[Any, Any]:
        return self // other, self % other


def _divided(function: Any, a: object, b: object) -> Any:
    try:
        return function(a, b)
    except NotATensorError:
        return NotImplemented


def _integers(values: tuple[Any, ...]) -> tuple[int, ...]:
    if len(values) == 1 and isinstance(values[0], Iterable):
        values = several(values[0], "extents or axes")
    return tuple(integer(value, "an extent or axis") for value in values)
