"""A product with bias and gelu in one call: the libraries' fused calls against one Tessera kernel."""

from __future__ import annotations

from collections.abc import Callable

from bench.cases import Case, DtypeName
from bench.pool import Pool
from bench.results import Goal, SuiteResult
from bench.suites import products
from bench.timing import Budget

SQUARES = (1024, 4096)

CONTENDERS = (
    products.TESSERA,
    products.TESSERA_OUT,
    products.EAGER,
    products.EAGER_OUT,
    products.ONEDNN,
    products.MKL,
    products.MKL_PACKED,
    products.COMPILED,
    products.CONTROL,
)

GOALS = (
    Goal("best library", ("library",), 1.0),
    Goal("torch as installed", ("eager",), 2.0, "fresh"),
)


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count."""
    dtypes: tuple[DtypeName, ...] = ("fp32", "bf16")
    sizes = (512,) if quick else SQUARES
    cases = [(Case("linear_gelu", (n, n, n), dtype), GOALS) for dtype in dtypes for n in sizes]
    budget = products.QUICK if quick else Budget(seconds=2.0, kept=7, limit_s=10.0)
    return products.run_cases("fused", pool, cases, CONTENDERS, progress=progress, budget=budget)
