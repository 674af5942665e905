"""Lowering for GPUs: the specifications that `contraction` and `mapreduce` lower for CPUs, in the shape that GPUs want.

One program of the grid owns one tile of the result, of a matrix product (`gpu_contraction`) or of a map or reduction
(`gpu_rows`). What is staged in shared memory and in registers is left to the compiler that reads this Tile IR.
"""

from __future__ import annotations

from tessera.scheduling.gpu_contraction import lower_contraction_gpu
from tessera.scheduling.gpu_problem import contraction_gpu_problem
from tessera.scheduling.gpu_rows import LONGEST_ROW, lower_map_reduce_gpu, map_reduce_gpu_schedule

__all__ = [
    "LONGEST_ROW",
    "contraction_gpu_problem",
    "lower_contraction_gpu",
    "lower_map_reduce_gpu",
    "map_reduce_gpu_schedule",
]
