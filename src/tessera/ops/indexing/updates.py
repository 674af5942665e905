"""Tensors with some elements replaced: `x.at[index].set(value)` and its like, which leave x as it is.

By a lone mask and a number this is a map, which fuses; else the numbers of the elements are made, and torch's library
writes there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar, cast

from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.node import Node
from tessera.lazy.structures.promotion import broadcast_shape
from tessera.ops.algebra import call, filling
from tessera.ops.indexing import advanced
from tessera.ops.layout import views

N: TypeAlias = Any
T = TypeVar("T", bound=Node)


class Updates(Generic[T]):
    """What `x.at` is: `x.at[index]` names elements as `x[index]` does."""

    __slots__ = ("_node",)

    def __init__(self, node: T) -> None:
        self._node = node

    def __getitem__(self, index: Any) -> Elements[T]:
        return Elements(self._node, index)


class Elements(Generic[T]):
    """Elements of a tensor, of which a new tensor can be made that has others there.

    Values broadcast to the elements and are cast to the tensor's dtype. Of several values that `set` gives to one
    element the last one stays, `add` adds all; the others refuse tensors of integers as indices, which may name an
    element twice: ArgumentError (E_ARGUMENT).
    """

    __slots__ = ("_index", "_node")

    def __init__(self, node: T, index: Any) -> None:
        self._node, self._index = node, index

    def get(self) -> T:
        """The elements: `x[index]`."""
        return cast(T, advanced.indexed(self._node, self._index))

    def set(self, value: object) -> T:
        """The tensor with the values in place of the elements."""
        given, mask = self._value(value), advanced.lone_mask(self._node, self._index)
        if mask is not None and not given.shape:
            return cast(T, call("where", mask, given, self._node))
        axis = self._lone_axis()
        if axis is not None:
            return self._along(axis, given)
        return self._flat(given, lambda x, places, values: call("put", x, places, values, what="index", axis=0))

    def add(self, value: object) -> T:
        """The tensor with the values added to the elements."""
        if self._node.dtype.kind == "bool" or not advanced.has_integers(self._index):
            return self._replaced(lambda x, y: x + y, value)
        return self._flat(self._value(value), lambda x, places, values: call("scatter_add", x, places, values, axis=0))

    def sub(self, value: object) -> T:
        """The tensor with the values subtracted from the elements."""
        return self.add(-self._value(value))

    def mul(self, value: object) -> T:
        """The tensor with the elements times the values."""
        return self._replaced(lambda x, y: x * y, value)

    def div(self, value: object) -> T:
        """The tensor with the elements over the values, in its dtype."""
        return self._replaced(lambda x, y: x / y, value)

    def min(self, value: object) -> T:
        """The tensor with the smaller of elements and values."""
        return self._replaced(lambda x, y: call("minimum", x, y), value)

    def max(self, value: object) -> T:
        """The tensor with the larger of elements and values."""
        return self._replaced(lambda x, y: call("maximum", x, y), value)

    def _replaced(self, function: Callable[[N, N], N], value: object) -> T:
        if advanced.has_integers(self._index):
            raise ArgumentError(
                "an index of tensors of integers may name an element twice",
                hints=["set and add take such indices", "x.at[i].set(f(x[i])) where it does not"],
            )
        given, mask = self._value(value), advanced.lone_mask(self._node, self._index)
        if mask is not None and not given.shape:
            changed = function(self._node, given)
            return cast(T, call("where", mask, call("cast", changed, dtype=self._node.dtype), self._node))
        return self.set(function(self.get(), given))

    def _value(self, value: object) -> N:
        """The value in the tensor's dtype."""
        dtype = self._node.dtype
        if isinstance(value, bool | int | float) and dtype.kind in ("int", "float"):
            if dtype.kind == "int" and isinstance(value, float) and math.isfinite(value):
                value = int(value)  # as a cast has it
            return filling(value, dtype)
        node = as_node(value)
        return node if node.dtype is dtype else call("cast", node, dtype=dtype)

    def _lone_axis(self) -> int | None:
        """The one axis along which a basic index does not name all; None where it is none, or several."""
        if advanced.has_tensors(self._index):
            return None
        entries = self._index if type(self._index) is tuple else (self._index,)
        if any(entry is None for entry in entries):
            return None
        full = slice(None)
        cut = [
            axis
            for axis, entry in enumerate(views.completed(entries, len(self._node.shape)))
            if not (isinstance(entry, slice) and entry == full)
        ]
        return cut[0] if len(cut) == 1 else None

    def _along(self, axis: int, value: N) -> T:
        """The tensor with slices along one axis replaced."""
        x = self._node
        numbers = call("iota", shape=x.shape[axis : axis + 1])
        entry = views.completed(self._index if type(self._index) is tuple else (self._index,), len(x.shape))[axis]
        places = views.indexed(numbers, entry)
        shape = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
        return cast(T, call("put", x, places, _broadcast(value, shape), what="index", axis=axis))

    def _flat(self, value: N, write: Callable[[N, N, N], N]) -> T:
        """The tensor as a row, with elements written at their numbers."""
        x = self._node
        places = advanced.places(x.shape, self._index)
        values = _broadcast(value, places.shape)
        count = math.prod(places.shape)
        row = views.reshape(x, (math.prod(x.shape),))
        written = write(row, views.reshape(places, (count,)), views.reshape(values, (count,)))
        return cast(T, views.reshape(written, x.shape))


def _broadcast(value: N, shape: tuple[int, ...]) -> N:
    if broadcast_shape([value.shape, shape]) != shape:
        raise ShapeMismatchError(f"a value of shape {value.shape} for elements of shape {shape}")
    return views.broadcast_to(value, shape)
