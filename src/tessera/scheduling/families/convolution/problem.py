"""What a convolution on CPUs is to its rules, defaults and costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tessera.dtypes import DType
from tessera.scheduling.families.convolution.blocks import block_size, packed_depth, pixel_stride, scratch_rows
from tessera.scheduling.families.convolution.nest import multiplies_pairs
from tessera.scheduling.language.columns import Knobs, Number
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX
from tessera.scheduling.lowering.spec import ConvolutionSpec, Window, under_cast, unit_axis
from tessera.target import Target


@dataclass(frozen=True)
class ConvolutionProblem:
    """What legality and cost depend on: extents, dtypes, layouts, machine.

    `images` counts images and groups; `rows`, `columns` and `outputs` are the results of one (pixels of several images
    may be one row, where they follow each other), `kernel` is the size of the window, `depth` the channels of a group.
    `element` is the dtype of the packed weights, which come in panels of `panel` channels. `turned`: the image has its
    channels apart in memory. `mapped`: a prologue is computed on the way.
    """

    images: int
    rows: int
    columns: int
    outputs: int
    depth: int
    kernel: tuple[int, int]
    window: Window
    image_dtype: DType
    out_dtype: DType
    accumulator: DType
    element: DType
    pairs: bool
    panel: int
    turned: bool
    mapped: bool
    out_turned: bool
    target: Target
    workers: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""
        return self.images, self.rows, self.columns, self.outputs, self.depth

    @property
    def has_unit(self) -> bool:
        """Whether the machine has a matrix unit for these products."""
        return self.pairs and self.target.has_amx_bf16

    @property
    def products(self) -> int:
        """Multiplications."""
        results = self.images * self.rows * self.columns * self.outputs
        return results * self.depth * math.prod(self.kernel)


def panel_width(outputs: int, accumulator: DType, target: Target) -> int:
    """Channels of a panel of packed weights: two vectors of sums, one where there are no more channels."""
    lanes = max(1, target.vector_bits // (8 * accumulator.itemsize))
    return lanes if outputs <= lanes else 2 * lanes


def convolution_problem(
    spec: ConvolutionSpec, target: Target, extents: Mapping[str, int], workers: int = 1
) -> ConvolutionProblem:
    """What the rules of schedules for `spec` need to know, for the extents of its axes."""
    image = under_cast(spec.image)
    stored = [argument for argument in spec.arguments if argument.axes][-1]
    pairs = multiplies_pairs(spec, target.multiplies_bf16_pairs)
    return ConvolutionProblem(
        images=math.prod([extents[axis] for axis in spec.batch]),
        rows=extents["y"],
        columns=extents["x"],
        outputs=extents["n"],
        depth=extents["c"],
        kernel=(extents["kh"], extents["kw"]),
        window=spec.window,
        image_dtype=image.dtype,
        out_dtype=spec.outputs[0].value.dtype,
        accumulator=spec.accumulator.dtype,
        element=image.dtype if pairs else spec.accumulator.dtype,
        pairs=pairs,
        panel=panel_width(extents["n"], spec.accumulator.dtype, target),
        turned=unit_axis(spec.image, spec.arguments, "") != "c",
        mapped=image.operation != "load",
        out_turned=stored.stride("n") != 1,
        target=target,
        workers=workers,
    )


def padded_depth(problem: ConvolutionProblem) -> int:
    """Channels of a group in scratch memory and in packed weights."""
    return packed_depth(problem.depth, 2 if problem.pairs else 1, problem.has_unit)


def scratch_bytes(schedule: Knobs, problem: ConvolutionProblem, tile: tuple[Number, Number] | None = None) -> Number:
    """Bytes of a block of the image in scratch memory: of the schedule's tile, or of another one."""
    rows, line = scratch_rows(schedule, problem.window, pixel_of(schedule, problem), tile)
    return rows * line * problem.element.itemsize


def block_of(schedule: Knobs, problem: ConvolutionProblem) -> tuple[Number, Number]:
    """Rows and columns of the blocks in which one worker would make all results."""
    return block_size(schedule, problem.window, pixel_of(schedule, problem), problem.rows, problem.columns)


def pixel_of(schedule: Knobs, problem: ConvolutionProblem) -> Number:
    """Elements of scratch memory from a pixel to the next."""
    return pixel_stride(padded_depth(problem), problem.element.itemsize, schedule.flag("merge"))


def in_unit(schedule: Knobs, problem: ConvolutionProblem) -> Number:
    """Whether the matrix unit multiplies; only convolutions that it can multiply have the knob."""
    return schedule.equals("unit", MATRIX) if problem.has_unit else False
