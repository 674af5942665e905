"""The default schedule of products on a CPU's matrix unit."""

from __future__ import annotations

from typing import Final

from tessera.scheduling.families.product.matrix.lowering import L1_DEPTH
from tessera.scheduling.families.product.problem import (
    DEPTHS,
    MOST_DOTS,
    MOST_ROWS,
    SHARED,
    ContractionProblem,
    dots_fit,
)
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX, UNIT_ROWS

BLOCK_ROWS: Final = 128
"""Rows of a block of A: with 256 columns, 1024 and 2048 cubed take 0.92 and 0.89 of oneDNN's speed on one thread of a
Xeon, 0.80 and 0.82 with 256 rows, 0.79 and 0.69 with 64 rows and 512 columns."""
BLOCK_BYTES: Final = 2 << 20
"""The most that packed rows of A, or columns of B, should take, which have all of K, ..."""
MOST_BYTES: Final = 16 << 20
"""... and the most that they may, both together."""

FEW_ROWS: Final = 64
STREAMED: Final = {True: (2048, 128), False: (1024, 256)}
"""Columns and rows of the pieces of B that few rows pack: up to `FEW_ROWS` of A, which are packed, and more. One thread
of a Xeon beside other jobs, oneDNN's time over ours, all of K packed and so: K = N = 4096, 2 rows 0.94 and 1.69, 16
rows 0.82 and 1.47, 64 rows 0.8 and 1.24, 128 rows 0.79 and 1.11; N = 11008, 0.78 and 1.82, 0.63 and 1.39, 0.68 and
1.03, 0.71 and 1.14; K = 11008 and N = 4096, 16 rows 0.57 and 1.47, 64 rows 0.57 and 1.17, 100 rows 0.57 and 0.98."""


def suits_unit(problem: ContractionProblem) -> bool:
    """Whether the matrix unit is the default for a product that it can multiply: K fills a tile, B lies as the unit
    reads it or is worth packing, and blocks of all of K can be packed.

    One thread of a Xeon with AMX beside other jobs, K = N = 4096, oneDNN's time over ours by vectors, B in place, and
    on the unit, B packed for each call: [K, N], 1 row 2.7 and 0.4, 2 rows 0.6 and 1.1, 8 rows 0.3 and 1.0, 32 rows 0.15
    and 1.05; [N, K], 1 row 2.5 and 0.45.
    """
    if _leaves_weights(problem):
        return True
    in_place = problem.m <= 1 or (problem.m <= MOST_DOTS and dots_fit(problem))
    if problem.k < problem.unit_depth or (in_place and not problem.b_panels and not problem.shared_quads):
        return False
    rows, columns = _register_tile(problem)
    packed = rows * _packs_a(problem) + columns * (not problem.b_panels)
    return packed * _depth(problem) * problem.element_bytes <= MOST_BYTES


def matrix_schedule(problem: ContractionProblem) -> Schedule:
    """A schedule on the matrix unit: blocks of A stay in the L2 cache while B's panels stream past them."""
    if problem.shared_quads and not problem.b_panels:
        return matrix_schedule(problem.over_panels).replace(pack_b=SHARED)
    rows, columns = _register_tile(problem)
    kc, packs_a = _depth(problem), _packs_a(problem)
    in_steps = problem.k > L1_DEPTH and problem.m > 2 * rows and problem.products == 1 and not problem.a_walks
    mc, nc = max(BLOCK_ROWS // rows * rows, rows), 256 if in_steps else 1024
    column_bytes = kc * problem.element_bytes
    while nc > columns and not problem.b_panels and nc * column_bytes > BLOCK_BYTES:
        nc //= 2
    while mc > rows and packs_a and mc * column_bytes > BLOCK_BYTES:
        mc = max(mc // 2 // rows * rows, rows)
    sums = "scratch" if in_steps else "registers"
    packs_b = not problem.b_panels
    if _leaves_weights(problem):
        mc, nc = _block_height(problem), 1024
        packs_a, packs_b, sums = True, False, "registers"
    elif _packs_pieces(problem):
        mc = _block_height(problem)
        nc, kc = STREAMED[mc <= FEW_ROWS]
        packs_a, sums = packs_a or mc <= FEW_ROWS, "scratch"
    schedule = Schedule(
        tile=(mc, nc, kc),
        micro=(rows, columns),
        unit=MATRIX,
        unroll=1,
        pack_a=packs_a,
        pack_b=packs_b,
        sums=sums,
        order="columns",
        parallel="rows" if problem.m > MOST_ROWS else "columns",
        pipeline_depth=1,
        fetch_ahead=0,
        fusion=True,
    )
    return schedule.replace(parallel="batch") if problem.batch >= problem.workers > 1 else schedule


def _packs_pieces(problem: ContractionProblem) -> bool:
    """Whether few rows meet so much of B that reading it takes the most time: it is packed in pieces that are used
    while they lie in the caches, each of a few long rows, so that there are few streams.
    """
    in_rows = problem.b_contiguous == "n" and not problem.b_panels and not problem.b_mapped and not problem.a_walks
    return in_rows and 1 < problem.m <= MOST_ROWS and problem.k > L1_DEPTH


def _leaves_weights(problem: ContractionProblem) -> bool:
    """Whether few rows, which fit the caches packed, meet weights [N, K]: the unit reads these where they lie.

    One thread of a Xeon beside other jobs, oneDNN's time over ours, B packed and so: K = N = 4096, 16 rows 0.94 and
    1.73, 64 rows 1.12 and 1.79, 128 rows 1.05 and 1.54, 256 rows 1.00 and 0.97. By dot products on vectors and so:
    N = 11008, 4 rows 0.89 and 1.40; K = N = 768, 8 rows 0.35 and 2.9; K = N = 64, 2 rows 1.7 and 2.2.
    """
    if not problem.turns or not 1 < problem.m <= MOST_ROWS or problem.k < problem.unit_depth:
        return False
    return _block_height(problem) * _depth(problem) * problem.element_bytes <= MOST_BYTES


def _block_height(problem: ContractionProblem) -> int:
    """The least of some heights that has all of few rows."""
    return next(height for height in (UNIT_ROWS, 2 * UNIT_ROWS, FEW_ROWS, MOST_ROWS) if height >= problem.m)


def _register_tile(problem: ContractionProblem) -> tuple[int, int]:
    """One row, as many as a tile of the unit has, or two such tiles: each other height would need code of its own."""
    rows = 1 if problem.m <= 1 else UNIT_ROWS if problem.m <= UNIT_ROWS else 2 * UNIT_ROWS
    return rows, problem.b_panels or (UNIT_ROWS if problem.n <= UNIT_ROWS else 2 * UNIT_ROWS)


def _packs_a(problem: ContractionProblem) -> bool:
    """Few rows are packed once, beside the zeros that fill their tile, instead of at each load."""
    return problem.a_mapped or problem.a_contiguous != "k" or 1 < problem.m <= UNIT_ROWS


def _depth(problem: ContractionProblem) -> int:
    return next((depth for depth in DEPTHS if depth >= problem.k), 1 << (problem.k - 1).bit_length())
