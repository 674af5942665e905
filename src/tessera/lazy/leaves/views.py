"""Views of leaves: layout operators on what exists already are new strides over the same memory, not work to do."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import real_of
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Shape, contiguous_strides


def _view(leaf: Leaf, shape: Shape, strides: Shape, first_element: int = 0) -> Leaf:
    address = leaf.address + first_element * leaf.dtype.itemsize
    return leaf.view(interning.buffer(shape, strides, leaf.dtype, leaf.device, leaf.structure.frozen), address)


def transposed(leaf: Leaf, permutation: Sequence[int]) -> Leaf:
    """The view whose dimension `d` is the leaf's dimension `permutation[d]`."""
    shape, strides = leaf.shape, leaf.strides
    return _view(leaf, tuple(shape[d] for d in permutation), tuple(strides[d] for d in permutation))


def broadcast(leaf: Leaf, shape: Shape) -> Leaf:
    """The view of a shape that the leaf broadcasts to: new and repeated dimensions have stride 0."""
    strides = (0,) * (len(shape) - len(leaf.shape)) + leaf.strides
    return _view(leaf, shape, strides)


def sliced(leaf: Leaf, starts: Sequence[int], shape: Shape, steps: Sequence[int]) -> Leaf:
    """The view of elements `starts[d] + i * steps[d]`; one entry per dimension, in range."""
    first = sum(start * stride for start, stride in zip(starts, leaf.strides, strict=True))
    strides = tuple(stride * step for stride, step in zip(leaf.strides, steps, strict=True))
    return _view(leaf, shape, strides, first if 0 not in shape else 0)


def as_real(leaf: Leaf) -> Leaf:
    """The parts of complex elements, side by side along a new last dimension."""
    strides = (*[2 * stride for stride in leaf.strides], 1)
    structure = interning.buffer((*leaf.shape, 2), strides, real_of(leaf.dtype), leaf.device, leaf.structure.frozen)
    return leaf.view(structure, leaf.address)


def reshaped(leaf: Leaf, shape: Shape) -> Leaf | None:
    """The view of another shape with as many elements, or None where the strides do not permit one."""
    strides = reshaped_strides(leaf.shape, leaf.strides, shape)
    return None if strides is None else _view(leaf, shape, strides)


def reshaped_strides(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """Strides that walk the same elements in row-major order under `target`, or None where there are none.

    Adjacent dimensions whose strides chain (`stride[d] == extent[d + 1] * stride[d + 1]`) make one run of memory; a
    target dimension must lie within one run.
    """
    if 0 in target:
        return contiguous_strides(target)
    result = [0] * len(target)
    wanted = len(target) - 1
    for extent, stride in reversed(_runs(shape, strides)):
        step, covered = stride, 1
        while wanted >= 0 and covered * target[wanted] <= extent and extent % (covered * target[wanted]) == 0:
            if covered == extent and target[wanted] != 1:
                break
            result[wanted] = step
            covered *= target[wanted]
            step *= target[wanted]
            wanted -= 1
        if covered != extent:
            return None
    return tuple(result)


def _runs(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    return runs


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether elements lie in row-major order without gaps; strides along extents of 1 do not count."""
    expected = contiguous_strides(shape)
    return 0 in shape or all(
        extent == 1 or stride == wanted for extent, stride, wanted in zip(shape, strides, expected, strict=True)
    )
