"""How near a computation is to moving its bytes: against a copy of as many, measured beside it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessera.errors import ArgumentError
from tessera.system.notebooks import ShownAsText

if TYPE_CHECKING:
    from tessera.handle import Tensor

MOST_REPEATS = 10_000


@dataclass(frozen=True)
class CopyBound(ShownAsText):
    """A computation and a copy of the same bytes, measured in turn: medians of `repeats` runs of each, in seconds.

    `bytes` are those of the kernels' operands and results, each counted once; the copy reads half of them and writes
    the other half. `flops` are the kernels' floating-point operations.
    """

    seconds: float
    copy_seconds: float
    bytes: int
    flops: float
    repeats: int

    @property
    def pct(self) -> float:
        """The copy's share of the computation's time, 0 to 100: 100 is as fast as memory is, if all bytes must move."""
        return 100.0 * self.copy_seconds / self.seconds

    def __str__(self) -> str:
        copied = f"a copy of its {self.bytes / 1e6:.1f} MB takes {1e3 * self.copy_seconds:.3f} ms"
        return f"{1e3 * self.seconds:.3f} ms, {copied}: {self.pct:.0f} % of the copy bound"


def copy_bound(compute: Callable[[], Tensor], repeats: int = 15) -> CopyBound:
    """Measures `compute`, a function that gives a pending tensor, against a copy of the bytes that it must move.

    Both run on torch's number of threads, in turn, so that what disturbs one disturbs the other. More than 100 % is
    possible: what lies in caches need not be moved. Raises ArgumentError where nothing is computed.
    """
    if not 1 <= repeats <= MOST_REPEATS:
        raise ArgumentError(f"repeats={repeats}", hints=[f"1 to {MOST_REPEATS}"])
    import torch  # here, as analyses of files do without it

    from tessera import profile

    with profile.session() as session:
        compute().eval()
    records = [record for record in session.records() if record.kind == "kernel"]
    moved = int(sum(record.bytes or 0.0 for record in records))
    if moved < 8:
        raise ArgumentError("a computation that runs no kernel has no copy bound", hints=["give a pending tensor"])
    source = torch.ones(moved // 8, dtype=torch.float32, device="cpu")
    target = torch.empty_like(source)
    ours: list[float] = []
    copies: list[float] = []
    for _ in range(repeats):
        copies.append(_timed(lambda: target.copy_(source)))
        ours.append(_timed(lambda: compute().eval()))
    flops = float(sum(record.flops or 0.0 for record in records))
    return CopyBound(statistics.median(ours), statistics.median(copies), moved, flops, repeats)


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
