"""What a convolution under a schedule makes one worker of a CPU do. The loops are those of `convolution.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, cast

from tessera.scheduling.convolution_blocks import row_tiles, tails
from tessera.scheduling.convolution_space import ConvolutionProblem, block_of, padded_depth, scratch_bytes
from tessera.scheduling.machine import FMA_LATENCY, Machine, Work, largest_share
from tessera.scheduling.schedule import KnobValue, Schedule

COPY_CYCLES: Final = 4.0
"""Cycles that a vector of the image takes on its way into scratch memory, beside the traffic."""


def convolution_work(problem: ConvolutionProblem, schedule: Mapping[str, KnobValue], rates: Machine) -> Work:
    """The work of the worker with the largest share."""
    by, bx = block_of(schedule, problem)
    ry, mr, nr = cast(tuple[int, int, int], schedule["micro"])
    sums, size = problem.accumulator.itemsize, problem.element.itemsize
    panels = -(-problem.outputs // nr)
    cuts = {
        "batch": (problem.images, 1),
        "rows": (problem.rows, ry),
        "pixels": (problem.columns, mr),
        "columns": (problem.outputs, nr),
    }
    extent, step = cuts[cast(str, schedule["parallel"])]
    share = largest_share(extent, step, problem.workers) / max(extent, 1)
    heights = (mr, *tails(mr)) if schedule["tails"] else (mr,)
    row = sum(height * count for height, count in row_tiles(problem.columns, heights).items())
    pixels = float(problem.images) * problem.rows * row
    vectors = -(-nr * sums * 8 // problem.target.vector_bits)
    depth = padded_depth(problem) * math.prod(problem.kernel)
    waiting = max(1.0, FMA_LATENCY * 2 / (ry * mr * vectors))
    multiplied = pixels * panels * vectors * depth / (2 if problem.pairs else 1)
    work = Work(share * multiplied * waiting / 2 * rates.cycle_s * sums / 4, {})
    blocks = -(-problem.rows // by) * -(-problem.columns // bx) * problem.images
    image = float(problem.images) * problem.rows * problem.columns * problem.depth
    image *= math.prod(problem.window.stride) * problem.image_dtype.itemsize
    weights = float(panels) * nr * depth * size
    scratch = scratch_bytes(Schedule(schedule).replace(tile=(by, bx)), problem)
    if schedule["pack_a"]:
        staged = scratch * blocks * (1.0 if schedule["parallel"] != "columns" else problem.workers)
        work.packing_s += share * staged / rates.vector_bytes * COPY_CYCLES * rates.cycle_s
        work.pack("L2", share * staged)
    work.move(rates.home(weights), share * blocks * weights)
    tile_weights = float(nr) * depth * size
    work.move(rates.home(tile_weights), share * pixels / (ry * mr) * panels * tile_weights)
    out = pixels * problem.outputs * problem.out_dtype.itemsize
    work.move("DRAM", share * (image + 2 * out))
    return work
