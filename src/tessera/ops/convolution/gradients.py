"""The gradient of convolutions, out of existing operators.

With Y = X * W: dX is the convolution of dY with W turned around; dW is the convolution of X by dY, images and channels
exchanged, where stride and dilation have exchanged their places. (Dumoulin and Visin, "A guide to convolution
arithmetic for deep learning", 2016.)

With a stride of s, elements of X whose places are equal modulo s meet the same taps of W, and no others: dX is s x s
convolutions of dY, each by its own taps, whose results lie between each other. One convolution of dY with zeros between
its elements would say the same, and multiply s x s times as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product as product_of
from typing import Any, NamedTuple, TypeAlias

from tessera.dtypes import accumulator
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call, literal
from tessera.ops.layout.views import part, reshape, sliced, transpose

N: TypeAlias = Any
Pair: TypeAlias = tuple[int, int]
Sides: TypeAlias = tuple[int, int, int, int]


def convolution_gradient(
    g: N,
    operands: tuple[N, N],
    out: N,
    *,
    stride: Pair,
    padding: Sides,
    dilation: Pair,
    groups: int,
) -> tuple[N, N]:
    """The cotangents of image and weights."""
    image, weights = operands
    return (
        image_cotangent(g, image.shape, weights, stride, padding, dilation, groups),
        weights_cotangent(g, image, weights.shape, stride, padding, dilation, groups),
    )


FEW_CHANNELS = 8
"""Channels below which a convolution that results in them leaves most lanes of vectors empty."""


class Phase(NamedTuple):
    """Every `stride`-th place of an image along one side: `length` of them, and the `taps` that meet them, which are
    every `every`-th from `first` on and `apart` elements of the cotangent from each other. The first place's taps begin
    at element `start` of the cotangent.
    """

    length: int
    taps: int
    first: int
    every: int
    apart: int
    start: int

    @property
    def reach(self) -> int:
        """Elements of the cotangent from the first to the last that a place's taps meet."""
        return self.apart * (self.taps - 1)

    @property
    def places(self) -> list[Pair]:
        """The taps, and the element of the cotangent that the first place meets by each."""
        return [(self.first + self.every * tap, self.start + self.reach - self.apart * tap) for tap in range(self.taps)]


def _phases(extent: int, window: int, stride: int, padding: int, dilation: int) -> list[Phase]:
    """The phases of one side of an image, all of equal length: the last ones may reach past its end.

    Place h meets tap i of the window at y where y s + i d = h + p. With h + p = s q + r that is y = q - (i d - r) / s.
    """
    common = math.gcd(stride, dilation)
    every, apart = stride // common, dilation // common
    phases = []
    for place in range(min(stride, extent)):
        q, r = divmod(place + padding, stride)
        first = next((tap for tap in range(min(every, window)) if (tap * dilation - r) % stride == 0), None)
        taps = 0 if first is None else len(range(first, window, every))
        earliest = q - ((first or 0) * dilation - r) // stride - apart * (taps - 1)
        phases.append(Phase(-(-extent // stride), taps, first or 0, every, apart, earliest))
    return phases


def image_cotangent(
    g: N,
    shape: Shape,
    weights: N,
    stride: Pair,
    padding: Sides,
    dilation: Pair,
    groups: int,
    bias: N | None = None,
) -> N:
    """The cotangent of an image of `shape`, which is a transposed convolution of `g`; with a `bias` of each channel,
    added before elements are moved.
    """
    height, width = weights.shape[2:]
    if 0 in shape:
        return call("broadcast_to", literal(0, g.dtype), shape=shape)  # no elements
    rows = _phases(shape[1], height, stride[0], padding[0], dilation[0])
    columns = _phases(shape[2], width, stride[1], padding[1], dilation[1])
    made = (_by_products if _is_product(g, weights, groups) else _by_convolutions)(g, weights, rows, columns, groups)
    lines = []
    for row in rows:
        found = [made(row, column) if bias is None else made(row, column) + bias for column in columns]
        lines.append(part(_interleaved(found, 2), 2, 0, shape[2]))
    return part(_interleaved(lines, 1), 1, 0, shape[1])


def _is_product(g: N, weights: N, groups: int) -> bool:
    """Whether few elements meet many weights, or too few channels result for a convolution to fill vectors. What taps
    give is rounded before it is added up, so that this is for dtypes that sums are formed in.
    """
    outputs, depth, *window = weights.shape
    few = math.prod(g.shape[:3]) <= outputs or depth < FEW_CHANNELS
    return few and groups == 1 and math.prod(window) > 1 and g.dtype is accumulator(g.dtype)


def _joined(parts: Sequence[N], axis: int) -> N:
    return call("concat", *parts, axis=axis) if len(parts) > 1 else parts[0]


def _interleaved(parts: Sequence[N], axis: int) -> N:
    """Places of several images in turn along an axis, each of which is written where it comes to lie."""
    if len(parts) == 1:
        return parts[0]
    shape: Shape = parts[0].shape
    apart = [reshape(each, (*shape[: axis + 1], 1, *shape[axis + 1 :])) for each in parts]
    return reshape(_joined(apart, axis + 1), (*shape[:axis], len(parts) * shape[axis], *shape[axis + 1 :]))


def _by_convolutions(
    g: N, weights: N, rows: Sequence[Phase], columns: Sequence[Phase], groups: int
) -> Callable[[Phase, Phase], N]:
    """Gives the cotangent of the places of a phase of rows and one of columns: a convolution of `g` by their taps."""
    outputs, depth, height, width = weights.shape
    inner = reshape(weights, (groups, outputs // groups, depth, height, width))
    exchanged = reshape(transpose(inner, (0, 2, 1, 3, 4)), (groups * depth, outputs // groups, height, width))

    def of_phase(row: Phase, column: Phase) -> N:
        around, kept = [], g
        for axis, phase in ((1, row), (2, column)):
            found = _between(kept, axis, phase.start, phase.length + phase.reach) if phase.taps else None
            if found is None:
                shape = (g.shape[0], row.length, column.length, groups * depth)
                return call("broadcast_to", literal(0, g.dtype), shape=shape)
            kept, zeros = found
            around.append(zeros)
        (top, bottom), (left, right) = around
        return call(
            "conv2d",
            kept,
            _every(_every(exchanged, 2, row), 3, column),
            stride=(1, 1),
            padding=(top, left, bottom, right),
            dilation=(row.apart, column.apart),
            groups=groups,
        )

    return of_phase


def _by_products(
    g: N, weights: N, rows: Sequence[Phase], columns: Sequence[Phase], groups: int
) -> Callable[[Phase, Phase], N]:
    """The same by one product, which reads weights as they lie: of each element of `g` by all taps. Places of the image
    add up what taps gave them.
    """
    count, height, width, outputs = g.shape
    depth, *window = weights.shape[1:]
    product = call(
        "matmul",
        reshape(g, (count * height * width, outputs)),
        reshape(weights, (outputs, depth * window[0] * window[1])),
    )
    given = reshape(product, (count, height, width, depth, *window))
    before, after = [0] * 6, [0] * 6
    for axis, phases in ((1, rows), (2, columns)):
        met = [phase for phase in phases if phase.taps]
        first = min([phase.start for phase in met], default=0)
        end = max([phase.start + phase.length + phase.reach for phase in met], default=0)
        before[axis], after[axis] = max(-first, 0), max(end - g.shape[axis], 0)
    if any(before) or any(after):
        zero = literal(0, g.dtype)
        given = call("pad", given, zero, before=tuple(before), after=tuple(after), mode="constant")

    def of_phase(row: Phase, column: Phase) -> N:
        total: N = None
        for (i, y), (j, x) in product_of(row.places, column.places):
            starts = (0, y + before[1], x + before[2], 0, i, j)
            met = sliced(given, starts, (count, row.length, column.length, depth, 1, 1), (1,) * 6)
            total = met if total is None else total + met
        shape = (count, row.length, column.length, depth)
        if total is None:
            return call("broadcast_to", literal(0, g.dtype), shape=shape)
        return reshape(total, shape)

    return of_phase


def _every(weights: N, axis: int, phase: Phase) -> N:
    """A phase's taps along one side of the window, the last one first."""
    last = phase.first + phase.every * (phase.taps - 1)
    rank = range(len(weights.shape))
    starts = tuple(last if dim == axis else 0 for dim in rank)
    sizes = tuple(phase.taps if dim == axis else extent for dim, extent in enumerate(weights.shape))
    steps = tuple(-phase.every if dim == axis and phase.taps > 1 else 1 for dim in rank)
    return sliced(weights, starts, sizes, steps)


def weights_cotangent(g: N, image: N, shape: Shape, stride: Pair, padding: Sides, dilation: Pair, groups: int) -> N:
    """The cotangent of weights of `shape`."""
    outputs, depth, height, width = shape
    parts = []
    for group in range(groups):
        pixels = part(image, 3, group * depth, depth)
        cotangent = part(g, 3, group * (outputs // groups), outputs // groups)
        few = math.prod(cotangent.shape[:3]) <= 2 * outputs
        if few or (height * width == 1 and not any(padding)):
            parts.append(_by_columns(cotangent, pixels, (height, width), stride, padding, dilation))
            continue
        found = call(
            "conv2d",
            transpose(pixels, (3, 1, 2, 0)),
            transpose(cotangent, (3, 0, 1, 2)),
            stride=dilation,
            padding=padding,
            dilation=stride,
            groups=1,
        )
        # What the stride left over of the image comes after.
        found = part(part(found, 1, 0, height), 2, 0, width)
        parts.append(transpose(found, (3, 0, 1, 2)))
    return _joined(parts, 0)


def _by_columns(g: N, image: N, window: Pair, stride: Pair, padding: Sides, dilation: Pair) -> N:
    """The cotangent of weights as a product over all pixels of the results: of their cotangents, and of what the window
    saw there.
    """
    count, rows, columns, outputs = g.shape
    depth, taps = image.shape[3], window[0] * window[1]
    top, left, bottom, right = padding
    if any(padding):
        image = call(
            "pad",
            image,
            literal(0, image.dtype),
            before=(0, top, left, 0),
            after=(0, bottom, right, 0),
            mode="constant",
        )
    seen = []
    for row in range(window[0]):
        for column in range(window[1]):
            starts = (0, row * dilation[0], column * dilation[1], 0)
            met = sliced(image, starts, (count, rows, columns, depth), (1, *stride, 1))
            seen.append(reshape(met, (count, rows, columns, depth, 1)))
    pixels = reshape(_joined(seen, 4), (count * rows * columns, depth * taps))
    cotangents = transpose(reshape(g, (count * rows * columns, outputs)), (1, 0))
    return reshape(call("matmul", cotangents, pixels), (outputs, depth, *window))


def _between(x: N, axis: int, start: int, length: int) -> tuple[N, Pair] | None:
    """What elements [start, start + length) along an axis are where zeros lie around `x`: those of them that `x` has,
    and how many zeros come before and after; None where `x` has none.
    """
    extent = x.shape[axis]
    first, end = max(start, 0), min(start + length, extent)
    if first >= end:
        return None
    kept = x if end - first == extent else part(x, axis, first, end - first)
    return kept, (first - start, start + length - end)
