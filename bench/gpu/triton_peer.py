"""A matrix product by hand in Triton, which `triton.autotune` tunes by trying a list: the peer of `bench.gpu.contest`.

Importing this module loads Triton, and reads its cache folder's name.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

CONFIGS: tuple[tuple[int, int, int, int, int], ...] = (
    (128, 256, 64, 3, 8),
    (64, 256, 32, 4, 4),
    (128, 128, 32, 4, 4),
    (128, 64, 32, 4, 4),
    (64, 128, 32, 4, 4),
    (128, 32, 32, 4, 4),
    (64, 32, 32, 5, 2),
    (32, 64, 32, 5, 2),
    (128, 256, 128, 3, 8),
    (256, 128, 128, 3, 8),
    (256, 64, 128, 4, 4),
    (64, 256, 128, 4, 4),
    (128, 128, 128, 4, 4),
    (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (128, 32, 64, 4, 4),
)
"""(BM, BN, BK, stages, warps) of the tutorial on matrix multiplication for NVIDIA, with those meant for 8 bits."""
GROUP = 8
"""Rows of tiles that run side by side, in all of the tutorial's list."""


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, c_ptr, m, n, k, a_step, b_step, c_step, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    # Tiles are walked down GROUP_M rows before the next column, so that neighbours share operands in L2.
    program = tl.program_id(0)
    down, across = tl.cdiv(m, BM), tl.cdiv(n, BN)
    first = program // (GROUP_M * across) * GROUP_M
    height = min(down - first, GROUP_M)
    row = first + program % (GROUP_M * across) % height
    column = program % (GROUP_M * across) // height
    rows, columns = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    a_at = a_ptr + (rows % m)[:, None] * a_step + depth[None, :]
    b_at = b_ptr + depth[:, None] * b_step + (columns % n)[None, :]
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(k, BK)):
        left = tl.load(a_at, mask=depth[None, :] < k - step * BK, other=0.0)
        right = tl.load(b_at, mask=depth[:, None] < k - step * BK, other=0.0)
        sums = tl.dot(left, right, sums)
        a_at += BK
        b_at += BK * b_step
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c_ptr + rows[:, None] * c_step + columns[None, :], sums.to(c_ptr.dtype.element_ty), mask=inside)


TUNED = triton.autotune(
    configs=[
        triton.Config({"BM": bm, "BN": bn, "BK": bk, "GROUP_M": GROUP}, num_stages=stages, num_warps=warps)
        for bm, bn, bk, stages, warps in CONFIGS
    ],
    key=["m", "n", "k"],
)(_product)


def product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """a [M, K] times b [K, N] into out [M, N], all with contiguous rows; the first call of a size tunes."""
    (m, k), n = a.shape, b.shape[1]

    def grid(chosen: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, chosen["BM"]) * triton.cdiv(n, chosen["BN"]),)

    TUNED[grid](a, b, out, m, n, k, a.stride(0), b.stride(0), out.stride(0))
    return out
