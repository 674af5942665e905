"""Order, search and sets of the array API standard: `sort` gives values alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy

from tessera.doors import selection
from tessera.doors.calls.nodes import node
from tessera.doors.indexing import take
from tessera.doors.tensors import conversion as tensors
from tessera.errors import ShapeMismatchError
from tessera.handle import Tensor
from tessera.typing import ArrayLike


def sort(x: ArrayLike, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Tensor:
    """The elements along an axis in order."""
    return selection.sort(x, axis, descending)[0]


def argsort(x: ArrayLike, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Tensor:
    """The positions of the elements along an axis in order."""
    return selection.argsort(x, axis, descending)


def searchsorted(x1: ArrayLike, x2: ArrayLike, /, *, side: str = "left", sorter: ArrayLike | None = None) -> Tensor:
    """Where the elements of x2 belong in x1, which is in order, or which `sorter` puts in order."""
    row = x1 if sorter is None else take(x1, sorter, 0)
    return selection.searchsorted(row, x2, side=side)


def nonzero(x: ArrayLike, /) -> tuple[Tensor, ...]:
    """Where elements are not 0: a row of indices for each dimension. Evaluates x."""
    value = node(x)
    if not value.shape:
        raise ShapeMismatchError("nonzero of a tensor without dimensions")
    return tuple(tensors.tensor(row.contiguous()) for row in value.torch().nonzero().unbind(1))


class _UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class _UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Tensor
    counts: Tensor


class _UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: ArrayLike, /) -> _UniqueAll:
    """The different elements in order, where each stands first, which each element is, and how often. Evaluates x."""
    found = numpy.unique(node(x).numpy(), return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
    values, first, inverse, counts = found
    inverse = inverse.reshape(node(x).shape)
    return _UniqueAll(*(tensors.tensor(each) for each in (values, first, inverse, counts)))


def unique_counts(x: ArrayLike, /) -> _UniqueCounts:
    """The different elements in order, and how often each is there. Evaluates x."""
    found = unique_all(x)
    return _UniqueCounts(found.values, found.counts)


def unique_inverse(x: ArrayLike, /) -> _UniqueInverse:
    """The different elements in order, and which of them each element is. Evaluates x."""
    found = unique_all(x)
    return _UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: ArrayLike, /) -> Tensor:
    """The different elements in order. Evaluates x."""
    return unique_all(x).values
