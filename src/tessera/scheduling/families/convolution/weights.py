"""The weights of a convolution in panels, which its kernels read, and what packs them where they are no constant.

weights [O, C / G, KH, KW]      ->  panels [G O' KH KW C / G, 32]   (bf16: [..., 32, 2])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tessera.dtypes import DType
from tessera.lazy.structures.structure import contiguous_strides
from tessera.ops.record import Operator
from tessera.scheduling.families.convolution.blocks import packed_depth
from tessera.scheduling.families.convolution.nest import HALF, multiplies_pairs
from tessera.scheduling.families.convolution.problem import panel_width
from tessera.scheduling.families.decomposition import (
    Array,
    Called,
    Copied,
    DecomposableCall,
    Decomposition,
    Itself,
    Steps,
    Workspace,
)
from tessera.scheduling.families.family import Packed
from tessera.scheduling.lowering.spec import Argument, ConvolutionSpec
from tessera.target import Target

LANE: Final = "lane"
"""The axis of packed weights along a panel's width."""
PANELS: Final = "panels"
GROUPS: Final = "g"
"""The batch axis of a convolution's groups."""


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


def is_packed(argument: Argument) -> bool:
    """Whether a kernel reads an argument as packed weights."""
    return LANE in argument.axes


def packed_argument(form: WeightPanels, shape: Sequence[int]) -> tuple[Argument, tuple[int, ...]]:
    """What a kernel takes the panels of weights [G, O, KH, KW, C] for, and their extents."""
    rows = form.rows(shape)
    axes: tuple[str, ...] = ("row", LANE, HALF)[: len(rows)]
    return Argument(form.dtype, axes, contiguous_strides(rows)), rows


def form_of(spec: ConvolutionSpec, dtype: DType, outputs: int, target: Target) -> WeightPanels:
    """How weights of `dtype` are packed, for so many `outputs` of a group."""
    pairs = multiplies_pairs(spec, target.multiplies_bf16_pairs)
    sums = spec.accumulator.dtype
    width = panel_width(outputs, sums, target)
    return WeightPanels(width, 2 if pairs else 1, dtype if pairs else sums, pairs and target.has_amx_bf16)


def weights_layout(extents: Mapping[str, int], strides: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides of the weights as [G, O, KH, KW, C], of those along the axes of a call."""
    axes = ("n", "kh", "kw", "c")
    shape = (extents.get(GROUPS, 1), *[extents[axis] for axis in axes])
    return shape, (strides.get(GROUPS, 0), *[strides[axis] for axis in axes])


def constant_weights(
    spec: ConvolutionSpec, extents: Mapping[str, int], constants: Mapping[int, Sequence[int]], target: Target
) -> Mapping[int, Packed]:
    """The weights as kernels read them, where they are a constant."""
    index = spec.weights
    if index not in constants:
        return {}
    argument = spec.arguments[index]
    shape, own = weights_layout(extents, dict(zip(argument.axes, constants[index], strict=True)))
    form = form_of(spec, argument.dtype, extents["n"], target)
    kind, rows = packed_argument(form, shape)
    return {index: Packed(form, shape, own, kind, rows)}


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
    reference=_refuse,
    gradient=_refuse,
    body=_refuse,
    attributes={"form": None},
    library=_fill,
)
"""What packs weights that a plan computes: no operator of users, and in no table."""


def _by_panels(source: Array, itemsize: int, packed: str, form: WeightPanels) -> Iterator[tuple[Array, Array]]:
    """What is copied of the weights [G, O, KH, KW, C], and where to: the whole panels, and then the last one. Lanes
    that no channel belongs to are not written: nothing is done with their sums.
    """
    (groups, outputs, *window), (group_step, step, *steps) = source.extents, source.strides
    width, pair = form.width, form.group
    group_place, panel_place, *places = contiguous_strides(form.shape(source.extents))
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
            start = first * width * step * itemsize
            yield (
                Array(source.memory, shape, read, offset_bytes=start),
                Array(packed, shape, written, offset_bytes=first * panel_place * itemsize),
            )


def _steps(case: DecomposableCall) -> Steps:
    """By kernels that copy, or by a call of the library where weights become another dtype or the last pair lacks a
    channel.
    """
    spec = case.spec
    index = spec.weights
    weights, words = case.arguments[index]
    strides = dict(zip(spec.arguments[index].axes, words[len(words) // 2 :], strict=True))
    shape, own = weights_layout(case.extents, strides)
    form = form_of(spec, weights.dtype, case.extents["n"], case.target)
    kind, rows = packed_argument(form, shape)
    source, packed = Array(index, shape, own), Array(PANELS, rows, contiguous_strides(rows))
    workspaces = {PANELS: Workspace(form.dtype, rows)}
    steps: list[Copied | Called] = []
    if form.dtype is not weights.dtype or shape[-1] < form.depth(shape[-1]):
        if any(stride < 0 for stride in own):  # which the library cannot walk
            forwards = Array("forwards", shape, contiguous_strides(shape))
            workspaces["forwards"] = Workspace(weights.dtype, shape)
            steps.append(Copied(source, forwards))
            source = forwards
        steps.append(Called(PACKING, {"form": form}, source, packed))
    else:
        steps += [Copied(*each) for each in _by_panels(source, weights.dtype.itemsize, PANELS, form)]
    # As the weights are seen by what reports on them, over the memory of the panels.
    seen = Array(PANELS, rows, contiguous_strides(rows), stands_for=index)
    return Steps((*steps, Itself({index: (kind, seen)}, case.asked)), workspaces)


PACKED_WEIGHTS = Decomposition(
    name="packed-weights",
    why="kernels read weights in panels, and these are no constant, whose panels would be kept",
    when="call",
    applies=lambda case: case.target.kind == "cpu" and not any(map(is_packed, case.kinds)),
    steps=_steps,
)
