"""Convolutions of a program over merged axes, and what they compute there.

    image [N, H, W, C]              ->  [N, (G,) H, x, W, C / G]     element (x, w) is column  stride x + w
    weights [O, C / G, KH, KW]      ->  the same, until they are packed (`weights.py`)
    result [N, OH, OW, O]           ->  [N, (G,) y, x, O / G]

A window of one pixel without padding walks the image as the result is walked: images, rows and columns that follow each
other in memory are then one row of pixels, and the convolution is a plain matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from tessera.ir.graph import GraphOperation
from tessera.scheduling.binding.arrays import Arrays, Copy, Limits, Pattern, ShapedArrays, Tensor, V, in_memory
from tessera.scheduling.binding.axes import Column, domain_strides, merge_axes
from tessera.scheduling.binding.regions import Region, operation_of, read_region
from tessera.scheduling.families.convolution.weights import GROUPS
from tessera.scheduling.language.expression import Recorder, Value
from tessera.scheduling.lowering.spec import Argument, ConvolutionSpec, Window, under_cast

_KERNEL_ROWS = 7
"""The place of the window's rows in the domain: see `program.KernelItem`."""
_IMAGE = {4, 5, 6}
"""The places of the image's rows, columns and channels: an operand of a prologue may have but one of them."""


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
    anchor = operation_of(region, "convolution")
    groups = cast(int, anchor.attribute("groups"))
    window, pointwise = _window(anchor, domain)
    columns = tuple(zip(*[domain_strides(tensor.strides, a, len(domain)) for tensor, a in arrays], strict=True))
    images = [index for index, (_, alignment) in enumerate(arrays) if not _IMAGE.isdisjoint(alignment)]
    stride = cast(tuple[int, int], anchor.integers("stride"))
    # A number for each image may belong to the prologue or to what follows, which have only the images' axis in common.
    by_image = any({*alignment} - {None} == {0} for _, alignment in arrays)
    walk = _walked(domain, columns, groups, images, stride, pointwise, by_image)
    extents = dict(zip(walk.names, walk.extents, strict=True))
    outputs, depth = domain[3] // groups, domain[-1]
    extents |= {"n": outputs, "c": depth, "kh": domain[7], "kw": domain[8]}
    extents |= {"h": extents["y"], "w": extents["x"]} if pointwise else {"h": domain[4], "w": domain[5]}
    made = []
    for index, (tensor, alignment) in enumerate(arrays):
        strides = {name: column[index] for name, column in zip(walk.names, walk.columns, strict=True)}
        if index in images:
            made.append(_image(tensor, strides, extents, [columns[place][index] for place in (4, 5, 6)], pointwise))
        elif _KERNEL_ROWS in alignment:
            made.append(_weights(tensor, strides, [columns[place][index] for place in (3, 7, 8, 9)]))
        else:
            strides["n"] = columns[3][index]
            made.append(_result(tensor, strides, extents, index >= len(region.loads)))
    batch = tuple(name for name in walk.names if name not in ("y", "x"))
    pattern = Pattern(tuple(argument for argument, _ in made), batch, None, "n", True, window=window)
    axes = tuple(argument.axes for argument, _ in made)
    return ShapedArrays(pattern, extents, axes, tuple(strides for _, strides in made))


def _window(anchor: GraphOperation, domain: Sequence[int]) -> tuple[Window, bool]:
    """How the window walks, and whether it is a pixel without padding, which walks as the result does."""
    stride, dilation = anchor.integers("stride"), anchor.integers("dilation")
    top, left, bottom, right = anchor.integers("padding")
    before, after = any((top, left)), any((bottom, right))
    if tuple(domain[7:9]) == (1, 1) and not before and not after:
        return Window(), True
    return Window((stride[0], stride[1]), (top, left), (dilation[0], dilation[1]), after and not before), False


def _walked(
    domain: Sequence[int],
    columns: Sequence[Column],
    groups: int,
    images: Sequence[int],
    stride: tuple[int, int],
    pointwise: bool,
    by_image: bool,
) -> _Walk:
    """Images and groups, then rows and columns of results, merged where all arrays permit; images stay an axis of their
    own `by_image`.
    """
    down, across = [list(columns[place]) for place in (1, 2)]
    for index in images:
        down[index], across[index] = stride[0] * columns[4][index], stride[1] * columns[5][index]
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
            columns[6][index] * share[0] if index in images else columns[3][index] * share[1]
            for index in range(len(columns[0]))
        ]
        walk = _Walk((GROUPS, *walk.names), (groups, *walk.extents), (tuple(apart), *walk.columns))
    if extents[0] != 1:
        walk = _Walk(("b0", *walk.names), (extents[0], *walk.extents), (columns[0], *walk.columns))
    return walk


def _image(
    tensor: Tensor, strides: Mapping[str, int], extents: Mapping[str, int], own: Sequence[int], pointwise: bool
) -> tuple[Argument, tuple[int, ...]]:
    """The image; `own` are its strides along rows, columns and channels."""
    rows, columns, channels = own
    walked = {name: stride for name, stride in strides.items() if name not in ("y", "x")}
    walked["h"] = strides["y"] if pointwise else rows
    walked["x"] = strides["x"]
    walked["w"] = strides["x"] if pointwise else columns
    walked["c"] = 1 if extents["c"] == 1 else channels
    unit = "c" if walked["c"] == 1 else "w" if walked["w"] == 1 else None
    return _argument(tensor, walked, unit)


def _weights(tensor: Tensor, strides: Mapping[str, int], own: Sequence[int]) -> tuple[Argument, tuple[int, ...]]:
    """The weights as they lie; `own` are their strides along channels of the result, rows, columns, channels."""
    walked = {GROUPS: strides[GROUPS]} if GROUPS in strides else {}
    return _argument(tensor, {**walked, **dict(zip(("n", "kh", "kw", "c"), own, strict=True))}, None)


def _result(
    tensor: Tensor, strides: Mapping[str, int], extents: Mapping[str, int], is_output: bool
) -> tuple[Argument, tuple[int, ...]]:
    """A result, which walks all axes, or an operand of an epilogue, which walks those along which it varies."""
    if tensor.is_scalar:
        return Argument(tensor.dtype, is_scalar=True), ()
    walked = {name: stride for name, stride in strides.items() if is_output or (stride and extents[name] != 1)}
    unit = next((name for name in ("n", "x") if walked.get(name) == 1), None)
    return _argument(tensor, walked, unit)


def _argument(tensor: Tensor, walked: Mapping[str, int], unit: str | None) -> tuple[Argument, tuple[int, ...]]:
    static = tuple(1 if name == unit else None for name in walked)
    return Argument(tensor.dtype, tuple(walked), static), tuple(walked.values())


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
        "g" if "g" in pattern.outer else None,
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
