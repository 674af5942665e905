"""What `tessera-prof report` says of traces without kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tessera import profile
from tessera.cli import prof_report
from tessera.errors import ArgumentError
from tests.unit.profiling.support import run, two_step_plan


@pytest.mark.parametrize(
    ("mode", "runs", "hint"), [("summary", 3, "keeps sums alone"), ("timeline", 0, "ran no Tessera")]
)
def test_a_trace_without_kernels_says_why(
    tmp_path: Path, mode: Literal["summary", "timeline"], runs: int, hint: str
) -> None:
    path = tmp_path / "trace.parquet"
    with profile.session(mode=mode, exporters=[profile.parquet(path)]) as session:
        run(two_step_plan(), runs)
        session.mark("end")
    with pytest.raises(ArgumentError, match=hint):
        prof_report.report(path)
