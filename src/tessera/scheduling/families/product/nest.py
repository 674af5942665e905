"""The loop nest of a matrix product as its cost model counts it: blocks, register tiles, and one worker's share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessera.scheduling.families.product.problem import ContractionProblem
from tessera.scheduling.language.columns import Knobs, Number, divided, larger, smaller, where
from tessera.scheduling.lowering.tails import block_tails
from tessera.scheduling.model.machine import Machine, largest_share


@dataclass(frozen=True, slots=True)
class Nest:
    """The numbers of one schedule on one problem that every count below is made of, or columns of them. Extents are one
    worker's. `row_tiles` are heights of register tiles down its rows with how many there are of each, `overhanging` the
    height of the one that reaches over the last row.
    """

    m: Number
    n: Number
    k: int
    mc: Number
    nc: Number
    kc: Number
    mr: Number
    nr: Number
    columns: Number
    row_tiles: tuple[tuple[Number, Number], ...]
    overhanging: Number
    column_tiles: Number
    k_blocks: Number

    @property
    def row_tile_count(self) -> Number:
        """Register tiles down the worker's rows."""
        return sum(count for _, count in self.row_tiles)

    @property
    def rows_computed(self) -> Number:
        """Rows of all register tiles, those below the last row among them."""
        return sum(height * count for height, count in self.row_tiles)

    @property
    def jc_blocks(self) -> Number:
        """Trips of the outermost loop."""
        return divided(self.n, self.nc)

    @property
    def ic_blocks(self) -> Number:
        """Blocks of A per block of B."""
        return divided(self.m, self.mc)


def nest_of(problem: ContractionProblem, schedule: Knobs, rates: Machine) -> Nest:
    """The nest of a schedule, or of many at once."""
    mc, nc, kc = schedule.integers("tile")
    mr, nr = schedule.integers("micro")
    mc, nc = larger(mc // mr, 1) * mr, larger(nc // nr, 1) * nr  # as the lowering rounds them
    m, n = max(problem.m, 1), max(problem.n, 1)
    by_rows = schedule.equals("parallel", "rows")
    worker_m = where(by_rows, largest_share(m, mr, problem.workers), m)
    worker_n = where(by_rows, n, largest_share(n, nr, problem.workers))
    column_tiles = worker_n // nc * divided(nc, nr) + divided(worker_n % nc, nr)
    lanes = rates.vector_bytes // problem.accumulator.itemsize
    k = max(problem.k, 1)
    row_tiles, overhanging = _row_tiles(worker_m, mc, mr)
    return Nest(
        worker_m, worker_n, k, smaller(mc, worker_m), smaller(nc, worker_n), smaller(kc, k), mr, nr,
        divided(nr, lanes) * problem.products, row_tiles, overhanging, column_tiles, divided(k, kc),
    )  # fmt: skip


def _row_tiles(m: Number, mc: Number, mr: Number) -> tuple[tuple[tuple[Number, Number], ...], Number]:
    """How many register tiles of each height a worker's rows take: full ones, then one smaller tile per block, of one
    of the two heights of `block_tails`; and the height of the last one.
    """
    tall, short = _tails(mr)
    full, overhanging = 0, mr
    counts: list[Number] = [0, 0]
    for block, blocks in ((mc, m // mc), (m % mc, 1)):
        times = where(block > 0, blocks, 0)
        tiles = larger(divided(block - tall, mr), 0)
        rest = block - tiles * mr
        low = (rest > 0) & (rest <= short)
        high = (rest > 0) & (rest > short)
        full = full + tiles * times
        counts = [counts[0] + high * times, counts[1] + low * times]
        present = times > 0
        overhanging = where(high & present, tall, where(low & present, short, overhanging))
    return ((mr, full), (tall, counts[0]), (short, counts[1])), overhanging


def _tails(mr: Number) -> tuple[Number, Number]:
    """The two heights of `block_tails`, 0 for one that there is not."""
    if not isinstance(mr, np.ndarray):
        first, second, *_ = (*block_tails(mr), 0, 0)
        return first, second
    known = {height: (*block_tails(height), 0, 0)[:2] for height in np.unique(mr).tolist()}
    table = np.zeros((max(known) + 1, 2), np.int64)
    for height, tails in known.items():
        table[height] = tails
    return table[mr, 0], table[mr, 1]
