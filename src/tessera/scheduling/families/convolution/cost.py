"""What a convolution under a schedule makes one worker of a CPU do. The loops are those of `convolution/nest.py`."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from tessera.scheduling.families.convolution.blocks import UNIT_DEPTH, unit_step
from tessera.scheduling.families.convolution.problem import (
    ConvolutionProblem,
    block_of,
    in_unit,
    padded_depth,
    scratch_bytes,
)
from tessera.scheduling.families.product.matrix.cost import ROWS_PER_CYCLE, TILE_CYCLES
from tessera.scheduling.language.columns import Knobs, Number, divided, larger, where
from tessera.scheduling.lowering.microkernel.matrix_unit import UNIT_ROWS
from tessera.scheduling.lowering.tails import row_tails, row_tiles
from tessera.scheduling.model.machine import DRAM, L2, Machine, Work, largest_share

LINE: Final = 64
COPY_CYCLES: Final = 4.0
"""Cycles that a vector of the image takes on its way into scratch memory, beside the traffic."""
EPILOGUE_CYCLES: Final = 3.0
"""Cycles for a vector of sums on its way from a matrix unit through scratch memory and an epilogue."""
FETCH_CYCLES: Final = 2.5
MISS_CYCLES: Final = np.array([0.0, 0.0, 7.5, 7.5])
"""Cycles per line of results that is fetched before it is stored to, and of one that is not, by the place in
`LEVELS` where results lie.

On Zen 4 fetching makes ResNet-50's bf16 layers of 64 channels take 1.02 of their time with one image, 0.94 with eight.
"""


def convolution_work(problem: ConvolutionProblem, schedule: Knobs, rates: Machine) -> Work:
    """The work of the worker with the largest share."""
    by, bx = block_of(schedule, problem)
    ry, mr, nr = schedule.integers("micro")
    size, panels = problem.element.itemsize, divided(problem.outputs, nr)
    share = _share(problem, schedule)
    pixels = float(problem.images) * problem.rows * _row(problem.columns, mr, schedule.flag("tails"))
    depth = padded_depth(problem) * math.prod(problem.kernel)
    work = Work.piecewise(
        schedule,
        in_unit(schedule, problem),
        lambda some: _unit_arithmetic(problem, some, rates),
        lambda some: _vector_arithmetic(problem, some, rates),
    )
    blocks = divided(problem.rows, by) * divided(problem.columns, bx) * problem.images
    image = float(problem.images) * problem.rows * problem.columns * problem.depth
    image *= math.prod(problem.window.stride) * problem.image_dtype.itemsize
    weights = 1.0 * panels * nr * depth * size
    staged = scratch_bytes(schedule, problem, (by, bx)) * blocks
    staged = staged * where(schedule.equals("parallel", "columns"), problem.workers, 1.0)
    staged = where(schedule.flag("pack_a"), share * staged, 0.0)
    work.packing_s = staged / rates.vector_bytes * COPY_CYCLES * rates.cycle_s
    work.pack(L2, staged)
    work.move(rates.home(weights), share * blocks * weights)
    tile_weights = 1.0 * nr * depth * size
    work.move(rates.home(tile_weights), share * pixels / (ry * mr) * panels * tile_weights)
    out = pixels * problem.outputs * problem.out_dtype.itemsize
    line_cycles = where(schedule.equals("pipeline_depth", 2), FETCH_CYCLES, MISS_CYCLES[rates.home(out)])
    work.compute_s = work.compute_s + share * out / LINE * line_cycles * rates.cycle_s
    work.move(DRAM, share * (image + 2 * out))
    return work


def _vector_arithmetic(problem: ConvolutionProblem, schedule: Knobs, rates: Machine) -> Work:
    """Seconds of all register tiles of vectors with their operands in L1."""
    ry, mr, nr = schedule.integers("micro")
    sums = problem.accumulator.itemsize
    computed = _row(problem.columns, mr, schedule.flag("tails"))
    vectors = divided(nr * sums * 8, problem.target.vector_bits)
    depth = padded_depth(problem) * math.prod(problem.kernel)
    peak = rates.flop_per_s.get("bf16" if problem.pairs else problem.accumulator.name) or rates.flop_per_s["fp32"]
    multiply_s = 2 * (2 if problem.pairs else 1) * rates.vector_bytes / sums / peak
    # Pixels of a tile whose sums hide the latency of each other: a smaller one waits.
    least = rates.fma_latency * rates.cycle_s / (ry * vectors * multiply_s)
    waiting = _row(problem.columns, mr, schedule.flag("tails"), least) / computed
    pixels = float(problem.images) * problem.rows * computed
    multiplied = pixels * divided(problem.outputs, nr) * vectors * depth / (2 if problem.pairs else 1)
    multiplying = _share(problem, schedule) * multiplied * multiply_s
    work = Work(multiplying * waiting)
    work.parts["FMA"] = multiplying * (problem.columns / computed)
    work.parts["edges"] = multiplying * (1 - problem.columns / computed)
    work.parts["wait"] = where(waiting > 1.0, multiplying * waiting, 0.0)
    return work


def _unit_arithmetic(problem: ConvolutionProblem, schedule: Knobs, rates: Machine) -> Work:
    """The same of a matrix unit: as `product/matrix/cost.py` has it for products."""
    ry, mr, nr = schedule.integers("micro")
    (kh, kw), depth = problem.kernel, padded_depth(problem)
    taps = where(schedule.flag("merge"), kw * depth // unit_step(kw * depth), kw * (depth // unit_step(depth)))
    multiplying = ry * mr * nr * 2 * UNIT_DEPTH / rates.unit_flop_per_s["bf16"]
    reading = (ry * mr + nr) / ROWS_PER_CYCLE * rates.cycle_s
    edges = (TILE_CYCLES + EPILOGUE_CYCLES * ry * mr * nr / UNIT_ROWS) * rates.cycle_s
    tiles = problem.images * divided(problem.rows, ry) * divided(problem.columns, mr) * divided(problem.outputs, nr)
    tiles = _share(problem, schedule) * tiles
    work = Work(tiles * (kh * taps * larger(multiplying, reading) + edges))
    work.parts["FMA"] = tiles * kh * taps * multiplying
    work.parts["issue"] = tiles * kh * taps * reading
    work.parts["edges"] = tiles * edges
    return work


def _share(problem: ConvolutionProblem, schedule: Knobs) -> Number:
    """The part of all work that the busiest worker has."""
    ry, mr, nr = schedule.integers("micro")
    cuts = {
        "batch": (problem.images, 1),
        "rows": (problem.rows, ry),
        "pixels": (problem.columns, mr),
        "columns": (problem.outputs, nr),
    }
    share: Number = 1.0
    for name, (extent, step) in cuts.items():
        part = largest_share(extent, step, problem.workers) / max(extent, 1)
        share = where(schedule.equals("parallel", name), part, share)
    return share


def _row(columns: int, mr: Number, smaller_tiles: Number, least: Number = 0.0) -> Number:
    """Pixels that the register tiles along a row of results compute: all, and what the last has too many. Tiles of
    fewer than `least` count as that many.
    """

    def computed(height: int, has_tails: bool, least: float) -> float:
        heights = (height, *row_tails(height)) if has_tails else (height,)
        return max(1, sum(max(height, least) * count for height, count in row_tiles(columns, heights).items()))

    if not isinstance(mr, np.ndarray):
        return computed(mr, smaller_tiles, least)
    cases = np.stack(np.broadcast_arrays(mr, np.asarray(smaller_tiles, np.float64), least), axis=1)
    different, places = np.unique(cases, axis=0, return_inverse=True)
    found = np.array([computed(int(height), bool(tails), each) for height, tails, each in different])
    return found[places.ravel()]
