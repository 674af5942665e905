"""What convolutions through Fourier transforms cost: the sizes that transforms are fast at, and their time.

The library's code nobody here schedules. What it makes of a core's rates was measured: torch 2.13 with MKL on one core
of Zen 4 (117.6 GFLOP/s of fp32, 39.6 GB/s read from memory), planes of 48 to 128 squared that stay in its caches
(`backend/llvm/native/spectral_ir.py`). Counted as 5 n log2 n for n complex points it makes 11 to 26 GFLOP/s there, and
as little as 3 at sizes that are odd or have large prime factors.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

from tessera.scheduling.model.machine import Machine

TRANSFORM_SHARE: Final = 0.128
"""Of a core's fp32 arithmetic, the share that transforms reach: 15 GFLOP/s there."""

PRODUCT_SHARE: Final = 0.34
"""That of products of spectra, which come from a cache: 40 GFLOP/s."""

MOVED_SHARE: Final = 0.253
"""Of a core's share of main memory's bandwidth, what images, spectra of kernels and results reach: 10 GB/s."""

OTHERWISE: Final = 3.0
"""How much longer calls of torch take, whose arrays leave the caches between transforms."""

CALL_SECONDS: Final = 8e-6
"""What one call of the library takes beside its work."""

_OTHER_FACTORS: Final = 1.25
"""How much longer a point takes where 3 and 5 are among the factors (measured: 1.2 to 1.45)."""


@lru_cache(maxsize=1 << 10)
def fast_points(least: int) -> int:
    """The cheapest even number of points, `least` or more, with no prime factors but 2, 3 and 5."""
    best, lowest = 0, math.inf
    limit = 2 * max(least, 2)
    for fives in range(8):
        for threes in range(12):
            odd = 5**fives * 3**threes
            if odd > limit:
                break
            points = max(2 * odd, odd << max(-(-least // odd) - 1, 0).bit_length())
            cost = points * math.log2(points) * (1.0 if odd == 1 else _OTHER_FACTORS)
            if cost < lowest:
                best, lowest = points, cost
    return best


class SpectralProblem(NamedTuple):
    """A convolution by transforms of `rows` x `columns` points: of images of `height` rows, of which `results` are
    wanted; `itemsize` is that of real numbers. The kernels' spectra are there already where `kept`; `native` says that
    a kernel does it, and not calls of torch.
    """

    images: int
    channels: int
    outputs: int
    groups: int
    height: int
    results: int
    rows: int
    columns: int
    itemsize: int
    kept: bool
    native: bool
    workers: int

    @property
    def kernels(self) -> int:
        """The number of planes of kernels."""
        return self.outputs * self.channels // max(self.groups, 1)

    @property
    def spectra_bytes(self) -> int:
        """The memory of the kernels' spectra."""
        return self.kernels * self.rows * (self.columns // 2 + 1) * 2 * self.itemsize


def spectral_seconds(problem: SpectralProblem, rates: Machine) -> float:
    """The time of a spectral convolution; `rates` are those of one of the workers."""
    half = problem.columns // 2 + 1
    read, written = problem.images * problem.channels, problem.images * problem.outputs
    along_rows = 2.5 * problem.columns * math.log2(problem.columns)
    along_columns = 5.0 * problem.rows * math.log2(max(problem.rows, 2)) * half
    flops = (read * problem.height + written * problem.results) * along_rows + (read + written) * along_columns
    if not problem.kept:
        flops += OTHERWISE * problem.kernels * (problem.rows * along_rows + along_columns)
    products = 8.0 * problem.images * problem.kernels * problem.rows * half
    planes = (read * problem.height + written * problem.results) * problem.columns * problem.itemsize
    seconds = (flops / TRANSFORM_SHARE + products / PRODUCT_SHARE) / rates.flop_per_s["fp32"] * problem.itemsize / 4
    seconds += (planes + problem.spectra_bytes) / (MOVED_SHARE * rates.byte_per_s["DRAM"])
    return seconds * (1.0 if problem.native else OTHERWISE) / max(problem.workers, 1) + CALL_SECONDS
