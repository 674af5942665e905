"""Indexing as users write it: integers, slices, `...` and None give views, tensors of integers and bools give copies.

As in torch, integers are taken first. The dimensions of tensors of indices, which broadcast against each other, stand
in the place of those that they index where these are neighbours, else in front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy
import torch

from tessera.dtypes import bool_, int64, uint8
from tessera.errors import ArgumentError, DTypeError, ShapeMismatchError, ValueControlFlowError
from tessera.lazy.evaluation import evaluate
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.leaf import Placeholder
from tessera.lazy.leaves.sources import from_data
from tessera.lazy.node import Node, leaf_node
from tessera.lazy.structures.promotion import broadcast_shape
from tessera.lazy.structures.structure import Shape, contiguous_strides
from tessera.ops.algebra import call
from tessera.ops.layout import views

N: TypeAlias = Any

_TENSORS = (Node, torch.Tensor, numpy.ndarray, list)


def indexed(node: Node, index: Any) -> Any:
    """`node[index]`. Raises ArgumentError (E_ARGUMENT) for what is no index, ShapeMismatchError (E_SHAPE_MISMATCH) for
    tensors of indices that do not fit, ValueControlFlowError (E_VALUE_CONTROL_FLOW) for bools that are not known while
    a function is traced; integers in tensors are checked when the result is evaluated: IndexRangeError (E_INDEX).
    """
    entries = index if type(index) is tuple else (index,)
    for entry in entries:
        if isinstance(entry, _TENSORS):
            return _gathered(node, entries)
    return views.indexed(node, index)


def has_tensors(index: Any) -> bool:
    """Whether tensors are part of an index."""
    return any(isinstance(entry, _TENSORS) for entry in (index if type(index) is tuple else (index,)))


def has_integers(index: Any) -> bool:
    """Whether tensors of integers are part of an index: they may name a place twice."""
    entries = index if type(index) is tuple else (index,)
    return any(isinstance(entry, _TENSORS) and _node(entry).dtype is not bool_ for entry in entries)


def lone_mask(node: Node, index: Any) -> Any:
    """The index as a tensor of bools that broadcasts to the node; None where it is another one."""
    entries = index if type(index) is tuple else (index,)
    if len(entries) != 1 or not isinstance(entries[0], _TENSORS):
        return None
    mask = _node(entries[0])
    if mask.dtype is not bool_:
        return None
    _refuse_mask(mask.shape, node.shape)
    return views.reshape(mask, (*mask.shape, *[1] * (len(node.shape) - len(mask.shape))))


def places(shape: Shape, index: Any) -> Any:
    """The row-major numbers of the elements that an index names in a tensor of a shape."""
    return indexed(call("iota", shape=shape), index)


def _node(entry: Any) -> Any:
    """A tensor of indices; of an empty list one of integers, as in numpy."""
    if not isinstance(entry, list):
        return as_node(entry)
    made = leaf_node(from_data(entry))
    return call("cast", made, dtype=int64) if not made.shape[-1] else made


def _gathered(node: Node, entries: tuple[Any, ...]) -> Any:
    rank = len(node.shape)
    given = [_node(entry) if isinstance(entry, _TENSORS) else entry for entry in entries]
    basic: list[Any] = []
    tensors: list[Any] = []
    axes: list[int] = []
    axis = 0
    for entry in _completed(given, rank):
        if not isinstance(entry, Node):
            basic.append(entry)
            axis += not _is_integer(entry)
            continue
        parts = _positions(entry, node.shape[_consumed(basic) :]) if entry.dtype is bool_ else [entry]
        for part in parts:
            basic.append(slice(None))
            tensors.append(part)
            axes.append(axis)
            axis += 1
    cut = views.indexed(node, tuple(basic))
    return _taken(cut, axes, tensors)


def _is_integer(entry: Any) -> bool:
    return entry is not None and not isinstance(entry, slice)


def _consumed(basic: Sequence[Any]) -> int:
    """The dimensions of the tensor that entries stand for."""
    return sum(entry is not None for entry in basic)


def _width(entry: Any) -> int:
    """The dimensions that one entry stands for."""
    if entry is None or entry is Ellipsis:
        return 0
    return len(entry.shape) if isinstance(entry, Node) and entry.dtype is bool_ else 1


def _completed(entries: Sequence[Any], rank: int) -> list[Any]:
    """The entries with the Ellipsis, or what is missing at the end, written out as full slices."""
    ellipses = [place for place, entry in enumerate(entries) if entry is Ellipsis]
    missing = rank - sum(map(_width, entries))
    if len(ellipses) > 1 or missing < 0:
        raise ArgumentError(f"an index of {rank - missing} dimensions of a tensor of {rank}", hints=["one ... at most"])
    place = ellipses[0] if ellipses else len(entries)
    return [*entries[:place], *[slice(None)] * missing, *entries[place + 1 :]]


def _refuse_mask(mask: Shape, shape: Shape) -> None:
    if mask != shape[: len(mask)]:
        raise ShapeMismatchError(
            f"bools of shape {mask} as an index of extents {shape}", hints=["the extents of what they choose from"]
        )


def _positions(mask: N, shape: Shape) -> list[N]:
    """Where bools are true: a row of indices for each of their dimensions. Evaluates them."""
    _refuse_mask(mask.shape, shape)
    structure, leaves = mask.state
    if any(isinstance(leaf, Placeholder) for leaf in leaves):
        raise ValueControlFlowError(
            "bools as an index have a size that their values decide, which a traced function does not know",
            hints=["op.where(mask, x, 0) keeps the shape", "x.at[mask].set(value) replaces", "or index outside"],
        )
    if not structure.is_leaf or structure.kind != "buffer":
        evaluate((mask,))
    values = to_torch(mask.state[1][0])
    if not mask.shape:  # a bool is a row of one, or of none
        raise ArgumentError("a single bool as an index", hints=["x[None] adds a dimension"])
    return [leaf_node(from_data(row.contiguous())) for row in values.nonzero().unbind(1)]


def _taken(node: N, axes: Sequence[int], tensors: Sequence[N]) -> Any:
    """The elements at tensors of indices along axes, of which there is one at least."""
    checked = [_checked(index, node.shape[axis]) for axis, index in zip(axes, tensors, strict=True)]
    if len(checked) == 1:
        return call("take", node, checked[0], what="index", axis=axes[0])
    shape = broadcast_shape([index.shape for index in checked])
    if shape is None:
        raise ShapeMismatchError(f"indices of shapes {' and '.join(str(each.shape) for each in checked)} do not meet")
    first, count = axes[0], len(axes)
    if list(axes) != list(range(first, first + count)):
        others = [axis for axis in range(len(node.shape)) if axis not in axes]
        node, first = views.transpose(node, [*axes, *others]), 0
    extents = node.shape[first : first + count]
    number = None
    for index, stride in zip(checked, contiguous_strides(extents), strict=True):
        part = index if stride == 1 else index * stride
        number = part if number is None else number + part
    merged = views.reshape(node, (*node.shape[:first], math.prod(extents), *node.shape[first + count :]))
    return call("take", merged, views.broadcast_to(cast(Node, number), shape), what="index", axis=first)


def _checked(index: N, extent: int) -> N:
    """Indices from 0 on, of which none is out of range."""
    if index.dtype.kind != "int":
        raise DTypeError(f"an index of {index.dtype}", hints=["integers, or bools of the extents they choose from"])
    if index.dtype is uint8:  # places to NumPy, a mask to torch
        raise DTypeError("an index of uint8", hints=['places: x[index.to("int64")]', 'a mask: x[index.to("bool")]'])
    return call("checked_index", index, what="index", extent=extent, from_end=True)
