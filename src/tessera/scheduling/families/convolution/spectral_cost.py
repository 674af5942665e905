"""What convolutions through Fourier transforms cost: the sizes that transforms are fast at, and their time.

The library's throughput is a constant of measurement, as it is code that nobody here schedules: torch 2.13 with MKL on
one core of Zen 4, planes of 48 to 128 squared that stay in its caches (`backend/llvm/native/spectral_ir.py`). Counted
as 5 n log2 n for n complex points it makes 11 to 26 GFLOP/s, and as little as 3 at sizes that are odd or have large
prime factors.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

TRANSFORM_FLOPS: Final = 15e9
"""Operations a second of transforms on one core."""

PRODUCT_FLOPS: Final = 40e9
"""Operations a second of products of spectra, which come from a cache, on one core."""

MOVED_BYTES: Final = 10e9
"""Bytes a second of images, spectra of kernels and results, on one core."""

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


def spectral_seconds(problem: SpectralProblem) -> float:
    """The time of a spectral convolution."""
    half = problem.columns // 2 + 1
    read, written = problem.images * problem.channels, problem.images * problem.outputs
    along_rows = 2.5 * problem.columns * math.log2(problem.columns)
    along_columns = 5.0 * problem.rows * math.log2(max(problem.rows, 2)) * half
    flops = (read * problem.height + written * problem.results) * along_rows + (read + written) * along_columns
    if not problem.kept:
        flops += OTHERWISE * problem.kernels * (problem.rows * along_rows + along_columns)
    products = 8.0 * problem.images * problem.kernels * problem.rows * half
    planes = (read * problem.height + written * problem.results) * problem.columns * problem.itemsize
    seconds = flops / TRANSFORM_FLOPS + products / PRODUCT_FLOPS
    seconds = seconds * problem.itemsize / 4 + (planes + problem.spectra_bytes) / MOVED_BYTES
    return seconds * (1.0 if problem.native else OTHERWISE) / max(problem.workers, 1) + CALL_SECONDS
