"""What register tiles of a CPU's matrix unit cost beside their traffic."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tessera.scheduling.families.product.matrix.lowering import L1_DEPTH
from tessera.scheduling.families.product.nest import Nest, nest_of
from tessera.scheduling.families.product.problem import ContractionProblem
from tessera.scheduling.language.columns import Knobs, Number, divided, larger, smaller, where
from tessera.scheduling.lowering.microkernel.matrix_unit import UNIT_ROWS
from tessera.scheduling.model.estimate import PARTS
from tessera.scheduling.model.machine import Machine, Work

ROWS_PER_CYCLE: Final = 2
"""Rows of 64 bytes that are read into a tile in a cycle."""
TILE_CYCLES: Final = 100
"""Entering and leaving a register tile: filling and draining the unit, whose products take 52 cycles."""


def unit_nest(problem: ContractionProblem, schedule: Knobs, rates: Machine) -> Nest:
    """The nest of a schedule, or of many at once: all register tiles are as high, and where sums wait in scratch
    memory, all blocks of K are `L1_DEPTH`.
    """
    nest = nest_of(problem, schedule, rates)
    steps = schedule.equals("sums", "scratch") & (schedule.integers("tile")[2] >= problem.k)
    kc = where(steps, smaller(nest.kc, L1_DEPTH), nest.kc)
    tiles = ((nest.mr, divided(nest.m, nest.mr)),)
    return replace(nest, kc=kc, k_blocks=divided(nest.k, kc), row_tiles=tiles, overhanging=nest.mr)


def unit_arithmetic(problem: ContractionProblem, nest: Nest, rates: Machine, work: Work) -> None:
    """Seconds of all register tiles with their operands in L1."""
    flop_per_s = rates.unit_flop_per_s["bf16" if problem.pairs else "int8"]
    columns = divided(nest.nr * problem.products, UNIT_ROWS)
    # A row of A meets one tile of B at a time.
    multiplying = nest.mr * columns * (2 * UNIT_ROWS * problem.unit_depth) / flop_per_s
    reading = (nest.mr + columns * UNIT_ROWS) / ROWS_PER_CYCLE * rates.cycle_s
    results = nest.mr * columns * (problem.epilogue_operations + problem.outputs + 1)
    edges = (nest.k_blocks * TILE_CYCLES + results) * rates.cycle_s
    tiles = nest.row_tile_count * nest.column_tiles * problem.batch
    steps: Number = divided(nest.k, problem.unit_depth)
    work.compute_s = tiles * (steps * larger(multiplying, reading) + edges)
    parts = {"FMA": steps * multiplying, "issue": steps * reading, "edges": edges}
    work.parts = {name: tiles * parts.get(name, 0.0) for name in PARTS}
