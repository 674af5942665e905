"""Matrix products: squares of four sizes, and few rows against a large square weight."""

from __future__ import annotations

from collections.abc import Callable

from bench.cases import Case, DtypeName
from bench.pool import Pool
from bench.results import Goal, SuiteResult
from bench.suites import products
from bench.timing import Budget

SQUARES = (512, 1024, 2048, 4096)
FEW_ROWS = (1, 8, 32)
WEIGHT = 4096

CONTENDERS = (
    products.TESSERA,
    products.TESSERA_OUT,
    products.EAGER,
    products.EAGER_OUT,
    products.ONEDNN,
    products.MKL,
    products.MKL_PACKED,
    products.OPENBLAS,
    products.COMPILED,
    products.CONTROL,
)


def goals(case: Case) -> tuple[Goal, ...]:
    """What `case` is to reach: fp32 squares 0.95 of the best library and 2x of torch as installed, all else 1.0."""
    square = case.shape[0] == case.shape[1]
    best = Goal("best library", ("library", "eager"), 0.95 if square and case.dtype == "fp32" else 1.0)
    if square and case.dtype == "fp32":
        return (best, Goal("torch as installed", ("eager",), 2.0, "fresh"))
    return (best,)


def cases(quick: bool) -> list[tuple[Case, tuple[Goal, ...]]]:
    """The suite's cases with their goals; two small ones when `quick`."""
    dtypes: tuple[DtypeName, ...] = ("fp32", "bf16")
    squares = [(n, n, n) for n in (SQUARES[:1] if quick else SQUARES)]
    shapes = squares + ([] if quick else [(m, WEIGHT, WEIGHT) for m in FEW_ROWS])
    found = [Case("matmul", shape, dtype) for dtype in dtypes for shape in shapes]
    return [(case, goals(case)) for case in found]


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count."""
    budget = products.QUICK if quick else Budget(seconds=2.0, kept=7, limit_s=10.0)
    return products.run_cases("gemm", pool, cases(quick), CONTENDERS, progress=progress, budget=budget)
