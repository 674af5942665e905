"""Shapes and products over named axes of the array API standard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.doors import einsum, indexing, reductions
from tessera.doors.array_api.types import result_type
from tessera.doors.calls.nodes import call, node
from tessera.doors.elementwise import arithmetic
from tessera.doors.elementwise.arithmetic import mul
from tessera.doors.spectral import conj
from tessera.doors.tensors import parts, shapes
from tessera.doors.tensors.shapes import broadcast_to
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.lazy.structures.promotion import broadcast_shape
from tessera.typing import ArrayLike


def broadcast_arrays(*arrays: ArrayLike) -> list[Tensor]:
    """Tensors repeated to the shape in which they meet."""
    nodes = [node(each) for each in arrays]
    shape = broadcast_shape([each.shape for each in nodes])
    if shape is None:
        raise ShapeMismatchError(f"shapes {' and '.join(str(each.shape) for each in nodes)} do not broadcast")
    return [broadcast_to(each, shape) for each in nodes]


def concat(arrays: Sequence[ArrayLike], /, *, axis: int | None = 0) -> Tensor:
    """Tensors joined along an axis; without one all their elements in a row. Dtypes meet."""
    nodes = [node(each) for each in arrays]
    met = result_type(*nodes)
    nodes = [each.to(met) for each in nodes]
    return parts.concat([shapes.flatten(each) for each in nodes] if axis is None else nodes, axis or 0)


def stack(arrays: Sequence[ArrayLike], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis. Dtypes meet."""
    nodes = [node(each) for each in arrays]
    met = result_type(*nodes)
    return parts.stack([each.to(met) for each in nodes], axis)


def expand_dims(x: ArrayLike, /, *, axis: int = 0) -> Tensor:
    """x with a new dimension of extent 1."""
    return shapes.unsqueeze(x, axis)


def squeeze(x: ArrayLike, /, axis: int | Sequence[int]) -> Tensor:
    """x without dimensions, whose extents are 1. Raises ArgumentError (E_ARGUMENT) for others."""
    value = node(x)
    wanted = (axis,) if isinstance(axis, int) else tuple(axis)
    if True in [value.shape[each] != 1 for each in wanted]:
        raise ArgumentError(f"squeeze of axes {wanted} of a tensor of shape {value.shape}", hints=["of extent 1"])
    return shapes.squeeze(value, wanted)


def reshape(x: ArrayLike, /, shape: Sequence[int], *, copy: Any = None) -> Tensor:
    """The same elements under another shape."""
    return shapes.reshape(x, shape)


def repeat(x: ArrayLike, repeats: int, /, *, axis: int | None = None) -> Tensor:
    """x with each element several times in a row."""
    return shapes.repeat_interleave(x, repeats, axis)


def clip(x: ArrayLike, /, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Tensor:
    """x within bounds, numbers or tensors; x itself without them."""
    return node(x) if min is None and max is None else arithmetic.clamp(x, min, max)


def diff(
    x: ArrayLike, /, *, axis: int = -1, n: int = 1, prepend: ArrayLike | None = None, append: ArrayLike | None = None
) -> Tensor:
    """The differences of neighbours along an axis, n times, of x between what is set before it and behind it."""
    pieces = [part for part in (prepend, x, append) if part is not None]
    return shapes.diff(parts.concat(pieces, axis) if len(pieces) > 1 else x, n, axis)


def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The parts of x at each place along an axis."""
    return parts.unbind(x, axis)


def take_along_axis(x: ArrayLike, indices: ArrayLike, /, *, axis: int = -1) -> Tensor:
    """For each index its element along an axis."""
    value, places = node(x), node(indices)
    axis = axis % len(value.shape)
    extent = value.shape[axis]
    shape = broadcast_shape([(*each.shape[:axis], *each.shape[axis + 1 :]) for each in (value, places)])
    if shape is None:
        raise ShapeMismatchError(f"indices of shape {places.shape} into a tensor of shape {value.shape}")
    value = broadcast_to(value, (*shape[:axis], extent, *shape[axis:]))
    places = call("checked_index", places, what="take_along_axis", extent=extent, from_end=True)
    return indexing.gather(value, axis, broadcast_to(places, (*shape[:axis], places.shape[axis], *shape[axis:])))


def matrix_transpose(x: ArrayLike, /) -> Tensor:
    """x with its last two dimensions exchanged."""
    return node(x).mT


def vecdot(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Tensor:
    """The sum of products along an axis; of complex numbers with the first ones conjugated."""
    product = mul(conj(x1), x2)
    return reductions.sum(product, axis).to(product.dtype)


def tensordot(x1: ArrayLike, x2: ArrayLike, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The sum of products over pairs of axes: so many last ones of x1 and first ones of x2, or those given."""
    a, b = node(x1), node(x2)
    if isinstance(axes, int):
        axes = (range(len(a.shape) - axes, len(a.shape)), range(axes))
    first, second = [each % len(a.shape) for each in axes[0]], [each % len(b.shape) for each in axes[1]]
    rest_a = [axis for axis in range(len(a.shape)) if axis not in first]
    rest_b = [axis for axis in range(len(b.shape)) if axis not in second]
    labels_b = [len(a.shape) + axis for axis in range(len(b.shape))]
    for own, other in zip(first, second, strict=True):
        labels_b[other] = own
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    text_a = "".join(letters[axis] for axis in range(len(a.shape)))
    text_b = "".join(letters[label] for label in labels_b)
    result = "".join([*(text_a[axis] for axis in rest_a), *(text_b[axis] for axis in rest_b)])
    return einsum.einsum(f"{text_a},{text_b}->{result}", a, b)
