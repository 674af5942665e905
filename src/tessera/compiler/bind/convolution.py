"""Convolutions of a program as kernels see them: their arrays over merged axes, and their packed weights.

    image [N, H, W, C]              ->  [N, (G,) H, x, W, C / G]     element (x, w) is column  stride x + w
    weights [O, C / G, KH, KW]      ->  panels [G O' KH KW C / G, 32]   (bf16: [..., 32, 2])
    result [N, OH, OW, O]           ->  [N, (G,) y, x, O / G]

A window of one pixel without padding walks the image as the result is walked: images, rows and columns that follow each
other in memory are then one row of pixels, and the convolution is a plain matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch

from tessera.compiler.bind.arrays import Call, ShapedArrays, Storage, View, over_others
from tessera.compiler.bind.launches import LibraryLaunch
from tessera.compiler.bind.layout import Column, domain_strides, merge_axes
from tessera.compiler.bind.specs import Pattern
from tessera.compiler.graph.program import Alignment, KernelItem
from tessera.dtypes import DType
from tessera.ir.graph import GraphOperation
from tessera.lazy.structure import contiguous_strides
from tessera.ops.record import Operator, bytes_once
from tessera.runtime.derived import derivation
from tessera.scheduling.families.convolution.blocks import packed_depth
from tessera.scheduling.families.convolution.nest import HALF, multiplies_pairs
from tessera.scheduling.families.convolution.problem import panel_width
from tessera.scheduling.lowering.spec import Argument, ConvolutionSpec, Spec, Window
from tessera.target import Target

GROUPS = "g"
"""The batch axis of a convolution's groups."""
_KERNEL_ROWS = 7
"""The place of the window's rows in the domain: see `program.KernelItem`."""
_IMAGE = {4, 5, 6}
"""The places of the image's rows, columns and channels: an operand of a prologue may have but one of them."""


class _Walk(NamedTuple):
    """The axes of a kernel: names and extents, and the strides of all arrays along each."""

    names: tuple[str, ...]
    extents: tuple[int, ...]
    columns: tuple[Column, ...]


def convolution_arrays(
    item: KernelItem, domain: Sequence[int], arrays: Sequence[tuple[View, Alignment]]
) -> ShapedArrays:
    """The arrays of a convolution. The domain is that of the result, N, OH, OW, O, and then H, W, C, KH, KW and the
    channels of a group.
    """
    anchor = item.convolution
    assert anchor is not None
    groups = cast(int, anchor.attribute("groups"))
    window, pointwise = _window(anchor, domain)
    columns = tuple(zip(*[domain_strides(view.strides, a, len(domain)) for view, a in arrays], strict=True))
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
    for index, (view, alignment) in enumerate(arrays):
        strides = {name: column[index] for name, column in zip(walk.names, walk.columns, strict=True)}
        if index in images:
            made.append(_image(view, strides, extents, [columns[place][index] for place in (4, 5, 6)], pointwise))
        elif _KERNEL_ROWS in alignment:
            made.append(_weights(view, strides, [columns[place][index] for place in (3, 7, 8, 9)]))
        else:
            strides["n"] = columns[3][index]
            made.append(_result(view, strides, extents, index >= len(item.loads)))
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
    view: View, strides: Mapping[str, int], extents: Mapping[str, int], own: Sequence[int], pointwise: bool
) -> tuple[Argument, tuple[int, ...]]:
    """The image; `own` are its strides along rows, columns and channels."""
    rows, columns, channels = own
    walked = {name: stride for name, stride in strides.items() if name not in ("y", "x")}
    walked["h"] = strides["y"] if pointwise else rows
    walked["x"] = strides["x"]
    walked["w"] = strides["x"] if pointwise else columns
    walked["c"] = 1 if extents["c"] == 1 else channels
    unit = "c" if walked["c"] == 1 else "w" if walked["w"] == 1 else None
    return _argument(view, walked, unit)


def _weights(view: View, strides: Mapping[str, int], own: Sequence[int]) -> tuple[Argument, tuple[int, ...]]:
    """The weights as they lie; `own` are their strides along channels of the result, rows, columns, channels."""
    walked = {GROUPS: strides[GROUPS]} if GROUPS in strides else {}
    return _argument(view, {**walked, **dict(zip(("n", "kh", "kw", "c"), own, strict=True))}, None)


def _result(
    view: View, strides: Mapping[str, int], extents: Mapping[str, int], is_output: bool
) -> tuple[Argument, tuple[int, ...]]:
    """A result, which walks all axes, or an operand of an epilogue, which walks those along which it varies."""
    if view.is_scalar:
        return Argument(view.dtype, is_scalar=True), ()
    walked = {name: stride for name, stride in strides.items() if is_output or (stride and extents[name] != 1)}
    unit = next((name for name in ("n", "x") if walked.get(name) == 1), None)
    return _argument(view, walked, unit)


def _argument(view: View, walked: Mapping[str, int], unit: str | None) -> tuple[Argument, tuple[int, ...]]:
    static = tuple(1 if name == unit else None for name in walked)
    return Argument(view.dtype, tuple(walked), static), tuple(walked.values())


# -- weights ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightPanels:
    """A form (`runtime.derived.Form`): of weights [G, O, KH, KW, C] the panels [G, O', KH, KW, C', width], or with
    `group` 2 [G, O', KH, KW, C' / 2, width, 2], in another dtype; zero where channels lack of whole panels and of
    whole pairs, or of steps of a matrix unit where there is one (`packed_depth`).
    """

    width: int
    group: int
    dtype: DType
    has_unit: bool = False

    def depth(self, channels: int) -> int:
        """The channels of a group of weights in the copy."""
        return packed_depth(channels, self.group, self.has_unit)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The extents of the copy."""
        groups, outputs, height, width, depth = shape
        panels, deep = -(-outputs // self.width), self.depth(depth) // self.group
        return (groups, panels, height, width, deep, self.width, self.group)

    def rows(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The extents of the copy as kernels walk it: row, lane, and half of a pair."""
        *outer, width, group = self.shape(shape)
        rows = 1
        for extent in outer:
            rows *= extent
        return (rows, width, group) if group > 1 else (rows, width)

    def nbytes(self, shape: Sequence[int], dtype: DType) -> int:
        """The size of the copy."""
        count = self.dtype.itemsize
        for extent in self.shape(shape):
            count *= extent
        return count

    def fill(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Writes the panels."""
        groups, outputs, height, width, depth = source.shape
        panels = target.view(self.dtype.torch).view(self.shape(source.shape))
        whole = outputs // self.width * self.width
        if whole < outputs or depth < self.depth(depth):
            panels.zero_()
        for first, end in ((0, whole), (whole, outputs)):
            for start, stop in ((0, depth // self.group * self.group), (depth // self.group * self.group, depth)):
                if first == end or start == stop:
                    continue
                lanes, halves = min(self.width, end - first), min(self.group, stop - start)
                part = source[:, first:end, :, :, start:stop].to(self.dtype.torch)
                apart = part.reshape(groups, -1, lanes, height, width, (stop - start) // halves, halves)
                place = panels[:, first // self.width : -(-end // self.width)]
                place = place[:, :, :, :, start // self.group : -(-stop // self.group), :lanes, :halves]
                place.copy_(apart.permute(0, 1, 3, 4, 5, 2, 6))


def packed_weights(call: Call, spec: Spec, target: Target) -> Call:
    """The call over packed weights where they are a constant (`op.constant`), with which the copy is kept; else the
    call itself.
    """
    assert isinstance(spec, ConvolutionSpec)
    view, _ = call.arguments[spec.weights]
    if not view.storage.frozen or view.storage.leaf is None:
        return call
    strides = dict(zip(call.shaped.axes[spec.weights], call.shaped.strides[spec.weights], strict=True))
    shape, own = weights_layout(call, strides)
    form = form_of(call, spec, target)
    made = derivation(form, view.dtype, shape, own, view.offset_bytes)
    storage = Storage(0, view.storage.leaf, derivation=made)
    return over_panels(call, spec, View(storage, view.dtype, view.shape, view.strides), form)


def _fill(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Mapping[str, Any]) -> None:
    """The call of the library that packs."""
    attributes["form"].fill(inputs[0], outputs[0].view(-1).view(torch.uint8))


def _refuse(*_: object, **__: object) -> Any:
    raise AssertionError("packing is a step of plans, which nobody writes")


PACKING = Operator(
    name="pack_window_weights",
    family="library",
    arity=(1, 1),
    operand_dtypes=_refuse,
    result=_refuse,
    flops=lambda operands, result, attributes: 0,
    bytes_moved=bytes_once,
    reference=_refuse,
    gradient=_refuse,
    body=_refuse,
    attributes={"form": None},
    library=_fill,
)
"""What packs weights that a plan computes: no operator of users, and in no table."""


def with_packing(
    call: Call,
    spec: Spec,
    target: Target,
    new: Callable[[tuple[int, ...], DType], View],
    copy: Callable[[View, View], None],
    note: Callable[[LibraryLaunch], None],
) -> Call:
    """The call over weights that are packed into memory that `new` makes: by kernels that `copy` adds, or by a call of
    the library that `note` adds, where they become another dtype or the last pair lacks a channel.
    """
    assert isinstance(spec, ConvolutionSpec)
    view, _ = call.arguments[spec.weights]
    strides = dict(zip(call.shaped.axes[spec.weights], call.shaped.strides[spec.weights], strict=True))
    shape, own = weights_layout(call, strides)
    form = form_of(call, spec, target)
    packed = new(form.rows(shape), form.dtype)
    source = View(view.storage, view.dtype, shape, own, view.offset_bytes)
    if form.dtype is not view.dtype or shape[-1] < form.depth(shape[-1]):
        if source.is_backwards:
            forwards = new(shape, view.dtype)
            copy(source, forwards)
            source = forwards
        note(LibraryLaunch(PACKING, {"form": form}, (source,), (packed,)))
    else:
        for part, place in _by_panels(source, packed, form):
            copy(part, place)
    # As the weights are seen by what reports on them, over the memory of the panels.
    return over_panels(call, spec, View(packed.storage, view.dtype, view.shape, view.strides), form)


def _by_panels(source: View, packed: View, form: WeightPanels) -> Iterator[tuple[View, View]]:
    """What is copied of the weights [G, O, KH, KW, C], and where to: the whole panels, and then the last one. Lanes
    that no channel belongs to are not written: nothing is done with their sums.
    """
    (groups, outputs, *window), (group_step, step, *steps) = source.shape, source.strides
    width, pair, size = form.width, form.group, source.dtype.itemsize
    group_place, panel_place, *places = contiguous_strides(form.shape(source.shape))
    # Walked as the weights lie, panel by panel: each is read once, a line of it at a time.
    inner = [*zip(window, steps, places[:3], strict=True)]
    inner[2] = window[2] // pair, steps[2] * pair, places[2]
    inner.sort(key=lambda axis: -axis[1])
    whole = outputs // width
    for first, panels, lanes in ((0, whole, width), (whole, 1, outputs - whole * width)):
        if panels and lanes:
            outer = [(groups, group_step, group_place), (panels, width * step, panel_place), *inner]
            axes = [*outer, (pair, steps[2], 1), (lanes, step, pair)]
            shape, read, written = zip(*axes, strict=True)
            start = source.offset_bytes + first * width * step * size
            yield (
                View(source.storage, source.dtype, shape, read, start),
                View(packed.storage, packed.dtype, shape, written, first * panel_place * size),
            )


def packed_weights_of(call: Call) -> int | None:
    """The number of the argument that holds packed weights; None where they are not packed."""
    found = [index for index, argument in enumerate(call.shaped.pattern.arguments) if "lane" in argument.axes]
    return found[0] if found else None


def unpacked(call: Call, panels: torch.Tensor) -> torch.Tensor:
    """The weights [O, C / G, KH, KW] that panels, as kernels walk them, hold."""
    extents = call.shaped.extents
    width, group = panels.shape[1], panels.shape[2] if panels.ndim > 2 else 1
    groups, outputs, depth = extents.get(GROUPS, 1), extents["n"], extents["c"]
    window, number = (extents["kh"], extents["kw"]), -(-outputs // width)
    pairs = panels.shape[0] // max(1, groups * number * math.prod(window))
    whole = panels.reshape(groups, number, *window, pairs, width, group)
    channels = pairs * group
    weights = whole.permute(0, 1, 5, 4, 6, 2, 3).reshape(groups, number * width, channels, *window)
    return weights[:, :outputs, :depth].reshape(groups * outputs, depth, extents["kh"], extents["kw"])


def form_of(call: Call, spec: ConvolutionSpec, target: Target) -> WeightPanels:
    """How the weights of a call are packed."""
    pairs = multiplies_pairs(spec, target.has_avx512bf16)
    sums = spec.accumulator.dtype
    width = panel_width(call.shaped.extents["n"], sums, target)
    dtype = call.arguments[spec.weights][0].dtype if pairs else sums
    return WeightPanels(width, 2 if pairs else 1, dtype, pairs and target.has_amx_bf16)


def weights_layout(call: Call, strides: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides of the weights as [G, O, KH, KW, C]."""
    extents = call.shaped.extents
    axes = ("n", "kh", "kw", "c")
    shape = (extents.get(GROUPS, 1), *[extents[axis] for axis in axes])
    return shape, (strides.get(GROUPS, 0), *[strides[axis] for axis in axes])


def over_panels(call: Call, spec: ConvolutionSpec, packed: View, form: WeightPanels) -> Call:
    """The call with packed weights in place of those that it had."""
    index = spec.weights
    shape, _ = weights_layout(call, dict.fromkeys((GROUPS, "n", "kh", "kw", "c"), 0))
    rows = form.rows(shape)
    words = (*rows, *contiguous_strides(rows))
    axes: tuple[str, ...] = ("row", "lane", HALF)[: len(rows)]
    static: tuple[int | None, ...] = contiguous_strides(rows)
    return over_others(call, {index: (Argument(form.dtype, axes, static), packed, words)})
