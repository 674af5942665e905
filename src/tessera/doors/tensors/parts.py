"""Parts of tensors, and tensors out of parts. What can be a view is one. `axis` may be written `dim`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tessera.doors.calls.axes import along
from tessera.doors.calls.nodes import node, on
from tessera.doors.tensors.shapes import unsqueeze
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.ops.layout import views
from tessera.ops.layout.views import integer, normalized_axis, several
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike


def concat(
    tensors: Sequence[ArrayLike], axis: int = 0, *, dim: int | None = None, stream: Stream | None = None
) -> Tensor:
    """Tensors joined along an axis; all other extents agree.

    Shapes: those of the tensors, with the sum of their extents along the axis. Dtypes: all. Raises ShapeMismatchError
    (E_SHAPE_MISMATCH), ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.concat([op.tensor([1, 2]), op.tensor([3])]).tolist()
    [1, 2, 3]
    """
    return on(views.concat([node(part) for part in several(tensors, "tensors")], along(axis, dim, 0)), stream)


def split(
    x: ArrayLike, sizes: int | Sequence[int], axis: int = 0, *, dim: int | None = None, stream: Stream | None = None
) -> tuple[Tensor, ...]:
    """The parts of x along an axis, as views: of `sizes` elements each, of which the last may be shorter, or of the
    sizes given (as in torch).

    Raises ShapeMismatchError where the sizes do not add up to the extent.

    Shapes: x's, with a part of the extent along the axis. Dtypes: all.

    >>> [part.tolist() for part in op.split(op.arange(5), 2)]
    [[0, 1], [2, 3], [4]]
    """
    value = node(x)
    if not value.shape:
        raise ShapeMismatchError("split of a tensor without dimensions")
    place = normalized_axis(along(axis, dim, 0), len(value.shape))
    extent = value.shape[place]
    if isinstance(sizes, Sequence):
        parts = [integer(size, "a size") for size in sizes]
    else:
        size = integer(sizes, "a size")
        if size < 1:
            raise ArgumentError(f"split into parts of {size}", hints=["sizes are positive"])
        parts = [min(size, extent - start) for start in range(0, extent, size)] or [0]
    if sum(parts) != extent or min(parts, default=0) < 0:
        raise ShapeMismatchError(f"split: sizes {parts} along axis {place} of a tensor of shape {value.shape}")
    starts = accumulate(parts, initial=0)
    pieces = [views.part(value, place, start, size) for start, size in zip(starts, parts, strict=False)]
    return tuple([on(piece, stream) for piece in pieces])


def chunk(
    x: ArrayLike, chunks: int, axis: int = 0, *, dim: int | None = None, stream: Stream | None = None
) -> tuple[Tensor, ...]:
    """x in that many parts along an axis, as views, or fewer: all of one size but the last, which may be shorter.

    Shapes: x's, with a part of the extent along the axis. Dtypes: all. Raises ArgumentError (E_ARGUMENT).

    >>> [part.tolist() for part in op.chunk(op.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    value, count, axis = node(x), integer(chunks, "chunks"), along(axis, dim, 0)
    if count < 1:
        raise ArgumentError(f"chunk into {count} parts", hints=["1 or more"])
    extent = value.shape[normalized_axis(axis, len(value.shape))] if value.shape else 0
    if not extent:
        return split(value, [0] * count, axis, stream=stream)
    return split(value, -(-extent // count), axis, stream=stream)


def unbind(x: ArrayLike, axis: int = 0, *, dim: int | None = None, stream: Stream | None = None) -> tuple[Tensor, ...]:
    """The parts of x at each place along an axis, as views without it.

    Shapes: x's without the axis. Dtypes: all. Raises ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> [part.tolist() for part in op.unbind(op.tensor([[1, 2], [3, 4]]))]
    [[1, 2], [3, 4]]
    """
    value = node(x)
    if not value.shape:
        raise ShapeMismatchError("unbind of a tensor without dimensions")
    place = normalized_axis(along(axis, dim, 0), len(value.shape))
    rest = (*value.shape[:place], *value.shape[place + 1 :])
    parts = (views.part(value, place, start, 1) for start in range(value.shape[place]))
    return tuple([on(views.reshape(each, rest), stream) for each in parts])


def stack(
    tensors: Sequence[ArrayLike], axis: int = 0, *, dim: int | None = None, stream: Stream | None = None
) -> Tensor:
    """Tensors of one shape joined along a new axis of the result.

    Shapes: that of each tensor, with as many as there are at `axis`. Dtypes: all. Raises ShapeMismatchError
    (E_SHAPE_MISMATCH), ArgumentError (E_ARGUMENT) for an axis out of range.

    >>> op.stack([op.tensor([1, 2]), op.tensor([3, 4])], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    nodes = [node(each) for each in several(tensors, "tensors")]
    if not nodes:
        raise ArgumentError("stack of no tensors")
    shape = nodes[0].shape
    if any(each.shape != shape for each in nodes):
        raise ShapeMismatchError(
            f"stack of tensors of shapes {' and '.join(str(each.shape) for each in nodes)}",
            hints=["all have the same shape; concat joins tensors that differ along one axis"],
        )
    place = normalized_axis(along(axis, dim, 0), len(shape) + 1)
    if place == len(shape):
        return on(views.concat([unsqueeze(each, place) for each in nodes], place), stream)
    # Joined along the axis that follows the new one, so that kernels write their results in place.
    joined = views.concat(nodes, place)
    return on(views.reshape(joined, (*shape[:place], len(nodes), *shape[place:])), stream)
