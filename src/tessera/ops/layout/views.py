"""Layout operators as functions: a view where the operand exists already, a node where it is pending."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, TypeVar

from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.lazy.leaves import views
from tessera.lazy.leaves.constants import ConstantLeaf
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import Node, leaf_node
from tessera.lazy.structures.promotion import broadcast_shape
from tessera.lazy.structures.structure import Shape
from tessera.lazy.symbols.integers import is_symbolic
from tessera.ops.algebra import call


def existing(node: Node) -> Leaf | None:
    """The leaf of a tensor that has memory to view."""
    structure, leaves = node.state
    # The argument of a traced function has no memory to view yet.
    return leaves[0] if structure.kind == "buffer" and type(leaves[0]) in (Leaf, ConstantLeaf) else None


T = TypeVar("T")


def integer(value: Any, what: str) -> int:
    """The value as an int. Raises ArgumentError (E_ARGUMENT) for what is none, such as 1.0."""
    try:
        found: int = value if is_symbolic(value) else operator.index(value)
    except TypeError as error:
        raise ArgumentError(f"{value!r} as {what}, which is an integer") from error
    return found


def number(value: Any, what: str) -> float:
    """The value as a float. Raises ArgumentError (E_ARGUMENT) for what is none; text is none."""
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"{value!r} as {what}, which is a number") from error
    raise ArgumentError(f"{value!r} as {what}, which is a number")


def flag(value: object, what: str) -> bool:
    """Whether the value is true. Raises ArgumentError (E_ARGUMENT) for arrays and tensors that are neither."""
    try:
        return bool(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"{value!r} as {what}, which is True or False") from error


def is_one_of(value: object, names: Iterable[str | None]) -> bool:
    """Whether the value is one of these names; nothing but text and None is."""
    return (value is None or isinstance(value, str)) and value in names


def several(values: Iterable[T], what: str) -> tuple[T, ...]:
    """The values as a tuple. Raises ArgumentError (E_ARGUMENT) for what holds none, such as a number."""
    try:
        return tuple(values)
    except TypeError as error:
        raise ArgumentError(f"{values!r} as {what}, which are several: a list or a tuple") from error


def normalized_axis(axis: int, rank: int) -> int:
    """The axis counted from 0. Raises ArgumentError (E_ARGUMENT) outside of -rank..rank-1."""
    axis = integer(axis, "an axis")
    if not -max(rank, 1) <= axis < max(rank, 1):
        raise ArgumentError(f"axis {axis} of a tensor of {rank} dimensions")
    return axis % max(rank, 1)


def transpose(node: Node, permutation: Sequence[int]) -> Any:
    """The tensor whose dimension `d` is dimension `permutation[d]`. Raises ArgumentError for what is no permutation."""
    rank = len(node.shape)
    order = tuple(normalized_axis(axis, rank) for axis in several(permutation, "a permutation"))
    if sorted(order) != list(range(rank)):
        raise ArgumentError(f"{tuple(permutation)} is no permutation of the {rank} dimensions of {node.shape}")
    leaf = existing(node)
    return leaf_node(views.transposed(leaf, order)) if leaf else call("transpose", node, permutation=order)


def swapped(node: Node, first: int = -2, second: int = -1) -> Any:
    """The tensor with two dimensions exchanged."""
    rank = len(node.shape)
    order = list(range(rank))
    a, b = normalized_axis(first, rank), normalized_axis(second, rank)
    if rank < 2:
        return node
    order[a], order[b] = b, a
    return transpose(node, order)


def broadcast_to(node: Node, shape: Sequence[int]) -> Any:
    """The tensor repeated to `shape`. Raises ShapeMismatchError where it does not broadcast."""
    target = tuple(shape)
    if node.shape == target:
        return node
    if broadcast_shape([node.shape, target]) != target:
        raise ShapeMismatchError(f"broadcast_to: {node.shape} does not broadcast to {target}")
    leaf = existing(node)
    return leaf_node(views.broadcast(leaf, target)) if leaf else call("broadcast_to", node, shape=target)


def reshape(node: Node, shape: Sequence[int]) -> Any:
    """The same elements, in row-major order, under another shape; one extent may be -1.

    A view where the strides permit one, else a copy. Raises ShapeMismatchError where the numbers of elements differ.
    """
    target = _completed(node.shape, tuple(shape))
    if node.shape == target:
        return node
    leaf = existing(node)
    view = views.reshaped(leaf, target) if leaf else None
    return leaf_node(view) if view else call("reshape", node, shape=target)


def _completed(shape: Shape, target: Shape) -> Shape:
    count, known = math.prod(shape), math.prod(extent for extent in target if extent != -1)
    if target.count(-1) == 1 and known and count % known == 0:
        target = tuple(count // known if extent == -1 else extent for extent in target)
    if math.prod(target) != count or any(extent < 0 for extent in target):
        raise ShapeMismatchError(f"reshape: {shape} has {count} elements, which do not fill {target}")
    return target


def concat(nodes: Sequence[Node], axis: int) -> Any:
    """Tensors joined along an axis. Raises ArgumentError for none."""
    if not nodes:
        raise ArgumentError("concat of no tensors")
    return call("concat", *nodes, axis=normalized_axis(axis, len(nodes[0].shape)))


def sliced(node: Node, starts: Shape, sizes: Shape, steps: Shape) -> Any:
    """Elements `starts[d] + i * steps[d]`, `sizes[d]` of them along each dimension; all in range."""
    if sizes == node.shape and not any(starts) and all(step == 1 for step in steps):
        return node
    leaf = existing(node)
    if leaf and all(step > 0 for step in steps):  # torch has no tensors that are walked backwards
        return leaf_node(views.sliced(leaf, starts, sizes, steps))
    return call("slice", node, starts=starts, sizes=sizes, steps=steps)


def part(node: Node, axis: int, start: int, size: int) -> Any:
    """`size` elements along an axis from `start` on; all in range."""
    shape = node.shape
    untouched = (0,) * len(shape)
    starts = (*untouched[:axis], start, *untouched[axis + 1 :])
    return sliced(node, starts, (*shape[:axis], size, *shape[axis + 1 :]), (1,) * len(shape))


def indexed(node: Node, index: Any) -> Any:
    """`node[index]` for integers, slices with any steps but 0, None and an Ellipsis, or a tuple of them.

    Raises ArgumentError (E_ARGUMENT) for other indices and for integers out of range.
    """
    entries = completed(index if isinstance(index, tuple) else (index,), len(node.shape))
    starts, sizes, steps, shape = [], [], [], []
    extents = iter(node.shape)
    for entry in entries:
        if entry is None:
            shape.append(1)
            continue
        start, size, step = _range(entry, next(extents))
        starts.append(start)
        sizes.append(size)
        steps.append(step)
        if isinstance(entry, slice):
            shape.append(size)
    cut = sliced(node, tuple(starts), tuple(sizes), tuple(steps))
    return cut if shape == sizes else reshape(cut, shape)


def completed(entries: tuple[Any, ...], rank: int) -> list[Any]:
    """The index with its Ellipsis, or what is missing at the end, written out as full slices."""
    ellipses = [place for place, entry in enumerate(entries) if entry is Ellipsis]
    given = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if len(ellipses) > 1 or given > rank:
        raise ArgumentError(f"index {entries} of a tensor of {rank} dimensions")
    place = ellipses[0] if ellipses else len(entries)
    return [*entries[:place], *[slice(None)] * (rank - given), *entries[place + 1 :]]


def _indices(entry: slice, extent: int) -> tuple[int, int, int]:
    """As `entry.indices(extent)`, of which sizes may be symbolic (`lazy/symbols`)."""
    if not any(map(is_symbolic, (entry.start, entry.stop, entry.step, extent))):
        return entry.indices(extent)
    step = 1 if entry.step is None else integer(entry.step, "a step")
    least, most = (0, extent) if step > 0 else (-1, extent - 1)

    def place(given: Any, otherwise: int) -> int:
        if given is None:
            return otherwise
        found = integer(given, "a bound of a slice")
        return max(found + extent, least) if found < 0 else min(found, most)

    first, last = (least, most) if step > 0 else (most, least)
    return place(entry.start, first), place(entry.stop, last), step


def _range(entry: Any, extent: int) -> tuple[int, int, int]:
    if isinstance(entry, slice):
        if entry.step == 0:
            raise ArgumentError("a slice of step 0", hints=["steps are positive, or negative: backwards"])
        start, stop, step = _indices(entry, extent)
        size = max(0, -((start - stop) // step))
        return start if size else 0, size, step
    if isinstance(entry, bool) or not isinstance(entry, Integral):
        raise ArgumentError(
            f"an index of type {type(entry).__name__}",
            hints=["indices are integers, slices, None, ... and tensors of integers or bools"],
        )
    place = integer(entry, "an index")
    if not -extent <= place < extent:
        raise ArgumentError(f"index {place} in a dimension of {extent}")
    return place % extent, 1, 1
