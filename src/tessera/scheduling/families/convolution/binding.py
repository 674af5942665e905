"""Convolutions of a program over merged axes, and what they compute there.

    image [N, H, W, C]              ->  [N, (G,) H, x, W, C / G]     element (x, w) is column  stride x + w
    weights [O, C / G, KH, KW]      ->  the same, until they are packed (`weights.py`)
    result [N, OH, OW, O]           ->  [N, (G,) y, x, O / G]

A window of one pixel without padding walks the image as the result is walked: images, rows and columns that follow each
other in memory are then one row of pixels, and the convolution is a plain matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import add, mul
from typing import NamedTuple

from tessera.rewrite.fusion.alignment import Alignment, beyond
from tessera.scheduling.binding.arrays import (
    ArrayLayout,
    ArrayRole,
    Arrays,
    Copy,
    LayoutFacts,
    Limits,
    Pattern,
    ShapedArrays,
    Tensor,
    V,
    array_layout,
    columns_of,
    in_memory,
    layout_facts,
    shaped_arrays,
)
from tessera.scheduling.binding.axes import Axes, Column, merge_axes
from tessera.scheduling.binding.regions import Region, operation_of, read_region
from tessera.scheduling.binding.slides import Slide, slides_of
from tessera.scheduling.families.convolution.weights import GROUPS
from tessera.scheduling.language.expression import Recorder, Value
from tessera.scheduling.lowering.spec import Argument, ConvolutionSpec, Window, under_cast

_PLACES = beyond("convolution", 4)
_ROWS, _COLUMNS, _CHANNELS = _PLACES[0, "y"], _PLACES[0, "x"], _PLACES[0, "c"]
_KERNEL_ROWS, _KERNEL_COLUMNS, _DEPTH = _PLACES[1, "ky"], _PLACES[1, "kx"], _PLACES[1, "c"]
"""Places in the domain, behind the four of the result: of the image, and of the weights."""
_IMAGE = frozenset((_ROWS, _COLUMNS, _CHANNELS))
"""What the image walks: an operand of a prologue may walk but one of them."""


class _Steps(NamedTuple):
    """What the operator says of its window."""

    groups: int
    rows: Slide
    columns: Slide


class _Walk(NamedTuple):
    """The axes of a kernel: names and extents, and the strides of all arrays along each."""

    names: tuple[str, ...]
    extents: tuple[int, ...]
    columns: tuple[Column, ...]


def lay_out(
    region: Region, domain: Sequence[int], arrays: Arrays[V], limits: Limits, copied: Copy[V]
) -> tuple[Arrays[V], ShapedArrays]:
    """The arrays of a convolution, all in memory."""
    arrays = in_memory(arrays, copied)
    return arrays, convolution_arrays(region, domain, arrays)


def convolution_arrays(region: Region, domain: Sequence[int], arrays: Arrays[Tensor]) -> ShapedArrays:
    """The arrays of a convolution. The domain is that of the result, N, OH, OW, O, and then H, W, C, KH, KW and the
    channels of a group.
    """
    steps = region.memo.once(_steps, region)
    window, pointwise = _window(steps, domain)
    columns = columns_of(arrays, len(domain))
    roles = tuple([_role(alignment, index >= len(region.loads)) for index, (_, alignment) in enumerate(arrays)])
    images = [index for index, role in enumerate(roles) if role == "image"]
    # A number for each image may belong to the prologue or to what follows, which have only the images' axis in common.
    by_image = any({*alignment} - {None} == {0} for _, alignment in arrays)
    walk = _walked(domain, columns, steps, images, pointwise, by_image)
    batch = walk.names[:-2]
    *outer, y, x = zip(walk.extents, walk.columns, strict=True)
    h, w = (y, x) if pointwise else ((domain[place], columns[place]) for place in (_ROWS, _COLUMNS))
    # The image walks its own rows, and columns beside those of the result.
    is_image = tuple([role == "image" for role in roles])
    y = y[0], tuple([0 if image else stride for image, stride in zip(is_image, y[1], strict=True)])
    h, w = ((extent, tuple(map(mul, column, is_image))) for extent, column in (h, w))
    depth = domain[_DEPTH], tuple(map(add, columns[_CHANNELS], columns[_DEPTH]))
    inner = (domain[3] // steps.groups, columns[3]), *[(domain[p], columns[p]) for p in (_KERNEL_ROWS, _KERNEL_COLUMNS)]
    axes = Axes(*zip(*outer, y, h, x, w, *inner, depth, strict=True))
    names = (*batch, "y", "h", "x", "w", "n", "kh", "kw", "c")
    facts = layout_facts(names, axes, arrays)
    return shaped_arrays(_convolution_layout(facts, roles, window), names, axes)


def _role(alignment: Alignment, is_output: bool) -> str:
    if is_output:
        return "result"
    return "image" if not _IMAGE.isdisjoint(alignment) else "weights" if _KERNEL_ROWS in alignment else ""


@lru_cache(maxsize=1 << 12)
def _convolution_layout(
    facts: LayoutFacts,
    roles: tuple[str, ...],
    window: Window,
) -> ArrayLayout:
    names, _, _, _ = facts
    batch = names[: names.index("y")]
    image, weights, result = {*batch, "h", "x", "w"}, {GROUPS, "n", "kh", "kw", "c"}, {*batch, "y", "x", "n"}
    known = {
        "image": ArrayRole(frozenset(image | {"c"}), frozenset(image), frozenset("c"), ("c", "w")),
        "weights": ArrayRole(frozenset(weights), frozenset(weights)),  # which are packed
        "result": ArrayRole(frozenset(result), frozenset(result), contiguous=("n", "x")),
        "": ArrayRole(contiguous=("n", "x")),
    }

    def pattern(arguments: tuple[Argument, ...]) -> Pattern:
        return Pattern(arguments, batch, None, "n", True, window=window)

    return array_layout(pattern, facts, [known[role] for role in roles])


def _steps(region: Region) -> _Steps:
    anchor = operation_of(region, "convolution").anchor()
    assert anchor is not None
    return _Steps(anchor.given.get("g") or 1, *slides_of(anchor))


def _window(steps: _Steps, domain: Sequence[int]) -> tuple[Window, bool]:
    """How the window walks, and whether it is a pixel without padding, which walks as the result does."""
    rows, columns = steps.rows, steps.columns
    before, after = any((rows.before, columns.before)), any((rows.after, columns.after))
    if (domain[_KERNEL_ROWS], domain[_KERNEL_COLUMNS]) == (1, 1) and not before and not after:
        return Window(), True
    stride, padding, dilation = (rows.step, columns.step), (rows.before, columns.before), (rows.apart, columns.apart)
    return Window(stride, padding, dilation, after and not before), False


def _walked(
    domain: Sequence[int],
    columns: Sequence[Column],
    steps: _Steps,
    images: Sequence[int],
    pointwise: bool,
    by_image: bool,
) -> _Walk:
    """Images and groups, then rows and columns of results, merged where all arrays permit; images stay an axis of their
    own `by_image`.
    """
    groups = steps.groups
    down, across = [list(columns[place]) for place in (1, 2)]
    for index in images:
        down[index] = steps.rows.step * columns[_ROWS][index]
        across[index] = steps.columns.step * columns[_COLUMNS][index]
    extents = (domain[0], domain[1], domain[2])
    walk = _Walk(("y", "x"), extents[1:], (tuple(down), tuple(across)))
    if groups == 1 and pointwise:
        first = 1 if by_image else 0
        merged = merge_axes(extents[first:], (columns[0], tuple(down), tuple(across))[first:])
        count = len(merged.extents)
        nothing = (0,) * len(columns[0])
        rest = 2 - min(count, 2)
        names = ("b0", "y", "x")[max(0, 1 - max(count - 2, 0)) :]
        walk = _Walk(names, (*[1] * rest, *merged.extents), (*[nothing] * rest, *merged.columns))
        if not by_image:
            return walk
    if groups > 1:
        share = domain[-1], domain[3] // groups
        apart = [
            columns[_CHANNELS][index] * share[0] if index in images else columns[3][index] * share[1]
            for index in range(len(columns[0]))
        ]
        walk = _Walk((GROUPS, *walk.names), (groups, *walk.extents), (tuple(apart), *walk.columns))
    if extents[0] != 1:
        walk = _Walk(("b0", *walk.names), (extents[0], *walk.extents), (columns[0], *walk.columns))
    return walk


def convolution_spec(region: Region, pattern: Pattern) -> ConvolutionSpec:
    """The specification of a convolution with its prologues and epilogues."""
    recorder = _ConvolutionRecorder(pattern.outer)
    outputs = read_region(region, pattern, recorder)
    assert recorder.convolved is not None and pattern.window is not None
    image, weights, accumulator = recorder.convolved
    return ConvolutionSpec(
        region.name,
        pattern.arguments,
        pattern.outer,
        image,
        under_cast(weights).argument,
        pattern.window,
        GROUPS if GROUPS in pattern.outer else None,
        accumulator,
        outputs,
    )


class _ConvolutionRecorder(Recorder):
    """A recorder that notes the operands of the one convolution."""

    def __init__(self, batch: Sequence[str]) -> None:
        super().__init__(None)
        self.batch = batch
        self.convolved: tuple[Value, Value, Value] | None = None

    def convolve(self, image: Value, weights: Value) -> Value:
        """The tile of sums. They are formed in the image's accumulator, whatever the weights are packed in."""
        result = self.make("accumulator", (), (), image.dtype, (*self.batch, "y", "x", "n"))
        self.convolved = image, weights, result
        return result
