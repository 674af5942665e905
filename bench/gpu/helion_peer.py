"""A matrix product in Helion, which tunes it at full effort: the peer of `bench.gpu.contest`.

Importing this module loads Helion; ImportError where it is not installed.
"""

from __future__ import annotations

import helion
import helion.language as hl
import torch


@helion.kernel(static_shapes=True, autotune_effort="full")  # type: ignore[untyped-decorator]
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [M, K] times b [K, N]; the first call of a size tunes."""
    m, k = a.size()
    _, n = b.size()
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for rows, columns in hl.tile([m, n]):
        sums = hl.zeros([rows, columns], dtype=torch.float32)
        for depth in hl.tile(k):
            sums = torch.addmm(sums, a[rows, depth], b[depth, columns])
        out[rows, columns] = sums
    return out
