"""The suites by name. Each is a function from a pool of workers to a `bench.results.SuiteResult`."""

from __future__ import annotations

from collections.abc import Callable

from bench.pool import Pool
from bench.results import SuiteResult
from bench.suites import (
    compiling,
    fused,
    gemm,
    jobs,
    mesh,
    overhead,
    profile,
    profile_analyses,
    profile_attach,
    rowwise,
    tune_faults,
    tuning,
    winners,
)
from bench.tuning import example, live, spaces

Progress = Callable[[str], None]
Suite = Callable[[Pool, Progress, bool], SuiteResult]

SUITES: dict[str, Suite] = {
    "gemm": gemm.run,
    "fused": fused.run,
    "rowwise": rowwise.run,
    "overhead": overhead.run,
    "compile": compiling.run,
    "tune-cache": winners.run,
    "tune-faults": tune_faults.run,
    **jobs.SUITES,
    tuning.NAME: tuning.run,
    "tune-peers": live.run,
    "tune-spaces": spaces.run,
    "tune-example": example.run,
    profile.NAME: profile.run,
    profile_analyses.NAME: profile_analyses.run,
    profile_attach.NAME: profile_attach.run,
    mesh.NAME: mesh.run,
}
