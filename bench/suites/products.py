"""What the suites of matrix products share: the contenders and the time they get."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.cases import Case
from bench.contest import Contender, contest
from bench.pool import Pool
from bench.results import Goal, SuiteResult
from bench.timing import Budget

TESSERA = Contender("tessera", "tessera", "tessera_fresh", "ours")
TESSERA_OUT = Contender("tessera out=", "tessera", "tessera_out", "ours", "out")
EAGER = Contender("torch", "torch", "torch_fresh", "eager")
EAGER_OUT = Contender("torch out=", "torch", "torch_out", "eager", "out")
RAISED = Contender("torch, malloc raised", "raised", "torch_fresh", "raised")
ONEDNN = Contender("oneDNN linear, packed", "torch", "onednn_linear", "library")
MKL = Contender("MKL unlocked, out=", "mkl", "mkl_out", "library", "out")
MKL_PACKED = Contender("MKL unlocked, packed", "mkl", "mkl_packed", "library")
OPENBLAS = Contender("OpenBLAS, out=", "openblas", "openblas", "library", "out")
COMPILED = Contender("torch.compile", "compile", "torch_compiled", "compiled")
COMPILED_OUT = Contender("torch.compile out=", "compile", "torch_compiled_out", "compiled", "out")
CONTROL = Contender("torch again (control)", "control", "torch_fresh", "control")

QUICK = Budget(seconds=0.3, kept=3, limit_s=1.0)
"""Enough to see that everything runs, not enough to believe the figures."""


def run_cases(
    name: str,
    pool: Pool,
    cases: Sequence[tuple[Case, tuple[Goal, ...]]],
    contenders: Sequence[Contender],
    *,
    progress: Callable[[str], None],
    budget: Budget,
) -> SuiteResult:
    """Holds one contest per case."""
    result = SuiteResult(name, pool.threads)
    for index, (case, goals) in enumerate(cases):
        progress(f"{name}, {pool.threads} threads, {index + 1} of {len(cases)}: {case.label}")
        result.cases.append(contest(pool, case, contenders, goals=goals, budget=budget))
    return result
