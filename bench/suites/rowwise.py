"""Row-wise kernels, which memory bounds: fresh and preallocated outputs, torch's malloc as installed and raised."""

from __future__ import annotations

from collections.abc import Callable

from bench.cases import Case, DtypeName, Operation
from bench.pool import Pool
from bench.results import Goal, SuiteResult
from bench.suites import products
from bench.timing import Budget

SIDE = 4096
OPERATIONS: tuple[Operation, ...] = ("softmax", "layer_norm", "rms_norm", "gelu")

CONTENDERS = (
    products.TESSERA,
    products.TESSERA_OUT,
    products.EAGER,
    products.EAGER_OUT,
    products.RAISED,
    products.COMPILED,
    products.COMPILED_OUT,
    products.CONTROL,
)

GOALS = (
    Goal("eager and torch.compile, fresh", ("eager", "compiled"), 1.25, "fresh"),
    Goal("eager and torch.compile, preallocated", ("eager", "compiled"), 1.1, "out"),
)


def cases(quick: bool) -> list[tuple[Case, tuple[Goal, ...]]]:
    """The suite's cases with their goals; of few rows when `quick`."""
    dtypes: tuple[DtypeName, ...] = ("fp32", "bf16")
    side = 512 if quick else SIDE
    return [(Case(operation, (side, side), dtype), GOALS) for dtype in dtypes for operation in OPERATIONS]


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count."""
    budget = products.QUICK if quick else Budget(seconds=3.0, kept=9, limit_s=12.0)
    return products.run_cases("rowwise", pool, cases(quick), CONTENDERS, progress=progress, budget=budget)
